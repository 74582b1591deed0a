//! hot path
//!
//! Chunked bodies (RFC 9112 section 7.1), read in place.
//!
//! [`Chunked::relay`] rewrites a body into its canonical form: sizes in lower case
//! without leading zeros, no extensions, only trailers that may be forwarded. Canonical
//! input is not moved, so the bytes that came in go out in one write.
//! [`Chunked::decode`] leaves only the payload.
//!
//! Both take any part of the body. An incomplete line is left for the next call, so a caller needs
//! room for the longest line that the limits allow.

use crate::fields::{Fields, is_token, is_value_byte};
use crate::names::Name;

use super::Refusal;
use super::scan::{Stop, field_line};

/// Limits of a chunked body's framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Bytes of one chunk size line with its extensions and CRLF.
    pub line: usize,
    /// Bytes of all chunk extensions of a body together (CVE-2023-39326).
    pub extensions: usize,
    /// Bytes of the trailer section, and so of one trailer line.
    pub trailers: usize,
}

impl Default for ChunkLimits {
    fn default() -> ChunkLimits {
        ChunkLimits { line: 1 << 10, extensions: 16 << 10, trailers: 8 << 10 }
    }
}

/// Reader of one chunked body.
#[derive(Debug, Clone, Default)]
pub struct Chunked {
    state: State,
    limits: ChunkLimits,
    extensions: usize,
    trailer_bytes: usize,
    trailers: Fields,
    /// See [`Chunked::with_trailers_apart`].
    apart: bool,
}

/// The result of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relayed {
    /// Bytes of input read; the bytes after them are untouched and belong to the next call,
    /// or to the next message when `done`.
    pub consumed: usize,
    /// Bytes at the start of the buffer to send on; never more than `consumed`.
    pub emit: usize,
    /// Payload bytes among them.
    pub data: usize,
    /// The body is complete.
    pub done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Size,
    /// This many payload bytes of the chunk are still to come.
    Data(u64),
    /// The CRLF after the payload is to come.
    DataEnd,
    Trailers,
    Done,
}

impl Chunked {
    pub fn new(limits: ChunkLimits) -> Chunked {
        Chunked { limits, ..Chunked::default() }
    }

    /// Keeps all trailers for [`Chunked::trailers`] instead of relaying them after the chunks,
    /// since their names are not checked yet. After a body with trailers, [`Chunked::relay`] also
    /// leaves out the final empty line.
    pub fn with_trailers_apart(mut self) -> Chunked {
        self.apart = true;
        self
    }

    /// Prepares the reader for another body; keeps limits and buffers.
    pub fn reset(&mut self) {
        self.state = State::Size;
        self.extensions = 0;
        self.trailer_bytes = 0;
        self.trailers.clear(0);
    }

    /// Rewrites the chunked bytes at the start of `buf` into canonical chunked bytes.
    pub fn relay(&mut self, buf: &mut [u8]) -> Result<Relayed, Refusal> {
        self.run::<true>(buf)
    }

    /// Removes the chunk framing from the bytes at the start of `buf`. Trailers that may be
    /// forwarded are kept for [`Chunked::trailers`].
    pub fn decode(&mut self, buf: &mut [u8]) -> Result<Relayed, Refusal> {
        self.run::<false>(buf)
    }

    /// The trailers that [`Chunked::decode`] has read, without those that may not be forwarded;
    /// [`Chunked::relay`] keeps trailers only [apart](Chunked::with_trailers_apart).
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }

    #[inline]
    fn run<const FRAMED: bool>(&mut self, buf: &mut [u8]) -> Result<Relayed, Refusal> {
        let mut done = Relayed::default();
        loop {
            let more = match self.state {
                State::Size => self.size::<FRAMED>(buf, &mut done)?,
                State::Data(left) => self.data(left, buf, &mut done),
                State::DataEnd => self.data_end::<FRAMED>(buf, &mut done)?,
                State::Trailers => self.trailer::<FRAMED>(buf, &mut done)?,
                State::Done => {
                    done.done = true;
                    false
                }
            };
            if !more {
                return Ok(done);
            }
        }
    }

    /// chunk-size [ chunk-ext ] CRLF
    #[inline]
    fn size<const FRAMED: bool>(&mut self, buf: &mut [u8], done: &mut Relayed) -> Result<bool, Refusal> {
        let line = &buf[done.consumed..];
        let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
        let size_line = match (line.get(digits), line.get(digits + 1)) {
            (Some(b'\r'), Some(b'\n')) if digits > 0 => digits + 2,
            (Some(b'\r'), None) | (None, _) if digits <= self.limits.line => return Ok(false),
            (Some(b'\r'), Some(_)) if digits > 0 => return Err(Refusal::BareCr),
            (Some(b'\n'), _) if digits > 0 => return Err(Refusal::BareLf),
            (Some(b';'), _) if digits > 0 => match self.extension(line, digits)? {
                Some(end) => end,
                None => return Ok(false),
            },
            (None, _) => return Err(Refusal::ChunkLine),
            _ => return Err(Refusal::ChunkSize),
        };
        if size_line > self.limits.line {
            return Err(Refusal::ChunkLine);
        }
        let zeros = line[..digits].iter().take(digits - 1).take_while(|&&byte| byte == b'0').count();
        let significant = done.consumed + zeros..done.consumed + digits;
        let size = hex(&buf[significant.clone()])?;
        if FRAMED {
            buf[significant.clone()].make_ascii_lowercase();
            done.push(buf, significant.clone());
            done.push_crlf(buf, done.consumed + size_line - 2);
        }
        done.consumed += size_line;
        self.state = if size == 0 { State::Trailers } else { State::Data(size) };
        Ok(true)
    }

    /// Checks the extensions that start with the `;` at `at`; returns the offset after the line's
    /// CRLF, or `None` if the line is incomplete.
    #[cold]
    fn extension(&mut self, line: &[u8], at: usize) -> Result<Option<usize>, Refusal> {
        let text = &line[at..];
        let length = text.iter().position(|&byte| !is_value_byte(byte)).unwrap_or(text.len());
        let end = at + length;
        if end + 2 > self.limits.line {
            return Err(Refusal::ChunkLine);
        }
        match (line.get(end), line.get(end + 1)) {
            (Some(b'\r'), Some(b'\n')) => {}
            (None, _) | (Some(b'\r'), None) => return Ok(None),
            (Some(b'\r'), Some(_)) => return Err(Refusal::BareCr),
            (Some(b'\n'), _) => return Err(Refusal::BareLf),
            _ => return Err(Refusal::ChunkExtension),
        }
        self.extensions += length;
        if self.extensions > self.limits.extensions || !is_extension(&text[..length]) {
            return Err(Refusal::ChunkExtension);
        }
        Ok(Some(end + 2))
    }

    #[inline]
    fn data(&mut self, left: u64, buf: &mut [u8], done: &mut Relayed) -> bool {
        let here = (buf.len() - done.consumed).min(usize::try_from(left).unwrap_or(usize::MAX));
        done.push(buf, done.consumed..done.consumed + here);
        done.consumed += here;
        done.data += here;
        let left = left - here as u64;
        self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
        left == 0
    }

    #[inline]
    fn data_end<const FRAMED: bool>(&mut self, buf: &mut [u8], done: &mut Relayed) -> Result<bool, Refusal> {
        match buf[done.consumed..] {
            [b'\r', b'\n', ..] => {}
            [] | [b'\r'] => return Ok(false),
            _ => return Err(Refusal::ChunkEnd),
        }
        if FRAMED {
            done.push_crlf(buf, done.consumed);
        }
        done.consumed += 2;
        self.state = State::Size;
        Ok(true)
    }

    /// One line of the trailer section, or its end.
    fn trailer<const FRAMED: bool>(&mut self, buf: &mut [u8], done: &mut Relayed) -> Result<bool, Refusal> {
        let start = done.consumed;
        let room = self.limits.trailers - self.trailer_bytes.min(self.limits.trailers);
        let end = buf.len().min(start.saturating_add(room).saturating_add(2));
        let line = match field_line(&buf[..end], start) {
            Ok(Some(line)) => line,
            Ok(None) => {
                // The kept trailers include this line.
                if FRAMED && self.trailers.is_empty() {
                    done.push_crlf(buf, start);
                }
                done.consumed += 2;
                self.state = State::Done;
                return Ok(true);
            }
            Err(Stop::More) if end == buf.len() => return Ok(false),
            Err(Stop::More) => return Err(Refusal::TrailersTooLarge),
            Err(Stop::Refused(refusal)) => return Err(refusal),
        };
        self.trailer_bytes += line.next - start;
        if self.trailer_bytes > self.limits.trailers {
            return Err(Refusal::TrailersTooLarge);
        }
        let name = &buf[start..line.name_end];
        if may_be_trailer(name) {
            if FRAMED && !self.apart {
                done.push(buf, start..line.name_end + 1);
                // One space before the value, if the input had room for it.
                if line.value_start > line.name_end + 1 {
                    buf[line.value_start - 1] = b' ';
                    done.push(buf, line.value_start - 1..line.value_start);
                }
                done.push(buf, line.value_start..line.value_end);
                done.push_crlf(buf, line.next - 2);
            } else {
                let value = &buf[line.value_start..line.value_end];
                self.trailers.append(name, value).map_err(|_| Refusal::FieldName)?;
            }
        }
        done.consumed = line.next;
        Ok(true)
    }
}

impl Relayed {
    /// Moves bytes, which are at or after `emit`, to the end of the output.
    #[inline]
    fn push(&mut self, buf: &mut [u8], bytes: std::ops::Range<usize>) {
        let length = bytes.len();
        if bytes.start != self.emit {
            buf.copy_within(bytes, self.emit);
        }
        self.emit += length;
    }

    /// Appends CRLF to the output; `at` is its offset in the input.
    #[inline]
    fn push_crlf(&mut self, buf: &mut [u8], at: usize) {
        self.push(buf, at..at + 2);
    }
}

/// Whether a trailer may be forwarded: not if it could be read as framing, routing, authentication
/// or connection control (RFC 9110 section 6.5.1).
pub fn may_be_trailer(name: &[u8]) -> bool {
    let name = Name::from_lookalike(name);
    let is_of_head = matches!(
        name,
        Name::Apikey
            | Name::Authorization
            | Name::CacheControl
            | Name::ContentEncoding
            | Name::ContentLength
            | Name::ContentRange
            | Name::ContentType
            | Name::Cookie
            | Name::Expect
            | Name::Forwarded
            | Name::Host
            | Name::Http2Settings
            | Name::IfMatch
            | Name::IfModifiedSince
            | Name::IfNoneMatch
            | Name::IfRange
            | Name::IfUnmodifiedSince
            | Name::Location
            | Name::Pragma
            | Name::Proxy
            | Name::ProxyAuthenticate
            | Name::ProxyAuthorization
            | Name::Range
            | Name::SetCookie
            | Name::Te
            | Name::Trailer
            | Name::Vary
            | Name::WwwAuthenticate
            | Name::XConsumerCustomId
            | Name::XConsumerUsername
            | Name::XCredentialIdentifier
            | Name::XForwardedFor
            | Name::XForwardedHost
            | Name::XForwardedPort
            | Name::XForwardedProto
            | Name::XRealIp
    );
    !is_of_head && !name.is_of_connection()
}

/// The value of hexadecimal digits without leading zeros; at most 2^63 - 1.
#[inline]
fn hex(digits: &[u8]) -> Result<u64, Refusal> {
    if digits.len() > 16 {
        return Err(Refusal::ChunkSize);
    }
    let value = digits.iter().fold(0u64, |value, &byte| {
        let digit = if byte.is_ascii_digit() { byte - b'0' } else { (byte | 0x20) - b'a' + 10 };
        value << 4 | u64::from(digit)
    });
    if value > i64::MAX as u64 { Err(Refusal::ChunkSize) } else { Ok(value) }
}

/// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )` (RFC 9112 section 7.1.1),
/// beginning with `;`. White space at the very end of the line is refused.
fn is_extension(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some((b';', after)) = rest.split_first() {
        let Some(after) = token(space(after)) else {
            return false;
        };
        rest = space(after);
        if let Some((b'=', after)) = rest.split_first() {
            let after = space(after);
            let value = if after.first() == Some(&b'"') { quoted(after) } else { token(after) };
            let Some(after) = value else {
                return false;
            };
            rest = space(after);
            if rest.is_empty() {
                return after.is_empty();
            }
        } else if rest.is_empty() {
            return after.is_empty();
        }
    }
    rest.is_empty()
}

fn space(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(text.len());
    &text[end..]
}

fn token(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().position(|&byte| !is_token(byte)).unwrap_or(text.len());
    (end > 0).then(|| &text[end..])
}

/// The text after the quoted-string at the start of `text` (RFC 9110 section 5.6.4).
fn quoted(text: &[u8]) -> Option<&[u8]> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(&text[at + 1..]),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests;
