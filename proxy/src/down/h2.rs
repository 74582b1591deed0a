//! A client's HTTP/2 connection (RFC 9113): one task for it and all its streams. A stream is one exchange.

mod crew;
mod request;
mod response;
mod stream;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sdk::Client;
use wire::h2::PREFACE;
use wire::h2::frame::Code;

use self::crew::Crew;
use super::life::{Life, State, Turn};
use super::refusal;
use super::streams::Streams;
use crate::buffers::Buffer;
use crate::clock::Waiter;
use crate::exchange::fault::FaultKind;
use crate::h2::{self, Budgets, EndReason, Limits, Mux, Read, Role, Transport};
use crate::rt::{self, Io};
use crate::windows::{Enlarging, Windows};
use crate::worker::Worker;

pub(crate) use request::{Input, RequestBody};
pub(crate) use response::{Response, send};
pub(crate) use stream::Stream;

const BAD_PREFACE: &str = "the connection does not begin with the preface of HTTP/2 (PROTOCOL_ERROR)";

/// The window that every connection has (RFC 9113 section 6.9.2), but for a byte.
const FIRST_WINDOW: u32 = 64 << 10;

/// How often, at most, it is looked how much of its last answers a client has taken.
const LOOK: Duration = Duration::from_millis(100);

/// State that the tasks of one connection share.
pub(super) struct Shared {
    pub(super) worker: Rc<Worker>,
    pub(super) client: Client,
    pub(super) mux: h2::SharedMux,
    streams: Streams,
    windows: Windows,
    /// Heads are put together here.
    text: RefCell<Vec<u8>>,
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
    let mut transport = Transport::new(&worker, io, early);
    let waiter = worker.clock.waiter();
    if !begin(&worker, &mut transport, &client, &waiter).await {
        return;
    }
    let limits = Limits::of_server(&worker.settings);
    let budgets = Budgets { received: worker.windows.clone(), unsent: worker.send_windows.clone() };
    let mux = Mux::new(Role::Server, limits, budgets, worker.clock.clone());
    let shared = Rc::new(Shared {
        worker: worker.clone(),
        client,
        mux: h2::SharedMux::new(RefCell::new(mux)),
        streams: Streams::new(&worker),
        windows: Windows::new(&worker.windows, FIRST_WINDOW, limits.stream_window, Enlarging::Counts),
        text: RefCell::default(),
    });
    let life = Life::new(&worker, &waiter);
    let mut task = Task { shared: &shared, life, crew: Crew::default(), looks: 0, gathered: 0 };
    let ending = poll_fn(|cx| task.poll(&mut transport, cx)).await;
    let Task { crew, life, .. } = task;
    drop(life);
    shared.mux.borrow_mut().end(EndReason::Closed(None));
    crew.disperse();
    if ending != Ending::Nothing {
        rest(&worker, &mut transport.io, &waiter, ending).await;
    }
}

/// Reads the preface (RFC 9113 section 3.4).
async fn begin(worker: &Rc<Worker>, transport: &mut Transport, client: &Client, waiter: &Waiter) -> bool {
    let deadline = worker.clock.after(worker.settings.timeouts.header);
    match waiter.until(deadline, |cx| transport.poll_preface(cx, PREFACE)).await {
        Ok(Ok(true)) => true,
        Ok(Ok(false)) => {
            // It stands where a request line would, so both logs get an entry, as in HTTP/1.
            refusal::report_connection(worker, client, FaultKind::BrokenRule(BAD_PREFACE));
            false
        }
        // A client that is gone by then has asked for nothing.
        _ => false,
    }
}

/// Responses of at least this many streams are gathered before they are written.
const GATHERED_STREAMS: usize = 4;
/// Bytes that are not held back for more: a record of TLS.
const GATHERED_BYTES: usize = 16 << 10;
/// Looks at the kernel's events for which frames are held back.
const GATHERED_LOOKS: u8 = 4;

/// The connection's own task.
struct Task<'a> {
    shared: &'a Rc<Shared>,
    life: Life<'a>,
    crew: Crew,
    /// The looks at the kernel's events for which frames have waited for those of other streams.
    looks: u8,
    /// Bytes that waited at the last one.
    gathered: usize,
}

impl Task<'_> {
    /// Ready when the connection is over.
    fn poll(&mut self, transport: &mut Transport, cx: &mut Context<'_>) -> Poll<Ending> {
        let (shared, worker) = (self.shared, &self.shared.worker);
        let mux = &shared.mux;
        self.crew.begin_turn(cx);
        mux.borrow_mut().begin_turn();
        let Task { life, crew, .. } = self;
        let driver = cx.waker();
        let read = transport.poll_read(cx, mux, |event| {
            life.end_rest();
            crew.add(Stream::begin(shared, event), &Context::from_waker(driver));
            if shared.streams.begun() >= worker.settings.limits.keepalive_requests {
                mux.borrow_mut().close_gently();
            }
        });
        match read {
            Poll::Ready(Ok(Read::End) | Err(_)) => return Poll::Ready(Ending::Nothing),
            Poll::Ready(Ok(Read::Turn)) | Poll::Pending => {}
        }
        rt::without_budget(|| crew.poll());
        if shared.streams.are_ending() {
            mux.borrow_mut().close_gently();
        }
        if let Some(window) = shared.windows.shrink() {
            mux.borrow_mut().set_target(window);
        }
        // From here on, exchanges may wake the task.
        mux.borrow_mut().note_driver(cx);
        if self.gathers_more() {
            rt::wake_behind_events(cx);
            return Poll::Pending;
        }
        let written = transport.poll_write(cx, mux);
        if matches!(written, Poll::Ready(Err(_))) {
            return Poll::Ready(Ending::Nothing);
        }
        let over = mux.borrow().over();
        match over {
            Some(EndReason::Closed(_)) => return Poll::Ready(Ending::Nothing),
            // GOAWAY was written.
            Some(why) if written.is_ready() => {
                shared.report(why);
                return Poll::Ready(Ending::Linger);
            }
            Some(_) => {}
            None if mux.borrow().is_done() => return Poll::Ready(Ending::Deliver),
            None => {}
        }
        self.poll_time(transport, over, cx)
    }

    /// Whether frames wait for one more look at the kernel's events: many streams are open, and the last look brought
    /// more. A call that writes costs more than a look.
    fn gathers_more(&mut self) -> bool {
        let unsent = self.shared.mux.borrow().unsent().len();
        let gathers = (1..GATHERED_BYTES).contains(&unsent)
            && self.shared.streams.open() >= GATHERED_STREAMS
            && self.looks < GATHERED_LOOKS
            && unsent > self.gathered;
        (self.looks, self.gathered) = if gathers { (self.looks + 1, unsent) } else { (0, 0) };
        gathers
    }

    /// Whether the connection's time is over, in one way or another.
    fn poll_time(
        &mut self,
        transport: &mut Transport,
        over: Option<EndReason>,
        cx: &mut Context<'_>,
    ) -> Poll<Ending> {
        let shared = self.shared;
        let worker = &shared.worker;
        let blocked = transport.blocked_until(worker.settings.timeouts.send);
        let at_once = over.is_some();
        let release = shared.mux.borrow_mut().release();
        if release.is_none() {
            self.crew.release();
        }
        if blocked.is_some_and(|until| worker.clock.is_over(until)) {
            if let Some(why) = over {
                shared.report(why);
            }
            return Poll::Ready(Ending::Nothing);
        }
        let state = State {
            // Frames of the last stream are still to be written.
            busy: shared.streams.open() > 0 || blocked.is_some(),
            begun: shared.streams.begun(),
            closing: at_once || shared.mux.borrow().is_closing(),
            at_once,
            wake: [blocked, release].into_iter().flatten().min(),
        };
        match self.life.poll(&state, cx) {
            Turn::Wait => Poll::Pending,
            Turn::CloseGently => {
                shared.mux.borrow_mut().close_gently();
                Poll::Pending
            }
            Turn::Over => {
                if let Some(why) = over {
                    shared.report(why);
                    return Poll::Ready(Ending::Nothing);
                }
                // The client need not have said that it has everything. Its kernel has.
                Poll::Ready(match transport.io.acknowledged() {
                    None => Ending::Nothing,
                    Some(_) => Ending::Deliver,
                })
            }
        }
    }
}

impl Shared {
    /// Logs why we ended the connection.
    #[cold]
    fn report(&self, why: EndReason) {
        match why {
            EndReason::RuleBroken(code) => refusal::report_end(&self.worker, &self.client, broken_rule(code)),
            EndReason::Flood(flood) => {
                refusal::report_connection(&self.worker, &self.client, FaultKind::Flood(flood));
            }
            EndReason::Closed(_) => {}
        }
    }
}

/// The broken rule, by the error code of our GOAWAY (RFC 9113 section 7).
#[cold]
fn broken_rule(code: Code) -> FaultKind {
    FaultKind::BrokenRule(match code {
        Code::PROTOCOL_ERROR => "the client broke a rule of HTTP/2 (PROTOCOL_ERROR)",
        Code::FLOW_CONTROL_ERROR => "the client broke a rule of HTTP/2 (FLOW_CONTROL_ERROR)",
        Code::STREAM_CLOSED => "the client broke a rule of HTTP/2 (STREAM_CLOSED)",
        Code::FRAME_SIZE_ERROR => "the client broke a rule of HTTP/2 (FRAME_SIZE_ERROR)",
        Code::COMPRESSION_ERROR => "the client broke a rule of HTTP/2 (COMPRESSION_ERROR)",
        _ => "the client broke a rule of HTTP/2",
    })
}

/// Reads and drops what the client still sends, so that the close does not become a reset that takes the
/// last frames with it. Answers are waited for until the client's kernel has them, as long as it takes some of them
/// within `send_timeout`.
async fn rest(worker: &Worker, io: &mut Io, waiter: &Waiter, ending: Ending) {
    let (clock, settings) = (&worker.clock, &worker.settings);
    let mut until = clock.after(settings.timeouts.linger);
    let mut dropped = 0;
    let mut shut_down = false;
    let mut taken = None;
    let mut give_up = clock.after(settings.timeouts.send);
    // With a bound of 0, too, the connection is shut down and the client's end waited for.
    while dropped <= settings.limits.linger_bytes {
        let read = waiter.until(until, |cx| {
            let (mut from, mut to) = io.split();
            if !shut_down {
                let _ = ready!(to.poll_shutdown(cx));
                shut_down = true;
            }
            // Not kept while waiting: all idle connections would have room for it.
            from.poll_read(cx, &mut [0; 1024])
        });
        match read.await {
            Ok(Ok(n)) if n > 0 => dropped += n,
            Ok(_) => return,
            Err(_) if ending == Ending::Deliver => {
                let now = io.acknowledged();
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
