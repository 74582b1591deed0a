//! Clusters: upstreams, their nodes, limits and ejection.

use std::collections::BTreeMap;

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::context::{Context, Report};
use super::value::{self, enumerated, items, number, seconds, seconds_json, text};
use super::{endpoints, health, upstream_tls};
use crate::finding::Severity::{self, Behaviour, Cosmetic};
use crate::node::Node;

/// Effects of outlier detection here.
const COUNTED_TOGETHER: &str = "failures of all kinds are counted together";
const NO_SUCCESS_RATES: &str = "nodes are not ejected by comparing their success rates";
const NO_SHARES: &str = "nodes are not ejected by their share of failures";

/// The clusters of a file, by name.
#[derive(Default)]
pub(super) struct Clusters {
    all: BTreeMap<String, Cluster>,
}

/// A cluster.
pub(super) struct Cluster {
    pub(super) key: Key,
    value: Map<String, Value>,
    place: crate::Place,
    /// Seconds to connect.
    pub(super) connect: f64,
    /// `RING_HASH` or `MAGLEV`: hash policies of routes count.
    pub(super) hashes: bool,
    pub(super) tls: bool,
    /// Servers are verified.
    pub(super) verifies: bool,
    /// The names of its endpoints, in their order.
    pub(super) hosts: Vec<(String, u16)>,
    /// Resolved by DNS, so that `auto_host_rewrite` has an effect.
    pub(super) by_name: bool,
    /// Its settings as changed by routes: retries and hashing belong to upstreams here.
    variants: Vec<(Value, Key)>,
}

impl Cluster {
    /// The URL of its first endpoint, without a path.
    pub(super) fn url(&self) -> Option<String> {
        let (host, port) = self.hosts.first()?;
        let scheme = if self.tls { "https" } else { "http" };
        let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
        Some(format!("{scheme}://{open}{host}{close}:{port}"))
    }
}

const OWN_RULES: &str = "connections have the gateway's own limits";

const FIELDS: &[(&str, Severity, &str)] = &[
    ("alt_stat_name", Cosmetic, "names of statistics are not used"),
    ("dns_lookup_family", Cosmetic, "addresses of both families are used"),
    ("dns_refresh_rate", Cosmetic, "names are resolved again when their records expire"),
    ("dns_failure_refresh_rate", Cosmetic, "names are resolved again by the gateway's own rules"),
    ("dns_jitter", Cosmetic, "names are resolved again by the gateway's own rules"),
    ("dns_min_refresh_rate", Cosmetic, "names are resolved again by the gateway's own rules"),
    ("respect_dns_ttl", Cosmetic, "names are always resolved again when their records expire"),
    ("use_tcp_for_dns_lookups", Cosmetic, "the resolver of the gateway is used"),
    ("dns_resolvers", Behaviour, "the resolvers of the system, or of `apisix.dns_resolver`, are used"),
    (
        "dns_resolution_config",
        Behaviour,
        "the resolvers of the system, or of `apisix.dns_resolver`, are used",
    ),
    ("typed_dns_resolver_config", Cosmetic, "the resolver of the gateway is used"),
    ("wait_for_warm_on_init", Cosmetic, "routes are served at once"),
    ("per_connection_buffer_limit_bytes", Cosmetic, "buffers have the gateway's own bounds"),
    ("cleanup_interval", Cosmetic, "nodes are removed at once"),
    (
        "close_connections_on_host_health_failure",
        Cosmetic,
        "connections of unhealthy nodes end with their requests",
    ),
    ("ignore_health_on_host_removal", Cosmetic, "removed nodes are not used"),
    ("upstream_connection_options", Cosmetic, "TCP keepalive is the system's"),
    ("track_cluster_stats", Cosmetic, "statistics have other names"),
    ("track_timeout_budgets", Cosmetic, "statistics have other names"),
    ("protocol_selection", Cosmetic, "the configured protocol is used"),
    ("metadata", Cosmetic, "metadata of clusters is not used"),
    ("preconnect_policy", Cosmetic, "connections are opened when they are needed"),
    ("upstream_bind_config", Behaviour, "the source address of connections is the system's"),
    (
        "ring_hash_lb_config",
        Behaviour,
        "the hash ring has APISIX's size and hash function, so keys map to other nodes",
    ),
    (
        "maglev_lb_config",
        Behaviour,
        "a hash ring is used instead of Maglev's table, so keys map to other nodes",
    ),
    ("least_request_lb_config", Cosmetic, "the less busy of two nodes drawn at random is chosen"),
    ("original_dst_lb_config", Behaviour, "the original address of connections is not used"),
    ("lb_subset_config", Behaviour, "requests go to all nodes of the cluster, not to a subset"),
    ("filters", Behaviour, "network filters of clusters are not carried over"),
    ("transport_socket_matches", Behaviour, "all nodes are called in the same way"),
    ("upstream_config", Behaviour, "the generic connection pool is used"),
    ("prewarmable", Cosmetic, "connections are opened when they are needed"),
    ("health_status", Cosmetic, "not used"),
];

impl Clusters {
    /// Reads the clusters of a file.
    pub(super) fn read(context: &mut Context<'_>, clusters: &[Node<'_>]) -> Clusters {
        let mut all = Clusters::default();
        for node in clusters {
            let name = text(node, "name").unwrap_or_default().to_owned();
            if all.all.contains_key(&name) {
                context.report.behaviour(
                    node,
                    "clusters[].name",
                    format!("the cluster `{name}` is declared twice; the first is used"),
                );
                node.whole();
                continue;
            }
            let cluster = read(context, node, &name);
            all.all.insert(name, cluster);
        }
        let aggregates: Vec<&Node<'_>> =
            clusters.iter().filter(|node| node.some("cluster_type").is_some()).collect();
        for node in aggregates {
            all.aggregate(context, node);
        }
        all
    }

    pub(super) fn get(&self, name: &str) -> Option<&Cluster> {
        self.all.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// The upstream of a cluster with settings of a route. `None` if there is no such cluster.
    pub(super) fn upstream(
        &mut self,
        context: &mut Context<'_>,
        name: &str,
        settings: &Value,
    ) -> Option<Key> {
        let cluster = self.all.get_mut(name)?;
        let changes = settings.as_object().is_some_and(|settings| !settings.is_empty());
        if !changes {
            return Some(cluster.key.clone());
        }
        if let Some((_, key)) = cluster.variants.iter().find(|(known, _)| known == settings) {
            return Some(key.clone());
        }
        let mut value = cluster.value.clone();
        merge(&mut value, settings);
        let number = (cluster.variants.len() + 2).to_string();
        let key = context.key(Kind::Upstream, &[name, &number]);
        cluster.variants.push((settings.clone(), key.clone()));
        value.insert(
            "desc".to_owned(),
            json!(format!("The cluster {name}, as some routes use it").chars().take(250).collect::<String>()),
        );
        context.add(key.clone(), value, cluster.place.clone());
        Some(key)
    }

    /// Writes the clusters as upstreams.
    pub(super) fn finish(self, context: &mut Context<'_>) {
        for (_, cluster) in self.all {
            context.add(cluster.key, cluster.value, cluster.place);
        }
    }

    /// An aggregate cluster has the nodes of its members, each a priority lower than those before.
    fn aggregate(&mut self, context: &mut Context<'_>, node: &Node<'_>) {
        let Some(kind) = node.some("cluster_type") else { return };
        let extension = value::extension(&kind);
        let name = text(node, "name").unwrap_or_default();
        if !extension.name.ends_with("aggregate") {
            if let Some(config) = &extension.config {
                config.whole();
            }
            context.report.behaviour(
                &kind,
                "cluster_type",
                format!("clusters of type `{}` have no nodes here; their routes answer 503", extension.name),
            );
            return;
        }
        let Some(config) = extension.config else { return };
        let mut nodes = Vec::new();
        let mut hosts = Vec::new();
        for (at, member) in value::texts(&config, "clusters").iter().enumerate() {
            let Some(cluster) = self.all.get(member) else { continue };
            hosts.extend(cluster.hosts.iter().cloned());
            for node in cluster.value.get("nodes").and_then(Value::as_array).into_iter().flatten() {
                let mut node = node.clone();
                node["priority"] = json!(-(at as i64));
                nodes.push(node);
            }
        }
        if let Some(cluster) = self.all.get_mut(name) {
            cluster.value.insert("nodes".to_owned(), Value::Array(nodes));
            cluster.hosts = hosts;
        }
    }
}

fn read(context: &mut Context<'_>, node: &Node<'_>, name: &str) -> Cluster {
    let key = context.key(Kind::Upstream, &[name]);
    let mut report = Report::default();
    let mut value = Map::new();
    if key.id != name {
        value.insert("name".to_owned(), json!(name.chars().take(250).collect::<String>()));
    }
    let kind = enumerated(node, "type").unwrap_or_else(|| "STATIC".to_owned());
    let found = endpoints::read(context, node, &kind, &mut report);
    value.insert("type".to_owned(), json!(balancer(node, &mut report)));
    value.insert("nodes".to_owned(), json!(found.nodes));
    let connect = seconds(node, "connect_timeout").filter(|seconds| *seconds > 0.0).unwrap_or(5.0);
    let (connect_json, read) = (seconds_json(connect), json!(15));
    value.insert("timeout".to_owned(), json!({"connect": connect_json, "send": read, "read": read}));
    // Envoy tries once, unless a route has a retry policy.
    value.insert("retries".to_owned(), json!(0));
    let http2 = protocol(node, &mut report, &mut value);
    let host = found.hosts.first().map(|(host, _)| host.as_str()).filter(|host| {
        found.hosts.iter().all(|(other, _)| other == host) && host.parse::<std::net::IpAddr>().is_err()
    });
    let security = upstream_tls::read(context, node, host, &mut report);
    let scheme = match (&security, http2) {
        (None, false) => "http",
        (None, true) => "h2c",
        (Some(_), false) => "https",
        (Some(_), true) => "h2",
    };
    value.insert("scheme".to_owned(), json!(scheme));
    let (mut verifies, tls) = (false, security.is_some());
    if let Some(security) = security {
        if !security.tls.is_empty() {
            value.insert("tls".to_owned(), Value::Object(security.tls.clone()));
        }
        verifies = security.verifies;
    }
    health::read(node, scheme, &mut value, &mut report);
    let mut own = Map::new();
    outlier(node, &mut own, &mut report);
    limits(node, &mut own, &mut report);
    if let Some(settings) = node.any(&["round_robin_lb_config", "slow_start_config"]) {
        let start = settings.some("slow_start_config").unwrap_or(settings);
        if let Some(window) = seconds(&start, "slow_start_window").filter(|window| *window > 0.0) {
            own.insert("slow_start".to_owned(), seconds_json(window.min(86_400.0)));
        }
    }
    own.insert("failure_status".to_owned(), json!(503));
    value.insert("sluice".to_owned(), Value::Object(own));
    common(node, &mut report);
    report.fields(node, FIELDS);
    context.report.take(report, &[]);
    let balancer = value.get("type").and_then(Value::as_str).unwrap_or_default();
    Cluster {
        key,
        connect,
        hashes: is_hashing(node) || balancer == "chash",
        tls,
        verifies,
        hosts: found.hosts,
        by_name: kind.ends_with("DNS"),
        variants: Vec::new(),
        place: node.place(),
        value,
    }
}

fn is_hashing(node: &Node<'_>) -> bool {
    matches!(policy(node).as_deref(), Some("RING_HASH" | "MAGLEV"))
}

/// The name of the balancing policy.
fn policy(node: &Node<'_>) -> Option<String> {
    if let Some(settings) = node.some("load_balancing_policy") {
        let first = items(&settings, "policies").into_iter().next()?;
        let extension = value::extension(&first.some("typed_extension_config")?);
        if let Some(config) = &extension.config {
            config.whole();
        }
        let last = extension.name.rsplit('.').next().unwrap_or_default();
        return Some(last.to_ascii_uppercase());
    }
    enumerated(node, "lb_policy")
}

fn balancer(node: &Node<'_>, report: &mut Report) -> &'static str {
    let place = node.any(&["load_balancing_policy", "lb_policy"]).unwrap_or_else(|| node.clone());
    match policy(node).as_deref() {
        None | Some("ROUND_ROBIN" | "CLUSTER_PROVIDED" | "LOAD_BALANCING_POLICY_CONFIG") => "roundrobin",
        // With a hash policy a route uses `chash`.
        Some("RING_HASH" | "MAGLEV") => "roundrobin",
        Some("LEAST_REQUEST") => "p2c",
        Some("RANDOM") => {
            report.cosmetic(
                &place,
                "lb_policy: RANDOM",
                "nodes are chosen in turn: each gets the same share",
            );
            "roundrobin"
        }
        Some(other) => {
            report.behaviour(&place, "lb_policy", format!("`{other}` is unknown; nodes are chosen in turn"));
            "roundrobin"
        }
    }
}

/// Whether HTTP/2 is spoken, and the settings of its connections.
fn protocol(node: &Node<'_>, report: &mut Report, upstream: &mut Map<String, Value>) -> bool {
    let mut http2 = false;
    for name in ["http2_protocol_options", "http_protocol_options"] {
        if let Some(options) =
            node.get(name).filter(|options| name.starts_with("http2") || !options.value().is_null())
        {
            http2 |= name.starts_with("http2");
            report.opaque(&options, name, OWN_RULES);
        }
    }
    let mut common = node.some("common_http_protocol_options");
    if let Some(all) = node.any(&["typed_extension_protocol_options", "extension_protocol_options"]) {
        for (name, options) in all.members() {
            if !name.ends_with("HttpProtocolOptions") {
                options.whole();
                report.behaviour(&options, name, "this protocol's options are not carried over");
                continue;
            }
            let _ = options.get("@type");
            if let Some(explicit) = options.some("explicit_http_config") {
                http2 |= explicit.get("http2_protocol_options").is_some();
                if let Some(http3) = explicit.some("http3_protocol_options") {
                    report.behaviour(
                        &http3,
                        "http3_protocol_options",
                        "HTTP/1.1 is spoken with this cluster instead of HTTP/3",
                    );
                }
                for (kind, inner) in explicit.members() {
                    report.opaque(&inner, kind, OWN_RULES);
                }
            } else if let Some(auto) = options.some("auto_config") {
                auto.whole();
                report.cosmetic(
                    &auto,
                    "auto_config",
                    "HTTP/1.1 is spoken with this cluster, without a choice by ALPN",
                );
            } else if let Some(same) = options.some("use_downstream_protocol_config") {
                same.whole();
                report.behaviour(
                    &same,
                    "use_downstream_protocol_config",
                    "HTTP/1.1 is spoken with this cluster for clients of both protocols",
                );
            }
            common = options.some("common_http_protocol_options").or(common);
            report.fields(
                &options,
                &[
                    (
                        "upstream_http_protocol_options",
                        Cosmetic,
                        "the server name in TLS is the Host that is sent",
                    ),
                    ("http_filters", Behaviour, "filters of clusters are not carried over"),
                ],
            );
        }
    }
    let mut pool = Map::new();
    if let Some(requests) = number(node, "max_requests_per_connection").filter(|requests| *requests > 0) {
        pool.insert("requests".to_owned(), json!(requests));
    }
    if let Some(common) = common {
        if let Some(idle) = seconds(&common, "idle_timeout") {
            pool.insert("idle_timeout".to_owned(), seconds_json(idle));
        }
        if let Some(requests) =
            number(&common, "max_requests_per_connection").filter(|requests| *requests > 0)
        {
            pool.insert("requests".to_owned(), json!(requests));
        }
        report.fields(
            &common,
            &[
                ("max_connection_duration", Behaviour, "connections have no bound on their age"),
                ("max_headers_count", Cosmetic, "heads have the gateway's own bounds"),
                (
                    "max_stream_duration",
                    Behaviour,
                    "the duration of a request is bounded by its timeouts alone",
                ),
                ("headers_with_underscores_action", Cosmetic, "no effect on a cluster"),
            ],
        );
    }
    if !pool.is_empty() {
        upstream.insert("keepalive_pool".to_owned(), Value::Object(pool));
    }
    http2
}

fn outlier(node: &Node<'_>, own: &mut Map<String, Value>, report: &mut Report) {
    let Some(settings) = node.some("outlier_detection") else { return };
    let mut outlier = Map::new();
    let failures = number(&settings, "consecutive_5xx").unwrap_or(5);
    let enforced = number(&settings, "enforcing_consecutive_5xx").unwrap_or(100);
    if (1..=1_000_000).contains(&failures) && enforced > 0 {
        outlier.insert("consecutive_failures".to_owned(), json!(failures));
    }
    for (theirs, ours) in [
        ("interval", "interval"),
        ("base_ejection_time", "ejection_time"),
        ("max_ejection_time", "max_ejection_time"),
    ] {
        if let Some(time) = seconds(&settings, theirs).filter(|time| *time > 0.0) {
            outlier.insert(ours.to_owned(), seconds_json(time.min(86_400.0)));
        }
    }
    let most = number(&settings, "max_ejection_percent").unwrap_or(10).clamp(1, 100);
    outlier.insert("max_ejected_percent".to_owned(), json!(most));
    report.fields(
        &settings,
        &[
            ("consecutive_gateway_failure", Behaviour, COUNTED_TOGETHER),
            ("enforcing_consecutive_gateway_failure", Cosmetic, COUNTED_TOGETHER),
            ("consecutive_local_origin_failure", Behaviour, COUNTED_TOGETHER),
            ("enforcing_consecutive_local_origin_failure", Cosmetic, COUNTED_TOGETHER),
            ("split_external_local_origin_errors", Behaviour, COUNTED_TOGETHER),
            ("enforcing_success_rate", Cosmetic, NO_SUCCESS_RATES),
            ("success_rate_minimum_hosts", Behaviour, NO_SUCCESS_RATES),
            ("success_rate_request_volume", Behaviour, NO_SUCCESS_RATES),
            ("success_rate_stdev_factor", Behaviour, NO_SUCCESS_RATES),
            ("failure_percentage_threshold", Behaviour, NO_SHARES),
            ("enforcing_failure_percentage", Cosmetic, NO_SHARES),
            ("enforcing_failure_percentage_local_origin", Cosmetic, NO_SHARES),
            ("failure_percentage_minimum_hosts", Cosmetic, NO_SHARES),
            ("failure_percentage_request_volume", Cosmetic, NO_SHARES),
            ("enforcing_local_origin_success_rate", Cosmetic, NO_SUCCESS_RATES),
            ("max_ejection_time_jitter", Cosmetic, "ejections end without a random delay"),
            ("successful_active_health_check_uneject_host", Cosmetic, "an ejection ends after its time"),
        ],
    );
    own.insert("outlier".to_owned(), Value::Object(outlier));
}

fn limits(node: &Node<'_>, own: &mut Map<String, Value>, report: &mut Report) {
    let Some(settings) = node.some("circuit_breakers") else { return };
    let mut limits = Map::new();
    for threshold in items(&settings, "thresholds") {
        let high = enumerated(&threshold, "priority").as_deref() == Some("HIGH");
        for (theirs, ours) in [
            ("max_connections", "connections"),
            ("max_pending_requests", "pending"),
            ("max_requests", "requests"),
            ("max_retries", "retries"),
        ] {
            let Some(limit) = number(&threshold, theirs) else { continue };
            // As large a number switches a limit off.
            let counts = limit <= 1_000_000 && (limit > 0 || matches!(ours, "pending" | "retries"));
            if counts && !high {
                limits.insert(ours.to_owned(), json!(limit));
            } else if counts {
                report.cosmetic(&threshold, "circuit_breakers: HIGH", format!("`{theirs}` of this priority is not used: all requests share the limits of the priority DEFAULT"));
            } else if limit == 0 {
                report.behaviour(
                    &threshold,
                    theirs,
                    "a limit of 0 would refuse all requests, and is left out",
                );
            }
        }
        report.fields(
            &threshold,
            &[
                ("retry_budget", Behaviour, "the budget of retries is not carried over"),
                ("track_remaining", Cosmetic, "statistics have other names"),
                ("max_connection_pools", Cosmetic, "pools of connections have the gateway's own bounds"),
            ],
        );
    }
    // `connections` without `pending` would refuse requests at once that Envoy holds.
    if limits.contains_key("connections") && !limits.contains_key("pending") {
        limits.insert("pending".to_owned(), json!(1024));
    }
    if let Some(per_host) = settings.some("per_host_thresholds") {
        per_host.whole();
        report.behaviour(&per_host, "per_host_thresholds", "limits of single nodes are not carried over");
    }
    if !limits.is_empty() {
        own.insert("limits".to_owned(), Value::Object(limits));
    }
}

fn common(node: &Node<'_>, report: &mut Report) {
    let Some(common) = node.some("common_lb_config") else { return };
    if let Some(panic) = common.some("healthy_panic_threshold") {
        let percent = value::percent(&panic).unwrap_or(50.0);
        panic.whole();
        if percent < 50.0 {
            report.behaviour(
                &panic,
                "healthy_panic_threshold",
                "unhealthy nodes are used if all nodes are unhealthy",
            );
        } else {
            report.cosmetic(
                &panic,
                "healthy_panic_threshold",
                "unhealthy nodes are used only if all nodes are unhealthy",
            );
        }
    }
    report.fields(
        &common,
        &[
            ("locality_weighted_lb_config", Behaviour, "weights of localities are not carried over"),
            ("zone_aware_lb_config", Cosmetic, "nodes of all zones are used"),
            ("update_merge_window", Cosmetic, "changes of nodes take effect at once"),
            ("ignore_new_hosts_until_first_hc", Behaviour, "new nodes are used at once"),
            (
                "close_connections_on_host_set_change",
                Cosmetic,
                "connections of removed nodes end with their requests",
            ),
            (
                "consistent_hashing_lb_config",
                Behaviour,
                "keys are hashed without a bound on the load of a node",
            ),
            ("override_host_status", Cosmetic, "not used"),
        ],
    );
}

/// Adds members of an object to another; objects within `sluice` are joined.
fn merge(value: &mut Map<String, Value>, changes: &Value) {
    for (name, change) in changes.as_object().into_iter().flatten() {
        match (value.get_mut(name), change) {
            (Some(Value::Object(known)), Value::Object(_)) if name == "sluice" => merge(known, change),
            _ => {
                value.insert(name.clone(), change.clone());
            }
        }
    }
}
