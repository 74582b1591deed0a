//! Query strings: finding and dropping one argument.

use std::borrow::Cow;

use sdk::Exchange;

/// The value of an argument, as NGINX's `ngx.req.get_uri_args` reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arg<'q> {
    Absent,
    /// Given once, with a value; percent-decoded.
    One(Cow<'q, [u8]>),
    /// Given without `=`, or more than once: present, but no single text.
    Other,
}

/// Looks up `name` in a query without its `?`.
pub(crate) fn find<'q>(query: &'q [u8], name: &[u8]) -> Arg<'q> {
    let mut found = Arg::Absent;
    for pair in query.split(|&byte| byte == b'&') {
        let (key, value) = split(pair);
        if !is(key, name) {
            continue;
        }
        found = match (found, value) {
            (Arg::Absent, Some(value)) => Arg::One(decode(value)),
            _ => Arg::Other,
        };
    }
    found
}

/// The query without any argument of this name; the others stay byte by byte.
pub(crate) fn without(query: &[u8], name: &[u8]) -> Vec<u8> {
    let mut rest = Vec::with_capacity(query.len());
    for pair in query.split(|&byte| byte == b'&').filter(|pair| !is(split(pair).0, name)) {
        if !rest.is_empty() {
            rest.push(b'&');
        }
        rest.extend_from_slice(pair);
    }
    rest
}

/// Takes an argument out of the request, as later stages and the upstream see it.
pub(crate) fn hide(x: &mut Exchange<'_>, name: &str) {
    let name = name.as_bytes();
    if find(x.query(), name) != Arg::Absent {
        let rest = without(x.query(), name);
        x.set_query(&rest);
    }
    let hidden = |query: &[u8]| Some(without(query, name));
    if let Some(uri) = x.rewritten_uri().and_then(|uri| changed_in_uri(uri, hidden)) {
        x.set_upstream_uri(&uri);
    }
}

/// A path and query that another plugin has made, with the query changed; `None` without a query or a change.
pub(crate) fn changed_in_uri(uri: &[u8], change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let at = uri.iter().position(|&byte| byte == b'?')?;
    let rest = change(&uri[at + 1..])?;
    let mut whole = uri[..at].to_vec();
    if !rest.is_empty() {
        whole.push(b'?');
        whole.extend_from_slice(&rest);
    }
    Some(whole)
}

pub(crate) fn split(pair: &[u8]) -> (&[u8], Option<&[u8]>) {
    match pair.iter().position(|&byte| byte == b'=') {
        Some(at) => (&pair[..at], Some(&pair[at + 1..])),
        None => (pair, None),
    }
}

#[inline]
fn is(key: &[u8], name: &[u8]) -> bool {
    !key.is_empty() && *decode(key) == *name
}

/// Percent-decoding where `+` is a space; broken escapes stay as they are.
pub(crate) fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let spaced: Vec<u8> = text.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    Cow::Owned(percent_encoding::percent_decode(&spaced).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_found_as_nginx_finds_them() {
        let one = |value: &str| Arg::One(Cow::Owned(value.as_bytes().to_vec()));
        assert_eq!(find(b"a=1&key=auth-one", b"key"), one("auth-one"));
        assert_eq!(find(b"k%65y=a+b%2bc%2", b"key"), one("a b+c%2"));
        assert_eq!(find(b"key=", b"key"), one(""));
        assert_eq!(find(b"key=a=b", b"key"), one("a=b"));
        assert_eq!(find(b"", b"key"), Arg::Absent);
        assert_eq!(find(b"keys=1&=key", b"key"), Arg::Absent);
        assert_eq!(find(b"key&a", b"key"), Arg::Other);
        assert_eq!(find(b"key=1&key=2", b"key"), Arg::Other);
    }

    #[test]
    fn dropping_leaves_the_rest_untouched() {
        assert_eq!(without(b"a=%31&key=x&b&key=y", b"key"), b"a=%31&b");
        assert_eq!(without(b"key=x", b"key"), b"");
        assert_eq!(without(b"a=1", b"key"), b"a=1");
    }
}
