//! The Prometheus text format, version 0.0.4, in the order of APISIX's exporter:
//! metrics and label texts sorted.

use std::io::Write;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use super::series::{Family, Kind, Latency};
use super::{Collected, Settings, WorkerCounts};

/// What a scrape tells besides the workers' counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts<'a> {
    pub hostname: &'a str,
    pub version: &'a str,
    /// Unix milliseconds.
    pub now_ms: u64,
    /// Memory zones of fixed size, by APISIX's names of its dictionaries.
    pub zones: &'a [Zone<'a>],
    /// Whether etcd answers, where etcd is used.
    pub etcd_reachable: Option<bool>,
    /// Latest revision by kind (`routes`, `services`, …), where etcd is used.
    pub modify_indexes: &'a [(&'a str, u64)],
    pub upstreams: &'a [Health<'a>],
    /// Rate-limit counters that gave way to others before their window ended.
    pub counters_evicted: u64,
    /// Answers of a cache on disk that were not read in time.
    pub cache_reads_late: u64,
    /// Lines of the access log that could not be written.
    pub access_log_dropped: u64,
    /// Log entries that wait to become a batch, by APISIX's labels.
    pub entries_gathered: &'a [crate::sink::Entries],
    /// Log entries of plugins that could not be delivered, by plugin.
    pub entries_dropped: &'a [(&'static str, u64)],
    /// Bytes of log entries that wait.
    pub entries_bytes: u64,
    /// Plugins that resources are served without, and how many name each.
    pub unseen_plugins: &'a [(&'static str, usize)],
    /// Secrets of managers that resources refer to, and how many of them have no value.
    pub secrets: (usize, usize),
}

/// A memory zone.
#[derive(Debug, Clone, Copy)]
pub struct Zone<'a> {
    pub name: &'a str,
    pub capacity: u64,
    pub free: u64,
}

/// What health checks say of a node.
#[derive(Debug, Clone, Copy)]
pub struct Health<'a> {
    /// As `/apisix/upstreams/1`.
    pub name: &'a str,
    pub ip: &'a str,
    pub port: u16,
    pub healthy: bool,
}

/// Bytes of a piece, beyond which the next one begins.
const PIECE: usize = 64 << 10;

/// All metrics, in pieces that hold whole lines.
pub(super) fn all(settings: &Settings, collected: &Collected, facts: &Facts<'_>) -> Vec<Bytes> {
    let mut page =
        Page { prefix: &settings.prefix, out: Vec::with_capacity(PIECE + (4 << 10)), pieces: Vec::new() };
    let families = &collected.families;
    bandwidth(&mut page, collected);
    page.gauges(
        "batch_process_entries",
        "batch process remaining entries",
        facts.entries_gathered.iter().map(|it| {
            let text = format!(
                "name=\"{}\",route_id=\"{}\",server_addr=\"{}\"",
                escaped(&it.name),
                escaped(&it.route_id),
                escaped(&it.server_addr)
            );
            (text, it.count)
        }),
    );
    page.gauges(
        "etcd_modify_indexes",
        "Etcd modify index for APISIX keys",
        facts.modify_indexes.iter().map(|(key, index)| (format!("key=\"{key}\""), *index)),
    );
    page.gauges(
        "etcd_reachable",
        "Config server etcd reachable from APISIX, 0 is unreachable",
        facts.etcd_reachable.map(|reachable| (String::new(), u64::from(reachable))),
    );
    latency(&mut page, settings, &families.latency);
    let began = collected.sum(|node| &node.began);
    page.gauges(
        "http_requests_total",
        "The total number of client requests since APISIX started",
        [(String::new(), began)],
    );
    if !families.status.groups.is_empty() {
        page.head("http_status", "counter", "HTTP status codes per service in APISIX");
        for (text, group) in &families.status.groups {
            let requests = group.parts.iter().map(|(_, part)| part.requests()).sum();
            page.line("http_status", "", text, requests);
        }
    }
    connections(&mut page, collected, began);
    page.head("nginx_metric_errors_total", "counter", "Number of nginx-lua-prometheus errors");
    page.line("nginx_metric_errors_total", "", "", collected.sum(|node| &node.metric_errors));
    let node = format!("hostname=\"{}\",version=\"{}\"", escaped(facts.hostname), escaped(facts.version));
    page.gauges("node_info", "Info of APISIX node", [(node, 1)]);
    let zone = |zone: &Zone<'_>| format!("name=\"{}\"", escaped(zone.name));
    page.gauges(
        "shared_dict_capacity_bytes",
        "The capacity of each nginx shared DICT since APISIX start",
        facts.zones.iter().map(|it| (zone(it), it.capacity)),
    );
    page.gauges(
        "shared_dict_free_space_bytes",
        "The free space of each nginx shared DICT since APISIX start",
        facts.zones.iter().map(|it| (zone(it), it.free)),
    );
    for (name, help, family) in [
        (
            "stream_connection_total",
            "Total number of connections handled per stream route in APISIX",
            &families.streams,
        ),
        ("stream_status", "Stream sessions per termination status in APISIX", &families.stream_status),
    ] {
        if family.groups.is_empty() {
            continue;
        }
        page.head(name, "counter", help);
        for (text, group) in &family.groups {
            let streams = group.parts.iter().map(|(_, part)| part.requests()).sum();
            page.line(name, "", text, streams);
        }
    }
    page.gauges(
        "upstream_status",
        "Upstream status from health check",
        facts.upstreams.iter().map(|it| {
            let text =
                format!("name=\"{}\",ip=\"{}\",port=\"{}\"", escaped(it.name), escaped(it.ip), it.port);
            (text, u64::from(it.healthy))
        }),
    );
    own(&mut page, settings, collected, facts);
    page.pieces.push(page.out.into());
    page.pieces
}

/// Metrics APISIX does not have, under a name of their own.
fn own(page: &mut Page<'_>, settings: &Settings, collected: &Collected, facts: &Facts<'_>) {
    page.prefix = "sluice_";
    page.head("metric_series", "gauge", "Series with labels of requests, limited by max_series");
    page.line("metric_series", "", "", collected.families.lines(settings) as u64);
    page.head(
        "metric_series_evicted_total",
        "counter",
        "Label sets evicted to make room for others, by metric",
    );
    page.line("metric_series_evicted_total", "", "", collected.evicted);
    type Of = fn(&WorkerCounts) -> &AtomicU64;
    page.head("tls_handshakes_total", "counter", "TLS handshakes of clients, by what came of them");
    let handshakes: [(&str, Of); 3] = [
        ("failed", |node| &node.handshakes_failed),
        ("full", |node| &node.handshakes),
        ("resumed", |node| &node.handshakes_resumed),
    ];
    for (result, of) in handshakes {
        page.line("tls_handshakes_total", "", &format!("result=\"{result}\""), collected.sum(of));
    }
    let counters: [(&str, &str, Of); 9] = [
        (
            "datagrams_dropped_total",
            "UDP datagrams dropped, as there were too many sessions or their server did not keep up",
            |node| &node.datagrams_dropped,
        ),
        ("descriptor_shortages_total", "Times no file descriptor was left for a connection", |node| {
            &node.shortages
        }),
        ("faults_total", "Exchanges that failed", |node| &node.faults),
        ("fetches_dropped_total", "Requests of plugins dropped, as too many were in flight", |node| {
            &node.fetches_dropped
        }),
        ("idle_clients_closed_total", "Idle client connections closed to make room", |node| {
            &node.idle_clients_closed
        }),
        ("idle_upstreams_closed_total", "Idle upstream connections closed to make room", |node| {
            &node.idle_upstreams_closed
        }),
        ("panics_total", "Panics caught in workers", |node| &node.panics),
        ("requests_refused_total", "Requests refused as malformed or too large", |node| &node.refused),
        ("upstream_retries_total", "Requests retried with an upstream", |node| &node.retries),
    ];
    for (name, help, of) in counters {
        page.head(name, "counter", help);
        page.line(name, "", "", collected.sum(of));
    }
    let counters = [
        ("cache_reads_late_total", "Cached answers not read from disk in time", facts.cache_reads_late),
        (
            "rate_limit_counters_evicted_total",
            "Counters of limit-count, limit-req and api-breaker that gave way while they still counted something",
            facts.counters_evicted,
        ),
        (
            "access_log_lines_dropped_total",
            "Lines of the access log that could not be written in time",
            facts.access_log_dropped,
        ),
    ];
    for (name, help, value) in counters {
        page.head(name, "counter", help);
        page.line(name, "", "", value);
    }
    page.head("fetches", "gauge", "Requests of plugins in flight");
    page.line("fetches", "", "", collected.sum(|node| &node.fetches));
    page.head(
        "log_entries_dropped_total",
        "counter",
        "Log entries of plugins dropped, as their queue was full or their delivery failed",
    );
    for (plugin, dropped) in facts.entries_dropped {
        page.line("log_entries_dropped_total", "", &format!("plugin=\"{plugin}\""), *dropped);
    }
    page.head("log_entries_waiting_bytes", "gauge", "Bytes of log entries of plugins waiting for delivery");
    page.line("log_entries_waiting_bytes", "", "", facts.entries_bytes);
    page.head(
        "plugins_without_effect",
        "gauge",
        "Resources that configure a plugin this version does not have, and are served without it",
    );
    for (plugin, resources) in facts.unseen_plugins {
        page.line("plugins_without_effect", "", &format!("plugin=\"{plugin}\""), *resources as u64);
    }
    let (all, missing) = facts.secrets;
    if all > 0 {
        page.head(
            "secrets",
            "gauge",
            "Secrets of managers that resources refer to, by whether they could be read",
        );
        page.line("secrets", "", "state=\"read\"", all.saturating_sub(missing) as u64);
        page.line("secrets", "", "state=\"missing\"", missing as u64);
    }
}

fn bandwidth(page: &mut Page<'_>, collected: &Collected) {
    let groups = &collected.families.bandwidth.groups;
    if groups.is_empty() {
        return;
    }
    page.head("bandwidth", "counter", "Total bandwidth in bytes consumed per service in APISIX");
    for (text, group) in groups {
        page.line(
            "bandwidth",
            "type=\"egress\"",
            text,
            group.parts.iter().map(|(_, part)| part.sent()).sum(),
        );
    }
    for (text, group) in groups {
        let received = group.parts.iter().map(|(_, part)| part.received()).sum();
        page.line("bandwidth", "type=\"ingress\"", text, received);
    }
}

fn connections(page: &mut Page<'_>, collected: &Collected, began: u64) {
    // The words of a shard are read one after another while its worker goes on,
    // so a difference may come out below zero for a moment.
    let difference = |a: u64, b: u64| (a.wrapping_sub(b) as i64).max(0) as u64;
    let accepted = collected.sum(|node| &node.accepted);
    let active = difference(accepted, collected.sum(|node| &node.closed));
    let waiting = difference(collected.sum(|node| &node.waiting), 0).min(active);
    let writing = difference(began, collected.sum(|node| &node.ended)).min(active - waiting);
    let states = [
        ("accepted", accepted),
        ("active", active),
        ("handled", accepted),
        ("reading", active - waiting - writing),
        ("waiting", waiting),
        ("writing", writing),
    ];
    page.gauges(
        "nginx_http_current_connections",
        "Number of HTTP connections",
        states.map(|(state, value)| (format!("state=\"{state}\""), value)),
    );
}

fn latency(page: &mut Page<'_>, settings: &Settings, family: &Family<Latency>) {
    if family.groups.is_empty() {
        return;
    }
    let kinds = [
        ("type=\"apisix\"", Kind::Own),
        ("type=\"request\"", Kind::Request),
        ("type=\"upstream\"", Kind::Upstream),
    ];
    page.head("http_latency", "histogram", "HTTP request latency in milliseconds per service in APISIX");
    let bounds: Vec<String> = settings.buckets_ms.iter().map(|bound| format!("le=\"{bound}\"")).collect();
    let mut totals = Vec::new();
    for (label, kind) in kinds {
        for (text, group) in &family.groups {
            let mut counts = vec![0; bounds.len() + 1];
            let mut sum_us = 0;
            for (_, part) in &group.parts {
                part.add_to(kind, &mut counts, &mut sum_us);
            }
            // Nothing is said of an upstream that was never asked.
            let asked = counts.iter().any(|&count| count > 0);
            let mut total = 0;
            for (count, bound) in counts.iter().zip(bounds.iter().map(String::as_str).chain(["le=\"+Inf\""]))
            {
                total += count;
                if asked {
                    page.start("http_latency_bucket", &[label, text, bound]);
                    page.end(total);
                }
            }
            if asked {
                totals.push((label, text, total, sum_us));
            }
        }
    }
    for (label, text, total, _) in &totals {
        page.line("http_latency_count", label, text, *total);
    }
    for (label, text, _, sum_us) in &totals {
        page.start("http_latency_sum", &[label, text]);
        page.end(*sum_us as f64 / 1000.0);
    }
}

/// Text under way.
struct Page<'p> {
    prefix: &'p str,
    /// The piece that is written.
    out: Vec<u8>,
    /// Those before it.
    pieces: Vec<Bytes>,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        // Writing to memory does not fail.
        let _ = writeln!(self.out, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// A gauge with its head, if it has values.
    fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, u64)>) {
        for (index, (labels, value)) in values.into_iter().enumerate() {
            if index == 0 {
                self.head(name, "gauge", help);
            }
            self.line(name, "", &labels, value);
        }
    }

    fn line(&mut self, name: &str, first: &str, labels: &str, value: u64) {
        self.start(name, &[first, labels]);
        self.end(value);
    }

    /// The name and its labels.
    fn start(&mut self, name: &str, labels: &[&str]) {
        self.out.extend_from_slice(self.prefix.as_bytes());
        self.out.extend_from_slice(name.as_bytes());
        let mut open = b'{';
        for labels in labels.iter().filter(|labels| !labels.is_empty()) {
            self.out.push(open);
            self.out.extend_from_slice(labels.as_bytes());
            open = b',';
        }
        if open == b',' {
            self.out.push(b'}');
        }
    }

    fn end(&mut self, value: impl std::fmt::Display) {
        let _ = writeln!(self.out, " {value}");
        if self.out.len() >= PIECE {
            // A line is shorter than the room beyond, as a rule, so that nothing is copied.
            let next = Vec::with_capacity(PIECE + (4 << 10));
            self.pieces.push(std::mem::replace(&mut self.out, next).into());
        }
    }
}

/// A label's value with `\`, `"` and line feeds escaped.
pub(super) fn escaped(value: &str) -> std::borrow::Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return value.into();
    }
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}
