//! hot path
//!
//! A request head from the parts of a binary protocol (RFC 9113 section 8.3): method, scheme,
//! authority, path and fields. The same code refuses the same errors as in HTTP/1 bytes;
//! connection-specific HTTP/1 fields are refused as well.

use crate::fields::{Field, Span, check_name, check_value, is_token, is_value_byte};
use crate::h1::Refusal;
use crate::h1::decode::{Expect, LONGEST_METHOD, Limits, Seen, range, resolve_host, span};
use crate::h1::scan::Stop;
use crate::head::{Framing, RequestHead, Version};
use crate::method::Method;
use crate::names::Name;
use crate::target;

/// The parts of a request head, as received.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    pub method: &'a [u8],
    /// `http` or `https`; only CONNECT has none.
    pub scheme: Option<&'a [u8]>,
    /// Host and port, unless they came as the field `host`.
    pub authority: Option<&'a [u8]>,
    /// Path and query, or `*`; empty for CONNECT.
    pub path: &'a [u8],
    /// Whether the message ends with the head.
    pub ends: bool,
    /// Whether all names and values are known to be clean ([`crate::List::is_clean`]), so that they
    /// need not be checked again.
    pub clean: bool,
}

/// Builds a head from its parts and its fields, whose spans are of `lines`, each with the
/// [`Name::from_bytes`] of its name. The lines are copied in one piece. `text` is reused memory. A body without an announced length has
/// [`Framing::Chunked`]: the protocol marks its end.
pub fn request(
    parts: &Parts<'_>,
    lines: &[u8],
    fields: impl IntoIterator<Item = Field>,
    version: Version,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    limits: &Limits,
) -> Result<(), Refusal> {
    head.clear();
    make(parts, lines, fields, version, head, text, limits).inspect_err(|_| head.clear())
}

fn make(
    parts: &Parts<'_>,
    lines: &[u8],
    fields: impl IntoIterator<Item = Field>,
    version: Version,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    limits: &Limits,
) -> Result<(), Refusal> {
    text.clear();
    let limit = limits.head.min(u32::MAX as usize / 8);
    if parts.method.len() + parts.path.len() + parts.authority.map_or(0, <[u8]>::len) > limit {
        return Err(Refusal::HeadTooLarge);
    }
    if parts.method.is_empty()
        || parts.method.len() > LONGEST_METHOD
        || !parts.method.iter().all(|&b| is_token(b))
    {
        return Err(Refusal::Method);
    }
    head.version = version;
    head.method = Method::from_bytes(parts.method);
    let connects = head.method == Method::Connect;
    let (path, scheme) = match (connects, parts.authority) {
        (true, Some(authority)) if parts.path.is_empty() && parts.scheme.is_none() => (authority, None),
        (true, _) => return Err(Refusal::Target),
        (false, _) => (parts.path, parts.scheme),
    };
    match (scheme, path) {
        (None, _) if connects => {}
        // No other form is allowed: the authority is a separate part.
        (Some(b"http" | b"https"), [b'/', ..] | b"*") => {}
        _ => return Err(Refusal::Target),
    }
    text.extend_from_slice(parts.method);
    head.method_span = span(0, text.len());
    text.push(b' ');
    let start = text.len();
    text.extend_from_slice(path);
    let end = text.len();
    text.push(b' ');
    let target = target::scan(text, start, head.method, limits.target).map_err(|stop| match stop {
        Stop::Refused(refusal) => refusal,
        Stop::More => Refusal::Target,
    })?;
    if target.end != end {
        return Err(Refusal::Target);
    }

    let mut seen = Seen::default();
    let mut count = 0;
    if let Some(authority) = parts.authority {
        count += 1;
        check(Name::Host, b"Host", authority)?;
        let field = put(text, Name::Host, b"Host", authority);
        seen.note(field, b"Host", authority, limits)?;
        head.fields.push(field);
    }
    let start = text.len() as u32;
    let mut size = text.len();
    text.extend_from_slice(lines);
    for field in fields {
        let (id, name, value) = (field.id, &lines[range(field.name)], &lines[range(field.value)]);
        count += 1;
        if count > limits.fields {
            return Err(Refusal::TooManyFields);
        }
        size += name.len() + value.len();
        if size > limit {
            return Err(Refusal::HeadTooLarge);
        }
        // Repeating the authority in Host is allowed if both are equal.
        if id == Name::Host && parts.authority == Some(value) {
            continue;
        }
        if speaks_of_connection(id, value) {
            return Err(Refusal::Connection);
        }
        if !parts.clean {
            check(id, name, value)?;
        } else if name.first() == Some(&b':') {
            return Err(Refusal::FieldName);
        }
        let field = field.behind(start);
        if seen.note(field, name, value, limits)? {
            head.fields.push(field);
        }
    }
    if seen.hosts == 0 {
        return Err(Refusal::NoHost);
    }
    head.fields.load(text);

    head.framing = match (seen.framing(&mut head.fields)?, parts.ends) {
        (Some(Framing::Length(1..)), true) => return Err(Refusal::ContentLength),
        (Some(framing), _) => framing,
        (None, true) => Framing::None,
        (None, false) => Framing::Chunked,
    };
    head.keep_alive = true;
    match seen.expect {
        Expect::None => {}
        Expect::Continue => {
            head.expect_continue = !matches!(head.framing, Framing::None | Framing::Length(0))
        }
        Expect::Other => return Err(Refusal::Expectation),
    }
    target::resolve(text, &target, head, &limits.path)?;
    resolve_host(text, &target, &seen, head)
}

/// Whether a field of a head or trailer section is connection-specific, which makes the message
/// malformed (RFC 9113 section 8.2.2, RFC 9114 section 4.2).
#[inline]
pub fn speaks_of_connection(id: Name, value: &[u8]) -> bool {
    id.is_of_connection() || id == Name::Te && !value.eq_ignore_ascii_case(b"trailers")
}

/// Checks the name and the value of a field.
fn check(id: Name, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
    // Known names are tokens.
    if id == Name::Other && check_name(name).is_err() {
        return Err(Refusal::FieldName);
    }
    if check_value(value).is_err() {
        let first = value.iter().find(|&&byte| !is_value_byte(byte));
        return Err(if first == Some(&0) { Refusal::Nul } else { Refusal::Control });
    }
    // White space around a value is not part of it, and is not allowed in a protocol without lines.
    if matches!(value.first(), Some(b' ' | b'\t')) || matches!(value.last(), Some(b' ' | b'\t')) {
        return Err(Refusal::LeadingSpace);
    }
    Ok(())
}

/// Appends a field's text to the buffer.
#[inline]
fn put(text: &mut Vec<u8>, id: Name, name: &[u8], value: &[u8]) -> Field {
    let mut keep = |bytes: &[u8]| {
        let start = text.len();
        text.extend_from_slice(bytes);
        Span { start: start as u32, len: bytes.len() as u32 }
    };
    Field { id, is_line: false, name: keep(name), value: keep(value) }
}
