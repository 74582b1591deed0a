//! Compiling the changes gives the same result as compiling everything, and touches nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::support::{self, Table, compiler, entry, print};
use model::{Desired, Key, Kind, Resource};
use proptest::prelude::*;
use serde_json::{Value, json};
use snapshot::{Compiled, Plan, Touched, Upstream};

/// One write to the store.
#[derive(Debug, Clone)]
enum Step {
    Put(Kind, u8, Value),
    Delete(Kind, u8),
    Resolve(u8, Vec<u8>),
    /// The list of plugins, as a bit set.
    Plugins(Option<u8>),
}

/// Few ids, so that references meet. Ids of the same number are equal over all kinds.
fn id() -> impl Strategy<Value = u8> {
    0u8..4
}

fn host(n: u8) -> String {
    format!("host{n}.test")
}

fn plugins() -> impl Strategy<Value = Value> {
    let config = prop_oneof![
        6 => (0u8..3).prop_map(|n| json!({"n": n})),
        1 => Just(json!({"bad": true})),
        1 => Just(json!({"alone": true})),
        1 => Just(json!({"secret": "$env://NONE"})),
        1 => id().prop_map(|n| json!({"host": host(n)})),
        1 => id().prop_map(|n| json!({"to_id": n.to_string()})),
        1 => upstream().prop_map(|to| json!({"to": to})),
    ];
    prop::collection::btree_map(prop::sample::select(&support::NAMES[..]), config, 0..3)
        .prop_map(|plugins| json!(plugins))
}

fn upstream() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => prop::collection::btree_map(prop_oneof![
            id().prop_map(|n| format!("{}:80", host(n))),
            id().prop_map(|n| format!("10.0.0.{n}:80")),
        ], 0u8..4, 0..4).prop_map(|nodes| json!({"nodes": nodes, "retries": 2})),
        1 => Just(json!({"service_name": "x:y", "discovery_type": "dns"})),
    ]
}

/// An object with some of the fields.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    fields.into_iter().fold(Just(json!({})).boxed(), |object, (name, field)| {
        (object, prop::option::of(field))
            .prop_map(move |(mut object, field)| {
                if let Some(field) = field {
                    object[name] = field;
                }
                object
            })
            .boxed()
    })
}

fn reference() -> BoxedStrategy<Value> {
    id().prop_map(|n| json!(n.to_string())).boxed()
}

fn value(kind: Kind) -> BoxedStrategy<Value> {
    let with = |value: BoxedStrategy<Value>, name: &'static str, field: BoxedStrategy<Value>| {
        (value, field)
            .prop_map(move |(mut value, field)| {
                value[name] = field;
                value
            })
            .boxed()
    };
    match kind {
        Kind::Route => {
            let uri = prop::sample::select(&["/a", "/b/*"][..]).prop_map(|uri| json!(uri)).boxed();
            let some = object(vec![
                ("plugin_config_id", reference()),
                ("service_id", reference()),
                ("upstream_id", reference()),
                ("upstream", upstream().boxed()),
                ("status", (0u8..2).prop_map(|n| json!(n)).boxed()),
                ("vars", Just(json!([["arg_a", "==", "1"]])).boxed()),
                ("methods", Just(json!(["PURGE"])).boxed()),
            ]);
            with(with(some, "uri", uri), "plugins", plugins().boxed())
        }
        Kind::Service => object(vec![
            ("plugins", plugins().boxed()),
            ("upstream_id", reference()),
            ("upstream", upstream().boxed()),
            ("hosts", Just(json!(["a.test"])).boxed()),
        ]),
        Kind::Upstream => upstream().boxed(),
        Kind::Consumer => {
            let key = (0u8..3).prop_map(|n| json!({"key": format!("k{n}")}));
            let plugins = (plugins(), key).prop_map(|(mut plugins, key)| {
                plugins["key"] = key;
                plugins
            });
            object(vec![("plugins", plugins.boxed()), ("group_id", reference())])
        }
        Kind::Credential => {
            (0u8..3).prop_map(|n| json!({"plugins": {"key": {"key": format!("k{n}")}}})).boxed()
        }
        Kind::PluginMetadata => {
            prop_oneof![3 => (0u8..3).prop_map(|n| json!({"n": n})), 1 => Just(json!({"bad": true}))].boxed()
        }
        _ => with(Just(json!({})).boxed(), "plugins", plugins().boxed()),
    }
}

const KINDS: [Kind; 9] = [
    Kind::Route,
    Kind::Service,
    Kind::Upstream,
    Kind::PluginConfig,
    Kind::Consumer,
    Kind::Credential,
    Kind::ConsumerGroup,
    Kind::GlobalRule,
    Kind::PluginMetadata,
];

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(&KINDS[..]);
    prop_oneof![
        10 => (kind.clone(), id()).prop_flat_map(|(kind, id)| value(kind).prop_map(move |v| Step::Put(kind, id, v))),
        3 => (kind, id()).prop_map(|(kind, id)| Step::Delete(kind, id)),
        2 => (id(), prop::collection::vec(0u8..5, 0..3)).prop_map(|(id, last)| Step::Resolve(id, last)),
        1 => prop::option::of(0u8..32).prop_map(Step::Plugins),
    ]
}

fn name(kind: Kind, id: u8) -> String {
    match kind {
        Kind::Credential => format!("{}/credentials/{id}", id % 2),
        Kind::PluginMetadata => support::NAMES[id as usize].to_owned(),
        _ => id.to_string(),
    }
}

fn take(step: &Step, desired: &mut Desired, names: &mut Table, touched: &mut Touched) {
    match step {
        Step::Put(kind, id, value) => {
            let id = name(*kind, *id);
            let mut value = value.clone();
            if *kind == Kind::Consumer {
                value["username"] = json!(id);
            }
            touched.keys.insert(Key::new(*kind, id.as_str()));
            desired.put(entry(*kind, &id, value));
        }
        Step::Delete(kind, id) => {
            let key = Key::new(*kind, name(*kind, *id));
            desired.delete(&key);
            touched.keys.insert(key);
        }
        Step::Resolve(id, last) => {
            touched.hosts.insert(host(*id));
            names.0.insert(host(*id), last.iter().map(|&n| IpAddr::from([10, 9, *id, n])).collect());
        }
        Step::Plugins(bits) => {
            desired.plugins = bits.map(|bits| {
                let on = support::NAMES.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
                on.map(|(_, name)| (*name).to_owned()).collect()
            });
        }
    }
}

/// Everything a snapshot holds of a route, to compare allocations.
fn plans(compiled: &Compiled, desired: &Desired) -> BTreeMap<String, Arc<Plan>> {
    let ids = desired.of(Kind::Route).map(|entry| &entry.key.id);
    ids.filter_map(|id| Some((id.clone(), compiled.snapshot.router.plan(id)?.clone()))).collect()
}

/// The upstream of each route that has one.
fn upstreams(compiled: &Compiled, desired: &Desired) -> BTreeMap<String, Arc<Upstream>> {
    let plans = plans(compiled, desired).into_iter();
    plans.filter_map(|(id, plan)| Some((id, compiled.snapshot.upstream(&plan).ok()?.clone()))).collect()
}

/// The resources that a resource depends on, including itself.
fn needs(desired: &Desired, key: &Key) -> BTreeSet<Key> {
    let mut all = BTreeSet::from([key.clone()]);
    let Some(entry) = desired.get(key.kind, &key.id) else { return all };
    let named = match entry.resource() {
        Resource::Route(route) => vec![
            (Kind::Service, &route.service_id),
            (Kind::PluginConfig, &route.plugin_config_id),
            (Kind::Upstream, &route.upstream_id),
        ],
        Resource::Service(service) => vec![(Kind::Upstream, &service.upstream_id)],
        _ => Vec::new(),
    };
    for (kind, id) in named {
        if let Some(id) = id {
            all.extend(needs(desired, &Key::new(kind, id.as_str())));
        }
    }
    for config in entry.resource().plugins().into_iter().flat_map(|plugins| plugins.values()) {
        all.extend(config["to_id"].as_str().map(|id| Key::new(Kind::Upstream, id)));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn incremental_compiles_equal_full_compiles(batches in prop::collection::vec(prop::collection::vec(step(), 1..4), 1..12)) {
        let (mut desired, mut names) = (Desired::default(), Table::default());
        let mut compiler = compiler();
        for (revision, batch) in batches.iter().enumerate() {
            let mut touched = Touched::default();
            batch.iter().for_each(|step| take(step, &mut desired, &mut names, &mut touched));
            let compiled = compiler.compile(&desired, &touched, &names, revision as u64);
            support::release_parsed(&mut compiler, &mut desired);
            prop_assert_eq!(compiled.snapshot.revision, revision as u64);
            let fresh = support::compiler().compile(&desired, &Touched::all(), &names, 0);
            let text = print(&compiled, &desired);
            support::nothing_is_lost(&compiled, &desired);
            // Resources that live on in an older form depend on history; all others do not.
            if !compiled.rejected.iter().any(support::depends_on_history) {
                prop_assert_eq!(&text, &print(&fresh, &desired));
            }
            // Compiling everything again changes nothing.
            let again = compiler.compile(&desired, &Touched::all(), &names, 0);
            prop_assert_eq!(print(&again, &desired), text);
        }
    }

    #[test]
    fn untouched_resources_keep_their_allocation(
        first in prop::collection::vec(step(), 1..30),
        then in prop::collection::vec(step(), 1..10),
    ) {
        let (mut desired, mut names) = (Desired::default(), Table::default());
        let mut compiler = compiler();
        let mut touched = Touched::default();
        first.iter().for_each(|step| take(step, &mut desired, &mut names, &mut touched));
        let mut before = compiler.compile(&desired, &touched, &names, 0);
        for step in &then {
            if matches!(step, Step::Resolve(..) | Step::Plugins(_))
                || matches!(step, Step::Put(kind, ..) | Step::Delete(kind, _) if *kind == Kind::PluginMetadata)
            {
                continue;
            }
            let old = plans(&before, &desired);
            let old_upstreams = upstreams(&before, &desired);
            let needed: BTreeMap<String, BTreeSet<Key>> =
                old.keys().map(|id| (id.clone(), needs(&desired, &Key::new(Kind::Route, id.as_str())))).collect();
            let mut touched = Touched::default();
            take(step, &mut desired, &mut names, &mut touched);
            let after = compiler.compile(&desired, &touched, &names, 1);
            support::release_parsed(&mut compiler, &mut desired);
            // Resources that keep an older version need the references of that version.
            let older: BTreeSet<Key> =
                before.rejected.iter().chain(after.rejected.iter()).map(|rejected| rejected.key.clone()).collect();
            for (id, plan) in plans(&after, &desired) {
                if needed.get(&id).is_some_and(|needed| !needed.is_disjoint(&older)) {
                    continue;
                }
                if needed.get(&id).is_some_and(|needed| needed.is_disjoint(&touched.keys)) {
                    prop_assert!(Arc::ptr_eq(&plan, &old[&id]), "route {} was made again", id);
                    let (was, is) = (old_upstreams.get(&id), after.snapshot.upstream(&plan).ok());
                    let same = was.zip(is).map_or(was.is_none() && is.is_none(), |(a, b)| Arc::ptr_eq(a, b));
                    prop_assert!(same, "the upstream of route {} was made again", id);
                }
            }
            // A plugin of theirs may name an upstream.
            let is_people = |kind: Kind| matches!(kind, Kind::Consumer | Kind::Credential | Kind::ConsumerGroup);
            let people = desired.iter().filter(|entry| is_people(entry.key.kind));
            let named: BTreeSet<Key> = people.flat_map(|entry| needs(&desired, &entry.key)).collect();
            let is_of_people = touched.keys.iter().chain(&older).any(|key| is_people(key.kind));
            if touched.keys.is_disjoint(&named) && !is_of_people {
                prop_assert!(Arc::ptr_eq(&before.snapshot.consumers, &after.snapshot.consumers));
            }
            before = after;
        }
    }
}

#[test]
fn one_changed_address_leaves_stages_and_other_upstreams_as_they_are() {
    let mut desired = Desired::default();
    for (kind, id, value) in [
        (Kind::Upstream, "named", json!({"nodes": {"a.test:80": 1}})),
        (Kind::Route, "1", json!({"uri": "/1", "upstream_id": "named", "plugins": {"log": {}}})),
        (
            Kind::Route,
            "2",
            json!({"uri": "/2", "upstream": {"nodes": {"10.0.0.1:80": 1}}, "plugins": {"log": {}}}),
        ),
    ] {
        desired.put(entry(kind, id, value));
    }
    let names = |last: u8| Table([("a.test".to_owned(), vec![IpAddr::from([10, 0, 0, last])])].into());
    let mut compiler = compiler();
    let all =
        |compiled: &Compiled, desired: &Desired| (plans(compiled, desired), upstreams(compiled, desired));
    let first = compiler.compile(&desired, &Touched::all(), &names(1), 0);
    let before = all(&first, &desired);
    let touched = Touched { hosts: ["a.test".to_owned()].into(), ..Touched::default() };
    let after = all(&compiler.compile(&desired, &touched, &names(2), 1), &desired);
    for id in ["1", "2"] {
        assert!(Arc::ptr_eq(&before.0[id], &after.0[id]), "plan {id}");
    }
    assert!(Arc::ptr_eq(&before.1["2"], &after.1["2"]));
    assert_eq!(before.1["1"].slot, after.1["1"].slot);
    assert_eq!(after.1["1"].endpoints[0].addr.ip(), IpAddr::from([10, 0, 0, 2]));
    let of_first = first.snapshot.upstream(&before.0["1"]).expect("an upstream");
    assert_eq!(
        of_first.endpoints[0].addr.ip(),
        IpAddr::from([10, 0, 0, 1]),
        "a published snapshot does not change"
    );

    // A route rewritten with the same inline upstream keeps it, and the workers' state for it.
    desired.put(entry(
        Kind::Route,
        "2",
        json!({"uri": "/2", "upstream": {"nodes": {"10.0.0.1:80": 1}}, "plugins": {"cors": {}}}),
    ));
    let touched = Touched::from_iter([Key::new(Kind::Route, "2")]);
    let last = all(&compiler.compile(&desired, &touched, &names(2), 2), &desired);
    assert!(!Arc::ptr_eq(&after.0["2"], &last.0["2"]));
    assert!(Arc::ptr_eq(&after.1["2"], &last.1["2"]));
}

#[test]
fn metadata_recompile_their_readers_and_rejected_resources() {
    let mut desired = Desired::default();
    for (kind, id, value) in [
        (Kind::Service, "1", json!({"plugins": {"log": {}}})),
        (Kind::Route, "reads", json!({"uri": "/1", "plugins": {"cors": {}}})),
        (Kind::Route, "another", json!({"uri": "/2", "plugins": {"log": {}}})),
        (Kind::Route, "alone", json!({"uri": "/3", "plugins": {"cors": {"alone": true}}})),
        (Kind::Route, "by-service", json!({"uri": "/4", "service_id": "1"})),
        (Kind::Route, "over-service", json!({"uri": "/5", "service_id": "1", "plugins": {"limit": {}}})),
    ] {
        desired.put(entry(kind, id, value));
    }
    let (mut compiler, names) = (compiler(), Table::default());
    let mut before = plans(&compiler.compile(&desired, &Touched::all(), &names, 0), &desired);
    support::release_parsed(&mut compiler, &mut desired);
    for (plugin, value, remade) in [
        ("cors", json!({"n": 1}), &["reads"][..]),
        ("log", json!({"n": 1}), &["another", "by-service", "over-service"]),
        ("mirror", json!({"n": 1}), &[]),
        ("cors", json!({"n": 2}), &["reads"]),
    ] {
        desired.put(entry(Kind::PluginMetadata, plugin, value));
        let touched = Touched::from_iter([Key::new(Kind::PluginMetadata, plugin)]);
        let compiled = compiler.compile(&desired, &touched, &names, 1);
        support::release_parsed(&mut compiler, &mut desired);
        let after = plans(&compiled, &desired);
        let made = after.iter().filter(|(id, plan)| !Arc::ptr_eq(plan, &before[*id])).map(|(id, _)| id);
        assert_eq!(made.collect::<Vec<_>>(), remade, "{plugin}");
        let fresh = support::compiler().compile(&desired, &Touched::all(), &names, 0);
        assert_eq!(print(&compiled, &desired), print(&fresh, &desired));
        before = after;
    }
}

#[test]
fn resources_are_not_served_without_a_disabled_plugin() {
    let mut desired = Desired::default();
    desired.put(entry(Kind::GlobalRule, "1", json!({"plugins": {"cors": {}}})));
    desired.put(entry(Kind::Route, "1", json!({"uri": "/", "plugins": {"cors": {}}})));
    desired.plugins = Some(Vec::new());
    let (mut compiler, names) = (compiler(), Table::default());
    let rejected = |compiled: &Compiled| -> Vec<_> {
        compiled.rejected.iter().map(|r| (r.key.to_string(), r.kept())).collect()
    };
    let off = compiler.compile(&desired, &Touched::all(), &names, 0);
    assert_eq!(rejected(&off), [("routes/1".to_owned(), false), ("global_rules/1".to_owned(), false)]);
    assert!(off.snapshot.router.rule("1").is_none() && off.snapshot.global.is_none());
    desired.plugins = None;
    let on = compiler.compile(&desired, &Touched::default(), &names, 1);
    assert_eq!(rejected(&on), []);
    assert!(on.snapshot.router.rule("1").is_some() && on.snapshot.global.is_some());
    desired.plugins = Some(Vec::new());
    for touched in [Touched::default(), Touched::all(), Touched::from_iter([Key::new(Kind::GlobalRule, "2")])]
    {
        let compiled = compiler.compile(&desired, &touched, &names, 2);
        assert_eq!(rejected(&compiled), [("routes/1".to_owned(), true), ("global_rules/1".to_owned(), true)]);
        assert!(compiled.snapshot.router.rule("1").is_some(), "the route as it was");
        assert!(compiled.snapshot.global.is_some(), "and the rule");
    }
}

#[test]
fn upstreams_in_plugin_settings_last_as_long_as_the_settings() {
    let mut desired = Desired::default();
    let route = |plugins: Value| entry(Kind::Route, "1", json!({"uri": "/1", "plugins": plugins}));
    let (names, mut compiler) = (Table::default(), compiler());
    let handles = |compiled: &Compiled| {
        let plan = compiled.snapshot.router.plan("1").expect("a route");
        let chain = plan.chain.as_deref().expect("a chain");
        support::shown(chain).iter().flat_map(|shown| shown.upstreams.clone()).collect::<Vec<_>>()
    };
    let first = |compiled: &Compiled| compiled.snapshot.chosen(handles(compiled)[0].slot()).cloned();

    let to = json!({"nodes": {"10.0.0.1:80": 1}});
    desired.put(route(json!({"log": {"to": to, "n": 1}, "mirror": {"to_id": "a"}})));
    let one = compiler.compile(&desired, &Touched::all(), &names, 0);
    assert_eq!(handles(&one).len(), 2);
    assert!(one.snapshot.chosen(handles(&one)[1].slot()).is_err(), "there is no such upstream yet");

    // The missing upstream is created, and the other one stays the same.
    desired.put(entry(Kind::Upstream, "a", json!({"nodes": {"10.0.0.2:80": 1}})));
    let touched = Touched::from_iter([Key::new(Kind::Upstream, "a")]);
    let two = compiler.compile(&desired, &touched, &names, 1);
    let by_id = two.snapshot.chosen(handles(&two)[1].slot()).expect("it is there now");
    assert_eq!(&*by_id.id, "a");
    assert!(Arc::ptr_eq(&first(&one).unwrap(), &first(&two).unwrap()));

    // Without its plugin it is removed; the published snapshot still has it.
    desired.put(route(json!({"mirror": {"to_id": "a"}})));
    let touched = Touched::from_iter([Key::new(Kind::Route, "1")]);
    let three = compiler.compile(&desired, &touched, &names, 2);
    assert_eq!(handles(&three).len(), 1);
    let slot = handles(&one)[0].slot();
    assert!(three.snapshot.chosen(slot).is_err());
    assert!(two.snapshot.chosen(slot).is_ok());
}
