//! `cargo x run`: build the gateway and start it, on `conf/` unless told otherwise.

use crate::shell::{cargo, run as start};
use anyhow::Result;

pub fn run(args: &[String]) -> Result<()> {
    // Cargo shows how far it is: the first build takes minutes.
    let mut command = cargo();
    command.args(["run", "--release", "--package", "gateway", "--", "run"]);
    // The first word that is no option is the configuration; options alone
    // (such as `--data DIR`) go with the sample.
    let named = args.first().is_some_and(|first| !first.starts_with('-'));
    if !named {
        command.arg("conf");
    }
    command.args(args);
    start(&mut command)
}
