//! hot path
//!
//! `RateLimit-Policy` and `RateLimit`, the fields of draft-ietf-httpapi-ratelimit-headers-10: structured fields
//! (RFC 9651) whose names and units are the same for all servers. Each limit adds an item of its own.

use sdk::Exchange;
use smallvec::SmallVec;

/// The name of a limit in both fields, in quotes.
pub(crate) struct Fields(Box<[u8]>);

/// A limit, and how it stands for one request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown {
    pub quota: u64,
    /// Seconds in which the quota is let in.
    pub window: Option<u64>,
    /// The quota counts requests at the same time.
    pub is_concurrent: bool,
    pub remaining: u64,
    /// Seconds until more is let in.
    pub reset: Option<u64>,
}

/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

impl Fields {
    /// Characters that a string of a structured field cannot have become `_`.
    pub(crate) fn new(name: &str) -> Fields {
        let inner = name.bytes().map(|byte| match byte {
            b'"' | b'\\' => b'_',
            b' '..=b'~' => byte,
            _ => b'_',
        });
        Fields([b'"'].into_iter().chain(inner).chain([b'"']).collect())
    }

    /// Adds the limit and how it stands.
    pub(crate) fn add(&self, x: &mut Exchange<'_>, shown: Shown) {
        let unit: &[u8] = if shown.is_concurrent { b";qu=\"concurrent-requests\"" } else { b"" };
        let policy = [(&b";q="[..], Some(shown.quota)), (b";w=", shown.window)];
        let state = [(&b";r="[..], Some(shown.remaining)), (b";t=", shown.reset)];
        for (name, parameters, end) in [("RateLimit-Policy", policy, unit), ("RateLimit", state, b"")] {
            let mut value: SmallVec<[u8; 96]> = SmallVec::from_slice(&self.0);
            for (key, number) in parameters {
                let Some(number) = number else { continue };
                value.extend_from_slice(key);
                value.extend_from_slice(itoa::Buffer::new().format(number.min(LARGEST)).as_bytes());
            }
            value.extend_from_slice(end);
            // Visible ASCII can always stand in a head.
            let _ = x.add_response_header(name, &value);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    /// The values of both fields, for tests of the plugins.
    pub(crate) fn shown(x: &Exchange<'_>) -> [Vec<String>; 2] {
        let fields = &x.response().fields;
        [&b"RateLimit-Policy"[..], b"RateLimit"].map(|wanted| {
            let values = fields.iter().filter(|(name, ..)| name.eq_ignore_ascii_case(wanted));
            values.map(|(_, value, _)| String::from_utf8_lossy(value).into_owned()).collect()
        })
    }

    #[test]
    fn unknown_numbers_are_left_out() {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        let state = Shown { quota: 5, is_concurrent: true, remaining: 2, ..Shown::default() };
        Fields::new("a").add(&mut x, state);
        respond(&mut x, 200, &[]);
        let policy = r#""a";q=5;qu="concurrent-requests""#.to_owned();
        assert_eq!(shown(&x), [vec![policy], vec![r#""a";r=2"#.to_owned()]]);
    }

    #[test]
    fn names_are_strings_of_structured_fields() {
        for (name, quoted) in [("default", "\"default\""), ("a\"b\\c", "\"a_b_c\""), ("\u{e4}\n", "\"___\"")]
        {
            assert_eq!(&*Fields::new(name).0, quoted.as_bytes());
        }
    }
}
