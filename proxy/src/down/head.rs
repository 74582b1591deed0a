//! hot path
//!
//! A request's head from what a binary protocol brings: one place for HTTP/2 and HTTP/3, so that neither is
//! less strict than the other.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use wire::h1::Refusal;
use wire::h1::decode::Limits;
use wire::parts::{self, Parts};
use wire::{Field, Framing, Method, Name, RequestHead, Version};

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Answer,
    /// For the stream to become a tunnel (RFC 8441, RFC 9220).
    Tunnel,
}

/// The pseudo-header fields of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) parts: Parts<'a>,
    /// `:protocol`, with which CONNECT asks for a tunnel.
    pub(super) protocol: Option<&'a [u8]>,
}

/// Makes a head as strictly as it is made of bytes. The spans of the fields are of `lines`; their names are in lower
/// case, each with its id.
pub(super) fn make(
    asked: &Asked<'_>,
    lines: &[u8],
    fields: &[Field],
    version: Version,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    limits: &Limits,
) -> Result<Ask, Refusal> {
    let mut parts = asked.parts;
    if let Some(protocol) = asked.protocol {
        if !protocol.eq_ignore_ascii_case(b"websocket") || parts.method != b"CONNECT" {
            return Err(Refusal::Protocol);
        }
        // A tunnel is asked for by a handshake that HTTP/1 does with GET (RFC 6455 section 4.1).
        parts.method = b"GET";
    }
    let (mut cookies, mut hosts) = (0, 0);
    for field in fields {
        cookies += usize::from(field.id == Name::Cookie);
        hosts += usize::from(field.id == Name::Host);
    }
    if parts.authority.is_some() && hosts > 1 {
        return Err(Refusal::RepeatedHost);
    }
    parts::request(&parts, lines, fields.iter().copied(), version, head, text, limits)?;
    if cookies > 1 {
        join_cookies(head);
    }
    if asked.protocol.is_none() {
        wire::h1::hop::strip_request(head, false);
        return Ok(Ask::Answer);
    }
    if head.fields.contains(Name::ContentLength) {
        return Err(Refusal::ContentLength);
    }
    debug_assert_eq!(head.method, Method::Get);
    // The handshake as a server of HTTP/1 wants it.
    wire::h1::hop::strip_request(head, false);
    head.framing = Framing::None;
    head.expect_continue = false;
    head.upgrade = true;
    head.fields.append_checked(Name::Upgrade, b"Upgrade", b"websocket");
    head.fields.set_checked(Name::SecWebsocketKey, b"Sec-WebSocket-Key", &key());
    Ok(Ask::Tunnel)
}

/// Makes one field of several cookies, which may come in parts (RFC 9113 section 8.2.3).
fn join_cookies(head: &mut RequestHead) {
    let whole = head.fields.all(b"cookie").collect::<Vec<_>>().join(&b"; "[..]);
    head.fields.remove_id(Name::Cookie);
    head.fields.append_checked(Name::Cookie, b"cookie", &whole);
}

/// Sixteen random bytes in base64 (RFC 6455 section 4.1). They need not be secret.
fn key() -> [u8; 24] {
    let mut key = [0; 24];
    // Sixteen bytes are 24 digits.
    let _ = BASE64_STANDARD.encode_slice(fastrand::u128(..).to_be_bytes(), &mut key);
    key
}
