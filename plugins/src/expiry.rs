//! For how long responses may be kept: `Expires` and `Cache-Control`, as nginx's `expires` writes them.

use std::time::{Duration, UNIX_EPOCH};

use sdk::Exchange;
use serde_json::{Value, json};

pub(crate) fn schema() -> Value {
    json!({"type": "integer", "minimum": -3_153_600_000_i64, "maximum": 3_153_600_000_i64})
}

/// How long; a time below 0 is in the past.
#[derive(Debug, Clone)]
pub(crate) struct Expiry {
    seconds: i64,
    /// The value of `Cache-Control`.
    pub control: String,
}

impl Expiry {
    pub fn new(seconds: i64) -> Expiry {
        let control = match seconds {
            0.. => format!("max-age={seconds}"),
            _ => "no-cache".to_owned(),
        };
        Expiry { seconds, control }
    }

    /// The value of `Expires`.
    pub fn date(&self, x: &Exchange<'_>) -> String {
        http_date((x.world().now_ms() / 1000).saturating_add_signed(self.seconds))
    }
}

pub(crate) fn http_date(seconds: u64) -> String {
    // The year 9999, the last that a date of HTTP can name.
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799)))
}

/// Whether nginx writes them with this status.
pub(crate) fn applies(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301..=304 | 307 | 308)
}
