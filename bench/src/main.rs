//! `bench`: measures sluice and its peers, side by side in one run. `bench/README.md` says what is
//! measured and how to read it.
#![forbid(unsafe_code)]

mod churn;
mod compare;
mod counters;
mod gateways;
mod idle;
mod load;
mod machine;
mod probe;
mod process;
mod run;
mod scenario;
mod stats;
mod template;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compares two sluice binaries round by round.
    AbTest {
        #[arg(long)]
        a: PathBuf,
        #[arg(long)]
        b: PathBuf,
        #[arg(long, default_value = "plain-chunked")]
        scenario: String,
        #[arg(long, default_value_t = 7)]
        rounds: usize,
        #[arg(long, default_value_t = 2)]
        duration: u64,
        #[arg(long, default_value_t = 20_000)]
        port_base: u16,
    },
}

fn main() -> anyhow::Result<()> {
    machine::raise_open_files();
    match Cli::parse().command {
        Command::AbTest { a, b, scenario, rounds, duration, port_base } => compare::run(&compare::Comparison {
            a,
            b,
            scenario,
            rounds,
            duration: Duration::from_secs(duration),
            port_base,
        }),
    }
}
