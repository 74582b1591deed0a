//! Response heads, rule by rule.

use wire::h1::Refusal;
use wire::h1::decode::{Limits, Progress, response};
use wire::{Framing, Method, Name, ResponseHead, Version};

fn read_for(method: Method, input: &str) -> Result<Option<(usize, ResponseHead)>, Refusal> {
    let limits = Limits::default();
    let mut head = ResponseHead::default();
    let whole = response(input.as_bytes(), &mut Progress::default(), &mut head, method, &limits);
    let mut slow = ResponseHead::default();
    let mut progress = Progress::default();
    let mut last = Ok(None);
    for end in 1..=input.len() {
        last = response(&input.as_bytes()[..end], &mut progress, &mut slow, method, &limits);
        if last != Ok(None) {
            break;
        }
    }
    match (whole, last) {
        (Err(_), Ok(None)) => {}
        _ => assert_eq!(whole, last, "{input:?} byte by byte"),
    }
    Ok(whole?.map(|consumed| (consumed, head)))
}

fn good(method: Method, input: &str) -> ResponseHead {
    let Ok(Some((consumed, head))) = read_for(method, input) else {
        panic!("{input:?}: {:?}", read_for(method, input));
    };
    assert_eq!(consumed, input.len());
    head
}

#[test]
fn status_lines() {
    let cases = [
        ("HTTP/1.1 200 OK", 200, "OK", Version::Http11),
        ("HTTP/1.0 404 Not  Found ", 404, "Not  Found ", Version::Http10),
        ("HTTP/1.1 200 ", 200, "", Version::Http11),
        ("HTTP/1.1 200", 200, "", Version::Http11),
        ("HTTP/1.1 100 Continue", 100, "Continue", Version::Http11),
        ("HTTP/1.1 599 \u{e9}\t", 599, "\u{e9}\t", Version::Http11),
        ("HTTP/1.1 999 x", 999, "x", Version::Http11),
        // Rules for requests only.
        ("HTTP/1.1 200 OK\r\nHost: a\r\nHost: a b\r\nExpect: x", 200, "OK", Version::Http11),
    ];
    for (line, status, reason, version) in cases {
        let head = good(Method::Get, &format!("{line}\r\nX: y\r\n\r\n"));
        assert_eq!((head.status, head.version), (status, version));
        assert_eq!(head.reason(), reason.as_bytes());
        assert_eq!(head.fields.len(), line.split("\r\n").count());
    }
}

#[test]
fn refused() {
    use Refusal::*;
    let cases: &[(&str, Refusal)] = &[
        ("HTTP/1.1 200 OK\n\n", BareLf),
        ("HTTP/1.1 200 OK\r\nX: y\n\r\n", BareLf),
        ("HTTP/1.1 200\n\r\n", BareLf),
        ("HTTP/1.1 200 OK\r\nX: y\rZ: a\r\n\r\n", BareCr),
        ("HTTP/1.1 200 O\rK\r\n\r\n", BareCr),
        ("HTTP/1.1 200 O\0K\r\n\r\n", Nul),
        ("HTTP/1.1 200 O\x07K\r\n\r\n", Control),
        ("HTTP/1.1 200 OK\r\nX: \0\r\n\r\n", Nul),
        ("HTTP/1.1 200 OK\r\nX: \x01\r\n\r\n", Control),
        ("HTTP/1.1 200 OK\r\n X: y\r\n\r\n", LeadingSpace),
        ("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", LeadingSpace),
        ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", SpaceBeforeColon),
        ("HTTP/1.1 200 OK\r\nX\r\n\r\n", FieldName),
        ("HTTP/1.1 200 OK\r\n: y\r\n\r\n", FieldName),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n", StatusLine),
        ("HTTP/1.1  200 OK\r\n\r\n", StatusLine),
        ("HTTP/1.1 20 OK\r\n\r\n", StatusLine),
        ("HTTP/1.1 2000 OK\r\n\r\n", StatusLine),
        ("HTTP/1.1 200OK\r\n\r\n", StatusLine),
        ("HTTP/1.1 200\tOK\r\n\r\n", StatusLine),
        ("HTTP/1.1 +20 OK\r\n\r\n", StatusLine),
        ("HTTP/1.1\t200 OK\r\n\r\n", StatusLine),
        ("HTTP/1.1\r\n\r\n", StatusLine),
        ("HTTP/1.1 099 OK\r\n\r\n", Status),
        ("HTTP/1.1 000 OK\r\n\r\n", Status),
        ("HTTP/2.0 200 OK\r\n\r\n", UnsupportedVersion),
        ("HTTP/1.2 200 OK\r\n\r\n", UnsupportedVersion),
        ("HTTP/1.x 200 OK\r\n\r\n", Version),
        ("HTTP/x.1 200 OK\r\n\r\n", Version),
        ("HTTP/2 200 OK\r\n\r\n", Version),
        ("HTTP/1.10 200 OK\r\n\r\n", StatusLine),
        ("http/1.1 200 OK\r\n\r\n", StatusLine),
        ("ICY 200 OK\r\n\r\n", StatusLine),
        ("SSH-2.0-OpenSSH_9.2\r\n", StatusLine),
        ("SSH-", StatusLine),
        ("<html>", StatusLine),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", RepeatedContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ContentLength),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", LengthAndCoding),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", TransferEncoding),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n", TransferEncoding),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            TransferEncoding,
        ),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CodingInHttp10),
    ];
    for (input, refusal) in cases {
        match read_for(wire::Method::Get, input) {
            Err(found) => assert_eq!(found, *refusal, "{input:?}"),
            Ok(found) => panic!("{input:?} was read as {found:?}"),
        }
    }
}

#[test]
fn framing_and_keep_alive() {
    use Framing::*;
    let cases: &[(Method, &str, Framing, bool)] = &[
        (Method::Get, "HTTP/1.1 200 OK\r\n", UntilClose, false),
        (Method::Get, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", Length(0), true),
        (Method::Get, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n", Length(7), true),
        (Method::Get, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n", Length(7), false),
        (Method::Get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n", Chunked, true),
        (Method::Get, "HTTP/1.0 200 OK\r\nContent-Length: 7\r\n", Length(7), false),
        (Method::Get, "HTTP/1.0 200 OK\r\nContent-Length: 7\r\nConnection: keep-alive\r\n", Length(7), true),
        (Method::Get, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", UntilClose, false),
        (Method::Get, "HTTP/1.1 500 x\r\n", UntilClose, false),
        (Method::Head, "HTTP/1.1 200 OK\r\n", None, true),
        (Method::Head, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n", None, true),
        (Method::Head, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", None, true),
        (Method::Get, "HTTP/1.1 304 x\r\nContent-Length: 7\r\n", None, true),
        (Method::Get, "HTTP/1.1 304 x\r\nTransfer-Encoding: chunked\r\n", None, false),
        (Method::Get, "HTTP/1.1 204 x\r\n", None, true),
        (Method::Get, "HTTP/1.1 204 x\r\nContent-Length: 0\r\n", None, true),
        (Method::Get, "HTTP/1.1 204 x\r\nContent-Length: 5\r\n", None, false),
        (Method::Get, "HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n", None, false),
        (Method::Get, "HTTP/1.1 103 x\r\nContent-Length: 5\r\n", None, false),
        (Method::Get, "HTTP/1.1 101 x\r\nTransfer-Encoding: chunked\r\n", None, false),
        (Method::Get, "HTTP/1.1 100 x\r\n", None, true),
        (Method::Get, "HTTP/1.1 103 x\r\nLink: y\r\n", None, true),
        (Method::Connect, "HTTP/1.1 200 OK\r\n", None, true),
        (Method::Connect, "HTTP/1.1 299 x\r\nContent-Length: 1\r\n", None, true),
        (Method::Connect, "HTTP/1.1 300 x\r\nContent-Length: 1\r\n", Length(1), true),
        (Method::Connect, "HTTP/1.1 405 OK\r\nContent-Length: 1\r\n", Length(1), true),
        (Method::Post, "HTTP/1.1 205 x\r\nContent-Length: 0\r\n", Length(0), true),
    ];
    for (method, input, framing, keep_alive) in cases {
        let head = good(*method, &format!("{input}\r\n"));
        assert_eq!((head.framing, head.keep_alive), (*framing, *keep_alive), "{input:?}");
    }
    for length in [0, 5] {
        let head = good(Method::Get, &format!("HTTP/1.1 204 x\r\nContent-Length: {length}\r\n\r\n"));
        assert!(!head.fields.contains(Name::ContentLength));
    }
    for (input, upgrade) in [
        ("HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", true),
        ("HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n", false),
        ("HTTP/1.1 101 x\r\nConnection: upgrade\r\n\r\n", false),
        ("HTTP/1.0 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", false),
    ] {
        assert_eq!(good(Method::Get, input).upgrade, upgrade, "{input:?}");
    }
}

#[test]
fn every_prefix_of_a_valid_head_is_incomplete() {
    for input in ["HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "HTTP/1.0 200\r\n\r\n", "HTTP/1.1 200 \r\n\r\n"] {
        for end in 0..input.len() {
            assert!(read_for(Method::Get, &input[..end]).unwrap().is_none(), "{:?}", &input[..end]);
        }
        good(Method::Get, input);
    }
}
