//! Scripts of plugin instances, on exchanges of tests.

use std::sync::Mutex;
use std::time::Duration;

use sdk::build::{Build, Owner};
use sdk::chain::{Chain, Fitting, Stage};
use sdk::exchange::Chunk;
use sdk::testing::{FixedNames, Probe, chunk, respond, with_body};
use sdk::{Exchange, Phase, Reply, Step};
use serde_json::json;

use super::*;

mod conditions;
mod coroutines;
mod hostile;
mod many;
mod sockets;

/// Lines of the log, of all tests of this process.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Log for Lines {
    fn level(&self) -> Level {
        Level::Info
    }

    fn line(&self, level: Level, text: String) {
        self.0.lock().unwrap().push((level, text));
    }
}

/// A host of this thread's machine: the first one of a thread stays.
struct Scripts {
    lines: Lines,
    host: Arc<Host>,
}

impl Scripts {
    fn new() -> Scripts {
        let lines = Lines::default();
        let settings =
            Settings { max_memory: 32 << 20, max_time: Duration::from_secs(3), ..Settings::default() };
        Scripts {
            host: Host::new(settings, Box::new(lines.clone()), Dictionaries::new([("test", 1 << 16)]), None),
            lines,
        }
    }

    fn stage(&self, probe: &Probe, phase: &str, code: &str) -> Result<Arc<Stage>, model::Invalid> {
        let plugin = &plugins(&self.host)[0];
        let owner = Owner { collection: "routes", id: "1".into() };
        let names = FixedNames::default();
        let mut cx = Build::new(&owner, &probe.services, &names);
        let config = json!({"phase": phase, "functions": [code]});
        plugin.build(config, &mut cx, Fitting { name: plugin.name(), priority: 0, meta: None })
    }

    fn logged(&self, words: &str) -> bool {
        self.lines.0.lock().unwrap().iter().any(|(_, line)| line.contains(words))
    }
}

/// Runs a phase of one instance to its end.
fn run(stage: &Arc<Stage>, phase: Phase, x: &mut Exchange<'_>) -> Step {
    let chain = Chain::of(stage.clone());
    let mut cursor = 0;
    let step = match chain.run(phase, &mut cursor, x) {
        Step::Wait => {
            let mut waiting = chain.wait(phase, cursor, x);
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            (0..10_000)
                .find_map(|_| match waiting.as_mut().poll(&mut cx) {
                    std::task::Poll::Ready(step) => Some(step),
                    std::task::Poll::Pending => None,
                })
                .expect("the wait ends")
        }
        step => step,
    };
    match step {
        Step::Next => x.take_reply_at_end().map_or(Step::Next, Step::Reply),
        step => step,
    }
}

/// The reply of a function in the access phase.
fn reply(probe: &mut Probe, code: &str) -> Option<Reply> {
    let scripts = Scripts::new();
    let stage = scripts.stage(probe, "access", code).unwrap();
    match run(&stage, Phase::Access, &mut probe.exchange()) {
        Step::Reply(reply) => Some(reply),
        Step::Next => None,
        step => panic!("{step:?}"),
    }
}

/// The text that an expression writes.
fn said(expression: &str) -> String {
    let mut probe =
        Probe::request("POST", "/a/b?x=1&y=a%20b&flag", &[("Host", "example.com:80"), ("X-One", "1")]);
    let code =
        format!("local core = require('apisix.core') return function(conf, ctx) ngx.print({expression}) end");
    let reply = reply(&mut probe, &code).expect(expression);
    assert_eq!(reply.status, 200, "{expression}: {reply:?}");
    String::from_utf8(reply.body.to_vec()).unwrap()
}

#[test]
fn scripts_read_the_request() {
    for (expression, text) in [
        ("core.request.get_method(), ngx.req.get_method()", "POSTPOST"),
        ("core.request.header(ctx, 'x-one'), ngx.req.get_headers()['X_One'], ctx.var.http_x_one", "111"),
        ("core.request.get_uri_args(ctx).y, ngx.req.get_uri_args().flag, ctx.var.arg_x", "a btrue1"),
        ("core.request.get_host(ctx), ' ', ngx.var.host", "example.com example.com"),
        ("ctx.var.uri, ' ', ngx.var.request_uri", "/a/b /a/b?x=1&y=a%20b&flag"),
        (
            "core.request.get_ip(ctx), core.request.get_scheme(ctx), core.request.get_http_version()",
            "127.0.0.1http1.1",
        ),
        ("ctx.matched_route.value.id, ctx.route_id, ctx.route_name, tostring(ctx.consumer)", "11route-1nil"),
        ("ngx.get_phase(), tostring(ngx.null == nil), type(ngx.ctx.api_ctx)", "accessfalsetable"),
        (
            "tostring(ngx.ctx.api_ctx == ctx), tostring(ngx.var.no_such), tostring(ctx.var.no_such)",
            "truenilnil",
        ),
        ("(function() ctx.var.mine = 7 return ctx.var.mine, ngx.var.mine end)()", "77"),
        (
            "(function() core.ctx.register_var('ours', function(c) return c.route_id .. '!' end) return ctx.var.ours end)()",
            "1!",
        ),
        ("({pcall(ngx.exec, '/x')})[2]:match('there are no locations')", "there are no locations"),
        ("select(2, pcall(require, 'apisix.cor')):match(\"did you mean '([%w.]+)'\")", "apisix.core"),
        ("ngx.time() - ngx.now() < 1 and 'ok'", "ok"),
        ("ngx.utctime():match('^%d+-%d+-%d+ %d+:%d+:%d+$') and #ngx.today(), #ngx.localtime()", "1019"),
        ("#require('apisix.core').event, type(require('apisix.secret').fetch_secrets({}))", "0table"),
    ] {
        assert_eq!(said(expression), text, "{expression}");
    }
}

#[test]
fn scripts_change_the_request() {
    let scripts = Scripts::new();
    let mut probe = Probe::request("GET", "/a?b=1", &[("Host", "a"), ("X-Old", "1")]);
    let code = "local core = require('apisix.core') return function(_, ctx)
        core.request.set_header(ctx, 'X-New', {'1', '2'}) ngx.req.clear_header('X-Old')
        ngx.req.set_uri('/new path') ngx.req.set_uri_args({c = {'1', '2'}}) ctx.var.upstream_host = 'up'
        ngx.req.set_header('X-Evil', 'a\\r\\nb') ngx.req.set_method(ngx.HTTP_PUT or 'PUT')
    end";
    let stage = scripts.stage(&probe, "rewrite", code).unwrap();
    let mut x = probe.exchange();
    let step = run(&stage, Phase::Rewrite, &mut x);
    assert!(matches!(step, Step::Next), "{step:?} {:?}", scripts.lines.0.lock());
    let mut uri = Vec::new();
    x.upstream_uri(&mut uri);
    assert_eq!(String::from_utf8_lossy(&uri), "/new%20path?c=1&c=2");
    assert_eq!(x.request().fields.all(b"X-New").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!(x.header("X-Evil"), Some(&b"a%0D%0Ab"[..]));
    assert_eq!((x.header("X-Old"), x.rewritten_host()), (None, Some(&b"up"[..])));
}

#[test]
fn the_body_is_read_when_it_is_needed() {
    let scripts = Scripts::new();
    let mut probe = Probe::request("POST", "/", &[("Host", "a"), ("Content-Length", "3")]);
    let code = "local core = require('apisix.core') return function(_, ctx)
        local body = core.request.get_body() return 200, body .. core.request.get_post_args(ctx).a
    end";
    let stage = scripts.stage(&probe, "access", code).unwrap();
    let mut x = probe.exchange();
    x.engine_mut().body_state = sdk::exchange::Body::Streaming;
    let step = run(&stage, Phase::Access, &mut x);
    assert!(matches!(step, Step::Body(1..)), "{step:?}");
    with_body(&mut x, b"a=b");
    let Step::Reply(reply) = run(&stage, Phase::Access, &mut x) else { panic!("no reply") };
    assert_eq!((reply.status, &*reply.body), (200, &b"a=bb"[..]));
}

#[test]
fn code_and_body_end_the_request() {
    for (code, status, body) in [
        ("return function() return 403 end", 403, ""),
        ("return function() return 401, 'no' end", 401, "no"),
        ("return function() return nil, 'yes' end", 200, "yes"),
        ("return function() ngx.exit(404) end", 404, ""),
        ("return function() ngx.status = 418 ngx.say('tea') ngx.exit(ngx.HTTP_OK or 200) end", 418, "tea\n"),
        ("return function() ngx.say('a') ngx.exit(ngx.OK or 0) error('not reached') end", 200, "a\n"),
        (
            "return function() coroutine.wrap(function() pcall(function() ngx.exit(402) end) end)() end",
            402,
            "",
        ),
        ("return function() ngx.thread.spawn(function() ngx.sleep(1) ngx.exit(405) end) end", 405, ""),
    ] {
        let reply = reply(&mut Probe::default(), code).expect(code);
        assert_eq!(reply.status, status, "{code}");
        match body {
            // As nginx does, an error without a body gets a page.
            "" => {
                let title = format!("<title>{status} ");
                assert!(String::from_utf8_lossy(&reply.body).contains(&title), "{code}");
            }
            body => assert_eq!(&*reply.body, body.as_bytes(), "{code}"),
        }
    }
    for code in [
        "return function() end",
        "return function() ngx.exit(ngx.OK or 0) end",
        "return function() return false end",
    ] {
        assert!(reply(&mut Probe::default(), code).is_none(), "{code}");
    }
}

#[test]
fn waits_let_others_run() {
    for (code, body) in [
        ("ngx.sleep(0.1) ngx.print('a')", "a"),
        (
            "local t = ngx.thread.spawn(function(a, b) ngx.sleep(1) return a + b end, 1, 2) ngx.print(select(2, ngx.thread.wait(t)))",
            "3",
        ),
        ("local t = ngx.thread.spawn(function() error('x', 0) end) ngx.print(ngx.thread.wait(t))", "falsex"),
        (
            "local t = ngx.thread.spawn(function() coroutine.yield() return 'z' end) ngx.print(select(2, ngx.thread.wait(t)))",
            "z",
        ),
        (
            "local s = require('ngx.semaphore').new(1) ngx.print(s:wait(0), select(2, s:wait(0)), select(2, s:wait(1)))",
            "truetimeouttimeout",
        ),
        (
            "local t = ngx.thread.spawn(function() while true do ngx.sleep(1) end end) ngx.print(ngx.thread.kill(t), select(2, ngx.thread.kill(t)))",
            "1already terminated",
        ),
        (
            "local a, b = coroutine.wrap(function() ngx.sleep(1) coroutine.yield(1) ngx.sleep(1) return 2 end), 0 ngx.print(a(), a())",
            "12",
        ),
        ("coroutine.yield() ngx.print('y')", "y"),
    ] {
        let code = format!("return function() {code} end");
        let reply = reply(&mut Probe::default(), &code).expect(&code);
        assert_eq!(String::from_utf8_lossy(&reply.body), body, "{code}: {reply:?}");
    }
}

#[test]
fn a_semaphore_is_posted_before_the_time_is_over() {
    let mut probe = Probe::default();
    probe.world.sleeps_last.set(true);
    let code = "return function() local s = require('ngx.semaphore').new()
        ngx.thread.spawn(function() coroutine.yield() s:post() end) ngx.print(s:wait(5), s:count()) end";
    assert_eq!(reply(&mut probe, code).expect("a reply").body, "true0");
}

#[test]
fn waits_that_are_over_at_once_let_others_run() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let endless = "while true do coroutine.yield() end";
    for code in [
        endless,
        &format!("ngx.thread.spawn(function() {endless} end) {endless}"),
        "while true do ngx.sleep(0) end",
        "while true do ngx.thread.wait(ngx.thread.spawn(function() ngx.sleep(0) end)) end",
    ] {
        let stage = scripts.stage(&probe, "access", &format!("return function() {code} end")).unwrap();
        let chain = Chain::of(stage);
        let mut cursor = 0;
        let mut x = probe.exchange();
        assert!(matches!(chain.run(Phase::Access, &mut cursor, &mut x), Step::Wait), "{code}");
        let mut waiting = chain.wait(Phase::Access, cursor, &mut x);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending(), "{code}");
    }
}

#[test]
fn filters_change_the_response() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let head =
        "return function(_, ctx) ngx.header['X-New'] = {'a', 'b'} ngx.header.x_old = nil ngx.status = 203
        ctx.seen = ngx.header['X-Kept'] require('apisix.core').response.add_header('X-Kept', '2') end";
    let body = "local core = require('apisix.core') return function(_, ctx)
        local whole = core.response.hold_body_chunk(ctx) if not whole then return end
        ngx.arg[1] = whole:upper() .. ctx.seen
    end";
    let head = scripts.stage(&probe, "header_filter", head).unwrap();
    let body = scripts.stage(&probe, "body_filter", body).unwrap();
    let waits = scripts.stage(&probe, "header_filter", "return function() ngx.sleep(1) end").unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("X-Old", "1"), ("X-Kept", "1"), ("Content-Length", "4")]);
    assert!(matches!(head.instance().header_filter(&mut x), Step::Next), "{:?}", scripts.lines.0.lock());
    assert!(matches!(body.instance().header_filter(&mut x), Step::Next));
    assert_eq!(
        (x.status(), x.response_header("X-Old"), x.response_header("Content-Length")),
        (203, None, None)
    );
    assert_eq!(x.response().fields.all(b"X-New").count(), 2);
    assert_eq!(x.response().fields.all(b"X-Kept").count(), 2);
    let pieces: Vec<Vec<u8>> = [("ab", false), ("cd", true)]
        .map(|(text, last)| {
            let mut piece: Chunk = chunk(text.as_bytes(), last);
            assert!(matches!(body.instance().body_filter(&mut x, &mut piece), Step::Next));
            piece.data
        })
        .into();
    assert_eq!(pieces, [b"".to_vec(), b"ABCD1".to_vec()]);
    let Step::Reply(reply) = waits.instance().header_filter(&mut x) else { panic!("no reply") };
    assert_eq!(reply.status, 500);
}

#[test]
fn hostile_scripts_fail_alone() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    for (code, words) in [
        ("while true do end", "ran for longer"),
        ("local t = {} for i = 1, 1e9 do t[i] = {} end", "not enough memory"),
        ("return 200, ('x'):rep(1e9)", "not enough memory"),
        ("local function f() return 1 + f() end return f()", "stack overflow"),
        ("error({code = 1})", ""),
        ("error(setmetatable({}, {__tostring = function() error('x') end}))", ""),
        ("local s = ('x'):rep(1e6) while true do ngx.print(s) end", "exceeds sluice.lua.max_memory"),
        (
            "local t = {} while true do local co = coroutine.create(function() coroutine.yield() end) coroutine.resume(co) t[#t + 1] = co end",
            "",
        ),
        (
            "for i = 1, 1000 do ngx.thread.spawn(function() ngx.sleep(100) end) end",
            "more than 100 light threads",
        ),
        ("string.gsub('aaa', 'a', function() ngx.sleep(1) end)", "yield across C-call boundary"),
        ("ngx.sleeep(1)", "similar names: ngx.sleep"),
        ("local x = nil + 1", "attempt to perform arithmetic"),
    ] {
        let stage = scripts.stage(&probe, "access", &format!("return function() {code} end")).unwrap();
        let Step::Reply(reply) = run(&stage, Phase::Access, &mut probe.exchange()) else { panic!("{code}") };
        assert_eq!((reply.status, reply.reason), (500, "a script failed"), "{code}");
        assert!(scripts.logged(words), "{code}: {:?}", scripts.lines.0.lock());
        let good = scripts.stage(&probe, "access", "return function() return 204 end").unwrap();
        let Step::Reply(reply) = run(&good, Phase::Access, &mut probe.exchange()) else { panic!("{code}") };
        assert_eq!(reply.status, 204, "{code}");
    }
}

#[test]
fn globals_and_libraries_of_a_script_are_its_own() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let evil = "return function()
        evil = 1 _G.evil2 = 2 string.format = error table.concat = nil ngx.say = nil rawset(_G, 'assert', nil)
        local core = require('apisix.core') core.log.warn = 1 core.request = nil
        package.loaded['apisix.core'] = 1 coroutine.wrap = nil math.floor = error
        getfenv(0).evil3 = 3 getfenv(1).evil4 = 4 pcall(setfenv, require, {}) loadstring('evil5 = 5')()
        pcall(function() getmetatable('').__index.upper = nil end)
        pcall(function() getmetatable(ngx).__index = nil end)
        pcall(function() getmetatable(_G).__index.evil6 = 6 end)
        return 299
    end";
    let good = "return function(conf, ctx)
        assert(not evil and not evil2 and not evil3 and not evil4 and not evil5 and not evil6)
        assert(string.format('%d', 1) == '1' and ('x'):upper() == 'X' and table.concat({'a'}) == 'a')
        local core = require('apisix.core')
        assert(type(core.log.warn) == 'function' and core.request.get_method() == 'GET' and math.floor(1.5) == 1)
        assert(ngx.say and coroutine.wrap(function() return 1 end)() == 1)
        own = (own or 200) + 1
        return own
    end";
    let evil = scripts.stage(&probe, "access", evil).unwrap();
    let good = scripts.stage(&probe, "access", good).unwrap();
    for turn in 0..3 {
        for (stage, status) in [(&evil, if turn == 0 { 299 } else { 500 }), (&good, 201 + turn)] {
            let Step::Reply(reply) = run(stage, Phase::Access, &mut probe.exchange()) else {
                panic!("no reply")
            };
            // The script that has broken its own libraries may fail, the other may not.
            assert!(
                reply.status == status || std::ptr::eq(stage, &evil),
                "{} instead of {status}",
                reply.status
            );
        }
    }
}

#[test]
fn code_that_does_not_load_is_rejected_with_its_line() {
    let (scripts, probe) = (Scripts::new(), Probe::default());
    for (code, reason, hint) in [
        ("return function()\n  local a = = 1\nend", "failed to loadstring: ", Some("line 2: local a = = 1")),
        ("return 1", "only accept Lua function, the input code type is number", None),
        ("error('early')", "pcall error: ", Some("line 1: error('early')")),
        ("while true do end", "pcall error: ", Some("line 1: while true do end")),
        ("\x1bLJ", "failed to loadstring: ", None),
    ] {
        let invalid = scripts.stage(&probe, "access", code).err().expect(code);
        assert!(invalid.reason.starts_with(reason), "{code}: {}", invalid.reason);
        assert_eq!(invalid.pointer, "/functions/0");
        assert_eq!(invalid.hint.as_deref(), hint, "{code}");
    }
}
