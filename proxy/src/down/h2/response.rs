//! hot path
//!
//! The response to an HTTP/2 client.

use std::cell::RefCell;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::header::{ALT_SVC, CONTENT_LENGTH, CONTENT_TYPE, DATE, SERVER};
use http::{HeaderMap, HeaderValue, StatusCode};
use sdk::{Exchange, Reply};
use wire::{Fields, Method, Name, ResponseHead};

use crate::clock::Waiter;
use crate::down::grpc;
use crate::h2::{Line, Outlet, fields};
use crate::io::Failed;
use crate::up::Size;
use crate::worker::Worker;

/// The sending side of a stream.
pub(crate) struct Output {
    respond: SendResponse<Bytes>,
    /// A head that leaves with the first piece of the body, or by itself when that takes long.
    head: Option<http::Response<()>>,
    /// Behind the head.
    outlet: Option<Outlet>,
    /// The client waits for 100 before it sends the body.
    pub(super) continue_due: bool,
}

impl Output {
    pub(super) fn new(respond: SendResponse<Bytes>) -> Output {
        Output { respond, head: None, outlet: None, continue_due: false }
    }

    /// Sends the head if it still waits. With `ends`, nothing follows it.
    fn send_head(&mut self, ends: bool) -> Result<(), Failed> {
        if let Some(head) = self.head.take() {
            let stream = self.respond.send_response(head, ends).map_err(|_| Failed::Closed)?;
            self.outlet = Some(Outlet::new(stream));
        }
        Ok(())
    }

    fn interim(&mut self, status: u16, headers: HeaderMap) -> Result<(), Failed> {
        let Some(mut head) = empty(status) else { return Ok(()) };
        *head.headers_mut() = headers;
        self.respond.send_informational(head).map_err(|_| Failed::Closed)
    }

    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        line: &Line,
        bytes: &[u8],
        ends: bool,
    ) -> Poll<Result<usize, Failed>> {
        match &mut self.outlet {
            Some(outlet) => outlet.poll_send(cx, bytes, ends, line.backlog()),
            None => Poll::Ready(Err(Failed::Closed)),
        }
    }

    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.outlet {
            Some(outlet) => outlet.poll_reset(cx),
            None => self.respond.poll_reset(cx).map(drop),
        }
    }

    pub(crate) fn reset(&mut self, reason: Reason) {
        match &mut self.outlet {
            Some(outlet) => outlet.reset(reason),
            None => self.respond.send_reset(reason),
        }
    }
}

fn empty(status: u16) -> Option<http::Response<()>> {
    let mut head = http::Response::new(());
    *head.status_mut() = StatusCode::from_u16(status).ok()?;
    Some(head)
}

pub(crate) struct Response<'a> {
    pub(super) worker: &'a Worker,
    pub(crate) waiter: &'a Waiter,
    pub(super) output: &'a RefCell<Output>,
    pub(super) line: &'a Line,
    /// Where else the same is served.
    pub(super) alt_svc: Option<&'a [u8]>,
}

impl Response<'_> {
    /// RFC 9110 section 10.1.1.
    pub(crate) fn go_on(&mut self) -> Result<(), Failed> {
        let mut output = self.output.borrow_mut();
        if std::mem::take(&mut output.continue_due) { output.interim(100, HeaderMap::new()) } else { Ok(()) }
    }

    pub(crate) fn interim(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        let mut headers = HeaderMap::with_capacity(head.fields.len());
        for (name, value, id) in head.fields.iter() {
            if !fields::is_of_connection(id) {
                fields::add(&mut headers, id, name, value);
            }
        }
        self.output.borrow_mut().interim(head.status, headers)
    }

    /// The stream is a tunnel from here on, as was asked for, which HTTP/2 says with 200 (RFC 8441 section 5).
    pub(crate) fn switch(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        let mut output = self.output.borrow_mut();
        let mut answer = http::Response::new(());
        let headers = answer.headers_mut();
        for (name, value, id) in head.fields.iter() {
            let of_handshake = name.eq_ignore_ascii_case(b"sec-websocket-accept");
            if !fields::is_of_connection(id) && !of_handshake && id != Name::ContentLength {
                fields::add(headers, id, name, value);
            }
        }
        output.head = Some(answer);
        output.send_head(false)
    }

    pub(crate) fn start(&mut self, x: &Exchange<'_>, size: Size) -> u64 {
        let from = x.response();
        let mut head = empty(from.status).unwrap_or_default();
        let headers = head.headers_mut();
        headers.reserve(from.fields.len() + 3);
        let mut measured = false;
        for (name, value, id) in from.fields.iter() {
            match id {
                Name::Server => {}
                Name::ContentLength => measured = true,
                id if fields::is_of_connection(id) => {}
                id => fields::add(headers, id, name, value),
            }
        }
        match size {
            // The end of the stream says as much.
            Size::Exactly(0) if !measured && x.method() != Method::Head => {}
            Size::Exactly(length) => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            Size::None | Size::Open => {}
        }
        self.add_ours(headers);
        self.put(head)
    }

    /// Date, Server and Alt-Svc.
    fn add_ours(&self, headers: &mut HeaderMap) {
        if !headers.contains_key(DATE) {
            let mut date = Vec::with_capacity(29);
            self.worker.write_date(&mut date);
            if let Ok(date) = HeaderValue::from_maybe_shared(Bytes::from(date)) {
                headers.insert(DATE, date);
            }
        }
        if let Ok(server) = HeaderValue::from_str(&self.worker.settings.server) {
            headers.insert(SERVER, server);
        }
        if let Some(alt_svc) = self.alt_svc
            && !headers.contains_key(ALT_SVC)
            && let Ok(value) = HeaderValue::from_bytes(alt_svc)
        {
            headers.insert(ALT_SVC, value);
        }
    }

    /// Lets a head wait for what follows it. Gives its size.
    fn put(&mut self, head: http::Response<()>) -> u64 {
        let size = fields::size(head.headers()) + b":status200".len();
        self.output.borrow_mut().head = Some(head);
        size as u64
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.output.borrow().outlet.is_some()
    }

    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        let trailers = trailers.filter(|trailers| last && !trailers.is_empty());
        let ends = last && trailers.is_none();
        {
            let mut output = self.output.borrow_mut();
            let fresh = output.head.is_some();
            output.send_head(ends && bytes.is_empty())?;
            if bytes.is_empty() && ends && fresh {
                return Ok(());
            }
        }
        if !bytes.is_empty() || ends {
            let timeout = self.worker.settings.timeouts.send;
            send(self.worker, self.waiter, timeout, self.output, self.line, bytes, ends).await?;
        }
        match (trailers, &mut self.output.borrow_mut().outlet) {
            (Some(trailers), Some(outlet)) => outlet.end(trailers),
            _ => Ok(()),
        }
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failed> {
        self.output.borrow_mut().send_head(false)
    }

    /// Sends the head of a response that has no body.
    pub(crate) fn end(&mut self) -> Result<(), Failed> {
        self.output.borrow_mut().send_head(true)
    }

    /// Sends an answer to what is no request.
    pub(super) async fn reply(&mut self, reply: &Reply) -> Result<(), Failed> {
        let mut head = empty(reply.status).unwrap_or_default();
        for (name, value) in &reply.headers {
            fields::add(head.headers_mut(), Name::Other, name.as_bytes(), value);
        }
        self.add_ours(head.headers_mut());
        self.put(head);
        self.write(&reply.body, true, None).await
    }

    /// Tells a gRPC client of an answer that is not gRPC: its status and text as `grpc-status` and
    /// `grpc-message`, in a head that nothing follows ("Trailers-Only").
    pub(crate) fn start_grpc(&mut self, x: &Exchange<'_>, text: &[u8]) -> u64 {
        let mut head = http::Response::new(());
        let headers = head.headers_mut();
        for (name, value, id) in x.response().fields.iter() {
            if !fields::is_of_connection(id)
                && !matches!(
                    id,
                    Name::Server | Name::ContentLength | Name::ContentType | Name::ContentEncoding
                )
            {
                fields::add(headers, id, name, value);
            }
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(grpc::status(x.status())));
        fields::add(headers, Name::Other, b"grpc-message", &grpc::message(text, x.status()));
        self.add_ours(headers);
        self.put(head)
    }
}

/// Sends all of a piece, for whose next part the client may take `timeout`.
pub(crate) async fn send(
    worker: &Worker,
    waiter: &Waiter,
    timeout: Duration,
    output: &RefCell<Output>,
    line: &Line,
    mut bytes: &[u8],
    ends: bool,
) -> Result<(), Failed> {
    loop {
        let deadline = worker.clock.after(timeout);
        let sent = waiter.until(deadline, |cx| output.borrow_mut().poll_send(cx, line, bytes, ends)).await;
        let n = sent.map_err(|_| Failed::Timeout)??;
        line.sent(n);
        bytes = &bytes[n..];
        if bytes.is_empty() {
            return Ok(());
        }
    }
}
