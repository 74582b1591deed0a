//! The commands of `cargo x` apart from those that [start the gateway](../main.rs).
//!
//! Each command is one module; this file only chooses. It never contains a
//! rule, a list or a recipe itself.

#![forbid(unsafe_code)]

mod bench;
mod build;
mod check;
mod compare;
mod dashboard;
mod deny;
mod docs;
mod engines;
mod fuzz;
mod gen_docs;
mod new_plugin;
mod package;
mod soak;
mod test;
mod tidy;
mod tools;
mod units;

use std::process::ExitCode;

use xtask::{report, shell};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("", &[][..]),
    };
    let outcome = match command {
        "check" => check::check(),
        "test" => test::test(rest),
        "bench" => bench::bench(rest),
        "compare" => compare::command(rest),
        "gen" => gen_docs::command(rest),
        "new-plugin" => new_plugin::command(rest),
        "tidy" => tidy::tidy(),
        "fuzz" => fuzz::command(rest),
        "exchanges" => fuzz::exchanges(rest),
        "soak" => soak::soak(rest),
        "engines" => engines::engines(rest),
        "package" => package::command(rest),
        "deny" => deny::deny(),
        "dashboard" => dashboard::build(),
        other => Err(anyhow::anyhow!("unknown command {other:?}; `cargo x help` lists them")),
    };
    report(outcome)
}
