//! A request head that was parsed, stripped and written again reads the same.

use wire::RequestHead;
use wire::h1::decode::{Limits, Progress, request};
use wire::h1::{encode, hop};

/// A proxied head is a valid head, with the same path, host and framing. Other input is passed over.
pub fn check(input: &[u8]) {
    let head = &mut RequestHead::default();
    if !matches!(request(input, &mut Progress::default(), head, &Limits::default()), Ok(Some(_))) {
        return;
    }
    if head.method == wire::Method::Connect {
        return;
    }
    let framing = head.framing;
    hop::strip_request(head, false);
    if head.fields.get(wire::Name::Host).is_none() {
        head.fields.append_id(wire::Name::Host, b"a").expect("a host");
    }
    let mark: &[u8] = if head.has_query { b"?" } else { b"" };
    let mut out = Vec::new();
    let target = |out: &mut Vec<u8>| {
        [head.encoded_path(), mark, head.query()].iter().for_each(|part| out.extend_from_slice(part));
        Ok(())
    };
    encode::request_line(head.method_bytes(), target, &mut out).expect("a target");
    head.fields.write_to(&mut out);
    if framing == wire::Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
    let mut again = RequestHead::default();
    // Encoding may lengthen a target beyond its limit, not beyond three times its length.
    let limits = Limits { head: 1 << 20, target: 1 << 20, fields: 110, ..Limits::default() };
    let read = request(&out, &mut Progress::default(), &mut again, &limits);
    assert_eq!(read, Ok(Some(out.len())), "{}", out.escape_ascii());
    assert_eq!(again.path(), head.path());
    assert_eq!(again.encoded_path(), head.encoded_path());
    assert_eq!(again.query(), head.query());
    assert_eq!(again.framing, framing);
    if !head.host().is_empty() {
        assert_eq!(again.host(), head.host());
    }
    assert!(again.keep_alive && !again.upgrade);
}
