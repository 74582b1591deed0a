//! Analyses of configurations, as text: a configuration, then one line for each finding.

use std::sync::Arc;

use crate::support::{Plugins, Table, desired, entry};
use model::Invalid;
use proptest::prelude::*;
use sdk::catalog::{About, Configured, Facts, SchemaType, Scope, Subsystem};
use sdk::consumers::Credential;
use sdk::testing::Probe;
use sdk::{Catalog, Chain};
use serde_json::{Value, json};
use snapshot::Touched;
use snapshot::analysis::{Analysis, Code, Input, MOST, analyse};
use snapshot::router::{Mode, Options};

fn look(desired: &model::Desired, mode: Mode, encrypts: bool) -> Analysis {
    analyse(Input {
        desired,
        mode,
        options: Options::default(),
        catalog: &Plugins,
        encrypts,
        stream_ports: &[9100],
        now: 0,
    })
}

/// The findings with these codes, as `code key/pointer`.
fn found(text: &str, mode: Mode, codes: &[Code]) -> Vec<String> {
    let analysis = look(&desired(text), mode, false);
    let of_codes = analysis.findings.iter().filter(|one| codes.contains(&one.code));
    of_codes.map(|one| format!("{} {}{}", one.code.as_str(), one.key, one.invalid.pointer)).collect()
}

const UP: &str = "upstream: {nodes: {\"127.0.0.1:80\": 1}}";

#[test]
fn shadowed_and_unreachable_routes() {
    let codes = [Code::Unreachable, Code::Shadowed, Code::Ambiguous];
    for (about, routes, host_uri, uri) in [
        ("different paths", "{id: 1, uri: /a, U} {id: 2, uri: /b, U}", "", ""),
        ("the smaller id", "{id: 1, uri: /a, U} {id: 2, uri: /a, U}", "unreachable routes/2/uri", "="),
        (
            "a lower priority",
            "{id: 1, uri: /a, U} {id: 2, uri: /a, priority: 1, U}",
            "unreachable routes/1/uri",
            "=",
        ),
        ("other methods", "{id: 1, uri: /a, methods: [GET], U} {id: 2, uri: /a, methods: [POST], U}", "", ""),
        (
            "its method is taken",
            "{id: 1, uri: /a, priority: 1, methods: [GET, PUT], U} {id: 2, uri: /a, methods: [GET], U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "one method of two",
            "{id: 1, uri: /a, priority: 1, methods: [GET], U} {id: 2, uri: /a, methods: [GET, PUT], U}",
            "",
            "",
        ),
        (
            "methods taken by two",
            "{id: 1, uri: /a, priority: 1, methods: [GET], U} {id: 2, uri: /a, priority: 2, methods: [PUT], U} {id: 3, uri: /a, methods: [GET, PUT], U}",
            "unreachable routes/3/uri",
            "=",
        ),
        (
            "conditions that go first",
            "{id: 1, uri: /a, priority: 1, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, U}",
            "",
            "",
        ),
        (
            "conditions that come too late",
            "{id: 1, uri: /a, priority: 1, U} {id: 2, uri: /a, vars: [[arg_a, ==, b]], U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "the same conditions",
            "{id: 1, uri: /a, priority: 1, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, vars: [[arg_a, ==, b]], U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "only the id orders them",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "methods overlap",
            "{id: 1, uri: /a, methods: [GET, PUT], U} {id: 2, uri: /a, methods: [GET, POST], U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "conditions that exclude each other",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, vars: [[arg_a, ==, c]], U}",
            "",
            "",
        ),
        (
            "conditions that do not",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, vars: [[arg_b, ==, c]], U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "networks apart",
            "{id: 1, uri: /a, remote_addr: 10.0.0.0/8, U} {id: 2, uri: /a, remote_addr: 11.0.0.0/8, U}",
            "",
            "",
        ),
        (
            "networks within each other",
            "{id: 1, uri: /a, remote_addr: 10.0.0.0/8, U} {id: 2, uri: /a, remote_addr: 10.1.0.0/16, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "patterns, the longer beginning first",
            "{id: 1, uri: /a/*, priority: 9, U} {id: 2, uri: /a/b/*, U}",
            "",
            "",
        ),
        ("an exact path goes first", "{id: 1, uri: /a/*, priority: 9, U} {id: 2, uri: /a/b, U}", "", ""),
        (
            "one pattern twice",
            "{id: 1, uri: /a/*, priority: 9, U} {id: 2, uri: /a/*, U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "one of two paths",
            "{id: 1, uri: /a, priority: 9, U} {id: 2, uris: [/a, /b], U}",
            "shadowed routes/2/uris",
            "=",
        ),
        ("its own paths", "{id: 1, uris: [/a, '/a/*', '/a/b*'], U}", "", ""),
        (
            "a host and none",
            "{id: 1, uri: /a, priority: 9, U} {id: 2, uri: /a, host: h.org, U}",
            "",
            "unreachable routes/2/uri",
        ),
        (
            "one host twice",
            "{id: 1, uri: /a, host: H.org, priority: 9, U} {id: 2, uri: /a, host: h.org, U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "one host of two",
            "{id: 1, uri: /a, host: h.org, priority: 9, U} {id: 2, uri: /a, hosts: [h.org, i.org], U}",
            "shadowed routes/2/uris",
            "=",
        ),
        (
            "a wildcard host",
            "{id: 1, uri: /a, host: '*.org', priority: 9, U} {id: 2, uri: /a, host: h.org, U}",
            "",
            "",
        ),
        ("one that is off", "{id: 1, uri: /a, status: 0, U} {id: 2, uri: /a, U}", "", ""),
        ("hosts apart", "{id: 1, uri: /a, host: h.org, U} {id: 2, uri: /a, host: i.org, U}", "", ""),
        (
            "a host, and none behind it",
            "{id: 1, uri: /a, host: h.org, U} {id: 2, uri: /a, U}",
            "",
            "ambiguous routes/2/uri",
        ),
        (
            "a host behind none that has conditions",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, host: h.org, U}",
            "",
            "ambiguous routes/2/uri",
        ),
        (
            "one network, and clients from anywhere",
            "{id: 1, uri: /a, remote_addr: 10.0.0.0/8, U} {id: 2, uri: /a, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "conditions, and one network behind them",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, remote_addr: 10.0.0.0/8, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "the wider network behind",
            "{id: 1, uri: /a, remote_addr: 10.1.0.0/16, U} {id: 2, uri: /a, remote_addr: 10.0.0.0/8, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "conditions of which one does not ask for equality",
            "{id: 1, uri: /a, vars: [[arg_a, '~=', b]], U} {id: 2, uri: /a, vars: [[arg_a, ==, c]], U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "one of two paths, by its id",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uris: [/a, /b], U}",
            "ambiguous routes/2/uris",
            "=",
        ),
        (
            "the order is meant",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, priority: -1, U}",
            "",
            "",
        ),
    ] {
        let routes = routes.replace("U}", &format!("{UP}}}")).replace("} {id", "}\n  - {id");
        let text = format!("routes:\n  - {routes}\n");
        let expected =
            |text: &str| -> Vec<String> { if text.is_empty() { Vec::new() } else { vec![text.to_owned()] } };
        assert_eq!(found(&text, Mode::HostUri, &codes), expected(host_uri), "{about}");
        let uri = if uri == "=" { host_uri } else { uri };
        assert_eq!(found(&text, Mode::Uri, &codes), expected(uri), "{about}, without trees of hosts");
    }
}

#[test]
fn parameters_take_less_than_the_rest_of_a_path() {
    let text = |first: &str, second: &str| {
        format!(
            "routes:\n  - {{id: 1, uri: '{first}', priority: 1, {UP}}}\n  - {{id: 2, uri: '{second}', {UP}}}\n"
        )
    };
    let codes = [Code::Unreachable];
    let mode = Mode::UriWithParameter;
    assert!(found(&text("/a/:id", "/a/*"), mode, &codes).is_empty());
    assert_eq!(found(&text("/a/*", "/a/:id"), mode, &codes), ["unreachable routes/2/uri"]);
    assert_eq!(found(&text("/a/:id", "/a/:id"), mode, &codes), ["unreachable routes/2/uri"]);
}

#[test]
fn patterns_of_one_beginning_may_meet_where_one_of_them_takes_all() {
    for (first, second, meet) in
        [("/a/*id", "/a/:id", true), ("/a/:id", "/a/*id", true), ("/a/:id/b", "/a/:id/c", false)]
    {
        let text = format!(
            "routes:\n  - {{id: 1, uri: '{first}', vars: [[arg_a, ==, b]], {UP}}}\n  - {{id: 2, uri: '{second}', {UP}}}\n"
        );
        let findings = found(&text, Mode::UriWithParameter, &[Code::Ambiguous]);
        assert_eq!(findings.len(), usize::from(meet), "{first} {second}: {findings:?}");
    }
    let alone = format!("routes:\n  - {{id: 1, uris: ['/a/*id', '/a/:id'], {UP}}}\n");
    assert!(found(&alone, Mode::UriWithParameter, &[Code::Ambiguous]).is_empty(), "they are of one route");
}

#[test]
fn the_reason_another_route_wins() {
    for (first, second, why) in [
        (
            "priority: 2, uri: /a",
            "uri: /a",
            "no request reaches this route: /a goes to routes/1: its priority is 2, over 0",
        ),
        (
            "uri: '/a/*all'",
            "uri: '/a/*'",
            "no request reaches this route: /a/* goes to routes/1: its path is longer",
        ),
        (
            "uri: /a",
            "uri: /a",
            "no request reaches this route: /a goes to routes/1: its id is smaller, at the same path and priority",
        ),
        (
            "priority: 2, uri: '/a/*'",
            "uri: '/a/*all'",
            "no request reaches this route: /a/*all goes to routes/1: its priority is 2, over 0",
        ),
        (
            "uri: /a, host: h.org",
            "uris: [/a, /b], host: h.org",
            "1 of its 2 paths are never reached: /a under h.org goes to routes/1: its id is smaller, at the same \
             path and priority",
        ),
    ] {
        let text = format!("routes:\n  - {{id: 1, {first}, {UP}}}\n  - {{id: 2, {second}, {UP}}}\n");
        let analysis = look(&desired(&text), Mode::UriWithParameter, false);
        let findings: Vec<&str> = analysis.findings.iter().map(|one| &*one.invalid.reason).collect();
        assert_eq!(findings, [why], "{first} {second}");
    }
}

#[test]
fn a_trailing_slash_that_requests_never_have() {
    let all = desired(&format!("routes:\n  - {{id: 1, uri: /a/, {UP}}}\n  - {{id: 2, uri: /, {UP}}}\n"));
    let options = Options { delete_uri_tail_slash: true, ..Options::default() };
    let of = Input {
        desired: &all,
        mode: Mode::HostUri,
        options,
        catalog: &Plugins,
        encrypts: true,
        stream_ports: &[],
        now: 0,
    };
    let analysis = analyse(of);
    assert_eq!(analysis.findings.len(), 1);
    assert_eq!(analysis.findings[0].key.id, "1", "the path that is a slash stays");
    assert!(analysis.findings[0].invalid.reason.contains("delete_uri_tail_slash"));
    let hint = analysis.findings[0].invalid.hint.as_deref();
    assert_eq!(hint, Some("write the path without the slash at its end"));
}

#[test]
fn impossible_paths_and_unconfigured_stream_ports() {
    let text = format!(
        "routes:\n  - {{id: 1, uri: hello, {UP}}}\n  - {{id: 2, uris: [/a, 'b/*'], {UP}}}\n  - {{id: 3, uri: '*', {UP}}}\n\
         stream_routes:\n  - {{id: 1, server_port: 9100, {UP}}}\n  - {{id: 2, server_port: 9101, {UP}}}\n  \
         - {{id: 3, {UP}}}\n"
    );
    let mut analysis = look(&desired(&text), Mode::HostUri, true);
    analysis.findings.retain(|one| one.code != Code::NoAuthentication);
    assert_eq!(
        analysis.to_string(),
        "unreachable: routes/1/uri: no request reaches this route: hello does not begin with a slash, as the path of \
         each request does\n  help: begin the path with a slash\n\
         unreachable: stream_routes/2/server_port: no connection reaches this stream route: nothing listens on port \
         9101 for streams\n  help: add the port to apisix.stream_proxy in config.yaml, or use a port that is configured\n\
         shadowed: routes/2/uris: 1 of its 2 paths are never reached: b/* does not begin with a slash, as the path of \
         each request does\n  help: begin the path with a slash\n"
    );
}

#[test]
fn nodes_with_impossible_hosts() {
    let text = "upstreams:\n  - {id: 1, nodes: {\"http://127.0.0.1:80\": 1, \"a b:80\": 1, \"127.0.0.1:80\": 1}}\n\
                routes:\n  - {id: 1, uri: /a, upstream_id: 1}\n  \
                - {id: 2, uri: /b, upstream: {nodes: [{host: '*', port: 80, weight: 1}]}}\n  \
                - {id: 3, uri: /c, upstream: {nodes: {\"[::1]:80\": 1, \"a_b.test:80\": 1}}}\n";
    let analysis = look(&desired(text), Mode::HostUri, true);
    assert_eq!(
        analysis.to_string(),
        "no-host: routes/2/upstream/nodes: `*` is no host name: it has `*`\n  \
         help: write a name or an address that a server has\n\
         no-host: upstreams/1/nodes: `http://127.0.0.1:80` is a URL, not a host\n  \
         help: write `127.0.0.1:80`; `http` goes into the upstream's `scheme`\n\
         no-host: upstreams/1/nodes: `a b` is no host name: it has ` `\n  \
         help: write a name or an address that a server has\n"
    );
}

#[test]
fn unused_resources() {
    let text = format!(
        "upstreams:\n  - {{id: used, nodes: {{\"127.0.0.1:80\": 1}}}}\n  - {{id: chosen, nodes: {{\"127.0.0.1:80\": 1}}}}\n  \
         - {{id: idle, nodes: {{\"127.0.0.1:80\": 1}}}}\n\
         services:\n  - {{id: s, upstream_id: used}}\n  - {{id: idle, {UP}}}\n\
         plugin_configs:\n  - {{id: idle, plugins: {{log: {{}}}}}}\n\
         routes:\n  - {{id: 1, uri: /a, service_id: s, plugins: {{key: {{anonymous_consumer: guest}}, log: {{rules: [{{upstream_id: chosen}}]}}}}}}\n\
         consumers:\n  - {{username: jack, plugins: {{key: {{key: k1}}}}}}\n  - {{username: guest}}\n  - {{username: unused}}\n\
         consumer_groups:\n  - {{id: idle, plugins: {{log: {{}}}}}}\n"
    );
    assert_eq!(
        found(&text, Mode::HostUri, &[Code::Unused]),
        [
            "unused services/idle",
            "unused upstreams/idle",
            "unused consumers/unused",
            "unused consumer_groups/idle",
            "unused plugin_configs/idle",
        ]
    );
    let no_plugin = text.replace("key: {anonymous_consumer: guest}, ", "");
    assert_eq!(
        found(&no_plugin, Mode::HostUri, &[Code::Unused])
            .iter()
            .filter(|one| one.contains("consumers/"))
            .count(),
        3
    );
}

#[test]
fn references_from_stream_routes_and_consumers() {
    let node = "nodes: {\"127.0.0.1:80\": 1}";
    let text = format!(
        "upstreams: [{{id: u, {node}}}, {{id: by-number, {node}}}, {{id: 7, {node}}}]\n\
         services: [{{id: s, upstream_id: by-number}}]\n\
         stream_routes:\n  - {{id: 1, upstream_id: u}}\n  - {{id: 2, service_id: s}}\n  \
         - {{id: 3, upstream: {{{node}}}, protocol: {{name: redis, superior_id: '1'}}}}\n\
         consumer_groups: [{{id: g, plugins: {{log: {{upstream_id: 7}}}}}}]\n\
         consumers: [{{username: jack, group_id: g, plugins: {{key: {{key: k1}}}}}}]\n\
         routes: [{{id: 1, uri: /a, plugins: {{key: {{}}}}, {UP}}}]\n"
    );
    let analysis = look(&desired(&text), Mode::HostUri, true);
    assert_eq!(
        analysis.to_string(),
        "unused: stream_routes/3/protocol/superior_id: no connection reaches this stream route: it stands below \
         stream route 1, and redis chooses none of those, as in APISIX\n  \
         help: without `superior_id` it takes connections by its own conditions\n"
    );
}

/// `multi-auth` runs the plugins within its settings; other plugins may contain plugin names
/// without effect.
#[test]
fn plugins_within_the_settings_of_another() {
    for (plugins, is_known) in [
        (json!({"multi-auth": {"auth_plugins": [{"basic": {}}, {"key": {}}]}}), true),
        (json!({"multi-auth": {"auth_plugins": [{"basic": {}}]}}), false),
        (json!({"multi-auth": {"auth_plugins": [{"key": {}}], "_meta": {"disable": true}}}), false),
        (json!({"log": {"key": {}}}), false),
    ] {
        let mut all = model::Desired::default();
        let upstream = json!({"nodes": {"127.0.0.1:80": 1}});
        let route = json!({"uri": "/*", "plugins": plugins, "upstream": upstream});
        all.put(entry(model::Kind::Route, "1", route));
        let jack = json!({"username": "jack", "plugins": {"key": {"key": "k1"}}});
        all.put(entry(model::Kind::Consumer, "jack", jack));
        let analysis = look(&all, Mode::HostUri, true);
        let unused = analysis.findings.iter().filter(|one| one.code == Code::Unused).count();
        assert_eq!(unused, usize::from(!is_known), "{plugins}");
    }
}

#[test]
fn secrets_in_the_clear() {
    let text = format!(
        "routes:\n  - {{id: 1, uri: /a, {UP}, plugins: {{limit: {{password: hush}}, log: {{password: $env://P}}}}}}\n\
         consumers:\n  - {{username: jack, plugins: {{key: {{key: k1}}}}}}\n  - {{username: jill, plugins: {{key: {{key: $secret://vault/1/k}}}}}}\n\
         plugin_metadata:\n  - {{id: log, deep: {{token: [a, b]}}}}\n"
    );
    let expected = [
        "clear-secret routes/1/plugins/limit/password",
        "clear-secret consumers/jack/plugins/key/key",
        "clear-secret plugin_metadata/log/deep/token/0",
        "clear-secret plugin_metadata/log/deep/token/1",
    ];
    assert_eq!(found(&text, Mode::HostUri, &[Code::ClearSecret]), expected);
    assert!(
        look(&desired(&text), Mode::HostUri, true).findings.iter().all(|one| one.code != Code::ClearSecret)
    );
    let findings = look(&desired(&text), Mode::HostUri, false);
    assert!(!findings.to_string().contains("hush") && !findings.to_json().to_string().contains("hush"));
}

#[test]
fn secrets_within_secrets_and_private_keys() {
    let (crt, key) =
        (include_str!("../../tests/certs/server-ec.crt"), include_str!("../../tests/certs/server-ec.key"));
    let tls = json!({"client_cert": crt, "client_key": key});
    let upstream = json!({"nodes": {"127.0.0.1:80": 1}, "scheme": "https", "tls": tls});
    let referred =
        json!({"nodes": {"127.0.0.1:80": 1}, "tls": {"client_cert": crt, "client_key": "$env://KEY"}});
    let of_upstream = |id: &str, mut value: serde_json::Value| {
        value["id"] = json!(id);
        value
    };
    let text = json!({
        "routes": [{
            "id": "1", "uri": "/a", "upstream": upstream,
            "plugins": {"log": {"password": {"of/a": "hush", "of_b": "$env://B", "of_c": 1, "of_d": ""}}},
        }],
        "upstreams": [of_upstream("u", upstream.clone()), of_upstream("v", referred)],
        "ssls": [
            {"id": "a", "sni": "a.test", "cert": crt, "key": key, "certs": [crt], "keys": [key]},
            {"id": "b", "sni": "b.test", "cert": crt, "key": "$env://KEY"},
        ],
    });
    let expected = [
        "clear-secret routes/1/plugins/log/password/of~1a",
        "clear-secret routes/1/upstream/tls/client_key",
        "clear-secret upstreams/u/tls/client_key",
        "clear-secret ssls/a/key",
        "clear-secret ssls/a/keys/0",
    ];
    assert_eq!(found(&text.to_string(), Mode::HostUri, &[Code::ClearSecret]), expected);
}

#[test]
fn forbidden_tls_versions() {
    let (crt, key) =
        (include_str!("../../tests/certs/server-ec.crt"), include_str!("../../tests/certs/server-ec.key"));
    let ssl = |protocols: &[&str]| json!({"id": "1", "sni": "a.test", "cert": crt, "key": key, "ssl_protocols": protocols});
    let findings = |protocols: &[&str]| {
        found(&json!({"ssls": [ssl(protocols)]}).to_string(), Mode::HostUri, &[Code::WeakTls])
    };
    assert_eq!(findings(&["TLSv1.1", "TLSv1.2"]), ["weak-tls ssls/1/ssl_protocols/0"]);
    assert_eq!(findings(&["TLSv1.2", "TLSv1.3"]), [""; 0]);
}

#[test]
fn tls_that_protects_less_than_it_seems() {
    let text = "routes:\n  - {id: 1, uri: /a, upstream: {scheme: https, nodes: {\"127.0.0.1:80\": 1}}, plugins: {log: {ssl_verify: false}}}\n\
                upstreams:\n  - {id: open, scheme: grpcs, nodes: {\"127.0.0.1:80\": 1}}\n  \
                - {id: good, scheme: https, tls: {verify: true}, nodes: {\"127.0.0.1:80\": 1}}\n";
    let expected = [
        "weak-tls routes/1/upstream/scheme",
        "weak-tls routes/1/plugins/log/ssl_verify",
        "weak-tls upstreams/open/scheme",
    ];
    assert_eq!(found(text, Mode::HostUri, &[Code::WeakTls]), expected);
}

#[test]
fn expired_certificates() {
    let (good, key) =
        (include_str!("../../tests/certs/server-ec.crt"), include_str!("../../tests/certs/server-ec.key"));
    let (over, its_key) =
        (include_str!("../../tests/certs/expired.crt"), include_str!("../../tests/certs/expired.key"));
    let text = serde_json::json!({"ssls": [
        {"id": "good", "sni": "a.test", "cert": good, "key": key},
        {"id": "second", "sni": "b.test", "cert": good, "key": key, "certs": [over], "keys": [its_key]},
        {"id": "over", "sni": "c.test", "cert": over, "key": its_key},
        {"id": "off", "sni": "c.test", "cert": over, "key": its_key, "status": 0},
    ]});
    let desired = desired(&text.to_string());
    let at = |now| {
        let of = Input {
            desired: &desired,
            mode: Mode::HostUri,
            options: Options::default(),
            catalog: &Plugins,
            encrypts: true,
            stream_ports: &[],
            now,
        };
        let all = analyse(of).findings.into_iter().filter(|one| one.code == Code::ExpiredCertificate);
        all.map(|one| format!("{}{}", one.key, one.invalid.pointer)).collect::<Vec<_>>()
    };
    assert_eq!(at(2_000_000_000), ["ssls/over/cert", "ssls/second/certs/0"]);
    assert!(at(0).is_empty());
}

#[test]
fn certificates_for_other_names() {
    let (crt, key) =
        (include_str!("../../tests/certs/server-ec.crt"), include_str!("../../tests/certs/server-ec.key"));
    let findings = |snis: &[&str], cert: &str| {
        let text = json!({"ssls": [{"id": "1", "snis": snis, "cert": cert, "key": key}]});
        found(&text.to_string(), Mode::HostUri, &[Code::OtherName])
    };
    let wrong = "other-name ssls/1/cert";
    assert_eq!(findings(&["server.test", "Server.TEST", "a.server.test", "*.server.test"], crt), [""; 0]);
    assert_eq!(findings(&["server.test", "a.test"], crt), [wrong]);
    assert_eq!(findings(&["a.b.server.test", "*.test"], crt), [wrong, wrong]);
    assert_eq!(findings(&["a.test"], "$env://CERT"), [""; 0]);
}

#[test]
fn server_names_that_no_client_can_ask_for() {
    let found = |names: Value| {
        let mut ssl = json!({"id": "1", "cert": "$env://CERT", "key": "$env://KEY"});
        ssl.as_object_mut().unwrap().extend(names.as_object().unwrap().clone());
        found(&json!({ "ssls": [ssl] }).to_string(), Mode::HostUri, &[Code::NoHost])
    };
    assert_eq!(found(json!({"snis": ["server.test", "*.server.test", "127.0.0.1", "*"]})), [""; 0]);
    assert_eq!(found(json!({"snis": ["server.test", "server.test:443"]})), ["no-host ssls/1/snis/1"]);
    assert_eq!(found(json!({"sni": "server..test"})), ["no-host ssls/1/sni"]);
    assert_eq!(found(json!({"sni": "server..test", "status": 0})), [""; 0]);
}

/// A catalog with one plugin, which has different settings in each place.
#[derive(Debug)]
struct OnePlugin;

impl Catalog for OnePlugin {
    fn check(&self, _: &str, _: &Value, _: SchemaType) -> Result<(), Invalid> {
        Ok(())
    }

    fn chain(&self, _: &[Configured<'_>], _: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        Ok(Arc::default())
    }

    fn credential(&self, _: &str, _: &Value) -> Result<Option<(&'static str, Credential)>, Invalid> {
        Ok(None)
    }

    fn about(&self) -> Vec<About> {
        Vec::new()
    }

    fn facts(&self, subsystem: Subsystem, name: &str) -> Option<Facts> {
        let schema = |field: &str| json!({"properties": {field: {}}});
        let of = |setting: &str, consumer_schema, metadata_schema| Facts {
            version: json!(0.1),
            kind: None,
            scope: None,
            schema: schema(setting),
            consumer_schema,
            metadata_schema,
        };
        (name == "lock").then(|| match subsystem {
            Subsystem::Http => of("of_route", Some(schema("of_consumer")), Some(schema("of_all"))),
            Subsystem::Stream => of("of_stream", None, None),
        })
    }
}

#[test]
fn settings_unknown_at_this_kind_of_resource() {
    let settings = json!({"of_route": 1, "of_consumer": 1, "of_stream": 1, "of_all": 1});
    let plugins = json!({"lock": settings, "unknown": settings});
    let upstream = json!({"nodes": {"127.0.0.1:80": 1}});
    let mut all = model::Desired::default();
    for (kind, id, value) in [
        (model::Kind::Route, "1", json!({"uri": "/a", "plugins": plugins, "upstream": upstream})),
        (model::Kind::StreamRoute, "1", json!({"plugins": plugins, "upstream": upstream})),
        (model::Kind::Consumer, "jack", json!({"username": "jack", "plugins": {"lock": settings}})),
        (model::Kind::Credential, "jack/credentials/c", json!({"plugins": {"lock": settings}})),
        (model::Kind::PluginMetadata, "lock", settings.clone()),
    ] {
        all.put(entry(kind, id, value));
    }
    let analysis = analyse(Input {
        desired: &all,
        mode: Mode::HostUri,
        options: Options::default(),
        catalog: &OnePlugin,
        encrypts: true,
        stream_ports: &[],
        now: 0,
    });
    let of_settings = analysis.findings.iter().filter(|one| one.code == Code::UnknownSetting);
    let findings: Vec<String> = of_settings
        .map(|one| {
            let on_consumer = one.invalid.hint.as_deref().is_some_and(|hint| hint.contains("on a consumer"));
            format!("{}{}{}", one.key, one.invalid.pointer, if on_consumer { ", on a consumer" } else { "" })
        })
        .collect();
    assert_eq!(
        findings,
        [
            "routes/1/plugins/lock/of_consumer, on a consumer",
            "routes/1/plugins/lock/of_stream",
            "routes/1/plugins/lock/of_all",
            "consumers/jack/plugins/lock/of_route",
            "consumers/jack/plugins/lock/of_stream",
            "consumers/jack/plugins/lock/of_all",
            "consumers/jack/credentials/c/plugins/lock/of_route",
            "consumers/jack/credentials/c/plugins/lock/of_stream",
            "consumers/jack/credentials/c/plugins/lock/of_all",
            "plugin_metadata/lock/of_route",
            "plugin_metadata/lock/of_consumer",
            "plugin_metadata/lock/of_stream",
            "stream_routes/1/plugins/lock/of_route",
            "stream_routes/1/plugins/lock/of_consumer",
            "stream_routes/1/plugins/lock/of_all",
        ]
    );
}

#[test]
fn catch_all_routes_without_authentication() {
    for (routes, open) in [
        ("{id: 1, uri: '/*', U}", "/uri"),
        ("{id: 1, uris: [/a, '/*'], U}", "/uris/1"),
        ("{id: 1, uris: ['/*'], U}", "/uri"),
        ("{id: 1, uri: '/a/*', U}", ""),
        ("{id: 1, uri: '/*', remote_addr: 10.0.0.0/8, U}", ""),
        ("{id: 1, uri: '/*', plugins: {key: {}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {key: {_meta: {disable: true}}}, U}", "/uri"),
        ("{id: 1, uri: '/*', plugins: {log: {}}, U}", "/uri"),
        ("{id: 1, uri: '/*', plugins: {ip-restriction: {whitelist: [10.0.0.0/8]}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {mocking: {response_example: a}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {redirect: {uri: /b}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {redirect: {http_to_https: true}}, U}", "/uri"),
        ("{id: 1, uri: '/*', service_id: s}", ""),
        ("{id: 1, uri: '/*', plugin_config_id: p, U}", ""),
    ] {
        let text = format!(
            "routes:\n  - {}\nservices:\n  - {{id: s, plugins: {{key: {{}}}}, {UP}}}\nplugin_configs:\n  - {{id: p, plugins: {{key: {{}}}}}}\n",
            routes.replace("U}", &format!("{UP}}}"))
        );
        let open: Vec<_> =
            (!open.is_empty()).then(|| format!("no-authentication routes/1{open}")).into_iter().collect();
        assert_eq!(found(&text, Mode::HostUri, &[Code::NoAuthentication]), open, "{routes}");
        let guarded = format!("{text}global_rules:\n  - {{id: g, plugins: {{key: {{}}}}}}\n");
        assert!(found(&guarded, Mode::HostUri, &[Code::NoAuthentication]).is_empty());
    }
}

#[test]
fn the_number_of_findings_is_bounded() {
    let mut all = model::Desired::default();
    for n in 0..MOST + 50 {
        let value = json!({"uri": "/a", "upstream": {"nodes": {"127.0.0.1:80": 1}}});
        all.put(entry(model::Kind::Route, &format!("{n:04}"), value));
    }
    let analysis = look(&all, Mode::HostUri, true);
    assert_eq!(analysis.findings.len(), MOST);
    assert_eq!(analysis.more.get(&Code::Unreachable), Some(&49));
    assert_eq!(analysis.to_json()["total"], json!(MOST + 49));
    assert!(analysis.to_string().ends_with("\nand 49 more of unreachable\n"));
    assert_eq!(look(&model::Desired::default(), Mode::HostUri, true).to_string(), "nothing found\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// No kind of request that routes distinguish reaches a route reported as unreachable.
    #[test]
    fn no_request_reaches_an_unreachable_route(
        routes in prop::collection::vec(
            (
                prop::sample::subsequence(vec!["/a", "/a/*", "/a/b", "/*", "/a/b*", "/a/:x", "/a/*/c"], 1..3),
                prop::sample::subsequence(vec!["a.b", "*.b", "c.a.b"], 0..3),
                prop::sample::subsequence(vec!["GET", "POST"], 0..3),
                -1..2i64,
                prop::bool::weighted(0.3),
            ),
            1..7,
        ),
        mode in prop::sample::select(vec![Mode::HostUri, Mode::Uri, Mode::UriWithParameter]),
    ) {
        let mut all = model::Desired::default();
        for (id, (uris, hosts, methods, priority, vars)) in routes.iter().enumerate() {
            let mut route = json!({"uris": uris, "priority": priority, "upstream": {"nodes": {"127.0.0.1:80": 1}}});
            if !hosts.is_empty() {
                route["hosts"] = json!(hosts);
            }
            if !methods.is_empty() {
                route["methods"] = json!(methods);
            }
            if *vars {
                route["vars"] = json!([["arg_v", "==", "1"]]);
            }
            all.put(entry(model::Kind::Route, &id.to_string(), route));
        }
        let settings = snapshot::compile::Settings { mode, ..snapshot::compile::Settings::default() };
        let mut compiler = snapshot::Compiler::new(std::sync::Arc::new(Plugins), settings);
        let compiled = compiler.compile(&all, &Touched::all(), &Table::default(), 1);
        let analysis = look(&all, mode, true);
        let unreachable: Vec<&str> = analysis.findings.iter()
            .filter(|one| one.code == Code::Unreachable).map(|one| one.key.id.as_str()).collect();
        let mut probe = Probe::default();
        for method in ["GET", "POST", "PUT", "SPECIAL"] {
            for host in ["a.b", "c.a.b", "x.b", "x"] {
                for target in ["/a", "/a/", "/a/b", "/a/b?v=1", "/a/bc", "/a/x/c", "/a/x/c?v=1", "/x", "/", "/a?v=1", "/x?v=1"] {
                    probe.ask(method, target, &[("Host", host)]);
                    let mut x = probe.exchange();
                    let taken = compiled.snapshot.router.find(&mut x).plan().map(|plan| &*plan.info.id);
                    prop_assert!(!taken.is_some_and(|id| unreachable.contains(&id)), "{} {}{} reaches {:?}", method, host, target, taken);
                }
            }
        }
    }
}

#[test]
fn variables_without_a_value() {
    let codes = [Code::UnknownVariable, Code::LiteralParameter, Code::DoubleEncoding];
    for (route, host_uri, with_parameter) in [
        ("uri: '/a/:id'", "literal-parameter routes/1/uri", ""),
        ("uris: [/b, '/a/:id/c']", "literal-parameter routes/1/uris", ""),
        ("uri: '/a:id'", "", ""),
        ("uri: /a, vars: [[uri_param_id, '==', '1']]", "unknown-variable routes/1/vars/0", "="),
        (
            "uri: /a, vars: [OR, [arg_a, '==', '1'], [AND, [uri_param_id, '==', '1'], [arg_b, '==', uri_param_x]]]",
            "unknown-variable routes/1/vars/2/1",
            "=",
        ),
        ("uri: /a, vars: [[uri_param__path, '==', /a]]", "", ""),
        (
            "uri: /a, plugins: {limit-count: {key: remote_adr}}",
            "unknown-variable routes/1/plugins/limit-count/key",
            "=",
        ),
        (
            "uri: /a, plugins: {limit-req: {key: $remote_addr}}",
            "unknown-variable routes/1/plugins/limit-req/key",
            "=",
        ),
        (
            "uri: /a, plugins: {limit-conn: {key: '$remote_addr $consumr_name', key_type: var_combination}}",
            "unknown-variable routes/1/plugins/limit-conn/key",
            "=",
        ),
        ("uri: /a, plugins: {limit-count: {key: any text, key_type: constant}}", "", ""),
        ("uri: /a, plugins: {limit-count: {key: http_x_tenant}}", "", ""),
        ("uri: /a, plugins: {limit-count: {key: '$remote_addr $uri', key_type: var_combination}}", "", ""),
        (
            "uri: /a, plugins: {proxy-rewrite: {uri: '/b$request_uri'}}",
            "double-encoding routes/1/plugins/proxy-rewrite/uri",
            "=",
        ),
        ("uri: /a, plugins: {proxy-rewrite: {uri: '/b$uri'}}", "", ""),
    ] {
        let text = format!("routes:\n  - {{id: 1, {UP}, {route}}}\n");
        let expected = |text: &str| text.split_terminator(", ").map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(found(&text, Mode::HostUri, &codes), expected(host_uri), "{route}");
        let with_parameter = if with_parameter == "=" { host_uri } else { with_parameter };
        assert_eq!(found(&text, Mode::UriWithParameter, &codes), expected(with_parameter), "{route}");
    }
}
