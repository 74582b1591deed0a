//! Contexts that end, and settings.

use super::*;

/// Callbacks that log their names, with code of their own.
fn said(name: &str, at: u32, result: &str, code: &str) -> String {
    let params = if name == "configure" || name == "vm_start" { "i32 i32" } else { "i32" };
    format!(
        r#"(data (i32.const {at}) {name:?})
           (func (export "proxy_on_{name}") (param {params}) {result}
             (drop (call $log (i32.const 2) (i32.const {at}) (i32.const {}))) {code})"#,
        name.len()
    )
}

fn words(modules: &Modules) -> Vec<String> {
    let lines = modules.lines.0.lock().unwrap();
    lines.iter().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

#[test]
fn a_module_that_is_done_cannot_be_done_again() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    let done = "(call $is (call $proxy_done) (i32.const 1)) (i32.const 1)";
    let code =
        [said("done", 500, "(result i32)", done), said("log", 520, "", ""), said("delete", 540, "", "")];
    let stage = modules.stage(&probe, &code.concat());
    let mut x = probe.exchange();
    next(&stage, &mut x);
    over(&stage, x);
    assert_eq!(words(&modules), ["done", "log", "delete"]);
}

#[test]
fn a_context_that_is_kept_is_logged_once_its_module_is_done() {
    let modules = Modules::new();
    let mut probe = Probe::default();
    // The second request ends the context of the first one.
    let code = [
        r#"(global $first (mut i32) (i32.const 0))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (if (i32.eqz (global.get $first)) (then (global.set $first (local.get 0)) (return (i32.const 0))))
             (call $is (call $effective (global.get $first)) (i32.const 0))
             (call $is (call $set_property (i32.const 0) (i32.const 8) (i32.const 0) (i32.const 8)) (i32.const 10))
             (call $is (call $proxy_done) (i32.const 0))
             (call $is (call $proxy_done) (i32.const 1))
             (i32.const 0))"#
            .to_owned(),
        said("done", 500, "(result i32)", "(i32.const 0)"),
        said("log", 520, "", ""),
        said("delete", 540, "", ""),
    ];
    let stage = modules.stage(&probe, &code.concat());
    let mut x = probe.exchange();
    next(&stage, &mut x);
    over(&stage, x);
    assert_eq!(words(&modules), ["done"]);
    probe.messages.clear();
    let mut x = probe.exchange();
    next(&stage, &mut x);
    assert_eq!(words(&modules), ["done", "log", "delete"]);
    over(&stage, x);
    assert_eq!(words(&modules), ["done", "log", "delete", "done"]);
}

#[test]
fn settings_are_rejected_once_by_an_instance() {
    for (start, configure, all) in
        [(1, 0, &["vm_start", "configure", "wasm"][..]), (0, 1, &["vm_start", "wasm"])]
    {
        let modules = Modules::new();
        let mut probe = Probe::default();
        let code = [
            said("vm_start", 500, "(result i32)", &format!("(i32.const {start})")),
            said("configure", 520, "(result i32)", &format!("(i32.const {configure})")),
        ];
        let stage = modules.stage(&probe, &code.concat());
        for _ in 0..3 {
            assert_eq!(reply(&stage, &mut probe.exchange()).status, 503);
            probe.messages.clear();
        }
        assert_eq!(words(&modules), all);
    }
}

#[test]
fn calls_of_every_context_count_hops() {
    for plugin in [false, true] {
        let modules = Modules::new();
        let mut probe = Probe::default();
        let code = format!(
            r#"(data (i32.const 100) "127.0.0.1:80")
               (data (i32.const 200) "\01\00\00\00\0b\00\00\00\01\00\00\00sluice-hops\000\00")
               (global $plugin (mut i32) (i32.const 0))
               (func (export "proxy_on_configure") (param i32 i32) (result i32)
                 (global.set $plugin (local.get 0)) (i32.const 1))
               (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                 (if (i32.const {}) (then (call $is (call $effective (global.get $plugin)) (i32.const 0))))
                 (call $is (call $fetch (i32.const 100) (i32.const 12) (i32.const 200) (i32.const 26) (i32.const 0)
                   (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 1000) (i32.const 8)) (i32.const 0))
                 (i32.const 0))"#,
            i32::from(plugin)
        );
        let stage = modules.stage(&probe, &code);
        next(&stage, &mut probe.exchange());
        let sent = probe.world.sent.borrow();
        assert_eq!(sent[0].fields.len(), 1, "{plugin}");
        assert_eq!(sent[0].fields.get_named(b"sluice-hops"), Some(&b"1"[..]), "{plugin}");
    }
}
