//! Contexts of TCP streams.

use sdk::budget::Budget;
use sdk::stream::Side;
use sdk::testing::chunk;

use super::*;

/// An instance for streams.
fn stage(modules: &Modules, probe: &Probe, code: &str) -> Arc<Stage> {
    let module = modules.load("a", code);
    let plugin = Plugin { name: "a".to_owned(), priority: 1, phase: Phase::Access, process_bodies: false };
    let factory = stream_factory(&plugin, Ok(module)).unwrap();
    let owner = Owner { collection: "stream_routes", id: "1".into() };
    let names = FixedNames::default();
    let config = json!({"conf": "settings"});
    let mut cx = Build::new(&owner, &probe.services, &names).with_identity("a", &config);
    factory.build(config.clone(), &mut cx, Fitting { name: "a", priority: 1, meta: None }).unwrap()
}

/// Runs the preread phase to its end, or until it waits for something that does not happen.
fn preread(stage: &Arc<Stage>, x: &mut Exchange<'_>) -> Poll<Step> {
    let chain = Chain::of(stage.clone());
    match chain.run(Phase::Preread, &mut 0, x) {
        Step::Wait => {
            let mut waiting = chain.wait(Phase::Preread, 0, x);
            let mut cx = Context::from_waker(Waker::noop());
            let polled = (0..100).map(|_| waiting.as_mut().poll(&mut cx)).find(Poll::is_ready);
            polled.unwrap_or(Poll::Pending)
        }
        step => Poll::Ready(step),
    }
}

fn connected(stage: &Arc<Stage>, x: &mut Exchange<'_>) {
    let step = preread(stage, x);
    assert!(matches!(step, Poll::Ready(Step::Next)), "{step:?}");
}

/// Shows a piece; its step, and the bytes that go on.
fn shown(
    stage: &Arc<Stage>,
    x: &mut Exchange<'_>,
    from: Side,
    data: &[u8],
    last: bool,
) -> (Step, Vec<u8>, bool) {
    let mut piece = chunk(data, last);
    let step = Chain::of(stage.clone()).stream_data(0, x, from, &mut piece);
    (step, piece.data, piece.last)
}

/// The bytes that go on without new ones.
fn kept(stage: &Arc<Stage>, x: &mut Exchange<'_>, from: Side) -> Poll<(Step, Vec<u8>, bool)> {
    let mut piece = chunk(b"", false);
    let mut cx = Context::from_waker(Waker::noop());
    let polled = Chain::of(stage.clone()).poll_stream(x, from, &mut piece, &mut cx);
    polled.map(|step| (step, piece.data, piece.last))
}

#[test]
fn a_module_sees_a_stream_from_its_beginning_to_its_end() {
    let modules = Modules::new();
    let mut probe = Probe::stream();
    let stage = stage(
        &modules,
        &probe,
        r#"
        (data (i32.const 100) "new") (data (i32.const 110) "down") (data (i32.const 120) "close")
        (data (i32.const 130) "source\00address") (data (i32.const 150) "> ")
        (func (export "proxy_on_new_connection") (param i32) (result i32)
          (call $is (call $property (i32.const 130) (i32.const 14) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (call $bytes (i32.const 2) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 4)) (i32.const 1))
          (drop (call $log (i32.const 2) (i32.const 100) (i32.const 3))) (i32.const 0))
        (func (export "proxy_on_downstream_data") (param i32 i32 i32) (result i32)
          (drop (call $log (i32.const 2) (i32.const 110) (i32.const 4)))
          (call $is (call $bytes (i32.const 2) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (i32.load (i32.const 4)) (local.get 1))
          ;; The other direction and bodies have no bytes here.
          (call $is (call $bytes (i32.const 3) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $bytes (i32.const 0) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $set_bytes (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 150) (i32.const 2)) (i32.const 0))
          (i32.const 0))
        (func (export "proxy_on_downstream_connection_close") (param i32 i32)
          (call $is (local.get 1) (i32.const 2))
          (drop (call $log (i32.const 2) (i32.const 120) (i32.const 5))))
        (func (export "proxy_on_upstream_connection_close") (param i32 i32) unreachable)"#,
    );
    let budget = probe.world.budget.clone();
    let mut x = probe.exchange();
    connected(&stage, &mut x);
    let (step, data, last) = shown(&stage, &mut x, Side::Client, b"abc", false);
    assert!(matches!(step, Step::Next) && data == b"> abc" && !last, "{step:?} {:?}", modules.lines.0);
    // It has no callback for the other side.
    let (step, data, last) = shown(&stage, &mut x, Side::Upstream, b"def", true);
    assert!(matches!(step, Step::Next) && data == b"def" && last);
    let (step, data, last) = shown(&stage, &mut x, Side::Client, b"", true);
    assert!(matches!(step, Step::Next) && data == b"> " && last);
    over(&stage, x);
    let lines = modules.lines.0.lock().unwrap();
    let said: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(said, ["new", "down", "down", "close"]);
    assert_eq!(budget.taken(), 0);
}

/// Pauses the client's side while the bytes are fewer than four, and the upstream's until `$continue` is called.
const HOLDS: &str = r#"
    (func (export "proxy_on_downstream_data") (param i32 i32 i32) (result i32)
      (i32.lt_u (local.get 1) (i32.const 4)))
    (func (export "proxy_on_upstream_data") (param i32 i32 i32) (result i32)
      (if (local.get 2) (then (call $is (call $continue (i32.const 2)) (i32.const 0))))
      (i32.const 1))"#;

#[test]
fn bytes_that_a_module_waits_with_are_seen_again_and_go_on_later() {
    let modules = Modules::new();
    let mut probe = Probe::stream();
    let stage = stage(&modules, &probe, HOLDS);
    let budget = probe.world.budget.clone();
    let mut x = probe.exchange();
    connected(&stage, &mut x);
    assert_eq!(shown(&stage, &mut x, Side::Client, b"ab", false).1, b"");
    assert_eq!(budget.taken(), 2);
    assert_eq!(shown(&stage, &mut x, Side::Client, b"cd", false).1, b"abcd");
    assert!(kept(&stage, &mut x, Side::Client).is_pending());
    assert_eq!(budget.taken(), 0);
    // The end of a side waits as well.
    let (step, data, last) = shown(&stage, &mut x, Side::Client, b"e", true);
    assert!(matches!(step, Step::Wait) && data.is_empty() && !last);
    assert!(kept(&stage, &mut x, Side::Client).is_pending());
    // The other side continues this one.
    let (step, ..) = shown(&stage, &mut x, Side::Upstream, b"f", true);
    assert!(matches!(step, Step::Wait));
    let Poll::Ready((Step::Next, data, last)) = kept(&stage, &mut x, Side::Client) else { panic!() };
    assert!(data == b"e" && last);
    assert!(kept(&stage, &mut x, Side::Upstream).is_pending());
    over(&stage, x);
    assert_eq!(budget.taken(), 0);
}

#[test]
fn bytes_that_a_module_keeps_are_bounded() {
    let modules = Modules::new();
    let mut probe = Probe::stream();
    let code = r#"(func (export "proxy_on_upstream_data") (param i32 i32 i32) (result i32) (i32.const 1))"#;
    let stage = stage(&modules, &probe, code);
    let mut x = probe.exchange();
    connected(&stage, &mut x);
    let piece = vec![b'x'; 64 << 10];
    // Half of 2 MiB: no more is read. If the gateway read on, the stream would end at 2 MiB.
    for n in 1..=32 {
        let (step, data, _) = shown(&stage, &mut x, Side::Upstream, &piece, false);
        assert_eq!(matches!(step, Step::Wait), n >= 16, "{n} {step:?}");
        assert!(data.is_empty());
    }
    let (step, ..) = shown(&stage, &mut x, Side::Upstream, &piece, false);
    assert!(matches!(step, Step::Reply(Reply { status: 503, .. })), "{step:?}");
    drop(x);

    let mut probe = Probe::stream();
    probe.world.budget = Budget::new(1000);
    let stage = self::stage(&modules, &probe, code);
    let mut x = probe.exchange();
    connected(&stage, &mut x);
    let (step, ..) = shown(&stage, &mut x, Side::Upstream, &piece, false);
    assert!(matches!(step, Step::Reply(Reply { status: 503, .. })), "{step:?}");
}

#[test]
fn a_new_connection_waits_is_continued_and_closed() {
    let modules = Modules::new();
    for (code, expected) in [
        ("(i32.const 1)", None),
        ("(call $is (call $close_stream (i32.const 2)) (i32.const 0)) (i32.const 1)", Some(403)),
        ("(call $is (call $close_stream (i32.const 3)) (i32.const 0)) (i32.const 0)", Some(403)),
        ("unreachable", Some(500)),
    ] {
        let mut probe = Probe::stream();
        let code = format!(r#"(func (export "proxy_on_new_connection") (param i32) (result i32) {code})"#);
        let stage = stage(&modules, &probe, &code);
        let mut x = probe.exchange();
        match (preread(&stage, &mut x), expected) {
            (Poll::Pending, None) => {}
            (Poll::Ready(Step::Reply(reply)), Some(status)) => assert_eq!(reply.status, status),
            (step, _) => panic!("{step:?}"),
        }
        over(&stage, x);
    }
}

#[test]
fn a_new_connection_waits_for_a_call() {
    let modules = Modules::new();
    let mut probe = Probe::stream();
    probe.world.sleeps_last.set(true);
    probe.world.answers.borrow_mut().push(Ok(Fetched { status: 207, ..Fetched::default() }));
    let code = r#"
        (data (i32.const 100) "127.0.0.1:80")
        (global $context (mut i32) (i32.const 0))
        (func (export "proxy_on_new_connection") (param i32) (result i32)
          (global.set $context (local.get 0))
          (call $is (call $fetch (i32.const 100) (i32.const 12) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 0) (i32.const 1000) (i32.const 8)) (i32.const 0))
          (i32.const 1))
        (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
          (call $is (call $effective (global.get $context)) (i32.const 0))
          (call $is (call $continue (i32.const 2)) (i32.const 0)))"#;
    let stage = stage(&modules, &probe, code);
    let mut x = probe.exchange();
    connected(&stage, &mut x);
    over(&stage, x);
    assert_eq!(probe.world.sent.borrow()[0].fields.get_named(b"sluice-hops"), Some(&b"1"[..]));
}

#[test]
fn a_stream_has_nothing_of_a_request_and_a_request_nothing_of_a_stream() {
    let modules = Modules::new();
    let mut probe = Probe::stream();
    let code = r#"
        (data (i32.const 100) "x-a") (data (i32.const 110) "upstream_uri") (data (i32.const 130) "/a")
        (func (export "proxy_on_new_connection") (param i32) (result i32)
          (call $is (call $header (i32.const 0) (i32.const 100) (i32.const 3) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $headers (i32.const 0) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $set_header (i32.const 0) (i32.const 100) (i32.const 3) (i32.const 100) (i32.const 3)) (i32.const 1))
          (call $is (call $set_header (i32.const 2) (i32.const 100) (i32.const 3) (i32.const 100) (i32.const 3)) (i32.const 1))
          (call $is (call $set_bytes (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 100) (i32.const 3)) (i32.const 1))
          (call $is (call $set_property (i32.const 110) (i32.const 12) (i32.const 130) (i32.const 2)) (i32.const 1))
          (call $is (call $respond (i32.const 403) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)) (i32.const 2))
          (call $is (call $continue (i32.const 0)) (i32.const 2))
          (call $is (call $continue (i32.const 4)) (i32.const 2))
          (call $is (call $close_stream (i32.const 1)) (i32.const 2))
          (i32.const 0))
        (func (export "proxy_on_downstream_data") (param i32 i32 i32) (result i32)
          (call $is (call $bytes (i32.const 2) (i32.const 0) (i32.const 9) (i32.const -4) (i32.const 4)) (i32.const 6))
          (call $is (call $bytes (i32.const 2) (i32.const -1) (i32.const -1) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (call $set_bytes (i32.const 2) (i32.const 0) (i32.const 9) (i32.const -9) (i32.const 99)) (i32.const 6))
          (call $is (call $set_bytes (i32.const 3) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 9)) (i32.const 1))
          (i32.const 0))"#;
    let stage = stage(&modules, &probe, code);
    let mut x = probe.exchange();
    connected(&stage, &mut x);
    let (step, data, _) = shown(&stage, &mut x, Side::Client, b"abc", false);
    assert!(matches!(step, Step::Next) && data == b"abc", "{:?}", modules.lines.0);
    over(&stage, x);

    let mut probe = Probe::default();
    let code = r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (call $is (call $bytes (i32.const 2) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 4)) (i32.const 1))
        (call $is (call $set_bytes (i32.const 3) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 0)) (i32.const 1))
        (call $is (call $continue (i32.const 2)) (i32.const 2))
        (call $is (call $close_stream (i32.const 3)) (i32.const 2))
        (i32.const 0))"#;
    let stage = modules.stage(&probe, code);
    next(&stage, &mut probe.exchange());
}

#[test]
fn a_failure_costs_its_stream_of_which_nothing_goes_on() {
    let modules = Modules::new();
    let mut probe = Probe::stream();
    let code = r#"(func (export "proxy_on_downstream_data") (param i32 i32 i32) (result i32)
        (if (i32.eq (local.get 1) (i32.const 3)) (then unreachable)) (i32.const 1))"#;
    let stage = stage(&modules, &probe, code);
    let mut x = probe.exchange();
    connected(&stage, &mut x);
    let (step, ..) = shown(&stage, &mut x, Side::Client, b"ab", false);
    assert!(matches!(step, Step::Next));
    let (step, ..) = shown(&stage, &mut x, Side::Client, b"c", false);
    assert!(matches!(step, Step::Reply(Reply { status: 500, .. })), "{step:?}");
    // Nothing of it goes on without the module, whose state is gone.
    let (step, data, _) = shown(&stage, &mut x, Side::Client, b"d", false);
    assert!(matches!(step, Step::Reply(Reply { status: 500, .. })), "{step:?} {data:?}");
    assert!(!matches!(kept(&stage, &mut x, Side::Client), Poll::Ready((Step::Next, ..))));
    over(&stage, x);
}
