//! Request heads, rule by rule.

use wire::h1::Refusal;
use wire::h1::decode::{Limits, Progress, Underscores, request};
use wire::target::{Doubtful, PathRules};
use wire::{Framing, Method, Name, RequestHead, Version};

fn read_with(input: &[u8], limits: &Limits) -> Result<Option<(usize, RequestHead)>, Refusal> {
    let mut head = RequestHead::default();
    let whole = request(input, &mut Progress::default(), &mut head, limits);
    // Byte by byte the result is the same, and comes no later.
    let mut slow = RequestHead::default();
    let mut progress = Progress::default();
    let mut last = Ok(None);
    for end in 1..=input.len() {
        last = request(&input[..end], &mut progress, &mut slow, limits);
        if last != Ok(None) {
            break;
        }
    }
    match (whole, last) {
        // The fast parser detects more errors in an incomplete head than a search for its end.
        (Err(_), Ok(None)) => {}
        _ => assert_eq!(whole, last, "{:?} byte by byte", String::from_utf8_lossy(input)),
    }
    Ok(whole?.map(|consumed| (consumed, head)))
}

fn read(input: &str) -> Result<Option<(usize, RequestHead)>, Refusal> {
    read_with(input.as_bytes(), &Limits::default())
}

fn good(input: &str) -> RequestHead {
    let Ok(Some((consumed, head))) = read(input) else {
        panic!("{input:?}: {:?}", read(input));
    };
    assert_eq!(consumed, input.len());
    head
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or("not UTF-8")
}

#[test]
fn a_plain_request() {
    let head =
        good("GET /a/b?c=d HTTP/1.1\r\nHost: Example.com:8080\r\nUser-Agent:  x y \t\r\nEmpty:\r\n\r\n");
    assert_eq!(head.method, Method::Get);
    assert_eq!(head.version, Version::Http11);
    assert_eq!(text(head.method_bytes()), "GET");
    assert_eq!(text(head.target()), "/a/b?c=d");
    assert_eq!(text(head.path()), "/a/b");
    assert_eq!(text(head.encoded_path()), "/a/b");
    assert_eq!(text(head.query()), "c=d");
    assert!(head.has_query);
    assert_eq!(text(head.host()), "example.com");
    assert_eq!(text(head.authority()), "Example.com:8080");
    assert_eq!(head.fields.get(Name::UserAgent), Some(&b"x y"[..]));
    assert_eq!(head.fields.get_named(b"empty"), Some(&b""[..]));
    assert_eq!(head.framing, Framing::None);
    assert!(head.keep_alive && !head.expect_continue && !head.upgrade);
}

#[test]
fn refused() {
    use Refusal::*;
    let cases: &[(&str, Refusal)] = &[
        // Line ends.
        ("GET / HTTP/1.1\nHost: a\n\n", BareLf),
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", BareLf),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", BareLf),
        ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", BareLf),
        ("GET / HTTP/1.1\rHost: a\r\n\r\n", BareCr),
        ("GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", BareCr),
        ("GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", BareCr),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \r\r\n\r\n", BareCr),
        ("GET / HTTP/1.1\r\nHost: a\r\n\rX: y\r\n\r\n", BareCr),
        ("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", BareCr),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        // Field lines.
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", LeadingSpace),
        ("GET / HTTP/1.1\r\n\tX: y\r\nHost: a\r\n\r\n", LeadingSpace),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", LeadingSpace),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n", LeadingSpace),
        ("GET / HTTP/1.1\r\nHost: a\r\n \r\n\r\n", LeadingSpace),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", SpaceBeforeColon),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\t: y\r\n\r\n", SpaceBeforeColon),
        ("GET / HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n", SpaceBeforeColon),
        ("GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX(Y: z\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\"Y: z\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: z\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\x0b: z\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\0: z\r\n\r\n", Nul),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", Nul),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n", Nul),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\x08z\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: y\x7f\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \x0b\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[0m\r\n\r\n", Control),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n", DisguisedName),
        ("GET / HTTP/1.1\r\nHost: a\r\ntransfer_encoding: chunked\r\n\r\n", DisguisedName),
        // Content-Length.
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            RepeatedContentLength,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\n",
            RepeatedContentLength,
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1 1\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1.0\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1e1\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \"1\"\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \u{661}\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ,\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n", ContentLength),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", ContentLength),
        // Transfer-Encoding.
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            LengthAndCoding,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            LengthAndCoding,
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;a=b\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: , chunked\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\u{a0}\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \u{212a}chunked\r\n\r\n", TransferEncoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", Control),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\x0c\r\n\r\n", Control),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            TransferEncoding,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
            TransferEncoding,
        ),
        ("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", CodingInHttp10),
        // Host.
        ("GET / HTTP/1.1\r\n\r\n", NoHost),
        ("GET / HTTP/1.1\r\nX: y\r\n\r\n", NoHost),
        ("GET http://a/ HTTP/1.1\r\n\r\n", NoHost),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", RepeatedHost),
        ("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", RepeatedHost),
        ("GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", RepeatedHost),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: http://a\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", Host),
        ("GET / HTTP/1.0\r\nHost: a b\r\n\r\n", Host),
        ("GET http://a/ HTTP/1.1\r\nHost: a b\r\n\r\n", Host),
        ("GET http://a:x/ HTTP/1.1\r\nHost: a\r\n\r\n", Host),
        ("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", Host),
        ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", Host),
        ("GET http://?x HTTP/1.1\r\nHost: a\r\n\r\n", Host),
        // Request line.
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", RequestLine),
        ("GET / a HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        ("GET /\r\n\r\n", RequestLine),
        ("GET\r\n\r\n", RequestLine),
        ("GET HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", Method),
        ("\tGET / HTTP/1.1\r\nHost: a\r\n\r\n", Method),
        ("G@T / HTTP/1.1\r\nHost: a\r\n\r\n", Method),
        ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", Method),
        ("G\0T / HTTP/1.1\r\nHost: a\r\n\r\n", Method),
        ("\x16\x03\x01\x02\0\x01\0\x01", Method),
        ("GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET / HTTP/1.1\t\r\nHost: a\r\n\r\n", Version),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/1.10\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/01.1\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/1\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/1,1\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/.1\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/x.1\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/1.x\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/1.1xx", Version),
        ("GET / HTP/1.1\r\nHost: a\r\n\r\n", Version),
        ("GET / \r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/0.9\r\n\r\n", UnsupportedVersion),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", UnsupportedVersion),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", UnsupportedVersion),
        ("GET / HTTP/9.9\r\nHost: a\r\n\r\n", UnsupportedVersion),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", UnsupportedVersion),
        // Targets.
        ("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET /?#a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET /?\x01 HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET ?a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("OPTIONS ** HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("OPTIONS *?a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET http:/a/ HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET http:a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET http://a#b HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", Host),
        ("CONNECT http://a:80 HTTP/1.1\r\nHost: a\r\n\r\n", Host),
        ("GET /% HTTP/1.1\r\nHost: a\r\n\r\n", PercentEncoding),
        ("GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", PercentEncoding),
        ("GET /%4/1 HTTP/1.1\r\nHost: a\r\n\r\n", PercentEncoding),
        ("GET /%g1 HTTP/1.1\r\nHost: a\r\n\r\n", PercentEncoding),
        ("GET /%u0041 HTTP/1.1\r\nHost: a\r\n\r\n", PercentEncoding),
        ("GET /.. HTTP/1.1\r\nHost: a\r\n\r\n", AboveRoot),
        ("GET /a/../../b HTTP/1.1\r\nHost: a\r\n\r\n", AboveRoot),
        ("GET /%2e%2E/ HTTP/1.1\r\nHost: a\r\n\r\n", AboveRoot),
        ("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a%0d%0aX:y HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a%7f HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a%5Cb HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a/..;/b HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a/.;x/b HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a/..%3b/b HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a/..%2fb HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a%2f..%2fb HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a%2f%2e%2e HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        ("GET /a%2f.;x HTTP/1.1\r\nHost: a\r\n\r\n", BadPath),
        // Connection and Expect.
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", Expectation),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: y 100-continue\r\n\r\n", Expectation),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect:\r\n\r\n", Expectation),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: x\r\n\r\n", Expectation),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: x\r\nExpect: 100-continue\r\n\r\n", Expectation),
    ];
    for (input, refusal) in cases {
        match read(input) {
            Err(found) => assert_eq!(found, *refusal, "{input:?}"),
            Ok(found) => panic!("{input:?} was read as {found:?}"),
        }
    }
}

#[test]
fn a_refused_or_incomplete_head_is_empty() {
    for input in ["GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\n", "GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\n\n"] {
        let mut head = RequestHead::default();
        let _ = request(input.as_bytes(), &mut Progress::default(), &mut head, &Limits::default());
        assert!(head.fields.is_empty());
        assert_eq!((head.path(), head.host(), head.method_bytes()), (&b""[..], &b""[..], &b""[..]));
    }
}

#[test]
fn every_prefix_of_a_valid_head_is_incomplete() {
    for input in [
        "\r\nGET /a?b HTTP/1.1\r\nHost: a:1\r\nX:\ty\r\n\r\n",
        "OPTIONS * HTTP/1.0\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        "GET http://a?b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET https://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        for end in 0..input.len() {
            assert!(read(&input[..end]).unwrap().is_none(), "{:?}", &input[..end]);
        }
        good(input);
        let more = format!("{input}body\nGET");
        assert_eq!(read(&more).unwrap().unwrap().0, input.len());
    }
}

#[test]
fn framing() {
    let cases: &[(&str, Framing)] = &[
        ("", Framing::None),
        ("Content-Length: 0\r\n", Framing::Length(0)),
        ("Content-Length: 12\r\n", Framing::Length(12)),
        ("CONTENT-LENGTH:12\r\n", Framing::Length(12)),
        ("Content-Length: \t12 \r\n", Framing::Length(12)),
        ("Content-Length: 9223372036854775807\r\n", Framing::Length(i64::MAX as u64)),
        ("Transfer-Encoding: chunked\r\n", Framing::Chunked),
        ("Transfer-Encoding: ChunKed \r\n", Framing::Chunked),
    ];
    for (lines, framing) in cases {
        for method in ["GET", "POST", "HEAD", "PURGE", "FOO"] {
            let head = good(&format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
            assert_eq!(head.framing, *framing, "{lines:?}");
        }
    }
    let head = good("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0012\r\n\r\n");
    assert_eq!(head.framing, Framing::Length(12));
    assert_eq!(head.fields.get(Name::ContentLength), Some(&b"12"[..]));
}

#[test]
fn connection_expect_upgrade() {
    // Keep-alive, expect, upgrade.
    let cases: &[(&str, &str, (bool, bool, bool))] = &[
        ("1.1", "", (true, false, false)),
        ("1.0", "", (false, false, false)),
        ("1.1", "Connection: close\r\n", (false, false, false)),
        ("1.1", "Connection: keep-alive, CLOSE\r\n", (false, false, false)),
        ("1.1", "Connection: x\r\nConnection: close\r\n", (false, false, false)),
        ("1.1", "Connection: closed\r\n", (true, false, false)),
        ("1.0", "Connection: keep-alive\r\n", (true, false, false)),
        ("1.0", "Connection: Keep-Alive , x\r\n", (true, false, false)),
        ("1.0", "Connection: keep-alive\r\nConnection: close\r\n", (false, false, false)),
        ("1.0", "Keep-Alive: 5\r\n", (false, false, false)),
        ("1.0", "Proxy-Connection: keep-alive\r\n", (false, false, false)),
        ("1.1", "Expect: 100-Continue\r\nContent-Length: 1\r\n", (true, true, false)),
        ("1.1", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", (true, true, false)),
        ("1.0", "Expect: 100-continue\r\n", (false, false, false)),
        ("1.0", "Expect: other\r\n", (false, false, false)),
        ("1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", (true, false, true)),
        ("1.1", "Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\n", (true, false, true)),
        ("1.1", "Upgrade: websocket\r\n", (true, false, false)),
        ("1.1", "Connection: upgrade\r\n", (true, false, false)),
        ("1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n", (false, false, false)),
    ];
    for (version, lines, expected) in cases {
        let head = good(&format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n"));
        assert_eq!((head.keep_alive, head.expect_continue, head.upgrade), *expected, "{version} {lines:?}");
        assert_eq!(head.fields.contains(Name::Expect), head.expect_continue, "{version} {lines:?}");
    }
}

#[test]
fn target_forms() {
    // Target, path, query, host, authority, Host field.
    type Row<'a> = (&'a str, &'a str, &'a str, &'a str, Option<&'a str>, &'a str, &'a str);
    let cases: &[Row<'_>] = &[
        ("GET /x HTTP/1.1\r\nHost: H:1", "/x", "/x", "h", None, "H:1", "H:1"),
        ("GET /x HTTP/1.1\r\nHost: A.B.:1", "/x", "/x", "a.b", None, "A.B.:1", "A.B.:1"),
        ("GET /? HTTP/1.1\r\nHost: h.", "/?", "/", "h", Some(""), "h.", "h."),
        (
            "GET /a?b?c/..//%zz HTTP/1.1\r\nHost: h",
            "/a?b?c/..//%zz",
            "/a",
            "h",
            Some("b?c/..//%zz"),
            "h",
            "h",
        ),
        ("GET http://A:80/x?y HTTP/1.1\r\nHost: A:80", "/x?y", "/x", "a", Some("y"), "A:80", "A:80"),
        // The target's authority wins over Host (RFC 9112 section 3.2.2).
        ("GET http://a/x HTTP/1.1\r\nHost: b", "/x", "/x", "a", None, "a", "a"),
        ("GET hTTpS://a/x HTTP/1.1\r\nHost: b", "/x", "/x", "a", None, "a", "a"),
        ("GET http://a/x HTTP/1.0\r\nX: y", "/x", "/x", "a", None, "a", "a"),
        ("GET http://a HTTP/1.1\r\nHost: a", "/", "/", "a", None, "a", "a"),
        ("GET http://a?q HTTP/1.1\r\nHost: a", "/?q", "/", "a", Some("q"), "a", "a"),
        ("GET http://[::A]:1 HTTP/1.1\r\nHost: a", "/", "/", "[::a]", None, "[::A]:1", "[::A]:1"),
        ("OPTIONS http://a HTTP/1.1\r\nHost: a", "*", "*", "a", None, "a", "a"),
        ("OPTIONS http://a/ HTTP/1.1\r\nHost: a", "/", "/", "a", None, "a", "a"),
        ("OPTIONS * HTTP/1.1\r\nHost: a", "*", "*", "a", None, "a", "a"),
        ("OPTIONS /x HTTP/1.1\r\nHost: a", "/x", "/x", "a", None, "a", "a"),
        ("CONNECT A:1 HTTP/1.1\r\nHost: b", "A:1", "", "a", None, "A:1", "b"),
        ("get /x HTTP/1.1\r\nHost: a", "/x", "/x", "a", None, "a", "a"),
    ];
    for (line, target, path, host, query, authority, field) in cases {
        let head = good(&format!("{line}\r\n\r\n"));
        assert_eq!(text(head.target()), *target, "{line}");
        assert_eq!(text(head.path()), *path, "{line}");
        assert_eq!(text(head.encoded_path()), *path, "{line}");
        assert_eq!(text(head.host()), *host, "{line}");
        assert_eq!(head.has_query.then(|| text(head.query())), *query, "{line}");
        assert_eq!(text(head.authority()), *authority, "{line}");
        let hosts: Vec<_> = head.fields.all(b"host").map(text).collect();
        assert_eq!(hosts, [*field], "{line}");
    }
    let head = good("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((text(head.host()), text(head.authority())), ("", ""));
}

#[test]
fn bytes_outside_rfc_3986_are_forwarded_encoded() {
    let head = good("GET /\u{e9}\"<>^`{|}?\u{e9}\"<>\\^`{|}%x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(text(head.path()), "/\u{e9}\"<>^`{|}");
    assert_eq!(text(head.encoded_path()), "/%C3%A9%22%3C%3E%5E%60%7B%7C%7D");
    assert_eq!(text(head.query()), "%C3%A9%22%3C%3E%5C%5E%60%7B%7C%7D%x");
    assert_eq!(text(head.target()), "/\u{e9}\"<>^`{|}?\u{e9}\"<>\\^`{|}%x");
}

#[test]
fn values_may_contain_any_byte_but_controls() {
    let mut input = b"GET / HTTP/1.1\r\nHost: a\r\nX: ".to_vec();
    let value: Vec<u8> = (0x21..=0xff).filter(|&byte| byte != 0x7f).chain(*b"\t !").collect();
    input.extend_from_slice(&value);
    input.extend_from_slice(b"\r\n\r\n");
    let (_, head) = read_with(&input, &Limits::default()).unwrap().unwrap();
    assert_eq!(head.fields.get_named(b"x"), Some(&value[..]));
}

#[test]
fn limits() {
    let limits = Limits { head: 64, fields: 2, target: 10, ..Limits::default() };
    let read =
        |input: &str| read_with(input.as_bytes(), &limits).map(|read| read.map(|(consumed, _)| consumed));
    assert!(read("GET /234567890 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().is_some());
    assert_eq!(read("GET /2345678901 HTTP/1.1\r\nHost: a\r\n\r\n"), Err(Refusal::TargetTooLong));
    assert_eq!(read("GET /234567890"), Ok(None), "its end may follow");
    assert_eq!(read("GET /2345678901"), Err(Refusal::TargetTooLong));
    assert_eq!(read("GET /2345678901234"), Err(Refusal::TargetTooLong));
    assert_eq!(read("GET http://789012"), Err(Refusal::TargetTooLong));
    assert_eq!(read("CONNECT abcdefghijk"), Err(Refusal::TargetTooLong));
    assert!(read("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n").unwrap().is_some());
    assert_eq!(read("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\nX: y\r\n\r\n"), Err(Refusal::TooManyFields));
    let exact = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(32));
    assert_eq!(exact.len(), 64);
    assert_eq!(read(&exact), Ok(Some(64)));
    assert_eq!(read(&exact.replace("X: ", "X:  ")), Err(Refusal::HeadTooLarge));
    assert_eq!(read(&format!("{}{}", &exact[..61], "y".repeat(100))), Err(Refusal::BareCr));
    assert_eq!(read(&format!("{}{}", &exact[..60], "y".repeat(100))), Err(Refusal::HeadTooLarge));
    assert_eq!(Refusal::TargetTooLong.status(), 414);
    assert_eq!(Refusal::TargetTooLong.to_string(), Refusal::TargetTooLong.as_str());
    assert_eq!((Version::Http10.as_str(), Version::Http11.as_str()), ("HTTP/1.0", "HTTP/1.1"));
    assert_eq!(Refusal::HeadTooLarge.status(), 431);
    assert_eq!(Refusal::TooManyFields.status(), 431);
    assert_eq!(Refusal::UnsupportedVersion.status(), 505);
    assert_eq!(Refusal::Expectation.status(), 417);
    assert_eq!(Refusal::TransferEncoding.status(), 400);

    let most = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", "a,".repeat(100));
    assert!(self::read(&most).unwrap().is_some());
    // All of its fields count.
    for (first, second, fits) in [
        ("", "a,".repeat(101), false),
        ("keep-alive", "a,".repeat(99), true),
        ("keep-alive", "a,".repeat(100), false),
        (&"a,".repeat(99), "keep-alive".to_owned(), true),
        (&"a,".repeat(100), "keep-alive".to_owned(), false),
    ] {
        let lines = format!("Connection: {first}\r\nConnection: {second}\r\n");
        let read = self::read(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
        assert_eq!(read.map(drop), if fits { Ok(()) } else { Err(Refusal::Connection) }, "{lines}");
    }
}

/// Reads byte by byte, as a slow peer sends; returns the number of bytes at the first result.
fn read_slowly(input: &str, limits: &Limits) -> (usize, Result<Option<usize>, Refusal>) {
    let (mut head, mut progress) = (RequestHead::default(), Progress::default());
    for end in 1..=input.len() {
        let read = request(&input.as_bytes()[..end], &mut progress, &mut head, limits);
        if read != Ok(None) {
            return (end, read);
        }
    }
    (input.len(), Ok(None))
}

#[test]
fn a_slow_peer_is_refused_at_the_first_wrong_byte() {
    let limits = Limits { head: 64, ..Limits::default() };
    let bare = "GET / HTTP/1.1\nHost: a\n";
    assert_eq!(read_slowly(bare, &limits), (15, Err(Refusal::BareLf)));
    let endless = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(100));
    assert_eq!(read_slowly(&endless, &limits), (64, Err(Refusal::HeadTooLarge)));
    for (length, expected) in [(63, Ok(None)), (64, Err(Refusal::HeadTooLarge))] {
        let mut head = RequestHead::default();
        let read = request(&endless.as_bytes()[..length], &mut Progress::default(), &mut head, &limits);
        assert_eq!(read, expected, "{length} at once");
    }
}

#[test]
fn switches() {
    let input = b"GET /a;b%2Fc//d\\e HTTP/1.1\r\nHost: a\r\nA_B: c\r\n\r\n";
    let path = PathRules { refused: Doubtful::NONE, ..PathRules::default() };
    let with = |limits: Limits| read_with(input, &limits).map(|read| read.unwrap().1);
    let head = with(Limits { path, ..Limits::default() }).unwrap();
    assert_eq!(text(head.path()), "/a;b%2Fc/d\\e");
    assert_eq!(text(head.encoded_path()), "/a;b%2Fc/d%5Ce");
    assert!(head.fields.get_named(b"a_b").is_some());
    let head = with(Limits { path, underscores: Underscores::Drop, ..Limits::default() }).unwrap();
    assert!(head.fields.get_named(b"a_b").is_none());
    let others = b"GET / HTTP/1.1\r\nHost: a\r\nX-Other: b\r\nA_B: c\r\nOther: d\r\n\r\n";
    for (underscores, left) in [(Underscores::Drop, 3), (Underscores::Keep, 4)] {
        let limits = Limits { underscores, ..Limits::default() };
        let (_, head) = read_with(others, &limits).unwrap().unwrap();
        assert_eq!(head.fields.len(), left, "{underscores:?}");
        assert_eq!(head.fields.get_named(b"other"), Some(&b"d"[..]), "{underscores:?}");
    }
    let limits = Limits { path, underscores: Underscores::Refuse, ..Limits::default() };
    assert_eq!(with(limits).unwrap_err(), Refusal::Underscore);
    for refused in [Doubtful::ENCODED_SLASH, Doubtful::SEMICOLON, Doubtful::BACKSLASH] {
        let path = PathRules { refused, ..path };
        assert_eq!(with(Limits { path, ..Limits::default() }).unwrap_err(), Refusal::BadPath);
    }
    let path = PathRules { merge_slashes: false, ..path };
    let head = with(Limits { path, ..Limits::default() }).unwrap();
    assert_eq!(text(head.path()), "/a;b%2Fc//d\\e");
}

#[test]
fn ambiguous_path_characters_are_reported() {
    let path = PathRules { refused: Doubtful::NONE, ..PathRules::default() };
    let limits = Limits { path, ..Limits::default() };
    for (target, path, encoded, doubtful) in [
        ("/a/b", "/a/b", "/a/b", Doubtful::NONE),
        ("/a?b;c%2F", "/a", "/a", Doubtful::NONE),
        ("/a;b", "/a;b", "/a;b", Doubtful::SEMICOLON),
        ("/a;b/../c", "/c", "/c", Doubtful::SEMICOLON),
        ("/a%3bb", "/a;b", "/a%3Bb", Doubtful::SEMICOLON),
        ("/a%2fb", "/a%2Fb", "/a%2Fb", Doubtful::ENCODED_SLASH),
        ("/a\\b%5c", "/a\\b\\", "/a%5Cb%5C", Doubtful::BACKSLASH),
        ("/a%00%0a%7f", "/a%00%0A%7F", "/a%00%0A%7F", Doubtful::CONTROL),
        ("http://a/b;%00", "/b;%00", "/b;%00", Doubtful::SEMICOLON.with(Doubtful::CONTROL)),
    ] {
        let input = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (_, head) = read_with(input.as_bytes(), &limits).unwrap().unwrap();
        assert_eq!((text(head.path()), text(head.encoded_path())), (path, encoded), "{target}");
        assert_eq!(head.doubtful, doubtful, "{target}");
        let mut again = Vec::new();
        wire::target::encode_path(head.path(), &head.path_rules, &mut again);
        let normal = (Vec::new(), Vec::new());
        let (mut decoded, mut coded) = normal;
        wire::target::normalise(&again, &limits.path, &mut decoded, &mut coded).unwrap();
        assert_eq!(text(&decoded), path, "{target} encoded again");
    }
    // Dot segments that only some servers recognise are always refused.
    for target in ["/a/..;/b", "/a/..%2fb", "/a/..\\b", "/a/..%5cb"] {
        let input = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(read_with(input.as_bytes(), &limits).unwrap_err(), Refusal::BadPath, "{target}");
    }
}

#[test]
fn expect_continue_without_a_body_is_ignored() {
    for line in ["", "Content-Length: 0\r\n"] {
        let head = good(&format!("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{line}\r\n"));
        assert!(!head.expect_continue, "{line:?}");
    }
}

#[test]
fn look_alikes_of_proxy_fields_are_removed() {
    let lines = "X_Forwarded-For: a\r\nx_real_ip: b\r\nProxy_Connection: c\r\nX_Consumer_Username: d\r\n";
    let input = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}X_Other: e\r\n\r\n");
    let names: Vec<_> = good(&input).fields.iter().map(|(name, _, _)| text(name).to_owned()).collect();
    assert_eq!(names, ["Host", "X_Other"]);
    let limits = Limits { underscores: Underscores::Refuse, ..Limits::default() };
    assert_eq!(read_with(input.as_bytes(), &limits).unwrap_err(), Refusal::Underscore);
}

#[test]
fn method_length_is_limited() {
    let with = |length: usize| read(&format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "M".repeat(length)));
    assert!(with(64).is_ok());
    assert_eq!(with(65).unwrap_err(), Refusal::Method);
}

#[test]
fn a_reused_head_is_cleared() {
    let mut head = RequestHead::default();
    let mut progress = Progress::default();
    let first = b"POST /%41?q HTTP/1.1\r\nHost: A\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    assert!(request(first, &mut progress, &mut head, &Limits::default()).unwrap().is_some());
    let second = b"GET / HTTP/1.0\r\n\r\n";
    assert!(request(second, &mut progress, &mut head, &Limits::default()).unwrap().is_some());
    assert_eq!((head.framing, head.has_query, head.expect_continue), (Framing::None, false, false));
    assert_eq!((text(head.host()), head.fields.len()), ("", 0));
}
