//! The runtime, and the only place in this room that names it.
//!
//! A worker is one thread. What the rest of the room needs of it is little: sockets, tasks on
//! this thread, and a tick. Two engines give it that: `epoll`, on tokio's current-thread
//! runtime, and `ring`, on io_uring, for those who ask for it and whose kernel has it.

mod age;
mod epoll;
mod ring;
mod socket;

use std::future::Future;
use std::io;
use std::time::Duration;

pub(crate) use socket::{Listener, ReadHalf, Stream, WriteHalf, connect, listen};

/// How workers wait for their sockets (`nginx_config.event.use`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    #[default]
    Epoll,
    IoUring,
    /// io_uring where the kernel allows it, else epoll.
    Auto,
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Engine::Auto => "auto",
            Engine::IoUring => "io_uring",
            Engine::Epoll => "epoll",
        })
    }
}

impl Engine {
    /// What workers will really use. The error says why io_uring, if asked for, is not to be had.
    pub fn resolve(self) -> io::Result<Engine> {
        match self {
            Engine::Epoll => Ok(Engine::Epoll),
            Engine::IoUring => ring::try_out().map(|()| Engine::IoUring),
            Engine::Auto => Ok(ring::try_out().map_or(Engine::Epoll, |()| Engine::IoUring)),
        }
    }
}

/// Runs a worker's future to its end on this thread, with local tasks.
pub(crate) fn run<T: 'static>(engine: Engine, future: impl Future<Output = T> + 'static) -> io::Result<T> {
    // Resolved before, but for tests.
    if engine == Engine::IoUring || engine == Engine::Auto && ring::try_out().is_ok() {
        return ring::run(future);
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().max_io_events_per_tick(EVENTS);
    let runtime = builder.build_local(tokio::runtime::LocalOptions::default())?;
    Ok(runtime.block_on(future))
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

/// Looks once at what the kernel has, and lets every task that is woken by it go first.
pub(crate) async fn events() {
    if ring::is_here() {
        // The ring is entered between two turns; what it wakes is polled in the second.
        turn().await;
        turn().await;
    } else {
        // Tokio wakes those that yielded when it has asked the kernel, and behind those whom the
        // kernel's answer concerns.
        tokio::task::yield_now().await;
    }
}

/// Starts a task on this worker's thread.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) {
    if ring::is_here() {
        ring::spawn(future);
    } else {
        tokio::task::spawn_local(future);
    }
}

/// Waits. For the worker's own tick and back-off only: exchanges use [`crate::clock`].
pub(crate) async fn sleep(duration: Duration) {
    if ring::is_here() {
        ring::sleep(duration).await;
    } else {
        tokio::time::sleep(duration).await;
    }
}

/// Tells all workers, from another thread.
pub(crate) type Signaller = tokio::sync::watch::Sender<crate::workers::Stage>;

pub(crate) fn signaller() -> Signaller {
    Signaller::new(crate::workers::Stage::Run)
}

/// A worker's end of it.
pub(crate) type Signal = tokio::sync::watch::Receiver<crate::workers::Stage>;

/// Waits until the signal holds another value than before.
pub(crate) async fn changed(signal: &mut Signal) -> crate::workers::Stage {
    if signal.changed().await.is_err() {
        return crate::workers::Stage::Stop;
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
