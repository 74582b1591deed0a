//! The parts of an exchange that a runner gets, and the changes that its answers make.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, percent_encode};
use sdk::vars::args;
use sdk::{Exchange, Fields, Reply};

use super::messages::{Changed, Entry, Request, Response};
use crate::form::UNRESERVED;

/// Fields that belong to a connection or to the framing of a body: a runner sets none of them.
const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
];

/// Headers of the upstream's response that a decision about the request does not change, as in APISIX.
const OF_UPSTREAM: [&str; 7] = [
    "location",
    "server",
    "www-authenticate",
    "content-encoding",
    "content-type",
    "content-location",
    "content-language",
];

fn is_one_of(list: &[&str], name: &[u8]) -> bool {
    list.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(name))
}

pub(super) fn request(x: &Exchange<'_>) -> Request {
    let (path, query) = x.rewritten_uri().map_or_else(|| (x.path(), x.query()), parts);
    let pairs = args(query).map(|(name, value)| (name.into_owned(), value.map(Cow::into_owned)));
    let host = x.rewritten_host().unwrap_or(x.request().authority());
    let others = x.request().fields.iter().filter(|(name, ..)| !name.eq_ignore_ascii_case(b"host"));
    let mut headers = vec![(b"host".to_vec(), Some(host.to_vec()))];
    headers.extend(others.map(|(name, value, _)| (name.to_ascii_lowercase(), Some(value.to_vec()))));
    Request {
        client: x.client().ip(),
        method: x.upstream_method(),
        path: path.to_vec(),
        args: pairs.collect(),
        headers,
    }
}

/// Path and query of a URI.
fn parts(uri: &[u8]) -> (&[u8], &[u8]) {
    let at = uri.iter().position(|byte| *byte == b'?').unwrap_or(uri.len());
    (&uri[..at], uri.get(at + 1..).unwrap_or_default())
}

pub(super) fn response(x: &Exchange<'_>) -> Response {
    let fields = x.response().fields.iter();
    let headers = fields.map(|(name, value, _)| (name.to_vec(), Some(value.to_vec())));
    Response { status: x.status(), headers: headers.collect() }
}

/// The fields of a response; those that no head may have are left out.
fn fields(entries: &[Entry<'_>]) -> Box<Fields> {
    let mut fields = Fields::new();
    for (name, value) in entries.iter().filter(|(name, _)| !is_one_of(&FRAMING, name)) {
        let _ = fields.append(name, value.unwrap_or_default());
    }
    Box::new(fields)
}

/// The response with which a runner ends a request.
pub(super) fn reply(status: u16, headers: &[Entry<'_>], body: &[u8]) -> Reply {
    let status = if status == 0 { 200 } else { status };
    Reply { fields: Some(fields(headers)), body: body.to_vec().into(), ..Reply::status(status) }
}

/// The response that takes the place of the upstream's: the runner's headers replace those of the same names.
pub(super) fn changed(x: &Exchange<'_>, changed: &Changed<'_>, body: &[u8]) -> Reply {
    let status = if changed.status == 0 { x.status() } else { changed.status };
    let own: Vec<Entry<'_>> =
        x.response().fields.iter().map(|(name, value, _)| (name, Some(value))).collect();
    let mut fields = fields(&own);
    if !changed.body.is_empty() {
        // They describe the upstream's body.
        for name in ["Content-Encoding", "ETag", "Content-MD5", "Accept-Ranges"] {
            fields.remove(name.as_bytes());
        }
    }
    let mut seen: Vec<&[u8]> = Vec::new();
    for (name, value) in changed.headers.iter().filter(|(name, _)| !is_one_of(&FRAMING, name)) {
        if !seen.iter().any(|one| one.eq_ignore_ascii_case(name)) {
            fields.remove(name);
            seen.push(name);
        }
        // Without a value it is removed; an invalid one is left out.
        if let Some(value) = value {
            let _ = fields.append(name, value);
        }
    }
    let body = if changed.body.is_empty() { body } else { changed.body };
    Reply { fields: Some(fields), body: body.to_vec().into(), ..Reply::status(status) }
}

/// Changes the request, and the headers of the response to it.
pub(super) fn rewrite(
    x: &mut Exchange<'_>,
    path: Option<&[u8]>,
    headers: &[Entry<'_>],
    new_args: &[Entry<'_>],
    response_headers: &[Entry<'_>],
) {
    for (name, value) in headers.iter().filter(|(name, _)| !is_one_of(&FRAMING, name)) {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        match value {
            // An invalid name or value leaves the header as it is.
            Some(value) if name.eq_ignore_ascii_case("host") => {
                if !value.is_empty() && value.iter().all(u8::is_ascii_graphic) {
                    x.set_upstream_host(value);
                }
            }
            Some(value) => _ = x.set_header(name, value),
            None => x.remove_header(name),
        }
    }
    let is_theirs = |name: &[u8]| !is_one_of(&FRAMING, name) && !is_one_of(&OF_UPSTREAM, name);
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in response_headers.iter().filter(|(name, _)| is_theirs(name)) {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        let value = value.unwrap_or_default();
        if seen.iter().any(|one| one.eq_ignore_ascii_case(name)) {
            let _ = x.add_response_header(name, value);
        } else {
            let _ = x.set_response_header(name, value);
            seen.push(name);
        }
    }
    if let Some(uri) = x.rewritten_uri() {
        // The runner has seen these arguments.
        let query = parts(uri).1.to_vec();
        x.set_query(&query);
    }
    if !new_args.is_empty() {
        let query = with_args(x.query(), new_args);
        x.set_query(&query);
    }
    if let Some(path) = path {
        let mut uri = Vec::with_capacity(path.len() + 1);
        if !path.starts_with(b"/") {
            uri.push(b'/');
        }
        escape(path, PATH, &mut uri);
        if x.request().has_query {
            uri.push(b'?');
            uri.extend_from_slice(x.query());
        }
        x.set_upstream_uri(&uri);
    }
}

/// A query with other arguments: those of these names are replaced, and removed where a value is absent.
fn with_args(query: &[u8], new: &[Entry<'_>]) -> Vec<u8> {
    let is_changed = |pair: &[u8]| {
        let name = args(pair).next().map(|(name, _)| name);
        name.is_some_and(|name| new.iter().any(|(changed, _)| *changed == &*name))
    };
    let kept = query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty() && !is_changed(pair));
    let mut pairs: Vec<Vec<u8>> = kept.map(<[u8]>::to_vec).collect();
    for (name, value) in new {
        let Some(value) = value else { continue };
        let mut pair = Vec::new();
        escape(name, UNRESERVED, &mut pair);
        pair.push(b'=');
        escape(value, UNRESERVED, &mut pair);
        pairs.push(pair);
    }
    pairs.join(&b'&')
}

/// All but the characters of a path (RFC 3986 section 3.3).
const PATH: &AsciiSet = &UNRESERVED
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

fn escape(text: &[u8], coded: &'static AsciiSet, out: &mut Vec<u8>) {
    out.extend(percent_encode(text, coded).flat_map(str::bytes));
}
