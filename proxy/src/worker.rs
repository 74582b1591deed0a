//! A worker: one thread with all it needs to serve.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::task::Poll;
use std::time::Duration;

use sdk::budget::Budget;
use sdk::meters::Shard;
use sdk::state::WorkerStates;
use sdk::world::{Fetch, FetchError, Fetched};
use sdk::{Client, Exchange, World};
use snapshot::balance::BalanceState;
use snapshot::{Reader, Snapshot, Upstream};

use crate::accept::accept;
use crate::access_log::AccessLog;
use crate::buffers::Buffers;
use crate::clock::{Clock, TICK};
use crate::consumer_chains::ConsumerChains;
use crate::exchange::Scratch;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::fault_log::record;
use crate::fetch::{self, Fetches};
use crate::notice::Notices;
use crate::settings::Settings;
use crate::up::pool::Pools;
use crate::workers::{Stage, Watch};
use crate::{down, rt};

/// What a worker is started with.
pub(crate) struct Start {
    pub(crate) index: usize,
    pub(crate) settings: Arc<Settings>,
    pub(crate) sockets: Vec<TcpListener>,
    pub(crate) reader: Reader,
    pub(crate) shard: Shard,
    pub(crate) signal: rt::Signal,
    /// Moves when a worker has run out of descriptors and has nothing to close for them.
    pub(crate) pressure: Arc<AtomicU64>,
    pub(crate) watch: Watch,
    /// Told once the worker serves, and dropped.
    pub(crate) ready: Sender<()>,
}

/// What the tasks of one worker share. Never leaves its thread.
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) settings: Arc<Settings>,
    reader: RefCell<Reader>,
    lease: RefCell<Rc<Lease>>,
    pub(crate) clock: Rc<Clock>,
    pub(crate) buffers: Buffers,
    pub(crate) pools: Pools,
    pub(crate) budget: Budget,
    /// A second of the clock, and what stages had to complain about in it.
    complaints: Cell<(u64, u32)>,
    // Boxed: it is lent out and given back by moving a pointer.
    #[allow(clippy::vec_box)]
    scratch: RefCell<Vec<Box<Scratch>>>,
    /// The least that was spare since memory was last given back.
    scratch_unused: Cell<usize>,
    balance: RefCell<Vec<Option<Balance>>>,
    pub(crate) consumer_chains: ConsumerChains,
    /// What plugins remember here.
    states: WorkerStates,
    pub(crate) shard: Shard,
    pub(crate) access_log: Option<AccessLog>,
    stage: Cell<Stage>,
    /// When connections between two requests are closed, for the stop; none are before it.
    idle_until: Cell<u64>,
    connections: Cell<usize>,
    pub(crate) fetches: Fetches,
    pub(crate) notices: Notices,
    pressure: Arc<AtomicU64>,
    pressure_seen: Cell<u64>,
    watch: Watch,
    date: RefCell<Date>,
    /// For tasks that outlive an exchange and need the worker.
    me: RefCell<std::rc::Weak<Worker>>,
}

/// A worker's hold on a snapshot, counted on this thread alone: exchanges of several
/// workers would otherwise fight over the one shared count.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Snapshot>);

impl std::ops::Deref for Lease {
    type Target = Snapshot;
    #[inline]
    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

struct Balance {
    upstream: Arc<Upstream>,
    state: BalanceState,
}

/// Complaints of stages a worker tells of.
const COMPLAINTS_A_SECOND: u32 = 5;

/// The `Date` line, made once a second.
struct Date {
    second: u64,
    text: [u8; 29],
}

/// Serves until the signal says to stop, and all has ended or was given up.
pub(crate) async fn serve(start: Start) -> io::Result<()> {
    let Start { index, settings, sockets, reader, shard, mut signal, pressure, watch, ready } = start;
    let worker = Worker::new(index, settings, reader, shard, pressure, watch);
    for socket in sockets {
        let local = socket.local_addr()?;
        let listener = Rc::new(rt::Listener::new(socket)?);
        let signal = signal.clone();
        worker.keep(0, move |worker| accept(worker, listener.clone(), local, signal.clone()));
    }
    // Nobody listens if the start was given up meanwhile.
    let _ = ready.send(());
    drop(ready);
    if *signal.borrow_and_update() == Stage::Run {
        worker.stage.set(rt::changed(&mut signal).await);
    }
    worker.stage.set(Stage::Drain.max(*signal.borrow()));
    let grace = worker.clock.after(worker.settings.idle_grace);
    worker.idle_until.set(grace);
    let deadline = worker.clock.after(worker.settings.drain_timeout);
    let mut idle_told = false;
    while worker.connections.get() > 0 && !worker.clock.is_over(deadline) && worker.stage.get() != Stage::Stop
    {
        rt::sleep(Duration::from_millis(10)).await;
        worker.stage.set(Stage::Drain.max(*signal.borrow()));
        if !idle_told && worker.clock.is_over(grace) {
            // Idle connections look at the time when woken, and close.
            worker.clock.wake_all();
            idle_told = true;
        }
    }
    if let Some(log) = &worker.access_log {
        log.flush();
    }
    Ok(())
}

/// The worker's own timer: deadlines, the access log, idle upstream connections, spare memory, what is to be told.
async fn tick(worker: Rc<Worker>) {
    let mut ticks = 0u32;
    let flush = worker.settings.access_log.as_ref().map_or(TICK, |log| log.flush);
    let flush = u32::try_from(flush.as_millis() / TICK.as_millis()).unwrap_or(u32::MAX).max(1);
    loop {
        rt::sleep(TICK).await;
        #[cfg(test)]
        tests::maybe_panic(&worker.settings, "tick");
        if worker.clock.advance() {
            // What a deadline is about may have come meanwhile, and lie with the kernel: it tells
            // of so many events at once.
            for _ in 0..=worker.clock.waiters() / rt::EVENTS {
                rt::events().await;
            }
        }
        worker.clock.strike();
        worker.watch.member(worker.index).ticks.fetch_add(1, Ordering::Relaxed);
        worker.yield_descriptors();
        ticks = ticks.wrapping_add(1);
        if let Some(log) = &worker.access_log
            && ticks.is_multiple_of(flush)
        {
            log.flush();
        }
        if ticks.is_multiple_of(20) {
            worker.pools.sweep(worker.clock.coarse_ms());
            worker.tell();
        }
        if ticks.is_multiple_of(200) {
            worker.buffers.shrink();
            worker.shrink_scratch();
        }
    }
}

/// Takes a new snapshot at once, also when no request comes.
async fn follow(worker: Rc<Worker>) {
    loop {
        std::future::poll_fn(|cx| worker.reader.borrow().poll_stale(cx)).await;
        drop(worker.lease());
    }
}

impl Worker {
    /// A worker on this thread, with the tasks that keep it going.
    pub(crate) fn new(
        index: usize,
        settings: Arc<Settings>,
        mut reader: Reader,
        shard: Shard,
        pressure: Arc<AtomicU64>,
        watch: Watch,
    ) -> Rc<Worker> {
        let clock = Clock::new();
        let worker = Rc::new(Worker {
            index,
            lease: RefCell::new(Rc::new(Lease(reader.current().clone()))),
            reader: RefCell::new(reader),
            buffers: Buffers::new(settings.spare_buffers),
            pools: Pools::new(settings.max_idle_upstreams),
            budget: Budget::new(settings.held_bodies),
            complaints: Cell::default(),
            scratch: RefCell::default(),
            scratch_unused: Cell::new(0),
            balance: RefCell::default(),
            consumer_chains: ConsumerChains::default(),
            states: WorkerStates::default(),
            shard,
            access_log: settings.access_log.as_ref().map(AccessLog::new),
            stage: Cell::new(Stage::Run),
            idle_until: Cell::new(u64::MAX),
            connections: Cell::new(0),
            fetches: Fetches::default(),
            notices: Notices::default(),
            pressure_seen: Cell::new(pressure.load(Ordering::Relaxed)),
            pressure,
            watch,
            date: RefCell::new(Date { second: 0, text: [b' '; 29] }),
            me: RefCell::default(),
            clock,
            settings,
        });
        *worker.me.borrow_mut() = Rc::downgrade(&worker);
        worker.keep(1, tick);
        worker.keep(2, follow);
        worker
    }

    /// Runs one of the worker's own tasks (of [`crate::notice::OWN_TASKS`]). A panic in it is counted and told, and
    /// the task begins anew: without it, the worker would seem to serve and do so no more.
    fn keep<F: Future<Output = ()> + 'static>(
        self: &Rc<Worker>,
        task: usize,
        mut make: impl FnMut(Rc<Worker>) -> F + 'static,
    ) {
        let worker = self.clone();
        rt::spawn(async move {
            loop {
                let mut running = Box::pin(make(worker.clone()));
                let ended = std::future::poll_fn(|cx| {
                    match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
                        Ok(polled) => polled.map(|()| true),
                        Err(_) => Poll::Ready(false),
                    }
                });
                if ended.await {
                    break;
                }
                worker.shard.panicked();
                worker.notices.panicked(task);
                // What panics at once again shall not take all of the worker's time.
                rt::sleep(TICK).await;
            }
        });
    }

    /// Tells what has been counted, for the log.
    fn tell(&self) {
        let tell = |notice| (self.settings.on_notice)(self.index, notice);
        self.notices.tell(self.settings.max_connections, tell);
        self.fetches.tell(&self.settings, tell);
    }

    /// Closes idle connections to upstreams when another worker has no descriptors left.
    fn yield_descriptors(&self) {
        let pressure = self.pressure.load(Ordering::Relaxed);
        if self.pressure_seen.replace(pressure) != pressure {
            self.close_idle_upstreams(self.pools.len().div_ceil(4));
        }
    }

    /// Asks the other workers for descriptors.
    pub(crate) fn ask_for_descriptors(&self) {
        self.pressure.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.set(stage);
    }

    #[cfg(feature = "testing")]
    pub(crate) fn connections(&self) -> usize {
        self.connections.get()
    }

    /// It holds as many connections as it may.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.connections.get() >= self.settings.max_connections
    }

    pub(crate) fn begin(self: &Rc<Worker>, stream: rt::Stream, peer: SocketAddr, listener: SocketAddr) {
        // The listener's own address says enough unless it is a wildcard.
        let local =
            if listener.ip().is_unspecified() { stream.local_addr().unwrap_or(listener) } else { listener };
        let client = Client::new(peer, local, false);
        self.hold(move |worker| down::h1::serve(worker, rt::Io::Plain(stream), client));
    }

    /// Refuses a connection that has waited too long.
    pub(crate) fn turn_away(self: &Rc<Worker>, stream: rt::Stream, client: Client) {
        self.hold(move |worker| down::h1::turn_away(worker, rt::Io::Plain(stream), client));
    }

    /// Gives a connection its task, and counts it for as long as that runs.
    pub(crate) fn hold<F: Future<Output = ()> + 'static>(
        self: &Rc<Worker>,
        serve: impl FnOnce(Rc<Worker>) -> F + 'static,
    ) {
        self.connections.set(self.connections.get() + 1);
        self.shard.connection_opened();
        let worker = self.clone();
        let guard = Connected(self.clone());
        rt::spawn(async move {
            let _guard = guard;
            serve(worker).await;
        });
    }

    /// The current snapshot, held for one exchange.
    #[inline]
    pub(crate) fn lease(&self) -> Rc<Lease> {
        if self.reader.borrow().is_stale() {
            // What went with the snapshots before this one is not needed any more.
            self.states.sweep();
            *self.lease.borrow_mut() = Rc::new(Lease(self.reader.borrow_mut().current().clone()));
        }
        self.lease.borrow().clone()
    }

    /// Every request is the last on its connection.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.stage.get() != Stage::Run
    }

    /// Connections between two requests are to be closed now.
    #[inline]
    pub(crate) fn closes_idle(&self) -> bool {
        self.clock.is_over(self.idle_until.get())
    }

    #[inline]
    pub(crate) fn take_scratch(&self) -> Box<Scratch> {
        let mut spare = self.scratch.borrow_mut();
        let scratch = spare.pop().unwrap_or_default();
        self.scratch_unused.set(self.scratch_unused.get().min(spare.len()));
        scratch
    }

    /// Frees half of what was never needed since the last time.
    fn shrink_scratch(&self) {
        let mut spare = self.scratch.borrow_mut();
        let keep = spare.len() - self.scratch_unused.get().div_ceil(2).min(spare.len());
        spare.truncate(keep);
        self.scratch_unused.set(keep);
    }

    #[inline]
    pub(crate) fn give_scratch(&self, mut scratch: Box<Scratch>) {
        scratch.clear();
        let mut spare = self.scratch.borrow_mut();
        if spare.len() < self.settings.spare_buffers {
            spare.push(scratch);
        }
    }

    /// The worker's balancing state of an upstream, to choose from it: carried over when the
    /// upstream changed.
    #[inline]
    pub(crate) fn with_balance<T>(
        &self,
        upstream: &Arc<Upstream>,
        f: impl FnOnce(&mut BalanceState) -> T,
    ) -> T {
        let mut entry = self.balance_of(upstream);
        if !Arc::ptr_eq(&entry.upstream, upstream) {
            let balance = &mut *entry;
            balance.state.carry(&balance.upstream, upstream);
            balance.upstream = upstream.clone();
        }
        f(&mut entry.state)
    }

    /// The same, to tell of a try. The exchange may be on an older snapshot than others that use
    /// the state; what it tells counts for theirs, too.
    #[inline]
    pub(crate) fn with_score(&self, upstream: &Arc<Upstream>, f: impl FnOnce(&mut BalanceState)) {
        f(&mut self.balance_of(upstream).state);
    }

    #[inline]
    fn balance_of(&self, upstream: &Arc<Upstream>) -> RefMut<'_, Balance> {
        let slot = upstream.slot as usize;
        RefMut::map(self.balance.borrow_mut(), |all| {
            if slot >= all.len() {
                all.resize_with(slot + 1, || None);
            }
            all[slot].get_or_insert_with(|| Balance { upstream: upstream.clone(), state: upstream.state() })
        })
    }

    /// The current `Date` (RFC 9110 section 6.6.1), at most a tick behind.
    #[inline]
    pub(crate) fn write_date(&self, out: &mut Vec<u8>) {
        let second = self.clock.coarse_unix_ms() / 1000;
        let mut date = self.date.borrow_mut();
        if date.second != second {
            date.second = second;
            date.text = wire::h1::encode::date(second);
        }
        out.extend_from_slice(&date.text);
    }

    pub(crate) fn strong(&self) -> Option<Rc<Worker>> {
        self.me.borrow().upgrade()
    }
}

/// Counts a connection until its task ends, however it ends.
struct Connected(Rc<Worker>);

impl Drop for Connected {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shard.panicked();
        }
        self.0.connections.set(self.0.connections.get() - 1);
        self.0.shard.connection_closed();
    }
}

impl World for Worker {
    fn worker(&self) -> usize {
        self.index
    }

    fn now_ms(&self) -> u64 {
        self.clock.unix_ms(self.clock.micros())
    }

    fn sleep(&self, time: Duration) -> sdk::chain::LocalFuture<'static, ()> {
        Box::pin(rt::sleep(time))
    }

    fn fetch(&self, request: Fetch) -> sdk::chain::LocalFuture<'static, Result<Fetched, FetchError>> {
        let worker = self.strong();
        Box::pin(async move {
            // A worker that is gone has no exchanges that could wait.
            let worker = worker.ok_or(FetchError::Broken)?;
            fetch::run(&worker, request).await
        })
    }

    fn dispatch(
        &self,
        client: &Client,
        request: Fetch,
    ) -> sdk::chain::LocalFuture<'static, Result<Fetched, FetchError>> {
        let (worker, client) = (self.strong(), client.within());
        Box::pin(async move {
            let worker = worker.ok_or(FetchError::Broken)?;
            fetch::dispatch(&worker, client, request).await
        })
    }

    fn send(&self, request: Fetch) {
        if let Some(permit) = self.permit_fetch(&request.target.authority) {
            rt::spawn(permit.run(request));
        }
    }

    fn states(&self) -> &WorkerStates {
        &self.states
    }

    fn meters(&self) -> &Shard {
        &self.shard
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn complain(&self, x: &Exchange<'_>, plugin: &'static str, reason: &'static str) {
        let second = self.clock.coarse_ms() / 1000;
        let (last, told) = self.complaints.get();
        let told = if last == second { told + 1 } else { 1 };
        self.complaints.set((second, told));
        if told <= COMPLAINTS_A_SECOND {
            let fault = Fault::gateway(FaultKind::Skipped { plugin, reason });
            (self.settings.on_fault)(record(self, x, fault));
        }
    }

    fn bounds(&self) -> sdk::Bounds {
        self.settings.bounds
    }
}

#[cfg(test)]
pub(crate) mod tests;
