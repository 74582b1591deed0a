//! A fake exchange for the tests of plugins.

mod pipe;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use model::Invalid;
use serde::Deserialize;
use serde_json::Value;
use wire::{Fields, Method, Span};

use crate::budget::{Budget, Reservation};
use crate::build::{Build, Names, Owner, Services};
use crate::call::Call;
use crate::client::Client;
use crate::connection::{Connect, ConnectError, Connection, TooManyTasks};
use crate::consumers::{Consumer, Consumers, Identity};
use crate::engine::Messages;
use crate::exchange::{Body, Chunk, Exchange, RouteInfo, RouteNames, Source};
use crate::meters::Shard;
use crate::offload::{Job, Output, TimeSlice};
use crate::plugin::Plugin;
use crate::resolve::ResolveError;
use crate::state::WorkerStates;
use crate::step::LocalFuture;
use crate::world::{Fetch, FetchError, Fetched, World};

pub use pipe::{Pipe, pipe, reused_pipe};

thread_local! {
    /// How often this thread scanned a query, a body or cookies to read a variable.
    pub static SCANS: Cell<usize> = const { Cell::new(0) };
}

/// Header fields in this order.
pub fn fields(list: &[(&str, &str)]) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in list {
        fields.append(name.as_bytes(), value.as_bytes()).unwrap_or_else(|_| panic!("{name}: {value}"));
    }
    fields
}

/// Builds exchanges and plugin instances for a test, and owns all they use.
pub struct Probe {
    pub messages: Messages,
    pub client: Client,
    pub consumers: Consumers,
    pub route: RouteInfo,
    pub world: FakeWorld,
    pub services: Services,
    /// Compiled proto resources and their ids.
    pub protos: Vec<(String, crate::protos::DescriptorPool)>,
    /// See [`Probe::stream`].
    pub is_stream: bool,
}

/// A world that answers fetches from a script and records the requests.
pub struct FakeWorld {
    pub now_ms: std::cell::Cell<u64>,
    /// The offset of the wall clock in milliseconds.
    pub set_by_ms: std::cell::Cell<i64>,
    pub answers: RefCell<Vec<Result<Fetched, FetchError>>>,
    pub sent: RefCell<Vec<Fetch>>,
    /// The next calls, in this order. Without one, none can be opened.
    pub calls: RefCell<VecDeque<Call>>,
    /// Every sleep; it ends at once and advances the clock.
    pub slept: RefCell<Vec<Duration>>,
    /// Sleeps never end, for what is done in time.
    pub sleeps_last: Cell<bool>,
    /// Number of submitted jobs; each runs at once.
    pub jobs: Cell<usize>,
    /// Whether a job's turn is over whenever it checks.
    pub short_turns: Cell<bool>,
    /// The next connections, in this order; see [`FakeWorld::serve`]. Without one, connections are refused.
    pub connections: RefCell<VecDeque<Result<Connection, ConnectError>>>,
    pub opened: RefCell<Vec<Connect>>,
    /// Addresses for [`World::resolve`].
    pub names: RefCell<FixedNames>,
    /// The tasks that run; see [`FakeWorld::until`].
    pub tasks: RefCell<Vec<LocalFuture<'static, ()>>>,
    pub states: WorkerStates,
    pub shard: Shard,
    pub budget: Budget,
    pub complaints: RefCell<Vec<(&'static str, &'static str)>>,
}

impl Default for FakeWorld {
    fn default() -> FakeWorld {
        FakeWorld {
            now_ms: Default::default(),
            set_by_ms: Default::default(),
            answers: RefCell::default(),
            sent: RefCell::default(),
            calls: RefCell::default(),
            slept: RefCell::default(),
            sleeps_last: Cell::default(),
            jobs: Cell::default(),
            short_turns: Cell::default(),
            connections: RefCell::default(),
            opened: RefCell::default(),
            names: RefCell::default(),
            tasks: RefCell::default(),
            states: WorkerStates::default(),
            shard: Shard::default(),
            budget: Budget::new(1 << 30),
            complaints: RefCell::default(),
        }
    }
}

impl World for FakeWorld {
    fn now_ms(&self) -> u64 {
        self.now_ms.get().saturating_add_signed(self.set_by_ms.get())
    }

    fn steady_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn clock_us(&self) -> u64 {
        self.now_ms.get() * 1000
    }

    fn sleep(&self, time: Duration) -> LocalFuture<'static, ()> {
        self.slept.borrow_mut().push(time);
        if self.sleeps_last.get() {
            return Box::pin(std::future::pending());
        }
        self.now_ms.set(self.now_ms.get().saturating_add(time.as_millis() as u64));
        Box::pin(async {})
    }

    fn run_job(&self, job: Job, held: Reservation) -> LocalFuture<'static, (Output, Reservation)> {
        self.jobs.set(self.jobs.get() + 1);
        let over = self.short_turns.get();
        let output = job(&TimeSlice::new(&move || over));
        Box::pin(async move { (output, held) })
    }

    fn fetch(&self, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        self.sent.borrow_mut().push(request);
        let answer = self.answers.borrow_mut().pop().unwrap_or(Err(FetchError::Refused));
        Box::pin(async move { answer })
    }

    fn call(&self, request: Fetch) -> Call {
        self.sent.borrow_mut().push(request);
        let refused = || Call::new(Rc::default(), Box::pin(async { Err(FetchError::Refused) }));
        self.calls.borrow_mut().pop_front().unwrap_or_else(refused)
    }

    fn dispatch(&self, _: &Client, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        self.fetch(request)
    }

    fn send(&self, request: Fetch) {
        self.sent.borrow_mut().push(request);
    }

    fn connect(&self, to: Connect) -> LocalFuture<'static, Result<Connection, ConnectError>> {
        self.opened.borrow_mut().push(to);
        let next = self.connections.borrow_mut().pop_front().unwrap_or(Err(ConnectError::Refused));
        Box::pin(async move { next })
    }

    fn resolve(&self, host: &str, _: Duration) -> LocalFuture<'static, Result<Arc<[IpAddr]>, ResolveError>> {
        let found = self.names.borrow().addresses(host);
        let known = !found.is_empty();
        let found = known.then(|| found.into()).ok_or(ResolveError::Failed("there is no such name".into()));
        Box::pin(async move { found })
    }

    fn run(&self, task: LocalFuture<'static, ()>) -> Result<(), TooManyTasks> {
        self.tasks.borrow_mut().push(task);
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

    fn complain(&self, _: &Exchange<'_>, plugin: &'static str, reason: &'static str) {
        self.complaints.borrow_mut().push((plugin, reason));
    }
}

impl FakeWorld {
    /// Adds a connection to the next ones and returns the server's end of it.
    pub fn serve(&self) -> Pipe {
        let (connection, server) = pipe();
        self.connections.borrow_mut().push_back(Ok(connection));
        server
    }

    /// The output of a future that is polled in turn with the tasks of [`World::run`].
    ///
    /// # Panics
    /// The future waits for something that none of them does.
    pub fn until<T>(&self, future: impl Future<Output = T>) -> T {
        let mut cx = Context::from_waker(Waker::noop());
        let mut future = pin!(future);
        for _ in 0..TURNS {
            let polled = future.as_mut().poll(&mut cx);
            // A task may start others.
            let mut tasks = self.tasks.take();
            tasks.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
            self.tasks.borrow_mut().append(&mut tasks);
            if let Poll::Ready(output) = polled {
                return output;
            }
        }
        panic!("the future is not ready after {TURNS} turns");
    }
}

/// Turns that a future of a test may take.
const TURNS: u32 = 100_000;

/// Names from a table.
#[derive(Debug, Default)]
pub struct FixedNames(pub HashMap<String, Vec<IpAddr>>);

impl Names for FixedNames {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        self.0.get(host).cloned().unwrap_or_default()
    }
}

impl Default for Probe {
    fn default() -> Probe {
        Probe::get("/hello")
    }
}

impl Probe {
    /// A GET of this target from 127.0.0.1.
    pub fn get(target: &str) -> Probe {
        Probe::request("GET", target, &[("Host", "example.com")])
    }

    /// A request with these headers. The target must be in origin form and without escapes.
    pub fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Probe {
        let messages = messages(method, target, headers);
        let peer: SocketAddr = "127.0.0.1:40000".parse().expect("an address");
        let local = "127.0.0.1:9080".parse().expect("an address");
        Probe {
            messages,
            client: Client::new(peer, local, false),
            consumers: Consumers::default(),
            route: RouteInfo::new("1", RouteNames { name: "route-1".into(), ..RouteNames::default() }),
            world: FakeWorld { now_ms: 1_700_000_000_000.into(), ..FakeWorld::default() },
            services: Services::for_tests(),
            protos: Vec::new(),
            is_stream: false,
        }
    }

    /// A TCP connection from 127.0.0.1. Its exchange has no request.
    pub fn stream() -> Probe {
        Probe { messages: Messages::default(), is_stream: true, ..Probe::default() }
    }

    /// Replaces the request, for tests in which a new probe each time would be too slow.
    pub fn ask(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) {
        self.messages = messages(method, target, headers);
    }

    /// Sets the client address.
    #[must_use]
    pub fn from_ip(mut self, ip: &str) -> Probe {
        self.client.set_ip(ip.parse().expect("an address"));
        self
    }

    /// Adds a consumer with this configuration of an auth plugin.
    #[must_use]
    pub fn consumer<P: Plugin>(mut self, name: &str, config: Value) -> Probe {
        let schema = P::consumer_schema().expect("an auth plugin");
        let config = model::Schema::new(&schema).and_then(|schema| schema.parse(config));
        let config = config.expect("a configuration that fits its schema");
        let credential = P::credential(&config).expect("a credential").expect("an auth plugin");
        let consumer = Arc::new(Consumer {
            name: name.to_owned(),
            group_id: None,
            custom_id: None,
            labels: Vec::new(),
            chain: None,
            slot: 1,
        });
        self.consumers.add(consumer.clone());
        let identity = Identity { consumer, credential_id: None, secret: credential.secret };
        self.consumers.add_credential(P::NAME, &credential.key, identity);
        self
    }

    /// Adds a proto resource.
    #[must_use]
    pub fn proto(mut self, id: &str, content: &str) -> Probe {
        self.protos.push((id.to_owned(), crate::protos::compile(content).expect("a valid proto")));
        self
    }

    /// An exchange whose body, if any, is buffered already.
    pub fn exchange(&mut self) -> Exchange<'_> {
        let mut x = Exchange::new(&mut self.messages, &self.client, &self.consumers, &self.world);
        x.engine_mut().matched.route = Some(&self.route);
        x.engine_mut().stream = self.is_stream.then(Box::default);
        x
    }

    /// Builds a plugin instance from a configuration.
    pub fn stage<P: Plugin>(&self, config: Value) -> Result<P, Invalid> {
        self.stage_with::<P>(config, None, &FixedNames::default())
    }

    /// As [`Probe::stage`] with plugin metadata and host names.
    pub fn stage_with<P: Plugin>(
        &self,
        config: Value,
        metadata: Option<&Value>,
        names: &dyn Names,
    ) -> Result<P, Invalid> {
        let written = model::Schema::new(&P::schema())?.parse(config)?;
        let config = P::Config::deserialize(&written).map_err(|error| Invalid::new(error.to_string()))?;
        let owner = Owner { collection: "routes", id: self.route.id.to_string() };
        let metadata = || metadata;
        let cx = Build::new(&owner, &self.services, names).with_metadata(&metadata);
        // Each state of a plugin has a key of its own only with this.
        let protos = |id: &str| self.protos.iter().find(|(own, _)| own == id).map(|(_, pool)| pool.clone());
        let mut cx = cx.with_identity(P::NAME, &written).with_protos(&protos);
        P::build(config, &mut cx)
    }
}

/// The messages of a request, as in [`Probe::request`].
pub fn messages(method: &str, target: &str, headers: &[(&str, &str)]) -> Messages {
    let mut messages = Messages::default();
    let head = &mut messages.request;
    head.method = Method::from_bytes(method.as_bytes());
    head.method_span = head.fields.intern(method.as_bytes());
    let span = head.fields.intern(target.as_bytes());
    let path = target.split('?').next().unwrap_or_default().len() as u32;
    head.target_span = span;
    head.path_span = Span { start: span.start, len: path };
    head.encoded_path_span = head.path_span;
    head.has_query = path < span.len;
    let after = if head.has_query { path + 1 } else { path };
    head.query_span = Span { start: span.start + after, len: span.len - after };
    for (name, value) in headers {
        if name.eq_ignore_ascii_case("host") {
            head.authority_span = head.fields.intern(value.as_bytes());
            let host = value.split(':').next().unwrap_or_default().to_ascii_lowercase();
            head.host_span = head.fields.intern(host.as_bytes());
        }
        head.fields.append(name.as_bytes(), value.as_bytes()).expect("a valid header");
    }
    messages
}

/// Sets a response head of the upstream, as the proxy would.
pub fn respond(x: &mut Exchange<'_>, status: u16, headers: &[(&str, &str)]) {
    let head = &mut x.engine_mut().messages.response;
    head.status = status;
    for (name, value) in headers {
        head.fields.append(name.as_bytes(), value.as_bytes()).expect("a valid header");
    }
    wire::h1::hop::strip_response(head, false);
    x.engine_mut().source = Source::Upstream;
    x.engine_mut().upstream_status = status;
    x.engine_mut().apply_early_edits();
}

/// The output of a future that is ready at once, as those of [`FakeWorld`] are.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    let mut cx = Context::from_waker(Waker::noop());
    match pin!(future).as_mut().poll(&mut cx) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("the future is not ready"),
    }
}

/// Sets the whole request body of an exchange.
pub fn with_body(x: &mut Exchange<'_>, body: &[u8]) {
    std::rc::Rc::make_mut(&mut x.engine_mut().messages.body).extend_from_slice(body);
    x.engine_mut().body_state = Body::Whole;
}

/// A chunk of a body.
pub fn chunk(data: &[u8], last: bool) -> Chunk {
    Chunk { data: data.to_vec(), last, refused: false }
}
