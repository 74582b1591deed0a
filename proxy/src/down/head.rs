//! hot path
//!
//! A request's head from what a binary protocol brings: one place for HTTP/2 and HTTP/3, so that neither is
//! less strict than the other.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use wire::h1::Refusal;
use wire::h1::decode::Limits;
use wire::parts::{self, Parts};
use wire::{Framing, Method, Name, RequestHead, Version};

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

/// Makes a head as strictly as it is made of bytes, of names in lower case with their ids, and values.
pub(super) fn make<'a, F: Iterator<Item = (&'a [u8], &'a [u8], Name)>>(
    asked: &Asked<'_>,
    fields: impl Fn() -> F,
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
    // Cookies may come in parts (RFC 9113 section 8.2.3); for everyone else they are one field.
    let mut crumbs = fields().filter(|(_, _, id)| *id == Name::Cookie).map(|(_, value, _)| value);
    let cookie = match (crumbs.next(), crumbs.next()) {
        (Some(first), Some(second)) => {
            let mut whole = first.to_vec();
            for crumb in std::iter::once(second).chain(crumbs) {
                whole.extend_from_slice(b"; ");
                whole.extend_from_slice(crumb);
            }
            Some(whole)
        }
        _ => None,
    };
    if parts.authority.is_some() && fields().filter(|(_, _, id)| *id == Name::Host).count() > 1 {
        return Err(Refusal::RepeatedHost);
    }
    let fields = fields()
        .map(shorter)
        .filter(|(_, _, id)| cookie.is_none() || *id != Name::Cookie)
        .chain(cookie.as_deref().map(|cookie| (&b"cookie"[..], cookie, Name::Cookie)));
    parts::request(&parts, fields, version, head, text, limits)?;
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

/// Shortens the lifetime of a field, so that the client's fields can be chained with a joined cookie.
fn shorter<'b, 'a: 'b>(field: (&'a [u8], &'a [u8], Name)) -> (&'b [u8], &'b [u8], Name) {
    field
}

/// Sixteen random bytes in base64 (RFC 6455 section 4.1). They need not be secret.
fn key() -> [u8; 24] {
    let mut key = [0; 24];
    // Sixteen bytes are 24 digits.
    let _ = BASE64_STANDARD.encode_slice(fastrand::u128(..).to_be_bytes(), &mut key);
    key
}
