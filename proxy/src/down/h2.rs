//! A client's HTTP/2 connection (RFC 9113): one task for it and one for each of its streams, all on one
//! worker. A stream is one exchange.

mod head;
mod request;
mod response;
mod stream;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::{Builder, Connection, Handshake};
use sdk::Client;

use super::life::{Life, State, Turn};
use super::refusal;
use super::streams::Streams;
use crate::buffers::Buffer;
use crate::clock::Waiter;
use crate::exchange::fault::{FaultKind, Flood};
use crate::h2::Line;
use crate::rt::{Duplex, Io};
use crate::settings::Settings;
use crate::windows::{Enlarging, Windows};
use crate::worker::Worker;

pub(crate) use request::{Input, RequestBody};
pub(crate) use response::{Output, Response, send};
pub(crate) use stream::Stream;

/// How a client says that it speaks HTTP/2 and nothing else (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const BAD_PREFACE: &str = "the connection does not begin with the preface of HTTP/2 (PROTOCOL_ERROR)";

/// Streams that are begun before everything else that is ready gets its turn.
const TURN: u32 = 32;

/// How often, at most, it is looked how much of its last answers a client has taken.
const LOOK: Duration = Duration::from_millis(100);

/// The window that every connection has (RFC 9113 section 6.9.2), but for a byte.
const FIRST_WINDOW: u32 = 64 << 10;

/// State that the tasks of one connection share.
pub(super) struct Shared {
    pub(super) worker: Rc<Worker>,
    pub(super) client: Client,
    pub(super) line: Rc<Line>,
    streams: Streams,
    windows: Windows,
    /// Heads are put together here.
    text: RefCell<Vec<u8>>,
}

/// How a connection ends that takes no more streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// GOAWAY is sent, and streams that have begun are served.
    Gently,
    /// GOAWAY is sent with the reason, and all streams end.
    AtOnce,
}

/// The work left for a connection that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Nothing,
    /// The client may still be sending: its bytes are read, so that no reset loses the last frames to it.
    Linger,
    /// The same, and answers that the client takes slowly are waited for.
    Deliver,
}

/// Serves a connection until it ends. `early` was read from it before, the preface at its front.
pub(crate) async fn serve(worker: Rc<Worker>, io: Io, client: Client, early: Option<Buffer>) {
    let line = Line::from_client(&worker, io, early);
    let waiter = worker.clock.waiter();
    let shared = Rc::new(Shared {
        worker: worker.clone(),
        client,
        line: line.clone(),
        streams: Streams::new(&worker),
        windows: Windows::new(
            &worker.windows,
            FIRST_WINDOW,
            worker.settings.http2.stream_window,
            Enlarging::Counts,
        ),
        text: RefCell::default(),
    });
    let Some(mut connection) = begin(&shared, &waiter).await else { return };
    let mut task = Task { shared: &shared, life: Life::new(&worker, &waiter), closing: None };
    let ending = poll_fn(|cx| task.poll(&mut connection, cx)).await;
    drop(task);
    drop(connection);
    if let Some(backlog) = line.backlog() {
        backlog.wake();
    }
    if ending != Ending::Nothing {
        rest(&worker, &line, &waiter, ending).await;
    }
}

/// Does the handshake, in a future of its own, so that a connection does not carry its state for life.
async fn begin(shared: &Shared, waiter: &Waiter) -> Option<Connection<Duplex<Line>, Bytes>> {
    let Shared { worker, client, line, .. } = shared;
    let deadline = worker.clock.after(worker.settings.timeouts.header);
    let mut beginning = pin!(handshake(&worker.settings, line.clone()));
    let begun = waiter.until(deadline, |cx| beginning.as_mut().poll(cx)).await.ok()?;
    // One that is gone by then has asked for nothing.
    if begun.as_ref().is_err_and(h2::Error::is_library) {
        // The preface stands where a request line would, so both logs get an entry, as in HTTP/1.
        refusal::report_connection(worker, client, FaultKind::BrokenRule(BAD_PREFACE));
    }
    begun.ok()
}

fn handshake(settings: &Settings, line: Rc<Line>) -> Handshake<Duplex<Line>, Bytes> {
    let bounds = &settings.http2;
    let streams = bounds.max_streams;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams)
        .initial_window_size(bounds.stream_window)
        .max_header_list_size(u32::try_from(settings.header_list()).unwrap_or(u32::MAX))
        .max_send_buffer_size(bounds.send_buffer as usize)
        .max_pending_accept_reset_streams(streams as usize)
        .max_local_error_reset_streams(Some(bounds.max_stream_errors as usize))
        .max_concurrent_reset_streams(streams as usize)
        // Small frames count with what else is unread.
        .data_frame_budget(usize::MAX)
        .enable_connect_protocol();
    builder.handshake(Duplex(line))
}

/// The connection's own task.
struct Task<'a> {
    shared: &'a Rc<Shared>,
    life: Life<'a>,
    closing: Option<Closing>,
}

impl Task<'_> {
    /// Ready when the connection is over.
    fn poll(
        &mut self,
        connection: &mut Connection<Duplex<Line>, Bytes>,
        cx: &mut Context<'_>,
    ) -> Poll<Ending> {
        let (shared, worker) = (self.shared, &self.shared.worker);
        shared.streams.note_waker(cx);
        let mut turn = 0;
        loop {
            if self.closing != Some(Closing::AtOnce)
                && let Some(flood) = shared.line.flood()
            {
                self.flood(connection, flood);
            }
            if shared.streams.are_ending() {
                self.close_gently(connection);
            }
            if let Some(window) = shared.windows.shrink() {
                connection.set_target_window_size(window);
            }
            let room = shared.streams.open() < worker.settings.http2.max_streams as usize;
            let polled = if room && self.closing != Some(Closing::AtOnce) {
                connection.poll_accept(cx)
            } else {
                connection.poll_closed(cx).map(|ended| ended.err().map(Err))
            };
            match polled {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.life.end_rest();
                    if !request.body().is_end_stream()
                        && let Some(window) = shared.windows.begin()
                    {
                        connection.set_target_window_size(window);
                    }
                    Stream::begin(shared, request, respond);
                    if shared.streams.begun() >= worker.settings.limits.keepalive_requests {
                        self.close_gently(connection);
                    }
                    turn += 1;
                    if turn == TURN {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    // A client that is gone by then is another error, later.
                    let calm = error.reason() == Some(Reason::ENHANCE_YOUR_CALM) && error.is_library();
                    match (shared.line.ended_for(), error.reason()) {
                        (Flood::Other, Some(reason)) if error.is_library() && !calm => {
                            refusal::report_end(worker, &shared.client, broken_rule(reason));
                        }
                        (Flood::Other, _) if !calm => {}
                        (flood, _) => shared.report_flood(flood),
                    }
                    return Poll::Ready(if error.is_library() { Ending::Linger } else { Ending::Nothing });
                }
                Poll::Ready(None) => {
                    return Poll::Ready(match self.closing {
                        Some(Closing::Gently) => Ending::Deliver,
                        Some(Closing::AtOnce) => Ending::Linger,
                        None => Ending::Nothing,
                    });
                }
                // The library had its turn: it may have been what showed the flood.
                Poll::Pending if self.closing != Some(Closing::AtOnce) && shared.line.flood().is_some() => {}
                Poll::Pending => break,
            }
        }
        if let Some(backlog) = shared.line.backlog() {
            backlog.settle();
        }
        self.poll_time(connection, cx)
    }

    /// Whether the connection's time is over, in one way or another.
    fn poll_time(
        &mut self,
        connection: &mut Connection<Duplex<Line>, Bytes>,
        cx: &mut Context<'_>,
    ) -> Poll<Ending> {
        let worker = &self.shared.worker;
        let blocked = self.shared.line.blocked_until(worker.settings.timeouts.send);
        if blocked.is_some_and(|until| worker.clock.is_over(until)) {
            return Poll::Ready(Ending::Nothing);
        }
        let state = State {
            // The library has what the last stream's task left to it.
            busy: self.shared.streams.open() > 0 || blocked.is_some(),
            begun: self.shared.streams.begun(),
            closing: self.closing.is_some(),
            at_once: self.closing == Some(Closing::AtOnce),
            wake: blocked,
        };
        match self.life.poll(&state, cx) {
            Turn::Wait => Poll::Pending,
            Turn::CloseGently => {
                self.close_gently(connection);
                Poll::Pending
            }
            // The client need not have said that it has everything. Its kernel has.
            Turn::Over if state.at_once || self.shared.line.io().borrow().acknowledged().is_none() => {
                Poll::Ready(Ending::Nothing)
            }
            Turn::Over => Poll::Ready(Ending::Deliver),
        }
    }

    /// No stream begins that the client does not know of as begun.
    fn close_gently(&mut self, connection: &mut Connection<Duplex<Line>, Bytes>) {
        if self.closing.is_none() {
            self.closing = Some(Closing::Gently);
            connection.graceful_shutdown();
        }
    }

    #[cold]
    fn flood(&mut self, connection: &mut Connection<Duplex<Line>, Bytes>, flood: Flood) {
        self.closing = Some(Closing::AtOnce);
        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        self.shared.report_flood(flood);
    }
}

impl Shared {
    #[cold]
    fn report_flood(&self, flood: Flood) {
        refusal::report_connection(&self.worker, &self.client, FaultKind::Flood(flood));
    }
}

/// Returns why the library has ended a connection, by the error code in GOAWAY (RFC 9113 section 7).
#[cold]
fn broken_rule(reason: Reason) -> FaultKind {
    FaultKind::BrokenRule(match reason {
        Reason::PROTOCOL_ERROR => "the client broke a rule of HTTP/2 (PROTOCOL_ERROR)",
        Reason::FLOW_CONTROL_ERROR => "the client broke a rule of HTTP/2 (FLOW_CONTROL_ERROR)",
        Reason::STREAM_CLOSED => "the client broke a rule of HTTP/2 (STREAM_CLOSED)",
        Reason::FRAME_SIZE_ERROR => "the client broke a rule of HTTP/2 (FRAME_SIZE_ERROR)",
        Reason::COMPRESSION_ERROR => "the client broke a rule of HTTP/2 (COMPRESSION_ERROR)",
        _ => "the client broke a rule of HTTP/2",
    })
}

/// Reads and drops what the client still sends, so that the close does not become a reset that takes the
/// last frames with it. Answers are waited for until the client's kernel has them, as long as it takes some of them
/// within `send_timeout`.
async fn rest(worker: &Worker, line: &Line, waiter: &Waiter, ending: Ending) {
    let (clock, settings) = (&worker.clock, &worker.settings);
    let mut until = clock.after(settings.timeouts.linger);
    let mut part = [0; 1024];
    let mut dropped = 0;
    let mut shut_down = false;
    let mut taken = None;
    let mut give_up = clock.after(settings.timeouts.send);
    // With a bound of 0, too, the connection is shut down and the client's end waited for.
    while dropped <= settings.limits.linger_bytes {
        let read = waiter.until(until, |cx| {
            let mut io = line.io().borrow_mut();
            let (mut from, mut to) = io.split();
            if !shut_down {
                let _ = ready!(to.poll_shutdown(cx));
                shut_down = true;
            }
            from.poll_read(cx, &mut part)
        });
        match read.await {
            Ok(Ok(n)) if n > 0 => dropped += n,
            Ok(_) => return,
            Err(_) if ending == Ending::Deliver => {
                let now = line.io().borrow().acknowledged();
                match now {
                    // Once it has everything, it may have something to say about that.
                    None if taken.is_none() => return,
                    Some(_) if now == taken && clock.is_over(give_up) => return,
                    Some(_) if now == taken => {}
                    _ => give_up = clock.after(settings.timeouts.send),
                }
                taken = now;
                until = clock.after(settings.timeouts.linger.max(LOOK));
            }
            Err(_) => return,
        }
    }
}

/// Whether bytes may be the beginning of HTTP/2.
#[cold]
pub(super) fn may_begin(bytes: &[u8]) -> bool {
    let n = bytes.len().min(PREFACE.len());
    bytes[..n] == PREFACE[..n]
}
