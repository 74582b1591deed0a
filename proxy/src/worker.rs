//! Workers: one thread each, with all it needs to serve.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sdk::meters::{Meters, Shard};
use sdk::world::{Fetch, FetchError, Fetched};
use sdk::{Client, World};
use snapshot::balance::BalanceState;
use snapshot::{Reader, Snapshot, Upstream};

use crate::buffers::Buffers;
use crate::clock::{Clock, TICK};
use crate::consumer_chains::ConsumerChains;
use crate::exchange::Scratch;
use crate::queue::Queue;
use crate::settings::Settings;
use crate::up::pool::Pools;
use crate::{down, rt};

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    #[default]
    Run,
    /// No new connections; exchanges in flight end, each the last on its connection. Connections
    /// that bring no request for a while are closed.
    Drain,
    /// Everything ends now.
    Stop,
}

/// All workers of the process.
#[derive(Debug)]
pub struct Workers {
    stage: rt::Signaller,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Workers {
    /// Opens one set of listening sockets for each reader, so that an address in use is
    /// known before anything starts. The error names the address.
    pub fn listen(
        settings: &Settings,
        workers: usize,
    ) -> Result<Vec<Vec<TcpListener>>, (SocketAddr, io::Error)> {
        (0..workers)
            .map(|_| {
                settings
                    .listen
                    .iter()
                    .map(|&addr| rt::listen(addr, settings.backlog).map_err(|error| (addr, error)))
                    .collect()
            })
            .collect()
    }

    /// Starts a worker for each reader and its set of listening sockets.
    pub fn start(
        settings: Arc<Settings>,
        sockets: Vec<Vec<TcpListener>>,
        readers: Vec<Reader>,
        meters: &Arc<Meters>,
    ) -> io::Result<Workers> {
        let stage = rt::signaller();
        let mut threads = Vec::new();
        for (index, (sockets, reader)) in sockets.into_iter().zip(readers).enumerate() {
            let settings = settings.clone();
            let signal = stage.subscribe();
            let shard = meters.shard(index);
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                rt::run(settings.engine, serve(index, settings, sockets, reader, shard, signal))?
            })?;
            threads.push(thread);
        }
        Ok(Workers { stage, threads })
    }

    /// Tells all workers; returns at once.
    pub fn set_stage(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }

    /// All workers have ended.
    pub fn finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for all workers to end.
    pub fn join(self) -> io::Result<()> {
        for thread in self.threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => return Err(io::Error::other("a worker thread panicked")),
            }
        }
        Ok(())
    }
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
    // Boxed: it is lent out and given back by moving a pointer.
    #[allow(clippy::vec_box)]
    scratch: RefCell<Vec<Box<Scratch>>>,
    balance: RefCell<Vec<Option<Balance>>>,
    pub(crate) consumer_chains: ConsumerChains,
    pub(crate) shard: Shard,
    stage: Cell<Stage>,
    /// When connections between two requests are closed, for the stop; none are before it.
    idle_until: Cell<u64>,
    connections: Cell<usize>,
    fetches: Cell<usize>,
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

/// The `Date` line, made once a second.
struct Date {
    second: u64,
    text: [u8; 29],
}

async fn serve(
    index: usize,
    settings: Arc<Settings>,
    sockets: Vec<TcpListener>,
    mut reader: Reader,
    shard: Shard,
    mut signal: rt::Signal,
) -> io::Result<()> {
    let clock = Clock::new();
    let worker = Rc::new(Worker {
        index,
        lease: RefCell::new(Rc::new(Lease(reader.current().clone()))),
        reader: RefCell::new(reader),
        buffers: Buffers::new(settings.spare_buffers),
        pools: Pools::default(),
        scratch: RefCell::default(),
        balance: RefCell::default(),
        consumer_chains: ConsumerChains::default(),
        shard,
        stage: Cell::new(Stage::Run),
        idle_until: Cell::new(u64::MAX),
        connections: Cell::new(0),
        fetches: Cell::new(0),
        date: RefCell::new(Date { second: 0, text: [b' '; 29] }),
        me: RefCell::default(),
        clock,
        settings,
    });
    *worker.me.borrow_mut() = Rc::downgrade(&worker);
    for socket in sockets {
        let local = socket.local_addr()?;
        rt::spawn(accept(worker.clone(), rt::Listener::new(socket)?, local, signal.clone()));
    }
    rt::spawn(tick(worker.clone()));
    rt::spawn(follow(worker.clone()));
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
    Ok(())
}

impl PartialOrd for Stage {
    fn partial_cmp(&self, other: &Stage) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Stage {
    fn cmp(&self, other: &Stage) -> std::cmp::Ordering {
        (*self as u8).cmp(&(*other as u8))
    }
}

/// What a listener may do before everything else that is ready gets its turn: take eight
/// connections, or refuse as many more as cost the same.
const TURN: u32 = 64;
const TO_TAKE: u32 = 8;
const TO_REFUSE: u32 = 1;

/// Takes connections while there is room for them.
async fn accept(worker: Rc<Worker>, listener: rt::Listener, local: SocketAddr, mut signal: rt::Signal) {
    let mut queue = Queue::new(worker.settings.queue_limit);
    let mut done_this_turn = 0;
    loop {
        if worker.connections.get() >= worker.settings.max_connections {
            queue.emptied();
            rt::sleep(TICK).await;
        } else {
            let taken = match listener.accept_now() {
                Some(taken) => Ok(taken),
                None => {
                    queue.emptied();
                    let accepted = std::pin::pin!(listener.accept());
                    let stopped = std::pin::pin!(rt::changed(&mut signal));
                    rt::either(accepted, stopped).await
                }
            };
            match taken {
                Ok(Ok((stream, peer))) => {
                    if queue.refuses(|| stream.waited_ms(), worker.clock.coarse_ms()) {
                        worker.turn_away(stream, Client::new(peer, local, false));
                        done_this_turn += TO_REFUSE;
                    } else {
                        worker.begin(stream, peer, local);
                        done_this_turn += TO_TAKE;
                    }
                    // A few a turn: a worker with more to do than it can must first finish what
                    // it has begun. What waits meanwhile waits with the kernel, which refuses when
                    // its queue is full; taken all at once, every request would wait several
                    // times behind all others, and few would end before their clients give up.
                    if done_this_turn >= TURN {
                        done_this_turn = 0;
                        rt::turn().await;
                    }
                }
                Ok(Err(error)) => {
                    queue.emptied();
                    worker.accept_failed(&error).await;
                }
                Err(_) => break,
            }
        }
        if worker.stage.get() != Stage::Run {
            break;
        }
    }
    // What the kernel has queued on this socket would be reset with it.
    while let Some(Ok((stream, peer))) = listener.accept_now() {
        worker.begin(stream, peer, local);
    }
}

/// The worker's own timer: deadlines, idle upstream connections, spare memory.
async fn tick(worker: Rc<Worker>) {
    let mut ticks = 0u32;
    loop {
        rt::sleep(TICK).await;
        worker.clock.tick();
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(20) {
            worker.pools.sweep(worker.clock.coarse_ms());
        }
        if ticks.is_multiple_of(200) {
            worker.buffers.shrink();
            let mut scratch = worker.scratch.borrow_mut();
            let keep = scratch.len() / 2;
            scratch.truncate(keep);
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
    fn begin(self: &Rc<Worker>, stream: rt::Stream, peer: SocketAddr, listener: SocketAddr) {
        // The listener's own address says enough unless it is a wildcard.
        let local =
            if listener.ip().is_unspecified() { stream.local_addr().unwrap_or(listener) } else { listener };
        let client = Client::new(peer, local, false);
        self.hold(move |worker| down::h1::serve(worker, stream, client));
    }

    /// Refuses a connection that has waited too long.
    fn turn_away(self: &Rc<Worker>, stream: rt::Stream, client: Client) {
        self.hold(move |worker| down::h1::turn_away(worker, stream, client));
    }

    /// Gives a connection its task, and counts it for as long as that runs.
    fn hold<F: Future<Output = ()> + 'static>(
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

    /// Out of descriptors or memory: wait for some to come free, and keep serving what is
    /// here. Anything else was one client's own failure.
    async fn accept_failed(&self, error: &io::Error) {
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        const ENOBUFS: i32 = 105;
        const ENOMEM: i32 = 12;
        if matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM)) {
            rt::sleep(TICK).await;
        }
    }

    /// The current snapshot, held for one exchange.
    #[inline]
    pub(crate) fn lease(&self) -> Rc<Lease> {
        if self.reader.borrow().is_stale() {
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
        self.scratch.borrow_mut().pop().unwrap_or_default()
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
        let second = self.clock.unix_ms(self.clock.coarse_ms() * 1000) / 1000;
        let mut date = self.date.borrow_mut();
        if date.second != second {
            date.second = second;
            date.text = wire::h1::encode::date(second);
        }
        out.extend_from_slice(&date.text);
    }

    fn strong(&self) -> Option<Rc<Worker>> {
        self.me.borrow().upgrade()
    }

    fn fetch_bounded(&self) -> Option<FetchPermit> {
        let worker = self.strong()?;
        if self.fetches.get() >= self.settings.max_fetches {
            return None;
        }
        self.fetches.set(self.fetches.get() + 1);
        Some(FetchPermit(worker))
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

/// Counts a stage's own request until it is over.
pub(crate) struct FetchPermit(pub(crate) Rc<Worker>);

impl Drop for FetchPermit {
    fn drop(&mut self) {
        self.0.fetches.set(self.0.fetches.get() - 1);
    }
}

impl World for Worker {
    fn worker(&self) -> usize {
        self.index
    }

    fn now_ms(&self) -> u64 {
        self.clock.unix_ms(self.clock.micros())
    }

    fn fetch(&self, request: Fetch) -> sdk::chain::LocalFuture<'static, Result<Fetched, FetchError>> {
        let permit = self.fetch_bounded();
        Box::pin(async move {
            let permit = permit.ok_or(FetchError::TooMany)?;
            crate::fetch::run(&permit.0, request).await
        })
    }

    fn send(&self, request: Fetch) {
        match self.fetch_bounded() {
            Some(permit) => rt::spawn(async move {
                // The answer does not matter to whoever sent it.
                let _ = crate::fetch::run(&permit.0, request).await;
            }),
            None => self.shard.fetch_dropped(),
        }
    }

    fn meters(&self) -> &Shard {
        &self.shard
    }
}
