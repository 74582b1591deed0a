//! Compiles a configured upstream into one that requests can be sent to.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::upstream as written;
use model::{Invalid, Resource};
use sdk::build::Names;
use sdk::template::Template;
use sdk::vars::Var;

use super::{Settings, references};
use crate::balance::{ExcludedServers, HashOn, Sticky, Subset};
use crate::health::{Health, Statuses};
use crate::load::Load;
use crate::plan::Timeouts;
use crate::upstream::{Budget, Endpoint, Keepalive, MAX_RETRIES, PassHost, Policy, Retry, Scheme, Upstream};

/// The addresses of a node share its weight; these bound their number and the factor by which
/// weights grow.
const MOST_ADDRESSES: usize = 64;
const MOST_SCALE: u64 = 720_720;
/// How finely the share of a locality is divided among its servers.
const PARTS: u64 = 1000;

/// Compiles an upstream, without its slot.
///
/// # Errors
/// An invalid service name, or a scheme other than HTTP's.
pub(super) fn upstream(
    id: &str,
    from: &model::Upstream,
    names: &dyn Names,
    defaults: &Settings,
) -> Result<Upstream, Invalid> {
    let scheme = scheme(from.scheme)?;
    let nodes = match &from.discovery {
        // Without its own name servers, the registry `dns` uses the system's resolver.
        Some(discovery) if discovery.kind == "dns" && !defaults.registries.contains("dns") => {
            Cow::Owned(vec![discovered(discovery, from.scheme)?])
        }
        Some(discovery) => Cow::Owned(names.nodes(discovery)),
        None => Cow::Borrowed(&from.nodes[..]),
    };
    let own = from.own.as_deref();
    let (mut endpoints, others) = endpoints(&nodes, from.scheme, names);
    // The order they will have in the upstream.
    endpoints.sort_by_key(|(endpoint, _)| std::cmp::Reverse(endpoint.priority));
    if let Some(locality) = own.and_then(|own| own.locality.as_ref()) {
        share_out(&mut endpoints, &nodes, locality);
    }
    let (mut endpoints, of): (Vec<Endpoint>, Vec<usize>) = endpoints.into_iter().unzip();
    endpoints.shrink_to_fit();
    let mut upstream = Upstream::new(id, 0, endpoints, policy(from)?);
    let servers = upstream.servers_mut();
    servers.seconds = seconds(&servers.endpoints, &of, &others);
    servers.subset =
        own.and_then(|own| own.subset.as_ref()).map(|subset| Box::new(self::subset(subset, &nodes, &of)));
    if let Some(sticky) = own.and_then(|own| own.sticky.as_ref()) {
        let secret = references::text(&sticky.secret, &*defaults.env, names)
            .map_err(|invalid| invalid.at("/sluice/sticky/secret"))?;
        servers.sticky = Some(Box::new(Sticky::new(sticky, &secret, &servers.endpoints)));
    }
    let settings = upstream.settings_mut();
    settings.min_idle = from.keepalive_pool.as_ref().map_or(0, |pool| pool.min_idle as usize);
    settings.scheme = scheme;
    settings.pass_host = match (from.pass_host, &from.upstream_host) {
        (written::PassHost::Node, _) => PassHost::Node,
        (written::PassHost::Rewrite, Some(host)) => PassHost::Rewrite(host.clone()),
        _ => PassHost::Pass,
    };
    settings.retries = match from.retries {
        // A configured number of retries is limited to MAX_RETRIES, but may reach every other node.
        Some(retries) => u32::try_from(retries).unwrap_or(u32::MAX).min(settings.retries.max(MAX_RETRIES)),
        // A request must not try ten thousand dead nodes.
        None => settings.retries.min(defaults.default_retries),
    };
    settings.retry_timeout = from.retry_timeout.unwrap_or_default();
    settings.keepalive = match &from.keepalive_pool {
        Some(pool) => Keepalive {
            size: usize::try_from(pool.size).unwrap_or(usize::MAX),
            idle_timeout: pool.idle_timeout,
            requests: pool.requests,
        },
        None => defaults.keepalive,
    };
    settings.timeouts = from.timeout.as_deref().map_or(defaults.timeouts, |timeout| timeouts(*timeout));
    settings.own_timeouts = from.timeout.is_some();
    settings.retry = own.and_then(|own| own.retry.as_ref()).map(|retry| Box::new(self::retry(retry)));
    settings.failure_status = own.and_then(|own| own.failure_status);
    let checks = from.checks.as_deref().filter(|_| defaults.health_checks);
    upstream.health = Health::new(checks, own, &upstream.endpoints, &upstream.pass_host).map(Arc::new);
    if let Some(own) = own {
        upstream.load = Load::new(own.limits, own.adaptive_concurrency).map(Box::new);
    }
    Ok(upstream)
}

fn retry(from: &written::Retry) -> Retry {
    let on = |failure| from.failures.contains(&failure);
    Retry {
        per_try_timeout: from.per_try_timeout,
        backoff: from.backoff.unwrap_or_default(),
        max_backoff: from.max_backoff,
        budget: from
            .budget_percent
            .map(|percent| Budget { for_each: (percent * 10.0).round() as u32, burst: from.budget_burst }),
        on_connect: on(written::RetryOn::Connect),
        on_closed: on(written::RetryOn::Closed),
        on_timeout: on(written::RetryOn::Timeout),
        statuses: Statuses::of(&from.statuses),
        any_method: from.any_method,
    }
}

pub(super) fn timeouts(from: model::Timeout) -> Timeouts {
    Timeouts { connect: from.connect, send: from.send, read: from.read }
}

/// Whether requests or streams are sent to this upstream.
pub(super) fn is_served(resource: &Resource) -> bool {
    matches!(resource, Resource::Upstream(upstream) if scheme(upstream.scheme).is_ok())
}

/// Whether an upstream of this scheme takes requests; the others take streams.
pub(super) fn takes_requests(from: written::Scheme) -> bool {
    scheme(from).is_ok_and(Scheme::is_http)
}

/// The error for an upstream that takes streams instead of requests.
pub(super) fn takes_none() -> Invalid {
    Invalid::new("an upstream of this scheme takes no HTTP requests")
        .at("/scheme")
        .expected("one of http, https, grpc, grpcs, h2, h2c")
}

fn scheme(from: written::Scheme) -> Result<Scheme, Invalid> {
    Ok(match from {
        written::Scheme::Http => Scheme::Http,
        written::Scheme::Https => Scheme::Https,
        written::Scheme::Grpc => Scheme::Grpc,
        written::Scheme::Grpcs => Scheme::Grpcs,
        written::Scheme::H2c => Scheme::H2c,
        written::Scheme::H2 => Scheme::H2,
        written::Scheme::Tcp => Scheme::Tcp,
        written::Scheme::Tls => Scheme::Tls,
        written::Scheme::Udp => Scheme::Udp,
        written::Scheme::Kafka => return Err(takes_none()),
    })
}

fn policy(from: &model::Upstream) -> Result<Policy, Invalid> {
    Ok(match from.balancer {
        written::BalancerType::Unknown => {
            return Err(Invalid::new("invalid balancer type")
                .at("/type")
                .expected("one of roundrobin, chash, least_conn, ewma, p2c"));
        }
        written::BalancerType::Roundrobin => Policy::RoundRobin,
        written::BalancerType::LeastConn => Policy::LeastConn,
        written::BalancerType::P2c => Policy::P2c,
        written::BalancerType::Ewma => Policy::Ewma,
        written::BalancerType::Chash => {
            let key = from.key.as_deref().unwrap_or("remote_addr");
            // nginx's variable of a header is in lower case, with `_` for `-`.
            let header = || key.to_ascii_lowercase().replace('-', "_");
            Policy::Chash(match from.hash_on {
                written::HashOn::Vars => HashOn::Var(Var::parse(key)),
                written::HashOn::Header => HashOn::Var(Var::parse(&format!("http_{}", header()))),
                written::HashOn::Cookie => HashOn::Var(Var::parse(&format!("cookie_{key}"))),
                written::HashOn::Consumer => HashOn::Consumer,
                written::HashOn::VarsCombinations => HashOn::Combination(Template::parse(key)),
            })
        }
    })
}

/// A node for a name to be resolved, with its port or the scheme's default.
fn discovered(from: &written::Discovery, scheme: written::Scheme) -> Result<model::Node, Invalid> {
    let Some((host, port)) =
        sdk::build::split_authority(&from.service_name, scheme.default_port().unwrap_or(80))
    else {
        return Err(Invalid::new("invalid service name")
            .at("/service_name")
            .expected("a host, or host:port"));
    };
    Ok(model::Node { host: host.to_owned(), port, weight: 1, priority: 0, metadata: None })
}

/// The value of a key in a node's metadata.
fn label(node: &model::Node, key: &str) -> Option<String> {
    Some(match node.metadata.as_ref()?.get(key)? {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

/// For each server, an address of the other family of its node. Nodes may have several, so they are
/// paired in turn.
fn seconds(endpoints: &[Endpoint], of: &[usize], others: &[Vec<IpAddr>]) -> Box<[Option<SocketAddr>]> {
    if others.iter().all(Vec::is_empty) {
        return Box::default();
    }
    let mut taken = vec![0; others.len()];
    let second = |(endpoint, at): (&Endpoint, &usize)| {
        let all = &others[*at];
        taken[*at] += 1;
        let ip = all.get((taken[*at] - 1) % all.len().max(1))?;
        Some(SocketAddr::new(*ip, endpoint.addr.port()))
    };
    endpoints.iter().zip(of).map(second).collect()
}

fn subset(from: &written::Subset, nodes: &[model::Node], of: &[usize]) -> Subset {
    let labels: Vec<Option<String>> = of.iter().map(|&at| label(&nodes[at], &from.metadata)).collect();
    let mut others = hashbrown::HashMap::default();
    for value in labels.iter().flatten() {
        let without = || {
            let mut without = ExcludedServers::default();
            let all = labels.iter().enumerate().filter(|(_, label)| label.as_ref() != Some(value));
            all.for_each(|(index, _)| without.insert(index));
            without
        };
        others.entry(value.as_bytes().into()).or_insert_with(without);
    }
    Subset { on: Var::parse(&from.key), others, required: from.required }
}

/// Gives each locality its share of the requests, divided among its servers by weight.
fn share_out(endpoints: &mut [(Endpoint, usize)], nodes: &[model::Node], locality: &written::Locality) {
    let place = |at: usize| label(&nodes[at], &locality.metadata).unwrap_or_default();
    let mut sums: BTreeMap<(i64, String), u64> = BTreeMap::new();
    for (endpoint, at) in endpoints.iter() {
        *sums.entry((endpoint.priority, place(*at))).or_default() += u64::from(endpoint.weight);
    }
    for (endpoint, at) in endpoints.iter_mut() {
        let place = place(*at);
        let share = u64::from(locality.weights.get(&place).copied().unwrap_or(0));
        let sum = sums.get(&(endpoint.priority, place)).copied().unwrap_or(0).max(1);
        let weight = (share * u64::from(endpoint.weight) * PARTS).div_ceil(sum);
        endpoint.weight = u32::try_from(weight).unwrap_or(u32::MAX);
    }
}

/// One endpoint for each address of each node. The addresses of a node share its weight, so its
/// share does not depend on their number. Also returns, by node, the addresses of the other family,
/// which are tried only if the first one does not respond.
#[allow(clippy::type_complexity, reason = "read once, at the only call")]
fn endpoints(
    nodes: &[model::Node],
    scheme: written::Scheme,
    names: &dyn Names,
) -> (Vec<(Endpoint, usize)>, Vec<Vec<IpAddr>>) {
    let (addresses, others): (Vec<Vec<IpAddr>>, Vec<Vec<IpAddr>>) =
        nodes.iter().map(|node| addresses(node, names)).unzip();
    let scale = scale(addresses.iter().map(Vec::len));
    let mut endpoints = Vec::with_capacity(nodes.len());
    for (at, (node, addresses)) in nodes.iter().zip(addresses).enumerate() {
        let share = u64::from(node.weight) * scale / addresses.len().max(1) as u64;
        let own = Some(node.port) == scheme.default_port();
        let authority: Box<str> = match node.authority() {
            full if own => full.strip_suffix(&format!(":{}", node.port)).unwrap_or(&full).into(),
            full => full.into(),
        };
        endpoints.extend(addresses.into_iter().map(|ip| {
            let endpoint = Endpoint {
                addr: SocketAddr::new(ip, node.port),
                authority: authority.clone(),
                weight: u32::try_from(share).unwrap_or(u32::MAX),
                priority: node.priority,
            };
            (endpoint, at)
        }));
    }
    (endpoints, others)
}

/// The addresses of a node: IPv4 if it has any (APISIX's order), else IPv6; and separately those of
/// the other family.
fn addresses(node: &model::Node, names: &dyn Names) -> (Vec<IpAddr>, Vec<IpAddr>) {
    if let Some(address) = node.address() {
        return (vec![address], Vec::new());
    }
    let mut addresses = names.addresses(&node.host);
    // Name servers rotate the order, which is not a change.
    addresses.sort_unstable();
    addresses.dedup();
    // IPv4 addresses sort first.
    let mut first = addresses;
    let at = first.partition_point(IpAddr::is_ipv4);
    let mut others = first.split_off(if at == 0 { first.len() } else { at });
    first.truncate(MOST_ADDRESSES);
    others.truncate(MOST_ADDRESSES);
    (first, others)
}

/// The factor that makes weights divisible into whole numbers: the least common multiple of the
/// counts, unless it gets too large.
fn scale(counts: impl Iterator<Item = usize>) -> u64 {
    counts.filter(|&count| count > 0).fold(1, |scale, count| {
        let count = count as u64;
        match scale / gcd(scale, count) * count {
            next if next <= MOST_SCALE => next,
            _ => scale,
        }
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use sdk::testing::FixedNames;
    use serde_json::{Value, json};

    use super::*;

    fn compiled(value: Value) -> Result<Upstream, Invalid> {
        let names = FixedNames(
            [
                ("one.test".to_owned(), vec!["10.0.0.1".parse().unwrap()]),
                ("two.test".to_owned(), vec!["10.0.1.2".parse().unwrap(), "10.0.1.1".parse().unwrap()]),
                ("three.test".to_owned(), (1..=3).map(|n| IpAddr::from([10, 0, 2, n])).collect()),
            ]
            .into(),
        );
        upstream("1", &model::Upstream::parse(&value).unwrap(), &names, &Settings::default())
    }

    fn endpoints_of(value: Value) -> Vec<String> {
        let upstream = compiled(value).unwrap();
        upstream
            .endpoints
            .iter()
            .map(|e| format!("{} {} {}/{}", e.addr, e.authority, e.weight, e.priority))
            .collect()
    }

    #[test]
    fn a_name_with_many_addresses_gets_its_nodes_share() {
        assert_eq!(
            endpoints_of(json!({"nodes": {"one.test": 1, "two.test:81": 1, "three.test": 2}})),
            [
                "10.0.0.1:80 one.test 6/0",
                "10.0.1.1:81 two.test:81 3/0",
                "10.0.1.2:81 two.test:81 3/0",
                "10.0.2.1:80 three.test 4/0",
                "10.0.2.2:80 three.test 4/0",
                "10.0.2.3:80 three.test 4/0",
            ]
        );
        assert_eq!(endpoints_of(json!({"nodes": {"none.test": 1}})), [""; 0]);
        assert_eq!(
            endpoints_of(json!({"nodes": {"[::1]:80": 7, "127.0.0.1:80": 0}})),
            ["[::1]:80 [::1] 7/0", "127.0.0.1:80 127.0.0.1 0/0"]
        );
    }

    #[test]
    fn addresses_of_the_other_family_are_fallbacks() {
        let addr = |text: &str| text.parse().unwrap();
        let six = |n: u16| IpAddr::from([0, 0, 0, 0, 0, 0, 0, n]);
        let names = FixedNames(
            [
                (
                    "both.test".to_owned(),
                    vec![six(1), addr("10.0.0.2"), six(2), addr("10.0.0.1"), addr("10.0.0.3")],
                ),
                ("four.test".to_owned(), vec![addr("10.0.0.4")]),
                ("six.test".to_owned(), vec![six(3)]),
            ]
            .into(),
        );
        let made = |nodes: Value| {
            let from = model::Upstream::parse(&json!({"nodes": nodes})).unwrap();
            let upstream = upstream("1", &from, &names, &Settings::default()).unwrap();
            let second = |index| upstream.second(index).map(|addr| addr.to_string());
            (0..upstream.endpoints.len())
                .map(|index| (upstream.endpoints[index].addr.to_string(), second(index)))
                .collect::<Vec<_>>()
        };
        let pair = |addr: &str, second: Option<&str>| (addr.to_owned(), second.map(str::to_owned));
        assert_eq!(
            made(json!({"both.test:81": 1, "four.test:81": 1, "six.test:81": 1})),
            [
                pair("10.0.0.1:81", Some("[::1]:81")),
                pair("10.0.0.2:81", Some("[::2]:81")),
                pair("10.0.0.3:81", Some("[::1]:81")),
                pair("10.0.0.4:81", None),
                pair("[::3]:81", None),
            ]
        );
        assert_eq!(
            made(json!({"four.test:81": 1, "127.0.0.1:1": 1})).iter().filter(|pair| pair.1.is_some()).count(),
            0
        );
    }

    #[test]
    fn localities_get_their_shares() {
        let node = |host: &str, weight: u32, zone: &str| json!({"host": host, "port": 1, "weight": weight, "metadata": {"zone": zone}});
        let nodes = json!([
            node("10.0.0.1", 1, "a"),
            node("10.0.0.2", 3, "a"),
            node("10.0.0.3", 9, "b"),
            node("10.0.0.4", 1, "c")
        ]);
        let locality = json!({"metadata": "zone", "weights": {"a": 80, "b": 20}});
        let upstream = compiled(json!({"nodes": nodes, "sluice": {"locality": locality}})).unwrap();
        let weights: Vec<u32> = upstream.endpoints.iter().map(|endpoint| endpoint.weight).collect();
        assert_eq!(weights, [20_000, 60_000, 20_000, 0]);
    }

    #[test]
    fn tiers_go_from_high_to_low() {
        let node =
            |host: &str, priority: i64| json!({"host": host, "port": 1, "weight": 1, "priority": priority});
        assert_eq!(
            endpoints_of(json!({"nodes": [node("10.0.0.1", -1), node("10.0.0.2", 5), node("10.0.0.3", 5)]})),
            ["10.0.0.2:1 10.0.0.2:1 1/5", "10.0.0.3:1 10.0.0.3:1 1/5", "10.0.0.1:1 10.0.0.1:1 1/-1"]
        );
    }

    #[test]
    fn dns_discovery_is_a_host_name() {
        assert_eq!(
            endpoints_of(json!({"service_name": "two.test:8080", "discovery_type": "dns"})),
            ["10.0.1.1:8080 two.test:8080 1/0", "10.0.1.2:8080 two.test:8080 1/0"]
        );
        let invalid = compiled(json!({"service_name": "a:b", "discovery_type": "dns"})).unwrap_err();
        assert_eq!(
            (invalid.reason.as_str(), invalid.pointer.as_str()),
            ("invalid service name", "/service_name")
        );
    }

    #[test]
    fn hash_keys_become_variables() {
        let policy = |hash_on: &str, key: &str| {
            let value = json!({"nodes": {}, "type": "chash", "hash_on": hash_on, "key": key});
            compiled(value).unwrap().policy.clone()
        };
        let var = |name: &str| Policy::Chash(HashOn::Var(Var::parse(name)));
        assert_eq!(policy("vars", "arg_user"), var("arg_user"));
        assert_eq!(policy("header", "X-User-Id"), var("http_x_user_id"));
        assert_eq!(policy("cookie", "Session"), var("cookie_Session"));
        assert_eq!(policy("consumer", "any"), Policy::Chash(HashOn::Consumer));
        let combination = Policy::Chash(HashOn::Combination(Template::parse("$host$uri")));
        assert_eq!(policy("vars_combinations", "$host$uri"), combination);
    }

    #[test]
    fn weights_are_divided_into_whole_numbers() {
        assert_eq!(scale([2, 4, 6, 0].into_iter()), 12);
        assert_eq!(scale([0].into_iter()), 1);
        let most = MOST_SCALE as usize;
        assert_eq!(scale([most].into_iter()), MOST_SCALE);
        assert_eq!(scale([2, most + 1].into_iter()), 2, "a factor that is too large is skipped");
    }

    #[test]
    fn retry_and_subset_settings_are_read() {
        let own = json!({"retry": {"budget_percent": 20, "budget_burst": 7}, "subset": {"metadata": "v", "key": "arg_v"}});
        let node = |n: u8, v: &str| json!({"host": format!("10.0.0.{n}"), "port": 80, "weight": 1, "metadata": {"v": v}});
        let nodes = json!([node(1, "a"), node(2, "b"), node(3, "a")]);
        let made = compiled(json!({"nodes": nodes, "sluice": own})).unwrap();
        let budget = made.retry.as_ref().and_then(|retry| retry.budget);
        assert_eq!(budget, Some(Budget { for_each: 200, burst: 7 }));
        let subset = made.subset.as_ref().unwrap();
        let left_out = |value: &str| {
            let others = &subset.others[value.as_bytes()];
            [0, 1, 2].map(|index| others.contains(index))
        };
        assert_eq!((left_out("a"), left_out("b")), ([false, true, false], [true, false, true]));
    }
}
