//! Consul's key-value store: a key for each node, its settings as the value.
//!
//! `upstreams/web/127.0.0.1:8080` with `{"weight": 1}` is a node of the service
//! `http://127.0.0.1:8500/v1/kv/upstreams/web/`. Every server that is named has services of its own, and is asked by
//! itself ([`Polls`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use control::discovery::{Asking, Discovery, DumpFile, Service, ServiceNodes, dump};
use model::Node;
use serde::Deserialize;
use serde_json::Value;

use crate::consul::{DefaultService, get};
use crate::http::{Server, Timeouts, TlsSettings, Trust};
use crate::polls::{Polls, Services};

#[derive(Debug)]
pub struct ConsulKv {
    config: Value,
    settings: Arc<Settings>,
    servers: Vec<Arc<Store>>,
    polls: Polls,
}

#[derive(Debug)]
struct Store {
    server: Server,
    /// Begin of the names of its services.
    begin: String,
    settings: Arc<Settings>,
}

/// The rest after an answer.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
struct Settings {
    servers: Vec<String>,
    #[serde(default)]
    token: String,
    fetch_interval: u64,
    prefix: String,
    weight: u32,
    timeout: Timeouts,
    #[serde(default)]
    skip_keys: Vec<String>,
    default_service: Option<DefaultService>,
    dump: Option<DumpFile>,
    #[serde(flatten)]
    tls: TlsSettings,
}

impl ConsulKv {
    /// Files with a relative path are in the folder `data`.
    pub fn new(config: &Value, trust: &Trust, data: &Path) -> Result<ConsulKv, String> {
        let mut settings: Settings = crate::settings("consul_kv", config)?;
        crate::within(&mut settings.dump, data)?;
        let tls = trust.of(&settings.tls)?;
        let prefix = settings.prefix.trim_matches('/').to_owned();
        let settings = Arc::new(Settings { prefix, ..settings });
        let store = |url: &String| {
            let server = Server::parse(url, &tls)?.resolved_by(trust.names.clone());
            let begin = format!("{}/v1/kv/{}/", url.trim_end_matches('/'), settings.prefix);
            Ok(Arc::new(Store { server, begin, settings: settings.clone() }))
        };
        let servers: Vec<_> = settings.servers.iter().map(store).collect::<Result<_, String>>()?;
        let polls = Polls::new(servers.len());
        Ok(ConsulKv { config: config.clone(), settings, servers, polls })
    }
}

impl Discovery for ConsulKv {
    fn kind(&self) -> &'static str {
        "consul_kv"
    }

    fn id(&self, service: &Service) -> String {
        service.service_name.clone()
    }

    fn ask<'a>(&'a self, wanted: &'a BTreeSet<Service>) -> Asking<'a> {
        Box::pin(async move {
            let pace = Duration::from_secs(self.settings.fetch_interval.max(1));
            let ask = |at: usize, due| {
                let store = self.servers[at].clone();
                Box::pin(async move {
                    if let Some(due) = due {
                        tokio::time::sleep_until(due).await;
                    }
                    store.services().await
                }) as _
            };
            let mut picture = self.polls.next(false, pace, ask).await?;
            // The services of the others are not all there are.
            let complete = picture.answered;
            if let Some(default) = self.settings.default_service.as_ref().filter(|_| complete) {
                for service in wanted {
                    let nodes = picture.services.entry(service.service_name.clone());
                    nodes.or_insert_with(|| vec![default.node(self.settings.weight)]);
                }
            }
            Ok(ServiceNodes { services: picture.services, complete, failed: picture.failed, pause: AGAIN })
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&self.config, services)
    }

    fn file(&self) -> Option<&DumpFile> {
        self.settings.dump.as_ref()
    }
}

impl Store {
    async fn services(&self) -> Result<Services, String> {
        let path = format!("/v1/kv/{}/?recurse=true", self.settings.prefix);
        let answer = get(&self.server, &path, &self.settings.token, self.settings.timeout, None).await?;
        let mut services = Services::new();
        for entry in answer.json()?.as_array().into_iter().flatten() {
            if let Some((name, node)) = self.node(entry) {
                services.entry(format!("{}{name}/", self.begin)).or_default().push(node);
            }
        }
        Ok(services)
    }

    fn node(&self, entry: &Value) -> Option<(String, Node)> {
        let key = entry.get("Key")?.as_str()?.strip_prefix(&self.settings.prefix)?.strip_prefix('/')?;
        let (name, address) = key.rsplit_once('/')?;
        // As in APISIX, the key that is left out may be written with its slash, or with the prefix.
        let whole = format!("{}/{name}/", self.settings.prefix);
        let skips = |skip: &String| {
            skip.trim_end_matches('/') == name || *skip == whole || *skip == whole[..whole.len() - 1]
        };
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        if name.is_empty() || host.is_empty() || self.settings.skip_keys.iter().any(skips) {
            return None;
        }
        let bytes = STANDARD.decode(entry.get("Value")?.as_str()?).ok()?;
        let settings: Value = serde_json::from_slice(&bytes).ok()?;
        let unhealthy = match settings.get("check_status") {
            Some(Value::Bool(healthy)) => !healthy,
            Some(Value::String(text)) => text == "false",
            _ => false,
        };
        if unhealthy {
            return None;
        }
        let weight = crate::weight(settings.get("weight"), self.settings.weight);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some((name.to_owned(), Node { host, port, weight, priority: 0, metadata: None }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{ask, server, trust};

    #[tokio::test]
    async fn keys_are_nodes() {
        let entry = |key: &str, value: &str| json!({"Key": key, "Value": STANDARD.encode(value)});
        let body = json!([
            entry("upstreams/web/10.0.0.1:8080", r#"{"weight": 3, "max_fails": 2}"#),
            entry("upstreams/web/10.0.0.2:8080", r#"{"check_status": "false"}"#),
            entry("upstreams/web/[::1]:81", "{}"),
            entry("upstreams/old/10.0.0.3:1", "{}"),
            entry("upstreams/web/noport", "{}"),
            entry("upstreams/web/10.0.0.4:1", "nonsense"),
            entry("other/web/10.0.0.5:1", "{}"),
            json!({"Key": "upstreams/", "Value": null}),
            json!(5),
        ]);
        let server =
            server(vec![("GET /v1/kv/upstreams/?recurse=true ", 200, vec![], body.to_string())]).await;
        let url = format!("http://{}", server.addr);
        let config = json!({"servers": [url], "skip_keys": ["upstreams/old/"], "weight": 2});
        let found = ask(&ConsulKv::new(&config, &trust(), Path::new("")).unwrap(), &[]).await.unwrap();
        let name = format!("{url}/v1/kv/upstreams/web/");
        assert_eq!(found.services.keys().collect::<Vec<_>>(), [&name]);
        let nodes: Vec<_> =
            found.services[&name].iter().map(|it| format!("{} {} {}", it.host, it.port, it.weight)).collect();
        assert_eq!(nodes, ["10.0.0.1 8080 3", "::1 81 2"]);
    }

    #[tokio::test]
    async fn one_of_several_servers_may_be_gone() {
        let entry = json!([{"Key": "upstreams/a/10.0.0.1:1", "Value": STANDARD.encode("{}")}]);
        let server = server(vec![("GET /v1/kv/upstreams/", 200, vec![], entry.to_string())]).await;
        let config = json!({"servers": ["http://127.0.0.1:9", format!("http://{}", server.addr)]});
        let found = ask(&ConsulKv::new(&config, &trust(), Path::new("")).unwrap(), &[]).await.unwrap();
        assert_eq!((found.services.len(), found.complete), (1, false));
        assert!(found.failed.unwrap().starts_with("127.0.0.1:9: "));
    }
}
