//! Callbacks of responses.

use sdk::exchange::Chunk;
use sdk::testing::{chunk, respond};

use super::*;

/// Passes chunks of a body through the stage; `None` for one that the module waits with.
fn bodies(stage: &Arc<Stage>, x: &mut Exchange<'_>, chunks: &[(&str, bool)]) -> Vec<Option<String>> {
    let chain = Chain::of(stage.clone());
    let pass = |(data, last): &(&str, bool)| {
        let mut piece: Chunk = chunk(data.as_bytes(), *last);
        let mut cursor = 0;
        match chain.body_filter(&mut cursor, x, &mut piece) {
            Step::Next => Some(String::from_utf8(piece.data).unwrap()),
            _ => None,
        }
    };
    chunks.iter().map(pass).collect()
}

fn header_filter(stage: &Arc<Stage>, x: &mut Exchange<'_>) -> Step {
    Chain::of(stage.clone()).header_filter(&mut 0, x)
}

#[test]
fn a_module_changes_head_and_body() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let stage = modules.stage(
        &probe,
        r#"
        (data (i32.const 100) ":status") (data (i32.const 110) "404") (data (i32.const 120) "X-Seen") (data (i32.const 130) "!")
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
          (call $is (call $set_header (i32.const 2) (i32.const 100) (i32.const 7) (i32.const 110) (i32.const 3)) (i32.const 0))
          (call $is (call $set_header (i32.const 2) (i32.const 120) (i32.const 6) (i32.const 130) (i32.const 1)) (i32.const 0))
          (i32.const 0))
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
          (call $is (call $set_bytes (i32.const 1) (i32.const -1) (i32.const 0) (i32.const 130) (i32.const 1)) (i32.const 0))
          (i32.const 0))"#,
    );
    let mut x = probe.exchange();
    next(&stage, &mut x);
    respond(&mut x, 200, &[("Content-Length", "6")]);
    assert!(matches!(header_filter(&stage, &mut x), Step::Next));
    assert_eq!((x.status(), x.response_header("X-Seen")), (404, Some(&b"!"[..])));
    assert_eq!(x.response_header("Content-Length"), None);
    let passed = bodies(&stage, &mut x, &[("one", false), ("two", true)]);
    assert_eq!(passed, [Some("one!".to_owned()), Some("two!".to_owned())], "{:?}", modules.lines.0);
}

#[test]
fn a_module_sees_bodies_only_if_it_says_so() {
    let code = r#"
        (data (i32.const 100) "wasm_process_resp_body")
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
          (if (i32.eq (local.get 1) (i32.const 2)) (then
            (drop (call $set_property (i32.const 100) (i32.const 22) (i32.const 100) (i32.const 1)))))
          (i32.const 0))
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
          (drop (call $set_bytes (i32.const 1) (i32.const 0) (i32.const 1000) (i32.const 100) (i32.const 4)))
          (i32.const 0))"#;
    let modules = Modules::new();
    let module = modules.load("a", code);
    for (headers, body) in [(&[("A", "1")][..], "wasm"), (&[("A", "1"), ("B", "2")], "body")] {
        let mut probe = Probe::default();
        let stage = modules.stage_of(&probe, &module, false);
        let mut x = probe.exchange();
        next(&stage, &mut x);
        respond(&mut x, 200, headers);
        header_filter(&stage, &mut x);
        assert_eq!(bodies(&stage, &mut x, &[("body", true)]), [Some(body.to_owned())]);
    }
}

#[test]
fn a_paused_body_is_held_back_and_seen_as_a_whole() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let stage = modules.stage(
        &probe,
        r#"
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 1))
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
          (if (local.get 2) (then (call $is (local.get 1) (i32.const 9))))
          (i32.eqz (local.get 2)))"#,
    );
    let mut x = probe.exchange();
    next(&stage, &mut x);
    respond(&mut x, 200, &[]);
    assert!(matches!(header_filter(&stage, &mut x), Step::Next));
    let chain = Chain::of(stage.clone());
    assert!(chain.filters_body(&x) && chain.holds_body(&x));
    let passed = bodies(&stage, &mut x, &[("one", false), ("two", false), ("six", true)]);
    assert_eq!(passed, [Some(String::new()), Some(String::new()), Some("onetwosix".to_owned())]);
    assert_eq!(x.world().budget().taken(), 0);
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code = r#"(func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) (i32.const 1))"#;
    let stage = modules.stage(&probe, code);
    let mut x = probe.exchange();
    next(&stage, &mut x);
    respond(&mut x, 200, &[]);
    header_filter(&stage, &mut x);
    let mut piece = chunk(&vec![0; 3 << 20], false);
    Chain::of(stage.clone()).body_filter(&mut 0, &mut x, &mut piece);
    assert!(piece.refused);
}

#[test]
fn a_module_replaces_a_response_and_fails_in_one() {
    for (code, status) in [
        (
            "(drop (call $respond (i32.const 418) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1))) (i32.const 0)",
            418,
        ),
        ("unreachable", 500),
    ] {
        let modules = Modules::new();
        let mut probe = Probe::default();
        let code =
            format!("(func (export \"proxy_on_response_headers\") (param i32 i32 i32) (result i32) {code})");
        let stage = modules.stage(&probe, &code);
        let mut x = probe.exchange();
        next(&stage, &mut x);
        respond(&mut x, 200, &[]);
        let step = header_filter(&stage, &mut x);
        assert!(matches!(&step, Step::Reply(reply) if reply.status == status), "{step:?}");
        // The reply passes through the filters as well.
        assert!(matches!(header_filter(&stage, &mut x), Step::Next), "{status}");
    }
}

#[test]
fn a_failure_in_any_callback_costs_its_exchange_and_nothing_else() {
    for (name, params) in [
        ("proxy_on_context_create", "i32 i32"),
        ("proxy_on_done", "i32"),
        ("proxy_on_log", "i32"),
        ("proxy_on_delete", "i32"),
        ("proxy_on_response_body", "i32 i32 i32"),
    ] {
        let modules = Modules::new();
        let mut probe = Probe::default();
        let result = if name.contains("done") || name.contains("body") { "(result i32)" } else { "" };
        let code = format!("(func (export {name:?}) (param {params}) {result} unreachable)");
        let stage = modules.stage(&probe, &code);
        for _ in 0..2 {
            let mut x = probe.exchange();
            let _ = access(&stage, &mut x);
            respond(&mut x, 200, &[]);
            header_filter(&stage, &mut x);
            let _ = bodies(&stage, &mut x, &[("one", true)]);
            Chain::of(stage.clone()).log(&mut x);
            drop(x);
            probe.messages.clear();
        }
        assert!(modules.logged("unreachable"), "{name}: {:?}", modules.lines.0);
    }
}

#[test]
fn nothing_of_an_abandoned_response_precedes_the_one_in_its_place() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code = r#"
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 1))
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) (i32.const 1))"#;
    let stage = modules.stage(&probe, code);
    let mut x = probe.exchange();
    next(&stage, &mut x);
    respond(&mut x, 200, &[]);
    assert!(matches!(header_filter(&stage, &mut x), Step::Next));
    assert_eq!(bodies(&stage, &mut x, &[("partial", false)]), [Some(String::new())]);
    // The upstream breaks off.
    respond(&mut x, 502, &[("Content-Length", "5")]);
    assert!(matches!(header_filter(&stage, &mut x), Step::Next));
    let chain = Chain::of(stage.clone());
    assert!(!chain.filters_body(&x) && !chain.holds_body(&x));
    assert_eq!(bodies(&stage, &mut x, &[("error", true)]), [Some("error".to_owned())]);
    assert_eq!(x.response_header("Content-Length"), Some(&b"5"[..]));
    assert_eq!(x.world().budget().taken(), 0);
}

#[test]
fn a_response_in_the_place_of_one_whose_head_waits_does_not_wait() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code =
        r#"(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 1))"#;
    let stage = modules.stage(&probe, code);
    let mut x = probe.exchange();
    next(&stage, &mut x);
    respond(&mut x, 200, &[]);
    assert!(matches!(header_filter(&stage, &mut x), Step::Wait));
    // The wait took too long.
    respond(&mut x, 504, &[("Content-Length", "5")]);
    assert!(matches!(header_filter(&stage, &mut x), Step::Next));
    assert_eq!(x.response_header("Content-Length"), Some(&b"5"[..]));
}

#[test]
fn a_module_sees_a_held_chunk_once_if_it_passes_it_on() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code = r#"
        (data (i32.const 100) "!")
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 1))
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
          (call $is (local.get 1) (i32.const 3))
          (call $is (call $set_bytes (i32.const 1) (i32.const -1) (i32.const 0) (i32.const 100) (i32.const 1)) (i32.const 0))
          (i32.const 0))"#;
    let stage = modules.stage(&probe, code);
    let mut x = probe.exchange();
    next(&stage, &mut x);
    respond(&mut x, 200, &[]);
    assert!(matches!(header_filter(&stage, &mut x), Step::Next));
    let passed = bodies(&stage, &mut x, &[("one", false), ("two", false), ("six", true)]);
    assert_eq!(passed, [Some(String::new()), Some(String::new()), Some("one!two!six!".to_owned())]);
    assert_eq!(x.world().budget().taken(), 0);
}

#[test]
fn bytes_that_a_module_puts_into_a_response_count_against_the_budget() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    probe.world.budget = sdk::budget::Budget::new(1000);
    let code = r#"
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
          (call $is (call $set_bytes (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 100) (i32.const 2000)) (i32.const 10))
          (call $is (call $set_bytes (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 100) (i32.const 500)) (i32.const 0))
          (i32.const 1))"#;
    let stage = modules.stage(&probe, code);
    let mut x = probe.exchange();
    next(&stage, &mut x);
    respond(&mut x, 200, &[]);
    header_filter(&stage, &mut x);
    bodies(&stage, &mut x, &[("one", false)]);
    assert_eq!(x.world().budget().taken(), 503, "{:?}", modules.lines.0);
    Chain::of(stage.clone()).log(&mut x);
    assert_eq!(x.world().budget().taken(), 0);
}

#[test]
fn a_response_without_a_body_ends_with_its_head() {
    for (method, status, ends) in [("GET", 200, 0), ("GET", 204, 1), ("GET", 304, 1), ("HEAD", 200, 1)] {
        let modules = Modules::new();
        let mut probe = Probe::request(method, "/a", &[("Host", "a")]);
        let code = format!(
            r#"(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
                 (call $is (local.get 2) (i32.const {ends})) (i32.const 0))"#
        );
        let stage = modules.stage(&probe, &code);
        let mut x = probe.exchange();
        next(&stage, &mut x);
        respond(&mut x, status, &[]);
        assert!(matches!(header_filter(&stage, &mut x), Step::Next), "{method} {status}");
    }
}
