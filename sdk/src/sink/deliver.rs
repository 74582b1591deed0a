//! The contract of a sink: batches of records in, outcomes out.
//!
//! A sink knows one kind of server and nothing else. Gathering, retries, bounds and counts are before it: the program
//! finds the sink of a [`super::Destination`] by its name, takes batches from the queue, and calls [`Deliver::deliver`].

use std::net::SocketAddr;
use std::time::Duration;

use super::queue::Taken;
use crate::step::LocalFuture;

/// Delivers the batches of one [`super::Spec`].
pub trait Deliver {
    /// Batches that may be under way at the same time; with 1, they arrive in order.
    fn at_once(&self) -> usize {
        1
    }

    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome>;

    /// Opens a file again, which another program may have renamed.
    fn reopen(&self) {}
}

/// Records to deliver together.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub records: &'a [Taken],
    /// The number of the server to use, of those of the destination. A retry gets the next one.
    pub server: usize,
    /// The addresses of that server, as last resolved.
    pub addresses: &'a [SocketAddr],
}

/// The result of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    /// It failed for a reason that may pass: delivered again as often as [`super::Batching`] allows, after this time
    /// or that of its `retry_delay`.
    Retry {
        after: Option<Duration>,
        reason: String,
    },
    /// Some records were delivered. Those of these indices, which ascend, are delivered again, as with [`Outcome::Retry`], and
    /// `rejected` others are dropped.
    Partial {
        again: Vec<usize>,
        rejected: usize,
        reason: String,
    },
    /// It would fail again, so the records are dropped.
    Rejected(String),
}

impl Outcome {
    /// A failure that may pass, without a time.
    pub fn retry(reason: impl Into<String>) -> Outcome {
        Outcome::Retry { after: None, reason: reason.into() }
    }
}
