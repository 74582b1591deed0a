//! `filter_func` of routes.

use sdk::Verdict;
use sdk::condition::Condition;
use sdk::verdict::Undecidable;

use super::*;

fn compiled(scripts: &Scripts, code: &str) -> Arc<dyn Condition> {
    super::super::scripts(&scripts.host)
        .condition("1", code)
        .unwrap_or_else(|invalid| panic!("{code}: {}", invalid.reason))
}

#[test]
fn functions_judge_by_variables() {
    let scripts = Scripts::new();
    let mut probe = Probe::request("GET", "/a?x=1", &[("Host", "example.com:80")]);
    for (code, verdict) in [
        ("function(vars) return vars.arg_x == '1' and vars['host'] == 'example.com' end", Verdict::Holds),
        ("function(vars) return vars.arg_x == '2' end", Verdict::Fails),
        ("function(vars) return vars.none == nil and vars[1] == nil end", Verdict::Holds),
        ("function(vars) return vars.uri end", Verdict::Holds),
        ("function() end", Verdict::Fails),
        ("function() error({}) end", Verdict::Fails),
        ("function() while true do end end", Verdict::Fails),
        ("function() coroutine.yield() return true end", Verdict::Fails),
        ("function(vars) return getmetatable(vars) end", Verdict::Fails),
    ] {
        let condition = compiled(&scripts, code);
        for _ in 0..2 {
            assert_eq!(condition.judge(&probe.exchange(), false), verdict, "{code}");
        }
    }
    assert!(scripts.logged("filter_func failed route=1"));
}

#[test]
fn nothing_but_variables_is_in_reach() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    for call in [
        "ngx.sleep(0)",
        "ngx.socket.tcp()",
        "ngx.timer.at(0, print)",
        "ngx.req.set_header('A', '1')",
        "ngx.req.get_headers()",
        "ngx.say('x')",
        "ngx.exit(200)",
        "ngx.var.uri",
        "ngx.thread.spawn(ngx.sleep, 1)",
        "require('resty.http').new()",
    ] {
        let code = format!("function() local ok = pcall(function() return {call} end) return not ok end");
        assert_eq!(compiled(&scripts, &code).judge(&probe.exchange(), false), Verdict::Holds, "{call}");
    }
    // Variables kept from a request are not those of the next place.
    let stage = scripts.stage(&probe, "access", "return function() kept = nil end").unwrap();
    assert!(matches!(run(&stage, Phase::Access, &mut probe.exchange()), Step::Next));
}

#[test]
fn a_body_is_waited_for_and_unreadable_ones_are_undecidable() {
    let scripts = Scripts::new();
    let headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Content-Length", "7")];
    let mut probe = Probe::request("POST", "/", &headers);
    let condition = compiled(
        &scripts,
        "function(vars) local ok = pcall(function() return vars.post_arg_m end) return vars.post_arg_m == 'x' end",
    );
    assert!(condition.needs_body() && !compiled(&scripts, "function(vars) return vars.uri end").needs_body());
    let mut x = probe.exchange();
    x.engine_mut().body_state = sdk::exchange::Body::Streaming;
    assert_eq!(condition.judge(&x, false), Verdict::NeedsBody);
    assert_eq!(condition.judge(&x, true), Verdict::Fails);
    with_body(&mut x, b"m=x&a=1");
    assert_eq!(condition.judge(&x, false), Verdict::Holds);
    x.engine_mut().body_state = sdk::exchange::Body::TooLarge;
    assert_eq!(condition.judge(&x, false), Verdict::Undecidable(Undecidable::TooLarge));
    assert!(!scripts.logged("filter_func failed"));
}

#[test]
fn code_that_is_no_function_is_refused() {
    let scripts = Scripts::new();
    for (code, reason) in [
        ("function(vars) return = end", "failed to load 'filter_func' string: filter_func:1: "),
        ("functions", "'filter_func' should be a function"),
        ("function() end, while true do end", "failed to load 'filter_func' string: "),
        (
            "(function() while true do end end)()",
            "failed to load 'filter_func' string: filter_func:1: the script ran",
        ),
    ] {
        let invalid = super::super::scripts(&scripts.host).condition("1", code).expect_err(code);
        assert!(invalid.reason.starts_with(reason), "{code}: {}", invalid.reason);
    }
}
