//! `cargo x engines`: cases against the real servers that plugins talk to.
//!
//! These are too heavy for `cargo x test`: a first run downloads some 360 MB and builds OPA.

use crate::shell::{root, run, stage};
use crate::{build, tools};
use anyhow::Result;
use std::process::Command;

/// Runs the cases of `tests/engines` whose names contain one of the words, or all.
pub fn engines(words: &[String]) -> Result<()> {
    stage("tools", tools::engines)?;
    let built = stage("build and lints", build::workspace)?;
    // `timeout` ends a run that takes longer than this stage may.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10s", "15m"]).arg(&built.cases).args(words).current_dir(root());
    command.env("SLUICE_BIN", &built.gateway).env("SLUICE_CASES", "tests/engines");
    stage("cases against real servers", || run(&mut command))
}
