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
mod tests {
    use super::*;

    type Run = fn(&mut Chunked, &mut [u8]) -> Result<Relayed, Refusal>;

    /// Feeds `input` in the given pieces; returns the output and the number of unread bytes.
    fn feed(
        run: Run,
        input: &[u8],
        sizes: impl Iterator<Item = usize>,
    ) -> Result<(Vec<u8>, usize, bool), Refusal> {
        let mut body = Chunked::default();
        let (mut out, mut buf, mut data) = (Vec::new(), Vec::new(), 0);
        let mut input = input;
        for size in sizes {
            let (now, later) = input.split_at(size.min(input.len()));
            input = later;
            buf.extend_from_slice(now);
            let step = run(&mut body, &mut buf)?;
            assert!(step.emit <= step.consumed && step.consumed <= buf.len());
            out.extend_from_slice(&buf[..step.emit]);
            buf.drain(..step.consumed);
            data += step.data;
            if step.done {
                assert_eq!(body.state, State::Done);
                buf.extend_from_slice(input);
                return Ok((out, buf.len(), true));
            }
        }
        assert!(data <= out.len());
        Ok((out, buf.len(), false))
    }

    fn whole(run: Run, input: &[u8]) -> Result<(Vec<u8>, usize, bool), Refusal> {
        feed(run, input, std::iter::once(input.len()))
    }

    const GOOD: &[(&str, &str, &str)] = &[
        ("0\r\n\r\n", "0\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("005\r\nhello\r\n000\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("A\r\n0123456789\r\n0\r\n\r\n", "a\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
        (
            "1;a\r\nx\r\n1;a=b\r\ny\r\n1;a=\"b;\\\"\" ; c\r\nz\r\n0;e\r\n\r\n",
            "1\r\nx\r\n1\r\ny\r\n1\r\nz\r\n0\r\n\r\n",
            "xyz",
        ),
        ("2\r\n\r\n\r\n0\r\n\r\n", "2\r\n\r\n\r\n0\r\n\r\n", "\r\n"),
        ("0\r\nX-Sum: 1\r\n\r\n", "0\r\nX-Sum: 1\r\n\r\n", ""),
        ("0\r\nX-Sum: \t 1 \t\r\nA:b\r\nE:\r\n\r\n", "0\r\nX-Sum: 1\r\nA:b\r\nE:\r\n\r\n", ""),
        ("0\r\nX\x31:\t1\r\n\r\n", "0\r\nX1: 1\r\n\r\n", ""),
        (
            "0\r\nContent-Length: 9\r\nX: y\r\ntransfer-encoding: chunked\r\nHost: h\r\nX_Real_IP: i\r\n\r\n",
            "0\r\nX: y\r\n\r\n",
            "",
        ),
    ];

    #[test]
    fn canonical_form_payload_and_rest() {
        for (input, framed, payload) in GOOD {
            let input = [input.as_bytes(), b"GET /next"].concat();
            assert_eq!(whole(Chunked::relay, &input), Ok((framed.as_bytes().to_vec(), 9, true)));
            assert_eq!(whole(Chunked::decode, &input), Ok((payload.as_bytes().to_vec(), 9, true)));
            // The canonical form is its own canonical form, in place.
            assert_eq!(whole(Chunked::relay, framed.as_bytes()), Ok((framed.as_bytes().to_vec(), 0, true)));
        }
    }

    #[test]
    fn any_segmentation_gives_the_same_result() {
        for (input, framed, payload) in GOOD {
            let input = [input.as_bytes(), b"!"].concat();
            for step in 1..input.len() {
                let sizes = || std::iter::repeat(step);
                assert_eq!(feed(Chunked::relay, &input, sizes()), Ok((framed.as_bytes().to_vec(), 1, true)));
                assert_eq!(
                    feed(Chunked::decode, &input, sizes()),
                    Ok((payload.as_bytes().to_vec(), 1, true))
                );
                let cut = || [step, input.len()].into_iter();
                assert_eq!(feed(Chunked::relay, &input, cut()), Ok((framed.as_bytes().to_vec(), 1, true)));
                assert_eq!(feed(Chunked::decode, &input, cut()), Ok((payload.as_bytes().to_vec(), 1, true)));
            }
        }
    }

    #[test]
    fn every_prefix_of_a_valid_body_is_incomplete() {
        for (input, _, _) in GOOD {
            for end in 0..input.len() {
                for run in [Chunked::relay as Run, Chunked::decode] {
                    assert!(!whole(run, &input.as_bytes()[..end]).unwrap().2, "{:?}", &input[..end]);
                }
            }
        }
    }

    #[test]
    fn refused() {
        let cases: &[(&str, Refusal)] = &[
            ("\r\n", Refusal::ChunkSize),
            ("\n", Refusal::ChunkSize),
            ("g\r\n", Refusal::ChunkSize),
            ("-1\r\n", Refusal::ChunkSize),
            ("+1\r\n", Refusal::ChunkSize),
            ("0x1\r\n", Refusal::ChunkSize),
            (" 1\r\n", Refusal::ChunkSize),
            ("1 \r\nx\r\n", Refusal::ChunkSize),
            ("1\t;a\r\nx\r\n", Refusal::ChunkSize),
            ("1_0\r\n", Refusal::ChunkSize),
            ("1\0\r\n", Refusal::ChunkSize),
            ("1,1\r\nx\r\n", Refusal::ChunkSize),
            ("8000000000000000\r\n", Refusal::ChunkSize),
            ("ffffffffffffffff\r\n", Refusal::ChunkSize),
            ("10000000000000001\r\n", Refusal::ChunkSize),
            ("1\nx\r\n", Refusal::BareLf),
            ("1\rx\r\n", Refusal::BareCr),
            ("1;a\nx\r\n0\r\n\r\n", Refusal::BareLf),
            ("1;a\rb\r\nx\r\n", Refusal::BareCr),
            ("1;\r\nx\r\n", Refusal::ChunkExtension),
            ("1;a \r\nx\r\n", Refusal::ChunkExtension),
            ("1;a=\r\nx\r\n", Refusal::ChunkExtension),
            ("1;a=b \r\nx\r\n", Refusal::ChunkExtension),
            ("1;a=\"b\r\nx\r\n", Refusal::ChunkExtension),
            ("1;a=\"b\\\r\nx\r\n", Refusal::ChunkExtension),
            ("1;a=\"b\\\"\r\nx\r\n", Refusal::ChunkExtension),
            ("1;a b\r\nx\r\n", Refusal::ChunkExtension),
            ("1;a\0\r\nx\r\n", Refusal::ChunkExtension),
            ("1\r\nxy\r\n", Refusal::ChunkEnd),
            ("1\r\nx\n0\r\n\r\n", Refusal::ChunkEnd),
            ("1\r\nx\ry0\r\n\r\n", Refusal::ChunkEnd),
            ("1\r\nx0\r\n\r\n", Refusal::ChunkEnd),
            ("0\r\n\n", Refusal::BareLf),
            ("0\r\n\rx", Refusal::BareCr),
            ("0\r\nX\r\n\r\n", Refusal::FieldName),
            ("0\r\n:x\r\n\r\n", Refusal::FieldName),
            ("0\r\nX : y\r\n\r\n", Refusal::SpaceBeforeColon),
            ("0\r\nX: y\r\n z\r\n\r\n", Refusal::LeadingSpace),
            ("0\r\nX: y\nZ: a\r\n\r\n", Refusal::BareLf),
            ("0\r\nX: y\rZ: a\r\n\r\n", Refusal::BareCr),
            ("0\r\nX: \0\r\n\r\n", Refusal::Nul),
            ("0\r\nX: \x08\r\n\r\n", Refusal::Control),
        ];
        for (input, refusal) in cases {
            for run in [Chunked::relay as Run, Chunked::decode] {
                assert_eq!(whole(run, input.as_bytes()), Err(*refusal), "{input:?}");
                let bytewise = feed(run, input.as_bytes(), std::iter::repeat_n(1, input.len()));
                assert_eq!(bytewise, Err(*refusal), "{input:?} byte by byte");
            }
        }
    }

    #[test]
    fn limits() {
        let limits = ChunkLimits { line: 16, extensions: 20, trailers: 24 };
        let run = |input: &str| Chunked::new(limits).relay(&mut input.as_bytes().to_vec());
        assert!(run("00000000000001\r\nx").is_ok());
        assert_eq!(run("000000000000001\r\nx"), Err(Refusal::ChunkLine));
        assert_eq!(run("00000000000000000"), Err(Refusal::ChunkLine));
        assert!(run("1;aaaaaaaaaaaa\r\nx").is_ok());
        assert_eq!(run("1;aaaaaaaaaaaaa\r\nx"), Err(Refusal::ChunkLine));
        assert_eq!(run("1;aaaaaaaaaaaaaaaa"), Err(Refusal::ChunkLine));
        assert!(run("1;aaaaaaaaa\r\nx\r\n1;aaaaaaaaa\r\nx").is_ok());
        assert_eq!(run("1;aaaaaaaaa\r\nx\r\n1;aaaaaaaaaa\r\nx"), Err(Refusal::ChunkExtension));
        assert!(run("0\r\nabc: 12345\r\nabc: 1234\r\n\r\n").unwrap().done);
        assert!(run("0\r\nabc: 12345\r\nabc: 12345\r\n\r\n").unwrap().done, "24 bytes");
        assert_eq!(run("0\r\nabc: 12345\r\nabc: 123456\r\n\r\n"), Err(Refusal::TrailersTooLarge));
        assert!(run("7fffffffffffff\r\nx").is_ok());
        let largest = Chunked::default().relay(&mut b"7fffffffffffffff\r\nx".to_vec()).unwrap();
        assert_eq!((largest.data, largest.done), (1, false), "2^63 - 1 is the largest size");
        assert_eq!(run("0\r\nabcdefghijklmnopqrstuvwxyza"), Err(Refusal::TrailersTooLarge));
        assert_eq!(run("0\r\nabc: 12345\r\nabc: 12345678901234567890"), Err(Refusal::TrailersTooLarge));
    }

    #[test]
    fn significant_names_are_never_forwarded_as_trailers() {
        const REFUSED: &str = "apikey authorization cache-control connection content-encoding content-length \
            content-range content-type cookie expect forwarded host http2-settings if-match if-modified-since \
            if-none-match if-range if-unmodified-since keep-alive location pragma proxy proxy-authenticate \
            proxy-authorization proxy-connection range set-cookie te trailer transfer-encoding upgrade vary \
            www-authenticate x-consumer-custom-id x-consumer-username x-credential-identifier x-forwarded-for \
            x-forwarded-host x-forwarded-port x-forwarded-proto x-real-ip";
        for name in REFUSED.split_whitespace() {
            for spelling in [name.to_owned(), name.to_ascii_uppercase(), name.replace('-', "_")] {
                let input = format!("0\r\n{spelling}: x\r\nX-Kept: y\r\n\r\n");
                let relayed = whole(Chunked::relay, input.as_bytes());
                assert_eq!(relayed, Ok((b"0\r\nX-Kept: y\r\n\r\n".to_vec(), 0, true)), "{spelling}");
                let mut body = Chunked::default();
                assert!(body.decode(&mut input.into_bytes()).unwrap().done);
                let names: Vec<_> = body.trailers().iter().map(|(name, _, _)| name).collect();
                assert_eq!(names, [b"X-Kept"], "{spelling}");
            }
        }
        // Trailers that senders know only at the end may pass.
        for name in ["date", "etag", "expires", "server-timing", "x-checksum", "grpc-status"] {
            let input = format!("0\r\n{name}: x\r\n\r\n");
            assert_eq!(whole(Chunked::relay, input.as_bytes()), Ok((input.into_bytes(), 0, true)), "{name}");
        }
    }

    #[test]
    fn trailers_apart_are_kept_and_the_final_line_is_left_out() {
        let body = "3\r\nabc\r\n0\r\n";
        for (trailers, kept, end) in [
            ("", &[][..], "\r\n"),
            ("Content-Length: 5\r\n", &[], "\r\n"),
            ("X-A: 1\r\nHost: b\r\nX-B:2\r\n", &[(&b"X-A"[..], &b"1"[..]), (b"X-B", b"2")], ""),
        ] {
            let input = format!("{body}{trailers}\r\nNEXT");
            for cut in 0..=input.len() - 4 {
                let mut chunked = Chunked::default().with_trailers_apart();
                let (mut out, mut rest) = (Vec::new(), Vec::new());
                let mut done = false;
                for part in [&input[..cut], &input[cut..]] {
                    rest.extend_from_slice(part.as_bytes());
                    let relayed = chunked.relay(&mut rest).unwrap();
                    out.extend_from_slice(&rest[..relayed.emit]);
                    rest.drain(..relayed.consumed);
                    done = relayed.done;
                }
                assert!(done && rest == b"NEXT", "{trailers:?}");
                assert_eq!(
                    String::from_utf8(out).unwrap(),
                    format!("{body}{end}"),
                    "{trailers:?} cut at {cut}"
                );
                let seen: Vec<_> = chunked.trailers().iter().map(|(name, value, _)| (name, value)).collect();
                assert_eq!(seen, kept);
            }
        }
    }

    #[test]
    fn decode_keeps_trailers_that_may_be_forwarded() {
        let mut body = Chunked::default();
        let mut buf = b"1\r\nx\r\n0\r\ngrpc-status: 0\r\nConnection: close\r\n\r\n".to_vec();
        let step = body.decode(&mut buf).unwrap();
        assert!(step.done && step.emit == 1 && step.data == 1);
        let trailers: Vec<_> = body.trailers().iter().map(|(name, value, _)| (name, value)).collect();
        assert_eq!(trailers, [(&b"grpc-status"[..], &b"0"[..])]);
        body.reset();
        assert!(body.trailers().is_empty() && body.state != State::Done);
    }
}
