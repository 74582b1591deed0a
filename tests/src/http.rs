//! HTTP/1 messages as tests need them: read from a socket, kept as they came.
//!
//! Deliberately simple and separate from the gateway's codec, so that a fault
//! in one is not hidden by the same fault in the other.

use anyhow::{Context, Result, bail};
use std::io::Read;

/// No message of a test is larger.
const MOST: usize = 1 << 30;

#[derive(Clone, Default, Debug)]
pub struct Message {
    /// The first line, without its end.
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// Statuses of interim answers before this one.
    pub interim: Vec<u16>,
    /// False when the connection ended before the message did.
    pub complete: bool,
}

impl Message {
    /// The status of a response; 0 for anything else.
    pub fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    pub fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    pub fn first(&self, name: &str) -> Option<&str> {
        values(&self.headers, name).next()
    }

    fn is_chunked(&self) -> bool {
        values(&self.headers, "transfer-encoding").any(|value| value.to_ascii_lowercase().contains("chunked"))
    }

    fn length(&self) -> Result<Option<usize>> {
        let length = self.first("content-length");
        length.map(|text| text.trim().parse().with_context(|| format!("content-length {text:?}"))).transpose()
    }
}

pub fn values<'a>(headers: &'a [(String, String)], name: &str) -> impl Iterator<Item = &'a str> {
    headers.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// Reads messages one after the other from a byte stream.
pub struct Reader<R> {
    inner: R,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    pub fn new(inner: R) -> Reader<R> {
        Reader { inner, buffer: Vec::new() }
    }

    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Bytes that came after the last message.
    pub fn rest(&self) -> &[u8] {
        &self.buffer
    }

    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Gives back bytes taken too many; they are read next.
    pub fn put_back(&mut self, bytes: Vec<u8>) {
        self.buffer.splice(..0, bytes);
    }

    /// The head of the next message, or None when the stream ends before it.
    pub fn head(&mut self) -> Result<Option<Message>> {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more()? {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                bail!("the stream ended within a head: {:?}", String::from_utf8_lossy(&self.buffer));
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        Ok(Some(parse_head(&head)))
    }

    /// A whole request, or None when the client is done.
    pub fn request(&mut self) -> Result<Option<Message>> {
        let Some(mut message) = self.head()? else { return Ok(None) };
        self.request_body(&mut message)?;
        Ok(Some(message))
    }

    pub fn request_body(&mut self, message: &mut Message) -> Result<()> {
        if message.is_chunked() {
            message.complete = self.chunks(message)?;
        } else {
            let length = message.length()?.unwrap_or(0);
            message.complete = self.exactly(length, &mut message.body)?;
        }
        Ok(())
    }

    /// A whole response to a request of this method; interim ones are counted.
    pub fn response(&mut self, method: &str) -> Result<Message> {
        let mut interim = Vec::new();
        let mut message = loop {
            let head = self.head()?.context("the connection was closed without an answer")?;
            match head.status() {
                status @ (100 | 102..=199) => interim.push(status),
                _ => break head,
            }
        };
        message.interim = interim;
        let status = message.status();
        if method == "HEAD" || status == 101 || status == 204 || status == 304 {
            message.complete = true;
        } else if message.is_chunked() {
            message.complete = self.chunks(&mut message)?;
        } else if let Some(length) = message.length()? {
            message.complete = self.exactly(length, &mut message.body)?;
        } else {
            while self.more()? {}
            message.body = self.take_rest();
            message.complete = true;
        }
        Ok(message)
    }

    fn chunks(&mut self, message: &mut Message) -> Result<bool> {
        loop {
            let Some(line) = self.line()? else { return Ok(false) };
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).with_context(|| format!("chunk size {line:?}"))?;
            if size == 0 {
                break;
            }
            if !self.exactly(size, &mut message.body)? {
                return Ok(false);
            }
            match self.line()? {
                Some(end) if end.is_empty() => {}
                Some(other) => bail!("a chunk is followed by {other:?}"),
                None => return Ok(false),
            }
        }
        loop {
            match self.line()? {
                Some(line) if line.is_empty() => return Ok(true),
                Some(line) => message.trailers.push(field(&line)),
                None => return Ok(false),
            }
        }
    }

    /// A line without its end; None when the stream ends first.
    fn line(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..at]).into_owned()));
            }
            if !self.more()? {
                return Ok(None);
            }
        }
    }

    /// Appends `wanted` bytes; false if the stream ends first.
    fn exactly(&mut self, mut wanted: usize, into: &mut Vec<u8>) -> Result<bool> {
        if wanted > MOST {
            bail!("a body of {wanted} bytes is more than a test sends");
        }
        while wanted > 0 {
            if self.buffer.is_empty() && !self.more()? {
                return Ok(false);
            }
            let part = wanted.min(self.buffer.len());
            into.extend(self.buffer.drain(..part));
            wanted -= part;
        }
        Ok(true)
    }

    /// Reads once; false at the end of the stream, a reset counted as an end.
    pub fn more(&mut self) -> Result<bool> {
        let mut part = [0; 16 * 1024];
        let read = loop {
            match self.inner.read(&mut part) {
                Ok(read) => break read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break 0,
                Err(error) if is_timeout(&error) => bail!("nothing came for so long as the runner waits"),
                Err(error) => return Err(error).context("waiting for bytes"),
            }
        };
        self.buffer.extend_from_slice(&part[..read]);
        Ok(read > 0)
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

fn parse_head(head: &[u8]) -> Message {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    Message { line, headers: lines.map(field).collect(), ..Message::default() }
}

fn field(line: &str) -> (String, String) {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    (name.to_owned(), value.trim().to_owned())
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Each character one byte, as cases write bytes; above U+00FF is refused.
pub fn bytes(text: &str) -> Result<Vec<u8>> {
    text.chars()
        .map(|letter| u8::try_from(u32::from(letter)).with_context(|| format!("{letter:?} is not one byte")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Reader, bytes};

    fn response(text: &str, method: &str) -> super::Message {
        Reader::new(text.as_bytes()).response(method).expect("valid")
    }

    #[test]
    fn lengths_chunks_and_trailers_are_read() {
        let message = response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP", "GET");
        assert_eq!((message.status(), message.body.as_slice(), message.complete), (200, &b"hi"[..], true));
        let chunked = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nhi\r\n0\r\nT: v\r\n\r\n";
        let message = response(chunked, "GET");
        assert_eq!(
            (message.interim.as_slice(), message.trailers.len(), message.complete),
            (&[100][..], 1, true)
        );
    }

    #[test]
    fn a_cut_body_is_incomplete_and_head_has_none() {
        assert!(!response("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", "GET").complete);
        let head = response("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD");
        assert!(head.complete && head.body.is_empty());
    }

    #[test]
    fn a_text_is_bytes() {
        assert_eq!(bytes("a\u{ff}\0").expect("ok"), [b'a', 0xff, 0]);
        assert!(bytes("、").is_err());
    }
}
