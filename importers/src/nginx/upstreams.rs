//! Upstreams: groups of servers, and servers that a `proxy_pass` names itself.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::directive::{Block, Directive};
use super::report::Report;
use super::scope::Scope;
use super::text::Text;
use super::values;
use crate::finding::Place;
use crate::{Imported, Severity};

/// Upstreams of a configuration.
#[derive(Default)]
pub(super) struct Upstreams<'a> {
    groups: BTreeMap<String, &'a Directive>,
    made: Vec<(String, Value, Place)>,
    /// Places of those that were made, by their values as text and by their ids.
    by_value: HashMap<String, usize>,
    by_id: HashMap<String, usize>,
}

/// A server or a group with a scheme, as a `proxy_pass` names it.
pub(super) struct Target {
    pub scheme: &'static str,
    /// `host`, `host:port` or the name of a group.
    pub authority: String,
}

/// Settings of the location that uses an upstream.
#[derive(Default)]
pub(super) struct Use {
    /// `pass_host` and `upstream_host`.
    pub host: Option<String>,
    pub tls: Option<Value>,
    pub retries: Option<u64>,
    pub retry_timeout: Option<f64>,
    pub retry: Option<Value>,
}

impl<'a> Upstreams<'a> {
    pub(super) fn read(block: &'a Block) -> Upstreams<'a> {
        let groups = block.directives.iter().filter(|directive| directive.name == "upstream");
        let groups = groups.map(|directive| (directive.arg(0).to_owned(), directive.mark_used()));
        Upstreams {
            groups: groups.collect(),
            made: Vec::new(),
            by_value: HashMap::new(),
            by_id: HashMap::new(),
        }
    }

    pub(super) fn is_group(&self, name: &str) -> bool {
        self.groups.contains_key(name)
    }

    /// The first server of a target, as `host:port`.
    pub(super) fn first_server(&self, target: &Target) -> Option<String> {
        match self.groups.get(&target.authority) {
            Some(group) => {
                let server = group.children().iter().find(|server| server.name == "server")?;
                let (host, port) = host_port(server.arg(0))?;
                Some(format!("{host}:{}", port.unwrap_or(80)))
            }
            None => {
                let (host, port) = host_port(&target.authority)?;
                Some(format!("{host}:{}", port.unwrap_or(default_port(target.scheme))))
            }
        }
    }

    /// Whether a target has several servers.
    pub(super) fn is_several(&self, target: &Target) -> bool {
        let servers =
            |group: &&'a Directive| group.children().iter().filter(|server| server.name == "server").count();
        self.groups.get(&target.authority).is_some_and(|group| servers(group) > 1)
    }

    /// The id of the upstream of a target, which is made if it is absent.
    pub(super) fn id(
        &mut self,
        target: &Target,
        how: &Use,
        at: &Directive,
        report: &mut Report,
    ) -> Option<String> {
        let mut value = match self.groups.get(&target.authority) {
            Some(group) => {
                let route = report.route.take();
                let value = of_group(group, target.scheme, report);
                report.route = route;
                value
            }
            None => of_host(&target.authority, target.scheme)?,
        };
        value.insert("scheme".to_owned(), json!(target.scheme));
        if let Some(host) = &how.host {
            value.insert("pass_host".to_owned(), json!("rewrite"));
            value.insert("upstream_host".to_owned(), json!(host));
        }
        let settings = [
            ("tls", how.tls.clone()),
            ("retries", how.retries.map(|retries| json!(retries))),
            ("retry_timeout", how.retry_timeout.map(|seconds| json!(seconds))),
        ];
        for (name, setting) in settings {
            if let Some(setting) = setting {
                value.insert(name.to_owned(), setting);
            }
        }
        if let Some(retry) = &how.retry {
            let own = value.entry("sluice").or_insert_with(|| json!({}));
            own["retry"] = retry.clone();
        }
        let place = self.groups.get(&target.authority).map_or(&at.place, |group| &group.place);
        Some(self.intern(&target.authority, Value::Object(value), place))
    }

    /// The id of an upstream with these settings.
    pub(super) fn intern(&mut self, name: &str, value: Value, place: &Place) -> String {
        let text = value.to_string();
        if let Some(at) = self.by_value.get(&text) {
            return self.made[*at].0.clone();
        }
        let base = Some(values::id_part(name)).filter(|id| !id.is_empty()).unwrap_or("upstream".to_owned());
        let mut id = base.clone();
        let mut number = 1;
        while self.by_id.contains_key(&id) {
            number += 1;
            id = format!("{base}-{number}");
        }
        self.by_value.insert(text, self.made.len());
        self.by_id.insert(id.clone(), self.made.len());
        self.made.push((id.clone(), value, place.clone()));
        id
    }

    /// The value of an upstream that was made.
    pub(super) fn value(&self, id: &str) -> Option<&Value> {
        Some(&self.made[*self.by_id.get(id)?].1)
    }

    pub(super) fn into_resources(self) -> Vec<Imported> {
        let resource =
            |(id, value, place)| Imported { key: model::Key::new(model::Kind::Upstream, id), value, place };
        self.made.into_iter().map(resource).collect()
    }
}

pub(super) fn default_port(scheme: &str) -> u16 {
    if matches!(scheme, "https" | "h2") { 443 } else { 80 }
}

/// `host`, `host:port`, `[v6]:port`.
pub(super) fn host_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) => {
            (host, Some(port.parse().ok().filter(|port| *port > 0)?))
        }
        _ => (text, None),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '[' | ']' | ':');
    (!host.is_empty() && host.chars().all(allowed)).then(|| (host.to_owned(), port))
}

fn of_host(authority: &str, scheme: &str) -> Option<Map<String, Value>> {
    let (host, port) = host_port(authority)?;
    let mut value = Map::new();
    let node = json!({"host": host, "port": port.unwrap_or(default_port(scheme)), "weight": 1});
    value.insert("nodes".to_owned(), json!([node]));
    value.insert("type".to_owned(), json!("roundrobin"));
    Some(value)
}

fn of_group(group: &Directive, scheme: &str, report: &mut Report) -> Map<String, Value> {
    let mut value = Map::new();
    let (mut nodes, mut outlier, mut slow_start) = (Vec::new(), None, None);
    let mut pool = Map::new();
    value.insert("type".to_owned(), json!("roundrobin"));
    for directive in group.children() {
        directive.mark_used();
        match directive.name.as_str() {
            "server" => nodes.extend(node(directive, scheme, &mut outlier, &mut slow_start, report)),
            "least_conn" => {
                value.insert("type".to_owned(), json!("least_conn"));
            }
            "random" => {
                value.insert("type".to_owned(), json!("p2c"));
                if directive.arg(0) != "two" {
                    report.add(
                        directive,
                        Severity::Cosmetic,
                        "of two random servers the less busy one is used",
                    );
                }
            }
            "ip_hash" => {
                hash(&mut value, "vars", "remote_addr");
                report.add(
                    directive,
                    Severity::Behaviour,
                    "clients stay with one server, but not with nginx's",
                );
            }
            "hash" => hash_by(directive, &mut value, report),
            "keepalive" => {
                if let Ok(size) = directive.arg(0).parse::<u64>() {
                    pool.insert("size".to_owned(), json!(size.max(1)));
                }
            }
            "keepalive_requests" => {
                if let Ok(requests) = directive.arg(0).parse::<u64>() {
                    pool.insert("requests".to_owned(), json!(requests.max(1)));
                }
            }
            "keepalive_timeout" => {
                if let Some(seconds) = values::seconds(directive.arg(0)) {
                    pool.insert("idle_timeout".to_owned(), json!(seconds));
                }
            }
            "zone" | "keepalive_time" | "state" | "resolver" | "resolver_timeout" => {
                report.add(directive, Severity::Cosmetic, "the gateway's workers share what they must");
            }
            _ => report.add(directive, Severity::Behaviour, "not carried over: unknown in an upstream"),
        }
    }
    if nodes.is_empty() {
        report.add(group, Severity::Behaviour, "it has no server that can be used: requests get 503");
    }
    value.insert("nodes".to_owned(), json!(nodes));
    if !pool.is_empty() {
        for (name, default) in [("size", json!(320)), ("idle_timeout", json!(60)), ("requests", json!(1000))]
        {
            pool.entry(name).or_insert(default);
        }
        value.insert("keepalive_pool".to_owned(), Value::Object(pool));
    }
    let mut own = Map::new();
    own.extend(outlier.map(|outlier| ("outlier".to_owned(), outlier)));
    own.extend(slow_start.map(|seconds| ("slow_start".to_owned(), seconds)));
    if !own.is_empty() {
        value.insert("sluice".to_owned(), Value::Object(own));
    }
    value
}

fn node(
    server: &Directive,
    scheme: &str,
    outlier: &mut Option<Value>,
    slow_start: &mut Option<Value>,
    report: &mut Report,
) -> Option<Value> {
    let Some((host, port)) = host_port(server.arg(0)) else {
        let effect = match server.arg(0).contains("${") {
            true => "not used: a variable of the environment is not set",
            false => "not used: it is no host with a port",
        };
        report.add(server, Severity::Behaviour, effect);
        return None;
    };
    let mut node = json!({"host": host, "port": port.unwrap_or(80), "weight": 1});
    // `http` is the port's default in nginx for any scheme.
    let _ = scheme;
    for option in server.args.iter().skip(1) {
        let (name, number) = match option.split_once('=') {
            Some((name, number)) => (name, number),
            None => (option.as_str(), ""),
        };
        match name {
            "weight" => node["weight"] = json!(number.parse::<u64>().unwrap_or(1)),
            "backup" => node["priority"] = json!(-1),
            "down" => node["weight"] = json!(0),
            "max_fails" => {
                let fails = number.parse::<u64>().unwrap_or(1);
                if fails > 0 {
                    let outlier = outlier.get_or_insert_with(|| json!({"ejection_time": 10}));
                    outlier["consecutive_failures"] = json!(fails);
                    report.add(server, Severity::Behaviour, "answers with 5xx count as failures, too");
                }
            }
            "fail_timeout" => {
                if let Some(seconds) = values::seconds(number).filter(|seconds| *seconds > 0.0) {
                    let outlier = outlier.get_or_insert_with(|| json!({"consecutive_failures": 1}));
                    outlier["ejection_time"] = json!(seconds);
                    outlier["max_ejection_time"] = json!(seconds.max(300.0));
                    report.add(server, Severity::Behaviour, "answers with 5xx count as failures, too");
                }
            }
            "slow_start" => *slow_start = values::seconds(number).map(|seconds| json!(seconds)),
            "max_conns" => {
                report.add(server, Severity::Guard, "the limit of connections is not carried over")
            }
            "resolve" | "route" | "service" | "drain" => {
                report.add(server, Severity::Cosmetic, "names are resolved again when their time is over");
            }
            _ => report.add(server, Severity::Behaviour, format!("`{option}` is not carried over")),
        }
    }
    Some(node)
}

fn hash(value: &mut Map<String, Value>, on: &str, key: &str) {
    value.insert("type".to_owned(), json!("chash"));
    value.insert("hash_on".to_owned(), json!(on));
    value.insert("key".to_owned(), json!(key));
}

fn hash_by(directive: &Directive, value: &mut Map<String, Value>, report: &mut Report) {
    let text = Text::parse(directive.arg(0));
    let plain = ["remote_addr", "request_uri", "uri", "host", "args", "query_string", "server_name"];
    match (text.single(), text.template()) {
        (Some(name), _) if name.starts_with("http_") => hash(value, "header", &name[5..].replace('_', "-")),
        (Some(name), _) if name.starts_with("cookie_") => hash(value, "cookie", &name[7..]),
        (Some(name), Ok(_)) if plain.contains(&name) || name.starts_with("arg_") => hash(value, "vars", name),
        (Some("binary_remote_addr"), _) => hash(value, "vars", "remote_addr"),
        (_, Ok(template)) if text.constant().is_none() => hash(value, "vars_combinations", &template),
        _ => {
            report.add(directive, Severity::Behaviour, "not carried over: the gateway does not have its key");
            return;
        }
    }
    report.add(
        directive,
        Severity::Behaviour,
        "requests with one key stay with one server, but not with nginx's",
    );
}

/// The settings of retries in a location.
pub(super) fn retries(scope: &Scope<'_>, prefix: &str, how: &mut Use, report: &mut Report) {
    if let Some(next) = scope.get(&format!("{prefix}_next_upstream")) {
        let mut statuses: Vec<u16> = Vec::new();
        let mut retry = Map::new();
        for word in &next.args {
            match word.as_str() {
                "off" => how.retries = Some(0),
                "error" | "timeout" => {}
                "invalid_header" => {}
                "non_idempotent" => {
                    retry.insert("any_method".to_owned(), json!(true));
                }
                word => match word.strip_prefix("http_").and_then(|status| status.parse().ok()) {
                    Some(status) => statuses.push(status),
                    None => report.add(next, Severity::Behaviour, format!("`{word}` is not carried over")),
                },
            }
        }
        if !statuses.is_empty() {
            retry.insert("statuses".to_owned(), json!(statuses));
        }
        if !retry.is_empty() {
            how.retry = Some(Value::Object(retry));
        }
    }
    if let Some(tries) = scope.number(&format!("{prefix}_next_upstream_tries")).filter(|tries| *tries > 0) {
        how.retries = Some((tries - 1).min(100));
    }
    how.retry_timeout =
        scope.time(&format!("{prefix}_next_upstream_timeout")).filter(|seconds| *seconds > 0.0);
}
