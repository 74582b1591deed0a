//! One build for every check: clippy compiles the whole workspace with its tests, so that lints,
//! unit tests, samples, cases and goals share what it makes.
//!
//! The gateway in it has the test features of its libraries; they add code that only tests call.

use crate::shell::{cargo, output, root, show};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs that a build made.
pub struct Built {
    pub gateway: PathBuf,
    pub cases: PathBuf,
    pub soak: PathBuf,
    /// Unit and integration tests.
    pub tests: Vec<TestBinary>,
}

pub struct TestBinary {
    /// `ROOM/TARGET`.
    pub name: String,
    pub path: PathBuf,
    /// The folder of its crate, in which it runs.
    pub folder: PathBuf,
}

/// A line of cargo's JSON output, as far as it is used here.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Line {
    CompilerMessage {
        message: Diagnostic,
    },
    CompilerArtifact {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds and lints the workspace. A warning is an error.
pub fn workspace() -> Result<Built> {
    let mut command = cargo();
    command.args(["build", "--workspace", "--all-targets", "--message-format", "json"]);
    command.env("RUSTC_WORKSPACE_WRAPPER", clippy()?).stdout(Stdio::piped());
    let shown = show(&command);
    println!("$ {shown}");
    let mut child = command.spawn().with_context(|| format!("cannot start `{shown}`"))?;
    let stdout = child.stdout.take().context("cargo has no standard output")?;
    let (mut warnings, mut executables) = (0, Vec::new());
    for line in BufReader::new(stdout).lines() {
        match serde_json::from_str(&line?) {
            Ok(Line::CompilerMessage { message }) => {
                // A dependency's warnings are not in the output: cargo caps their lints.
                warnings += usize::from(message.level == "warning");
                eprint!("{}", message.rendered.unwrap_or_default());
            }
            Ok(Line::CompilerArtifact { manifest_path, target, profile, executable: Some(path) }) => {
                let folder = manifest_path.parent().unwrap_or(Path::new("/")).to_path_buf();
                executables.push((folder, target, profile, path));
            }
            _ => {}
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    if warnings > 0 {
        bail!("{warnings} warnings; see above");
    }
    collect(executables)
}

fn collect(executables: Vec<(PathBuf, Target, Profile, PathBuf)>) -> Result<Built> {
    let (mut gateway, mut cases, mut soak, mut tests) = (None, None, None, Vec::new());
    for (folder, target, profile, path) in executables {
        let kind = target.kind.first().map_or("", String::as_str);
        match (target.name.as_str(), kind, profile.test) {
            ("cases", "test", _) => cases = Some(path),
            ("sluice", "bin", false) => gateway = Some(path),
            ("soak", "bin", false) => soak = Some(path),
            (_, "bench" | "example", _) | (_, _, false) => {}
            (name, ..) => {
                let room = folder.file_name().unwrap_or_default().to_string_lossy();
                tests.push(TestBinary { name: format!("{room}/{name}"), path, folder });
            }
        }
    }
    Ok(Built {
        gateway: gateway.context("the build made no program `sluice`")?,
        cases: cases.context("the build made no test `cases`")?,
        soak: soak.context("the build made no program `soak`")?,
        tests,
    })
}

/// The compiler that lints, of the toolchain in use.
fn clippy() -> Result<PathBuf> {
    let sysroot = output(Command::new("rustc").current_dir(root()).args(["--print", "sysroot"]))?;
    let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
    if !driver.is_file() {
        bail!("{} is missing; install it with `rustup component add clippy`", driver.display());
    }
    Ok(driver)
}
