//! The Prometheus text format, version 0.0.4, in the order of APISIX's exporter:
//! metrics and label texts sorted.

use std::io::Write;

use bytes::Bytes;
use model::Served;
use sdk::meters::{COMMAND_BOUNDS_US, Kind, Meters, Reading, Totals, escaped};

use crate::expiry::{Expiring, Source};

/// The values of a scrape besides the workers' counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts<'a> {
    pub hostname: &'a str,
    pub version: &'a str,
    /// Milliseconds of a monotonic clock, by which unused series expire.
    pub steady_ms: u64,
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
    pub entries_gathered: &'a [sdk::sink::Entries],
    /// Log entries of plugins that could not be delivered, by plugin.
    pub entries_dropped: &'a [(&'static str, u64)],
    /// Bytes of log entries that wait.
    pub entries_bytes: u64,
    /// Plugins that resources are served without, and how many name each.
    pub unseen_plugins: &'a [(&'static str, usize)],
    /// Resources that are not served as they are written, by what is served in their place.
    pub rejected: &'a [(Served, usize)],
    /// Secrets of managers that resources refer to, and how many of them have no value.
    pub secrets: (usize, usize),
    /// Certificates in use, those that expire soonest first, up to a bound, and how many there are in all.
    pub expiring: &'a [Expiring],
    pub certificates_in_use: usize,
    /// Certificates that an ACME server issues.
    pub certificates: &'a [Certificate],
    /// Metrics of plugins in WebAssembly, by name.
    pub plugin_metrics: &'a [PluginMetric],
}

/// A metric that a plugin in WebAssembly has defined.
#[derive(Debug, Clone)]
pub struct PluginMetric {
    pub plugin: &'static str,
    /// Letters, digits and `_`.
    pub name: String,
    /// Of a histogram, the sum of its values.
    pub value: u64,
    pub shape: Shape,
}

/// The type of a metric.
#[derive(Debug, Clone)]
pub enum Shape {
    Counter,
    /// The value has a sign.
    Gauge,
    /// The values up to each bound, and beyond the last.
    Histogram {
        bounds: &'static [u64],
        counts: Vec<u64>,
    },
}

/// A certificate that is issued and renewed.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// Of its ssl resource.
    pub id: String,
    /// None before there is one.
    pub days_left: Option<u64>,
    /// Tries that failed since the last success.
    pub failures: u64,
}

/// A memory zone.
#[derive(Debug, Clone, Copy)]
pub struct Zone<'a> {
    pub name: &'a str,
    pub capacity: u64,
    pub free: u64,
}

/// The health of a node.
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

/// All metrics, in pieces of some 64 KiB that hold whole lines.
pub fn page(meters: &Meters, facts: &Facts<'_>) -> Vec<Bytes> {
    meters.read(facts.steady_ms, |reading| all(reading, facts))
}

fn all(reading: &Reading<'_>, facts: &Facts<'_>) -> Vec<Bytes> {
    let totals = reading.totals();
    let mut page = Page {
        prefix: &reading.settings().prefix,
        out: Vec::with_capacity(PIECE + (4 << 10)),
        pieces: Vec::new(),
    };
    bandwidth(&mut page, reading);
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
    latency(&mut page, reading);
    page.gauges(
        "http_requests_total",
        "The total number of client requests since APISIX started",
        [(String::new(), totals.began)],
    );
    page.counters("http_status", "HTTP status codes per service in APISIX", reading.status());
    connections(&mut page, &totals);
    page.head("nginx_metric_errors_total", "counter", "Number of nginx-lua-prometheus errors");
    page.line("nginx_metric_errors_total", "", "", totals.metric_errors);
    let node = format!("hostname=\"{}\",version=\"{}\"", escaped(facts.hostname), escaped(facts.version));
    page.gauges("node_info", "Info of APISIX node", [(node, 1)]);
    redis_commands(&mut page, reading);
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
    let help = "Total number of connections handled per stream route in APISIX";
    page.counters("stream_connection_total", help, reading.streams());
    let help = "Stream sessions per termination status in APISIX";
    page.counters("stream_status", help, reading.stream_status());
    page.gauges(
        "upstream_status",
        "Upstream status from health check",
        facts.upstreams.iter().map(|it| {
            let text =
                format!("name=\"{}\",ip=\"{}\",port=\"{}\"", escaped(it.name), escaped(it.ip), it.port);
            (text, u64::from(it.healthy))
        }),
    );
    own(&mut page, reading, &totals, facts);
    of_plugins(&mut page, facts.plugin_metrics);
    page.pieces.push(page.out.into());
    page.pieces
}

/// Metrics APISIX does not have, under a name of their own.
fn own(page: &mut Page<'_>, reading: &Reading<'_>, totals: &Totals, facts: &Facts<'_>) {
    page.prefix = "sluice_";
    page.head("metric_series", "gauge", "Series with labels of requests, limited by max_series");
    page.line("metric_series", "", "", reading.lines() as u64);
    page.head(
        "metric_series_evicted_total",
        "counter",
        "Label sets evicted to make room for others, by metric",
    );
    page.line("metric_series_evicted_total", "", "", reading.evicted());
    page.head("tls_handshakes_total", "counter", "TLS handshakes of clients, by what came of them");
    let handshakes: [(&str, u64); 3] = [
        ("failed", totals.handshakes_failed),
        ("full", totals.handshakes),
        ("resumed", totals.handshakes_resumed),
    ];
    for (result, count) in handshakes {
        page.line("tls_handshakes_total", "", &format!("result=\"{result}\""), count);
    }
    let counters: [(&str, &str, u64); 10] = [
        (
            "calls_unwatched_total",
            "Calls of protocols within streams that were passed on unwatched, as too many were under way",
            totals.calls_unwatched,
        ),
        (
            "datagrams_dropped_total",
            "UDP datagrams dropped, as there were too many sessions or their server did not keep up",
            totals.datagrams_dropped,
        ),
        (
            "descriptor_shortages_total",
            "Times no file descriptor was left for a connection",
            totals.shortages,
        ),
        ("faults_total", "Exchanges that failed", totals.faults),
        (
            "fetches_dropped_total",
            "Requests of plugins dropped, as too many were in flight",
            totals.fetches_dropped,
        ),
        (
            "idle_clients_closed_total",
            "Idle client connections closed to make room",
            totals.idle_clients_closed,
        ),
        (
            "idle_upstreams_closed_total",
            "Idle upstream connections closed to make room",
            totals.idle_upstreams_closed,
        ),
        ("panics_total", "Panics caught in workers", totals.panics),
        ("requests_refused_total", "Requests refused as malformed or too large", totals.refused),
        ("upstream_retries_total", "Requests retried with an upstream", totals.retries),
    ];
    for (name, help, count) in counters {
        page.head(name, "counter", help);
        page.line(name, "", "", count);
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
    page.line("fetches", "", "", totals.fetches);
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
    page.head(
        "resources_rejected",
        "gauge",
        "Resources that are not served as they are written, by what is served in their place",
    );
    for (served, resources) in facts.rejected {
        page.line("resources_rejected", "", &format!("state=\"{}\"", served.as_str()), *resources as u64);
    }
    page.head("acme_certificate_days_left", "gauge", "Days until a certificate of an ACME server expires");
    for one in facts.certificates {
        if let Some(days) = one.days_left {
            page.line("acme_certificate_days_left", "", &format!("id=\"{}\"", one.id), days);
        }
    }
    page.head(
        "acme_certificate_failures",
        "gauge",
        "Tries to have a certificate issued that failed since the last success",
    );
    for one in facts.certificates {
        page.line("acme_certificate_failures", "", &format!("id=\"{}\"", one.id), one.failures);
    }
    page.head(
        "certificate_days_left",
        "gauge",
        "Days until a certificate expires, by ssl resource or file; below 0 once it has expired",
    );
    for one in facts.expiring {
        let labels = match &one.source {
            Source::Ssl { id, sni: Some(sni) } => format!("ssl=\"{}\",sni=\"{}\"", escaped(id), escaped(sni)),
            Source::Ssl { id, sni: None } => format!("ssl=\"{}\"", escaped(id)),
            Source::File(path) => format!("file=\"{}\"", escaped(path)),
        };
        page.start("certificate_days_left", &[&labels]);
        page.end(one.days_left);
    }
    page.head("certificates", "gauge", "Certificates in use, of ssl resources and of files");
    page.line("certificates", "", "", facts.certificates_in_use as u64);
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

/// Metrics of plugins in WebAssembly.
fn of_plugins(page: &mut Page<'_>, metrics: &[PluginMetric]) {
    let mut before = "";
    for metric in metrics {
        let (name, plugin) = (format!("wasm_{}", metric.name), format!("plugin=\"{}\"", metric.plugin));
        if before != metric.name {
            let kind = match metric.shape {
                Shape::Counter => "counter",
                Shape::Gauge => "gauge",
                Shape::Histogram { .. } => "histogram",
            };
            page.head(&name, kind, "A metric of plugins in WebAssembly");
            before = &metric.name;
        }
        match &metric.shape {
            Shape::Counter => page.line(&name, "", &plugin, metric.value),
            Shape::Gauge => {
                page.start(&name, &[&plugin]);
                page.end(metric.value.cast_signed());
            }
            Shape::Histogram { bounds, counts } => {
                let mut sum = 0;
                for (at, count) in counts.iter().enumerate() {
                    sum += count;
                    let bound = bounds.get(at).map_or_else(|| "+Inf".to_owned(), u64::to_string);
                    page.line(&format!("{name}_bucket"), &plugin, &format!("le=\"{bound}\""), sum);
                }
                page.line(&format!("{name}_sum"), "", &plugin, metric.value);
                page.line(&format!("{name}_count"), "", &plugin, sum);
            }
        }
    }
}

fn bandwidth(page: &mut Page<'_>, reading: &Reading<'_>) {
    let both: Vec<(&str, u64, u64)> = reading.bandwidth().collect();
    if both.is_empty() {
        return;
    }
    page.head("bandwidth", "counter", "Total bandwidth in bytes consumed per service in APISIX");
    for (text, _, sent) in &both {
        page.line("bandwidth", "type=\"egress\"", text, *sent);
    }
    for (text, received, _) in &both {
        page.line("bandwidth", "type=\"ingress\"", text, *received);
    }
}

fn connections(page: &mut Page<'_>, totals: &Totals) {
    // The counters are not read at one moment, so a difference may be negative for a short time.
    let difference = |a: u64, b: u64| (a.wrapping_sub(b) as i64).max(0) as u64;
    let active = difference(totals.accepted, totals.closed);
    let waiting = difference(totals.waiting, 0).min(active);
    let writing = difference(totals.began, totals.ended).min(active - waiting);
    let states = [
        ("accepted", totals.accepted),
        ("active", active),
        ("handled", totals.accepted),
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

fn redis_commands(page: &mut Page<'_>, reading: &Reading<'_>) {
    let rows: Vec<_> = reading.redis_commands().collect();
    if rows.is_empty() {
        return;
    }
    page.head(
        "redis_commands_latency_seconds",
        "histogram",
        "Latency of requests for a specific Redis command",
    );
    let bounds = COMMAND_BOUNDS_US.iter().map(|us| format!("le=\"{}\"", *us as f64 / 1e6));
    let bounds: Vec<String> = bounds.chain(["le=\"+Inf\"".to_owned()]).collect();
    for (text, histogram) in &rows {
        let mut total = 0;
        for (count, bound) in histogram.counts.iter().zip(&bounds) {
            total += count;
            page.start("redis_commands_latency_seconds_bucket", &[text, bound]);
            page.end(total);
        }
    }
    for (text, histogram) in &rows {
        page.line("redis_commands_latency_seconds_count", "", text, histogram.counts.iter().sum());
    }
    for (text, histogram) in &rows {
        page.start("redis_commands_latency_seconds_sum", &[text]);
        page.end(histogram.sum_us as f64 / 1e6);
    }
    let totals = rows.iter().map(|(text, histogram)| (*text, histogram.counts.iter().sum()));
    page.counters("redis_commands_total", "Total number of requests for a specific Redis command", totals);
}

fn latency(page: &mut Page<'_>, reading: &Reading<'_>) {
    if reading.latency(Kind::Request).next().is_none() {
        return;
    }
    let kinds = [
        ("type=\"apisix\"", Kind::Own),
        ("type=\"request\"", Kind::Request),
        ("type=\"upstream\"", Kind::Upstream),
    ];
    page.head("http_latency", "histogram", "HTTP request latency in milliseconds per service in APISIX");
    let bounds: Vec<String> =
        reading.settings().buckets_ms.iter().map(|bound| format!("le=\"{bound}\"")).collect();
    let mut totals = Vec::new();
    for (label, kind) in kinds {
        for (text, histogram) in reading.latency(kind) {
            // Nothing is said of an upstream that was never asked.
            if histogram.counts.iter().all(|&count| count == 0) {
                continue;
            }
            let mut total = 0;
            let bounds = bounds.iter().map(String::as_str).chain(["le=\"+Inf\""]);
            for (count, bound) in histogram.counts.iter().zip(bounds) {
                total += count;
                page.start("http_latency_bucket", &[label, text, bound]);
                page.end(total);
            }
            totals.push((label, text, total, histogram.sum_us));
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

    /// A counter with its head, if it has values.
    fn counters<'v>(&mut self, name: &str, help: &str, values: impl Iterator<Item = (&'v str, u64)>) {
        for (index, (labels, value)) in values.enumerate() {
            if index == 0 {
                self.head(name, "counter", help);
            }
            self.line(name, "", labels, value);
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

#[cfg(test)]
mod tests;
