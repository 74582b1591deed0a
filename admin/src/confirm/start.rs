//! From when on the traffic of a change that waits to be confirmed is counted: from just before its write, not from
//! the first look at it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sdk::meters::Trials;
use tokio::time::Instant;

use crate::Program;

/// Counters for a change that this node makes. Counting costs requests a little, so it ends with the change.
#[derive(Debug, Default)]
pub(crate) struct Start(Mutex<Counting>);

#[derive(Debug, Default)]
struct Counting {
    /// Requests are counted.
    on: bool,
    /// Counts before the write.
    before: Option<(Instant, Trials)>,
    /// The write was made.
    made: bool,
}

/// A write that is under way.
pub(crate) struct Begun<'a> {
    start: &'a Start,
    made: bool,
}

impl Start {
    /// A change is about to be written.
    pub fn begin(&self, program: &dyn Program) -> Begun<'_> {
        let mut counting = self.lock();
        if !counting.made {
            counting.before = Some((Instant::now(), program.traffic()));
        }
        counting.on = true;
        program.watch_traffic(true);
        Begun { start: self, made: false }
    }

    /// Whether a change was written whose counting has not been taken.
    pub fn made(&self) -> bool {
        self.lock().made
    }

    /// Counts for a change that waits; what was counted before its write, where that was known.
    pub fn take(&self, program: &dyn Program) -> Option<(Instant, Trials)> {
        let mut counting = self.lock();
        counting.on = true;
        program.watch_traffic(true);
        counting.made = false;
        counting.before.take()
    }

    /// No change waits. One that was made before this was looked for has come and gone, and one that was not is
    /// under way.
    pub fn end(&self, made_before: bool, program: &dyn Program) {
        let mut counting = self.lock();
        if counting.on && (counting.before.is_none() || made_before && counting.made) {
            *counting = Counting::default();
            program.watch_traffic(false);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Begun<'_> {
    pub fn made(mut self) {
        self.made = true;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut counting = self.start.lock();
        match self.made {
            true => counting.made = true,
            false if !counting.made => counting.before = None,
            false => {}
        }
    }
}
