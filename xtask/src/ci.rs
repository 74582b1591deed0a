//! `cargo x ci`: everything, in CI's order.

use crate::shell::stage;
use crate::{deny, fuzz, test};
use anyhow::Result;

/// Seconds each fuzz target gets here; `cargo x fuzz` gives them more.
const FUZZ_SECONDS: u64 = 60;

pub fn ci() -> Result<()> {
    test::test(&[])?;
    stage("dependencies", deny::deny)?;
    stage("fuzz", || fuzz::fuzz(None, FUZZ_SECONDS))
}
