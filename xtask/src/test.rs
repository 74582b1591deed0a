//! `cargo x test`: every check there is, ending with the cases.
//!
//! A tool a test needs is installed here; one that cannot be had is a failure
//! and never a reason to skip.

use crate::shell::{cargo, output, root, run, stage};
use crate::{check, docs, gen_docs, tidy, tools};
use anyhow::{Result, bail};
use std::process::Command;

pub fn test(args: &[String]) -> Result<()> {
    match args {
        [] => everything(),
        [filter] if !filter.starts_with('-') => {
            stage("tools", tools::install)?;
            stage("cases", || cases(&[filter]))
        }
        _ => bail!("usage: cargo x test [FILTER]"),
    }
}

fn everything() -> Result<()> {
    stage("tools", tools::install)?;
    stage("format", check::format)?;
    stage("tidy", tidy::tidy)?;
    stage("clippy", check::clippy)?;
    stage("unit tests", check::units)?;
    stage("documents", docs::check)?;
    stage("samples", samples)?;
    stage("generated pages", gen_docs::check)?;
    stage("cases", || cases(&[]))
}

/// Those whose name contains one of the words, or all.
fn cases(words: &[&str]) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--package", "tests", "--test", "cases", "--quiet", "--"]);
    command.args(words);
    run(&mut command)
}

/// Every configuration under `conf/` passes `sluice check`.
fn samples() -> Result<()> {
    let conf = root().join("conf");
    let mut folders = vec![conf.clone(), conf.join("declarative"), conf.join("production")];
    for entry in std::fs::read_dir(conf.join("seeds"))? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    run(cargo().args(["build", "--package", "gateway", "--quiet"]))?;
    for folder in folders {
        let generate = folder.join("generate");
        if generate.exists() {
            let text = output(&mut Command::new(&generate))?;
            std::fs::write(folder.join("apisix.yaml"), text)?;
        }
        run(cargo().args(["run", "--package", "gateway", "--quiet", "--", "check"]).arg(&folder))?;
    }
    Ok(())
}
