//! Connections that are driven by bytes and by their streams, without a socket.

mod broken;
mod random;
mod turns;

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

use sdk::budget::Budget;
use wire::h2::frame::{self, Code, HEAD, flag, kind, setting};
use wire::h2::hpack::Encoder;
use wire::{Fields, Name};

use super::*;
use crate::clock::Clock;

const END: u8 = flag::END_STREAM;

const GET: &str = ":method: GET\n:scheme: http\n:path: /\n:authority: a";
const POST: &str = ":method: POST\n:scheme: http\n:path: /\n:authority: a";

/// A frame that was sent: its type, flags, stream and payload.
type Frame = (u8, u8, u32, Vec<u8>);

/// One end of a connection, and the streams on it.
struct Conn {
    mux: SharedMux,
    /// Bytes of an incomplete frame.
    rest: Vec<u8>,
    streams: Vec<Stream>,
    received: Budget,
}

fn limits() -> Limits {
    Limits {
        streams: 8,
        stream_window: 64 << 10,
        list: 4 << 10,
        head: 2 << 10,
        fields: 20,
        unsent: 32 << 10,
        trailers: 4 << 10,
        control_frames: 1000,
        stream_errors: 20,
    }
}

impl Conn {
    /// A connection whose peer has sent its settings, and has acknowledged ours.
    fn new(role: Role, limits: Limits) -> Conn {
        let mut conn = Conn::fresh(role, limits);
        conn.feed(&[frame(kind::SETTINGS, 0, 0, &[]), frame(kind::SETTINGS, flag::ACK, 0, &[])].concat());
        conn.sent();
        conn
    }

    fn fresh(role: Role, limits: Limits) -> Conn {
        let received = Budget::new(1 << 20);
        let budgets = Budgets { received: received.clone(), unsent: Budget::new(1 << 20) };
        let mux = Mux::new(role, limits, budgets, Clock::new());
        let mut conn =
            Conn { mux: SharedMux::new(RefCell::new(mux)), rest: Vec::new(), streams: Vec::new(), received };
        let preface = if role == Role::Client { wire::h2::PREFACE.len() } else { 0 };
        conn.mux.borrow_mut().wrote(preface);
        conn.sent();
        conn
    }

    /// Receives bytes; requests become streams.
    fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let (taken, event) = self.mux.borrow_mut().receive(&self.rest[at..]);
            at += taken;
            match event {
                Some(Event::Request { index, .. }) => self.streams.push(Stream::accept(&self.mux, index)),
                None => break,
            }
        }
        self.rest.drain(..at);
    }

    /// Takes the frames that are to be written.
    fn sent(&mut self) -> Vec<Frame> {
        let mut mux = self.mux.borrow_mut();
        let mut frames = Vec::new();
        let mut rest = mux.unsent();
        while let Some(head) = frame::head(rest) {
            let payload = rest[HEAD..][..head.length].to_vec();
            rest = &rest[HEAD + head.length..];
            frames.push((head.kind, head.flags, head.stream, payload));
        }
        assert!(rest.is_empty());
        let all = mux.unsent().len();
        if all > 0 {
            mux.wrote(all);
        }
        frames
    }

    /// Begins a request of ours.
    fn ask(&mut self, ends: bool) {
        let stream = Stream::begin(&self.mux);
        stream.send_request(GET_PARTS, |_| (), ends, false).unwrap();
        self.streams.push(stream);
    }

    fn over(&self) -> Option<EndReason> {
        self.mux.borrow().over()
    }
}

const GET_PARTS: PseudoFields<'_> =
    PseudoFields::Request { method: b"GET", scheme: b"http", authority: b"a", path: b"/", protocol: None };

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_head(payload.len(), kind, flags, stream, &mut out);
    out.extend_from_slice(payload);
    out
}

fn number(kind: u8, stream: u32, number: u32) -> Vec<u8> {
    frame(kind, 0, stream, &number.to_be_bytes())
}

fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flags, stream, bytes)
}

fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_settings(settings, &mut out);
    out
}

fn ping() -> Vec<u8> {
    frame(kind::PING, 0, 0, b"12345678")
}

/// A block of `name: value` lines.
fn block(lines: &str) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    encoder.begin(&mut out);
    for line in lines.lines() {
        let (name, value) = line.rsplit_once(": ").unwrap();
        encoder.put(Name::from_bytes(name.as_bytes()), name.as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

fn head(stream: u32, flags: u8, lines: &str) -> Vec<u8> {
    frame(kind::HEADERS, flags | flag::END_HEADERS, stream, &block(lines))
}

/// Reads a body as far as it came, and how it ended. Its bytes are given back to the window.
fn read(stream: &Stream) -> (Vec<u8>, Option<Result<BodyPart, StreamError>>) {
    let (mut all, mut piece) = (Vec::new(), Vec::new());
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        match stream.poll_data(&mut cx, &mut piece) {
            Poll::Ready(Ok(BodyPart::Data { .. })) => {
                all.extend_from_slice(&piece);
                stream.used(piece.len());
                piece.clear();
            }
            Poll::Ready(end) => return (all, Some(end)),
            Poll::Pending => return (all, None),
        }
    }
}

/// Sends a piece of a body; how much of it went.
fn send(stream: &Stream, bytes: &[u8], ends: bool) -> Option<Result<usize, crate::failed::Failed>> {
    match stream.poll_send(&mut Context::from_waker(Waker::noop()), bytes, ends) {
        Poll::Ready(sent) => Some(sent),
        Poll::Pending => None,
    }
}

fn kinds(frames: &[Frame]) -> Vec<(u8, u32)> {
    frames.iter().map(|(kind, _, stream, _)| (*kind, *stream)).collect()
}
