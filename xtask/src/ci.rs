//! `cargo x ci`: everything, in CI's order.

use crate::shell::stage;
use crate::{deny, fuzz, test};
use anyhow::Result;

pub fn ci() -> Result<()> {
    test::test(&[])?;
    stage("dependencies", deny::deny)?;
    stage("fuzz", || fuzz::fuzz(None, fuzz::SECONDS))
}
