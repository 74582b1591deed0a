//! hot path
//!
//! Request targets: one normal form for routing, plugins and the origin.
//!
//! # The normal form of a path
//!
//! - `.` and `..` segments are resolved, also where their dots are written `%2e`; a path
//!   that would leave its root is refused.
//! - Runs of slashes become one, before `..` is resolved (can be switched off).
//! - *Decoded* form, for routing and plugins: percent-encodings are decoded, but `%2F`,
//!   `%25` and control characters stay as they are (in upper case). So a slash in the
//!   decoded form always separates segments, nothing in it ends a line or a string, and no
//!   two different paths have one decoded form.
//! - *Encoded* form, for the origin: as RFC 3986 section 6.2.2 normalises. Encoded letters, digits
//!   and `-._~` are decoded, reserved characters stay encoded or not as they came, all other
//!   bytes are encoded with upper-case digits. Decoding it gives the decoded form.
//! - Refused: raw control characters; `%` without two digits; segments that only some servers take
//!   for `.` or `..` (`..;x`, `..%2Fx`); and, of the characters that servers interpret differently
//!   ([`Doubtful`]), those that the rules refuse.
//!
//! # Allowed bytes
//!
//! Raw, a target may contain all of `!` to `~` but `#`, and bytes above `~`. RFC 3986 does not
//! allow `"<>\^{|}`, the backtick and non-ASCII bytes, but browsers and scripts send them: they are
//! taken literally and forwarded percent-encoded, in path and query (`\` in a path is refused by
//! default). `[` and `]`, usual in queries, are forwarded unchanged.

mod bytes;
mod path;
mod scan;

use crate::h1::Refusal;
use bytes::{BAD, CLASS, CODED, PERCENT, QUERY, hex_pair, push_encoded};
use path::{Form, stays_coded, write_path};
pub(crate) use scan::{Scanned, resolve, scan};

/// How paths are normalised where servers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathRules {
    /// `//` becomes `/` (nginx: `merge_slashes`).
    pub merge_slashes: bool,
    /// `.` and `..` segments are resolved, and segments that only some servers take for them are refused. Otherwise
    /// they are names like any other, and an encoded dot stays encoded.
    pub resolve_dots: bool,
    /// Encoded letters, digits and `-._~` are decoded; otherwise `%61` is another name than `a`.
    pub decode_unreserved: bool,
    /// A path with one of these is refused immediately. For a decision per route, see
    /// [`crate::RequestHead::doubtful`].
    pub refused: Doubtful,
}

impl Default for PathRules {
    fn default() -> PathRules {
        PathRules {
            merge_slashes: true,
            resolve_dots: true,
            decode_unreserved: true,
            refused: Doubtful::REFUSED,
        }
    }
}

/// Characters in a path that servers interpret differently: as part of a name, or as something
/// else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Doubtful(u8);

impl Doubtful {
    pub const NONE: Doubtful = Doubtful(0);
    /// `%2F`
    pub const ENCODED_SLASH: Doubtful = Doubtful(1);
    /// `\` and `%5C`
    pub const BACKSLASH: Doubtful = Doubtful(2);
    /// `;` and `%3B`
    pub const SEMICOLON: Doubtful = Doubtful(4);
    /// `%00` to `%1F` and `%7F`; never raw.
    pub const CONTROL: Doubtful = Doubtful(8);
    /// Refused by default.
    pub const REFUSED: Doubtful = Doubtful::BACKSLASH.with(Doubtful::CONTROL);

    pub const fn with(self, other: Doubtful) -> Doubtful {
        Doubtful(self.0 | other.0)
    }

    pub const fn without(self, other: Doubtful) -> Doubtful {
        Doubtful(self.0 & !other.0)
    }

    /// Whether both have a character in common.
    #[inline]
    pub const fn meets(self, other: Doubtful) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Normalises a raw path, which starts with `/` and has no query, and appends both forms to the
/// buffers. Returns the characters that servers interpret differently and the rules allow. After an
/// error the buffers are unchanged.
pub fn normalise(
    raw: &[u8],
    rules: &PathRules,
    decoded: &mut Vec<u8>,
    encoded: &mut Vec<u8>,
) -> Result<Doubtful, Refusal> {
    let found = write_path(raw, rules, Form::Decoded, decoded)?;
    write_path(raw, rules, Form::Encoded, encoded)?;
    Ok(found)
}

/// Percent-encodes a path in decoded normal form: characters that RFC 3986 allows in a path stay,
/// as do the encodings that the decoded form keeps; the rest is encoded.
pub fn encode_path(decoded: &[u8], rules: &PathRules, out: &mut Vec<u8>) {
    for (at, &byte) in decoded.iter().enumerate() {
        let kept = byte == b'%'
            && hex_pair(decoded, at).is_some_and(|value| stays_coded(value, rules))
            && !decoded[at + 1..at + 3].iter().any(u8::is_ascii_lowercase);
        if kept || CLASS[byte as usize] & (BAD | CODED | QUERY | PERCENT) == 0 {
            out.push(byte);
        } else {
            push_encoded(byte, out);
        }
    }
}

/// Resolves the dot segments of an encoded path that starts with a slash, such as a rewrite with
/// parts from the client; encodings and doubled slashes stay.
///
/// # Errors
/// It leads above its root, or has a segment that only some servers take for a dot segment.
pub fn resolve_dots(path: &mut Vec<u8>) -> Result<(), Refusal> {
    path::resolve_dots(path)
}

/// Decodes percent-encodings; a `%` without two digits stays. `plus` reads `+` as a space, as in
/// form queries.
pub fn percent_decode(raw: &[u8], plus: bool, out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(&byte) = raw.get(at) {
        match (byte, hex_pair(raw, at)) {
            (b'%', Some(value)) => {
                out.push(value);
                at += 3;
                continue;
            }
            (b'+', _) if plus => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
}

/// The arguments of a query, still encoded, in order: `a=1&b&=2` gives `a`/`1`, `b`/nothing and
/// nothing/`2`.
pub fn query_args(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    query.split(|&byte| byte == b'&').filter(|arg| !arg.is_empty()).map(|arg| {
        match memchr::memchr(b'=', arg) {
            Some(at) => (&arg[..at], &arg[at + 1..]),
            None => (arg, &b""[..]),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_a_decoded_path_round_trips() {
        for (decoded, encoded) in [
            ("/a/b-._~!$&'()*+,;=:@", "/a/b-._~!$&'()*+,;=:@"),
            ("/a b", "/a%20b"),
            ("/a?b#c", "/a%3Fb%23c"),
            ("/\u{e9}\"<>\\^`{|}", "/%C3%A9%22%3C%3E%5C%5E%60%7B%7C%7D"),
            // Encodings that the decoded form keeps stay; any other percent sign is encoded.
            ("/a%2Fb%25%00%7F", "/a%2Fb%25%00%7F"),
            ("/a%2fb%7f", "/a%252fb%257f"),
            ("/A%41%3B", "/A%2541%253B"),
            ("/100%", "/100%25"),
            ("/100%2", "/100%252"),
            ("/%%2F%", "/%25%2F%25"),
        ] {
            let mut out = Vec::new();
            encode_path(decoded.as_bytes(), &PathRules::default(), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), encoded, "{decoded}");
        }
    }

    #[test]
    fn percent_encodings_are_decoded_once() {
        for (raw, decoded, as_form) in [
            ("", "", ""),
            ("abc", "abc", "abc"),
            ("a%20b%2Bc%2bd", "a b+c+d", "a b+c+d"),
            ("a+b", "a+b", "a b"),
            ("%2541", "%41", "%41"),
            ("%%41%", "%A%", "%A%"),
            ("%4", "%4", "%4"),
            ("%zz%4g", "%zz%4g", "%zz%4g"),
            ("%C3%A9!", "\u{e9}!", "\u{e9}!"),
        ] {
            for (plus, expected) in [(false, decoded), (true, as_form)] {
                let mut out = b">".to_vec();
                percent_decode(raw.as_bytes(), plus, &mut out);
                assert_eq!(String::from_utf8_lossy(&out), format!(">{expected}"), "{raw} {plus}");
            }
        }
    }

    #[test]
    fn an_invalid_path_is_refused_and_leaves_the_buffers() {
        let rules = PathRules { refused: Doubtful::NONE, ..PathRules::default() };
        for raw in [&b"/a\0"[..], b"/a\x1f", b"/\x7f", b"/a b", b"/a#", b"/a?b", b"", b"a"] {
            let (mut decoded, mut encoded) = (b"x".to_vec(), b"y".to_vec());
            let refused = normalise(raw, &rules, &mut decoded, &mut encoded);
            assert!(matches!(refused, Err(Refusal::BadPath | Refusal::Target)), "{raw:?}");
            assert_eq!((&decoded[..], &encoded[..]), (&b"x"[..], &b"y"[..]), "as they were before");
        }
    }

    #[test]
    fn steps_of_the_normal_form_can_be_switched_off() {
        let all = PathRules { refused: Doubtful::NONE, ..PathRules::default() };
        let slashes = PathRules { merge_slashes: false, ..all };
        let dots = PathRules { resolve_dots: false, ..all };
        let escapes = PathRules { decode_unreserved: false, ..all };
        let none = PathRules { merge_slashes: false, resolve_dots: false, decode_unreserved: false, ..all };
        for (rules, raw, decoded, encoded) in [
            (slashes, "//a//..//%61", "//a//a", "//a//a"),
            (dots, "/a//../%2e%2E/./b%61", "/a/../%2E%2E/./ba", "/a/../%2E%2E/./ba"),
            (dots, "/../a", "/../a", "/../a"),
            (dots, "/a/..;x/..%2fy", "/a/..;x/..%2Fy", "/a/..;x/..%2Fy"),
            (escapes, "/%61/../%7e%20%2f", "/%7E %2F", "/%7E%20%2F"),
            (none, "//%61/%2e%2e//..", "//%61/%2E%2E//..", "//%61/%2E%2E//.."),
            (none, "/a%25%00%c3%a9", "/a%25%00\u{e9}", "/a%25%00%C3%A9"),
        ] {
            let (mut first, mut second, mut again) = (Vec::new(), Vec::new(), Vec::new());
            normalise(raw.as_bytes(), &rules, &mut first, &mut second).unwrap();
            assert_eq!(String::from_utf8_lossy(&first), decoded, "{raw}");
            assert_eq!(String::from_utf8_lossy(&second), encoded, "{raw}");
            encode_path(&first, &rules, &mut again);
            assert_eq!(String::from_utf8_lossy(&again), encoded, "{raw}");
        }
        let refused = normalise(b"/a%0", &none, &mut Vec::new(), &mut Vec::new());
        assert_eq!(refused, Err(Refusal::PercentEncoding));
    }

    #[test]
    fn only_one_and_two_dots_are_dot_segments() {
        for (raw, normal) in [
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/.../b", "/a/.../b"),
            ("/a/..../b", "/a/..../b"),
            ("/a/....../", "/a/....../"),
            ("/a/..b/.c", "/a/..b/.c"),
            ("/a/b../.", "/a/b../"),
        ] {
            let (mut decoded, mut encoded) = (Vec::new(), Vec::new());
            normalise(raw.as_bytes(), &PathRules::default(), &mut decoded, &mut encoded).unwrap();
            assert_eq!((&decoded[..], &encoded[..]), (normal.as_bytes(), normal.as_bytes()), "{raw}");
        }
    }
}
