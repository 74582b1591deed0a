//! The values of a scrape besides the workers' counts.

use model::Served;

use crate::expiry::Expiring;

/// The values, as the gateway gathers them for each scrape.
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
