use super::*;

type Run = fn(&mut Chunked, &mut [u8]) -> Result<Relayed, Refusal>;

/// Feeds `input` in the given pieces; returns the output and the number of unread bytes.
fn feed(
    run: Run,
    input: &[u8],
    sizes: impl Iterator<Item = usize>,
) -> Result<(Vec<u8>, usize, bool), Refusal> {
    let mut body = Chunked::default();
    let (mut out, mut buf, mut data) = (Vec::new(), Vec::new(), 0);
    let mut input = input;
    for size in sizes {
        let (now, later) = input.split_at(size.min(input.len()));
        input = later;
        buf.extend_from_slice(now);
        let step = run(&mut body, &mut buf)?;
        assert!(step.emit <= step.consumed && step.consumed <= buf.len());
        out.extend_from_slice(&buf[..step.emit]);
        buf.drain(..step.consumed);
        data += step.data;
        if step.done {
            assert_eq!(body.state, State::Done);
            buf.extend_from_slice(input);
            return Ok((out, buf.len(), true));
        }
    }
    assert!(data <= out.len());
    Ok((out, buf.len(), false))
}

fn whole(run: Run, input: &[u8]) -> Result<(Vec<u8>, usize, bool), Refusal> {
    feed(run, input, std::iter::once(input.len()))
}

const GOOD: &[(&str, &str, &str)] = &[
    ("0\r\n\r\n", "0\r\n\r\n", ""),
    ("5\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
    ("005\r\nhello\r\n000\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
    ("A\r\n0123456789\r\n0\r\n\r\n", "a\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
    (
        "1;a\r\nx\r\n1;a=b\r\ny\r\n1;a=\"b;\\\"\" ; c\r\nz\r\n0;e\r\n\r\n",
        "1\r\nx\r\n1\r\ny\r\n1\r\nz\r\n0\r\n\r\n",
        "xyz",
    ),
    ("2\r\n\r\n\r\n0\r\n\r\n", "2\r\n\r\n\r\n0\r\n\r\n", "\r\n"),
    ("0\r\nX-Sum: 1\r\n\r\n", "0\r\nX-Sum: 1\r\n\r\n", ""),
    ("0\r\nX-Sum: \t 1 \t\r\nA:b\r\nE:\r\n\r\n", "0\r\nX-Sum: 1\r\nA:b\r\nE:\r\n\r\n", ""),
    ("0\r\nX\x31:\t1\r\n\r\n", "0\r\nX1: 1\r\n\r\n", ""),
    (
        "0\r\nContent-Length: 9\r\nX: y\r\ntransfer-encoding: chunked\r\nHost: h\r\nX_Real_IP: i\r\n\r\n",
        "0\r\nX: y\r\n\r\n",
        "",
    ),
];

#[test]
fn canonical_form_payload_and_rest() {
    for (input, framed, payload) in GOOD {
        let input = [input.as_bytes(), b"GET /next"].concat();
        assert_eq!(whole(Chunked::relay, &input), Ok((framed.as_bytes().to_vec(), 9, true)));
        assert_eq!(whole(Chunked::decode, &input), Ok((payload.as_bytes().to_vec(), 9, true)));
        // The canonical form is its own canonical form, in place.
        assert_eq!(whole(Chunked::relay, framed.as_bytes()), Ok((framed.as_bytes().to_vec(), 0, true)));
    }
}

#[test]
fn any_segmentation_gives_the_same_result() {
    for (input, framed, payload) in GOOD {
        let input = [input.as_bytes(), b"!"].concat();
        for step in 1..input.len() {
            let sizes = || std::iter::repeat(step);
            assert_eq!(feed(Chunked::relay, &input, sizes()), Ok((framed.as_bytes().to_vec(), 1, true)));
            assert_eq!(feed(Chunked::decode, &input, sizes()), Ok((payload.as_bytes().to_vec(), 1, true)));
            let cut = || [step, input.len()].into_iter();
            assert_eq!(feed(Chunked::relay, &input, cut()), Ok((framed.as_bytes().to_vec(), 1, true)));
            assert_eq!(feed(Chunked::decode, &input, cut()), Ok((payload.as_bytes().to_vec(), 1, true)));
        }
    }
}

#[test]
fn every_prefix_of_a_valid_body_is_incomplete() {
    for (input, _, _) in GOOD {
        for end in 0..input.len() {
            for run in [Chunked::relay as Run, Chunked::decode] {
                assert!(!whole(run, &input.as_bytes()[..end]).unwrap().2, "{:?}", &input[..end]);
            }
        }
    }
}

#[test]
fn refused() {
    let cases: &[(&str, Refusal)] = &[
        ("\r\n", Refusal::ChunkSize),
        ("\n", Refusal::ChunkSize),
        ("g\r\n", Refusal::ChunkSize),
        ("-1\r\n", Refusal::ChunkSize),
        ("+1\r\n", Refusal::ChunkSize),
        ("0x1\r\n", Refusal::ChunkSize),
        (" 1\r\n", Refusal::ChunkSize),
        ("1 \r\nx\r\n", Refusal::ChunkSize),
        ("1\t;a\r\nx\r\n", Refusal::ChunkSize),
        ("1_0\r\n", Refusal::ChunkSize),
        ("1\0\r\n", Refusal::ChunkSize),
        ("1,1\r\nx\r\n", Refusal::ChunkSize),
        ("8000000000000000\r\n", Refusal::ChunkSize),
        ("ffffffffffffffff\r\n", Refusal::ChunkSize),
        ("10000000000000001\r\n", Refusal::ChunkSize),
        ("1\nx\r\n", Refusal::BareLf),
        ("1\rx\r\n", Refusal::BareCr),
        ("1;a\nx\r\n0\r\n\r\n", Refusal::BareLf),
        ("1;a\rb\r\nx\r\n", Refusal::BareCr),
        ("1;\r\nx\r\n", Refusal::ChunkExtension),
        ("1;a \r\nx\r\n", Refusal::ChunkExtension),
        ("1;a=\r\nx\r\n", Refusal::ChunkExtension),
        ("1;a=b \r\nx\r\n", Refusal::ChunkExtension),
        ("1;a=\"b\r\nx\r\n", Refusal::ChunkExtension),
        ("1;a=\"b\\\r\nx\r\n", Refusal::ChunkExtension),
        ("1;a=\"b\\\"\r\nx\r\n", Refusal::ChunkExtension),
        ("1;a b\r\nx\r\n", Refusal::ChunkExtension),
        ("1;a\0\r\nx\r\n", Refusal::ChunkExtension),
        ("1\r\nxy\r\n", Refusal::ChunkEnd),
        ("1\r\nx\n0\r\n\r\n", Refusal::ChunkEnd),
        ("1\r\nx\ry0\r\n\r\n", Refusal::ChunkEnd),
        ("1\r\nx0\r\n\r\n", Refusal::ChunkEnd),
        ("0\r\n\n", Refusal::BareLf),
        ("0\r\n\rx", Refusal::BareCr),
        ("0\r\nX\r\n\r\n", Refusal::FieldName),
        ("0\r\n:x\r\n\r\n", Refusal::FieldName),
        ("0\r\nX : y\r\n\r\n", Refusal::SpaceBeforeColon),
        ("0\r\nX: y\r\n z\r\n\r\n", Refusal::LeadingSpace),
        ("0\r\nX: y\nZ: a\r\n\r\n", Refusal::BareLf),
        ("0\r\nX: y\rZ: a\r\n\r\n", Refusal::BareCr),
        ("0\r\nX: \0\r\n\r\n", Refusal::Nul),
        ("0\r\nX: \x08\r\n\r\n", Refusal::Control),
    ];
    for (input, refusal) in cases {
        for run in [Chunked::relay as Run, Chunked::decode] {
            assert_eq!(whole(run, input.as_bytes()), Err(*refusal), "{input:?}");
            let bytewise = feed(run, input.as_bytes(), std::iter::repeat_n(1, input.len()));
            assert_eq!(bytewise, Err(*refusal), "{input:?} byte by byte");
        }
    }
}

#[test]
fn limits() {
    let limits = ChunkLimits { line: 16, extensions: 20, trailers: 24 };
    let run = |input: &str| Chunked::new(limits).relay(&mut input.as_bytes().to_vec());
    assert!(run("00000000000001\r\nx").is_ok());
    assert_eq!(run("000000000000001\r\nx"), Err(Refusal::ChunkLine));
    assert_eq!(run("00000000000000000"), Err(Refusal::ChunkLine));
    assert!(run("1;aaaaaaaaaaaa\r\nx").is_ok());
    assert_eq!(run("1;aaaaaaaaaaaaa\r\nx"), Err(Refusal::ChunkLine));
    assert_eq!(run("1;aaaaaaaaaaaaaaaa"), Err(Refusal::ChunkLine));
    assert!(run("1;aaaaaaaaa\r\nx\r\n1;aaaaaaaaa\r\nx").is_ok());
    assert_eq!(run("1;aaaaaaaaa\r\nx\r\n1;aaaaaaaaaa\r\nx"), Err(Refusal::ChunkExtension));
    assert!(run("0\r\nabc: 12345\r\nabc: 1234\r\n\r\n").unwrap().done);
    assert!(run("0\r\nabc: 12345\r\nabc: 12345\r\n\r\n").unwrap().done, "24 bytes");
    assert_eq!(run("0\r\nabc: 12345\r\nabc: 123456\r\n\r\n"), Err(Refusal::TrailersTooLarge));
    assert!(run("7fffffffffffff\r\nx").is_ok());
    let largest = Chunked::default().relay(&mut b"7fffffffffffffff\r\nx".to_vec()).unwrap();
    assert_eq!((largest.data, largest.done), (1, false), "2^63 - 1 is the largest size");
    assert_eq!(run("0\r\nabcdefghijklmnopqrstuvwxyza"), Err(Refusal::TrailersTooLarge));
    assert_eq!(run("0\r\nabc: 12345\r\nabc: 12345678901234567890"), Err(Refusal::TrailersTooLarge));
}

#[test]
fn significant_names_are_never_forwarded_as_trailers() {
    const REFUSED: &str = "apikey authorization cache-control connection content-encoding content-length \
        content-range content-type cookie expect forwarded host http2-settings if-match if-modified-since \
        if-none-match if-range if-unmodified-since keep-alive location pragma proxy proxy-authenticate \
        proxy-authorization proxy-connection range set-cookie te trailer transfer-encoding upgrade vary \
        www-authenticate x-consumer-custom-id x-consumer-username x-credential-identifier x-forwarded-for \
        x-forwarded-host x-forwarded-port x-forwarded-proto x-real-ip";
    for name in REFUSED.split_whitespace() {
        for spelling in [name.to_owned(), name.to_ascii_uppercase(), name.replace('-', "_")] {
            let input = format!("0\r\n{spelling}: x\r\nX-Kept: y\r\n\r\n");
            let relayed = whole(Chunked::relay, input.as_bytes());
            assert_eq!(relayed, Ok((b"0\r\nX-Kept: y\r\n\r\n".to_vec(), 0, true)), "{spelling}");
            let mut body = Chunked::default();
            assert!(body.decode(&mut input.into_bytes()).unwrap().done);
            let names: Vec<_> = body.trailers().iter().map(|(name, _, _)| name).collect();
            assert_eq!(names, [b"X-Kept"], "{spelling}");
        }
    }
    // Trailers that senders know only at the end may pass.
    for name in ["date", "etag", "expires", "server-timing", "x-checksum", "grpc-status"] {
        let input = format!("0\r\n{name}: x\r\n\r\n");
        assert_eq!(whole(Chunked::relay, input.as_bytes()), Ok((input.into_bytes(), 0, true)), "{name}");
    }
}

#[test]
fn trailers_apart_are_kept_and_the_final_line_is_left_out() {
    let body = "3\r\nabc\r\n0\r\n";
    for (trailers, kept, end) in [
        ("", &[][..], "\r\n"),
        ("Content-Length: 5\r\n", &[], "\r\n"),
        ("X-A: 1\r\nHost: b\r\nX-B:2\r\n", &[(&b"X-A"[..], &b"1"[..]), (b"X-B", b"2")], ""),
    ] {
        let input = format!("{body}{trailers}\r\nNEXT");
        for cut in 0..=input.len() - 4 {
            let mut chunked = Chunked::default().with_trailers_apart();
            let (mut out, mut rest) = (Vec::new(), Vec::new());
            let mut done = false;
            for part in [&input[..cut], &input[cut..]] {
                rest.extend_from_slice(part.as_bytes());
                let relayed = chunked.relay(&mut rest).unwrap();
                out.extend_from_slice(&rest[..relayed.emit]);
                rest.drain(..relayed.consumed);
                done = relayed.done;
            }
            assert!(done && rest == b"NEXT", "{trailers:?}");
            assert_eq!(String::from_utf8(out).unwrap(), format!("{body}{end}"), "{trailers:?} cut at {cut}");
            let seen: Vec<_> = chunked.trailers().iter().map(|(name, value, _)| (name, value)).collect();
            assert_eq!(seen, kept);
        }
    }
}

#[test]
fn decode_keeps_trailers_that_may_be_forwarded() {
    let mut body = Chunked::default();
    let mut buf = b"1\r\nx\r\n0\r\ngrpc-status: 0\r\nConnection: close\r\n\r\n".to_vec();
    let step = body.decode(&mut buf).unwrap();
    assert!(step.done && step.emit == 1 && step.data == 1);
    let trailers: Vec<_> = body.trailers().iter().map(|(name, value, _)| (name, value)).collect();
    assert_eq!(trailers, [(&b"grpc-status"[..], &b"0"[..])]);
    body.reset();
    assert!(body.trailers().is_empty() && body.state != State::Done);
}
