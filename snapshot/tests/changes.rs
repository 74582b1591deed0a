//! A change of any field of a resource takes effect.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{self, Table, compiler, entry};
use model::{Desired, Key, Kind};
use sdk::UpstreamHandle;
use serde_json::{Value, json};
use snapshot::compile::Settings;
use snapshot::streams::Arrival;
use snapshot::{Compiled, Compiler, Touched, Upstream};

struct Bench {
    compiler: Compiler,
    desired: Desired,
    names: Table,
}

impl Bench {
    fn new() -> Bench {
        Bench { compiler: compiler(), desired: Desired::default(), names: Table::default() }
    }

    fn put(&mut self, kind: Kind, id: &str, value: Value) -> Compiled {
        self.desired.put(entry(kind, id, value));
        self.touch(Touched::from_iter([Key::new(kind, id)]))
    }

    fn delete(&mut self, kind: Kind, id: &str) -> Compiled {
        self.desired.delete(&Key::new(kind, id));
        self.touch(Touched::from_iter([Key::new(kind, id)]))
    }

    /// Compiles often enough that no exchange can still be on an early snapshot.
    fn rest(&mut self) {
        (0..2_000).for_each(|_| drop(self.touch(Touched::default())));
    }

    fn touch(&mut self, touched: Touched) -> Compiled {
        self.compiler.compile(&self.desired, &touched, &self.names, 1)
    }
}

#[test]
fn a_rule_is_rebuilt_when_a_condition_differs() {
    let mut bench = Bench::new();
    let vars = |value: &str| json!([["arg_a", "==", value]]);
    let full = json!({"uri": "/1", "host": "a.test", "methods": ["GET"], "remote_addr": "10.0.0.1", "priority": 1,
        "vars": vars("x"), "name": "first", "plugins": {}});
    let rule = |compiled: &Compiled| compiled.snapshot.router.rule("1").expect("a rule").clone();
    let first = rule(&bench.put(Kind::Route, "1", full.clone()));
    for (field, value, is_kept) in [
        ("name", json!("second"), true),
        ("uri", json!("/2"), false),
        ("host", json!("b.test"), false),
        ("methods", json!(["POST"]), false),
        ("remote_addr", json!("10.0.0.2"), false),
        ("priority", json!(2), false),
        ("vars", vars("y"), false),
        ("vars", Value::Null, false),
    ] {
        let before = rule(&bench.put(Kind::Route, "1", full.clone()));
        assert_eq!((&before.uris, before.methods, before.priority), (&first.uris, first.methods, 1));
        let mut changed = full.clone();
        changed[field] = value;
        if changed[field].is_null() {
            changed.as_object_mut().expect("an object").remove(field);
        }
        let after = rule(&bench.put(Kind::Route, "1", changed));
        assert_eq!(Arc::ptr_eq(&before, &after), is_kept, "{field}");
    }
    // Without conditions before and after, the rule also stays; without the field, a rule has none.
    let plain = rule(&bench.put(Kind::Route, "1", json!({"uri": "/1", "plugins": {}})));
    assert!(plain.vars.is_none());
    let named = rule(&bench.put(Kind::Route, "1", json!({"uri": "/1", "plugins": {}, "name": "n"})));
    assert!(Arc::ptr_eq(&plain, &named));
    let with = rule(&bench.put(Kind::Route, "1", json!({"uri": "/1", "plugins": {}, "vars": vars("x")})));
    assert!(with.vars.is_some());
}

#[test]
fn a_removed_secret_identifies_no_consumer() {
    let there = Arc::new(AtomicBool::new(true));
    let asked = there.clone();
    let env = move |_: &str| asked.load(Ordering::Relaxed).then(|| "s3cret".to_owned());
    let settings = Settings { env: Arc::new(env), ..Settings::default() };
    let mut bench = Bench::new();
    bench.compiler = Compiler::new(Arc::new(support::Plugins), settings);
    let found =
        |compiled: &Compiled, key: &str| compiled.snapshot.consumers.find("key", key.as_bytes()).is_some();
    let consumer = |key: &str| json!({"username": "jack", "plugins": {"key": {"key": key}}});
    let credential = |key: &str, bad: bool| json!({"plugins": {"key": {"key": key, "bad": bad}}});
    let id = "jack/credentials/1";
    assert!(found(&bench.put(Kind::Consumer, "jack", consumer("$env://ONE")), "s3cret"));
    there.store(false, Ordering::Relaxed);
    let gone = bench.touch(Touched::from_iter([Key::new(Kind::Consumer, "jack")]));
    assert!(!found(&gone, "s3cret") && gone.snapshot.consumers.by_name("jack").is_none());
    there.store(true, Ordering::Relaxed);
    // Another error keeps the last valid version.
    assert!(found(&bench.put(Kind::Consumer, "jack", consumer("k1")), "k1"));
    let wrong = json!({"username": "jack", "plugins": {"key": {"key": "k2"}, "limit": {"bad": true}}});
    assert!(found(&bench.put(Kind::Consumer, "jack", wrong), "k1"));

    assert!(found(&bench.put(Kind::Credential, id, credential("$env://ONE", false)), "s3cret"));
    there.store(false, Ordering::Relaxed);
    assert!(!found(&bench.touch(Touched::from_iter([Key::new(Kind::Credential, id)])), "s3cret"));
    assert!(found(&bench.put(Kind::Credential, id, credential("k2", false)), "k2"));
    assert!(found(&bench.put(Kind::Credential, id, credential("k3", true)), "k2"), "its last valid version");
    assert!(!found(&bench.delete(Kind::Credential, id), "k2"));
}

#[test]
fn a_consumer_is_served_until_its_group_is_deleted() {
    let mut bench = Bench::new();
    let consumer = json!({"username": "jack", "group_id": "g", "plugins": {"key": {"key": "k1"}}});
    bench.put(Kind::ConsumerGroup, "g", json!({"plugins": {"limit": {"a": 1}}}));
    let with = bench.put(Kind::Consumer, "jack", consumer);
    let chain =
        |compiled: &Compiled| compiled.snapshot.consumers.by_name("jack").expect("jack").chain.clone();
    let group = chain(&with).expect("the group's");
    assert_eq!(support::shown(&group).len(), 1);
    // A consumer without plugins uses the chain of its group.
    let other = json!({"username": "jill", "group_id": "g", "plugins": {"key": {"key": "k2"}}});
    let both = bench.put(Kind::Consumer, "jill", other);
    let jills = both.snapshot.consumers.by_name("jill").expect("jill").chain.clone();
    assert!(jills.is_some_and(|jills| Arc::ptr_eq(&jills, &group)));
    let wrong = json!({"username": "new", "group_id": "g", "plugins": {"limit": {"bad": true}}});
    let rejected = bench.put(Kind::Consumer, "new", wrong).rejected;
    assert_eq!(rejected[0].invalid.pointer, "/plugins/limit/bad");
    let without = bench.delete(Kind::ConsumerGroup, "g");
    let found = without.snapshot.consumers.find("key", b"k1").expect("its last valid version");
    assert!(found.consumer.chain.as_ref().is_some_and(|chain| support::shown(chain).len() == 1));
}

fn upstream(more: Value) -> Value {
    let mut upstream = json!({"nodes": {"127.0.0.1:1": 1}});
    upstream.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    upstream
}

fn of_route<'c>(compiled: &'c Compiled, id: &str) -> &'c Arc<Upstream> {
    compiled.snapshot.upstream(compiled.snapshot.router.plan(id).expect("a plan")).expect("an upstream")
}

#[test]
fn upstreams_with_min_idle_are_listed_as_warm() {
    let mut bench = Bench::new();
    let warm = json!({"keepalive_pool": {"size": 8, "idle_timeout": 60, "requests": 1000, "min_idle": 2}});
    let mut put = |id: &str, more: &Value| {
        let compiled = bench.put(Kind::Upstream, id, upstream(more.clone()));
        compiled.snapshot.warm.to_vec()
    };
    assert!(put("cold", &json!({})).is_empty());
    let first = put("1", &warm);
    let both = put("2", &warm);
    assert_eq!((first.len(), both.len()), (1, 2));
    assert!(both.is_sorted() && both.contains(&first[0]));
    assert_eq!(
        put("2", &json!({"type": "least_conn", "keepalive_pool": warm["keepalive_pool"]})),
        both,
        "asked for again"
    );
    assert_eq!(put("2", &json!({})), first);
    assert_eq!(put("cold", &json!({"type": "least_conn"})), first);
    put("2", &warm);
    assert_eq!(bench.delete(Kind::Upstream, "1").snapshot.warm.len(), 1);
    // A route's upstream is removed with the route.
    let route = json!({"uri": "/1", "upstream": upstream(warm)});
    assert_eq!(bench.put(Kind::Route, "1", route).snapshot.warm.len(), 2);
    assert_eq!(bench.delete(Kind::Route, "1").snapshot.warm.len(), 1);
}

#[test]
fn upstreams_with_checks_are_watched_and_keep_their_health() {
    let mut bench = Bench::new();
    let checks = json!({"checks": {"active": {"type": "tcp"}}});
    let route = |more: &Value| json!({"uri": "/1", "upstream": upstream(more.clone())});
    assert!(bench.put(Kind::Route, "1", route(&json!({}))).watched.is_empty());
    let with = bench.put(Kind::Route, "1", route(&checks));
    let [watched] = &with.watched[..] else { panic!("{:?}", with.watched) };
    assert_eq!(watched.key, Key::new(Kind::Route, "1"));
    let served = of_route(&with, "1").health.clone().expect("checks");
    assert!(watched.health.as_ref().is_some_and(|health| Arc::ptr_eq(health, &served)));
    // The health of a server survives a change of other settings.
    for _ in 0..9 {
        served.targets().for_each(|target| served.probed(target, snapshot::health::Probed::Failed));
    }
    assert_eq!(served.why_excluded(0), Some("unhealthy"));
    let mut changed = checks.clone();
    changed["retries"] = json!(3);
    let after = bench.put(Kind::Route, "1", route(&changed));
    let now = of_route(&after, "1").health.clone().expect("checks");
    assert!(!Arc::ptr_eq(&now, &served));
    assert_eq!(now.why_excluded(0), Some("unhealthy"));
    assert!(after.watched[0].health.as_ref().is_some_and(|health| Arc::ptr_eq(health, &now)));
    assert!(bench.put(Kind::Route, "1", route(&json!({}))).watched.is_empty());
    bench.put(Kind::Route, "1", route(&checks));
    assert!(bench.delete(Kind::Route, "1").watched.is_empty());
}

#[test]
fn changed_addresses_are_resolved_again_in_place() {
    let mut bench = Bench::new();
    let address = |n: u8| -> Vec<IpAddr> { vec![IpAddr::from([10, 0, 0, n])] };
    bench.names.0.insert("a.test".into(), address(1));
    let inline = json!({"nodes": {"a.test:80": 1}});
    bench.put(Kind::Service, "s", json!({"upstream": inline}));
    bench.put(Kind::Route, "of-service", json!({"uri": "/2", "service_id": "s"}));
    let first = bench.put(Kind::Route, "own", json!({"uri": "/1", "upstream": inline}));
    let addresses = |compiled: &Compiled| {
        ["own", "of-service"].map(|id| of_route(compiled, id).endpoints[0].addr.ip().to_string())
    };
    assert_eq!(addresses(&first), ["10.0.0.1", "10.0.0.1"]);
    bench.names.0.insert("a.test".into(), address(2));
    let touched = Touched { hosts: ["a.test".to_owned()].into_iter().collect(), ..Touched::default() };
    let second = bench.touch(touched);
    assert_eq!(addresses(&second), ["10.0.0.2", "10.0.0.2"]);
    let plan = |compiled: &Compiled| compiled.snapshot.router.plan("own").expect("a plan").clone();
    assert!(Arc::ptr_eq(&plan(&first), &plan(&second)), "only the upstream is another one");
}

#[test]
fn streams_go_where_their_route_or_its_service_says() {
    let mut bench = Bench::new();
    let nodes = |port: u16| json!({"nodes": {format!("127.0.0.1:{port}"): 1}});
    bench.put(Kind::Upstream, "u", nodes(1));
    bench.put(Kind::Service, "by-id", json!({"upstream_id": "u"}));
    bench.put(Kind::Service, "inline", json!({"upstream": nodes(2)}));
    bench.put(Kind::Service, "bare", json!({}));
    let mut goes = |route: Value| {
        let compiled = bench.put(Kind::StreamRoute, "1", route);
        port_of(&compiled)
    };
    assert_eq!(goes(json!({"upstream_id": "u"})), Some(1));
    assert_eq!(goes(json!({"upstream": nodes(3)})), Some(3));
    assert_eq!(goes(json!({"service_id": "by-id"})), Some(1));
    assert_eq!(goes(json!({"service_id": "inline"})), Some(2));
    assert_eq!(goes(json!({"service_id": "inline", "upstream": nodes(3)})), Some(3));
    assert_eq!(goes(json!({"service_id": "bare"})), None);
    assert_eq!(goes(json!({"service_id": "none"})), None);
    assert_eq!(goes(json!({"upstream_id": "none"})), None);
    // Referenced resources are created later, and change.
    bench.put(Kind::StreamRoute, "1", json!({"service_id": "by-id"}));
    let changed = bench.put(Kind::Upstream, "u", nodes(9));
    assert_eq!(port_of(&changed), Some(9));
    bench.put(Kind::StreamRoute, "1", json!({"service_id": "later"}));
    let made = bench.put(Kind::Service, "later", json!({"upstream_id": "u"}));
    assert_eq!(port_of(&made), Some(9));
}

/// The port to which the only stream route sends streams.
fn port_of(compiled: &Compiled) -> Option<u16> {
    let server = ([127, 0, 0, 1], 9100).into();
    let arrival = Arrival { remote: [127, 0, 0, 1].into(), server, name: None };
    let found = compiled.snapshot.streams.find(&arrival).expect("a plan");
    compiled.snapshot.upstream(&found.plan).ok().map(|upstream| upstream.endpoints[0].addr.port())
}

#[test]
fn merged_changes_keep_every_entry() {
    let key = |id| Key::new(Kind::Route, id);
    let hosts = |name: &str| Touched { hosts: [name.to_owned()].into(), ..Touched::default() };
    let mut touched = Touched::default();
    assert!(touched.is_empty());
    for other in [Touched::from_iter([key("1")]), hosts("a.test"), Touched::all()] {
        assert!(!other.is_empty());
        touched.merge(other);
    }
    touched.merge(Touched::from_iter([key("2")]));
    assert_eq!(
        (touched.all, touched.keys, touched.hosts),
        (true, [key("1"), key("2")].into(), hosts("a.test").hosts)
    );
}

#[test]
fn streams_are_not_served_without_a_disabled_plugin() {
    let mut bench = Bench::new();
    let settings = Settings { stream_plugins: Some(vec!["log".to_owned()]), ..Settings::default() };
    bench.compiler = Compiler::new(Arc::new(support::Plugins), settings);
    let route = |plugin: &str| json!({"plugins": {plugin: {}}, "upstream": {"nodes": {"127.0.0.1:1": 1}}});
    let off = bench.put(Kind::StreamRoute, "1", route("limit"));
    assert_eq!((off.rejected.len(), off.snapshot.streams.all().len()), (1, 0));
    assert!(
        off.rejected[0].invalid.pointer.starts_with("/plugins/limit"),
        "{}",
        off.rejected[0].invalid.pointer
    );
    assert_eq!(bench.put(Kind::StreamRoute, "1", route("log")).snapshot.streams.all().len(), 1);
    // A list in the store takes precedence, and a new one takes effect without any other change.
    bench.desired.stream_plugins = Some(vec!["limit".to_owned()]);
    let unlisted = bench.touch(Touched::default());
    assert_eq!(unlisted.rejected.len(), 1, "{:?}", unlisted.rejected);
    assert!(bench.put(Kind::StreamRoute, "1", route("limit")).rejected.is_empty());
    bench.desired.stream_plugins = None;
    assert_eq!(bench.touch(Touched::default()).rejected.len(), 1);
}

#[test]
fn requests_are_not_sent_to_stream_upstreams() {
    let mut bench = Bench::new();
    let route = json!({"uri": "/1", "upstream": upstream(json!({"scheme": "tcp"}))});
    let compiled = bench.put(Kind::Route, "1", route);
    assert_eq!(compiled.rejected[0].invalid.pointer, "/upstream/scheme");
    assert!(compiled.snapshot.router.plan("1").is_none());
}

/// The settings that the plugins of a route show.
fn texts(compiled: &Compiled, id: &str) -> Vec<String> {
    let plan = compiled.snapshot.router.plan(id).expect("a plan");
    let chain = plan.chain.as_deref().expect("a chain");
    support::shown(chain).into_iter().map(|shown| shown.text.clone()).collect()
}

/// The upstreams that the plugins of a route request.
fn handles(compiled: &Compiled, id: &str) -> Vec<UpstreamHandle> {
    let plan = compiled.snapshot.router.plan(id).expect("a plan");
    let chain = plan.chain.as_deref().expect("a chain");
    support::shown(chain).iter().flat_map(|shown| shown.upstreams.clone()).collect()
}

#[test]
fn upstreams_no_longer_requested_by_plugins_are_removed() {
    let mut bench = Bench::new();
    let to = |n: u8| json!({"to": {"nodes": {format!("10.0.0.{n}:80"): 1}}});
    let mut put = |plugins: Value| bench.put(Kind::Route, "1", json!({"uri": "/1", "plugins": plugins}));
    let two = put(json!({"log": to(1), "mirror": to(2)}));
    let [log, mirror] = &handles(&two, "1")[..] else { panic!("two plugins") };
    let id = |compiled: &Compiled, handle: &UpstreamHandle| {
        compiled.snapshot.chosen(handle.slot()).ok().map(|upstream| upstream.id.to_string())
    };
    assert_eq!([log, mirror].map(|handle| id(&two, handle)), [Some("1#0".into()), Some("1#1".into())]);
    let one = put(json!({"log": to(1)}));
    assert_eq!([log, mirror].map(|handle| id(&one, handle)), [Some("1#0".into()), None]);
    let none = put(json!({"log": {}}));
    assert_eq!([log, mirror].map(|handle| id(&none, handle)), [None, None]);
}

#[test]
fn a_slot_is_reused_once_nothing_refers_to_it() {
    let mut bench = Bench::new();
    let nodes = |n: u8| json!({"nodes": {format!("10.0.0.{n}:80"): 1}});
    let route = |plugins: Value| json!({"uri": "/1", "plugins": plugins});
    let to = |id: &str| json!({"uri": "/2", "upstream_id": id});
    // A plugin that names an upstream and then does not.
    bench.put(Kind::Upstream, "a", nodes(1));
    bench.put(Kind::Route, "1", route(json!({"log": {"to_id": "a"}})));
    let first = of_route(&bench.put(Kind::Route, "2", to("a")), "2").slot;
    bench.put(Kind::Route, "1", route(json!({"log": {}})));
    bench.delete(Kind::Upstream, "a");
    bench.rest();
    bench.put(Kind::Upstream, "b", nodes(2));
    assert_eq!(of_route(&bench.put(Kind::Route, "2", to("b")), "2").slot, first);
    // A chain that cannot be rebuilt stays in use, and must never meet another upstream at this
    // slot.
    let names = bench.put(Kind::Route, "1", route(json!({"log": {"to_id": "b"}})));
    let [handle] = &handles(&names, "1")[..] else { panic!("one plugin") };
    assert_eq!(names.snapshot.chosen(handle.slot()).map(|upstream| upstream.slot).ok(), Some(first));
    bench.desired.plugins = Some(Vec::new());
    bench.touch(Touched::default());
    bench.delete(Kind::Upstream, "b");
    bench.rest();
    bench.put(Kind::Upstream, "c", nodes(3));
    let after = bench.put(Kind::Route, "2", to("c"));
    assert_ne!(of_route(&after, "2").slot, first);
    assert!(after.snapshot.chosen(handle.slot()).is_err());
}

#[test]
fn the_error_points_to_the_resource_that_names_the_plugin() {
    let mut bench = Bench::new();
    let settings = Settings { stream_plugins: Some(vec!["log".to_owned()]), ..Settings::default() };
    bench.compiler = Compiler::new(Arc::new(support::Plugins), settings);
    let limit = json!({"plugins": {"limit": {}}});
    bench.put(Kind::Service, "s", limit.clone());
    bench.put(Kind::PluginConfig, "p", limit.clone());
    bench.put(Kind::ConsumerGroup, "g", limit);
    bench.desired.plugins = Some(vec!["log".to_owned(), "key".to_owned()]);
    let (limit, log) = (json!({"limit": {}}), json!({"log": {}}));
    for (kind, id, value, pointer) in [
        (Kind::Route, "1", json!({"uri": "/1", "plugins": limit}), "/plugins/limit"),
        (Kind::Route, "2", json!({"uri": "/2", "plugins": log, "service_id": "s"}), "/service_id"),
        (
            Kind::Route,
            "3",
            json!({"uri": "/3", "plugins": log, "plugin_config_id": "p"}),
            "/plugin_config_id",
        ),
        (Kind::Consumer, "jack", json!({"username": "jack", "plugins": limit}), "/plugins/limit"),
        (Kind::Consumer, "jill", json!({"username": "jill", "plugins": log, "group_id": "g"}), "/group_id"),
        (Kind::StreamRoute, "1", json!({"plugins": limit}), "/plugins/limit"),
        (Kind::StreamRoute, "2", json!({"plugins": log, "service_id": "s"}), "/service_id"),
    ] {
        let key = Key::new(kind, id);
        let compiled = bench.put(kind, id, value);
        let rejected = compiled.rejected.iter().find(|one| one.key == key).expect("it is rejected");
        assert_eq!(rejected.invalid.pointer, pointer, "{key}");
    }
}

#[test]
fn a_last_valid_version_follows_its_references() {
    let mut bench = Bench::new();
    let service = |n: u8| json!({"plugins": {"log": {"n": n}}});
    bench.put(Kind::Service, "s", service(1));
    for (kind, good, bad) in [
        (
            Kind::Route,
            json!({"uri": "/1", "service_id": "s"}),
            json!({"uri": "/1", "plugins": {"log": {"bad": true}}}),
        ),
        (Kind::StreamRoute, json!({"service_id": "s"}), json!({"plugins": {"log": {"bad": true}}})),
    ] {
        bench.put(kind, "1", good);
        assert_eq!(bench.put(kind, "1", bad).rejected.len(), 1, "{kind:?}");
        let shown = |compiled: &Compiled| match kind {
            Kind::Route => texts(compiled, "1"),
            _ => {
                let chain = compiled.snapshot.streams.all()[0].plan.chain.clone().expect("a chain");
                support::shown(&chain).into_iter().map(|shown| shown.text.clone()).collect()
            }
        };
        for n in [2, 1] {
            let compiled = bench.put(Kind::Service, "s", service(n));
            assert_eq!(shown(&compiled), [format!("log{{\"n\":{n}}} of services/s")], "{kind:?}");
        }
        bench.delete(kind, "1");
    }
}

#[test]
fn a_plan_stays_when_only_its_upstream_changes() {
    let mut bench = Bench::new();
    bench.put(Kind::Upstream, "u", json!({"nodes": {"10.0.0.1:80": 1}}));
    let route = json!({"uri": "/1", "upstream_id": "u", "plugins": {"log": {}}});
    let before = bench.put(Kind::Route, "1", route);
    let after = bench.put(Kind::Upstream, "u", json!({"nodes": {"10.0.0.2:80": 1}}));
    let plan = |compiled: &Compiled| compiled.snapshot.router.plan("1").expect("a plan").clone();
    assert!(Arc::ptr_eq(&plan(&before), &plan(&after)));
    assert_eq!(of_route(&after, "1").endpoints[0].addr.to_string(), "10.0.0.2:80");
}

#[test]
fn new_metadata_retry_rejected_resources() {
    let there = Arc::new(AtomicBool::new(false));
    let asked = there.clone();
    let env = move |_: &str| asked.load(Ordering::Relaxed).then(|| "s3cret".to_owned());
    let mut bench = Bench::new();
    let settings = Settings { env: Arc::new(env), ..Settings::default() };
    bench.compiler = Compiler::new(Arc::new(support::Plugins), settings);
    let route = json!({"uri": "/1", "plugins": {"limit": {"key": "$env://ONE"}}});
    assert_eq!(bench.put(Kind::Route, "1", route).rejected.len(), 1);
    there.store(true, Ordering::Relaxed);
    assert_eq!(bench.put(Kind::PluginMetadata, "limit", json!({"n": 1})).rejected.len(), 0);
}

#[test]
fn a_new_list_of_plugins_takes_effect() {
    let mut bench = Bench::new();
    let route = json!({"uri": "/1", "plugins": {"limit": {}}});
    bench.compiler.set_plugins(Some(vec!["log".to_owned()]));
    assert_eq!(bench.put(Kind::Route, "1", route).rejected.len(), 1);
    bench.compiler.set_plugins(Some(vec!["limit".to_owned()]));
    assert_eq!(bench.touch(Touched::all()).rejected.len(), 0);
}

#[test]
fn users_of_a_host_name() {
    let mut bench = Bench::new();
    let inline = json!({"nodes": {"A.test:80": 1}});
    bench.put(Kind::Service, "s", json!({"upstream": inline}));
    bench.put(Kind::Route, "1", json!({"uri": "/1", "plugins": {"mirror": {"host": "a.test"}}}));
    let users = |bench: &Bench| bench.compiler.users_of("a.test").into_iter().collect::<Vec<_>>();
    assert_eq!(users(&bench), [Key::new(Kind::Route, "1"), Key::new(Kind::Service, "s")]);
    bench.delete(Kind::Service, "s");
    assert_eq!(users(&bench), [Key::new(Kind::Route, "1")]);
    assert!(bench.compiler.users_of("b.test").is_empty());
}

/// A service registry, a name server and a secret manager.
struct Elsewhere;

impl sdk::build::Names for Elsewhere {
    fn addresses(&self, _: &str) -> Vec<IpAddr> {
        vec![IpAddr::from([10, 0, 0, 1])]
    }

    fn nodes(&self, _: &model::upstream::Discovery) -> Vec<model::Node> {
        model::Upstream::parse(&json!({"nodes": {"10.0.0.2:80": 1}})).expect("an upstream").nodes
    }

    fn secret(&self, reference: &str) -> Result<String, String> {
        Ok(format!("the value of {}", reference.trim_start_matches('$')))
    }
}

#[test]
fn servers_and_secrets_come_from_registries_and_managers() {
    for (registries, kind, address) in [
        (&[][..], "dns", "10.0.0.1:8080"),
        (&["dns"], "dns", "10.0.0.2:80"),
        (&["nacos"], "nacos", "10.0.0.2:80"),
        (&["nacos", "dns"], "nacos", "10.0.0.2:80"),
    ] {
        let registries = registries.iter().map(|name| (*name).to_owned()).collect();
        let settings = Settings { registries, ..Settings::default() };
        let mut bench = Bench::new();
        bench.compiler = Compiler::new(Arc::new(support::Plugins), settings);
        let upstream = json!({"service_name": "a.test:8080", "discovery_type": kind});
        let plugins = json!({"limit": {"key": "$secret://vault/1/key"}});
        let route = json!({"uri": "/1", "upstream": upstream, "plugins": plugins});
        bench.desired.put(entry(Kind::Route, "1", route));
        let compiled = bench.compiler.compile(&bench.desired, &Touched::all(), &Elsewhere, 1);
        assert_eq!(of_route(&compiled, "1").endpoints[0].addr.to_string(), address, "{kind}");
        let text = r#"limit{"key":"the value of secret://vault/1/key"} of routes/1"#;
        assert_eq!(texts(&compiled, "1"), [text]);
        assert_eq!(compiled.wanted_hosts.len(), 1);
    }
}

#[test]
fn calls_are_counted_if_prometheus_is_enabled() {
    for (listed, counts) in [(None, true), (Some(&["prometheus"][..]), true), (Some(&["log"]), false)] {
        let stream_plugins = listed.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let settings =
            Settings { stream_plugins, protocols: vec!["redis".to_owned()], ..Settings::default() };
        let mut bench = Bench::new();
        bench.compiler = Compiler::new(Arc::new(support::Plugins), settings);
        for metric in [true, false] {
            let protocol = json!({"name": "redis", "metric": {"enable": metric}});
            let upstream = json!({"nodes": {"127.0.0.1:1": 1}});
            let route = json!({"protocol": protocol, "upstream": upstream});
            let compiled = bench.put(Kind::StreamRoute, "1", route);
            let protocol = compiled.snapshot.streams.all()[0].protocol.clone().expect("a protocol");
            assert_eq!(protocol.counts, counts && metric, "{listed:?}");
            bench.desired.stream_plugins = Some(Vec::new());
            let unlisted = bench.touch(Touched::default());
            let protocol = unlisted.snapshot.streams.all()[0].protocol.clone().expect("a protocol");
            assert!(!protocol.counts, "{listed:?}");
            bench.desired.stream_plugins = None;
        }
    }
}
