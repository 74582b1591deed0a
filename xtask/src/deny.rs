//! `cargo x deny`: what comes in from outside, against `deny.toml` and RustSec's advisories.

use crate::shell::{cargo, output, run};
use crate::tools;
use anyhow::Result;

pub fn deny() -> Result<()> {
    tools::cargo_plugin("deny")?;
    run(cargo().args(["deny", "check", "bans", "licenses", "sources"]))?;
    // The database comes from GitHub, which not every machine reaches. Without it nothing is checked,
    // and that is said; with it an advisory is a failure.
    if let Err(error) = output(cargo().args(["deny", "fetch", "db"])) {
        println!("\n{error:#}\n");
        println!("NOT CHECKED: advisories, since their database could not be fetched.");
        println!("`cargo deny --offline check advisories` takes the one of an earlier fetch.");
        return Ok(());
    }
    run(cargo().args(["deny", "--offline", "check", "advisories"]))
}
