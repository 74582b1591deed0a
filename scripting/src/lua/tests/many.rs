//! Many instances and many exchanges: they exceed what `mlua` can refer to at a time.

use mlua::Function;

use super::functions::Loaded;
use super::machine::Machine;
use sdk::catalog::Subsystem;

use super::*;

/// More than there are references (`kept.rs`).
const MANY: u64 = 10_000;

/// Makes functions that return a number, in the access phase alone.
const MAKE: &str = "local number = ... return function(phase)
    return phase == 'access' and function() return number end or nil end";

fn load(machine: &Machine, number: u64) -> mlua::Result<Loaded> {
    Ok(Loaded::Phases(machine.lua.load(MAKE).call(number)?))
}

#[test]
fn ten_thousand_instances_have_their_functions() {
    let scripts = Scripts::new();
    let machine = machine::of_thread(&scripts.host).unwrap();
    let before = machine.kept.len();
    let alive = Arc::new(());
    let all: Vec<u64> = (0..MANY).map(|_| machine::number()).collect();
    for _ in 0..2 {
        for &number in &all {
            let functions = machine.loaded(number, &alive, |machine| load(machine, number)).unwrap();
            assert!(functions.get(&machine.kept, Phase::Rewrite).unwrap().is_none());
            let call: Function = functions.get(&machine.kept, Phase::Access).unwrap().unwrap();
            assert_eq!(call.call::<u64>(()).unwrap(), number);
        }
    }
    assert_eq!(machine.kept.len(), before + all.len());
    // Their functions leave the machine with the next one.
    drop(alive);
    let alive = Arc::new(());
    machine.loaded(machine::number(), &alive, |machine| load(machine, 1)).unwrap();
    assert_eq!(machine.kept.len(), before + 1);
}

#[test]
fn a_full_machine_has_room_once_its_instances_are_gone() {
    let scripts = Scripts::new();
    let machine = machine::of_thread(&scripts.host).unwrap();
    let large = |machine: &Machine| {
        let make = "local text = ('x'):rep(1e6) .. tostring({}) return function() return function() return text end end";
        Ok(Loaded::Phases(machine.lua.load(make).call(())?))
    };
    for _ in 0..2 {
        let alive = Arc::new(());
        let made = (0..1000).map(|_| machine.loaded(machine::number(), &alive, large));
        let error = made.filter_map(Result::err).next().expect("the memory is limited");
        assert!(text::is_full(&error), "{error}");
        drop(alive);
        let alive = Arc::new(());
        machine.loaded(machine::number(), &alive, large).unwrap();
    }
}

#[test]
fn a_full_machine_has_room_once_its_plugins_are_gone() {
    let scripts = Scripts::new();
    let load = || {
        let mut sources = Sources::default();
        let text = "local big = ('x'):rep(1e6) .. tostring({}) return {priority = 1, big = function() return big end}";
        sources.add("apisix.plugins.large".into(), "large.lua".into(), text.into());
        let library = library(&scripts.host, sources).unwrap();
        plugin(&scripts.host, &library, sdk::catalog::Subsystem::Http, "large")
            .map(|made| made.expect("a plugin"))
    };
    for _ in 0..2 {
        let mut all = Vec::new();
        let error = loop {
            match load() {
                Ok(plugin) => all.push(plugin),
                Err(error) => break error,
            }
            assert!(all.len() < 1000, "the memory is limited");
        };
        assert!(error.reason.contains("not enough memory"), "{}", error.reason);
        drop(all);
        assert_eq!(load().unwrap().priority(), 1);
    }
}

#[test]
fn requests_that_wait_are_many_and_bounded() {
    let scripts = Scripts::new();
    let machine = machine::of_thread(&scripts.host).unwrap();
    let before = machine.kept.len();
    let probe = Probe::default();
    let code = "return function(conf, ctx) ngx.ctx.a = 1 ctx.var.x = 'y' ngx.sleep(8) return 200, ngx.ctx.a .. ctx.var.x end";
    let stage = scripts.stage(&probe, "access", code).unwrap();
    let returns = scripts.stage(&probe, "access", "return function() return 204 end").unwrap();
    let mut probes: Vec<Probe> = (0..flow::MOST_STOPPED + 2).map(|_| Probe::default()).collect();
    probes.iter().for_each(|probe| probe.world.sleeps_last.set(true));
    let mut exchanges: Vec<Exchange<'_>> = probes.iter_mut().map(Probe::exchange).collect();
    let (waiting, others) = exchanges.split_at_mut(flow::MOST_STOPPED);
    for x in waiting {
        let step = ask(&stage, x);
        assert!(matches!(step, Step::Wait), "{step:?} {:?}", scripts.lines.0.lock());
    }
    // The next one is refused, and functions that do not wait are called.
    let Step::Reply(reply) = ask(&stage, &mut others[0]) else { panic!("no reply") };
    assert_eq!((reply.status, reply.reason), (503, "too many scripts wait"));
    assert!(scripts.logged("more than 6000 functions and light threads of this worker wait"));
    let Step::Reply(reply) = ask(&returns, &mut others[1]) else { panic!("no reply") };
    assert_eq!(reply.status, 204);
    drop(exchanges);
    drop(probes);
    assert_eq!(
        (machine.stopped.get(), machine.kept.len()),
        (0, before + 2),
        "the functions of two instances"
    );
    let mut probe = Probe::default();
    probe.world.sleeps_last.set(true);
    assert!(matches!(ask(&stage, &mut probe.exchange()), Step::Wait));
}

#[test]
fn arguments_of_timers_are_many() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let code = "return function()
        local list = {} for n = 1, 1000 do list[n] = n end
        for n = 1, 12 do assert(ngx.timer.at(1, function(premature, ...)
            ngx.log(ngx.ERR, n, '. timer ', tostring(premature), ' ', select('#', ...), ' ', (select(1000, ...)))
        end, unpack(list))) end
        assert(ngx.timer.at(1, function(premature, ...) ngx.log(ngx.ERR, 'nils ', select('#', ...)) end, nil, nil))
        assert(ngx.timer.at(1, function(...) ngx.log(ngx.ERR, 'alone ', select('#', ...)) end))
        local ok, err = pcall(ngx.timer.at, 1, 'f') return 200, tostring(ok) .. err
    end";
    let stage = scripts.stage(&probe, "access", code).unwrap();
    let Step::Reply(reply) = ask(&stage, &mut probe.exchange()) else { panic!("no reply") };
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert_eq!(
        text,
        "falsebad argument #2 to 'at' (function expected, got string)",
        "{:?}",
        scripts.lines.0.lock()
    );
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut tasks = probe.world.tasks.take();
    assert_eq!(tasks.len(), 14);
    assert!(tasks.iter_mut().all(|task| task.as_mut().poll(&mut cx).is_ready()));
    for line in ["1. timer false 1000 1000", "12. timer false 1000 1000", "nils 2", "alone 1"] {
        assert!(scripts.logged(line), "{line}: {:?}", scripts.lines.0.lock());
    }
}

#[test]
fn a_name_has_one_timer() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let code = "local timers, exchanges, calls = require('apisix.timers'), 0, 0
        return function()
            exchanges = exchanges + 1
            if exchanges == 1 then
                while ngx.timer.at(1, function() end) do end
                timers.register_timer('a', function() ngx.log(ngx.ERR, 'call of the refused timer') end)
                return
            end
            for version = 1, 3 do
                timers.register_timer('a', function()
                    calls = calls + 1 ngx.log(ngx.ERR, 'call ', calls, ' of version ', version)
                end)
                if version < 3 then timers.unregister_timer('a') end
            end
            timers.register_timer('b', function() ngx.log(ngx.ERR, 'call of another') end)
            timers.unregister_timer('b')
        end";
    let stage = scripts.stage(&probe, "access", code).unwrap();
    assert!(matches!(ask(&stage, &mut probe.exchange()), Step::Next), "{:?}", scripts.lines.0.lock());
    assert_eq!(probe.world.tasks.take().len(), 1024);
    assert!(scripts.logged("lua timer not started name=a error=\"too many pending timers\""));

    assert!(matches!(ask(&stage, &mut probe.exchange()), Step::Next), "{:?}", scripts.lines.0.lock());
    let mut tasks = probe.world.tasks.take();
    assert_eq!(tasks.len(), 2, "one of each name");
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(tasks.iter_mut().all(|task| task.as_mut().poll(&mut cx).is_ready()));
    assert!(scripts.logged("call 1 of version 3"), "{:?}", scripts.lines.0.lock());
    assert!(!scripts.logged("call 2") && !scripts.logged("call of"), "{:?}", scripts.lines.0.lock());
}

#[test]
fn a_version_that_is_gone_leaves_the_timers_of_the_next_one() {
    let scripts = Scripts::new();
    let mut probe = Probe::default();
    let owner = Owner { collection: "routes", id: "1".into() };
    let sources = |version: usize| {
        let mut sources = Sources::default();
        let timed = format!(
            "local timers, timer = require('apisix.timers'), require('helper')
            return {{priority = 1,
                access = function()
                    timers.register_timer('a', timer) timers.register_timer('only-{version}', timer)
                end,
                destroy = function()
                    timers.unregister_timer('only-{version}') return timers.unregister_timer('a')
                end}}"
        );
        let helper = format!("return function() ngx.log(ngx.ERR, 'timer of version {version}') end");
        sources.add("apisix.plugins.timed".into(), "timed.lua".into(), timed);
        sources.add("helper".into(), "helper.lua".into(), helper);
        let other = "return {priority = 2, access = function() end}";
        sources.add("apisix.plugins.other".into(), "other.lua".into(), other.into());
        library(&scripts.host, sources).unwrap()
    };
    let (first, second) = (sources(1), sources(2));
    let mut run = |library: &sdk::scripts::Library, name: &str| {
        let factory = plugin(&scripts.host, library, Subsystem::Http, name).unwrap().expect("a plugin");
        let names = FixedNames::default();
        let fitting = Fitting { name: factory.name(), priority: 0, meta: None };
        let stage =
            factory.build(json!({}), &mut Build::new(&owner, &probe.services, &names), fitting).unwrap();
        assert!(matches!(ask(&stage, &mut probe.exchange()), Step::Next), "{:?}", scripts.lines.0.lock());
        stage
    };
    let previous = run(&first, "timed");
    // The previous version is still in use while the next one begins.
    let _next = run(&second, "timed");
    drop((previous, first));
    let _other = run(&second, "other");

    let mut tasks = probe.world.tasks.take();
    assert_eq!(tasks.len(), 3, "timers of a, only-1 and only-2");
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(tasks.iter_mut().all(|task| task.as_mut().poll(&mut cx).is_ready()));
    let lines = scripts.lines.0.lock().unwrap();
    let calls = |version: &str| lines.iter().filter(|(_, line)| line.contains(version)).count();
    assert_eq!((calls("timer of version 1"), calls("timer of version 2")), (0, 2), "{lines:?}");
}

fn ask(stage: &Arc<Stage>, x: &mut Exchange<'_>) -> Step {
    Chain::of(stage.clone()).run(Phase::Access, &mut 0, x)
}
