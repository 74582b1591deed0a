//! The routes of the tests: to one server with plugins, to several servers with retries, and of streams.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::datagrams::{late, server};

/// Sets a header of the request and takes one away.
pub fn edits() -> Value {
    json!({"proxy-rewrite": {"headers": {"set": {"X-User": "ours"}, "remove": ["X-Secret"]}}})
}

/// Paths to one server, and the plugins of their routes.
pub fn with_plugins() -> Vec<(&'static str, Value)> {
    vec![
        ("/posted", json!({"proxy-rewrite": {"method": "POST"}})),
        ("/found", json!({"proxy-rewrite": {"method": "PROPFIND"}})),
        ("/recorded", json!({"recorder": {}})),
        ("/recorded-late", json!({"recorder": {}, "fault-injection": {"delay": {"duration": 1}}})),
        (
            "/recorded-filtered",
            json!({"recorder": {}, "response-rewrite": {"filters": [{"regex": "ok", "replace": "fine"}]}}),
        ),
        (
            "/recorded-abort",
            json!({"recorder": {}, "fault-injection": {"abort": {"http_status": 200, "body": "hello"}}}),
        ),
        (
            "/recorded-long",
            json!({"recorder": {}, "fault-injection": {"abort": {"http_status": 200, "body": "l".repeat(20_000)}}}),
        ),
        (
            "/trailers-long",
            json!({"trailers": {}, "fault-injection": {"abort": {"http_status": 200, "body": "l".repeat(20_000)}}}),
        ),
        (
            "/recorded-nothing",
            json!({"recorder": {}, "fault-injection": {"abort": {"http_status": 204, "body": "hello"}}}),
        ),
        (
            "/recorded-reset",
            json!({"recorder": {}, "fault-injection": {"abort": {"http_status": 205, "body": "hello"}}}),
        ),
        (
            "/recorded-trailers",
            json!({"trailers": {}, "fault-injection": {"abort": {"http_status": 200, "body": "hello"}}}),
        ),
        ("/recorded-empty", json!({"recorder": {}, "fault-injection": {"abort": {"http_status": 200}}})),
        (
            "/recorded-grpc",
            json!({"recorder": {}, "fault-injection": {"abort": {
                "http_status": 429,
                "body": "hello",
                "headers": {"X-One": "1", "Content-Encoding": "x", "Keep-Alive": "5"},
            }}}),
        ),
        (
            "/seen",
            json!({"proxy-rewrite": {"headers": {"set": {"X-Seen": "$server_addr $ssl_server_name $ssl_client_verify"}}}}),
        ),
        (
            "/agreed",
            json!({"fault-injection": {"abort": {
                "http_status": 200,
                "body": "$ssl_protocol, $ssl_alpn_protocol, $ssl_session_reused",
            }}}),
        ),
        (
            "/elsewhere",
            json!({"fault-injection": {"abort": {"http_status": 200, "headers": {"Alt-Svc": "clear"}}}}),
        ),
        ("/set", sets()),
        (
            "/set-abort",
            with(sets(), json!({"fault-injection": {"abort": {"http_status": 200, "body": "hi"}}})),
        ),
        (
            "/set-refuse",
            with(sets(), json!({"fault-injection": {"abort": {"http_status": 503, "body": "hi"}}})),
        ),
        ("/jack", json!({"key-auth": {}})),
        ("/edits", edits()),
        ("/edits-and-filters", with(edits(), json!({"filters": {}}))),
        ("/edits-and-sets", with(edits(), json!({"trailers": {}}))),
        ("/filled", json!({"response-rewrite": {"status_code": 200}, "filters": {}})),
        ("/looks", json!({"trailers": {}, "filters": {}})),
        ("/filters", json!({"filters": {}})),
        (
            "/filters-abort",
            json!({"filters": {}, "fault-injection": {"abort": {"http_status": 200, "body": "hey!"}}}),
        ),
    ]
}

/// Paths, and the settings of their upstreams besides two servers, of which the first is preferred.
pub fn of_two_servers() -> Vec<(&'static str, Value)> {
    let retry = |retry: Value| json!({"sluice": {"retry": retry}});
    vec![
        ("/next", json!({})),
        ("/never", json!({"retries": 0})),
        ("/five", json!({"retries": 5})),
        ("/brief", json!({"retry_timeout": 1})),
        ("/status", retry(json!({"statuses": [503]}))),
        ("/status-never", json!({"retries": 0, "sluice": {"retry": {"statuses": [503]}}})),
        ("/status-connect", retry(json!({"failures": ["connect"], "statuses": [503]}))),
        ("/status-poor", retry(json!({"statuses": [503], "budget_percent": 1, "budget_burst": 0}))),
        ("/thrice", json!({"retries": 2, "nodes": [{"host": "10.0.0.1", "port": 80, "weight": 1}]})),
        (
            "/outlier",
            json!({"sluice": {"retry": {"statuses": [429]}, "outlier": {"latency": 60, "interval": 86_400}}}),
        ),
        ("/both", json!({"retries": 0, "nodes": [{"host": "both", "port": 80, "weight": 1}]})),
        ("/status-brief", json!({"retry_timeout": 1, "sluice": {"retry": {"statuses": [503]}}})),
        ("/any", retry(json!({"statuses": [503], "any_method": true}))),
        ("/connect", retry(json!({"failures": ["connect"]}))),
        ("/closed", retry(json!({"failures": ["closed"]}))),
        ("/timeout", retry(json!({"failures": ["timeout"]}))),
        ("/per-try", retry(json!({"per_try_timeout": 0.5}))),
        ("/paused", retry(json!({"backoff": 86_400, "max_backoff": 86_400}))),
        (
            "/one-place",
            json!({"sluice": {"limits": {"connections": 1}, "retry": {"backoff": 60, "max_backoff": 60}}}),
        ),
        ("/limited", json!({"sluice": {"limits": {"retries": 0}}})),
        ("/limited-status", json!({"sluice": {"limits": {"retries": 0}, "retry": {"statuses": [503]}}})),
        ("/crowded", json!({"sluice": {"limits": {"connections": 1, "pending": 1}}})),
        ("/sticky", json!({"sluice": {"sticky": {"secret": "12345678", "name": "s"}}})),
    ]
}

/// Paths, and the settings of their upstreams besides two HTTP/2 servers, of which the first is preferred.
pub fn over_http2() -> Vec<(&'static str, Value)> {
    vec![
        ("/h2c", json!({"scheme": "h2c"})),
        ("/h2c-never", json!({"scheme": "h2c", "retries": 0})),
        ("/h2c-brief", kept(2)),
        ("/h2c-kept", kept(0)),
        ("/grpc", json!({"scheme": "grpc"})),
    ]
}

/// Settings of an upstream that keeps idle HTTP/2 connections for `seconds`.
pub fn kept(seconds: u32) -> Value {
    let pool = json!({"size": 4, "idle_timeout": seconds, "requests": 1000});
    json!({"scheme": "h2c", "retries": 0, "keepalive_pool": pool})
}

/// Paths to two servers of equal priority, and upstreams with different balancers. Their requests are recorded.
pub fn of_two_alike() -> Vec<(&'static str, Value)> {
    let of = |balancer: &str| upstream(json!({"type": balancer, "nodes": alike(&["10.0.0.1", "10.0.0.2"])}));
    vec![("/least", of("least_conn")), ("/faster", of("ewma"))]
}

fn alike(hosts: &[&str]) -> Value {
    hosts.iter().map(|host| json!({"host": host, "port": 80, "weight": 1})).collect()
}

/// Ports of streams, and the stream routes on them.
pub fn of_streams() -> Vec<(u16, Value)> {
    let through = |plugins: Value, more: Value| json!({"plugins": plugins, "upstream": upstream(more)});
    let of = |more: Value| through(json!({"recorder": {}}), more);
    let seen = |plugin: Value| through(plugin, json!({}));
    let two = || alike(&["10.0.0.1", "10.0.0.2"]);
    let long = || json!({"connect": 1, "send": 60, "read": 60});
    let three = || alike(&["10.0.0.1", "10.0.0.2", "fd00::1"]);
    let checks = json!({"active": {"type": "tcp"}, "passive": {"unhealthy": {"tcp_failures": 1}}});
    let spoken = |name: &str, plugins: Value| {
        let mut route = seen(plugins);
        route["protocol"] = json!({"name": name, "logger": [{"name": "recorder", "conf": {}}]});
        route
    };
    let to = |server: SocketAddr, plugins: Value| {
        let nodes = json!({server.to_string(): 1});
        json!({"plugins": plugins, "upstream": {"type": "roundrobin", "scheme": "udp", "nodes": nodes}})
    };
    let datagrams = |plugins: Value| to(server(), plugins);
    // To one of the two servers of datagrams.
    let either = |more: Value| {
        let nodes = json!({server().to_string(): 1, late().to_string(): 1});
        json!({"upstream": with(json!({"scheme": "udp", "nodes": nodes}), more)})
    };
    let first = || json!({"asks": 4, "wants": "ask"});
    vec![
        (7001, of(json!({}))),
        (7002, of(json!({"retries": 0}))),
        (7003, of(json!({"retries": 1, "nodes": three()}))),
        (7004, of(json!({"scheme": "tls"}))),
        (7005, of(json!({"scheme": "tls", "retry_timeout": 0.5}))),
        (7006, of(json!({"type": "least_conn", "nodes": two(), "timeout": long()}))),
        (7007, of(json!({"type": "ewma", "nodes": two(), "timeout": long()}))),
        (7008, of(json!({"checks": checks}))),
        (7009, of(json!({"scheme": "https"}))),
        (7010, of(json!({"nodes": []}))),
        (7011, spoken("dubbo", json!({"recorder": {}}))),
        (7012, spoken("dubbo", json!({"recorder": {}, "first": {"asks": 4}}))),
        (7013, spoken("redis", json!({"recorder": {}}))),
        (7014, seen(json!({"recorder": {}, "first": first()}))),
        (7015, seen(json!({"recorder": {}, "waits": {}, "first": first()}))),
        (7017, seen(json!({"recorder": {}, "sees": {}}))),
        (7020, datagrams(json!({"recorder": {}}))),
        (7021, datagrams(json!({"recorder": {}, "waits": {}}))),
        (7022, datagrams(json!({"recorder": {}, "first": first()}))),
        (7023, to(late(), json!({"recorder": {}}))),
        (7024, either(json!({"type": "ewma"}))),
        (7016, seen(json!({"recorder": {}, "first": {"asks": 4, "again": "more"}}))),
    ]
}

/// Sets response headers, among them hop-by-hop ones.
fn sets() -> Value {
    json!({"response-rewrite": {"headers": {"set": {"Connection": "x", "Keep-Alive": "1", "X-Set": "1"}}}})
}

fn with(mut all: Value, more: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
        all.extend(more);
    }
    all
}

pub fn upstream(more: Value) -> Value {
    let upstream = json!({
        "nodes": [
            {"host": "10.0.0.1", "port": 80, "weight": 1, "priority": 1},
            {"host": "10.0.0.2", "port": 80, "weight": 1},
        ],
        "timeout": {"connect": 1, "send": 2, "read": 2},
    });
    with(upstream, more)
}
