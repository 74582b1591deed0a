//! `sluice_gateway-VERSION-….whl` for PyPI, where another project has the name `sluice`: the program as a script, so
//! that pip puts it on the path.

use super::needs::Needs;
use super::{Dist, trial};
use crate::shell::{root, run};
use crate::tools;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn build(dist: &Dist) -> Result<()> {
    let tree = dist.folder("wheel")?;
    let (info, data) =
        (tree.join(format!("{}.dist-info", name(dist))), tree.join(format!("{}.data", name(dist))));
    std::fs::create_dir_all(info.join("licenses"))?;
    std::fs::create_dir_all(data.join("scripts"))?;
    std::fs::copy(&dist.binary, data.join("scripts/sluice"))?;
    std::fs::copy(dist.parts.join("LICENSE"), info.join("licenses/LICENSE"))?;
    let packaging = root().join("packaging");
    let metadata = std::fs::read_to_string(packaging.join("pypi/METADATA"))?
        .replace("@VERSION@", &dist.version)
        + &std::fs::read_to_string(packaging.join("registry.md"))?;
    std::fs::write(info.join("METADATA"), metadata)?;
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: cargo x package\nRoot-Is-Purelib: false\nTag: py3-none-{}\n",
        platform(&dist.binary)?
    );
    std::fs::write(info.join("WHEEL"), wheel)?;
    let mut pack = Command::new(python()?);
    // The first moment that a zip archive can name: the same files give the same archive.
    pack.args(["-m", "wheel", "pack", "--dest-dir"])
        .arg(&dist.out)
        .arg(&tree)
        .env("SOURCE_DATE_EPOCH", "315532800");
    run(&mut pack)
}

pub fn check(dist: &Dist) -> Result<()> {
    let (work, wheel) = (dist.folder("wheel-check")?, archive(dist)?);
    // Compares every file with its hash in RECORD.
    run(Command::new(python()?)
        .args(["-m", "wheel", "unpack", "--dest"])
        .arg(work.join("unpacked"))
        .arg(&wheel))?;
    let venv = work.join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let pip = |args: &[&str]| {
        let mut command = Command::new(venv.join("bin/pip"));
        command.args(args);
        command
    };
    run(pip(&["install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel))?;
    run(&mut pip(&["check"]))?;
    trial::serves(dist, &venv.join("bin/sluice"), &work.join("conf"))?;
    run(&mut pip(&["uninstall", "--quiet", "--yes", "sluice-gateway"]))?;
    anyhow::ensure!(!venv.join("bin/sluice").exists(), "the program is there after `pip uninstall`");
    Ok(())
}

fn name(dist: &Dist) -> String {
    format!("sluice_gateway-{}", dist.version)
}

fn archive(dist: &Dist) -> Result<PathBuf> {
    Ok(dist.out.join(format!("{}-py3-none-{}.whl", name(dist), platform(&dist.binary)?)))
}

/// Python with the packages of `packaging/requirements.txt`.
pub fn python() -> Result<PathBuf> {
    let venv = tools::venv("package-python", "packaging/requirements.txt")?;
    Ok(venv.join("bin/python"))
}

/// The oldest platform that has the symbols the program needs, as pip names it: `manylinux_2_34_x86_64`.
fn platform(binary: &Path) -> Result<String> {
    Ok(format!("manylinux_{}_{}", Needs::of(binary)?.glibc.replace('.', "_"), std::env::consts::ARCH))
}
