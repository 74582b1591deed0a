//! `cargo x check`: what must hold before a commit, without starting the gateway.

use crate::shell::{cargo, run, stage};
use crate::tidy;
use anyhow::Result;

pub fn check() -> Result<()> {
    stage("format", format)?;
    stage("tidy", tidy::tidy)?;
    stage("clippy", clippy)?;
    stage("unit tests", units)
}

pub fn format() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
}

pub fn clippy() -> Result<()> {
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
}

/// Everything but the whole-program cases, which need a running gateway.
pub fn units() -> Result<()> {
    run(cargo().args(["test", "--workspace", "--exclude", "tests", "--quiet"]))?;
    run(cargo().args(["test", "--package", "tests", "--lib", "--quiet"]))
}
