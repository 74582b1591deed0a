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

use super::receive::{Block, Partial};
use super::slots::{Gone, Slots};
use crate::clock::Clock;
use crate::credit::Credit;
use crate::exchange::fault::Flood;
use crate::settings::Settings;

/// Pseudo-header fields that a message may have (RFC 9113 section 8.3).
pub(super) const PSEUDO: usize = 5;

/// Size of the dynamic tables (RFC 7541 section 4.2), the one that every peer begins with.
const TABLE: usize = 4096;

/// Ranges of identifiers that the peer has passed over, the latest of them.
const GAPS: usize = 8;

/// The payload of the PING behind the first GOAWAY. Its acknowledgement shows that the peer has read that.
pub(super) const FAREWELL: [u8; 8] = *b"farewell";

/// The payload of the PING that asks whether the peer is still there.
pub(super) const PROBE: [u8; 8] = *b"are you?";

/// Milliseconds for which an idle connection keeps memory for the next stream.
const KEPT: u64 = 1000;

/// Milliseconds after which a peer that says nothing may be gone.
const SILENCE: u64 = 10_000;

/// The end of a connection that this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The peer begins streams.
    Server,
    /// We do.
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
    /// Bytes of one, and fields.
    pub(crate) head: usize,
    pub(crate) fields: usize,
    /// Bytes that may wait for the peer to take them, but for those of the first frame.
    pub(crate) unsent: usize,
    /// Memory for trailers that were not taken.
    pub(crate) trailers: usize,
    /// Frames that ask for nothing.
    pub(crate) control_frames: u32,
    /// Streams that the peer broke a rule on.
    pub(crate) stream_errors: u32,
}

/// Budgets of the worker that connections share.
#[derive(Debug, Clone)]
pub(crate) struct Budgets {
    /// For received bytes.
    pub(crate) received: Budget,
    /// For bytes waiting to be sent.
    pub(crate) unsent: Budget,
}

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The peer broke a rule.
    RuleBroken(Code),
    Flood(Flood),
    /// The peer has gone, with this error if it said one.
    Closed(Option<Code>),
}

/// How a connection closes that takes no more streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// GOAWAY was sent, with no last stream: the peer may not have read it yet.
    Announced,
    /// Streams behind this one are not looked at.
    Behind(u32),
}

/// See the head of this file.
pub(crate) struct Mux {
    pub(super) role: Role,
    pub(super) limits: Limits,
    pub(super) budgets: Budgets,
    pub(super) clock: Rc<Clock>,
    pub(super) slots: Slots,

    /// The list of fields that came last.
    pub(crate) list: List,
    pub(super) decoder: Decoder,
    /// A DATA frame of which a part came.
    pub(super) partial: Option<Partial>,
    /// A block of fields of which a part came.
    pub(super) block: Option<Block>,
    /// The newest stream that the peer has begun.
    pub(super) newest: u32,
    /// Identifiers that it has passed over, as ranges from and to.
    pub(super) gaps: VecDeque<(u32, u32)>,
    /// Streams that were reset here. Frames of them may still come, and mean nothing.
    pub(super) reset: VecDeque<u32>,
    /// The peer's settings have come.
    pub(super) settled: bool,
    /// It has acknowledged ours.
    pub(super) acknowledged: bool,
    /// Bytes the peer may send on all streams together.
    pub(super) window: i64,
    pub(super) unread: u32,
    /// Bytes it may have sent that were not used up.
    pub(super) target: u32,
    pub(super) trailers: Reservation,
    pub(super) credit: Credit,
    /// Streams that it broke a rule on, less those that it did not.
    pub(super) errors: u32,
    /// The last stream that it looks at, once it has sent GOAWAY, and why.
    pub(super) goaway: Option<(u32, Code)>,

    pub(super) encoder: Encoder,
    /// Frames that are to be written, and how much of them was.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    pub(super) held: Reservation,
    /// The peer's settings.
    pub(super) peer_streams: u32,
    pub(super) peer_window: i64,
    pub(super) peer_connects: bool,
    /// Bytes that may be sent on all streams together.
    pub(super) send_window: i64,
    /// Streams that want to send, in their order; the first `granted` of them may.
    pub(super) queue: VecDeque<usize>,
    pub(super) granted: usize,
    /// Tasks that wait for room for a head, or for the peer to take streams.
    pub(super) waiting: Vec<Waker>,
    /// The identifier of the next stream that we begin.
    pub(super) next: u32,
    pub(super) closing: Option<Closing>,
    /// When something came last, in the clock's coarse milliseconds.
    pub(super) heard: u64,
    /// Since when a PING that asks whether the peer is there is not answered.
    pub(super) probing: Option<u64>,
    over: Option<Over>,
    /// The connection's task, unless it was woken.
    driver: Option<Waker>,
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mux").field("role", &self.role).field("over", &self.over).finish_non_exhaustive()
    }
}

impl Mux {
    /// A connection of which nothing was received yet. Our SETTINGS, and a client's preface, are in `out`.
    pub(crate) fn new(role: Role, limits: Limits, budgets: Budgets, clock: Rc<Clock>) -> Mux {
        let mut mux = Mux {
            role,
            limits,
            budgets,
            slots: Slots::default(),
            list: List::default(),
            decoder: Decoder::new(TABLE),
            partial: None,
            block: None,
            newest: 0,
            gaps: VecDeque::new(),
            reset: VecDeque::new(),
            settled: false,
            acknowledged: false,
            window: i64::from(FIRST_WINDOW),
            unread: 0,
            target: FIRST_WINDOW,
            trailers: Reservation::default(),
            credit: Credit::new(limits.control_frames, clock.coarse_ms()),
            errors: 0,
            goaway: None,
            encoder: Encoder::new(),
            out: Vec::new(),
            written: 0,
            held: Reservation::default(),
            peer_streams: u32::MAX,
            peer_window: i64::from(FIRST_WINDOW),
            peer_connects: false,
            send_window: i64::from(FIRST_WINDOW),
            queue: VecDeque::new(),
            granted: 0,
            waiting: Vec::new(),
            next: 1,
            closing: None,
            heard: clock.coarse_ms(),
            probing: None,
            over: None,
            driver: None,
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

    /// Notes the connection's task, which is woken when there is something for it to do.
    pub(crate) fn note_driver(&mut self, cx: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
    }

    /// Wakes the connection's task.
    #[inline]
    pub(super) fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Why the connection is over, once it is. The frames in `out` are still sent.
    pub(crate) fn over(&self) -> Option<Over> {
        self.over
    }

    /// Ends the connection. All streams end with it.
    #[cold]
    pub(crate) fn end(&mut self, why: Over) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(why);
        match why {
            Over::RuleBroken(code) => frame::put_goaway(self.newest, code, &mut self.out),
            Over::Flood(_) => frame::put_goaway(self.newest, Code::ENHANCE_YOUR_CALM, &mut self.out),
            Over::Closed(_) => {}
        }
        self.queue.clear();
        self.granted = 0;
        for (_, slot) in self.slots.iter_mut() {
            slot.queued = false;
            // Messages that arrived whole can still be read.
            if !slot.received || !slot.sent {
                slot.break_off(Gone::Connection);
            }
        }
        self.waiting.drain(..).for_each(Waker::wake);
        self.wake_driver();
    }

    /// Takes no more streams, once the peer knows; those that have begun are served.
    pub(crate) fn close_gently(&mut self) {
        if self.closing.is_none() && self.over.is_none() {
            self.closing = Some(Closing::Announced);
            frame::put_goaway(frame::MAX_STREAM, Code::NO_ERROR, &mut self.out);
            frame::put_ping(0, &FAREWELL, &mut self.out);
        }
    }

    /// The peer has read the first GOAWAY: names the last stream.
    pub(super) fn close_behind(&mut self) {
        if self.closing == Some(Closing::Announced) {
            self.closing = Some(Closing::Behind(self.newest));
            frame::put_goaway(self.newest, Code::NO_ERROR, &mut self.out);
        }
    }

    /// Frees memory of an idle connection once nothing has come for a while. Returns when to call again, in the clock's
    /// coarse milliseconds.
    pub(crate) fn release(&mut self) -> Option<u64> {
        if !self.slots.is_spare() || !self.unsent().is_empty() {
            return None;
        }
        let due = self.heard + KEPT;
        if self.clock.coarse_ms() < due {
            return Some(due);
        }
        self.slots.release();
        (self.out, self.list) = (Vec::new(), List::default());
        None
    }

    /// It takes no more streams, or will not soon.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// It takes no more streams, and none is left.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.closing, Some(Closing::Behind(_))) && self.slots.len() == 0 && self.unsent().is_empty()
    }

    /// Sets how many unread bytes the peer may have sent on the whole connection.
    pub(crate) fn set_target(&mut self, target: u32) {
        self.target = target;
        self.renew_window();
    }

    /// Allows the peer to send more, once that is worth a frame.
    pub(super) fn renew_window(&mut self) {
        let target = i64::from(self.target);
        let more = target - self.window - i64::from(self.unread);
        // Streams that are not read may hold all but the window of one.
        if more > 0 && more >= target.min(i64::from(self.limits.stream_window)) / 2 {
            self.window += more;
            // A window has 31 bits.
            frame::put_number(kind::WINDOW_UPDATE, 0, more as u32, &mut self.out);
        }
    }

    /// Asks whether the peer is still there, if nothing has come for a while. It is asked with a request, as some servers
    /// take a client that asks without one for an attacker.
    pub(crate) fn probe(&mut self) {
        let now = self.clock.coarse_ms();
        if self.probing.is_none() && now - self.heard >= SILENCE {
            self.probing = Some(now);
            frame::put_ping(0, &PROBE, &mut self.out);
        }
    }

    /// Since when the peer has not answered to [`Mux::probe`].
    pub(crate) fn probing(&self) -> Option<u64> {
        self.probing
    }

    /// The peer's credit: requests and bytes it reads pay for its other frames.
    pub(crate) fn credit(&self) -> &Credit {
        &self.credit
    }

    /// The peer's settings have come.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Streams that the peer takes at a time.
    pub(crate) fn peer_streams(&self) -> usize {
        self.peer_streams as usize
    }

    /// Waits until the peer takes streams, or will take none any more.
    pub(crate) fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.peer_streams > 0 || self.over.is_some() || self.goaway.is_some() {
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Notes a task that waits for room, or for the peer's settings.
    pub(super) fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }

    /// The peer takes tunnels (RFC 8441).
    pub(crate) fn peer_connects(&self) -> bool {
        self.peer_connects
    }

    /// The last stream that the peer looks at, once it has sent GOAWAY, and why it did.
    pub(crate) fn goaway(&self) -> Option<(u32, Code)> {
        self.goaway
    }

    /// No stream can begin any more: all identifiers are used up.
    pub(crate) fn is_used_up(&self) -> bool {
        self.next > frame::MAX_STREAM - 2
    }

    /// Notes that a range of identifiers was passed over.
    pub(super) fn note_gap(&mut self, from: u32, to: u32) {
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back((from, to));
    }
}

impl Limits {
    /// Of connections of clients.
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

    /// Of connections to servers, whose streams have windows of `stream_window` bytes.
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
