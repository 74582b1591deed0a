//! Starts the traffic counts of a change that must be confirmed: just before its write, not at the first
//! check of its note.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sdk::meters::Trials;
use tokio::time::Instant;

use crate::Program;

/// Counts traffic for a change that this node makes. Counting costs each request a little, so it stops when
/// no change waits.
#[derive(Debug, Default)]
pub(crate) struct Start(Mutex<Counting>);

#[derive(Debug, Default)]
struct Counting {
    /// Whether requests are counted.
    on: bool,
    /// The counts before the write.
    before: Option<(Instant, Trials)>,
    /// Whether the write was made.
    made: bool,
}

/// A write that is under way.
pub(crate) struct Begun<'a> {
    start: &'a Start,
    made: bool,
}

impl Start {
    /// Starts counting; called just before a change is written.
    pub fn begin(&self, program: &dyn Program) -> Begun<'_> {
        let mut counting = self.lock();
        if !counting.made {
            counting.before = Some((Instant::now(), program.traffic()));
        }
        counting.on = true;
        program.watch_traffic(true);
        Begun { start: self, made: false }
    }

    /// Returns whether a change was written whose counts have not been taken.
    pub fn made(&self) -> bool {
        self.lock().made
    }

    /// Keeps counting for a change that waits and returns the counts from before its write, if there are any.
    pub fn take(&self, program: &dyn Program) -> Option<(Instant, Trials)> {
        let mut counting = self.lock();
        counting.on = true;
        program.watch_traffic(true);
        counting.made = false;
        counting.before.take()
    }

    /// Stops counting, since no change waits. `made_before` says that a write was complete before the note was
    /// read: that change has been settled already. A write without it may still be under way.
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
