//! `ab-test`: compares two binaries of Sluice, for tuning. Rounds alternate in random order, and
//! ratios are computed per round, so that load from other programs disturbs both alike.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use crate::counters::version_of;
use crate::gateways::tools::{Program, Tools};
use crate::gateways::{Gateway, Setup};
use crate::machine::Machine;
use crate::run::{self, Arm, ArmResult, Plan, Sample};
use crate::scenario::{self, Kind};
use crate::stats::Spread;

/// The options of a comparison.
pub struct Comparison {
    pub a: PathBuf,
    pub b: PathBuf,
    pub scenario: String,
    pub rounds: usize,
    pub duration: Duration,
    pub port_base: u16,
}

/// Runs the comparison and prints it.
///
/// # Errors
/// A binary or the scenario does not exist, or one of the two gateways fails.
pub fn run(comparison: &Comparison) -> Result<()> {
    let scenario = scenario::find(&comparison.scenario)
        .with_context(|| format!("no scenario {:?}", comparison.scenario))?;
    if matches!(scenario.kind, Kind::Idle | Kind::Scale) {
        bail!("{} has no requests to compare", scenario.id);
    }
    let tools = Tools::new(true);
    tools.basics()?;
    let machine = Machine::read();
    let arms = vec![arm("A", &comparison.a, scenario.setup)?, arm("B", &comparison.b, scenario.setup)?];
    let plan = Plan {
        rounds: comparison.rounds,
        duration: comparison.duration,
        warm: Duration::ZERO,
        warm_java: Duration::ZERO,
        share: 0.2,
        syscalls: true,
        deadline: None,
        port_base: comparison.port_base,
    };
    println!("{}: {}", scenario.id, scenario.title);
    println!(
        "{}; {} rounds of {} s; {}",
        scenario.driver.text(),
        plan.rounds,
        plan.duration.as_secs(),
        machine.cpu
    );
    println!("load average before: {:.2} (noise grows with it)", machine.load_average);
    let bar = ProgressBar::hidden();
    let folder = tools.root().join(format!("target/bench-run/{}", plan.port_base));
    let outcome = run::scenario(scenario, arms, &plan, &machine.cores, &folder, &bar)?;
    let [a, b] = outcome.arms.as_slice() else { bail!("expected two results") };
    for result in [a, b] {
        if let Some(failure) = &result.failure {
            bail!("{} ({}) failed: {failure}", result.arm.label, result.arm.program.path.display());
        }
    }
    print(a, b);
    Ok(())
}

fn arm(label: &str, binary: &Path, setup: Setup) -> Result<Arm> {
    // The gateway starts in its own folder, so the path must be absolute.
    let path = std::fs::canonicalize(binary).with_context(|| format!("no binary {}", binary.display()))?;
    let version = version_of(&path, "version").unwrap_or_default();
    Ok(Arm {
        label: label.to_owned(),
        gateway: Gateway::Sluice,
        setup,
        churn: false,
        program: Program { path, version },
    })
}

fn print(a: &ArmResult, b: &ArmResult) {
    println!("A = {}", a.arm.program.path.display());
    println!("B = {}\n", b.arm.program.path.display());
    println!("{:<26} {:>12} {:>12} {:>8}   A/B by round: min .. max", "median", "A", "B", "A/B");
    type Number = fn(&Sample) -> Option<f64>;
    let rows: [(&str, Number); 7] = [
        ("CPU us/request", Sample::cpu_us),
        ("  user", |sample| sample.user_us),
        ("  system", |sample| sample.system_us),
        ("requests/s", |sample| Some(sample.load.per_second())),
        ("p50 us", |sample| sample.load.p50_us),
        ("p99 us", |sample| sample.load.p99_us),
        ("RSS KiB", |sample| Some(sample.memory.rss_kib as f64)),
    ];
    for (name, number) in rows {
        let ratio = Spread::of_ratio(&a.each(number), &b.each(number));
        if let (Some(of_a), Some(of_b), Some(ratio)) = (a.spread(number), b.spread(number), ratio) {
            println!(
                "{name:<26} {:>12.2} {:>12.2} {:>8.3}   {:.3} .. {:.3}",
                of_a.median, of_b.median, ratio.median, ratio.min, ratio.max
            );
        }
    }
    if let (Some(of_a), Some(of_b)) = (a.syscalls_per_request, b.syscalls_per_request) {
        println!(
            "{:<26} {of_a:>12.2} {of_b:>12.2} {:>8.3}   (one separate pass)",
            "syscalls/request",
            of_a / of_b
        );
    }
}
