//! What plugins may ask of the worker they run on.

use std::time::Duration;

use sdk::budget::Budget;
use sdk::meters::Shard;
use sdk::state::WorkerStates;
use sdk::world::{Fetch, FetchError, Fetched};
use sdk::{Client, Exchange, World};

use super::Worker;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::fault_log::record;
use crate::{fetch, rt};

/// Complaints of stages a worker tells of.
const COMPLAINTS_A_SECOND: u32 = 5;

impl World for Worker {
    fn now_ms(&self) -> u64 {
        self.clock.unix_ms(self.clock.micros())
    }

    fn steady_ms(&self) -> u64 {
        self.clock.steady_ms()
    }

    fn sleep(&self, time: Duration) -> sdk::chain::LocalFuture<'static, ()> {
        Box::pin(rt::sleep(time))
    }

    fn fetch(&self, request: Fetch) -> sdk::chain::LocalFuture<'static, Result<Fetched, FetchError>> {
        let worker = self.strong();
        Box::pin(async move {
            // A worker that is gone has no exchanges that could wait.
            let worker = worker.ok_or(FetchError::Broken)?;
            fetch::run(&worker, request).await
        })
    }

    fn dispatch(
        &self,
        client: &Client,
        request: Fetch,
    ) -> sdk::chain::LocalFuture<'static, Result<Fetched, FetchError>> {
        let (worker, client) = (self.strong(), client.within());
        Box::pin(async move {
            let worker = worker.ok_or(FetchError::Broken)?;
            fetch::dispatch(&worker, client, request).await
        })
    }

    fn send(&self, request: Fetch) {
        if let Some(permit) = self.permit_fetch(&request.target.authority) {
            rt::spawn(permit.run(request));
        }
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
        let (last, told) = self.complaints.get();
        let told = if last == second { told + 1 } else { 1 };
        self.complaints.set((second, told));
        if told <= COMPLAINTS_A_SECOND {
            let fault = Fault::gateway(FaultKind::Skipped { plugin, reason });
            (self.settings.on_fault)(record(self, x, fault));
        }
    }

    fn bounds(&self) -> sdk::Bounds {
        self.settings.bounds
    }
}
