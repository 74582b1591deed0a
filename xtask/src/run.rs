//! `cargo x run`: build the gateway and become it, on `conf/` unless told otherwise.

use crate::shell::{cargo, show};
use anyhow::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Returns only if cargo cannot be started. This process becomes cargo, and cargo the gateway, so
/// that a signal to `cargo x run` reaches the gateway and none outlives it.
pub fn run(args: &[String]) -> Result<()> {
    let mut command = command(args);
    let shown = show(&command);
    println!("$ {shown}");
    Err(Error::new(command.exec()).context(format!("cannot start `{shown}`")))
}

fn command(args: &[String]) -> Command {
    let (release, args): (Vec<_>, Vec<_>) = args.iter().partition(|arg| *arg == "--release");
    let profile = if release.is_empty() { "quick" } else { "release" };
    // Cargo shows how far it is: the first build takes minutes.
    let mut command = cargo();
    command.args(["run", "--profile", profile, "--package", "gateway", "--", "run"]);
    // The first word that is no option is the configuration; options alone
    // (such as `--data DIR`) go with the sample.
    let named = args.first().is_some_and(|first| !first.starts_with('-'));
    if !named {
        command.arg("conf");
    }
    command.args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_for_cargo_and_the_rest_for_the_gateway() {
        let line = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            show(&command(&args)).split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap()
        };
        assert_eq!(line(&[]), "run --profile quick --package gateway -- run conf");
        assert_eq!(line(&["--release", "mine"]), "run --profile release --package gateway -- run mine");
        assert_eq!(
            line(&["--data", "d", "--release"]),
            "run --profile release --package gateway -- run conf --data d"
        );
    }
}
