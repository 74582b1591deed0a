//! Modules in the text format, on exchanges of tests.

mod contexts;
mod grpc;
mod hostile;
mod responses;
mod streams;

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sdk::build::{Build, Owner};
use sdk::chain::{Chain, Fitting, Stage};
use sdk::testing::{FixedNames, Probe, fields};
use sdk::world::Fetched;
use sdk::{Exchange, Phase, Reply, Step};
use serde_json::json;

use super::*;
use crate::log::{Level, Log};

/// Lines of the log.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Mutex<Vec<String>>>);

impl Log for Lines {
    fn level(&self) -> Level {
        Level::Info
    }

    fn line(&self, _: Level, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

struct Modules {
    lines: Lines,
    host: Arc<Host>,
}

/// The imports and the memory of every module here. `$give` is where results are written: a pointer at 0, a length at
/// 4. Memory for results begins at 64 KiB and is never freed.
const PRELUDE: &str = r#"
  (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_value" (func $header (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_replace_header_map_value" (func $set_header (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_remove_header_map_value" (func $remove_header (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_pairs" (func $headers (param i32 i32 i32) (result i32)))
  (import "env" "proxy_set_header_map_pairs" (func $set_headers (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_buffer_bytes" (func $bytes (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_buffer_bytes" (func $set_bytes (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_property" (func $property (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_property" (func $set_property (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_send_local_response" (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_http_call" (func $fetch (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
  (import "env" "proxy_close_stream" (func $close_stream (param i32) (result i32)))
  (import "env" "proxy_set_effective_context" (func $effective (param i32) (result i32)))
  (import "env" "proxy_set_tick_period_milliseconds" (func $set_tick (param i32) (result i32)))
  (import "env" "proxy_set_shared_data" (func $set_shared (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_shared_data" (func $shared (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_register_shared_queue" (func $register (param i32 i32 i32) (result i32)))
  (import "env" "proxy_enqueue_shared_queue" (func $enqueue (param i32 i32 i32) (result i32)))
  (import "env" "proxy_define_metric" (func $define_metric (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
  (import "env" "proxy_record_metric" (func $record (param i32 i64) (result i32)))
  (import "env" "proxy_done" (func $proxy_done (result i32)))
  (import "env" "proxy_grpc_call" (func $grpc (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_grpc_stream" (func $grpc_stream (param i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_grpc_send" (func $grpc_send (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_grpc_close" (func $grpc_close (param i32) (result i32)))
  (import "env" "proxy_grpc_cancel" (func $grpc_cancel (param i32) (result i32)))
  (import "env" "proxy_get_status" (func $status (param i32 i32 i32) (result i32)))
  (import "env" "proxy_call_foreign_function" (func $foreign (param i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 3)
  (global $top (mut i32) (i32.const 65536))
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "malloc") (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $top))
    (global.set $top (i32.add (global.get $top) (local.get $size)))
    (local.get $at))
  (func $fail_unless (param $ok i32) (if (i32.eqz (local.get $ok)) (then unreachable)))
  (func $is (param $status i32) (param $expected i32)
    (call $fail_unless (i32.eq (local.get $status) (local.get $expected))))
"#;

fn wasm(code: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {PRELUDE} {code})")).unwrap()
}

impl Modules {
    fn new() -> Modules {
        Modules::with(Settings { max_memory: 4 << 20, max_time: Duration::from_secs(5), max_shared: 10_000 })
    }

    fn with(settings: Settings) -> Modules {
        let lines = Lines::default();
        Modules { host: Host::new(settings, Box::new(lines.clone())).unwrap(), lines }
    }

    fn load(&self, name: &str, code: &str) -> Arc<Module> {
        Module::load(&self.host, name, &Binary::compile(&self.host, &wasm(code), &()).unwrap()).unwrap()
    }

    /// An instance of a plugin of this module.
    fn stage_of(&self, probe: &Probe, module: &Arc<Module>, sees_bodies: bool) -> Arc<Stage> {
        let plugin = Plugin {
            name: module.name.to_owned(),
            priority: 1,
            phase: Phase::Access,
            process_bodies: sees_bodies,
        };
        let factory = factory(&plugin, module.clone()).unwrap();
        let owner = Owner { collection: "routes", id: "1".into() };
        let names = FixedNames::default();
        let config = json!({"conf": "settings"});
        let mut cx = Build::new(&owner, &probe.services, &names).with_identity(module.name, &config);
        factory
            .build(config.clone(), &mut cx, Fitting { name: factory.name(), priority: 1, meta: None })
            .unwrap()
    }

    fn stage(&self, probe: &Probe, code: &str) -> Arc<Stage> {
        self.stage_of(probe, &self.load("a", code), true)
    }

    fn logged(&self, words: &str) -> bool {
        self.lines.0.lock().unwrap().iter().any(|line| line.contains(words))
    }
}

/// Runs the access phase to its end, or until it waits for something that does not happen.
fn access(stage: &Arc<Stage>, x: &mut Exchange<'_>) -> Poll<Step> {
    let chain = Chain::of(stage.clone());
    let mut cursor = 0;
    match chain.run(Phase::Access, &mut cursor, x) {
        Step::Wait => {
            let mut waiting = chain.wait(Phase::Access, cursor, x);
            let mut cx = Context::from_waker(Waker::noop());
            (0..100)
                .find_map(|_| match waiting.as_mut().poll(&mut cx) {
                    Poll::Ready(step) => Some(Poll::Ready(step)),
                    Poll::Pending => None,
                })
                .unwrap_or(Poll::Pending)
        }
        step => Poll::Ready(step),
    }
}

fn next(stage: &Arc<Stage>, x: &mut Exchange<'_>) {
    let step = access(stage, x);
    assert!(matches!(step, Poll::Ready(Step::Next)), "{step:?}");
}

/// Ends a request as the gateway does.
fn over(stage: &Arc<Stage>, mut x: Exchange<'_>) {
    Chain::of(stage.clone()).log(&mut x);
}

fn reply(stage: &Arc<Stage>, x: &mut Exchange<'_>) -> Reply {
    match access(stage, x) {
        Poll::Ready(Step::Reply(reply)) => reply,
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_module_reads_and_changes_the_request() {
    let modules = Modules::new();
    let mut probe = Probe::request("GET", "/a?b=1", &[("Host", "example.com"), ("X-In", "in")]);
    let stage = modules.stage(
        &probe,
        r#"
        (data (i32.const 100) "x-in") (data (i32.const 110) "X-Out") (data (i32.const 120) ":path")
        (data (i32.const 130) "/other") (data (i32.const 140) "remote_addr") (data (i32.const 160) "nothing")
        (data (i32.const 170) "request\00path") (data (i32.const 190) "X-Address") (data (i32.const 200) "plugin_name")
        (func (export "proxy_on_request_headers") (param $id i32) (param $count i32) (param $end i32) (result i32)
          (call $is (local.get $count) (i32.const 6))
          (call $is (local.get $end) (i32.const 1))
          (call $is (call $header (i32.const 0) (i32.const 100) (i32.const 4) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (call $set_header (i32.const 0) (i32.const 110) (i32.const 5) (i32.load (i32.const 0)) (i32.load (i32.const 4))) (i32.const 0))
          (call $is (call $remove_header (i32.const 0) (i32.const 100) (i32.const 4)) (i32.const 0))
          (call $is (call $header (i32.const 0) (i32.const 100) (i32.const 4) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $set_header (i32.const 0) (i32.const 120) (i32.const 5) (i32.const 130) (i32.const 6)) (i32.const 0))
          (call $is (call $property (i32.const 140) (i32.const 11) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (call $set_header (i32.const 0) (i32.const 190) (i32.const 9) (i32.load (i32.const 0)) (i32.load (i32.const 4))) (i32.const 0))
          (call $is (call $property (i32.const 160) (i32.const 7) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $property (i32.const 170) (i32.const 12) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (i32.load (i32.const 4)) (i32.const 6))
          (call $is (call $property (i32.const 200) (i32.const 11) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (i32.load8_u (i32.load (i32.const 0))) (i32.const 97))
          (drop (call $log (i32.const 3) (i32.const 170) (i32.const 12)))
          (i32.const 0))"#,
    );
    let mut x = probe.exchange();
    next(&stage, &mut x);
    assert_eq!((x.header("X-Out"), x.header("X-In")), (Some(&b"in"[..]), None), "{:?}", modules.lines.0);
    assert_eq!(x.header("X-Address"), Some(&b"127.0.0.1"[..]));
    let mut uri = Vec::new();
    x.upstream_uri(&mut uri);
    assert_eq!(uri, b"/other");
    assert!(modules.logged("request path plugin=a route=1"), "{:?}", modules.lines.0);
}

#[test]
fn maps_are_read_and_replaced() {
    let modules = Modules::new();
    let mut probe = Probe::request("GET", "/a", &[("Host", "example.com"), ("X-One", "1"), ("X-Two", "2")]);
    // The map that is set has one header, `x: y`.
    let stage = modules.stage(
        &probe,
        r#"
        (data (i32.const 200) "\01\00\00\00\01\00\00\00\01\00\00\00x\00y\00")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $is (call $headers (i32.const 0) (i32.const 0) (i32.const 4)) (i32.const 0))
          ;; Four pseudo headers and three others.
          (call $is (i32.load (i32.load (i32.const 0))) (i32.const 7))
          (call $is (call $headers (i32.const 9) (i32.const 0) (i32.const 4)) (i32.const 2))
          (call $is (call $headers (i32.const 4) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $headers (i32.const 6) (i32.const 0) (i32.const 4)) (i32.const 1))
          (call $is (call $set_headers (i32.const 0) (i32.const 200) (i32.const 16)) (i32.const 0))
          (i32.const 0))"#,
    );
    let mut x = probe.exchange();
    next(&stage, &mut x);
    assert_eq!((x.header("X-One"), x.header("X"), x.header("X-Two")), (None, Some(&b"y"[..]), None));
}

#[test]
fn a_module_sees_and_replaces_the_request_s_body() {
    let modules = Modules::new();
    let mut probe = Probe::request("POST", "/a", &[("Host", "example.com")]);
    let stage = modules.stage(
        &probe,
        r#"
        (data (i32.const 100) "new ")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $is (local.get 2) (i32.const 0))
          (i32.const 1))
        (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
          (call $is (local.get 1) (i32.const 4))
          (call $is (call $bytes (i32.const 0) (i32.const 1) (i32.const 100) (i32.const 0) (i32.const 4)) (i32.const 0))
          (call $is (i32.load (i32.const 4)) (i32.const 3))
          (call $is (call $set_bytes (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 100) (i32.const 4)) (i32.const 0))
          (call $is (call $set_bytes (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 100) (i32.const 4)) (i32.const 1))
          (i32.const 0))"#,
    );
    let mut x = probe.exchange();
    sdk::testing::with_body(&mut x, b"body");
    next(&stage, &mut x);
    assert_eq!(x.body(), b"new body");
}

#[test]
fn a_module_responds() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let stage = modules.stage(
        &probe,
        r#"
        (data (i32.const 100) "denied")
        (data (i32.const 200) "\01\00\00\00\01\00\00\00\01\00\00\00x\00y\00")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $is (call $respond (i32.const 99) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)) (i32.const 2))
          (call $is (call $respond (i32.const 403) (i32.const 0) (i32.const 0) (i32.const 100) (i32.const 6) (i32.const 200) (i32.const 16) (i32.const -1)) (i32.const 0))
          (i32.const 1))"#,
    );
    let reply = reply(&stage, &mut probe.exchange());
    assert_eq!((reply.status, &reply.body[..]), (403, &b"denied"[..]));
    assert_eq!(reply.fields.unwrap().get_named(b"x"), Some(&b"y"[..]));
}

/// Calls 127.0.0.1:80 and sets the response's status as a header of the request.
const CALLS: &str = r#"
    (data (i32.const 100) "127.0.0.1:80") (data (i32.const 120) ":status") (data (i32.const 130) "X-Status")
    (func $call (result i32)
      (call $fetch (i32.const 100) (i32.const 12) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 1000) (i32.const 8)))
    (global $context (mut i32) (i32.const 0))
    (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
      (call $is (local.get 1) (i32.load (i32.const 8)))
      (if (i32.eqz (local.get 2)) (then (drop (call $effective (global.get $context)))
        (drop (call $respond (i32.const 502) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
        return))
      (call $is (local.get 3) (i32.const 2))
      (call $is (call $header (i32.const 6) (i32.const 120) (i32.const 7) (i32.const 0) (i32.const 4)) (i32.const 0))
      ;; The plugin's context has no request.
      (call $is (call $set_header (i32.const 0) (i32.const 130) (i32.const 8) (i32.load (i32.const 0)) (i32.load (i32.const 4))) (i32.const 1))
      (call $is (call $effective (i32.const 999)) (i32.const 2))
      (call $is (call $effective (global.get $context)) (i32.const 0))
      (call $is (call $set_header (i32.const 0) (i32.const 130) (i32.const 8) (i32.load (i32.const 0)) (i32.load (i32.const 4))) (i32.const 0))
      (drop (call $continue (i32.const 0))))
"#;

#[test]
fn a_request_waits_for_calls_whether_it_is_paused_or_not() {
    for action in [0, 1] {
        let modules = Modules::new();
        let mut probe = Probe::default();
        let code = format!(
            r#"{CALLS} (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (global.set $context (local.get 0))
                (call $is (call $call) (i32.const 0))
                (i32.const {action}))"#
        );
        let stage = modules.stage(&probe, &code);
        let answer = Fetched {
            status: 207,
            body: b"ok".to_vec(),
            fields: fields(&[("A", "b")]),
            ..Fetched::default()
        };
        probe.world.sleeps_last.set(true);
        probe.world.answers.borrow_mut().push(Ok(answer));
        let mut x = probe.exchange();
        next(&stage, &mut x);
        assert_eq!(x.header("X-Status"), Some(&b"207"[..]), "{:?}", modules.lines.0);
        drop(x);
        probe.messages.clear();
        // The next call is refused.
        let reply = reply(&stage, &mut probe.exchange());
        assert_eq!(reply.status, 502);
        assert_eq!(probe.world.sent.borrow()[0].target.authority, "127.0.0.1:80");
    }
}

#[test]
fn a_paused_request_without_a_call_waits() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code = r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))"#;
    let stage = modules.stage(&probe, code);
    assert!(access(&stage, &mut probe.exchange()).is_pending());
}

#[test]
fn contexts_are_made_and_deleted_in_order() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let said = |text: &str, at: u32| {
        format!("(drop (call $log (i32.const 2) (i32.const {at}) (i32.const {})))", text.len())
    };
    let words = ["create", "start", "configure", "headers", "done", "log", "delete"];
    let data: String = words
        .iter()
        .enumerate()
        .map(|(n, word)| format!("(data (i32.const {}) {word:?})", 100 + n * 20))
        .collect();
    let code = format!(
        r#"{data}
        (func (export "proxy_on_context_create") (param i32 i32) {})
        (func (export "proxy_on_vm_start") (param i32 i32) (result i32) {} (i32.const 1))
        (func (export "proxy_on_configure") (param i32 i32) (result i32) {}
          (call $is (local.get 1) (i32.const 8))
          (call $is (call $bytes (i32.const 7) (i32.const 0) (i32.const 100) (i32.const 0) (i32.const 4)) (i32.const 0))
          (i32.const 1))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {} (i32.const 0))
        (func (export "proxy_on_done") (param i32) (result i32) {} (i32.const 1))
        (func (export "proxy_on_log") (param i32) {})
        (func (export "proxy_on_delete") (param i32) {})"#,
        said(words[0], 100),
        said(words[1], 120),
        said(words[2], 140),
        said(words[3], 160),
        said(words[4], 180),
        said(words[5], 200),
        said(words[6], 220),
    );
    let stage = modules.stage(&probe, &code);
    for _ in 0..2 {
        let mut x = probe.exchange();
        next(&stage, &mut x);
        Chain::of(stage.clone()).log(&mut x);
        drop(x);
        probe.messages.clear();
    }
    let lines = modules.lines.0.lock().unwrap();
    let said: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    let request = ["create", "headers", "done", "log", "delete"];
    let all: Vec<&str> = ["create", "start", "configure"].into_iter().chain(request).chain(request).collect();
    assert_eq!(said, all);
}

#[test]
fn contexts_that_a_module_keeps_are_bounded() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    // Numbers of contexts that have ended are used again.
    let stage = modules.stage(
        &probe,
        r#"(func (export "proxy_on_done") (param i32) (result i32) (i32.const 0))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $fail_unless (i32.lt_u (local.get 0) (i32.const 1010))) (i32.const 0))"#,
    );
    for _ in 0..1100 {
        let mut x = probe.exchange();
        next(&stage, &mut x);
        Chain::of(stage.clone()).log(&mut x);
        drop(x);
        probe.messages.clear();
    }
    assert!(!modules.logged("failed"), "{:?}", modules.lines.0);
}

#[test]
fn shared_data_queues_and_metrics_are_bounded() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let stage = modules.stage(
        &probe,
        r#"
        (data (i32.const 100) "key") (data (i32.const 110) "requests.total")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (local $n i32)
          (call $is (call $shared (i32.const 100) (i32.const 3) (i32.const 0) (i32.const 4) (i32.const 8)) (i32.const 1))
          (call $is (call $set_shared (i32.const 100) (i32.const 3) (i32.const 100) (i32.const 3) (i32.const 0)) (i32.const 0))
          (call $is (call $shared (i32.const 100) (i32.const 3) (i32.const 0) (i32.const 4) (i32.const 8)) (i32.const 0))
          (call $is (call $set_shared (i32.const 100) (i32.const 3) (i32.const 100) (i32.const 3) (i32.const 77)) (i32.const 8))
          (call $is (call $set_shared (i32.const 100) (i32.const 3) (i32.const 100) (i32.const 3) (i32.load (i32.const 8))) (i32.const 0))
          (call $is (call $set_shared (i32.const 100) (i32.const 3) (i32.const 0) (i32.const 60000) (i32.const 0)) (i32.const 2))
          (call $is (call $register (i32.const 100) (i32.const 3) (i32.const 8)) (i32.const 0))
          (block $full (loop $more
            (br_if $full (i32.eq (call $enqueue (i32.load (i32.const 8)) (i32.const 0) (i32.const 100)) (i32.const 10)))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br $more)))
          (call $is (local.get $n) (i32.const 75))
          (call $is (call $define_metric (i32.const 0) (i32.const 110) (i32.const 14) (i32.const 8)) (i32.const 0))
          (call $is (call $increment (i32.load (i32.const 8)) (i64.const 5)) (i32.const 0))
          (call $is (call $increment (i32.load (i32.const 8)) (i64.const -5)) (i32.const 2))
          (call $is (call $increment (i32.const 99) (i64.const 1)) (i32.const 1))
          (call $is (call $define_metric (i32.const 2) (i32.const 110) (i32.const 14) (i32.const 8)) (i32.const 2))
          (call $is (call $define_metric (i32.const 2) (i32.const 100) (i32.const 3) (i32.const 8)) (i32.const 0))
          (call $is (call $record (i32.load (i32.const 8)) (i64.const 7)) (i32.const 0))
          (i32.const 0))"#,
    );
    next(&stage, &mut probe.exchange());
    let metrics = modules.host.metrics.all();
    let shown: Vec<_> = metrics.iter().map(|metric| (&*metric.name, metric.plugin, metric.value())).collect();
    assert_eq!(shown, [("key", "a", 7), ("requests_total", "a", 5)]);
    assert_eq!(metrics[0].buckets()[..4], [0, 0, 0, 1]);
}

#[test]
fn calls_that_are_not_supported_say_so() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let zeros = "(i32.const 0) ".repeat(6);
    let code = format!(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $is (call $foreign {zeros}) (i32.const 12)) (i32.const 0))"#
    );
    let stage = modules.stage(&probe, &code);
    next(&stage, &mut probe.exchange());
}

#[test]
fn modules_that_cannot_be_used_are_reported() {
    let modules = Modules::new();
    let refused = |bytes: &[u8]| {
        let binary = Binary::compile(&modules.host, bytes, &());
        match binary.and_then(|binary| Module::load(&modules.host, "bad", &binary)) {
            Ok(_) => panic!("the module is loaded"),
            Err(reason) => reason,
        }
    };
    let text = |text: &str| refused(&wat::parse_str(text).unwrap());
    assert!(refused(b"").contains("invalid WebAssembly module"));
    assert!(!refused(b"\0asm\x01\0\0\0\xff").is_empty());
    assert!(text("(module)").contains("proxy_abi_version_0_2_1"));
    let abi = r#"(func (export "proxy_abi_version_0_2_0"))"#;
    assert!(text(&format!("(module {abi})")).contains("no `memory`"));
    let memory = format!("(memory (export \"memory\") 1) {abi}");
    let import = text(&format!("(module (import \"env\" \"frob\" (func)) {memory})"));
    assert!(import.contains("frob"), "{import}");
    let wrong = text(&format!("(module {memory} (func (export \"proxy_on_tick\")))"));
    assert!(wrong.contains("`proxy_on_tick` has another type"), "{wrong}");
    let fails = text(&format!("(module {memory} (func (export \"_initialize\") unreachable))"));
    assert!(fails.contains("unreachable"), "{fails}");
    let large = text(&format!("(module (memory (export \"memory\") 1000) {abi})"));
    assert!(large.contains("memory"), "{large}");
}
