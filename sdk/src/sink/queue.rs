//! hot path
//!
//! The queue between workers and whoever delivers: many ends go in, one comes out, and going in never
//! waits. The one that takes out says how much must be there before it wants to be woken, so that a
//! batch costs a wake-up and not every entry of it.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{
    Receiver, SendError, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;

use super::registry::{Addresses, Start, Starter, Totals};
use super::{Bounds, Outlet, Spec};
use crate::exchange::Exchange;

/// Buffers of all workers that are under way.
const BUFFERS: usize = 1024;

/// The way in. Clones share it, and when the last one goes what was put in is delivered and the sink
/// closes.
#[derive(Debug, Clone)]
pub struct Sink(pub(super) Arc<Entrance>);

/// The other end, for the thread or task that delivers.
#[derive(Debug)]
pub struct Intake {
    from: Receiver<Parcel>,
    shared: Arc<Shared>,
    /// Wakes the thread that waits for it, if one does.
    pub(super) thread: OnceCell<Waker>,
}

/// What comes out.
#[derive(Debug)]
pub enum Next {
    Entries(Taken),
    /// Somebody called ([`Sink::call`]): a file is to be opened anew.
    Called,
    /// No more will come.
    End,
}

/// Entries that were taken out, and count as waiting until this is dropped.
#[derive(Debug)]
pub struct Taken {
    parcel: Parcel,
    shared: Arc<Shared>,
}

/// How much must be there before whoever delivers is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub entries: usize,
    pub bytes: usize,
}

/// Entries on their way: one of a plugin, or a worker's buffer of them.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) bytes: Vec<u8>,
    pub(super) entries: usize,
    /// Where the buffer is to be given back.
    pub(super) back: Option<SyncSender<Vec<u8>>>,
}

/// Dropped with the last [`Sink`].
#[derive(Debug)]
pub(super) struct Entrance {
    to: Way,
    pub(super) shared: Arc<Shared>,
    /// The intake, and whom to give it to when the first entry comes.
    starter: Starter,
}

#[derive(Debug)]
enum Way {
    /// For plugins, whose entries have bounds of their own. Takes memory as entries come.
    Entries(Sender<Parcel>),
    /// For buffers, of which there are few. All its memory is there from the start.
    Buffers(SyncSender<Parcel>),
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) spec: Spec,
    /// Entries in the queue. For a moment it may be one less than none: what takes out may be
    /// faster than whoever put in can count.
    queued: AtomicIsize,
    /// Entries that were taken out and are not done with.
    taken: AtomicUsize,
    /// Those of them that are being delivered.
    delivering: AtomicUsize,
    /// Bytes of both.
    bytes: AtomicUsize,
    wake_at: AtomicIsize,
    wake_at_bytes: AtomicUsize,
    waker: AtomicWaker,
    called: AtomicBool,
    ended: AtomicBool,
    stopping: AtomicBool,
    dropped: Arc<AtomicU64>,
    totals: Arc<Totals>,
    /// The route and the own address of the first request that was logged: labels of a metric.
    pub(super) first: OnceLock<(String, String)>,
    /// Where the server is, as last looked up.
    addresses: Addresses,
}

/// Makes both ends; the intake is handed to `start` when the first entry comes.
pub(super) fn new(
    spec: Spec,
    addresses: Arc<[SocketAddr]>,
    dropped: Arc<AtomicU64>,
    totals: Arc<Totals>,
    start: Option<Arc<Start>>,
) -> Sink {
    let (to, from) = channel();
    let shared = Shared::new(spec, addresses, dropped, totals);
    let starter = Starter::new(Intake { from, shared: shared.clone(), thread: OnceCell::new() }, start);
    Sink(Arc::new(Entrance { to: Way::Entries(to), shared, starter }))
}

/// Makes both ends of a sink that only [`Outlet`]s put into.
pub fn of_buffers(spec: Spec) -> (Sink, Intake) {
    let (to, from) = sync_channel(BUFFERS);
    let shared = Shared::new(spec, Arc::default(), Arc::default(), Arc::default());
    let intake = Intake { from, shared: shared.clone(), thread: OnceCell::new() };
    (Sink(Arc::new(Entrance { to: Way::Buffers(to), shared, starter: Starter::started() })), intake)
}

impl Sink {
    /// Puts in an entry of this exchange, or counts it as dropped if there is no room.
    pub fn push(&self, x: &Exchange<'_>, entry: Vec<u8>) {
        let shared = &self.0.shared;
        if shared.first.get().is_none() {
            let route = x.route().map(|route| route.id.to_string()).unwrap_or_default();
            // Whoever comes second is late.
            let _ = shared.first.set((route, x.client().local.ip().to_canonical().to_string()));
        }
        if !shared.has_room(1, entry.len()) {
            shared.lost(1);
            return;
        }
        if self.put(Parcel { bytes: entry, entries: 1, back: None }).is_err() {
            shared.lost(1);
        }
    }

    /// A worker's own buffer in front of it.
    pub fn outlet(&self, bounds: Bounds) -> Outlet {
        Outlet::new(self.clone(), bounds)
    }

    /// Entries that were dropped, of this and of all other sinks of its plugin.
    pub fn dropped(&self) -> u64 {
        self.0.shared.dropped.load(Ordering::Relaxed)
    }

    /// Makes the other side see [`Next::Called`] soon.
    pub fn call(&self) {
        self.0.shared.call();
    }

    /// No more will come: the other side delivers what is here and ends.
    pub fn end(&self) {
        self.0.shared.end();
    }

    /// # Errors
    /// Nobody is there to take it.
    pub(super) fn put(&self, parcel: Parcel) -> Result<(), Parcel> {
        let (entries, bytes) = (parcel.entries, parcel.bytes.len());
        let shared = &self.0.shared;
        if !self.0.starter.has_started() && !self.0.starter.start() {
            return Err(parcel);
        }
        shared.totals.bytes.fetch_add(bytes, Ordering::Relaxed);
        let all = shared.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Err(refused) = self.0.to.send(parcel) {
            shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
            shared.totals.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(refused);
        }
        // Counted behind the sending: who is woken by it finds what it was woken for.
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

impl Way {
    fn send(&self, parcel: Parcel) -> Result<(), Parcel> {
        match self {
            Way::Entries(to) => to.send(parcel).map_err(|SendError(parcel)| parcel),
            Way::Buffers(to) => to.try_send(parcel).map_err(|refused| match refused {
                TrySendError::Full(parcel) | TrySendError::Disconnected(parcel) => parcel,
            }),
        }
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn new(
        spec: Spec,
        addresses: Arc<[SocketAddr]>,
        dropped: Arc<AtomicU64>,
        totals: Arc<Totals>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            spec,
            queued: AtomicIsize::new(0),
            taken: AtomicUsize::new(0),
            delivering: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            wake_at: AtomicIsize::new(isize::MAX),
            wake_at_bytes: AtomicUsize::new(usize::MAX),
            waker: AtomicWaker::new(),
            called: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            dropped,
            totals,
            first: OnceLock::new(),
            addresses: Addresses::new(addresses),
        })
    }

    /// Whether so much more may wait.
    #[inline]
    fn has_room(&self, entries: usize, bytes: usize) -> bool {
        let waiting =
            self.queued.load(Ordering::Relaxed).max(0) as usize + self.taken.load(Ordering::Relaxed);
        waiting + entries <= self.spec.max_entries
            && self.bytes.load(Ordering::Relaxed) + bytes <= self.spec.max_bytes.min(self.totals.most / 4)
            && self.totals.bytes.load(Ordering::Relaxed) + bytes <= self.totals.most
    }

    pub(super) fn lost(&self, entries: usize) {
        self.dropped.fetch_add(entries as u64, Ordering::Relaxed);
    }

    pub(super) fn call(&self) {
        self.called.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// The gateway ends: what is here gets one try.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.end();
    }

    /// Entries that are in no delivery yet.
    pub(super) fn gathered(&self) -> usize {
        let waiting =
            self.queued.load(Ordering::Relaxed).max(0) as usize + self.taken.load(Ordering::Relaxed);
        waiting.saturating_sub(self.delivering.load(Ordering::Relaxed))
    }

    pub(super) fn set_addresses(&self, addresses: Arc<[SocketAddr]>) {
        self.addresses.set(addresses);
    }
}

impl Intake {
    pub fn spec(&self) -> &Spec {
        &self.shared.spec
    }

    /// Where the server is, as last looked up.
    pub fn addresses(&self) -> Arc<[SocketAddr]> {
        self.shared.addresses.now()
    }

    /// What is there now.
    pub fn take(&self) -> Option<Next> {
        if self.shared.called.load(Ordering::Relaxed) && self.shared.called.swap(false, Ordering::SeqCst) {
            return Some(Next::Called);
        }
        // Looked at before the queue: what was put in before the end is not left behind.
        let ended = self.shared.ended.load(Ordering::SeqCst);
        match self.from.try_recv() {
            Ok(parcel) => {
                self.shared.taken.fetch_add(parcel.entries, Ordering::Relaxed);
                self.shared.queued.fetch_sub(parcel.entries as isize, Ordering::SeqCst);
                Some(Next::Entries(Taken { parcel, shared: self.shared.clone() }))
            }
            Err(TryRecvError::Disconnected) => Some(Next::End),
            Err(TryRecvError::Empty) => ended.then_some(Next::End),
        }
    }

    /// Waits until there is something, and before that until so much is there, the sink ends, or
    /// somebody calls.
    pub fn poll_next(&self, cx: &mut Context<'_>, room: Room) -> Poll<Next> {
        if let Some(next) = self.take() {
            return Poll::Ready(next);
        }
        self.wake_at(cx.waker(), room);
        // What came meanwhile may have found nobody to wake.
        match self.take() {
            Some(next) => Poll::Ready(next),
            None => Poll::Pending,
        }
    }

    /// The waker is woken once so much is in the queue.
    fn wake_at(&self, waker: &Waker, room: Room) {
        self.shared.waker.register(waker);
        self.shared.wake_at.store(isize::try_from(room.entries).unwrap_or(isize::MAX), Ordering::SeqCst);
        // Those that were taken out count as well, until they are done with.
        let bytes = self.shared.bytes.load(Ordering::SeqCst).saturating_add(room.bytes);
        self.shared.wake_at_bytes.store(bytes, Ordering::SeqCst);
    }

    /// The gateway ends, and does not wait for long.
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::SeqCst)
    }

    /// Counts entries as being delivered, or as no longer so.
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
        &self.parcel.bytes
    }

    pub fn entries(&self) -> usize {
        self.parcel.entries
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.taken.fetch_sub(self.parcel.entries, Ordering::Relaxed);
        shared.bytes.fetch_sub(self.parcel.bytes.len(), Ordering::Relaxed);
        shared.totals.bytes.fetch_sub(self.parcel.bytes.len(), Ordering::Relaxed);
        if let Some(back) = &self.parcel.back {
            // There is room for all that are under way; the worker may have ended.
            let _ = back.try_send(std::mem::take(&mut self.parcel.bytes));
        }
    }
}
