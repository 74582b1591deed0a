//! Eureka: the whole registry, again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::discovery::{Asking, Discovery, Service, ServiceNodes, dump};
use hyper::Method;
use model::Node;
use serde::Deserialize;
use serde_json::Value;

use crate::http::{Server, Timeouts, TlsSettings, Trust, first};

#[derive(Debug)]
pub struct Eureka {
    config: Value,
    settings: Settings,
    servers: Vec<Server>,
}

#[derive(Debug, Deserialize)]
struct Settings {
    host: Vec<String>,
    fetch_interval: u64,
    #[serde(default)]
    prefix: String,
    weight: u32,
    timeout: Timeouts,
    #[serde(flatten)]
    tls: TlsSettings,
}

impl Eureka {
    pub fn new(config: &Value, trust: &Trust) -> Result<Eureka, String> {
        let settings: Settings = crate::settings("eureka", config)?;
        let tls = trust.of(&settings.tls)?;
        let server = |host: &String| {
            let server = Server::parse(&format!("{host}{}", settings.prefix), &tls)?;
            Ok(server.resolved_by(trust.names.clone()))
        };
        let servers: Vec<Server> = settings.host.iter().map(server).collect::<Result<_, String>>()?;
        Ok(Eureka { config: config.clone(), servers, settings })
    }
}

impl Discovery for Eureka {
    fn kind(&self) -> &'static str {
        "eureka"
    }

    fn id(&self, service: &Service) -> String {
        service.service_name.clone()
    }

    fn ask<'a>(&'a self, _: &'a BTreeSet<Service>) -> Asking<'a> {
        Box::pin(async {
            let timeouts = self.settings.timeout;
            let body = first(&self.servers, |server| async move {
                server.ask(Method::GET, "/apps", &[], timeouts, Duration::ZERO).await?.json()
            })
            .await?;
            Ok(ServiceNodes {
                services: services(&body, self.settings.weight)?,
                complete: true,
                failed: None,
                pause: Duration::from_secs(self.settings.fetch_interval.max(1)),
            })
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&self.config, services)
    }
}

fn services(body: &Value, weight: u32) -> Result<BTreeMap<String, Vec<Node>>, String> {
    let Some(applications) = body.get("applications") else {
        return Err("the answer has no applications".to_owned());
    };
    let mut services: BTreeMap<String, Vec<Node>> = BTreeMap::new();
    for application in list(applications.get("application")) {
        let Some(name) = application.get("name").and_then(Value::as_str) else { continue };
        let nodes = list(application.get("instance")).iter().filter_map(|instance| node(instance, weight));
        let nodes: Vec<Node> = nodes.collect();
        if !nodes.is_empty() {
            services.insert(name.to_owned(), nodes);
        }
    }
    Ok(services)
}

/// A list of one may be written without being a list.
fn list(value: Option<&Value>) -> &[Value] {
    match value {
        Some(Value::Array(items)) => items,
        Some(value @ Value::Object(_)) => std::slice::from_ref(value),
        _ => &[],
    }
}

fn node(instance: &Value, weight: u32) -> Option<Node> {
    let text = |name: &str| instance.get(name).and_then(Value::as_str);
    let overridden =
        text("overriddenstatus").or(text("overriddenStatus")).filter(|status| *status != "UNKNOWN");
    if overridden.or(text("status")) != Some("UP") {
        return None;
    }
    let port = |name: &str| {
        let port = instance.get(name)?;
        let enabled = match port.get("@enabled")? {
            Value::Bool(enabled) => *enabled,
            other => other.as_str() == Some("true"),
        };
        if enabled { crate::port(port.get("$")) } else { None }
    };
    // As in APISIX, the secure one counts, if there is one.
    let port = port("securePort").or_else(|| port("port"))?;
    let metadata = instance.get("metadata").and_then(Value::as_object).cloned();
    let weight = crate::weight(metadata.as_ref().and_then(|metadata| metadata.get("weight")), weight);
    Some(Node {
        host: text("ipAddr")?.to_owned(),
        port,
        weight,
        priority: 0,
        metadata: metadata.map(Box::new),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{ask, server, trust};

    fn instance(ip: &str, status: &str) -> Value {
        json!({
            "ipAddr": ip, "status": status, "overriddenstatus": "UNKNOWN", "app": "A",
            "port": {"$": 8080, "@enabled": "true"}, "securePort": {"$": 443, "@enabled": "false"},
            "metadata": {"weight": "7", "zone": "a"},
        })
    }

    #[tokio::test]
    async fn instances_that_are_up_are_nodes() {
        let body = json!({"applications": {"application": [
            {"name": "A", "instance": [instance("10.0.0.1", "UP"), instance("10.0.0.2", "DOWN"), {"status": "UP"}, 5]},
            {"name": "B", "instance": instance("10.0.0.3", "UP")},
            {"name": "C", "instance": []},
            {"instance": 1},
        ]}});
        let server = server(vec![("GET /eureka/apps", 200, vec![], body.to_string())]).await;
        let config = json!({"host": [format!("http://u:p@{}", server.addr)], "prefix": "/eureka/"});
        let found = ask(&Eureka::new(&config, &trust()).unwrap(), &["A"]).await.unwrap();
        let hosts = |name: &str| {
            found.services[name].iter().map(|it| (it.host.as_str(), it.port, it.weight)).collect::<Vec<_>>()
        };
        assert_eq!(hosts("A"), [("10.0.0.1", 8080, 7)]);
        assert_eq!(hosts("B"), [("10.0.0.3", 8080, 7)]);
        assert_eq!((found.services.len(), found.complete), (2, true));
        assert!(
            server.heads()[0].to_lowercase().contains("authorization: basic dtpw"),
            "{:?}",
            server.heads()
        );
    }

    #[tokio::test]
    async fn a_server_that_hangs_is_not_waited_for() {
        let hanging = server(vec![("GET /apps", 0, vec![], String::new())]).await;
        let good = server(vec![("GET /apps", 200, vec![], json!({"applications": {}}).to_string())]).await;
        let [silent, good] = [&hanging, &good].map(|server| format!("http://{}", server.addr));
        let config = json!({"host": [silent, silent, silent, good], "timeout": {"read": 600_000}});
        let eureka = Eureka::new(&config, &trust()).unwrap();
        // One that hangs comes first.
        let seed = (0..).find(|&seed| {
            fastrand::seed(seed);
            fastrand::usize(..4) == 0
        });
        fastrand::seed(seed.unwrap());
        let found = tokio::time::timeout(Duration::from_secs(60), ask(&eureka, &["A"])).await;
        assert!(found.expect("an answer of the last one").is_ok());
        assert_eq!(hanging.heads().len(), 3);
    }

    #[tokio::test]
    async fn nonsense_is_an_error_and_no_empty_registry() {
        for (status, body) in [(200, "[]"), (200, "<html>"), (500, "{\"applications\":{}}"), (200, "")] {
            let server = server(vec![("GET /apps", status, vec![], body.to_owned())]).await;
            let config = json!({"host": [format!("http://{}", server.addr)]});
            assert!(ask(&Eureka::new(&config, &trust()).unwrap(), &["A"]).await.is_err(), "{status} {body}");
        }
        assert!(Eureka::new(&json!({}), &trust()).is_err());
    }
}
