//! The top of a file.

use model::{Diagnostic, Kind};
use serde_json::{Map, json};

use super::cluster::Clusters;
use super::context::{Context, Report};
use super::listeners::{self, Shared};
use super::manager::{self, ports_condition};
use super::value::{self, items};
use super::{paths, vhosts};
use crate::finding::Severity::{self, Behaviour, Cosmetic};
use crate::node::{Node, Tree};
use crate::{Import, Source};

const FIELDS: &[(&str, Severity, &str)] = &[
    ("admin", Cosmetic, "the Admin API and the control API are set up in config.yaml"),
    ("node", Cosmetic, "the gateway needs no name"),
    ("stats_sinks", Cosmetic, "statistics have other names, and are read from `/apisix/prometheus/metrics`"),
    ("stats_config", Cosmetic, "statistics have other names"),
    ("stats_flush_interval", Cosmetic, "statistics have other names"),
    ("stats_flush_on_admin", Cosmetic, "statistics have other names"),
    ("stats_server_version_override", Cosmetic, "statistics have other names"),
    ("watchdog", Cosmetic, "threads are not watched"),
    ("watchdogs", Cosmetic, "threads are not watched"),
    ("tracing", Cosmetic, "traces are not sent"),
    ("flags_path", Cosmetic, "not used"),
    ("header_prefix", Cosmetic, "headers of the gateway have other names"),
    ("hds_config", Behaviour, "health is not reported to a control plane"),
    ("overload_manager", Behaviour, "memory and connections are bounded by config.yaml instead"),
    ("enable_dispatcher_stats", Cosmetic, "statistics have other names"),
    ("use_tcp_for_dns_lookups", Cosmetic, "the resolver of the gateway is used"),
    ("dns_resolution_config", Cosmetic, "the resolver of the gateway is used"),
    ("typed_dns_resolver_config", Cosmetic, "the resolver of the gateway is used"),
    ("bootstrap_extensions", Behaviour, "extensions are not carried over"),
    ("fatal_actions", Cosmetic, "not used"),
    ("config_sources", Cosmetic, "named where they are used"),
    ("default_config_source", Behaviour, "no control plane is asked"),
    ("default_socket_interface", Cosmetic, "sockets are the system's"),
    ("certificate_provider_instances", Behaviour, "certificates of providers are not used"),
    ("inline_headers", Cosmetic, "headers are alike"),
    ("perf_tracing_file_path", Cosmetic, "not used"),
    ("default_regex_engine", Cosmetic, "patterns have the syntax of RE2"),
    ("xds_delegate_extension", Cosmetic, "no control plane is asked"),
    ("xds_config_tracker_extension", Cosmetic, "no control plane is asked"),
    ("listener_manager", Cosmetic, "not used"),
    ("application_log_config", Cosmetic, "the error log is set up in config.yaml"),
    ("grpc_async_client_manager_config", Cosmetic, "not used"),
    ("memory_allocator_manager", Cosmetic, "not used"),
    ("cluster_manager", Cosmetic, "not used"),
    ("rate_limit_service", Behaviour, "no service for rate limits is asked"),
    ("runtime", Cosmetic, "settings are those of the file"),
    ("watched_directory", Cosmetic, "not used"),
];

/// Reads a file.
pub(super) fn read(source: &Source<'_>, tree: &Tree) -> Result<Import, Box<Diagnostic>> {
    let root = tree.root();
    let mut context = Context::new(source);
    let mut report = Report::default();
    report.fields(&root, FIELDS);
    dynamic(&root, &mut report);
    runtime(&root, &mut report);
    context.report.take(report, &[]);
    let mut listeners = Vec::new();
    let mut clusters = Vec::new();
    if let Some(resources) = root.some("static_resources") {
        listeners = items(&resources, "listeners");
        clusters = items(&resources, "clusters");
        if let Some(secrets) = resources.some("secrets") {
            secrets.whole();
            context.report.behaviour(&secrets, "static_resources.secrets", "secrets of SDS are not used");
        }
    } else if root.some("dynamic_resources").is_none() {
        let mut diagnostic =
            Diagnostic::new(model::Severity::Error, source.file, "the file has no `static_resources`");
        diagnostic.expected = Some("`static_resources` with `listeners` and `clusters`".to_owned());
        return Err(Box::new(diagnostic));
    }
    let mut clusters = Clusters::read(&mut context, &clusters);
    let serving = listeners.iter().filter(|listener| serves_http(listener));
    let all: Vec<_> = serving.map(listeners::addresses).collect();
    let streams: Vec<_> = listeners.iter().map(listeners::addresses).collect();
    let mut shared = Shared::default();
    for listener in &listeners {
        listeners::read(&mut context, &mut clusters, listener, &all, &streams, &mut shared);
    }
    clusters.finish(&mut context);
    global_rule(&mut context, &root, &shared);
    paths::carry(&mut context, &shared.paths);
    without_invalid(&mut context);
    for node in tree.unread() {
        let last = node.path();
        let name = last.rsplit('.').next().unwrap_or_default().to_owned();
        context.report.behaviour(
            &node,
            last.clone(),
            format!("not carried over: `{name}` is not known here"),
        );
    }
    unknown_versions(&root, &mut context.report);
    let Context { mut import, mut report, .. } = context;
    report.findings.sort_by_key(|finding| finding.place.position);
    import.findings = joined(report.findings);
    Ok(import)
}

/// Whether a listener speaks HTTP; nothing counts as read.
fn serves_http(listener: &Node<'_>) -> bool {
    let mut chains = items(listener, "filter_chains");
    chains.extend(listener.some("default_filter_chain"));
    chains
        .iter()
        .flat_map(|chain| items(chain, "filters"))
        .any(|filter| manager::kind_of(&value::extension(&filter)) == "http")
}

/// Reports types of versions of the API that are not known here. Called last, as all parts count as read afterwards.
fn unknown_versions(node: &Node<'_>, report: &mut Report) {
    if let Some(kind) = node.value().get("@type").and_then(serde_json::Value::as_str)
        && kind.starts_with("type.googleapis.com/envoy.")
        && let Some(version) = kind.split('.').find_map(|part| part.strip_prefix('v')?.parse::<u32>().ok())
        && version > 3
        && let Some(place) = node.get("@type")
    {
        let effect = format!("a type of version {version} is read as one of version 3");
        report.behaviour(&place, "@type", effect);
    }
    for (_, member) in node.members() {
        unknown_versions(&member, report);
    }
    for item in node.items() {
        unknown_versions(&item, report);
    }
}

fn dynamic(root: &Node<'_>, report: &mut Report) {
    if let Some(resources) = root.some("dynamic_resources") {
        resources.whole();
        report.behaviour(
            &resources,
            "dynamic_resources",
            "no control plane is asked: its listeners, routes and clusters are absent",
        );
    }
}

/// Settings that Envoy reads while it runs.
fn runtime(root: &Node<'_>, report: &mut Report) {
    let Some(runtime) = root.some("layered_runtime") else { return };
    let limits = runtime.value().to_string().contains("connection");
    runtime.whole();
    if limits {
        report.behaviour(
            &runtime,
            "layered_runtime",
            "connections are bounded by `nginx_config.event.worker_connections` in config.yaml instead",
        );
    } else {
        report.cosmetic(&runtime, "layered_runtime", "settings are those of the file");
    }
}

/// Adds the treatment that every request gets from Envoy: an identifier, no certificate that a client claims, and 403 if it
/// asks for an upgrade of the connection where no route takes it.
fn global_rule(context: &mut Context<'_>, root: &Node<'_>, shared: &Shared) {
    if !shared.any_http {
        return;
    }
    let mut plugins = Map::new();
    if !shared.with_ids.is_empty() {
        let mut settings = json!({"header_name": "x-request-id", "include_in_response": false});
        if !shared.without_ids.is_empty() {
            settings["_meta"] = json!({"filter": [ports_condition(&shared.with_ids)]});
        }
        plugins.insert("request-id".to_owned(), settings);
    }
    if !shared.keeps_certificates {
        plugins
            .insert("proxy-rewrite".to_owned(), json!({"headers": {"remove": ["x-forwarded-client-cert"]}}));
    }
    let mut refusing = shared.without_upgrades.clone();
    refusing.retain(|port| !shared.with_upgrades.contains(port));
    if !refusing.is_empty() {
        let mut when = vec![
            json!(["http_upgrade", "~~", "."]),
            json!(["http_upgrade", "!", "~*", "^h2c$"]),
            json!(["route_id", "~=", null]),
        ];
        // Without a route, the answer is 404.
        let ends: Vec<&str> = context
            .import
            .resources
            .iter()
            .filter(|resource| resource.value["desc"] == vhosts::NO_ROUTE)
            .map(|resource| resource.key.id.as_str())
            .collect();
        if !ends.is_empty() {
            when.push(json!(["route_id", "!", "in", ends]));
        }
        if !shared.with_upgrades.is_empty() {
            when.push(ports_condition(&refusing));
        }
        plugins.insert("fault-injection".to_owned(), json!({"abort": {"http_status": 403, "vars": [when]}}));
    }
    if plugins.is_empty() {
        return;
    }
    let key = context.key(Kind::GlobalRule, &["every-request"]);
    context.add(key, Map::from_iter([("plugins".to_owned(), json!(plugins))]), root.place());
}

/// One finding for all routes that share its construct.
fn joined(findings: Vec<crate::Finding>) -> Vec<crate::Finding> {
    let mut all: Vec<crate::Finding> = Vec::with_capacity(findings.len());
    for finding in findings {
        let same = |known: &&mut crate::Finding| {
            known.place == finding.place
                && known.severity == finding.severity
                && known.construct == finding.construct
                && known.effect == finding.effect
        };
        // They are in the order of their places.
        let near = all.len().saturating_sub(64);
        match all[near..].iter_mut().find(same) {
            // Without resources it concerns all.
            Some(known) if known.resources.is_empty() || finding.resources.is_empty() => {
                known.resources.clear()
            }
            Some(known) => {
                for key in finding.resources {
                    if !known.resources.contains(&key) {
                        known.resources.push(key);
                    }
                }
            }
            None => all.push(finding),
        }
    }
    all
}

/// Leaves out resources that the model refuses, as strange values of a file may make them.
fn without_invalid(context: &mut Context<'_>) {
    let resources = std::mem::take(&mut context.import.resources);
    for mut resource in resources {
        if let Err(invalid) = model::Resource::parse(resource.key.kind, &resource.key.id, &resource.value) {
            context.report.findings.push(crate::Finding {
                place: resource.place.clone(),
                severity: Behaviour,
                construct: resource.key.to_string(),
                effect: format!("left out, as it is not valid here: {invalid}"),
                hint: None,
                resources: Vec::new(),
            });
            if resource.key.kind != Kind::Upstream {
                let key = &resource.key;
                context.report.findings.retain_mut(|finding| {
                    let about = finding.resources.contains(key);
                    finding.resources.retain(|other| other != key);
                    // One that is about no other resource would be about all.
                    !about || !finding.resources.is_empty()
                });
                continue;
            }
            // Routes refer to it.
            resource.value = json!({"nodes": []});
        }
        context.import.resources.push(resource);
    }
}
