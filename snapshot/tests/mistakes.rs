//! A bug in the gateway that one resource triggers affects no other resource.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{self, Table, compiler, entry};
use model::{Desired, Key, Kind, Served};
use sdk::{Chain, Phase};
use serde_json::{Value, json};
use snapshot::compile::Settings;
use snapshot::streams::Arrival;
use snapshot::{Compiler, Touched};

const ALL: [(Kind, &str); 8] = [
    (Kind::Route, "1"),
    (Kind::Service, "1"),
    (Kind::PluginConfig, "1"),
    (Kind::GlobalRule, "1"),
    (Kind::ConsumerGroup, "1"),
    (Kind::Consumer, "jack"),
    (Kind::Credential, "jill/credentials/1"),
    (Kind::PluginMetadata, "limit"),
];

fn value(kind: Kind, id: &str, config: &Value) -> Value {
    match kind {
        Kind::Route => json!({"uri": "/1", "plugins": {"limit": config}}),
        Kind::Consumer => json!({"username": id, "plugins": {"limit": config}}),
        Kind::Credential => json!({"plugins": {"key": config}}),
        Kind::PluginMetadata => config.clone(),
        _ => json!({"plugins": {"limit": config}}),
    }
}

#[test]
fn a_panic_rejects_only_its_resource() {
    for (kind, id) in ALL {
        let mut desired = Desired::default();
        desired.put(entry(Kind::Route, "beside", json!({"uri": "/beside", "plugins": {"log": {}}})));
        desired.put(entry(
            Kind::Consumer,
            "jill",
            json!({"username": "jill", "plugins": {"key": {"key": "k"}}}),
        ));
        desired.put(entry(kind, id, value(kind, id, &json!({"panic": true}))));
        let (mut compiler, names) = (compiler(), Table::default());
        let compiled = compiler.compile(&desired, &Touched::all(), &names, 0);
        let rejected: Vec<_> = compiled.rejected.iter().map(|one| (&one.key, one.kept())).collect();
        assert_eq!(rejected, [(&Key::new(kind, id), false)]);
        assert!(compiled.rejected[0].invalid.reason.contains("a fault in the gateway"));
        assert!(compiled.snapshot.router.rule("beside").is_some());
        assert!(compiled.snapshot.consumers.find("key", b"k").is_some());
        support::nothing_is_lost(&compiled, &desired);

        // Fixed, then broken again: the last valid version stays.
        for (config, kept) in [(json!({"key": "mine"}), None), (json!({"panic": true}), Some(true))] {
            desired.put(entry(kind, id, value(kind, id, &config)));
            let touched = Touched::from_iter([Key::new(kind, id)]);
            let compiled = compiler.compile(&desired, &touched, &names, 1);
            assert_eq!(compiled.rejected.first().map(|one| one.kept()), kept, "{kind:?}");
            assert!(compiled.snapshot.router.rule("beside").is_some());
        }
    }
}

/// Whether a chain runs anything else than its configured plugins.
fn refusal(chain: Option<&Arc<Chain>>) -> bool {
    let refuses = chain.is_some_and(|chain| support::shown(chain).len() < chain.stages().count());
    let phases = chain.map(|chain| chain.phases()).unwrap_or_default();
    // Requests are refused before any plugin of the route, streams on arrival.
    assert!(!refuses || phases.has(Phase::Rewrite) && phases.has(Phase::Preread));
    refuses
}

#[test]
fn resources_lacking_a_secret_are_refused() {
    let missing = json!({"limit": {"key": "$env://NONE"}});
    let mut desired = Desired::default();
    desired.put(entry(Kind::Route, "strict", json!({"uri": "/admin/*", "plugins": missing})));
    desired.put(entry(Kind::Route, "open", json!({"uri": "/*", "plugins": {"log": {}}})));
    let (mut compiler, names) = (compiler(), Table::default());
    let compiled = compiler.compile(&desired, &Touched::all(), &names, 0);
    assert!(compiled.snapshot.router.rule("strict").is_some(), "its requests do not fall to another route");
    let plan = |compiled: &snapshot::Compiled, id| compiled.snapshot.router.plan(id).unwrap().chain.clone();
    assert!(refusal(plan(&compiled, "strict").as_ref()) && !refusal(plan(&compiled, "open").as_ref()));
    assert!(compiled.snapshot.global.is_none());

    // It is reported as rejected each time, and never as a last valid version.
    let touch = |kind, id| Touched::from_iter([Key::new(kind, id)]);
    let compiled = compiler.compile(&desired, &touch(Kind::Route, "strict"), &names, 1);
    let rejected: Vec<_> = compiled.rejected.iter().map(|one| (one.key.to_string(), one.kept())).collect();
    assert_eq!(rejected, [("routes/strict".to_owned(), false)]);

    // A global rule guards all requests.
    desired.put(entry(Kind::GlobalRule, "1", json!({"plugins": missing})));
    desired.put(entry(Kind::GlobalRule, "2", json!({"plugins": {"log": {}}})));
    let both = Touched::from_iter([Key::new(Kind::GlobalRule, "1"), Key::new(Kind::GlobalRule, "2")]);
    let compiled = compiler.compile(&desired, &both, &names, 2);
    assert!(refusal(compiled.snapshot.global.as_ref()));

    // Fixed: both are served. A secret that goes missing later keeps the last valid version.
    for (config, rejected) in [(json!({"limit": {"key": "k"}}), 0), (missing, 2)] {
        desired.put(entry(Kind::GlobalRule, "1", json!({"plugins": config})));
        desired.put(entry(Kind::Route, "strict", json!({"uri": "/admin/*", "plugins": config})));
        let both = Touched::from_iter([Key::new(Kind::GlobalRule, "1"), Key::new(Kind::Route, "strict")]);
        let compiled = compiler.compile(&desired, &both, &names, 3);
        assert!(!refusal(compiled.snapshot.global.as_ref()) && !refusal(plan(&compiled, "strict").as_ref()));
        assert_eq!(compiled.rejected.len(), rejected);
        assert!(compiled.rejected.iter().all(|one| one.kept()));
    }

    // Without the resources, no request is refused.
    desired.delete(&Key::new(Kind::Route, "strict"));
    let compiled = compiler.compile(&desired, &touch(Kind::Route, "strict"), &names, 4);
    assert!(compiled.snapshot.router.rule("strict").is_none());
}

#[test]
fn a_refused_resource_stays_refused_until_fixed() {
    let mut desired = Desired::default();
    let (mut compiler, names) = (compiler(), Table::default());
    let route = |config: Value, vars: Value| json!({"uri": "/1", "vars": vars, "plugins": {"limit": config}});
    let (missing, wrong, fine) =
        (json!({"key": "$env://NONE"}), json!({"panic": true}), json!({"key": "there"}));
    let one = Key::new(Kind::Route, "1");
    for (value, served) in [
        (route(wrong.clone(), json!([])), Some(Served::Nothing)),
        (route(missing, json!([])), Some(Served::Refusal)),
        (route(wrong.clone(), json!([])), Some(Served::Refusal)),
        // Even its conditions cannot be parsed: the previous ones stay.
        (route(wrong.clone(), json!([["arg_a", "no such operator", 1]])), Some(Served::Refusal)),
        (route(wrong.clone(), json!([])), Some(Served::Refusal)),
        (route(fine, json!([])), None),
        (route(wrong, json!([])), Some(Served::LastGoodForm)),
    ] {
        desired.put(entry(Kind::Route, "1", value.clone()));
        // Compiling the touched resource and compiling everything give the same result.
        for touched in [Touched::from_iter([one.clone()]), Touched::all()] {
            let compiled = compiler.compile(&desired, &touched, &names, 0);
            assert_eq!(compiled.rejected.first().map(|one| one.served), served, "{value}");
            let plan = compiled.snapshot.router.plan("1");
            assert_eq!(plan.is_some(), served != Some(Served::Nothing), "{value}");
            let refuses = plan.is_some_and(|plan| refusal(plan.chain.as_ref()));
            assert_eq!(refuses, served == Some(Served::Refusal), "{value}");
        }
    }
}

#[test]
fn a_stream_route_that_lacks_a_secret_refuses_its_streams() {
    let mut desired = Desired::default();
    let (mut compiler, names) = (compiler(), Table::default());
    let stream = |config: Value| json!({"server_port": 9100, "plugins": {"limit": config}});
    desired.put(entry(Kind::StreamRoute, "2", json!({"plugins": {"log": {}}})));
    for (config, served) in [
        (json!({"key": "$env://NONE"}), Some(Served::Refusal)),
        (json!({"panic": true}), Some(Served::Refusal)),
        (json!({"key": "there"}), None),
        (json!({"key": "$env://NONE"}), Some(Served::LastGoodForm)),
    ] {
        desired.put(entry(Kind::StreamRoute, "1", stream(config.clone())));
        let touched =
            Touched::from_iter([Key::new(Kind::StreamRoute, "1"), Key::new(Kind::StreamRoute, "2")]);
        let compiled = compiler.compile(&desired, &touched, &names, 0);
        assert_eq!(compiled.rejected.first().map(|one| one.served), served, "{config}");
        let arrival =
            Arrival { remote: [127, 0, 0, 1].into(), server: ([127, 0, 0, 1], 9100).into(), name: None };
        let found = compiled.snapshot.streams.find(&arrival).unwrap();
        assert_eq!(&*found.plan.info.id, "1", "{config}");
        assert_eq!(refusal(found.plan.chain.as_ref()), served == Some(Served::Refusal), "{config}");
    }
}

#[test]
fn an_invalid_global_rule_does_not_block_the_others() {
    let there = Arc::new(AtomicBool::new(true));
    let env = {
        let there = there.clone();
        move |_: &str| there.load(Ordering::Relaxed).then(|| "s3cret".to_owned())
    };
    let settings = Settings { env: Arc::new(env), ..Settings::default() };
    let mut compiler = Compiler::new(Arc::new(support::Plugins), settings);
    let rule = |id: &str, plugins: Value| entry(Kind::GlobalRule, id, json!({"plugins": plugins}));
    let mut desired = Desired::default();
    desired.put(rule("1", json!({"limit": {"key": "$env://SECRET"}})));
    desired.put(rule("2", json!({"log": {"n": 1}})));
    desired.put(rule("3", json!({"cors": {}})));
    let mut compile = |desired: &Desired, touched: &[&str]| {
        let keys = touched.iter().map(|id| Key::new(Kind::GlobalRule, *id));
        let compiled = compiler.compile(desired, &Touched::from_iter(keys), &Table::default(), 0);
        let global = compiled.snapshot.global.clone();
        let mut texts: Vec<String> =
            support::shown(global.as_deref().unwrap()).into_iter().map(|shown| shown.text.clone()).collect();
        texts.sort_unstable();
        let rejected = compiled.rejected.iter().map(|one| one.key.id.clone()).collect::<Vec<_>>();
        (texts, rejected, refusal(global.as_ref()))
    };
    let cors = "cors{} of global_rules/3".to_owned();
    let first = r#"limit{"key":"s3cret"} of global_rules/1"#.to_owned();
    let log = |n: u32| format!(r#"log{{"n":{n}}} of global_rules/2"#);
    assert_eq!(
        compile(&desired, &["1", "2", "3"]),
        (vec![cors.clone(), first.clone(), log(1)], vec![], false)
    );

    // Its secret is gone. It stays as it was, and the others follow what is written.
    there.store(false, Ordering::Relaxed);
    let lacks = || vec!["1".to_owned()];
    assert_eq!(compile(&desired, &["1"]), (vec![cors.clone(), first.clone(), log(1)], lacks(), false));
    desired.put(rule("2", json!({"log": {"n": 2}})));
    assert_eq!(compile(&desired, &["2"]), (vec![cors, first.clone(), log(2)], lacks(), false));
    desired.delete(&Key::new(Kind::GlobalRule, "3"));
    assert_eq!(compile(&desired, &["3"]), (vec![first.clone(), log(2)], lacks(), false));

    // A rule that never had its secret refuses everything until it is deleted.
    desired.put(rule("4", json!({"mirror": {"key": "$env://SECRET"}})));
    let both = vec!["1".to_owned(), "4".to_owned()];
    assert_eq!(compile(&desired, &["4"]), (vec![first.clone(), log(2)], both, true));
    desired.delete(&Key::new(Kind::GlobalRule, "4"));
    assert_eq!(compile(&desired, &["4"]), (vec![first, log(2)], lacks(), false));
}

#[test]
fn a_global_rule_that_lacked_a_secret_refuses_until_fixed() {
    let mut desired = Desired::default();
    let (mut compiler, names) = (compiler(), Table::default());
    desired.put(entry(Kind::GlobalRule, "2", json!({"plugins": {"log": {}}})));
    for (config, served) in [
        (json!({"bad": true}), Some(Served::Nothing)),
        (json!({"key": "$env://NONE"}), Some(Served::Refusal)),
        (json!({"bad": true}), Some(Served::Refusal)),
        (json!({"key": "there"}), None),
        (json!({"bad": true}), Some(Served::LastGoodForm)),
    ] {
        desired.put(entry(Kind::GlobalRule, "1", json!({"plugins": {"limit": config}})));
        for touched in [Touched::from_iter([Key::new(Kind::GlobalRule, "1")]), Touched::all()] {
            let compiled = compiler.compile(&desired, &touched, &names, 0);
            assert_eq!(compiled.rejected.first().map(|one| one.served), served, "{config}");
            assert_eq!(
                refusal(compiled.snapshot.global.as_ref()),
                served == Some(Served::Refusal),
                "{config}"
            );
        }
    }
    desired.put(entry(Kind::GlobalRule, "1", json!({"plugins": {"limit": {"key": "$env://NONE"}}})));
    desired.delete(&Key::new(Kind::GlobalRule, "1"));
    let compiled = compiler.compile(&desired, &Touched::all(), &names, 0);
    assert!(!refusal(compiled.snapshot.global.as_ref()));
}
