//! `sluice_gateway-VERSION-….whl` for PyPI, where another project has the name `sluice`: the program as a script, so
//! that pip puts it on the path.

use super::needs::Needs;
use super::parts::LICENCES;
use super::{CPU, Dist, trial};
use crate::shell::{root, run};
use crate::tools;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn build(dist: &Dist) -> Result<()> {
    let tree = dist.folder("wheel")?;
    let (info, data) =
        (tree.join(format!("{}.dist-info", name(dist))), tree.join(format!("{}.data", name(dist))));
    std::fs::create_dir_all(info.join("licenses"))?;
    std::fs::create_dir_all(data.join("scripts"))?;
    std::fs::copy(&dist.binary, data.join("scripts/sluice"))?;
    for licence in LICENCES {
        std::fs::copy(dist.parts.join(licence), info.join("licenses").join(licence))?;
    }
    let packaging = root().join("packaging");
    let metadata = std::fs::read_to_string(packaging.join("pypi/METADATA"))?
        .replace("@VERSION@", &dist.version)
        + &std::fs::read_to_string(packaging.join("registry.md"))?;
    std::fs::write(info.join("METADATA"), metadata)?;
    let mut wheel = "Wheel-Version: 1.0\nGenerator: cargo x package\nRoot-Is-Purelib: false\n".to_owned();
    for platform in platform(&dist.binary)?.split('.') {
        wheel += &format!("Tag: py3-none-{platform}\n");
    }
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
    let licences = work.join(format!("unpacked/{0}/{0}.dist-info/licenses", name(dist)));
    for licence in LICENCES {
        ensure!(licences.join(licence).is_file(), "the wheel lacks {licence}");
    }
    let venv = work.join("venv");
    run(Command::new(python()?).args(["-m", "venv"]).arg(&venv))?;
    let pip = |args: &[&str]| {
        let mut command = Command::new(venv.join("bin/pip"));
        command.args(args);
        command
    };
    run(pip(&["install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel))?;
    run(&mut pip(&["check"]))?;
    trial::serves(dist, &venv.join("bin/sluice"), &work.join("conf"))?;
    run(&mut pip(&["uninstall", "--quiet", "--yes", "sluice-gateway"]))?;
    ensure!(!venv.join("bin/sluice").exists(), "the program is there after `pip uninstall`");
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
    Ok(venv.join("bin/python3"))
}

/// The oldest platform that has the symbols the program needs, as pip names it: `manylinux_2_34_x86_64`.
fn platform(binary: &Path) -> Result<String> {
    Ok(platform_of(&Needs::of(binary)?.glibc))
}

fn platform_of(glibc: &str) -> String {
    // Versions of pip before 20.3 know only the older name.
    let older = if glibc == "2.17" { format!("manylinux2014_{CPU}.") } else { String::new() };
    format!("{older}manylinux_{}_{CPU}", glibc.replace('.', "_"))
}

#[cfg(test)]
mod tests {
    use super::{CPU, platform_of};

    #[test]
    fn glibc_2_17_has_two_names() {
        assert_eq!(platform_of("2.34"), format!("manylinux_2_34_{CPU}"));
        assert_eq!(platform_of("2.17"), format!("manylinux2014_{CPU}.manylinux_2_17_{CPU}"));
    }
}
