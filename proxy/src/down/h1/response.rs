//! hot path
//!
//! The response to an HTTP/1 client (RFC 9112).

use std::cell::Cell;

use sdk::{Exchange, Reply};
use wire::h1::encode;
use wire::{Field, Fields, Name, ResponseHead, Version};

use crate::clock::Waiter;
use crate::h1::Writer;
use crate::io::{self, Failed};
use crate::up::Size;
use crate::worker::Worker;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How the client learns where the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// There is no body and no field about it (1xx, 204, 304, or as HEAD's answer came).
    Nothing,
    Length(u64),
    Chunked,
    /// The connection is closed behind it.
    Close,
}

pub(crate) struct Response<'a> {
    pub(super) writer: Writer<'a>,
    /// The connection may serve another request after this one.
    pub(super) keep: &'a mut bool,
    /// All of the request's body was taken, or is at hand.
    pub(super) taken: &'a Cell<bool>,
    /// The client waits for 100 before it sends the body.
    pub(super) continue_due: &'a mut bool,
    pub(super) version: Version,
    pub(super) begun: bool,
    /// Where else the same is served.
    pub(super) alt_svc: Option<&'a [u8]>,
}

impl<'a> Response<'a> {
    #[inline]
    pub(crate) fn waiter(&self) -> &'a Waiter {
        self.writer.waiter
    }

    /// RFC 9110 section 10.1.1.
    #[inline]
    pub(crate) async fn go_on(&mut self) -> Result<(), Failed> {
        if !std::mem::take(self.continue_due) {
            return Ok(());
        }
        let Writer { worker, waiter, to, timeout, .. } = &mut self.writer;
        io::write_all(worker, waiter, to, CONTINUE, *timeout).await
    }

    /// 102, 103 and the like, to clients that know of them.
    pub(crate) async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        if self.version == Version::Http10 {
            return Ok(());
        }
        let out = &mut *self.writer.out;
        out.clear();
        encode::status_line(head.status, out);
        head.fields.write_to(out);
        out.extend_from_slice(b"\r\n");
        self.begun = true;
        self.writer.flush().await?;
        // Of the final response, nothing is out yet.
        self.begun = false;
        Ok(())
    }

    /// 101 (RFC 9110 section 15.2.2).
    pub(crate) async fn switch(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        let out = &mut *self.writer.out;
        out.clear();
        encode::status_line(101, out);
        out.extend_from_slice(b"Connection: Upgrade\r\n");
        head.fields.write_to(out);
        out.extend_from_slice(b"\r\n");
        self.begun = true;
        self.writer.flush().await
    }

    #[inline]
    pub(crate) fn start(&mut self, x: &Exchange<'_>, size: Size) -> u64 {
        let worker = self.writer.worker;
        let ending = match size {
            Size::None => Ending::Nothing,
            Size::Exactly(length) => Ending::Length(length),
            Size::Open if self.version == Version::Http10 => Ending::Close,
            Size::Open => Ending::Chunked,
        };
        // After an early response, what is left of the request's body would be taken for a request.
        if ending == Ending::Close || !self.taken.get() || worker.is_draining() {
            *self.keep = false;
        }
        self.writer.chunked = ending == Ending::Chunked;
        self.writer.out.clear();
        let message = x.response();
        let alt_svc = self.alt_svc.filter(|_| !message.fields.contains(Name::AltSvc));
        write_head(worker, message, ending, *self.keep, self.version, alt_svc, self.writer.out);
        self.writer.out.len() as u64
    }

    #[inline]
    pub(crate) fn is_chunked(&self) -> bool {
        self.writer.chunked
    }

    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    #[inline]
    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        self.begun = true;
        self.writer.write(bytes, last, trailers).await
    }

    #[inline]
    pub(crate) async fn relay(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        self.begun = true;
        self.writer.relay(bytes).await
    }

    #[inline]
    pub(crate) async fn flush(&mut self) -> Result<(), Failed> {
        self.begun |= !self.writer.out.is_empty();
        self.writer.flush().await
    }
}

/// Writes a head (RFC 9112 section 4).
#[inline]
fn write_head(
    worker: &Worker,
    head: &ResponseHead,
    ending: Ending,
    keep_alive: bool,
    version: Version,
    alt_svc: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    encode::status_line(head.status, out);
    let mut dated = false;
    let stays = |field: &&Field| match field.id {
        Name::Connection
        | Name::KeepAlive
        | Name::ProxyConnection
        | Name::TransferEncoding
        | Name::ContentLength
        | Name::Server
        | Name::Upgrade => false,
        // Only a chunked body has trailers to announce.
        Name::Trailer => ending == Ending::Chunked,
        Name::Date => {
            dated = true;
            true
        }
        _ => true,
    };
    head.fields.write_lines(head.fields.list().iter().filter(stays), out);
    if !dated {
        out.extend_from_slice(b"Date: ");
        worker.write_date(out);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"Server: ");
    out.extend_from_slice(worker.settings.server.as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(alt_svc) = alt_svc {
        out.extend_from_slice(b"Alt-Svc: ");
        out.extend_from_slice(alt_svc);
        out.extend_from_slice(b"\r\n");
    }
    match ending {
        Ending::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            encode::decimal(length, out);
            out.extend_from_slice(b"\r\n");
        }
        Ending::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Ending::Nothing | Ending::Close => {}
    }
    if !keep_alive {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if version == Version::Http10 {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes an answer to bytes that are not a request, after which the connection is closed.
pub(super) fn write_refusal(worker: &Worker, reply: &Reply, out: &mut Vec<u8>) {
    encode::status_line(reply.status, out);
    out.extend_from_slice(b"Date: ");
    worker.write_date(out);
    out.extend_from_slice(b"\r\nServer: ");
    out.extend_from_slice(worker.settings.server.as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in &reply.headers {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"Content-Length: ");
    encode::decimal(reply.body.len() as u64, out);
    out.extend_from_slice(b"\r\nConnection: close\r\n\r\n");
    out.extend_from_slice(&reply.body);
}
