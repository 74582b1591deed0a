//! The settings of metrics in `plugin_attr.prometheus`.

use std::time::Duration;

use model::Invalid;
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

const BUCKETS_MS: [f64; 15] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 30000.0, 60000.0];

/// Far more buckets than dashboards show; each costs memory for every label set.
const MAX_BUCKETS: usize = 64;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            prefix: "apisix_".into(),
            buckets_ms: BUCKETS_MS.into(),
            bounds_us: micros(&BUCKETS_MS),
            max_series: 200_000,
            forget_after: Duration::from_secs(30),
            expire_ms: [0; 3],
        }
    }
}

impl Settings {
    /// Reads `plugin_attr.prometheus`; missing settings have APISIX's defaults.
    ///
    /// # Errors
    /// A value has the wrong type or is out of bounds; the pointer is relative to the attribute.
    pub fn from_attr(attr: Option<&Value>) -> Result<Settings, Invalid> {
        let mut settings = Settings::default();
        let Some(attr) = attr else { return Ok(settings) };
        if let Some(prefix) = attr.get("metric_prefix") {
            settings.prefix =
                prefix.as_str().filter(|prefix| is_prefix(prefix)).map(str::to_owned).ok_or_else(|| {
                    Invalid::new(
                        "metric_prefix must be letters, digits, `_` and `:`, and not begin with a digit",
                    )
                    .at("/metric_prefix")
                    .expected("a string such as apisix_")
                })?;
        }
        if let Some(buckets) = attr.get("default_buckets") {
            let list: Option<Vec<f64>> =
                buckets.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
            let rising = |list: &Vec<f64>| {
                !list.is_empty()
                    && list.len() <= MAX_BUCKETS
                    && list[0] > 0.0
                    && list.is_sorted_by(|a, b| a < b)
            };
            let list = list.filter(rising).ok_or_else(|| {
                Invalid::new("default_buckets must be 1 to 64 ascending positive numbers (milliseconds)")
                    .at("/default_buckets")
                    .expected("a list such as [1, 10, 100]")
            })?;
            settings.bounds_us = micros(&list);
            settings.buckets_ms = list;
        }
        if let Some(max) = attr.get("max_series") {
            let max = max.as_u64().filter(|&max| max > 0).and_then(|max| usize::try_from(max).ok());
            settings.max_series = max.ok_or_else(|| {
                Invalid::new("max_series must be a positive integer").at("/max_series").expected("integer")
            })?;
        }
        if let Some(forget) = attr.get("forget_after") {
            let seconds = forget.as_u64().filter(|seconds| *seconds <= 86_400).ok_or_else(|| {
                Invalid::new("forget_after must be a number of seconds up to 86400")
                    .at("/forget_after")
                    .expected("integer")
            })?;
            settings.forget_after = Duration::from_secs(seconds);
        }
        for (metric, expire_ms) in
            ["http_status", "http_latency", "bandwidth"].into_iter().zip(&mut settings.expire_ms)
        {
            let pointer = format!("/metrics/{metric}/expire");
            if let Some(expire) = attr.pointer(&pointer) {
                let seconds = expire.as_f64().filter(|seconds| *seconds >= 0.0).ok_or_else(|| {
                    Invalid::new("expire must be a number of seconds, 0 for never")
                        .at(pointer)
                        .expected("number")
                })?;
                *expire_ms = (seconds * 1000.0) as u64;
            }
        }
        Ok(settings)
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

fn is_prefix(prefix: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    prefix.len() <= 64 && prefix.bytes().all(allowed) && !prefix.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn attributes_are_read_and_checked() {
        assert_eq!(Settings::from_attr(None).unwrap(), Settings::default());
        let attr = json!({
            "metric_prefix": "gw_", "default_buckets": [0.5, 10], "max_series": 10, "forget_after": 5,
            "export_uri": "/m", "metrics": {"http_latency": {"expire": 1.5}},
        });
        let settings = Settings::from_attr(Some(&attr)).unwrap();
        assert_eq!((settings.prefix.as_str(), settings.bounds_us.as_slice()), ("gw_", &[500, 10_000][..]));
        assert_eq!((settings.max_series, settings.expire_ms), (10, [0, 1500, 0]));
        assert_eq!(settings.forget_after, Duration::from_secs(5));
        let usual = Duration::from_secs(5);
        assert_eq!(settings.tidy_interval(usual), Duration::from_millis(375));
        assert_eq!(Settings::default().tidy_interval(usual), usual);
        let later = json!({"metrics": {"bandwidth": {"expire": 86_400}, "http_status": {"expire": 60}}});
        assert_eq!(Settings::from_attr(Some(&later)).unwrap().tidy_interval(usual), usual);
        let long = json!({"metric_prefix": format!("a_:{}", "9".repeat(61))});
        assert_eq!(Settings::from_attr(Some(&long)).unwrap().prefix.len(), 64);
        for (attr, pointer) in [
            (json!({"metric_prefix": "1a"}), "/metric_prefix"),
            (json!({"metric_prefix": "a b"}), "/metric_prefix"),
            (json!({"metric_prefix": "a".repeat(65)}), "/metric_prefix"),
            (json!({"default_buckets": [1, 1]}), "/default_buckets"),
            (json!({"default_buckets": []}), "/default_buckets"),
            (json!({"default_buckets": [2, 1]}), "/default_buckets"),
            (json!({"default_buckets": [0]}), "/default_buckets"),
            (json!({"max_series": 0}), "/max_series"),
            (json!({"forget_after": "1h"}), "/forget_after"),
            (json!({"metrics": {"bandwidth": {"expire": "1h"}}}), "/metrics/bandwidth/expire"),
        ] {
            assert_eq!(Settings::from_attr(Some(&attr)).unwrap_err().pointer, pointer);
        }
    }
}
