//! Runtimes of asynchronous clients: load drivers run on a dedicated thread, pinned to its cores;
//! probes and idle connections run in the background.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::runtime::{Builder, Runtime};

use crate::machine::{Cores, pin_this_thread};

/// Timeout of a probe's connection or response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the future that `make` returns on a dedicated, pinned thread.
///
/// # Errors
/// The thread cannot be pinned, or the future fails.
pub fn alone<T, F>(cores: &Cores, make: impl FnOnce() -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>>,
{
    let cores = cores.clone();
    let thread = std::thread::spawn(move || {
        pin_this_thread(&cores).context("cannot pin the load driver")?;
        Builder::new_current_thread().enable_all().build()?.block_on(make())
    });
    match thread.join() {
        Ok(outcome) => outcome,
        Err(_) => bail!("the load driver panicked"),
    }
}

/// Waits for a short task in the background runtime, which keeps driving the tasks started in it.
///
/// # Errors
/// It takes more than five seconds, or the future fails.
pub fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    static BACKGROUND: OnceLock<Runtime> = OnceLock::new();
    let runtime = match BACKGROUND.get() {
        Some(runtime) => runtime,
        None => {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            BACKGROUND.get_or_init(|| runtime)
        }
    };
    runtime.block_on(async {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(outcome) => outcome,
            Err(_) => bail!("no answer within {PATIENCE:?}"),
        }
    })
}
