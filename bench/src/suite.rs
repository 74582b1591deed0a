//! A whole run: selects scenarios and peers, allots the time, measures, reports.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::gateways::tools::{Program, Tools};
use crate::gateways::{Gateway, Setup};
use crate::goals;
use crate::machine::Machine;
use crate::published;
use crate::report::{self, Report};
use crate::run::{self, Arm, Outcome, Plan};
use crate::scenario::{self, Scenario};

/// Time limit of a `--quick` run in seconds. The rest of its 5 minutes is a reserve: a round that
/// has started is finished.
const QUICK_SECONDS: u64 = 245;

/// The options of a run.
pub struct Options {
    /// Names of scenarios; all when empty.
    pub scenarios: Vec<String>,
    /// Names of peers; each scenario's own when empty.
    pub against: Vec<String>,
    pub rounds: usize,
    pub duration: Duration,
    pub quick: bool,
    /// Divide this time among the scenarios.
    pub limit: Option<Duration>,
    /// Measure this binary instead of building one.
    pub binary: Option<PathBuf>,
    /// Folder below `bench/reports/`.
    pub out: Option<String>,
    pub port_base: u16,
}

/// Every gateway with its program, or the reason why it is not available.
type Programs = Vec<(Gateway, Result<Program, String>)>;

/// Measures and writes the report.
///
/// # Errors
/// A name is unknown, or upstream and drivers are not available. A gateway that is not available or
/// fails is listed in the report.
pub fn run(options: &Options) -> Result<()> {
    let mut chosen = choose(options)?;
    // A quick run does not build for ten minutes first.
    let tools = Tools::new(!options.quick);
    tools.basics()?;
    let programs = programs(&chosen, &tools, options);
    let machine = Machine::read();
    let mut skipped = Vec::new();
    chosen.retain(|(scenario, _)| {
        let enough = machine.cores.0.len() >= scenario.cores;
        if !enough {
            let reason = format!("needs {} cores, there are {}", scenario.cores, machine.cores.0.len());
            skipped.push((scenario.id.to_owned(), reason));
        }
        enough
    });
    if chosen.is_empty() {
        bail!("nothing to measure: {skipped:?}");
    }

    let started = Instant::now();
    let limit = options.limit.or(options.quick.then_some(Duration::from_secs(QUICK_SECONDS)));
    let mut plan = Plan {
        rounds: options.rounds,
        duration: options.duration,
        warm: if options.quick { Duration::ZERO } else { Duration::from_secs(1) },
        warm_java: Duration::from_secs(if options.quick { 8 } else { 20 }),
        share: if options.quick { 0.2 } else { 1.0 },
        syscalls: true,
        deadline: None,
        port_base: options.port_base,
    };
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    let arms: Vec<_> = chosen.iter().map(|(scenario, peers)| arms(scenario, peers, &programs)).collect();
    bar.set_length(arms.iter().map(|(arms, _)| (arms.len() * plan.rounds) as u64).sum());
    let mut weight: usize = arms.iter().map(|(arms, _)| arms.len()).sum();
    let folder = tools.root().join(format!("target/bench-run/{}", options.port_base));
    for ((scenario, _), (arms, absent)) in chosen.iter().zip(arms) {
        // The remaining time is divided by the number of gateways still to be measured.
        if let Some(limit) = limit {
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                skipped.push((scenario.id.to_owned(), "out of time".to_owned()));
                continue;
            }
            plan.deadline = Some(Instant::now() + left.mul_f64(arms.len() as f64 / weight.max(1) as f64));
            weight -= arms.len();
        }
        if arms.is_empty() {
            skipped.push((scenario.id.to_owned(), "none of its gateways is available".to_owned()));
            continue;
        }
        let end = bar.position() + (arms.len() * plan.rounds) as u64;
        let mut outcome = run::scenario(scenario, arms, &plan, &machine.cores, &folder, &bar)
            .with_context(|| format!("scenario {}", scenario.id))?;
        bar.set_position(end);
        outcome.absent = absent;
        bar.suspend(|| println!("{}", report::markdown::one_line(&outcome)));
        outcomes.push(outcome);
    }
    bar.finish_and_clear();

    let name = options.out.clone().unwrap_or_else(|| default_name(options).to_owned());
    let report = Report {
        name,
        machine,
        plan,
        ended: now(),
        took_seconds: started.elapsed().as_secs_f64(),
        gateways: report::found(&programs),
        goals: goals::judge(&outcomes),
        outcomes,
        skipped,
        published: published::FIGURES,
    };
    let folder = report::write(&report, &tools.root().join("bench/reports"))?;
    println!("{}", report::markdown::goals(&report));
    println!("{}", folder.join("report.md").display());
    Ok(())
}

/// Installs and builds every rival.
///
/// # Errors
/// A basic tool is missing. Rivals that are not available are printed.
pub fn prepare() -> Result<()> {
    let tools = Tools::new(true);
    tools.basics()?;
    for gateway in Gateway::ALL {
        match tools.obtain(gateway) {
            Ok(program) => println!("{gateway:<22} {}", program.version),
            Err(problem) => println!("{gateway:<22} none: {problem:#}"),
        }
    }
    Ok(())
}

/// Prints the scenarios.
pub fn list() {
    for scenario in scenario::all() {
        let quick = if scenario.quick.is_some() { "quick" } else { "" };
        println!("{:<22} {quick:<6} {:<26} {}", scenario.id, scenario.also.join(" "), scenario.title);
    }
}

fn default_name(options: &Options) -> &'static str {
    match (options.quick, options.scenarios.is_empty() && options.against.is_empty()) {
        (true, true) => "quick",
        (false, true) => "full",
        _ => "custom",
    }
}

fn choose(options: &Options) -> Result<Vec<(&'static Scenario, Vec<Gateway>)>> {
    let scenarios: Vec<&'static Scenario> = if options.scenarios.is_empty() {
        scenario::all().filter(|scenario| !options.quick || scenario.quick.is_some()).collect()
    } else {
        let find = |name: &String| {
            scenario::find(name).with_context(|| format!("no scenario {name:?}; --list shows them"))
        };
        options.scenarios.iter().map(find).collect::<Result<_>>()?
    };
    let against: Vec<Gateway> = options
        .against
        .iter()
        .map(|name| {
            let known = || Gateway::ALL.map(Gateway::name).join(", ");
            Gateway::from_name(name).with_context(|| format!("no gateway {name:?}; there are {}", known()))
        })
        .collect::<Result<_>>()?;
    let peers = |scenario: &Scenario| -> Vec<Gateway> {
        if !against.is_empty() {
            return against.iter().copied().filter(|gateway| *gateway != Gateway::Sluice).collect();
        }
        match scenario.quick {
            Some(peers) if options.quick => peers.to_vec(),
            _ => scenario.peers.to_vec(),
        }
    };
    Ok(scenarios.into_iter().map(|scenario| (scenario, peers(scenario))).collect())
}

fn programs(chosen: &[(&Scenario, Vec<Gateway>)], tools: &Tools, options: &Options) -> Programs {
    let wanted = |gateway| {
        gateway == Gateway::Sluice
            || chosen.iter().any(|(scenario, peers)| {
                peers.contains(&gateway)
                    || scenario.references.iter().any(|reference| reference.gateway == gateway)
            })
    };
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(120));
    let programs = Gateway::ALL
        .into_iter()
        .filter(|gateway| wanted(*gateway))
        .map(|gateway| {
            spinner.set_message(format!("getting {gateway}"));
            let program = match (&options.binary, gateway) {
                (Some(binary), Gateway::Sluice) => tools.given(binary),
                _ => tools.obtain(gateway),
            };
            if let Err(problem) = &program {
                spinner.suspend(|| println!("without {gateway}: {problem:#}"));
            }
            (gateway, program.map_err(|problem| format!("{problem:#}")))
        })
        .collect();
    spinner.finish_and_clear();
    programs
}

/// The arms of a scenario, and the excluded peers with the reason.
fn arms(scenario: &Scenario, peers: &[Gateway], programs: &Programs) -> (Vec<Arm>, Vec<(String, String)>) {
    let mut arms = Vec::new();
    let mut absent = Vec::new();
    let mut add = |label: &str, gateway: Gateway, setup: Setup, churn| {
        if let Some(reason) = gateway.unable(&setup) {
            absent.push((label.to_owned(), reason.to_owned()));
            return;
        }
        match programs.iter().find(|(found, _)| *found == gateway) {
            Some((_, Ok(program))) => {
                arms.push(Arm { label: label.to_owned(), gateway, setup, churn, program: program.clone() });
            }
            Some((_, Err(reason))) => absent.push((label.to_owned(), reason.clone())),
            None => absent.push((label.to_owned(), "not selected".to_owned())),
        }
    };
    let churn = matches!(scenario.kind, scenario::Kind::Churn { .. });
    add(Gateway::Sluice.name(), Gateway::Sluice, scenario.setup, churn);
    for reference in scenario.references {
        add(reference.label, reference.gateway, reference.setup, reference.churn);
    }
    for peer in peers {
        add(peer.name(), *peer, scenario.setup, false);
    }
    (arms, absent)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            scenarios: Vec::new(),
            against: Vec::new(),
            rounds: 1,
            duration: Duration::from_secs(1),
            quick: true,
            limit: None,
            binary: None,
            out: None,
            port_base: 20_000,
        }
    }

    #[test]
    fn names_are_checked() {
        assert!(choose(&Options { scenarios: vec!["b9".to_owned()], ..options() }).is_ok());
        assert!(choose(&Options { scenarios: vec!["b11".to_owned()], ..options() }).is_err());
        assert!(choose(&Options { against: vec!["apache".to_owned()], ..options() }).is_err());
    }

    #[test]
    fn an_excluded_peer_is_listed_with_the_reason() {
        let scenario = scenario::find("rate-limit").unwrap();
        let program = Program { path: PathBuf::from("p"), version: "1".to_owned() };
        let programs = vec![
            (Gateway::Sluice, Ok(program.clone())),
            (Gateway::Caddy, Ok(program)),
            (Gateway::Envoy, Err("gone".to_owned())),
        ];
        let (arms, absent) = arms(scenario, &[Gateway::Caddy, Gateway::Envoy], &programs);
        let labels: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
        assert_eq!(labels, ["sluice", "sluice, plain"]);
        assert_eq!(absent.len(), 2);
        assert_eq!(absent[1], ("envoy".to_owned(), "gone".to_owned()));
    }
}
