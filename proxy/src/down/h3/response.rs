//! hot path
//!
//! The response to an HTTP/3 client.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quinn::{SendStream, VarInt};
use sdk::grpc::status_of_http;
use sdk::{Exchange, Reply};
use wire::h1::chunked::may_be_trailer;
use wire::h1::encode;
use wire::h3::{self, code, frame, qpack};
use wire::{Fields, Method, Name, ResponseHead};

use super::Shared;
use crate::clock::Waiter;
use crate::down::grpc;
use crate::h2::Mux;
use crate::io::Failed;
use crate::up::Size;
use crate::worker::Worker;

/// Ready when the client wants no more.
type Stopped = Pin<Box<dyn Future<Output = ()>>>;

/// The sending side of a stream.
pub(crate) struct Output {
    stream: SendStream,
    /// The list of fields of a head that leaves with the first piece of the body, or by itself when that
    /// takes long.
    head: Option<Vec<u8>>,
    /// Frames and heads of frames that go before everything else.
    unsent: Vec<u8>,
    /// Bytes that the frame whose head was written last still wants.
    owed: usize,
    /// Something of the final response may have gone out.
    begun: bool,
    /// Nothing more is written: all was, or it was broken off.
    over: bool,
    /// All was.
    whole: bool,
    stopped: Option<Stopped>,
    /// The client waits for 100 before it sends the body.
    pub(super) continue_due: bool,
}

impl Output {
    pub(super) fn new(stream: SendStream) -> Output {
        Output {
            stream,
            head: None,
            unsent: Vec::new(),
            owed: 0,
            begun: false,
            over: false,
            whole: false,
            stopped: None,
            continue_due: false,
        }
    }

    /// Lets the head go first if it still waits.
    fn begin(&mut self) {
        if let Some(fields) = self.head.take() {
            self.begun = true;
            self.put_fields(&fields);
        }
    }

    fn put_fields(&mut self, fields: &[u8]) {
        h3::put_frame(frame::HEADERS, fields.len(), &mut self.unsent);
        self.unsent.extend_from_slice(fields);
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Failed>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(written.map_err(|_| if self.begun { Failed::Broken } else { Failed::Closed }))
    }

    /// Sends as much of a piece as there is room for, and returns how much. `ends` is for when the message ends
    /// with this piece. A caller must send all of a piece that it has begun: the frame's length is out.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        ends: bool,
    ) -> Poll<Result<usize, Failed>> {
        if self.over {
            return Poll::Ready(Err(Failed::Closed));
        }
        if self.owed == 0 && !bytes.is_empty() {
            h3::put_frame(frame::DATA, bytes.len(), &mut self.unsent);
            self.owed = bytes.len();
        }
        while !self.unsent.is_empty() {
            let mut unsent = std::mem::take(&mut self.unsent);
            let written = self.poll_write(cx, &unsent);
            if let Poll::Ready(Ok(n)) = written {
                unsent.drain(..n);
            }
            self.unsent = unsent;
            ready!(written)?;
        }
        let mut n = 0;
        if !bytes.is_empty() {
            n = ready!(self.poll_write(cx, &bytes[..self.owed.min(bytes.len())]))?;
            self.owed -= n;
        }
        if ends && n == bytes.len() {
            self.over = true;
            self.stream.finish().map_err(|_| Failed::Broken)?;
            self.whole = true;
        }
        Poll::Ready(Ok(n))
    }

    /// Ready when the client has all of it, has said that it wants no more of it, or is gone.
    pub(super) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stream = &self.stream;
        let stopped = self.stopped.get_or_insert_with(|| {
            let stopped = stream.stopped();
            Box::pin(async move { drop(stopped.await) })
        });
        stopped.as_mut().poll(cx)
    }

    /// Breaks it off, unless all went out.
    pub(crate) fn reset(&mut self, code: u32) {
        if !self.over {
            self.over = true;
            let _ = self.stream.reset(VarInt::from_u32(code));
        }
    }
}

/// Waits until the client has acknowledged a response that is whole. One that acknowledges nothing of its connection for
/// `send_timeout`, or for as long as a connection without requests is kept, loses it.
pub(super) async fn deliver(mut output: Output, shared: &Shared, waiter: &Waiter) {
    if !output.whole {
        return;
    }
    let (clock, settings) = (&shared.worker.clock, &shared.worker.settings);
    let patience = match settings.timeouts.keepalive {
        kept if kept.is_zero() => settings.timeouts.send,
        kept => kept.min(settings.timeouts.send),
    };
    let mut before = shared.acknowledgements();
    while waiter.until(clock.after(patience), |cx| output.poll_stopped(cx)).await.is_err() {
        let now = shared.acknowledgements();
        if now == before {
            let _ = output.stream.reset(VarInt::from_u32(code::INTERNAL_ERROR));
            return shared.streams.end_if_last();
        }
        before = now;
    }
}

impl Drop for Output {
    /// A response that was not ended is incomplete, and must not look complete.
    fn drop(&mut self) {
        self.reset(code::INTERNAL_ERROR);
    }
}

pub(crate) struct Response<'a> {
    pub(super) worker: &'a Worker,
    pub(crate) waiter: &'a Waiter,
    pub(super) output: &'a RefCell<Output>,
    pub(super) shared: &'a Shared,
    /// Where else the same is served.
    pub(super) alt_svc: Option<&'a [u8]>,
}

impl Response<'_> {
    /// RFC 9110 section 10.1.1.
    pub(crate) async fn go_on(&mut self) -> Result<(), Failed> {
        if !std::mem::take(&mut self.output.borrow_mut().continue_due) {
            return Ok(());
        }
        self.send_interim(&begin(100)).await
    }

    pub(crate) async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        let mut list = begin(head.status);
        for (name, value, id) in head.fields.iter() {
            if !Mux::is_connection_field(id) {
                qpack::put(id, name, value, &mut list);
            }
        }
        self.send_interim(&list).await
    }

    async fn send_interim(&mut self, list: &[u8]) -> Result<(), Failed> {
        self.output.borrow_mut().put_fields(list);
        self.send(b"", false).await
    }

    /// The stream is a tunnel from here on, as was asked for, which HTTP/3 says with 200 (RFC 9220).
    pub(crate) async fn switch(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        let mut list = begin(200);
        for (name, value, id) in head.fields.iter() {
            let of_handshake = name.eq_ignore_ascii_case(b"sec-websocket-accept");
            if !Mux::is_connection_field(id) && !of_handshake && id != Name::ContentLength {
                qpack::put(id, name, value, &mut list);
            }
        }
        self.output.borrow_mut().head = Some(list);
        self.flush().await
    }

    pub(crate) fn start(&mut self, x: &Exchange<'_>, size: Size) -> u64 {
        let from = x.response();
        let mut list = begin(from.status);
        let mut measured = false;
        for (name, value, id) in from.fields.iter() {
            match id {
                Name::Server => {}
                Name::ContentLength => measured = true,
                id if Mux::is_connection_field(id) => {}
                _ => qpack::put(id, name, value, &mut list),
            }
        }
        match size {
            // The end of the stream says as much.
            Size::Exactly(0) if !measured && x.method() != Method::Head => {}
            Size::Exactly(length) => {
                let mut digits = Vec::with_capacity(20);
                encode::decimal(length, &mut digits);
                qpack::put(Name::ContentLength, b"content-length", &digits, &mut list);
            }
            Size::None | Size::Open => {}
        }
        let has = |name: Name| from.fields.contains(name);
        self.add_ours(has(Name::Date), has(Name::AltSvc), &mut list);
        self.put(list)
    }

    /// Date, Server and Alt-Svc.
    fn add_ours(&self, dated: bool, alternative: bool, list: &mut Vec<u8>) {
        if !dated {
            let mut date = Vec::with_capacity(29);
            self.worker.write_date(&mut date);
            qpack::put(Name::Date, b"date", &date, list);
        }
        qpack::put(Name::Server, b"server", self.worker.settings.server.as_bytes(), list);
        if let Some(alt_svc) = self.alt_svc.filter(|_| !alternative) {
            qpack::put(Name::AltSvc, b"alt-svc", alt_svc, list);
        }
    }

    /// Lets a head wait for what follows it. Gives its size.
    fn put(&mut self, list: Vec<u8>) -> u64 {
        let size = list.len() as u64;
        self.output.borrow_mut().head = Some(list);
        size
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.output.borrow().begun
    }

    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        let trailers = trailers.filter(|trailers| last && !trailers.is_empty());
        self.output.borrow_mut().begin();
        if !bytes.is_empty() || trailers.is_none() {
            self.send(bytes, last && trailers.is_none()).await?;
        }
        let Some(trailers) = trailers else { return Ok(()) };
        let mut list = Vec::new();
        qpack::begin(&mut list);
        for (name, value, id) in trailers.iter() {
            if may_be_trailer(name) {
                qpack::put(id, name, value, &mut list);
            }
        }
        self.output.borrow_mut().put_fields(&list);
        self.send(b"", true).await
    }

    pub(crate) async fn flush(&mut self) -> Result<(), Failed> {
        self.output.borrow_mut().begin();
        self.send(b"", false).await
    }

    /// Sends the head of a response that has no body.
    pub(crate) async fn end(&mut self) -> Result<(), Failed> {
        self.output.borrow_mut().begin();
        self.send(b"", true).await
    }

    async fn send(&mut self, bytes: &[u8], ends: bool) -> Result<(), Failed> {
        let timeout = self.worker.settings.timeouts.send;
        send(self.worker, self.waiter, timeout, self.output, self.shared, bytes, ends).await
    }

    /// Sends an answer to what is no request.
    pub(super) async fn reply(&mut self, reply: &Reply) -> Result<(), Failed> {
        let mut list = begin(reply.status);
        for (name, value) in &reply.headers {
            qpack::put(Name::from_bytes(name.as_bytes()), name.as_bytes(), value, &mut list);
        }
        self.add_ours(false, false, &mut list);
        self.put(list);
        self.write(&reply.body, true, None).await
    }

    /// Tells a gRPC client of an answer that is not gRPC: its status and text as `grpc-status` and
    /// `grpc-message`, in a head that nothing follows ("Trailers-Only").
    pub(crate) fn start_grpc(&mut self, x: &Exchange<'_>, text: &[u8]) -> u64 {
        let from = &x.response().fields;
        let mut list = begin(200);
        for (name, value, id) in from.iter() {
            let ours =
                matches!(id, Name::Server | Name::ContentLength | Name::ContentType | Name::ContentEncoding);
            if !ours && !Mux::is_connection_field(id) {
                qpack::put(id, name, value, &mut list);
            }
        }
        qpack::put(Name::ContentType, b"content-type", b"application/grpc", &mut list);
        let mut digits = Vec::with_capacity(2);
        encode::decimal(status_of_http(x.status()).into(), &mut digits);
        qpack::put(Name::Other, b"grpc-status", &digits, &mut list);
        qpack::put(Name::Other, b"grpc-message", &grpc::message(text, x.status()), &mut list);
        let has = |name: Name| from.contains(name);
        self.add_ours(has(Name::Date), has(Name::AltSvc), &mut list);
        self.put(list)
    }
}

/// The list of fields of a response.
fn begin(status: u16) -> Vec<u8> {
    let mut list = Vec::with_capacity(256);
    qpack::begin(&mut list);
    qpack::put_status(status, &mut list);
    list
}

/// Sends all of a piece, for whose next part the client may take `timeout`.
pub(crate) async fn send(
    worker: &Worker,
    waiter: &Waiter,
    timeout: Duration,
    output: &RefCell<Output>,
    shared: &Shared,
    mut bytes: &[u8],
    ends: bool,
) -> Result<(), Failed> {
    loop {
        let deadline = worker.clock.after(timeout);
        let sent = waiter.until(deadline, |cx| {
            let mut output = output.borrow_mut();
            loop {
                match output.poll_send(cx, bytes, ends) {
                    Poll::Pending if shared.widen() => {}
                    sent => return sent,
                }
            }
        });
        let n = sent.await.map_err(|_| Failed::Timeout)??;
        shared.credit.sent(n);
        shared.sending.wrote(n);
        bytes = &bytes[n..];
        if bytes.is_empty() {
            return Ok(());
        }
    }
}
