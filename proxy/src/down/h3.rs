//! A client's HTTP/3 connection (RFC 9114): one task for it and one for each of its streams, all on one
//! worker. A stream is one exchange.
//!
//! Streams and their flow control are the `quinn` crate's; frames and lists of fields are read by `wire`.

mod control;
mod frames;
mod listen;
mod request;
mod response;
mod sending;
mod stream;
mod tls;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, SendStream, VarInt};
use sdk::Client;
use wire::List;
use wire::h3::{self, code, frame, setting};

use super::life::{Life, State, Turn};
use super::refusal;
use super::streams::Streams;
use crate::credit::Credit;
use crate::exchange::fault::{FaultKind, Flood};
use crate::rt;
use crate::windows::{Enlarging, Windows};
use crate::worker::Worker;

pub(crate) use listen::{Port, listen};
pub(crate) use request::{Input, RequestBody};
pub(crate) use response::{Output, Response, send};
pub(crate) use stream::Stream;

/// Streams that are begun before everything else that is ready gets its turn.
const TURN: u32 = 32;

/// Streams going one way that a client may have open: the three it needs, and a few that mean nothing to us.
const ONE_WAY: u32 = 8;

/// The least time between the first GOAWAY and the last. Streams begun in between are served, as the client may
/// not have read the first one yet.
const LAST_CALL: Duration = Duration::from_millis(100);

/// The window that every connection has: for heads, and for one body.
const FIRST_WINDOW: u32 = 128 << 10;

/// State that the tasks of one connection share.
pub(crate) struct Shared {
    pub(super) worker: Rc<Worker>,
    conn: Connection,
    client: RefCell<Rc<Client>>,
    pub(crate) credit: Credit,
    /// Kinds of streams that the client may have once, as bits.
    seen: Cell<u8>,
    streams: Streams,
    windows: Windows,
    sending: sending::Sending,
    /// Lists of fields are read here …
    list: RefCell<List>,
    /// … and heads are put together here.
    text: RefCell<Vec<u8>>,
}

/// Serves a connection until it ends.
async fn serve(worker: Rc<Worker>, conn: Connection, client: Client) {
    let now = worker.clock.coarse_ms();
    let shared = Rc::new(Shared {
        credit: Credit::new(worker.settings.http2.control_frames, now),
        worker: worker.clone(),
        conn: conn.clone(),
        client: RefCell::new(Rc::new(client)),
        seen: Cell::default(),
        streams: Streams::new(&worker),
        windows: Windows::new(
            &worker.windows,
            FIRST_WINDOW,
            worker.settings.http3.stream_window,
            Enlarging::Adds,
        )
        .of_at_most(worker.settings.http3.max_streams + ONE_WAY),
        sending: sending::Sending::new(worker.settings.http3.send_window, &worker.send_windows),
        list: RefCell::default(),
        text: RefCell::default(),
    });
    let waiter = worker.clock.waiter();
    let deadline = worker.clock.after(worker.settings.timeouts.header);
    let mut opening = pin!(open_control(&worker, &conn));
    let Ok(Some(control)) = waiter.until(deadline, |cx| opening.as_mut().poll(cx)).await else {
        return shared.fail(code::STREAM_CREATION_ERROR);
    };
    let (mut both_ways, mut one_way) = (pin!(conn.accept_bi()), pin!(conn.accept_uni()));
    let mut task = Task {
        shared: &shared,
        life: Life::new(&worker, &waiter),
        control,
        unsent: Vec::new(),
        next: 0,
        closing: None,
    };
    poll_fn(|cx| {
        shared.streams.note_waker(cx);
        for _ in 0..TURN {
            if shared.credit.is_flood(worker.clock.coarse_ms()) {
                // If it broke a rule at the same time, that was logged.
                if conn.close_reason().is_none() {
                    refusal::report_connection(&worker, &shared.client(), FaultKind::Flood(Flood::Frames));
                    shared.close(code::EXCESSIVE_LOAD);
                }
                return Poll::Ready(());
            }
            let stream = match both_ways.as_mut().poll(cx) {
                Poll::Ready(Ok(stream)) => Some(stream),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => None,
            };
            let single = match one_way.as_mut().poll(cx) {
                Poll::Ready(Ok(stream)) => Some(stream),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => None,
            };
            if stream.is_none() && single.is_none() {
                return task.poll_time(cx);
            }
            if let Some((send, recv)) = stream {
                both_ways.set(conn.accept_bi());
                task.begin(send, recv);
            }
            if let Some(stream) = single {
                one_way.set(conn.accept_uni());
                control::begin(&shared, stream);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    drop(task);
    // Responses have reached the client, or their time is over: a stream is served until then.
    shared.close(code::NO_ERROR);
}

/// Opens the stream on which settings go and, at the end, GOAWAY.
async fn open_control(worker: &Worker, conn: &Connection) -> Option<SendStream> {
    let limits = &worker.settings.request;
    let mut settings = Vec::new();
    h3::put_number(setting::MAX_FIELD_SECTION_SIZE, &mut settings);
    h3::put_number((limits.head + 32 * limits.fields) as u64, &mut settings);
    h3::put_number(setting::ENABLE_CONNECT_PROTOCOL, &mut settings);
    h3::put_number(1, &mut settings);
    let mut first = Vec::new();
    h3::put_number(h3::stream::CONTROL, &mut first);
    h3::put_frame(frame::SETTINGS, settings.len(), &mut first);
    first.extend_from_slice(&settings);
    let mut stream = conn.open_uni().await.ok()?;
    stream.write_all(&first).await.ok()?;
    Some(stream)
}

/// The connection's own task.
struct Task<'a> {
    shared: &'a Rc<Shared>,
    life: Life<'a>,
    control: SendStream,
    /// Bytes still to be sent on it.
    unsent: Vec<u8>,
    /// The least id of a stream that no stream had yet.
    next: u64,
    closing: Option<Closing>,
}

/// GOAWAY was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// Streams that begin before this time are served: the client may not have read GOAWAY yet.
    Until(u64),
    /// New streams are rejected, so that the client may retry elsewhere.
    Said,
}

impl Task<'_> {
    fn begin(&mut self, mut send: SendStream, mut recv: quinn::RecvStream) {
        if self.closing == Some(Closing::Said) {
            let code = VarInt::from_u32(code::REQUEST_REJECTED);
            let _ = (send.reset(code), recv.stop(code));
            return;
        }
        self.life.end_rest();
        self.next = VarInt::from(send.id()).into_inner() + 4;
        Stream::begin(self.shared, send, recv);
        if self.shared.streams.begun() >= self.shared.worker.settings.limits.keepalive_requests {
            self.close_gently();
        }
    }

    /// Whether the connection's time is over, in one way or another.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (shared, clock) = (self.shared, &self.shared.worker.clock);
        if shared.streams.are_ending() {
            self.close_gently();
        }
        if shared.streams.open() == 0
            && let Some(window) = shared.sending.narrow()
        {
            // Each stream has waited for its acknowledgement, or was reset.
            shared.conn.set_send_window(window);
        }
        if let Some(Closing::Until(until)) = self.closing
            && clock.is_over(until)
        {
            self.say_goaway(self.next);
            self.closing = Some(Closing::Said);
        }
        while !self.unsent.is_empty() {
            match Pin::new(&mut self.control).poll_write(cx, &self.unsent) {
                Poll::Ready(Ok(n)) => drop(self.unsent.drain(..n)),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        let state = State {
            busy: shared.streams.open() > 0,
            begun: shared.streams.begun(),
            closing: self.closing.is_some(),
            at_once: false,
            wake: match self.closing {
                Some(Closing::Until(until)) => Some(until),
                _ => None,
            },
        };
        match self.life.poll(&state, cx) {
            Turn::Wait => Poll::Pending,
            Turn::CloseGently => {
                self.close_gently();
                Poll::Pending
            }
            Turn::Over => Poll::Ready(()),
        }
    }

    /// Announces the end by GOAWAY; a second one, a moment later, names the last streams that are served
    /// (RFC 9114 section 5.2).
    fn close_gently(&mut self) {
        if self.closing.is_none() {
            let grace = (2 * self.shared.conn.rtt()).clamp(LAST_CALL, 20 * LAST_CALL);
            self.closing = Some(Closing::Until(self.shared.worker.clock.after(grace)));
            // The greatest id that a client's stream can have.
            self.say_goaway(h3::MOST & !3);
        }
    }

    fn say_goaway(&mut self, id: u64) {
        let mut text = Vec::new();
        h3::put_number(id, &mut text);
        h3::put_frame(frame::GOAWAY, text.len(), &mut self.unsent);
        self.unsent.extend_from_slice(&text);
    }
}

impl Shared {
    /// Ends the connection; all its streams end with it.
    fn close(&self, code: u32) {
        self.conn.close(VarInt::from_u32(code), b"");
    }

    /// Ends the connection of a client that broke a rule, and logs that. A connection that is over already
    /// has ended for another reason.
    #[cold]
    fn fail(&self, code: u32) {
        if self.conn.close_reason().is_none() {
            self.close(code);
            refusal::report_end(&self.worker, &self.client(), broken_rule(code));
        }
    }

    /// Returns how many ACK frames the client has sent.
    fn acknowledgements(&self) -> u64 {
        self.conn.stats().frame_rx.acks
    }

    /// A write to the client has to wait. Returns true where it may go on, in a larger window.
    fn widen(&self) -> bool {
        let wider = self.sending.widen();
        if let Some(window) = wider {
            self.conn.set_send_window(window);
        }
        wider.is_some()
    }

    /// A request has a body.
    fn begin_body(&self) {
        if let Some(window) = self.windows.begin() {
            self.conn.set_receive_window(VarInt::from_u32(window));
        }
    }

    /// A request with a body is over.
    fn end_body(&self) {
        self.windows.end();
        if let Some(window) = self.windows.shrink() {
            self.conn.set_receive_window(VarInt::from_u32(window));
        }
    }

    /// Charges the client's credit for a frame that requests nothing, or for wasted work.
    fn spend(&self, cost: i64) {
        self.credit.spend(cost);
        if self.credit.is_flood(self.worker.clock.coarse_ms()) {
            self.streams.wake();
        }
    }

    /// Returns the client, with its present address: it may have moved.
    pub(super) fn client(&self) -> Rc<Client> {
        let peer = self.conn.remote_address();
        let mut client = self.client.borrow_mut();
        if client.peer != peer {
            let mut moved = Client::new(peer, client.local, true);
            moved.session.clone_from(&client.session);
            *client = Rc::new(moved);
        }
        client.clone()
    }
}

/// By the error with which the connection ends (RFC 9114 section 8.1, RFC 9204 section 6).
fn broken_rule(code: u32) -> FaultKind {
    FaultKind::BrokenRule(match code {
        code::STREAM_CREATION_ERROR => "the client broke a rule of HTTP/3 (H3_STREAM_CREATION_ERROR)",
        code::CLOSED_CRITICAL_STREAM => "the client broke a rule of HTTP/3 (H3_CLOSED_CRITICAL_STREAM)",
        code::FRAME_UNEXPECTED => "the client broke a rule of HTTP/3 (H3_FRAME_UNEXPECTED)",
        code::FRAME_ERROR => "the client broke a rule of HTTP/3 (H3_FRAME_ERROR)",
        code::EXCESSIVE_LOAD => "the client broke a rule of HTTP/3 (H3_EXCESSIVE_LOAD)",
        code::ID_ERROR => "the client broke a rule of HTTP/3 (H3_ID_ERROR)",
        code::SETTINGS_ERROR => "the client broke a rule of HTTP/3 (H3_SETTINGS_ERROR)",
        code::MISSING_SETTINGS => "the client broke a rule of HTTP/3 (H3_MISSING_SETTINGS)",
        code::QPACK_DECOMPRESSION_FAILED => "the client broke a rule of HTTP/3 (QPACK_DECOMPRESSION_FAILED)",
        code::QPACK_ENCODER_STREAM_ERROR => "the client broke a rule of HTTP/3 (QPACK_ENCODER_STREAM_ERROR)",
        code::QPACK_DECODER_STREAM_ERROR => "the client broke a rule of HTTP/3 (QPACK_DECODER_STREAM_ERROR)",
        _ => "the client broke a rule of HTTP/3",
    })
}

/// Starts a stream's task.
fn spawn(future: impl Future<Output = ()> + 'static) {
    rt::spawn(future);
}
