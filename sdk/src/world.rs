//! What a stage may ask of the worker it runs on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wire::{Fields, Method};

use crate::budget::{Budget, Held};
use crate::chain::LocalFuture;
use crate::client::Client;
use crate::exchange::Exchange;
use crate::meters::Shard;
use crate::offload::{Job, Output};
use crate::state::WorkerStates;
use crate::verdict::Bounds;

/// One worker, seen from a stage. Never crosses threads.
pub trait World {
    /// Milliseconds since the Unix epoch, exact to about a millisecond. The clock may be set at any time:
    /// only for what is compared with dates that others wrote.
    fn now_ms(&self) -> u64;

    /// The same at the start of the process, and from then on as much more as time has passed, however the
    /// clock is set. The same for all workers: for windows, bans and ages that this process keeps.
    fn steady_ms(&self) -> u64;

    /// Waits for so long, to about a millisecond. Dropping the future ends the wait, as happens to
    /// whatever a plugin waits for when the client goes away.
    fn sleep(&self, time: Duration) -> LocalFuture<'static, ()>;

    /// Runs a job on the background thread pool. For [`World::offload`](dyn World::offload), which plugins call.
    fn run_job(&self, job: Job, held: Held) -> LocalFuture<'static, (Output, Held)>;

    /// Sends a request through the worker's own connections and gives the whole answer. Exchanges
    /// are bounded, and so is with them what they wait for.
    fn fetch(&self, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>>;

    /// Sends a request through the gateway's own router, as if this client had sent it on a connection of
    /// its own: an exchange with its own route, plugins and upstream. The target's authority is the Host
    /// unless the fields have one; its addresses do not matter.
    fn dispatch(&self, client: &Client, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>>;

    /// Sends a request and forgets about the answer. Bounded: past the worker's limit
    /// of such requests in flight it is dropped and counted.
    fn send(&self, request: Fetch);

    /// What plugins remember on this worker; see [`crate::state::WorkerState`].
    fn states(&self) -> &WorkerStates;

    /// The worker's own part of the metrics.
    fn meters(&self) -> &Shard;

    /// What bodies that are held in memory count against.
    fn budget(&self) -> &Budget;

    /// See [`Exchange::complain`].
    fn complain(&self, x: &Exchange<'_>, plugin: &'static str, reason: &'static str);

    /// How far conditions look into a request's body.
    fn bounds(&self) -> Bounds {
        Bounds::DEFAULT
    }
}

/// A server a stage may send requests to, with its addresses looked up beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host (and port, unless the scheme's own) for the Host field.
    pub authority: String,
    pub addresses: Arc<[SocketAddr]>,
    pub tls: bool,
}

/// A request a stage makes itself. Framing fields are the sender's business.
#[derive(Debug)]
pub struct Fetch {
    pub target: Target,
    pub method: Method,
    /// Spelling of the method when it is [`Method::Other`].
    pub method_name: Vec<u8>,
    /// Path and query, percent-encoded.
    pub uri: Vec<u8>,
    pub fields: Fields,
    pub body: Bytes,
    /// Where the target is spoken to over TLS: only with a certificate of its name, from somebody trusted.
    pub verify: bool,
    pub timeouts: FetchTimeouts,
    /// The answer's body may be at most so long.
    pub max_body: usize,
    /// It may be sent twice, whatever its method. An idempotent one always may: where a kept
    /// connection turns out to be dead, a fresh one is taken.
    pub repeatable: bool,
    pub keep: Keep,
}

/// How the connection of a [`Fetch`] is kept afterwards, for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// At most so many idle ones to one server on each worker; with 0 it is closed.
    pub connections: usize,
    /// For so long.
    pub idle: Duration,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep { connections: 32, idle: Duration::from_secs(30) }
    }
}

/// How long a [`Fetch`] may take. All of it, over all addresses, ends after `connect`, `send` and
/// `read` together at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchTimeouts {
    /// Until a connection to one address is there.
    pub connect: Duration,
    /// Between two writes.
    pub send: Duration,
    /// Between two reads.
    pub read: Duration,
}

/// The answer to a [`Fetch`].
#[derive(Debug, Default)]
pub struct Fetched {
    pub status: u16,
    pub fields: Fields,
    pub body: Vec<u8>,
    /// What the body counts as in [`World::budget`].
    pub held: Held,
}

/// Why a [`Fetch`] came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchError {
    Unresolved,
    Refused,
    Timeout,
    /// TLS could not be set up, or the server is not who it should be.
    Untrusted(&'static str),
    Broken,
    TooLarge,
}

impl FetchError {
    pub fn as_str(self) -> &'static str {
        match self {
            FetchError::Unresolved => "the host name has no address",
            FetchError::Refused => "the connection was refused",
            FetchError::Timeout => "it took longer than its time-out",
            FetchError::Untrusted(why) => why,
            FetchError::Broken => "the answer was not valid HTTP or broke off",
            FetchError::TooLarge => "the answer was larger than allowed",
        }
    }
}

impl std::fmt::Display for FetchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for FetchError {}

#[cfg(test)]
mod tests {
    use super::FetchError;

    #[test]
    fn each_end_of_a_fetch_has_its_words() {
        use FetchError::{Broken, Refused, Timeout, TooLarge, Unresolved, Untrusted};
        let words = [
            (Unresolved, "address"),
            (Refused, "refused"),
            (Timeout, "longer"),
            (Untrusted("the TLS handshake failed"), "TLS"),
            (Broken, "valid HTTP"),
            (TooLarge, "larger"),
        ];
        for (error, word) in words {
            assert!(error.to_string().contains(word) && error.as_str().contains(word), "{error}");
        }
    }
}
