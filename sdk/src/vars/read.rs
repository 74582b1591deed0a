//! hot path
//!
//! Reads arguments, cookies and headers without copying.

use std::borrow::Cow;

use wire::{Field, Fields, Name};

/// The value of a query or form argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Arg<'a> {
    /// `?name` without `=`; Lua sees `true`.
    Bare,
    Text(Cow<'a, [u8]>),
}

/// Names and values of `a=1&b` in order, decoded.
pub(super) fn args(query: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, Arg<'_>)> {
    query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        match pair.iter().position(|&byte| byte == b'=') {
            Some(at) => (decode(&pair[..at]), Arg::Text(decode(&pair[at + 1..]))),
            None => (decode(pair), Arg::Bare),
        }
    })
}

/// The first value of an argument (OpenResty's `ngx.req.get_uri_args`: decoded, name case-sensitive).
pub(super) fn arg<'a>(query: &'a [u8], name: &[u8]) -> Option<Arg<'a>> {
    args(query).find(|(key, _)| **key == *name).map(|(_, value)| value)
}

/// Decodes `%XX` and `+`; borrows if there are none. A `%` without two hex digits is kept.
pub(super) fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|&byte| byte == b'%' || byte == b'+') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'+', _) => out.push(b' '),
            (b'%', [high, low, tail @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    rest = tail;
                }
                _ => out.push(b'%'),
            },
            _ => out.push(byte),
        }
    }
    Cow::Owned(out)
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

/// The value of a cookie; the last one of several with the same name, as in lua-resty-cookie.
pub(crate) fn cookie<'a>(fields: &'a Fields, name: &[u8]) -> Option<&'a [u8]> {
    fields
        .list()
        .iter()
        .rev()
        .filter(|field| field.id == Name::Cookie)
        .flat_map(|field| fields.bytes(field.value).rsplit(|&byte| byte == b';'))
        .find_map(|pair| {
            let pair = pair.trim_ascii_start();
            let value = pair.strip_prefix(name)?.strip_prefix(b"=")?;
            let end = value.iter().position(|byte| matches!(byte, b' ' | b'\t'));
            Some(&value[..end.unwrap_or(value.len())])
        })
}

/// Appends the user of `Authorization: Basic` (RFC 7617 section 2); returns whether there is one.
pub(super) fn user(value: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let Some((scheme, mut text)) = value.split_at_checked(6) else { return false };
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return false;
    }
    while let Some((b' ', rest)) = text.split_first() {
        text = rest;
    }
    let (mut bits, mut held) = (0u32, 0u32);
    for &byte in text {
        let Some(sextet) = sextet(byte) else { break };
        bits = bits << 6 | sextet;
        held += 6;
        if held >= 8 {
            held -= 8;
            match (bits >> held) as u8 {
                b':' => return out.len() > start,
                byte => out.push(byte),
            }
        }
    }
    // Without a colon there is no user, and the text may be a secret.
    out.truncate(start);
    false
}

/// The value of a base64 digit.
fn sextet(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
}

/// A header as named by nginx's `$http_x`: `x_real_ip` matches `X-Real-IP` and `X_Real_IP`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    id: Name,
    /// In lower case, with `-` for `_`.
    text: Box<[u8]>,
}

impl Header {
    pub(super) fn new(name: &str) -> Header {
        let text: Box<[u8]> = name.bytes().map(folded).collect();
        Header { id: Name::from_bytes(&text), text }
    }

    /// The value; several are joined, as in nginx since 1.23.
    #[inline]
    pub(super) fn value<'a>(&self, fields: &'a Fields) -> Option<Cow<'a, [u8]>> {
        let list = fields.list();
        let at = list.iter().position(|field| self.is(fields, field))?;
        let first = fields.bytes(list[at].value);
        let rest = &list[at + 1..];
        if rest.iter().any(|field| self.is(fields, field)) {
            return Some(Cow::Owned(self.joined(first, fields, rest)));
        }
        Some(Cow::Borrowed(first))
    }

    /// The first value and the further ones of the same name.
    #[cold]
    fn joined(&self, first: &[u8], fields: &Fields, rest: &[Field]) -> Vec<u8> {
        let separator: &[u8] = if self.id == Name::Cookie { b"; " } else { b", " };
        let mut joined = first.to_vec();
        for field in rest.iter().filter(|field| self.is(fields, field)) {
            joined.extend_from_slice(separator);
            joined.extend_from_slice(fields.bytes(field.value));
        }
        joined
    }

    #[inline]
    fn is(&self, fields: &Fields, field: &Field) -> bool {
        if field.id != Name::Other {
            return field.id == self.id;
        }
        field.name.len as usize == self.text.len()
            && fields.bytes(field.name).iter().zip(&self.text).all(|(&a, &b)| folded(a) == b)
    }
}

#[inline]
fn folded(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fields;

    #[test]
    fn arguments_are_decoded_and_the_first_wins() {
        let text = |s: &'static str| Some(Arg::Text(Cow::Borrowed(s.as_bytes())));
        let query = b"a=1&a=2&b&c=&d%20e=x+y%2Bz&&f=%zz%4&A=3&=q";
        for (name, expected) in [
            ("a", text("1")),
            ("A", text("3")),
            ("b", Some(Arg::Bare)),
            ("c", text("")),
            ("d e", text("x y+z")),
            ("f", text("%zz%4")),
            ("g", None),
        ] {
            assert_eq!(arg(query, name.as_bytes()), expected, "{name}");
        }
        assert_eq!(arg(b"", b"a"), None);
    }

    #[test]
    fn the_user_of_basic_authorization() {
        for (value, expected) in [
            ("Basic amFjazpzZWNyZXQ=", "jack"),
            ("basic   amFjazo=", "jack"),
            ("Basic w6k6eA==", "\u{e9}"),
            ("Basic OnNlY3JldA==", ""),
            ("Basic c2VjcmV0", ""),
            ("Basic !", ""),
            ("Basic ", ""),
            ("Bas", ""),
            ("Bearer amFjazpzZWNyZXQ=", ""),
        ] {
            let mut out = b"x".to_vec();
            assert_eq!(user(value.as_bytes(), &mut out), !expected.is_empty(), "{value}");
            assert_eq!(&out[1..], expected.as_bytes(), "{value}");
        }
    }

    #[test]
    fn cookies_end_at_semicolon_or_space() {
        let fields = fields(&[("Cookie", "a=1; b=2 x;c=\"q\""), ("Cookie", "a=3;  d=")]);
        for (name, expected) in [
            ("a", Some("3")),
            ("b", Some("2")),
            ("c", Some("\"q\"")),
            ("d", Some("")),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(cookie(&fields, name.as_bytes()), expected.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn headers_fold_case_and_underscores_and_join() {
        let fields = fields(&[
            ("X-Real-IP", "1"),
            ("x_real_ip", "2"),
            ("X-Own-Name", "3"),
            ("Cookie", "a=1"),
            ("Cookie", "b=2"),
            ("Host", "h"),
        ]);
        let value =
            |name: &str| Header::new(name).value(&fields).map(|v| String::from_utf8_lossy(&v).into_owned());
        assert_eq!(value("x_real_ip").as_deref(), Some("1, 2"));
        assert_eq!(value("X-Own-Name").as_deref(), Some("3"));
        assert_eq!(value("cookie").as_deref(), Some("a=1; b=2"));
        assert_eq!(value("host").as_deref(), Some("h"));
        assert_eq!(value("hos"), None);
    }
}
