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
//! - Refused: raw control characters; `%` without two digits; segments that only some
//!   servers take for `.` or `..` (`..;x`, `..%2Fx`); and of what servers read in different
//!   ways ([`Doubtful`]) whatever the rules say.
//!
//! # Which bytes may come
//!
//! Raw, a target may hold all of `!` to `~` but `#`, and bytes above `~`. RFC 3986 does not
//! allow `"<>\^{|}`, the backtick and non-ASCII bytes, but browsers and scripts send them: they are
//! read as themselves and go on percent-encoded, in path and query (`\` in a path is refused by
//! default). `[` and `]`, usual in queries, go on as they came.

use crate::fields::Span;
use crate::h1::Refusal;
use crate::h1::decode::span;
use crate::h1::scan::Stop;
use crate::head::RequestHead;
use crate::method::Method;

/// How paths are brought into normal form where servers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathRules {
    /// `//` becomes `/` (nginx: `merge_slashes`).
    pub merge_slashes: bool,
    /// A path that has one of these is refused here and now. For a decision that is made
    /// later, by route, see [`RequestHead::doubtful`].
    pub refused: Doubtful,
}

impl Default for PathRules {
    fn default() -> PathRules {
        PathRules { merge_slashes: true, refused: Doubtful::REFUSED }
    }
}

/// What in a path one server reads as part of a name and the next as something else.
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
    /// What is refused unless somebody says otherwise.
    pub const REFUSED: Doubtful = Doubtful::BACKSLASH.with(Doubtful::CONTROL);

    pub const fn with(self, other: Doubtful) -> Doubtful {
        Doubtful(self.0 | other.0)
    }

    pub const fn without(self, other: Doubtful) -> Doubtful {
        Doubtful(self.0 & !other.0)
    }

    /// Whether anything is in both.
    #[inline]
    pub const fn meets(self, other: Doubtful) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Brings a raw path, which begins with `/` and has no query, into normal form and appends
/// both forms to the buffers. Gives what was found in it that servers read differently and the
/// rules keep. After an error the buffers hold what they held before.
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

/// Percent-encodes a path in decoded normal form: what RFC 3986 allows in a path stays, as do
/// the encodings that the decoded form keeps; all else is encoded.
pub fn encode_path(decoded: &[u8], out: &mut Vec<u8>) {
    for (at, &byte) in decoded.iter().enumerate() {
        let kept = byte == b'%'
            && hex_pair(decoded, at).is_some_and(stays_coded)
            && !decoded[at + 1..at + 3].iter().any(u8::is_ascii_lowercase);
        if kept || CLASS[byte as usize] & (BAD | CODED | QUERY | PERCENT) == 0 {
            out.push(byte);
        } else {
            push_encoded(byte, out);
        }
    }
}

/// Decodes percent-encodings; a `%` without two digits stays. `plus` reads `+` as a space,
/// as forms do in queries.
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

/// The arguments of a query, still encoded, in order: `a=1&b&=2` gives `a`/`1`, `b`/nothing
/// and nothing/`2`.
pub fn query_args(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    query.split(|&byte| byte == b'&').filter(|arg| !arg.is_empty()).map(|arg| {
        match memchr::memchr(b'=', arg) {
            Some(at) => (&arg[..at], &arg[at + 1..]),
            None => (arg, &b""[..]),
        }
    })
}

/// A target's parts, as offsets into the input; made by [`scan`].
#[derive(Debug)]
pub(crate) struct Scanned {
    start: usize,
    /// Where the space after the target stands.
    pub(crate) end: usize,
    pub(crate) authority: Option<Span>,
    path: usize,
    path_end: usize,
    /// Path and query have only bytes and sequences that are their own normal form.
    path_plain: bool,
    query_plain: bool,
    semicolon: bool,
}

/// Finds the end of the target that begins at `start`, looks at its bytes and takes its
/// form apart.
#[inline(always)]
pub(crate) fn scan(input: &[u8], start: usize, method: Method, limit: usize) -> Result<Scanned, Stop> {
    let window = &input[..input.len().min(start.saturating_add(limit).saturating_add(1))];
    let cut = |stop| match stop {
        Stop::More if window.len().saturating_sub(start) > limit => Stop::Refused(Refusal::TargetTooLong),
        stop => stop,
    };
    if input.get(start) == Some(&b'/') && method != Method::Connect {
        scan_path(window, start, start, None).map_err(cut)
    } else {
        scan_other(window, start, method).map_err(cut)
    }
}

#[inline(always)]
fn scan_path(input: &[u8], start: usize, path: usize, authority: Option<Span>) -> Result<Scanned, Stop> {
    let rest = input.get(path..).unwrap_or_default();
    let mut seen = 0u8;
    let mut before = 0u8;
    let mut length = rest.len();
    for (at, &byte) in rest.iter().enumerate() {
        let class = CLASS[byte as usize];
        if class & (BAD | QUERY) != 0 {
            length = at;
            break;
        }
        // AFTER_SLASH counts only where SLASH came right before.
        seen |= class & (CODED | PERCENT | SEMICOLON | (before << 1));
        before = class & SLASH;
    }
    let path_end = path + length;
    let mut end = path_end;
    let mut query = 0u8;
    if input.get(end) == Some(&b'?') {
        // The question mark is itself a byte that may stand there.
        let rest = &input[end..];
        let mut length = rest.len();
        for (at, &byte) in rest.iter().enumerate() {
            let class = CLASS[byte as usize];
            if class & BAD != 0 {
                length = at;
                break;
            }
            query |= class & CODED;
        }
        end += length;
    }
    match input.get(end) {
        Some(b' ') => {}
        Some(&byte) => return Err(bad_byte(byte).into()),
        None => return Err(Stop::More),
    }
    let semicolon = seen & SEMICOLON != 0;
    let path_plain = seen & !SEMICOLON == 0;
    Ok(Scanned { start, end, authority, path, path_end, path_plain, query_plain: query == 0, semicolon })
}

#[cold]
fn bad_byte(byte: u8) -> Refusal {
    match byte {
        b'\r' | b'\n' => Refusal::RequestLine,
        _ => Refusal::Target,
    }
}

/// Asterisk, authority and absolute form.
#[cold]
fn scan_other(input: &[u8], start: usize, method: Method) -> Result<Scanned, Stop> {
    let rest = input.get(start..).unwrap_or_default();
    let form = |path: usize, end: usize, authority| Scanned {
        start,
        end,
        authority,
        path,
        path_end: end,
        path_plain: true,
        query_plain: true,
        semicolon: false,
    };
    if rest.first() == Some(&b' ') {
        return Err(Refusal::RequestLine.into());
    }
    if method == Method::Connect || rest.first() == Some(&b'*') {
        let Some(length) = rest.iter().position(|&byte| CLASS[byte as usize] & BAD != 0) else {
            return Err(Stop::More);
        };
        return match rest[length] {
            b' ' if method == Method::Connect => {
                let end = start + length;
                Ok(form(end, end, Some(span(start, end))))
            }
            b' ' => Ok(form(start, start + length, None)),
            byte => Err(bad_byte(byte).into()),
        };
    }
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        let known = rest.len().min(scheme.len());
        rest[..known].eq_ignore_ascii_case(&scheme[..known])
    });
    let Some(scheme) = scheme else {
        return Err(Refusal::Target.into());
    };
    if rest.len() <= scheme.len() {
        return Err(Stop::More);
    }
    let host = start + scheme.len();
    let ends = |byte: &u8| matches!(byte, b'/' | b'?') || CLASS[*byte as usize] & BAD != 0;
    let Some(length) = input[host..].iter().position(ends) else {
        return Err(Stop::More);
    };
    scan_path(input, start, host + length, Some(span(host, host + length)))
}

/// Sets the target's spans of a head whose text begins with `input`. The form is judged
/// here, after the version.
#[inline(always)]
pub(crate) fn resolve(
    input: &[u8],
    target: &Scanned,
    head: &mut RequestHead,
    rules: &PathRules,
) -> Result<(), Refusal> {
    if target.path_end < target.end {
        head.has_query = true;
        head.query_span = if target.query_plain {
            span(target.path_end + 1, target.end)
        } else {
            head.fields.intern_with(|out| encode_query(&input[target.path_end + 1..target.end], out))
        };
    }
    if target.authority.is_some() || input[target.path] != b'/' {
        return resolve_other(input, target, head, rules);
    }
    head.target_span = span(target.start, target.end);
    resolve_path(input, target, head, rules)
}

#[inline(always)]
fn resolve_path(
    input: &[u8],
    target: &Scanned,
    head: &mut RequestHead,
    rules: &PathRules,
) -> Result<(), Refusal> {
    let raw = &input[target.path..target.path_end];
    if target.path_plain {
        head.path_span = span(target.path, target.path_end);
        head.encoded_path_span = head.path_span;
        if target.semicolon {
            head.doubtful = Doubtful::SEMICOLON;
            if rules.refused.meets(Doubtful::SEMICOLON) {
                return Err(Refusal::BadPath);
            }
        }
        return Ok(());
    }
    let mut found = Doubtful::NONE;
    head.path_span = head
        .fields
        .try_intern_with(|out| write_path(raw, rules, Form::Decoded, out).map(|doubtful| found = doubtful))?;
    head.encoded_path_span =
        head.fields.try_intern_with(|out| write_path(raw, rules, Form::Encoded, out).map(drop))?;
    head.doubtful = found;
    Ok(())
}

#[cold]
fn resolve_other(
    input: &[u8],
    target: &Scanned,
    head: &mut RequestHead,
    rules: &PathRules,
) -> Result<(), Refusal> {
    let empty = target.path == target.path_end;
    if head.method == Method::Connect {
        head.target_span = span(target.start, target.end);
        return Ok(());
    }
    if target.authority.is_none() {
        if head.method != Method::Options || &input[target.start..target.end] != b"*" {
            return Err(Refusal::Target);
        }
        head.target_span = span(target.start, target.end);
        head.path_span = head.target_span;
        head.encoded_path_span = head.target_span;
        return Ok(());
    }
    if !empty {
        head.target_span = span(target.path, target.end);
        return resolve_path(input, target, head, rules);
    }
    // An absolute form without a path stands for `/`, but for `*` with OPTIONS
    // (RFC 9112 sections 3.2.1 and 3.2.4).
    let path: &[u8] = if head.method == Method::Options && !head.has_query { b"*" } else { b"/" };
    head.target_span = head.fields.intern_with(|out| {
        out.extend_from_slice(path);
        out.extend_from_slice(&input[target.path_end..target.end]);
    });
    head.path_span = Span { start: head.target_span.start, len: 1 };
    head.encoded_path_span = head.path_span;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Decoded,
    Encoded,
}

/// Appends one form of a path; leaves `out` as it was on an error.
fn write_path(raw: &[u8], rules: &PathRules, form: Form, out: &mut Vec<u8>) -> Result<Doubtful, Refusal> {
    let base = out.len();
    write_segments(raw, rules, form, out).inspect_err(|_| out.truncate(base))
}

fn write_segments(raw: &[u8], rules: &PathRules, form: Form, out: &mut Vec<u8>) -> Result<Doubtful, Refusal> {
    let Some((b'/', mut rest)) = raw.split_first() else {
        return Err(Refusal::Target);
    };
    let base = out.len();
    let mut found = Doubtful::NONE;
    // Always ends with the slash that precedes the segment being read.
    out.push(b'/');
    loop {
        let (segment, after) = match memchr::memchr(b'/', rest) {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        match dots(segment)? {
            Dots::No => {
                found = found.with(write_segment(segment, rules, form, out)?);
                if after.is_some() && !(segment.is_empty() && rules.merge_slashes) {
                    out.push(b'/');
                }
            }
            Dots::One => {}
            Dots::Two => {
                out.pop();
                let Some(slash) = memchr::memrchr(b'/', &out[base..]) else {
                    return Err(Refusal::AboveRoot);
                };
                out.truncate(base + slash + 1);
            }
        }
        match after {
            Some(after) => rest = after,
            None => return Ok(found),
        }
    }
}

fn write_segment(
    segment: &[u8],
    rules: &PathRules,
    form: Form,
    out: &mut Vec<u8>,
) -> Result<Doubtful, Refusal> {
    let mut found = Doubtful::NONE;
    let mut at = 0;
    while let Some(&byte) = segment.get(at) {
        let coded = byte == b'%';
        let value = match coded {
            true => hex_pair(segment, at).ok_or(Refusal::PercentEncoding)?,
            false => byte,
        };
        at += if coded { 3 } else { 1 };
        found = found.with(match value {
            0..=0x1f | 0x7f if coded => Doubtful::CONTROL,
            0..=0x1f | 0x7f => return Err(Refusal::BadPath),
            b' ' | b'#' | b'?' if !coded => return Err(Refusal::BadPath),
            b'/' => Doubtful::ENCODED_SLASH,
            b'\\' => Doubtful::BACKSLASH,
            b';' => Doubtful::SEMICOLON,
            _ => Doubtful::NONE,
        });
        let stays_encoded = coded
            && match form {
                Form::Decoded => stays_coded(value),
                Form::Encoded => !is_unreserved(value),
            };
        let must_encode = form == Form::Encoded && CLASS[value as usize] & (BAD | CODED) != 0;
        if stays_encoded || must_encode {
            push_encoded(value, out);
        } else {
            out.push(value);
        }
    }
    if found.meets(rules.refused) { Err(Refusal::BadPath) } else { Ok(found) }
}

/// What stays encoded in the decoded form, too: see the module's documentation.
fn stays_coded(value: u8) -> bool {
    matches!(value, b'/' | b'%' | 0..=0x1f | 0x7f)
}

enum Dots {
    No,
    One,
    Two,
}

/// Whether a segment is `.` or `..`, and refused if only some servers would say so:
/// those that cut parameters off (`..;x`) or decode `%2F` and `\` first (`..%2Fx`).
fn dots(segment: &[u8]) -> Result<Dots, Refusal> {
    let mut rest = segment;
    let mut count = 0;
    let mut first = true;
    loop {
        let (value, length) = match rest {
            [] => break,
            [b'%', ..] => (hex_pair(rest, 0).unwrap_or(b'%'), 3.min(rest.len())),
            [byte, ..] => (*byte, 1),
        };
        match value {
            b'.' => count += 1,
            b'/' | b'\\' | b';' if matches!(count, 1 | 2) => return Err(Refusal::BadPath),
            b'/' | b'\\' => {
                count = 0;
                first = false;
            }
            // Not a dot: as good as three of them until the next separator.
            _ => count = 3,
        }
        rest = &rest[length..];
    }
    match (count, first) {
        (1, true) => Ok(Dots::One),
        (2, true) => Ok(Dots::Two),
        (1 | 2, false) => Err(Refusal::BadPath),
        _ => Ok(Dots::No),
    }
}

fn encode_query(raw: &[u8], out: &mut Vec<u8>) {
    for &byte in raw {
        if CLASS[byte as usize] & CODED == 0 {
            out.push(byte);
        } else {
            push_encoded(byte, out);
        }
    }
}

fn push_encoded(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// The byte that the two digits after the `%` at `at` stand for.
fn hex_pair(raw: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| raw.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    Some((digit(at + 1)? << 4 | digit(at + 2)?) as u8)
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

const SLASH: u8 = 1;
/// Not in normal form right after a slash: a slash or a dot.
const AFTER_SLASH: u8 = 2;
/// Stands encoded in the encoded form.
const CODED: u8 = 4;
const PERCENT: u8 = 8;
const QUERY: u8 = 16;
/// Never in a target.
const BAD: u8 = 32;
const SEMICOLON: u8 = 64;

static CLASS: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = match byte as u8 {
            0..=b' ' | b'#' | 0x7f => BAD,
            b'/' => SLASH | AFTER_SLASH,
            b'.' => AFTER_SLASH,
            b'%' => PERCENT,
            b'?' => QUERY,
            b';' => SEMICOLON,
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x80..=0xff => CODED,
            _ => 0,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_path_is_written_so_that_it_reads_the_same() {
        for (decoded, encoded) in [
            ("/a/b-._~!$&'()*+,;=:@", "/a/b-._~!$&'()*+,;=:@"),
            ("/a b", "/a%20b"),
            ("/a?b#c", "/a%3Fb%23c"),
            ("/\u{e9}\"<>\\^`{|}", "/%C3%A9%22%3C%3E%5C%5E%60%7B%7C%7D"),
            // Encodings that the decoded form keeps stay; any other percent sign is one.
            ("/a%2Fb%25%00%7F", "/a%2Fb%25%00%7F"),
            ("/a%2fb%7f", "/a%252fb%257f"),
            ("/A%41%3B", "/A%2541%253B"),
            ("/100%", "/100%25"),
            ("/100%2", "/100%252"),
            ("/%%2F%", "/%25%2F%25"),
        ] {
            let mut out = Vec::new();
            encode_path(decoded.as_bytes(), &mut out);
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
    fn a_path_that_no_request_line_could_hold_is_refused() {
        let rules = PathRules { refused: Doubtful::NONE, ..PathRules::default() };
        for raw in [&b"/a\0"[..], b"/a\x1f", b"/\x7f", b"/a b", b"/a#", b"/a?b", b"", b"a"] {
            let (mut decoded, mut encoded) = (b"x".to_vec(), b"y".to_vec());
            let refused = normalise(raw, &rules, &mut decoded, &mut encoded);
            assert!(matches!(refused, Err(Refusal::BadPath | Refusal::Target)), "{raw:?}");
            assert_eq!((&decoded[..], &encoded[..]), (&b"x"[..], &b"y"[..]), "as they were before");
        }
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
