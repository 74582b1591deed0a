//! hot path
//!
//! Request and response heads, independent of the protocol version.

use crate::fields::{Fields, Span};
use crate::method::Method;
use crate::target::{Doubtful, PathRules};

/// HTTP version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
    Http3,
}

impl Version {
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }
}

/// How a message's body ends (RFC 9112 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// No body.
    #[default]
    None,
    /// Exactly this many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// Until the sender closes; responses only.
    UntilClose,
}

/// A decoded request head. Reused for each request: decoding clears it.
#[derive(Debug, Default)]
pub struct RequestHead {
    pub method: Method,
    pub version: Version,
    /// All spans below refer to this list's text.
    pub fields: Fields,
    pub method_span: Span,
    /// The request target as received: origin form, or the path and query of an absolute form.
    pub target_span: Span,
    /// Path in normal form, percent-decoded, for routing and plugins; see [`crate::target`].
    pub path_span: Span,
    /// Path in normal form, percent-encoded, as sent to the origin.
    pub encoded_path_span: Span,
    /// Characters in the path that servers interpret differently. The rules of the route decide
    /// whether the request is allowed.
    pub doubtful: Doubtful,
    /// How the path was brought into its normal form.
    pub path_rules: PathRules,
    /// Query without `?`; `has_query` distinguishes an empty one from a missing one.
    pub query_span: Span,
    pub has_query: bool,
    /// Host without port, in lower case; empty for HTTP/1.0 without Host.
    pub host_span: Span,
    /// Host with port, as received.
    pub authority_span: Span,
    pub framing: Framing,
    /// The connection may serve another request after this one.
    pub keep_alive: bool,
    /// `Expect: 100-continue` was sent, the version allows it, and a body follows.
    pub expect_continue: bool,
    /// `Connection: upgrade` with an `Upgrade` field.
    pub upgrade: bool,
    /// There is an `X-Forwarded-…`, `Forwarded` or `Sluice-Hops` field; set by
    /// [`crate::h1::hop::strip_request`].
    pub has_forwarded: bool,
}

impl RequestHead {
    /// Clears the previous request; keeps the buffers.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear(8 << 10);
        *self = RequestHead { fields, ..RequestHead::default() };
    }

    #[inline]
    pub fn method_bytes(&self) -> &[u8] {
        self.fields.bytes(self.method_span)
    }

    #[inline]
    pub fn target(&self) -> &[u8] {
        self.fields.bytes(self.target_span)
    }

    #[inline]
    pub fn path(&self) -> &[u8] {
        self.fields.bytes(self.path_span)
    }

    /// Appends path and query in the form by which routes are found and which servers get. Servers that judge by paths get
    /// this one: no other spelling of a path passes them.
    pub fn write_normal_target(&self, out: &mut Vec<u8>) {
        crate::target::encode_path(self.path(), &self.path_rules, out);
        if self.has_query {
            out.push(b'?');
            out.extend_from_slice(self.query());
        }
    }

    #[inline]
    pub fn encoded_path(&self) -> &[u8] {
        self.fields.bytes(self.encoded_path_span)
    }

    #[inline]
    pub fn query(&self) -> &[u8] {
        self.fields.bytes(self.query_span)
    }

    #[inline]
    pub fn host(&self) -> &[u8] {
        self.fields.bytes(self.host_span)
    }

    #[inline]
    pub fn authority(&self) -> &[u8] {
        self.fields.bytes(self.authority_span)
    }
}

/// A decoded response head.
#[derive(Debug, Default)]
pub struct ResponseHead {
    pub status: u16,
    pub version: Version,
    pub fields: Fields,
    pub reason_span: Span,
    /// The value of `X-Accel-Expires`, by which an origin sets nginx's caching time; set by
    /// [`crate::h1::hop::strip_response`], which removes the field.
    pub accel_expires: Option<Span>,
    /// The framing for the request it was decoded for (responses to HEAD, 1xx, 204 and 304 have no
    /// body).
    pub framing: Framing,
    pub keep_alive: bool,
    /// `Connection: upgrade` with an `Upgrade` field.
    pub upgrade: bool,
}

impl ResponseHead {
    /// Clears the previous response; keeps the buffers.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear(8 << 10);
        *self = ResponseHead { fields, ..ResponseHead::default() };
    }

    #[inline]
    pub fn reason(&self) -> &[u8] {
        self.fields.bytes(self.reason_span)
    }
}
