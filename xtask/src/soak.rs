//! `cargo x soak`: what `docs/reliability.md` promises, measured.

use crate::build;
use crate::shell::{cargo, root, run, stage};
use anyhow::Result;
use std::process::Command;

/// Runs the goals named in `args`, or all: with `--short` on the build that tests use, else on
/// one for speed unless `SLUICE_BIN` names a program. The client is built for speed in that case
/// too, since it shares the machine with the gateway.
pub fn soak(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--short") && std::env::var_os("SLUICE_BIN").is_none() {
        let built = stage("build and lints", build::workspace)?;
        let mut command = Command::new(&built.soak);
        command.current_dir(root()).env("SLUICE_BIN", &built.gateway).args(args);
        return stage("goals, short", || run(&mut command));
    }
    let mut command = cargo();
    let helps = args.iter().any(|arg| ["--help", "-h"].contains(&arg.as_str()));
    if !helps && std::env::var_os("SLUICE_BIN").is_none() {
        run(cargo().args(["build", "--release", "--package", "gateway"]))?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
        command.env("SLUICE_BIN", target.join("release/sluice"));
    }
    run(command.args(["run", "--release", "--package", "tests", "--bin", "soak", "--"]).args(args))
}
