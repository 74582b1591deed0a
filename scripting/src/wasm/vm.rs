//! The state of an instance that the functions which it calls work on.

use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;
use sdk::vars::Var;
use sdk::{Exchange, World};
use wasmtime::{Memory, StoreLimits, StoreLimitsBuilder, TypedFunc};

use super::call::{Answer, Call};
use super::context::{HttpContext, PluginContext};
use super::grpc::open::{Event, Open};
use super::host::Host;
use super::metrics::Metric;
use super::shared::Values;
use super::status::Refusal;
use crate::lent;

/// Contexts of one instance: of requests in flight, and of plugin instances.
const MOST_CONTEXTS: usize = 100_000;

/// Contexts of one instance whose requests are over, and with which the module is not done.
const MOST_KEPT: usize = 1000;

/// Calls to other servers of one instance that may be waited for.
const MOST_CALLS: usize = 1000;

pub(super) struct Vm {
    pub host: Arc<Host>,
    /// The name of the plugin, which stands for the ABI's identifier of a VM as well.
    pub plugin: &'static str,
    /// The plugin's shared data.
    pub shared: Arc<Values>,
    pub limits: StoreLimits,
    pub memory: Option<Memory>,
    /// The function by which the module provides memory for results.
    pub allocate: Option<TypedFunc<u32, u32>>,
    /// The context that functions work on.
    pub effective: u32,
    /// The context whose exchange is lent; 0 for none.
    pub lent: u32,
    pub plugins: HashMap<u32, PluginContext>,
    pub https: HashMap<u32, HttpContext>,
    /// The response of the call whose callback runs.
    pub answer: Option<Answer>,
    /// gRPC calls that are open, by their numbers.
    pub rpcs: HashMap<u32, Open>,
    /// The news of the gRPC call whose callback runs.
    pub event: Option<Event>,
    pub metrics: Vec<Arc<Metric>>,
    /// Variables that properties have named.
    pub vars: HashMap<String, Var>,
    /// Work beside exchanges that the code has asked for, begun once it has returned.
    pub begun: Vec<Begun>,
    /// The beginning of a line of standard output or error.
    pub output: Vec<u8>,
    /// The worker, for code without an exchange.
    pub world: Option<Rc<dyn World>>,
    free: Vec<u32>,
    last: u32,
    last_call: u32,
    /// Calls to other servers that are waited for.
    pub calls: usize,
    /// Contexts of requests that are over, and with which the module is not done.
    kept: usize,
}

/// Work that runs on the worker beside exchanges.
pub(super) enum Begun {
    /// A context's timer has another period.
    Tick(u32),
    /// A context registered a queue.
    Queue { context: u32, queue: u32 },
    /// A context that was over has said that it is done.
    Delete(u32),
    /// A call to another server that no exchange waits for, and the plugin context that gets its response.
    Call { plugin: u32, id: u32, call: Call },
    /// A gRPC call, and the plugin context that gets its news.
    Rpc { plugin: u32, number: u32 },
}

impl Vm {
    pub(super) fn new(host: Arc<Host>, plugin: &'static str) -> Vm {
        let limits = StoreLimitsBuilder::new()
            .memory_size(host.settings.max_memory)
            .table_elements(100_000)
            .instances(1)
            .memories(1)
            .tables(16)
            .build();
        Vm {
            shared: host.shared.of(plugin),
            host,
            plugin,
            limits,
            memory: None,
            allocate: None,
            effective: 0,
            lent: 0,
            plugins: HashMap::new(),
            https: HashMap::new(),
            answer: None,
            rpcs: HashMap::new(),
            event: None,
            metrics: Vec::new(),
            vars: HashMap::new(),
            begun: Vec::new(),
            output: Vec::new(),
            world: None,
            free: Vec::new(),
            last: 0,
            last_call: 0,
            calls: 0,
            kept: 0,
        }
    }

    /// A number for a context; `None` if there are too many.
    pub(super) fn number(&mut self) -> Option<u32> {
        if self.https.len() + self.plugins.len() >= MOST_CONTEXTS {
            return None;
        }
        Some(self.free.pop().unwrap_or_else(|| {
            self.last += 1;
            self.last
        }))
    }

    /// Forgets a context. Its number is used again.
    pub(super) fn forget(&mut self, context: u32) {
        let http = self.https.remove(&context);
        self.kept -= usize::from(http.as_ref().is_some_and(|http| http.is_kept));
        self.rpcs.retain(|_, open| open.plugin != context && open.context != context);
        if http.is_some() || self.plugins.remove(&context).is_some() {
            self.free.push(context);
        }
    }

    /// Keeps the context of a request that is over until its module is done; false if there are too many.
    pub(super) fn keep(&mut self, context: u32) -> bool {
        let has_room = self.kept < MOST_KEPT;
        if let Some(http) = self.https.get_mut(&context).filter(|_| has_room) {
            http.is_kept = true;
            http.properties = Vec::new();
            self.kept += 1;
        }
        has_room
    }

    /// Ends the keeping of a context, whose module is done with it; false if it is not kept.
    pub(super) fn release(&mut self, context: u32) -> bool {
        let http = self.https.get_mut(&context).filter(|http| http.is_kept);
        let is_kept = http.map(|http| http.is_kept = false).is_some();
        self.kept -= usize::from(is_kept);
        is_kept
    }

    /// A number for a call to another server.
    pub(super) fn call_number(&mut self) -> Option<u32> {
        if self.calls + self.rpcs.len() >= MOST_CALLS {
            return None;
        }
        loop {
            self.last_call = self.last_call.wrapping_add(1).max(1);
            if !self.rpcs.contains_key(&self.last_call) {
                return Some(self.last_call);
            }
        }
    }

    /// Forgets a gRPC call, and resets its stream unless it has ended.
    pub(super) fn end_rpc(&mut self, number: u32) -> Option<Open> {
        let open = self.rpcs.remove(&number)?;
        if let Some(http) = self.https.get_mut(&open.context) {
            http.rpcs.retain(|(known, _)| *known != number);
        }
        Some(open)
    }

    /// The effective context, if it is of a request or a stream.
    pub(super) fn http(&mut self) -> Result<&mut HttpContext, Refusal> {
        self.https.get_mut(&self.effective).ok_or(Refusal::NOT_FOUND)
    }

    /// The plugin context of the effective context.
    pub(super) fn plugin_context(&self) -> Option<(u32, &PluginContext)> {
        let id = self.https.get(&self.effective).map_or(self.effective, |http| http.plugin);
        self.plugins.get(&id).map(|context| (id, context))
    }

    /// Borrows the exchange of the effective context, which must be the one that is lent.
    pub(super) fn exchange<T>(&self, f: impl FnOnce(&mut Exchange<'_>) -> T) -> Result<T, Refusal> {
        if self.effective != self.lent || self.lent == 0 {
            return Err(Refusal::NOT_FOUND);
        }
        lent::with(f).ok_or(Refusal::NOT_FOUND)
    }

    /// As [`Vm::exchange`], for what only a request has.
    pub(super) fn request<T>(&self, f: impl FnOnce(&mut Exchange<'_>) -> T) -> Result<T, Refusal> {
        match self.is_stream() {
            true => Err(Refusal::NOT_FOUND),
            false => self.exchange(f),
        }
    }

    /// Whether the effective context is of a TCP stream.
    pub(super) fn is_stream(&self) -> bool {
        self.https.get(&self.effective).is_some_and(|http| http.stream.is_some())
    }

    /// Borrows the worker, which there is except while a module is loaded.
    pub(super) fn world<T>(&self, f: impl FnOnce(&dyn World) -> T) -> Option<T> {
        let mut f = Some(f);
        let with_exchange = lent::with(|x| f.take().map(|f| f(x.world())));
        match (with_exchange.flatten(), f, &self.world) {
            (Some(done), ..) => Some(done),
            (None, Some(f), Some(world)) => Some(f(&**world)),
            _ => None,
        }
    }
}
