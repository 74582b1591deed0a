//! Servers: where they listen, their names, and which of them takes a request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::cases::variables_of;
use super::directive::Directive;
use super::maps::mask_pattern;
use super::report::Report;
use super::scope::Scope;
use super::text::{Text, group_names, group_of_host};
use super::values::id_part;
use crate::finding::Place;
use crate::{Listener, Protocol, Severity};

/// A server of `http`.
pub(super) struct Server<'a> {
    pub directive: &'a Directive,
    pub scope: Scope<'a>,
    pub listens: Vec<Listen>,
    pub names: Vec<Name>,
    /// For ids of routes.
    pub id: String,
}

/// A name in `server_name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// `a.com`, `*.a.com`: a host of our routes.
    Host(String),
    /// `mail.*` and regular expressions.
    Pattern(String),
}

/// An address of a `listen`.
#[derive(Debug, Clone)]
pub(super) struct Listen {
    pub endpoint: Endpoint,
    pub tls: bool,
    pub http2: bool,
    pub proxy_protocol: bool,
    pub is_default: bool,
    /// The address as written.
    pub address: Option<IpAddr>,
    pub place: Place,
}

/// A port, and the address if it is a specific one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Endpoint {
    pub port: u16,
    pub address: Option<IpAddr>,
}

/// Which requests of which hosts a set of routes takes.
pub(super) struct Selection {
    /// Of the ids of its routes.
    pub suffix: &'static str,
    pub hosts: Vec<String>,
    pub vars: Vec<Value>,
    pub endpoints: Vec<Endpoint>,
    /// A group of the pattern for the host, and its value.
    pub group: Option<(String, Text)>,
}

impl<'a> Server<'a> {
    pub(super) fn read(
        directive: &'a Directive,
        scope: &Scope<'a>,
        report: &mut Report,
    ) -> Option<Server<'a>> {
        let block = directive.block.as_ref()?;
        directive.mark_used();
        let scope = scope.within(block);
        let own = |name: &'static str| block.directives.iter().filter(move |inner| inner.name == name);
        let http2 = scope.flag("http2") == Some(true);
        let mut listens: Vec<Listen> = Vec::new();
        for listen in own("listen") {
            listen.mark_used();
            match Listen::read(listen, http2, report) {
                Some(read) => listens.push(read),
                None => report.add(listen, Severity::Behaviour, "the gateway does not listen there"),
            }
        }
        if own("listen").next().is_none() {
            let endpoint = Endpoint { port: 80, address: None };
            listens.push(Listen {
                endpoint,
                tls: false,
                http2: false,
                proxy_protocol: false,
                is_default: false,
                address: Some(IpAddr::from([0, 0, 0, 0])),
                place: directive.place.clone(),
            });
        }
        let mut names = Vec::new();
        for inner in own("server_name") {
            inner.mark_used();
            inner.args.iter().for_each(|name| read_name(name, inner, &mut names, report));
        }
        groups(directive, report);
        if let Some(ssl) = own("ssl").next()
            && ssl.mark_used().flag() == Some(true)
        {
            listens.iter_mut().for_each(|listen| listen.tls = true);
        }
        let id = names.iter().find_map(|name| match name {
            Name::Host(host) => Some(id_part(host)).filter(|id| !id.is_empty()),
            Name::Pattern(_) => None,
        });
        let id = id
            .unwrap_or_else(|| format!("port-{}", listens.first().map_or(80, |listen| listen.endpoint.port)));
        Some(Server { directive, scope, listens, names, id })
    }

    /// Its first name, as `$server_name` gives it.
    pub(super) fn first_name(&self) -> String {
        let directive = self
            .scope
            .levels()
            .last()
            .and_then(|block| block.directives.iter().find(|directive| directive.name == "server_name"));
        directive.map_or_else(String::new, |directive| directive.arg(0).to_owned())
    }

    /// Its names that are plain hosts, if it serves no other ones.
    pub(super) fn plain_hosts(&self) -> Vec<String> {
        let hosts = self.names.iter().filter_map(|name| match name {
            Name::Host(host) if !host.starts_with('*') => Some(host.clone()),
            _ => None,
        });
        hosts.collect()
    }

    pub(super) fn endpoints(&self) -> BTreeSet<Endpoint> {
        self.listens.iter().map(|listen| listen.endpoint).collect()
    }

    pub(super) fn patterns(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| match name {
            Name::Pattern(pattern) => Some(pattern.as_str()),
            Name::Host(_) => None,
        })
    }
}

/// Reports the groups of patterns for names that directives of the server use.
fn groups(server: &Directive, report: &mut Report) {
    let mut used = Vec::new();
    variables_of(server, &mut used);
    for at in server.children().iter().filter(|inner| inner.name == "server_name") {
        let patterns = at.args.iter().filter_map(|name| name.strip_prefix('~'));
        let unknown = patterns.filter(|pattern| group_of_host(pattern).is_none());
        for (group, _) in unknown.flat_map(group_names) {
            if used.contains(&group) {
                report.add(
                    at,
                    Severity::Behaviour,
                    format!("`${group}` has no value: groups of a name are not kept"),
                );
            }
        }
    }
}

fn read_name(name: &str, at: &Directive, names: &mut Vec<Name>, report: &mut Report) {
    let lower = name.to_ascii_lowercase();
    let plain = |host: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '[' | ']' | ':');
        !host.is_empty() && host.chars().all(allowed)
    };
    if let Some(pattern) = name.strip_prefix('~') {
        names.push(Name::Pattern(pattern.to_owned()));
    } else if lower.is_empty() || lower == "_" {
        // No host of a request.
    } else if let Some(rest) = lower.strip_prefix("*.") {
        match plain(rest) {
            true => names.push(Name::Host(lower)),
            false => report.add(at, Severity::Behaviour, format!("the name `{name}` is not carried over")),
        }
    } else if lower.ends_with(".*") && plain(lower.trim_end_matches(".*")) {
        names.push(Name::Pattern(mask_pattern(&lower)));
    } else if let Some(rest) = lower.strip_prefix('.').filter(|rest| plain(rest)) {
        names.extend([Name::Host(rest.to_owned()), Name::Host(format!("*.{rest}"))]);
    } else if plain(&lower) {
        names.push(Name::Host(lower));
    } else {
        report.add(at, Severity::Behaviour, format!("the name `{name}` is not carried over"));
    }
}

impl Listen {
    pub(super) fn read(directive: &Directive, http2: bool, report: &mut Report) -> Option<Listen> {
        let (address, port) = split_address(directive.arg(0))?;
        let mut listen = Listen {
            endpoint: Endpoint { port, address: address.filter(|address| !address.is_unspecified()) },
            tls: false,
            http2,
            proxy_protocol: false,
            is_default: false,
            address,
            place: directive.place.clone(),
        };
        for option in directive.args.iter().skip(1) {
            match option.as_str() {
                "ssl" => listen.tls = true,
                "http2" | "spdy" => listen.http2 = true,
                "proxy_protocol" => listen.proxy_protocol = true,
                "default_server" | "default" => listen.is_default = true,
                "quic" => {
                    report.add(directive, Severity::Behaviour, "HTTP/3 is set up in config.yaml, not here")
                }
                "udp" | "reuseport" | "deferred" | "bind" => {}
                option => {
                    let known = [
                        "backlog=",
                        "rcvbuf=",
                        "sndbuf=",
                        "so_keepalive=",
                        "ipv6only=",
                        "fastopen=",
                        "setfib=",
                    ];
                    if !known.iter().any(|known| option.starts_with(known)) {
                        let effect = format!("the option `{option}` is not carried over");
                        report.add(directive, Severity::Behaviour, effect);
                    }
                }
            }
        }
        Some(listen)
    }
}

/// The address and the port of `80`, `*:80`, `127.0.0.1`, `[::]:80`, `localhost:80`.
pub(super) fn split_address(text: &str) -> Option<(Option<IpAddr>, u16)> {
    let any = IpAddr::from([0, 0, 0, 0]);
    if let Ok(port) = text.parse() {
        return Some((Some(any), port)).filter(|(_, port)| *port > 0);
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some((Some(address), 80));
    }
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    let address = match host {
        "*" => any,
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host.trim_matches(['[', ']']).parse().ok()?,
    };
    Some((Some(address), port))
}

/// The listeners of all servers; one that listens on all addresses of both families has none.
pub(super) fn listeners<'l>(listens: impl Iterator<Item = (&'l Listen, Protocol)>) -> Vec<Listener> {
    let mut listeners: Vec<Listener> = Vec::new();
    for (listen, protocol) in listens {
        let same = |known: &&mut Listener| known.port == listen.endpoint.port && known.protocol == protocol;
        let unspecified = |address: Option<IpAddr>| address.is_none_or(|address| address.is_unspecified());
        let known = listeners.iter_mut().filter(same).find(|known| {
            known.address == listen.address || unspecified(known.address) && unspecified(listen.address)
        });
        match known {
            Some(known) => {
                if known.address != listen.address {
                    known.address = None;
                }
                known.tls |= listen.tls;
                known.http2 |= listen.http2;
                known.proxy_protocol |= listen.proxy_protocol;
            }
            None => listeners.push(Listener {
                address: listen.address,
                port: listen.endpoint.port,
                protocol,
                tls: listen.tls,
                http2: listen.http2,
                proxy_protocol: listen.proxy_protocol,
                place: listen.place.clone(),
            }),
        }
    }
    listeners
}

/// The servers of each address, found once for all.
pub(super) struct Index<'s> {
    endpoints: Vec<BTreeSet<Endpoint>>,
    all: BTreeSet<Endpoint>,
    /// The default server of each address: the one marked so, or the first.
    defaults: BTreeMap<Endpoint, usize>,
    /// Up to two servers of each address whose names have a wildcard or are patterns.
    wide: BTreeMap<Endpoint, Vec<usize>>,
    /// The patterns of all servers, in the order of the file.
    patterns: Vec<(usize, &'s str)>,
}

impl<'s> Index<'s> {
    pub(super) fn new(servers: &'s [Server<'_>]) -> Index<'s> {
        let endpoints: Vec<BTreeSet<Endpoint>> = servers.iter().map(Server::endpoints).collect();
        let all = endpoints.iter().flatten().copied().collect();
        let mut defaults = BTreeMap::new();
        let mut wide: BTreeMap<Endpoint, Vec<usize>> = BTreeMap::new();
        let mut patterns = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            for listen in server.listens.iter().filter(|listen| listen.is_default) {
                defaults.entry(listen.endpoint).or_insert(at);
            }
            let is_wide = server.names.iter().any(|name| match name {
                Name::Host(host) => host.starts_with('*'),
                Name::Pattern(_) => true,
            });
            for endpoint in endpoints[at].iter().filter(|_| is_wide) {
                let known = wide.entry(*endpoint).or_default();
                if known.len() < 2 {
                    known.push(at);
                }
            }
            patterns.extend(server.patterns().map(|pattern| (at, pattern)));
        }
        for (at, own) in endpoints.iter().enumerate() {
            for endpoint in own {
                defaults.entry(*endpoint).or_insert(at);
            }
        }
        Index { endpoints, all, defaults, wide, patterns }
    }

    pub(super) fn is_default(&self, index: usize, endpoint: Endpoint) -> bool {
        self.defaults.get(&endpoint) == Some(&index)
    }

    /// Whether another server of an address may take hosts that no server names exactly.
    fn has_rival(&self, index: usize, endpoint: Endpoint) -> bool {
        self.wide.get(&endpoint).is_some_and(|known| known.iter().any(|at| *at != index))
    }

    /// The conditions that no pattern of these addresses before this one matches.
    fn earlier_patterns(&self, index: usize, pattern: &str, endpoints: &[Endpoint]) -> Vec<Value> {
        let before = self.patterns.iter().take_while(|(at, earlier)| (*at, *earlier) != (index, pattern));
        let near = before.filter(|(at, _)| endpoints.iter().any(|own| self.endpoints[*at].contains(own)));
        near.map(|(_, earlier)| json!(["host", "!", "~*", earlier])).collect()
    }
}

/// The selections of each server, by nginx's rules: the exact name, the longest wildcard, the first
/// pattern, and otherwise the default server of the address.
pub(super) fn select(servers: &[Server<'_>], index: &Index<'_>, report: &mut Report) -> Vec<Vec<Selection>> {
    let mut taken: BTreeSet<(Endpoint, &str)> = BTreeSet::new();
    let mut selections = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let endpoints: Vec<Endpoint> = index.endpoints[at].iter().copied().collect();
        let default: Vec<Endpoint> =
            endpoints.iter().copied().filter(|endpoint| index.is_default(at, *endpoint)).collect();
        let mut own = Vec::new();
        let (mut hosts, mut known) = (Vec::new(), BTreeSet::new());
        for name in &server.names {
            let Name::Host(host) = name else { continue };
            let free: Vec<bool> = endpoints.iter().map(|endpoint| taken.insert((*endpoint, host))).collect();
            if free.contains(&true) {
                if known.insert(host) {
                    hosts.push(host.clone());
                }
            } else if !known.contains(host) {
                let effect = format!("the name `{host}` is another server's, as in nginx");
                report.add(server.directive, Severity::Cosmetic, effect);
            }
        }
        // Routes without a host serve the default server's own names, too, unless a wildcard or a
        // pattern of another server would take them.
        let needs_hosts =
            default.len() < endpoints.len() || default.iter().any(|endpoint| index.has_rival(at, *endpoint));
        if needs_hosts && !hosts.is_empty() {
            let vars = conditions(&endpoints, &index.all);
            own.push(Selection { suffix: "", hosts, vars, endpoints: endpoints.clone(), group: None });
        }
        for pattern in server.patterns() {
            let mut vars = conditions(&endpoints, &index.all);
            vars.push(json!(["host", "~*", pattern]));
            vars.extend(index.earlier_patterns(at, pattern, &endpoints));
            let (endpoints, group) = (endpoints.clone(), group_of_host(pattern));
            own.push(Selection { suffix: "-pattern", hosts: Vec::new(), vars, endpoints, group });
        }
        if !default.is_empty() {
            let mut vars = conditions(&default, &index.all);
            vars.extend(index.earlier_patterns(usize::MAX, "", &default));
            let suffix = if own.is_empty() { "" } else { "-default" };
            own.push(Selection { suffix, hosts: Vec::new(), vars, endpoints: default, group: None });
        }
        selections.push(own);
    }
    selections
}

/// The conditions that a request came to one of these addresses; none if there are no others.
pub(super) fn conditions(endpoints: &[Endpoint], all: &BTreeSet<Endpoint>) -> Vec<Value> {
    if all.iter().all(|endpoint| endpoints.contains(endpoint)) {
        return Vec::new();
    }
    let specific = |port: u16| -> Vec<String> {
        let addresses = all.iter().filter(|endpoint| endpoint.port == port);
        addresses.filter_map(|endpoint| Some(endpoint.address?.to_string())).collect()
    };
    if endpoints.iter().all(|endpoint| endpoint.address.is_none() && specific(endpoint.port).is_empty()) {
        let ports: Vec<String> = endpoints.iter().map(|endpoint| endpoint.port.to_string()).collect();
        return vec![match &ports[..] {
            [port] => json!(["server_port", "==", port]),
            ports => json!(["server_port", "in", ports]),
        }];
    }
    let each: Vec<Value> = endpoints
        .iter()
        .map(|endpoint| {
            let port = endpoint.port.to_string();
            match endpoint.address {
                Some(address) => {
                    json!([["server_port", "==", port], ["server_addr", "==", address.to_string()]])
                }
                None => {
                    let others = specific(endpoint.port);
                    json!([["server_port", "==", port], ["server_addr", "!", "in", others]])
                }
            }
        })
        .collect();
    match &each[..] {
        [Value::Array(one)] => one.clone(),
        _ => vec![Value::Array(std::iter::once(json!("OR")).chain(each).collect())],
    }
}
