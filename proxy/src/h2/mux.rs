//! hot path
//!
//! The state of one HTTP/2 connection (RFC 9113), client or server, without its socket.
//!
//! The connection's task passes received bytes in and writes the frames in `out`. Exchanges use a
//! [`Stream`](super::Stream). Each side wakes the other. A frame allocates nothing.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sdk::budget::{Budget, Reservation};
use wire::field_list::List;
use wire::h2::frame::{self, Code, FIRST_WINDOW, kind, setting};
use wire::h2::hpack::{Decoder, Encoder};

use super::field_blocks::PartialBlock;
use super::receive::PartialData;
use super::slots::{Slots, StreamError};
use crate::clock::Clock;
use crate::credit::Credit;
use crate::exchange::fault::Flood;
use crate::settings::Settings;

/// Pseudo-header fields that a message may have (RFC 9113 section 8.3).
pub(super) const PSEUDO: usize = 5;

/// Default size of the dynamic tables (RFC 7541 section 4.2).
const TABLE_SIZE: usize = 4096;

/// Maximum number of remembered ranges of skipped stream identifiers.
const MAX_SKIPPED: usize = 8;

/// Payload of the PING after the first GOAWAY. Its acknowledgement shows that the peer has read the GOAWAY.
pub(super) const GOAWAY_PING: [u8; 8] = *b"farewell";

/// Payload of the PING that checks whether the peer is alive.
pub(super) const PROBE_PING: [u8; 8] = *b"are you?";

/// Milliseconds after which an idle connection releases its buffers.
const IDLE_MEMORY_MS: u64 = 1000;

/// Milliseconds without received bytes after which a peer may be dead.
const SILENCE_MS: u64 = 10_000;

/// Which end of the connection we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The peer begins streams.
    Server,
    /// We begin streams.
    Client,
}

/// Bounds of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Streams that may be open at a time.
    pub(crate) streams: usize,
    /// Window of each stream, in bytes.
    pub(crate) stream_window: u32,
    /// Size of a list of fields as it is announced (RFC 9113 section 6.5.2).
    pub(crate) list: usize,
    /// Maximum size of a head in bytes, and its number of fields.
    pub(crate) head: usize,
    pub(crate) fields: usize,
    /// Unsent bytes, beyond one frame.
    pub(crate) unsent: usize,
    /// Memory for unread trailers, in bytes.
    pub(crate) trailers: usize,
    /// Burst of frames that request nothing.
    pub(crate) control_frames: u32,
    /// Protocol errors of single streams.
    pub(crate) stream_errors: u32,
}

/// The worker's budgets, shared by its connections.
#[derive(Debug, Clone)]
pub(crate) struct Budgets {
    /// For received bytes.
    pub(crate) received: Budget,
    /// For bytes waiting to be sent.
    pub(crate) unsent: Budget,
}

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The peer broke a rule.
    RuleBroken(Code),
    Flood(Flood),
    /// The peer has closed it, with the error code of its GOAWAY if it sent one.
    Closed(Option<Code>),
}

/// Progress of a graceful close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// The first GOAWAY was sent. Streams begun before the peer reads it are still served.
    Announced,
    /// The final GOAWAY was sent: later streams than this are ignored.
    Behind(u32),
}

/// The state of one connection.
pub(crate) struct Mux {
    pub(super) role: Role,
    pub(super) limits: Limits,
    pub(super) budgets: Budgets,
    pub(super) clock: Rc<Clock>,
    pub(super) slots: Slots,

    /// The field block decoded last.
    pub(crate) list: List,
    pub(super) decoder: Decoder,
    /// The DATA frame being received.
    pub(super) partial: Option<PartialData>,
    /// The field block being received.
    pub(super) block: Option<PartialBlock>,
    /// The latest stream begun by the peer.
    pub(super) last_peer_stream: u32,
    /// Ranges of stream identifiers that it skipped.
    pub(super) skipped: VecDeque<(u32, u32)>,
    /// Streams we reset recently. Frames still in flight on them are ignored.
    pub(super) recent_resets: VecDeque<u32>,
    /// The peer's settings were received.
    pub(super) settled: bool,
    /// It has acknowledged ours.
    pub(super) acknowledged: bool,
    /// Bytes the peer may send on all streams together.
    pub(super) window: i64,
    pub(super) unread: u32,
    /// The receive window of the connection, in bytes.
    pub(super) target: u32,
    pub(super) trailers_reserved: Reservation,
    pub(super) credit: Credit,
    /// Streams on which the peer broke a rule, minus valid ones.
    pub(super) stream_errors: u32,
    /// Last stream identifier and error code of the peer's GOAWAY.
    pub(super) goaway: Option<(u32, Code)>,

    pub(super) encoder: Encoder,
    /// Frames to write, and how many of their bytes were written.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    pub(super) unsent_reserved: Reservation,
    /// The peer's settings.
    pub(super) peer_streams: u32,
    pub(super) peer_window: i64,
    pub(super) peer_connects: bool,
    /// Bytes that may be sent on all streams together.
    pub(super) send_window: i64,
    /// Streams waiting to send, in order. The first `granted` of them may send.
    pub(super) queue: VecDeque<usize>,
    pub(super) granted: usize,
    /// Tasks waiting for room for a head, or for the peer to accept streams.
    pub(super) room_waiters: Vec<Waker>,
    /// The identifier of our next stream.
    pub(super) next_id: u32,
    pub(super) closing: Option<Closing>,
    /// When bytes were received last, in the clock's coarse milliseconds.
    pub(super) last_received: u64,
    /// When the unanswered probe was sent.
    pub(super) probing: Option<u64>,
    over: Option<EndReason>,
    /// Wakes the connection's task.
    driver: Option<Waker>,
    /// That waits to be woken: it neither runs nor was woken.
    is_waiting: bool,
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mux").field("role", &self.role).field("over", &self.over).finish_non_exhaustive()
    }
}

impl Mux {
    /// Creates the state of a new connection. The preface and SETTINGS are in `out`.
    pub(crate) fn new(role: Role, limits: Limits, budgets: Budgets, clock: Rc<Clock>) -> Mux {
        let mut mux = Mux {
            role,
            limits,
            budgets,
            slots: Slots::default(),
            list: List::default(),
            decoder: Decoder::new(TABLE_SIZE),
            partial: None,
            block: None,
            last_peer_stream: 0,
            skipped: VecDeque::new(),
            recent_resets: VecDeque::new(),
            settled: false,
            acknowledged: false,
            window: i64::from(FIRST_WINDOW),
            unread: 0,
            target: FIRST_WINDOW,
            trailers_reserved: Reservation::default(),
            credit: Credit::new(limits.control_frames, clock.coarse_ms()),
            stream_errors: 0,
            goaway: None,
            encoder: Encoder::new(),
            out: Vec::new(),
            written: 0,
            unsent_reserved: Reservation::default(),
            peer_streams: u32::MAX,
            peer_window: i64::from(FIRST_WINDOW),
            peer_connects: false,
            send_window: i64::from(FIRST_WINDOW),
            queue: VecDeque::new(),
            granted: 0,
            room_waiters: Vec::new(),
            next_id: 1,
            closing: None,
            last_received: clock.coarse_ms(),
            probing: None,
            over: None,
            driver: None,
            is_waiting: false,
            clock,
        };
        let list = u32::try_from(limits.list).unwrap_or(u32::MAX);
        let window = (setting::INITIAL_WINDOW_SIZE, limits.stream_window);
        let size = (setting::MAX_HEADER_LIST_SIZE, list);
        match role {
            Role::Server => {
                let streams = u32::try_from(limits.streams).unwrap_or(u32::MAX);
                let settings = [
                    (setting::MAX_CONCURRENT_STREAMS, streams),
                    window,
                    size,
                    (setting::ENABLE_CONNECT_PROTOCOL, 1),
                    (setting::NO_RFC7540_PRIORITIES, 1),
                ];
                frame::put_settings(&settings, &mut mux.out);
            }
            Role::Client => {
                mux.out.extend_from_slice(wire::h2::PREFACE);
                frame::put_settings(&[(setting::ENABLE_PUSH, 0), window, size], &mut mux.out);
            }
        }
        mux
    }

    /// The connection's task runs: until [`Mux::note_driver`], it is not woken.
    pub(crate) fn begin_turn(&mut self) {
        self.is_waiting = false;
    }

    /// Registers the connection's task, which is woken when there is work for it, before it writes.
    pub(crate) fn note_driver(&mut self, cx: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
        self.is_waiting = true;
    }

    /// Wakes the connection's task.
    #[inline]
    pub(super) fn wake_driver(&mut self) {
        if std::mem::take(&mut self.is_waiting)
            && let Some(driver) = &self.driver
        {
            driver.wake_by_ref();
        }
    }

    /// Returns why the connection has ended. Frames in `out` are still sent.
    pub(crate) fn over(&self) -> Option<EndReason> {
        self.over
    }

    /// Ends the connection and all its streams.
    #[cold]
    pub(crate) fn end(&mut self, why: EndReason) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(why);
        match why {
            EndReason::RuleBroken(code) => frame::put_goaway(self.last_peer_stream, code, &mut self.out),
            EndReason::Flood(_) => {
                frame::put_goaway(self.last_peer_stream, Code::ENHANCE_YOUR_CALM, &mut self.out)
            }
            EndReason::Closed(_) => {}
        }
        self.queue.clear();
        self.granted = 0;
        for (_, slot) in self.slots.iter_mut() {
            slot.queued = false;
            // Messages that arrived whole can still be read.
            if !slot.received || !slot.sent {
                slot.break_off(StreamError::Connection);
            }
        }
        self.room_waiters.drain(..).for_each(Waker::wake);
        self.wake_driver();
    }

    /// Begins a graceful close by the first GOAWAY.
    pub(crate) fn close_gently(&mut self) {
        if self.closing.is_none() && self.over.is_none() {
            self.closing = Some(Closing::Announced);
            frame::put_goaway(frame::MAX_STREAM, Code::NO_ERROR, &mut self.out);
            frame::put_ping(0, &GOAWAY_PING, &mut self.out);
        }
    }

    /// Sends the final GOAWAY, with the last stream that is served.
    pub(super) fn send_final_goaway(&mut self) {
        if self.closing == Some(Closing::Announced) {
            self.closing = Some(Closing::Behind(self.last_peer_stream));
            frame::put_goaway(self.last_peer_stream, Code::NO_ERROR, &mut self.out);
        }
    }

    /// Releases the buffers of a connection that has received nothing for a while. Returns when to call again, in the
    /// clock's coarse milliseconds.
    pub(crate) fn release(&mut self) -> Option<u64> {
        let is_spare = self.slots.is_spare() || self.out.capacity() > 0;
        if !is_spare || !self.unsent().is_empty() {
            return None;
        }
        let due = self.last_received + IDLE_MEMORY_MS;
        if self.clock.coarse_ms() < due {
            return Some(due);
        }
        self.slots.release();
        (self.out, self.list) = (Vec::new(), List::default());
        None
    }

    /// Whether a graceful close has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether a graceful close is complete.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.closing, Some(Closing::Behind(_))) && self.slots.len() == 0 && self.unsent().is_empty()
    }

    /// Sets the receive window of the connection.
    pub(crate) fn set_target(&mut self, target: u32) {
        self.target = target;
        self.update_window();
    }

    /// Sends WINDOW_UPDATE for the connection once enough bytes were read.
    pub(super) fn update_window(&mut self) {
        let target = i64::from(self.target);
        let more = target - self.window - i64::from(self.unread);
        // Unread streams may use up all but one stream's window, so that is the threshold.
        if more > 0 && more >= target.min(i64::from(self.limits.stream_window)) / 2 {
            self.window += more;
            // A window has 31 bits.
            frame::put_number(kind::WINDOW_UPDATE, 0, more as u32, &mut self.out);
        }
    }

    /// Sends a PING if nothing was received for a while. Called only with a request: some servers treat PINGs without
    /// requests as an attack.
    pub(crate) fn probe(&mut self) {
        let now = self.clock.coarse_ms();
        if self.probing.is_none() && now - self.last_received >= SILENCE_MS {
            self.probing = Some(now);
            frame::put_ping(0, &PROBE_PING, &mut self.out);
        }
    }

    /// Returns when the unanswered PING of [`Mux::probe`] was sent.
    pub(crate) fn probing(&self) -> Option<u64> {
        self.probing
    }

    /// The peer's credit: requests and bytes it reads pay for its other frames.
    pub(crate) fn credit(&self) -> &Credit {
        &self.credit
    }

    /// Whether the peer's settings were received.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Concurrent streams that the peer accepts.
    pub(crate) fn peer_streams(&self) -> usize {
        self.peer_streams as usize
    }

    /// Whether a stream can begin now beside `open` others, and its head be sent.
    pub(crate) fn takes_streams(&mut self, open: usize) -> bool {
        self.over.is_none() && self.goaway.is_none() && open < self.peer_streams() && self.room() > 0
    }

    /// Waits until the peer accepts streams, or never will.
    pub(crate) fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.peer_streams > 0 || self.over.is_some() || self.goaway.is_some() {
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Registers a task that waits for room, or for the peer's settings.
    pub(super) fn wait(&mut self, cx: &Context<'_>) {
        if !self.room_waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.room_waiters.push(cx.waker().clone());
        }
    }

    /// Whether the peer accepts extended CONNECT (RFC 8441).
    pub(crate) fn peer_connects(&self) -> bool {
        self.peer_connects
    }

    /// Last stream identifier and error code of the peer's GOAWAY, if it sent one.
    pub(crate) fn goaway(&self) -> Option<(u32, Code)> {
        self.goaway
    }

    /// Whether all stream identifiers are used up.
    pub(crate) fn is_used_up(&self) -> bool {
        self.next_id > frame::MAX_STREAM - 2
    }

    /// Remembers a range of skipped stream identifiers.
    pub(super) fn note_skipped(&mut self, from: u32, to: u32) {
        if self.skipped.len() == MAX_SKIPPED {
            self.skipped.pop_front();
        }
        self.skipped.push_back((from, to));
    }
}

impl Limits {
    /// Limits for a client's connection.
    pub(crate) fn of_server(settings: &Settings) -> Limits {
        let bounds = &settings.http2;
        Limits {
            streams: bounds.max_streams as usize,
            stream_window: bounds.stream_window,
            list: settings.header_list(),
            head: settings.request.head,
            fields: settings.request.fields,
            unsent: bounds.send_buffer as usize,
            trailers: bounds.unread,
            control_frames: bounds.control_frames,
            stream_errors: bounds.max_stream_errors,
        }
    }

    /// Limits for a connection to a server, with streams of this window in bytes.
    pub(crate) fn of_client(settings: &Settings, stream_window: u32) -> Limits {
        Limits {
            streams: settings.http2.upstream_streams as usize,
            stream_window,
            list: settings.response.head,
            head: settings.response.head,
            fields: settings.response.fields,
            ..Limits::of_server(settings)
        }
    }
}
