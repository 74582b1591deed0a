//! The background thread pool: long work of exchanges on threads beside the workers.
//!
//! There is a permit for each thread. A job waits for one on its worker, first come, first served over all workers,
//! so the threads themselves have no queue: a job that waits goes with its exchange, and what waits is bounded by what
//! exchanges may hold (`held_bodies`) and by how long they may wait (`plugin_wait_timeout`).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sdk::budget::Reservation;
use sdk::offload::{Job, Output, TimeSlice};

use crate::rt::{self, Permits, oneshot};

/// A piece of work for a thread of the pool. It does not panic.
pub type Work = Box<dyn FnOnce() + Send>;

/// How long a job may run before it should let others run.
const TURN: Duration = Duration::from_millis(20);

/// Threads that the gateway has made, and how work reaches them.
#[derive(Clone)]
pub struct Pool {
    permits: Arc<Permits>,
    start: Arc<dyn Fn(Work) + Send + Sync>,
}

impl Default for Pool {
    /// Without threads: work is done at once where it is handed over.
    fn default() -> Pool {
        Pool::new(1, |work| work())
    }
}

impl Pool {
    /// `start` hands a piece of work to one of the threads. It is never called for more pieces at once than there are, and
    /// must not wait.
    pub fn new(threads: usize, start: impl Fn(Work) + Send + Sync + 'static) -> Pool {
        let permits = threads.clamp(1, Permits::MAX_PERMITS);
        Pool { permits: Arc::new(Permits::new(permits)), start: Arc::new(start) }
    }

    /// See [`sdk::World::run_job`].
    pub(crate) async fn run(self, job: Job, held: Reservation) -> (Output, Reservation) {
        // Never closed.
        let Ok(permit) = self.permits.acquire_owned().await else { return std::future::pending().await };
        let abandoned = Arc::<AtomicBool>::default();
        let exchange = OnDrop(abandoned.clone());
        let (done, ended) = oneshot::channel();
        (self.start)(Box::new(move || {
            let began = rt::now();
            let is_over = || abandoned.load(Ordering::Relaxed) || rt::now().duration_since(began) >= TURN;
            let output = catch_unwind(AssertUnwindSafe(|| job(&TimeSlice::new(&is_over))));
            // Before the worker knows: what it does next may be another job.
            drop(permit);
            let _ = done.send(output);
        }));
        let (give, given) = oneshot::channel();
        // Not part of the exchange, since the memory counts until the job has ended.
        rt::spawn(async move {
            let output: Result<Result<Output, Box<dyn Any + Send>>, _> = ended.await;
            let _ = give.send((output, held));
        });
        let outcome = given.await;
        drop(exchange);
        match outcome {
            Ok((Ok(Ok(output)), held)) => (output, held),
            Ok((Ok(Err(panic)), _)) => resume_unwind(panic),
            // The process ends: the threads are gone.
            Ok((Err(_), _)) | Err(_) => std::future::pending().await,
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("idle", &self.permits.available_permits()).finish_non_exhaustive()
    }
}

/// Sets a flag when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use sdk::World;
    use sdk::budget::Budget;

    use super::*;
    use crate::settings::Settings;
    use crate::testing::{beside_worker, spawn, turn};

    /// Work that was handed to the threads, for the test to do.
    #[derive(Clone, Default)]
    struct Threads(Arc<Mutex<Vec<Work>>>);

    impl Threads {
        fn pool(&self, threads: usize) -> Settings {
            let begun = self.clone();
            let pool = Pool::new(threads, move |work| begun.0.lock().unwrap().push(work));
            Settings { pool, ..Settings::default() }
        }

        fn begun(&self) -> usize {
            self.0.lock().unwrap().len()
        }

        /// Does the work that came first.
        fn work(&self) {
            let work = self.0.lock().unwrap().remove(0);
            work();
        }
    }

    fn holding(budget: &Budget, bytes: usize) -> Reservation {
        let mut held = Reservation::default();
        held.resize(budget, bytes).unwrap();
        held
    }

    async fn turns() {
        for _ in 0..8 {
            turn().await;
        }
    }

    #[test]
    fn jobs_run_in_their_order_and_no_more_at_once_than_there_are_threads() {
        let threads = Threads::default();
        beside_worker(threads.pool(2), async move |worker, _| {
            let (done, ended) = channel();
            for number in 0..4 {
                let (worker, done) = (worker.clone(), done.clone());
                spawn(async move {
                    let world: &dyn World = &*worker;
                    let (output, _) = world.offload(Reservation::default(), move |_| number * 10).await;
                    done.send(output).unwrap();
                });
            }
            turns().await;
            for left in [3, 2, 1, 0] {
                assert_eq!(threads.begun(), 2.min(left + 1));
                threads.work();
                turns().await;
            }
            assert_eq!(ended.try_iter().collect::<Vec<_>>(), [0, 10, 20, 30]);
        });
    }

    #[test]
    fn a_job_goes_with_its_exchange_unless_it_runs_and_its_memory_counts_until_then() {
        let threads = Threads::default();
        beside_worker(threads.pool(1), async move |worker, _| {
            let world: &dyn World = &*worker;
            let (was_over, reported) = channel();
            let mut running = Box::pin(
                world.offload(holding(world.budget(), 10), move |turn| was_over.send(turn.is_over())),
            );
            let memory = Arc::new(());
            let kept = memory.clone();
            let mut waiting = Box::pin(world.offload(holding(world.budget(), 5), move |_| drop(kept)));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(
                running.as_mut().poll(&mut cx).is_pending() && waiting.as_mut().poll(&mut cx).is_pending()
            );
            assert_eq!((threads.begun(), world.budget().taken(), Arc::strong_count(&memory)), (1, 15, 2));
            drop(waiting);
            assert_eq!((world.budget().taken(), Arc::strong_count(&memory)), (10, 1));
            drop(running);
            turns().await;
            assert_eq!(world.budget().taken(), 10);
            threads.work();
            turns().await;
            assert_eq!((world.budget().taken(), reported.try_recv()), (0, Ok(true)));
            // The next has the thread, and its turn lasts.
            let mut next = Box::pin(world.offload(Reservation::default(), |turn| turn.is_over()));
            assert!(next.as_mut().poll(&mut cx).is_pending());
            threads.work();
            assert!(!next.await.0);
            assert_eq!(threads.begun(), 0);
        });
    }

    #[test]
    fn files_have_threads_of_their_own_and_a_bound_on_time() {
        let stuck = Threads::default();
        let settings = Settings { file_pool: stuck.pool(1).pool, ..Settings::default() };
        beside_worker(settings, async move |worker, _| {
            let world: &dyn World = &*worker;
            let bound = Duration::from_secs(1);
            let late = world.read_files(holding(world.budget(), 10), bound, |_| 1).await;
            assert!(late.is_none());
            assert_eq!((stuck.begun(), world.budget().taken()), (1, 10));
            assert_eq!(world.offload(Reservation::default(), |_| 2).await.0, 2);
            stuck.work();
            turns().await;
            assert_eq!(world.budget().taken(), 0);
        });
    }

    #[test]
    fn a_panic_is_the_exchange_s_own() {
        let settings = Settings::default();
        beside_worker(settings, async move |worker, _| {
            let world: &dyn World = &*worker;
            for panics in [true, false] {
                let job = world.offload(holding(world.budget(), 10), move |_| assert!(!panics, "on purpose"));
                let waited = crate::exchange::phases::in_time(&worker, Box::pin(job)).await;
                assert_eq!(waited.is_err(), panics);
                drop(waited);
                assert_eq!(world.budget().taken(), 0);
            }
        });
    }
}
