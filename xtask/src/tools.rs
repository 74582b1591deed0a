//! Programs the cases call, installed where they are missing.

use crate::shell::{cargo, output, root, run};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Program and the Debian package that brings it.
const DEBIAN: [(&str, &str); 18] = [
    ("curl", "curl"),
    ("ab", "apache2-utils"),
    ("python3", "python3-minimal"),
    ("strace", "strace"),
    ("ip", "iproute2"),
    ("nghttp", "nghttp2-client"),
    ("h2load", "nghttp2-client"),
    ("go", "golang-go"),
    // A compiler for filters in WebAssembly, its linker and its library of C.
    ("clang", "clang"),
    ("wasm-ld", "lld"),
    ("/usr/lib/wasm32-wasi/libc.a", "wasi-libc"),
    ("openssl", "openssl"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("redis-cli", "redis-tools"),
    // The server under another name: its own package would start one.
    ("redis-check-rdb", "redis-tools"),
    // The browser that drives the dashboard, and a terminal.
    ("chromium", "chromium"),
    ("tmux", "tmux"),
];

/// The same for the cases of `tests/engines`.
const ENGINES: [(&str, &str); 5] = [
    ("curl", "curl"),
    ("python3", "python3-minimal"),
    ("go", "golang-go"),
    ("java", "default-jre-headless"),
    ("mvn", "maven"),
];

/// Copies the dependencies of a project of Maven into a folder.
const COPY_JARS: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// Tools from the Go module proxy: a tester of HTTP/2 servers, an ACME server and a DNS server for it, and both
/// ends of gRPC's tests of interoperability.
const GO: [(&str, &str); 5] = [
    ("h2spec", "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"),
    ("pebble", "github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1"),
    ("pebble-challtestsrv", "github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@v2.10.1"),
    ("grpc-interop/client", "google.golang.org/grpc/interop/client@v1.85.0"),
    ("grpc-interop/server", "google.golang.org/grpc/interop/server@v1.85.0"),
];

pub fn install() -> Result<()> {
    debian(&DEBIAN)?;
    python()?;
    node()?;
    npm()?;
    go()?;
    filter_in_c()?;
    filter_in_assemblyscript()?;
    etcd()?;
    slapd()?;
    faketime()
}

/// Packages of PyPI that cases drive the gateway with.
fn python() -> Result<()> {
    venv("python", "tests/tools/requirements.txt").map(drop)
}

/// Packages of npm that build the dashboard and drive a browser.
pub fn npm() -> Result<()> {
    npm_ci("dashboard", &root().join("dashboard"))
}

/// Packages of npm that cases drive the gateway with.
fn node() -> Result<()> {
    npm_ci("tests/tools", &root().join("target/node"))
}

/// Installs the packages that `FROM/package-lock.json` pins in a folder. Their scripts do not run.
fn npm_ci(from: &str, folder: &Path) -> Result<()> {
    let wanted = root().join(from);
    let stamp = folder.join("node_modules/.sluice-lock");
    let lock = std::fs::read_to_string(wanted.join("package-lock.json"))?;
    if std::fs::read_to_string(&stamp).is_ok_and(|there| there == lock) {
        return Ok(());
    }
    println!("installing the packages of {from}/package.json into {}", folder.display());
    std::fs::create_dir_all(folder)?;
    for name in ["package.json", "package-lock.json"].into_iter().filter(|_| wanted != folder) {
        std::fs::copy(wanted.join(name), folder.join(name))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    run(npm.current_dir(folder))?;
    std::fs::write(stamp, lock)?;
    Ok(())
}

/// A virtual environment of Python in `target/NAME`, with the packages of a file of the repository.
pub fn venv(name: &str, requirements: &str) -> Result<PathBuf> {
    let (folder, wanted) = (root().join("target").join(name), root().join(requirements));
    let (stamp, text) = (folder.join("requirements.txt"), std::fs::read_to_string(&wanted)?);
    if std::fs::read_to_string(&stamp).is_ok_and(|there| there == text) {
        return Ok(folder);
    }
    if output(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_err() {
        println!("python3 cannot make virtual environments; installing python3-venv by apt-get");
        run(&mut apt(&["update", "-qq"]))?;
        run(&mut apt(&["install", "-y", "-qq", "--no-install-recommends", "python3-venv"]))?;
    }
    println!("installing the packages of {} into {}", wanted.display(), folder.display());
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pip = folder.join("bin/pip");
    run(Command::new(pip).args(["install", "--quiet", "--requirement"]).arg(&wanted))?;
    std::fs::write(stamp, text)?;
    Ok(folder)
}

fn go() -> Result<()> {
    GO.iter().try_for_each(|(program, package)| go_tool(program, package).map(drop))?;
    filter_in_go()
}

/// The filter in WebAssembly of the cases, from `tests/tools/filter`. Go has its parts in its cache after the first time.
fn filter_in_go() -> Result<()> {
    let module = root().join("target/tools/filter.wasm");
    let mut build = Command::new("go");
    build.args(["build", "-trimpath", "-ldflags=-s -w", "-buildmode=c-shared", "-o"]).arg(module).arg(".");
    build.envs([("GOOS", "wasip1"), ("GOARCH", "wasm")]);
    run(build.current_dir(root().join("tests/tools/filter")))
}

/// A filter in C.
fn filter_in_c() -> Result<()> {
    filter("filter-c/main.c", "filter-c.wasm", |source, module| {
        let mut build = Command::new("clang");
        build.args([
            "--target=wasm32-wasi",
            "-O2",
            "-D_GNU_SOURCE",
            "-mexec-model=reactor",
            "-nodefaultlibs",
        ]);
        build.arg(source).args(["-lc", "-o"]).arg(module);
        build
    })
}

/// A filter in AssemblyScript.
fn filter_in_assemblyscript() -> Result<()> {
    filter("filter-as/main.ts", "filter-as.wasm", |source, module| {
        let mut build = Command::new("node");
        build.arg(root().join("target/node/node_modules/assemblyscript/bin/asc.js")).arg(source);
        build.args(["-O", "--runtime", "minimal", "--use", "abort=", "--outFile"]).arg(module);
        build
    })
}

/// Builds a filter of the cases from a file of `tests/tools`, unless it is newer than that.
fn filter(source: &str, module: &str, build: impl FnOnce(&Path, &Path) -> Command) -> Result<()> {
    let (source, module) =
        (root().join("tests/tools").join(source), root().join("target/tools").join(module));
    let changed = |file: &Path| std::fs::metadata(file).and_then(|file| file.modified());
    let is_new = changed(&module).is_ok_and(|built| changed(&source).is_ok_and(|written| written < built));
    if is_new { Ok(()) } else { run(&mut build(&source, &module)) }
}

/// A program from the Go module proxy, installed in `target/tools` where it is missing there.
pub fn go_tool(program: &str, package: &str) -> Result<PathBuf> {
    let tools = root().join("target/tools");
    let path = tools.join(program);
    if !path.is_file() {
        println!("{program} is missing; installing it by go");
        run(Command::new("go").args(["install", package]).env("GOBIN", path.parent().unwrap_or(&tools)))?;
    }
    Ok(path)
}

/// The real etcd, out of Debian's packages.
pub fn etcd() -> Result<PathBuf> {
    unpacked("etcd", &["etcd-server", "etcd-client"], &[("usr/bin", "etcd"), ("usr/bin", "etcdctl")])?;
    Ok(root().join("target/tools/etcd"))
}

/// The programs that the cases of `tests/engines` run: OPA, Kafka, Zipkin and Keycloak.
pub fn engines() -> Result<()> {
    debian(&ENGINES)?;
    go_tool("opa", "github.com/open-policy-agent/opa@v1.9.0")?;
    let pom = root().join("tests/engines/pom.xml");
    let text = std::fs::read_to_string(&pom)?;
    for (name, groups) in [
        ("kafka", "-DexcludeGroupIds=io.zipkin,org.keycloak"),
        ("zipkin", "-DincludeGroupIds=io.zipkin"),
        ("keycloak", "-DincludeGroupIds=org.keycloak"),
    ] {
        let folder = root().join("target/tools").join(name);
        let stamp = folder.join("pom.xml");
        if std::fs::read_to_string(&stamp).is_ok_and(|there| there == text) {
            continue;
        }
        println!("installing {name} into {} by Maven", folder.display());
        // No file of another version remains.
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let mut maven = Command::new("mvn");
        maven.args(["--batch-mode", "--quiet", "--file"]).arg(&pom).arg(COPY_JARS);
        run(maven.arg(groups).arg(format!("-DoutputDirectory={}", folder.display())))?;
        unpack_archives(&folder)?;
        std::fs::write(stamp, &text)?;
    }
    Ok(())
}

/// Replaces each archive in a folder by its content, without its folder.
fn unpack_archives(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "gz") {
            let mut tar = Command::new("tar");
            run(tar.args(["--strip-components=1", "-xzf"]).arg(&path).arg("-C").arg(folder))?;
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Prometheus, with `promtool` beside it.
pub fn prometheus() -> Result<PathBuf> {
    unpacked("prometheus", &["prometheus"], &[("usr/bin", "prometheus"), ("usr/bin", "promtool")])?;
    Ok(root().join("target/tools/prometheus"))
}

/// OpenLDAP's server, with the libraries of its own; its package would start one.
fn slapd() -> Result<()> {
    let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let files = [
        ("usr/sbin", "slapd"),
        ("etc/ldap/schema", "core.schema"),
        (&libraries, "libslapi-2.5.so.0"),
        (&libraries, "libltdl.so.7"),
        (&libraries, "libwrap.so.0"),
    ];
    unpacked("slapd", &["slapd", "libltdl7", "libwrap0"], &files)
}

/// A library that gives a process another clock, for the goal `clock`.
fn faketime() -> Result<()> {
    let place = format!("usr/lib/{}-linux-gnu/faketime", std::env::consts::ARCH);
    unpacked("libfaketime", &["libfaketime"], &[(&place, "libfaketimeMT.so.1")])
}

/// Files out of Debian's packages, in `target/tools`. Nothing is installed on the system, so it takes no rights.
fn unpacked(what: &str, packages: &[&str], files: &[(&str, &str)]) -> Result<()> {
    let tools = root().join("target/tools");
    if files.iter().all(|(_, name)| tools.join(name).is_file()) {
        return Ok(());
    }
    println!("{what} is missing; unpacking Debian's packages of it into {}", tools.display());
    let folder = tools.join(format!("{what}.new"));
    std::fs::create_dir_all(&folder)?;
    let download = || {
        let mut command = Command::new("apt-get");
        command.args(["download", "-qq"]).args(packages).current_dir(&folder);
        command
    };
    if run(&mut download()).is_err() {
        run(&mut apt(&["update", "-qq"]))?;
        run(&mut download())?;
    }
    for entry in std::fs::read_dir(&folder)? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(folder.join("all")))?;
        }
    }
    for (place, name) in files {
        // Some are links to a file whose name has the whole version.
        std::fs::copy(folder.join("all").join(place).join(name), tools.join(name))?;
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Programs and the Debian packages that bring them, installed where they are missing.
pub fn debian(wanted: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<_> = wanted.iter().filter(|(program, _)| !present(program)).collect();
    if missing.is_empty() {
        let there: Vec<_> = wanted.iter().map(|(program, _)| *program).collect();
        println!("all there: {}", there.join(", "));
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    println!("missing: {}; installing by apt-get", packages.join(", "));
    run(&mut apt(&["update", "-qq"]))?;
    run(apt(&["install", "-y", "-qq", "--no-install-recommends"]).args(&packages))?;
    for (program, package) in missing {
        if !present(program) {
            bail!("{program} is still not on the path after installing {package}");
        }
    }
    Ok(())
}

/// `cargo NAME`, installed from crates.io where it is missing.
pub fn cargo_plugin(name: &str) -> Result<()> {
    if output(cargo().args([name, "--version"])).is_err() {
        println!("cargo-{name} is missing; installing it");
        run(cargo().args(["install", &format!("cargo-{name}"), "--locked"]))?;
    }
    Ok(())
}

fn present(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    // Debian puts servers where an ordinary user's path does not look.
    found || std::path::Path::new("/usr/sbin").join(program).is_file()
}

fn apt(args: &[&str]) -> Command {
    let mut command = as_root("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// A program that needs the rights of root, by sudo unless this process has them.
pub fn as_root(program: &str) -> Command {
    let root = std::fs::metadata("/proc/self").is_ok_and(|me| {
        use std::os::unix::fs::MetadataExt;
        me.uid() == 0
    });
    if root {
        return Command::new(program);
    }
    let mut sudo = Command::new("sudo");
    sudo.arg(program);
    sudo
}
