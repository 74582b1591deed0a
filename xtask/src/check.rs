//! `cargo x check`: the checks before a commit that start no gateway.

use crate::shell::{cargo, run, stage};
use crate::{build, tidy, units};
use anyhow::Result;

pub fn check() -> Result<()> {
    stage("format", format)?;
    stage("tidy", tidy::tidy)?;
    let built = stage("build and lints", build::workspace)?;
    stage("unit tests", || units::run(&built.tests))
}

pub fn format() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
}
