//! `cargo x soak`: the long forms of what `docs/reliability.md` promises.

use crate::shell::{cargo, root, run};
use anyhow::Result;

/// Builds the gateway for speed, unless `SLUICE_BIN` names one, and runs the goals named in
/// `args`, or all. What asks is built for speed too: it shares the machine with what answers.
pub fn soak(args: &[String]) -> Result<()> {
    let mut command = cargo();
    if std::env::var_os("SLUICE_BIN").is_none() {
        run(cargo().args(["build", "--release", "--package", "gateway"]))?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
        command.env("SLUICE_BIN", target.join("release/sluice"));
    }
    run(command.args(["run", "--release", "--quiet", "--package", "tests", "--bin", "soak", "--"]).args(args))
}
