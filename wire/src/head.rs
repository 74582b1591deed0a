//! hot path
//!
//! Request and response heads as the rest of the house sees them, whatever
//! protocol they came by.

use crate::fields::{Fields, Span};
use crate::method::Method;
use crate::target::Doubtful;

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
    /// Exactly so many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// Until the sender closes; responses only.
    UntilClose,
}

/// A decoded request head. Reused from request to request: decoding clears it.
#[derive(Debug, Default)]
pub struct RequestHead {
    pub method: Method,
    pub version: Version,
    /// All spans below lie in this list's text.
    pub fields: Fields,
    pub method_span: Span,
    /// The request target as received: origin form, or the path and query of an absolute form.
    pub target_span: Span,
    /// Path in normal form, percent-decoded, for routing and plugins; see [`crate::target`].
    pub path_span: Span,
    /// Path in normal form, percent-encoded, as it goes to the origin.
    pub encoded_path_span: Span,
    /// What the path holds that servers read in different ways. Whether the request may go on
    /// with it is decided by the rules of its route.
    pub doubtful: Doubtful,
    /// Query without `?`; `has_query` tells an empty one from none.
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
    pub tells_of_others: bool,
}

impl RequestHead {
    /// Forgets the last request; keeps the buffers.
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
    /// What `X-Accel-Expires` said, which tells nginx for how long to keep the answer; set by
    /// [`crate::h1::hop::strip_response`], which takes the field out.
    pub accel_expires: Option<Span>,
    /// For an answer to the request it was decoded for (HEAD, 1xx, 204, 304 have none).
    pub framing: Framing,
    pub keep_alive: bool,
    /// `Connection: upgrade` with an `Upgrade` field.
    pub upgrade: bool,
}

impl ResponseHead {
    /// Forgets the last response; keeps the buffers.
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
