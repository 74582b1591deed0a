//! gRPC calls, on servers of the tests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};

use sdk::Fields;
use sdk::call::{Call, Pipe};
use sdk::grpc::framed;

use super::*;

/// The server of the next call: it answers each piece, then sends trailers.
struct Server {
    got: Rc<RefCell<Vec<u8>>>,
    /// It is gone once the call is dropped.
    alive: Weak<()>,
}

fn serve(probe: &Probe, answers: &[&[u8]], trailers: Option<&[(&str, &str)]>) -> Server {
    let (pipe, got, alive) = (Rc::<Pipe>::default(), Rc::<RefCell<Vec<u8>>>::default(), Rc::new(()));
    let mut answers: VecDeque<Vec<u8>> = answers.iter().map(|answer| answer.to_vec()).collect();
    let trailers = trailers.map(fields);
    let (end, seen, weak) = (pipe.clone(), got.clone(), Rc::downgrade(&alive));
    let driver = Box::pin(async move {
        let _alive = alive;
        while let Some(piece) = poll_fn(|_| end.poll_piece()).await {
            seen.borrow_mut().extend(piece);
            end.set_head(200, fields(&[("X-Head", "1")]));
            if let Some(answer) = answers.pop_front() {
                end.put(&answer);
            }
            if answers.is_empty() {
                break;
            }
        }
        match trailers {
            Some(trailers) => end.set_trailers(trailers),
            None => std::future::pending().await,
        }
        Ok(())
    });
    probe.world.calls.borrow_mut().push_back(Call::new(pipe, driver));
    Server { got, alive: weak }
}

/// A message behind its prefix.
fn message(text: &[u8]) -> Vec<u8> {
    framed(text).unwrap()
}

const OK: &[(&str, &str)] = &[("grpc-status", "0")];

/// Calls `a.B/C` at 127.0.0.1:80 with "ping", and callbacks that log what they get.
const CALLS: &str = r#"
    (data (i32.const 100) "127.0.0.1:80") (data (i32.const 120) "a.B") (data (i32.const 130) "C")
    (data (i32.const 140) "ping") (data (i32.const 150) "X-Status") (data (i32.const 160) "x-head")
    (data (i32.const 170) "grpc-status") (data (i32.const 190) "head") (data (i32.const 200) "trailers")
    (data (i32.const 210) "close")
    (data (i32.const 300) "\01\00\00\00\02\00\00\00\01\00\00\00\0a:\00y\00") (data (i32.const 220) "0")
    (global $context (mut i32) (i32.const 0))
    (func $call (result i32)
      (call $grpc (i32.const 100) (i32.const 12) (i32.const 120) (i32.const 3) (i32.const 130) (i32.const 1)
        (i32.const 0) (i32.const 0) (i32.const 140) (i32.const 4) (i32.const 1000) (i32.const 8)))
    (func $stream (result i32)
      (call $grpc_stream (i32.const 100) (i32.const 12) (i32.const 120) (i32.const 3) (i32.const 130) (i32.const 1)
        (i32.const 0) (i32.const 0) (i32.const 8)))
    (func $send (param $ends i32) (result i32)
      (call $grpc_send (i32.load (i32.const 8)) (i32.const 140) (i32.const 4) (local.get $ends)))
    (func $say (param i32 i32) (drop (call $log (i32.const 2) (local.get 0) (local.get 1))))
    (func (export "proxy_on_grpc_receive_initial_metadata") (param i32 i32 i32)
      (call $is (local.get 1) (i32.load (i32.const 8)))
      (call $is (local.get 2) (i32.const 1))
      (call $is (call $header (i32.const 4) (i32.const 160) (i32.const 6) (i32.const 0) (i32.const 4)) (i32.const 0))
      (call $is (call $header (i32.const 5) (i32.const 170) (i32.const 11) (i32.const 0) (i32.const 4)) (i32.const 1))
      (call $is (call $set_header (i32.const 4) (i32.const 160) (i32.const 6) (i32.const 0) (i32.const 4)) (i32.const 2))
      (call $is (call $bytes (i32.const 5) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 4)) (i32.const 1))
      (call $say (i32.const 190) (i32.const 4)))
    (func (export "proxy_on_grpc_receive") (param i32 i32 i32)
      (call $is (call $bytes (i32.const 5) (i32.const 0) (i32.const -1) (i32.const 0) (i32.const 4)) (i32.const 0))
      (call $is (local.get 2) (i32.load (i32.const 4)))
      (call $is (call $set_bytes (i32.const 5) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 4)) (i32.const 2))
      (call $say (i32.load (i32.const 0)) (i32.load (i32.const 4)))
      (call $is (call $effective (global.get $context)) (i32.const 0))
      (call $is (call $set_header (i32.const 0) (i32.const 150) (i32.const 8) (i32.load (i32.const 0)) (i32.load (i32.const 4))) (i32.const 0))
      (drop (call $continue (i32.const 0))))
    (func (export "proxy_on_grpc_receive_trailing_metadata") (param i32 i32 i32)
      (call $is (call $header (i32.const 5) (i32.const 170) (i32.const 11) (i32.const 0) (i32.const 4)) (i32.const 0))
      (call $say (i32.const 200) (i32.const 8)))
    (func (export "proxy_on_grpc_close") (param i32 i32 i32)
      (call $is (call $status (i32.const 16) (i32.const 0) (i32.const 4)) (i32.const 0))
      (call $is (i32.load (i32.const 16)) (local.get 2))
      (i32.store8 (i32.const 220) (i32.add (i32.const 48) (i32.rem_u (local.get 2) (i32.const 10))))
      (call $say (i32.const 210) (i32.const 5))
      (call $say (i32.const 220) (i32.const 1))
      (if (i32.load (i32.const 4)) (then (call $say (i32.load (i32.const 0)) (i32.load (i32.const 4)))))
      (drop (call $effective (global.get $context)))
      (drop (call $continue (i32.const 0))))
"#;

fn on_headers(code: &str) -> String {
    format!(
        r#"{CALLS} (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (local $n i32)
          (global.set $context (local.get 0)) {code})"#
    )
}

/// The lines of a request with one call, after it has passed.
fn said(probe: &mut Probe, code: &str) -> (Vec<String>, Option<Vec<u8>>) {
    let modules = Modules::new();
    probe.world.sleeps_last.set(true);
    let stage = modules.stage(probe, &on_headers(code));
    let budget = probe.world.budget.clone();
    let mut x = probe.exchange();
    next(&stage, &mut x);
    let header = x.header("X-Status").map(<[u8]>::to_vec);
    over(&stage, x);
    assert_eq!(budget.taken(), 0);
    let lines = modules.lines.0.lock().unwrap();
    (lines.iter().filter_map(|line| Some(line.split(" plugin=").next()?.to_owned())).collect(), header)
}

#[test]
fn a_request_waits_for_a_call_whether_it_is_paused_or_not() {
    for action in [0, 1] {
        let mut probe = Probe::default();
        let server = serve(&probe, &[&message(b"pong")], Some(OK));
        let (lines, header) =
            said(&mut probe, &format!("(call $is (call $call) (i32.const 0)) (i32.const {action})"));
        assert_eq!((lines, header), (vec!["pong".to_owned()], Some(b"pong".to_vec())));
        assert_eq!(*server.got.borrow(), message(b"ping"));
        let sent = probe.world.sent.borrow();
        assert_eq!((&*sent[0].uri, sent[0].http2), (&b"/a.B/C"[..], true));
        assert_eq!(&*sent[0].target.authority, "127.0.0.1:80");
        for (name, value) in
            [("content-type", "application/grpc"), ("grpc-timeout", "1000m"), ("sluice-hops", "1")]
        {
            assert_eq!(sent[0].fields.get_named(name.as_bytes()), Some(value.as_bytes()), "{name}");
        }
    }
}

#[test]
fn a_call_without_a_good_message_is_closed_with_its_status() {
    let (two, cut) = ([message(b"a"), message(b"b")].concat(), b"\0\0\0\0\x09a".to_vec());
    let failed = &[("grpc-status", "7"), ("grpc-message", "no%20")][..];
    for (answer, trailers, expected) in [
        (message(b"a"), failed, &["close", "7", "no%20"][..]),
        (message(b"a"), &[][..], &["close", "2"]),
        (Vec::new(), OK, &["close", "3", "the response is no message"]),
        (two, OK, &["close", "3", "the response is no message"]),
        (cut, OK, &["close", "3", "the response is no message"]),
        (b"\x01\0\0\0\x01a".to_vec(), OK, &["close", "3", "the response is no message"]),
        (vec![0; (2 << 20) + 10], OK, &["close", "8", "a message is too long"]),
    ] {
        let mut probe = Probe::default();
        let server = serve(&probe, &[&answer], Some(trailers));
        let (lines, _) = said(&mut probe, "(call $is (call $call) (i32.const 0)) (i32.const 1)");
        assert_eq!(lines, expected);
        assert_eq!(server.alive.strong_count(), 0);
    }
    let mut probe = Probe::default();
    let (lines, _) = said(&mut probe, "(call $is (call $call) (i32.const 0)) (i32.const 1)");
    assert_eq!(lines, ["close", "4", "the connection was refused"]);
}

#[test]
fn a_call_ends_with_its_time() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let server = serve(&probe, &[b"", b""], None);
    // Sleeps of the test's world end at once.
    let stage = modules.stage(&probe, &on_headers("(call $is (call $call) (i32.const 0)) (i32.const 0)"));
    next(&stage, &mut probe.exchange());
    assert!(modules.logged("the call took too long"), "{:?}", modules.lines.0);
    assert_eq!(server.alive.strong_count(), 0);
    assert!(probe.world.slept.borrow().contains(&Duration::from_secs(1)));
}

#[test]
fn a_stream_has_messages_both_ways_until_its_end() {
    let mut probe = Probe::default();
    // Messages and pieces have other bounds.
    let (one, two) = (message(b"one"), message(b"second"));
    let pieces = [[&one[..], &two[..7]].concat(), two[7..].to_vec()];
    let server = serve(&probe, &[&pieces[0], &pieces[1]], Some(OK));
    let (lines, _) = said(
        &mut probe,
        "(call $is (call $stream) (i32.const 0))
         (call $is (call $send (i32.const 0)) (i32.const 0))
         (call $is (call $send (i32.const 1)) (i32.const 0))
         (call $is (call $send (i32.const 1)) (i32.const 2))
         (call $is (call $grpc_close (i32.load (i32.const 8))) (i32.const 0))
         (i32.const 1)",
    );
    // The first message continues the request.
    assert_eq!(lines[..2], ["head", "one"]);
    assert_eq!(server.got.borrow().len(), 18);
    assert!(probe.world.sent.borrow()[0].fields.get_named(b"grpc-timeout").is_none());
}

#[test]
fn the_end_of_a_stream_has_trailers_and_a_status() {
    let long = message(&[b'x'; (2 << 20) + 1]);
    for (answer, trailers, expected) in [
        (Vec::new(), OK, &["head", "trailers", "close", "0"][..]),
        (
            b"\0\0\0\0\x09a".to_vec(),
            OK,
            &["head", "trailers", "close", "3", "the last message is incomplete"],
        ),
        (b"\x01\0\0\0\x01a".to_vec(), OK, &["head", "close", "3", "a message is compressed"]),
        (long, OK, &["head", "close", "8", "a message is too long"]),
    ] {
        let mut probe = Probe::default();
        let server = serve(&probe, &[&answer], Some(trailers));
        let (lines, _) = said(
            &mut probe,
            "(call $is (call $stream) (i32.const 0)) (call $is (call $send (i32.const 1)) (i32.const 0)) (i32.const 1)",
        );
        assert_eq!(lines, expected);
        assert_eq!(server.alive.strong_count(), 0);
    }
}

#[test]
fn a_request_does_not_wait_for_a_stream_and_ends_it() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let server = serve(&probe, &[b"", b""], None);
    let code = "(call $is (call $stream) (i32.const 0)) (call $is (call $send (i32.const 0)) (i32.const 0)) (i32.const 0)";
    let stage = modules.stage(&probe, &on_headers(code));
    let budget = probe.world.budget.clone();
    let mut x = probe.exchange();
    next(&stage, &mut x);
    assert_eq!(server.alive.strong_count(), 1);
    over(&stage, x);
    assert_eq!((server.alive.strong_count(), budget.taken()), (0, 0));
}

#[test]
fn arguments_of_calls_are_checked() {
    let mut probe = Probe::default();
    let call = |part: &str, wrong: &str, status: u32| {
        let right =
            "(i32.const 100) (i32.const 12) (i32.const 120) (i32.const 3) (i32.const 130) (i32.const 1)
            (i32.const 0) (i32.const 0) (i32.const 140) (i32.const 4) (i32.const 1000) (i32.const 8)";
        assert!(right.contains(part), "{part}");
        format!("(call $is (call $grpc {}) (i32.const {status}))", right.replacen(part, wrong, 1))
    };
    let code = [
        call("(i32.const 100) (i32.const 12)", "(i32.const -1) (i32.const 12)", 6),
        call("(i32.const 100) (i32.const 12)", "(i32.const 0) (i32.const 2000)", 2),
        call("(i32.const 100) (i32.const 12)", "(i32.const 0) (i32.const 0)", 2),
        call("(i32.const 120) (i32.const 3)", "(i32.const 196607) (i32.const 2)", 6),
        call("(i32.const 120) (i32.const 3)", "(i32.const 120) (i32.const 0)", 2),
        call("(i32.const 120) (i32.const 3)", "(i32.const 0) (i32.const 1025)", 2),
        // A slash, a colon and zeros.
        call("(i32.const 120) (i32.const 3)", "(i32.const 100) (i32.const 12)", 2),
        call("(i32.const 130) (i32.const 1)", "(i32.const 130) (i32.const 2)", 2),
        call("(i32.const 130) (i32.const 1)", "(i32.const -4) (i32.const 9)", 6),
        call("(i32.const 0) (i32.const 0)", "(i32.const 0) (i32.const -1)", 6),
        call("(i32.const 0) (i32.const 0)", "(i32.const 300) (i32.const 20)", 2),
        call("(i32.const 140) (i32.const 4)", "(i32.const 196600) (i32.const 100)", 6),
        call("(i32.const 1000) (i32.const 8)", "(i32.const 1000) (i32.const -2)", 6),
        // Calls that do not exist, and functions without a callback.
        "(call $is (call $grpc_send (i32.const 77) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 1))".into(),
        "(call $is (call $grpc_close (i32.const 77)) (i32.const 1))".into(),
        "(call $is (call $grpc_cancel (i32.const 0)) (i32.const 1))".into(),
        "(call $is (call $status (i32.const 16) (i32.const 0) (i32.const 4)) (i32.const 1))".into(),
        "(call $is (call $bytes (i32.const 5) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 4)) (i32.const 1))".into(),
        "(call $is (call $header (i32.const 4) (i32.const 160) (i32.const 6) (i32.const 0) (i32.const 4)) (i32.const 1))".into(),
        // A call has one message.
        "(call $is (call $call) (i32.const 0)) (call $is (call $send (i32.const 0)) (i32.const 2))
         (call $is (call $grpc_close (i32.load (i32.const 8))) (i32.const 0))
         (call $is (call $grpc_close (i32.load (i32.const 8))) (i32.const 1))".into(),
        "(call $is (call $stream) (i32.const 0))
         (call $is (call $grpc_send (i32.load (i32.const 8)) (i32.const -1) (i32.const 2) (i32.const 0)) (i32.const 6))
         (call $is (call $grpc_cancel (i32.load (i32.const 8))) (i32.const 0))".into(),
    ]
    .concat();
    let (lines, _) = said(&mut probe, &format!("{code} (i32.const 0)"));
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn calls_before_there_is_a_request_have_no_context() {
    let modules = Modules::new();
    let probe = Probe::default();
    let code = format!(
        r#"{CALLS} (func (export "_initialize")
          (call $is (call $call) (i32.const 1)) (call $is (call $stream) (i32.const 1)))"#
    );
    modules.stage(&probe, &code);
    assert!(probe.world.sent.borrow().is_empty());
}

#[test]
fn open_calls_and_their_messages_are_bounded() {
    let mut probe = Probe::default();
    let flood = |what: &str, most: u32| {
        format!(
            "(local.set $n (i32.const 0))
             (block $full (loop $more
               (br_if $full (i32.eq {what} (i32.const 10)))
               (local.set $n (i32.add (local.get $n) (i32.const 1)))
               (call $fail_unless (i32.le_u (local.get $n) (i32.const {most})))
               (br $more)))
             (call $is (local.get $n) (i32.const {most}))"
        )
    };
    // Half of 4 MiB, in messages of 100,000 bytes and some for each.
    let send = "(call $grpc_send (i32.load (i32.const 8)) (i32.const 0) (i32.const 100000) (i32.const 0))";
    let code = [
        "(call $is (call $stream) (i32.const 0))",
        &flood(send, 20),
        "(call $is (call $grpc_cancel (i32.load (i32.const 8))) (i32.const 0))",
        &flood("(call $stream)", 32),
        "(call $is (call $grpc_cancel (i32.load (i32.const 8))) (i32.const 0))",
        "(call $is (call $call) (i32.const 0))",
        "(i32.const 0)",
    ]
    .concat();
    let server = serve(&probe, &[b"", b""], None);
    let (_, _) = said(&mut probe, &code);
    assert_eq!(server.alive.strong_count(), 0);
    assert_eq!(probe.world.sent.borrow().len(), 34);
}

#[test]
fn calls_that_are_cancelled_leave_nothing() {
    let mut probe = Probe::default();
    let code = "(loop $more
        (call $is (call $stream) (i32.const 0))
        (call $is (call $grpc_cancel (i32.load (i32.const 8))) (i32.const 0))
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $n) (i32.const 3000))))
      (i32.const 0)";
    let (lines, _) = said(&mut probe, code);
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn a_server_that_sends_without_end_leaves_the_worker_to_others() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    probe.world.sleeps_last.set(true);
    let pipe = Rc::<Pipe>::default();
    let flood = pipe.clone();
    let driver = Box::pin(async move {
        flood.set_head(200, Fields::new());
        loop {
            poll_fn(|_| flood.poll_room()).await;
            flood.put(&message(b""));
        }
    });
    probe.world.calls.borrow_mut().push_back(Call::new(pipe, driver));
    // The filter never continues the request.
    let code = r#"
        (data (i32.const 100) "127.0.0.1:80") (data (i32.const 120) "a.B") (data (i32.const 130) "C")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $is (call $grpc_stream (i32.const 100) (i32.const 12) (i32.const 120) (i32.const 3) (i32.const 130)
            (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 8)) (i32.const 0))
          (i32.const 1))"#;
    let stage = modules.stage(&probe, code);
    let mut x = probe.exchange();
    assert!(access(&stage, &mut x).is_pending());
    over(&stage, x);
}

#[test]
fn a_callback_that_makes_a_failed_call_again_leaves_the_worker_to_others() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    probe.world.sleeps_last.set(true);
    // There is no server, so each call fails at once.
    let again = CALLS.replacen(
        "(export \"proxy_on_grpc_close\") (param i32 i32 i32)",
        "(export \"proxy_on_grpc_close\") (param i32 i32 i32) (drop (call $effective (global.get $context))) \
         (drop (call $call)) (return)",
        1,
    );
    assert_ne!(again, CALLS);
    let code = format!(
        r#"{again} (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (global.set $context (local.get 0)) (call $is (call $call) (i32.const 0)) (i32.const 1))"#
    );
    let stage = modules.stage(&probe, &code);
    let mut x = probe.exchange();
    assert!(access(&stage, &mut x).is_pending());
    over(&stage, x);
    assert!(probe.world.sent.borrow().len() > 10);
}
