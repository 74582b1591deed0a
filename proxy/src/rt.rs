//! The runtime, and the only place in this room that names it.
//!
//! A worker is one thread with a current-thread runtime. What the rest of the
//! room needs of it is little: sockets, tasks on this thread, and a tick.

mod socket;
mod stream;

use std::future::Future;
use std::time::Duration;

pub(crate) use socket::{Listener, listen};
pub(crate) use stream::{ReadHalf, Stream, WriteHalf, connect};

/// Runs a worker's future to its end on this thread, with local tasks.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_io().enable_time().build_local(tokio::runtime::LocalOptions::default())?;
    Ok(runtime.block_on(future))
}

/// Lets everything else that is ready go first.
pub(crate) async fn turn() {
    tokio::task::yield_now().await;
}

/// Starts a task on this worker's thread.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) {
    tokio::task::spawn_local(future);
}

/// Waits. For the worker's own tick and back-off only: exchanges use [`crate::clock`].
pub(crate) async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Tells all workers, from another thread.
pub(crate) type Signaller = tokio::sync::watch::Sender<crate::worker::Stage>;

pub(crate) fn signaller() -> Signaller {
    Signaller::new(crate::worker::Stage::Run)
}

/// A worker's end of it.
pub(crate) type Signal = tokio::sync::watch::Receiver<crate::worker::Stage>;

/// Waits until the signal holds another value than before.
pub(crate) async fn changed(signal: &mut Signal) -> crate::worker::Stage {
    if signal.changed().await.is_err() {
        return crate::worker::Stage::Stop;
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
