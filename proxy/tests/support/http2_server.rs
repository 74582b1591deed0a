//! HTTP/2 frames as a server writes them, byte by byte, and a decoder of the requests that it got.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use h2::server::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http2::more_of;
use super::{Do, Got};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `SETTINGS_MAX_CONCURRENT_STREAMS`.
const MOST_STREAMS: u16 = 3;
/// `SETTINGS_ENABLE_CONNECT_PROTOCOL`.
const TUNNELS: u16 = 8;

/// The connection preface of a client.
pub const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a frame's header.
const HEAD: usize = 9;

/// Begins a connection with empty SETTINGS and waits for the client's preface.
pub fn greets() -> Vec<Do> {
    vec![frame(SETTINGS, 0, 0, &[]), Do::Until(PREFACE)]
}

/// Begins a connection that accepts this many concurrent streams.
pub fn greets_for(streams: u32) -> Vec<Do> {
    vec![takes(streams), Do::Until(PREFACE)]
}

/// Begins a connection that accepts extended CONNECT.
pub fn greets_for_tunnels() -> Vec<Do> {
    vec![setting(TUNNELS, 1), Do::Until(PREFACE)]
}

/// Sets the number of concurrent streams from here on.
pub fn takes(streams: u32) -> Do {
    setting(MOST_STREAMS, streams)
}

fn setting(which: u16, value: u32) -> Do {
    frame(SETTINGS, 0, 0, &[&which.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// Returns HEADERS with these lines; `ends` sets END_STREAM.
pub fn head(stream: u32, ends: bool, lines: &str) -> Do {
    let mut block = Vec::new();
    for line in lines.lines() {
        let (name, value) = line.rsplit_once(": ").unwrap();
        // A literal without indexing and with a new name (RFC 7541 section 6.2.2).
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "a length of one byte");
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS | u8::from(ends), stream, &block)
}

pub fn data(stream: u32, ends: bool, bytes: impl AsRef<[u8]>) -> Do {
    frame(DATA, if ends { END_STREAM } else { 0 }, stream, bytes.as_ref())
}

pub fn reset(stream: u32, reason: h2::Reason) -> Do {
    frame(RST_STREAM, 0, stream, &u32::from(reason).to_be_bytes())
}

/// Returns GOAWAY: streams after `last` were not and will not be processed.
pub fn goes(last: u32) -> Do {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

/// Returns WINDOW_UPDATE.
pub fn widens(stream: u32, more: u32) -> Do {
    frame(8, 0, stream, &more.to_be_bytes())
}

/// Returns PUSH_PROMISE without fields.
pub fn pushes(stream: u32, promised: u32) -> Do {
    frame(5, END_HEADERS, stream, &promised.to_be_bytes())
}

/// Returns a frame of an unknown type.
pub fn unknown(stream: u32) -> Do {
    frame(0xf7, 0xff, stream, b"anything")
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Do {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    Do::Bytes(bytes.leak())
}

/// Returns the kind, stream and whole length of the first frame, if it is complete.
pub fn first(bytes: &[u8]) -> Option<(u8, u32, usize)> {
    let &[a, b, c, kind, _, d, e, f, g] = bytes.first_chunk::<HEAD>()?;
    let length = HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
    (bytes.len() >= length).then(|| (kind, u32::from_be_bytes([d, e, f, g]), length))
}

/// Decodes the requests of an HTTP/2 client as text: heads as lines, bodies unchanged, and the end of each request.
pub async fn requests(bytes: &[u8]) -> Option<String> {
    let mut rest = bytes.strip_prefix(PREFACE.as_bytes())?;
    let mut kept = PREFACE.as_bytes().to_vec();
    kept.extend_from_slice(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]);
    while let Some((kind, _, length)) = first(rest) {
        // Frames of the connection, such as WINDOW_UPDATE, belong to the real connection, not to this decoder's.
        if matches!(kind, DATA | HEADERS | CONTINUATION) {
            kept.extend_from_slice(&rest[..length]);
        }
        rest = &rest[length..];
    }
    let mut connection = Builder::new()
        .enable_connect_protocol()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 20)
        .handshake::<_, bytes::Bytes>(Heard(kept, 0))
        .await
        .unwrap();
    let mut came = Vec::new();
    while let Poll::Ready(Some(one)) = poll_fn(|cx| Poll::Ready(connection.poll_accept(cx))).await {
        came.push(one.unwrap());
    }
    let mut got = Got::default();
    for (request, _) in came {
        let (parts, body) = request.into_parts();
        got.put(&format!("{} {}\n", parts.method, parts.uri));
        got.put_fields(&parts.headers);
        got.put("\n");
        // All bytes are here, so a single poll reads the whole body.
        let mut body = Some(body);
        let mut reading = pin!(async { while more_of(&mut body, &mut got).await {} });
        let _ = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
    }
    Some(got.text())
}

/// A connection that yields the received bytes, then nothing more, and discards what is written to it.
struct Heard(Vec<u8>, usize);

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.0[self.1..];
        let n = rest.len().min(buf.remaining());
        if n == 0 {
            return Poll::Pending;
        }
        buf.put_slice(&rest[..n]);
        self.1 += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Heard {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
