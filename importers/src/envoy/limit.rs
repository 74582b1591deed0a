//! `local_ratelimit`: a bucket of tokens.

use serde_json::{Map, Value, json};

use super::context::Report;
use super::value::{self, boolean, number, seconds};
use crate::finding::Severity::{Behaviour, Cosmetic, Guard};
use crate::node::Node;

/// Reads the filter. `group` names the bucket that routes share.
pub(super) fn read(config: &Node<'_>, group: &str, report: &mut Report) -> Map<String, Value> {
    report.fields(
        config,
        &[
            ("stat_prefix", Cosmetic, "statistics have other names"),
            ("request_headers_to_add_when_not_enforced", Cosmetic, "the limit is always enforced"),
            (
                "rate_limited_as_resource_exhausted",
                Behaviour,
                "refused gRPC calls get the status UNAVAILABLE",
            ),
            ("enable_x_ratelimit_headers", Behaviour, "answers have no `X-RateLimit-*`"),
            ("stage", Cosmetic, "not used"),
            ("always_consume_default_token_bucket", Cosmetic, "all requests are counted"),
            ("vh_rate_limits", Cosmetic, "not used"),
            ("max_dynamic_descriptors", Cosmetic, "not used"),
            ("descriptors", Guard, "limits for single descriptors are not carried over"),
            ("rate_limits", Guard, "limits for single descriptors are not carried over"),
            ("local_cluster_rate_limit", Behaviour, "each gateway counts by itself"),
        ],
    );
    if let Some(added) = config.some("response_headers_to_add") {
        added.whole();
        let options = value::items(config, "response_headers_to_add");
        let headers = options.iter().filter_map(|option| option.some("header"));
        let names: Vec<String> =
            headers.filter_map(|header| Some(format!("`{}`", value::text(&header, "key")?))).collect();
        let effect = format!("answers of the limit do not have {}", names.join(", "));
        report.behaviour(&added, "response_headers_to_add", effect);
    }
    for name in ["filter_enabled", "filter_enforced"] {
        let share = config.some(name).and_then(|share| value::percent(&share)).unwrap_or(0.0);
        let place = config.some(name).unwrap_or_else(|| config.clone());
        if share <= 0.0 {
            report.cosmetic(&place, name, "the limit is off: its share of the requests is 0");
            config.whole();
            return Map::new();
        }
        if share < 100.0 {
            report.behaviour(&place, name, "the limit holds for all requests");
        }
    }
    if boolean(config, "local_rate_limit_per_downstream_connection") == Some(true) {
        report.behaviour(
            config,
            "local_rate_limit_per_downstream_connection",
            "requests of all connections are counted together",
        );
    }
    let Some(bucket) = config.some("token_bucket") else { return Map::new() };
    let most = number(&bucket, "max_tokens").unwrap_or(0);
    let fill = number(&bucket, "tokens_per_fill").unwrap_or(1);
    let interval = seconds(&bucket, "fill_interval").unwrap_or(0.0);
    if most == 0 || fill == 0 || interval <= 0.0 {
        report.guard(
            &bucket,
            "token_bucket",
            "a bucket needs `max_tokens`, `tokens_per_fill` and `fill_interval`",
        );
        return Map::new();
    }
    let status = config.some("status").and_then(|status| status_of(&status)).unwrap_or(429);
    if fill >= most && interval.fract() == 0.0 {
        let settings = json!({
            "count": most,
            "time_window": interval as u64,
            "key_type": "constant",
            "key": "all",
            "group": group,
            "rejected_code": status,
            "rejected_msg": "local_rate_limited",
            "show_limit_quota_header": false,
        });
        return Map::from_iter([("limit-count".to_owned(), settings)]);
    }
    report.behaviour(&bucket, "token_bucket", "tokens come one by one instead of at the end of each interval, and each route has a bucket of its own");
    let settings = json!({
        "rate": fill as f64 / interval,
        "burst": most - 1,
        "key": "all",
        "key_type": "var_combination",
        "nodelay": true,
        "rejected_code": status,
        "rejected_msg": "local_rate_limited",
    });
    Map::from_iter([("limit-req".to_owned(), settings)])
}

fn status_of(status: &Node<'_>) -> Option<u64> {
    let code = status.some("code")?;
    let words = [("TooManyRequests", 429), ("ServiceUnavailable", 503), ("Forbidden", 403)];
    let number = code.u64().or_else(|| {
        let word = code.str()?;
        words.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, status)| *status)
    });
    // Envoy takes no status below 400.
    number.filter(|status| (400..600).contains(status))
}
