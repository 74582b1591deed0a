//! A worker: one thread with all it needs to serve.

mod clients;
mod run;
pub(crate) mod shed;
mod world;

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use hashbrown::HashMap;
use sdk::Client;
use sdk::budget::Budget;
use sdk::meters::Shard;
use sdk::state::WorkerStates;
use snapshot::balance::BalanceState;
use snapshot::{RUNTIME_SLOT, Reader, Snapshot, Upstream};
use wire::Fields;

use crate::access_log::AccessLog;
use crate::buffers::{Buffers, SPARE};
use crate::clock::Clock;
use crate::consumer_chains::ConsumerChains;
use crate::exchange::Scratch;
use crate::fetch::Fetches;
use crate::in_use::InUse;
use crate::names::Names;
use crate::notice::Notices;
use crate::settings::Settings;
use crate::stage::Stage;
use crate::up::links::Links;
use crate::up::pool::Pools;
use crate::up::tls::Sessions;
use crate::watch::Watch;

pub(crate) use run::{Handed, Start, serve};

/// Upstreams made by plugins whose state one worker keeps.
const MOST_RUNTIME_UPSTREAMS: usize = 1024;

/// State that the tasks of one worker share. Never leaves its thread.
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) settings: Arc<Settings>,
    reader: RefCell<Reader>,
    lease: RefCell<Rc<Lease>>,
    pub(crate) clock: Rc<Clock>,
    pub(crate) buffers: Buffers,
    pub(crate) pools: Pools,
    pub(crate) links: Links,
    /// Connections that are opened ahead.
    pub(crate) warming: Rc<Cell<usize>>,
    pub(crate) tls_sessions: Sessions,
    pub(crate) budget: Budget,
    /// The bytes that the receive windows of clients' connections may promise.
    pub(crate) windows: Budget,
    /// The same for windows of connections to servers.
    pub(crate) upstream_windows: Budget,
    /// The bytes of responses that may wait for HTTP/2 and HTTP/3 clients.
    pub(crate) send_windows: Budget,
    /// A second of the clock, and what stages had to complain about in it.
    complaints: Cell<(u64, u32)>,
    #[allow(clippy::vec_box, reason = "lent out and given back by moving a pointer")]
    scratch: RefCell<Vec<Box<Scratch>>>,
    /// The least that was spare since memory was last given back.
    scratch_unused: Cell<usize>,
    /// Of [`Worker::take_head`].
    heads: RefCell<Vec<Fields>>,
    balance: RefCell<Vec<Option<Balance>>>,
    /// Of upstreams that plugins have made, by their slots.
    runtime_balance: RefCell<HashMap<u32, Balance>>,
    /// State that plugins keep on this worker.
    states: WorkerStates,
    pub(crate) shard: Shard,
    pub(crate) tap: sdk::tap::Outlet,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) stream_log: Option<AccessLog>,
    /// The consumers of streams, which have none.
    pub(crate) nobody: sdk::Consumers,
    stage: Cell<Stage>,
    /// When connections between two requests are closed, for the stop; none are before it.
    idle_until: Cell<u64>,
    /// When tunnels are asked to end; never before the stop.
    pub(crate) tunnels_until: Cell<u64>,
    connections: Cell<usize>,
    /// Until when idle clients that give way may take to end.
    room_by: Cell<u64>,
    pub(crate) udp_sessions: Cell<usize>,
    /// Bytes of datagrams that wait until their session has a server.
    pub(crate) udp_waiting: Cell<usize>,
    pub(crate) fetches: Fetches,
    /// Raw connections of plugins, and their tasks.
    pub(crate) raw: InUse,
    pub(crate) tasks: InUse,
    pub(crate) names: Rc<Names>,
    pub(crate) notices: Notices,
    pressure: Arc<AtomicU64>,
    pressure_seen: Cell<u64>,
    watch: Watch,
    /// Its listening sockets, as long as they are open, and who is sent copies of them.
    listening: RefCell<Vec<std::rc::Weak<dyn Handed>>>,
    copies: RefCell<Option<Sender<io::Result<Vec<OwnedFd>>>>>,
    date: RefCell<Date>,
    /// Values of `Alt-Svc`, by port.
    alt_svc: Box<[(u16, Box<[u8]>)]>,
    /// For tasks that outlive an exchange and need the worker.
    me: std::rc::Weak<Worker>,
}

/// A worker's hold on a snapshot, counted on this thread alone: exchanges of several
/// workers would otherwise fight over the one shared count.
pub(crate) struct Lease {
    /// Made of the snapshot's chains. Goes before the snapshot does, so that the last hold on a plugin
    /// instance is never a worker's.
    pub(crate) consumer_chains: ConsumerChains,
    /// Counts of its plans.
    pub(crate) counted: sdk::meters::live::Memo,
    /// Label sets of its routes.
    pub(crate) series: sdk::meters::SeriesMemo,
    snapshot: Arc<Snapshot>,
}

impl Lease {
    fn new(snapshot: &Arc<Snapshot>) -> Rc<Lease> {
        Rc::new(Lease {
            consumer_chains: ConsumerChains::default(),
            counted: Default::default(),
            series: Default::default(),
            snapshot: snapshot.clone(),
        })
    }
}

impl std::ops::Deref for Lease {
    type Target = Snapshot;
    #[inline]
    fn deref(&self) -> &Snapshot {
        &self.snapshot
    }
}

struct Balance {
    upstream: Arc<Upstream>,
    state: BalanceState,
}

/// Returns the value of `Alt-Svc` for each port that HTTP/3 is served beside.
fn alt_svc(settings: &Settings) -> Box<[(u16, Box<[u8]>)]> {
    let text = &settings.http3.alt_svc;
    let ports = settings.listen.iter().filter(|listener| listener.h3() && !text.is_empty());
    let mut all: Vec<(u16, Box<[u8]>)> = Vec::new();
    for port in ports.map(|listener| listener.address.port()) {
        if !all.iter().any(|(other, _)| *other == port) {
            all.push((port, text.replace("$server_port", &port.to_string()).into_bytes().into()));
        }
    }
    all.into()
}

/// The `Date` line, made once a second.
struct Date {
    second: u64,
    text: [u8; 29],
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
        let worker = Rc::new_cyclic(|me| Worker {
            index,
            lease: RefCell::new(Lease::new(reader.current())),
            reader: RefCell::new(reader),
            buffers: Buffers::new(SPARE),
            pools: Pools::new(settings.limits.idle_upstreams),
            links: Links::default(),
            warming: Rc::default(),
            tls_sessions: Sessions::default(),
            budget: Budget::new(settings.budgets.held_bodies),
            windows: Budget::new(settings.budgets.stream_windows),
            upstream_windows: Budget::new(settings.budgets.upstream_windows),
            send_windows: Budget::new(settings.budgets.send_windows),
            complaints: Cell::default(),
            scratch: RefCell::default(),
            scratch_unused: Cell::new(0),
            heads: RefCell::default(),
            balance: RefCell::default(),
            runtime_balance: RefCell::default(),
            states: WorkerStates::default(),
            shard,
            tap: settings.taps.outlet(),
            access_log: settings.access_log.as_ref().map(AccessLog::new),
            stream_log: settings.streams.access_log.as_ref().map(AccessLog::new),
            nobody: sdk::Consumers::default(),
            stage: Cell::new(Stage::Run),
            idle_until: Cell::new(u64::MAX),
            tunnels_until: Cell::new(u64::MAX),
            connections: Cell::new(0),
            room_by: Cell::new(0),
            udp_sessions: Cell::new(0),
            udp_waiting: Cell::new(0),
            fetches: Fetches::default(),
            raw: InUse::default(),
            tasks: InUse::default(),
            names: Names::new(&settings, clock.clone()),
            notices: Notices::default(),
            pressure_seen: Cell::new(pressure.load(Ordering::Relaxed)),
            pressure,
            watch,
            listening: RefCell::default(),
            copies: RefCell::default(),
            date: RefCell::new(Date { second: 0, text: [b' '; 29] }),
            alt_svc: alt_svc(&settings),
            me: me.clone(),
            clock,
            settings,
        });
        worker.keep_going();
        worker
    }

    #[inline]
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.set(stage);
    }

    /// The current snapshot, held for one exchange.
    #[inline]
    pub(crate) fn lease(&self) -> Rc<Lease> {
        if self.reader.borrow().is_stale() {
            // State that belongs to earlier snapshots is not needed any more.
            self.states.sweep();
            *self.lease.borrow_mut() = Lease::new(self.reader.borrow_mut().current());
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

    /// Tunnels are to end now.
    #[inline]
    pub(crate) fn closes_tunnels(&self) -> bool {
        self.clock.is_over(self.tunnels_until.get())
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
        if spare.len() < SPARE {
            spare.push(scratch);
        }
    }

    /// Memory for a head of HTTP/2, which is kept between uses.
    #[inline]
    pub(crate) fn take_head(&self) -> Fields {
        self.heads.borrow_mut().pop().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn give_head(&self, mut head: Fields) {
        let mut heads = self.heads.borrow_mut();
        if heads.len() < SPARE {
            head.clear(2 << 10);
            heads.push(head);
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
        if upstream.slot & RUNTIME_SLOT != 0 {
            return self.runtime_balance_of(upstream);
        }
        let slot = upstream.slot as usize;
        RefMut::map(self.balance.borrow_mut(), |all| {
            if slot >= all.len() {
                all.resize_with(slot + 1, || None);
            }
            all[slot].get_or_insert_with(|| Balance { upstream: upstream.clone(), state: upstream.state() })
        })
    }

    /// States of upstreams that nothing else holds are dropped once there are many.
    #[cold]
    fn runtime_balance_of(&self, upstream: &Arc<Upstream>) -> RefMut<'_, Balance> {
        RefMut::map(self.runtime_balance.borrow_mut(), |all| {
            if all.len() >= MOST_RUNTIME_UPSTREAMS && !all.contains_key(&upstream.slot) {
                all.retain(|_, balance| Arc::strong_count(&balance.upstream) > 1);
                if all.len() >= MOST_RUNTIME_UPSTREAMS {
                    all.clear();
                }
            }
            all.entry(upstream.slot)
                .or_insert_with(|| Balance { upstream: upstream.clone(), state: upstream.state() })
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

    /// Returns the value of `Alt-Svc` in an answer: where else the same is served.
    #[inline]
    pub(crate) fn alt_svc(&self, client: &Client) -> Option<&[u8]> {
        self.alt_svc_at(self.alt_svc_of(client))
    }

    /// The place of that.
    #[inline]
    pub(crate) fn alt_svc_of(&self, client: &Client) -> Option<usize> {
        if self.alt_svc.is_empty() || !client.tls || client.is_subrequest() {
            return None;
        }
        self.alt_svc.iter().position(|(port, _)| *port == client.local.port())
    }

    #[inline]
    pub(crate) fn alt_svc_at(&self, place: Option<usize>) -> Option<&[u8]> {
        place.map(|place| &*self.alt_svc[place].1)
    }

    pub(crate) fn strong(&self) -> Option<Rc<Worker>> {
        self.me.upgrade()
    }
}

#[cfg(test)]
pub(crate) mod tests;
