//! hot path
//!
//! Hop-by-hop fields (RFC 9110 section 7.6.1).
//!
//! Removes a fixed set and the fields that Connection names, except fields that every recipient
//! needs: a peer may not remove Host, Content-Length, credentials, or the fields a proxy adds. Must
//! be called before our own fields are added (CVE-2022-31813).

use crate::fields::Fields;
use crate::head::{RequestHead, ResponseHead};
use crate::names::Name;

use super::decode::options;

/// Removes the hop-by-hop fields of a request, and the fields that identify its sender to an
/// upstream: no client may set these, on any route. `keep_upgrade` keeps `Upgrade`, for a caller
/// that will write `Connection: upgrade`. Content-Length stays; the caller writes it from the
/// framing. Records whether the peer sent forwarded headers ([`RequestHead::has_forwarded`]).
pub fn strip_request(head: &mut RequestHead, keep_upgrade: bool) {
    let present = strip(&mut head.fields, keep_upgrade);
    head.has_forwarded = present & FORWARDED != 0;
    // The decoder has already removed other spellings.
    if present & IDENTITY != 0 {
        head.fields.retain_ids(|id| marks(id) & IDENTITY == 0);
    }
    let fields = &head.fields;
    if fields.list().iter().any(|field| field.id == Name::Other && is_of_identity(fields.bytes(field.name))) {
        head.fields.remove_others(is_of_identity);
    }
}

/// Whether an unknown name has a prefix of the fields that identify consumers and credentials, in
/// any spelling.
#[inline]
pub fn is_of_identity(name: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 2] = [b"x-consumer-", b"x-credential-"];
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let begins = |with: &[u8]| {
        name.len() >= with.len() && name.iter().zip(with).all(|(own, byte)| folded(*own) == *byte)
    };
    matches!(name.first(), Some(b'x' | b'X')) && BEGINNINGS.into_iter().any(begins)
}

/// Removes the hop-by-hop fields of a response, as [`strip_request`], and the fields that an origin
/// sends to its proxy, which nginx does not forward either.
pub fn strip_response(head: &mut ResponseHead, keep_upgrade: bool) {
    let present = strip(&mut head.fields, keep_upgrade);
    if present & FOR_PROXIES != 0 {
        let expires = head.fields.list().iter().find(|field| field.id == Name::XAccelExpires);
        head.accel_expires = expires.map(|field| field.value);
        head.fields.retain_ids(|id| marks(id) & FOR_PROXIES == 0);
    }
}

/// Returns the marks of all names found.
#[inline]
fn strip(fields: &mut Fields, keep_upgrade: bool) -> u8 {
    let present = fields.list().iter().fold(0, |all, field| all | marks(field.id));
    let hop = if keep_upgrade { HOP } else { HOP | UPGRADE };
    if present & hop == 0 {
        return present;
    }
    if present & CONNECTION != 0 {
        remove_named(fields);
    }
    fields.retain_ids(|id| marks(id) & hop == 0);
    present
}

/// Removes the fields that Connection names. The decoder limits their number; only peers that name
/// any cost an allocation.
#[inline]
fn remove_named(fields: &mut Fields) {
    let mut named = Vec::new();
    for field in fields.list().iter().filter(|field| field.id == Name::Connection) {
        let value = fields.bytes(field.value);
        if !names_no_fields(value) {
            named.extend_from_slice(value);
            named.push(b',');
        }
    }
    for option in options(&named) {
        let id = Name::from_bytes(option);
        if id == Name::Other || marks(id) & (HOP | UPGRADE | KEPT) == 0 {
            fields.remove(option);
        }
    }
}

/// Whether the field is hop-by-hop or set by the proxy itself, so that a look-alike could be
/// mistaken for it.
pub(super) fn is_ours(id: Name) -> bool {
    marks(id) & (HOP | UPGRADE | OWN) != 0
}

fn names_no_fields(value: &[u8]) -> bool {
    const USUAL: [&[u8]; 4] = [b"keep-alive", b"close", b"upgrade", b"keep-alive, Upgrade"];
    value == USUAL[0] || USUAL.iter().any(|usual| usual.eq_ignore_ascii_case(value))
}

/// Hop-by-hop fields; of these only [`UPGRADE`] may stay.
const HOP: u8 = 1;
const UPGRADE: u8 = 1 << 1;
/// The field that names others; it is hop-by-hop, too.
const CONNECTION: u8 = 1 << 2;
/// Fields that identify the sender of a request.
const IDENTITY: u8 = 1 << 3;
/// Forwarded headers, which describe previous hops; any client can write them.
const FORWARDED: u8 = 1 << 4;
/// Fields from an origin to nginx only (the fixed list of `proxy_hide_header`).
const FOR_PROXIES: u8 = 1 << 5;
/// Fields that the proxy or its plugins set themselves.
const OWN: u8 = 1 << 6;
/// Connection may not remove these: they are for every recipient.
const KEPT: u8 = 1 << 7;

#[inline(always)]
fn marks(id: Name) -> u8 {
    MARKS[usize::from(id as u8)]
}

/// The marks of each name, by its number.
static MARKS: [u8; 256] = build();

const fn build() -> [u8; 256] {
    use Name::{
        Apikey, Authorization, CacheControl, Connection, ContentEncoding, ContentLength, ContentRange,
        ContentType, Cookie, Date, Expect, Forwarded, Host, Http2Settings, KeepAlive, Location, Proxy,
        ProxyAuthenticate, ProxyAuthorization, ProxyConnection, Range, SetCookie, SluiceHops, Te, Trailer,
        TransferEncoding, Upgrade, Via, WwwAuthenticate, XAccelBuffering, XAccelCharset, XAccelExpires,
        XAccelLimitRate, XAccelRedirect, XConsumerCustomId, XConsumerUsername, XCredentialIdentifier,
        XForwardedFor, XForwardedHost, XForwardedPort, XForwardedProto, XPad, XRealIp,
    };
    let mut all = [0; 256];
    // `Proxy` is not an HTTP field, but CGI-like origins would take it for a setting
    // (CVE-2016-5385).
    all = mark(all, HOP, &[Connection, Http2Settings, KeepAlive, Proxy, ProxyAuthenticate]);
    all = mark(all, HOP, &[ProxyAuthorization, ProxyConnection, Te, TransferEncoding]);
    all = mark(all, UPGRADE, &[Upgrade]);
    all = mark(all, CONNECTION, &[Connection]);
    let identity = [XConsumerCustomId, XConsumerUsername, XCredentialIdentifier];
    all = mark(all, IDENTITY | OWN | KEPT, &identity);
    let told = [SluiceHops, XForwardedFor, XForwardedHost, XForwardedPort, XForwardedProto];
    all = mark(all, FORWARDED | OWN | KEPT, &told);
    all = mark(all, FORWARDED | KEPT, &[Forwarded]);
    all = mark(all, OWN | KEPT, &[XRealIp]);
    all = mark(all, FOR_PROXIES, &[XAccelBuffering, XAccelCharset, XAccelExpires, XAccelLimitRate]);
    all = mark(all, FOR_PROXIES, &[XAccelRedirect, XPad]);
    all = mark(all, KEPT, &[Apikey, Authorization, CacheControl, ContentEncoding, ContentLength]);
    all = mark(all, KEPT, &[ContentRange, ContentType, Cookie, Date, Expect, Host, Location, Range]);
    mark(all, KEPT, &[SetCookie, Trailer, Via, WwwAuthenticate])
}

const fn mark(mut all: [u8; 256], marks: u8, names: &[Name]) -> [u8; 256] {
    let mut at = 0;
    while at < names.len() {
        all[names[at] as usize] |= marks;
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::decode::{Limits, Progress, request};

    fn stripped(lines: &str, keep_upgrade: bool) -> String {
        let input = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut head = RequestHead::default();
        let read = request(input.as_bytes(), &mut Progress::default(), &mut head, &Limits::default());
        assert_eq!(read, Ok(Some(input.len())));
        strip_request(&mut head, keep_upgrade);
        let mut out = Vec::new();
        head.fields.write_to(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn table() {
        let cases: &[(&str, bool, &str)] = &[
            ("X: y\r\n", false, "X: y\r\n"),
            ("Connection: close\r\nX: y\r\n", false, "X: y\r\n"),
            ("Connection: x, Y\r\nX: 1\r\ny: 2\r\nx: 3\r\nz: 4\r\n", false, "z: 4\r\n"),
            ("X: 1\r\nConnection: x\r\nY: 2\r\nConnection: y\r\nZ: 3\r\n", false, "Z: 3\r\n"),
            ("Connection: Accept\r\nAccept: a\r\nUser-Agent: b\r\n", false, "User-Agent: b\r\n"),
            (
                "Connection: Host, Content-Length, X-Forwarded-For, x-real-ip, Authorization, , sluice-hops\r\n\
                 Content-Length: 1\r\nX-Forwarded-For: c\r\nAuthorization: d\r\nSluice-Hops: 9\r\n",
                false,
                "Content-Length: 1\r\nX-Forwarded-For: c\r\nAuthorization: d\r\nSluice-Hops: 9\r\n",
            ),
            (
                "Keep-Alive: 1\r\nProxy-Connection: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\
                 Proxy: evil\r\nHTTP2-Settings: a\r\nProxy-Authorization: b\r\nProxy-Authenticate: c\r\n\
                 Trailer: x\r\nUpgrade: h2c\r\n",
                false,
                "Trailer: x\r\n",
            ),
            ("Connection: Upgrade\r\nUpgrade: websocket\r\n", true, "Upgrade: websocket\r\n"),
            ("Connection: upgrade, Upgrade\r\nUpgrade: websocket\r\n", true, "Upgrade: websocket\r\n"),
            ("Connection: Upgrade\r\nUpgrade: websocket\r\n", false, ""),
            (
                "X-Consumer-Username: a\r\nx_consumer_username: b\r\nX-Credential_Identifier: c\r\n\
                 X-Credential-Identifier: d\r\nX_CONSUMER_CUSTOM_ID: e\r\nx-consumer-custom-id: f\r\n\
                 X-Consumer-Group-Id: g\r\nx_consumer_any: h\r\nX-CREDENTIAL-: i\r\n\
                 X-Consumers: stays\r\nX_Consumer: stays\r\nY-Consumer-Id: stays\r\nX-Credentials-: stays\r\n",
                false,
                "X-Consumers: stays\r\nX_Consumer: stays\r\nY-Consumer-Id: stays\r\nX-Credentials-: stays\r\n",
            ),
            (
                "X_Real_IP: a\r\nX-Forwarded_For: b\r\nx_forwarded_proto: c\r\nX-Real-IP: d\r\nX_Request_Id: e\r\n",
                false,
                "X-Real-IP: d\r\nX_Request_Id: e\r\n",
            ),
        ];
        for (lines, keep_upgrade, left) in cases {
            assert_eq!(stripped(lines, *keep_upgrade), format!("Host: a\r\n{left}"), "{lines:?}");
        }
    }

    fn head_with(names: &[&str]) -> RequestHead {
        let mut head = RequestHead::default();
        names.iter().for_each(|name| head.fields.append(name.as_bytes(), b"x").unwrap());
        head
    }

    #[test]
    fn forwarded_headers_are_recorded() {
        for name in [
            "Forwarded",
            "Sluice-Hops",
            "X-Forwarded-For",
            "x-forwarded-host",
            "X-Forwarded-Port",
            "X-FORWARDED-PROTO",
        ] {
            let mut head = head_with(&["Host", name]);
            strip_request(&mut head, false);
            assert!(head.has_forwarded && head.fields.len() == 2, "{name}");
        }
        for names in [&["Host"][..], &["Host", "X-Real-IP", "X-Forwarded", "Via"], &[]] {
            let mut head = head_with(names);
            strip_request(&mut head, false);
            assert!(!head.has_forwarded, "{names:?}");
        }
    }

    #[test]
    fn a_head_of_hop_by_hop_fields_only_is_emptied() {
        let mut head = head_with(&["X-Consumer-Custom-ID", "X-Consumer-Username", "X-Credential-Identifier"]);
        strip_request(&mut head, false);
        assert!(head.fields.is_empty());
        let names = [
            "X-Accel-Buffering",
            "X-Accel-Charset",
            "X-Accel-Expires",
            "X-Accel-Limit-Rate",
            "X-Accel-Redirect",
            "X-Pad",
        ];
        let mut head = ResponseHead::default();
        names.iter().for_each(|name| head.fields.append(name.as_bytes(), b"x").unwrap());
        strip_response(&mut head, false);
        assert!(head.fields.is_empty());
        assert_eq!(head.accel_expires.map(|span| head.fields.bytes(span)), Some(&b"x"[..]));
    }

    #[test]
    fn fields_for_proxies_are_removed() {
        let mut head = ResponseHead::default();
        for (name, value) in [
            ("X-Accel-Expires", "7"),
            ("x-accel-redirect", "/internal"),
            ("X-Accel-Buffering", "no"),
            ("X-Pad", "avoid"),
            ("X-Accel", "stays"),
        ] {
            head.fields.append(name.as_bytes(), value.as_bytes()).unwrap();
        }
        strip_response(&mut head, false);
        let mut out = Vec::new();
        head.fields.write_to(&mut out);
        assert_eq!(out, b"X-Accel: stays\r\n");
        assert_eq!(head.accel_expires.map(|span| head.fields.bytes(span)), Some(&b"7"[..]));
    }

    #[test]
    fn responses_likewise() {
        let mut head = ResponseHead::default();
        for (name, value) in
            [("Connection", "x-secret"), ("X-Secret", "1"), ("Server", "s"), ("Keep-Alive", "5")]
        {
            head.fields.append(name.as_bytes(), value.as_bytes()).unwrap();
        }
        strip_response(&mut head, false);
        let mut out = Vec::new();
        head.fields.write_to(&mut out);
        assert_eq!(out, b"Server: s\r\n");
    }
}
