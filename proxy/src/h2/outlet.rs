//! hot path
//!
//! The sending side of a stream, within what the peer's windows allow.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use wire::Fields;

use super::{Backlog, fields};
use crate::io::Failed;

/// Sends one message's body.
pub(crate) struct Outlet(SendStream<Bytes>);

impl Outlet {
    pub(crate) fn new(stream: SendStream<Bytes>) -> Outlet {
        Outlet(stream)
    }

    /// Sends as much of a piece as the windows have room for; says how much that was. `ends` is for when
    /// the message ends with this piece. A piece that is empty needs no room. `backlog` bounds what the crate holds.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        ends: bool,
        backlog: Option<&Backlog>,
    ) -> Poll<Result<usize, Failed>> {
        let mut room = 0;
        let mut most = bytes.len();
        if !bytes.is_empty() {
            if let Some(backlog) = backlog {
                most = ready!(backlog.poll_room(cx, bytes.len()));
            }
            self.0.reserve_capacity(most);
            room = self.0.capacity();
            while room == 0 {
                room = match ready!(self.0.poll_capacity(cx)) {
                    Some(Ok(room)) => room,
                    Some(Err(_)) | None => return Poll::Ready(Err(Failed::Broken)),
                };
            }
        }
        let n = room.min(most);
        let ends = ends && n == bytes.len();
        let piece = match backlog {
            Some(backlog) if n > 0 => backlog.piece(&bytes[..n]),
            _ => Bytes::copy_from_slice(&bytes[..n]),
        };
        let sent = self.0.send_data(piece, ends);
        Poll::Ready(sent.map(|()| n).map_err(|_| Failed::Broken))
    }

    /// Ends the message with trailers.
    pub(crate) fn end(&mut self, trailers: &Fields) -> Result<(), Failed> {
        self.0.send_trailers(fields::to_trailers(trailers)).map_err(|_| Failed::Broken)
    }

    /// Breaks the stream off.
    pub(crate) fn reset(&mut self, reason: Reason) {
        self.0.send_reset(reason);
    }

    /// Ready when the peer has broken the stream off, or is gone.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_reset(cx).map(drop)
    }
}
