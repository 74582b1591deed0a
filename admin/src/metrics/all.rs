//! All metrics, in the order of APISIX's exporter: metrics and label texts sorted. A [`Form`] writes them.

use sdk::meters::{COMMAND_BOUNDS_US, Histogram, Kind, Reading, Totals, escaped};

use super::facts::{Facts, PluginMetric, Shape, Zone};
use crate::expiry::Source;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Counter,
    Gauge,
    Histogram,
}

/// A histogram of one label set.
pub(super) struct Row<'r> {
    /// As in [`Form::point`].
    pub labels: [&'r str; 2],
    /// Values by bucket, in the order of the bounds; the last bucket is unbounded.
    pub counts: Vec<u64>,
    pub sum: f64,
}

/// How metrics are written.
pub(super) trait Form {
    /// Begins a metric, to which the points that follow belong.
    fn metric(&mut self, name: &str, kind: Type, help: &str);

    /// A point of a counter or a gauge. Label texts are `name="value",…`, escaped, or empty.
    fn point(&mut self, labels: &[&str], value: i128);

    fn histograms<'r>(&mut self, bounds: &[f64], rows: impl Iterator<Item = Row<'r>>);
}

/// Writes all metrics.
pub(super) fn write(reading: &Reading<'_>, facts: &Facts<'_>, form: &mut impl Form) {
    let totals = reading.totals();
    let mut page = Page { prefix: &reading.settings().prefix, form };
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
    page.head("nginx_metric_errors_total", Type::Counter, "Number of nginx-lua-prometheus errors");
    page.point(&[], totals.metric_errors);
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
}

/// Metrics APISIX does not have, under a name of their own.
fn own(page: &mut Page<'_, impl Form>, reading: &Reading<'_>, totals: &Totals, facts: &Facts<'_>) {
    page.prefix = "sluice_";
    page.head("metric_series", Type::Gauge, "Series with labels of requests, limited by max_series");
    page.point(&[], reading.lines() as u64);
    page.head(
        "metric_series_evicted_total",
        Type::Counter,
        "Label sets evicted to make room for others, by metric",
    );
    page.point(&[], reading.evicted());
    page.head("tls_handshakes_total", Type::Counter, "TLS handshakes of clients, by what came of them");
    let handshakes: [(&str, u64); 3] = [
        ("failed", totals.handshakes_failed),
        ("full", totals.handshakes),
        ("resumed", totals.handshakes_resumed),
    ];
    for (result, count) in handshakes {
        page.point(&[&format!("result=\"{result}\"")], count);
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
        page.head(name, Type::Counter, help);
        page.point(&[], count);
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
        page.head(name, Type::Counter, help);
        page.point(&[], value);
    }
    page.head("fetches", Type::Gauge, "Requests of plugins in flight");
    page.point(&[], totals.fetches);
    page.head(
        "log_entries_dropped_total",
        Type::Counter,
        "Log entries of plugins dropped, as their queue was full or their delivery failed",
    );
    for (plugin, dropped) in facts.entries_dropped {
        page.point(&[&format!("plugin=\"{plugin}\"")], *dropped);
    }
    page.head(
        "log_entries_waiting_bytes",
        Type::Gauge,
        "Bytes of log entries of plugins waiting for delivery",
    );
    page.point(&[], facts.entries_bytes);
    page.head(
        "plugins_without_effect",
        Type::Gauge,
        "Resources that configure a plugin this version does not have, and are served without it",
    );
    for (plugin, resources) in facts.unseen_plugins {
        page.point(&[&format!("plugin=\"{plugin}\"")], *resources as u64);
    }
    page.head(
        "resources_rejected",
        Type::Gauge,
        "Resources that are not served as they are written, by what is served in their place",
    );
    for (served, resources) in facts.rejected {
        page.point(&[&format!("state=\"{}\"", served.as_str())], *resources as u64);
    }
    page.head(
        "acme_certificate_days_left",
        Type::Gauge,
        "Days until a certificate of an ACME server expires",
    );
    for one in facts.certificates {
        if let Some(days) = one.days_left {
            page.point(&[&format!("id=\"{}\"", one.id)], days);
        }
    }
    page.head(
        "acme_certificate_failures",
        Type::Gauge,
        "Tries to have a certificate issued that failed since the last success",
    );
    for one in facts.certificates {
        page.point(&[&format!("id=\"{}\"", one.id)], one.failures);
    }
    page.head(
        "certificate_days_left",
        Type::Gauge,
        "Days until a certificate expires, by ssl resource or file; below 0 once it has expired",
    );
    for one in facts.expiring {
        let labels = match &one.source {
            Source::Ssl { id, sni: Some(sni) } => format!("ssl=\"{}\",sni=\"{}\"", escaped(id), escaped(sni)),
            Source::Ssl { id, sni: None } => format!("ssl=\"{}\"", escaped(id)),
            Source::File(path) => format!("file=\"{}\"", escaped(path)),
        };
        page.point(&[&labels], one.days_left);
    }
    page.head("certificates", Type::Gauge, "Certificates in use, of ssl resources and of files");
    page.point(&[], facts.certificates_in_use as u64);
    let (all, missing) = facts.secrets;
    if all > 0 {
        page.head(
            "secrets",
            Type::Gauge,
            "Secrets of managers that resources refer to, by whether they could be read",
        );
        page.point(&["state=\"read\""], all.saturating_sub(missing) as u64);
        page.point(&["state=\"missing\""], missing as u64);
    }
}

/// Metrics of plugins in WebAssembly. Plugins may define one name with different types.
fn of_plugins(page: &mut Page<'_, impl Form>, metrics: &[PluginMetric]) {
    let shape = |metric: &PluginMetric| std::mem::discriminant(&metric.shape);
    for same in metrics.chunk_by(|one, next| one.name == next.name && shape(one) == shape(next)) {
        let Some(first) = same.first() else { continue };
        let (kind, bounds) = match first.shape {
            Shape::Counter => (Type::Counter, &[][..]),
            Shape::Gauge => (Type::Gauge, &[][..]),
            Shape::Histogram { bounds, .. } => (Type::Histogram, bounds),
        };
        page.head(&format!("wasm_{}", first.name), kind, "A metric of plugins in WebAssembly");
        let labels: Vec<_> = same.iter().map(|metric| format!("plugin=\"{}\"", metric.plugin)).collect();
        let mut rows = Vec::new();
        for (metric, plugin) in same.iter().zip(&labels) {
            match &metric.shape {
                Shape::Counter => page.point(&[plugin], metric.value),
                Shape::Gauge => page.point(&[plugin], metric.value.cast_signed()),
                Shape::Histogram { counts, .. } => {
                    rows.push(Row { labels: ["", plugin], counts: counts.clone(), sum: metric.value as f64 });
                }
            }
        }
        if !rows.is_empty() {
            let bounds: Vec<f64> = bounds.iter().map(|&bound| bound as f64).collect();
            page.form.histograms(&bounds, rows.into_iter());
        }
    }
}

fn bandwidth(page: &mut Page<'_, impl Form>, reading: &Reading<'_>) {
    let both: Vec<(&str, u64, u64)> = reading.bandwidth().collect();
    if both.is_empty() {
        return;
    }
    page.head("bandwidth", Type::Counter, "Total bandwidth in bytes consumed per service in APISIX");
    for (text, _, sent) in &both {
        page.point(&["type=\"egress\"", text], *sent);
    }
    for (text, received, _) in &both {
        page.point(&["type=\"ingress\"", text], *received);
    }
}

fn connections(page: &mut Page<'_, impl Form>, totals: &Totals) {
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

fn redis_commands(page: &mut Page<'_, impl Form>, reading: &Reading<'_>) {
    let rows: Vec<_> = reading.redis_commands().collect();
    if rows.is_empty() {
        return;
    }
    page.head(
        "redis_commands_latency_seconds",
        Type::Histogram,
        "Latency of requests for a specific Redis command",
    );
    let bounds = COMMAND_BOUNDS_US.map(|us| us as f64 / 1e6);
    let row = |(text, histogram): &(_, Histogram)| Row {
        labels: ["", *text],
        counts: histogram.counts.clone(),
        sum: histogram.sum_us as f64 / 1e6,
    };
    page.form.histograms(&bounds, rows.iter().map(row));
    let totals = rows.iter().map(|(text, histogram)| (*text, histogram.counts.iter().sum()));
    page.counters("redis_commands_total", "Total number of requests for a specific Redis command", totals);
}

fn latency(page: &mut Page<'_, impl Form>, reading: &Reading<'_>) {
    if reading.latency(Kind::Request).next().is_none() {
        return;
    }
    let kinds = [
        ("type=\"apisix\"", Kind::Own),
        ("type=\"request\"", Kind::Request),
        ("type=\"upstream\"", Kind::Upstream),
    ];
    page.head("http_latency", Type::Histogram, "HTTP request latency in milliseconds per service in APISIX");
    let rows = kinds.into_iter().flat_map(|(label, kind)| {
        // An upstream that was never contacted has no histogram.
        let used =
            reading.latency(kind).filter(|(_, histogram)| histogram.counts.iter().any(|&count| count > 0));
        used.map(move |(text, Histogram { counts, sum_us })| Row {
            labels: [label, text],
            counts,
            sum: sum_us as f64 / 1000.0,
        })
    });
    page.form.histograms(&reading.settings().buckets_ms, rows);
}

/// The metrics of one prefix.
struct Page<'p, F> {
    prefix: &'p str,
    form: &'p mut F,
}

impl<F: Form> Page<'_, F> {
    fn head(&mut self, name: &str, kind: Type, help: &str) {
        self.form.metric(&format!("{}{name}", self.prefix), kind, help);
    }

    fn point(&mut self, labels: &[&str], value: impl Into<i128>) {
        self.form.point(labels, value.into());
    }

    /// A gauge with its head, if it has values.
    fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, u64)>) {
        for (index, (labels, value)) in values.into_iter().enumerate() {
            if index == 0 {
                self.head(name, Type::Gauge, help);
            }
            self.point(&[&labels], value);
        }
    }

    /// A counter with its head, if it has values.
    fn counters<'v>(&mut self, name: &str, help: &str, values: impl Iterator<Item = (&'v str, u64)>) {
        for (index, (labels, value)) in values.enumerate() {
            if index == 0 {
                self.head(name, Type::Counter, help);
            }
            self.point(&[labels], value);
        }
    }
}
