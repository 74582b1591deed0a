//! hot path
//!
//! `RateLimit-Policy` and `RateLimit`, the fields of draft-ietf-httpapi-ratelimit-headers-10: structured fields
//! (RFC 9651) whose names and units are the same for all servers. Each limit adds an item of its own.

use sdk::Exchange;
use sdk::limit::Decision;
use smallvec::SmallVec;

use super::rule::Window;

/// The name of a limit in both fields, in quotes.
pub(super) struct Fields(Box<[u8]>);

/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

impl Fields {
    /// Characters that a string of a structured field cannot have become `_`.
    pub(super) fn new(name: &str) -> Fields {
        let inner = name.bytes().map(|byte| match byte {
            b'"' | b'\\' => b'_',
            b' '..=b'~' => byte,
            _ => b'_',
        });
        Fields([b'"'].into_iter().chain(inner).chain([b'"']).collect())
    }

    /// Adds the limit and how it stands: the quota, its window, the rest, and the seconds until there is more.
    pub(super) fn add(&self, x: &mut Exchange<'_>, window: Window, decision: &Decision) {
        let remaining = if decision.allowed { decision.remaining } else { 0 };
        let seconds = |ms: u64| ms.div_ceil(1000);
        let policy = [(&b";q="[..], window.count), (b";w=", seconds(window.ms))];
        let state = [(&b";r="[..], remaining), (b";t=", seconds(decision.reset_ms))];
        for (name, parameters) in [("RateLimit-Policy", policy), ("RateLimit", state)] {
            let mut value: SmallVec<[u8; 96]> = SmallVec::from_slice(&self.0);
            for (key, number) in parameters {
                value.extend_from_slice(key);
                value.extend_from_slice(itoa::Buffer::new().format(number.min(LARGEST)).as_bytes());
            }
            // Visible ASCII can always stand in a head.
            let _ = x.add_response_header(name, &value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strings_of_structured_fields() {
        for (name, quoted) in [("default", "\"default\""), ("a\"b\\c", "\"a_b_c\""), ("\u{e4}\n", "\"___\"")]
        {
            assert_eq!(&*Fields::new(name).0, quoted.as_bytes());
        }
    }
}
