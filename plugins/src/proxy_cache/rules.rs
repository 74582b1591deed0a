//! The rules of HTTP caching (RFC 9111), as far as a shared cache needs them.

use sdk::Fields;

pub(crate) use super::date::date;
use super::directives::{CacheControl, MAX_SECONDS, list, number};

/// An answer that varies on more request fields is not stored.
const MAX_VARY: usize = 16;

/// Seconds from now on that an answer says it is fresh (RFC 9111 section 4.2.1); `None` if it does not say.
pub(super) fn lifetime(fields: &Fields, control: &CacheControl, now_ms: u64) -> Option<u64> {
    if let Some(seconds) = control.s_maxage.or(control.max_age) {
        return Some(seconds);
    }
    let expires = fields.all(b"expires").last()?;
    // An invalid date, such as `0`, has expired (section 5.3).
    Some(date(expires).map_or(0, |at| (at.saturating_sub(now_ms / 1000)).min(MAX_SECONDS)))
}

/// nginx's `X-Accel-Expires`: seconds, or `@` and a Unix time.
pub(super) fn accel_expires(value: &[u8], now_ms: u64) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim();
    match text.strip_prefix('@') {
        Some(at) => at.parse::<u64>().ok().map(|at| at.saturating_sub(now_ms / 1000)),
        None => text.parse().ok(),
    }
    .map(|seconds| seconds.min(MAX_SECONDS))
}

/// The age that a response declares, in seconds: the first member of the first Age field (RFC 9111 section
/// 5.1). An invalid one is ignored.
pub(super) fn age(fields: &Fields) -> u32 {
    let first = |line: &[u8]| number(line.split(|&byte| byte == b',').next()?.trim_ascii());
    fields.get_named(b"age").and_then(first).unwrap_or(0) as u32
}

/// Headers that the gateway adds about the client. They are not in the request that the next client's is
/// compared with, so an answer that varies on them fits no other client.
const FORWARDED: [&str; 5] =
    ["x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip"];

/// The request fields an answer varies on: lower case, sorted, each once. `None` if it
/// can answer no other request (`*`, [`FORWARDED`]), or names too many.
pub(super) fn vary(fields: &Fields) -> Option<Vec<Box<[u8]>>> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    for line in fields.all(b"vary") {
        for name in line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            match name {
                b"" => {}
                b"*" => return None,
                name if FORWARDED.iter().any(|field| name.eq_ignore_ascii_case(field.as_bytes())) => {
                    return None;
                }
                name => names.push(name.to_ascii_lowercase().into()),
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    (names.len() <= MAX_VARY).then_some(names)
}

/// Whether the client has the answer already (RFC 9110 section 13.2.2, `If-None-Match` first).
pub(crate) fn not_modified(request: &Fields, answer: &Fields) -> bool {
    if request.get_named(b"if-none-match").is_some() {
        let Some(tag) = answer.get_named(b"etag").map(opaque) else { return false };
        return request.all(b"if-none-match").any(|line| line.trim_ascii() == b"*" || has_tag(line, tag));
    }
    let since = request.get_named(b"if-modified-since").and_then(date);
    let modified = answer.get_named(b"last-modified").and_then(date);
    matches!((modified, since), (Some(modified), Some(since)) if modified <= since)
}

/// Whether the origin can be asked if a response is still the current one.
pub(super) fn has_validator(fields: &Fields) -> bool {
    fields.get_named(b"etag").is_some() || fields.get_named(b"last-modified").is_some()
}

/// Whether an entity tag, compared weakly, differs from a stored one.
pub(super) fn is_other_tag(tag: &[u8], stored: Option<&[u8]>) -> bool {
    stored.is_some_and(|stored| opaque(stored) != opaque(tag))
}

/// Whether a field belongs to the connection or the message it came in, not to the answer.
pub(super) fn is_of_the_message(name: &[u8]) -> bool {
    const NAMES: [&str; 13] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "content-length",
        // Made again for each answer.
        "age",
        "apisix-cache-status",
    ];
    let lower = name.to_ascii_lowercase();
    NAMES.iter().any(|known| lower == known.as_bytes())
        || lower == b"x-apisix-upstream-status"
        || lower.windows(10).any(|part| part == b"ratelimit-")
            && (lower.ends_with(b"-remaining") || lower.ends_with(b"-reset"))
}

fn has_tag(line: &[u8], tag: &[u8]) -> bool {
    list(line).any(|part| opaque(part) == tag)
}

/// An entity tag without its mark of weakness.
fn opaque(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::testing::fields;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn lifetimes_follow_the_rfc() {
        let now = 1_700_000_000_000;
        let life = |list: &[(&str, &str)]| {
            let fields = fields(list);
            lifetime(&fields, &CacheControl::of(&fields), now)
        };
        assert_eq!(life(&[]), None);
        assert_eq!(life(&[("Cache-Control", "max-age=5, s-maxage=9")]), Some(9));
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(1_700_000_030));
        assert_eq!(life(&[("Expires", &date)]), Some(30));
        assert_eq!(life(&[("Expires", &date), ("Cache-Control", "max-age=5")]), Some(5));
        assert_eq!(life(&[("Expires", "0")]), Some(0));
        assert_eq!(life(&[("Expires", "Thu, 01 Jan 1970 00:00:00 GMT")]), Some(0));
        assert_eq!(accel_expires(b"7", now), Some(7));
        assert_eq!(accel_expires(b"@1700000009", now), Some(9));
        assert_eq!(accel_expires(b"off", now), None);
    }

    #[test]
    fn an_age_is_digits_alone() {
        for (value, expected) in [
            ("7", 7),
            ("7, 0", 7),
            ("0, 7", 0),
            ("-7", 0),
            ("7.0", 0),
            ("7;a=b", 0),
            ("", 0),
            (",7", 0),
            ("99999999999999999999", MAX_SECONDS as u32),
        ] {
            assert_eq!(age(&fields(&[("Age", value), ("age", "3")])), expected, "{value}");
        }
    }

    #[test]
    fn vary_is_a_set() {
        let of = |list: &[(&str, &str)]| vary(&fields(list));
        assert_eq!(of(&[]), Some(vec![]));
        assert_eq!(of(&[("Vary", "B, a,,A"), ("vary", "b")]), Some(vec![(*b"a").into(), (*b"b").into()]));
        assert_eq!(of(&[("Vary", "a"), ("Vary", "b, *")]), None);
        assert_eq!(of(&[("Vary", "Accept, x-real-ip")]), None);
        assert_eq!(of(&[("Vary", "X-Forwarded-Proto")]), None);
        let many: Vec<_> = (0..MAX_VARY + 1).map(|n| format!("x{n}")).collect();
        assert_eq!(of(&[("Vary", &many.join(","))]), None);
    }

    #[test]
    fn validators_are_compared_weakly_and_tags_first() {
        let answer = fields(&[("ETag", "W/\"a,b\""), ("Last-Modified", "Sat, 29 Oct 1994 19:43:31 GMT")]);
        let same = |list: &[(&str, &str)]| not_modified(&fields(list), &answer);
        assert!(same(&[("If-None-Match", "\"x\", \"a,b\"")]));
        assert!(same(&[("If-None-Match", "*")]));
        assert!(!same(&[("If-None-Match", "\"a\"")]));
        let later = ("If-Modified-Since", "Sat, 29 Oct 1994 19:43:32 GMT");
        assert!(same(&[later]));
        assert!(!same(&[later, ("If-None-Match", "\"x\"")]));
        assert!(!same(&[("If-Modified-Since", "Sat, 29 Oct 1994 19:43:30 GMT")]));
        assert!(!same(&[("If-Modified-Since", "soon")]));
        assert!(!same(&[]));
    }

    #[test]
    fn fields_of_the_message_are_not_kept() {
        for name in ["Connection", "Transfer-Encoding", "content-length", "Age", "X-RateLimit-Remaining"] {
            assert!(is_of_the_message(name.as_bytes()), "{name}");
        }
        for name in ["Content-Type", "X-RateLimit-Limit", "Date", "Set-Cookie", "X", "X-Quota-Remaining"] {
            assert!(!is_of_the_message(name.as_bytes()), "{name}");
        }
    }
}
