//! opa: asks an Open Policy Agent whether to accept a request.
//!
//! Settings, request and statuses as in APISIX 3.18, with two differences: only `true` accepts, where Lua takes any value
//! but `false` for true; and of route, service and consumer the agent gets what a worker knows of them, not the whole
//! resource.

use std::time::Duration;

use model::Invalid;
use sdk::chain::Phases;
use sdk::vars::Var;
use sdk::world::Keep;
use sdk::{Build, Exchange, Fields, HeaderName, Method, Phase, Plugin, Reply, Step, target};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::auth::Vouched;
use crate::remote::{Manner, Remote};

/// The configured plugin.
pub struct Opa {
    remote: Remote,
    manner: Manner,
    config: Config,
    server_addr: Var,
    server_port: Var,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    host: String,
    ssl_verify: bool,
    policy: String,
    timeout: u64,
    keepalive: bool,
    #[serde(default)]
    send_headers_upstream: Vec<String>,
    keepalive_timeout: u64,
    keepalive_pool: u64,
    with_route: bool,
    with_service: bool,
    with_consumer: bool,
}

/// The largest answer, in bytes.
const MOST: usize = 1 << 20;

/// Query arguments that the agent gets, as many as nginx reads.
const ARGUMENTS: usize = 100;

impl Plugin for Opa {
    const NAME: &'static str = "opa";
    const PRIORITY: i32 = 2001;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Opa, Invalid> {
        let url = format!("{}/v1/data/{}", config.host.trim_end_matches('/'), config.policy);
        let remote = Remote::parse(&url).map_err(|why| Invalid::new(why).at("/host").got(url))?;
        for (at, name) in config.send_headers_upstream.iter().enumerate() {
            if HeaderName::new(name).is_err() {
                let invalid = Invalid::new("this is not a valid header name").got(name.as_str());
                return Err(invalid.at(format!("/send_headers_upstream/{at}")));
            }
        }
        let keep = Keep {
            connections: if config.keepalive {
                usize::try_from(config.keepalive_pool).unwrap_or(usize::MAX)
            } else {
                0
            },
            idle: Duration::from_millis(config.keepalive_timeout),
        };
        let timeout = Duration::from_millis(config.timeout);
        let manner = Manner { timeout, verify: config.ssl_verify, most: MOST, keep };
        let (server_addr, server_port) = (Var::parse("server_addr"), Var::parse("server_port"));
        Ok(Opa { remote, manner, config, server_addr, server_port })
    }

    fn access(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Wait
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let body = json!({ "input": self.input(x) }).to_string();
        let mut fields = Fields::new();
        // The name and value are valid.
        let _ = fields.set(b"Content-Type", b"application/json");
        let answer = match self.remote.fetch(x, self.manner, Method::Post, fields, body.into()).await {
            Ok(answer) => answer,
            Err(error) => {
                x.complain(Self::NAME, error.as_str());
                return Step::Reply(Reply::status(403).because("no decision of the policy agent"));
            }
        };
        let unusable = |x: &Exchange<'_>, why: &'static str| {
            x.complain(Self::NAME, why);
            Step::Reply(Reply::status(503).because(why))
        };
        let Ok(answer) = serde_json::from_slice::<Value>(&answer.body) else {
            return unusable(x, "the policy agent's response is not JSON");
        };
        let Some(result) = answer.get("result").and_then(Value::as_object) else {
            return unusable(x, "the policy agent's response has no object `result`");
        };
        match result.get("allow") {
            Some(Value::Bool(true)) => {
                self.pass_on(x, result.get("headers"));
                Step::Next
            }
            _ => self.refuse(x, result),
        }
    }
}

impl Opa {
    /// The input of the policy.
    fn input(&self, x: &Exchange<'_>) -> Value {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let var = |var: &Var| var.of(x).map(|value| text(&value)).unwrap_or_default();
        let server_port = var(&self.server_port);
        let mut input = json!({
            "type": "http",
            "request": {
                "scheme": x.client().scheme(),
                "method": text(x.request().method_bytes()),
                "host": text(x.request().host()),
                "port": server_port.parse::<u16>().ok(),
                "path": text(x.path()),
                "headers": headers(x),
                "query": query(x.query()),
            },
            "var": {
                "server_addr": var(&self.server_addr),
                "server_port": server_port,
                "remote_addr": text(x.client().ip_text()),
                "remote_port": x.client().port().to_string(),
                "timestamp": x.world().now_ms() / 1000,
            },
        });
        let route = x.route();
        if let Some(route) = route.filter(|_| self.config.with_route) {
            input["route"] = json!({"id": &*route.id, "name": route.name, "uri": x.matched_uri()});
            if !route.service_id.is_empty() {
                input["route"]["service_id"] = json!(route.service_id);
            }
        }
        if let Some(route) = route.filter(|route| self.config.with_service && !route.service_id.is_empty()) {
            input["service"] = json!({"id": route.service_id, "name": route.service_name});
        }
        if let Some(consumer) = x.consumer().filter(|_| self.config.with_consumer) {
            let labels: Map<_, _> =
                consumer.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            input["consumer"] = json!({
                "consumer_name": consumer.name, "username": consumer.name, "group_id": consumer.group_id,
                "custom_id": consumer.custom_id, "labels": labels,
            });
        }
        input
    }

    /// Sets `send_headers_upstream` from the decision. The client's own headers of these names are removed.
    fn pass_on(&self, x: &mut Exchange<'_>, headers: Option<&Value>) {
        let names = &self.config.send_headers_upstream;
        if names.is_empty() {
            return;
        }
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        for name in names {
            x.remove_lookalikes(name.as_str());
        }
        for name in names {
            x.remove_header(name.as_str());
            vouched.add(name.as_bytes());
            for value in values(headers.and_then(|headers| headers.get(name))) {
                match x.add_header(name.as_str(), value.as_bytes()) {
                    Ok(()) => vouched.add(value.as_bytes()),
                    Err(_) => x.complain(
                        Self::NAME,
                        "a header of the decision has an invalid value and was left out",
                    ),
                }
            }
        }
        x.set_note(vouched);
    }

    /// Refuses the request with status, headers and reason of the decision.
    fn refuse(&self, x: &mut Exchange<'_>, result: &Map<String, Value>) -> Step {
        for (name, value) in result.get("headers").and_then(Value::as_object).into_iter().flatten() {
            for (at, value) in values(Some(value)).into_iter().enumerate() {
                let set = match at {
                    0 => x.set_response_header(name.as_str(), value.as_bytes()),
                    _ => x.add_response_header(name.as_str(), value.as_bytes()),
                };
                if set.is_err() {
                    x.complain(Self::NAME, "a header of the decision is invalid and was left out");
                }
            }
        }
        let status = result.get("status_code").and_then(Value::as_f64).map(|status| status as u16);
        let status = status.filter(|status| (200..=599).contains(status)).unwrap_or(403);
        let reply = match result.get("reason") {
            None | Some(Value::Null | Value::Bool(false)) => Reply::status(status),
            Some(Value::String(text)) => Reply::text(status, text.clone()),
            Some(reason) => Reply::json(status, reason),
        };
        Step::Reply(reply.because("the policy refuses the request"))
    }
}

/// The texts and numbers of a header's value, which may be a list.
fn values(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Number(number)) => vec![number.to_string()],
        Some(Value::Array(list)) => list
            .iter()
            .flat_map(|one| match one {
                Value::Array(_) => Vec::new(),
                one => values(Some(one)),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Adds a value to a map of texts, as Lua's tables of headers and arguments have several: as a list.
fn add(map: &mut Map<String, Value>, name: String, value: Value) {
    match map.get_mut(&name) {
        None => _ = map.insert(name, value),
        Some(Value::Array(list)) => list.push(value),
        Some(first) => *first = json!([first.take(), value]),
    }
}

fn headers(x: &Exchange<'_>) -> Map<String, Value> {
    let mut map = Map::new();
    for (name, value, _) in x.request().fields.iter() {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        add(&mut map, name, json!(String::from_utf8_lossy(value)));
    }
    map
}

fn query(query: &[u8]) -> Map<String, Value> {
    let mut map = Map::new();
    let pairs = query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty() && *pair != b"=");
    for pair in pairs.take(ARGUMENTS) {
        let decoded = |raw: &[u8]| {
            let mut out = Vec::new();
            target::percent_decode(raw, true, &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        let (name, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(at) => (&pair[..at], json!(decoded(&pair[at + 1..]))),
            None => (pair, json!(true)),
        };
        add(&mut map, decoded(name), value);
    }
    map
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, now};
    use sdk::world::{FetchError, Fetched};

    use super::*;

    /// The step, after the agent's answer.
    fn run(x: &mut Exchange<'_>, plugin: &Opa) -> Step {
        assert!(matches!(plugin.access(x), Step::Wait));
        now(plugin.wait(Phase::Access, x))
    }

    fn config(rest: Value) -> Value {
        let mut config = json!({"host": "http://127.0.0.1:8181/", "policy": "shop"});
        for (name, value) in rest.as_object().unwrap() {
            config[name] = value.clone();
        }
        config
    }

    fn answer(probe: &Probe, body: &Value) {
        let body = body.to_string().into_bytes();
        *probe.world.answers.borrow_mut() = vec![Ok(Fetched { status: 200, body, ..Fetched::default() })];
    }

    #[test]
    fn the_policy_gets_the_request() {
        let headers =
            [("Host", "a.test:9080"), ("X-A", "1"), ("x-a", "2"), ("X-Me", "client"), ("X_Me", "client")];
        let mut probe = Probe::request("POST", "/a?q=1&q=%20&b&c=", &headers);
        let config = config(json!({
            "with_route": true, "with_service": true, "with_consumer": true, "send_headers_upstream": ["X-Me", "X-No"],
        }));
        let plugin: Opa = probe.stage(config).unwrap();
        answer(&probe, &json!({"result": {"allow": true, "headers": {"X-Me": "rose", "X-Other": "x"}}}));
        let mut x = probe.exchange();
        assert!(matches!(run(&mut x, &plugin), Step::Next));
        assert_eq!(x.header("X-Me"), Some(&b"rose"[..]));
        assert!(["X_Me", "X-No", "X-Other"].iter().all(|name| x.header(*name).is_none()));
        drop(x);
        let sent = probe.world.sent.borrow();
        assert_eq!(sent[0].uri, b"/v1/data/shop");
        let input = serde_json::from_slice::<Value>(&sent[0].body).unwrap()["input"].clone();
        assert_eq!(input["type"], "http");
        let request = &input["request"];
        assert_eq!(request["headers"]["x-a"], json!(["1", "2"]));
        assert_eq!(request["query"], json!({"q": ["1", " "], "b": true, "c": ""}));
        assert_eq!([&request["method"], &request["path"], &request["host"]], ["POST", "/a", "a.test"]);
        assert_eq!((&request["port"], &request["scheme"]), (&json!(9080), &json!("http")));
        assert_eq!(input["var"]["remote_addr"], "127.0.0.1");
        assert_eq!(input["var"]["timestamp"], 1_700_000_000);
        assert_eq!(input["route"]["id"], "1");
        assert!(input.get("service").is_none() && input.get("consumer").is_none());
    }

    #[test]
    fn only_true_accepts() {
        for (result, status, body) in [
            (json!({"allow": false}), 403, ""),
            (json!({}), 403, ""),
            (json!({"allow": 1}), 403, ""),
            (json!({"allow": "true"}), 403, ""),
            (json!({"allow": null}), 403, ""),
            (
                json!({"status_code": 302, "headers": {"Location": "/login", "X-N": 7, "X-L": ["a", "b"]}}),
                302,
                "",
            ),
            (json!({"status_code": 99_999, "reason": "no"}), 403, "no"),
            (json!({"reason": {"code": 1}}), 403, "{\"code\":1}\n"),
            (json!({"headers": {"a b": "c", "X-L": {"d": 1}}}), 403, ""),
        ] {
            let mut probe = Probe::default();
            let plugin: Opa = probe.stage(config(json!({}))).unwrap();
            answer(&probe, &json!({ "result": result }));
            let mut x = probe.exchange();
            let Step::Reply(reply) = run(&mut x, &plugin) else { panic!("{result}") };
            assert_eq!((reply.status, &reply.body[..]), (status, body.as_bytes()), "{result}");
            sdk::testing::respond(&mut x, status, &[]);
            if status == 302 {
                let got = ["Location", "X-N", "X-L"].map(|name| x.response_header(name));
                assert_eq!(got, [Some(&b"/login"[..]), Some(b"7"), Some(b"a")]);
            }
        }
    }

    #[test]
    fn without_a_decision_nothing_is_accepted() {
        let answered =
            |body: &str| Ok(Fetched { status: 200, body: body.as_bytes().to_vec(), ..Fetched::default() });
        for (answer, status) in [
            (Err(FetchError::Refused), 403),
            (Err(FetchError::TooLarge), 403),
            (answered("<html>"), 503),
            (answered("{}"), 503),
            (answered("{\"result\": true}"), 503),
            (answered("{\"result\": null}"), 503),
        ] {
            let mut probe = Probe::default();
            let plugin: Opa = probe.stage(config(json!({}))).unwrap();
            *probe.world.answers.borrow_mut() = vec![answer];
            let mut x = probe.exchange();
            let Step::Reply(reply) = run(&mut x, &plugin) else { panic!("{status}") };
            assert_eq!(reply.status, status);
            drop(x);
            assert_eq!(probe.world.complaints.borrow().len(), 1);
        }
    }

    #[test]
    fn invalid_settings_are_refused() {
        let probe = Probe::default();
        for rest in [
            json!({"host": "127.0.0.1:8181"}),
            json!({"policy": "a b"}),
            json!({"send_headers_upstream": ["a b"]}),
        ] {
            assert!(probe.stage::<Opa>(config(rest.clone())).is_err(), "{rest}");
        }
    }
}
