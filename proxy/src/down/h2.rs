//! A client's HTTP/2 connection (RFC 9113): one task for it and one for each of its streams, all on one
//! worker. A stream is one exchange.

mod head;
mod request;
mod response;
mod stream;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::{Builder, Connection, Handshake};
use sdk::Client;

use crate::access_log::Refused;
use crate::buffers::Buffer;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind, FaultRecord};
use crate::h2::Line;
use crate::rt::{self, Duplex, Io};
use crate::settings::Settings;
use crate::worker::Worker;

pub(crate) use request::{Input, RequestBody};
pub(crate) use response::{Output, Response, send};
pub(crate) use stream::Stream;

/// How a client says that it speaks HTTP/2 and nothing else (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Streams that are begun before everything else that is ready gets its turn.
const TURN: u32 = 32;

/// A keep-alive time is shortened by up to one part in so many, so that connections that came together do
/// not go together.
const JITTER: u64 = 10;

/// What the tasks of one connection share.
pub(super) struct Shared {
    pub(super) worker: Rc<Worker>,
    pub(super) client: Client,
    pub(super) line: Rc<Line>,
    /// Streams that are being served.
    open: Cell<usize>,
    /// Streams there have been.
    begun: Cell<u64>,
    /// Of the connection's own task.
    waker: RefCell<Option<Waker>>,
    /// Heads are put together here.
    text: RefCell<Vec<u8>>,
}

/// Why the connection takes no more streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// It is told so, and what has begun is served.
    Gently,
    /// It is told why, and that is all.
    AtOnce,
}

/// Serves a connection until it ends. `early` was read from it before, the preface at its front.
pub(crate) async fn serve(worker: Rc<Worker>, io: Io, client: Client, early: Option<Buffer>) {
    let line = Line::from_client(&worker, io, early);
    let waiter = worker.clock.waiter();
    let shared = Rc::new(Shared {
        worker: worker.clone(),
        client,
        line: line.clone(),
        open: Cell::new(0),
        begun: Cell::new(0),
        waker: RefCell::default(),
        text: RefCell::default(),
    });
    let deadline = worker.clock.after(worker.settings.header_timeout);
    let mut beginning = pin!(handshake(&worker.settings, line.clone()));
    let begun = waiter.until(deadline, |cx| beginning.as_mut().poll(cx)).await;
    if let Ok(Ok(mut connection)) = begun {
        let mut life = Life::new(&shared, &waiter);
        let linger = poll_fn(|cx| life.poll(&mut connection, cx)).await;
        life.end_rest();
        drop(connection);
        if linger {
            rest(&worker, &line, &waiter).await;
        }
    }
}

fn handshake(settings: &Settings, line: Rc<Line>) -> Handshake<Duplex<Line>, Bytes> {
    let bounds = &settings.http2;
    let streams = bounds.max_streams;
    let windows = u64::from(bounds.stream_window) * u64::from(streams);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams)
        .initial_window_size(bounds.stream_window)
        // A stream that nobody reads from must not keep the others from sending.
        .initial_connection_window_size(u32::try_from(windows.clamp(65_535, (1 << 31) - 1)).unwrap_or(65_535))
        .max_header_list_size(
            u32::try_from(settings.request.head + 32 * settings.request.fields).unwrap_or(u32::MAX),
        )
        .max_send_buffer_size(bounds.send_buffer as usize)
        .max_pending_accept_reset_streams(streams as usize)
        .max_local_error_reset_streams(Some(bounds.max_stream_errors as usize))
        .max_concurrent_reset_streams(streams as usize)
        .enable_connect_protocol();
    builder.handshake(Duplex(line))
}

/// The connection's own task.
struct Life<'a> {
    shared: &'a Rc<Shared>,
    waiter: &'a Waiter,
    closing: Option<Closing>,
    /// When it is closed for its age.
    until: u64,
    /// Since when nothing is on it, and until when that may be so.
    idle: Option<u64>,
    /// Until when a connection that is told to end may take to do so.
    patience: Option<u64>,
}

impl<'a> Life<'a> {
    fn new(shared: &'a Rc<Shared>, waiter: &'a Waiter) -> Life<'a> {
        let worker = &shared.worker;
        let age = worker.settings.http2.max_age;
        let until = match age.as_millis() as u64 {
            0 => u64::MAX,
            most => worker.clock.after(Duration::from_millis(most - fastrand::u64(0..=most / JITTER))),
        };
        Life { shared, waiter, closing: None, until, idle: None, patience: None }
    }

    /// Ready when the connection is over; true if it may be that the client is still sending.
    fn poll(&mut self, connection: &mut Connection<Duplex<Line>, Bytes>, cx: &mut Context<'_>) -> Poll<bool> {
        let (shared, worker) = (self.shared, &self.shared.worker);
        self.shared.note_waker(cx);
        let mut turn = 0;
        loop {
            if self.closing != Some(Closing::AtOnce) && shared.line.is_flooded() {
                self.flood(connection);
            }
            let room = shared.open.get() < worker.settings.http2.max_streams as usize;
            let polled = if room && self.closing != Some(Closing::AtOnce) {
                connection.poll_accept(cx)
            } else {
                connection.poll_closed(cx).map(|ended| ended.err().map(Err))
            };
            match polled {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.end_rest();
                    Stream::begin(shared, request, respond);
                    if shared.begun.get() >= worker.settings.keepalive_requests {
                        self.close_gently(connection);
                    }
                    turn += 1;
                    if turn == TURN {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) && error.is_library() {
                        shared.tell(FaultKind::Flood);
                    }
                    return Poll::Ready(error.is_library());
                }
                Poll::Ready(None) => return Poll::Ready(self.closing.is_some()),
                // The library had its turn: it may have been what showed the flood.
                Poll::Pending if self.closing != Some(Closing::AtOnce) && shared.line.is_flooded() => {}
                Poll::Pending => break,
            }
        }
        self.poll_time(connection, cx)
    }

    /// Whether the connection's time is over, in one way or another.
    fn poll_time(
        &mut self,
        connection: &mut Connection<Duplex<Line>, Bytes>,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        let (worker, settings) = (&self.shared.worker, &self.shared.worker.settings);
        let clock = &worker.clock;
        if self.shared.open.get() > 0 {
            self.end_rest();
        } else if self.idle.is_none() {
            let time = match self.shared.begun.get() {
                0 => settings.header_timeout,
                _ => settings.keepalive_timeout,
            };
            self.idle = Some(clock.after(time));
            worker.shard.waiting(1);
            self.waiter.rest();
        }
        let blocked = self.shared.line.blocked_until(settings.send_timeout);
        if blocked.is_some_and(|until| clock.is_over(until)) {
            return Poll::Ready(false);
        }
        let unwanted = self.idle.is_some() && self.waiter.is_unwanted();
        let idle_over = self.idle.is_some_and(|until| clock.is_over(until));
        if self.closing.is_none()
            && (worker.is_draining() || idle_over || unwanted || clock.is_over(self.until))
        {
            self.close_gently(connection);
            // What it has to say about that is still to go out.
            cx.waker().wake_by_ref();
        }
        if self.closing.is_some() && (self.shared.open.get() == 0 || self.closing == Some(Closing::AtOnce)) {
            // The client need not answer.
            let until = *self.patience.get_or_insert_with(|| clock.after(settings.linger_timeout));
            if clock.is_over(until) {
                return Poll::Ready(false);
            }
        } else {
            self.patience = None;
        }
        let next = [Some(self.until).filter(|_| self.closing.is_none()), self.idle, blocked, self.patience];
        let next =
            next.into_iter().flatten().filter(|until| !clock.is_over(*until)).min().unwrap_or(u64::MAX);
        // It is not over, as what is was taken out.
        let _ = self.waiter.poll_elapsed::<()>(next, cx);
        Poll::Pending
    }

    /// No stream begins that the client does not know of as begun.
    fn close_gently(&mut self, connection: &mut Connection<Duplex<Line>, Bytes>) {
        if self.closing.is_none() {
            self.closing = Some(Closing::Gently);
            connection.graceful_shutdown();
        }
    }

    #[cold]
    fn flood(&mut self, connection: &mut Connection<Duplex<Line>, Bytes>) {
        self.closing = Some(Closing::AtOnce);
        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        self.shared.tell(FaultKind::Flood);
    }

    /// Something is on it, or it is over.
    fn end_rest(&mut self) {
        if self.idle.take().is_some() {
            self.shared.worker.shard.waiting(-1);
            self.waiter.end_rest();
        }
    }
}

impl Drop for Life<'_> {
    fn drop(&mut self) {
        self.end_rest();
    }
}

impl Shared {
    fn note_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Tells both logs of what was no request.
    #[cold]
    fn tell(&self, kind: FaultKind) {
        let worker = &self.worker;
        worker.shard.request_refused();
        let fault = Fault::client(kind);
        (worker.settings.on_fault)(FaultRecord {
            fault,
            status: kind.status(),
            limit: kind.limit(&worker.settings),
            client: self.client.ip(),
            upstream: None,
            route: String::new(),
            request: String::new(),
        });
        if let Some(log) = &worker.access_log {
            let mut scratch = worker.take_scratch();
            let refused =
                Refused { line: b"", status: kind.status(), received: 0, sent: 0, body_sent: 0, took_ms: 0 };
            log.add_refused(worker, &self.client, &mut scratch.messages, &refused);
            worker.give_scratch(scratch);
        }
    }
}

/// Reads and drops what the client still sends, so that the close does not become a reset that takes the
/// last frames with it.
async fn rest(worker: &Worker, line: &Line, waiter: &Waiter) {
    let deadline = worker.clock.after(worker.settings.linger_timeout);
    let mut part = [0; 1024];
    let mut dropped = 0;
    let _ = waiter.until(deadline, |cx| line.io().borrow_mut().split().1.poll_shutdown(cx)).await;
    while dropped < worker.settings.linger_bytes {
        match waiter.until(deadline, |cx| line.io().borrow_mut().split().0.poll_read(cx, &mut part)).await {
            Ok(Ok(n)) if n > 0 => dropped += n,
            _ => break,
        }
    }
}

/// Whether bytes may be the beginning of HTTP/2.
#[cold]
pub(super) fn may_begin(bytes: &[u8]) -> bool {
    let n = bytes.len().min(PREFACE.len());
    bytes[..n] == PREFACE[..n]
}

/// Starts a stream's task.
fn spawn(future: impl Future<Output = ()> + 'static) {
    rt::spawn(future);
}
