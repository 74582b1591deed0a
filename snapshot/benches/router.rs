//! The time of a search and of a change among 100,000 rules.
//!
//! `cargo bench -p snapshot --bench router`
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark"
)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use sdk::engine::Messages;
use sdk::exchange::Exchange;
use sdk::testing::Probe;
use snapshot::Plan;
use snapshot::router::{Mode, Options, Router, Rule};

const RULES: usize = 100_000;
/// Requests a benchmark cycles through, so that they do not stay in the nearest cache.
const REQUESTS: usize = 1 << 16;

fn rule(id: usize, uri: String, host: Option<String>) -> (Arc<Rule>, Arc<Plan>) {
    let id = format!("{id:06}");
    let plan = Plan::new(sdk::RouteInfo::new(&id, Default::default()));
    let rule = Rule {
        id: id.into(),
        uris: [uri.into()].into(),
        hosts: host.into_iter().map(Into::into).collect(),
        methods: 0,
        remote_addrs: Box::default(),
        vars: None,
        code: None,
        priority: 0,
    };
    (Arc::new(rule), Arc::new(plan))
}

/// Six in ten exact, three in ten prefixes, one in ten under its own host.
fn mixed(i: usize) -> (Arc<Rule>, Arc<Plan>) {
    match i % 10 {
        0..6 => rule(i, format!("/api/v1/service{}/resource{i}", i % 1000), None),
        6..9 => rule(i, format!("/files/tenant{}/{i}/*", i % 1000), None),
        _ => rule(
            i,
            "/*".into(),
            Some(format!("{}tenant{i}.example.com", if i % 20 == 9 { "*." } else { "" })),
        ),
    }
}

/// Host and path that match the rule of this number.
fn request_of(i: usize) -> (String, String) {
    match i % 10 {
        0..6 => ("example.com".into(), format!("/api/v1/service{}/resource{i}", i % 1000)),
        6..9 => ("example.com".into(), format!("/files/tenant{}/{i}/a/b", i % 1000)),
        _ => {
            (format!("{}tenant{i}.example.com", if i % 20 == 9 { "www." } else { "" }), "/index.html".into())
        }
    }
}

fn requests(request: impl Fn(usize) -> (String, String)) -> Vec<(String, String)> {
    (0..REQUESTS).map(request).collect()
}

/// Writes host and path into a reused head, as the decoder does.
fn fill(messages: &mut Messages, host: &str, path: &str) {
    let head = &mut messages.request;
    head.clear();
    head.path_span = head.fields.intern(path.as_bytes());
    head.host_span = head.fields.intern(host.as_bytes());
}

fn search(c: &mut Criterion, name: &str, router: &Router, found: bool, requests: &[(String, String)]) {
    let Probe { client, consumers, world, .. } = Probe::default();
    let mut messages = Messages::default();
    let mut next = 0;
    c.bench_function(name, |b| {
        b.iter(|| {
            next = (next + 1) % requests.len();
            let (host, path) = &requests[next];
            fill(&mut messages, host, path);
            let mut x = Exchange::new(&mut messages, &client, &consumers, &world);
            let plan = router.find(&mut x).plan();
            assert_eq!(plan.is_some(), found);
            black_box(plan);
        });
    });
}

fn benches(c: &mut Criterion) {
    let mut router = Router::new(Mode::HostUri, Options::default());
    for i in 0..RULES {
        let (rule, plan) = mixed(i);
        router.insert(rule, plan);
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let order: Vec<usize> = std::iter::repeat_with(|| rng.usize(..RULES)).take(REQUESTS).collect();
    search(
        c,
        "find/nothing (the harness alone)",
        &Router::new(Mode::Uri, Options::default()),
        false,
        &requests(|i| request_of(order[i])),
    );
    search(c, "find/mixed", &router, true, &requests(|i| request_of(order[i])));
    for (name, kind) in [("exact", 0), ("prefix", 6), ("host", 8), ("wildcard host", 9)] {
        let nth = |i: usize| match kind {
            8 => order[i] / 20 * 20 + 19,
            9 => order[i] / 20 * 20 + 9,
            kind => order[i] / 10 * 10 + kind,
        };
        search(c, &format!("find/{name}"), &router, true, &requests(|i| request_of(nth(i))));
    }
    // Hostile requests: paths that go deep into the tree, and long ones.
    search(
        c,
        "find/none, deep",
        &router,
        false,
        &requests(|i| {
            let n = order[i] / 10 * 10 + 6;
            ("example.com".into(), format!("/files/tenant{}/{n}x", n % 1000))
        }),
    );
    search(
        c,
        "find/none, 4 KiB",
        &router,
        false,
        &requests(|i| ("example.com".into(), format!("/api/v1/{}{i}", "a/".repeat(2048)))),
    );
    // A million distinct paths: with the longest prefixes that many rules share, and with suffixes
    // that no rule has.
    let million =
        |path: fn(usize) -> String| (0..1_000_000).map(move |i| ("example.com".into(), path(i))).collect();
    let shared: Vec<_> = million(|i| format!("/files/tenant{}/{}", i % 1000, i * 7919));
    search(c, "find/none, a million that share beginnings", &router, false, &shared);
    let strange: Vec<_> = million(|i| format!("/api/v1/service{}/resource{i}/{i:x}", i % 1000));
    search(c, "find/none, a million longer than any rule", &router, false, &strange);
    // Patterns nested as deep as paths are, each a prefix of every request, and none for its
    // method.
    let mut nested = Router::new(Mode::HostUri, Options::default());
    for depth in 1..=64 {
        let (rule, plan) = rule(depth, format!("{}*", "/a".repeat(depth)), None);
        nested.insert(Arc::new(Rule { methods: wire::Method::Post.bit(), ..Rule::clone(&rule) }), plan);
    }
    let deep = requests(|i| ("example.com".into(), format!("{}/{i}", "/a".repeat(64))));
    search(c, "find/none, 64 nested patterns", &nested, false, &deep);
    let mut at = 0;
    c.bench_function("change/one of 100,000 in a copy", |b| {
        b.iter_batched(
            || {
                at = (at + 7919) % RULES;
                (router.clone(), mixed(at))
            },
            |(mut copy, (rule, plan))| {
                copy.insert(rule, plan);
                copy
            },
            BatchSize::SmallInput,
        );
    });
    c.bench_function("change/one plan of 100,000 in a copy", |b| {
        b.iter_batched(
            || {
                at = (at + 7919) % RULES;
                (router.clone(), mixed(at))
            },
            |(mut copy, (rule, plan))| {
                copy.replace(&rule.id, plan);
                copy
            },
            BatchSize::SmallInput,
        );
    });
    c.bench_function("change/build 100,000", |b| {
        let rules: Vec<_> = (0..RULES).map(mixed).collect();
        b.iter(|| {
            let mut router = Router::new(Mode::HostUri, Options::default());
            rules.iter().for_each(|(rule, plan)| router.insert(rule.clone(), plan.clone()));
            router
        });
    });
}

criterion_group! {
    name = all;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    targets = benches
}
criterion_main!(all);
