//! Consul: the catalog of services and those of their instances that pass their checks.
//!
//! With `keepalive` the catalog and the health of all nodes are asked with an index, so that Consul
//! answers when something has changed. Each server is asked by itself ([`Polls`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::discovery::{Asking, Discovery, DumpFile, Service, ServiceNodes, dump};
use hyper::Method;
use model::Node;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::http::{HttpAnswer, Server, Timeouts, TlsSettings, Trust, encoded};
use crate::polls::{Polls, Services};

/// Services that no gateway is for.
const OWN: &str = "consul";
/// Consul may answer later than asked, by a sixteenth of the time.
const LATER: u64 = 16;
/// The services that a catalog may list, and the values that the answers about all of them may hold: each is asked for by
/// itself, and what is found is kept.
const MOST_SERVICES: usize = 50_000;
const MOST_VALUES: usize = 5_000_000;
/// The rest after an answer that has nothing new.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Consul {
    config: Value,
    settings: Arc<Settings>,
    servers: Vec<Arc<Cluster>>,
    polls: Polls,
    /// The services that were wanted when the nodes were returned last.
    wanted: Mutex<BTreeSet<Service>>,
}

/// A server, which may be of a cluster of its own.
#[derive(Debug)]
struct Cluster {
    server: Server,
    settings: Arc<Settings>,
    /// The indexes of the catalog and of the health of nodes, as of the last answer.
    seen: [AtomicU64; 2],
}

#[derive(Debug, Deserialize)]
struct Settings {
    servers: Vec<String>,
    #[serde(default)]
    token: String,
    fetch_interval: u64,
    keepalive: bool,
    weight: u32,
    timeout: Timeouts,
    #[serde(default)]
    sort_type: String,
    #[serde(default)]
    skip_services: Vec<String>,
    default_service: Option<DefaultService>,
    dump: Option<DumpFile>,
    #[serde(flatten)]
    tls: TlsSettings,
}

/// The node of services that Consul does not know.
#[derive(Debug, Deserialize)]
pub(crate) struct DefaultService {
    host: String,
    port: u16,
}

impl DefaultService {
    pub(crate) fn node(&self, weight: u32) -> Node {
        Node { host: self.host.clone(), port: self.port, weight, priority: 0, metadata: None }
    }
}

impl Consul {
    /// Files with a relative path are in the folder `data`.
    pub fn new(config: &Value, trust: &Trust, data: &Path) -> Result<Consul, String> {
        let mut settings: Settings = crate::settings("consul", config)?;
        crate::within(&mut settings.dump, data)?;
        let tls = trust.of(&settings.tls)?;
        let settings = Arc::new(settings);
        let cluster = |url: &String| {
            let server = Server::parse(url, &tls)?.resolved_by(trust.names.clone());
            Ok(Arc::new(Cluster { server, settings: settings.clone(), seen: Default::default() }))
        };
        let servers: Vec<_> = settings.servers.iter().map(cluster).collect::<Result<_, String>>()?;
        let polls = Polls::new(servers.len());
        Ok(Consul { config: config.clone(), settings, servers, polls, wanted: Mutex::default() })
    }
}

impl Cluster {
    async fn get(&self, path: &str, wait: Option<u64>) -> Result<HttpAnswer, String> {
        get(&self.server, path, &self.settings.token, self.settings.timeout, wait).await
    }

    /// The services when something has changed, or else those at `due`.
    async fn next(&self, due: Option<Instant>) -> Result<Services, String> {
        if self.settings.keepalive && self.seen[0].load(Ordering::Relaxed) > 0 {
            // The next question fails as well if the server is gone.
            let _ = self.news().await;
        } else if let Some(due) = due {
            tokio::time::sleep_until(due).await;
        }
        let services = self.services().await;
        if services.is_err() {
            // A server that is back may count from the beginning.
            self.seen.iter().for_each(|seen| seen.store(0, Ordering::Relaxed));
        }
        services
    }

    /// Waits until the catalog or the health of a node has changed since it was seen.
    async fn news(&self) -> Result<(), String> {
        let [catalog, health] = &self.seen;
        let watch = async |path: &str, seen: &AtomicU64| {
            loop {
                let index = seen.load(Ordering::Relaxed);
                let answer = self.get(path, Some(index)).await?;
                let now = index_of(&answer);
                if now == 0 || now != index {
                    return Ok::<(), String>(());
                }
                // A server that does not wait must not be asked without end.
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::select! {
            done = watch("/v1/catalog/services", catalog) => done,
            done = watch("/v1/health/state/any", health) => done,
        }
    }

    async fn services(&self) -> Result<Services, String> {
        let authority = &self.server.authority;
        let catalog = self.get("/v1/catalog/services", None).await?;
        let health = self.get("/v1/health/state/any", None).await?;
        let listed = catalog.json()?;
        let Some(listed) = listed.as_object() else {
            return Err(format!("{authority}: the catalog is not an object"));
        };
        if listed.len() > MOST_SERVICES {
            return Err(format!("{authority}: the catalog lists more than {MOST_SERVICES} services"));
        }
        let mut services = BTreeMap::new();
        let mut values = 0;
        for name in listed.keys() {
            if name == OWN || self.settings.skip_services.contains(name) {
                continue;
            }
            let path = format!("/v1/health/service/{}?passing=true", encoded(name));
            let answer = self.get(&path, None).await?;
            values += answer.values();
            if values > MOST_VALUES {
                return Err(format!(
                    "{authority}: the answers about all services hold more than {MOST_VALUES} values"
                ));
            }
            let mut nodes = nodes(&answer.json()?, self.settings.weight);
            match self.settings.sort_type.as_str() {
                "host_sort" => nodes.sort_by(|a, b| a.host.cmp(&b.host)),
                "port_sort" => nodes.sort_by_key(|node| node.port),
                "combine_sort" => nodes.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port))),
                _ => {}
            }
            if !nodes.is_empty() {
                services.insert(name.clone(), nodes);
            }
        }
        // Changes during the questions about services are in the next answer.
        for (seen, answer) in self.seen.iter().zip([&catalog, &health]) {
            seen.store(index_of(answer), Ordering::Relaxed);
        }
        Ok(services)
    }
}

impl Discovery for Consul {
    fn kind(&self) -> &'static str {
        "consul"
    }

    fn id(&self, service: &Service) -> String {
        service.service_name.clone()
    }

    fn ask<'a>(&'a self, wanted: &'a BTreeSet<Service>) -> Asking<'a> {
        Box::pin(async move {
            let lock = || self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            // Services that are wanted since lack the node of those that Consul does not know.
            let at_once = !wanted.is_subset(&lock());
            let pace = Duration::from_secs(self.settings.fetch_interval.max(1));
            let ask = |at: usize, due| {
                let server = self.servers[at].clone();
                Box::pin(async move { server.next(due).await }) as _
            };
            let mut picture = self.polls.next(at_once, pace, ask).await?;
            // A server that is silent so far may know them.
            if let Some(default) = self.settings.default_service.as_ref().filter(|_| picture.heard) {
                for service in wanted {
                    let nodes = picture.services.entry(service.service_name.clone());
                    nodes.or_insert_with(|| vec![default.node(self.settings.weight)]);
                }
            }
            lock().clone_from(wanted);
            Ok(ServiceNodes {
                services: picture.services,
                complete: picture.heard,
                failed: picture.failed,
                pause: AGAIN,
            })
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&self.config, services)
    }

    fn file(&self) -> Option<&DumpFile> {
        self.settings.dump.as_ref()
    }
}

/// One question to Consul; with an index it answers when that is no longer the newest.
pub(crate) async fn get(
    server: &Server,
    path: &str,
    token: &str,
    timeouts: Timeouts,
    index: Option<u64>,
) -> Result<HttpAnswer, String> {
    let token = [("x-consul-token", token)];
    let headers: &[(&str, &str)] = if token[0].1.is_empty() { &[] } else { &token };
    let seconds = timeouts.wait.clamp(1, 600);
    let (path, wait) = match index {
        None => (path.to_owned(), 0),
        Some(index) => {
            let sign = if path.contains('?') { '&' } else { '?' };
            (format!("{path}{sign}index={index}&wait={seconds}s"), seconds + seconds / LATER + 1)
        }
    };
    server.ask(Method::GET, &path, headers, timeouts, Duration::from_secs(wait)).await
}

pub(crate) fn index_of(answer: &HttpAnswer) -> u64 {
    let index = answer.headers.get("x-consul-index").and_then(|index| index.to_str().ok());
    index.and_then(|index| index.parse().ok()).unwrap_or(0)
}

/// The instances of a service; entries that are none are left out.
fn nodes(body: &Value, weight: u32) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut known = BTreeSet::new();
    for entry in body.as_array().into_iter().flatten() {
        let Some(service) = entry.get("Service") else { continue };
        // An instance without an address of its own is at its node's.
        let text = |value: &Value, name: &str| {
            value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let address = text(service, "Address").or_else(|| text(entry.get("Node")?, "Address"));
        let Some(host) = address else { continue };
        let port = crate::port(service.get("Port")).filter(|port| *port > 0).unwrap_or(80);
        if known.insert((host.clone(), port)) {
            let metadata = service.get("Meta").and_then(Value::as_object);
            let metadata = metadata.filter(|metadata| !metadata.is_empty()).cloned();
            nodes.push(Node { host, port, weight, priority: 0, metadata: metadata.map(Box::new) });
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Line, ask, server, trust};

    fn indexed(path: &'static str, index: u64, body: Value) -> Line {
        (path, 200, vec![("X-Consul-Index", index.to_string())], body.to_string())
    }

    fn instance(host: &str, port: u16) -> Value {
        json!({"Node": {"Address": "10.9.9.9"}, "Service": {"Address": host, "Port": port, "Meta": null}})
    }

    #[tokio::test]
    async fn instances_that_pass_their_checks_are_nodes_and_changes_are_waited_for() {
        let server = server(vec![
            indexed("GET /v1/catalog/services HTTP", 7, json!({"consul": [], "web": ["a"], "old": [], "odd": []})),
            indexed("GET /v1/health/state/any HTTP", 3, json!([])),
            indexed("GET /v1/health/service/web?passing=true", 7, json!([
                instance("10.0.0.2", 81), instance("10.0.0.1", 82), instance("10.0.0.2", 81), instance("", 0),
                {"Node": {}}, 5, {"Service": {"Address": 5}},
            ])),
            indexed("GET /v1/health/service/odd?passing=true", 7, json!("nonsense")),
            // Nothing is new with the first answer, then there is.
            indexed("GET /v1/catalog/services?index=7&wait=60s", 7, json!({})),
            indexed("GET /v1/catalog/services?index=7&wait=60s", 8, json!({})),
            // Never answered.
            ("GET /v1/health/state/any?index=3&wait=60s", 0, vec![], String::new()),
        ])
        .await;
        let config = json!({
            "servers": [format!("http://{}", server.addr)], "token": "t", "skip_services": ["old"],
            "sort_type": "combine_sort", "weight": 5, "default_service": {"host": "10.1.1.1", "port": 20999},
        });
        let consul = Consul::new(&config, &trust(), Path::new("")).unwrap();
        let found = ask(&consul, &["web", "none"]).await.unwrap();
        let nodes: Vec<_> =
            found.services["web"].iter().map(|it| format!("{}:{} {}", it.host, it.port, it.weight)).collect();
        assert_eq!(nodes, ["10.0.0.1:82 5", "10.0.0.2:81 5", "10.9.9.9:80 5"]);
        assert_eq!((found.services["none"][0].port, found.services.len(), found.complete), (20999, 2, true));
        assert!(server.heads().iter().all(|head| head.contains("x-consul-token: t\r\n")));
        let again =
            tokio::time::timeout(Duration::from_secs(20), ask(&consul, &["web"])).await.unwrap().unwrap();
        assert_eq!(again.services["web"].len(), 3);
        let waits = |head: &&String| head.starts_with("GET /v1/catalog/services?index=7");
        assert_eq!(server.heads().iter().filter(waits).count(), 2);
        assert_eq!(consul.dump(&found.services)["services"]["none"][0]["host"], "10.1.1.1");
    }

    #[tokio::test]
    async fn a_server_that_is_gone_is_passed_over_and_nonsense_is_an_error() {
        let gone = "http://127.0.0.1:9";
        let good = server(vec![
            indexed("GET /v1/catalog/services HTTP", 0, json!({})),
            indexed("GET /v1/health/state/any HTTP", 0, json!([])),
        ])
        .await;
        let config = json!({"servers": [gone, format!("http://{}", good.addr)], "fetch_interval": 1});
        let consul = Consul::new(&config, &trust(), Path::new("")).unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&consul, &["a"]).await.unwrap().services.len(), 0);
        }
        for servers in [json!([gone]), json!([])] {
            let consul = Consul::new(&json!({"servers": servers}), &trust(), Path::new("")).unwrap();
            assert!(ask(&consul, &["a"]).await.is_err() && ask(&consul, &[]).await.is_err());
        }
        let bad =
            server(vec![indexed("GET /v1/catalog", 1, json!([])), indexed("GET /v1/health", 1, json!([]))])
                .await;
        assert!(
            ask(
                &Consul::new(&json!({"servers": [format!("http://{}", bad.addr)]}), &trust(), Path::new(""))
                    .unwrap(),
                &[]
            )
            .await
            .is_err()
        );
    }

    #[tokio::test]
    async fn servers_of_two_clusters_are_both_heard_and_who_is_wanted_later_has_the_default() {
        let cluster = |name: &'static str, path: &'static str, host: &str| {
            server(vec![
                indexed("GET /v1/catalog/services HTTP", 7, json!({name: []})),
                indexed("GET /v1/health/state/any HTTP", 3, json!([])),
                indexed(path, 1, json!([instance(host, 80)])),
                // Never answered.
                ("GET /v1/catalog/services?index", 0, vec![], String::new()),
                ("GET /v1/health/state/any?index", 0, vec![], String::new()),
            ])
        };
        let east = cluster("east", "GET /v1/health/service/east?passing=true", "10.0.0.1").await;
        let west = cluster("west", "GET /v1/health/service/west?passing=true", "10.0.0.2").await;
        let servers = [format!("http://{}", east.addr), format!("http://{}", west.addr)];
        let config = json!({"servers": servers, "default_service": {"host": "10.1.1.1", "port": 1}});
        let consul = Consul::new(&config, &trust(), Path::new("")).unwrap();
        let found = ask(&consul, &["east"]).await.unwrap();
        assert_eq!(
            (&*found.services["east"][0].host, &*found.services["west"][0].host),
            ("10.0.0.1", "10.0.0.2")
        );
        let later = tokio::time::timeout(Duration::from_secs(20), ask(&consul, &["east", "none"]));
        let found = later.await.expect("nothing has to change for it").unwrap();
        assert_eq!(found.services["none"][0].host, "10.1.1.1");
    }

    #[tokio::test]
    async fn servers_that_hang_hold_up_no_other() {
        let hanging = server(vec![("GET /v1", 0, vec![], String::new())]).await;
        let good = server(vec![
            indexed("GET /v1/catalog/services HTTP", 0, json!({"web": []})),
            indexed("GET /v1/health/state/any HTTP", 0, json!([])),
            indexed("GET /v1/health/service/web?passing=true", 0, json!([instance("10.0.0.1", 80)])),
            indexed("GET /v1/health/service/web?passing=true", 0, json!([instance("10.0.0.2", 80)])),
        ])
        .await;
        let [silent, good] = [&hanging, &good].map(|server| format!("http://{}", server.addr));
        let config = json!({
            "servers": [silent, silent, good], "fetch_interval": 1, "timeout": {"read": 600_000},
            "default_service": {"host": "10.1.1.1", "port": 1},
        });
        let consul = Consul::new(&config, &trust(), Path::new("")).unwrap();
        for expected in ["10.0.0.1", "10.0.0.2"] {
            let found = tokio::time::timeout(Duration::from_secs(60), ask(&consul, &["web", "other"])).await;
            let found = found.expect("an answer of the last one").unwrap();
            assert_eq!((&*found.services["web"][0].host, found.services.len()), (expected, 1));
            assert!(!found.complete, "the others may know more");
        }
    }

    #[tokio::test]
    async fn a_catalog_without_end_is_refused() {
        let many: serde_json::Map<String, Value> =
            (0..=MOST_SERVICES).map(|n| (format!("s{n}"), json!([]))).collect();
        let server = server(vec![
            indexed("GET /v1/catalog/services HTTP", 0, json!(many)),
            indexed("GET /v1/health/state/any HTTP", 0, json!([])),
        ])
        .await;
        let config = json!({"servers": [format!("http://{}", server.addr)]});
        let why = ask(&Consul::new(&config, &trust(), Path::new("")).unwrap(), &["s1"]).await.unwrap_err();
        assert!(why.ends_with("the catalog lists more than 50000 services"), "{why}");
        assert_eq!(server.heads().len(), 2, "none of them is asked for");
    }
}
