//! hot path
//!
//! Which streams of a connection to a server keep what came for clients that do not take it.
//!
//! Every stream has a part of what the worker may promise to servers (`upstream.http2_windows`). Where that is used up,
//! the streams whose clients take least are reset for those that want a part. A stream is stalled when it had something
//! for its client for `upstream.http2_stall_timeout`, and the client has taken less than [`PROGRESS`] in that time. One
//! that waits for its server is not, nor is one whose response is complete.

use std::cell::RefCell;
use std::task::{Context, Waker};

/// Bytes that a client takes at least while a stall is waited for.
const PROGRESS: usize = 1 << 10;

/// The streams of one connection, by index.
#[derive(Debug, Default)]
pub(super) struct Claims(RefCell<All>);

#[derive(Debug, Default)]
struct All {
    entries: Vec<Entry>,
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Since when, in the clock's coarse milliseconds, there is something that the client does not take.
    since: Option<u64>,
    /// Bytes that it has taken since then.
    taken: usize,
    reset: bool,
    waker: Option<Waker>,
}

impl Claims {
    /// A stream begins.
    pub(super) fn begin(&self) -> usize {
        let mut all = self.0.borrow_mut();
        all.free.pop().unwrap_or_else(|| {
            all.entries.push(Entry::default());
            all.entries.len() - 1
        })
    }

    /// It is over.
    pub(super) fn end(&self, index: usize) {
        let mut all = self.0.borrow_mut();
        all.entries[index] = Entry::default();
        all.free.push(index);
    }

    /// There is something for the client.
    #[inline]
    pub(super) fn came(&self, index: usize, now: u64) {
        let entry = &mut self.0.borrow_mut().entries[index];
        if entry.since.is_none() {
            (entry.since, entry.taken) = (Some(now), 0);
        }
    }

    /// The client has taken so much of it.
    #[inline]
    pub(super) fn taken(&self, index: usize, bytes: usize, now: u64) {
        let entry = &mut self.0.borrow_mut().entries[index];
        entry.taken += bytes;
        if entry.taken >= PROGRESS && entry.since.is_some() {
            (entry.since, entry.taken) = (Some(now), 0);
        }
    }

    /// It has taken all; the server is waited for, or has sent everything.
    #[inline]
    pub(super) fn waits(&self, index: usize) {
        self.0.borrow_mut().entries[index].since = None;
    }

    /// Whether the stream is to be reset; else its task is woken when it is.
    #[inline]
    pub(super) fn poll_reset(&self, index: usize, cx: &Context<'_>) -> bool {
        let entry = &mut self.0.borrow_mut().entries[index];
        if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            entry.waker = Some(cx.waker().clone());
        }
        entry.reset
    }

    /// Gives the streams that are stalled since `until` or longer, and since when they are.
    #[cold]
    pub(super) fn stalled(&self, until: u64, mut give: impl FnMut(u64, usize)) {
        for (index, entry) in self.0.borrow().entries.iter().enumerate() {
            if let Some(since) = entry.since.filter(|since| *since <= until && !entry.reset) {
                give(since, index);
            }
        }
    }

    /// Has the stream's task reset it.
    #[cold]
    pub(super) fn reset(&self, index: usize) {
        let entry = &mut self.0.borrow_mut().entries[index];
        entry.reset = true;
        if let Some(waker) = entry.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::count;

    fn stalled(claims: &Claims, until: u64) -> Vec<(u64, usize)> {
        let mut all = Vec::new();
        claims.stalled(until, |since, index| all.push((since, index)));
        all
    }

    #[test]
    fn a_trickle_is_no_progress_and_waiting_for_the_server_is_no_stall() {
        let claims = Claims::default();
        let (trickles, waits, reads) = (claims.begin(), claims.begin(), claims.begin());
        for stream in [trickles, waits, reads] {
            claims.came(stream, 10);
        }
        for now in (4000..100_000).step_by(4000) {
            claims.taken(trickles, 1, now);
            claims.came(trickles, now);
            claims.taken(reads, PROGRESS / 2, now);
            claims.came(reads, now);
        }
        claims.taken(waits, 1, 20);
        claims.waits(waits);
        assert_eq!(stalled(&claims, 80_000), [(10, trickles)]);
        claims.came(waits, 90_000);
        assert_eq!(stalled(&claims, 90_000), [(10, trickles), (90_000, waits)]);
    }

    #[test]
    fn a_reset_stream_is_woken_once_and_its_place_is_free_again() {
        let claims = Claims::default();
        let (first, second) = (claims.begin(), claims.begin());
        let (woken, waker) = count();
        let cx = Context::from_waker(&waker);
        assert!(!claims.poll_reset(first, &cx) && !claims.poll_reset(second, &cx));
        claims.came(first, 1);
        claims.reset(first);
        assert_eq!(woken.so_far(), 1);
        assert!(claims.poll_reset(first, &cx) && !claims.poll_reset(second, &cx));
        assert_eq!(stalled(&claims, 5), [], "it is on its way out");
        claims.end(first);
        assert_eq!(claims.begin(), first);
        assert!(!claims.poll_reset(first, &cx));
    }
}
