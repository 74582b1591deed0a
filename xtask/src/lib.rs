//! The parts that both programs of `cargo x` use.

#![forbid(unsafe_code)]

pub mod shell;

use std::process::ExitCode;

/// Prints the error of a command and returns the exit code.
pub fn report(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}
