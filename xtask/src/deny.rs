//! `cargo x deny`: what comes in from outside, against `deny.toml` and RustSec's advisories.

use crate::shell::{cargo, output, run};
use anyhow::{Context, Result};

pub fn deny() -> Result<()> {
    if output(cargo().args(["deny", "--version"])).is_err() {
        println!("cargo-deny is missing; installing it");
        run(cargo().args(["install", "cargo-deny", "--locked"]))?;
    }
    run(cargo().args(["deny", "check", "bans", "licenses", "sources"]))?;
    run(cargo().args(["deny", "check", "advisories"])).context(
        "if the advisories could not be fetched: `cargo deny --offline check` takes those of the last time",
    )
}
