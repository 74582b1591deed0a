//! Service registries: upstreams whose nodes come from an external service.
//!
//! A registry is an implementation of [`Discovery`] in the room `adapters`. Each is followed by a task of
//! its own on the control runtime; what it knows is kept here and goes into snapshots the way addresses of
//! names do. A registry that is gone, or answers nonsense, leaves the last nodes in service.

mod file;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use file::DumpFile;
use futures_util::FutureExt;
use model::Node;
pub use model::upstream::Discovery as Service;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How soon a registry that failed is asked again, at first and at last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// How long a question goes on when other services are wanted meanwhile. Without it, a configuration that
/// changes more often than the registry answers would never hear of new nodes.
const GRACE: Duration = Duration::from_millis(500);
/// However short a registry says its answer holds.
const SHORTEST: Duration = Duration::from_millis(50);
/// While a registry fails, another reason is logged so long after the last one: a registry may say something else each time.
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// Nodes of one service that are taken.
pub const MOST_NODES: usize = 10_000;

/// The answer of a registry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceNodes {
    /// Nodes by the registry's own name of a service ([`Discovery::id`]).
    pub services: BTreeMap<String, Vec<Node>>,
    /// These are all services there are: those that are missing have no nodes any more.
    pub complete: bool,
    /// Why something that was asked for has no answer, although the rest has one.
    pub failed: Option<String>,
    /// How long to wait before asking again.
    pub pause: Duration,
}

/// The future of one question to a registry.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<ServiceNodes, String>> + Send + 'a>>;

/// A service registry.
pub trait Discovery: Send + Sync + fmt::Debug {
    /// `discovery_type` of the upstreams that use it.
    fn kind(&self) -> &'static str;

    /// Returns the registry's own name of a service.
    fn id(&self, service: &Service) -> String;

    /// Asks for what is known now; a registry that can tell of changes may take its time, as long as
    /// nothing changes. The future is dropped soon after other services are wanted. The error is for people.
    fn ask<'a>(&'a self, wanted: &'a BTreeSet<Service>) -> Asking<'a>;

    /// Returns the body of `/v1/discovery/{type}/dump`.
    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value;

    /// Where what it knows is kept for a start without it.
    fn file(&self) -> Option<&DumpFile> {
        None
    }
}

/// The registries there are.
#[derive(Debug)]
pub struct Registries {
    all: Vec<Arc<dyn Discovery>>,
    wanted: HashMap<&'static str, watch::Sender<BTreeSet<Service>>>,
    known: KnownServices,
    /// Services whose nodes have changed, by the names compiling asks with.
    news: mpsc::UnboundedReceiver<String>,
    changed: mpsc::UnboundedSender<String>,
    /// Services that refer to unconfigured registries, and those of them not reported yet.
    unknown: BTreeSet<Service>,
    unreported: Vec<Service>,
}

/// The nodes that registries know, for compiling and for reports. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct KnownServices {
    asked: Arc<Mutex<HashMap<&'static str, Registry>>>,
    /// Of all that are configured, whether anybody asks them or not.
    files: Arc<HashMap<&'static str, Option<DumpFile>>>,
}

#[derive(Debug)]
struct Registry {
    source: Arc<dyn Discovery>,
    services: BTreeMap<String, Vec<Node>>,
    /// Services that the last answer covered.
    answered: BTreeSet<Service>,
    /// Services without nodes in the last answer; this was logged.
    missing: BTreeSet<Service>,
    /// It has answered, or failed, for what is wanted now.
    settled: bool,
    error: Option<Failure>,
}

/// Why a registry cannot be asked, whole or in part.
#[derive(Debug)]
struct Failure {
    why: String,
    /// The last of these reasons that was logged, and when.
    logged: String,
    at: Instant,
}

impl Registries {
    pub fn new(all: Vec<Arc<dyn Discovery>>) -> Registries {
        let (changed, news) = mpsc::unbounded_channel();
        let (wanted, unknown, unreported) = Default::default();
        let files = all.iter().map(|source| (source.kind(), source.file().cloned())).collect();
        let known = KnownServices { files: Arc::new(files), ..KnownServices::default() };
        Registries { all, wanted, known, news, changed, unknown, unreported }
    }

    pub fn known(&self) -> KnownServices {
        self.known.clone()
    }

    /// Replaces the services that are wanted, by the names compiling asked with.
    pub fn want(&mut self, keys: &BTreeSet<String>) {
        let mut by_kind: HashMap<String, BTreeSet<Service>> = HashMap::new();
        for service in keys.iter().filter_map(|key| Service::of_key(key)) {
            by_kind.entry(service.kind.clone()).or_default().insert(service);
        }
        let is_known = |kind: &String| self.all.iter().any(|one| one.kind() == kind.as_str());
        let unknown: BTreeSet<Service> =
            by_kind.extract_if(|kind, _| !is_known(kind)).flat_map(|(_, services)| services).collect();
        self.unreported.extend(unknown.difference(&self.unknown).cloned());
        self.unknown = unknown;
        for source in &self.all {
            let services = by_kind.remove(source.kind()).unwrap_or_default();
            if let Some(sender) = self.wanted.get(source.kind()) {
                sender.send_if_modified(|wanted| {
                    let differs = *wanted != services;
                    *wanted = services;
                    differs
                });
            } else if !services.is_empty() {
                // A registry is polled only once a service refers to it.
                let (sender, receiver) = watch::channel(services);
                self.wanted.insert(source.kind(), sender);
                let registry = Registry {
                    source: source.clone(),
                    services: BTreeMap::new(),
                    answered: BTreeSet::new(),
                    missing: BTreeSet::new(),
                    settled: false,
                    error: None,
                };
                self.known.lock().insert(source.kind(), registry);
                crate::tasks::spawn(follow(
                    source.clone(),
                    receiver,
                    self.known.clone(),
                    self.changed.clone(),
                ));
            }
        }
    }
}

impl Registries {
    /// Waits for a service whose nodes changed. May be dropped and called again.
    pub async fn changed(&mut self) -> String {
        match self.news.recv().await {
            Some(key) => key,
            // There is a sender in here.
            None => std::future::pending().await,
        }
    }

    /// Services of registries there are none of, that are wanted since this was asked last.
    pub fn take_unknown(&mut self) -> Vec<Service> {
        std::mem::take(&mut self.unreported)
    }

    /// Whether every registry that is wanted has answered or failed.
    pub fn is_settled(&self) -> bool {
        self.known.lock().values().all(|registry| registry.settled)
    }

    /// Registries that cannot be asked now, whole or in part, and why.
    pub fn failing(&self) -> Vec<(String, String)> {
        let known = self.known.lock();
        let why = |it: &Registry| Some(it.error.as_ref()?.why.clone());
        known.iter().filter_map(|(kind, it)| Some((format!("discovery {kind}"), why(it)?))).collect()
    }
}

impl KnownServices {
    /// The nodes of a service.
    pub fn nodes(&self, service: &Service) -> Vec<Node> {
        let known = self.lock();
        let Some(registry) = known.get(service.kind.as_str()) else { return Vec::new() };
        registry.services.get(&registry.source.id(service)).cloned().unwrap_or_default()
    }

    /// All that a registry knows, as APISIX shows it; `None` if it is not polled.
    pub fn dump(&self, kind: &str) -> Option<Value> {
        let known = self.lock();
        let registry = known.get(kind)?;
        let mut dump = registry.source.dump(&registry.services);
        if let Some(error) = &registry.error {
            dump["last_error"] = error.why.as_str().into();
        }
        Some(dump)
    }

    /// The file in which what a registry knows is kept, if it has one; `None` if there is no such registry.
    pub fn file(&self, kind: &str) -> Option<Option<DumpFile>> {
        self.files.get(kind).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Registry>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with what a file holds.
    async fn load(
        &self,
        source: &dyn Discovery,
        wanted: &BTreeSet<Service>,
        changed: &mpsc::UnboundedSender<String>,
    ) {
        let Some(file) = source.file().filter(|file| file.load_on_init) else { return };
        let kind = source.kind();
        let services = match file.load().await {
            Ok(services) => services,
            // So it is at a first start.
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                return tracing::info!("the registry {kind}: {why}");
            }
            Err(why) => return tracing::warn!("the registry {kind}: {why}"),
        };
        let mut known = self.lock();
        let Some(registry) = known.get_mut(kind) else { return };
        tracing::info!("the registry {kind}: services known by its dump file: {}", services.len());
        registry.services = services;
        for service in wanted.iter().filter(|service| registry.services.contains_key(&source.id(service))) {
            let _ = changed.send(service.key());
        }
    }

    /// Keeps the services of a registry in its file.
    fn keep(&self, kind: &str, changed: bool, writer: &mut file::Writer) {
        let services = || self.lock().get(kind).map(|registry| registry.services.clone()).unwrap_or_default();
        writer.keep(changed, services);
    }

    /// Takes an answer; tells of the wanted services whose nodes it changed. Gives whether anything has changed.
    fn take(
        &self,
        kind: &str,
        found: ServiceNodes,
        wanted: &BTreeSet<Service>,
        changed: &mpsc::UnboundedSender<String>,
    ) -> bool {
        let mut known = self.lock();
        let Some(registry) = known.get_mut(kind) else { return false };
        let ServiceNodes { mut services, complete, failed, .. } = found;
        match failed {
            Some(why) => registry.fail(why, "answers in part", "nodes that it left out stay in use"),
            None if registry.error.take().is_some() => tracing::info!("the registry {kind} answers again"),
            None => {}
        }
        registry.settled = true;
        services.values_mut().for_each(|nodes| nodes.truncate(MOST_NODES));
        let before = match complete {
            true => std::mem::replace(&mut registry.services, services),
            false => {
                let before = registry.services.clone();
                let ids: BTreeSet<String> =
                    wanted.iter().map(|service| registry.source.id(service)).collect();
                registry.services.retain(|id, _| ids.contains(id));
                registry.services.extend(services);
                before
            }
        };
        for service in registry.newly_missing(wanted) {
            let name = without_user(&service.service_name);
            tracing::warn!("the registry {kind} has no nodes of the service {name}");
        }
        let answered = std::mem::replace(&mut registry.answered, wanted.clone());
        for service in wanted {
            let id = registry.source.id(service);
            let now = registry.services.get(&id);
            // An answer may hold services that were not wanted when it was asked for: their users have not
            // seen these nodes yet.
            if before.get(&id) != now || (now.is_some() && !answered.contains(service)) {
                // Fails only when the program ends and the receiver is gone.
                let _ = changed.send(service.key());
            }
        }
        before != registry.services
    }

    fn failed(&self, kind: &str, error: String) {
        let mut known = self.lock();
        let Some(registry) = known.get_mut(kind) else { return };
        registry.settled = true;
        let last = match registry.services.is_empty() {
            true => "it has reported no nodes so far",
            false => "its last nodes stay in use",
        };
        registry.fail(error, "cannot be asked", last);
    }
}

impl Registry {
    /// Keeps a reason, and logs it if it is a new one.
    fn fail(&mut self, why: String, what: &str, last: &str) {
        let now = Instant::now();
        let failure = match &mut self.error {
            None => self.error.insert(Failure { logged: why.clone(), why, at: now }),
            Some(before) => {
                before.why = why;
                if before.why == before.logged || now.duration_since(before.at) < LOG_AGAIN {
                    return;
                }
                (before.logged, before.at) = (before.why.clone(), now);
                before
            }
        };
        tracing::error!("the registry {} {what}: {}; {last}", self.source.kind(), failure.logged);
    }

    /// Services that are wanted and have no nodes: those that had some, or were not asked for, at the last answer.
    fn newly_missing(&mut self, wanted: &BTreeSet<Service>) -> Vec<Service> {
        let has_none = |service: &&Service| {
            self.services.get(&self.source.id(service)).is_none_or(|nodes| nodes.is_empty())
        };
        let missing: BTreeSet<Service> = wanted.iter().filter(has_none).cloned().collect();
        let new = missing.difference(&self.missing).cloned().collect();
        self.missing = missing;
        new
    }
}

/// Asks a registry again and again.
async fn follow(
    source: Arc<dyn Discovery>,
    mut wanted: watch::Receiver<BTreeSet<Service>>,
    known: KnownServices,
    changes: mpsc::UnboundedSender<String>,
) {
    let mut failures: u32 = 0;
    let first = wanted.borrow().clone();
    known.load(&*source, &first, &changes).await;
    let mut writer = source.file().map(DumpFile::writer);
    loop {
        let services = wanted.borrow_and_update().clone();
        if services.is_empty() {
            match wanted.changed().await {
                Ok(()) => continue,
                Err(_) => return,
            }
        }
        // An answer that panics its reader must not end the task: the next one may be fine.
        let mut asking = AssertUnwindSafe(source.ask(&services)).catch_unwind();
        let answer = tokio::select! {
            answer = &mut asking => Some(answer),
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                wanted.mark_changed();
                tokio::time::timeout(GRACE, asking).await.ok()
            }
        };
        let answer = answer.map(|answer| {
            answer.unwrap_or_else(|_| Err("reading its answer failed unexpectedly (a panic)".to_owned()))
        });
        let pause = match answer {
            None => continue,
            Some(Ok(found)) => {
                failures = 0;
                let pause = found.pause.max(SHORTEST);
                let changed = known.take(source.kind(), found, &services, &changes);
                if let Some(writer) = &mut writer {
                    known.keep(source.kind(), changed, writer);
                }
                pause
            }
            Some(Err(error)) => {
                known.failed(source.kind(), error);
                failures = failures.saturating_add(1);
                FIRST_RETRY.saturating_mul(1 << failures.min(16).saturating_sub(1)).min(LAST_RETRY)
            }
        };
        // Newly wanted services are asked for at once.
        let _ = tokio::time::timeout(pause, wanted.changed()).await.map(|_| wanted.mark_changed());
    }
}

/// Nodes as APISIX shows them.
pub fn shown(nodes: &[Node]) -> Value {
    let node = |node: &Node| {
        let mut shown = json!({ "host": node.host, "port": node.port, "weight": node.weight });
        if node.priority != 0 {
            shown["priority"] = node.priority.into();
        }
        if let Some(metadata) = &node.metadata {
            shown["metadata"] = Value::Object(serde_json::Map::clone(metadata));
        }
        shown
    };
    nodes.iter().map(node).collect()
}

/// `{"config":…,"services":{…}}`, without secrets.
pub fn dump(config: &Value, services: &BTreeMap<String, Vec<Node>>) -> Value {
    let services: Map<String, Value> =
        services.iter().map(|(name, nodes)| (without_user(name), shown(nodes))).collect();
    json!({ "config": concealed(config), "services": services })
}

/// Placeholder for secrets in shown settings.
const SECRET: &str = "***";

/// A registry's settings as they may be shown, for the control API asks for no key: without tokens, passwords, and the
/// names and passwords in addresses.
pub fn concealed(config: &Value) -> Value {
    match config {
        Value::Object(fields) => {
            let shown = fields.iter().map(|(name, value)| match (name.as_str(), value) {
                ("token" | "password" | "secret_key", _) => (name.clone(), SECRET.into()),
                (_, value) => (name.clone(), concealed(value)),
            });
            Value::Object(shown.collect())
        }
        Value::Array(items) => items.iter().map(concealed).collect(),
        Value::String(text) => without_user(text).into(),
        other => other.clone(),
    }
}

/// An `http` address without the name and the password in it; any other text as it is. A password may hold what else ends
/// that part of an address, so all goes that stands before the last `@`.
pub fn without_user(url: &str) -> String {
    let scheme = ["http://", "https://"].into_iter().find(|scheme| url.starts_with(scheme));
    match (scheme, url.rsplit_once('@')) {
        (Some(scheme), Some((_, rest))) => format!("{scheme}{SECRET}@{rest}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests;
