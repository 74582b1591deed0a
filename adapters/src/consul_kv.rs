//! Consul's key-value store: a key for each node, its settings as the value.
//!
//! `upstreams/web/127.0.0.1:8080` with `{"weight": 1}` is a node of the service
//! `http://127.0.0.1:8500/v1/kv/upstreams/web/`. Every server that is named has services of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use control::discovery::{Asking, Discovery, DumpFile, Found, Service, dump};
use model::Node;
use serde::Deserialize;
use serde_json::Value;

use crate::consul::{DefaultService, get, one, three};
use crate::http::{Server, Timeouts, TlsSettings, Trust};

#[derive(Debug)]
pub struct ConsulKv {
    config: Value,
    settings: Settings,
    /// What the names of its services begin with, and the server.
    servers: Vec<(String, Server)>,
}

#[derive(Debug, Deserialize)]
struct Settings {
    servers: Vec<String>,
    #[serde(default)]
    token: String,
    #[serde(default = "three")]
    fetch_interval: u64,
    #[serde(default = "upstreams")]
    prefix: String,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    timeout: Timeouts,
    #[serde(default)]
    skip_keys: Vec<String>,
    default_service: Option<DefaultService>,
    dump: Option<DumpFile>,
    #[serde(flatten)]
    tls: TlsSettings,
}

fn upstreams() -> String {
    "upstreams".to_owned()
}

impl ConsulKv {
    /// Files with a relative path are in the folder `data`.
    pub fn new(config: &Value, trust: &Trust, data: &Path) -> Result<ConsulKv, String> {
        let mut settings: Settings = crate::settings(config)?;
        crate::within(&mut settings.dump, data)?;
        let tls = trust.of(&settings.tls)?;
        let prefix = settings.prefix.trim_matches('/').to_owned();
        let server = |url: &String| {
            let server = Server::parse(url, &tls)?;
            Ok((format!("{}/v1/kv/{prefix}/", url.trim_end_matches('/')), server))
        };
        let servers = settings.servers.iter().map(server).collect::<Result<_, String>>()?;
        Ok(ConsulKv { config: config.clone(), settings: Settings { prefix, ..settings }, servers })
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
            let mut found = Found {
                complete: true,
                pause: Duration::from_secs(self.settings.fetch_interval.max(1)),
                ..Found::default()
            };
            let mut errors = Vec::new();
            for (begin, server) in &self.servers {
                let path = format!("/v1/kv/{}/?recurse=true", self.settings.prefix);
                let answer = get(server, &path, &self.settings.token, self.settings.timeout, None).await;
                match answer.and_then(|answer| answer.json()) {
                    Ok(body) => self.read(begin, &body, &mut found.services),
                    Err(error) => {
                        // The services of the others are not all there are.
                        found.complete = false;
                        errors.push(error);
                    }
                }
            }
            found.failed = (!errors.is_empty()).then(|| errors.join("; "));
            if found.services.is_empty()
                && let Some(error) = found.failed
            {
                return Err(error);
            }
            if let Some(default) = self.settings.default_service.as_ref().filter(|_| found.complete) {
                for service in wanted {
                    let nodes = found.services.entry(service.service_name.clone());
                    nodes.or_insert_with(|| vec![default.node(self.settings.weight)]);
                }
            }
            Ok(found)
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&self.config, services)
    }

    fn file(&self) -> Option<&DumpFile> {
        self.settings.dump.as_ref()
    }
}

impl ConsulKv {
    fn read(&self, begin: &str, body: &Value, services: &mut BTreeMap<String, Vec<Node>>) {
        for entry in body.as_array().into_iter().flatten() {
            if let Some((name, node)) = self.node(entry) {
                services.entry(format!("{begin}{name}/")).or_default().push(node);
            }
        }
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
