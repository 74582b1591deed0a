//! Modules that fail, or that want more than they may have.

use super::*;

/// The reply to a request, and that the next request of a good plugin is served.
fn failed(modules: &Modules, code: &str) -> (u16, String) {
    let mut probe = Probe::default();
    let good = modules.load("good", "");
    let (bad, good) = (modules.stage(&probe, code), modules.stage_of(&probe, &good, false));
    let status = reply(&bad, &mut probe.exchange()).status;
    next(&good, &mut probe.exchange());
    (status, modules.lines.0.lock().unwrap().join("\n"))
}

fn on_headers(code: &str) -> String {
    format!("(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32) {code})")
}

#[test]
fn a_loop_without_end_costs_its_request() {
    let modules = Modules::with(Settings { max_time: Duration::from_millis(50), ..Settings::default() });
    let (status, lines) = failed(&modules, &on_headers("(loop $l (br $l)) (i32.const 0)"));
    assert_eq!(status, 500);
    assert!(lines.contains("callback=proxy_on_request_headers") && lines.contains("max_time"), "{lines}");
}

#[test]
fn an_instance_that_has_failed_is_replaced() {
    let modules = Modules::new();
    // Fails whenever its memory was used before.
    let code = on_headers(
        "(if (i32.load (i32.const 40)) (then unreachable)) (i32.store (i32.const 40) (i32.const 1)) (i32.const 0)",
    );
    let mut probe = Probe::default();
    let stage = modules.stage(&probe, &code);
    for n in 0..4 {
        let step = access(&stage, &mut probe.exchange());
        let is_good = matches!(step, Poll::Ready(Step::Next));
        assert_eq!(is_good, n % 2 == 0, "{n}: {step:?}");
        probe.messages.clear();
    }
}

#[test]
fn a_context_of_an_instance_that_has_failed_is_not_passed_on() {
    let modules = Modules::new();
    let code = r#"
        (data (i32.const 100) "started")
        (func (export "proxy_on_vm_start") (param i32 i32) (result i32)
          (drop (call $log (i32.const 2) (i32.const 100) (i32.const 7))) (i32.const 1))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (if (i32.eq (local.get 1) (i32.const 5)) (then unreachable)) (i32.const 0))
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 0))"#;
    let mut probe = Probe::request("GET", "/", &[("Host", "a"), ("X-Good", "1")]);
    let module = modules.load("a", code);
    let stage = modules.stage_of(&probe, &module, false);
    let mut x = probe.exchange();
    next(&stage, &mut x);
    // Another request on the same worker fails.
    let mut messages = sdk::testing::messages("GET", "/", &[("Host", "a")]);
    let client = sdk::Client::new("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap(), false);
    let consumers = sdk::Consumers::default();
    let mut other = Exchange::new(&mut messages, &client, &consumers, x.world());
    assert_eq!(reply(&stage, &mut other).status, 500);
    sdk::testing::respond(&mut x, 200, &[]);
    let mut cursor = 0;
    let chain = Chain::of(stage.clone());
    // There is a new instance by now.
    let mut third = sdk::testing::messages("GET", "/", &[("Host", "a"), ("X-Good", "1")]);
    next(&stage, &mut Exchange::new(&mut third, &client, &consumers, x.world()));
    let step = chain.header_filter(&mut cursor, &mut x);
    assert!(matches!(&step, Step::Reply(reply) if reply.status == 500), "{step:?}");
    // It is used on, and not replaced.
    let mut fourth = sdk::testing::messages("GET", "/", &[("Host", "a"), ("X-Good", "1")]);
    let mut fourth = Exchange::new(&mut fourth, &client, &consumers, x.world());
    next(&stage, &mut fourth);
    let lines = modules.lines.0.lock().unwrap();
    assert_eq!(lines.iter().filter(|line| line.starts_with("started ")).count(), 2, "{lines:?}");
}

#[test]
fn instances_that_fail_at_every_request_are_started_less_often() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let stage = modules.stage(&probe, &on_headers("unreachable"));
    let statuses: Vec<u16> = (0..25)
        .map(|_| {
            let status = reply(&stage, &mut probe.exchange()).status;
            probe.messages.clear();
            status
        })
        .collect();
    assert_eq!(statuses[..20], [500; 20]);
    assert_eq!(statuses[20..], [503; 5]);
    probe.world.now_ms.set(probe.world.now_ms.get() + 1000);
    assert_eq!(reply(&stage, &mut probe.exchange()).status, 500);
}

#[test]
fn memory_is_bounded() {
    let modules = Modules::new();
    // Grows until it is refused, which is at 64 pages.
    let code = on_headers(
        "(loop $l (br_if $l (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)))) (call $is (memory.size) (i32.const 64))
         (i32.const 0)",
    );
    let mut probe = Probe::default();
    let stage = modules.stage(&probe, &code);
    next(&stage, &mut probe.exchange());
}

#[test]
fn deep_recursion_and_exits_cost_their_request() {
    let modules = Modules::new();
    let (status, lines) = failed(
        &modules,
        &format!(
            "(func $deep (param i32) (result i32) (i32.add (call $deep (local.get 0)) (i32.const 1))) {}",
            on_headers("(call $deep (i32.const 0))")
        ),
    );
    assert_eq!(status, 500);
    assert!(lines.contains("stack"), "{lines}");
}

#[test]
fn pointers_outside_of_the_memory_are_rejected() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let beyond = ["(i32.const -1)", "(i32.const 196600)", "(i32.const 2147483647)"];
    let checks: String = beyond
        .iter()
        .map(|at| {
            format!(
                "(call $is (call $log (i32.const 2) {at} (i32.const 100)) (i32.const 6))
                 (call $is (call $log (i32.const 2) (i32.const 0) (i32.const -1)) (i32.const 6))
                 (call $is (call $header (i32.const 0) {at} (i32.const 100) (i32.const 0) (i32.const 4)) (i32.const 6))
                 (call $is (call $header (i32.const 0) (i32.const 300) (i32.const 5) (i32.const 0) (i32.const -3)) (i32.const 6))
                 (call $is (call $set_bytes (i32.const 0) (i32.const 0) (i32.const 0) {at} (i32.const 100)) (i32.const 6))
                 (call $is (call $respond (i32.const 200) (i32.const 0) (i32.const 0) {at} (i32.const 100) (i32.const 0) (i32.const 0) (i32.const -1)) (i32.const 6))
                 (call $is (call $set_headers (i32.const 0) {at} (i32.const 100)) (i32.const 6))
                 (call $is (call $set_shared {at} (i32.const 100) (i32.const 0) (i32.const 1) (i32.const 0)) (i32.const 6))
                 (call $is (call $enqueue (i32.const 1) {at} (i32.const 100)) (i32.const 6))
                 (call $is (call $define_metric (i32.const 0) {at} (i32.const 100) (i32.const 0)) (i32.const 6))
                 (call $is (call $property {at} (i32.const 100) (i32.const 0) (i32.const 4)) (i32.const 6))
                 (call $is (call $fetch {at} (i32.const 100) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0)) (i32.const 6))"
            )
        })
        .collect();
    let code = format!("(data (i32.const 300) \":path\") {}", on_headers(&format!("{checks} (i32.const 0)")));
    let stage = modules.stage(&probe, &code);
    next(&stage, &mut probe.exchange());
}

#[test]
fn maps_with_wrong_lengths_are_rejected() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code = format!(
        r#"(data (i32.const 200) "\ff\ff\ff\ff\01\00\00\00\01\00\00\00x\00y\00")
           (data (i32.const 220) "\01\00\00\00\ff\ff\ff\ff\01\00\00\00x\00y\00")
           (data (i32.const 240) "\02\00\00\00\01\00\00\00\01\00\00\00x\00y\00")
           (data (i32.const 260) "\01\00\00\00\01\00\00\00\01\00\00\00 \00y\00") {}"#,
        on_headers(
            "(call $is (call $set_headers (i32.const 0) (i32.const 200) (i32.const 16)) (i32.const 2))
             (call $is (call $set_headers (i32.const 0) (i32.const 220) (i32.const 16)) (i32.const 2))
             (call $is (call $set_headers (i32.const 0) (i32.const 240) (i32.const 16)) (i32.const 2))
             (call $is (call $set_headers (i32.const 0) (i32.const 260) (i32.const 16)) (i32.const 2))
             (i32.const 0)"
        )
    );
    let stage = modules.stage(&probe, &code);
    next(&stage, &mut probe.exchange());
}

#[test]
fn memory_that_a_module_provides_for_results_is_checked() {
    for malloc in ["(i32.const -8)", "(i32.const 0)"] {
        let modules = Modules::new();
        let mut probe = Probe::default();
        let status = if malloc.contains("-8") { 6 } else { 10 };
        let code = format!(
            r#"(func (export "proxy_on_memory_allocate") (param i32) (result i32) {malloc})
               (data (i32.const 300) ":path") {}"#,
            on_headers(&format!(
                "(call $is (call $header (i32.const 0) (i32.const 300) (i32.const 5) (i32.const 0) (i32.const 4)) (i32.const {status}))
                 (i32.const 0)"
            ))
        );
        let stage = modules.stage(&probe, &code);
        next(&stage, &mut probe.exchange());
    }
    // It calls a function that wants memory, and so on.
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code = format!(
        r#"(func (export "proxy_on_memory_allocate") (param i32) (result i32)
             (call $is (call $header (i32.const 0) (i32.const 300) (i32.const 5) (i32.const 0) (i32.const 4)) (i32.const 10))
             (i32.const 1024))
           (data (i32.const 300) ":path") {}"#,
        on_headers(
            "(call $is (call $header (i32.const 0) (i32.const 300) (i32.const 5) (i32.const 0) (i32.const 4)) (i32.const 0))
             (i32.const 0)"
        )
    );
    let stage = modules.stage(&probe, &code);
    next(&stage, &mut probe.exchange());
}

#[test]
fn headers_and_properties_that_a_module_adds_are_bounded() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let code = on_headers(
        "(local $n i32)
         (block $full (loop $more
           (br_if $full (i32.eq (call $set_property (i32.const 0) (i32.const 8) (i32.const 0) (i32.const 50000)) (i32.const 10)))
           (local.set $n (i32.add (local.get $n) (i32.const 1)))
           (br $more)))
         (call $fail_unless (i32.lt_u (local.get $n) (i32.const 100)))
         (i32.const 0)",
    );
    let stage = modules.stage(&probe, &code);
    next(&stage, &mut probe.exchange());
}

#[test]
fn a_configuration_that_the_module_rejects_is_503() {
    let modules = Modules::new();
    let code = r#"(func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 0))"#;
    let (status, lines) = failed(&modules, code);
    assert_eq!(status, 503);
    assert!(lines.contains("rejects its configuration"), "{lines}");
}

#[test]
fn changes_that_an_exchange_keeps_are_bounded() {
    for change in [
        "(call $set_property (i32.const 100) (i32.const 12) (i32.const 2000) (i32.const 50000))",
        "(call $set_property (i32.const 120) (i32.const 13) (i32.const 2000) (i32.const 50000))",
        "(call $remove_header (i32.const 2) (i32.const 2000) (i32.const 50000))",
        "(call $remove_header (i32.const 0) (i32.const 2000) (i32.const 50000))",
    ] {
        let modules = Modules::new();
        let mut probe = Probe::default();
        let code = format!(
            r#"(data (i32.const 100) "upstream_uri") (data (i32.const 120) "upstream_host") {}"#,
            on_headers(&format!(
                "(local $n i32) (local $status i32)
                 (memory.fill (i32.const 2000) (i32.const 97) (i32.const 120000))
                 ;; A target begins with a slash, and names have none.
                 (if (i32.const {}) (then (i32.store8 (i32.const 2000) (i32.const 47))))
                 (call $is (call $remove_header (i32.const 2) (i32.const 2000) (i32.const 70000)) (i32.const 2))
                 (block $full (loop $more
                   (local.set $status {change})
                   (br_if $full (i32.eq (local.get $status) (i32.const 10)))
                   (call $is (local.get $status) (i32.const 0))
                   (local.set $n (i32.add (local.get $n) (i32.const 1)))
                   (br $more)))
                 (call $is (local.get $n) (i32.const 20))
                 (i32.const 0)",
                i32::from(change.contains("const 12)"))
            ))
        );
        let stage = modules.stage(&probe, &code);
        next(&stage, &mut probe.exchange());
    }
}

#[test]
fn a_map_is_replaced_as_a_whole_or_not_at_all() {
    let modules = Modules::new();
    let mut probe = Probe::request("GET", "/a", &[("Host", "a"), ("X-One", "1")]);
    let code = format!(
        r#"(data (i32.const 200) "\02\00\00\00\01\00\00\00\01\00\00\00\01\00\00\00\01\00\00\00x\00y\00 \00y\00")
           (data (i32.const 240) "\02\00\00\00\01\00\00\00\01\00\00\00\05\00\00\00\01\00\00\00x\00y\00:path\00y\00") {}"#,
        on_headers(
            "(call $is (call $set_headers (i32.const 0) (i32.const 200) (i32.const 28)) (i32.const 2))
             (call $is (call $set_headers (i32.const 0) (i32.const 240) (i32.const 32)) (i32.const 2))
             (i32.const 0)"
        )
    );
    let stage = modules.stage(&probe, &code);
    let mut x = probe.exchange();
    next(&stage, &mut x);
    assert_eq!((x.header("X-One"), x.header("X")), (Some(&b"1"[..]), None));
}

#[test]
fn after_a_loop_without_end_a_worker_starts_no_instance_for_a_while() {
    let modules = Modules::with(Settings { max_time: Duration::from_millis(50), ..Settings::default() });
    let mut probe = Probe::request("GET", "/", &[("Host", "a"), ("X-Loop", "1")]);
    // Of a request with that header, there are six.
    let code = on_headers("(if (i32.eq (local.get 1) (i32.const 6)) (then (loop $l (br $l)))) (i32.const 0)");
    let stage = modules.stage(&probe, &code);
    let status = |probe: &mut Probe| match access(&stage, &mut probe.exchange()) {
        Poll::Ready(Step::Reply(reply)) => reply.status,
        step => panic!("{step:?}"),
    };
    assert_eq!(status(&mut probe), 500);
    let began = probe.world.now_ms.get();
    probe.ask("GET", "/", &[("Host", "a")]);
    probe.world.now_ms.set(began + 540);
    assert_eq!(status(&mut probe), 503);
    probe.ask("GET", "/", &[("Host", "a")]);
    probe.world.now_ms.set(began + 550);
    next(&stage, &mut probe.exchange());
}
