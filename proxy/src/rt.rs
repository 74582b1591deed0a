//! The runtime, and the only place in this room that names it.
//!
//! A worker is one thread. The rest of the room needs little of it: sockets, tasks on this thread,
//! and a tick. Tokio's current-thread runtime gives it that.

mod io;
pub(crate) mod memory;
pub(crate) mod quic;
mod socket;
mod tcp;
mod tcp_info;
mod timers;
pub(crate) mod tls;
mod udp;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

pub(crate) use io::{Io, ReadHalf, WriteHalf, connect};
pub(crate) use socket::Socket;
pub(crate) use tcp::{Listener, Stream, listen};
pub(crate) use timers::Sleep;
pub(crate) use udp::{Udp, listen_udp};

/// Runs a worker's future to its end on this thread, with local tasks.
pub(crate) fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> std::io::Result<T> {
    let runtime = builder().build_local(tokio::runtime::LocalOptions::default())?;
    runtime.block_on(async {
        let _timers = timers::start()?;
        Ok(future.await)
    })
}

/// As [`run`], with a clock that stands still while there is something to do and jumps to the next
/// timer when there is nothing: a test that waits for a time-out takes no time.
#[cfg(feature = "testing")]
pub fn run_paused<T: 'static>(future: impl Future<Output = T> + 'static) -> std::io::Result<T> {
    let runtime =
        builder().enable_time().start_paused(true).build_local(tokio::runtime::LocalOptions::default())?;
    Ok(runtime.block_on(future))
}

fn builder() -> tokio::runtime::Builder {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().max_io_events_per_tick(EVENTS);
    builder
}

/// The monotonic clock.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "testing")]
    return tokio::time::Instant::now().into_std();
    #[cfg(not(feature = "testing"))]
    Instant::now()
}

/// Lets everything else that is ready go first.
pub(crate) async fn turn() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Events that one look at the kernel may bring.
pub(crate) const EVENTS: usize = 1024;

/// After this many bytes without a wait, other tasks have their turn: see [`events`].
pub(crate) const TURN: u64 = 1 << 20;

/// Wakes the task again when the runtime has asked the kernel for events, behind the tasks that those concern.
pub(crate) fn wake_behind_events(cx: &mut std::task::Context<'_>) {
    // Its first poll registers the task, for this one time.
    let _ = std::pin::pin!(tokio::task::yield_now()).poll(cx);
}

/// Polls without the limit of the runtime on what a task does in one turn, which would stop halfway through many
/// exchanges of one task.
#[inline]
pub(crate) fn without_budget(poll: impl FnOnce()) {
    let mut poll = Some(poll);
    let all = std::future::poll_fn(|_| {
        if let Some(poll) = poll.take() {
            poll();
        }
        std::task::Poll::Ready(())
    });
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::pin::pin!(tokio::task::unconstrained(all)).poll(&mut cx);
}

/// Looks once at what the kernel has, and lets every task that is woken by it go first.
pub(crate) async fn events() {
    // Tokio wakes those that yielded when it has asked the kernel, and behind those whom the
    // kernel's answer concerns.
    tokio::task::yield_now().await;
}

/// Starts a task on this worker's thread.
///
/// It is boxed: tokio compiles a few hundred functions for each type of future that it is given.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) {
    spawn_unboxed(Box::pin(future) as Pin<Box<dyn Future<Output = ()>>>);
}

/// As [`spawn`], for what each request starts: one allocation less.
pub(crate) fn spawn_unboxed(future: impl Future<Output = ()> + 'static) {
    tokio::task::spawn_local(future);
}

/// Waits, to a millisecond. For the worker's own tick and for plugins that sleep: deadlines of
/// exchanges are kept by [`crate::clock`], which costs less.
pub(crate) fn sleep(duration: Duration) -> Sleep {
    Sleep::after(duration)
}

/// The future's result, or none if it takes longer.
#[cfg(feature = "testing")]
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    either(std::pin::pin!(future), sleep(time)).await.ok()
}

/// Tells all workers, from another thread.
pub(crate) type Signaller = tokio::sync::watch::Sender<crate::stage::Stage>;

pub(crate) fn signaller() -> Signaller {
    Signaller::new(crate::stage::Stage::Run)
}

/// A worker's end of it.
pub(crate) type Signal = tokio::sync::watch::Receiver<crate::stage::Stage>;

/// Permits that all workers share, given in the order in which they are asked for.
pub(crate) use tokio::sync::Semaphore as Permits;

/// Wakes all tasks of a worker that wait for one event.
pub(crate) use tokio::sync::Notify;

/// A value that is sent once, from any thread.
pub(crate) use tokio::sync::oneshot;

/// Waits until the signal holds another value than before.
pub(crate) async fn changed(signal: &mut Signal) -> crate::stage::Stage {
    if signal.changed().await.is_err() {
        return crate::stage::Stage::Stop;
    }
    *signal.borrow_and_update()
}

/// Whichever is ready first.
pub(crate) async fn either<A: Future + Unpin, B: Future + Unpin>(
    mut a: A,
    mut b: B,
) -> Result<A::Output, B::Output> {
    use std::pin::Pin;
    use std::task::Poll;
    std::future::poll_fn(|cx| match Pin::new(&mut a).poll(cx) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => Pin::new(&mut b).poll(cx).map(Err),
    })
    .await
}
