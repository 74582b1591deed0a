//! Parses HTTP/1.1 responses from a byte stream as they arrive, to check status and length.

use anyhow::{Result, bail};

/// Maximum length of a head (or chunk-size line), in bytes.
const LONGEST_HEAD: usize = 64 * 1024;

/// Parses one response at a time; after [`ResponseReader::feed`] returned it, the next may follow.
#[derive(Default)]
pub struct ResponseReader {
    state: ParseState,
    /// Bytes of an incomplete head or line.
    pending: Vec<u8>,
    status: u16,
    body: u64,
}

/// A response whose last byte has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Bytes of its body, without the chunked framing.
    pub body: u64,
}

#[derive(Default, Clone, Copy)]
enum ParseState {
    #[default]
    Head,
    /// Remaining body bytes.
    Length(u64),
    ChunkSize,
    /// Remaining bytes of chunk data, then CRLF.
    ChunkData(u64),
    ChunkEnd,
    Trailer,
}

impl ResponseReader {
    /// Parses received bytes. Returns the response they complete, if any. Bytes after its end are
    /// an error: no driver here pipelines.
    ///
    /// # Errors
    /// The bytes are not an HTTP/1.1 response of known length.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Option<Response>> {
        while !bytes.is_empty() {
            match self.state {
                ParseState::Head => {
                    let Some(taken) = self.take_until(bytes, b"\r\n\r\n")? else { return Ok(None) };
                    bytes = &bytes[taken..];
                    self.begin()?;
                }
                ParseState::Length(left) => bytes = self.skip(bytes, left, ParseState::Length),
                ParseState::ChunkSize => {
                    let Some(taken) = self.take_until(bytes, b"\r\n")? else { return Ok(None) };
                    bytes = &bytes[taken..];
                    let line = std::mem::take(&mut self.pending);
                    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                    let digits = std::str::from_utf8(&line[..digits])?;
                    self.state = match u64::from_str_radix(digits, 16)? {
                        0 => ParseState::Trailer,
                        size => ParseState::ChunkData(size),
                    };
                }
                ParseState::ChunkData(left) => {
                    bytes = self.skip(bytes, left, ParseState::ChunkData);
                    if matches!(self.state, ParseState::ChunkData(0)) {
                        self.state = ParseState::ChunkEnd;
                    }
                }
                ParseState::ChunkEnd => {
                    let Some(taken) = self.take_until(bytes, b"\r\n")? else { return Ok(None) };
                    if self.pending != b"\r\n" {
                        bail!("a chunk is longer than its size says");
                    }
                    bytes = &bytes[taken..];
                    self.pending.clear();
                    self.state = ParseState::ChunkSize;
                }
                ParseState::Trailer => {
                    let Some(taken) = self.take_until(bytes, b"\r\n")? else { return Ok(None) };
                    bytes = &bytes[taken..];
                    if std::mem::take(&mut self.pending) == b"\r\n" {
                        self.state = ParseState::Length(0);
                    }
                }
            }
            if matches!(self.state, ParseState::Length(0)) {
                if !bytes.is_empty() {
                    bail!("{} bytes follow the end of a response", bytes.len());
                }
                self.state = ParseState::Head;
                return Ok(Some(Response { status: self.status, body: std::mem::take(&mut self.body) }));
            }
        }
        Ok(None)
    }

    /// Moves bytes up to and including `end` to `pending`; returns how many, or `None` if `end` has
    /// not arrived (then all were moved).
    fn take_until(&mut self, bytes: &[u8], end: &[u8]) -> Result<Option<usize>> {
        let before = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let from = before.saturating_sub(end.len() - 1);
        match self.pending[from..].windows(end.len()).position(|window| window == end) {
            Some(position) => {
                let whole = from + position + end.len();
                self.pending.truncate(whole);
                Ok(Some(whole - before))
            }
            None if self.pending.len() > LONGEST_HEAD => bail!("a head of more than {LONGEST_HEAD} bytes"),
            None => Ok(None),
        }
    }

    fn skip<'b>(&mut self, bytes: &'b [u8], left: u64, state: fn(u64) -> ParseState) -> &'b [u8] {
        let taken = left.min(bytes.len() as u64);
        self.body += taken;
        self.state = state(left - taken);
        &bytes[taken as usize..]
    }

    /// Parses the head in `pending` and determines the body's framing.
    fn begin(&mut self) -> Result<()> {
        let head = std::mem::take(&mut self.pending);
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        response.parse(&head)?;
        self.status = response.code.unwrap_or(0);
        let value = |name: &str| {
            response
                .headers
                .iter()
                .find(|field| field.name.eq_ignore_ascii_case(name))
                .map(|field| field.value)
        };
        self.state =
            if value("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked")) {
                ParseState::ChunkSize
            } else if let Some(length) = value("content-length") {
                ParseState::Length(std::str::from_utf8(length)?.parse()?)
            } else if matches!(self.status, 204 | 304) {
                ParseState::Length(0)
            } else {
                bail!("a response with status {} has neither Content-Length nor chunks", self.status);
            };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of every size and checks that the result never depends on it.
    fn whole(text: &str) -> Response {
        let mut last = None;
        for size in 1..=text.len() {
            let mut reader = ResponseReader::default();
            let mut found = None;
            for piece in text.as_bytes().chunks(size) {
                assert!(found.is_none(), "ended early with pieces of {size}");
                found = reader.feed(piece).unwrap();
            }
            assert!(found.is_some(), "never ended with pieces of {size}");
            assert!(last.is_none() || last == found);
            last = found;
        }
        last.unwrap()
    }

    #[test]
    fn reads_both_framings() {
        let response = whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(response, Response { status: 200, body: 5 });
        let response = whole(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\n",
        );
        assert_eq!(response, Response { status: 200, body: 15 });
        assert_eq!(whole("HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"), Response { status: 404, body: 0 });
    }

    #[test]
    fn rejects_responses_without_length_or_with_extra_bytes() {
        assert!(ResponseReader::default().feed(b"HTTP/1.1 200 OK\r\n\r\nx").is_err());
        assert!(ResponseReader::default().feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy").is_err());
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n";
        assert!(ResponseReader::default().feed(chunked).is_err());
    }
}
