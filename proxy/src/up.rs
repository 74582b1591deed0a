//! Towards upstreams: connections, the pools that keep them, and what is spoken on them.

mod claims;
pub(crate) mod connect;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod links;
pub(crate) mod pool;
pub(crate) mod tls;
pub(crate) mod warm;

use std::time::Duration;

use wire::h1::encode::BadTarget;
use wire::{Field, Fields, Method, Name, ResponseHead};

use crate::buffers::Buffer;
use crate::clock::Waiter;
use crate::exchange::fault::Fault;
use crate::io::Failed;
use crate::worker::Worker;

/// The carrier of one request: a connection of its own, or a stream of a shared one.
pub(crate) enum Upstream {
    H1(Box<h1::Conn>),
    H2(Box<h2::Stream>),
}

/// Sends one request.
pub(crate) enum Sender<'a> {
    H1(h1::Sender<'a>),
    H2(h2::Sender<'a>),
}

/// Reads the response to it.
pub(crate) enum Receiver<'a> {
    H1(h1::Receiver<'a>),
    H2(h2::Receiver<'a>),
}

impl Upstream {
    /// The connection has carried a request before this one, so it may have died unnoticed.
    #[inline]
    pub(crate) fn is_reused(&self) -> bool {
        match self {
            Upstream::H1(conn) => conn.reused,
            Upstream::H2(stream) => stream.is_reused(),
        }
    }

    /// Its part of a connection that others share.
    #[inline]
    pub(crate) fn claim(&self) -> Option<links::Claim> {
        match self {
            Upstream::H1(_) => None,
            Upstream::H2(stream) => Some(stream.claim()),
        }
    }

    /// Why a server did not want the connection, where that was because of the gateway's certificate.
    #[cold]
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        match self {
            Upstream::H1(conn) => tls::refusal(&conn.io),
            Upstream::H2(stream) => stream.refusal(),
        }
    }

    /// Begins a request. The first waiter is for sending it, the second for its response; `out` holds
    /// what is to be written, and is memory that is used again.
    #[inline]
    pub(crate) fn begin<'a>(
        &'a mut self,
        worker: &'a Worker,
        waiters: [&'a Waiter; 2],
        out: &'a mut Vec<u8>,
        send_timeout: Duration,
    ) -> (Sender<'a>, Receiver<'a>) {
        match self {
            Upstream::H1(conn) => {
                let (to, from) = conn.begin(worker, waiters, out, send_timeout);
                (Sender::H1(to), Receiver::H1(from))
            }
            Upstream::H2(stream) => {
                let (to, from) = stream.begin(worker, waiters, out, send_timeout);
                (Sender::H2(to), Receiver::H2(from))
            }
        }
    }
}

impl Sender<'_> {
    /// Makes the head. It goes out with the first piece of the body.
    #[inline]
    pub(crate) fn head(&mut self, head: &impl Head, size: Size, wish: h1::Wish) -> Result<(), BadTarget> {
        match self {
            Sender::H1(to) => to.head(head, size, wish),
            Sender::H2(to) => to.head(head, size, wish),
        }
    }

    /// Writes a piece of the body, and its end with the last one.
    #[inline]
    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        match self {
            Sender::H1(to) => to.write(bytes, last, trailers).await,
            Sender::H2(to) => to.write(bytes, last, trailers).await,
        }
    }

    /// Writes a piece that is in chunked coding already; to HTTP/1 alone.
    #[inline]
    pub(crate) async fn relay(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        match self {
            Sender::H1(to) => to.relay(bytes).await,
            Sender::H2(_) => Err(Failed::Closed),
        }
    }

    /// Writes a head that no body follows, or not yet.
    #[inline]
    pub(crate) async fn flush(&mut self) -> Result<(), Failed> {
        match self {
            Sender::H1(to) => to.flush().await,
            Sender::H2(to) => to.flush(),
        }
    }
}

impl Receiver<'_> {
    /// Reads the next head: an interim response, a switch of protocols or the final response. When
    /// `deadline` has passed, `late` says how much longer it may take.
    #[inline]
    pub(crate) async fn head(
        &mut self,
        head: &mut ResponseHead,
        method: Method,
        deadline: &mut u64,
        late: impl Fn() -> Result<u64, Fault>,
    ) -> Result<(), Fault> {
        match self {
            Receiver::H1(from) => from.head(head, method, deadline, late).await,
            Receiver::H2(from) => from.head(head, method, deadline, late).await,
        }
    }

    /// Something of a response came, on a connection that carries one at a time.
    pub(crate) fn was_answered(&self) -> bool {
        match self {
            Receiver::H1(from) => from.was_answered(),
            Receiver::H2(_) => false,
        }
    }

    /// Takes a piece of the body from what was read: in chunked coding as it is, if `framed`, or else
    /// without any. False if more must be read.
    #[inline]
    pub(crate) fn take(&mut self, framed: bool) -> Result<bool, Fault> {
        match self {
            Receiver::H1(from) => from.take(framed),
            Receiver::H2(from) => from.take(),
        }
    }

    /// The piece that was taken.
    #[inline]
    pub(crate) fn piece(&self) -> &[u8] {
        match self {
            Receiver::H1(from) => from.piece(),
            Receiver::H2(from) => from.piece(),
        }
    }

    /// The piece is done with.
    #[inline]
    pub(crate) fn used(&mut self) {
        match self {
            Receiver::H1(from) => from.used(),
            Receiver::H2(from) => from.used(),
        }
    }

    /// No piece comes after the one that was taken.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Receiver::H1(from) => from.is_complete(),
            Receiver::H2(from) => from.is_complete(),
        }
    }

    /// The body comes in chunks, which can go on as they are.
    #[inline]
    pub(crate) fn is_chunked(&self) -> bool {
        match self {
            Receiver::H1(from) => from.is_chunked(),
            Receiver::H2(_) => false,
        }
    }

    /// The trailers behind a body that was taken out of its coding.
    #[inline]
    pub(crate) fn trailers(&self) -> Option<&Fields> {
        match self {
            Receiver::H1(from) => from.trailers(),
            Receiver::H2(from) => from.trailers(),
        }
    }

    /// The rest of the body is still to come, and fits into what is read next.
    #[inline]
    pub(crate) fn rest_fits(&mut self) -> bool {
        match self {
            Receiver::H1(from) => from.rest_fits(),
            Receiver::H2(_) => false,
        }
    }

    /// Chooses the buffer size of the next read for a client that accepts this many bytes.
    pub(crate) fn fit(&mut self, window: usize) {
        if let Receiver::H1(from) = self {
            from.fit(window);
        }
    }

    /// Reads more of the body.
    #[inline]
    pub(crate) async fn read(&mut self, deadline: u64) -> Result<(), Fault> {
        match self {
            Receiver::H1(from) => from.read(deadline).await,
            Receiver::H2(from) => from.read(deadline).await,
        }
    }

    /// Drops the bytes that are here of an unwanted body.
    pub(crate) fn skip(&mut self) {
        match self {
            Receiver::H1(from) => from.skip(),
            // With the stream, all of it goes.
            Receiver::H2(_) => {}
        }
    }

    /// Whether another request may follow on a connection that carries one at a time.
    pub(crate) fn may_be_reused(&self) -> bool {
        match self {
            Receiver::H1(from) => from.may_be_reused(),
            Receiver::H2(_) => false,
        }
    }

    /// Returns the bytes that were read behind the head, where the connection becomes a tunnel.
    pub(crate) fn take_rest(&mut self) -> Option<Buffer> {
        match self {
            Receiver::H1(from) => from.take_rest(),
            // With the stream.
            Receiver::H2(_) => None,
        }
    }
}

/// How much of a body follows a head, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    None,
    Exactly(u64),
    /// The body marks its own end.
    Open,
}

/// A request's head as a server is to get it, alike for all protocols. Nothing in it concerns framing
/// or the connection.
pub(crate) trait Head {
    fn method(&self) -> &[u8];
    /// Appends path and query. The caller checks whether they can stand in a request line.
    fn target(&self, out: &mut Vec<u8>) -> Result<(), BadTarget>;
    fn authority(&self) -> &[u8];
    /// Gives every field but those.
    fn fields(&self, to: &mut impl Lines);
}

/// Takes fields, one after the other.
pub(crate) trait Lines {
    /// Begins a field whose value comes in parts.
    fn name(&mut self, id: Name, name: &'static [u8]);
    /// A part of the value.
    fn value(&mut self, part: &[u8]);
    /// A number as the value, or a part of it.
    fn number(&mut self, number: u64);
    fn end(&mut self);

    /// Fields of a message, as they stand there.
    #[inline]
    fn copy<'a>(&mut self, fields: &Fields, some: impl Iterator<Item = &'a Field>) {
        for field in some {
            self.field(field.id, fields.bytes(field.name), fields.bytes(field.value));
        }
    }

    fn field(&mut self, id: Name, name: &[u8], value: &[u8]);
}
