//! `cargo x compare`: the original programs beside Sluice, on the same files (`tests/compare`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root, run};
use crate::tools;

/// The formats whose original can be run here, and the folders of their small files. Kong is not to be had.
const FORMATS: [&str; 4] = ["nginx", "envoy", "scg", "zuul"];

/// The originals that are Maven projects: format, project and the name of its program.
const PROJECTS: [(&str, &str, &str); 2] = [
    ("scg:", "tests/compare/spring-cloud-gateway", "spring-cloud-gateway.jar"),
    ("zuul:", "bench/rivals/zuul1", "zuul1-rival.jar"),
];

/// Compares the files named in `args` as `FORMAT:FILE`, or the fixtures of the importers. Other arguments go to
/// `tests/compare/compare.py`.
pub fn command(args: &[String]) -> Result<()> {
    let is_file = |arg: &&String| FORMATS.iter().any(|format| arg.starts_with(&format!("{format}:")));
    let (files, options): (Vec<&String>, Vec<&String>) = args.iter().partition(is_file);
    let files: Vec<String> = match files.is_empty() {
        true => fixtures()?,
        false => files.into_iter().cloned().collect(),
    };
    if files.iter().any(|file| file.starts_with("nginx:")) {
        tools::debian(&[("nginx", "nginx-light"), ("nginx", "libnginx-mod-stream")])?;
    }
    let jars = root().join("target/compare-jars");
    for (format, project, name) in PROJECTS {
        if files.iter().any(|file| file.starts_with(format)) && !jars.join(name).is_file() {
            tools::debian(&[("java", "openjdk-17-jdk-headless"), ("mvn", "maven")])?;
            build(project, &jars, name)?;
        }
    }
    let packages = tools::venv("compare", "tests/compare/requirements.txt")?;
    let gateway = match std::env::var_os("SLUICE_BIN") {
        Some(program) => PathBuf::from(program),
        None => {
            run(cargo().args(["build", "--package", "gateway"]))?;
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
            target.join("debug/sluice")
        }
    };
    let mut command = Command::new(packages.join("bin/python3"));
    command.current_dir(root()).arg("tests/compare/compare.py").env("COMPARE_JARS", &jars);
    command.arg("--sluice").arg(gateway).args(["--certs", "tests/certs", "--work"]);
    command.arg(std::env::temp_dir().join("sluice-compare")).args(files).args(options);
    run(&mut command)
}

/// Builds a Maven project outside of the source tree and keeps its program.
fn build(project: &str, jars: &Path, name: &str) -> Result<()> {
    let folder = jars.join("build").join(project);
    std::fs::create_dir_all(&folder)?;
    let target = format!("-Dbench.target={}", folder.display());
    run(Command::new("mvn")
        .args(["-q", "-B", "-DskipTests", "package", &target])
        .current_dir(root().join(project)))?;
    std::fs::rename(folder.join(name), jars.join(name)).with_context(|| format!("{project} has no {name}"))
}

fn fixtures() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for format in FORMATS {
        let folder = Path::new("importers/fixtures").join(if format == "scg" { "spring" } else { format });
        let Ok(entries) = std::fs::read_dir(root().join(&folder)) else { continue };
        for entry in entries {
            let entry = entry.context("cannot list the fixtures")?;
            if entry.path().is_file() {
                found.push(format!("{format}:{}", folder.join(entry.file_name()).display()));
            }
        }
    }
    if found.is_empty() {
        bail!("there are no files to compare; name some as FORMAT:FILE");
    }
    found.sort();
    Ok(found)
}
