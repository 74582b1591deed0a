//! hot path
//!
//! A request's head from what the `h2` crate gives.

use http::request;
use wire::h1::Refusal;
use wire::h1::decode::Limits;
use wire::parts::Parts;
use wire::{Name, RequestHead, Version};

use crate::down::head::{self, Ask, Asked};

/// Makes a head as strictly as it is made of bytes.
pub(super) fn make(
    from: &request::Parts,
    ends: bool,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    limits: &Limits,
) -> Result<Ask, Refusal> {
    let protocol = from.extensions.get::<h2::ext::Protocol>().map(|protocol| protocol.as_str().as_bytes());
    let uri = &from.uri;
    // Without an authority the crate drops the scheme, having looked at it.
    let connects = protocol.is_none() && from.method == http::Method::CONNECT;
    let scheme = match uri.scheme_str() {
        Some(scheme) => Some(scheme.as_bytes()),
        None if connects => None,
        None => Some(&b"http"[..]),
    };
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    let path = uri.path_and_query().map_or("", |path| path.as_str()).as_bytes();
    let parts =
        Parts { method: from.method.as_str().as_bytes(), scheme, authority, path, ends, clean: false };
    let fields = || {
        from.headers.iter().map(|(name, value)| {
            let name = name.as_str().as_bytes();
            (name, value.as_bytes(), Name::from_bytes(name))
        })
    };
    head::make(&Asked { parts, protocol }, fields, Version::Http2, head, text, limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use wire::{Framing, Method};

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
    fn a_tunnel_to_anywhere_is_a_request_like_others() {
        let (ask, head) = made(Request::connect("a:443"), true).unwrap();
        assert_eq!((ask, head.method, head.host()), (Ask::Answer, Method::Connect, &b"a"[..]));
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
        assert_eq!(made(other, false).unwrap_err(), Refusal::Protocol);
    }
}
