//! Tests of the importer as a whole.

use std::collections::BTreeMap;

use model::{Kind, Resource};
use serde_json::{Value, json};

use crate::files::{FileError, Files};
use crate::finding::Severity;
use crate::{Format, Import, Source};

pub mod findings;
mod order;
mod profiles;
mod security;

pub const YAML: &str = include_str!("../../fixtures/spring/application.yml");
const PROPERTIES: &str = include_str!("../../fixtures/spring/application.properties");

/// Files by path.
pub struct Folder(pub BTreeMap<String, String>);

impl Files for Folder {
    fn read(&self, path: &str) -> Result<String, FileError> {
        self.0.get(path).cloned().ok_or(FileError::Absent)
    }

    fn matching(&self, _: &str) -> Result<Vec<String>, FileError> {
        Ok(Vec::new())
    }
}

/// Imports the first of these files; each of its resources must pass its schema.
pub fn import_of(format: Format, files: &[(&str, &str)], profiles: &[&str]) -> Result<Import, String> {
    let folder = Folder(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect());
    let profiles: Vec<String> = profiles.iter().map(|name| (*name).to_owned()).collect();
    let variables = |name: &str| (name == "REGION").then(|| "eu".to_owned());
    let (file, text) = files[0];
    let source = Source { file, text, files: &folder, variables: &variables, profiles: &profiles };
    let import = crate::import(format, &source).map_err(|error| error.to_string())?;
    for resource in &import.resources {
        resource.key.check().unwrap();
        if let Err(invalid) = Resource::parse(resource.key.kind, &resource.key.id, &resource.value) {
            panic!("{}: {invalid}\n{}", resource.key, resource.value);
        }
    }
    Ok(import)
}

pub fn import(text: &str) -> Import {
    import_of(Format::SpringCloudGateway, &[("application.yml", text)], &[]).unwrap()
}

/// A file of routes in the short form: `id uri predicates filters`.
pub fn routes(lines: &str) -> Import {
    import(&format!("spring.cloud.gateway.routes:\n{lines}"))
}

pub fn route<'i>(import: &'i Import, id: &str) -> &'i Value {
    let found =
        import.resources.iter().find(|resource| resource.key.kind == Kind::Route && resource.key.id == id);
    &found.unwrap_or_else(|| panic!("no route {id}")).value
}

/// The findings of a severity as `construct: effect`.
pub fn found(import: &Import, severity: Severity) -> Vec<String> {
    let of = import.findings.iter().filter(|finding| finding.severity == severity);
    of.map(|finding| format!("{}: {}", finding.construct, finding.effect)).collect()
}

#[test]
fn a_file_becomes_routes() {
    let import = import(YAML);
    assert_eq!((import.listeners[0].port, import.listeners[0].tls), (9000, false));
    assert_eq!(import.listeners[0].address.map(|address| address.to_string()).as_deref(), Some("127.0.0.1"));
    let orders = route(&import, "orders");
    assert_eq!(orders["uris"], json!(["/api/orders", "/api/orders/*", "/api/carts/*"]));
    assert_eq!(orders["methods"], json!(["GET", "POST"]));
    assert_eq!(
        orders["vars"],
        json!([
            ["uri", "~~", "^/api/orders(?:/.*)?$|^/api/carts/([^/]+)/?$"],
            ["http_x_version", "~~", r"(?:^|,)\s*(?:\d+)\s*(?:$|,)"],
        ])
    );
    assert_eq!(
        orders["upstream"],
        json!({
            "nodes": [{"host": "orders", "port": 8081, "weight": 1}],
            "pass_host": "node",
            "retries": 2,
            "sluice": {"failure_status": 500, "retry": {
                "statuses": [500, 501, 502, 503, 504, 505, 506, 507, 508, 509, 510, 511],
                "any_method": true, "backoff": 0.01, "max_backoff": 0.05,
            }},
            "timeout": {"connect": 1.5, "send": 60, "read": 5.0},
        })
    );
    let plugins = &orders["plugins"];
    assert_eq!(
        plugins["proxy-rewrite"],
        json!({
            "regex_uri": ["^((?:/[^/]+){0,1})(?:/(.*))?$", "/${2}"],
            "merge_slashes": true,
            "headers": {"add": {"X-Gateway": "scg", "X-Forwarded-Prefix": "${1}"}},
        })
    );
    assert_eq!(plugins["gzip"], json!({"types": ["application/json"], "min_length": 1024}));
    assert_eq!(plugins["cors"]["allow_origins"], "https://shop.example,https://admin.example");
    assert_eq!(plugins["cors"]["max_age"], 600);

    let red = route(&import, "red");
    assert_eq!(red["priority"], 6, "before the last route, which refuses preflights");
    assert_eq!(red["uris"], json!(["/red", "/red/*"]));
    assert_eq!(
        red["vars"],
        json!([
            ["http_host", "~~", r"^(?:[^.]+\.)*example\.org$|^a\.([^.]+)\.example$"],
            ["msec", ">", 1_484_959_367.789],
        ])
    );
    assert_eq!(red["upstream"]["scheme"], "https");
    assert_eq!(red["upstream"]["tls"], json!({"verify": true, "sni": "red.example"}));
    assert_eq!(red["upstream"]["timeout"]["read"], 0.2);
    assert!(red["upstream"].get("pass_host").is_none());
    assert_eq!(red["plugins"]["proxy-rewrite"]["regex_uri"], json!(["/red/?(.*)", "/${1}"]));
    assert_eq!(red["plugins"]["proxy-rewrite"]["headers"]["remove"], json!(["Cookie"]));
    assert_eq!(
        red["plugins"]["response-rewrite"]["vars"],
        json!([["upstream_status", "~~", "^[2-9]"], ["sluice_by", "==", "upstream"]]),
        "not on answers of the gateway"
    );
    let headers = &red["plugins"]["response-rewrite"]["headers"];
    assert_eq!(headers["set"], json!({"X-Red": "yes"}));
    assert_eq!(headers["add"][0], "Vary: Origin");
}

#[test]
fn variables_of_paths_and_answers_are_carried_over() {
    let import = import(YAML);
    let items = route(&import, "set-path");
    assert_eq!(items["remote_addrs"], json!(["192.168.1.0/24"]));
    assert_eq!(items["uri"], "/items/*");
    assert_eq!(items["vars"][1], json!(["arg_green", "~~", "^"]));
    assert_eq!(items["vars"][2], json!(["cookie_chocolate", "~~", "^(?:ch.p)$"]));
    assert_eq!(items["upstream"]["service_name"], "ITEMS");
    let plugins = &items["plugins"];
    assert_eq!(plugins["proxy-rewrite"]["regex_uri"], json!(["^/items/([^/]+)/?$", "/v2/${1}"]));
    assert_eq!(plugins["proxy-rewrite"]["headers"]["add"]["X-Item"], "item-${1}");
    assert_eq!(plugins["response-rewrite"]["status_code"], 202);
    assert_eq!(
        plugins["fault-injection"]["abort"],
        json!({"http_status": 413, "vars": [[["content_length", ">", 5_242_880]]]})
    );
    let limited = route(&import, "limited");
    assert_eq!(limited["plugins"]["limit-req"]["burst"], 19.0);
    assert_eq!(limited["plugins"]["limit-req"]["rejected_code"], 429);
    assert_eq!(limited["plugins"]["api-breaker"]["unhealthy"]["failures"], 2);
    assert_eq!(limited["upstream"]["timeout"]["read"], 3.0);
    assert_eq!(
        route(&import, "go")["plugins"]["redirect"],
        json!({"ret_code": 302, "uri": "https://acme.example"})
    );
    let setting = &import.settings[0];
    assert_eq!((setting.path.as_str(), setting.place.position.line), ("discovery.eureka", 97));
    assert_eq!(
        setting.value,
        json!({"host": ["http://u:p@one:8761", "http://two:8761"], "prefix": "/eureka/"})
    );
}

#[test]
fn rates_are_counted_in_the_redis_of_the_file() {
    let limit = |redis: &str| {
        let text = format!(
            "spring: {{{redis}cloud: {{gateway: {{routes: [{{id: a, uri: 'http://a:1', predicates: [Path=/a], \
             filters: [{{name: RequestRateLimiter, args: {{redis-rate-limiter.replenishRate: 1, key-resolver: '#{{@ip}}'}}}}]}}]}}}}}}"
        );
        let import = import_of(Format::SpringCloudGateway, &[("application.yml", &text)], &[]).unwrap();
        let limit = &route(&import, "a")["plugins"]["limit-req"];
        [
            "policy",
            "redis_host",
            "redis_port",
            "redis_username",
            "redis_password",
            "redis_ssl",
            "redis_timeout",
        ]
        .map(|name| limit[name].clone())
    };
    assert_eq!(
        json!(limit("data: {redis: {host: re, port: 6380, password: p, timeout: 2s}}, ")),
        json!(["redis", "re", 6380, null, "p", null, 2000])
    );
    assert_eq!(
        json!(limit("redis: {url: 'rediss://u:p@re:1/0'}, ")),
        json!(["redis", "re", 1, "u", "p", true, null])
    );
    assert_eq!(
        json!(limit("data: {redis: {cluster: {nodes: 'a:1, b:2'}, password: p}}, ")),
        json!(["redis-cluster", null, null, null, "p", null, null])
    );
    for other in ["", "data: {redis: {sentinel: {master: m, nodes: a}}}, ", "data: {redis: {database: 1}}, "]
    {
        assert_eq!(limit(other)[0], Value::Null, "{other}");
    }
}

#[test]
fn properties_become_the_same() {
    let import =
        import_of(Format::SpringCloudGateway, &[("application.properties", PROPERTIES)], &[]).unwrap();
    assert_eq!(import.listeners[0].port, 9100);
    let one = route(&import, "one");
    assert_eq!(one["uris"], json!(["/one", "/one/*", "/first", "/first/"]));
    assert_eq!(one["plugins"]["proxy-rewrite"]["regex_uri"], json!(["/one/(.*)", "/${1}"]));
    assert_eq!(route(&import, "two")["upstream"]["nodes"][0]["host"], "two");
    assert_eq!(import.count(Severity::Guard), 0, "{:?}", import.findings);
    let found = found(&import, Severity::Behaviour);
    assert!(found.len() == 1 && found[0].contains("percent-encodings"), "{found:?}");
    let settings: Vec<&str> = import.settings.iter().map(|setting| setting.path.as_str()).collect();
    assert_eq!(
        settings,
        [
            "sluice.path.merge_slashes",
            "sluice.path.resolve_dots",
            "apisix.trusted_addresses",
            "nginx_config.http.real_ip_from"
        ]
    );
    for path in &settings[..2] {
        let is_listed = import.findings.iter().any(|finding| finding.construct == *path);
        assert!(is_listed, "{path}: {:?}", import.findings);
    }
    assert_eq!(
        route(&import, "two")["plugins"]["proxy-rewrite"],
        json!({"use_real_request_uri_unsafe": true, "merge_slashes": true})
    );
}

#[test]
fn other_forms_of_routes_are_read() {
    let import = import(
        "spring.cloud.gateway:\n  default-filters: ['AddRequestHeader=A, 1', 'AddRequestHeader=B, 2']\n  \
         x-forwarded.prefix-enabled: false\n  routes:\n  \
         - 'text=http://t:1,Path=/t'\n  \
         - {id: off, uri: 'http://o:1', enabled: false, predicates: [Path=/o]}\n  \
         - {id: both, uri: 'lb:https://svc', predicates: [Path=/b/**, Path=/*/c], filters: ['RemoveRequestHeader=A', StripPrefix=1]}\n",
    );
    assert_eq!(route(&import, "text")["upstream"]["nodes"][0]["host"], "t");
    assert_eq!(import.resources.len(), 3);
    let both = route(&import, "both");
    assert_eq!(both["vars"], json!([["uri", "~~", "^/[^/]+/c/?$"]]));
    assert_eq!(both["upstream"]["scheme"], "https");
    // Default filters and those of the route take turns: A is added, removed, then B is added.
    let rewrite = &both["plugins"]["proxy-rewrite"];
    assert_eq!(rewrite["headers"], json!({"add": {"B": "2"}, "remove": ["A"]}));
    let import = import_of(
        Format::SpringCloudGateway,
        &[(
            "a.yml",
            "spring.cloud.gateway.mvc.routes: [{id: m, uri: 'http://m:1', predicates: [Path=/m], filters: [LoadBalancer=svc]}]\n",
        )],
        &[],
    );
    assert_eq!(route(&import.unwrap(), "m")["upstream"]["service_name"], "SVC");
}

#[test]
fn weights_become_a_split() {
    let import = routes(concat!(
        "- {id: a, uri: 'http://a:1', predicates: ['Path=/x', 'Weight=g, 8']}\n",
        "- {id: b, uri: 'http://b:1', predicates: ['Path=/x', 'Weight=g, 2']}\n",
        "- {id: c, uri: 'http://c:1', predicates: ['Path=/y', 'Weight=h, 2']}\n",
        "- {id: d, uri: 'http://d:1', predicates: ['Path=/z', 'Weight=h, 2']}\n",
    ));
    let split = &route(&import, "a")["plugins"]["traffic-split"]["rules"][0]["weighted_upstreams"];
    assert_eq!((&split[0]["weight"], &split[1]["weight"]), (&json!(8), &json!(2)));
    assert_eq!(split[1]["upstream"]["nodes"][0]["host"], "b");
    assert_eq!(import.resources.len(), 4);
    assert_eq!(found(&import, Severity::Behaviour).len(), 2);
}

#[test]
fn servers_may_be_listed_in_the_file() {
    let import = import(
        "spring.cloud:\n  gateway.routes: [{id: a, uri: 'lb://Stores', predicates: [Path=/a]}]\n  \
         discovery.client.simple.instances.stores: [{uri: 'https://s1:8443'}, {host: s2, port: 8444, secure: true}, \
         {host: s3, port: 8080}]\n",
    );
    let upstream = &route(&import, "a")["upstream"];
    assert_eq!((&upstream["nodes"][1]["port"], &upstream["scheme"]), (&json!(8444), &json!("https")));
    assert_eq!(upstream["nodes"].as_array().map(Vec::len), Some(2));
    let behaviour = found(&import, Severity::Behaviour);
    assert!(behaviour.iter().any(|finding| finding.contains("`http` are left out")), "{behaviour:?}");
    assert!(import.settings.iter().all(|setting| !setting.path.starts_with("discovery")));
}
