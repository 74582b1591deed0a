//! `cargo x bench`: hands over to the load harness, built for speed.

use crate::shell::{cargo, run};
use anyhow::Result;

pub fn bench(args: &[String]) -> Result<()> {
    run(cargo().args(["run", "--release", "--package", "bench", "--"]).args(args))
}
