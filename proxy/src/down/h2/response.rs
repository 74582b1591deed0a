//! hot path
//!
//! The response to an HTTP/2 client.

use std::cell::RefCell;
use std::time::Duration;

use sdk::grpc::status_of_http;
use sdk::{Exchange, Reply};
use wire::h1::encode::decimal;
use wire::{Fields, Method, Name, ResponseHead};

use crate::clock::Waiter;
use crate::down::grpc;
use crate::h2::{self, Mux};
use crate::io::Failed;
use crate::up::Size;
use crate::worker::Worker;

/// The sending side of a stream.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// A head that leaves with the first piece of the body, or by itself when that takes long.
    status: u16,
    head: Fields,
    waits: bool,
    /// The head was sent.
    begun: bool,
    /// The client waits for 100 before it sends the body.
    pub(super) continue_due: bool,
}

impl Output {
    /// With memory for a head, which [`Output::into_head`] gives back.
    pub(super) fn new(head: Fields) -> Output {
        Output { head, ..Output::default() }
    }

    pub(super) fn into_head(self) -> Fields {
        self.head
    }

    /// Sends the head if it still waits. With `ends`, nothing follows it.
    fn send_head(&mut self, stream: &h2::Stream, ends: bool) -> Result<(), Failed> {
        if std::mem::take(&mut self.waits) {
            stream.send_response(self.status, &self.head, ends)?;
            self.begun = true;
        }
        Ok(())
    }

    /// An empty head in which fields are gathered.
    fn begin(&mut self, status: u16) -> &mut Fields {
        self.status = status;
        self.waits = true;
        self.head.clear(4 << 10);
        &mut self.head
    }
}

pub(crate) struct Response<'a> {
    pub(super) worker: &'a Worker,
    pub(crate) waiter: &'a Waiter,
    pub(crate) stream: &'a h2::Stream,
    pub(super) output: &'a RefCell<Output>,
    /// Where else the same is served.
    pub(super) alt_svc: Option<&'a [u8]>,
}

impl Response<'_> {
    /// RFC 9110 section 10.1.1.
    pub(crate) async fn go_on(&mut self) -> Result<(), Failed> {
        if !std::mem::take(&mut self.output.borrow_mut().continue_due) {
            return Ok(());
        }
        self.room().await?;
        self.stream.send_response(100, &Fields::new(), false)
    }

    pub(crate) async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        self.room().await?;
        let mut fields = Fields::new();
        for (name, value, id) in head.fields.iter().filter(|(.., id)| !Mux::is_connection_field(*id)) {
            fields.append_checked(id, name, value);
        }
        self.stream.send_response(head.status, &fields, false)
    }

    /// Waits until there is room for a head.
    #[inline]
    async fn room(&self) -> Result<(), Failed> {
        let deadline = self.worker.clock.after(self.worker.settings.timeouts.send);
        self.waiter.until(deadline, |cx| self.stream.poll_room(cx)).await.map_err(|_| Failed::Timeout)?
    }

    /// The stream is a tunnel from here on, as was asked for, which HTTP/2 says with 200 (RFC 8441 section 5).
    pub(crate) async fn switch(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        {
            let mut output = self.output.borrow_mut();
            let fields = output.begin(200);
            for (name, value, id) in head.fields.iter() {
                let of_handshake = name.eq_ignore_ascii_case(b"sec-websocket-accept");
                if !Mux::is_connection_field(id) && !of_handshake && id != Name::ContentLength {
                    fields.append_checked(id, name, value);
                }
            }
        }
        self.flush().await
    }

    pub(crate) fn start(&mut self, x: &Exchange<'_>, size: Size) -> u64 {
        let from = x.response();
        let mut output = self.output.borrow_mut();
        let fields = output.begin(from.status);
        let mut measured = false;
        for (name, value, id) in from.fields.iter() {
            match id {
                Name::Server => {}
                Name::ContentLength => measured = true,
                id if Mux::is_connection_field(id) => {}
                id => fields.append_checked(id, name, value),
            }
        }
        match size {
            // The end of the stream says as much.
            Size::Exactly(0) if !measured && x.method() != Method::Head => {}
            Size::Exactly(length) => {
                fields.append_written(Name::ContentLength, b"content-length", |out| decimal(length, out));
            }
            Size::None | Size::Open => {}
        }
        self.add_ours(fields);
        size_of(fields)
    }

    /// Date, Server and Alt-Svc.
    fn add_ours(&self, fields: &mut Fields) {
        if !fields.contains(Name::Date) {
            fields.append_written(Name::Date, b"date", |out| self.worker.write_date(out));
        }
        fields.append_checked(Name::Server, b"server", self.worker.settings.server.as_bytes());
        if let Some(alt_svc) = self.alt_svc
            && !fields.contains(Name::AltSvc)
        {
            fields.append_checked(Name::AltSvc, b"alt-svc", alt_svc);
        }
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
        let ends = last && trailers.is_none();
        if self.output.borrow().waits {
            self.room().await?;
            self.output.borrow_mut().send_head(self.stream, ends && bytes.is_empty())?;
            if bytes.is_empty() && ends {
                return Ok(());
            }
        }
        if !bytes.is_empty() || ends {
            let timeout = self.worker.settings.timeouts.send;
            send(self.worker, self.waiter, timeout, self.stream, bytes, ends).await?;
        }
        let Some(trailers) = trailers else { return Ok(()) };
        self.stream.send_trailers(trailers)
    }

    pub(crate) async fn flush(&mut self) -> Result<(), Failed> {
        if !self.output.borrow().waits {
            return Ok(());
        }
        self.room().await?;
        self.output.borrow_mut().send_head(self.stream, false)
    }

    /// Sends the head of a response that has no body.
    pub(crate) async fn end(&mut self) -> Result<(), Failed> {
        self.room().await?;
        self.output.borrow_mut().send_head(self.stream, true)
    }

    /// Sends an answer to what is no request.
    pub(super) async fn reply(&mut self, reply: &Reply) -> Result<(), Failed> {
        {
            let mut output = self.output.borrow_mut();
            let fields = output.begin(reply.status);
            for (name, value) in &reply.headers {
                // Invalid fields are left out.
                let _ = fields.append(name.as_bytes(), value);
            }
            self.add_ours(fields);
        }
        self.write(&reply.body, true, None).await
    }

    /// Tells a gRPC client of an answer that is not gRPC: its status and text as `grpc-status` and
    /// `grpc-message`, in a head that nothing follows ("Trailers-Only").
    pub(crate) fn start_grpc(&mut self, x: &Exchange<'_>, text: &[u8]) -> u64 {
        let mut output = self.output.borrow_mut();
        let fields = output.begin(200);
        for (name, value, id) in x.response().fields.iter() {
            let ours =
                matches!(id, Name::Server | Name::ContentLength | Name::ContentType | Name::ContentEncoding);
            if !ours && !Mux::is_connection_field(id) {
                fields.append_checked(id, name, value);
            }
        }
        fields.append_checked(Name::ContentType, b"content-type", b"application/grpc");
        let status = status_of_http(x.status()).into();
        fields.append_written(Name::Other, b"grpc-status", |out| decimal(status, out));
        fields.append_checked(Name::Other, b"grpc-message", &grpc::message(text, x.status()));
        self.add_ours(fields);
        size_of(fields)
    }
}

/// Size of a response's head, as it would be in HTTP/1 without its first line.
fn size_of(fields: &Fields) -> u64 {
    let fields: usize =
        fields.list().iter().map(|field| (field.name.len + field.value.len) as usize + 4).sum();
    (fields + b":status200".len()) as u64
}

/// A stream's wait for its turn, which ends with the write that waits.
struct Turn<'a>(&'a h2::Stream);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.give_up_turn();
    }
}

/// Sends all of a piece, for whose next part the client may take `timeout`.
pub(crate) async fn send(
    worker: &Worker,
    waiter: &Waiter,
    timeout: Duration,
    stream: &h2::Stream,
    mut bytes: &[u8],
    ends: bool,
) -> Result<(), Failed> {
    let _turn = Turn(stream);
    loop {
        let deadline = worker.clock.after(timeout);
        let sent = waiter.until(deadline, |cx| stream.poll_send(cx, bytes, ends)).await;
        let n = sent.map_err(|_| Failed::Timeout)??;
        bytes = &bytes[n..];
        if bytes.is_empty() {
            return Ok(());
        }
    }
}
