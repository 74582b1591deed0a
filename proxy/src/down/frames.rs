//! A second kind of client's end, for tests: whole exchanges run through it as they do through
//! HTTP/1, which shows that an exchange knows nothing of either.
//!
//! A message is a row of frames: a byte that says what it is, four bytes of length, the payload.
//! `H` is a head (in a request: method, path and authority on lines of their own, then `end` if nothing
//! follows or `open`; in a response the status; then `name: value` lines), `I` an interim response, `D` a
//! piece of the body, `E` its end with trailers as lines, `R` a response that broke off.

use std::future::poll_fn;
use std::rc::Rc;

use sdk::{Client, Exchange};
use wire::h1::Refusal;
use wire::h1::decode::Limits;
use wire::parts::{self, Parts};
use wire::{Fields, RequestHead, ResponseHead, Version};

use super::{Arrival, Downstream};
use crate::clock::Waiter;
use crate::exchange::answer;
use crate::exchange::drive::{self, Outcome};
use crate::exchange::fault::{Fault, FaultKind};
use crate::io::{End, Failed};
use crate::rt::{Io, ReadHalf, WriteHalf};
use crate::worker::Worker;

pub(crate) struct Conn {
    io: Io,
    waiters: [Waiter; 2],
    input: Input,
    out: Vec<u8>,
    trusted: bool,
    pub(super) arrival: Arrival,
}

/// The request's body, as far as it has come.
#[derive(Default)]
struct Input {
    /// Bytes that are no whole frame yet.
    bytes: Vec<u8>,
    piece: Vec<u8>,
    complete: bool,
    received: u64,
    trailers: Fields,
}

pub(crate) struct RequestBody<'a> {
    from: ReadHalf<'a>,
    pub(super) waiter: &'a Waiter,
    input: &'a mut Input,
}

pub(crate) struct Response<'a> {
    to: WriteHalf<'a>,
    pub(super) waiter: &'a Waiter,
    out: &'a mut Vec<u8>,
    begun: bool,
}

/// Serves a client that speaks in frames.
pub(crate) async fn serve(worker: Rc<Worker>, io: Io, client: Client) {
    let waiters = [worker.clock.waiter(), worker.clock.waiter()];
    let mut conn = Conn {
        io,
        waiters,
        input: Input::default(),
        out: Vec::new(),
        trusted: true,
        arrival: Arrival::default(),
    };
    while conn.trusted {
        let mut scratch = worker.take_scratch();
        let Some(head) = conn.head().await else { break };
        conn.arrival.requests += 1;
        let outcome = match request(&head, &mut scratch.messages.request, &worker.settings.request) {
            Ok(ends) => {
                conn.input.complete = ends;
                drive::drive(&worker, &mut Downstream::Frames(&mut conn), &client, &mut scratch).await
            }
            Err(refusal) => {
                let reply = answer::of_fault(Fault::client(FaultKind::BadRequest(refusal)));
                conn.trusted = false;
                let (_, mut response) = conn.split();
                frame(b'H', reply.status.to_string().as_bytes(), response.out);
                match response.write(&reply.body, true, None).await {
                    Ok(()) => Outcome::Answered,
                    Err(_) => Outcome::Gone,
                }
            }
        };
        worker.give_scratch(scratch);
        match outcome {
            Outcome::Answered if conn.trusted && conn.rest().await => {}
            Outcome::Broken => {
                let (_, mut response) = conn.split();
                frame(b'R', b"", response.out);
                let _ = response.flush().await;
                break;
            }
            _ => break,
        }
    }
}

fn frame(kind: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
}

/// Makes a request's head of the lines in a frame; true if nothing follows it.
fn request(lines: &[u8], head: &mut RequestHead, limits: &Limits) -> Result<bool, Refusal> {
    let mut lines = lines.split(|&byte| byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (method, path, authority, ends) = (line(), line(), line(), line() == b"end");
    let parts = Parts { method, scheme: Some(b"http"), authority: Some(authority), path, ends };
    parts::request(&parts, lines.filter_map(field), Version::Http2, head, &mut Vec::new(), limits)?;
    Ok(ends)
}

fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.windows(2).position(|two| two == b": ")?;
    Some((&line[..colon], &line[colon + 2..]))
}

impl Conn {
    pub(super) fn split(&mut self) -> (RequestBody<'_>, Response<'_>) {
        let (from, to) = self.io.split();
        let [reading, writing] = &self.waiters;
        let body = RequestBody { from, waiter: reading, input: &mut self.input };
        (body, Response { to, waiter: writing, out: &mut self.out, begun: false })
    }

    pub(super) fn body_received(&self) -> u64 {
        self.input.received
    }

    pub(super) fn distrust(&mut self) {
        self.trusted = false;
    }

    /// The next request's head.
    async fn head(&mut self) -> Option<Vec<u8>> {
        self.input = Input { bytes: std::mem::take(&mut self.input.bytes), ..Input::default() };
        loop {
            if let Some((kind, payload)) = self.input.next() {
                return (kind == b'H').then_some(payload);
            }
            self.split().0.read().await.ok()?;
        }
    }

    /// Reads what is left of the request; false if the client has gone.
    async fn rest(&mut self) -> bool {
        let (mut body, _) = self.split();
        loop {
            body.take();
            body.used();
            if body.is_complete() {
                return true;
            }
            if body.read().await.is_err() {
                return false;
            }
        }
    }
}

impl Input {
    /// Takes a frame, if there is a whole one.
    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let (&[kind, a, b, c, d], _) = self.bytes.split_first_chunk::<5>()?;
        let end = 5 + u32::from_be_bytes([a, b, c, d]) as usize;
        let payload = self.bytes.get(5..end)?.to_vec();
        self.bytes.drain(..end);
        Some((kind, payload))
    }
}

impl RequestBody<'_> {
    pub(super) fn take(&mut self) -> bool {
        while self.input.piece.is_empty() && !self.input.complete {
            match self.input.next() {
                Some((b'D', payload)) => {
                    self.input.received += payload.len() as u64;
                    self.input.piece = payload;
                }
                Some((_, lines)) => {
                    self.input.complete = true;
                    for (name, value) in lines.split(|&byte| byte == b'\n').filter_map(field) {
                        let _ = self.input.trailers.append(name, value);
                    }
                }
                None => return false,
            }
        }
        true
    }

    pub(super) fn piece(&self) -> &[u8] {
        &self.input.piece
    }

    pub(super) fn used(&mut self) {
        self.input.piece.clear();
    }

    pub(super) fn is_complete(&self) -> bool {
        self.input.complete
    }

    pub(super) fn trailers(&self) -> Option<&Fields> {
        Some(&self.input.trailers).filter(|trailers| !trailers.is_empty())
    }

    pub(super) async fn read(&mut self) -> Result<(), Fault> {
        let mut part = [0; 1024];
        match poll_fn(|cx| self.from.poll_read(cx, &mut part)).await {
            Ok(0) | Err(_) => Err(Fault::client(FaultKind::ClientGone)),
            Ok(n) => {
                self.input.bytes.extend_from_slice(&part[..n]);
                Ok(())
            }
        }
    }

    pub(super) async fn end(&mut self) -> End {
        loop {
            match poll_fn(|cx| self.from.poll_ahead(cx)).await {
                Ok(0) => return End::HalfClosed,
                Ok(_) if self.read().await.is_ok() => {}
                _ => return End::Gone,
            }
        }
    }
}

impl Response<'_> {
    pub(super) async fn go_on(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    pub(super) async fn interim(&mut self, head: &ResponseHead) -> Result<(), Failed> {
        self.head(b'I', head);
        self.send().await
    }

    pub(super) fn start(&mut self, x: &Exchange<'_>) -> u64 {
        self.out.clear();
        self.head(b'H', x.response());
        self.out.len() as u64
    }

    fn head(&mut self, kind: u8, head: &ResponseHead) {
        let mut lines = head.status.to_string().into_bytes();
        for (name, value, _) in head.fields.iter() {
            lines.push(b'\n');
            lines.extend_from_slice(name);
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(value);
        }
        frame(kind, &lines, self.out);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(super) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        if !bytes.is_empty() {
            frame(b'D', bytes, self.out);
        }
        if last {
            let mut lines = Vec::new();
            for (name, value, _) in trailers.into_iter().flat_map(Fields::iter) {
                lines.extend_from_slice(name);
                lines.extend_from_slice(b": ");
                lines.extend_from_slice(value);
                lines.push(b'\n');
            }
            frame(b'E', &lines, self.out);
        }
        self.flush().await
    }

    pub(super) async fn flush(&mut self) -> Result<(), Failed> {
        self.begun |= !self.out.is_empty();
        self.send().await
    }

    async fn send(&mut self) -> Result<(), Failed> {
        let mut sent = 0;
        while sent < self.out.len() {
            match poll_fn(|cx| self.to.poll_write(cx, &self.out[sent..])).await {
                Ok(n) => sent += n,
                Err(_) => return Err(Failed::Closed),
            }
        }
        self.out.clear();
        Ok(())
    }
}
