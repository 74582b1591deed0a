//! `cargo x test`: every check, ending with the cases.
//!
//! A tool that a test needs is installed here; one that cannot be installed is
//! a failure and never a reason to skip.

use crate::build::{self, Built};
use crate::shell::{output, root, run, stage};
use crate::{check, dashboard, docs, gen_docs, tidy, tools, units};
use anyhow::{Result, bail};
use std::process::Command;

pub fn test(args: &[String]) -> Result<()> {
    match args {
        [] => everything(),
        [filter] if !filter.starts_with('-') => {
            stage("tools", tools::install)?;
            let built = stage("build and lints", build::workspace)?;
            stage("cases", || cases(&built, &[filter]))
        }
        _ => bail!("usage: cargo x test [FILTER]"),
    }
}

fn everything() -> Result<()> {
    stage("tools", tools::install)?;
    stage("format", check::format)?;
    stage("tidy", tidy::tidy)?;
    stage("dashboard", dashboard::check)?;
    let built = stage("build and lints", build::workspace)?;
    stage("unit tests", || units::run(&built.tests))?;
    stage("documents", docs::check)?;
    stage("samples", || samples(&built))?;
    stage("generated pages", || gen_docs::check(&built.gateway))?;
    stage("cases", || cases(&built, &[]))
}

/// The cases whose name contains one of the words, or all.
fn cases(built: &Built, words: &[&str]) -> Result<()> {
    run(Command::new(&built.cases).current_dir(root()).env("SLUICE_BIN", &built.gateway).args(words))
}

/// Every configuration under `conf/` passes `sluice check`: folders with a config.yaml, and the files of other
/// gateways in folders without one.
fn samples(built: &Built) -> Result<()> {
    let conf = root().join("conf");
    let mut samples = vec![conf.clone(), conf.join("declarative"), conf.join("production")];
    for entry in std::fs::read_dir(conf.join("seeds"))? {
        let path = entry?.path();
        if path.join("config.yaml").exists() {
            samples.push(path);
        } else if path.is_dir() {
            for file in std::fs::read_dir(path)? {
                samples.push(file?.path());
            }
        }
    }
    samples.sort();
    for sample in samples {
        let generate = sample.join("generate");
        if generate.exists() {
            let text = output(&mut Command::new(&generate))?;
            std::fs::write(sample.join("apisix.yaml"), text)?;
        }
        run(Command::new(&built.gateway).current_dir(root()).arg("check").arg(&sample))?;
    }
    Ok(())
}
