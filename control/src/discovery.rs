//! Service registries: upstreams whose nodes somebody else knows.
//!
//! A registry is an implementation of [`Discovery`] in the room `adapters`. Each is followed by a task of
//! its own on the control runtime; what it knows is kept here and goes into snapshots the way addresses of
//! names do. A registry that is gone, or answers nonsense, leaves the last nodes in service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// Nodes of one service that are taken.
pub const MOST_NODES: usize = 10_000;

/// What a registry answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// Nodes by the registry's own name of a service ([`Discovery::id`]).
    pub services: BTreeMap<String, Vec<Node>>,
    /// These are all services there are: those that are missing have no nodes any more.
    pub complete: bool,
    /// How long to wait before asking again.
    pub pause: Duration,
}

/// The future of one question to a registry.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<Found, String>> + Send + 'a>>;

/// A service registry.
pub trait Discovery: Send + Sync + fmt::Debug {
    /// `discovery_type` of the upstreams that use it.
    fn kind(&self) -> &'static str;

    /// What the registry calls a service.
    fn id(&self, service: &Service) -> String;

    /// Asks for what is known now; a registry that can tell of changes may take its time, as long as
    /// nothing changes. The future is dropped soon after other services are wanted. The error is for people.
    fn ask<'a>(&'a self, wanted: &'a BTreeSet<Service>) -> Asking<'a>;

    /// What `/v1/discovery/{type}/dump` shows.
    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value;
}

/// The registries there are.
#[derive(Debug)]
pub struct Registries {
    all: Vec<Arc<dyn Discovery>>,
    wanted: HashMap<&'static str, watch::Sender<BTreeSet<Service>>>,
    known: Known,
    /// Services whose nodes have changed, by the names compiling asks with.
    news: mpsc::UnboundedReceiver<String>,
    tell: mpsc::UnboundedSender<String>,
    /// Services that are wanted of registries there are none of, and those of them that nobody was told of.
    unknown: BTreeSet<Service>,
    untold: Vec<Service>,
}

/// What registries know, for compiling and for people. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Known(Arc<Mutex<HashMap<&'static str, Registry>>>);

#[derive(Debug)]
struct Registry {
    source: Arc<dyn Discovery>,
    services: BTreeMap<String, Vec<Node>>,
    /// Those that the last answer was told of.
    told: BTreeSet<Service>,
    /// Those of which it has told no nodes, which was logged.
    missing: BTreeSet<Service>,
    /// It has answered, or failed, for what is wanted now.
    settled: bool,
    error: Option<Failure>,
}

/// Why a registry cannot be asked.
#[derive(Debug)]
struct Failure {
    why: String,
    /// The last of these reasons that was logged, and when.
    told: String,
    at: Instant,
}

impl Registries {
    pub fn new(all: Vec<Arc<dyn Discovery>>) -> Registries {
        let (tell, news) = mpsc::unbounded_channel();
        let (wanted, known, unknown, untold) = Default::default();
        Registries { all, wanted, known, news, tell, unknown, untold }
    }

    pub fn known(&self) -> Known {
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
        self.untold.extend(unknown.difference(&self.unknown).cloned());
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
                // Nobody is asked before somebody wants to know.
                let (sender, receiver) = watch::channel(services);
                self.wanted.insert(source.kind(), sender);
                let registry = Registry {
                    source: source.clone(),
                    services: BTreeMap::new(),
                    told: BTreeSet::new(),
                    missing: BTreeSet::new(),
                    settled: false,
                    error: None,
                };
                self.known.lock().insert(source.kind(), registry);
                tokio::spawn(follow(source.clone(), receiver, self.known.clone(), self.tell.clone()));
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
        std::mem::take(&mut self.untold)
    }

    /// Whether every registry that is wanted has answered or failed.
    pub fn is_settled(&self) -> bool {
        self.known.lock().values().all(|registry| registry.settled)
    }

    /// Registries that cannot be asked now, and why.
    pub fn failing(&self) -> Vec<(String, String)> {
        let known = self.known.lock();
        let why = |it: &Registry| Some(it.error.as_ref()?.why.clone());
        known.iter().filter_map(|(kind, it)| Some((format!("discovery {kind}"), why(it)?))).collect()
    }
}

impl Known {
    /// The nodes of a service.
    pub fn nodes(&self, service: &Service) -> Vec<Node> {
        let known = self.lock();
        let Some(registry) = known.get(service.kind.as_str()) else { return Vec::new() };
        registry.services.get(&registry.source.id(service)).cloned().unwrap_or_default()
    }

    /// All that a registry knows, as APISIX shows it; `None` if nobody asks it.
    pub fn dump(&self, kind: &str) -> Option<Value> {
        let known = self.lock();
        let registry = known.get(kind)?;
        let mut dump = registry.source.dump(&registry.services);
        if let Some(error) = &registry.error {
            dump["last_error"] = error.why.as_str().into();
        }
        Some(dump)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Registry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an answer; tells of the wanted services whose nodes it changed.
    fn take(
        &self,
        kind: &str,
        found: Found,
        wanted: &BTreeSet<Service>,
        tell: &mpsc::UnboundedSender<String>,
    ) {
        let mut known = self.lock();
        let Some(registry) = known.get_mut(kind) else { return };
        registry.settled = true;
        if registry.error.take().is_some() {
            tracing::info!("the registry {kind} answers again");
        }
        let Found { mut services, complete, .. } = found;
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
        let told = std::mem::replace(&mut registry.told, wanted.clone());
        for service in wanted {
            let id = registry.source.id(service);
            let now = registry.services.get(&id);
            // An answer may hold services that nobody wanted when it was asked for: who wants them now has
            // not heard of their nodes.
            if before.get(&id) != now || (now.is_some() && !told.contains(service)) {
                // Nobody is left to hear it when the program ends.
                let _ = tell.send(service.key());
            }
        }
    }

    fn failed(&self, kind: &str, error: String) {
        let mut known = self.lock();
        let Some(registry) = known.get_mut(kind) else { return };
        registry.settled = true;
        let now = Instant::now();
        if let Some(before) = &mut registry.error {
            before.why = error;
            if before.why == before.told || now.duration_since(before.at) < TELL_AGAIN {
                return;
            }
            (before.told, before.at) = (before.why.clone(), now);
        } else {
            registry.error = Some(Failure { told: error.clone(), why: error, at: now });
        }
        let last = if registry.services.is_empty() {
            "it has told of no nodes so far"
        } else {
            "its last nodes stay in use"
        };
        if let Some(Failure { told, .. }) = &registry.error {
            tracing::error!("the registry {kind} cannot be asked: {told}; {last}");
        }
    }
}

impl Registry {
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
    known: Known,
    tell: mpsc::UnboundedSender<String>,
) {
    let mut failures: u32 = 0;
    loop {
        let services = wanted.borrow_and_update().clone();
        if services.is_empty() {
            match wanted.changed().await {
                Ok(()) => continue,
                Err(_) => return,
            }
        }
        // Whatever an answer does to whoever reads it, the next one may be better.
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
                known.take(source.kind(), found, &services, &tell);
                pause
            }
            Some(Err(error)) => {
                known.failed(source.kind(), error);
                failures = failures.saturating_add(1);
                FIRST_RETRY.saturating_mul(1 << failures.min(16).saturating_sub(1)).min(LAST_RETRY)
            }
        };
        // What is wanted anew is asked for at once.
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

/// What stands in for a secret that is shown.
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_dump_holds_no_secrets() {
        let config = json!({
            "servers": ["http://jack:s3c/r@t@10.0.0.1:8500/a", "https://10.0.0.2"],
            "token": "s3cret-token",
            "service": [{"client": {"token": "s3cret-too", "host": "h"}}],
            "db_conf": {"user": "a@b", "password": "s3cret"},
            "weight": 1,
        });
        let services = BTreeMap::from([("http://u:s3cret@h/v1/kv/up/web/".to_owned(), Vec::new())]);
        let expected = json!({
            "servers": ["http://***@10.0.0.1:8500/a", "https://10.0.0.2"],
            "token": "***",
            "service": [{"client": {"token": "***", "host": "h"}}],
            "db_conf": {"user": "a@b", "password": "***"},
            "weight": 1,
        });
        assert_eq!(
            dump(&config, &services),
            json!({"config": expected, "services": {"http://***@h/v1/kv/up/web/": []}})
        );
    }

    #[derive(Debug, Default)]
    struct Script {
        asked: AtomicUsize,
        answers: Mutex<Vec<Result<Found, String>>>,
        /// How long each answer takes.
        takes: Duration,
    }

    impl Discovery for Script {
        fn kind(&self) -> &'static str {
            "script"
        }
        fn id(&self, service: &Service) -> String {
            service.service_name.clone()
        }
        fn ask<'a>(&'a self, _: &'a BTreeSet<Service>) -> Asking<'a> {
            let at = self.asked.fetch_add(1, Ordering::Relaxed);
            let answers = self.answers.lock().unwrap();
            let answer = answers.get(at).or(answers.last()).unwrap().clone();
            Box::pin(async move {
                tokio::time::sleep(self.takes).await;
                assert_ne!(answer, Err("panic".to_owned()));
                answer
            })
        }
        fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
            dump(&Value::Null, services)
        }
    }

    fn found(services: &[(&str, u16)], complete: bool) -> Result<Found, String> {
        let node = |port| Node { host: "127.0.0.1".into(), port, weight: 1, priority: 0, metadata: None };
        let services = services.iter().map(|(name, port)| ((*name).to_owned(), vec![node(*port)])).collect();
        Ok(Found { services, complete, pause: Duration::from_secs(1) })
    }

    fn service(name: &str) -> Service {
        Service {
            service_name: name.to_owned(),
            kind: "script".to_owned(),
            namespace_id: None,
            group_name: None,
        }
    }

    fn ports(known: &Known, name: &str) -> Vec<u16> {
        known.nodes(&service(name)).iter().map(|node| node.port).collect()
    }

    #[test]
    fn a_service_without_nodes_is_named_once() {
        let mut registry = Registry {
            source: Arc::new(Script::default()),
            services: found(&[("a", 1)], true).unwrap().services,
            told: BTreeSet::new(),
            missing: BTreeSet::new(),
            settled: false,
            error: None,
        };
        let wanted = BTreeSet::from([service("a"), service("b")]);
        assert_eq!(registry.newly_missing(&wanted), [service("b")]);
        assert!(registry.newly_missing(&wanted).is_empty());
        registry.services = found(&[("b", 1)], true).unwrap().services;
        assert_eq!(registry.newly_missing(&wanted), [service("a")]);
    }

    #[test]
    fn a_service_has_a_name_no_host_can_have() {
        let named = Service { namespace_id: Some("n".into()), ..service("a") };
        assert_eq!(Service::of_key(&named.key()), Some(named));
        assert_eq!(Service::of_key("example.com"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_nodes_stay_while_a_registry_is_gone() {
        let script = Arc::new(Script::default());
        *script.answers.lock().unwrap() = vec![
            found(&[("a", 1), ("b", 2)], true),
            found(&[("a", 1), ("b", 3)], true),
            Err("gone".to_owned()),
            Err("gone".to_owned()),
            found(&[("b", 3)], true),
        ];
        let mut registries = Registries::new(vec![script.clone()]);
        let known = registries.known();
        registries.want(&[service("a").key(), Service { kind: "other".into(), ..service("x") }.key()].into());
        assert!(!registries.is_settled());
        let (kind, changed) = (registries.changed().await, ports(&known, "a"));
        assert_eq!((kind, changed), (service("a").key(), vec![1]));
        assert!(registries.is_settled());
        tokio::time::sleep(Duration::from_millis(3500)).await;
        assert_eq!(registries.failing(), [("discovery script".to_owned(), "gone".to_owned())]);
        assert_eq!((ports(&known, "a"), ports(&known, "b")), (vec![1], vec![3]));
        assert!(known.dump("script").unwrap()["last_error"] == "gone" && known.dump("other").is_none());
        // It is back, and the service is not there any more.
        assert_eq!(registries.changed().await, service("a").key());
        assert_eq!((ports(&known, "a"), registries.failing()), (vec![], vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn another_reason_of_a_failure_is_told_but_not_all_the_time() {
        let registry = Registry {
            source: Arc::new(Script::default()),
            services: BTreeMap::new(),
            told: BTreeSet::new(),
            missing: BTreeSet::new(),
            settled: false,
            error: None,
        };
        let known = Known::default();
        known.lock().insert("script", registry);
        let fail = |why: &str| {
            known.failed("script", why.to_owned());
            let all = known.lock();
            let failure = all["script"].error.as_ref().unwrap();
            assert_eq!(failure.why, why, "the last reason is what people are shown");
            failure.told.clone()
        };
        assert_eq!(fail("refused"), "refused");
        for n in 0..10 {
            tokio::time::advance(Duration::from_secs(5)).await;
            assert_eq!(fail(&format!("status {n}")), "refused");
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(fail("status 403"), "status 403");
        tokio::time::advance(TELL_AGAIN).await;
        assert_eq!(fail("status 403"), "status 403");
        known.take("script", Found::default(), &BTreeSet::new(), &mpsc::unbounded_channel().0);
        assert_eq!(fail("refused"), "refused");
    }

    #[tokio::test(start_paused = true)]
    async fn services_of_unknown_registries_are_named_once_while_they_are_wanted() {
        let mut registries = Registries::new(vec![Arc::new(Script::default())]);
        let of = |kind: &str, name: &str| Service { kind: kind.into(), ..service(name) };
        let (one, two) = (of("other", "1"), of("another", "2"));
        registries.want(&[one.key()].into());
        assert_eq!(registries.take_unknown(), std::slice::from_ref(&one));
        registries.want(&[one.key(), two.key()].into());
        assert_eq!(registries.take_unknown(), [two]);
        registries.want(&BTreeSet::new());
        registries.want(&[one.key()].into());
        assert_eq!(registries.take_unknown(), [one]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_over_an_answer_is_a_failure_like_any_other() {
        let script = Arc::new(Script::default());
        *script.answers.lock().unwrap() =
            vec![found(&[("a", 1)], true), Err("panic".to_owned()), found(&[("a", 2)], true)];
        let mut registries = Registries::new(vec![script]);
        let known = registries.known();
        registries.want(&[service("a").key()].into());
        registries.changed().await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(registries.failing()[0].1.contains("panic"), "{:?}", registries.failing());
        assert_eq!(ports(&known, "a"), [1]);
        registries.changed().await;
        assert_eq!((ports(&known, "a"), registries.failing()), (vec![2], vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_told_stays() {
        let script = Arc::new(Script::default());
        *script.answers.lock().unwrap() =
            vec![found(&[("a", 1), ("b", 2)], false), found(&[("b", 3)], false)];
        let mut registries = Registries::new(vec![script]);
        let known = registries.known();
        registries.want(&[service("a").key(), service("b").key()].into());
        registries.changed().await;
        registries.changed().await;
        assert_eq!(registries.changed().await, service("b").key());
        assert_eq!((ports(&known, "a"), ports(&known, "b")), (vec![1], vec![3]));
    }

    #[tokio::test(start_paused = true)]
    async fn who_wants_a_service_later_is_told_of_nodes_that_are_known() {
        let script = Arc::new(Script { takes: GRACE / 2, ..Script::default() });
        *script.answers.lock().unwrap() = vec![found(&[("a", 1), ("b", 2)], true)];
        let mut registries = Registries::new(vec![script]);
        registries.want(&[service("a").key()].into());
        tokio::time::sleep(GRACE / 4).await;
        // The answer that is under way holds it already, and no later one is different.
        registries.want(&[service("a").key(), service("b").key()].into());
        let told = [registries.changed().await, registries.changed().await];
        assert_eq!(told, [service("a").key(), service("b").key()]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_heard_while_the_configuration_changes_all_the_time() {
        let script = Arc::new(Script { takes: GRACE / 2, ..Script::default() });
        *script.answers.lock().unwrap() = vec![found(&[("a", 1)], true)];
        let mut registries = Registries::new(vec![script]);
        for other in 0..20 {
            registries.want(&[service("a").key(), service(&other.to_string()).key()].into());
            tokio::time::sleep(GRACE / 5).await;
        }
        assert_eq!(ports(&registries.known(), "a"), [1]);
    }
}
