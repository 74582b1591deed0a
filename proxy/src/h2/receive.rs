//! hot path
//!
//! Received frames: checked as RFC 9113 sections 4 to 6 require, and passed to their streams.

use wire::field_list::{Bad, List};
use wire::h1::Refusal;
use wire::h1::chunked::may_be_trailer;
use wire::h2::frame::{self, Code, FrameHead, HEAD, MAX_PAYLOAD, flag, kind};
use wire::parts::speaks_of_connection;
use wire::{Fields, Name, ResponseHead, Version};

use super::mux::{Closing, Mux, Over, PSEUDO, Role};
use super::slots::{Gone, Slot};
use crate::exchange::fault::Flood;

/// Streams that were reset here and are remembered, at least.
const RESETS: usize = 64;

/// Interim responses that wait to be taken.
const INTERIM: usize = 16;

/// A DATA frame of which a part came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Partial {
    /// The place of its stream, unless that is over.
    pub(super) index: Option<usize>,
    /// Bytes that are still to come: of the data, and behind them.
    data: usize,
    padding: usize,
    ends: bool,
}

/// A block of fields of which a part came.
#[derive(Debug)]
pub(super) struct Block {
    stream: u32,
    bytes: Vec<u8>,
    ends: bool,
    /// Its frame says that the stream depends on itself.
    wrong: bool,
}

/// Something for the connection's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request came, whose fields are in [`Mux::list`]: the place of its stream, and whether that is all of it.
    /// Where `refused` says why, there are none.
    Request { index: usize, ends: bool, refused: Option<Refusal> },
}

/// A rule was broken.
enum Broken {
    /// On one stream, which is reset.
    Stream(u32, Code),
    /// The connection ends.
    Connection(Code),
    Flood(Flood),
}

type Checked<T = ()> = Result<T, Broken>;

fn protocol<T>() -> Checked<T> {
    Err(Broken::Connection(Code::PROTOCOL_ERROR))
}

impl Mux {
    /// Processes received bytes up to an event; returns how many it has taken. Without an event, the rest is an
    /// incomplete frame, to be passed again with more bytes behind it.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        self.heard = self.clock.coarse_ms();
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
                self.end(Over::RuleBroken(Code::FRAME_SIZE_ERROR));
                break;
            }
            let result = if head.kind == kind::DATA {
                // With the length of its padding.
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
                Err(Broken::Stream(stream, code)) => self.reset_stream(stream, code, Gone::RuleBroken),
                Err(Broken::Connection(code)) => self.end(Over::RuleBroken(code)),
                Err(Broken::Flood(flood)) => self.end(Over::Flood(flood)),
            }
        }
        (at, None)
    }

    /// Takes a DATA frame's head, and the length of its padding. None, if that is still to come.
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
        self.expects(head)?;
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
        let mut partial = Partial { index: None, data, padding, ends };
        // Dropped bytes are given back to the window.
        let dropped = Partial { ends: false, ..partial };
        let Some(index) = self.slots.find(head.stream) else {
            self.partial = Some(dropped);
            self.spend(1)?;
            match self.closed(head.stream, false) {
                // Its data is still to be passed over.
                Err(Broken::Stream(stream, code)) => self.reset_stream(stream, code, Gone::RuleBroken),
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
            self.reset_stream(head.stream, code, Gone::RuleBroken);
        }
        self.settle_partial();
        Ok(front)
    }

    /// Takes the received part of a DATA frame; returns its length.
    #[inline]
    fn data(&mut self, mut partial: Partial, rest: &[u8]) -> usize {
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

    /// Ends a DATA frame that is here whole.
    fn settle_partial(&mut self) {
        let Some(Partial { index, data: 0, padding: 0, ends }) = self.partial else { return };
        self.partial = None;
        if let (Some(index), true) = (index, ends) {
            self.slots[index].received = true;
            self.slots[index].wake_reader();
        }
        self.renew_window();
        if let Some(index) = index {
            self.renew_stream(index);
        }
    }

    /// Whether a frame may come now at all.
    fn expects(&mut self, head: FrameHead) -> Checked {
        let in_block = match &self.block {
            Some(block) => head.kind == kind::CONTINUATION && head.stream == block.stream,
            None => head.kind != kind::CONTINUATION,
        };
        // A peer's first frame is SETTINGS (RFC 9113 section 3.4).
        let first = self.settled || head.kind == kind::SETTINGS && !head.has(flag::ACK);
        if in_block && first { Ok(()) } else { protocol() }
    }

    /// Takes a frame that is here whole.
    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> Checked<Option<Event>> {
        self.expects(head)?;
        match head.kind {
            kind::HEADERS => return self.headers(head, payload),
            kind::CONTINUATION => {
                self.spend(1 + (head.length >> 8) as i64)?;
                return self.continuation(head, payload);
            }
            kind::RST_STREAM => self.spend(crate::credit::RESET)?,
            // A long one is more work.
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
            // Of these, a mistake concerns the stream (RFC 9113 section 6.3).
            (kind::PRIORITY, _) if head.stream > 0 => Broken::Stream(head.stream, code),
            _ => Broken::Connection(code),
        })
    }

    /// Takes credit from the peer.
    #[inline]
    fn spend(&mut self, cost: i64) -> Checked {
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
            return self.widen(more).map_err(Broken::Connection);
        }
        self.widen_stream(head.stream, more).map_err(|code| Broken::Stream(head.stream, code))
    }

    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Checked<Option<Event>> {
        // Requests that were refused have their price.
        self.spend(0)?;
        if head.stream == 0 {
            return protocol();
        }
        let mut fragment = frame::without_padding(head, payload).map_or_else(protocol, Ok)?;
        let mut wrong = false;
        if head.has(flag::PRIORITY) {
            let Some((priority, rest)) = fragment.split_at_checked(5) else {
                return Err(Broken::Connection(Code::FRAME_SIZE_ERROR));
            };
            wrong = frame::number(priority) == Some(head.stream);
            fragment = rest;
        }
        let ends = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.block(head.stream, fragment, ends, wrong);
        }
        self.block = Some(Block { stream: head.stream, bytes: fragment.to_vec(), ends, wrong });
        Ok(None)
    }

    fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> Checked<Option<Event>> {
        let Some(block) = &mut self.block else { return protocol() };
        // Coded, a list may be longer than it is, but seldom is.
        if block.bytes.len() + payload.len() > 2 * self.limits.list.max(MAX_PAYLOAD) {
            return Err(Broken::Flood(Flood::HeaderList));
        }
        block.bytes.extend_from_slice(payload);
        if !head.has(flag::END_HEADERS) {
            return Ok(None);
        }
        let Some(Block { stream, bytes, ends, wrong }) = self.block.take() else { return Ok(None) };
        self.block(stream, &bytes, ends, wrong)
    }

    /// Takes a whole block of fields.
    fn block(&mut self, stream: u32, bytes: &[u8], ends: bool, wrong: bool) -> Checked<Option<Event>> {
        // It is decoded in any case, for the sake of those that follow.
        let most = self.limits.fields + PSEUDO;
        let refused = match self.decoder.decode(bytes, &mut self.list, self.limits.head, most) {
            Ok(()) => None,
            Err(Bad::Coding) => return Err(Broken::Connection(Code::COMPRESSION_ERROR)),
            Err(Bad::TooLarge) => Some(Refusal::HeadTooLarge),
            Err(Bad::TooMany) => Some(Refusal::TooManyFields),
        };
        if let Some(index) = self.slots.find(stream) {
            let slot = &self.slots[index];
            if slot.gone.is_some() && slot.reset {
                self.spend(1)?;
                return Ok(None);
            }
            if slot.gone.is_some() || slot.received {
                return Err(Broken::Stream(stream, Code::STREAM_CLOSED));
            }
            if wrong {
                return Err(Broken::Stream(stream, Code::PROTOCOL_ERROR));
            }
            if slot.has_head {
                self.trailers(index, ends, refused)?;
            } else {
                self.response(index, ends, refused);
            }
            return Ok(None);
        }
        if self.role == Role::Client || stream <= self.newest {
            self.spend(1)?;
            self.closed(stream, true)?;
            return Ok(None);
        }
        if stream.is_multiple_of(2) {
            return protocol();
        }
        if stream > self.newest + 2 {
            self.note_gap(self.newest + 1, stream - 1);
        }
        self.newest = stream;
        if matches!(self.closing, Some(Closing::Behind(_))) {
            return Ok(None);
        }
        if wrong {
            return Err(Broken::Stream(stream, Code::PROTOCOL_ERROR));
        }
        let open = self.slots.iter().filter(|slot| slot.is_open()).count();
        // Exchanges of streams that were reset take a moment to end.
        if open >= self.limits.streams || self.slots.len() >= 2 * self.limits.streams {
            self.credit.refused();
            return Err(Broken::Stream(stream, Code::REFUSED_STREAM));
        }
        self.credit.request();
        let index = self.slots.insert(stream);
        let window = self.whole_window();
        let slot = &mut self.slots[index];
        (slot.window, slot.send_window) = (window, self.peer_window);
        (slot.has_head, slot.received) = (true, ends);
        Ok(Some(Event::Request { index, ends, refused }))
    }

    /// A response's head.
    fn response(&mut self, index: usize, ends: bool, refused: Option<Refusal>) {
        let mut head = std::mem::take(&mut self.slots[index].spare);
        head.version = Version::Http2;
        let made = match refused {
            Some(refusal) => Err(refusal),
            None if self.list.len() > self.limits.fields + 1 => Err(Refusal::TooManyFields),
            None => response_head(&self.list, &mut head),
        };
        let slot = &mut self.slots[index];
        let waiting: usize = slot.heads.iter().map(|head| field_section_size(&head.fields)).sum();
        let interim = head.status < 200;
        let expected = match length(&head.fields) {
            Some(Ok(length)) if !slot.bodiless && !matches!(head.status, 204 | 304) => Some(length),
            _ => None,
        };
        let why = match made {
            Err(refusal) => Some(refusal),
            Ok(()) if interim && ends => Some(Refusal::Status),
            Ok(()) if ends && expected.is_some_and(|length| length > 0) => Some(Refusal::ContentLength),
            Ok(()) if slot.heads.len() > INTERIM => Some(Refusal::Status),
            Ok(()) if waiting > self.limits.head => Some(Refusal::HeadTooLarge),
            Ok(()) => None,
        };
        if let Some(refusal) = why {
            let id = slot.id;
            return self.reset_stream(id, Code::PROTOCOL_ERROR, Gone::Malformed(refusal));
        }
        if !interim {
            (slot.has_head, slot.received, slot.expected) = (true, ends, expected);
            self.errors = self.errors.saturating_sub(1);
        }
        slot.heads.push_back(head);
        slot.wake_reader();
    }

    /// Fields behind a body.
    fn trailers(&mut self, index: usize, ends: bool, refused: Option<Refusal>) -> Checked {
        let slot = &mut self.slots[index];
        let id = slot.id;
        if !ends || slot.expected.is_some_and(|left| left > 0) {
            return Err(Broken::Stream(id, Code::PROTOCOL_ERROR));
        }
        let too_large = refused.is_some() || self.list.len() > self.limits.fields;
        match take_trailers(&self.list, &mut slot.trailers) {
            // The client can still be answered.
            _ if too_large => slot.refused = Some(Refusal::TrailersTooLarge),
            Err(refusal) => {
                self.reset_stream(id, Code::PROTOCOL_ERROR, Gone::Malformed(refusal));
                return Ok(());
            }
            Ok(()) => {}
        }
        slot.received = true;
        slot.wake_reader();
        self.hold_trailers(index)
    }

    /// Counts a stream's trailers until they are taken.
    fn hold_trailers(&mut self, index: usize) -> Checked {
        let slot = &mut self.slots[index];
        if slot.trailers.is_empty() {
            return Ok(());
        }
        let size = slot.trailers.memory();
        let all = self.trailers.bytes() + size;
        if all > self.limits.trailers {
            return Err(Broken::Flood(Flood::Unread));
        }
        self.trailers.resize(&self.budgets.received, all).map_err(|_| Broken::Flood(Flood::AllUnread))?;
        slot.trailers_size = size;
        Ok(())
    }

    /// A frame of a stream that has no place. Those that were reset here are ignored.
    fn closed(&mut self, stream: u32, fields: bool) -> Checked {
        if self.is_idle(stream) {
            return protocol();
        }
        if matches!(self.closing, Some(Closing::Behind(last)) if stream > last)
            || self.reset.contains(&stream)
        {
            return Ok(());
        }
        if fields && self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&stream)) {
            return protocol();
        }
        // A client does not begin a stream twice.
        Err(match fields && self.role == Role::Server {
            true => Broken::Connection(Code::STREAM_CLOSED),
            false => Broken::Stream(stream, Code::STREAM_CLOSED),
        })
    }

    /// Whether a stream has not begun.
    pub(super) fn is_idle(&self, stream: u32) -> bool {
        match self.role {
            Role::Server => stream > self.newest || stream.is_multiple_of(2),
            Role::Client => stream >= self.next || stream.is_multiple_of(2),
        }
    }

    /// Resets a stream on which the peer broke a rule.
    #[cold]
    fn reset_stream(&mut self, stream: u32, code: Code, why: Gone) {
        frame::put_number(kind::RST_STREAM, stream, code.0, &mut self.out);
        self.note_reset(stream);
        if code != Code::REFUSED_STREAM {
            self.count_error();
        }
        if let Some(index) = self.slots.find(stream) {
            self.drop_data(index);
            self.leave_queue(index);
            self.slots[index].reset = true;
            self.slots[index].break_off(why);
        }
    }

    /// Counts a stream on which the peer broke a rule.
    pub(super) fn count_error(&mut self) {
        self.errors += 1;
        if self.errors > self.limits.stream_errors {
            self.end(Over::Flood(Flood::StreamErrors));
        }
    }

    /// Remembers that a stream was reset here.
    pub(super) fn note_reset(&mut self, stream: u32) {
        // Exchanges that end together, such as those of a client that goes, all reset their streams.
        if self.reset.len() >= RESETS.max(2 * self.limits.streams) {
            self.reset.pop_front();
        }
        self.reset.push_back(stream);
    }
}

/// The size of fields as it is announced (RFC 9113 section 6.5.2).
fn field_section_size(fields: &Fields) -> usize {
    fields.iter().map(|(name, value, _)| name.len() + value.len() + 32).sum()
}

/// Makes a response's head of its fields (RFC 9113 section 8.3.2).
fn response_head(list: &List, head: &mut ResponseHead) -> Result<(), Refusal> {
    let mut fields = list.iter();
    let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = *(match fields.next() {
        Some((b":status", value, _)) => value,
        _ => return Err(Refusal::StatusLine),
    }) else {
        return Err(Refusal::Status);
    };
    head.status = [a, b, c].iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    for (name, value, id) in fields {
        check(list, name, value)?;
        if speaks_of_connection(id, value) {
            return Err(Refusal::Connection);
        }
        head.fields.append_checked(id, name, value);
    }
    match length(&head.fields) {
        Some(Err(refusal)) => Err(refusal),
        _ => Ok(()),
    }
}

/// Checks the form of a field that is not a pseudo-header (RFC 9113 section 8.2.1).
#[inline]
fn check(list: &List, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
    if list.is_clean() && !name.starts_with(b":") {
        return Ok(());
    }
    if name.iter().any(u8::is_ascii_uppercase) || wire::fields::check_name(name).is_err() {
        return Err(Refusal::FieldName);
    }
    let spaced = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if wire::fields::check_value(value).is_err() || spaced(value.first()) || spaced(value.last()) {
        return Err(Refusal::Control);
    }
    Ok(())
}

/// Takes trailers over, but for those that could be taken for framing, routing or authentication.
fn take_trailers(list: &List, to: &mut Fields) -> Result<(), Refusal> {
    to.clear(1 << 10);
    for (name, value, id) in list.iter() {
        check(list, name, value)?;
        if speaks_of_connection(id, value) {
            return Err(Refusal::Connection);
        }
        if may_be_trailer(name) {
            to.append_checked(id, name, value);
        }
    }
    Ok(())
}

/// The length that a response announces.
pub(crate) fn length(fields: &Fields) -> Option<Result<u64, Refusal>> {
    let mut lengths = fields.all_checked(Name::ContentLength, b"content-length");
    let first = lengths.next()?;
    if lengths.next().is_some() {
        return Some(Err(Refusal::RepeatedContentLength));
    }
    let digits = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    let parsed = std::str::from_utf8(first).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    Some(parsed.ok_or(Refusal::ContentLength))
}

impl Slot {
    /// It has nothing that was not taken.
    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Nothing came behind its body.
    pub(super) fn has_no_trailers(&self) -> bool {
        self.trailers.is_empty() && self.refused.is_none()
    }
}
