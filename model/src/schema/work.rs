//! The bounds of one check: the steps of its walk, and how deeply schemas are walked within schemas.
//!
//! Alternatives walk a value several times, and within each other, so the steps of a walk may grow exponentially with the
//! depth of a value. A value whose walk takes too many is not known to fit.

use std::cell::Cell;

use serde_json::Value;

/// Steps of any check.
const FIRST: usize = 100_000;
/// Further steps, for each part of the value.
const EACH: usize = 64;
/// Bytes of a text that are read in one step.
pub const TEXT: usize = 64;

thread_local! {
    /// The steps that are left.
    static STEPS: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The value comes from a client.
    static OF_CLIENT: Cell<bool> = const { Cell::new(false) };
    /// The value stays as it is.
    static STAYS: Cell<bool> = const { Cell::new(false) };
    /// Schemas within schemas that are being walked.
    static LEVELS: Cell<usize> = const { Cell::new(0) };
}

/// Begins the check of a value, whose steps are bounded if `bounds` says so.
pub fn begin(value: &Value, (of_client, stays): (bool, bool), bounds: bool) {
    STEPS.set(if bounds { FIRST + EACH * size(value) } else { usize::MAX });
    OF_CLIENT.set(of_client);
    STAYS.set(stays);
}

/// Whether the value is only checked: no default is filled in, and no alternative needs a copy.
pub fn stays() -> bool {
    STAYS.get()
}

/// Whether the value comes from a client: its texts refer to no secret.
pub fn is_of_client() -> bool {
    OF_CLIENT.get()
}

/// Takes steps; `false` if there are not enough left.
pub fn pay(steps: usize) -> bool {
    let left = STEPS.get().saturating_sub(steps);
    STEPS.set(left);
    left > 0
}

/// Gives the check up: its value is not known to fit.
pub fn give_up() {
    STEPS.set(0);
}

/// Whether the check was given up.
pub fn is_given_up() -> bool {
    STEPS.get() == 0
}

/// The parts of a value.
pub fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / TEXT,
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(members) => {
            1 + members.iter().map(|(name, value)| name.len() / TEXT + size(value)).sum::<usize>()
        }
        _ => 1,
    }
}

/// A walk of a schema within another one; ends with its drop.
pub struct Level(());

/// Most levels. JSON is nested up to 128 levels deep.
const MOST_LEVELS: usize = 192;

impl Level {
    /// `None` if there are too many, which gives the check up.
    pub fn enter() -> Option<Level> {
        let levels = LEVELS.get();
        if levels >= MOST_LEVELS {
            give_up();
            return None;
        }
        LEVELS.set(levels + 1);
        Some(Level(()))
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        LEVELS.set(LEVELS.get() - 1);
    }
}
