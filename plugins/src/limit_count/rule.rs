//! hot path
//!
//! One limit of limit-count: its key, its numbers and its headers.

use sdk::limit::{self, Decision};
use sdk::{Exchange, FieldLines, HeaderName, NumberBuffer};
use serde_json::Value;

use crate::limits::fields::Fields;
use crate::limits::{Amount, By};

/// A limit and how it shows.
pub(super) struct Rule {
    pub count: Amount,
    /// Seconds.
    pub window: Amount,
    pub by: By,
    pub headers: Headers,
    pub fields: Fields,
}

/// The numbers of a rule for one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub count: u64,
    pub ms: u64,
}

impl Window {
    #[inline]
    pub(super) fn rule(self, sliding: bool) -> limit::Rule {
        let Window { count: limit, ms: window_ms } = self;
        match sliding {
            true => limit::Rule::Sliding { limit, window_ms },
            false => limit::Rule::Fixed { limit, window_ms },
        }
    }
}

/// Names of the headers that show a limit.
pub(super) struct Headers {
    /// The limit, if it is the same for all requests and its name can stand in a head.
    fixed: Option<FieldLines>,
    limit: Option<HeaderName>,
    remaining: Option<HeaderName>,
    reset: Option<HeaderName>,
}

impl Headers {
    /// The names of the plugin's metadata; a rule's prefix stands before `RateLimit-`.
    pub(super) fn new(metadata: Option<&Value>, prefix: Option<&str>, count: &Amount) -> Headers {
        let name = |field: &str, default: &str| {
            let name = metadata.and_then(|metadata| metadata.get(field)).and_then(Value::as_str);
            let name = name.unwrap_or(default);
            let name = match prefix {
                Some(prefix) => name.replacen("RateLimit-", &format!("{prefix}-RateLimit-"), 1),
                None => name.to_owned(),
            };
            // A name that cannot stand in a head is left out.
            HeaderName::new(&name).ok()
        };
        let limit = name("limit_header", "X-RateLimit-Limit");
        let fixed = match (count, &limit) {
            (Amount::Fixed(count), Some(limit)) => {
                FieldLines::new([(limit.as_str().as_bytes(), count.to_string().as_bytes())]).ok()
            }
            _ => None,
        };
        Headers {
            fixed,
            limit,
            remaining: name("remaining_header", "X-RateLimit-Remaining"),
            reset: name("reset_header", "X-RateLimit-Reset"),
        }
    }

    /// Shows how a limit stands.
    pub(super) fn set(&self, x: &mut Exchange<'_>, limit: u64, decision: &Decision) {
        let remaining = if decision.allowed { decision.remaining } else { 0 };
        let mut number = NumberBuffer::default();
        match (&self.fixed, &self.limit) {
            (Some(line), _) => x.set_response_lines(line),
            (None, Some(name)) => x.set_response_number(name, number.whole(limit)),
            (None, None) => {}
        }
        if let Some(name) = &self.remaining {
            x.set_response_number(name, number.whole(remaining));
        }
        if let Some(name) = &self.reset {
            x.set_response_number(name, number.seconds(decision.reset_ms));
        }
    }
}
