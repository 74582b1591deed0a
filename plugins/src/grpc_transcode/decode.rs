//! A message of protobuf as JSON, with the names of the proto.
//!
//! The message is read twice, first for the places of its fields, so that those of a list stand together. Memory grows
//! with the message by at most a small factor, and the JSON has a limit.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use smallvec::SmallVec;

use super::read::{DEEPEST, Fault, Reader};
use super::types::{Enum, Field, Kind, Message, Shape, Types, Wire};

/// `pb_option`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    pub enum_names: bool,
    pub large: Large,
    /// Which of [`Message::defaults`] are written.
    pub defaults: Option<usize>,
}

/// Integers that 32 bits do not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Large {
    Number,
    /// `"#123"`.
    Text,
    /// `"#0x7B"`.
    Hexadecimal,
}

/// The limits of transcoding, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Of one message.
    pub message: usize,
    /// Of the JSON of one message.
    pub json: usize,
    /// Of all JSON that is made at a time. [`Limits::memory`] is reserved for it.
    pub room: usize,
}

impl Limits {
    /// The memory that is used at most, in bytes: `room` for the JSON, for the places of fields and for messages in
    /// parts, twice for vectors that grow; and a little more, since the length is checked after each piece.
    pub fn memory(self) -> usize {
        self.room.saturating_mul(4).saturating_add(8 * PIECE)
    }
}

/// Bytes of a string that are written at a time. Escaped, they are six times as many.
const PIECE: usize = 4 << 10;

/// Writes a message as JSON behind `out`.
///
/// # Errors
/// The message cannot be read, or a limit is exceeded. A part of the JSON has been written then.
pub(super) fn to_json(
    types: &Types,
    message: usize,
    bytes: &[u8],
    options: Options,
    limits: Limits,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let start = out.len();
    let mut decoder = Decoder { types, options, limits, start, out, seen: Vec::new(), joined: 0 };
    decoder.message(&types.messages[message], bytes, 0)?;
    decoder.room()
}

/// Fields of the messages that are being read at a time. Messages of 4 MiB, which is the default limit of gRPC libraries, have fewer.
const MOST_FIELDS: usize = 4 << 20;

/// Bytes of messages in parts that are put together at a time.
const MOST_JOINED: usize = 4 << 20;

struct Decoder<'a> {
    types: &'a Types,
    options: Options,
    limits: Limits,
    /// Where the JSON of this message begins.
    start: usize,
    out: &'a mut Vec<u8>,
    /// The fields of the messages that are being read, each message's behind those of the one it is in.
    seen: Vec<Seen>,
    joined: usize,
}

/// The place of a field's value.
#[derive(Debug, Clone, Copy)]
struct Seen {
    field: u32,
    start: u32,
    end: u32,
    wire: Wire,
}

impl Seen {
    fn of<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.start as usize..self.end as usize]
    }
}

impl Decoder<'_> {
    fn message(&mut self, of: &Message, bytes: &[u8], depth: usize) -> Result<(), Fault> {
        if depth >= DEEPEST {
            return Err(Fault::TooDeep);
        }
        let base = self.seen.len();
        let lasts = self.look(of, bytes)?;
        let end = self.seen.len();
        let types = self.types;
        let defaults: &[(usize, Vec<u8>)] = self.options.defaults.map_or(&[], |which| &of.defaults[which]);
        let mut defaults = defaults.iter().peekable();
        self.out.push(b'{');
        let mut at = base;
        while at < end || defaults.peek().is_some() {
            let next = if at < end { self.seen[at].field as usize } else { usize::MAX };
            if let Some((index, value)) = defaults.next_if(|(index, _)| *index <= next)
                && *index < next
            {
                let field = &of.fields[*index];
                self.name(field);
                match field.shape {
                    Shape::Single => self.value(types, field.kind, &mut Reader::new(value), depth)?,
                    Shape::List { .. } => self.out.extend_from_slice(b"[]"),
                    Shape::Map => self.out.extend_from_slice(b"{}"),
                }
                self.room()?;
                continue;
            }
            if at == end {
                break;
            }
            let from = at;
            while at < end && self.seen[at].field as usize == next {
                at += 1;
            }
            let field = &of.fields[next];
            // Of the members of a `oneof`, the last one counts.
            if field.oneof.is_none_or(|oneof| lasts[oneof] as usize == next) {
                self.name(field);
                self.field(field, from..at, bytes, depth)?;
                self.room()?;
            }
        }
        self.seen.truncate(base);
        self.end(b'}');
        Ok(())
    }

    /// Notes the places of a message's fields, sorted, and returns the last member of each `oneof`.
    fn look(&mut self, of: &Message, bytes: &[u8]) -> Result<SmallVec<[u32; 4]>, Fault> {
        let base = self.seen.len();
        let mut lasts = SmallVec::from_elem(u32::MAX, of.oneofs);
        let mut reader = Reader::new(bytes);
        while let Some((number, wire)) = reader.tag()? {
            let start = reader.at;
            reader.skip(wire)?;
            let Some(index) = of.by_number(number) else { continue };
            let field = &of.fields[index];
            let own = field.kind.wire();
            // A list of numbers may be packed or not, regardless of its proto.
            let packed = wire == Wire::Bytes && matches!(field.shape, Shape::List { .. });
            if wire != own && !packed {
                return Err(Fault::Malformed);
            }
            self.within(self.seen.len(), self.limits.room / (2 * size_of::<Seen>()), MOST_FIELDS)?;
            let place = |at: usize| u32::try_from(at).map_err(|_| Fault::Malformed);
            let field_index = index as u32;
            if let Some(oneof) = field.oneof {
                lasts[oneof] = field_index;
            }
            self.seen.push(Seen { field: field_index, start: place(start)?, end: place(reader.at)?, wire });
        }
        self.seen[base..].sort_unstable_by_key(|seen| (seen.field, seen.start));
        Ok(lasts)
    }

    fn field(
        &mut self,
        field: &Field,
        seen: std::ops::Range<usize>,
        bytes: &[u8],
        depth: usize,
    ) -> Result<(), Fault> {
        let types = self.types;
        match (field.shape, field.kind) {
            (Shape::Single, Kind::Message(index)) if seen.len() > 1 => {
                // Parts of a message are one message (section "Last One Wins" of the encoding's description).
                let mut whole = Vec::new();
                for at in seen {
                    whole.extend_from_slice(Reader::new(self.seen[at].of(bytes)).prefixed()?);
                    self.within(self.joined + whole.len(), self.limits.room / 2, MOST_JOINED)?;
                }
                self.joined += whole.len();
                self.message(&types.messages[index], &whole, depth + 1)?;
                self.joined -= whole.len();
                Ok(())
            }
            (Shape::Single, kind) => {
                let last = self.seen[seen.end - 1];
                self.value(types, kind, &mut Reader::new(last.of(bytes)), depth)
            }
            (Shape::List { .. }, kind) => {
                self.out.push(b'[');
                for at in seen {
                    let one = self.seen[at];
                    let mut reader = Reader::new(one.of(bytes));
                    if one.wire == Wire::Bytes && kind.wire() != Wire::Bytes {
                        reader = Reader::new(reader.prefixed()?);
                    }
                    while !reader.is_empty() {
                        self.value(types, kind, &mut reader, depth)?;
                        self.out.push(b',');
                        self.room()?;
                    }
                }
                self.end(b']');
                Ok(())
            }
            (Shape::Map, Kind::Message(index)) => {
                self.out.push(b'{');
                for at in seen {
                    let one = self.seen[at];
                    let entry = Reader::new(one.of(bytes)).prefixed()?;
                    self.entry(&types.messages[index], entry, depth + 1)?;
                    self.room()?;
                }
                self.end(b'}');
                Ok(())
            }
            (Shape::Map, _) => Err(Fault::Malformed),
        }
    }

    /// Writes an entry of a map, and a comma.
    fn entry(&mut self, of: &Message, bytes: &[u8], depth: usize) -> Result<(), Fault> {
        let types = self.types;
        let [key, value] = &of.fields[..] else { return Err(Fault::Malformed) };
        let mut places = [Reader::new(key.kind.zero()), Reader::new(value.kind.zero())];
        let mut reader = Reader::new(bytes);
        while let Some((number, wire)) = reader.tag()? {
            if let Some(index) = of.by_number(number) {
                if wire != of.fields[index].kind.wire() {
                    return Err(Fault::Malformed);
                }
                places[index] = reader;
            }
            reader.skip(wire)?;
        }
        let [mut key_at, mut value_at] = places;
        let is_text = key.kind == Kind::String;
        let start = self.out.len();
        self.value(types, key.kind, &mut key_at, depth)?;
        // Numbers and truths are texts where they are keys; large integers are texts already.
        if !is_text && self.out.get(start) != Some(&b'"') {
            self.out.insert(start, b'"');
            self.out.push(b'"');
        }
        self.out.push(b':');
        self.value(types, value.kind, &mut value_at, depth)?;
        self.out.push(b',');
        Ok(())
    }

    fn value(
        &mut self,
        types: &Types,
        kind: Kind,
        reader: &mut Reader<'_>,
        depth: usize,
    ) -> Result<(), Fault> {
        match kind {
            Kind::Double => self.float(f64::from_le_bytes(reader.fixed64()?), |value, out| {
                serde_json::to_writer(out, &value)
            }),
            Kind::Float => {
                let value = f32::from_le_bytes(reader.fixed32()?);
                self.float(value.into(), |_, out| serde_json::to_writer(out, &value));
            }
            Kind::Int32 => self.signed((reader.varint()? as i32).into()),
            Kind::Int64 => self.signed(reader.varint()?.cast_signed()),
            Kind::Uint32 => self.unsigned((reader.varint()? as u32).into()),
            Kind::Uint64 => self.unsigned(reader.varint()?),
            Kind::Sint32 => self.signed((zagzig(reader.varint()?) as i32).into()),
            Kind::Sint64 => self.signed(zagzig(reader.varint()?)),
            Kind::Fixed32 => self.unsigned(u32::from_le_bytes(reader.fixed32()?).into()),
            Kind::Fixed64 => self.unsigned(u64::from_le_bytes(reader.fixed64()?)),
            Kind::Sfixed32 => self.signed(i32::from_le_bytes(reader.fixed32()?).into()),
            Kind::Sfixed64 => self.signed(i64::from_le_bytes(reader.fixed64()?)),
            Kind::Bool => {
                let truth: &[u8] = if reader.varint()? == 0 { b"false" } else { b"true" };
                self.out.extend_from_slice(truth);
            }
            Kind::String => self.text(reader.prefixed()?)?,
            Kind::Bytes => {
                let bytes = reader.prefixed()?;
                match std::str::from_utf8(bytes) {
                    Ok(_) => self.text(bytes)?,
                    Err(_) => self.base64(bytes)?,
                }
            }
            Kind::Message(index) => {
                let inner = reader.prefixed()?;
                self.message(&types.messages[index], inner, depth + 1)?;
            }
            Kind::Enum(index) => self.enumerated(&types.enums[index], reader.varint()? as i32),
        }
        Ok(())
    }

    fn enumerated(&mut self, of: &Enum, number: i32) {
        match of.quoted(number).filter(|_| self.options.enum_names) {
            Some(name) => self.out.extend_from_slice(name),
            None => self.signed(number.into()),
        }
    }

    fn signed(&mut self, value: i64) {
        let is_small = value >= i32::MIN.into() && value <= u32::MAX.into();
        self.integer(value < 0, value.unsigned_abs(), is_small);
    }

    fn unsigned(&mut self, value: u64) {
        self.integer(false, value, value <= u32::MAX.into());
    }

    fn integer(&mut self, negative: bool, value: u64, is_small: bool) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value);
        let large = if is_small { Large::Number } else { self.options.large };
        if large != Large::Number {
            self.out.extend_from_slice(b"\"#");
        }
        if negative {
            self.out.push(b'-');
        }
        match large {
            Large::Number => self.out.extend_from_slice(digits.as_bytes()),
            Large::Text => {
                self.out.extend_from_slice(digits.as_bytes());
                self.out.push(b'"');
            }
            Large::Hexadecimal => self.out.extend_from_slice(format!("0x{value:X}\"").as_bytes()),
        }
    }

    /// A number, whole ones without a fraction; JSON has none that are not finite, so those are texts.
    fn float(&mut self, value: f64, write: impl FnOnce(f64, &mut Vec<u8>) -> serde_json::Result<()>) {
        if !value.is_finite() {
            let name = if value.is_nan() {
                "NaN"
            } else if value > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            };
            return text(name, self.out);
        }
        // A finite number can always be written.
        let _ = write(value, self.out);
        if self.out.ends_with(b".0") {
            self.out.truncate(self.out.len() - 2);
        }
    }

    fn name(&mut self, field: &Field) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        text(&field.name, self.out);
        self.out.push(b':');
    }

    /// Closes an object or list, in place of the comma behind its last element.
    fn end(&mut self, with: u8) {
        if self.out.last() == Some(&b',') {
            self.out.pop();
        }
        self.out.push(with);
    }

    /// Writes a text in quotes; invalid UTF-8 becomes U+FFFD.
    fn text(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.out.push(b'"');
        for chunk in bytes.utf8_chunks() {
            let mut valid = chunk.valid();
            while !valid.is_empty() {
                let (piece, rest) = valid.split_at(valid.floor_char_boundary(PIECE));
                // A text can always be written, and so can any vector.
                let _ = piece.serialize(&mut Serializer::with_formatter(&mut *self.out, Bare));
                self.room()?;
                valid = rest;
            }
            if !chunk.invalid().is_empty() {
                self.out.extend_from_slice("\u{fffd}".as_bytes());
                self.room()?;
            }
        }
        self.out.push(b'"');
        Ok(())
    }

    /// Writes bytes in base64, in quotes.
    fn base64(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.has_room(bytes.len().div_ceil(3).saturating_mul(4))?;
        self.out.push(b'"');
        let start = self.out.len();
        self.out.resize(start + bytes.len().div_ceil(3) * 4, 0);
        let written = STANDARD.encode_slice(bytes, &mut self.out[start..]).map_err(|_| Fault::TooLong)?;
        self.out.truncate(start + written);
        self.out.push(b'"');
        Ok(())
    }

    fn room(&self) -> Result<(), Fault> {
        self.has_room(0)
    }

    /// Whether `more` bytes of JSON may follow.
    fn has_room(&self, more: usize) -> Result<(), Fault> {
        let length = self.out.len().saturating_add(more);
        if length - self.start > self.limits.json {
            return Err(Fault::TooLong);
        }
        if length <= self.limits.room { Ok(()) } else { Err(Fault::NoRoom) }
    }

    /// Whether a number is below the limit of the room, and below that of any room.
    fn within(&self, number: usize, room: usize, most: usize) -> Result<(), Fault> {
        match number {
            number if number >= most => Err(Fault::TooLong),
            number if number >= room => Err(Fault::NoRoom),
            _ => Ok(()),
        }
    }
}

/// Writes strings without their quotes.
struct Bare;

impl Formatter for Bare {
    fn begin_string<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        Ok(())
    }

    fn end_string<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        Ok(())
    }
}

fn zagzig(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// Writes a text in quotes.
pub(super) fn text(text: &str, out: &mut Vec<u8>) {
    // A text can always be written, and so can any vector.
    let _ = serde_json::to_writer(out, text);
}

/// Writes bytes as the text that they are, or else in base64: JSON has UTF-8 only.
pub(super) fn bytes(bytes: &[u8], out: &mut Vec<u8>) {
    match std::str::from_utf8(bytes) {
        Ok(bytes) => text(bytes, out),
        Err(_) => text(&STANDARD.encode(bytes), out),
    }
}
