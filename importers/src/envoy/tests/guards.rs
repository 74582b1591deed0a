//! Access control that cannot be carried over closes its routes, or is carried over in full.

use serde_json::{Value, json};

use super::{assert_valid, import};
use crate::{Import, Severity};

const TYPES: &str = "type.googleapis.com/envoy.extensions.filters.http";

/// A route for `/a` and one for `/b`, in a listener of the port 80.
fn listener(filters: &[Value], manager: &Value, routes: &Value) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": routes}]},
    });
    config.as_object_mut().unwrap().extend(manager.as_object().unwrap().clone());
    json!({
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": 80}},
        "filter_chains": [{"filters": [{"name": "manager", "typed_config": config}]}],
    })
}

fn routes() -> Value {
    json!([
        {"name": "a", "match": {"prefix": "/a"}, "route": {"cluster": "app"}},
        {"name": "b", "match": {"prefix": "/b"}, "route": {"cluster": "app"}},
    ])
}

fn read(listeners: &[Value]) -> Import {
    let cluster = json!({"name": "app", "load_assignment": {"endpoints": [{"lb_endpoints": [{"endpoint":
        {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}}]}]}});
    let text = json!({"static_resources": {"listeners": listeners, "clusters": [cluster]}}).to_string();
    let import = import(&text);
    assert_valid(&import, &text);
    import
}

/// The resources that guards close, in order.
fn closed(import: &Import) -> Vec<String> {
    let guards = import.findings.iter().filter(|finding| finding.severity == Severity::Guard);
    let mut keys: Vec<String> =
        guards.flat_map(|finding| finding.resources.iter().map(ToString::to_string)).collect();
    keys.sort();
    keys.dedup();
    keys
}

fn filter(name: &str, kind: &str) -> Value {
    json!({"name": name, "typed_config": {"@type": format!("{TYPES}.{kind}")}})
}

#[test]
fn a_filter_is_known_by_its_type_and_not_by_its_name() {
    let router = filter("last", "router.v3.Router");
    for kind in
        ["basic_auth.v3.BasicAuth", "api_key_auth.v3.ApiKeyAuth", "lua.v3.Lua", "composite.v3.Composite"]
    {
        for name in ["mine", "envoy.filters.http.cors", "envoy.filters.http.cache", "router"] {
            let import = read(&[listener(&[filter(name, kind), router.clone()], &json!({}), &routes())]);
            assert_eq!(closed(&import), ["routes/v-a", "routes/v-b"], "{name} {kind}");
        }
    }
    let matched = json!({"name": "envoy.filters.http.cors", "typed_config": {"@type":
        "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher"}});
    assert_eq!(closed(&read(&[listener(&[matched], &json!({}), &routes())])).len(), 2);
    for kind in
        ["cache.v3.CacheConfig", "grpc_stats.v3.FilterConfig", "set_metadata.v3.Config", "cors.v3.Cors"]
    {
        let import = read(&[listener(&[filter("my.auth", kind), router.clone()], &json!({}), &routes())]);
        assert_eq!(import.count(Severity::Guard), 0, "{kind}");
    }
}

#[test]
fn filters_of_a_part_of_the_traffic_close_the_route() {
    let mut routes = routes();
    routes[0]["route"] = json!({"weighted_clusters": {"clusters": [
        {"name": "app", "weight": 1, "typed_per_filter_config": {"envoy.filters.http.rbac": {}}}]}});
    assert_eq!(closed(&read(&[listener(&[], &json!({}), &routes)])), ["routes/v-a"]);
}

#[test]
fn addresses_that_proxies_tell_of_need_to_be_trusted_here() {
    let rules = |id: Value| {
        json!({"@type": format!("{TYPES}.rbac.v3.RBAC"), "rules": {"action": "DENY", "policies": {"p":
            {"permissions": [{"any": true}], "principals": [id]}}}})
    };
    let network = json!({"address_prefix": "10.0.0.0", "prefix_len": 8});
    let remote = rules(json!({"remote_ip": network}));
    let direct = rules(json!({"direct_remote_ip": network}));
    let hops = json!({"use_remote_address": true, "xff_num_trusted_hops": 1});
    let detection = json!({"original_ip_detection_extensions": [{"name": "xff"}]});
    let with = |rules: &Value, manager: &Value, routes: &Value| {
        closed(&read(&[listener(&[json!({"name": "r", "typed_config": rules})], manager, routes)]))
    };
    // By default, the last address of `X-Forwarded-For` counts.
    for manager in [&hops, &detection, &json!({}), &json!({"xff_num_trusted_hops": 0})] {
        assert_eq!(with(&remote, manager, &routes()).len(), 2);
    }
    let edge = json!({"use_remote_address": true, "xff_num_trusted_hops": 0});
    assert!(with(&remote, &edge, &routes()).is_empty());
    assert!(with(&direct, &hops, &routes()).is_empty());
    let mut own = routes();
    own[1]["typed_per_filter_config"] =
        json!({"r": {"@type": format!("{TYPES}.rbac.v3.RBACPerRoute"), "rbac": remote}});
    assert_eq!(with(&direct, &hops, &own), ["routes/v-b"]);
}

#[test]
fn a_rule_about_tokens_whose_condition_is_lost_exempts_nothing() {
    let required =
        json!({"match": {"prefix": "/"}, "requires": {"provider_and_audiences": {"provider_name": "p"}}});
    for condition in [
        json!({"connect_matcher": {}}),
        json!({"prefix": "/", "grpc": {}}),
        json!({"prefix": "/", "headers": [{"name": "x", "string_match": {"custom": {"name": "c"}}}]}),
        json!({"prefix": "/", "query_parameters": [{"name": "q", "string_match": {"custom": {"name": "c"}}}]}),
    ] {
        for rules in [
            json!([{"match": condition}, required]),
            json!([{"match": condition, "requires": {"provider_name": "p"}}]),
        ] {
            let mut filter = filter("j", "jwt_authn.v3.JwtAuthentication");
            filter["typed_config"]["rules"] = rules.clone();
            let import = read(&[listener(&[filter], &json!({}), &routes())]);
            assert_eq!(closed(&import), ["routes/v-a", "routes/v-b"], "{rules}");
        }
    }
}

/// A listener with a chain for each condition.
fn chains(conditions: &[Value]) -> Value {
    let mut listener = listener(&[], &json!({}), &json!([]));
    let chain = listener["filter_chains"][0].clone();
    let each = conditions.iter().enumerate().map(|(at, condition)| {
        let mut chain = chain.clone();
        chain["filter_chain_match"] = condition.clone();
        chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"] =
            json!([{"name": at.to_string(), "match": {"prefix": "/"}, "route": {"cluster": "app"}}]);
        chain
    });
    listener["filter_chains"] = each.collect();
    listener
}

#[test]
fn chains_exclude_the_connections_of_better_ones() {
    let range = |range: &str, length: u8| json!([{"address_prefix": range, "prefix_len": length}]);
    let name = json!(["ssl_server_name", "~*", "^(?:a)$"]);
    let inside = json!(["remote_addr", "ipmatch", ["10.0.0.0/8"]]);
    let near = json!(["remote_addr", "ipmatch", ["10.1.0.0/16"]]);
    let import = read(&[chains(&[
        json!({"server_names": ["a"]}),
        json!({"server_names": ["a"], "source_prefix_ranges": range("10.0.0.0", 8)}),
        json!({"server_names": ["a"], "source_prefix_ranges": range("10.1.0.0", 16)}),
    ])]);
    let vars =
        |import: &Import, at: usize| super::resource(import, &format!("routes/v-{at}"))["vars"].clone();
    let not = |range: &Value| json!(["!AND", range, name]);
    assert_eq!(vars(&import, 0), json!([name, not(&inside), not(&near)]));
    assert_eq!(vars(&import, 1), json!([inside, name, not(&near)]));
    assert_eq!(vars(&import, 2), json!([near, name]));
    assert!(closed(&import).is_empty());
    // Which of them is better differs from address to address.
    let mut mixed = range("10.0.0.0", 8);
    mixed.as_array_mut().unwrap().push(json!({"address_prefix": "10.1.1.0", "prefix_len": 24}));
    let import = read(&[chains(&[
        json!({"source_prefix_ranges": mixed}),
        json!({"source_prefix_ranges": range("10.1.0.0", 16)}),
    ])]);
    assert_eq!(closed(&import), ["routes/v-0", "routes/v-1"]);
}

#[test]
fn sources_that_are_not_compared_close_the_routes_of_the_listener() {
    for (condition, closes) in [
        (json!({"source_type": "EXTERNAL"}), true),
        (json!({"source_type": 1}), true),
        (json!({"source_type": "ANY"}), false),
        (json!({"source_ports": [80]}), true),
        (json!({"address_suffix": "10.0.0.1", "suffix_len": 8}), true),
    ] {
        let import = read(&[chains(&[condition.clone(), json!({})])]);
        assert_eq!(closed(&import).len(), if closes { 2 } else { 0 }, "{condition}");
    }
}

#[test]
fn streams_of_some_addresses_alone_are_closed() {
    let tcp = |condition: Value| {
        let mut listener = chains(&[condition]);
        listener["filter_chains"][0]["filters"] = json!([{"name": "envoy.filters.network.tcp_proxy", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "cluster": "app"}}]);
        closed(&read(&[listener]))
    };
    let ranges = json!([{"address_prefix": "10.0.0.0", "prefix_len": 8}]);
    assert_eq!(tcp(json!({"source_prefix_ranges": ranges})), ["stream_routes/port-80"]);
    assert!(tcp(json!({})).is_empty());
}

#[test]
fn listeners_of_one_port_are_distinguished_by_their_addresses() {
    let at = |address: &str, name: &str| {
        let routes = json!([{"name": name, "match": {"prefix": "/"}, "route": {"cluster": "app"}}]);
        let mut listener = listener(&[], &json!({}), &routes);
        listener["address"]["socket_address"]["address"] = json!(address);
        listener
    };
    let import = read(&[at("127.0.0.1", "local"), at("0.0.0.0", "any")]);
    let port = json!(["server_port", "==", "80"]);
    assert_eq!(
        super::resource(&import, "routes/v-local")["vars"],
        json!([["AND", port, ["server_addr", "==", "127.0.0.1"]]])
    );
    assert_eq!(
        super::resource(&import, "routes/v-any")["vars"],
        json!([["AND", port, ["server_addr", "!", "ipmatch", ["127.0.0.1/32"]]]])
    );
}

#[test]
fn a_filter_that_is_off_applies_to_routes_that_turn_it_on() {
    let on = json!({"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": false});
    let mut rbac = filter("r", "rbac.v3.RBAC");
    rbac["typed_config"]["rules"] = json!({"action": "ALLOW"});
    for (mut filter, closes) in [(rbac, 0), (filter("r", "basic_auth.v3.BasicAuth"), 1)] {
        for off in [true, false] {
            filter["disabled"] = json!(off);
            let mut routes = routes();
            routes[1]["typed_per_filter_config"] = json!({"r": on});
            let import = read(&[listener(&[filter.clone()], &json!({}), &routes)]);
            let refuses = |name: &str| super::resource(&import, name).pointer("/plugins/workflow").is_some();
            assert_eq!(closed(&import).len(), closes * if off { 1 } else { 2 });
            assert!(closes == 0 || closed(&import).contains(&"routes/v-b".to_owned()));
            assert_eq!([refuses("routes/v-a"), refuses("routes/v-b")], [closes == 0 && !off, closes == 0]);
        }
    }
}

#[test]
fn routes_that_share_requests_are_joined_only_if_they_protect_alike() {
    let mut rbac = filter("r", "rbac.v3.RBAC");
    rbac["typed_config"]["rules"] = json!({"action": "ALLOW"});
    let off =
        json!({"r": {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true}});
    let share = |percent: u8, own: [&Value; 2]| {
        let mut routes = routes();
        routes[0]["match"] =
            json!({"prefix": "/", "runtime_fraction": {"default_value": {"numerator": percent}}});
        routes[1]["match"] = json!({"prefix": "/"});
        routes[0]["typed_per_filter_config"] = own[0].clone();
        routes[1]["typed_per_filter_config"] = own[1].clone();
        closed(&read(&[listener(&[rbac.clone()], &json!({}), &routes)]))
    };
    for percent in [10, 90] {
        let none = json!({});
        assert!(share(percent, [&none, &none]).is_empty());
        let kept = if percent > 50 { "routes/v-a" } else { "routes/v-b" };
        assert_eq!(share(percent, [&off, &none]), [kept]);
        assert_eq!(share(percent, [&none, &off]), [kept]);
    }
}

#[test]
fn streams_of_one_port_are_distinguished_by_address() {
    let stream = |address: &str, cluster: &str| {
        let config = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "s", "cluster": cluster,
        });
        json!({
            "address": {"socket_address": {"address": address, "port_value": 5432}},
            "filter_chains": [{"filters": [{"name": "tcp", "typed_config": config}]}],
        })
    };
    let of = |listeners: &[Value]| {
        let import = read(listeners);
        let routes = import.resources.iter().filter(|one| one.key.kind == model::Kind::StreamRoute);
        routes.map(|one| (one.key.id.clone(), one.value["server_addr"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(
        of(&[stream("127.0.0.1", "app"), stream("127.0.0.2", "app")]),
        [
            ("port-5432-127.0.0.1".to_owned(), json!("127.0.0.1")),
            ("port-5432-127.0.0.2".to_owned(), json!("127.0.0.2"))
        ]
    );
    assert_eq!(of(&[stream("127.0.0.1", "app")]), [("port-5432".to_owned(), Value::Null)]);
}

#[test]
fn headers_with_the_address_of_a_client_differ_behind_proxies() {
    let mut routes = routes();
    routes[0]["request_headers_to_add"] =
        json!([{"header": {"key": "X-Client", "value": "%DOWNSTREAM_REMOTE_ADDRESS%"}}]);
    routes[1]["response_headers_to_add"] =
        json!([{"header": {"key": "X-Peer", "value": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%"}}]);
    let named = |manager: &Value| -> Vec<String> {
        let import = read(&[listener(&[], manager, &routes)]);
        let all = import.findings.iter().map(|finding| finding.construct.clone());
        all.filter(|construct| construct.contains("headers_to_add")).collect()
    };
    let hops = json!({"use_remote_address": true, "xff_num_trusted_hops": 2});
    for manager in [&json!({"xff_num_trusted_hops": 1}), &hops] {
        assert_eq!(named(manager), ["request_headers_to_add: X-Client"], "{manager}");
    }
    // The last address in `X-Forwarded-For`, or that of the connection.
    let hop = json!({"use_remote_address": true, "xff_num_trusted_hops": 1});
    for manager in
        [&json!({}), &json!({"use_remote_address": false}), &hop, &json!({"use_remote_address": true})]
    {
        assert!(named(manager).is_empty(), "{manager}");
    }
}

#[test]
fn a_rate_limit_service_closes_the_routes() {
    let limit = filter("envoy.filters.http.ratelimit", "ratelimit.v3.RateLimit");
    let import = read(&[listener(&[limit], &json!({}), &routes())]);
    assert_eq!(closed(&import), ["routes/v-a", "routes/v-b"]);
    let hint = import
        .findings
        .iter()
        .find_map(|finding| finding.hint.as_deref().filter(|hint| hint.contains("redis")));
    assert!(hint.is_some(), "{:?}", import.findings);
}

#[test]
fn clients_of_http_are_redirected_before_the_routes_of_a_host_that_requires_tls() {
    let off = json!({"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true});
    let mut rbac = filter("r", "rbac.v3.RBAC");
    rbac["typed_config"]["rules"] = json!({"action": "ALLOW"});
    let read = |manager: Value, required: &str, action: Value| {
        let mut route = action;
        route["name"] = json!("a");
        route["match"] = json!({"prefix": "/a"});
        let host = json!({"name": "v", "domains": ["*"], "require_tls": required, "routes": [route],
            "typed_per_filter_config": {"r": off},
            "response_headers_to_add": [{"header": {"key": "x-served-by", "value": "edge"}}]});
        let mut settings = json!({"route_config": {"virtual_hosts": [host]}});
        settings.as_object_mut().unwrap().extend(manager.as_object().unwrap().clone());
        read(&[listener(&[rbac.clone()], &settings, &json!([]))])
    };
    let severity = |import: &Import, construct: &str| {
        import.findings.iter().find(|finding| finding.construct == construct).map(|finding| finding.severity)
    };
    let keys = |import: &Import| -> Vec<String> {
        let routes = import.resources.iter().filter(|resource| resource.key.kind == model::Kind::Route);
        routes.map(|route| route.key.id.clone()).collect()
    };
    let proxied =
        json!({"route": {"cluster": "app", "internal_redirect_policy": {"max_internal_redirects": 1}}});
    let redirects = json!({"redirect": {"host_redirect": "www.example", "response_code": "FOUND"}});
    let hops = json!({"use_remote_address": true, "xff_num_trusted_hops": 1});
    for required in ["ALL", "EXTERNAL_ONLY"] {
        // No request reaches the route.
        let import = read(json!({"use_remote_address": true}), required, proxied.clone());
        assert_eq!(keys(&import), ["v-require-tls"], "{required}");
        let front = super::resource(&import, "routes/v-require-tls");
        assert_eq!((&front["uri"], front.get("vars")), (&json!("/*"), None));
        // In Envoy, internal clients reach it where those outside alone are redirected.
        let expected = if required == "ALL" { Severity::Cosmetic } else { Severity::Behaviour };
        assert_eq!(severity(&import, "internal_redirect_policy"), Some(expected));
        assert_eq!(severity(&import, "require_tls: ALL"), None);
        // Requests that came to a proxy by TLS reach it, be it a redirect or not.
        for (manager, action) in [(&json!({}), &proxied), (&json!({}), &redirects), (&hops, &redirects)] {
            let import = read(manager.clone(), required, action.clone());
            assert_eq!(keys(&import), ["v-require-tls", "v-a"], "{manager} {required}");
            let front = super::resource(&import, "routes/v-require-tls");
            let route = super::resource(&import, "routes/v-a");
            assert_eq!(front["vars"], json!([["http_x_forwarded_proto", "~=", "https"]]));
            assert!(front["priority"].as_u64() > route["priority"].as_u64());
            let plugins = front["plugins"].as_object().unwrap();
            let names: Vec<&str> = plugins.keys().map(String::as_str).collect();
            assert_eq!(names, ["redirect", "workflow"], "it has no settings and headers of the virtual host");
            assert_eq!(
                plugins["redirect"],
                json!({"uri": "https://${http_host}${real_request_uri}", "ret_code": 301})
            );
            let own = &route["plugins"];
            assert_eq!(own["redirect"]["ret_code"] == 302, action == &redirects);
            assert!(own.get("workflow").is_none() && own["response-rewrite"]["headers"].is_object());
            let followed = (action == &proxied).then_some(Severity::Behaviour);
            assert_eq!(severity(&import, "internal_redirect_policy"), followed);
            assert_eq!(severity(&import, &format!("require_tls: {required}")), Some(Severity::Behaviour));
            assert!(import.findings.iter().any(|finding| finding.effect.contains("trusted_addresses")));
        }
    }
    let import = read(json!({}), "NONE", redirects);
    assert_eq!((keys(&import), severity(&import, "require_tls: NONE")), (vec!["v-a".to_owned()], None));
}

#[test]
fn routes_of_one_manager_know_their_clients_alike() {
    let rules = json!({"@type": format!("{TYPES}.rbac.v3.RBAC"), "rules": {"action": "DENY", "policies": {"p":
        {"permissions": [{"any": true}],
         "principals": [{"remote_ip": {"address_prefix": "10.0.0.0", "prefix_len": 8}}]}}}});
    let filters = [json!({"name": "r", "typed_config": rules})];
    let found = |manager: &Value, value: &str| {
        let mut routes = routes();
        routes[0]["request_headers_to_add"] = json!([{"header": {"key": "x-from", "value": value}}]);
        let import = read(&[listener(&filters, manager, &routes)]);
        let real_ip = |id: &str| super::resource(&import, id)["plugins"].get("real-ip").is_some();
        let guards = import.findings.iter().filter(|finding| finding.severity == Severity::Guard);
        let forged = guards.filter(|finding| finding.effect.contains("clients choose")).count();
        assert_eq!(closed(&import).len(), 2, "{manager} {value}");
        ([real_ip("routes/v-a"), real_ip("routes/v-b")], forged > 0)
    };
    let client = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%";
    let hop = json!({"use_remote_address": true, "xff_num_trusted_hops": 1});
    for manager in [&json!({}), &hop] {
        assert_eq!(found(manager, client), ([true, true], true), "{manager}");
        assert_eq!(found(manager, "edge"), ([false, false], false), "{manager}");
    }
    assert_eq!(found(&json!({"xff_num_trusted_hops": 2}), client), ([false, false], false));
}
