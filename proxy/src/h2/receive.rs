//! hot path
//!
//! Received frames: checked as RFC 9113 sections 4 to 6 require, and passed to their streams.

use wire::h1::Refusal;
use wire::h2::frame::{self, Code, FrameHead, HEAD, MAX_PAYLOAD, flag, kind};

use super::mux::{Closing, EndReason, Mux, Role};
use super::slots::StreamError;
use crate::exchange::fault::Flood;

/// Minimum number of remembered stream resets.
const RESETS: usize = 64;

/// A DATA frame being received.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialData {
    /// Index of its stream, unless that is closed.
    pub(super) index: Option<usize>,
    /// Missing bytes of the data, and of the padding.
    data: usize,
    padding: usize,
    ends: bool,
}

/// An event for the connection's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request with its fields in [`Mux::list`], unless it was refused: index of its stream, and whether it has no
    /// body.
    Request { index: usize, ends: bool, refused: Option<Refusal> },
}

/// A broken rule, by its consequence.
pub(super) enum Broken {
    /// The stream is reset.
    Stream(u32, Code),
    /// The connection ends.
    Connection(Code),
    Flood(Flood),
}

pub(super) type Checked<T = ()> = Result<T, Broken>;

pub(super) fn protocol<T>() -> Checked<T> {
    Err(Broken::Connection(Code::PROTOCOL_ERROR))
}

impl Mux {
    /// Processes received bytes up to an event; returns how many it has taken. Without an event, the rest is an
    /// incomplete frame, to be passed again with more bytes behind it.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        self.last_received = self.clock.coarse_ms();
        let mut at = 0;
        while self.over().is_none() {
            let rest = &bytes[at..];
            if let Some(partial) = self.partial {
                if rest.is_empty() {
                    break;
                }
                at += self.data(partial, rest);
                continue;
            }
            let Some(head) = frame::head(rest) else { break };
            if head.length > MAX_PAYLOAD {
                self.end(EndReason::RuleBroken(Code::FRAME_SIZE_ERROR));
                break;
            }
            let result = if head.kind == kind::DATA {
                // The pad length belongs to the frame's head.
                let Some(taken) = self.data_head(head, &rest[HEAD..]) else { break };
                taken.map(|taken| {
                    at += HEAD + taken;
                    None
                })
            } else {
                let Some(payload) = rest[HEAD..].get(..head.length) else { break };
                at += HEAD + head.length;
                self.frame(head, payload)
            };
            match result {
                Ok(None) => {}
                Ok(Some(event)) => return (at, Some(event)),
                Err(Broken::Stream(stream, code)) => self.reset_stream(stream, code, StreamError::RuleBroken),
                Err(Broken::Connection(code)) => self.end(EndReason::RuleBroken(code)),
                Err(Broken::Flood(flood)) => self.end(EndReason::Flood(flood)),
            }
        }
        (at, None)
    }

    /// Parses the head of a DATA frame with its pad length; `None` if it is incomplete.
    #[inline]
    fn data_head(&mut self, head: FrameHead, rest: &[u8]) -> Option<Checked<usize>> {
        let padding = match (head.has(flag::PADDED), rest.first()) {
            (true, None) if head.length > 0 => return None,
            (true, Some(&padding)) if usize::from(padding) < head.length => Some(usize::from(padding)),
            (true, _) => return Some(protocol()),
            (false, _) => None,
        };
        Some(self.begin_data(head, padding))
    }

    fn begin_data(&mut self, head: FrameHead, padding: Option<usize>) -> Checked<usize> {
        self.check_order(head)?;
        if head.stream == 0 {
            return protocol();
        }
        let length = head.length as i64;
        if length > self.window {
            return Err(Broken::Connection(Code::FLOW_CONTROL_ERROR));
        }
        self.window -= length;
        let (front, padding) = padding.map_or((0, 0), |padding| (1, padding));
        let data = head.length - front - padding;
        let ends = head.has(flag::END_STREAM);
        let mut partial = PartialData { index: None, data, padding, ends };
        // Dropped bytes are returned to the window.
        let dropped = PartialData { ends: false, ..partial };
        let Some(index) = self.slots.find(head.stream) else {
            self.partial = Some(dropped);
            self.spend(1)?;
            match self.closed(head.stream, false) {
                // Its data still has to be skipped.
                Err(Broken::Stream(stream, code)) => self.reset_stream(stream, code, StreamError::RuleBroken),
                closed => closed?,
            }
            self.settle_partial();
            return Ok(front);
        };
        let slot = &mut self.slots[index];
        let broken = if slot.gone.is_some() {
            (!slot.reset).then_some(Code::STREAM_CLOSED)
        } else if slot.received {
            Some(Code::STREAM_CLOSED)
        } else if !slot.has_head {
            Some(Code::PROTOCOL_ERROR)
        } else if length > slot.window {
            Some(Code::FLOW_CONTROL_ERROR)
        } else if slot.expected.is_some_and(|left| data as u64 > left || ends && data as u64 != left) {
            Some(Code::PROTOCOL_ERROR)
        } else {
            slot.window -= length;
            slot.unread += data as u32;
            slot.expected = slot.expected.map(|left| left - data as u64);
            self.unread += data as u32;
            partial.index = Some(index);
            None
        };
        self.partial = Some(if partial.index.is_some() { partial } else { dropped });
        if head.length == 0 && !ends {
            self.spend(1)?;
        }
        if let Some(code) = broken {
            self.reset_stream(head.stream, code, StreamError::RuleBroken);
        }
        self.settle_partial();
        Ok(front)
    }

    /// Consumes the received part of a DATA frame; returns its length.
    #[inline]
    fn data(&mut self, mut partial: PartialData, rest: &[u8]) -> usize {
        let data = partial.data.min(rest.len());
        if data > 0
            && let Some(index) = partial.index
        {
            let slot = &mut self.slots[index];
            slot.data.extend_from_slice(&rest[..data]);
            slot.wake_reader();
        }
        let padding = partial.padding.min(rest.len() - data);
        partial.data -= data;
        partial.padding -= padding;
        self.partial = Some(partial);
        self.settle_partial();
        data + padding
    }

    /// Completes a DATA frame that was received whole.
    fn settle_partial(&mut self) {
        let Some(PartialData { index, data: 0, padding: 0, ends }) = self.partial else { return };
        self.partial = None;
        if let (Some(index), true) = (index, ends) {
            self.slots[index].received = true;
            self.slots[index].wake_reader();
        }
        self.update_window();
        if let Some(index) = index {
            self.update_stream_window(index);
        }
    }

    /// Checks that a frame is allowed at this point.
    fn check_order(&mut self, head: FrameHead) -> Checked {
        let in_block = match &self.block {
            Some(block) => head.kind == kind::CONTINUATION && head.stream == block.stream,
            None => head.kind != kind::CONTINUATION,
        };
        // A peer's first frame is SETTINGS (RFC 9113 section 3.4).
        let first = self.settled || head.kind == kind::SETTINGS && !head.has(flag::ACK);
        if in_block && first { Ok(()) } else { protocol() }
    }

    /// Processes a whole frame.
    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> Checked<Option<Event>> {
        self.check_order(head)?;
        match head.kind {
            kind::HEADERS => return self.headers(head, payload),
            kind::CONTINUATION => {
                self.spend(1 + (head.length >> 8) as i64)?;
                return self.continuation(head, payload);
            }
            kind::RST_STREAM => self.spend(crate::credit::RESET)?,
            // Long frames cost more.
            _ => self.spend(1 + (head.length >> 8) as i64)?,
        }
        match head.kind {
            kind::PRIORITY => self.priority(head, payload),
            kind::RST_STREAM => self.rst_stream(head, payload),
            kind::SETTINGS => self.settings(head, payload),
            kind::PUSH_PROMISE => Err(Code::PROTOCOL_ERROR),
            kind::PING => self.ping(head, payload),
            kind::GOAWAY => self.take_goaway(head, payload),
            kind::WINDOW_UPDATE => return self.window_update(head, payload).map(|()| None),
            kind::PRIORITY_UPDATE => self.priority_update(head, payload),
            _ => Ok(()),
        }
        .map(|()| None)
        .map_err(|code| match (head.kind, code) {
            // A stream error (RFC 9113 section 6.3).
            (kind::PRIORITY, _) if head.stream > 0 => Broken::Stream(head.stream, code),
            _ => Broken::Connection(code),
        })
    }

    /// Charges the peer's credit.
    #[inline]
    pub(super) fn spend(&mut self, cost: i64) -> Checked {
        self.credit.spend(cost);
        if self.credit.is_flood(self.clock.coarse_ms()) {
            return Err(Broken::Flood(Flood::Frames));
        }
        Ok(())
    }

    fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> Checked {
        if payload.len() != 4 {
            return Err(Broken::Connection(Code::FRAME_SIZE_ERROR));
        }
        let more = frame::number(payload).unwrap_or_default();
        if head.stream > 0 && self.is_idle(head.stream) {
            return protocol();
        }
        if head.stream == 0 {
            return self.increase_window(more).map_err(Broken::Connection);
        }
        self.increase_stream_window(head.stream, more).map_err(|code| Broken::Stream(head.stream, code))
    }

    /// Handles a frame of a closed stream. Ignored if we have reset the stream.
    pub(super) fn closed(&mut self, stream: u32, fields: bool) -> Checked {
        if self.is_idle(stream) {
            return protocol();
        }
        if matches!(self.closing, Some(Closing::Behind(last)) if stream > last)
            || self.recent_resets.contains(&stream)
        {
            return Ok(());
        }
        if fields && self.skipped.iter().any(|(from, to)| (*from..=*to).contains(&stream)) {
            return protocol();
        }
        // A client must not begin a stream twice.
        Err(match fields && self.role == Role::Server {
            true => Broken::Connection(Code::STREAM_CLOSED),
            false => Broken::Stream(stream, Code::STREAM_CLOSED),
        })
    }

    /// Whether a stream is idle (RFC 9113 section 5.1).
    pub(super) fn is_idle(&self, stream: u32) -> bool {
        match self.role {
            Role::Server => stream > self.last_peer_stream || stream.is_multiple_of(2),
            Role::Client => stream >= self.next_id || stream.is_multiple_of(2),
        }
    }

    /// Resets a stream on which the peer broke a rule.
    #[cold]
    pub(super) fn reset_stream(&mut self, stream: u32, code: Code, why: StreamError) {
        frame::put_number(kind::RST_STREAM, stream, code.0, &mut self.out);
        self.note_reset(stream);
        if code != Code::REFUSED_STREAM {
            self.count_error();
        }
        if let Some(index) = self.slots.find(stream) {
            self.drop_data(index);
            self.dequeue(index);
            self.slots[index].reset = true;
            self.slots[index].break_off(why);
        }
    }

    /// Counts a stream on which the peer broke a rule.
    pub(super) fn count_error(&mut self) {
        self.stream_errors += 1;
        if self.stream_errors > self.limits.stream_errors {
            self.end(EndReason::Flood(Flood::StreamErrors));
        }
    }

    /// Remembers that a stream was reset here.
    pub(super) fn note_reset(&mut self, stream: u32) {
        // Exchanges that end together, as when a client disconnects, all reset their streams.
        if self.recent_resets.len() >= RESETS.max(2 * self.limits.streams) {
            self.recent_resets.pop_front();
        }
        self.recent_resets.push_back(stream);
    }
}
