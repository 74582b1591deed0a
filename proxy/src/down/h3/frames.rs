//! hot path
//!
//! Frames of one stream, as they come.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use quinn::{ReadError, RecvStream, VarInt};
use wire::h3::{self, LONGEST_HEAD, code};

use super::Shared;

/// Taken from the transport at once.
const READ: usize = 16 << 10;

/// Why a stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// The client has broken it off, or is gone.
    Gone,
    /// The stream breaks a rule and ends with this code.
    Stream(u32),
    /// The client breaks a rule of the whole connection, which ends with this code.
    Connection(u32),
}

pub(super) struct Frames {
    stream: RecvStream,
    shared: Rc<Shared>,
    /// Bytes that were read and not used yet.
    chunk: Bytes,
    /// The beginning of a frame's head.
    head: [u8; LONGEST_HEAD],
    have: usize,
    /// Bytes that the current frame still has.
    left: u64,
    /// The client has sent all.
    ended: bool,
}

impl Frames {
    pub(super) fn new(stream: RecvStream, shared: Rc<Shared>) -> Frames {
        Frames {
            stream,
            shared,
            chunk: Bytes::new(),
            head: [0; LONGEST_HEAD],
            have: 0,
            left: 0,
            ended: false,
        }
    }

    /// Bytes that the current frame still has.
    #[inline]
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Makes sure that something is at hand. False if nothing more comes.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        while self.chunk.is_empty() && !self.ended {
            let read = ready!(pin!(self.stream.read_chunk(READ, true)).poll(cx));
            match read {
                Ok(Some(chunk)) => {
                    self.shared.windows.used(chunk.bytes.len());
                    self.chunk = chunk.bytes;
                }
                Ok(None) => self.ended = true,
                Err(ReadError::ClosedStream) => self.ended = true,
                Err(_) => return Poll::Ready(Err(Broken::Gone)),
            }
        }
        Poll::Ready(Ok(!self.chunk.is_empty()))
    }

    /// A byte or a few, for what is not made of frames.
    pub(super) fn take_all(&mut self) -> Bytes {
        std::mem::take(&mut self.chunk)
    }

    /// A number by itself; none if nothing comes.
    pub(super) fn poll_number(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<u64>, Broken>> {
        self.poll_begun(cx, |bytes| h3::number(bytes).map(|(value, _)| value))
    }

    /// The next frame's kind and length; none at the end of the stream. The frame before is over.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<(u64, u64)>, Broken>> {
        debug_assert_eq!(self.left, 0);
        let head = ready!(
            self.poll_begun(cx, |bytes| h3::frame_head(bytes).map(|(kind, length, _)| (kind, length)))
        )?;
        self.left = head.map_or(0, |(_, length)| length);
        Poll::Ready(Ok(head))
    }

    /// Takes bytes until they are whole.
    fn poll_begun<T>(
        &mut self,
        cx: &mut Context<'_>,
        whole: impl Fn(&[u8]) -> Option<T>,
    ) -> Poll<Result<Option<T>, Broken>> {
        loop {
            if !ready!(self.poll_fill(cx))? {
                return Poll::Ready(match self.have {
                    0 => Ok(None),
                    _ => Err(Broken::Connection(code::FRAME_ERROR)),
                });
            }
            self.head[self.have] = self.chunk[0];
            self.have += 1;
            let _ = self.chunk.split_to(1);
            if let Some(whole) = whole(&self.head[..self.have]) {
                self.have = 0;
                return Poll::Ready(Ok(Some(whole)));
            }
        }
    }

    /// A piece of the current frame.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Broken>> {
        if !ready!(self.poll_fill(cx))? {
            // The stream ends within a frame.
            return Poll::Ready(Err(Broken::Connection(code::FRAME_ERROR)));
        }
        let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(self.chunk.len());
        self.left -= n as u64;
        Poll::Ready(Ok(self.chunk.split_to(n)))
    }

    /// All that the current frame still has. The caller knows that it is not too much.
    pub(super) fn poll_rest(&mut self, into: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        while self.left > 0 {
            into.extend_from_slice(&ready!(self.poll_piece(cx))?);
        }
        Poll::Ready(Ok(()))
    }

    /// Passes over the rest of the current frame.
    pub(super) fn poll_skip(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        while self.left > 0 {
            ready!(self.poll_piece(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether it is known that nothing follows the frame that was read.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.left == 0 && self.have == 0 && matches!(self.poll_fill(cx), Poll::Ready(Ok(false)))
    }

    /// Tells the client to send no more.
    pub(super) fn stop(&mut self, code: u32) {
        if !self.ended {
            self.ended = true;
            self.chunk = Bytes::new();
            let _ = self.stream.stop(VarInt::from_u32(code));
        }
    }
}

impl Drop for Frames {
    /// Asks the client not to send the rest, which is not read (RFC 9114 section 4.1).
    fn drop(&mut self) {
        self.stop(code::NO_ERROR);
    }
}
