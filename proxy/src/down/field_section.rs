//! hot path
//!
//! A request's head from a decoded field section, alike for HTTP/2 and HTTP/3.

use wire::h1::Refusal;
use wire::h1::decode::Limits;
use wire::parts::Parts;
use wire::{List, RequestHead, Version};

use super::head::{self, Ask, Asked};

/// The fields that are none, each of which comes once and before the others (RFC 9113 section 8.3, RFC 9114 section 4.3).
pub(super) const PSEUDO: usize = 5;

/// Makes a head as strictly as it is made of bytes.
pub(super) fn make(
    list: &List,
    ends: bool,
    version: Version,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
    limits: &Limits,
) -> Result<Ask, Refusal> {
    let (mut method, mut scheme, mut authority, mut path, mut protocol) = (None, None, None, None, None);
    let mut before = 0;
    for (name, value, _) in list.iter().take_while(|(name, ..)| name.starts_with(b":")) {
        before += 1;
        let place = match name {
            b":method" => &mut method,
            b":scheme" => &mut scheme,
            b":authority" => &mut authority,
            b":path" => &mut path,
            b":protocol" => &mut protocol,
            _ => return Err(Refusal::FieldName),
        };
        if place.replace(value).is_some() {
            return Err(Refusal::RequestLine);
        }
    }
    // One that begins with a colon here comes too late, and no name has one.
    let clean = list.is_clean();
    let is_bad = |name: &[u8]| match clean {
        true => name.starts_with(b":"),
        false => name.iter().any(|byte| byte.is_ascii_uppercase() || *byte == b':'),
    };
    if list.iter().skip(before).any(|(name, ..)| is_bad(name)) {
        return Err(Refusal::FieldName);
    }
    let method = method.ok_or(Refusal::Method)?;
    if authority.is_some_and(<[u8]>::is_empty) {
        return Err(Refusal::Host);
    }
    let path = match (path, protocol.is_none() && method == b"CONNECT") {
        (None, true) => &b""[..],
        (Some(path), false) => path,
        _ => return Err(Refusal::Target),
    };
    let asked = Asked { parts: Parts { method, scheme, authority, path, ends, clean }, protocol };
    head::make(&asked, list.lines(), &list.fields()[before..], version, head, text, limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::h3::qpack;
    use wire::{Framing, Method};

    fn made(fields: &[(&str, &str)], ends: bool) -> Result<(Ask, RequestHead), Refusal> {
        let mut coded = Vec::new();
        qpack::begin(&mut coded);
        for (name, value) in fields {
            // As it is written, also in upper case.
            match name.len() as u8 {
                short @ 0..7 => coded.push(0x20 | short),
                long => coded.extend([0x27, long - 7]),
            }
            coded.extend(name.as_bytes());
            coded.push(value.len() as u8);
            coded.extend(value.as_bytes());
        }
        let mut list = List::default();
        qpack::decode(&coded, &mut list, 4096, 100).unwrap();
        let mut head = RequestHead::default();
        make(&list, ends, Version::Http3, &mut head, &mut Vec::new(), &Limits::default())
            .map(|ask| (ask, head))
    }

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "a.com"), (":path", "/b?c")];

    fn get(more: &[(&str, &str)]) -> Result<(Ask, RequestHead), Refusal> {
        made(&[&GET[..], more].concat(), true)
    }

    #[test]
    fn a_request_is_made_of_its_fields() {
        let (ask, head) =
            get(&[("cookie", "x=1"), ("a", "b"), ("cookie", "y=2"), ("host", "a.com")]).unwrap();
        assert_eq!((ask, head.method, head.framing), (Ask::Answer, Method::Get, Framing::None));
        assert_eq!((head.host(), head.path(), head.query()), (&b"a.com"[..], &b"/b"[..], &b"c"[..]));
        assert_eq!(head.fields.all(b"cookie").collect::<Vec<_>>(), [b"x=1; y=2"]);
        assert_eq!(head.version.as_str(), "HTTP/3.0");
        let post = [(":method", "POST"), (":scheme", "https"), (":path", "/"), ("host", "a")];
        assert_eq!(made(&post, false).unwrap().1.framing, Framing::Chunked);
    }

    #[test]
    fn what_is_ambiguous_is_refused() {
        for (more, why) in [
            (("host", "b.com"), Refusal::RepeatedHost),
            (("connection", "close"), Refusal::Connection),
            (("transfer-encoding", "chunked"), Refusal::Connection),
            (("te", "gzip"), Refusal::Connection),
            (("upgrade", "h2c"), Refusal::Connection),
            (("content-length", "1"), Refusal::ContentLength),
            ((":path", "/"), Refusal::RequestLine),
            ((":status", "200"), Refusal::FieldName),
            ((":own", "200"), Refusal::FieldName),
            (("X-Upper", "1"), Refusal::FieldName),
            (("a:b", "1"), Refusal::FieldName),
            (("a", " b"), Refusal::LeadingSpace),
            (("a", "b\nc"), Refusal::Control),
            (("a", "b\0"), Refusal::Nul),
        ] {
            assert_eq!(get(&[more]).map(|_| ()).unwrap_err(), why, "{more:?}");
        }
        assert_eq!(
            get(&[("a", "b"), (":protocol", "x")]).map(|_| ()).unwrap_err(),
            Refusal::FieldName,
            "late"
        );
        for (without, why) in
            [(":method", Refusal::Method), (":scheme", Refusal::Target), (":path", Refusal::Target)]
        {
            let rest: Vec<_> = GET.into_iter().filter(|(name, _)| *name != without).collect();
            assert_eq!(made(&rest, true).map(|_| ()).unwrap_err(), why, "{without}");
        }
        let with = |name: &str, value| {
            let fields = GET.iter().map(|field| if field.0 == name { (field.0, value) } else { *field });
            made(&fields.collect::<Vec<_>>(), true).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(":path", ""), Refusal::Target);
        assert_eq!(with(":path", "b"), Refusal::Target);
        assert_eq!(with(":path", "http://a.com/"), Refusal::Target);
        assert_eq!(with(":scheme", "ftp"), Refusal::Target);
        assert_eq!(with(":authority", ""), Refusal::Host);
        assert_eq!(with(":authority", "a b"), Refusal::Host);
        assert_eq!(with(":method", "CONNECT"), Refusal::Target);
        assert_eq!(with(":method", "G T"), Refusal::Method);
        let no_host: Vec<_> = GET.into_iter().filter(|(name, _)| *name != ":authority").collect();
        assert_eq!(made(&no_host, true).map(|_| ()).unwrap_err(), Refusal::NoHost);
    }

    #[test]
    fn a_tunnel_is_asked_for_by_connect() {
        let mut fields = [&[(":protocol", "websocket")][..], &GET].concat();
        assert_eq!(
            made(&fields, false).map(|_| ()).unwrap_err(),
            Refusal::Protocol,
            "with GET it means nothing"
        );
        fields[1] = (":method", "CONNECT");
        let (ask, head) = made(&fields, false).unwrap();
        assert_eq!((ask, head.method, head.upgrade), (Ask::Tunnel, Method::Get, true));
        fields[0] = (":protocol", "connect-udp");
        assert_eq!(made(&fields, false).map(|_| ()).unwrap_err(), Refusal::Protocol);
    }
}
