//! The settings of metrics in `plugin_attr.prometheus`.

use std::time::Duration;

use model::boot::Section;
use serde_json::Value;

/// How metrics are named and counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `metric_prefix`.
    pub prefix: String,
    /// `default_buckets`: the upper bounds of latencies in milliseconds, ascending.
    pub buckets_ms: Vec<f64>,
    /// `buckets_ms` in microseconds.
    pub(super) bounds_us: Vec<u64>,
    /// `max_series` (Sluice's own): maximum lines of output of the label sets of all workers;
    /// further ones share a series.
    pub max_series: usize,
    /// `forget_after` (Sluice's own): how long the series of a deleted route are shown.
    pub forget_after: Duration,
    /// `metrics.<name>.expire` of http_status, http_latency and bandwidth; 0 is never.
    pub(super) expire_ms: [u64; 3],
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::from_attr(None)
    }
}

impl Settings {
    /// Reads `plugin_attr.prometheus`, as far as it is written.
    pub fn from_attr(attr: Option<&Value>) -> Settings {
        let attr = Section::attr("/plugin_attr/prometheus", attr);
        let buckets_ms = attr.buckets("/default_buckets");
        let expire_ms = |metric: &str| {
            let seconds = attr.get(&format!("/metrics/{metric}/expire")).and_then(Value::as_u64);
            seconds.unwrap_or(0) * 1000
        };
        Settings {
            prefix: attr.text("/metric_prefix").unwrap_or_default().to_owned(),
            bounds_us: micros(&buckets_ms),
            buckets_ms,
            max_series: attr.number("/max_series"),
            forget_after: Duration::from_secs(attr.count("/forget_after")),
            expire_ms: ["http_status", "http_latency", "bandwidth"].map(expire_ms),
        }
    }

    /// The interval of [`Meters::tidy`](super::Meters::tidy) at which series expire in time:
    /// `usual` or shorter.
    pub fn tidy_interval(&self, usual: Duration) -> Duration {
        let soonest = self.expire_ms.iter().copied().filter(|ms| *ms > 0).min();
        soonest.map_or(usual, |ms| Duration::from_millis((ms / 4).max(250)).min(usual))
    }
}

fn micros(buckets_ms: &[f64]) -> Vec<u64> {
    buckets_ms.iter().map(|ms| (ms * 1000.0).round() as u64).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn attributes_are_read() {
        let attr = json!({
            "metric_prefix": "gw_", "default_buckets": [0.5, 10], "max_series": 10, "forget_after": 5,
            "export_uri": "/m", "metrics": {"http_latency": {"expire": 2}},
        });
        let settings = Settings::from_attr(Some(&attr));
        assert_eq!((settings.prefix.as_str(), settings.bounds_us.as_slice()), ("gw_", &[500, 10_000][..]));
        assert_eq!((settings.max_series, settings.expire_ms), (10, [0, 2000, 0]));
        assert_eq!(settings.forget_after, Duration::from_secs(5));
        let usual = Duration::from_secs(5);
        assert_eq!(settings.tidy_interval(usual), Duration::from_millis(500));
        assert_eq!(Settings::default().tidy_interval(usual), usual);
        let later = json!({"metrics": {"bandwidth": {"expire": 86_400}, "http_status": {"expire": 60}}});
        assert_eq!(Settings::from_attr(Some(&later)).tidy_interval(usual), usual);
    }
}
