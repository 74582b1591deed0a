//! The codec against the reference parser and against httparse. Each function returns the codec's
//! verdict, or a text that describes a disagreement.

use wire::h1::decode::{Limits, Progress, request, response};
use wire::h1::{Chunked, Refusal, Relayed};
use wire::{Fields, Framing, Method, RequestHead, ResponseHead, Version};

use super::reference::{self, Body, Parsed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Read,
    More,
    Refused(Refusal),
}

/// Endings that complete a head.
const HEAD_ENDINGS: [&[u8]; 6] = [
    b"\r\n\r\n",
    b"\n\r\n",
    b": a\r\n\r\n",
    b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    b" HTTP/1.0\r\n\r\n",
    b"\r\nHost: a\r\n\r\n",
];

/// Parses `input` at once and in two parts, and with both other parsers.
pub fn requests(input: &[u8], cut: usize) -> Result<Verdict, String> {
    let limits = Limits::default();
    let mut head = RequestHead::default();
    let ours = request(input, &mut Progress::default(), &mut head, &limits);

    let mut later = RequestHead::default();
    let mut progress = Progress::default();
    let first = request(&input[..cut], &mut progress, &mut later, &limits);
    let second = match first {
        Ok(None) => request(input, &mut progress, &mut later, &limits),
        other => other,
    };
    // The part before the cut may already be a complete or invalid head. An error in the part after
    // the cut may be reported only when the head is complete.
    let same = ours == second || matches!((ours, second), (Err(_), Ok(None) | Err(_)));
    if !same {
        return Err(format!("in two parts: {ours:?}, then {second:?}"));
    }

    let theirs = reference::request(input, limits.fields);
    match (ours, theirs) {
        (Ok(Some(consumed)), Parsed::Read(expected)) => {
            let found = as_reference(consumed, &head);
            if found != expected {
                return Err(format!("read as {found:?}\nreference {expected:?}"));
            }
            agree_with_httparse(input, Ok(&head), consumed).map(|()| Verdict::Read)
        }
        (Ok(None), Parsed::More) => Ok(Verdict::More),
        (Err(refusal), Parsed::No) => {
            agree_with_httparse(input, Err(refusal), 0).map(|()| Verdict::Refused(refusal))
        }
        (Err(refusal), Parsed::More) => {
            for ending in HEAD_ENDINGS {
                let whole = [input, ending].concat();
                if matches!(reference::request(&whole, limits.fields), Parsed::Read(_)) {
                    return Err(format!("refused early as {refusal}, but {ending:?} would make it good"));
                }
            }
            Ok(Verdict::Refused(refusal))
        }
        (ours, theirs) => Err(format!("{ours:?}, reference {theirs:?}")),
    }
}

pub fn responses(input: &[u8], cut: usize, method: Method) -> Result<Verdict, String> {
    let limits = Limits::default();
    let mut head = ResponseHead::default();
    let ours = response(input, &mut Progress::default(), &mut head, method, &limits);

    let mut later = ResponseHead::default();
    let mut progress = Progress::default();
    let first = response(&input[..cut], &mut progress, &mut later, method, &limits);
    let second = match first {
        Ok(None) => response(input, &mut progress, &mut later, method, &limits),
        other => other,
    };
    let same = ours == second || matches!((ours, second), (Err(_), Ok(None) | Err(_)));
    if !same {
        return Err(format!("in two parts: {ours:?}, then {second:?}"));
    }

    match (ours, reference::response(input, method.as_str(), limits.fields)) {
        (Ok(Some(consumed)), Parsed::Read(expected)) => {
            let found = reference::Response {
                consumed,
                http11: head.version == Version::Http11,
                status: head.status,
                reason: head.reason().to_vec(),
                fields: list(&head.fields),
                body: body(head.framing),
                keep_alive: head.keep_alive,
            };
            if found == expected {
                Ok(Verdict::Read)
            } else {
                Err(format!("{found:?}\nreference {expected:?}"))
            }
        }
        (Ok(None), Parsed::More) => Ok(Verdict::More),
        (Err(refusal), Parsed::No) => Ok(Verdict::Refused(refusal)),
        (Err(refusal), Parsed::More) => {
            for ending in HEAD_ENDINGS {
                let whole = [input, ending].concat();
                if let Parsed::Read(_) = reference::response(&whole, method.as_str(), limits.fields) {
                    return Err(format!("refused early as {refusal}, but {ending:?} would make it good"));
                }
            }
            Ok(Verdict::Refused(refusal))
        }
        (ours, theirs) => Err(format!("{ours:?}, reference {theirs:?}")),
    }
}

/// Reads a chunked body at once and in pieces, relayed and decoded.
pub fn chunked(input: &[u8], step: usize) -> Result<Verdict, String> {
    let relayed = feed(Chunked::relay, input, input.len());
    let decoded = feed(Chunked::decode, input, input.len());
    let stepwise = feed(Chunked::relay, input, step.max(1));
    if relayed != stepwise {
        return Err(format!("relayed {relayed:?}, in steps of {step} {stepwise:?}"));
    }
    if feed(Chunked::decode, input, step.max(1)) != decoded {
        return Err(format!("decoded otherwise in steps of {step}"));
    }
    match (relayed, decoded, reference::chunked(input)) {
        (Ok((framed, consumed, true)), Ok((payload, same, true)), Parsed::Read(expected)) => {
            let canonical = canonical(&expected);
            if framed != canonical || payload != expected.chunks.concat() {
                return Err(format!("relayed {:?}, expected {:?}", show(&framed), show(&canonical)));
            }
            if consumed != expected.consumed || same != consumed {
                return Err(format!("consumed {consumed}, {same}, expected {}", expected.consumed));
            }
            let again = feed(Chunked::relay, &framed, framed.len());
            if again != Ok((framed.clone(), framed.len(), true)) {
                return Err(format!("not canonical: {:?}", show(&framed)));
            }
            Ok(Verdict::Read)
        }
        (Ok((_, _, false)), Ok((_, _, false)), Parsed::More) => Ok(Verdict::More),
        (Err(refusal), Err(same), Parsed::No) if refusal == same => Ok(Verdict::Refused(refusal)),
        (Err(refusal), Err(same), Parsed::More) if refusal == same => {
            for ending in [&b"\r\n\r\n"[..], b"\n\r\n0\r\n\r\n", b"\r\n0\r\n\r\n", b": a\r\n\r\n"] {
                if let Parsed::Read(_) = reference::chunked(&[input, ending].concat()) {
                    return Err(format!("refused early as {refusal}, but {ending:?} would make it good"));
                }
            }
            Ok(Verdict::Refused(refusal))
        }
        (relayed, decoded, theirs) => Err(format!("{relayed:?}, {decoded:?}, reference {theirs:?}")),
    }
}

/// Normalises a path twice and compares it with the reference.
pub fn paths(raw: &[u8]) -> Result<Verdict, String> {
    let rules = wire::target::PathRules::default();
    let (mut decoded, mut encoded) = (b"before".to_vec(), b"before".to_vec());
    let ours = wire::target::normalise(raw, &rules, &mut decoded, &mut encoded);
    let theirs = reference::normal_path(raw);
    let Some((path, encoded_path)) = theirs else {
        return match ours {
            Err(refusal) if (&decoded[..], &encoded[..]) == (b"before", b"before") => {
                Ok(Verdict::Refused(refusal))
            }
            other => Err(format!("{other:?} {:?}, reference refuses", show(&encoded))),
        };
    };
    let (decoded, encoded) = (&decoded[6..], &encoded[6..]);
    if ours.is_err() || decoded != path || encoded != encoded_path {
        return Err(format!(
            "{ours:?} {:?} {:?}, reference {:?} {:?}",
            show(decoded),
            show(encoded),
            show(&path),
            show(&encoded_path)
        ));
    }
    // The normal form is its own normal form, and so is the output of a rewriter.
    let mut rewritten = Vec::new();
    wire::target::encode_path(decoded, &rules, &mut rewritten);
    for (what, text) in [("encoded form", encoded), ("rewritten path", &rewritten)] {
        let (mut again, mut same) = (Vec::new(), Vec::new());
        let result = wire::target::normalise(text, &rules, &mut again, &mut same);
        if result.is_err() || again != decoded || same != text {
            return Err(format!("{what} {:?} becomes {:?} {:?}", show(text), show(&again), show(&same)));
        }
        if !text.iter().all(u8::is_ascii_graphic) {
            return Err(format!("{what} {:?} is not plain", show(text)));
        }
    }
    Ok(Verdict::Read)
}

/// httparse reads heads only; it does not interpret Host, framing and forms of targets. Only these
/// messages may be read by it and refused by the codec.
fn agree_with_httparse(
    input: &[u8],
    ours: Result<&RequestHead, Refusal>,
    consumed: usize,
) -> Result<(), String> {
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut theirs = httparse::Request::new(&mut fields);
    let result = theirs.parse(input);
    let head = match ours {
        Ok(head) => head,
        Err(refusal) => {
            use Refusal::*;
            let beyond_it = match refusal {
                // It accepts LF for CRLF, and skips any number of empty lines.
                BareLf | RequestLine => true,
                // It does not interpret the parts.
                Target
                | TargetTooLong
                | PercentEncoding
                | AboveRoot
                | BadPath
                | NoHost
                | RepeatedHost
                | Host
                | ContentLength
                | RepeatedContentLength
                | LengthAndCoding
                | TransferEncoding
                | CodingInHttp10
                | DisguisedName
                | Underscore
                | TooManyFields
                | HeadTooLarge
                | Expectation
                | Connection => true,
                // It accepts methods of any length.
                Method => theirs.method.is_some_and(|method| method.len() > 64),
                _ => false,
            };
            return match result {
                Ok(httparse::Status::Complete(_)) if !beyond_it => {
                    Err(format!("httparse reads what is {refusal}"))
                }
                _ => Ok(()),
            };
        }
    };
    // It requires targets to be UTF-8, where the codec reads bytes.
    if result == Err(httparse::Error::Token) && std::str::from_utf8(input).is_err() {
        return Ok(());
    }
    if result != Ok(httparse::Status::Complete(consumed)) {
        return Err(format!("read, {consumed} bytes, but httparse says {result:?}"));
    }
    let version = u8::from(head.version == Version::Http11);
    if theirs.method.map(str::as_bytes) != Some(head.method_bytes()) || theirs.version != Some(version) {
        return Err(format!("httparse reads {:?} {:?}", theirs.method, theirs.version));
    }
    // The codec rewrites the first three, and removes look-alikes of a proxy's own fields.
    let rewritten = |name: &str| {
        let plain = name.to_ascii_lowercase();
        ["host", "content-length", "expect"].contains(&plain.as_str())
            || plain.contains('_') && super::corpus::LOOK_ALIKES.contains(&plain.replace('_', "-").as_str())
    };
    let mut mine = list(&head.fields);
    mine.retain(|(name, _)| !rewritten(name));
    let fields: Vec<_> = theirs
        .headers
        .iter()
        .filter(|field| !rewritten(field.name))
        .map(|field| (field.name.to_string(), field.value.to_vec()))
        .collect();
    if fields == mine { Ok(()) } else { Err(format!("fields {mine:?}, httparse {fields:?}")) }
}

fn as_reference(consumed: usize, head: &RequestHead) -> reference::Request {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    reference::Request {
        consumed,
        method: text(head.method_bytes()),
        http11: head.version == Version::Http11,
        target: head.target().to_vec(),
        path: head.path().to_vec(),
        encoded_path: head.encoded_path().to_vec(),
        query: head.has_query.then(|| head.query().to_vec()),
        host: text(head.host()),
        authority: text(head.authority()),
        fields: list(&head.fields),
        body: body(head.framing),
        keep_alive: head.keep_alive,
        expect_continue: head.expect_continue,
        upgrade: head.upgrade,
    }
}

fn list(fields: &Fields) -> Vec<(String, Vec<u8>)> {
    fields
        .iter()
        .map(|(name, value, _)| (String::from_utf8_lossy(name).into_owned(), value.to_vec()))
        .collect()
}

fn body(framing: Framing) -> Body {
    match framing {
        Framing::None => Body::None,
        Framing::Length(length) => Body::Length(length),
        Framing::Chunked => Body::Chunked,
        Framing::UntilClose => Body::UntilClose,
    }
}

type Run = fn(&mut Chunked, &mut [u8]) -> Result<Relayed, Refusal>;

/// The output, the number of consumed bytes, and whether the body is complete.
fn feed(run: Run, input: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), Refusal> {
    let mut body = Chunked::default();
    let (mut out, mut buf, mut consumed) = (Vec::new(), Vec::new(), 0);
    for piece in input.chunks(step.max(1)) {
        buf.extend_from_slice(piece);
        let done = run(&mut body, &mut buf)?;
        out.extend_from_slice(&buf[..done.emit]);
        buf.drain(..done.consumed);
        consumed += done.consumed;
        if done.done {
            return Ok((out, consumed, true));
        }
    }
    // An unfinished body: how far it was read depends on the pieces; its meaning does not.
    Ok((Vec::new(), 0, false))
}

fn canonical(body: &reference::ChunkedBody) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in &body.chunks {
        out.extend(format!("{:x}\r\n", chunk.len()).bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n");
    for (name, value, spaced) in &body.trailers {
        if !super::corpus::DROPPED_TRAILERS.contains(&name.to_ascii_lowercase().replace('_', "-").as_str()) {
            out.extend(format!("{name}:{}", if *spaced { " " } else { "" }).bytes());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
