//! Many instances and many exchanges: they exceed what `mlua` can refer to at a time.

use mlua::Function;

use super::functions::Loaded;
use super::machine::Machine;
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
