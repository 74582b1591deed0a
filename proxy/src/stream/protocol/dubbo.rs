//! hot path
//!
//! Dubbo: requests and the responses to them, which have the same number.

use std::cell::RefCell;

use foldhash::quality::RandomState;
use hashbrown::HashMap;
use wire::dubbo::{Frames, Head, Part};

use super::{CallLog, MOST_CALLS};
use crate::exchange::fault::Fault;
use crate::relay::{Passed, Side, Stop, Tap};

const BAD_MAGIC: &str = "unknown magic number: a frame of Dubbo begins with 0xdabb";

/// The calls of a stream.
pub(super) struct Calls<'c, 's> {
    log: CallLog<'c, 's>,
    /// When requests began that have no response yet, by number.
    waiting: HashMap<u64, u64, RandomState>,
}

impl<'c, 's> Calls<'c, 's> {
    pub(super) fn new(log: CallLog<'c, 's>) -> Calls<'c, 's> {
        Calls { log, waiting: HashMap::default() }
    }

    fn begin(&mut self, id: u64) {
        if self.waiting.len() >= MOST_CALLS && !self.waiting.contains_key(&id) {
            self.log.worker.shard.call_unwatched();
            return;
        }
        let now_us = self.log.worker.clock.micros();
        self.waiting.insert(id, now_us);
    }

    fn end(&mut self, id: u64) {
        if let Some(began_us) = self.waiting.remove(&id) {
            let took_us = self.log.worker.clock.micros().saturating_sub(began_us);
            self.log.log(took_us, NO_LINE);
            if self.waiting.is_empty() && self.waiting.capacity() > 64 {
                self.waiting.shrink_to(0);
            }
        }
    }

    /// Ends the calls of a stream that is over. Those without a response are logged as well, as in APISIX.
    pub(super) fn close(mut self) -> Option<Fault> {
        let now_us = if self.waiting.is_empty() { 0 } else { self.log.worker.clock.micros() };
        for (_, began_us) in self.waiting.drain() {
            self.log.log(now_us.saturating_sub(began_us), NO_LINE);
        }
        self.log.close()
    }
}

const NO_LINE: Option<fn(&mut Vec<u8>)> = None;

/// Returns the taps on the client's frames and on the server's.
pub(super) fn taps<'r, 'c, 's>(
    calls: &'r RefCell<Calls<'c, 's>>,
) -> (FramesOf<'r, 'c, 's>, FramesOf<'r, 'c, 's>) {
    let logs = calls.borrow().log.has_loggers();
    let of = |side| FramesOf { calls, logs, side, frames: Frames::default(), ends: None };
    (of(Side::Client), of(Side::Upstream))
}

/// Looks at the frames of one side.
pub(super) struct FramesOf<'r, 'c, 's> {
    calls: &'r RefCell<Calls<'c, 's>>,
    logs: bool,
    side: Side,
    frames: Frames,
    /// The call that ends with this frame.
    ends: Option<u64>,
}

impl Tap for FramesOf<'_, '_, '_> {
    fn look(&mut self, bytes: &[u8]) -> Result<Passed, Stop> {
        let mut at = 0;
        while at < bytes.len() {
            let (used, part) = (self.frames.next(&bytes[at..]))
                .map_err(|_| self.calls.borrow_mut().log.refuse(self.side, BAD_MAGIC))?;
            at += used;
            match part {
                Some(Part::Head(head)) if self.logs => self.head(&head),
                Some(Part::Body { last: true, .. }) => self.end(),
                _ => {}
            }
        }
        Ok(Passed { now: bytes.len(), hold: None })
    }
}

impl FramesOf<'_, '_, '_> {
    fn head(&mut self, head: &Head) {
        // Heartbeats are no calls, nor are requests that a server sends to a client.
        let is_call = !head.is_event && head.is_request == (self.side == Side::Client);
        if !is_call {
            return;
        }
        if head.is_request {
            self.calls.borrow_mut().begin(head.id);
        }
        // A request that wants no response has ended when it has gone on.
        if !head.is_request || !head.two_way {
            self.ends = Some(head.id);
        }
        if head.len == 0 {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(id) = self.ends.take() {
            self.calls.borrow_mut().end(id);
        }
    }
}
