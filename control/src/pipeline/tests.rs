#[path = "../../../snapshot/tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::names::{LookUp, Looking, ResolvedName, Resolver};
use crate::store::{Expect, Memory, Step, Store};
use crate::{Handle, Pipeline};
use model::{Key, Kind};
use serde_json::{Value, json};
use snapshot::{Plan, Publisher, Reader};

/// Names from a table that can be changed; a name without an entry cannot be looked up.
#[derive(Debug, Default)]
struct Table(Mutex<HashMap<String, Vec<IpAddr>>>);

impl Table {
    fn set(&self, host: &str, addresses: Option<&str>) {
        let mut table = self.0.lock().unwrap();
        match addresses {
            Some(addresses) => {
                let addresses = addresses.split(' ').map(|address| address.parse().unwrap());
                table.insert(host.to_owned(), addresses.collect());
            }
            None => _ = table.remove(host),
        }
    }
}

impl LookUp for Table {
    fn look_up(&self, host: &str) -> Looking {
        let found = self.0.lock().unwrap().get(host).cloned();
        Box::pin(async move {
            let addresses = found.ok_or("no such name")?;
            Ok(ResolvedName { addresses, ttl: Duration::from_secs(5) })
        })
    }
}

struct Bench {
    store: Arc<Memory>,
    names: Arc<Table>,
    handle: Handle,
    reader: Reader,
}

fn start() -> Bench {
    let (store, names) = (Arc::new(Memory::default()), Arc::new(Table::default()));
    start_with(store, names)
}

fn start_with(store: Arc<Memory>, names: Arc<Table>) -> Bench {
    let compiler = support::compiler();
    let (publisher, mut readers) = Publisher::new(compiler.snapshot(0), 1);
    let resolver = Resolver::of(names.clone(), None);
    let (pipeline, handle) = Pipeline::new(&*store, compiler, publisher, resolver);
    tokio::spawn(pipeline.run());
    Bench { store, names, handle, reader: readers.pop().unwrap() }
}

impl Bench {
    async fn put(&self, kind: Kind, id: &str, value: Value) -> u64 {
        self.store.put(Key::new(kind, id), value, Expect::Any, None).await.unwrap().modified
    }

    async fn delete(&self, kind: Kind, id: &str) {
        self.store.delete(Key::new(kind, id), Expect::Any).await.unwrap();
    }

    /// Waits until everything written is published.
    async fn settle(&mut self) {
        let revision = self.store.revision().await.unwrap();
        self.until(|bench| bench.handle.report().compiles > 0 && bench.handle.report().revision >= revision)
            .await;
    }

    async fn until(&mut self, mut done: impl FnMut(&mut Bench) -> bool) {
        let waiting = async {
            while !done(self) {
                assert!(self.handle.changed().await, "the pipeline has ended");
            }
        };
        tokio::time::timeout(Duration::from_secs(600), waiting).await.expect("it never happened");
    }

    fn plan(&mut self, id: &str) -> Option<Arc<Plan>> {
        self.reader.current().router.plan(id).cloned()
    }

    fn addresses(&mut self, id: &str) -> Vec<String> {
        let plan = self.plan(id).expect("a route");
        let upstream = self.reader.current().upstream(&plan).expect("an upstream").clone();
        upstream.endpoints.iter().map(|endpoint| endpoint.addr.to_string()).collect()
    }
}

fn route(host: &str) -> Value {
    json!({"uri": "/", "upstream": {"nodes": {host: 1}}})
}

#[tokio::test]
async fn what_is_written_is_published() {
    let mut bench = start();
    bench.put(Kind::Route, "1", route("10.0.0.1:80")).await;
    bench.settle().await;
    assert_eq!(bench.addresses("1"), ["10.0.0.1:80"]);
    bench.put(Kind::Route, "1", route("10.0.0.2:80")).await;
    bench.put(Kind::Consumer, "ann", json!({"username": "ann", "plugins": {"key": {"key": "k"}}})).await;
    bench.settle().await;
    assert_eq!(bench.addresses("1"), ["10.0.0.2:80"]);
    let found = bench.reader.current().consumers.find("key", b"k").map(|found| found.consumer.name.clone());
    assert_eq!(found.as_deref(), Some("ann"));
    bench.delete(Kind::Route, "1").await;
    bench.settle().await;
    assert!(bench.plan("1").is_none());
    let report = bench.handle.report();
    assert_eq!(report.revision, bench.reader.current().revision);
    assert!(report.counts.contains(&(Kind::Consumer, 1)) && report.published.is_some());
}

#[tokio::test]
async fn what_is_compiled_rests_and_is_still_compiled_anew_when_something_it_needs_changes() {
    let mut bench = start();
    bench.names.set("a.test", Some("10.0.0.1"));
    bench.put(Kind::Upstream, "u", json!({"nodes": {"10.0.0.7:80": 1}})).await;
    bench.put(Kind::Route, "1", route("a.test:80")).await;
    bench.put(Kind::Route, "2", json!({"uri": "/2", "upstream_id": "u"})).await;
    bench.settle().await;
    let awake = async |bench: &Bench| {
        let look = bench.handle.look().await.unwrap();
        look.desired.iter().filter(|entry| entry.at_rest().is_some()).count()
    };
    assert_eq!(awake(&bench).await, 0);
    bench.delete(Kind::Upstream, "u").await;
    bench.settle().await;
    assert!(bench.plan("2").unwrap().upstream().is_err());
    bench.put(Kind::Upstream, "u", json!({"nodes": {"10.0.0.8:80": 1}})).await;
    bench.names.set("a.test", Some("10.0.0.2"));
    bench.put(Kind::Route, "1", json!({"uri": 5})).await;
    bench.settle().await;
    bench.until(|bench| bench.addresses("1") == ["10.0.0.2:80"]).await;
    assert_eq!(bench.addresses("2"), ["10.0.0.8:80"]);
    assert_eq!(awake(&bench).await, 0);
}

#[tokio::test]
async fn very_many_come_to_rest_without_another_change() {
    let (store, names) = (Arc::new(Memory::default()), Arc::new(Table::default()));
    let steps = (0..1500).map(|number| Step::Put {
        key: Key::new(Kind::Route, number.to_string()),
        value: route("10.0.0.1:80"),
        ttl: None,
    });
    let steps: Vec<Step> = steps.collect();
    store.write(Box::new(move |_| Ok(steps.clone()))).await.unwrap();
    let mut bench = start_with(store, names);
    bench.settle().await;
    for _ in 0..1000 {
        let look = bench.handle.look().await.unwrap();
        assert_eq!(look.desired.len(), 1500);
        if look.desired.iter().all(|entry| entry.at_rest().is_none()) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("some are still awake");
}

#[tokio::test]
async fn what_cannot_be_used_is_reported_and_the_rest_goes_on() {
    let mut bench = start();
    bench.put(Kind::Route, "1", route("10.0.0.1:80")).await;
    bench.settle().await;
    bench.put(Kind::Route, "1", json!({"uri": 5})).await;
    bench.put(Kind::Route, "2", json!({"uri": "/", "plugins": {"no-such": {}}})).await;
    bench.put(Kind::Route, "3", route("10.0.0.3:80")).await;
    bench.settle().await;
    assert_eq!(
        (bench.addresses("1"), bench.addresses("3")),
        (vec!["10.0.0.1:80".into()], vec!["10.0.0.3:80".into()])
    );
    let report = bench.handle.report();
    let rejected: Vec<_> = report.rejected.iter().map(|r| (r.key.to_string(), r.kept())).collect();
    assert_eq!(rejected, [("routes/1".to_owned(), true), ("routes/2".to_owned(), false)]);
    assert!(!report.rejected[1].invalid.reason.is_empty());
    bench.put(Kind::Route, "1", route("10.0.0.4:80")).await;
    bench.delete(Kind::Route, "2").await;
    bench.settle().await;
    assert_eq!(bench.addresses("1"), ["10.0.0.4:80"]);
    assert!(bench.handle.report().rejected.is_empty());
}

#[tokio::test]
async fn lists_of_plugins_count_at_once() {
    let mut bench = start();
    bench.put(Kind::Route, "1", json!({"uri": "/", "plugins": {"cors": {}, "log": {}}})).await;
    bench.settle().await;
    let names = |bench: &mut Bench| {
        let chain = bench.plan("1").expect("a route").chain.clone();
        chain.map(|chain| chain.names()).unwrap_or_default()
    };
    assert_eq!(names(&mut bench), ["cors", "log"]);
    let wrong = |bench: &Bench| {
        let report = bench.handle.report();
        report.rejected.iter().map(|one| (one.invalid.reason.clone(), one.kept())).collect::<Vec<_>>()
    };
    bench.handle.reload_plugins(Some(vec!["cors".to_owned()]));
    bench.until(|bench| !wrong(bench).is_empty()).await;
    assert_eq!(wrong(&bench), [("log is not listed".to_owned(), true)]);
    assert_eq!(names(&mut bench), ["cors", "log"], "never without a plugin that it names");
    // The store's list goes before the boot file's.
    bench.store.put_plugins(vec!["cors".to_owned(), "log".to_owned()]).await.unwrap();
    bench.settle().await;
    assert_eq!((wrong(&bench).len(), names(&mut bench)), (0, vec!["cors", "log"]));
    bench.put(Kind::Route, "2", json!({"uri": "/2", "plugins": {"limit": {}}})).await;
    bench.settle().await;
    assert!(bench.plan("2").is_none());
    assert_eq!(wrong(&bench), [("limit is not listed".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn the_first_snapshot_knows_the_names() {
    let (store, names) = (Arc::new(Memory::default()), Arc::new(Table::default()));
    names.set("a.test", Some("10.0.0.1"));
    for (id, host) in [("1", "a.test:80"), ("2", "none.test:80")] {
        store.put(Key::new(Kind::Route, id), route(host), Expect::Any, None).await.unwrap();
    }
    let mut bench = start_with(store, names);
    bench.until(|bench| bench.handle.report().compiles == 1).await;
    assert_eq!(bench.addresses("1"), ["10.0.0.1:80"]);
    assert_eq!(bench.addresses("2"), [""; 0]);
    let failing = &bench.handle.report().failing_names;
    assert_eq!(failing[..], [("none.test".to_owned(), "no such name".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn addresses_follow_their_names_and_outlive_failures() {
    let mut bench = start();
    bench.names.set("a.test", Some("10.0.0.1"));
    bench.put(Kind::Route, "1", route("A.test:80")).await;
    bench.until(|bench| bench.plan("1").is_some() && !bench.addresses("1").is_empty()).await;
    assert_eq!(bench.addresses("1"), ["10.0.0.1:80"]);
    let began = tokio::time::Instant::now();
    bench.names.set("a.test", Some("10.0.0.3 10.0.0.2"));
    bench.until(|bench| bench.addresses("1").len() == 2).await;
    assert_eq!(bench.addresses("1"), ["10.0.0.2:80", "10.0.0.3:80"]);
    assert!(began.elapsed() <= Duration::from_secs(5), "after the time to live");
    bench.names.set("a.test", None);
    bench.until(|bench| !bench.handle.report().failing_names.is_empty()).await;
    assert_eq!(bench.addresses("1"), ["10.0.0.2:80", "10.0.0.3:80"]);
    bench.names.set("a.test", Some("10.0.0.4"));
    bench.until(|bench| bench.handle.report().failing_names.is_empty()).await;
    bench.until(|bench| bench.addresses("1") == ["10.0.0.4:80"]).await;
    // An unused name is not looked up.
    bench.delete(Kind::Route, "1").await;
    bench.settle().await;
    bench.names.set("a.test", None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(bench.handle.report().failing_names.is_empty());
}

#[tokio::test]
async fn old_snapshots_are_freed_here_once_workers_let_go() {
    let mut bench = start();
    for n in 0..5 {
        bench.put(Kind::Route, "1", route(&format!("10.0.0.{n}:80"))).await;
        bench.settle().await;
    }
    assert!(bench.handle.report().kept_snapshots >= 2, "the reader holds the first");
    bench.reader.current();
    bench.until(|bench| bench.handle.report().kept_snapshots == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_live_and_leaves_the_other_plans_alone() {
    let mut bench = start();
    for id in 0..1000 {
        bench
            .put(Kind::Route, &id.to_string(), json!({"uri": format!("/{id}"), "plugins": {"cors": {}}}))
            .await;
    }
    bench.settle().await;
    let other = bench.plan("999").unwrap();
    for id in 0..200 {
        bench.put(Kind::Route, &id.to_string(), route(&format!("10.0.1.{id}:80"))).await;
        bench.settle().await;
        assert_eq!(bench.addresses(&id.to_string()), [format!("10.0.1.{id}:80")]);
    }
    assert!(Arc::ptr_eq(&bench.plan("999").unwrap(), &other));
}

#[tokio::test]
async fn metadata_reaches_what_is_served_in_an_older_form() {
    let mut bench = start();
    bench.put(Kind::PluginMetadata, "cors", json!({"a": 1})).await;
    bench.put(Kind::Route, "1", json!({"uri": "/", "plugins": {"cors": {}}})).await;
    bench.settle().await;
    // The new form is refused, and does not name the plugin any more.
    bench.put(Kind::Route, "1", json!({"uri": "/", "plugins": {"limit": {"bad": true}}})).await;
    bench.settle().await;
    assert!(bench.handle.report().rejected[0].kept());
    bench.put(Kind::PluginMetadata, "cors", json!({"a": 2})).await;
    bench.settle().await;
    let chain = bench.plan("1").and_then(|plan| plan.chain.clone()).expect("its older form");
    let text = &support::shown(&chain)[0].text;
    assert!(text.contains(r#"with {"a":2}"#), "{text}");
}
