//! Scripts that try to leave their sandbox, to hold their worker, or to change the libraries of other scripts.

use sdk::catalog::Subsystem;

use super::*;

/// The text that a function with this code returns as its body.
fn answer(scripts: &Scripts, probe: &mut Probe, code: &str) -> String {
    let stage = scripts.stage(probe, "access", &format!("return function(conf, ctx) {code} end"));
    let stage = stage.unwrap_or_else(|invalid| panic!("{code}: {}", invalid.reason));
    let Step::Reply(reply) = run(&stage, Phase::Access, &mut probe.exchange()) else { panic!("{code}") };
    let lines = scripts.lines.0.lock().unwrap();
    assert_eq!(reply.status, 200, "{code}: {:?}", lines.last());
    String::from_utf8_lossy(&reply.body).into_owned()
}

#[test]
fn scripts_load_no_bytecode_and_no_library_of_the_machine() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let bytecode = vm::new().unwrap().load("return 1").into_function().unwrap().dump(false);
    let bytecode: String = bytecode.iter().map(|byte| format!("\\{byte:03}")).collect();
    for code in [
        format!("loadstring('{bytecode}')"),
        format!("load('{bytecode}', 'x', 'b')"),
        format!("load('{bytecode}', 'x', 'bt', {{}})"),
        format!(
            "(function() local part = '{bytecode}' return load(function() local one = part part = nil return one end, 'x', 'b') end)()"
        ),
        format!(
            "select(2, pcall(require('resty.template').compile, '{{% x = load(\\'{bytecode}\\', nil, \\'b\\') %}}'))({{}}) == '' and nil"
        ),
        "string.dump".to_owned(),
        "jit or ffi or io or newproxy or dofile or loadfile or module or gcinfo".to_owned(),
        "debug.getregistry or debug.sethook or debug.getupvalue or debug.setmetatable".to_owned(),
        "package.loaders or package.loadlib or package.searchers".to_owned(),
        "os.execute or os.exit or os.remove or os.getenv('PATH')".to_owned(),
    ] {
        let code = format!("local got = ({code}) return 200, tostring(got)");
        assert_eq!(answer(&scripts, &mut probe, &code), "nil", "{code}");
    }
    for name in
        ["ffi", "jit", "jit.util", "jit.profile", "jit.opt", "io", "debug", "string.buffer", "thread.exdata"]
    {
        // A number of 64 bits makes LuaJIT load its library of foreign functions.
        let code = format!("local number = 1LL local ok = pcall(require, '{name}') return 200, tostring(ok)");
        assert_eq!(answer(&scripts, &mut probe, &code), "false", "{name}");
    }
}

#[test]
fn scripts_do_not_reach_the_globals_of_the_machine() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    for code in [
        "for _, name in ipairs({'_G', 'package', 'coroutine', 'string', 'ngx'}) do package.loaded[name] = nil end
         local ok, globals = pcall(require, '_G') if ok then globals.leak = 1 end
         local ok, package = pcall(require, 'package') if ok then package.loaded.leak = {} end
         local ok, routines = pcall(require, 'coroutine') if ok then routines.leak = 1 end",
        "local render = require('resty.template').compile('{% local t = _G t.leak = 1 template.leak = 1 %}') render({})",
        // Level 1 is `pcall`, level 2 the script's own function.
        "for _, level in ipairs({1, 3, 4, '0', '1', '3', 0, 0.5, -1}) do assert(not pcall(setfenv, level, {})) end",
        "local lru, pcall, setfenv = require('apisix.core').lrucache.new({}), pcall, setfenv
         lru('a', 1, function() for level = 1, 9 do pcall(setfenv, level, {leak = 1}) end return 1 end)",
        "for level = 0, 9 do local ok, globals = pcall(getfenv, level) if ok then globals.leak = 1 end end",
        "for _, f in ipairs({require, ngx.say, pcall, string.format, ngx.re.match}) do
             getfenv(f).leak = 1 pcall(setfenv, f, {leak = 1}) end",
    ] {
        answer(&scripts, &mut probe, &format!("{code} return 200, 'done'"));
        let code = "assert(not leak and not rawget(_G, 'leak') and not package.loaded.leak and not coroutine.leak)
            assert(not pcall(require, 'leak') and not require('resty.template').leak)
            local lru = require('apisix.core').lrucache.new({})
            assert(lru('a', 1, function() return 7 end) == 7) assert(tostring(1) == '1')";
        answer(&scripts, &mut probe, &format!("{code} return 200, 'done'"));
    }
    let code = "setfenv(1, {inner = 5}) return 200, inner";
    assert_eq!(answer(&scripts, &mut probe, code), "5", "a function changes its own globals");
    let code =
        "local function f() return other end setfenv(f, {other = 6}) return 200, f() .. getfenv(f).other";
    assert_eq!(answer(&scripts, &mut probe, code), "66");
}

#[test]
fn globals_that_a_script_removes_are_those_of_no_one_else() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let machine = machine::of_thread(&scripts.host).unwrap();
    let names = |globals: &mlua::Table| {
        globals.pairs::<String, mlua::Value>().map(|pair| pair.unwrap().0).collect::<Vec<_>>()
    };
    let own = names(&machine.environment(None).unwrap());
    for name in
        ["_G", "coroutine", "getfenv", "load", "loadstring", "package", "require", "setfenv", "string"]
    {
        assert!(own.contains(&name.to_owned()), "{name}");
    }
    for name in &own {
        for removal in [
            format!("rawset(_G, '{name}', nil)"),
            format!("_G['{name}'] = nil"),
            format!("{name} = nil"),
            format!(
                "local set, inner = setfenv, setmetatable({{}}, {{__index = _G}}) rawset(_G, '{name}', nil) set(1, inner)"
            ),
        ] {
            let code = format!(
                "local globals, kept, tostring = _G, {name}, tostring {removal} return 200, tostring(globals['{name}'] == nil and {name} == nil and kept ~= nil)"
            );
            assert_eq!(answer(&scripts, &mut probe, &code), "true", "{removal}");
        }
    }
    // Of the functions of the machine, a script without globals of its own reads these alone.
    let removal = "local list = {} for name in pairs(_G) do list[#list + 1] = name end
        local globals, rawset = _G, rawset for at = 1, #list do rawset(globals, list[at], nil) end";
    let harmless = "_VERSION assert error ipairs next pairs pcall rawequal rawget rawlen rawset select tonumber tostring type unpack";
    let left = harmless.split(' ').chain(own.iter().map(String::as_str));
    let left = left.map(str::to_owned).chain(names(&machine.lua.globals()));
    let left: Vec<String> = left.filter(|name| !harmless.split(' ').any(|known| known == name)).collect();
    for name in left {
        let code = format!("{removal} return 200, tostring({name})");
        assert_eq!(answer(&scripts, &mut probe, &code), "nil", "{name}");
    }
}

#[test]
fn removed_globals_open_no_way_out() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let bytecode = vm::new().unwrap().load("return 1").into_function().unwrap().dump(false);
    let bytecode: String = bytecode.iter().map(|byte| format!("\\{byte:03}")).collect();
    for code in [
        format!("load = nil load('{bytecode}', 'x', 'b')"),
        format!("loadstring = nil loadstring('{bytecode}')"),
        "_G = nil rawset(_G, 'leaked', 1)".to_owned(),
        "_G = nil _G.leaked = 1".to_owned(),
        "package = nil package.loaded.leaked = {}".to_owned(),
        "package = nil package.loaders[1]('leaked')".to_owned(),
        "getfenv = nil getfenv(0).leaked = 1".to_owned(),
        "setfenv = nil setfenv(require, {})".to_owned(),
        "string = nil string.format = nil".to_owned(),
        "coroutine = nil kept = coroutine.running()".to_owned(),
        "package.loaded.coroutine, coroutine = nil kept = require('coroutine').running()".to_owned(),
    ] {
        let code = format!("local _, err = pcall(function() {code} end) return 200, tostring(err)");
        let error = answer(&scripts, &mut probe, &code);
        let known = ["a nil value", "table expected, got nil", "module 'coroutine' not found"];
        assert!(known.iter().any(|known| error.contains(known)), "{code}: {error}");
        let code = "assert(not leaked and not pcall(require, 'leaked') and string.format('%d', 1) == '1')";
        assert_eq!(answer(&scripts, &mut probe, &format!("{code} return 200, 'done'")), "done");
    }
}

#[test]
fn what_a_script_changes_in_shared_tables_stays_its_own() {
    let scripts = Scripts::new();
    let probe = || Probe::request("GET", "/real", &[("Host", "a")]);
    for (evil, good) in [
        ("rawset(ngx.var, 'uri', '/evil')", "assert(ngx.var.uri == '/real')"),
        ("rawset(ctx.var, 'uri', '/evil')", "assert(ctx.var.uri == '/real')"),
        ("rawset(ngx.header, 'x', 'evil')", "assert(ngx.header.x == nil)"),
        (
            "ngx.shared.test.get = error ngx.shared.more = {}",
            "ngx.shared.test:get('a') assert(not ngx.shared.more)",
        ),
        ("for _, zone in pairs(ngx.shared) do rawset(zone, 'get', error) end", "ngx.shared.test:get('a')"),
        ("getmetatable(ngx.shared.test).__index.get = error", "ngx.shared.test:get('a')"),
        (
            "for _, part in pairs(require('apisix.core')) do if type(part) == 'table' then part.warn = 1 part.header = 1 end end",
            "local core = require('apisix.core') assert(core.log.warn ~= 1 and core.request.header ~= 1)",
        ),
        (
            "getmetatable(require('ngx.semaphore').new()).__index.count = error",
            "require('ngx.semaphore').new():count()",
        ),
        (
            "require('cjson.safe').new().decode_max_depth(1)",
            "assert(require('apisix.core').json.decode('[[1]]'))",
        ),
        ("getmetatable(ngx.req.get_headers()).__index = error", "assert(ngx.req.get_headers().Host == 'a')"),
        (
            "getmetatable(require('resty.lrucache').new(2)).__index.get = error",
            "require('resty.lrucache').new(2):get('a')",
        ),
    ] {
        answer(&scripts, &mut probe(), &format!("pcall(function() {evil} end) return 200, 'done'"));
        answer(&scripts, &mut probe(), &format!("{good} return 200, 'done'"));
    }
    for code in [
        "local mine = {} return 200, tostring(getmetatable(setmetatable({}, mine)) == mine)",
        "local names = {} for name in pairs(ngx.shared) do names[#names + 1] = name end return 200, tostring(names[1] == 'test')",
        "ngx.shared.test:set('k', 'v') return 200, tostring(ngx.shared.test:get('k') == 'v')",
        "return 200, tostring(require('apisix.core').table.deepcopy({a = ngx.var}) ~= nil)",
    ] {
        assert_eq!(answer(&scripts, &mut probe(), code), "true", "{code}");
    }
}

#[test]
fn code_that_libraries_call_is_stopped() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let settings =
        Settings { max_memory: 32 << 20, max_time: Duration::from_millis(400), ..Settings::default() };
    let host = Host::new(settings, Box::new(Lines::default()), Dictionaries::default(), None);
    machine::of_thread(&host).unwrap();
    for code in [
        "xpcall(function() while true do end end, function() while true do end end)",
        "xpcall(error, function() while true do end end)",
        "require('apisix.core').table.setmt__gc({}, {__gc = function() while true do end end}) while true do local t = {} end",
        "ngx.re.gsub(('a'):rep(100), 'a', function() while true do end end)",
        "tostring(setmetatable({}, {__tostring = function() while true do end end}))",
        "error(setmetatable({}, {__tostring = function() while true do end end}))",
        "for name in function() return 1 end do end",
        "load(function() while true do end end)",
        "load(function() return ' ' end)",
        "local t = {} for n = 1, 60 do t = {t, t} end
         for n = 1, 1e9 do require('cjson.safe').encode(t) end",
        "require('apisix.core').json.encode(setmetatable({}, {__index = function(t, k) return k end, __len = function() return 1e9 end}))
         while true do end",
    ] {
        let stage = scripts.stage(&probe, "access", &format!("return function() {code} end")).unwrap();
        let Step::Reply(reply) = run(&stage, Phase::Access, &mut probe.exchange()) else { panic!("{code}") };
        assert_eq!(reply.status, 500, "{code}");
    }
}

#[test]
fn plugins_that_hold_their_check_are_rejected() {
    let scripts = Scripts::new();
    for text in [
        "return setmetatable({priority = 1}, {__index = function() while true do end end})",
        "return {priority = 1, init = function() while true do end end}",
    ] {
        let mut sources = Sources::default();
        sources.add("apisix.plugins.held".into(), "held.lua".into(), text.into());
        let library = library(&scripts.host, sources).unwrap();
        let error = plugin(&scripts.host, &library, Subsystem::Http, "held").err().expect(text);
        assert!(error.reason.contains("ran for longer"), "{text}: {}", error.reason);
    }
}

#[test]
fn copies_of_values_are_limited() {
    for (code, words) in [
        ("local t = {} for n = 1, 60 do t = {t, t} end require('cjson').encode(t)", "sluice.lua.max_"),
        (
            "local s, t = ('x'):rep(1e6), {} for n = 1, 1e5 do t[n] = s end require('cjson').encode(t)",
            "max_memory",
        ),
        ("local t = {} for n = 1, 60 do t = {t, t} end ctx.external_user = t", "sluice.lua.max_"),
        ("local t = {} t.t = t ctx.external_user = t", "excessive depth"),
        (
            "local t = {} for n = 1, 2e5 do t['k' .. n] = 1 end t.t = t require('cjson').encode(t)",
            "sluice.lua.max_",
        ),
        ("ctx.external_user = {name = ('x'):rep(65536)}", "longer than 65536 bytes"),
        (
            "local s, t = ('x'):rep(1e6), {} t.t = t for n = 1, 10 do t[s .. n] = n end require('cjson').encode(t)",
            "sluice.lua.max_",
        ),
        (
            "local s, t = ('x'):rep(1e6), {} for n = 1, 60 do t[n] = s end ngx.req.set_header('a', t)",
            "exceeds sluice.lua.max_memory",
        ),
        (
            "local s, t = ('%'):rep(1e6), {} for n = 1, 60 do t[n] = s end ngx.encode_args({a = t})",
            "exceeds sluice.lua.max_memory",
        ),
        ("require('cjson').encode(('\\1'):rep(1e7))", "exceeds sluice.lua.max_memory"),
    ] {
        // A machine of its own, without the garbage of the others.
        let attempt = move || {
            let scripts = Scripts::new();
            let mut probe = Probe::default();
            let function = format!("return function(conf, ctx) {code} end");
            let stage = scripts.stage(&probe, "access", &function).unwrap();
            let Step::Reply(reply) = run(&stage, Phase::Access, &mut probe.exchange()) else {
                panic!("{code}")
            };
            assert_eq!(reply.status, 500, "{code}");
            assert!(scripts.logged(words), "{code}: {:?}", scripts.lines.0.lock());
        };
        std::thread::spawn(attempt).join().unwrap();
    }
}

#[test]
fn memory_outside_the_machine_is_limited() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    for (code, words) in [
        ("local s = ('x'):rep(1e5) while true do ngx.req.add_header('A', s) end", "headers"),
        ("local s = ('x'):rep(1e5) while true do ngx.header.a = s end", "headers"),
        (
            "local s = ('x'):rep(1e5) while true do require('apisix.core').response.add_header('A', s) end",
            "headers",
        ),
        ("ngx.re.match('a', 'a', ('j'):rep(1e5)) error('done')", "done"),
        ("error(('long'):rep(1e6))", "longlong"),
    ] {
        let stage =
            scripts.stage(&probe, "access", &format!("return function(conf, ctx) {code} end")).unwrap();
        let Step::Reply(reply) = run(&stage, Phase::Access, &mut probe.exchange()) else { panic!("{code}") };
        assert_eq!(reply.status, 500, "{code}");
        assert!(scripts.logged(words), "{code}: {:?}", scripts.lines.0.lock());
    }
    assert!(scripts.lines.0.lock().unwrap().iter().all(|(_, line)| line.len() < 10_000));
    let code = "local got, err = ngx.re.match('a', 'a', ('j'):rep(1e5)) return 200, tostring(got) .. err";
    assert!(answer(&scripts, &mut probe, code).contains("options are longer"));
}

#[test]
fn plugins_of_a_library_that_is_gone_leave_the_machine() {
    let scripts = Scripts::new();
    let load = |n: usize| {
        let mut sources = Sources::default();
        let text = format!(
            "local big = ('{n}-'):rep(100000) return {{priority = 1, big = function() return big end}}"
        );
        sources.add("apisix.plugins.big".into(), "big.lua".into(), text);
        let library = library(&scripts.host, sources).unwrap();
        plugin(&scripts.host, &library, Subsystem::Http, "big").unwrap().expect("a plugin")
    };
    // Beyond the memory of the machine, if they stayed.
    for n in 0..300 {
        assert_eq!(load(1000 + n).priority(), 1);
    }
}
