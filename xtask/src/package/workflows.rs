//! The workflows of GitHub, which build and publish the other artefacts. Nothing of them is an artefact itself.

use super::Dist;
use crate::shell::{root, run};
use crate::tools;
use anyhow::{Result, ensure};
use std::process::Command;

const LINT: (&str, &str) = ("actionlint", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7");

pub fn build(_: &Dist) -> Result<()> {
    Ok(())
}

pub fn check(_: &Dist) -> Result<()> {
    tools::debian(&[("shellcheck", "shellcheck")])?;
    let lint = tools::go_tool(LINT.0, LINT.1)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join(".github/workflows"))? {
        files.push(entry?.path());
    }
    ensure!(!files.is_empty(), "there is no workflow");
    files.sort();
    run(Command::new(lint).current_dir(root()).args(files))
}
