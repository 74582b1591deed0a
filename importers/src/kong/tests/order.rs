//! The order of routes, in the real router, against Kong's documented rules.

use std::sync::Arc;

use proptest::prelude::*;
use sdk::expr::Expr;
use sdk::testing::Probe;
use sdk::{Method, RouteInfo};
use serde_json::{Value, json};
use snapshot::plan::Plan;
use snapshot::router::{Mode, Options, Router, Rule};

use super::*;

/// A route of a file.
#[derive(Debug, Clone)]
struct Spec {
    hosts: Vec<&'static str>,
    paths: Vec<&'static str>,
    methods: Vec<&'static str>,
    headers: Vec<(&'static str, &'static str)>,
    regex_priority: i64,
}

/// A request.
#[derive(Debug, Clone)]
struct Request {
    method: &'static str,
    host: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
}

const HOSTS: [&str; 6] = ["a.com", "b.a.com", "*.a.com", "*.b.a.com", "x.*", "c.com"];
const PATHS: [&str; 10] =
    ["/", "/a", "/a/", "/a/b", "/ab", "/b/a", "~/a/\\d+", "~/a", "~/(?<x>a|b)/b$", "~/[ab]+"];
const METHODS: [&str; 3] = ["GET", "POST", "PURGE"];
const HEADERS: [(&str, &str); 4] = [("x-v", "1"), ("x-v", "~*^[12]"), ("x-w", "One"), ("x-u", "u")];

fn file(specs: &[Spec], version: &str) -> String {
    let routes: Vec<Value> = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| {
            let headers: Map<String, Value> =
                spec.headers.iter().map(|(name, value)| ((*name).to_owned(), json!([value]))).collect();
            json!({
                "name": format!("r{index}"),
                "hosts": spec.hosts,
                "paths": spec.paths,
                "methods": spec.methods,
                "headers": headers,
                "regex_priority": spec.regex_priority,
            })
        })
        .collect();
    let services = json!([{"name": "s", "url": "http://10.0.0.1", "routes": routes}]);
    json!({"_format_version": version, "services": services}).to_string()
}

/// A router with the routes of an import, which are named after the file's.
fn router(import: &Import) -> Router {
    let mut router = Router::new(Mode::HostUri, Options::default());
    for resource in import.resources.iter().filter(|resource| resource.key.kind == model::Kind::Route) {
        let value = &resource.value;
        let texts = |one: &str, many: &str| -> Box<[Arc<str>]> {
            let one = value[one].as_str().map(Arc::from);
            one.into_iter()
                .chain(value[many].as_array().into_iter().flatten().map(|text| text.as_str().unwrap().into()))
                .collect()
        };
        let methods = value["methods"].as_array().into_iter().flatten();
        let methods = methods.map(|name| Method::from_bytes(name.as_str().unwrap().as_bytes()).bit()).sum();
        let rule = Rule {
            id: resource.key.id.as_str().into(),
            uris: texts("uri", "uris"),
            hosts: texts("host", "hosts"),
            methods,
            remote_addrs: Box::default(),
            vars: value.get("vars").map(|vars| Box::new(Expr::compile(vars).unwrap())),
            code: None,
            priority: value["priority"].as_i64().unwrap_or(0),
        };
        let name = value["name"].as_str().unwrap();
        let plan = Plan::new(RouteInfo::new(
            &resource.key.id,
            sdk::RouteNames { name: name.into(), ..Default::default() },
        ));
        router.insert(Arc::new(rule), Arc::new(plan));
    }
    router
}

fn winner(router: &Router, request: &Request) -> Option<String> {
    let mut headers = vec![("Host", request.host)];
    headers.extend(&request.headers);
    let mut probe = Probe::request(request.method, request.path, &headers);
    let mut x = probe.exchange();
    let plan = router.find(&mut x).plan()?;
    Some(plan.info.name.to_string())
}

/// Kinds of conditions, plain hosts, headers, expressions, their priority, the length of the path.
type Weight = (usize, bool, usize, bool, i64, usize);

/// Kong's documentation of the router `traditional_compatible`: routes are sorted by the number of kinds of
/// conditions, then those with plain hosts alone go first, those with more headers, those with regular
/// expressions, by `regex_priority`, and those with longer paths; then by age. Each path counts by itself.
fn model_winner(specs: &[Spec], request: &Request) -> Option<String> {
    let mut best: Option<(Weight, usize)> = None;
    for (index, spec) in specs.iter().enumerate() {
        let paths: Vec<Option<&str>> =
            if spec.paths.is_empty() { vec![None] } else { spec.paths.iter().copied().map(Some).collect() };
        for path in paths {
            if !matches(spec, path, request) {
                continue;
            }
            let regex = path.is_some_and(|path| path.starts_with('~'));
            let kinds =
                [!spec.hosts.is_empty(), !spec.methods.is_empty(), !spec.headers.is_empty(), path.is_some()];
            let weight = (
                kinds.into_iter().filter(|kind| *kind).count(),
                !spec.hosts.is_empty() && !spec.hosts.iter().any(|host| host.contains('*')),
                spec.headers.len(),
                regex,
                if regex { spec.regex_priority } else { 0 },
                if regex { 0 } else { path.map_or(0, str::len) },
            );
            if best.is_none_or(|(other, _)| weight > other) {
                best = Some((weight, index));
            }
        }
    }
    best.map(|(_, index)| format!("r{index}"))
}

fn matches(spec: &Spec, path: Option<&str>, request: &Request) -> bool {
    let host = |host: &&str| match (host.strip_prefix('*'), host.strip_suffix('*')) {
        (Some(suffix), _) => request.host.len() > suffix.len() && request.host.ends_with(suffix),
        (_, Some(prefix)) => request.host.len() > prefix.len() && request.host.starts_with(prefix),
        _ => **host == *request.host,
    };
    let header = |(name, value): &(&str, &str)| {
        let found = request.headers.iter().find(|(other, _)| other == name);
        found.is_some_and(|(_, found)| match value.strip_prefix("~*") {
            Some(_) => found.starts_with(['1', '2']),
            None => found.eq_ignore_ascii_case(value),
        })
    };
    // The expressions of this test, by hand.
    let path_matches = |path: &str| match path {
        "~/a/\\d+" => request
            .path
            .strip_prefix("/a/")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())),
        "~/(?<x>a|b)/b$" => ["/a/b", "/b/b"].contains(&request.path),
        "~/[ab]+" => request.path.starts_with("/a") || request.path.starts_with("/b"),
        path => request.path.starts_with(path.trim_start_matches('~')),
    };
    (spec.hosts.is_empty() || spec.hosts.iter().any(host))
        && (spec.methods.is_empty() || spec.methods.contains(&request.method))
        && spec.headers.iter().all(header)
        && path.is_none_or(path_matches)
}

fn some_of<T: Clone + std::fmt::Debug + 'static>(
    list: &'static [T],
    most: usize,
) -> impl Strategy<Value = Vec<T>> {
    prop::sample::subsequence(list.to_vec(), 0..=most)
}

fn spec() -> impl Strategy<Value = Spec> {
    let headers = some_of(&HEADERS, 2).prop_map(|mut headers| {
        headers.dedup_by_key(|(name, _)| *name);
        headers
    });
    (some_of(&HOSTS, 2), some_of(&PATHS, 3), some_of(&METHODS, 2), headers, 0..3_i64)
        .prop_map(|(hosts, paths, methods, headers, regex_priority)| Spec {
            hosts,
            paths,
            methods,
            headers,
            regex_priority,
        })
        .prop_filter("Kong refuses a route without conditions", |spec| {
            !(spec.hosts.is_empty()
                && spec.paths.is_empty()
                && spec.methods.is_empty()
                && spec.headers.is_empty())
        })
}

/// Requests near the routes: all hosts and paths that make a difference.
fn requests() -> Vec<Request> {
    let mut requests = Vec::new();
    for host in ["a.com", "b.a.com", "d.b.a.com", "x.org", "c.com", "z.net"] {
        for path in ["/", "/a", "/a/", "/a/1", "/a/b", "/a/bc", "/ab", "/abc", "/b/a", "/b/b", "/c"] {
            for method in METHODS {
                for headers in [vec![], vec![("x-v", "1")], vec![("x-v", "2"), ("x-w", "ONE"), ("x-u", "u")]]
                {
                    requests.push(Request { method, host, path, headers });
                }
            }
        }
    }
    requests
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn the_same_route_wins_as_in_kong(specs in prop::collection::vec(spec(), 1..9)) {
        let import = import(&file(&specs, "3.0"));
        prop_assert_eq!(&import.findings, &vec![]);
        let router = router(&import);
        for request in requests() {
            prop_assert_eq!(winner(&router, &request), model_winner(&specs, &request), "{:?}", request);
        }
    }
}

#[test]
fn five_thousand_routes_stay_single() {
    let routes: Vec<Value> =
        (0..5000).map(|n| json!({"name": format!("r{n}"), "paths": [format!("/p{n}")]})).collect();
    let services = json!([{"name": "s", "url": "http://10.0.0.1", "routes": routes}]);
    let import = import(&json!({"_format_version": "3.0", "services": services}).to_string());
    assert_eq!(import.resources.len(), 5001);
    let found =
        winner(&router(&import), &Request { method: "GET", host: "a", path: "/p4321/x", headers: vec![] });
    assert_eq!(found.as_deref(), Some("r4321"));
}
