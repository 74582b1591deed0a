//! Nacos: the healthy instances of the services that are wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use control::discovery::{Asking, Discovery, MOST_NODES, Service, ServiceNodes, shown};
use hyper::Method;
use model::Node;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::{HttpAnswer, MOST, Question, Server, Timeouts, TlsSettings, Trust, encoded, in_turn};

/// After this many questions in a row without an answer, the next server is asked: the fault is the server's, not one
/// service's. Each such question takes as long as the time-outs.
const GIVEN_UP: usize = 3;

/// The most services with an invalid answer that are named with the reason.
const MOST_NAMED: usize = 3;

#[derive(Debug)]
pub struct Nacos {
    settings: Settings,
    servers: Vec<Server>,
}

#[derive(Debug, Deserialize)]
struct Settings {
    host: Vec<String>,
    fetch_interval: u64,
    prefix: String,
    weight: u32,
    timeout: Timeouts,
    #[serde(default)]
    access_key: String,
    #[serde(default)]
    secret_key: String,
    #[serde(flatten)]
    tls: TlsSettings,
}

impl Nacos {
    pub fn new(config: &Value, trust: &Trust) -> Result<Nacos, String> {
        let settings: Settings = crate::settings("nacos", config)?;
        let tls = trust.of(&settings.tls)?;
        let server = |host: &String| {
            let server = Server::parse(&format!("{host}{}", settings.prefix), &tls)?;
            Ok(server.resolved_by(trust.names.clone()))
        };
        let servers: Vec<Server> = settings.host.iter().map(server).collect::<Result<_, String>>()?;
        Ok(Nacos { servers, settings })
    }

    /// Asks a server for the services that are not known yet; returns the reasons of invalid answers.
    ///
    /// # Errors
    /// A service has no answer, or no service is known; the services with a valid answer are in `known` all the same.
    async fn all(
        &self,
        server: &Server,
        wanted: &BTreeSet<Service>,
        known: &mut BTreeMap<String, Vec<Node>>,
    ) -> Result<Vec<String>, String> {
        let token = self.token(server).await?;
        let (mut silent, mut unanswered, mut wrong) = (0, None, Vec::new());
        for service in wanted {
            let id = self.id(service);
            if known.contains_key(&id) {
                continue;
            }
            let named = |error: String| format!("{}: {error}", service.service_name);
            match self.one(server, service, &token).await {
                Err(error) => {
                    silent += 1;
                    if silent == GIVEN_UP {
                        return Err(error);
                    }
                    unanswered = Some(named(error));
                }
                Ok(answer) => {
                    silent = 0;
                    match self.nodes(server, answer) {
                        Ok(nodes) => _ = known.insert(id, nodes),
                        Err(error) if wrong.len() < MOST_NAMED => wrong.push(named(error)),
                        Err(_) => {}
                    }
                }
            }
        }
        match unanswered.or_else(|| wrong.first().filter(|_| known.is_empty()).cloned()) {
            Some(error) => Err(error),
            None => Ok(wrong),
        }
    }

    /// Logs in with the name and password of the address, if any; returns the token as a part of a query.
    async fn token(&self, server: &Server) -> Result<String, String> {
        let Some((name, password)) = server.user() else { return Ok(String::new()) };
        let path = format!("/auth/login?username={}&password={}", encoded(name), encoded(password));
        let answer =
            server.ask(Method::POST, &path, &[], self.settings.timeout, Duration::ZERO).await?.json()?;
        match answer.get("accessToken").and_then(Value::as_str).filter(|token| !token.is_empty()) {
            Some(token) => Ok(format!("&accessToken={}", encoded(token))),
            None => Err(format!("{}: the login's answer has no accessToken", server.authority)),
        }
    }

    /// # Errors
    /// There is no answer, in words.
    async fn one(&self, server: &Server, service: &Service, token: &str) -> Result<HttpAnswer, String> {
        let path = format!(
            "/ns/instance/list?healthyOnly=true&serviceName={}{token}&namespaceId={}&groupName={}{}",
            encoded(&service.service_name),
            encoded(namespace(service)),
            encoded(group(service)),
            self.signature(service),
        );
        let question = Question { method: Method::GET, path: &path, headers: &[], body: Bytes::new() };
        server.send(question, self.settings.timeout, Duration::ZERO, MOST).await
    }

    fn nodes(&self, server: &Server, answer: HttpAnswer) -> Result<Vec<Node>, String> {
        let answer = server.accept(answer)?.json()?;
        let Some(hosts) = answer.get("hosts") else {
            return Err(format!("{}: the answer has no hosts", server.authority));
        };
        let node = |host: &Value| {
            let weight = crate::weight(host.get("weight"), self.settings.weight);
            let metadata = host.get("metadata").and_then(Value::as_object).filter(|it| !it.is_empty());
            Some(Node {
                host: host.get("ip")?.as_str()?.to_owned(),
                port: crate::port(host.get("port"))?,
                weight,
                priority: 0,
                metadata: metadata.cloned().map(Box::new),
            })
        };
        Ok(hosts.as_array().into_iter().flatten().filter_map(node).take(MOST_NODES).collect())
    }

    /// Signs a question with the access key (HMAC-SHA1), as a part of a query.
    fn signature(&self, service: &Service) -> String {
        let Settings { access_key, secret_key, .. } = &self.settings;
        if access_key.is_empty() || secret_key.is_empty() {
            return String::new();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let data = format!("{now}@@{}@@{}", group(service), service.service_name);
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret_key.as_bytes());
        let signature = STANDARD.encode(hmac::sign(&key, data.as_bytes()));
        format!("&ak={}&data={}&signature={}", encoded(access_key), encoded(&data), encoded(&signature))
    }
}

impl Discovery for Nacos {
    fn kind(&self) -> &'static str {
        "nacos"
    }

    fn id(&self, service: &Service) -> String {
        format!("default/{}/{}/{}", namespace(service), group(service), service.service_name)
    }

    fn ask<'a>(&'a self, wanted: &'a BTreeSet<Service>) -> Asking<'a> {
        Box::pin(async move {
            let (mut services, mut errors) = (BTreeMap::new(), Vec::new());
            for server in in_turn(&self.servers) {
                match self.all(server, wanted, &mut services).await {
                    Ok(wrong) => {
                        errors.extend(wrong);
                        break;
                    }
                    Err(error) => errors.push(error),
                }
            }
            if services.is_empty() && !wanted.is_empty() {
                errors.extend(errors.is_empty().then(|| "there is no server".to_owned()));
                return Err(errors.join("; "));
            }
            // A server may have answered for services for which the one before did not.
            let failed = (services.len() < wanted.len()).then(|| errors.join("; "));
            let pause = Duration::from_secs(self.settings.fetch_interval.max(1));
            Ok(ServiceNodes { services, complete: false, failed, pause })
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        let services: Map<String, Value> =
            services.iter().map(|(id, nodes)| (id.clone(), json!({ "nodes": shown(nodes) }))).collect();
        json!({ "services": services })
    }
}

fn namespace(service: &Service) -> &str {
    service.namespace_id.as_deref().unwrap_or("public")
}

fn group(service: &Service) -> &str {
    service.group_name.as_deref().unwrap_or("DEFAULT_GROUP")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ask, server, trust};

    #[tokio::test]
    async fn healthy_instances_are_nodes_after_a_login() {
        let hosts = json!({"hosts": [
            {"ip": "10.0.0.1", "port": 8080, "weight": 1.0, "metadata": {"zone": "a"}},
            {"ip": "10.0.0.2", "port": 8080}, {"port": 1}, {"ip": "10.0.0.3", "port": 99999},
        ]});
        let server = server(vec![
            ("POST /nacos/v1/auth/login?username=jack&password=p%40ss ", 200, vec![], json!({"accessToken": "t k"}).to_string()),
            ("GET /nacos/v1/ns/instance/list?healthyOnly=true&serviceName=web&accessToken=t%20k&namespaceId=public&groupName=DEFAULT%5FGROUP", 200, vec![], hosts.to_string()),
        ])
        .await;
        let config = json!({"host": [format!("http://jack:p@ss@{}", server.addr)]});
        let nacos = Nacos::new(&config, &trust()).unwrap();
        let found = ask(&nacos, &["web", "unknown"]).await.unwrap();
        let id = "default/public/DEFAULT_GROUP/web";
        let nodes: Vec<_> =
            found.services[id].iter().map(|it| format!("{}:{} {}", it.host, it.port, it.weight)).collect();
        assert_eq!(nodes, ["10.0.0.1:8080 1", "10.0.0.2:8080 100"]);
        assert_eq!((found.services.len(), found.complete), (1, false), "absent services are not deleted");
        assert_eq!(found.failed, Some(format!("unknown: {}: status 404", server.addr)));
        assert_eq!(nacos.dump(&found.services)["services"][id]["nodes"][0]["metadata"]["zone"], "a");
    }

    #[tokio::test]
    async fn a_server_that_hangs_is_given_up_and_its_answers_are_kept() {
        let list = "GET /nacos/v1/ns/instance/list";
        let answer = |ip: &str| json!({"hosts": [{"ip": ip, "port": 80}]}).to_string();
        let known = "GET /nacos/v1/ns/instance/list?healthyOnly=true&serviceName=s00&";
        let hanging =
            server(vec![(known, 200, vec![], answer("10.0.0.1")), (list, 0, vec![], String::new())]).await;
        let good = server(vec![(list, 200, vec![], answer("10.0.0.2"))]).await;
        let hosts = [&hanging, &good].map(|server| format!("http://{}", server.addr));
        let config = json!({"host": hosts, "timeout": {"connect": 300, "send": 20, "read": 20}});
        let nacos = Nacos::new(&config, &trust()).unwrap();
        // The one that hangs comes first.
        let seed = (0..).find(|&seed| {
            fastrand::seed(seed);
            fastrand::usize(..2) == 0
        });
        fastrand::seed(seed.unwrap());
        let names: Vec<String> = (0..20).map(|at| format!("s{at:02}")).collect();
        let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = ask(&nacos, &wanted).await.unwrap();
        assert_eq!((found.services.len(), found.failed), (20, None));
        assert_eq!((hanging.heads().len(), good.heads().len()), (1 + GIVEN_UP, 19));
        let of_first = &found.services["default/public/DEFAULT_GROUP/s00"];
        assert_eq!(of_first[0].host, "10.0.0.1");
    }

    #[tokio::test]
    async fn questions_are_signed_and_nonsense_is_an_error() {
        let server = server(vec![("GET /nacos/v1/ns/instance/list", 200, vec![], "{}".to_owned())]).await;
        let host = format!("http://{}", server.addr);
        let config = json!({"host": [host], "access_key": "AK", "secret_key": "SK"});
        assert!(ask(&Nacos::new(&config, &trust()).unwrap(), &["web"]).await.is_err());
        let head = &server.heads()[0];
        assert!(
            head.contains("&ak=AK&data=") && head.contains("%40%40DEFAULT%5FGROUP%40%40web&signature="),
            "{head}"
        );
        assert!(
            ask(&Nacos::new(&json!({"host": ["http://127.0.0.1:9"]}), &trust()).unwrap(), &["web"])
                .await
                .is_err()
        );
    }
}
