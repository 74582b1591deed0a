//! Where a request would be sent: the upstream, its servers and the chosen one.

use model::{Kind, Resource};
use sdk::Exchange;
use serde_json::{Value, json};

use super::chains::{LocalReply, StageOutcome};
use super::{Explanation, Input, shown};
use crate::plan::{Failure, Plan};
use crate::upstream::{PassHost, Policy, Upstream};

/// The most servers listed.
const MOST_SERVERS: usize = 50;

/// An upstream as a request would use it.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamSummary {
    /// The resource that declares it, such as `upstreams/1`.
    pub from: String,
    pub scheme: &'static str,
    pub balancer: &'static str,
    /// The key of consistent hashing.
    pub key: Option<String>,
    pub servers: Vec<Server>,
    pub more_servers: usize,
    /// Every server is unhealthy or ejected, so health excludes none of them.
    pub all_unhealthy: bool,
    /// The chosen server, if the request and the state of the servers determine it.
    pub chosen: Option<String>,
    pub why: String,
    /// Method, path and Host as sent to the upstream.
    pub method: String,
    pub uri: String,
    pub host: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    pub address: String,
    /// The configured host name, if it is not an address.
    pub name: Option<String>,
    pub weight: u32,
    pub priority: i64,
    /// Why the server gets no requests, unless that applies to all servers.
    pub against: Option<&'static str>,
    /// The counted failures behind the verdict, if there are any.
    pub failures: Option<String>,
}

impl UpstreamSummary {
    pub(super) fn to_json(&self) -> Value {
        let servers = self.servers.iter().map(|server| {
            json!({
                "address": server.address,
                "name": server.name,
                "weight": server.weight,
                "priority": server.priority,
                "against": server.against,
                "failures": server.failures,
            })
        });
        json!({
            "from": self.from,
            "scheme": self.scheme,
            "balancer": self.balancer,
            "key": self.key,
            "servers": servers.collect::<Vec<_>>(),
            "more_servers": self.more_servers,
            "all_unhealthy": self.all_unhealthy,
            "chosen": self.chosen,
            "why": self.why,
            "method": self.method,
            "uri": self.uri,
            "host": self.host,
        })
    }
}

pub(super) fn explain(of: Input<'_>, plan: &Plan, x: &mut Exchange<'_>, out: &mut Explanation) {
    let by_plugin = x.engine().forward.upstream;
    let upstream = match of.snapshot.target(plan, x) {
        Ok(upstream) => upstream,
        Err(failure) => {
            let (status, why) = words(failure);
            out.answer =
                Some(LocalReply { status: Some(status), body: why.to_owned(), reason: "", by: None });
            return;
        }
    };
    let upstream = &*upstream;
    if out.stages.iter().any(|stage| stage.ran == StageOutcome::Undecided && stage.name == "traffic-split") {
        out.notes
            .push("traffic-split draws an upstream with each request; this is the route's own".to_owned());
    }
    let mut state = upstream.state();
    let stays = upstream.sticky.as_ref().and_then(|sticky| sticky.find(x));
    let (picked, _) = upstream.pick_first(&mut state, x, of.now_ms, stays);
    let weighs = |index: &usize| upstream.endpoints.len() == 1 || upstream.endpoints[*index].weight > 0;
    let weighted = (0..upstream.endpoints.len()).filter(weighs).count();
    let healthy =
        (0..upstream.endpoints.len()).filter(weighs).filter(|index| why_excluded(upstream, *index).is_none());
    let healthy = healthy.count();
    // Balancers ignore health then.
    let all_unhealthy = weighted > 0 && healthy == 0;
    let left = if all_unhealthy { weighted } else { healthy };
    let usable = |index: usize| weighs(&index) && (all_unhealthy || why_excluded(upstream, index).is_none());
    let address = |index: usize| upstream.endpoints[index].addr.to_string();
    let (chosen, why) = match picked {
        None if upstream.endpoints.is_empty() => {
            (None, "it has no server with a known address: the answer is 503".to_owned())
        }
        None => (None, "none of its servers may be used: the answer is 502".to_owned()),
        Some(index) if upstream.endpoints.len() == 1 => {
            (Some(address(index)), "it is the only server".to_owned())
        }
        Some(index) if stays == Some(index) => {
            (Some(address(index)), "the client's cookie names it".to_owned())
        }
        Some(index) => match &upstream.policy {
            Policy::Chash(_) => (Some(address(index)), "the hash of the key leads to it".to_owned()),
            _ if left == 1 && usable(index) => {
                (Some(address(index)), "it is the only server that may be used".to_owned())
            }
            Policy::RoundRobin => (None, format!("{left} servers take turns by weight, on each worker")),
            Policy::LeastConn => (None, "the server with the fewest requests under way".to_owned()),
            Policy::P2c => (None, "the less busy of two servers drawn at random".to_owned()),
            Policy::Ewma => (None, "the server that has answered fastest lately".to_owned()),
        },
    };
    let why = match (all_unhealthy, weighted) {
        (false, _) => why,
        (true, 1) => format!("{why}; it is unhealthy, and used since no other is healthy"),
        (true, all) => format!("all {all} servers are unhealthy, so health excludes none of them: {why}"),
    };
    let servers = upstream.endpoints.iter().enumerate().take(MOST_SERVERS).map(|(index, endpoint)| Server {
        address: endpoint.addr.to_string(),
        name: endpoint.name().map(str::to_owned),
        weight: endpoint.weight,
        priority: endpoint.priority,
        against: why_excluded(upstream, index),
        failures: failures(upstream, index),
    });
    let mut uri = Vec::new();
    x.upstream_uri(&mut uri);
    let (head, engine) = (x.request(), x.engine());
    let method = match engine.forward.method {
        Some(method) if !method.as_str().is_empty() => method.as_str().to_owned(),
        _ => shown(head.method_bytes()),
    };
    let host = match (engine.forward.host, &upstream.pass_host, picked) {
        (Some(span), ..) => shown(head.fields.bytes(span)),
        (None, PassHost::Rewrite(host), _) => host.clone(),
        (None, PassHost::Node, Some(index)) => upstream.endpoints[index].authority.to_string(),
        (None, ..) => shown(head.authority()),
    };
    out.upstream = Some(UpstreamSummary {
        from: match by_plugin {
            Some(_) => "chosen by a plugin".to_owned(),
            None => origin(of, plan),
        },
        scheme: upstream.scheme.as_str(),
        balancer: match &upstream.policy {
            Policy::RoundRobin => "roundrobin",
            Policy::Chash(_) => "chash",
            Policy::LeastConn => "least_conn",
            Policy::P2c => "p2c",
            Policy::Ewma => "ewma",
        },
        key: match &upstream.policy {
            Policy::Chash(on) => Some(shown(&on.key(x))),
            _ => None,
        },
        servers: servers.collect(),
        more_servers: upstream.endpoints.len().saturating_sub(MOST_SERVERS),
        all_unhealthy,
        chosen,
        why,
        method,
        uri: shown(&uri),
        host,
    });
}

fn why_excluded(upstream: &Upstream, index: usize) -> Option<&'static str> {
    upstream.health.as_ref()?.why_excluded(index)
}

/// The failures in a row for which a server is unhealthy: `2 failed connections`.
fn failures(upstream: &Upstream, index: usize) -> Option<String> {
    let health = upstream.health.as_ref()?;
    health.why_excluded(index)?;
    let counted = health.counters(index)?;
    let kinds = [
        (counted.tcp_failure, "failed connection"),
        (counted.timeout_failure, "timeout"),
        (counted.http_failure, "failing status"),
    ];
    let kinds = kinds.into_iter().filter(|(count, _)| *count > 0).map(|(count, word)| match (count, word) {
        (1, word) => format!("1 {word}"),
        (count, "failing status") => format!("{count} failing statuses"),
        (count, word) => format!("{count} {word}s"),
    });
    Some(kinds.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

/// The resource that declares an upstream: an id overrides an inline upstream, a route overrides
/// its service.
fn origin(of: Input<'_>, plan: &Plan) -> String {
    let id = &plan.info.id;
    let Some(Resource::Route(route)) = of.desired.get(Kind::Route, id).map(|entry| entry.resource()) else {
        return "a route that is gone".to_owned();
    };
    if let Some(id) = &route.upstream_id {
        return format!("upstreams/{id}");
    }
    if route.upstream.is_some() {
        return format!("routes/{id}");
    }
    let service = route.service_id.as_deref().unwrap_or_default();
    match of.desired.get(Kind::Service, service).map(|entry| entry.resource()) {
        Some(Resource::Service(found)) => match &found.upstream_id {
            Some(id) => format!("upstreams/{id}, of services/{service}"),
            None => format!("services/{service}"),
        },
        _ => "a resource in its last good form".to_owned(),
    }
}

fn words(failure: Failure) -> (u16, &'static str) {
    match failure {
        Failure::NoService => (404, "its service_id refers to a service that does not exist"),
        Failure::NoPluginConfig => {
            (503, "its plugin_config_id refers to a plugin config that does not exist")
        }
        Failure::NoUpstreamObject => (502, "its upstream_id refers to an upstream that does not exist"),
        Failure::NoUpstream => (503, "neither the route nor its service has an upstream"),
    }
}
