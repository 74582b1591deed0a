//! Tests of the importer as a whole.

use serde_json::json;

use crate::finding::Severity;
use crate::spring::tests::{findings, found, import_of, route};
use crate::{Format, Import};

const YAML: &str = include_str!("../../fixtures/zuul/application.yml");

fn import(text: &str) -> Import {
    import_of(Format::Zuul, &[("application.yml", text)], &[]).unwrap()
}

#[test]
fn routes_are_carried_over() {
    let import = import(YAML);
    assert_eq!(import.listeners[0].port, 9000);
    let ids: Vec<_> = import.resources.iter().map(|resource| resource.key.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "dot-segments",
            "ignored-patterns",
            "users",
            "shop",
            "orders",
            "short",
            "service-users-service",
            "legacy",
            "preflight"
        ]
    );
    let users = route(&import, "users");
    assert_eq!(users["uris"], json!(["/api/myusers", "/api/myusers/*"]));
    assert_eq!(
        users["plugins"],
        json!({
            "proxy-rewrite": {
                "regex_uri": ["^/api/myusers(.*)$", "${1}"],
                "headers": {
                    "set": {"X-Forwarded-Prefix": "${http_x_forwarded_prefix}/api/myusers"},
                    "add": {
                        "X-Forwarded-Host": "$http_host",
                        "X-Forwarded-Port": "$request_port",
                        "X-Forwarded-Proto": "$scheme",
                    },
                    "remove": ["X-Secret", "Cookie", "Set-Cookie"],
                },
            },
            "response-rewrite": {"headers": {"remove": ["X-Secret", "Cookie", "Set-Cookie"]}},
        })
    );
    assert_eq!(users["upstream"]["timeout"], json!({"connect": 0.7, "send": 60, "read": 2.5}));
    assert_eq!(users["upstream"]["nodes"], json!([{"host": "u1", "port": 8081, "weight": 1}]));
    let mixed =
        import.findings.iter().find(|finding| finding.effect.contains("`https` are left out")).unwrap();
    assert_eq!((mixed.severity, mixed.place.position.line), (Severity::Behaviour, 36));
    assert_eq!((&users["upstream"]["retries"], &users["upstream"]["pass_host"]), (&json!(1), &json!("node")));

    let shop = route(&import, "shop");
    assert_eq!(shop["plugins"]["proxy-rewrite"]["regex_uri"], json!(["^/api(/.*)$", "${1}"]));
    assert_eq!(shop["plugins"]["response-rewrite"]["headers"]["remove"], json!(["X-Secret"]));
    assert_eq!(shop["upstream"]["service_name"], "SHOP");
    assert_eq!(
        (&shop["upstream"]["retries"], &shop["upstream"]["timeout"]["read"]),
        (&json!(0), &json!(4.0))
    );

    let legacy = route(&import, "legacy");
    assert_eq!(
        legacy["plugins"]["proxy-rewrite"]["regex_uri"],
        json!(["^/api(/.*)$", "/app${1}", "^(.*)$", "/app${1}"])
    );
    assert_eq!(legacy["upstream"]["timeout"], json!({"connect": 0.5, "send": 60, "read": 3.0}));
    assert_eq!(route(&import, "short")["upstream"]["tls"], json!({"verify": true}));

    let ignored = route(&import, "ignored-patterns");
    assert_eq!(ignored["priority"], 8);
    assert_eq!(ignored["plugins"]["fault-injection"]["abort"]["http_status"], 404);
    assert!(ignored["uris"].as_array().unwrap().contains(&json!("/api/myusers/*")));
    let settings: Vec<&str> = import.settings.iter().map(|setting| setting.path.as_str()).collect();
    assert_eq!(
        settings,
        [
            "discovery.eureka",
            "sluice.path.resolve_dots",
            "apisix.trusted_addresses",
            "nginx_config.http.real_ip_from"
        ]
    );
    let preflight = route(&import, "preflight");
    assert_eq!((&preflight["uri"], &preflight["priority"]), (&json!("/*"), &json!(1)));
    assert_eq!(preflight["plugins"]["fault-injection"]["abort"]["http_status"], 403);
}

#[test]
fn prefixes_are_kept_and_paths_replaced() {
    let import = import(
        "zuul:\n  prefix: /v1/\n  strip-prefix: false\n  add-proxy-headers: false\n  routes:\n    \
         a: {path: /x/**, url: 'http://a:1'}\n    b: {path: /x/**, url: 'http://b:1'}\n    \
         c: {path: z, url: 'forward:/c'}\n",
    );
    assert_eq!(import.resources.len(), 4);
    let b = route(&import, "b");
    assert_eq!(b["upstream"]["nodes"][0]["host"], "b");
    assert_eq!(b["plugins"]["proxy-rewrite"]["regex_uri"], json!(["^/v1/x(.*)$", "/v1${1}"]));
    assert_eq!(
        b["plugins"]["proxy-rewrite"]["headers"]["remove"],
        json!(["Cookie", "Set-Cookie", "Authorization"])
    );
    assert_eq!(route(&import, "c")["uri"], "/v1/z");
    assert_eq!(found(&import, Severity::Behaviour).len(), 2, "{:?}", import.findings);
}

#[test]
fn limits_close_all_routes() {
    let import = import("zuul:\n  routes: {a: {url: 'http://a:1'}}\n  ratelimit: {enabled: true}\n");
    assert!(import.guards(&import.resources[0].key).next().is_some());
}

#[test]
fn users_of_spring_boot_1_close_all_routes() {
    for (security, guards) in [
        ("basic: {enabled: true}", 1),
        ("basic: {path: /admin/**}", 1),
        ("basic: {enabled: false, path: /admin/**}", 0),
        ("user: {name: jack, password: secret}", 1),
        ("{basic: {enabled: false}, user: {name: jack}}", 1),
        ("{basic: {enabled: '${UNSET}'}, user: {password: x}}", 2),
    ] {
        let text = format!("zuul:\n  routes: {{a: {{url: 'http://a:1'}}}}\nsecurity:\n  {security}\n");
        let import = import(&text);
        let key = &import.resources[0].key;
        assert_eq!(import.guards(key).count(), guards, "{security}: {:?}", import.findings);
    }
}

#[test]
fn each_unknown_key_is_named() {
    findings::names_each_unknown_key(Format::Zuul, YAML, &["zuul.routes.zz-unknown"]);
}
