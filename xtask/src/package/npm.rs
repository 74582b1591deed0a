//! `sluice-gateway-linux-CPU-VERSION.tgz` for npm: the program, and a script on the path that becomes it.

use super::parts::LICENCES;
use super::{Dist, trial};
use crate::shell::{root, run};
use crate::tools;
use anyhow::{Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn build(dist: &Dist) -> Result<()> {
    let (tree, sources) = (dist.folder("npm")?, root().join("packaging/npm"));
    for folder in ["bin", "lib"] {
        std::fs::create_dir(tree.join(folder))?;
    }
    let manifest = std::fs::read_to_string(sources.join("package.json"))?;
    let manifest = manifest.replace("@VERSION@", &dist.version).replace("@CPU@", cpu()?);
    std::fs::write(tree.join("package.json"), manifest)?;
    std::fs::copy(sources.join("sluice"), tree.join("bin/sluice"))?;
    std::fs::copy(&dist.binary, tree.join("lib/sluice"))?;
    for licence in LICENCES {
        std::fs::copy(dist.parts.join(licence), tree.join(licence))?;
    }
    std::fs::copy(root().join("packaging/registry.md"), tree.join("README.md"))?;
    run(npm(dist)?.args(["pack", "--silent", "--pack-destination"]).arg(&dist.out).current_dir(tree))
}

pub fn check(dist: &Dist) -> Result<()> {
    let work = dist.folder("npm-check")?;
    let global = |action: &str, what: &Path| -> Result<()> {
        let mut command = npm(dist)?;
        command
            .args([action, "--silent", "--offline", "--global", "--prefix"])
            .arg(work.join("prefix"))
            .arg(what);
        run(&mut command)
    };
    global("install", &archive(dist)?)?;
    let program = work.join("prefix/bin/sluice");
    for licence in LICENCES {
        let file = work.join("prefix/lib/node_modules").join(name()?).join(licence);
        ensure!(file.is_file(), "the package lacks {licence}");
    }
    trial::serves(dist, &program, &work.join("conf"))?;
    global("uninstall", Path::new(&name()?))?;
    ensure!(!program.exists(), "the program is there after `npm uninstall`");
    Ok(())
}

/// npm with a cache of its own, so that only the files given to it count.
fn npm(dist: &Dist) -> Result<Command> {
    tools::debian(&[("npm", "npm")])?;
    let mut command = Command::new("npm");
    command.env("npm_config_cache", dist.folder("npm-cache")?).env("npm_config_update_notifier", "false");
    Ok(command)
}

fn archive(dist: &Dist) -> Result<PathBuf> {
    Ok(dist.out.join(format!("{}-{}.tgz", name()?, dist.version)))
}

fn name() -> Result<String> {
    Ok(format!("sluice-gateway-linux-{}", cpu()?))
}

fn cpu() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x64"),
        "aarch64" => Ok("arm64"),
        other => bail!("npm's name of the processor {other} is unknown"),
    }
}
