//! hot path
//!
//! The HTTP/2 client: one request and its response on a stream of a connection that others share. The stream
//! carries gRPC, as far as the request's head is concerned, or WebSocket (RFC 8441).

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Request, Uri};
use sha1::{Digest, Sha1};
use wire::h1::Refusal;
use wire::h1::encode::{BadTarget, check_target, decimal};
use wire::{Fields, Framing, Method, Name, ResponseHead, Version};

use super::h1::Wish;
use super::links::{Claim, Place};
use super::{Head, Lines, Size};
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::h2::{Outlet, fields};
use crate::io::Failed;
use crate::worker::Worker;

/// Interim responses a server may send before its final one.
const MAX_INTERIM: usize = 16;

/// A stream to an upstream server.
pub(crate) struct Stream(RefCell<State>);

/// State that both halves share.
struct State {
    place: Place,
    /// Whether it is a call of gRPC.
    grpc: bool,
    /// A head that leaves with the first piece of the body, or by itself when that takes long.
    request: Option<Request<()>>,
    outlet: Option<Outlet>,
    response: Option<ResponseFuture>,
    /// The stream's number.
    number: u32,
    /// The receiving half, where it waits for the request to go out.
    waiting: Option<Waker>,
    /// The `Sec-WebSocket-Accept` that an HTTP/1 client expects of a server that takes a tunnel
    /// (RFC 6455 section 4.2.2), if it asks for a tunnel.
    accept: Option<[u8; 28]>,
    /// The receiving side of the tunnel.
    inlet: Option<Inlet>,
}

/// A stream that has become a tunnel.
pub(crate) struct Switched {
    inlet: Inlet,
    outlet: Outlet,
    _place: Place,
}

/// The receiving side of a tunnel.
pub(crate) struct Inlet {
    stream: RecvStream,
    claim: Claim,
    /// Bytes that the server may send again, once what was taken is used.
    taken: usize,
}

impl Switched {
    pub(crate) fn claim(&self) -> Claim {
        self.inlet.claim.clone()
    }

    pub(crate) fn split(&mut self) -> (&mut Inlet, &mut Outlet) {
        (&mut self.inlet, &mut self.outlet)
    }
}

impl Inlet {
    /// The next bytes; none at the end.
    pub(crate) fn poll_tunnel(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failed>> {
        let taken = std::mem::take(&mut self.taken);
        self.claim.used(taken);
        // Fails only where more is given back than came.
        let _ = self.stream.flow_control().release_capacity(taken);
        loop {
            return match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(piece))) if piece.is_empty() => continue,
                Poll::Ready(Some(Ok(piece))) => {
                    self.claim.came();
                    self.taken = piece.len();
                    Poll::Ready(Ok(Some(piece)))
                }
                Poll::Ready(Some(Err(_))) => Poll::Ready(Err(Failed::Closed)),
                Poll::Ready(None) => {
                    self.claim.waits();
                    Poll::Ready(Ok(None))
                }
                Poll::Pending => {
                    self.claim.waits();
                    Poll::Pending
                }
            };
        }
    }
}

/// Sends one request.
pub(crate) struct Sender<'a> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    state: &'a RefCell<State>,
    out: &'a mut Vec<u8>,
    timeout: Duration,
}

/// Reads the response to it.
pub(crate) struct Receiver<'a> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    state: &'a RefCell<State>,
    body: Option<RecvStream>,
    piece: Bytes,
    /// All of the body came; trailers may follow.
    over: bool,
    complete: bool,
    trailers: Fields,
    interim: usize,
}

impl Stream {
    /// With `grpc`, the request is a gRPC call, regardless of the client's content type.
    pub(crate) fn new(place: Place, grpc: bool) -> Stream {
        Stream(RefCell::new(State {
            place,
            grpc,
            request: None,
            outlet: None,
            response: None,
            number: 0,
            waiting: None,
            accept: None,
            inlet: None,
        }))
    }

    /// Whether the server takes tunnels (RFC 8441). One whose settings do not come takes none.
    pub(crate) async fn takes_tunnels(&self, waiter: &Waiter, deadline: u64) -> bool {
        let link = self.0.borrow().place.share();
        waiter.until(deadline, |cx| link.poll_tunnels(cx)).await.unwrap_or(false)
    }

    /// Returns the tunnel, if the stream became one.
    pub(crate) fn into_switched(self) -> Option<Switched> {
        let State { place, outlet, inlet, .. } = self.0.into_inner();
        Some(Switched { inlet: inlet?, outlet: outlet?, _place: place })
    }

    /// As [`super::Upstream::claim`].
    pub(crate) fn claim(&self) -> Claim {
        self.0.borrow().place.claim().clone()
    }

    /// As [`super::Upstream::refusal`].
    #[cold]
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.0.borrow().place.link().refusal()
    }

    /// The connection has carried a request before this one.
    pub(crate) fn is_reused(&self) -> bool {
        self.0.borrow().place.reused
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
        let state = &self.0;
        let sender = Sender { worker, waiter: sending, state, out, timeout: send_timeout };
        let receiver = Receiver {
            worker,
            waiter: receiving,
            state,
            body: None,
            piece: Bytes::new(),
            over: false,
            complete: false,
            trailers: Fields::new(),
            interim: 0,
        };
        (sender, receiver)
    }
}

impl State {
    /// Sends the head if it still waits. With `ends`, nothing follows it.
    fn send_head(&mut self, ends: bool) -> Result<(), Failed> {
        let Some(request) = self.request.take() else { return Ok(()) };
        let (response, stream) = self.place.send().send_request(request, ends).map_err(|_| Failed::Closed)?;
        self.number = response.stream_id().as_u32();
        self.response = Some(response);
        self.outlet = Some(Outlet::new(stream));
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
        Ok(())
    }

    /// Why there is no response. The connection may have ended because of another stream: the library ends it for
    /// most broken rules, whichever stream they were broken on.
    #[cold]
    fn fault(&self, error: &h2::Error) -> Fault {
        let (link, reason) = (self.place.link(), error.reason());
        let refused = error.is_remote() && error.is_reset() && reason == Some(Reason::REFUSED_STREAM);
        Fault::upstream(if refused || link.left_out(self.number) {
            FaultKind::Unprocessed
        } else if error.is_reset() && error.is_library() {
            FaultKind::BrokenStream
        } else if let Some(reason) = reason {
            let ends = if error.is_reset() {
                Ends::StreamReset
            } else if error.is_library() {
                Ends::RuleBroken
            } else {
                Ends::GoneAway
            };
            FaultKind::Ended(ends.words(reason))
        } else if self.place.reused && !self.place.may_have_been_gone() {
            FaultKind::Ended("the upstream closed the HTTP/2 connection before it responded")
        } else {
            FaultKind::ClosedEarly
        })
    }
}

impl Sender<'_> {
    /// Makes the head (RFC 9113 section 8.3.1). It goes out with the first piece of the body.
    pub(crate) fn head(&mut self, head: &impl Head, size: Size, wish: Wish) -> Result<(), BadTarget> {
        let tunnels = wish == Wish::Websocket;
        self.out.clear();
        head.target(self.out)?;
        check_target(self.out)?;
        let path =
            PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(self.out)).map_err(|_| BadTarget)?;
        let authority = Bytes::copy_from_slice(head.authority());
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.state.borrow().place.link().tls { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(Authority::from_maybe_shared(authority).map_err(|_| BadTarget)?);
        parts.path_and_query = Some(path);
        let mut request = Request::new(());
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| BadTarget)?;
        *request.method_mut() = match tunnels {
            true => http::Method::CONNECT,
            false => http::Method::from_bytes(head.method()).map_err(|_| BadTarget)?,
        };
        *request.version_mut() = http::Version::HTTP_2;
        let mut list = List { map: HeaderMap::with_capacity(24), name: Vec::new(), value: Vec::new() };
        head.fields(&mut list);
        let mut fields = list.map;
        if tunnels {
            // `:protocol` takes the place of the handshake's fields.
            let key = fields.remove("sec-websocket-key");
            let accept = key.as_ref().map(|key| accept_of(key.as_bytes()));
            *request.headers_mut() = fields;
            request.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
            let mut state = self.state.borrow_mut();
            state.accept = Some(accept.unwrap_or_default());
            state.request = Some(request);
            return Ok(());
        }
        if let Size::Exactly(length) = size {
            fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let mut state = self.state.borrow_mut();
        // As APISIX sends it, but that a codec of the client's own choice stays.
        let says_grpc = |value: &HeaderValue| {
            let value = value.as_bytes();
            value.starts_with(b"application/grpc") && !value.starts_with(b"application/grpc-web")
        };
        if state.grpc && !fields.get(CONTENT_TYPE).is_some_and(says_grpc) {
            fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        }
        fields.insert(TE, HeaderValue::from_static("trailers"));
        *request.headers_mut() = fields;
        state.request = Some(request);
        Ok(())
    }

    pub(crate) async fn write(
        &mut self,
        mut bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        let trailers = trailers.filter(|trailers| last && !trailers.is_empty());
        let ends = last && trailers.is_none();
        {
            let mut state = self.state.borrow_mut();
            if state.accept.is_some() {
                // Bytes behind the head belong to the tunnel.
                return state.send_head(false);
            }
            let fresh = state.request.is_some();
            state.send_head(ends && bytes.is_empty())?;
            if bytes.is_empty() && ends && fresh {
                return Ok(());
            }
        }
        let mut more = !bytes.is_empty() || ends;
        while more {
            let deadline = self.worker.clock.after(self.timeout);
            let sent = self.waiter.until(deadline, |cx| match &mut self.state.borrow_mut().outlet {
                Some(outlet) => outlet.poll_send(cx, bytes, ends, None),
                None => Poll::Ready(Err(Failed::Closed)),
            });
            let n = sent.await.map_err(|_| Failed::Timeout)??;
            bytes = &bytes[n..];
            more = !bytes.is_empty();
        }
        match (trailers, &mut self.state.borrow_mut().outlet) {
            (Some(trailers), Some(outlet)) => outlet.end(trailers),
            _ => Ok(()),
        }
    }

    /// Sends a head that a body follows, but not yet.
    pub(crate) fn flush(&mut self) -> Result<(), Failed> {
        self.state.borrow_mut().send_head(false)
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
    fn words(self, reason: Reason) -> &'static str {
        macro_rules! words {
            ($($name:ident)*) => {
                match (self, reason) {
                    $(
                        (Ends::StreamReset, Reason::$name) => {
                            concat!("the upstream reset the stream before it responded (", stringify!($name), ")")
                        }
                        (Ends::RuleBroken, Reason::$name) => concat!(
                            "the upstream broke a rule of HTTP/2, which ended the connection and all requests on it (",
                            stringify!($name),
                            ")"
                        ),
                        (Ends::GoneAway, Reason::$name) => {
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

/// Fields for the `h2` crate.
struct List {
    map: HeaderMap,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Lines for List {
    fn name(&mut self, name: &[u8]) {
        self.name.clear();
        self.name.extend_from_slice(name);
        self.value.clear();
    }

    fn value(&mut self, part: &[u8]) {
        self.value.extend_from_slice(part);
    }

    fn number(&mut self, number: u64) {
        decimal(number, &mut self.value);
    }

    fn end(&mut self) {
        let id = Name::from_bytes(&self.name);
        if !fields::is_of_connection(id) {
            fields::add(&mut self.map, id, &self.name, &self.value);
        }
    }
}

/// A response's head.
enum Came {
    Interim(http::Response<()>),
    Final(http::Response<RecvStream>),
}

impl Receiver<'_> {
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Came, Fault>> {
        let mut state = self.state.borrow_mut();
        let Some(response) = &mut state.response else {
            state.waiting = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
            return Poll::Ready(Ok(Came::Interim(interim)));
        }
        match Pin::new(response).poll(cx) {
            Poll::Ready(Ok(response)) => Poll::Ready(Ok(Came::Final(response))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(state.fault(&error))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Reads the next head: an interim response or the final one. When `deadline` has passed, `late` says
    /// how much longer it may take.
    pub(crate) async fn head(
        &mut self,
        head: &mut ResponseHead,
        method: Method,
        deadline: &mut u64,
        late: impl Fn() -> Result<u64, Fault>,
    ) -> Result<(), Fault> {
        loop {
            let waiter = self.waiter;
            match waiter.until(*deadline, |cx| self.poll_head(cx)).await {
                Ok(Ok(Came::Interim(interim))) => {
                    self.interim += 1;
                    if interim.status() == http::StatusCode::SWITCHING_PROTOCOLS {
                        return Err(Fault::upstream(FaultKind::UnaskedInterim));
                    }
                    if self.interim > MAX_INTERIM {
                        return Err(Fault::upstream(FaultKind::TooManyInterim));
                    }
                    return self.put(head, interim.status(), interim.headers());
                }
                Ok(Ok(Came::Final(response))) => {
                    let (parts, body) = response.into_parts();
                    let accept = self.state.borrow().accept;
                    self.put(head, parts.status, &parts.headers)?;
                    if let Some(accept) = accept.filter(|_| parts.status.is_success()) {
                        // As a server of HTTP/1 would say it.
                        head.status = 101;
                        head.upgrade = true;
                        head.framing = Framing::None;
                        head.fields.remove_id(Name::ContentLength);
                        head.fields.append_checked(Name::Upgrade, b"Upgrade", b"websocket");
                        head.fields
                            .set(b"Sec-WebSocket-Accept", &accept)
                            .map_err(|_| bad(Refusal::Control))?;
                        self.body = Some(body);
                        return Ok(());
                    }
                    let ends = body.is_end_stream();
                    (self.over, self.complete) = (ends, ends);
                    head.framing = framing(head, method, ends)?;
                    self.body = Some(body);
                    return Ok(());
                }
                Ok(Err(fault)) => return Err(fault),
                Err(_) => {
                    *deadline = late().inspect_err(|_| self.state.borrow().place.link().distrust())?;
                }
            }
        }
    }

    /// Makes a head of what came.
    fn put(
        &self,
        head: &mut ResponseHead,
        status: http::StatusCode,
        fields: &HeaderMap,
    ) -> Result<(), Fault> {
        head.clear();
        head.status = status.as_u16();
        head.version = Version::Http2;
        if fields.len() > self.worker.settings.response.fields {
            return Err(bad(Refusal::TooManyFields));
        }
        for (name, value) in fields {
            let name = name.as_str().as_bytes();
            head.fields.append(name, value.as_bytes()).map_err(|_| bad(Refusal::Control))?;
        }
        Ok(())
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let truncated = || Poll::Ready(Err(Fault::upstream(FaultKind::Truncated)));
        let Some(body) = &mut self.body else { return truncated() };
        while !self.over {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(piece))) if piece.is_empty() => {}
                Poll::Ready(Some(Ok(piece))) => {
                    self.state.borrow().place.claim().came();
                    self.piece = piece;
                    if body.is_end_stream() {
                        (self.over, self.complete) = (true, true);
                    }
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Some(Err(_))) => return truncated(),
                Poll::Ready(None) => self.over = true,
                Poll::Pending => {
                    self.state.borrow().place.claim().waits();
                    return Poll::Pending;
                }
            }
        }
        if !self.complete {
            match body.poll_trailers(cx) {
                Poll::Ready(Ok(trailers)) => {
                    if let Some(trailers) = trailers {
                        if trailers.len() > self.worker.settings.response.fields {
                            return Poll::Ready(Err(bad(Refusal::TooManyFields)));
                        }
                        if fields::from_trailers(&trailers, &mut self.trailers).is_err() {
                            return Poll::Ready(Err(bad(Refusal::Control)));
                        }
                    }
                    self.complete = true;
                    self.state.borrow().place.claim().waits();
                }
                Poll::Ready(Err(_)) => return truncated(),
                Poll::Pending => {
                    self.state.borrow().place.claim().waits();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
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
        let piece = std::mem::take(&mut self.piece);
        if let Some(body) = self.body.as_mut().filter(|_| !piece.is_empty()) {
            self.state.borrow().place.claim().used(piece.len());
            // Fails only where more is given back than came.
            let _ = body.flow_control().release_capacity(piece.len());
        }
        if self.complete {
            self.state.borrow().place.claim().waits();
        }
    }

    /// Keeps the stream for a tunnel, to which all further bytes belong.
    pub(crate) fn keep_rest(&mut self) {
        let taken = self.piece.len();
        let mut state = self.state.borrow_mut();
        let claim = state.place.claim().clone();
        state.inlet = self.body.take().map(|stream| Inlet { stream, claim, taken });
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
                self.state.borrow().place.link().distrust();
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
    let mut lengths = head.fields.all(b"content-length");
    let length = match (lengths.next(), lengths.next()) {
        (None, _) => None,
        (Some(length), None) => {
            let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(length).ok().filter(|_| digits);
            Some(length.and_then(|length| length.parse().ok()).ok_or(bad(Refusal::ContentLength))?)
        }
        (Some(_), Some(_)) => return Err(bad(Refusal::RepeatedContentLength)),
    };
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
