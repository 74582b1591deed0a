//! The codec against hyper, which also frames bodies: both read the same request with the same
//! body, or both refuse it, except for the differences listed here.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use crate::support::corpus::{CHUNKED, LOOK_ALIKES, REQUESTS, WORDS};
use crate::support::mutate::{Random, mutate};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Response, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::h1::decode::{Limits, Progress, request};
use wire::h1::{Chunked, Refusal};
use wire::{Framing, RequestHead};

/// A whole request: method, target, fields and body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    method: String,
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// The first complete request, as hyper passes it to a service.
async fn by_hyper(input: &[u8]) -> Option<Seen> {
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let seen = Rc::new(RefCell::new(None));
    let done = Rc::new(RefCell::new(false));
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (seen, done) = (seen.clone(), done.clone());
        async move {
            let first = !done.replace(true);
            let (parts, body) = request.into_parts();
            let mut fields: Vec<_> = parts
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect();
            fields.sort();
            if let (Ok(body), true) = (body.collect().await, first) {
                *seen.borrow_mut() = Some(Seen {
                    method: parts.method.to_string(),
                    target: parts.uri.to_string(),
                    fields,
                    body: body.to_bytes().to_vec(),
                });
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let serve = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(server), service);
    let talk = async {
        // hyper may stop reading early, which is not an error of this test.
        let _ = client.write_all(input).await;
        let _ = client.shutdown().await;
        let mut answers = Vec::new();
        let _ = client.read_to_end(&mut answers).await;
    };
    let _ = tokio::join!(serve, talk);
    seen.take()
}

/// The first complete request, as the codec reads it.
fn by_codec(input: &[u8]) -> Result<Option<(Seen, RequestHead)>, Refusal> {
    let mut head = RequestHead::default();
    let Some(consumed) = request(input, &mut Progress::default(), &mut head, &Limits::default())? else {
        return Ok(None);
    };
    let mut rest = input[consumed..].to_vec();
    let body = match head.framing {
        Framing::Length(length) => {
            if (rest.len() as u64) < length {
                return Ok(None);
            }
            rest.truncate(length as usize);
            rest
        }
        Framing::Chunked => {
            let done = Chunked::default().decode(&mut rest)?;
            if !done.done {
                return Ok(None);
            }
            rest.truncate(done.emit);
            rest
        }
        Framing::None | Framing::UntilClose => Vec::new(),
    };
    let mut fields: Vec<_> = head
        .fields
        .iter()
        .map(|(name, value, _)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()))
        .collect();
    fields.sort();
    let method = String::from_utf8_lossy(head.method_bytes()).into_owned();
    let target = String::from_utf8_lossy(head.target()).into_owned();
    Ok(Some((Seen { method, target, fields, body }, head)))
}

/// Compares both readings of a message; an error describes the difference.
async fn compare(input: &[u8]) -> Result<bool, String> {
    let ours = by_codec(input);
    let theirs = by_hyper(input).await;
    match (ours, theirs) {
        (Ok(Some((mut ours, head))), Some(mut theirs)) => {
            // Exception 1: hyper keeps the target and Host unchanged; the codec rewrites Host for
            // the absolute form and Content-Length without zeros, and removes Expect of HTTP/1.0
            // and look-alikes of a proxy's own fields.
            let rewritten = |name: &str| {
                ["host", "content-length", "expect"].contains(&name)
                    || name.contains('_') && LOOK_ALIKES.contains(&name.replace('_', "-").as_str())
            };
            ours.fields.retain(|(name, _)| !rewritten(name));
            theirs.fields.retain(|(name, _)| !rewritten(name));
            if head.target().first() != Some(&b'/') || !theirs.target.starts_with('/') {
                theirs.target.clone_from(&ours.target);
            }
            match ours == theirs {
                true => Ok(true),
                false => Err(format!("{ours:?}\nhyper {theirs:?}")),
            }
        }
        (Ok(None) | Err(_), None) => Ok(false),
        (Ok(Some((ours, head))), None) => {
            // Exception 2: hyper's URIs allow fewer bytes, and it does not accept targets of
            // CONNECT as requests.
            let fewer = |byte: &u8| !byte.is_ascii() || br#""<>\^`{|}"#.contains(byte);
            let unusual =
                ours.target.bytes().any(|byte| fewer(&byte)) || head.method == wire::Method::Connect;
            match unusual {
                true => Ok(false),
                false => Err(format!("hyper refuses {ours:?}")),
            }
        }
        (Ok(None), Some(theirs)) => Err(format!("hyper has a whole request: {theirs:?}")),
        (Err(refusal), Some(theirs)) => match is_left_to_services(refusal) {
            true => Ok(false),
            false => Err(format!("{refusal:?}, but hyper reads {theirs:?}")),
        },
    }
}

/// Exception 3: messages that hyper reads and the codec refuses.
fn is_left_to_services(refusal: Refusal) -> bool {
    use Refusal::*;
    match refusal {
        // It accepts LF for CRLF in heads and skips any number of empty lines before one.
        BareLf | RequestLine => true,
        // It leaves Host, Expect and the meaning of paths to services.
        NoHost | RepeatedHost | Host | Expectation | Target | PercentEncoding | AboveRoot | BadPath => true,
        // A gateway has other origins behind it, so these are refused, not repaired: hyper drops
        // Content-Length beside chunked, accepts repeated equal lengths, and any coding before
        // chunked.
        LengthAndCoding | RepeatedContentLength | TransferEncoding | DisguisedName => true,
        // It ignores white space around chunk sizes and does not parse extensions.
        ChunkSize | ChunkExtension => true,
        _ => false,
    }
}

fn run(inputs: impl Iterator<Item = Vec<u8>>) -> (usize, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (mut read, mut all) = (0, 0);
    for input in inputs {
        match runtime.block_on(compare(&input)) {
            Ok(same) => read += usize::from(same),
            Err(difference) => panic!("{}\n{difference}", input.escape_ascii()),
        }
        all += 1;
    }
    (read, all)
}

#[test]
fn corpus() {
    let (read, all) = run(REQUESTS.iter().map(|input| input.to_vec()));
    assert!(read + 3 >= all, "{read} of {all} were read by both");
}

#[test]
fn mutations() {
    let mut random = Random::new(3);
    let inputs = (0..20_000).map(|round| {
        let mut input = REQUESTS[round % REQUESTS.len()].to_vec();
        if round % 4 == 0 {
            input = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            let mut body = CHUNKED[random.below(CHUNKED.len())].to_vec();
            mutate(&mut random, &mut body, CHUNKED, WORDS);
            input.extend(body);
        } else {
            mutate(&mut random, &mut input, REQUESTS, WORDS);
        }
        input
    });
    let (read, all) = run(inputs);
    assert!(read > all / 20, "{read} of {all} were read by both");
}
