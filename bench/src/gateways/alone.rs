//! Plugins measured by themselves, on the route of a plain setup.

use serde::Serialize;

/// A plugin and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Alone {
    pub name: &'static str,
    /// As JSON, which is YAML.
    pub settings: &'static str,
    /// The settings of a consumer, and the credential of requests in the header `apikey`.
    pub consumer: Option<(&'static str, &'static str)>,
}

const fn alone(name: &'static str, settings: &'static str) -> Alone {
    Alone { name, settings, consumer: None }
}

/// A function in Lua without work.
pub const LUA_NOTHING: Alone =
    alone("serverless-pre-function", r#"{"phase": "access", "functions": ["return function() end"]}"#);

/// One that reads two headers, sets one and makes JSON.
pub const LUA_HEADERS: Alone = alone(
    "serverless-pre-function",
    r#"{"phase": "access", "functions": ["local core = require('apisix.core') return function(_, ctx)
        local host, agent = core.request.header(ctx, 'Host'), core.request.header(ctx, 'User-Agent')
        core.request.set_header(ctx, 'X-Seen', core.json.encode({host = host, agent = agent})) end"]}"#,
);

/// Settings as people use them, which let every request pass. Plugins that answer, delay or ask another server are not
/// here: their work is not a matter of instructions.
pub const PRICED: [Alone; 18] = [
    alone("api-breaker", r#"{"break_response_code": 502, "unhealthy": {"http_statuses": [500]}}"#),
    alone("client-control", r#"{"max_body_size": 1000000}"#),
    alone("cors", "{}"),
    alone("csrf", r#"{"key": "bench-key-of-csrf-0123456789"}"#),
    alone("gzip", r#"{"types": "*"}"#),
    alone("ip-restriction", r#"{"blacklist": ["10.0.0.0/8", "192.168.0.0/16"]}"#),
    Alone {
        name: "jwt-auth",
        settings: r#"{"header": "apikey"}"#,
        consumer: Some((
            r#"{"key": "user-key", "secret": "bench-secret-of-jwt-auth-0123456789"}"#,
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJrZXkiOiJ1c2VyLWtleSJ9.wKYADmXeY6bmmmU1xPdBvfntH6KGJWxGLk5H2fFsPN8",
        )),
    },
    alone("limit-conn", r#"{"conn": 10000, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"}"#),
    alone("limit-req", r#"{"rate": 1000000, "burst": 1000000, "nodelay": true, "key": "remote_addr"}"#),
    alone("proxy-rewrite", r#"{"headers": {"set": {"X-Api-Version": "1"}}}"#),
    alone("real-ip", r#"{"source": "http_x_forwarded_for", "trusted_addresses": ["127.0.0.0/24"]}"#),
    alone("referer-restriction", r#"{"bypass_missing": true, "whitelist": ["a.test"]}"#),
    alone("request-id", "{}"),
    alone("response-rewrite", r#"{"headers": {"set": {"X-Served-By": "sluice"}}}"#),
    alone("traffic-label", r#"{"rules": [{"actions": [{"set_headers": {"X-Label": "a"}}]}]}"#),
    alone("traffic-split", r#"{"rules": [{"weighted_upstreams": [{"weight": 1}]}]}"#),
    alone("ua-restriction", r#"{"bypass_missing": true, "denylist": ["bad-agent"]}"#),
    alone("uri-blocker", r#"{"block_rules": ["\\.php$", "/admin/"]}"#),
];

/// Tracers whose requests are not sampled: the price of most requests, not that of a trace.
pub const UNSAMPLED: [Alone; 2] = [
    alone("opentelemetry", r#"{"sampler": {"name": "always_off"}}"#),
    alone("zipkin", r#"{"endpoint": "http://127.0.0.1:9/api/v2/spans", "sample_ratio": 0.00001}"#),
];
