//! The work of filters on one body, which is taken on by the worker or by the background pool.

use std::sync::Arc;

use sdk::offload::Until;
use sdk::pattern::{Progress, Replaced, Substitution};

use crate::decode::{Coding, Decoded, Decoding};

/// A body whose end is here, and how far the filters are with it.
pub(super) struct Work {
    filters: Arc<[Substitution]>,
    /// The body, if it is still to be decoded.
    decoding: Option<Decoding>,
    body: Vec<u8>,
    /// The filter that is at work.
    filter: usize,
    progress: Progress,
    pub(super) found: Findings,
}

/// Findings to report once the work is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// A filter gave up.
    pub(super) undecided: bool,
    /// The decoded body is longer than it may be.
    pub(super) cut: bool,
    /// The body does not fit its coding, so it is dropped.
    pub(super) broken: bool,
}

/// Why the work stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    /// Its time is over.
    Time,
    /// It holds as much as it may: it needs `least` bytes in all to go on, and better has `wanted`.
    Room { least: usize, wanted: usize },
}

impl Work {
    /// `most` bounds the decoded body; `cut` says that the end of the coded one was left out.
    pub(super) fn new(
        filters: Arc<[Substitution]>,
        body: Vec<u8>,
        coding: Option<Coding>,
        most: usize,
        cut: bool,
    ) -> Work {
        let (decoding, body) = match coding {
            Some(coding) if !body.is_empty() => (Some(Decoding::new(coding, body, most, cut)), Vec::new()),
            _ => (None, body),
        };
        Work { filters, decoding, body, filter: 0, progress: Progress::default(), found: Findings::default() }
    }

    /// Goes on; none when all is done. All that it holds may take `room` bytes.
    pub(super) fn go_on(&mut self, room: usize, until: &mut Until<'_>) -> Option<Pause> {
        if let Some(decoding) = &mut self.decoding {
            match decoding.go_on(room, until) {
                Decoded::All => {}
                Decoded::Cut => self.found.cut = true,
                Decoded::Paused => return Some(Pause::Time),
                Decoded::Full { least, wanted } => return Some(Pause::Room { least, wanted }),
                Decoded::Broken => {
                    self.found.broken = true;
                    self.decoding = None;
                    return None;
                }
            }
            self.body = self.decoding.take().map(Decoding::into_plain).unwrap_or_default();
        }
        while let Some(filter) = self.filters.get(self.filter) {
            let own = self.body.capacity();
            match filter.go_on(&mut self.progress, &self.body, room.saturating_sub(own), until) {
                Replaced::All => {}
                Replaced::GaveUp => self.found.undecided = true,
                Replaced::Paused => return Some(Pause::Time),
                Replaced::Full { least, wanted } => {
                    return Some(Pause::Room { least: own + least, wanted: own.saturating_add(wanted) });
                }
            }
            if let Some(text) = std::mem::take(&mut self.progress).into_text() {
                self.body = text;
            }
            self.filter += 1;
        }
        None
    }

    pub(super) fn into_body(self) -> Vec<u8> {
        self.body
    }
}
