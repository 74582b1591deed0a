//! Towards clients: the ends of an exchange that face one, alike for all protocols.
//!
//! An exchange sees a client as two halves: the request's body, which it takes piece by piece, and the
//! response, which it gives. They work beside each other within one task.

mod field_section;
mod grpc;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod h3;
mod head;
mod life;
mod refusal;
mod streams;
pub(crate) mod tls;

use wire::{Fields, ResponseHead};

use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::io::{End, Failed};
use crate::up::Size;
use crate::worker::Worker;
use sdk::Exchange;
use streams::Streams;

/// The same expression for a client's end, or a half of it, in any protocol.
macro_rules! each {
    ($of:expr, $kind:ident, $end:ident => $do:expr) => {
        match $of {
            $kind::H1($end) => $do,
            $kind::H2($end) => $do,
            $kind::H3($end) => $do,
        }
    };
}

/// A client and the request it has sent.
pub(crate) enum Downstream<'a> {
    H1(&'a mut h1::Conn),
    H2(&'a mut h2::Stream),
    H3(&'a mut h3::Stream),
}

/// The request's body, as it comes.
pub(crate) enum RequestBody<'a> {
    H1(h1::RequestBody<'a>),
    H2(h2::RequestBody<'a>),
    H3(h3::RequestBody<'a>),
}

/// The response, as it goes.
pub(crate) enum Response<'a> {
    H1(h1::Response<'a>),
    H2(h2::Response<'a>),
    H3(h3::Response<'a>),
}

/// Facts of a request's arrival, beside its head.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Arrival {
    /// Size of the head.
    pub(crate) head_bytes: u64,
    /// Milliseconds between the first byte of the request and its whole head, to a tick.
    pub(crate) head_took_ms: u64,
    /// Requests its connection has brought, this one included.
    pub(crate) requests: u64,
}

impl Downstream<'_> {
    #[inline]
    pub(crate) fn split<'b>(&'b mut self, worker: &'b Worker) -> (RequestBody<'b>, Response<'b>) {
        match self {
            Downstream::H1(conn) => {
                let (body, response) = conn.split(worker);
                (RequestBody::H1(body), Response::H1(response))
            }
            Downstream::H2(stream) => {
                let (body, response) = stream.split(worker);
                (RequestBody::H2(body), Response::H2(response))
            }
            Downstream::H3(stream) => {
                let (body, response) = stream.split(worker);
                (RequestBody::H3(body), Response::H3(response))
            }
        }
    }

    #[inline]
    pub(crate) fn arrival(&self) -> Arrival {
        each!(self, Downstream, client => client.arrival)
    }

    /// Bytes of the body that came, in the form in which they were taken.
    pub(crate) fn body_received(&self) -> u64 {
        each!(self, Downstream, client => client.body_received())
    }

    /// The streams of this client's connection, unless its protocol has none.
    #[cold]
    fn streams(&self) -> Option<&Streams> {
        match self {
            Downstream::H1(_) => None,
            Downstream::H2(stream) => Some(stream.streams()),
            Downstream::H3(stream) => Some(stream.streams()),
        }
    }

    /// No further request is taken from this client's connection: what it sends may be read in two ways.
    pub(crate) fn distrust(&mut self) {
        // Where a stream's message ends is not for the message to say.
        if let Downstream::H1(conn) = self {
            conn.distrust();
        }
    }

    /// Ends this client's connection once what has begun on it is served: the client is to connect again.
    #[cold]
    pub(crate) fn end_gently(&mut self) {
        match self.streams() {
            Some(streams) => streams.end(),
            None => self.distrust(),
        }
    }

    /// Ends this client's connection unless it has other streams: the client does not take what is sent to it.
    #[cold]
    pub(crate) fn end_if_last(&self) {
        // Without streams it ends with every response that breaks off.
        if let Some(streams) = self.streams() {
            streams.end_if_last();
        }
    }

    /// Ends when the client is gone, or has closed its sending side a while ago. To be polled beside
    /// everything else that the exchange waits for; dropping it loses nothing.
    pub(crate) async fn gone(&mut self, worker: &Worker) {
        let (mut body, _) = self.split(worker);
        if body.end(worker).await == End::HalfClosed {
            let deadline = worker.clock.after(worker.settings.timeouts.half_close);
            let _ = body.waiter().until(deadline, |_| std::task::Poll::<()>::Pending).await;
        }
    }
}

impl<'a> RequestBody<'a> {
    /// Lets the body have as many bytes as the exchange permits.
    #[inline]
    pub(crate) fn limit(&mut self, worker: &Worker, x: &Exchange<'_>) {
        let max = MaxBody::of(x, worker.settings.limits.body);
        each!(self, RequestBody, body => body.max = max);
    }

    /// For waits on this side of the exchange.
    #[inline]
    pub(crate) fn waiter(&self) -> &'a Waiter {
        each!(self, RequestBody, body => body.waiter)
    }

    /// Takes a piece from what was read: in chunked coding as it is, if `framed`, or else without any
    /// coding. True if there is one or nothing more comes; false if more must be read. A piece that was
    /// not used is given again.
    #[inline]
    pub(crate) fn take(&mut self, framed: bool) -> Result<bool, Fault> {
        match self {
            RequestBody::H1(body) => body.take(framed),
            RequestBody::H2(body) => body.take(),
            RequestBody::H3(body) => body.take(),
        }
    }

    /// The piece that was taken; empty without one.
    #[inline]
    pub(crate) fn piece(&self) -> &[u8] {
        each!(self, RequestBody, body => body.piece())
    }

    /// The piece is done with.
    #[inline]
    pub(crate) fn used(&mut self) {
        each!(self, RequestBody, body => body.used())
    }

    /// No piece comes after the one that was taken.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        each!(self, RequestBody, body => body.is_complete())
    }

    /// The body comes in chunks, which can go on as they are.
    #[inline]
    pub(crate) fn is_chunked(&self) -> bool {
        matches!(self, RequestBody::H1(body) if body.is_chunked())
    }

    /// The trailers behind the body, which are in none of its pieces. Their names are checked before they are
    /// forwarded.
    #[inline]
    pub(crate) fn trailers(&self) -> Option<&Fields> {
        each!(self, RequestBody, body => body.trailers())
    }

    /// Reads more from the client.
    #[inline]
    pub(crate) async fn read(&mut self) -> Result<(), Fault> {
        each!(self, RequestBody, body => body.read().await)
    }

    /// Gives memory back that holds nothing.
    #[inline]
    pub(crate) fn release(&mut self) {
        if let RequestBody::H1(body) = self {
            body.release();
        }
    }

    /// Watches the client's connection until it ends. Bytes that come meanwhile are kept, up to one buffer;
    /// beyond that the watch never ends.
    pub(crate) async fn end(&mut self, worker: &Worker) -> End {
        match self {
            RequestBody::H1(body) => body.end(worker).await,
            RequestBody::H2(body) => body.end().await,
            RequestBody::H3(body) => body.end().await,
        }
    }
}

impl<'a> Response<'a> {
    /// For waits on this side of the exchange.
    #[inline]
    pub(crate) fn waiter(&self) -> &'a Waiter {
        match self {
            Response::H1(response) => response.waiter(),
            Response::H2(response) => response.waiter,
            Response::H3(response) => response.waiter,
        }
    }

    /// Returns the number of bytes that an HTTP/2 client accepts now.
    #[inline]
    pub(crate) fn window(&self) -> Option<usize> {
        match self {
            Response::H1(_) | Response::H3(_) => None,
            Response::H2(response) => Some(response.stream.window()),
        }
    }

    /// The request's body is wanted now: tells a client that waits to hear so.
    #[inline]
    pub(crate) async fn go_on(&mut self) -> Result<(), Fault> {
        match self {
            Response::H1(response) => response.go_on().await,
            Response::H2(response) => response.go_on().await,
            Response::H3(response) => response.go_on().await,
        }
        .map_err(|_| Fault::client(FaultKind::ClientGone))
    }

    /// Sends an interim response, if the client's protocol knows of such.
    pub(crate) async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        match self {
            Response::H1(response) => response.interim(head).await,
            Response::H2(response) => response.interim(head).await,
            Response::H3(response) => response.interim(head).await,
        }
    }

    /// Says that the connection is a tunnel from here on.
    pub(crate) async fn switch(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        match self {
            Response::H1(response) => response.switch(head).await,
            Response::H2(response) => response.switch(head).await,
            Response::H3(response) => response.switch(head).await,
        }
    }

    /// Makes the head of the response in `x`, of which nothing goes out yet. Gives its size.
    #[inline]
    pub(crate) fn start(&mut self, x: &Exchange<'_>, size: Size) -> u64 {
        each!(self, Response, response => response.start(x, size))
    }

    /// After [`Response::start`]: the body goes out in chunks.
    #[inline]
    pub(crate) fn is_chunked(&self) -> bool {
        matches!(self, Response::H1(response) if response.is_chunked())
    }

    /// Something of the final response may have gone out.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        each!(self, Response, response => response.has_begun())
    }

    /// Sends a piece of the body, with the head if that still waits, and the end with the last one.
    #[inline]
    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        each!(self, Response, response => response.write(bytes, last, trailers).await)
    }

    /// Sends a piece that is in chunked coding already, where [`Response::is_chunked`].
    #[inline]
    pub(crate) async fn relay(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        match self {
            Response::H1(response) => response.relay(bytes).await,
            Response::H2(_) | Response::H3(_) => Err(Failed::Closed),
        }
    }

    /// Sends the head if it still waits; more may follow.
    #[inline]
    pub(crate) async fn flush(&mut self) -> Result<(), Failed> {
        match self {
            Response::H1(response) => response.flush().await,
            Response::H2(response) => response.flush().await,
            Response::H3(response) => response.flush().await,
        }
    }

    /// Ends a response that has no body.
    #[inline]
    pub(crate) async fn end(&mut self) -> Result<(), Failed> {
        match self {
            Response::H1(response) => response.flush().await,
            Response::H2(response) => response.end().await,
            Response::H3(response) => response.end().await,
        }
    }

    /// Makes the head of an answer of the gateway's own to a client that speaks gRPC, with which the
    /// response ends. Gives its size; nothing, where the client is to get it as it is.
    #[cold]
    pub(crate) fn start_grpc(&mut self, x: &Exchange<'_>, text: &[u8]) -> Option<u64> {
        match self {
            Response::H2(response) => Some(response.start_grpc(x, text)),
            Response::H3(response) => Some(response.start_grpc(x, text)),
            _ => None,
        }
    }
}
