//! The program: command line, files, threads, signals.
//!
//! The only room that sees every other. It reads what an operator wrote, puts
//! the parts together and sees them through their life; it decides nothing
//! about a request and nothing about a resource.
#![forbid(unsafe_code)]

mod access_log;
mod acme;
mod analysis;
mod backup;
mod check;
mod cli;
mod error_log;
mod etcd;
mod expiry;
mod explain;
mod files;
mod forward;
mod handoff;
mod imports;
mod instance;
mod languages;
mod lifecycle;
mod listeners;
mod log_folders;
mod logging;
mod memory;
mod metrics;
mod mistakes;
mod notices;
mod otlp;
mod pool;
mod process;
mod program;
mod run;
mod runner;
mod say;
#[cfg(any(feature = "lua", feature = "wasm"))]
mod script_log;
#[cfg(feature = "lua")]
mod script_test;
#[cfg(feature = "lua")]
mod scripts;
mod server_info;
mod sinks;
mod static_files;
mod tls;
mod upgrade;
#[cfg(feature = "wasm")]
mod wasm;
mod wiring;
mod yaml;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};
use control::store::StoreError;

/// In seconds since 1970.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_secs().cast_signed()
}

/// Does what the command line asks for.
pub fn main() -> ExitCode {
    // No huge pages, of which an idle gateway would hold many for a few kilobytes in each: 25 MB
    // instead of 14. `.cargo/config.toml` sets it for the allocator, which begins before this line; a
    // build with flags of its own still gets most of it here.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let result = match Cli::parse().command {
        Command::Run(start) => run::run(&start),
        Command::Check { files, forward, import, json, strict, no_analysis } => {
            let how = check::How { strict, analyses: !no_analysis, json };
            check::run(&files, &forward, &import, &how)
        }
        Command::Convert { file, import, output } => imports::convert(&file, &import, output.as_deref()),
        Command::Explain(asked) => explain::run(&asked),
        Command::Status { files, json, timeout } => instance::status(&files, json, timeout),
        Command::Top { files, remote, once } => instance::live::top(&files, &remote, once),
        Command::Tap { conditions, files, remote, json, limit } => {
            instance::live::tap(&files, &remote, &conditions, json, limit)
        }
        Command::Routes { files, remote, search, json } => {
            instance::live::routes(&files, &remote, search.as_deref(), json)
        }
        Command::Reload(files) => instance::reload(&files),
        Command::Upgrade(files) => instance::upgrade(&files),
        Command::Export { files, output, without_keys } => {
            instance::export::export(&files, output.as_deref(), without_keys)
        }
        Command::Backup { file, files } => backup::backup(&file, &files),
        Command::Restore { file, files, force } => backup::restore(&file, &files, force),
        Command::Apply { file, files, dry_run, confirm, max_error_rate, max_p99, window } => {
            let confirm = confirm.map(|mut confirm| {
                let bounds = [("max-error-rate", max_error_rate), ("max-p99", max_p99), ("window", window)];
                for (name, bound) in bounds {
                    if let Some(bound) = bound {
                        confirm.push_str(&format!("; {name}={bound}"));
                    }
                }
                confirm
            });
            instance::apply::apply(&files, &file, dry_run, confirm.as_deref())
        }
        Command::Confirm { files, undo } => instance::revisions::confirm(&files, undo),
        Command::Etcd { command } => etcd::run(&command),
        Command::History { files, limit } => instance::revisions::history(&files, limit),
        Command::Diff { from, to, files } => instance::revisions::diff(&files, from, to),
        Command::Rollback { revision, files } => instance::revisions::rollback(&files, revision),
        #[cfg(feature = "lua")]
        Command::Script { command: cli::ScriptCommand::Test { file, description } } => {
            script_test::test(&file, description.as_deref())
        }
        Command::Version => {
            say::out(format_args!("sluice {}", env!("CARGO_PKG_VERSION")));
            Ok(true)
        }
        Command::Completions { shell } => {
            cli::completions(shell);
            Ok(true)
        }
        Command::Man { out } => cli::man(out.as_deref()).map(|()| true),
        Command::Schema => wiring::print_schemas().map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            upgrade::failed(&format!("{error:#}"));
            match error.downcast_ref::<StoreError>() {
                // It says itself that it is an error, and where.
                Some(StoreError::File(found)) => drop(check::report(vec![(**found).clone()], false)),
                _ => say::err(format_args!("error: {error:#}")),
            }
            ExitCode::FAILURE
        }
    }
}
