//! Kubernetes: the endpoints of services, listed once and then watched.
//!
//! Each cluster has a task of its own from the first question on: it lists, watches from there, watches again
//! when a watch has ended, and lists again when the cluster no longer has the changes since then (410). A complete
//! list replaces everything that was known. A question is answered when anything has changed.

mod objects;
mod settings;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use control::discovery::{Asking, Discovery, Service, ServiceNodes, concealed, shown};
use http_body_util::BodyExt;
use hyper::Method;
use model::Node;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::http::{Open, Question, Server, Timeouts, Trust, encoded, parse, values};
use objects::{Change, Object};
use settings::{Client, Namespaces};

/// Objects of one page of a list.
const PAGE: usize = 500;
/// The largest page, and the longest line of a watch, that is taken.
const MOST_PAGE: usize = 64 << 20;
const MOST_LINE: usize = 16 << 20;
/// The values that all pages of a list may hold, and what each page counts for itself: a list may say for ever that
/// more follows.
const MOST_VALUES: usize = 10_000_000;
const VALUES_OF_PAGE: usize = 10_000;
/// The memory that all objects of a cluster may take together, from lists and watches.
const MOST_KEPT: usize = 256 << 20;
/// Seconds a watch goes on, at least, and how many more at random. One whose connection has died unnoticed is over
/// soon after.
const WATCH: u64 = 240;
const WATCH_MORE: u64 = 60;
const LATE: Duration = Duration::from_secs(30);
/// How soon a cluster that failed is asked again, at first and at last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Changes are gathered for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// The memory of a name in a map, in bytes, beside its letters.
const ENTRY: usize = 100;
const TIMEOUTS: Timeouts = Timeouts { connect: 5000, send: 5000, read: 30_000, wait: 0 };

/// The clusters of the boot file.
#[derive(Debug)]
pub struct Kubernetes {
    config: Value,
    clusters: Vec<Arc<Cluster>>,
    /// Goes up with everything that is heard of any cluster.
    heard: watch::Sender<u64>,
    /// As of so much the last question was answered.
    seen: AtomicU64,
    /// They end with this.
    tasks: Mutex<Vec<Task>>,
}

#[derive(Debug)]
struct Task(tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One cluster.
#[derive(Debug)]
struct Cluster {
    /// Empty if there is only one.
    id: String,
    server: Server,
    client: Client,
    slices: bool,
    namespaces: Namespaces,
    labels: String,
    weight: u32,
    /// Bytes that its objects may take.
    most: usize,
    state: Mutex<State>,
}

/// The known services of a cluster.
#[derive(Debug, Default)]
struct State {
    services: Services,
    /// The memory that they take, in bytes.
    kept: usize,
    listed: bool,
    error: Option<String>,
}

/// By `namespace/name` of a service, then by the object that tells of it, then by port.
type Services = BTreeMap<String, BTreeMap<String, Ports>>;
type Ports = BTreeMap<String, Vec<Node>>;

/// Why a watch is over.
enum Over {
    /// It may go on from the last version.
    Ended,
    /// The cluster no longer knows that version.
    Gone,
    /// An event of it was not taken in, so that what is known is not whole any more.
    Lost(String),
    Failed(String),
}

/// There are more objects than are kept.
#[derive(Debug)]
struct Full;

impl Kubernetes {
    /// # Errors
    /// Settings that do not fit.
    pub fn new(
        config: &Value,
        trust: &Trust,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Kubernetes, String> {
        let clusters = settings::read(config, trust, env)?;
        let heard = watch::Sender::new(0);
        let seen = AtomicU64::new(0);
        Ok(Kubernetes { config: config.clone(), clusters, heard, seen, tasks: Mutex::default() })
    }

    fn start(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() {
            let task = |cluster: &Arc<Cluster>| {
                Task(control::tasks::spawn(follow(cluster.clone(), self.heard.clone())))
            };
            tasks.extend(self.clusters.iter().map(task));
        }
    }

    fn all(&self) -> Result<ServiceNodes, String> {
        let mut services = BTreeMap::new();
        let mut errors = Vec::new();
        for cluster in &self.clusters {
            let state = cluster.lock();
            errors.extend(state.error.clone());
            for (name, objects) in &state.services {
                for (port, nodes) in merged(objects) {
                    let name = match cluster.id.as_str() {
                        "" => format!("{name}:{port}"),
                        id => format!("{id}/{name}:{port}"),
                    };
                    services.insert(name, nodes);
                }
            }
        }
        let failed = (!errors.is_empty()).then(|| errors.join("; "));
        // Where some answer, the others' last nodes stay with theirs.
        match failed {
            Some(errors_of_all) if errors.len() == self.clusters.len() => Err(errors_of_all),
            failed => Ok(ServiceNodes { services, complete: true, failed, pause: PAUSE }),
        }
    }
}

impl Discovery for Kubernetes {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    fn id(&self, service: &Service) -> String {
        service.service_name.clone()
    }

    fn ask<'a>(&'a self, _: &'a BTreeSet<Service>) -> Asking<'a> {
        Box::pin(async move {
            let mut heard = self.heard.subscribe();
            self.start();
            loop {
                let now = *heard.borrow_and_update();
                let settled = |cluster: &Arc<Cluster>| {
                    let state = cluster.lock();
                    state.listed || state.error.is_some()
                };
                if now != self.seen.load(Ordering::Relaxed) && self.clusters.iter().all(settled) {
                    let found = self.all();
                    self.seen.store(now, Ordering::Relaxed);
                    return found;
                }
                // The sender is ours.
                let _ = heard.changed().await;
            }
        })
    }

    fn dump(&self, _: &BTreeMap<String, Vec<Node>>) -> Value {
        let cluster = |cluster: &Arc<Cluster>| {
            let state = cluster.lock();
            let endpoints = state.services.iter().map(|(name, objects)| {
                let ports = merged(objects);
                let ports: Map<String, Value> =
                    ports.iter().map(|(port, nodes)| (port.clone(), shown(nodes))).collect();
                // APISIX shows a text.
                json!({"name": name, "value": Value::Object(ports).to_string()})
            });
            let mut shown = json!({"endpoints": endpoints.collect::<Vec<_>>()});
            if !cluster.id.is_empty() {
                shown["id"] = cluster.id.as_str().into();
            }
            if let Some(error) = &state.error {
                shown["last_error"] = error.as_str().into();
            }
            shown
        };
        let endpoints: Vec<Value> = self.clusters.iter().map(cluster).collect();
        json!({"config": concealed(&self.config), "endpoints": endpoints})
    }
}

/// The nodes of a service by port, of all objects that tell of it.
fn merged(objects: &BTreeMap<String, Ports>) -> Ports {
    let mut all = Ports::new();
    for (port, nodes) in objects.values().flatten() {
        all.entry(port.clone()).or_default().extend(nodes.iter().cloned());
    }
    for nodes in all.values_mut() {
        nodes.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        // An endpoint may stand in two slices while it moves from one to the other.
        nodes.dedup_by(|a, b| (&a.host, a.port) == (&b.host, b.port));
    }
    all
}

/// Lists and watches a cluster for ever.
async fn follow(cluster: Arc<Cluster>, heard: watch::Sender<u64>) {
    let mut failures: u32 = 0;
    let mut version = None;
    loop {
        let over = match &version {
            None => match cluster.list(&heard).await {
                Ok(listed) => {
                    version = Some(listed);
                    continue;
                }
                Err(error) => Over::Failed(error),
            },
            Some(from) => {
                let mut last = from.clone();
                let began = tokio::time::Instant::now();
                let over = cluster.watch(&mut last, &heard).await;
                if began.elapsed() >= FIRST_RETRY || last != *from {
                    failures = 0;
                }
                version = Some(last);
                over
            }
        };
        if let Over::Lost(_) = over {
            version = None;
        }
        match over {
            Over::Ended => {}
            Over::Gone => version = None,
            Over::Failed(error) | Over::Lost(error) => {
                cluster.lock().error = Some(error);
                heard.send_modify(|heard| *heard += 1);
            }
        }
        // Also after a watch that ended at once, so that a cluster does not get requests without a pause.
        let pause = FIRST_RETRY.saturating_mul(1 << failures.min(16)).min(LAST_RETRY);
        failures = failures.saturating_add(1);
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}

impl Cluster {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self) -> &'static str {
        match self.slices {
            true => "/apis/discovery.k8s.io/v1/endpointslices",
            false => "/api/v1/endpoints",
        }
    }

    /// The selectors of lists and watches, as a part of a query.
    fn query(&self) -> String {
        let mut query = String::new();
        if !self.labels.is_empty() {
            query.push_str(&format!("&labelSelector={}", encoded(&self.labels)));
        }
        if let Some(fields) = self.namespaces.fields() {
            query.push_str(&format!("&fieldSelector={}", encoded(&fields)));
        }
        query
    }

    async fn open(&self, path: &str) -> Result<Open, String> {
        let token = self.client.token().await?;
        let bearer = format!("Bearer {token}");
        let headers: &[(&str, &str)] = if token.is_empty() { &[] } else { &[("authorization", &bearer)] };
        let question = Question { method: Method::GET, path, headers, body: Bytes::new() };
        let opening = self.server.open(question, TIMEOUTS);
        match tokio::time::timeout(Duration::from_millis(TIMEOUTS.connect + TIMEOUTS.read), opening).await {
            Ok(open) => open,
            Err(_) => Err(format!("{}: no answer in time", self.server.authority)),
        }
    }

    /// Replaces what is known by a list, and gives its version.
    async fn list(&self, heard: &watch::Sender<u64>) -> Result<String, String> {
        let mut listed = State { listed: true, ..State::default() };
        let mut next = String::new();
        let mut room = MOST_VALUES;
        let version = loop {
            let mut path = format!("{}?limit={PAGE}{}", self.path(), self.query());
            if !next.is_empty() {
                path.push_str(&format!("&continue={}", encoded(&next)));
            }
            let open = self.open(&path).await?;
            if open.status != 200 {
                return Err(format!("{}: listing: status {}", self.server.authority, open.status));
            }
            let reading = http_body_util::Limited::new(open.body, MOST_PAGE).collect();
            let body = tokio::time::timeout(Duration::from_millis(TIMEOUTS.read), reading).await;
            let body = body.map_err(|_| format!("{}: listing took too long", self.server.authority))?;
            let body = body.map_err(|error| format!("{}: listing: {error}", self.server.authority))?;
            let body = body.to_bytes();
            room = room.checked_sub(VALUES_OF_PAGE + values(&body)).ok_or_else(|| {
                format!("{}: the list holds more than {MOST_VALUES} values", self.server.authority)
            })?;
            let page: objects::Page =
                parse(&body).map_err(|error| format!("{}: not a list: {error}", self.server.authority))?;
            for object in page.items {
                self.put(&mut listed, object).map_err(|Full| self.too_much())?;
            }
            match page.metadata.next {
                Some(more) if !more.is_empty() => next = more,
                _ => break page.metadata.version,
            }
        };
        *self.lock() = listed;
        heard.send_modify(|heard| *heard += 1);
        Ok(version)
    }

    /// Follows what changes since a version, which moves on with it.
    async fn watch(&self, version: &mut String, heard: &watch::Sender<u64>) -> Over {
        let seconds = WATCH + fastrand::u64(..WATCH_MORE);
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}{}",
            self.path(),
            encoded(version),
            self.query()
        );
        let mut open = match self.open(&path).await {
            Ok(open) => open,
            Err(error) => return Over::Failed(error),
        };
        match open.status {
            200 => {}
            410 => return Over::Gone,
            status => return Over::Failed(format!("{}: watching: status {status}", self.server.authority)),
        }
        if self.lock().error.take().is_some() {
            heard.send_modify(|heard| *heard += 1);
        }
        let end = tokio::time::Instant::now() + Duration::from_secs(seconds) + LATE;
        let mut line: Vec<u8> = Vec::new();
        loop {
            let frame = match tokio::time::timeout_at(end, open.body.frame()).await {
                Err(_) | Ok(None) => return Over::Ended,
                Ok(Some(Err(error))) => {
                    return Over::Failed(format!("{}: watching: {error}", self.server.authority));
                }
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            let mut changed = false;
            let mut rest = &data[..];
            let mut over = None;
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&rest[..at]);
                rest = &rest[at + 1..];
                over = self.event(&line, version, &mut changed).err();
                line.clear();
                if over.is_some() {
                    break;
                }
            }
            if changed {
                heard.send_modify(|heard| *heard += 1);
            }
            if let Some(over) = over {
                return over;
            }
            if line.len() + rest.len() > MOST_LINE {
                return Over::Failed(format!("{}: an event is too long", self.server.authority));
            }
            line.extend_from_slice(rest);
        }
    }

    /// Takes one line of a watch.
    fn event(&self, line: &[u8], version: &mut String, changed: &mut bool) -> Result<(), Over> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let event: objects::Event = parse(line)
            .map_err(|error| Over::Failed(format!("{}: not an event: {error}", self.server.authority)))?;
        let object = match event.change {
            Change::Error => {
                return Err(match event.object.code {
                    Some(410) => Over::Gone,
                    code => Over::Failed(format!(
                        "{}: watching: error {}",
                        self.server.authority,
                        code.unwrap_or_default()
                    )),
                });
            }
            _ => event.object,
        };
        if let Some(now) = &object.metadata.version {
            version.clone_from(now);
        }
        let mut state = self.lock();
        match event.change {
            Change::Added | Change::Modified => {
                self.put(&mut state, object).map_err(|Full| Over::Lost(self.too_much()))?;
                *changed = true;
            }
            Change::Deleted => {
                if let Some((service, name)) = object.names(self.slices) {
                    *changed |= state.remove(&service, &name);
                }
            }
            Change::Bookmark | Change::Error | Change::Other => {}
        }
        Ok(())
    }

    /// Takes an object, unless its namespace is not wanted.
    fn put(&self, state: &mut State, object: Object) -> Result<(), Full> {
        let Some((service, name)) = object.names(self.slices) else { return Ok(()) };
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        match self.namespaces.has(namespace) {
            true => state.put(service, name, object.ports(self.weight), self.most),
            false => Ok(()),
        }
    }

    fn too_much(&self) -> String {
        format!("{}: its endpoints take more than {} KiB", self.server.authority, self.most >> 10)
    }
}

impl State {
    fn put(&mut self, service: String, name: String, ports: Ports, most: usize) -> Result<(), Full> {
        self.remove(&service, &name);
        let size = size_of_object(&service, &name, &ports);
        if self.kept + size > most {
            return Err(Full);
        }
        self.kept += size;
        self.services.entry(service).or_default().insert(name, ports);
        Ok(())
    }

    /// Whether it was there.
    fn remove(&mut self, service: &str, name: &str) -> bool {
        let Some(objects) = self.services.get_mut(service) else { return false };
        let Some(ports) = objects.remove(name) else { return false };
        if objects.is_empty() {
            self.services.remove(service);
        }
        self.kept -= size_of_object(service, name, &ports);
        true
    }
}

/// About the memory that an object takes.
fn size_of_object(service: &str, name: &str, ports: &Ports) -> usize {
    let node = |node: &Node| size_of::<Node>() + node.host.len();
    let port =
        |(port, nodes): (&String, &Vec<Node>)| ENTRY + port.len() + nodes.iter().map(node).sum::<usize>();
    2 * ENTRY + service.len() + name.len() + ports.iter().map(port).sum::<usize>()
}

#[cfg(test)]
mod tests;
