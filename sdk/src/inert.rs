//! A world without side effects: no request is sent, no time passes, nothing is stored. For exchanges off the data
//! plane.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::{Budget, Reservation};
use crate::client::Client;
use crate::connection::{Connect, ConnectError, Connection, TooManyTasks};
use crate::exchange::Exchange;
use crate::meters::Shard;
use crate::offload::{Job, Output, TimeSlice};
use crate::resolve::ResolveError;
use crate::state::WorkerStates;
use crate::step::LocalFuture;
use crate::world::{Fetch, FetchError, Fetched, World};

/// Bytes of bodies that may be buffered for one of its exchanges.
const HELD: usize = 16 << 20;

/// See the module.
#[derive(Debug)]
pub struct InertWorld {
    now_ms: u64,
    states: WorkerStates,
    shard: Shard,
    budget: Budget,
}

impl InertWorld {
    pub fn new(now_ms: u64) -> InertWorld {
        InertWorld {
            now_ms,
            states: WorkerStates::default(),
            shard: Shard::default(),
            budget: Budget::new(HELD),
        }
    }
}

impl World for InertWorld {
    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn steady_ms(&self) -> u64 {
        self.now_ms
    }

    fn clock_us(&self) -> u64 {
        self.now_ms * 1000
    }

    fn sleep(&self, _: Duration) -> LocalFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn run_job(&self, job: Job, held: Reservation) -> LocalFuture<'static, (Output, Reservation)> {
        let output = job(&TimeSlice::new(&|| false));
        Box::pin(async move { (output, held) })
    }

    fn fetch(&self, _: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        Box::pin(async { Err(FetchError::Refused) })
    }

    fn dispatch(&self, _: &Client, _: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        Box::pin(async { Err(FetchError::Refused) })
    }

    fn send(&self, _: Fetch) {}

    fn connect(&self, _: Connect) -> LocalFuture<'static, Result<Connection, ConnectError>> {
        Box::pin(async { Err(ConnectError::Refused) })
    }

    fn resolve(&self, _: &str, _: Duration) -> LocalFuture<'static, Result<Arc<[IpAddr]>, ResolveError>> {
        Box::pin(async { Err(ResolveError::Timeout) })
    }

    fn run(&self, _: LocalFuture<'static, ()>) -> Result<(), TooManyTasks> {
        Ok(())
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

    fn complain(&self, _: &Exchange<'_>, _: &'static str, _: &'static str) {}
}
