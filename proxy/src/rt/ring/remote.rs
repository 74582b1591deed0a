//! How other threads tell a worker that one of its tasks is ready: a new snapshot, a signal.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A list of tasks, and an event that the worker's ring waits for.
#[derive(Debug)]
pub(super) struct Remote {
    ready: Mutex<Vec<u32>>,
    /// The event was raised and not yet seen.
    raised: AtomicBool,
    event: OwnedFd,
}

impl Remote {
    pub(super) fn new() -> io::Result<Remote> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Remote { ready: Mutex::default(), raised: AtomicBool::new(false), event })
    }

    /// Written to when the list is no longer empty.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn push(&self, task: u32) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        if !self.raised.swap(true, Ordering::AcqRel) {
            // Nobody reads it, so it fails only after 2^64 - 2 times.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// For the worker, after the event: moves the list to its own.
    pub(super) fn take(&self, into: &mut VecDeque<u32>) {
        // First, so that what is pushed from now on raises the event again.
        self.raised.store(false, Ordering::Release);
        into.extend(self.ready.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
    }
}
