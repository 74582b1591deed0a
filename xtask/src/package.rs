//! `cargo x package`: builds what users install, into `target/dist`. With `--check`: builds the same from the binary
//! that the tests use, into `target/dist-check`, and tries each artefact.
//!
//! An artefact is one file below `package/` and one line in [`ARTEFACTS`]. Its data files are under `packaging/`.

mod chroot;
mod compose;
mod crates;
mod deb;
mod helm;
mod image;
mod load;
mod needs;
mod nfpm;
mod npm;
mod parts;
mod rpm;
mod sbom;
mod service;
mod tarball;
mod trial;
mod wheel;
mod workflows;

use crate::shell::{output, root, run, stage};
use crate::{build, tools};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The processor of this machine, as Rust names it: packages are built where they run.
const CPU: &str = std::env::consts::ARCH;

/// The glibc that the gateway is built against, the oldest that Rust's library works with. It is that of
/// RHEL 7; Debian 8 has a later one.
const GLIBC: &str = "2.17";

/// The sources of artefacts, and the folder they go to.
pub struct Dist {
    /// The gateway's, such as `0.1.0`.
    pub version: String,
    /// The gateway, without debug information.
    pub binary: PathBuf,
    /// Files that several artefacts share, see [`parts`].
    pub parts: PathBuf,
    /// For artefacts, and nothing else: each file here is listed in `SHA256SUMS`.
    pub out: PathBuf,
    /// Artefacts are made to be tried: how fast they are made counts, and their size does not.
    pub check: bool,
    /// For intermediate files, see [`Dist::folder`].
    work: PathBuf,
}

impl Dist {
    /// An empty folder for the intermediate files of one artefact.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        empty(self.work.join(name))
    }
}

struct Artefact {
    name: &'static str,
    /// Writes files to `out`.
    build: fn(&Dist) -> Result<()>,
    /// Tries the files that `build` has written to `out`: installs or starts them, and sends requests.
    check: fn(&Dist) -> Result<()>,
}

/// In the order in which they are built; a later one may use an earlier one's files in `out`.
const ARTEFACTS: &[Artefact] = &[
    Artefact { name: "tarball", build: tarball::build, check: tarball::check },
    Artefact { name: "wheel", build: wheel::build, check: wheel::check },
    Artefact { name: "npm", build: npm::build, check: npm::check },
    Artefact { name: "deb", build: deb::build, check: deb::check },
    Artefact { name: "rpm", build: rpm::build, check: rpm::check },
    Artefact { name: "sbom", build: sbom::build, check: sbom::check },
    Artefact { name: "image", build: image::build, check: image::check },
    Artefact { name: "helm", build: helm::build, check: helm::check },
    Artefact { name: "compose", build: compose::build, check: compose::check },
    Artefact { name: "workflows", build: workflows::build, check: workflows::check },
];

#[derive(Debug, Default, PartialEq)]
struct Options {
    check: bool,
    binary: Option<PathBuf>,
    only: Option<String>,
}

const USAGE: &str = "usage: cargo x package [--check] [--binary PATH] [--only NAME]";

fn options(args: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--check" => options.check = true,
            "--binary" => options.binary = Some(rest.next().context(USAGE)?.into()),
            "--only" => options.only = Some(rest.next().context(USAGE)?.clone()),
            _ => bail!(USAGE),
        }
    }
    if let Some(only) = &options.only
        && ARTEFACTS.iter().all(|artefact| artefact.name != only)
    {
        let names: Vec<_> = ARTEFACTS.iter().map(|artefact| artefact.name).collect();
        bail!("unknown artefact {only:?}; the artefacts are: {}", names.join(", "));
    }
    Ok(options)
}

pub fn command(args: &[String]) -> Result<()> {
    let options = options(args)?;
    stage("package", || package(options))
}

fn package(options: Options) -> Result<()> {
    let binary = match options.binary {
        Some(path) => std::path::absolute(path)?,
        None if options.check => stage("build and lints", build::workspace)?.gateway,
        None => stage("build", release)?,
    };
    let dist = stage("parts", || prepare(&binary, options.check))?;
    let chosen = |artefact: &&Artefact| options.only.as_ref().is_none_or(|only| only == artefact.name);
    for artefact in ARTEFACTS.iter().filter(chosen) {
        stage(&format!("{}: build", artefact.name), || (artefact.build)(&dist))?;
    }
    stage("sums", || sums(&dist.out))?;
    if options.check {
        for artefact in ARTEFACTS.iter().filter(chosen) {
            stage(&format!("{}: check", artefact.name), || (artefact.check)(&dist))?;
        }
    }
    Ok(())
}

/// The target for which users get packages.
fn target() -> String {
    format!("{CPU}-unknown-linux-gnu")
}

/// Builds the gateway for users, against [`GLIBC`]: zig has the symbols of each version.
fn release() -> Result<PathBuf> {
    let programs = tools::venv("package-zig", "packaging/zig.txt")?.join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)))?;
    let mut command = crate::shell::cargo();
    command.env("PATH", path).args(["zigbuild", "--release", "--locked", "--package", "gateway"]);
    run(command.args(["--target", &format!("{}.{GLIBC}", target())]))?;
    Ok(root().join("target").join(target()).join("release/sluice"))
}

fn prepare(binary: &Path, check: bool) -> Result<Dist> {
    let target = root().join("target");
    let (out, work) = if check { ("dist-check", "package-check") } else { ("dist", "package") };
    let (out, work) = (empty(target.join(out))?, empty(target.join(work))?);
    let parts = empty(work.join("parts"))?;
    // All crates have the workspace's version, and so has this one.
    let dist = Dist {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        binary: parts.join("sluice"),
        parts,
        out,
        check,
        work,
    };
    tools::debian(&[("strip", "binutils")])?;
    run(Command::new("strip").arg("-o").arg(&dist.binary).arg(binary))?;
    println!("{}: {}, stripped {}", dist.binary.display(), size(binary)?, size(&dist.binary)?);
    let version = output(Command::new(&dist.binary).arg("--version"))?;
    if version.trim() != format!("sluice {}", dist.version) {
        bail!("{} is {version:?}, but the version is {}", binary.display(), dist.version);
    }
    parts::write(&dist)?;
    Ok(dist)
}

/// Writes `SHA256SUMS` over all files of a folder, as `sha256sum --check` reads it.
fn sums(out: &Path) -> Result<()> {
    let names = names(out)?;
    let text = output(Command::new("sha256sum").current_dir(out).arg("--").args(&names))?;
    std::fs::write(out.join("SHA256SUMS"), text)?;
    for name in names {
        println!("{name}: {}", size(&out.join(&name))?);
    }
    Ok(())
}

/// Names of the artefacts in a folder, sorted.
fn names(out: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(out)? {
        let name = entry?.file_name().into_string().ok().context("an artefact's name is not UTF-8")?;
        if name != "SHA256SUMS" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Makes a folder, without the files that an earlier run has left there.
fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

fn size(path: &Path) -> Result<String> {
    let bytes = std::fs::metadata(path).with_context(|| format!("no file {}", path.display()))?.len();
    Ok(format!("{:.1} MB", bytes as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_unknown_ones_rejected() {
        let read = |line: &str| options(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(read("").unwrap(), Options::default());
        assert_eq!(
            read("--check --binary a/b --only tarball").unwrap(),
            Options { check: true, binary: Some("a/b".into()), only: Some("tarball".into()) }
        );
        for wrong in ["--binary", "--only", "--chek", "tarball"] {
            assert_eq!(read(wrong).unwrap_err().to_string(), USAGE);
        }
        let unknown = read("--only zip").unwrap_err().to_string();
        assert!(unknown.starts_with("unknown artefact \"zip\"; the artefacts are: tarball"), "{unknown}");
    }
}
