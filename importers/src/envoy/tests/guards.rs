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
    for manager in [&hops, &detection] {
        assert_eq!(with(&remote, manager, &routes()).len(), 2);
    }
    assert!(with(&remote, &json!({"xff_num_trusted_hops": 0}), &routes()).is_empty());
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
