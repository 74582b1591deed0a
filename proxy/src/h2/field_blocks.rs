//! hot path
//!
//! Field blocks (RFC 9113 section 4.3): the heads of requests and responses, and trailers.

use wire::field_list::{Bad, List};
use wire::h1::Refusal;
use wire::h1::chunked::may_be_trailer;
use wire::h2::frame::{self, Code, FrameHead, MAX_PAYLOAD, flag};
use wire::parts::speaks_of_connection;
use wire::{Fields, Name, ResponseHead, Version};

use super::mux::{Closing, Mux, PSEUDO, Role};
use super::receive::{Broken, Checked, Event, protocol};
use super::slots::{Slot, StreamError};
use crate::exchange::fault::Flood;

/// Maximum number of unread interim responses.
const INTERIM: usize = 16;

/// A field block being received.
#[derive(Debug)]
pub(super) struct PartialBlock {
    pub(super) stream: u32,
    bytes: Vec<u8>,
    ends: bool,
    /// Its priority makes the stream depend on itself.
    self_dependent: bool,
}

impl Mux {
    pub(super) fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Checked<Option<Event>> {
        // Refused requests may have used up the credit.
        self.spend(0)?;
        if head.stream == 0 {
            return protocol();
        }
        let mut fragment = frame::without_padding(head, payload).map_or_else(protocol, Ok)?;
        let mut self_dependent = false;
        if head.has(flag::PRIORITY) {
            let Some((priority, rest)) = fragment.split_at_checked(5) else {
                return Err(Broken::Connection(Code::FRAME_SIZE_ERROR));
            };
            self_dependent = frame::number(priority) == Some(head.stream);
            fragment = rest;
        }
        let ends = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.block(head.stream, fragment, ends, self_dependent);
        }
        self.block =
            Some(PartialBlock { stream: head.stream, bytes: fragment.to_vec(), ends, self_dependent });
        Ok(None)
    }

    pub(super) fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> Checked<Option<Event>> {
        let Some(block) = &mut self.block else { return protocol() };
        // Encoding rarely makes a list longer.
        if block.bytes.len() + payload.len() > 2 * self.limits.list.max(MAX_PAYLOAD) {
            return Err(Broken::Flood(Flood::HeaderList));
        }
        block.bytes.extend_from_slice(payload);
        if !head.has(flag::END_HEADERS) {
            return Ok(None);
        }
        let Some(PartialBlock { stream, bytes, ends, self_dependent }) = self.block.take() else {
            return Ok(None);
        };
        self.block(stream, &bytes, ends, self_dependent)
    }

    /// Processes a whole field block.
    fn block(
        &mut self,
        stream: u32,
        bytes: &[u8],
        ends: bool,
        self_dependent: bool,
    ) -> Checked<Option<Event>> {
        // Every block is decoded: the next ones depend on the dynamic table.
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
            if self_dependent {
                return Err(Broken::Stream(stream, Code::PROTOCOL_ERROR));
            }
            if slot.has_head {
                self.trailers(index, ends, refused)?;
            } else {
                self.response(index, ends, refused);
            }
            return Ok(None);
        }
        if self.role == Role::Client || stream <= self.last_peer_stream {
            self.spend(1)?;
            self.closed(stream, true)?;
            return Ok(None);
        }
        if stream.is_multiple_of(2) {
            return protocol();
        }
        if stream > self.last_peer_stream + 2 {
            self.note_skipped(self.last_peer_stream + 1, stream - 1);
        }
        self.last_peer_stream = stream;
        if matches!(self.closing, Some(Closing::Behind(_))) {
            return Ok(None);
        }
        if self_dependent {
            return Err(Broken::Stream(stream, Code::PROTOCOL_ERROR));
        }
        let open = self.slots.iter().filter(|slot| slot.is_open()).count();
        // Exchanges of reset streams take a moment to end.
        if open >= self.limits.streams || self.slots.len() >= 2 * self.limits.streams {
            self.credit.refused();
            return Err(Broken::Stream(stream, Code::REFUSED_STREAM));
        }
        self.credit.request();
        let index = self.slots.insert(stream);
        let window = self.initial_stream_window();
        let slot = &mut self.slots[index];
        (slot.window, slot.send_window) = (window, self.peer_window);
        (slot.has_head, slot.received) = (true, ends);
        Ok(Some(Event::Request { index, ends, refused }))
    }

    /// Processes the head of a response.
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
            return self.reset_stream(id, Code::PROTOCOL_ERROR, StreamError::Malformed(refusal));
        }
        if !interim {
            (slot.has_head, slot.received, slot.expected) = (true, ends, expected);
            self.stream_errors = self.stream_errors.saturating_sub(1);
        }
        slot.heads.push_back(head);
        slot.wake_reader();
    }

    /// Processes trailers.
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
                self.reset_stream(id, Code::PROTOCOL_ERROR, StreamError::Malformed(refusal));
                return Ok(());
            }
            Ok(()) => {}
        }
        slot.received = true;
        slot.wake_reader();
        self.reserve_trailers(index)
    }

    /// Reserves memory for a stream's trailers until they are read.
    fn reserve_trailers(&mut self, index: usize) -> Checked {
        let slot = &mut self.slots[index];
        if slot.trailers.is_empty() {
            return Ok(());
        }
        let size = slot.trailers.memory();
        let all = self.trailers_reserved.bytes() + size;
        if all > self.limits.trailers {
            return Err(Broken::Flood(Flood::Unread));
        }
        self.trailers_reserved
            .resize(&self.budgets.received, all)
            .map_err(|_| Broken::Flood(Flood::AllUnread))?;
        slot.trailers_size = size;
        Ok(())
    }
}

/// The size of a field section (RFC 9113 section 6.5.2).
fn field_section_size(fields: &Fields) -> usize {
    fields.iter().map(|(name, value, _)| name.len() + value.len() + 32).sum()
}

/// Builds the head of a response (RFC 9113 section 8.3.2).
fn response_head(list: &List, head: &mut ResponseHead) -> Result<(), Refusal> {
    let mut fields = list.fields().iter().zip(list.iter());
    let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = *(match fields.next() {
        Some((_, (b":status", value, _))) => value,
        _ => return Err(Refusal::StatusLine),
    }) else {
        return Err(Refusal::Status);
    };
    head.status = [a, b, c].iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    let start = head.fields.intern(list.lines()).start;
    for (field, (name, value, id)) in fields {
        check(list, name, value)?;
        if speaks_of_connection(id, value) {
            return Err(Refusal::Connection);
        }
        head.fields.push(field.behind(start));
    }
    match length(&head.fields) {
        Some(Err(refusal)) => Err(refusal),
        _ => Ok(()),
    }
}

/// Checks the syntax of a regular field (RFC 9113 section 8.2.1).
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

/// Copies trailers, except fields that affect framing, routing or authentication.
fn take_trailers(list: &List, to: &mut Fields) -> Result<(), Refusal> {
    to.clear(1 << 10);
    let start = to.intern(list.lines()).start;
    for (field, (name, value, id)) in list.fields().iter().zip(list.iter()) {
        check(list, name, value)?;
        if speaks_of_connection(id, value) {
            return Err(Refusal::Connection);
        }
        if may_be_trailer(name) {
            to.push(field.behind(start));
        }
    }
    Ok(())
}

/// The Content-Length of a response.
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
    /// Whether it has no unread bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Whether no trailers were received.
    pub(super) fn has_no_trailers(&self) -> bool {
        self.trailers.is_empty() && self.refused.is_none()
    }
}
