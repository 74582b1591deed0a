//! `cargo x fuzz`: runs the fuzz targets under `fuzz/`, each for a while. `cargo x exchanges`: the long form
//! of a test that does the same to whole exchanges.

use crate::shell::{cargo, output, root, run};
use crate::tools;
use anyhow::{Context, Result, bail};

/// Seconds a target gets when nothing else is said.
const SECONDS: u64 = 60;

pub fn command(args: &[String]) -> Result<()> {
    let mut target = None;
    let mut seconds = SECONDS;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--seconds" => {
                let value = rest.next().context("--seconds needs a number")?;
                seconds = value.parse().with_context(|| format!("--seconds {value}: not a number"))?;
            }
            name if !name.starts_with('-') && target.is_none() => target = Some(name),
            _ => bail!("usage: cargo x fuzz [TARGET] [--seconds N]"),
        }
    }
    fuzz(target, seconds)
}

/// Sends random bytes from both sides of a worker, in `exchanges` exchanges.
pub fn exchanges(args: &[String]) -> Result<()> {
    let count = match args {
        [] => "1000000",
        [count] if count.parse::<u64>().is_ok_and(|count| count > 0) => count,
        _ => bail!("usage: cargo x exchanges [N]"),
    };
    let mut command = cargo();
    command.env("SLUICE_RANDOM", count).args([
        "test",
        "--package",
        "proxy",
        "--test",
        "integration",
        "random::",
    ]);
    run(&mut command)
}

/// Fuzzes one target, or all of them in turn; the first finding ends the run.
fn fuzz(target: Option<&str>, seconds: u64) -> Result<()> {
    tools::cargo_plugin("fuzz")?;
    let listed = output(cargo().current_dir(root()).env("RUSTC_BOOTSTRAP", "1").args(["fuzz", "list"]))?;
    let targets: Vec<_> = listed.lines().filter(|name| target.is_none_or(|wanted| wanted == *name)).collect();
    if targets.is_empty() {
        bail!("no fuzz target {:?}; there are: {}", target.unwrap_or("at all"), listed.replace('\n', " "));
    }
    for name in targets {
        // The sanitizer flags are unstable; this lets the stable compiler take
        // them, so that no nightly toolchain is needed.
        let mut command = cargo();
        command.env("RUSTC_BOOTSTRAP", "1").args(["fuzz", "run", name]);
        if name == "importers" {
            // The fuzzer's own corpus comes first: it writes there.
            let own = root().join("fuzz/corpus/importers");
            std::fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
            command.arg(own);
            command.args(
                ["kong", "envoy", "nginx", "spring", "zuul"]
                    .map(|format| root().join("importers/fixtures").join(format)),
            );
        }
        command.arg("--");
        command.arg(format!("-max_total_time={seconds}")).arg("-timeout=10").arg("-rss_limit_mb=2048");
        run(&mut command)?;
    }
    Ok(())
}
