//! hot path
//!
//! The queue between workers and the deliverer: many senders, one receiver, and sending never
//! waits. The receiver sets how much must be queued before it is woken, so that a batch costs one
//! wake-up and not one per entry.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{
    Receiver, SendError, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;

use super::registry::{Resolved, Start, Starter, Totals};
use super::{Addresses, Bounds, Outlet, Record, Spec};
use crate::exchange::Exchange;

/// Maximum buffers of all workers in flight.
const BUFFERS: usize = 1024;

/// The sending end. Clones share it; when the last one is dropped, the queued entries are delivered
/// and the sink closes.
#[derive(Debug, Clone)]
pub struct Sink(pub(super) Arc<SinkInner>);

/// The receiving end, for the thread or task that delivers.
#[derive(Debug)]
pub struct Intake {
    from: Receiver<Packet>,
    shared: Arc<Shared>,
    /// Wakes the thread that waits for entries, if any.
    pub(super) thread: OnceCell<Waker>,
}

/// An item of the queue.
#[derive(Debug)]
pub enum Next {
    Entries(Taken),
    /// Requested by [`Sink::reopen`]: a file is to be reopened.
    Reopen,
    /// The queue is closed and empty.
    End,
}

/// Received entries; they count as waiting until this is dropped.
#[derive(Debug)]
pub struct Taken {
    packet: Packet,
    shared: Arc<Shared>,
}

/// How much must be queued to wake the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub entries: usize,
    pub bytes: usize,
}

/// Queued entries: one of a plugin, or a worker's buffer of them.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) record: Record,
    pub(super) entries: usize,
    /// The channel that returns the buffer.
    pub(super) back: Option<SyncSender<Vec<u8>>>,
}

/// Dropped with the last [`Sink`].
#[derive(Debug)]
pub(super) struct SinkInner {
    to: Channel,
    pub(super) shared: Arc<Shared>,
    /// Starts the delivery with the first entry.
    starter: Starter,
}

#[derive(Debug)]
enum Channel {
    /// For plugins, whose entries are limited separately. Allocates as entries arrive.
    Entries(Sender<Packet>),
    /// For buffers, which are few. Preallocated.
    Buffers(SyncSender<Packet>),
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) spec: Spec,
    /// Entries in the queue. May be -1 for a moment: the receiver may be faster than the sender's
    /// count.
    queued: AtomicIsize,
    /// Received entries that are not finished.
    taken: AtomicUsize,
    /// Those of them that are being delivered.
    delivering: AtomicUsize,
    /// Bytes of queued and received entries.
    bytes: AtomicUsize,
    wake_at: AtomicIsize,
    wake_at_bytes: AtomicUsize,
    waker: AtomicWaker,
    reopen: AtomicBool,
    ended: AtomicBool,
    stopping: AtomicBool,
    dropped: Arc<AtomicU64>,
    totals: Arc<Totals>,
    /// The route and the local address of the first logged request: labels of a metric.
    pub(super) first: OnceLock<(String, String)>,
    /// The servers' addresses, as last resolved.
    addresses: Resolved,
}

/// Creates both ends; the intake is passed to `start` with the first entry.
pub(super) fn new(
    spec: Spec,
    addresses: Addresses,
    dropped: Arc<AtomicU64>,
    totals: Arc<Totals>,
    start: Option<Arc<Start>>,
) -> Sink {
    let (to, from) = channel();
    let shared = Shared::new(spec, addresses, dropped, totals);
    let starter = Starter::new(Intake { from, shared: shared.clone(), thread: OnceCell::new() }, start);
    Sink(Arc::new(SinkInner { to: Channel::Entries(to), shared, starter }))
}

/// Creates both ends of a sink that is used by [`Outlet`]s only.
pub fn of_buffers(spec: Spec) -> (Sink, Intake) {
    let (to, from) = sync_channel(BUFFERS);
    let shared = Shared::new(spec, Arc::default(), Arc::default(), Arc::default());
    let intake = Intake { from, shared: shared.clone(), thread: OnceCell::new() };
    (Sink(Arc::new(SinkInner { to: Channel::Buffers(to), shared, starter: Starter::started() })), intake)
}

impl Sink {
    /// Queues an entry of this exchange, or counts it as dropped if there is no room.
    pub fn push(&self, x: &Exchange<'_>, entry: impl Into<Record>) {
        let record = entry.into();
        let shared = &self.0.shared;
        if shared.first.get().is_none() {
            let route = x.route().map(|route| route.id.to_string()).unwrap_or_default();
            // Only the first value is kept.
            let _ = shared.first.set((route, x.client().local.ip().to_canonical().to_string()));
        }
        self.push_own(record);
    }

    /// Queues an entry of no exchange, or counts it as dropped if there is no room.
    pub fn push_own(&self, record: Record) {
        let shared = &self.0.shared;
        if !shared.has_room(1, record.size()) || self.put(Packet { record, entries: 1, back: None }).is_err()
        {
            shared.lost(1);
        }
    }

    /// Creates a worker's buffer in front of this sink.
    pub fn outlet(&self, bounds: Bounds) -> Outlet {
        Outlet::new(self.clone(), bounds)
    }

    /// Entries that are queued or being delivered.
    pub fn waiting(&self) -> usize {
        self.0.shared.waiting()
    }

    /// Dropped entries of all sinks of this sink's plugin.
    pub fn dropped(&self) -> u64 {
        self.0.shared.dropped.load(Ordering::Relaxed)
    }

    /// Makes the receiver return [`Next::Reopen`] soon.
    pub fn reopen(&self) {
        self.0.shared.reopen();
    }

    /// Closes the queue: the receiver delivers the queued entries and ends.
    pub fn end(&self) {
        self.0.shared.end();
    }

    /// # Errors
    /// There is no receiver.
    pub(super) fn put(&self, packet: Packet) -> Result<(), Packet> {
        let (entries, bytes) = (packet.entries, packet.record.size());
        let shared = &self.0.shared;
        if !self.0.starter.has_started() && !self.0.starter.start() {
            return Err(packet);
        }
        shared.totals.bytes.fetch_add(bytes, Ordering::Relaxed);
        let all = shared.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Err(refused) = self.0.to.send(packet) {
            shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
            shared.totals.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(refused);
        }
        // Counted after sending, so that a woken receiver finds the entries it was woken for.
        let queued = shared.queued.fetch_add(entries as isize, Ordering::SeqCst) + entries as isize;
        if queued >= shared.wake_at.load(Ordering::SeqCst)
            || all >= shared.wake_at_bytes.load(Ordering::SeqCst)
        {
            shared.waker.wake();
        }
        Ok(())
    }

    pub(super) fn lost(&self, entries: usize) {
        self.0.shared.lost(entries);
    }
}

impl Channel {
    fn send(&self, packet: Packet) -> Result<(), Packet> {
        match self {
            Channel::Entries(to) => to.send(packet).map_err(|SendError(packet)| packet),
            Channel::Buffers(to) => to.try_send(packet).map_err(|refused| match refused {
                TrySendError::Full(packet) | TrySendError::Disconnected(packet) => packet,
            }),
        }
    }
}

impl Drop for SinkInner {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn new(spec: Spec, addresses: Addresses, dropped: Arc<AtomicU64>, totals: Arc<Totals>) -> Arc<Shared> {
        Arc::new(Shared {
            spec,
            queued: AtomicIsize::new(0),
            taken: AtomicUsize::new(0),
            delivering: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            wake_at: AtomicIsize::new(isize::MAX),
            wake_at_bytes: AtomicUsize::new(usize::MAX),
            waker: AtomicWaker::new(),
            reopen: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            dropped,
            totals,
            first: OnceLock::new(),
            addresses: Resolved::new(addresses),
        })
    }

    /// Entries that are queued or received.
    #[inline]
    fn waiting(&self) -> usize {
        self.queued.load(Ordering::Relaxed).max(0) as usize + self.taken.load(Ordering::Relaxed)
    }

    /// Whether this much more may wait.
    #[inline]
    fn has_room(&self, entries: usize, bytes: usize) -> bool {
        self.waiting() + entries <= self.spec.max_entries
            && self.bytes.load(Ordering::Relaxed) + bytes <= self.spec.max_bytes.min(self.totals.most / 4)
            && self.totals.bytes.load(Ordering::Relaxed) + bytes <= self.totals.most
    }

    pub(super) fn lost(&self, entries: usize) {
        self.dropped.fetch_add(entries as u64, Ordering::Relaxed);
    }

    pub(super) fn reopen(&self) {
        self.reopen.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Prepares the gateway's exit: queued entries are tried once.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.end();
    }

    /// Entries that are not being delivered yet.
    pub(super) fn gathered(&self) -> usize {
        self.waiting().saturating_sub(self.delivering.load(Ordering::Relaxed))
    }

    pub(super) fn set_addresses(&self, addresses: Addresses) {
        self.addresses.set(addresses);
    }
}

impl Intake {
    pub fn spec(&self) -> &Spec {
        &self.shared.spec
    }

    /// The servers' addresses, as last resolved.
    pub fn addresses(&self) -> Addresses {
        self.shared.addresses.now()
    }

    /// Returns the next item, if there is one.
    pub fn take(&self) -> Option<Next> {
        if self.shared.reopen.load(Ordering::Relaxed) && self.shared.reopen.swap(false, Ordering::SeqCst) {
            return Some(Next::Reopen);
        }
        // Read before the queue, so that entries queued before the end are not lost.
        let ended = self.shared.ended.load(Ordering::SeqCst);
        match self.from.try_recv() {
            Ok(packet) => {
                self.shared.taken.fetch_add(packet.entries, Ordering::Relaxed);
                self.shared.queued.fetch_sub(packet.entries as isize, Ordering::SeqCst);
                Some(Next::Entries(Taken { packet, shared: self.shared.clone() }))
            }
            Err(TryRecvError::Disconnected) => Some(Next::End),
            Err(TryRecvError::Empty) => ended.then_some(Next::End),
        }
    }

    /// Returns the next item; waits until as much as `room` is queued, the sink ends, or a file is
    /// to be reopened.
    pub fn poll_next(&self, cx: &mut Context<'_>, room: Room) -> Poll<Next> {
        if let Some(next) = self.take() {
            return Poll::Ready(next);
        }
        self.wake_at(cx.waker(), room);
        // Entries queued meanwhile may have found no waker.
        match self.take() {
            Some(next) => Poll::Ready(next),
            None => Poll::Pending,
        }
    }

    /// Registers the waker for when this much is queued.
    fn wake_at(&self, waker: &Waker, room: Room) {
        self.shared.waker.register(waker);
        self.shared.wake_at.store(isize::try_from(room.entries).unwrap_or(isize::MAX), Ordering::SeqCst);
        // Received entries that are not finished count as well.
        let bytes = self.shared.bytes.load(Ordering::SeqCst).saturating_add(room.bytes);
        self.shared.wake_at_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Whether the gateway exits and does not wait for long.
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::SeqCst)
    }

    /// Counts deliveries that began and ended.
    pub fn delivering(&self, began: usize, ended: usize) {
        self.shared.delivering.fetch_add(began, Ordering::Relaxed);
        self.shared.delivering.fetch_sub(ended, Ordering::Relaxed);
    }

    /// Counts entries that could not be delivered.
    pub fn lost(&self, entries: usize) {
        self.shared.lost(entries);
    }
}

impl Taken {
    pub fn bytes(&self) -> &[u8] {
        &self.packet.record.bytes
    }

    /// The value of this name; see [`Record::fields`].
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.packet.record.fields.iter();
        fields.find(|(field, _)| *field == name).map(|(_, value)| &value[..])
    }

    /// Bytes of the entries and of their fields.
    pub fn size(&self) -> usize {
        self.packet.record.size()
    }

    pub fn entries(&self) -> usize {
        self.packet.entries
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let (shared, size) = (&self.shared, self.size());
        shared.taken.fetch_sub(self.packet.entries, Ordering::Relaxed);
        shared.bytes.fetch_sub(size, Ordering::Relaxed);
        shared.totals.bytes.fetch_sub(size, Ordering::Relaxed);
        if let Some(back) = &self.packet.back {
            // The channel has room for all buffers in flight; the worker may have ended.
            let _ = back.try_send(std::mem::take(&mut self.packet.record.bytes));
        }
    }
}
