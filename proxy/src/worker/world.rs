//! The services of a worker for the plugins that run on it.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sdk::budget::{Budget, Reservation};
use sdk::call::{Call, Pipe};
use sdk::chain::LocalFuture;
use sdk::connection::{Connect, ConnectError, Connection, TooManyTasks};
use sdk::meters::Shard;
use sdk::offload::{Job, Output};
use sdk::resolve::ResolveError;
use sdk::state::WorkerStates;
use sdk::world::{Fetch, FetchError, Fetched};
use sdk::{Client, Exchange, World};

use super::Worker;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::fault_log::record;
use crate::{fetch, raw, rt};

/// Complaints of stages a worker tells of.
const COMPLAINTS_A_SECOND: u32 = 5;

impl World for Worker {
    fn now_ms(&self) -> u64 {
        self.clock.unix_ms(self.clock.micros())
    }

    fn steady_ms(&self) -> u64 {
        self.clock.steady_ms()
    }

    fn clock_us(&self) -> u64 {
        self.clock.micros()
    }

    fn sleep(&self, time: Duration) -> LocalFuture<'static, ()> {
        Box::pin(rt::sleep(time))
    }

    fn run_job(&self, job: Job, held: Reservation) -> LocalFuture<'static, (Output, Reservation)> {
        Box::pin(self.settings.pool.clone().run(job, held))
    }

    fn run_file_job(&self, job: Job, held: Reservation) -> LocalFuture<'static, (Output, Reservation)> {
        Box::pin(self.settings.file_pool.clone().run(job, held))
    }

    fn fetch(&self, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        let worker = self.strong();
        Box::pin(async move {
            // A worker that is gone has no exchanges that could wait.
            let worker = worker.ok_or(FetchError::Broken)?;
            fetch::run(&worker, request).await
        })
    }

    fn call(&self, request: Fetch) -> Call {
        let (worker, pipe) = (self.strong(), Rc::<Pipe>::default());
        let end = pipe.clone();
        Call::new(
            pipe,
            Box::pin(async move {
                let worker = worker.ok_or(FetchError::Broken)?;
                fetch::call::run(worker, request, end).await
            }),
        )
    }

    fn dispatch(&self, client: &Client, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        let (worker, client) = (self.strong(), client.for_subrequest());
        Box::pin(async move {
            let worker = worker.ok_or(FetchError::Broken)?;
            fetch::dispatch(&worker, client, request).await
        })
    }

    fn send(&self, request: Fetch) {
        if let Some(permit) = self.permit_fetch(&request.target.authority) {
            rt::spawn_unboxed(permit.run(request));
        }
    }

    fn connect(&self, to: Connect) -> LocalFuture<'static, Result<Connection, ConnectError>> {
        let worker = self.strong();
        Box::pin(async move {
            let worker = worker.ok_or(ConnectError::Refused)?;
            raw::connect(&worker, &to).await
        })
    }

    fn idle(&self, to: &Connect) -> Option<Connection> {
        raw::idle(&self.strong()?, to)
    }

    fn resolve(
        &self,
        host: &str,
        timeout: Duration,
    ) -> LocalFuture<'static, Result<Arc<[IpAddr]>, ResolveError>> {
        let (names, host, end) = (self.names.clone(), host.to_owned(), self.clock.after(timeout));
        Box::pin(async move { names.resolve(&host, end).await })
    }

    fn run(&self, task: LocalFuture<'static, ()>) -> Result<(), TooManyTasks> {
        raw::run(self, task)
    }

    fn owned(&self) -> Option<Rc<dyn World>> {
        let worker = self.strong()?;
        Some(worker)
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
        let (last, count) = self.complaints.get();
        let count = if last == second { count + 1 } else { 1 };
        self.complaints.set((second, count));
        if count <= COMPLAINTS_A_SECOND {
            let fault = Fault::gateway(FaultKind::Skipped { plugin, reason });
            (self.settings.on_fault)(record(self, x, fault));
        }
    }

    fn bounds(&self) -> sdk::Bounds {
        self.settings.bounds
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use sdk::engine::Messages;

    use super::*;
    use crate::settings::Settings;
    use crate::testing::{beside_worker, sleep};

    #[test]
    fn a_plugin_knows_its_worker() {
        let mut settings = Settings::default();
        settings.bounds.body = 12_345;
        beside_worker(settings, async |worker, _| {
            let world: &dyn World = &*worker;
            // Of this century.
            assert!(world.now_ms() > 1_700_000_000_000 && world.steady_ms() > 1_700_000_000_000);
            assert_eq!(world.bounds().body, 12_345);
            assert!(std::ptr::eq(world.states(), &raw const worker.states));
        });
    }

    #[test]
    fn five_complaints_of_a_second_are_reported() {
        let count = Arc::<AtomicU32>::default();
        let counter = count.clone();
        let on_fault = Arc::new(move |_| _ = counter.fetch_add(1, Ordering::Relaxed));
        let settings = Settings { on_fault, ..Settings::default() };
        beside_worker(settings, async move |worker, _| {
            let client = Client::new(([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into(), false);
            let mut messages = Messages::default();
            let x = Exchange::new(&mut messages, &client, &worker.nobody, &*worker);
            let complain = |times| (0..times).for_each(|_| worker.complain(&x, "plugin", "it cannot be"));
            complain(3);
            // By the clock that jumps, which began at 0.
            sleep(Duration::from_millis(300)).await;
            complain(4);
            assert_eq!(count.load(Ordering::Relaxed), 5);
            sleep(Duration::from_secs(1)).await;
            complain(6);
            assert_eq!(count.load(Ordering::Relaxed), 10);
        });
    }
}
