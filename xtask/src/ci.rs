//! `cargo x ci`: everything, in CI's order.

use crate::{fuzz, test};
use anyhow::Result;

/// Seconds each fuzz target gets here; `cargo x fuzz` gives them more.
const FUZZ_SECONDS: u64 = 60;

pub fn ci() -> Result<()> {
    test::test(&[])?;
    fuzz::fuzz(None, FUZZ_SECONDS)
}
