//! The bounds of one check: the steps of its walk, the copies of its value, and how deeply schemas are walked within
//! schemas.
//!
//! Alternatives walk a value several times, and within each other, so the steps of a walk may grow exponentially with the
//! depth of a value. A value whose walk takes too many is not known to fit.

use std::cell::Cell;

use serde_json::Value;

/// Steps of any check.
const FIRST: usize = 100_000;
/// Further steps, for each part of the value.
const EACH: usize = 64;
/// Copies of the whole value at one time, beside [`FIRST`] parts.
const COPIES: usize = 2;
/// Bytes of a text that are read in one step.
pub const TEXT: usize = 64;
/// Names of a map that are read in one step.
pub const NAMES: usize = 16;

thread_local! {
    /// The steps that are left.
    static STEPS: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The value comes from a client.
    static OF_CLIENT: Cell<bool> = const { Cell::new(false) };
    /// See [`Check::check_only`].
    static CHECK_ONLY: Cell<bool> = const { Cell::new(false) };
    /// The parts that further copies may have.
    static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Schemas within schemas that are being walked.
    static LEVELS: Cell<usize> = const { Cell::new(0) };
}

/// The manner of a check.
pub struct Check {
    /// The value comes from a client: its texts refer to no secret.
    pub of_client: bool,
    /// No default is filled in, and no alternative needs a copy of the value.
    pub check_only: bool,
    /// Steps and copies are bounded.
    pub bounded: bool,
}

/// Begins the check of a value.
pub fn begin(value: &Value, check: Check) {
    let parts = check.bounded.then(|| size(value));
    let bound = |each: usize| parts.map_or(usize::MAX, |parts| FIRST + each * parts);
    STEPS.set(bound(EACH));
    ROOM.set(bound(COPIES));
    OF_CLIENT.set(check.of_client);
    CHECK_ONLY.set(check.check_only);
}

/// See [`Check::check_only`].
pub fn check_only() -> bool {
    CHECK_ONLY.get()
}

/// See [`Check::of_client`].
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

/// A copy of a value, for a walk that may write into it and not fit; its room is free again with its drop.
pub struct Trial {
    pub value: Value,
    parts: usize,
}

impl Trial {
    /// Copies a value, which takes a step for each part. `None` if there are too many, which gives the check up.
    pub fn of(value: &Value) -> Option<Trial> {
        let parts = size(value);
        let room = ROOM.get().checked_sub(parts).filter(|_| pay(parts));
        let Some(room) = room else {
            give_up();
            return None;
        };
        ROOM.set(room);
        Some(Trial { value: value.clone(), parts })
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        ROOM.set(ROOM.get().saturating_add(self.parts));
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
