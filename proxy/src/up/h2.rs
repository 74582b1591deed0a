//! hot path
//!
//! The HTTP/2 client: one request and its response on a stream of a connection that others share. The stream
//! carries gRPC, as far as the request's head is concerned, or WebSocket (RFC 8441).

use std::cell::Cell;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use sha1::{Digest, Sha1};
use smallvec::SmallVec;
use wire::fields::check_value;
use wire::h1::Refusal;
use wire::h1::encode::{BadTarget, check_target, digits};
use wire::h2::frame::Code;
use wire::{Fields, Framing, Method, Name, ResponseHead};

use super::h1::Wish;
use super::links::{Claim, Place};
use super::{Head, Lines, Size};
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::h2::{self, BodyPart, EndReason, FieldSink, Mux, PseudoFields, StreamError};
use crate::io::Failed;
use crate::worker::Worker;

/// Interim responses a server may send before its final one.
const MAX_INTERIM: usize = 16;

/// A stream to an upstream server.
pub(crate) struct Stream {
    place: Place,
    /// Whether it is a call of gRPC.
    grpc: bool,
    /// The `Sec-WebSocket-Accept` that an HTTP/1 client expects of a server that takes a tunnel
    /// (RFC 6455 section 4.2.2), if it asks for a tunnel.
    accept: Cell<Option<[u8; 28]>>,
}

/// A stream that has become a tunnel.
pub(crate) struct Switched {
    inlet: Inlet,
    place: Place,
}

/// The receiving side of a tunnel.
pub(crate) struct Inlet {
    claim: Claim,
    piece: Vec<u8>,
    /// Bytes to give back to the window once they were passed on.
    taken: usize,
}

impl Switched {
    pub(crate) fn claim(&self) -> Claim {
        self.inlet.claim.clone()
    }

    pub(crate) fn split(&mut self) -> (&mut Inlet, &h2::Stream) {
        (&mut self.inlet, self.place.stream())
    }
}

impl Inlet {
    /// The next bytes; none at the end.
    pub(crate) fn poll_tunnel(
        &mut self,
        stream: &h2::Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Failed>> {
        let taken = std::mem::take(&mut self.taken);
        self.claim.used(taken);
        stream.used(taken);
        match stream.poll_data(cx, &mut self.piece) {
            Poll::Ready(Ok(BodyPart::Data { .. })) => {
                self.claim.came();
                self.taken = self.piece.len();
                Poll::Ready(Ok(Some(Bytes::from(std::mem::take(&mut self.piece)))))
            }
            Poll::Ready(Ok(BodyPart::End)) => {
                self.claim.waits();
                Poll::Ready(Ok(None))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Failed::Closed)),
            Poll::Pending => {
                self.claim.waits();
                Poll::Pending
            }
        }
    }
}

/// Sends one request.
pub(crate) struct Sender<'a> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    stream: &'a Stream,
    out: &'a mut Vec<u8>,
    timeout: Duration,
    /// Nothing follows the head.
    ended: bool,
}

/// Reads the response to it.
pub(crate) struct Receiver<'a> {
    waiter: &'a Waiter,
    stream: &'a Stream,
    piece: Vec<u8>,
    complete: bool,
    trailers: Fields,
    interim: usize,
}

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        self.stream.place.stream().recycle(&mut self.piece, &mut self.trailers);
    }
}

impl Stream {
    /// With `grpc`, the request is a gRPC call, regardless of the client's content type.
    pub(crate) fn new(place: Place, grpc: bool) -> Stream {
        Stream { place, grpc, accept: Cell::new(None) }
    }

    /// Whether the server takes tunnels (RFC 8441). One whose settings do not come takes none.
    pub(crate) async fn takes_tunnels(&self, waiter: &Waiter, deadline: u64) -> bool {
        let link = self.place.link();
        waiter.until(deadline, |cx| link.poll_tunnels(cx)).await.unwrap_or(false)
    }

    /// Returns the tunnel, if the stream became one.
    pub(crate) fn into_switched(self) -> Option<Switched> {
        self.accept.get()?;
        let claim = self.place.claim().clone();
        Some(Switched { inlet: Inlet { claim, piece: Vec::new(), taken: 0 }, place: self.place })
    }

    /// As [`super::Upstream::claim`].
    pub(crate) fn claim(&self) -> Claim {
        self.place.claim().clone()
    }

    /// As [`super::Upstream::refusal`].
    #[cold]
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.place.link().refusal()
    }

    /// The connection has carried a request before this one.
    pub(crate) fn is_reused(&self) -> bool {
        self.place.reused
    }

    /// Begins a request. The first waiter is for sending it, the second for its response.
    pub(crate) fn begin<'a>(
        &'a mut self,
        worker: &'a Worker,
        waiters: [&'a Waiter; 2],
        out: &'a mut Vec<u8>,
        send_timeout: Duration,
    ) -> (Sender<'a>, Receiver<'a>) {
        let [sending, receiving] = waiters;
        let stream = &*self;
        let sender = Sender { worker, waiter: sending, stream, out, timeout: send_timeout, ended: false };
        let receiver = Receiver {
            waiter: receiving,
            stream,
            piece: Vec::new(),
            complete: false,
            trailers: Fields::new(),
            interim: 0,
        };
        (sender, receiver)
    }

    /// Maps the early end of the stream to a fault.
    #[cold]
    fn fault(&self, gone: StreamError) -> Fault {
        let place = &self.place;
        Fault::upstream(match gone {
            StreamError::LeftOut | StreamError::Reset(Code::REFUSED_STREAM) => FaultKind::Unprocessed,
            StreamError::Malformed(refusal) => FaultKind::BadResponse(refusal),
            StreamError::RuleBroken => FaultKind::BrokenStream,
            StreamError::Reset(code) => FaultKind::Ended(Ends::StreamReset.words(code)),
            StreamError::Connection => {
                let mux = place.stream().mux().borrow();
                match (mux.over(), mux.goaway()) {
                    (Some(EndReason::RuleBroken(code)), _) => FaultKind::Ended(Ends::RuleBroken.words(code)),
                    (Some(EndReason::Flood(_)), _) => {
                        FaultKind::Ended(Ends::RuleBroken.words(Code::ENHANCE_YOUR_CALM))
                    }
                    (_, Some((_, code))) if code != Code::NO_ERROR => {
                        FaultKind::Ended(Ends::GoneAway.words(code))
                    }
                    _ if place.reused && !place.may_have_been_gone() => {
                        FaultKind::Ended("the upstream closed the HTTP/2 connection before it responded")
                    }
                    _ => FaultKind::ClosedEarly,
                }
            }
        })
    }
}

impl Sender<'_> {
    /// Sends the head (RFC 9113 section 8.3.1). It goes out with the first piece of the body.
    pub(crate) fn head(&mut self, head: &impl Head, size: Size, wish: Wish) -> Result<(), BadTarget> {
        let tunnels = wish == Wish::Websocket;
        self.out.clear();
        head.target(self.out)?;
        check_target(self.out)?;
        let authority = head.authority();
        if check_value(authority).is_err() || authority.contains(&b' ') {
            return Err(BadTarget);
        }
        let stream = self.stream;
        let method = if tunnels { b"CONNECT" } else { head.method() };
        let first = PseudoFields::Request {
            method,
            scheme: if stream.place.link().tls { b"https" } else { b"http" },
            authority,
            path: self.out,
            protocol: tunnels.then_some(b"websocket"),
        };
        self.ended = !tunnels && matches!(size, Size::None | Size::Exactly(0));
        let put = |to: &mut FieldSink<'_>| {
            let mut list = List {
                to,
                name: (Name::Other, b""),
                text: SmallVec::new(),
                kind: ContentType::of(stream),
                key: None,
            };
            if tunnels {
                list.key = Some(None);
            }
            head.fields(&mut list);
            let List { kind, key, .. } = list;
            if let Some(key) = key {
                stream.accept.set(Some(key.unwrap_or_default()));
                return;
            }
            if let Size::Exactly(length) = size {
                to.put(Name::ContentLength, b"content-length", digits(length, &mut [0; 20]));
            }
            if kind == ContentType::Missing {
                to.put(Name::ContentType, b"content-type", b"application/grpc");
            }
            to.put(Name::Te, b"te", b"trailers");
        };
        // An ended connection is reported when the body is sent.
        let _ = stream.place.stream().send_request(first, put, self.ended, method == b"HEAD");
        Ok(())
    }

    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        self.flush()?;
        // Bytes behind the head belong to the tunnel.
        if self.stream.accept.get().is_some() || self.ended {
            return Ok(());
        }
        let trailers = trailers.filter(|trailers| last && !trailers.is_empty());
        let ends = last && trailers.is_none();
        let stream = self.stream.place.stream();
        if !bytes.is_empty() || ends {
            crate::down::h2::send(self.worker, self.waiter, self.timeout, stream, bytes, ends).await?;
        }
        let Some(trailers) = trailers else { return Ok(()) };
        stream.send_trailers(trailers)
    }

    /// Checks that the head was sent, before the body follows.
    pub(crate) fn flush(&mut self) -> Result<(), Failed> {
        if self.stream.place.stream().is_unsent() { Err(Failed::Closed) } else { Ok(()) }
    }
}

/// How a stream ended before the head of its response was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The server has reset it.
    StreamReset,
    /// The server broke a rule, which ended the connection.
    RuleBroken,
    /// The server has ended the connection by GOAWAY.
    GoneAway,
}

impl Ends {
    /// For the log, with the error's name (RFC 9113 section 7).
    fn words(self, code: Code) -> &'static str {
        macro_rules! words {
            ($($name:ident)*) => {
                match (self, code) {
                    $(
                        (Ends::StreamReset, Code::$name) => {
                            concat!("the upstream reset the stream before it responded (", stringify!($name), ")")
                        }
                        (Ends::RuleBroken, Code::$name) => concat!(
                            "the upstream broke a rule of HTTP/2, which ended the connection and all requests on it (",
                            stringify!($name),
                            ")"
                        ),
                        (Ends::GoneAway, Code::$name) => {
                            concat!("the upstream ended the HTTP/2 connection before it responded (", stringify!($name), ")")
                        }
                    )*
                    (Ends::StreamReset, _) => "the upstream reset the stream before it responded",
                    (Ends::RuleBroken, _) => {
                        "the upstream broke a rule of HTTP/2, which ended the connection and all requests on it"
                    }
                    (Ends::GoneAway, _) => "the upstream ended the HTTP/2 connection before it responded",
                }
            };
        }
        words!(
            NO_ERROR PROTOCOL_ERROR INTERNAL_ERROR FLOW_CONTROL_ERROR SETTINGS_TIMEOUT STREAM_CLOSED FRAME_SIZE_ERROR
            REFUSED_STREAM CANCEL COMPRESSION_ERROR CONNECT_ERROR ENHANCE_YOUR_CALM INADEQUATE_SECURITY
            HTTP_1_1_REQUIRED
        )
    }
}

/// The content type of a gRPC call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentType {
    /// The client's.
    Any,
    /// Added unless the client's is gRPC.
    Missing,
    /// The client's, which is gRPC.
    Grpc,
}

impl ContentType {
    fn of(stream: &Stream) -> ContentType {
        if stream.grpc { ContentType::Missing } else { ContentType::Any }
    }
}

/// Adds fields to a head being sent.
struct List<'a, 'b> {
    to: &'a mut FieldSink<'b>,
    /// Name and value of a field that comes in parts.
    name: (Name, &'static [u8]),
    text: SmallVec<[u8; 128]>,
    kind: ContentType,
    /// For a tunnel: the expected `Sec-WebSocket-Accept`, once the key is known.
    key: Option<Option<[u8; 28]>>,
}

impl List<'_, '_> {
    fn put(&mut self, id: Name, name: &[u8], value: &[u8]) {
        if Mux::is_connection_field(id) {
            return;
        }
        match id {
            // `:protocol` takes the place of the handshake's fields.
            Name::SecWebsocketKey if self.key.is_some() => self.key = Some(Some(accept_of(value))),
            // As APISIX sends it, but that a codec of the client's own choice stays.
            Name::ContentType if self.kind == ContentType::Missing => {
                if value.starts_with(b"application/grpc") && !value.starts_with(b"application/grpc-web") {
                    self.kind = ContentType::Grpc;
                    self.to.put(id, name, value);
                }
            }
            _ => self.to.put(id, name, value),
        }
    }
}

impl Lines for List<'_, '_> {
    #[inline]
    fn name(&mut self, id: Name, name: &'static [u8]) {
        self.text.clear();
        self.name = (id, name);
    }

    fn value(&mut self, part: &[u8]) {
        self.text.extend_from_slice(part);
    }

    fn number(&mut self, number: u64) {
        self.text.extend_from_slice(digits(number, &mut [0; 20]));
    }

    fn end(&mut self) {
        let (id, name) = self.name;
        // Fields that `put` treats specially never come in parts.
        self.to.put(id, name, &self.text);
    }

    #[inline]
    fn field(&mut self, id: Name, name: &[u8], value: &[u8]) {
        self.put(id, name, value);
    }
}

impl Receiver<'_> {
    /// Reads the next head: an interim response or the final one. When `deadline` has passed, `late` says
    /// how much longer it may take.
    pub(crate) async fn head(
        &mut self,
        head: &mut ResponseHead,
        method: Method,
        deadline: &mut u64,
        late: impl Fn() -> Result<u64, Fault>,
    ) -> Result<(), Fault> {
        let stream = self.stream.place.stream();
        loop {
            match self.waiter.until(*deadline, |cx| stream.poll_head(cx, head)).await {
                Ok(Ok(())) => {}
                Ok(Err(gone)) => return Err(self.stream.fault(gone)),
                Err(_) => {
                    *deadline = late().inspect_err(|_| self.stream.place.link().distrust())?;
                    continue;
                }
            }
            if head.status < 200 {
                self.interim += 1;
                if head.status == 101 {
                    return Err(Fault::upstream(FaultKind::UnaskedInterim));
                }
                if self.interim > MAX_INTERIM {
                    return Err(Fault::upstream(FaultKind::TooManyInterim));
                }
                return Ok(());
            }
            if let Some(accept) = self.stream.accept.get().filter(|_| (200..300).contains(&head.status)) {
                // As a server of HTTP/1 would say it.
                head.status = 101;
                head.upgrade = true;
                head.framing = Framing::None;
                head.fields.remove_id(Name::ContentLength);
                head.fields.append_checked(Name::Upgrade, b"Upgrade", b"websocket");
                head.fields.set(b"Sec-WebSocket-Accept", &accept).map_err(|_| bad(Refusal::Control))?;
                return Ok(());
            }
            self.stream.accept.set(None);
            self.complete = stream.is_received();
            head.framing = framing(head, method, self.complete)?;
            return Ok(());
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let Stream { place, .. } = self.stream;
        match place.stream().poll_data(cx, &mut self.piece) {
            Poll::Ready(Ok(BodyPart::Data { last })) => {
                place.claim().came();
                self.complete = last;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(BodyPart::End)) => {
                place.stream().take_trailers(&mut self.trailers);
                self.complete = true;
                place.claim().waits();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(StreamError::Malformed(refusal))) => Poll::Ready(Err(bad(refusal))),
            Poll::Ready(Err(_)) => Poll::Ready(Err(Fault::upstream(FaultKind::Truncated))),
            Poll::Pending => {
                place.claim().waits();
                Poll::Pending
            }
        }
    }

    /// Takes a piece of the body that is here. False if more must be waited for.
    pub(crate) fn take(&mut self) -> Result<bool, Fault> {
        if !self.piece.is_empty() || self.complete {
            return Ok(true);
        }
        // A caller that gets `false` waits in `read`, so nothing is woken here.
        match self.poll_body(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(came) => came.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    pub(crate) fn piece(&self) -> &[u8] {
        &self.piece
    }

    /// The piece is done with: the server may send as much more.
    pub(crate) fn used(&mut self) {
        let place = &self.stream.place;
        if !self.piece.is_empty() {
            place.claim().used(self.piece.len());
            place.stream().used(self.piece.len());
            self.piece.clear();
        }
        if self.complete {
            place.claim().waits();
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn trailers(&self) -> Option<&Fields> {
        Some(&self.trailers).filter(|trailers| !trailers.is_empty())
    }

    /// Waits for more of the body.
    pub(crate) async fn read(&mut self, deadline: u64) -> Result<(), Fault> {
        if !self.piece.is_empty() {
            return Ok(());
        }
        let waiter = self.waiter;
        match waiter.until(deadline, |cx| self.poll_body(cx)).await {
            Ok(came) => came,
            Err(_) => {
                self.stream.place.link().distrust();
                Err(Fault::upstream(FaultKind::ReadTimeout))
            }
        }
    }
}

/// Returns the proof that a server has read the key of a handshake (RFC 6455 section 4.2.2).
pub(crate) fn accept_of(key: &[u8]) -> [u8; 28] {
    let digest =
        Sha1::new().chain_update(key).chain_update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").finalize();
    let mut accept = [0; 28];
    // Twenty bytes are 28 digits.
    let _ = BASE64_STANDARD.encode_slice(digest, &mut accept);
    accept
}

/// How the body ends, for an answer to `method`.
fn framing(head: &ResponseHead, method: Method, ends: bool) -> Result<Framing, Fault> {
    let length = h2::length(&head.fields).transpose().map_err(bad)?;
    Ok(match length {
        _ if method == Method::Head || matches!(head.status, 204 | 304) => Framing::None,
        _ if ends => Framing::None,
        Some(length) => Framing::Length(length),
        // The protocol marks its end.
        None => Framing::Chunked,
    })
}

fn bad(refusal: Refusal) -> Fault {
    Fault::upstream(FaultKind::BadResponse(refusal))
}

#[cfg(test)]
mod tests;
