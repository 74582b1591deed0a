//! `sluice-VERSION-CPU-linux.tar.gz`: the program and all that goes with it, in one folder.

use super::{CPU, Dist, trial};
use crate::shell::{root, run};
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

pub fn build(dist: &Dist) -> Result<()> {
    let (work, name) = (dist.folder("tarball")?, name(dist));
    let folder = work.join(&name);
    run(Command::new("cp").arg("-r").arg(&dist.parts).arg(&folder))?;
    run(Command::new("cp").arg("-r").arg(root().join("conf/production")).arg(folder.join("conf")))?;
    let mut tar = Command::new("tar");
    // The same files give the same archive.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=go-w"]);
    tar.args(["-I", if dist.check { "gzip -1" } else { "gzip -9" }]);
    run(tar.arg("-C").arg(work).arg("-cf").arg(archive(dist)).arg(name))
}

pub fn check(dist: &Dist) -> Result<()> {
    let work = dist.folder("tarball-check")?;
    run(Command::new("tar").arg("-C").arg(&work).arg("-xzf").arg(archive(dist)))?;
    let folder = work.join(name(dist));
    let program = folder.join("sluice");
    run(Command::new(&program).arg("check").arg(folder.join("conf")))?;
    trial::serves(dist, &program, &work.join("conf"))
}

fn archive(dist: &Dist) -> PathBuf {
    dist.out.join(format!("{}.tar.gz", name(dist)))
}

fn name(dist: &Dist) -> String {
    format!("sluice-{}-{CPU}-linux", dist.version)
}
