//! The control plane's cost of a change among 100,000 routes, and among 10,000 consumers.
//!
//! `cargo bench -p snapshot --bench compile`. Goal: below 5 ms for one changed route.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use model::{Desired, Key, Kind};
use serde_json::json;
use snapshot::{Compiler, Touched};
use support::{Table, entry};

/// The gateway's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUTES: usize = 100_000;

/// Half with an inline upstream, half with one of a thousand shared ones; all with plugins of a
/// service.
fn route(i: usize, version: usize) -> std::sync::Arc<model::Entry> {
    let mut value = json!({
        "uri": format!("/api/v1/service{}/resource{i}/*", i % 1000),
        "service_id": (i % 100).to_string(),
        "plugins": {"limit": {"n": version}, "cors": {}},
    });
    match i % 2 {
        0 => value["upstream"] = json!({"nodes": {"10.0.0.1:80": 1, "10.0.0.2:80": 2}}),
        _ => value["upstream_id"] = json!((i % 1000).to_string()),
    }
    entry(Kind::Route, &i.to_string(), value)
}

fn everything() -> Desired {
    let mut desired = Desired::default();
    for i in 0..100 {
        desired.put(entry(Kind::Service, &i.to_string(), json!({"plugins": {"log": {}}})));
    }
    for i in 0..1000 {
        let nodes = json!({"nodes": {"shared.test:80": 1, "10.0.0.3:80": 1}});
        desired.put(entry(Kind::Upstream, &i.to_string(), nodes));
    }
    for i in 0..ROUTES {
        desired.put(route(i, 0));
    }
    desired
}

fn names(last: u8) -> Table {
    let address = vec![IpAddr::from([10, 1, 0, last])];
    Table([("shared.test".to_owned(), address.clone()), ("inside.test".to_owned(), address)].into())
}

fn changes(c: &mut Criterion) {
    let mut desired = everything();
    let began = Instant::now();
    let mut compiler: Compiler = support::compiler();
    let mut current = compiler.compile(&desired, &Touched::all(), &names(1), 0);
    println!("all 100,000 at once: {:?}", began.elapsed());

    let mut i = 0;
    let mut group = c.benchmark_group("100000-routes");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    group.bench_function("one-route", |b| {
        b.iter(|| {
            i += 1;
            let id = (i * 7919) % ROUTES;
            desired.put(route(id, i));
            let touched = Touched::from_iter([Key::new(Kind::Route, id.to_string())]);
            // The previous snapshot stays published until the next one is.
            current = black_box(compiler.compile(&desired, &touched, &names(1), 0));
        });
    });
    group.bench_function("one-upstream-of-50-routes", |b| {
        b.iter(|| {
            i += 1;
            let id = (2 * (i % 500) + 1).to_string();
            let nodes = json!({"nodes": {"10.0.0.3:80": i % 7}});
            desired.put(entry(Kind::Upstream, &id, nodes));
            let touched = Touched::from_iter([Key::new(Kind::Upstream, id)]);
            current = black_box(compiler.compile(&desired, &touched, &names(1), 0));
        });
    });
    group.bench_function("one-service-of-1000-routes", |b| {
        b.iter(|| {
            i += 1;
            let id = (i % 100).to_string();
            desired.put(entry(Kind::Service, &id, json!({"plugins": {"log": {"n": i}}})));
            let touched = Touched::from_iter([Key::new(Kind::Service, id)]);
            current = black_box(compiler.compile(&desired, &touched, &names(1), 0));
        });
    });
    group.finish();
    // Routes with inline upstreams that all use the same host name.
    let inside = |i: usize| {
        let value = json!({"uri": format!("/inside/{i}"), "upstream": {"nodes": {"inside.test:80": 1}}});
        entry(Kind::Route, &i.to_string(), value)
    };
    let all_again = everything();
    let began = Instant::now();
    drop(std::mem::replace(&mut current, compiler.compile(&all_again, &Touched::all(), &names(1), 0)));
    println!("all 100,000 again: {:?}", began.elapsed());
    let host = |name: &str| Touched { hosts: [name.to_owned()].into(), ..Touched::default() };
    let began = Instant::now();
    drop(std::mem::replace(&mut current, compiler.compile(&all_again, &host("shared.test"), &names(2), 0)));
    println!("an address shared by 1,000 upstreams of 50,000 routes: {:?}", began.elapsed());
    let mut desired = everything();
    (0..ROUTES / 2).for_each(|i| _ = desired.put(inside(2 * i)));
    drop(std::mem::replace(&mut current, compiler.compile(&desired, &Touched::all(), &names(2), 0)));
    let began = Instant::now();
    drop(std::mem::replace(&mut current, compiler.compile(&desired, &host("inside.test"), &names(3), 0)));
    println!("an address shared by 50,000 inline upstreams: {:?}", began.elapsed());
}

/// Half with their own key, half with a credential.
fn consumer_changes(c: &mut Criterion) {
    const CONSUMERS: usize = 10_000;
    let mut desired = Desired::default();
    let key = |i: usize, version: usize| json!({"key": {"key": format!("key-{i}-{version}")}});
    let consumer = |i: usize, version: usize| {
        let plugins = if i.is_multiple_of(2) { key(i, version) } else { json!({}) };
        let name = format!("user{i}");
        entry(
            Kind::Consumer,
            &name,
            json!({"username": name, "plugins": plugins, "desc": version.to_string()}),
        )
    };
    for i in 0..CONSUMERS {
        desired.put(consumer(i, 0));
        if i % 2 == 1 {
            let value = json!({"plugins": key(i, 0)});
            desired.put(entry(Kind::Credential, &format!("user{i}/credentials/one"), value));
        }
    }
    let mut compiler: Compiler = support::compiler();
    let mut current = compiler.compile(&desired, &Touched::all(), &names(1), 0);
    assert!(current.rejected.is_empty(), "{:?}", current.rejected);
    let mut i = 0;
    let mut group = c.benchmark_group("10000-consumers");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    group.bench_function("one-consumer", |b| {
        b.iter(|| {
            i += 1;
            let changed = consumer((i * 7919) % CONSUMERS, i);
            let touched = Touched::from_iter([changed.key.clone()]);
            desired.put(changed);
            current = black_box(compiler.compile(&desired, &touched, &names(1), 0));
        });
    });
    group.finish();
}

criterion_group!(benches, changes, consumer_changes);
criterion_main!(benches);
