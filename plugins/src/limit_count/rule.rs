//! hot path
//!
//! One limit of limit-count: its key, its numbers and its headers.

use sdk::exchange::HeaderName;
use sdk::state::WorkerState;
use sdk::Exchange;
use sdk::counters::Taken;
use sdk::template::Template;
use sdk::vars::Var;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A limit and how it shows.
pub(super) struct Rule {
    pub count: Amount,
    /// Seconds.
    pub window: Amount,
    pub by: By,
    pub headers: Headers,
}

/// The numbers of a rule for one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub count: u64,
    pub window_ms: u64,
}

/// What tells those apart who are counted apart. Where it has no value, the client's address does.
pub(super) enum By {
    Constant(String),
    Var(Var),
    Combination {
        template: Template,
        /// Where none of its variables has a value, the rule does not apply.
        optional: bool,
    },
}

/// A positive integer, or a text with variables that comes to one.
#[derive(Debug, Clone)]
pub(super) enum Amount {
    Fixed(u64),
    Text(String, Template),
}

/// Beyond it, APISIX's numbers are no longer exact.
const MAX_AMOUNT: u64 = (1 << 53) - 1;

impl Amount {
    /// Its value for this request; none if it comes to no positive integer.
    pub(super) fn read(&self, x: &Exchange<'_>, scratch: &WorkerState<Vec<u8>>) -> Option<u64> {
        match self {
            Amount::Fixed(amount) => Some(*amount),
            Amount::Text(_, template) => scratch.with(x.world, |scratch| {
                scratch.clear();
                template.render(x, scratch);
                parse(scratch)
            }),
        }
    }
}

/// Reads a number as Lua does, and takes it if it is a positive integer.
fn parse(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let amount = match text.parse::<u64>() {
        Ok(amount) => amount,
        Err(_) => {
            // `1e3` and `10.0`; not `inf` or `nan`, which Lua does not read either.
            let number: f64 =
                text.parse().ok().filter(|_| text.starts_with(|c: char| c.is_ascii_digit() || c == '.'))?;
            if number.fract() != 0.0 || number > MAX_AMOUNT as f64 {
                return None;
            }
            number as u64
        }
    };
    (1..=MAX_AMOUNT).contains(&amount).then_some(amount)
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Amount::Fixed(amount) => serializer.serialize_u64(*amount),
            Amount::Text(text, _) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u64),
            /// `60.0`, an integer to the schema.
            Float(f64),
            Text(String),
        }
        Ok(match Raw::deserialize(deserializer)? {
            Raw::Number(amount) => Amount::Fixed(amount),
            Raw::Float(amount) => Amount::Fixed(amount as u64),
            Raw::Text(text) => {
                let template = Template::parse(&text);
                Amount::Text(text, template)
            }
        })
    }
}

/// Names of the headers that show a limit.
pub(super) struct Headers {
    limit: Option<HeaderName>,
    remaining: Option<HeaderName>,
    reset: Option<HeaderName>,
}

impl Headers {
    /// The names of the plugin's metadata; a rule's prefix stands before `RateLimit-`.
    pub(super) fn new(metadata: Option<&Value>, prefix: Option<&str>) -> Headers {
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
        Headers {
            limit: name("limit_header", "X-RateLimit-Limit"),
            remaining: name("remaining_header", "X-RateLimit-Remaining"),
            reset: name("reset_header", "X-RateLimit-Reset"),
        }
    }

    /// Shows how a limit stands.
    pub(super) fn set(&self, x: &mut Exchange<'_>, limit: u64, taken: Taken) {
        let remaining = if taken.allowed { taken.remaining } else { 0 };
        let mut number = itoa::Buffer::new();
        let mut seconds = Seconds::default();
        let values = [(&self.limit, limit), (&self.remaining, remaining)];
        for (name, value) in values {
            if let Some(name) = name {
                // Digits can always stand in a head.
                let _ = x.set_response_field(name, number.format(value).as_bytes());
            }
        }
        if let Some(name) = &self.reset {
            let _ = x.set_response_field(name, seconds.format(taken.reset_ms));
        }
    }
}

/// Seconds as APISIX prints them: two decimals at most, rounded down, without trailing zeros.
#[derive(Default)]
struct Seconds([u8; 24]);

impl Seconds {
    fn format(&mut self, ms: u64) -> &[u8] {
        let mut number = itoa::Buffer::new();
        let whole = number.format(ms / 1000).as_bytes();
        let hundredths = (ms % 1000 / 10) as u8;
        let mut len = whole.len();
        self.0[..len].copy_from_slice(whole);
        if hundredths > 0 {
            self.0[len..len + 3].copy_from_slice(&[b'.', b'0' + hundredths / 10, b'0' + hundredths % 10]);
            len += if hundredths.is_multiple_of(10) { 2 } else { 3 };
        }
        &self.0[..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_lua_reads_them() {
        for (text, amount) in [("10", Some(10)), (" 7 ", Some(7)), ("1e3", Some(1000)), ("10.0", Some(10))] {
            assert_eq!(parse(text.as_bytes()), amount, "{text}");
        }
        for text in ["", "0", "-1", "1.5", "a", "inf", "nan", "9007199254740992", "1e300"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn seconds_have_two_decimals_at_most() {
        for (ms, text) in [
            (60_000, "60"),
            (59_999, "59.99"),
            (500, "0.5"),
            (9, "0"),
            (10, "0.01"),
            (u64::MAX, "18446744073709551.61"),
        ] {
            assert_eq!(Seconds::default().format(ms), text.as_bytes(), "{ms}");
        }
    }
}
