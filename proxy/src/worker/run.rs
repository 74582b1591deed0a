//! A worker's life: its start, its own tasks, its end.

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::task::Poll;
use std::time::Duration;

use sdk::meters::Shard;
use snapshot::Reader;

use super::Worker;
#[cfg(test)]
use super::tests;
use crate::accept::accept;
use crate::clock::TICK;
use crate::settings::Settings;
use crate::stage::Stage;
use crate::up::warm;
use crate::watch::Watch;
use crate::{down, rt, stream};

/// A listening socket that can be handed to another process.
pub(crate) trait Handed {
    /// All that the other process needs of it.
    fn copies(&self) -> io::Result<Vec<OwnedFd>>;
}

impl Handed for rt::Listener {
    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![self.as_fd().try_clone_to_owned()?])
    }
}

impl Handed for rt::Udp {
    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![self.as_fd().try_clone_to_owned()?])
    }
}

/// The arguments that a worker starts with.
pub(crate) struct Start {
    pub(crate) index: usize,
    pub(crate) settings: Arc<Settings>,
    pub(crate) sockets: Vec<TcpListener>,
    /// Of streams and of HTTP/3.
    pub(crate) datagrams: Vec<UdpSocket>,
    /// Of the latter, this worker's places among those that share their ports.
    pub(crate) posts: Vec<rt::quic::Post>,
    pub(crate) reader: Reader,
    pub(crate) shard: Shard,
    pub(crate) signal: rt::Signal,
    /// Moves when a worker has run out of descriptors and has nothing to close for them.
    pub(crate) pressure: Arc<AtomicU64>,
    pub(crate) watch: Watch,
    /// Takes copies of listening sockets, when they are asked for.
    pub(crate) copies: Sender<io::Result<Vec<OwnedFd>>>,
    /// Signalled once the worker serves, and dropped.
    pub(crate) ready: Sender<()>,
}

/// Serves until the signal says to stop, and all has ended or was given up.
pub(crate) async fn serve(start: Start) -> io::Result<()> {
    let Start {
        index,
        settings,
        sockets,
        datagrams,
        posts,
        reader,
        shard,
        mut signal,
        pressure,
        watch,
        copies,
        ready,
    } = start;
    let worker = Worker::new(index, settings, reader, shard, pressure, watch);
    worker.copies.replace(Some(copies));
    for (socket, listener) in sockets.into_iter().zip(&worker.settings.listen) {
        let (local, front) = (socket.local_addr()?, listener.front()?);
        let proxy_protocol = listener.proxy_protocol;
        let socket = Rc::new(rt::Listener::new(socket)?);
        worker.listens_on(&socket);
        let signal = signal.clone();
        worker.keep(0, move |worker| {
            accept(worker, socket.clone(), local, front, proxy_protocol, signal.clone())
        });
    }
    let mut posts = posts.into_iter();
    let mut ports = Vec::new();
    for socket in datagrams {
        let local = socket.local_addr()?;
        if worker.settings.is_h3(local)
            && let Some(post) = posts.next()
        {
            let port = down::h3::Port::open(&worker.settings, socket, post)?;
            worker.listens_on(&port);
            ports.push(port.clone());
            let signal = signal.clone();
            worker.keep(0, move |worker| down::h3::listen(worker, port.clone(), signal.clone()));
            continue;
        }
        let socket = Rc::new(rt::Udp::new(socket)?);
        worker.listens_on(&socket);
        let signal = signal.clone();
        worker.keep(0, move |worker| stream::udp::listen(worker, socket.clone(), local, signal.clone()));
    }
    // The receiver is gone if the start was given up meanwhile.
    let _ = ready.send(());
    drop(ready);
    if *signal.borrow_and_update() == Stage::Run {
        worker.stage.set(rt::changed(&mut signal).await);
    }
    worker.stage.set(Stage::Drain.max(*signal.borrow()));
    let grace = worker.clock.after(worker.settings.timeouts.idle_grace);
    worker.idle_until.set(grace);
    // Where another process serves from now on, there is no hurry.
    let tunnels = match worker.stage.get() {
        Stage::HandOver => {
            let settings = &worker.settings;
            let last = settings.timeouts.drain.saturating_sub(settings.timeouts.send);
            worker.clock.after(last.max(settings.timeouts.idle_grace))
        }
        _ => grace,
    };
    worker.tunnels_until.set(tunnels);
    // Connections of HTTP/2 tell their clients at once.
    worker.clock.wake_all();
    let deadline = worker.clock.after(worker.settings.timeouts.drain);
    let (mut idle_woken, mut tunnels_woken) = (false, false);
    // Between the process that serves and one that this has taken the place of, it passes on that one's datagrams.
    let is_between = || worker.stage.get() == Stage::HandOver && ports.iter().any(|port| port.has_elder());
    while (worker.connections.get() + worker.udp_sessions.get() > 0 || is_between())
        && !worker.clock.is_over(deadline)
        && worker.stage.get() != Stage::Stop
    {
        rt::sleep(Duration::from_millis(10)).await;
        worker.stage.set(Stage::Drain.max(*signal.borrow()));
        if !idle_woken && worker.clock.is_over(grace) {
            // Idle connections look at the time when woken, and close.
            worker.clock.wake_all();
            idle_woken = true;
        }
        if !tunnels_woken && worker.clock.is_over(tunnels) {
            worker.clock.wake_all();
            tunnels_woken = true;
        }
    }
    for log in [&worker.access_log, &worker.stream_log].into_iter().flatten() {
        log.flush();
    }
    Ok(())
}

/// The worker's own timer: deadlines, the access log, idle upstream connections, spare memory, notices.
async fn tick(worker: Rc<Worker>) {
    let mut ticks = 0u32;
    let settings = &worker.settings;
    let flushes = [&settings.access_log, &settings.streams.access_log].map(|log| {
        let flush = log.as_ref().map_or(TICK, |log| log.flush);
        u32::try_from(flush.as_millis() / TICK.as_millis()).unwrap_or(u32::MAX).max(1)
    });
    loop {
        rt::sleep(TICK).await;
        #[cfg(test)]
        tests::hold_up(&worker.settings, "tick");
        if worker.clock.advance() {
            // The event that a deadline waits for may lie with the kernel, which reports at most
            // `rt::EVENTS` at once.
            for _ in 0..=worker.clock.waiters() / rt::EVENTS {
                rt::events().await;
            }
        }
        worker.clock.strike();
        worker.shard.live.tick();
        let member = worker.watch.member(worker.index);
        member.ticks.fetch_add(1, Ordering::Relaxed);
        if member.copy_sockets.load(Ordering::Acquire) {
            member.copy_sockets.store(false, Ordering::Relaxed);
            worker.copy_sockets();
        }
        worker.yield_descriptors();
        ticks = ticks.wrapping_add(1);
        for (log, flush) in [&worker.access_log, &worker.stream_log].into_iter().zip(flushes) {
            if let Some(log) = log
                && ticks.is_multiple_of(flush)
            {
                log.flush();
            }
        }
        if ticks.is_multiple_of(20) {
            worker.pools.sweep(worker.clock.coarse_ms());
            worker.report_in_flight();
            if worker.stage.get() == Stage::Run {
                warm::look(&worker);
            }
            worker.report_notices();
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
    /// Reports the requests in flight of each node to the live view.
    fn report_in_flight(&self) {
        self.shard.live.in_flight(|add| {
            self.pools.in_use(&mut *add);
            self.links.in_use(add);
        });
    }

    /// Starts the tasks that every worker has.
    pub(super) fn keep_going(self: &Rc<Worker>) {
        self.keep(1, tick);
        self.keep(2, follow);
    }

    /// Runs one of the worker's own tasks (of [`crate::notice::OWN_TASKS`]). A panic in it is counted and logged, and
    /// the task starts again: without it, the worker would seem to serve and do so no more.
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
                // A task that panics again at once must not take all of the worker's time.
                rt::sleep(TICK).await;
            }
        });
    }

    /// A listening socket that another process may be given, for as long as it is open.
    fn listens_on<S: Handed + 'static>(&self, socket: &Rc<S>) {
        let socket: Rc<dyn Handed> = socket.clone();
        self.listening.borrow_mut().push(Rc::downgrade(&socket));
    }

    /// Sends copies of its listening sockets to `Workers::sockets`.
    fn copy_sockets(&self) {
        let open: Vec<Rc<dyn Handed>> = self.listening.borrow().iter().filter_map(Weak::upgrade).collect();
        let copies: io::Result<Vec<_>> = open.iter().map(|socket| socket.copies()).collect();
        let copies = copies.map(|all| all.into_iter().flatten().collect());
        if let Some(sender) = &*self.copies.borrow() {
            let _ = sender.send(copies);
        }
    }

    /// Hands what has been counted to the log.
    fn report_notices(&self) {
        let report = |notice| (self.settings.on_notice)(self.index, notice);
        self.notices.report(self.settings.limits.connections, report);
        self.fetches.report_dropped(&self.settings, report);
    }
}
