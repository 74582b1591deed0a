//! Envoy's choice of a route against the router's, over random configurations.
//!
//! Both sides are small models of documented rules: Envoy's of `VirtualHost.domains` and `Route.match`, the router's
//! of docs/routing.md. Only the importer stands between them.

use serde_json::{Value, json};

use super::import;

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }
}

struct Request<'t> {
    host: &'t str,
    path: &'t str,
    header: Option<&'t str>,
    method: &'t str,
    /// A proxy in front ended TLS.
    tls: bool,
}

const DOMAINS: [&str; 9] =
    ["a.com", "b.a.com", "*.a.com", "*.com", "a.*", "b.*", "*", "a.com:80", "b.a.com:*"];
const HOSTS: [&str; 9] =
    ["a.com", "b.a.com", "c.b.a.com", "x.com", "a.org", "b.org", "other", "a.com:80", "b.a.com:81"];
const PATHS: [&str; 7] = ["/", "/a", "/a/", "/a/b", "/ab", "/b", "/a/b/c"];

fn configuration(numbers: &mut Numbers) -> Value {
    let mut free: Vec<&str> = DOMAINS.to_vec();
    let mut hosts = Vec::new();
    for host in 0..1 + numbers.below(4) {
        let mut domains = Vec::new();
        for _ in 0..1 + numbers.below(2) {
            if !free.is_empty() {
                domains.push(free.swap_remove(numbers.below(free.len())));
            }
        }
        let mut routes = Vec::new();
        for route in 0..1 + numbers.below(6) {
            let mut condition = json!({numbers.of(&["prefix", "path", "prefix", "path_separated_prefix"]): numbers.of(&PATHS)});
            if condition.get("path_separated_prefix") == Some(&json!("/")) {
                condition = json!({"prefix": "/"});
            }
            if let Some(path) = condition.get("path_separated_prefix").and_then(Value::as_str) {
                condition = json!({"path_separated_prefix": path.trim_end_matches('/')});
            }
            match numbers.below(4) {
                0 => {
                    condition["headers"] =
                        json!([{"name": "x-a", "string_match": {"exact": numbers.of(&["1", "2"])}}])
                }
                1 => condition["headers"] = json!([{"name": ":method", "string_match": {"exact": "POST"}}]),
                _ => {}
            }
            let name = format!("h{host}-r{route}");
            routes.push(json!({"name": name, "match": condition, "route": {"cluster": "c"}}));
        }
        let tls = numbers.of(&["ALL", "NONE", "NONE"]);
        hosts.push(
            json!({"name": format!("h{host}"), "domains": domains, "require_tls": tls, "routes": routes}),
        );
    }
    json!({"static_resources": {
        "clusters": [{"name": "c", "load_assignment": {"endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}}]}]}}],
        "listeners": [{
            "address": {"socket_address": {"address": "0.0.0.0", "port_value": 80}},
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "use_remote_address": numbers.below(2) == 0,
                    "route_config": {"virtual_hosts": hosts},
                    "http_filters": [{"name": "envoy.filters.http.router"}],
                },
            }]}],
        }],
    }})
}

/// Envoy: the name of the first route of the best virtual host that matches, or that of the redirect to HTTPS.
fn of_envoy(configuration: &Value, request: &Request<'_>) -> Option<String> {
    let manager =
        configuration.pointer("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config")?;
    let rank = |domain: &str| {
        let length = domain.len();
        match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
            (None, None) if domain == request.host => Some((3, length)),
            (Some(suffix), None) if request.host.len() > suffix.len() && request.host.ends_with(suffix) => {
                Some((2, length))
            }
            (None, Some(prefix)) if request.host.len() > prefix.len() && request.host.starts_with(prefix) => {
                Some((1, length))
            }
            _ if domain == "*" => Some((0, length)),
            _ => None,
        }
    };
    let hosts = manager.pointer("/route_config/virtual_hosts")?.as_array()?;
    let best = hosts.iter().filter_map(|host| {
        let domains = host["domains"].as_array()?.iter().filter_map(Value::as_str);
        Some((domains.filter_map(rank).max()?, host))
    });
    let (_, host) = best.max_by_key(|(rank, _)| *rank)?;
    let knows_tls = manager["use_remote_address"] == false && request.tls;
    if host["require_tls"] == "ALL" && !knows_tls {
        return Some("require-tls".to_owned());
    }
    let matches = |condition: &Value| {
        let path = request.path;
        let by_path =
            match condition.as_object().unwrap().iter().find(|(name, _)| *name != "headers").unwrap() {
                (kind, text) if kind == "prefix" => path.starts_with(text.as_str().unwrap()),
                (kind, text) if kind == "path" => path == text.as_str().unwrap(),
                (_, text) => {
                    let rest = path.strip_prefix(text.as_str().unwrap());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                }
            };
        let by_header = condition.get("headers").is_none_or(|headers| {
            let wanted = headers[0]["string_match"]["exact"].as_str();
            if headers[0]["name"] == ":method" {
                wanted == Some(request.method)
            } else {
                wanted == request.header
            }
        });
        by_path && by_header
    };
    let route = host["routes"].as_array()?.iter().find(|route| matches(&route["match"]))?;
    route["name"].as_str().map(str::to_owned)
}

/// The router: the name of the route it finds; `None` is 404.
fn of_router(import: &crate::Import, request: &Request<'_>) -> Option<String> {
    let bare = request.host.split(':').next().unwrap();
    let strings = |value: &Value, one: &str, many: &str| -> Vec<String> {
        let all =
            value.get(one).into_iter().chain(value.get(many).and_then(Value::as_array).into_iter().flatten());
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let routes: Vec<_> =
        import.resources.iter().filter(|resource| resource.key.kind == model::Kind::Route).collect();
    let mut found = Vec::new();
    for route in routes {
        let hosts = strings(&route.value, "host", "hosts");
        let tree = if hosts.is_empty() {
            Some((0, 0))
        } else {
            let of = |host: &String| match host.strip_prefix('*') {
                Some(suffix) => bare.ends_with(suffix).then_some((1, suffix.len())),
                None => (host == bare || (host.contains(':') && host == request.host)).then_some((2, 0)),
            };
            hosts.iter().filter_map(of).max()
        };
        let (Some(tree), true) = (tree, conditions_hold(&route.value, request)) else { continue };
        for uri in strings(&route.value, "uri", "uris") {
            let key = match uri.strip_suffix('*') {
                Some(prefix) => request.path.starts_with(prefix).then_some((0, prefix.len())),
                None => (uri == request.path).then_some((1, 0)),
            };
            let priority = route.value.get("priority").and_then(Value::as_u64).unwrap_or(0);
            if let Some(key) = key {
                found.push(((tree, key, priority), route.value.get("name").and_then(Value::as_str)));
            }
        }
    }
    let best = found.iter().map(|(rank, _)| *rank).max()?;
    let winners: Vec<_> = found.iter().filter(|(rank, _)| *rank == best).map(|(_, name)| *name).collect();
    assert!(winners.iter().all(|name| *name == winners[0]), "the order of ids must not decide: {winners:?}");
    winners[0].map(str::to_owned)
}

fn conditions_hold(route: &Value, request: &Request<'_>) -> bool {
    let methods = route.get("methods").and_then(Value::as_array);
    let by_method = methods.is_none_or(|methods| methods.iter().any(|method| method == request.method));
    let vars = route.get("vars").and_then(Value::as_array).into_iter().flatten();
    by_method && vars.into_iter().all(|term| holds(term, request))
}

fn holds(term: &Value, request: &Request<'_>) -> bool {
    let parts = term.as_array().unwrap();
    if parts[0] == "OR" {
        return parts[1..].iter().any(|term| holds(term, request));
    }
    let text = |at: usize| parts[at].as_str().unwrap_or_default();
    let after = request.host.split_once(':');
    match (text(0), text(1)) {
        ("http_x_a", "==") => request.header == Some(text(2)),
        ("http_x_forwarded_proto", "~=") => !request.tls,
        ("http_host", "!") => after.is_none(),
        ("http_host", "in") => parts[2].as_array().unwrap().iter().any(|host| host == request.host),
        // `^prefix\..`, and `^(?:name):`.
        ("http_host", "~*") => {
            let plain = text(2).replace("(?:", "").replace([')', '\\'], "");
            let plain = plain.trim_start_matches('^');
            match plain.strip_suffix(':') {
                Some(name) => after.is_some_and(|(host, _)| host == name),
                None => {
                    let prefix = &plain[..plain.len() - 1];
                    request.host.starts_with(prefix) && request.host.len() > prefix.len()
                }
            }
        }
        other => panic!("unknown condition {other:?}"),
    }
}

#[test]
fn the_router_finds_the_route_that_envoy_takes() {
    let mut numbers = Numbers(7);
    let mut taken = 0;
    for _ in 0..200 {
        let configuration = configuration(&mut numbers);
        let import = import(&configuration.to_string());
        super::assert_valid(&import, "random");
        for _ in 0..60 {
            let request = Request {
                host: numbers.of(&HOSTS),
                path: numbers.of(&["/", "/a", "/a/", "/a/b", "/a/bc", "/ab", "/abc", "/b", "/c", "/a/b/c/d"]),
                header: [None, Some("1"), Some("2")][numbers.below(3)],
                method: numbers.of(&["GET", "POST"]),
                tls: numbers.below(2) == 0,
            };
            let expected = of_envoy(&configuration, &request);
            let routes = || -> Vec<String> {
                import
                    .resources
                    .iter()
                    .map(|resource| format!("{} {}", resource.key, resource.value))
                    .collect()
            };
            let found = of_router(&import, &request);
            assert_eq!(
                found,
                expected,
                "{} {} {:?} {} {}\n{configuration:#}\n{:#?}",
                request.method,
                request.host,
                request.header,
                request.tls,
                request.path,
                routes()
            );
            taken += usize::from(found.is_some());
        }
    }
    assert!(taken > 2500, "{taken} requests found a route");
}
