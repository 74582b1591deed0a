//! Constructs and the resources they become.

use model::Kind;
use serde_json::json;

use super::*;

#[test]
fn fixtures_are_valid() {
    for (name, text) in FIXTURES {
        let import = import(text);
        assert_valid(&import, name);
        assert_plugins_accept(&import, name);
    }
}

/// The resource of this kind and id.
fn resource(import: &Import, kind: Kind, id: &str) -> Value {
    let found = import.resources.iter().find(|resource| resource.key == model::Key::new(kind, id));
    found.unwrap_or_else(|| panic!("no {kind:?} {id}")).value.clone()
}

/// The severities and constructs of the findings.
fn findings(import: &Import) -> Vec<String> {
    import
        .findings
        .iter()
        .map(|finding| format!("{} {}", finding.severity.as_str(), finding.construct))
        .collect()
}

fn routes(plugins: &str) -> String {
    format!(
        "_format_version: '3.0'\nservices:\n- name: s\n  url: http://a:8080\n  routes:\n  - {{name: one, paths: [/one]}}\n  \
         - {{name: two, paths: [/two]}}\n- name: t\n  url: http://b\n  routes:\n  - {{name: three, paths: [/three]}}\n\
         consumers:\n- username: jack\n- username: anna\nplugins:\n{plugins}\n"
    )
}

#[test]
fn the_narrowest_instance_counts() {
    let text = routes(
        "- {name: ip-restriction, config: {deny: [10.0.0.1]}}\n\
         - {name: ip-restriction, service: s, config: {deny: [10.0.0.2]}}\n\
         - {name: ip-restriction, route: two, config: {deny: [10.0.0.3]}}\n\
         - {name: ip-restriction, consumer: jack, config: {deny: [10.0.0.4]}}\n\
         - {name: ip-restriction, service: s, enabled: false, config: {deny: [10.0.0.5]}}",
    );
    let import = import(&text);
    let plugins = |kind, id| resource(&import, kind, id)["plugins"]["ip-restriction"]["blacklist"].clone();
    assert_eq!(plugins(Kind::Service, "t"), json!(["10.0.0.1"]));
    assert_eq!(plugins(Kind::Service, "s"), json!(["10.0.0.2"]));
    assert_eq!(plugins(Kind::Route, "one"), Value::Null);
    assert_eq!(plugins(Kind::Route, "two"), json!(["10.0.0.3"]));
    assert_eq!(plugins(Kind::Consumer, "jack"), json!(["10.0.0.4"]));
}

#[test]
fn a_global_limit_counts_all_routes_together() {
    let limit = |value: &Value| value["plugins"]["limit-count"].clone();
    let one = import(&routes("- {name: rate-limiting, config: {minute: 5, policy: local}}"));
    let (s, t) = (limit(&resource(&one, Kind::Service, "s")), limit(&resource(&one, Kind::Service, "t")));
    assert_eq!((&s, &s["group"]), (&t, &json!("kong-rate-limiting-0")));
    assert_eq!((&s["count"], &s["time_window"], &s["key"]), (&json!(5), &json!(60), &json!("remote_addr")));
    let several = import(&routes(
        "- {name: rate-limiting, config: {second: 1, hour: 9}}\n- {name: rate-limiting, route: one, config: {hour: 3}}",
    ));
    let rule = limit(&resource(&several, Kind::GlobalRule, "limit-count"));
    assert_eq!(rule["_meta"]["filter"], json!([["route_id", "~=", null], ["route_id", "!", "in", ["one"]]]));
    assert_eq!(rule["rules"].as_array().map(Vec::len), Some(2));
    assert_eq!(limit(&resource(&several, Kind::Route, "one"))["count"], 3);
}

#[test]
fn limits_are_counted_in_redis() {
    let limit = |config: &str| {
        let import = import(&routes(&format!(
            "- {{name: rate-limiting, route: one, config: {{minute: 5, {config}}}}}"
        )));
        let together = !import.findings.iter().any(|finding| finding.effect.starts_with("each node counts"));
        (resource(&import, Kind::Route, "one")["plugins"]["limit-count"].clone(), together)
    };
    let fields = |value: &Value| {
        ["policy", "redis_host", "redis_port", "redis_password", "redis_ssl", "allow_degradation"]
            .map(|name| value[name].clone())
    };
    let old = limit("policy: redis, redis_host: re, redis_port: 6380, redis_password: '{vault://env/pass}'");
    let expected = json!(["redis", "re", 6380, "$env://PASS", null, true]);
    assert_eq!((json!(fields(&old.0)), old.1), (expected, true));
    let new = limit("policy: redis, fault_tolerant: false, redis: {host: redis, ssl: true}");
    assert_eq!((json!(fields(&new.0)), new.1), (json!(["redis", "redis", null, null, true, null]), true));
    let unread = "- {name: rate-limiting, route: one, config: {minute: 5, policy: redis, redis_host: re, redis_password: '{vault://hcv/a/b}'}}";
    let found = import(&routes(unread)).findings;
    assert!(
        found
            .iter()
            .any(|one| one.severity == crate::Severity::Guard && one.effect.contains("not be limited"))
    );
    for config in [
        "policy: cluster",
        "policy: redis",
        "policy: redis, redis: {sentinel_nodes: [{host: a, port: 1}], host: redis}",
    ] {
        let (value, together) = limit(config);
        assert_eq!((value.get("policy"), together), (None, false), "{config}");
    }
    let import = import(&routes(
        "- {name: rate-limiting-advanced, route: one, config: {limit: [5], window_size: [60], strategy: redis, sync_rate: 2, redis: {cluster_nodes: [{ip: a, port: 7000}]}}}",
    ));
    let value = &resource(&import, Kind::Route, "one")["plugins"]["limit-count"];
    assert_eq!((&value["policy"], &value["sync_interval"]), (&json!("redis-cluster"), &json!(2.0)));
    assert_eq!(value["redis_cluster_nodes"], json!(["a:7000"]));
}

#[test]
fn guards_name_their_routes_alone() {
    let import = import(&routes(
        "- {name: oauth2, route: one}\n- {name: opa, service: t}\n- {name: zipkin}\n- {name: key-auth, config: {anonymous: absent}}",
    ));
    let guarded: Vec<String> = ["one", "two", "three"]
        .into_iter()
        .filter(|id| import.guards(&model::Key::new(Kind::Route, *id)).next().is_some())
        .map(str::to_owned)
        .collect();
    assert_eq!(guarded, ["one", "three"]);
    let expected = [
        "guard plugins[0]",
        "guard plugins[1]",
        "behaviour plugins[2]",
        "behaviour plugins[3].config.anonymous",
    ];
    assert_eq!(findings(&import), expected);
}

#[test]
fn several_credentials_and_plugins_of_authentication() {
    let import = import(FIXTURES[2].1);
    let alice = resource(&import, Kind::Consumer, "alice-example-com");
    assert_eq!(alice["plugins"]["key-auth"], json!({"key": "alice-1"}));
    assert_eq!(alice["plugins"]["jwt-auth"]["secret"], "from-the-environment");
    assert_eq!(alice["group_id"], "gold");
    assert_eq!(alice["labels"], json!({"custom_id": "a-1", "tags": "staff"}));
    let third = resource(&import, Kind::Credential, "alice-example-com/credentials/key-auth-3");
    assert_eq!(third["plugins"]["key-auth"]["key"], "$env://ALICE_KEY");
    let keys = resource(&import, Kind::Route, "keys")["plugins"].clone();
    assert_eq!(keys["multi-auth"]["auth_plugins"][1]["key-auth"]["header"], "X-Key");
    assert_eq!(keys["consumer-restriction"]["whitelist"], json!(["alice-example-com", "bob"]));
    let either = resource(&import, Kind::Route, "either")["plugins"]["multi-auth"]["auth_plugins"].clone();
    assert_eq!(
        either[1]["key-auth"],
        json!({"header": "apikey", "query": "", "anonymous_consumer": "anybody"})
    );
    let tokens = resource(&import, Kind::Route, "tokens")["plugins"]["jwt-auth"].clone();
    assert_eq!(tokens["_meta"]["filter"], json!([["request_method", "~=", "OPTIONS"]]));
    let empty =
        resource(&import, Kind::Route, "signed")["plugins"]["consumer-restriction"]["whitelist"].clone();
    assert_eq!(empty, json!(["."]));
}

#[test]
fn upstreams_have_nodes_checks_and_hashing() {
    let import = import(FIXTURES[3].1);
    let pool = resource(&import, Kind::Upstream, "pool");
    let nodes = json!([
        {"host": "10.0.0.1", "port": 8080, "weight": 10},
        {"host": "10.0.0.2", "port": 8000, "weight": 100},
        {"host": "::1", "port": 8081, "weight": 100},
    ]);
    assert_eq!(pool["nodes"], nodes);
    assert_eq!(
        (&pool["type"], &pool["hash_on"], &pool["key"]),
        (&json!("chash"), &json!("header"), &json!("X-User"))
    );
    let active = json!({
        "type": "https", "http_path": "/health", "https_verify_certificate": false, "timeout": 2, "concurrency": 3,
        "req_headers": ["X-Check: 1"],
        "healthy": {"interval": 5, "successes": 2, "http_statuses": [200]},
        "unhealthy": {"interval": 3, "http_failures": 2, "tcp_failures": 254, "timeouts": 254, "http_statuses": [500]},
    });
    assert_eq!(pool["checks"]["active"], active);
    assert_eq!(pool["checks"]["passive"]["unhealthy"]["tcp_failures"], 2);
    // The upstream with the host of the client is another resource.
    let hosts = ["pool", "pool-2"].map(|id| resource(&import, Kind::Upstream, id)["pass_host"].clone());
    assert_eq!(hosts, [json!("rewrite"), json!("pass")]);
    assert_eq!(resource(&import, Kind::Route, "balanced-host")["upstream_id"], "pool-2");
    let passive = resource(&import, Kind::Upstream, "passive-only");
    assert_eq!(passive["sluice"], json!({"outlier": {"consecutive_failures": 3}}));
    let tls = resource(&import, Kind::Service, "secured")["upstream"]["tls"].clone();
    assert_eq!(tls["verify"], true);
    assert!(
        ["ca", "client_cert", "client_key"]
            .iter()
            .all(|name| tls[name].as_str().is_some_and(|pem| pem.len() > 200))
    );
    assert_eq!(
        resource(&import, Kind::Ssl, "a.example.com")["snis"],
        json!(["a.example.com", "*.a.example.com", "c.example.com"])
    );
}

#[test]
fn routes_of_connections_open_their_ports() {
    let import = import(FIXTURES[0].1);
    let ports: Vec<(u16, bool)> =
        import.listeners.iter().map(|listener| (listener.port, listener.tls)).collect();
    assert_eq!(ports, [(8000, false), (8443, true), (5432, false), (5433, true)]);
    let streams: Vec<&Value> = import
        .resources
        .iter()
        .filter(|resource| resource.key.kind == Kind::StreamRoute)
        .map(|resource| &resource.value)
        .collect();
    assert_eq!(streams[0]["server_port"], 5432);
    assert_eq!(streams[0]["upstream"]["scheme"], "tcp");
    let tls = json!({"remote_addr": "10.0.0.0/8", "server_port": 5433, "sni": "db.example.com"});
    for (name, value) in tls.as_object().unwrap() {
        assert_eq!(&streams[1][name], value);
    }
}

/// A service `s` with a stream route `t`, and these plugins.
fn stream(plugins: &str) -> Import {
    import(&format!(
        "_format_version: '3.0'\nservices:\n- name: s\n  url: tcp://127.0.0.1:5000\n  routes:\n  \
         - {{name: t, protocols: [tcp], destinations: [{{port: 9000}}]}}\n  \
         - {{name: u, protocols: [tcp], destinations: [{{port: 9001}}]}}\nplugins:\n{plugins}\n"
    ))
}

#[test]
fn the_narrowest_restriction_of_addresses_counts_on_a_stream_route() {
    let global = "- {name: ip-restriction, config: {allow: [10.0.0.0/8]}}";
    let service = "- {name: ip-restriction, service: s, config: {allow: [10.1.0.0/16]}}";
    let both = "- {name: ip-restriction, route: t, config: {allow: [10.0.0.0/8], deny: [10.2.0.0/16]}}";
    let imported = stream(both);
    let settings = imported.resources.iter().find_map(|one| one.value.pointer("/plugins/ip-restriction"));
    assert_eq!(settings, Some(&json!({"whitelist": ["10.0.0.0/8"], "except": ["10.2.0.0/16"]})));
    let route = "- {name: ip-restriction, route: t, config: {deny: [10.2.0.0/16], status: 418}}";
    let requests = "- {name: ip-restriction, protocols: [http, https], config: {allow: [10.0.0.0/8]}}";
    for (plugins, expected) in [
        (global.to_owned(), json!({"whitelist": ["10.0.0.0/8"]})),
        (format!("{global}\n{service}"), json!({"whitelist": ["10.1.0.0/16"]})),
        (format!("{route}\n{service}\n{global}"), json!({"blacklist": ["10.2.0.0/16"]})),
        (requests.to_owned(), json!(null)),
    ] {
        let import = stream(&plugins);
        assert_valid(&import, &plugins);
        let t = resource(&import, Kind::StreamRoute, "0000-t");
        assert_eq!(t["plugins"]["ip-restriction"], expected, "{plugins}");
        assert_eq!(import.count(crate::Severity::Guard), 0, "{plugins}: {:?}", import.findings);
    }
}

#[test]
fn what_may_protect_a_stream_route_closes_it_alone() {
    for (plugin, guarded) in [
        ("{name: pre-function, config: {preread: [x]}}", vec!["0000-t", "0001-u"]),
        ("{name: post-function, service: s, config: {preread: [x]}}", vec!["0000-t", "0001-u"]),
        ("{name: own-plugin, route: t}", vec!["0000-t"]),
        ("{name: ip-restriction, route: u, config: {allow: [10.0.0.1], deny: [10.0.0.2]}}", vec![]),
        ("{name: pre-function, protocols: [http], config: {access: [x]}}", vec![]),
        ("{name: opa}", vec![]),
        ("{name: tcp-log, route: t, config: {host: a, port: 1}}", vec![]),
    ] {
        let import = stream(&format!("- {plugin}"));
        let ids: Vec<&str> = import
            .resources
            .iter()
            .filter(|one| one.key.kind == Kind::StreamRoute && import.guards(&one.key).next().is_some())
            .map(|one| one.key.id.as_str())
            .collect();
        assert_eq!(ids, guarded, "{plugin}: {:?}", import.findings);
    }
}

#[test]
fn plugins_of_a_second_group_of_a_consumer_are_a_guard() {
    let severity = |second: &str| {
        let text = format!(
            "{}consumer_groups:\n- {{name: gold, plugins: [{{name: rate-limiting, config: {{minute: 9}}}}]}}\n{second}\n",
            routes("- {name: key-auth}")
                .replace("- username: anna", "- {username: anna, groups: [{name: gold}, {name: late}]}")
        );
        let import = import(&text);
        let found = import.findings.iter().find(|finding| finding.effect.contains("one group here"));
        found.unwrap_or_else(|| panic!("{:?}", import.findings)).severity
    };
    let limit = "plugins: [{name: rate-limiting, config: {minute: 1}}]";
    assert_eq!(severity(&format!("- {{name: late, {limit}}}")), crate::Severity::Guard);
    assert_eq!(severity("- {name: late}"), crate::Severity::Behaviour);
}

#[test]
fn documents_defaults_and_shared_configurations_of_deck() {
    let import = import(FIXTURES[4].1);
    let one = resource(&import, Kind::Service, "one");
    assert_eq!(one["upstream"]["nodes"], json!([{"host": "10.0.0.9", "port": 8080, "weight": 1}]));
    assert_eq!(one["upstream"]["retries"], 3);
    let route = resource(&import, Kind::Route, "one")["plugins"].clone();
    // `strip_path: false` is a default of the file, and `minute` is overridden.
    assert_eq!((&route["proxy-rewrite"], &route["limit-count"]["count"]), (&Value::Null, &json!(20)));
    assert_eq!(resource(&import, Kind::Route, "two")["plugins"]["limit-count"]["count"], 10);
}

#[test]
fn folders_of_logs_are_a_setting() {
    let import = import(&routes(
        "- {name: file-log, config: {path: /srv/logs/a.log}}\n- {name: file-log, service: s, config: {path: /dev/stdout}}",
    ));
    assert_eq!(import.settings[0].path, "plugin_attr.file-logger.allowed_paths");
    assert_eq!(import.settings[0].value, json!(["logs", "/var/log", "/srv/logs"]));
}

#[test]
fn arguments_of_the_query_are_changed() {
    let text = "_format_version: '3.0'\nservices:\n- name: a\n  url: http://b/\n  routes: [{name: r, paths: [/]}]\n  plugins:\n  - name: request-transformer\n    config:\n      remove: {querystring: [a]}\n      rename: {querystring: ['b:c']}\n      replace: {querystring: ['d:$(headers.x-d)']}\n      add: {querystring: ['e:1']}\n      append: {querystring: ['f:2']}\n";
    let import = import(text);
    let rewrite =
        import.resources.iter().find_map(|one| one.value.pointer("/plugins/proxy-rewrite/query")).unwrap();
    let expected = json!({"remove": ["a"], "rename": {"b": "c"}, "replace": {"d": "${http_x_d}"},
        "default": {"e": "1"}, "add": {"f": "2"}});
    assert_eq!(*rewrite, expected);
    assert!(import.findings.iter().all(|finding| !finding.effect.contains("query")), "{:?}", import.findings);
}
