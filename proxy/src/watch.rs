//! The watch over the workers' threads, which any thread may look at.
#![expect(
    clippy::disallowed_types,
    reason = "the watch over the workers is asked by the control side; no worker takes it while serving"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Tells from any thread how the workers are.
#[derive(Debug, Clone)]
pub struct Watch(pub(crate) Arc<Crew>);

#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) members: Box<[Member]>,
    /// The workers are to stop, so an end without an error is not reported.
    pub(crate) stopping: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Why it ended. Taken at the start, at the end, and by who looks.
    end: Mutex<Option<String>>,
    ended: AtomicBool,
    /// Moves with each tick.
    pub(crate) ticks: AtomicU64,
    /// It did not tick for a while, says [`Watch::look`].
    hangs: AtomicBool,
    /// It is to send copies of its listening sockets.
    pub(crate) copy_sockets: AtomicBool,
}

impl Member {
    /// Notes that the worker has ended, and why if that was not asked for.
    pub(crate) fn note_end(&self, why: Option<String>) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = why;
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn end(&self) -> Option<String> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Watch {
    pub(crate) fn new(count: usize) -> Watch {
        let members = (0..count).map(|_| Member::default()).collect();
        Watch(Arc::new(Crew { members, stopping: AtomicBool::new(false) }))
    }

    pub(crate) fn member(&self, index: usize) -> &Member {
        &self.0.members[index]
    }

    /// Workers there should be.
    pub fn count(&self) -> usize {
        self.0.members.len()
    }

    /// Returns the workers that failed or ended without being asked to, and why.
    pub fn ended(&self) -> Vec<(usize, String)> {
        let members = self.0.members.iter().enumerate();
        let ended = members.filter(|(_, member)| member.ended.load(Ordering::Acquire));
        ended.filter_map(|(index, member)| Some((index, member.end()?))).collect()
    }

    /// Returns the workers that have done nothing since the last look, not even tick. Callers leave
    /// seconds between two looks. `seen` is the caller's memory.
    pub fn look(&self, seen: &mut Vec<u64>) -> Vec<usize> {
        let ticks: Vec<u64> =
            self.0.members.iter().map(|member| member.ticks.load(Ordering::Relaxed)).collect();
        let before = std::mem::replace(seen, ticks);
        let mut hanging = Vec::new();
        for (index, (member, now)) in self.0.members.iter().zip(&*seen).enumerate() {
            let hangs = before.get(index) == Some(now) && !member.ended.load(Ordering::Acquire);
            member.hangs.store(hangs, Ordering::Relaxed);
            if hangs {
                hanging.push(index);
            }
        }
        hanging
    }

    /// Whether every worker serves.
    ///
    /// # Errors
    /// Which one does not, in words.
    pub fn all_serve(&self) -> Result<(), String> {
        if let Some((index, why)) = self.ended().first() {
            return Err(format!("worker id: {index} has ended: {why}"));
        }
        match self.0.members.iter().position(|member| member.hangs.load(Ordering::Relaxed)) {
            Some(index) => Err(format!("worker id: {index} hangs")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_tick_hangs() {
        let watch = Watch::new(2);
        let mut seen = Vec::new();
        assert!(watch.look(&mut seen).is_empty(), "the first look reports nothing");
        watch.member(0).ticks.fetch_add(1, Ordering::Relaxed);
        assert_eq!(watch.look(&mut seen), [1]);
        assert_eq!(watch.all_serve(), Err("worker id: 1 hangs".to_owned()));
        watch.member(1).ticks.fetch_add(1, Ordering::Relaxed);
        assert_eq!(watch.look(&mut seen), [0]);
        watch.member(0).ticks.fetch_add(1, Ordering::Relaxed);
        watch.member(1).ticks.fetch_add(1, Ordering::Relaxed);
        assert!(watch.look(&mut seen).is_empty());
        assert_eq!(watch.all_serve(), Ok(()));
    }
}
