//! The `stream` block: TCP and UDP.

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::directive::{Block, Directive};
use super::maps::Maps;
use super::report::Report;
use super::scope::Scope;
use super::servers::{Listen, split_address};
use super::text::Text;
use super::upstreams::{Target, Upstreams, Use, host_port};
use super::values;
use crate::finding::Place;
use crate::{Imported, Protocol, Severity};

/// The result of a `stream` block.
#[derive(Default)]
pub(super) struct Streams {
    pub resources: Vec<Imported>,
    pub listens: Vec<(Listen, Protocol)>,
}

/// Reads a `stream` block.
pub(super) fn read(block: &Block, report: &mut Report) -> Streams {
    let mut streams = Streams::default();
    let mut upstreams = Upstreams::read(block);
    let maps = Maps::read(block);
    let mut routes = Vec::new();
    let scope = Scope::new(block);
    for directive in block.directives.iter().filter(|directive| directive.name == "server") {
        directive.mark_used();
        if let Some(inner) = &directive.block {
            server(
                directive,
                &scope.within(inner),
                &maps,
                &mut upstreams,
                &mut routes,
                &mut streams.listens,
                report,
            );
        }
    }
    streams.resources = upstreams.into_resources();
    for upstream in &mut streams.resources {
        upstream.key.id = format!("stream-{}", upstream.key.id);
    }
    streams.resources.extend(routes);
    streams
}

fn server(
    at: &Directive,
    scope: &Scope<'_>,
    maps: &Maps<'_>,
    upstreams: &mut Upstreams<'_>,
    routes: &mut Vec<Imported>,
    listens: &mut Vec<(Listen, Protocol)>,
    report: &mut Report,
) {
    let Some(own) = scope.levels().last() else { return };
    let mut here = Vec::new();
    for listen in own.directives.iter().filter(|directive| directive.name == "listen") {
        listen.mark_used();
        let udp = listen.args.iter().any(|arg| arg == "udp");
        match split_address(listen.arg(0)).and_then(|_| Listen::read(listen, false, report)) {
            Some(read) => here.push((read, if udp { Protocol::Udp } else { Protocol::Tcp })),
            None => report.add(listen, Severity::Behaviour, "the gateway does not listen there"),
        }
    }
    let (connect, idle) = (scope.time("proxy_connect_timeout"), scope.time("proxy_timeout"));
    let tls = scope.flag("proxy_ssl") == Some(true);
    let preread = scope.flag("ssl_preread") == Some(true);
    if let Some(protocol) = scope.get("proxy_protocol").filter(|directive| directive.flag() == Some(true)) {
        report.add(protocol, Severity::Behaviour, "no PROXY protocol header is sent to the server");
    }
    let Some(pass) = scope.own("proxy_pass") else {
        report.add(at, Severity::Behaviour, "not carried over: it has no `proxy_pass`");
        return;
    };
    let targets = targets(pass, preread, maps, report);
    for (listen, protocol) in here {
        let udp = protocol == Protocol::Udp;
        for (sni, name) in &targets {
            let scheme = match (udp, tls) {
                (true, _) => "udp",
                (false, true) => "tls",
                (false, false) => "tcp",
            };
            if !upstreams.is_group(name) && host_port(name).is_none_or(|(_, port)| port.is_none()) {
                report.add(
                    pass,
                    Severity::Behaviour,
                    format!("not carried over: `{name}` is no host with a port"),
                );
                continue;
            }
            let how = Use::default();
            let target = Target { scheme, authority: name.clone() };
            let Some(id) = upstreams.id(&target, &how, pass, report) else { continue };
            let id = timed(upstreams, &id, name, connect, idle, &at.place);
            let mut value = Map::new();
            value.insert("server_port".to_owned(), json!(listen.endpoint.port));
            if let Some(address) = listen.endpoint.address {
                value.insert("server_addr".to_owned(), json!(address.to_string()));
            }
            if let Some(sni) = sni {
                value.insert("sni".to_owned(), json!(sni));
            }
            value.insert("upstream_id".to_owned(), json!(format!("stream-{id}")));
            if let Some(restriction) = restriction(scope, report) {
                value.insert("plugins".to_owned(), json!({ "ip-restriction": restriction }));
            }
            let mut base = format!("stream-{}", listen.endpoint.port);
            if let Some(sni) = sni {
                base = format!("{base}-{}", values::id_part(sni));
            }
            let mut id = base.clone();
            let mut number = 1;
            while routes.iter().any(|known| known.key.id == id) {
                number += 1;
                id = format!("{base}-{number}");
            }
            let key = Key::new(Kind::StreamRoute, id);
            routes.push(Imported { key, value: Value::Object(value), place: at.place.clone() });
        }
        listens.push((listen, protocol));
    }
}

/// The servers of a `proxy_pass`, with the server name of TLS that leads there.
fn targets(
    pass: &Directive,
    preread: bool,
    maps: &Maps<'_>,
    report: &mut Report,
) -> Vec<(Option<String>, String)> {
    let text = Text::parse(pass.arg(0));
    if let Some(name) = text.constant() {
        return vec![(None, name.to_owned())];
    }
    let map = text.single().and_then(|name| maps.get(name));
    let Some(map) = map.filter(|_| preread) else {
        report.add(pass, Severity::Behaviour, "not carried over: the server is a variable of the connection");
        return Vec::new();
    };
    map.is_used.set(true);
    if map.directive.arg(0) != "$ssl_preread_server_name" {
        report.add(
            map.directive,
            Severity::Behaviour,
            "not carried over: only server names of TLS lead to different servers",
        );
        return Vec::new();
    }
    let mut targets = Vec::new();
    for entry in map.directive.children() {
        let name = entry.name.to_ascii_lowercase();
        let value = entry.arg(0).to_owned();
        let plain = |name: &str| {
            !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
        };
        match name.as_str() {
            "hostnames" | "volatile" if value.is_empty() => {}
            "default" => targets.push((None, value)),
            name if plain(name) && !name.starts_with('.') => targets.push((Some(name.to_owned()), value)),
            name if name.strip_prefix("*.").is_some_and(plain) => {
                targets.push((Some(name.to_owned()), value))
            }
            name if name.strip_prefix('.').is_some_and(plain) => {
                targets.push((Some(name[1..].to_owned()), value.clone()));
                targets.push((Some(format!("*{name}")), value));
            }
            _ => report.add(entry, Severity::Behaviour, "not carried over: it is no server name"),
        }
    }
    targets
}

/// The id of the same upstream with times.
fn timed(
    upstreams: &mut Upstreams<'_>,
    id: &str,
    name: &str,
    connect: Option<f64>,
    idle: Option<f64>,
    place: &Place,
) -> String {
    if connect.is_none() && idle.is_none() {
        return id.to_owned();
    }
    let Some(value) = upstreams.value(id) else { return id.to_owned() };
    let mut value = value.clone();
    let idle = idle.unwrap_or(600.0);
    value["timeout"] = json!({"connect": connect.unwrap_or(60.0), "send": idle, "read": idle});
    upstreams.intern(name, value, place)
}

fn restriction(scope: &Scope<'_>, report: &mut Report) -> Option<Value> {
    let (allow, deny) = (scope.all("allow"), scope.all("deny"));
    let networks = |list: &[&Directive]| -> Vec<String> {
        list.iter().filter_map(|directive| values::network(directive.arg(0))).collect()
    };
    let (allowed, denied) = (networks(&allow), networks(&deny));
    let denies_all = deny.iter().any(|directive| directive.arg(0) == "all");
    match (allowed.is_empty(), denied.is_empty(), denies_all) {
        (true, true, false) => None,
        (false, true, true) => Some(json!({ "whitelist": allowed })),
        (true, false, false) => Some(json!({ "blacklist": denied })),
        _ => {
            let at = deny.first().or(allow.first())?;
            report.add(
                at,
                Severity::Guard,
                "a list of both allowed and refused networks is not carried over",
            );
            None
        }
    }
}
