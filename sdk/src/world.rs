//! The worker's services for plugins.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use wire::{Fields, Method};

use crate::budget::{Budget, Reservation};
use crate::call::Call;
use crate::client::Client;
use crate::connection::{Connect, ConnectError, Connection, TooManyTasks};
use crate::exchange::Exchange;
pub use crate::fetch_error::FetchError;
use crate::meters::Shard;
use crate::offload::{Job, Output, TimeSlice};
use crate::resolve::ResolveError;
use crate::state::{WorkerState, WorkerStates};
use crate::step::LocalFuture;
use crate::verdict::Bounds;

/// A worker, as plugins see it. Never crosses threads.
pub trait World {
    /// Milliseconds since the Unix epoch, exact to about a millisecond. The clock may be set at any
    /// time: use it only for comparison with external dates.
    fn now_ms(&self) -> u64;

    /// Monotonic milliseconds: the Unix time at the start of the process plus the time elapsed
    /// since. The same for all workers; for windows, bans and ages kept by this process.
    fn steady_ms(&self) -> u64;

    /// Monotonic microseconds since the worker began.
    fn clock_us(&self) -> u64;

    /// Sleeps, exact to about a millisecond. Dropping the future ends the sleep; a plugin's futures
    /// are dropped when the client disconnects.
    fn sleep(&self, time: Duration) -> LocalFuture<'static, ()>;

    /// Runs a job on the background thread pool. For [`World::offload`](dyn World::offload), which plugins call.
    fn run_job(&self, job: Job, held: Reservation) -> LocalFuture<'static, (Output, Reservation)>;

    /// As [`World::run_job`], on the threads for files: a disk that hangs does not delay other work. For
    /// [`World::read_files`](dyn World::read_files), which plugins call.
    fn run_file_job(&self, job: Job, held: Reservation) -> LocalFuture<'static, (Output, Reservation)> {
        self.run_job(job, held)
    }

    /// Sends a request over the worker's own connections and returns the complete response. The
    /// number of exchanges is bounded, which bounds their fetches.
    fn fetch(&self, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>>;

    /// Opens a call over HTTP/2: a request whose body is sent while the response comes. Of the request, `body`,
    /// `max_body`, `repeatable` and `timeouts.read` have no effect.
    fn call(&self, _request: Fetch) -> Call {
        Call::new(Rc::default(), Box::pin(async { Err(FetchError::Unresolved) }))
    }

    /// Sends a request through the gateway's own router, as if this client had sent it on a
    /// separate connection: an exchange with its own route, plugins and upstream. The target's
    /// authority is the Host unless the fields have one; its addresses are ignored.
    fn dispatch(&self, client: &Client, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>>;

    /// Sends a request and ignores the response. Beyond the worker's limit of such requests in
    /// flight it is dropped and counted.
    fn send(&self, request: Fetch);

    /// Returns an idle connection of the same pool, else opens one. The number of connections in use is bounded per
    /// worker. Dropping the future, as happens when the client disconnects, closes a socket that is being opened.
    fn connect(&self, to: Connect) -> LocalFuture<'static, Result<Connection, ConnectError>>;

    /// Returns an idle connection of the pool; never opens one. `None` also if there are too many connections in use.
    fn idle(&self, _to: &Connect) -> Option<Connection> {
        None
    }

    /// Resolves a name that is known only at run time, through the control plane. Answers are kept for their time to
    /// live; while a name cannot be resolved, its last addresses are returned. An address is its own answer.
    fn resolve(
        &self,
        host: &str,
        timeout: Duration,
    ) -> LocalFuture<'static, Result<Arc<[IpAddr]>, ResolveError>>;

    /// Runs a task on this worker beside all exchanges, such as the driver of a connection that they share. It is
    /// dropped when the worker stops, after its last exchange. The number of tasks is bounded per worker.
    ///
    /// # Errors
    /// Too many tasks are running.
    fn run(&self, task: LocalFuture<'static, ()>) -> Result<(), TooManyTasks>;

    /// The worker itself, for a task of [`World::run`] that needs it: such a task keeps a weak reference, so that the
    /// worker can end. `None` where tasks do not outlive an exchange.
    fn owned(&self) -> Option<Rc<dyn World>> {
        None
    }

    /// The plugins' values on this worker; see [`crate::state::WorkerState`].
    fn states(&self) -> &WorkerStates;

    /// The worker's shard of the metrics.
    fn meters(&self) -> &Shard;

    /// The budget for buffered bodies.
    fn budget(&self) -> &Budget;

    /// See [`Exchange::complain`].
    fn complain(&self, x: &Exchange<'_>, plugin: &'static str, reason: &'static str);

    /// How much of a request's body conditions may read.
    fn bounds(&self) -> Bounds {
        Bounds::DEFAULT
    }
}

impl dyn World + '_ {
    /// Runs a closure on the background thread pool and returns its output, and `held`, the
    /// reservation for its memory. Jobs run in the order of submission. If the future is dropped,
    /// as happens when the client disconnects and after `plugin_wait_timeout`, a waiting job is
    /// dropped with it; a running one ends on its own, and its memory stays reserved until then. A
    /// panic in the closure continues in the future.
    pub fn offload<T, F>(
        &self,
        held: Reservation,
        job: F,
    ) -> impl Future<Output = (T, Reservation)> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&TimeSlice<'_>) -> T + Send + 'static,
    {
        let running: LocalFuture<'static, (Output, Reservation)> =
            self.run_job(Box::new(move |turn| Box::new(job(turn))), held);
        async move {
            let (output, held) = running.await;
            (*output.downcast().expect("the closure gives a T"), held)
        }
    }

    /// Runs a closure that reads files, on threads of their own; otherwise as [`World::offload`](dyn World::offload).
    /// `None` if it takes longer than `timeout`, the wait for a thread included.
    pub fn read_files<T, F>(
        &self,
        held: Reservation,
        timeout: Duration,
        job: F,
    ) -> impl Future<Output = Option<(T, Reservation)>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&TimeSlice<'_>) -> T + Send + 'static,
    {
        let mut running = self.run_file_job(Box::new(move |turn| Box::new(job(turn))), held);
        let mut late = self.sleep(timeout);
        poll_fn(move |cx| match running.as_mut().poll(cx) {
            Poll::Ready((output, held)) => {
                Poll::Ready(Some((*output.downcast().expect("the closure gives a T"), held)))
            }
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        })
    }
}

impl<T: Default + 'static> WorkerState<T> {
    /// Calls `f` with this worker's value, initially the default. `f` must not call this again on
    /// the same handle: it would get another default.
    #[inline]
    pub fn with<R>(&self, world: &dyn World, f: impl FnOnce(&mut T) -> R) -> R {
        world.states().with(&self.number, f)
    }
}

/// A server that a plugin may send requests to, with resolved addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host (and port, unless the scheme's own) for the Host field.
    pub authority: String,
    pub addresses: Arc<[SocketAddr]>,
    pub tls: bool,
}

/// A request sent by a plugin. Framing fields are set by the sender.
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
    /// For TLS: requires a trusted certificate for the target's name.
    pub verify: bool,
    pub timeouts: FetchTimeouts,
    /// Maximum size of the response's body in bytes.
    pub max_body: usize,
    /// Whether it may be sent twice, regardless of its method. An idempotent one always may: if a pooled
    /// connection turns out to be dead, it is sent on a new one.
    pub repeatable: bool,
    /// Speaks HTTP/2, without TLS by prior knowledge. A server's connections carry the requests of all exchanges of
    /// the worker.
    pub http2: bool,
    pub keep: Keep,
    /// For TLS over HTTP/1: the target's addresses are those of a proxy, which opens this tunnel to the server.
    pub tunnel: Option<Tunnel>,
}

/// A tunnel that an HTTP proxy opens (CONNECT, RFC 9110 section 9.3.6).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Host and port of the server.
    pub authority: String,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<String>,
}

/// How the connection of a [`Fetch`] is pooled afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Maximum idle connections per server and worker; 0 closes the connection.
    pub connections: usize,
    /// Maximum idle time.
    pub idle: Duration,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep { connections: 32, idle: Duration::from_secs(30) }
    }
}

/// Timeouts of a [`Fetch`]. The sum of `connect`, `send` and `read` limits the whole of it, over
/// all addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchTimeouts {
    /// To connect to one address.
    pub connect: Duration,
    /// Between two writes.
    pub send: Duration,
    /// Between two reads.
    pub read: Duration,
}

/// The response to a [`Fetch`].
#[derive(Debug, Default)]
pub struct Fetched {
    pub status: u16,
    pub fields: Fields,
    pub body: Vec<u8>,
    /// The trailers of HTTP/2, such as the status of gRPC.
    pub trailers: Fields,
    /// The reservation for the body in [`World::budget`].
    pub held: Reservation,
}
