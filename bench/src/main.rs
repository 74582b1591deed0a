//! `bench`: measures sluice and its peers, side by side in one run. `bench/README.md` describes the
//! measurements.
#![forbid(unsafe_code)]

mod admin;
mod certificate;
mod churn;
mod compare;
mod counters;
mod gateways;
mod goals;
mod idle;
mod instructions;
mod load;
mod machine;
mod mixture;
mod probe;
mod process;
mod published;
mod reload;
mod report;
mod run;
mod scale;
mod scenario;
mod stats;
mod suite;
mod template;
mod upstream;
mod watching;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Measures sluice and its peers side by side; writes bench/reports/.
#[derive(Parser)]
#[command(name = "cargo x bench", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Args)]
struct Run {
    /// Scenarios to run, by any of their names; all when none is named
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Peers to measure instead of each scenario's own
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    against: Vec<String>,
    /// Rounds of each scenario [default: 5, quick: 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Seconds of each timed pass [default: 3, quick: 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// A look at the main scenarios and goals within 5 minutes; builds no rival
    #[arg(long)]
    quick: bool,
    /// Share this many minutes out among the scenarios
    #[arg(long, value_name = "MINUTES")]
    limit: Option<u64>,
    /// List the scenarios
    #[arg(long)]
    list: bool,
    /// Install and build all rivals and stop
    #[arg(long)]
    prepare: bool,
    /// Measure this sluice instead of building it
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Compare --binary with this one and nothing else (as `ab-test`)
    #[arg(long, value_name = "PATH", requires = "binary")]
    vs: Option<PathBuf>,
    /// Folder of the report below bench/reports/ [default: full, quick or custom]
    #[arg(long, value_name = "NAME")]
    out: Option<String>,
    /// First of the thousand ports that are used, all below those the system gives out by itself
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u16).range(PORTS))]
    port_base: u16,
}

/// The range of the first port: a thousand ports follow it, all below Linux's ephemeral ports
/// (`ip_local_port_range`).
const PORTS: std::ops::RangeInclusive<i64> = 1_024..=31_768;

#[derive(Subcommand)]
enum Command {
    /// Counts user instructions per request of sluice, nginx and HAProxy by callgrind
    Instructions {
        /// Only scenarios and plugins whose name contains one of these words; then nothing is written
        words: Vec<String>,
        /// Keep the profiles of sluice in this folder, for callgrind_annotate
        #[arg(long, value_name = "FOLDER")]
        keep: Option<PathBuf>,
        /// Count this sluice instead of building it
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
        /// Leave out nginx and HAProxy
        #[arg(long)]
        alone: bool,
        /// Requests that are counted in each scenario
        #[arg(long, default_value_t = 2_000)]
        requests: usize,
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u16).range(PORTS))]
        port_base: u16,
    },
    /// Compares two sluice binaries, round by round
    AbTest {
        #[arg(long)]
        a: PathBuf,
        #[arg(long)]
        b: PathBuf,
        #[arg(long, default_value = "plain-chunked")]
        scenario: String,
        #[arg(long, default_value_t = 7)]
        rounds: usize,
        /// Seconds of each timed pass
        #[arg(long, default_value_t = 2)]
        duration: u64,
        #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u16).range(PORTS))]
        port_base: u16,
    },
}

fn main() -> ExitCode {
    machine::raise_open_files();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Some(Command::Instructions { words, keep, binary, alone, requests, port_base }) => {
            let count = instructions::Count { words, keep, binary, alone, requests, port_base };
            return instructions::run(&count);
        }
        Some(Command::AbTest { a, b, scenario, rounds, duration, port_base }) => {
            let duration = Duration::from_secs(duration);
            return compare::run(&compare::Comparison { a, b, scenario, rounds, duration, port_base });
        }
        None => {}
    }
    let run = cli.run;
    if run.list {
        suite::list();
        return Ok(());
    }
    if run.prepare {
        return suite::prepare();
    }
    if let (Some(a), Some(b)) = (&run.binary, run.vs) {
        return compare::run(&compare::Comparison {
            a: a.clone(),
            b,
            scenario: run.scenarios.first().map_or("plain-chunked", String::as_str).to_owned(),
            rounds: run.rounds.unwrap_or(7).into(),
            duration: Duration::from_secs(run.duration.unwrap_or(2)),
            port_base: run.port_base,
        });
    }
    suite::run(&suite::Options {
        rounds: run.rounds.unwrap_or(if run.quick { 3 } else { 5 }).into(),
        duration: Duration::from_secs(run.duration.unwrap_or(if run.quick { 1 } else { 3 })),
        scenarios: run.scenarios,
        against: run.against,
        quick: run.quick,
        limit: run.limit.map(|minutes| Duration::from_secs(minutes * 60)),
        binary: run.binary,
        out: run.out,
        port_base: run.port_base,
    })
}
