//! Tasks in the background, of the control plane and of what stands around it.
//!
//! Started tasks are boxed: tokio compiles a few hundred functions for each type that it is given,
//! which were a third of what the gateway's own binary took to build.

use std::future::Future;
use std::pin::Pin;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A task before it is started.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts a task on the runtime of the caller.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(Box::pin(task) as Task)
}

/// Has work done that takes its time, on a thread for such work; `None` if it panicked.
///
/// It begins at once, and continues when the caller has gone.
pub fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Option<T>> {
    let (done, result) = oneshot::channel();
    let work: Box<dyn FnOnce() + Send> = Box::new(move || _ = done.send(work()));
    tokio::task::spawn_blocking(work);
    async { result.await.ok() }
}
