//! A head built from its parts equals the head parsed from the same HTTP/1 bytes, or both are
//! refused.

use proptest::prelude::*;
use wire::h1::decode::Limits;
use wire::h1::{Progress, Refusal};

use wire::parts::{self, Parts};
use wire::{Field, Framing, Name, RequestHead, Span, Version};

/// The pieces of a request, as another protocol may deliver them.
#[derive(Debug, Clone)]
struct Request {
    method: Vec<u8>,
    path: Vec<u8>,
    authority: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    ends: bool,
}

fn from_parts(request: &Request, head: &mut RequestHead) -> Result<(), Refusal> {
    let parts = Parts {
        method: &request.method,
        scheme: Some(b"http"),
        authority: Some(&request.authority),
        path: &request.path,
        ends: request.ends,
        clean: false,
    };
    let (lines, fields) = lines(request.fields.iter().map(|(name, value)| (&name[..], &value[..])));
    parts::request(&parts, &lines, fields, Version::Http2, head, &mut Vec::new(), &Limits::default())
}

/// Fields as a decoder writes them.
fn lines<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> (Vec<u8>, Vec<Field>) {
    let mut lines = Vec::new();
    let fields = fields.map(|(name, value)| {
        let mut put = |bytes: &[u8], behind: &[u8]| {
            let span = Span { start: lines.len() as u32, len: bytes.len() as u32 };
            lines.extend([bytes, behind].concat());
            span
        };
        Field {
            id: Name::from_bytes(name),
            is_line: true,
            name: put(name, b": "),
            value: put(value, b"\r\n"),
        }
    });
    let fields = fields.collect();
    (lines, fields)
}

fn ends_a_line(piece: &[u8]) -> bool {
    piece.iter().any(|byte| matches!(byte, b'\r' | b'\n'))
}

/// The same request as HTTP/1 bytes.
fn from_bytes(request: &Request, head: &mut RequestHead) -> Result<(), Refusal> {
    let fields = request.fields.iter().flat_map(|(name, value)| [name, value]);
    if [&request.method, &request.path, &request.authority]
        .into_iter()
        .chain(fields)
        .any(|piece| ends_a_line(piece))
    {
        return Err(Refusal::BareCr);
    }
    let mut bytes = request.method.clone();
    bytes.extend_from_slice(b" ");
    bytes.extend_from_slice(&request.path);
    bytes.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    bytes.extend_from_slice(&request.authority);
    bytes.extend_from_slice(b"\r\n");
    let mut sized = false;
    for (name, value) in &request.fields {
        if name.eq_ignore_ascii_case(b"host") && *value == request.authority {
            continue;
        }
        sized |= name.eq_ignore_ascii_case(b"content-length");
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
    }
    if !sized && !request.ends {
        bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    match wire::h1::request(&bytes, &mut Progress::default(), head, &Limits::default()) {
        Ok(Some(n)) if n == bytes.len() => Ok(()),
        // The pieces contained a line end: the rest would be another message.
        Ok(_) => Err(Refusal::RequestLine),
        Err(refusal) => Err(refusal),
    }
}

/// The content of a head, without anything specific to HTTP/1.
fn shown(head: &RequestHead) -> String {
    let mut text = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {} {}\n",
        head.method,
        head.method_bytes(),
        head.target(),
        head.path(),
        head.encoded_path(),
        (head.has_query, head.query()),
        head.host(),
        head.authority(),
        head.expect_continue,
        head.doubtful == wire::target::Doubtful::NONE,
    );
    text.push_str(&format!("{:?}", head.framing));
    for (name, value, id) in head.fields.iter().filter(|(.., id)| *id != Name::TransferEncoding) {
        text.push_str(&format!("\n{id:?} {name:?} {value:?}"));
    }
    text
}

/// Whether the request has an HTTP/1-specific meaning, and so is refused only in parts.
fn is_http1_specific(request: &Request) -> bool {
    const HOP: [&str; 6] =
        ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te"];
    let space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let odd_path = !matches!(request.path.first(), Some(b'/')) && request.path != b"*";
    let ends_early = request.ends
        && request.fields.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case(b"content-length") && value.iter().any(|digit| *digit != b'0')
        });
    odd_path
        || ends_early
        || request.method == b"CONNECT"
        || space(request.authority.first())
        || space(request.authority.last())
        || request.fields.iter().any(|(name, value)| {
            HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop.as_bytes()))
                // In HTTP/1 the name would end there.
                || name.contains(&b':')
                || space(value.first())
                || space(value.last())
        })
}

fn compare(request: &Request) {
    let (mut one, mut other) = (RequestHead::default(), RequestHead::default());
    let parts = from_parts(request, &mut one);
    let bytes = from_bytes(request, &mut other);
    match (parts, bytes) {
        (Ok(()), Ok(())) => assert_eq!(shown(&one), shown(&other), "{request:?}"),
        (Err(_), Err(_)) => {}
        (Err(refusal), Ok(())) => {
            assert!(is_http1_specific(request), "{refusal:?} in parts alone: {request:?}")
        }
        (Ok(()), Err(refusal)) => panic!("{refusal:?} in bytes alone: {request:?}"),
    }
}

fn text(usual: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::sample::select(usual).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => "[ -~\r\n\t]{0,12}".prop_map(String::into_bytes),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let method = text(&["GET", "POST", "PUT", "OPTIONS", "CONNECT", "QUERY", ""]);
    let path =
        text(&["/", "/a/../b?c=d", "/a%2Fb;c", "/%zz", "*", "http://a/b", "/a b", "//x\\y", "/\u{e4}?\""]);
    let authority = text(&["a", "a:80", "A.example.", "[::1]:8", "a b", "a@b", ""]);
    let name = text(&[
        "accept",
        "x-one",
        "Content-Length",
        "content_length",
        "host",
        "te",
        "connection",
        "Expect",
        "x_y",
        "a b",
        "transfer-encoding",
        "cookie",
    ]);
    let value =
        text(&["1", "5", "05", "a", "100-continue", "trailers", "chunked", "a\r\nb: c", "x\0y", " padded "]);
    let fields = prop::collection::vec((name, value), 0..5);
    (method, path, authority, fields, any::<bool>())
        .prop_map(|(method, path, authority, fields, ends)| Request { method, path, authority, fields, ends })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn parts_and_bytes_give_the_same_result(request in request()) {
        compare(&request);
    }
}

#[test]
fn a_simple_head_is_built() {
    let mut head = RequestHead::default();
    let mut request = Request {
        method: b"POST".to_vec(),
        path: b"/a/../b?c=d".to_vec(),
        authority: b"A.example:80".to_vec(),
        fields: vec![(b"x-one".to_vec(), b"1".to_vec())],
        ends: false,
    };
    from_parts(&request, &mut head).unwrap();
    assert_eq!((head.path(), head.query(), head.host()), (&b"/b"[..], &b"c=d"[..], &b"a.example"[..]));
    assert_eq!((head.framing, head.version), (Framing::Chunked, Version::Http2));
    request.ends = true;
    from_parts(&request, &mut head).unwrap();
    assert_eq!(head.framing, Framing::None);
    for (name, value) in [
        ("connection", "close"),
        ("keep-alive", "1"),
        ("proxy-connection", "close"),
        ("upgrade", "x"),
        ("te", "gzip"),
        ("transfer-encoding", "chunked"),
    ] {
        request.fields = vec![(name.into(), value.into())];
        assert_eq!(from_parts(&request, &mut head), Err(Refusal::Connection), "{name}");
    }
    request.fields = vec![("host".into(), "b".into())];
    assert_eq!(from_parts(&request, &mut head), Err(Refusal::RepeatedHost));
    request.fields = vec![("host".into(), "A.example:80".into()), ("TE".into(), "Trailers".into())];
    from_parts(&request, &mut head).unwrap();
    assert_eq!(head.fields.all(b"host").count(), 1, "repeated with the same value");
    assert_eq!(head.fields.get(Name::Te), Some(&b"Trailers"[..]));
    request.fields = vec![("content-length".into(), "3".into())];
    assert_eq!(from_parts(&request, &mut head), Err(Refusal::ContentLength), "nothing follows");
    let none = Parts {
        method: b"GET",
        scheme: Some(b"http"),
        authority: None,
        path: b"/",
        ends: true,
        clean: false,
    };
    let made = parts::request(&none, b"", [], Version::Http2, &mut head, &mut Vec::new(), &Limits::default());
    assert_eq!(made, Err(Refusal::NoHost));
}

/// `POST /` to `a`; each test changes one part.
const POST: Parts<'_> = Parts {
    method: b"POST",
    scheme: Some(b"http"),
    authority: Some(b"a"),
    path: b"/",
    ends: false,
    clean: false,
};

type Texts<'a> = &'a [(&'a [u8], &'a [u8])];

fn made(parts: &Parts<'_>, fields: Texts<'_>, limits: &Limits) -> Result<RequestHead, Refusal> {
    let mut head = RequestHead::default();
    let (lines, fields) = lines(fields.iter().copied());
    parts::request(parts, &lines, fields, Version::Http2, &mut head, &mut Vec::new(), limits).map(|()| head)
}

#[test]
fn each_part_is_checked() {
    let limits = Limits::default();
    let connect = Parts { method: b"CONNECT", scheme: None, authority: Some(b"a:1"), path: b"", ..POST };
    let (longest, longer) = ([b'M'; 64], [b'M'; 65]);
    for (parts, expected) in [
        (POST, None),
        (Parts { method: &longest, ..POST }, None),
        (Parts { method: &longer, ..POST }, Some(Refusal::Method)),
        (Parts { method: b"", ..POST }, Some(Refusal::Method)),
        (Parts { method: b"P ST", ..POST }, Some(Refusal::Method)),
        (Parts { scheme: None, ..POST }, Some(Refusal::Target)),
        (Parts { scheme: Some(b"ftp"), ..POST }, Some(Refusal::Target)),
        (Parts { path: b"", ..POST }, Some(Refusal::Target)),
        (Parts { path: b"http://a/", ..POST }, Some(Refusal::Target)),
        (Parts { path: b"*", method: b"OPTIONS", ..POST }, None),
        (connect, None),
        (Parts { authority: Some(b"a"), ..connect }, Some(Refusal::Target)),
        (Parts { authority: None, ..connect }, Some(Refusal::Target)),
        (Parts { path: b"/", ..connect }, Some(Refusal::Target)),
        (Parts { scheme: Some(b"http"), ..connect }, Some(Refusal::Target)),
    ] {
        assert_eq!(made(&parts, &[], &limits).err(), expected, "{parts:?}");
    }
    for (name, value, expected) in [
        ("", "x", Refusal::FieldName),
        ("a b", "x", Refusal::FieldName),
        ("a", "x\0", Refusal::Nul),
        ("a", "x\n", Refusal::Control),
        ("a", " x", Refusal::LeadingSpace),
        ("a", "x\t", Refusal::LeadingSpace),
    ] {
        let refused = made(&POST, &[(name.as_bytes(), value.as_bytes())], &limits).err();
        assert_eq!(refused, Some(expected), "{name:?}: {value:?}");
    }
}

#[test]
fn expect_continue_requires_a_body() {
    let expects: (&[u8], &[u8]) = (b"expect", b"100-continue");
    for (ends, length, waits) in
        [(false, None, true), (false, Some("3"), true), (false, Some("0"), false), (true, None, false)]
    {
        let length = length.map(|length| (&b"content-length"[..], length.as_bytes()));
        let fields: Vec<_> = length.into_iter().chain([expects]).collect();
        let head = made(&Parts { ends, ..POST }, &fields, &Limits::default()).unwrap();
        assert_eq!(head.expect_continue, waits, "{ends} {length:?}");
    }
}

#[test]
fn limits_are_exact() {
    let limits = |head: usize, fields: usize| Limits { head, fields, ..Limits::default() };
    let authority = Parts { authority: Some(b"example"), path: b"/abc", ..POST };
    let bytes = "POST/abcexample".len();
    assert!(made(&authority, &[], &limits(bytes, 9)).is_ok());
    for short in [bytes - 1, bytes - 2] {
        assert_eq!(made(&authority, &[], &limits(short, 9)).err(), Some(Refusal::HeadTooLarge));
    }
    let fields: Texts<'_> = &[(b"abc", b"12345"), (b"de", b"6")];
    let bytes = "POST /abc Hostexampleabc12345de6".len();
    assert!(made(&authority, fields, &limits(bytes, 3)).is_ok());
    for short in [bytes - 1, bytes - 2] {
        assert_eq!(made(&authority, fields, &limits(short, 3)).err(), Some(Refusal::HeadTooLarge));
    }
    // The authority counts as one of them, like Host.
    for few in [2, 1] {
        assert_eq!(made(&authority, fields, &limits(bytes, few)).err(), Some(Refusal::TooManyFields));
    }
    let fields: Texts<'_> = &[(b"host", b"a"), (b"b", b"c")];
    assert!(made(&Parts { authority: None, ..POST }, fields, &limits(bytes, 2)).is_ok());
}
