//! hot path
//!
//! Writes a message: a head that was made, and the body behind it, chunked or not.

use std::time::Duration;

use wire::Fields;
use wire::h1::encode;

use crate::buffers::SMALL;
use crate::clock::Waiter;
use crate::io::{self, Failed};
use crate::rt::WriteHalf;
use crate::worker::Worker;

/// A piece up to this length is copied behind what goes out before it, which costs less than a second
/// piece; a longer one goes out from where it lies.
const COPIED: usize = SMALL;

/// Writes one message.
pub(crate) struct Writer<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) waiter: &'a Waiter,
    pub(crate) to: WriteHalf<'a>,
    /// A head that leaves with the first piece of the body, or by itself when that takes long.
    pub(crate) out: &'a mut Vec<u8>,
    /// The body goes out in chunks.
    pub(crate) chunked: bool,
    /// Between two writes.
    pub(crate) timeout: Duration,
}

impl Writer<'_> {
    /// Writes a piece of the body, and its end with the last one.
    #[inline]
    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        if !self.chunked {
            // The usual case needs no future of `send`.
            return if self.join(bytes, b"") { self.flush().await } else { self.send(bytes, b"").await };
        }
        let begun = !bytes.is_empty();
        if begun {
            encode::chunk_header(bytes.len(), self.out);
        }
        match (begun, last, trailers.filter(|trailers| !trailers.is_empty())) {
            (true, false, _) => self.send(bytes, b"\r\n").await,
            (true, true, None) => self.send(bytes, b"\r\n0\r\n\r\n").await,
            (false, true, None) => self.send(b"", b"0\r\n\r\n").await,
            (false, false, _) => self.flush().await,
            (_, true, trailers) => {
                let mut end = if begun { b"\r\n".to_vec() } else { Vec::new() };
                encode::last_chunk(trailers, &mut end);
                self.send(bytes, &end).await
            }
        }
    }

    /// Writes a piece that is in the message's coding already.
    #[inline]
    pub(crate) async fn relay(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        self.send(bytes, b"").await
    }

    /// Appends a short piece to the bytes that wait. Returns false if the piece must be written separately.
    #[inline]
    fn join(&mut self, bytes: &[u8], after: &[u8]) -> bool {
        let joins = bytes.len() <= COPIED && !(self.out.is_empty() && after.is_empty());
        if joins {
            self.out.extend_from_slice(bytes);
            self.out.extend_from_slice(after);
        }
        joins
    }

    async fn send(&mut self, bytes: &[u8], after: &[u8]) -> Result<(), Failed> {
        if self.join(bytes, after) {
            return self.flush().await;
        }
        let Writer { worker, waiter, to, out, timeout, .. } = self;
        let written = if out.is_empty() && after.is_empty() {
            io::write_all(worker, waiter, to, bytes, *timeout).await
        } else {
            io::write_pieces(worker, waiter, to, [out, bytes, after], *timeout).await
        };
        self.out.clear();
        written
    }

    /// Writes what was made and waits to go out.
    #[inline]
    pub(crate) async fn flush(&mut self) -> Result<(), Failed> {
        if self.out.is_empty() {
            return Ok(());
        }
        let Writer { worker, waiter, to, out, timeout, .. } = self;
        let written = match io::write_at_once(to, out).await {
            Ok(n) if n == out.len() && to.is_direct() => Ok(()),
            Ok(n) => io::write_rest(worker, waiter, to, out, n, *timeout).await,
            Err(failed) => Err(failed),
        };
        self.out.clear();
        written
    }
}
