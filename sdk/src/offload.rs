//! Long work on the background thread pool.
//!
//! A worker serves many exchanges on one thread, so work of more than about a millisecond (a high
//! compression level, a search in a long body) runs on background threads.
//! [`World::offload`](crate::World) takes a closure that owns its input, and returns its output to
//! the waiting exchange.

use std::any::Any;

/// A job for the pool, and its output. It owns its input: the exchange may end before it.
pub type Job = Box<dyn FnOnce(&TimeSlice<'_>) -> Output + Send>;

/// See [`Job`].
pub type Output = Box<dyn Any + Send>;

/// How long a running job may occupy its thread.
pub struct TimeSlice<'a>(&'a dyn Fn() -> bool);

impl<'a> TimeSlice<'a> {
    pub fn new(is_over: &'a dyn Fn() -> bool) -> TimeSlice<'a> {
        TimeSlice(is_over)
    }

    /// Whether the job should return: other jobs have waited for some milliseconds, or its exchange
    /// has ended. A long job checks this between its steps, returns its progress, and is submitted
    /// again behind the others.
    pub fn is_over(&self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for TimeSlice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimeSlice").field("is_over", &self.is_over()).finish()
    }
}

/// How far a long operation runs before it pauses.
#[derive(Debug)]
pub enum Until<'a> {
    /// On a worker: this number of steps; those of [`Until::ON_WORKER`] take about a millisecond.
    Steps(u64),
    /// On the pool: until its turn is over.
    TimeSlice(&'a TimeSlice<'a>),
}

impl Until<'_> {
    /// The work that a worker may do at a time. A step is the work of an automaton at one byte in
    /// one state.
    pub const ON_WORKER: Until<'static> = Until::Steps(1 << 20);

    /// Whether a part that costs `worst` steps at worst may begin now.
    pub fn allows(&self, worst: u64) -> bool {
        match self {
            Until::Steps(left) => worst <= *left,
            Until::TimeSlice(_) => true,
        }
    }

    pub fn spend(&mut self, steps: u64) {
        if let Until::Steps(left) = self {
            *left = left.saturating_sub(steps);
        }
    }

    /// Whether to pause after the part that was just done.
    pub fn is_over(&self) -> bool {
        match self {
            Until::Steps(left) => *left == 0,
            Until::TimeSlice(turn) => turn.is_over(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::budget::Reservation;
    use crate::testing::{Probe, now};

    #[test]
    fn a_job_returns_its_output_and_its_reservation() {
        let mut probe = Probe::default();
        let x = probe.exchange();
        let mut held = Reservation::default();
        held.resize(x.world().budget(), 10).unwrap();
        let text = String::from("abc");
        let (length, held) =
            now(x.world().offload(held, move |turn| text.len() + usize::from(turn.is_over())));
        assert_eq!((length, x.world().budget().taken()), (3, 10));
        drop(held);
        assert_eq!(x.world().budget().taken(), 0);
    }
}
