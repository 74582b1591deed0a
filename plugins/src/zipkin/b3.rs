//! hot path
//!
//! Traces in headers of B3 (<https://github.com/openzipkin/b3-propagation>).

use model::Invalid;
use sdk::trace::{hex, unhex};
use sdk::{Exchange, HeaderName};

pub(super) struct Headers {
    single: HeaderName,
    trace: HeaderName,
    span: HeaderName,
    parent: HeaderName,
    sampled: HeaderName,
    flags: HeaderName,
}

/// An identifier of 128 bits, or of 64, then in the last eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TraceId {
    pub bytes: [u8; 16],
    pub is_short: bool,
}

/// The trace that a client sent. Without a valid one, a new one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Given {
    pub trace: Option<TraceId>,
    /// The client's span.
    pub span: Option<[u8; 8]>,
    /// The client's decision, if it made one.
    pub sampled: Option<bool>,
}

impl Headers {
    pub(super) fn new() -> Result<Headers, Invalid> {
        let name = |text: &str| HeaderName::new(text).map_err(|bad| Invalid::new(bad.to_string()));
        Ok(Headers {
            single: name("b3")?,
            trace: name("x-b3-traceid")?,
            span: name("x-b3-spanid")?,
            parent: name("x-b3-parentspanid")?,
            sampled: name("x-b3-sampled")?,
            flags: name("x-b3-flags")?,
        })
    }

    /// Reads the client's trace, and removes the single header. `None` if that one is invalid, as APISIX refuses such
    /// a request.
    pub(super) fn read(&self, x: &mut Exchange<'_>) -> Option<Given> {
        let debug = x.header(&self.flags) == Some(&b"1"[..]);
        let Some(single) = x.header(&self.single) else {
            let ids = given(x.header(&self.trace), x.header(&self.span), x.header(&self.parent));
            let sampled = decision(x.header(&self.sampled)).or(debug.then_some(true));
            return Some(Given { sampled, ..ids });
        };
        let mut parts = single.splitn(4, |&byte| byte == b'-');
        let first = parts.next();
        let found = match (first, parts.next()) {
            (Some(b"0"), None) => Some((Given { sampled: Some(false), ..Given::default() }, false)),
            (trace, Some(span)) => {
                let state = parts.next();
                let ids = given(trace, Some(span), parts.next());
                let is_debug = state == Some(&b"d"[..]);
                let sampled = if is_debug { Some(true) } else { decision(state).or(debug.then_some(true)) };
                Some((Given { sampled, ..ids }, is_debug))
            }
            (_, None) => None,
        };
        let (given, is_debug) = found?;
        x.remove_header(&self.single);
        if is_debug {
            let _ = x.set_header(&self.flags, b"1");
        }
        Some(given)
    }

    /// Sets the headers for the upstream. Their values are valid.
    pub(super) fn write(
        &self,
        x: &mut Exchange<'_>,
        trace: &TraceId,
        span: [u8; 8],
        parent: Option<[u8; 8]>,
        sampled: bool,
    ) {
        let mut digits = [0; 32];
        let shown = trace.shown();
        hex(shown, &mut digits);
        let _ = x.set_header(&self.trace, &digits[..2 * shown.len()]);
        hex(&span, &mut digits);
        let _ = x.set_header(&self.span, &digits[..16]);
        match parent {
            Some(parent) => {
                hex(&parent, &mut digits);
                let _ = x.set_header(&self.parent, &digits[..16]);
            }
            None => x.remove_header(&self.parent),
        }
        let _ = x.set_header(&self.sampled, if sampled { b"1" } else { b"0" });
    }
}

impl TraceId {
    /// The bytes that are written.
    pub(super) fn shown(&self) -> &[u8] {
        if self.is_short { &self.bytes[8..] } else { &self.bytes }
    }

    fn parse(text: &[u8]) -> Option<TraceId> {
        let short = id(text).map(|half| {
            let mut bytes = [0; 16];
            bytes[8..].copy_from_slice(&half);
            TraceId { bytes, is_short: true }
        });
        short.or_else(|| {
            let bytes = digits::<32, 16>(text).filter(|bytes| *bytes != [0; 16])?;
            Some(TraceId { bytes, is_short: false })
        })
    }
}

/// The identifiers, unless one of them is invalid.
fn given(trace: Option<&[u8]>, span: Option<&[u8]>, parent: Option<&[u8]>) -> Given {
    let is_valid = |text: Option<&[u8]>| text.is_none_or(|text| id(text).is_some());
    // Of a root span some programs send zeros as its parent.
    let is_parent_valid = parent.is_none_or(|text| digits::<16, 8>(text).is_some());
    match trace.and_then(TraceId::parse) {
        Some(trace) if is_valid(span) && is_parent_valid => {
            Given { trace: Some(trace), span: span.and_then(id), sampled: None }
        }
        _ => Given::default(),
    }
}

/// An identifier that is not all zero: for one of those, Zipkin refuses all spans of a batch.
fn id(text: &[u8]) -> Option<[u8; 8]> {
    digits::<16, 8>(text).filter(|id| *id != [0; 8])
}

fn digits<const DIGITS: usize, const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    let mut digits: [u8; DIGITS] = text.try_into().ok()?;
    digits.make_ascii_lowercase();
    unhex(&digits)
}

fn decision(text: Option<&[u8]>) -> Option<bool> {
    match text? {
        b"1" | b"true" => Some(true),
        b"0" | b"false" => Some(false),
        _ => None,
    }
}

/// Appends bytes in hexadecimal.
pub(super) fn hex_text(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    hex(bytes, &mut out[start..]);
}
