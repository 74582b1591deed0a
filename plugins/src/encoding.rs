//! The common part of gzip, brotli and zstd: the choice of responses, the changes of the head, and the work
//! on a body, piece by piece, on a background thread where it takes long.

pub(crate) mod filtered;
#[cfg(test)]
pub(crate) mod suite;

use std::io;

use sdk::budget::Reservation;
use sdk::{Chunk, Exchange, Name, Version, World};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// The settings that choose responses.
#[derive(Debug, Deserialize)]
pub(crate) struct Choice {
    /// None is all of them.
    #[serde(deserialize_with = "types")]
    types: Option<Vec<String>>,
    min_length: u64,
    http_version: f64,
    vary: Option<bool>,
}

/// A list, or `*`: the schema allows no other word.
fn types<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    match Value::deserialize(from)? {
        Value::String(_) => Ok(None),
        list => Vec::deserialize(list).map(Some).map_err(D::Error::custom),
    }
}

impl Choice {
    /// The properties of a schema that [`Choice`] reads.
    pub(crate) fn properties() -> Value {
        json!({
            "types": {
                "anyOf": [
                    {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                    {"enum": ["*"]},
                ],
                "default": ["text/html"],
            },
            "min_length": {"type": "integer", "minimum": 1, "default": 20},
            "http_version": {"enum": [1.1, 1.0], "default": 1.1},
            "vary": {"type": "boolean"},
        })
    }

    /// Whether the response whose head is here is one of those, for any client.
    pub(crate) fn takes(&self, x: &Exchange<'_>) -> bool {
        let fields = &x.response().fields;
        let Some(content_type) = fields.get(Name::ContentType) else { return false };
        if let Some(types) = &self.types {
            let end = content_type.iter().position(|&byte| byte == b';').unwrap_or(content_type.len());
            let plain = content_type[..end].trim_ascii_end();
            if !types.iter().any(|known| known.as_bytes() == plain) {
                return false;
            }
        }
        if announced(x).is_some_and(|length| length < self.min_length) {
            return false;
        }
        x.request().version != Version::Http10 || self.http_version < 1.1
    }

    pub(crate) fn add_vary(&self, x: &mut Exchange<'_>) {
        if self.vary == Some(true) {
            // A constant can always stand in a head.
            let _ = x.add_response_header("Vary", b"Accept-Encoding");
        }
    }
}

/// A compressor of one response.
pub(crate) trait Compressor: Send + Sized + 'static {
    /// Nanoseconds for the next piece, roughly.
    fn nanoseconds(&self, length: usize) -> u64;

    /// Takes a part of a piece.
    fn put(&mut self, part: &[u8]) -> io::Result<()>;

    /// Exchanges an empty vector for one from which all that was put can be read; `last` ends the stream.
    fn take(&mut self, last: bool, out: &mut Vec<u8>) -> io::Result<()>;

    /// Compresses a piece.
    fn code(&mut self, chunk: &mut Chunk) {
        let put = self.put(&chunk.data);
        chunk.data.clear();
        chunk.refused |= put.and_then(|()| self.take(chunk.last, &mut chunk.data)).is_err();
    }

    /// Whether a worker has no time for a piece of this length.
    fn is_long(&self, length: usize) -> bool {
        self.nanoseconds(length) > MOST
    }
}

/// Nanoseconds that a worker may work on a piece.
const MOST: u64 = 1_000_000;
/// Bytes that a compressor is given at a time on a background thread.
const PART: usize = 16 << 10;

/// Compresses a piece on the background threads. `memory` is what the compressor counts as.
pub(crate) async fn code_away<C: Compressor>(
    world: &dyn World,
    mut compressor: C,
    mut memory: Reservation,
    chunk: &mut Chunk,
) -> (C, Reservation) {
    let (own, last) = (memory.bytes(), chunk.last);
    let mut data = std::mem::take(&mut chunk.data);
    // Where there is no room, it counts where it was held, as long as the exchange lasts.
    let _ = memory.resize(world.budget(), own + data.capacity());
    let mut at = 0;
    loop {
        let job = world.offload(memory, move |turn| {
            let done = loop {
                let part = &data[at..data.len().min(at + PART)];
                at += part.len();
                if let Err(error) = compressor.put(part) {
                    break Some(Err(error));
                }
                if at == data.len() {
                    // Not the same memory, or the compressor would keep it.
                    data = Vec::new();
                    break Some(compressor.take(last, &mut data));
                }
                if turn.is_over() {
                    break None;
                }
            };
            (compressor, data, at, done)
        });
        let done;
        ((compressor, data, at, done), memory) = job.await;
        if let Some(done) = done {
            chunk.data = data;
            chunk.refused |= done.is_err();
            break;
        }
    }
    let _ = memory.resize(world.budget(), own);
    (compressor, memory)
}

/// The length of the body as its head tells it.
pub(crate) fn announced(x: &Exchange<'_>) -> Option<u64> {
    std::str::from_utf8(x.response().fields.get(Name::ContentLength)?).ok()?.parse().ok()
}

/// Whether the response has a coding already.
pub(crate) fn is_coded(x: &Exchange<'_>) -> bool {
    x.response_header("Content-Encoding").is_some_and(|coding| !coding.is_empty())
}

/// Puts the coding into the head. The bytes of the body change, so its length goes, parts of it can
/// no longer be asked for, and its validator tells no more than that the meaning is the same.
pub(crate) fn set_coding(x: &mut Exchange<'_>, coding: &str) {
    x.remove_response_header("Content-Length");
    x.remove_response_header("Accept-Ranges");
    // A constant can always stand in a head.
    let _ = x.set_response_header("Content-Encoding", coding.as_bytes());
    let Some(tag) = x.response_header("ETag") else { return };
    let opaque = tag.strip_prefix(b"W/").unwrap_or(tag);
    let quoted = opaque.len() >= 2 && opaque.starts_with(b"\"") && opaque.ends_with(b"\"");
    match (quoted, opaque.len() < tag.len()) {
        (true, true) => {}
        (true, false) => {
            let weak = [b"W/", tag].concat();
            // The tag came in a head, so it fits into one.
            let _ = x.set_response_header("ETag", &weak);
        }
        // An invalid tag cannot be made a weak one.
        (false, _) => x.remove_response_header("ETag"),
    }
}

/// How a request accepts a coding (RFC 9110 section 12.5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is named, and wanted or not.
    Named(bool),
    /// It is not named, but `*` is.
    Any(bool),
    Unsaid,
}

pub(crate) fn accepted(x: &Exchange<'_>, coding: &str) -> Accepted {
    let mut any = Accepted::Unsaid;
    for line in x.request().fields.all(b"Accept-Encoding") {
        for entry in line.split(|&byte| byte == b',') {
            let mut parts = entry.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let wanted = !parts.any(is_zero);
            if name.eq_ignore_ascii_case(coding.as_bytes()) {
                return Accepted::Named(wanted);
            }
            if name == b"*" {
                any = Accepted::Any(wanted);
            }
        }
    }
    any
}

/// `q=0`, `q=0.0` and the like; what is no weight refuses nothing.
fn is_zero(parameter: &[u8]) -> bool {
    let Some((b'q' | b'Q', rest)) = parameter.split_first() else { return false };
    let Some(weight) = rest.trim_ascii_start().strip_prefix(b"=") else { return false };
    let weight = weight.trim_ascii_start();
    weight.starts_with(b"0") && weight.iter().all(|&byte| matches!(byte, b'0' | b'.'))
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    fn weight(header: &str, coding: &str) -> Accepted {
        let mut probe = Probe::request("GET", "/", &[("Accept-Encoding", header)]);
        accepted(&probe.exchange(), coding)
    }

    #[test]
    fn codings_are_accepted_by_name_or_all() {
        for (header, expected) in [
            ("br", Accepted::Named(true)),
            ("gzip, BR;q=0.6", Accepted::Named(true)),
            ("gzip;q=0.5, br;q=0", Accepted::Named(false)),
            ("br ; q = 0.00", Accepted::Named(false)),
            ("br;q=0.001", Accepted::Named(true)),
            ("br;q=0, *", Accepted::Named(false)),
            ("*;q=0, br", Accepted::Named(true)),
            ("gzip, *", Accepted::Any(true)),
            ("gzip;q=0.8, *;q=0.1", Accepted::Any(true)),
            ("*;q=0", Accepted::Any(false)),
            ("xbr, br2, gzip;br", Accepted::Unsaid),
            ("", Accepted::Unsaid),
        ] {
            assert_eq!(weight(header, "br"), expected, "{header}");
        }
        assert_eq!(accepted(&Probe::get("/").exchange(), "br"), Accepted::Unsaid);
        let mut lines = Probe::request("GET", "/", &[("Accept-Encoding", "gzip"), ("Accept-Encoding", "br")]);
        assert_eq!(accepted(&lines.exchange(), "br"), Accepted::Named(true));
    }

    #[test]
    fn the_validator_becomes_a_weak_one() {
        for (tag, expected) in [
            ("\"1\"", Some("W/\"1\"")),
            ("W/\"1\"", Some("W/\"1\"")),
            ("1", None),
            ("\"", None),
            ("W/1", None),
        ] {
            let mut probe = Probe::get("/");
            let mut x = probe.exchange();
            respond(&mut x, 200, &[("ETag", tag), ("Accept-Ranges", "bytes"), ("Content-Length", "9")]);
            set_coding(&mut x, "gzip");
            assert_eq!(x.response_header("ETag"), expected.map(str::as_bytes), "{tag}");
            assert_eq!(x.response_header("Content-Encoding"), Some(&b"gzip"[..]));
            assert_eq!(x.response_header("Accept-Ranges"), None);
            assert_eq!(x.response_header("Content-Length"), None);
        }
    }
}
