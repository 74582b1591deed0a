use std::cell::RefCell;
use std::future::poll_fn;

use super::*;
use crate::Settings;
use crate::rt::memory::{self, End, Schedule};
use crate::testing::{beside_worker, sleep};
use crate::up::links::Target;

const SECOND: Duration = Duration::from_secs(1);

/// A stream whose request was sent, and the server's end of its connection.
async fn begun(worker: &Worker) -> (Stream, End) {
    let addr = ([10, 0, 0, 1], 80).into();
    let ends = std::rc::Rc::new(RefCell::new(Vec::new()));
    let taken = ends.clone();
    memory::serve(addr, move || {
        let (near, far) = memory::pair(Schedule::default(), Schedule::default());
        taken.borrow_mut().push(near);
        Ok(far)
    });
    let target = Target::plain_http2(addr, 1);
    let place = worker.links.place(worker, &worker.clock.waiter(), target, false).await;
    let stream = Stream::new(place.unwrap_or_else(|fault| panic!("{fault:?}")), false);
    let first = PseudoFields::Request {
        method: b"GET",
        scheme: b"http",
        authority: b"a",
        path: b"/",
        protocol: None,
    };
    stream.place.stream().send_request(first, |_| {}, true, false).unwrap();
    sleep(Duration::from_millis(10)).await;
    let end = ends.borrow_mut().pop().unwrap();
    (stream, end)
}

const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// `:status: 200`
const HEAD: &[u8] = &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
const PIECE: &[u8] = b"\0\0\x02\0\0\0\0\0\x01ok";
const LAST_PIECE: &[u8] = b"\0\0\x02\0\x01\0\0\0\x01ok";
const TRAILERS: &[u8] = b"\0\0\x05\x01\x05\0\0\0\x01\0\x01x\x01y";

#[test]
fn a_response_that_is_complete_and_taken_is_not_stalled() {
    for (frames, whole) in [(vec![LAST_PIECE], true), (vec![PIECE, TRAILERS], false)] {
        beside_worker(Settings::default(), async move |worker, _| {
            let (mut stream, server) = begun(&worker).await;
            let claim = stream.claim();
            let response = [&[SETTINGS, HEAD][..], &frames].concat().concat();
            server.write_all(&response).await.unwrap();
            let waiters = [worker.clock.waiter(), worker.clock.waiter()];
            let mut out = Vec::new();
            let (_, mut from) = stream.begin(&worker, [&waiters[0], &waiters[1]], &mut out, SECOND);
            let late = || Err(Fault::upstream(FaultKind::ReadTimeout));
            let mut deadline = worker.clock.after(SECOND);
            let mut head = ResponseHead::default();
            from.head(&mut head, Method::Get, &mut deadline, late).await.unwrap();
            from.read(deadline).await.unwrap();
            assert!(claim.is_held() && from.is_complete() == whole);
            from.used();
            assert_eq!(from.take(), Ok(true));
            assert!(from.is_complete() && !claim.is_held());
        });
    }
}

#[test]
fn a_server_that_has_ended_its_half_of_a_tunnel_holds_nothing() {
    beside_worker(Settings::default(), async |worker, _| {
        let (mut stream, server) = begun(&worker).await;
        let claim = stream.claim();
        server.write_all(&[SETTINGS, HEAD, LAST_PIECE].concat()).await.unwrap();
        let waiters = [worker.clock.waiter(), worker.clock.waiter()];
        let mut out = Vec::new();
        let (_, mut from) = stream.begin(&worker, [&waiters[0], &waiters[1]], &mut out, SECOND);
        let late = || Err(Fault::upstream(FaultKind::ReadTimeout));
        let mut head = ResponseHead::default();
        from.head(&mut head, Method::Get, &mut worker.clock.after(SECOND), late).await.unwrap();
        drop(from);
        stream.accept.set(Some([0; 28]));
        let mut switched = stream.into_switched().unwrap();
        let (inlet, stream) = switched.split();
        let piece = poll_fn(|cx| inlet.poll_tunnel(stream, cx)).await;
        assert!(matches!(piece, Ok(Some(piece)) if piece == "ok"));
        assert!(claim.is_held());
        assert!(matches!(poll_fn(|cx| inlet.poll_tunnel(stream, cx)).await, Ok(None)));
        assert!(!claim.is_held());
    });
}

#[test]
fn a_body_ends_by_its_stream_and_its_length() {
    let none = Ok(Framing::None);
    let wrong = Err(bad(Refusal::ContentLength));
    for (method, status, lengths, ends, framing) in [
        (Method::Get, 200, &[][..], false, Ok(Framing::Chunked)),
        (Method::Get, 200, &["5"], false, Ok(Framing::Length(5))),
        (Method::Get, 200, &[], true, none),
        // The length is that of another answer's body.
        (Method::Head, 200, &["5"], false, none),
        (Method::Head, 200, &[], false, none),
        (Method::Get, 304, &["5"], false, none),
        (Method::Get, 204, &[], false, none),
        (Method::Get, 200, &["+5"], false, wrong),
        (Method::Get, 200, &[""], false, wrong),
        (Method::Head, 200, &["5x"], true, wrong),
        (Method::Get, 200, &["18446744073709551616"], false, wrong),
        (Method::Get, 200, &["5", "5"], false, Err(bad(Refusal::RepeatedContentLength))),
    ] {
        let mut head = ResponseHead { status, ..ResponseHead::default() };
        for length in lengths {
            assert!(head.fields.append(b"content-length", length.as_bytes()).is_ok());
        }
        assert_eq!(super::framing(&head, method, ends), framing, "{method:?} {status} {lengths:?} {ends}");
    }
}
