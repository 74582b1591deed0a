//! hot path
//!
//! A request's head from what the `h2` crate gives.

use http::header::{COOKIE, HOST};
use http::request;
use wire::h1::Refusal;
use wire::h1::decode::Limits;
use wire::parts::{self, Parts};
use wire::{Framing, Method, Name, RequestHead, Version};

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Answer,
    /// For the stream to become a tunnel (RFC 8441).
    Tunnel,
}

/// Makes a head as strictly as it is made of bytes.
pub(super) fn make(
    from: &request::Parts,
    ends: bool,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    limits: &Limits,
) -> Result<Ask, Refusal> {
    let protocol = from.extensions.get::<h2::ext::Protocol>();
    if protocol.is_some_and(|protocol| !protocol.as_str().eq_ignore_ascii_case("websocket")) {
        return Err(Refusal::Method);
    }
    // A tunnel is asked for by a handshake that HTTP/1 does with GET (RFC 6455 section 4.1).
    let method = if protocol.is_some() { "GET" } else { from.method.as_str() };
    let uri = &from.uri;
    // Without an authority the crate drops the scheme, having looked at it.
    let connects = protocol.is_none() && from.method == http::Method::CONNECT;
    let scheme = match uri.scheme_str() {
        Some(scheme) => Some(scheme.as_bytes()),
        None if connects => None,
        None => Some(&b"http"[..]),
    };
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let parts = Parts { method: method.as_bytes(), scheme, authority, path: path.as_bytes(), ends };
    // Cookies may come in parts (RFC 9113 section 8.2.3); for everyone else they are one field.
    let mut crumbs = from.headers.get_all(COOKIE).iter();
    let cookie = match (crumbs.next(), crumbs.next()) {
        (Some(first), Some(second)) => {
            let mut whole = first.as_bytes().to_vec();
            for crumb in std::iter::once(second).chain(crumbs) {
                whole.extend_from_slice(b"; ");
                whole.extend_from_slice(crumb.as_bytes());
            }
            Some(whole)
        }
        _ => None,
    };
    if authority.is_some() && from.headers.get_all(HOST).iter().count() > 1 {
        return Err(Refusal::RepeatedHost);
    }
    let fields = from
        .headers
        .iter()
        .filter(|(name, _)| cookie.is_none() || **name != COOKIE)
        .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
        .chain(cookie.as_deref().map(|cookie| (&b"cookie"[..], cookie)));
    parts::request(&parts, fields, Version::Http2, head, text, limits)?;
    if protocol.is_none() {
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

/// Sixteen random bytes in base64 (RFC 6455 section 4.1). They need not be secret.
fn key() -> [u8; 24] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes = fastrand::u128(..);
    let mut key = [b'='; 24];
    for (at, digit) in key[..22].iter_mut().enumerate() {
        // The last digit stands for two bits, with four zeros behind them.
        let bits = match at {
            21 => (bytes << 4) & 0x30,
            _ => bytes >> (128 - 6 * (at + 1)) & 63,
        };
        *digit = DIGITS[bits as usize];
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn made(request: http::request::Builder, ends: bool) -> Result<(Ask, RequestHead), Refusal> {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let mut head = RequestHead::default();
        let limits = Limits::default();
        make(&parts, ends, &mut head, &mut Vec::new(), &limits).map(|ask| (ask, head))
    }

    #[test]
    fn crumbs_of_cookies_become_one() {
        let request =
            Request::get("http://a/b?c").header("cookie", "x=1").header("cookie", "y=2").header("e", "f");
        let (ask, head) = made(request, true).unwrap();
        assert_eq!((ask, head.framing), (Ask::Answer, Framing::None));
        assert_eq!(head.fields.all(b"cookie").collect::<Vec<_>>(), [b"x=1; y=2"]);
        assert_eq!((head.host(), head.path(), head.query()), (&b"a"[..], &b"/b"[..], &b"c"[..]));
    }

    #[test]
    fn host_and_authority_agree() {
        assert!(made(Request::get("http://a/").header("host", "a"), true).is_ok());
        assert_eq!(
            made(Request::get("http://a/").header("host", "b"), true).unwrap_err(),
            Refusal::RepeatedHost
        );
        let twice = Request::get("http://a/").header("host", "a").header("host", "a");
        assert_eq!(made(twice, true).unwrap_err(), Refusal::RepeatedHost);
        assert_eq!(made(Request::get("/"), true).unwrap_err(), Refusal::NoHost);
        assert!(made(Request::get("/").header("host", "b"), true).is_ok());
    }

    #[test]
    fn a_tunnel_is_asked_for_as_in_http_1() {
        let mut request = Request::connect("http://a/chat");
        request = request.extension(h2::ext::Protocol::from_static("websocket"));
        request = request.header("sec-websocket-version", "13");
        let (ask, head) = made(request, false).unwrap();
        assert_eq!(
            (ask, head.method, head.framing, head.upgrade),
            (Ask::Tunnel, Method::Get, Framing::None, true)
        );
        let key = head.fields.get(Name::SecWebsocketKey).unwrap();
        assert!(key.len() == 24 && key.ends_with(b"==") && b"AQgw".contains(&key[21]), "{key:?}");
        let other = Request::connect("http://a/").extension(h2::ext::Protocol::from_static("connect-udp"));
        assert_eq!(made(other, false).unwrap_err(), Refusal::Method);
    }
}
