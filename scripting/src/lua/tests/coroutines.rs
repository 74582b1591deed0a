//! Coroutines are used again, and nothing of a request stays with them.

use super::*;

/// The coroutines of this thread's machine that wait for a function.
fn idle() -> usize {
    machine::current().map_or(0, |machine| machine.coroutines.idle())
}

fn stage(scripts: &Scripts, probe: &Probe, code: &str) -> Arc<Stage> {
    scripts.stage(probe, "access", code).unwrap()
}

/// Runs the access phase of a new request.
fn access(stage: &Arc<Stage>) -> Step {
    run(stage, Phase::Access, &mut Probe::request("GET", "/", &[]).exchange())
}

fn body(step: Step) -> String {
    match step {
        Step::Reply(reply) => String::from_utf8(reply.body.to_vec()).unwrap(),
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_coroutine_whose_function_has_returned_takes_the_next() {
    let (scripts, probe) = (Scripts::new(), Probe::request("GET", "/", &[]));
    let first = stage(&scripts, &probe, "return function() end");
    let waits = stage(&scripts, &probe, "return function() ngx.sleep(0) coroutine.yield() end");
    for _ in 0..5 {
        assert!(matches!(access(&first), Step::Next));
        assert!(matches!(access(&waits), Step::Next));
        assert_eq!(idle(), 1);
    }
}

#[test]
fn coroutines_that_fail_exit_or_are_abandoned_are_not_used_again() {
    let (scripts, probe) = (Scripts::new(), Probe::request("GET", "/", &[]));
    let well = stage(&scripts, &probe, "return function() ngx.print('well') end");
    let deep = "return function() local function f(n) return 1 + f(n + 1) end f(1) end";
    let failing = ["return function() error({}) end", "return function() ngx.exit(403) end", deep];
    for code in failing {
        let fails = stage(&scripts, &probe, code);
        assert!(matches!(access(&fails), Step::Reply(_)), "{code}");
        assert_eq!(idle(), 0, "{code}");
        assert_eq!(body(access(&well)), "well", "{code}");
        assert_eq!(idle(), 1, "{code}");
    }
    // A client leaves while its function waits.
    let waits = stage(&scripts, &probe, "return function() while true do coroutine.yield() end end");
    let mut left = Probe::request("GET", "/", &[]);
    let step = Chain::of(waits).run(Phase::Access, &mut 0, &mut left.exchange());
    assert!(matches!(step, Step::Wait));
    drop(left);
    assert_eq!(idle(), 0);
    assert_eq!(body(access(&well)), "well");
}

#[test]
fn a_coroutine_that_a_script_has_seen_serves_no_other_function() {
    let (scripts, probe) = (Scripts::new(), Probe::request("GET", "/", &[]));
    let code = "return function()
        if not kept then
            kept = coroutine.running()
        else
            local ok, err = coroutine.resume(kept, function() ngx.print('hijacked') end)
            ngx.print(tostring(ok), ' ', err, ' ', coroutine.status(kept))
        end
    end";
    let keeps = stage(&scripts, &probe, code);
    assert!(matches!(access(&keeps), Step::Next));
    assert_eq!(idle(), 0);
    let resumed = body(access(&keeps));
    assert_eq!(resumed, "false cannot resume dead coroutine dead");
}

#[test]
fn each_request_has_a_context_of_its_own_which_its_plugins_share() {
    let (scripts, probe) = (Scripts::new(), Probe::request("GET", "/", &[]));
    let hidden = stage(
        &scripts,
        &probe,
        "return function()
            local ctx = ngx.ctx.api_ctx
            ctx.count = (ctx.count or 0) + 1
            ngx.ctx.count = (ngx.ctx.count or 0) + 1
        end",
    );
    let shown = stage(
        &scripts,
        &probe,
        "return function(_, ctx)
            ctx.count = (ctx.count or 0) + 1
            ngx.print(ctx.count, ngx.ctx.count or 0, tostring(ctx == ngx.ctx.api_ctx), ctx._plugin_name)
        end",
    );
    for _ in 0..3 {
        let mut probe = Probe::request("GET", "/", &[]);
        let mut x = probe.exchange();
        assert!(matches!(run(&hidden, Phase::Access, &mut x), Step::Next));
        assert_eq!(body(run(&shown, Phase::Access, &mut x)), "21trueserverless-pre-function");
        assert_eq!(body(access(&shown)), "10trueserverless-pre-function");
    }
}

#[test]
fn functions_without_parameters_and_with_any_number_of_them_get_what_they_read() {
    let (scripts, probe) = (Scripts::new(), Probe::request("GET", "/", &[]));
    for (parameters, read) in
        [("...", "select('#', ...), type(select(2, ...))"), ("_, ctx, x", "2, type(ctx)")]
    {
        let code = format!("return function({parameters}) ngx.print({read}) end");
        let stage = stage(&scripts, &probe, &code);
        assert_eq!(body(access(&stage)), "2table", "{parameters}");
    }
}

#[test]
fn functions_that_take_no_context_find_the_name_of_their_plugin_in_it() {
    let (scripts, probe) = (Scripts::new(), Probe::request("GET", "/", &[]));
    let name = "ngx.ctx.api_ctx._plugin_name";
    let waits = stage(&scripts, &probe, &format!("return function(conf) ngx.sleep(1) ngx.print({name}) end"));
    let parts = [
        format!("return function() ngx.print({name}) end"),
        format!("return function(conf) ngx.print({name}) end"),
        format!(
            "return function(conf) local before = {name} coroutine.yield() ngx.print(before == {name} and before) end"
        ),
        // A function before it has made the context.
        format!("return function(conf, ctx) assert({name}) ngx.print(ctx._plugin_name) end"),
    ];
    for code in parts {
        let one = stage(&scripts, &probe, &code);
        let mut probe = Probe::request("GET", "/", &[]);
        let mut x = probe.exchange();
        assert_eq!(body(run(&one, Phase::Access, &mut x)), "serverless-pre-function", "{code}");
        assert_eq!(body(run(&waits, Phase::Access, &mut x)), "serverless-pre-function", "{code}");
    }
    // Outside of functions of plugins no plugin runs.
    assert_eq!(machine::current().and_then(|machine| machine.plugin.get()), None);
}
