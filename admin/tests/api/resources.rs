//! The Admin API as its users see it: statuses, envelopes and messages of APISIX 3.

use std::sync::Arc;

use crate::fixture::{Fixture, KEY, PEER, config};
use admin::{AdminKey, AdminRole, Config};
use bytes::Bytes;
use control::store::Memory;
use http::Request;
use serde_json::{Value, json};

fn route() -> Value {
    json!({"uri": "/hello", "upstream": {"type": "roundrobin", "nodes": {"127.0.0.1:1980": 1}}})
}

/// Checks every row of the table of unsupported settings.
#[tokio::test]
async fn unsupported_resources_are_refused() {
    let api = Fixture::over(Arc::new(Memory::default()), Config { streams: true, ..config() });
    for (effect, kind, id, value) in model::gaps::samples() {
        let path = format!("{}/{id}", kind.collection());
        let answer = api.call("PUT", &path, value.clone()).await;
        match effect {
            model::gaps::Effect::Refused => {
                let invalid = model::gaps::check(kind, &value).unwrap_err();
                assert_eq!(answer.1["error_msg"], invalid.reason.as_str(), "{path} {value}");
                assert_eq!(answer.0, 400);
            }
            model::gaps::Effect::Ignored => assert!(answer.0 < 300, "{path} {value} {answer:?}"),
        }
    }
}

#[tokio::test]
async fn a_route_lives_through_all_methods() {
    let api = Fixture::new();
    let (status, made) = api.call("PUT", "routes/1", route()).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["key"], "/apisix/routes/1");
    assert_eq!(made["value"]["id"], "1");
    assert_eq!(made["value"]["uri"], "/hello");
    assert!(made.get("createdIndex").is_none());
    let created = made["value"]["create_time"].clone();
    assert!(created.as_u64().unwrap() > 1_600_000_000);
    assert_eq!(made["value"]["update_time"], created);
    // Nothing that was not sent.
    assert_eq!(made["value"].as_object().unwrap().len(), 5);

    let (status, got) = api.call("GET", "routes/1", Value::Null).await;
    assert_eq!((status, &got["value"]), (200, &made["value"]));
    assert_eq!((&got["createdIndex"], &got["modifiedIndex"]), (&json!(1), &json!(1)));

    let mut changed = route();
    changed["uri"] = json!("/other");
    let (status, put) = api.call("PUT", "routes/1", changed).await;
    assert_eq!(
        (status, &put["value"]["uri"], &put["value"]["create_time"]),
        (200, &json!("/other"), &created)
    );

    let (status, patched) = api.call("PATCH", "routes/1", json!({"desc": "x", "uri": "/p"})).await;
    assert_eq!(
        (status, &patched["value"]["desc"], &patched["value"]["uri"]),
        (200, &json!("x"), &json!("/p"))
    );
    let nodes = json!({"127.0.0.1:1981": 2});
    let (status, patched) = api.call("PATCH", "routes/1/upstream/nodes", nodes.clone()).await;
    assert_eq!((status, &patched["value"]["upstream"]["nodes"]), (200, &nodes));

    let (status, deleted) = api.call("DELETE", "routes/1", Value::Null).await;
    assert_eq!((status, deleted), (200, json!({"key": "/apisix/routes/1", "deleted": "1"})));
    for method in ["GET", "DELETE"] {
        let gone = api.call(method, "routes/1", Value::Null).await;
        assert_eq!(gone, (404, json!({"message": "Key not found"})), "{method}");
    }
    assert_eq!(api.call("PATCH", "routes/1", json!({"desc": "x"})).await.0, 404);
    assert_eq!(api.call("GET", "routes", Value::Null).await, (200, json!({"list": [], "total": 0})));
}

#[tokio::test]
async fn a_post_makes_ids_of_revisions() {
    let api = Fixture::new();
    let (status, first) = api.call("POST", "routes", route()).await;
    assert_eq!((status, &first["value"]["id"]), (201, &json!("00000000000000000001")));
    assert_eq!(first["key"], "/apisix/routes/00000000000000000001");
    let (_, second) = api.call("POST", "routes", route()).await;
    assert_eq!(second["value"]["id"], "00000000000000000002");
}

#[tokio::test]
async fn a_post_never_overwrites() {
    let api = Fixture::new();
    for id in ["00000000000000000003", "00000000000000000004"] {
        assert_eq!(api.call("PUT", &format!("routes/{id}"), route()).await.0, 201);
    }
    let (status, made) = api.call("POST", "routes", route()).await;
    assert_eq!((status, &made["value"]["id"]), (201, &json!("00000000000000000006")));
    let post = json!({"method": "POST", "path": "/apisix/admin/routes", "body": route()});
    assert_eq!(api.call("POST", "batch", json!({"operations": [post, post]})).await.0, 200);
    assert_eq!(api.call("GET", "routes", Value::Null).await.1["total"], 5);
}

#[tokio::test]
async fn refusals_speak_as_apisix_does() {
    let api = Fixture::new();
    let mut with_id = route();
    with_id["id"] = json!("2");
    let mut with_time = route();
    with_time["create_time"] = json!(1);
    let mut upstream_time = route();
    upstream_time["upstream"]["update_time"] = json!(1);
    let bad_plugin = json!({"uri": "/", "plugins": {"limit-count": {}}});
    let no_plugin = json!({"uri": "/", "plugins": {"nope": {}}});
    let cases: Vec<(&str, &str, Value, u16, &str)> = vec![
        ("PUT", "routes/1", Value::Null, 400, "missing configurations"),
        ("PUT", "routes", route(), 400, "missing route id"),
        ("PUT", "routes/1", with_id.clone(), 400, "wrong route id"),
        ("POST", "routes", with_id, 400, "wrong route id, do not need it"),
        ("POST", "routes/1", route(), 400, "wrong route id, do not need it"),
        ("PUT", "routes/1", with_time, 400, "the property is forbidden:  create_time"),
        ("PUT", "routes/1", upstream_time, 400, "the property is forbidden:  upstream.update_time"),
        (
            "PUT",
            "routes/a%20b",
            route(),
            400,
            "invalid configuration: property \"id\" validation failed: object matches none of the required",
        ),
        (
            "PUT",
            "routes/1",
            json!({"uri": "/", "plugins": {}, "methods": ["X"]}),
            400,
            "invalid configuration: property \"methods\" validation failed: failed to validate item 1: matches none of the enum values",
        ),
        (
            "PUT",
            "routes/1",
            json!({"uri": "/", "upstream_id": "9"}),
            400,
            "failed to fetch upstream info by upstream id [9], response code: 404",
        ),
        (
            "PUT",
            "routes/1",
            json!({"uri": "/", "host": "a", "hosts": ["b"], "plugins": {}}),
            400,
            "only one of host or hosts is allowed",
        ),
        (
            "PUT",
            "routes/1",
            bad_plugin,
            400,
            "failed to check the configuration of plugin limit-count err: property \"count\" is required",
        ),
        ("PUT", "routes/1", no_plugin, 400, "unknown plugin [nope]"),
        ("PUT", "routes/1?ttl=x", route(), 400, "invalid argument ttl: should be a number"),
        ("DELETE", "routes", Value::Null, 400, "missing route id"),
        ("PATCH", "routes", json!({}), 400, "missing route id"),
        ("PATCH", "routes/1", Value::Null, 400, "missing new configuration"),
        ("PATCH", "routes/1", json!([1]), 400, "invalid configuration"),
        ("POST", "consumers", json!({"username": "a"}), 405, "not supported `POST` method for consumer"),
        ("PATCH", "plugin_metadata/cors", json!({}), 405, "not supported `PATCH` method for plugin_metadata"),
        ("POST", "global_rules", json!({"plugins": {}}), 405, "not supported `POST` method for global rule"),
        ("GET", "nope", Value::Null, 404, "Unsupported resource type: nope"),
        ("PUT", "stream_routes/1", json!({}), 400, "stream mode is disabled, can not add stream routes"),
        ("PUT", "plugin_metadata/cors", json!([]), 400, "invalid configuration: wrong type: expected object"),
        (
            "PUT",
            "upstreams/1",
            json!({"service_name": "a", "discovery_type": "zookeeper"}),
            400,
            "discovery zookeeper is not supported by this version: there is no such registry",
        ),
        ("PUT", "ssls/1", json!({}), 400, "invalid configuration: then clause did not match"),
        (
            "PUT",
            "routes/1",
            json!({"uri": "/", "plugins": {}, "filter_func": "function() end"}),
            400,
            "filter_func is not supported: it is Lua, which this version does not run",
        ),
    ];
    for (method, path, body, status, reason) in cases {
        assert_eq!(api.refused(method, path, body).await, (status, reason.to_owned()), "{method} {path}");
    }
    let response = api.raw("PUT", "/apisix/admin/routes/1", "{\"uri\": \"/\",\n \"uri\": \"secret\"}").await;
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(response.status(), 400);
    assert_eq!(body["error_msg"], "invalid request body: duplicate key \"uri\" at line 2 column 2");
    assert_eq!(body["hint"], "keep one of the two");
    assert!(response.body().ends_with(b"\n"));
    assert_eq!(api.raw("GET", "/apisix/admin", "").await.status(), 404);
    assert_eq!(api.raw("TRACE", "/apisix/admin/routes", "").await.status(), 404);
}

#[tokio::test]
async fn bodies_are_read_as_apisix_reads_them() {
    let api = Fixture::new();
    // Raw control characters in strings, as curl users write them.
    let body = "{\"uri\": \"/\", \"desc\": \"two\nlines\", \"plugins\": {}}";
    assert_eq!(api.raw("PUT", "/apisix/admin/routes/1", body).await.status(), 201);
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let response = api.raw("PUT", "/apisix/admin/routes/1", &deep).await;
    assert_eq!(response.status(), 400);
    let large = format!("{{\"desc\": \"{}\"}}", "x".repeat(admin::MAX_BODY));
    let response = api.raw("PUT", "/apisix/admin/routes/1", &large).await;
    let said = String::from_utf8_lossy(response.body()).into_owned();
    assert!(said.contains("is greater than the maximum size 1572864 allowed"), "{said}");
    // A body that is not JSON is refused without repeating it.
    let response = api.raw("PUT", "/apisix/admin/routes/1", "{\"key\": canary-secret}").await;
    assert!(!String::from_utf8_lossy(response.body()).contains("canary"));
}

/// Every path of the API, including those that answer 404 with a key.
const WALK: &[(&str, &str)] = &[
    ("GET", ""),
    ("GET", "/"),
    ("GET", "/nope"),
    ("GET", "/plugins/list"),
    ("GET", "/plugins/cors"),
    ("GET", "/plugins?all=true"),
    ("PUT", "/plugins/reload"),
    ("GET", "/plugins/reload"),
    ("GET", "/schema/route"),
    ("GET", "/schema/plugins/cors"),
    ("POST", "/schema/validate/routes"),
    ("POST", "/configs/validate"),
    ("PUT", "/configs"),
    ("GET", "/../admin/routes"),
    ("GET", "/%2e%2e/x"),
    ("OPTIONS", "/routes"),
    ("TRACE", "/routes"),
    ("HEAD", "/routes"),
];

#[tokio::test]
async fn without_a_key_every_route_says_401() {
    let api = Fixture::over(Arc::new(Memory::default()), Config { cors: false, ..config() });
    let mut paths: Vec<(String, String)> =
        WALK.iter().map(|(method, path)| ((*method).to_owned(), format!("/apisix/admin{path}"))).collect();
    paths.push(("GET".to_owned(), "/v1/snapshot".to_owned()));
    for kind in model::Kind::ALL {
        for method in ["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD"] {
            for path in
                ["", "/1", "/1/credentials", "/1/credentials/2", "/1/graphql_cost_decorations/2", "/1/a/b"]
            {
                paths.push((method.to_owned(), format!("/apisix/admin/{}{path}", kind.collection())));
            }
        }
    }
    for (method, path) in paths {
        for key in [None, Some("wrong"), Some("edd1c9f034335f136f87ad84b625c8f1")] {
            let mut request = Request::builder().method(method.as_str()).uri(path.as_str());
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            let request = request.body(Bytes::from_static(b"{\"canary\":1}")).unwrap();
            let response = api.admin.handle(PEER.parse().unwrap(), request).await;
            assert_eq!(response.status(), 401, "{method} {path}");
            let said = String::from_utf8_lossy(response.body()).into_owned();
            assert!(said.contains("failed to check token") && !said.contains("canary"), "{said}");
        }
    }
    // The one exception is ADC's ping.
    let ping = Request::head("/apisix/admin").body(Bytes::new()).unwrap();
    assert_eq!(api.admin.handle(PEER.parse().unwrap(), ping).await.status(), 200);
}

#[tokio::test]
async fn addresses_and_roles_are_kept() {
    let viewer = AdminKey { name: "v".into(), key: "look".into(), role: AdminRole::Viewer };
    let mut own = config();
    own.keys.push(viewer);
    let api = Fixture::over(Arc::new(Memory::default()), own);
    let send = async |peer: &str, method: &str, key: &str| {
        let request = Request::builder()
            .method(method)
            .uri("/apisix/admin/routes")
            .header("x-api-key", key)
            .header("x-forwarded-for", "127.0.0.1")
            .header("x-real-ip", "127.0.0.1")
            .body(Bytes::new())
            .unwrap();
        api.admin.handle(peer.parse().unwrap(), request).await.status().as_u16()
    };
    assert_eq!(send("127.0.0.1", "GET", "look").await, 200);
    assert_eq!(send("127.0.0.1", "POST", "look").await, 401);
    assert_eq!(send("10.1.1.1", "GET", KEY).await, 403);
    assert_eq!(send("::ffff:127.0.0.1", "GET", KEY).await, 200);

    let open = Config { key_required: false, keys: Vec::new(), ..config() };
    let api = Fixture::over(Arc::new(Memory::default()), open);
    let request = Request::put("/apisix/admin/routes/1").body(Bytes::from(route().to_string())).unwrap();
    assert_eq!(api.admin.handle(PEER.parse().unwrap(), request).await.status(), 201);
}

#[tokio::test]
async fn headers_are_those_tools_look_for() {
    let api = Fixture::new();
    let response = api.raw("GET", "/apisix/admin/routes", "").await;
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert!(header("server").unwrap().starts_with("APISIX/3."));
    assert_eq!(header("x-api-version").as_deref(), Some("v3"));
    assert_eq!(header("content-type").as_deref(), Some("application/json"));
    assert_eq!(header("access-control-allow-origin").as_deref(), Some("*"));
    assert_eq!(header("access-control-max-age").as_deref(), Some("3600"));
    let request = Request::options("/apisix/admin/routes").body(Bytes::new()).unwrap();
    let preflight = api.admin.handle(PEER.parse().unwrap(), request).await;
    assert_eq!(preflight.status(), 200);
    assert!(preflight.headers()["access-control-allow-methods"].to_str().unwrap().contains("PATCH"));
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let api = Fixture::new();
    api.call("PUT", "upstreams/u", json!({"nodes": {"a:1": 1}})).await;
    for n in (0..25).rev() {
        let mut value = json!({"uri": format!("/r{n}/x"), "name": format!("route-{n}"), "upstream_id": "u"});
        if n % 5 == 0 {
            value["labels"] = json!({"five": "yes"});
            value["upstream"] = json!({"nodes": {"a:1": 1}});
            value.as_object_mut().unwrap().remove("upstream_id");
        }
        assert_eq!(api.call("PUT", &format!("routes/{n}"), value).await.0, 201);
    }
    let ids = async |query: &str| {
        let (status, body) = api.call("GET", &format!("routes?{query}"), Value::Null).await;
        assert_eq!(status, 200);
        let ids: Vec<String> = body["list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["value"]["id"].as_str().unwrap().to_owned())
            .collect();
        (ids, body["total"].as_u64().unwrap())
    };
    let (page, total) = ids("page=2&page_size=10").await;
    assert_eq!((page.len(), total, page[0].as_str()), (10, 25, "14"));
    assert_eq!(ids("page=3&page_size=10").await.0.len(), 5);
    assert_eq!(ids("page=9&page_size=10").await, (vec![], 25));
    assert_eq!(ids("page=1").await.0.len(), 25);
    // By creation in pages, which a change does not move; by id, as in etcd, without.
    api.call("PATCH", "routes/20", json!({"desc": "changed"})).await;
    let by_creation = |from: usize| (from - 9..=from).rev().map(|n| n.to_string()).collect::<Vec<_>>();
    assert_eq!(ids("page=1&page_size=10").await.0, by_creation(24));
    assert_eq!(ids("page=2&page_size=10").await.0, by_creation(14));
    let mut by_id: Vec<String> = (0..25).map(|n| n.to_string()).collect();
    by_id.sort();
    assert_eq!(ids("").await.0, by_id);
    for (size, shown) in [("10", 10), ("11", 11), ("499", 25), ("500", 25)] {
        assert_eq!(ids(&format!("page=1&page_size={size}")).await.0.len(), shown, "{size}");
    }
    assert_eq!(ids("name=route-2%5Cd").await.1, 5);
    assert_eq!(ids("name=(").await.1, 0);
    assert_eq!(ids("label=five").await.1, 5);
    assert_eq!(ids("label=none").await.1, 0);
    assert_eq!(ids("uri=^/r1[0-2]/").await.1, 3);
    assert_eq!(ids("filter=upstream_id%3Du%26other%3D1").await.1, 20);
    assert_eq!(ids("filter=service_id%3Du").await.1, 0);
    for size in ["9", "9.9", "500.1", "501", "-10", "0"] {
        let answer = api.call("GET", &format!("routes?page=1&page_size={size}"), Value::Null).await;
        assert_eq!(answer, (400, json!("page_size must be between 10 and 500")), "{size}");
    }
}

#[tokio::test]
async fn resources_in_use_are_deleted_only_with_force() {
    let api = Fixture::new();
    api.call("PUT", "upstreams/1", json!({"nodes": {"a:1": 1}})).await;
    api.call("PUT", "services/1", json!({"upstream_id": 1})).await;
    api.call("PUT", "routes/1", json!({"uri": "/", "service_id": "1"})).await;
    assert_eq!(
        api.refused("DELETE", "upstreams/1", Value::Null).await,
        (400, "can not delete this upstream, service [1] is still using it now".to_owned())
    );
    assert_eq!(
        api.refused("DELETE", "services/1?force=false", Value::Null).await,
        (400, "can not delete this service directly, route [1] is still using it now".to_owned())
    );
    assert_eq!(api.call("DELETE", "services/1?force=true", Value::Null).await.0, 200);
}

#[tokio::test]
async fn consumers_and_credentials_belong_together() {
    let api = Fixture::new();
    let key_auth = |key: &str| json!({"key-auth": {"key": key}});
    let (status, jack) =
        api.call("PUT", "consumers", json!({"username": "jack", "plugins": key_auth("k")})).await;
    assert_eq!((status, &jack["key"]), (201, &json!("/apisix/consumers/jack")));
    assert!(jack["value"].get("id").is_none());
    assert_eq!(api.call("PUT", "consumers/jack", json!({"username": "jack"})).await.0, 200);
    for (path, body, reason) in [
        ("consumers/jill", json!({"username": "jack"}), "wrong username"),
        ("consumers", json!({"plugins": {}}), "invalid configuration: property \"username\" is required"),
        (
            "consumers",
            json!({"username": "x", "plugins": {"key-auth": {}}}),
            "invalid plugins configuration: failed to check the configuration of plugin key-auth err: property \"key\" is required",
        ),
        (
            "consumers",
            json!({"username": "x", "group_id": "g"}),
            "failed to fetch consumer group info by consumer group id [g], response code: 404",
        ),
        (
            "consumers/jack/credentials/a",
            json!({"plugins": {"cors": {}}}),
            "only supports auth type plugins in consumer credential",
        ),
    ] {
        assert_eq!(api.refused("PUT", path, body).await, (400, reason.to_owned()), "{path}");
    }
    let credential = json!({"plugins": key_auth("k1")});
    assert_eq!(
        api.refused("PUT", "consumers/bob/credentials/a", credential.clone()).await,
        (404, "consumer not found".to_owned())
    );
    assert_eq!(api.call("GET", "consumers/jack/credentials", Value::Null).await.0, 404);
    let (status, made) = api.call("PUT", "consumers/jack/credentials/a", credential.clone()).await;
    assert_eq!((status, &made["key"]), (201, &json!("/apisix/consumers/jack/credentials/a")));
    assert_eq!(made["value"]["id"], "a");
    let (_, list) = api.call("GET", "consumers/jack/credentials", Value::Null).await;
    assert_eq!(list["total"], 1);
    let (_, list) = api.call("GET", "consumers", Value::Null).await;
    assert_eq!(list["total"], 1);
    assert_eq!(
        api.refused("PUT", "consumers", json!({"username": "bob", "plugins": key_auth("k1")})).await,
        (400, "duplicate key of plugin key-auth found with credential: a of consumer: jack".to_owned())
    );
    assert_eq!(
        api.refused("PUT", "consumers/jack/credentials", json!({"plugins": {}})).await,
        (400, "missing credential id".to_owned())
    );
    assert_eq!(api.call("DELETE", "consumers/jack", Value::Null).await.0, 200);
    assert_eq!(api.call("GET", "consumers/jack/credentials/a", Value::Null).await.0, 404);
}

#[tokio::test]
async fn metadata_is_checked_by_its_plugin() {
    let api = Fixture::new();
    let (status, made) = api.call("PUT", "plugin_metadata/cors", json!({"allow": "*"})).await;
    assert_eq!((status, &made["value"]), (201, &json!({"allow": "*", "id": "cors"})));
    assert_eq!(made["key"], "/apisix/plugin_metadata/cors");
    assert_eq!(api.call("PUT", "plugin_metadata/cors", made["value"].clone()).await.0, 200);
    for (path, body, reason) in [
        ("plugin_metadata", json!({}), "missing plugin name"),
        ("plugin_metadata/nope", json!({}), "invalid plugin name"),
        (
            "plugin_metadata/cors",
            json!({"allow": 1}),
            "invalid configuration: property \"allow\" validation failed: wrong type: expected string, got number",
        ),
    ] {
        assert_eq!(api.refused("PUT", path, body).await, (400, reason.to_owned()), "{path}");
    }
}

#[tokio::test]
async fn a_plugin_stands_in_one_global_rule() {
    let api = Fixture::new();
    let rule = json!({"plugins": {"cors": {}}});
    assert_eq!(api.call("PUT", "global_rules/1", rule.clone()).await.0, 201);
    assert_eq!(api.call("PUT", "global_rules/1", rule.clone()).await.0, 200);
    assert_eq!(
        api.refused("PUT", "global_rules/2", rule).await,
        (400, "plugin 'cors' already exists in global rule with id '1'".to_owned())
    );
}

#[tokio::test]
async fn plugins_and_schemas_are_listed() {
    let api = Fixture::new();
    let get = async |path: &str| api.call("GET", path, Value::Null).await;
    assert_eq!(get("plugins/list").await, (200, json!(["cors", "key-auth", "limit-count"])));
    assert_eq!(get("plugins/list?subsystem=stream").await, (200, json!([])));
    assert_eq!(get("plugins/list?subsystem=x").await, (400, json!("invalid subsystem passed")));
    assert_eq!(get("plugins/limit-count").await.1["required"], json!(["count"]));
    assert_eq!(get("schema/plugins/limit-count").await.1["required"], json!(["count"]));
    assert_eq!(get("plugins/key-auth?schema_type=consumer").await.1["required"], json!(["key"]));
    assert_eq!(
        get("plugins/cors?schema_type=consumer").await,
        (400, json!({"error_msg": "not found schema"}))
    );
    assert_eq!(get("plugins/x").await, (404, json!({"error_msg": "plugin not found in subsystem http"})));
    assert_eq!(get("plugins/x?subsystem=y").await, (400, json!({"error_msg": "unsupported subsystem: y"})));
    let (_, all) = get("plugins?all=true").await;
    assert_eq!((&all["key-auth"]["type"], &all["cors"]["priority"]), (&json!("auth"), &json!(4000)));
    assert_eq!(get("schema/route").await.1["type"], "object");
    assert_eq!(get("schema/nope").await, (400, json!({"error_msg": "not found schema: nope"})));
    assert_eq!(get("plugins/reload").await.0, 405);
    assert_eq!(api.call("PUT", "plugins/reload", Value::Null).await, (200, json!("done")));
    assert_eq!(get("plugins/list").await, (200, json!(["cors", "key-auth"])));
}

#[tokio::test]
async fn objects_are_validated_without_being_written() {
    let api = Fixture::new();
    assert_eq!(api.call("POST", "schema/validate/routes", route()).await, (200, json!("")));
    assert_eq!(api.refused("POST", "schema/validate/routes", json!({"uri": 1})).await.0, 400);
    assert_eq!(api.refused("POST", "schema/validate/nope", json!({})).await.0, 404);
    let document = json!({
        "routes": [{"id": "1", "uri": "/", "plugins": {}}, {"uri": "/", "upstream_id": "none"}],
        "consumers": [{"username": "a"}, {"id": "a/credentials/b", "plugins": {"key-auth": {"key": "k"}}}]
    });
    assert_eq!(api.call("POST", "configs/validate", document).await, (200, json!({})));
    let document = json!({
        "routes": [{"id": 1, "uri": "/", "plugins": {"nope": {}}}, {"id": "1", "uri": "/", "plugins": {}}],
        "routes_conf_version": "x"
    });
    let (status, body) = api.call("POST", "configs/validate", document).await;
    assert_eq!((status, &body["error_msg"]), (400, &json!("Configuration validation failed")));
    assert_eq!(
        body["errors"],
        json!([
            {"resource_type": "routes", "error": "routes_conf_version must be a number, got string"},
            {"resource_type": "routes", "resource_id": "1", "index": 0, "error": "unknown plugin [nope]"},
            {"resource_type": "routes", "resource_id": "1", "index": 1, "error": "found duplicate id 1 in routes"}
        ])
    );
    assert_eq!(api.call("GET", "routes", Value::Null).await.1["total"], 0);
}

#[tokio::test]
async fn concurrent_patches_are_all_applied_or_refused() {
    let api = Arc::new(Fixture::new());
    api.call("PUT", "routes/1", route()).await;
    let patches = (0..20).map(|n| {
        let api = api.clone();
        tokio::spawn(async move {
            api.call("PATCH", "routes/1", json!({"labels": {format!("l{n}"): "x"}})).await.0
        })
    });
    let mut done = 0;
    for patch in patches.collect::<Vec<_>>() {
        match patch.await.unwrap() {
            200 => done += 1,
            503 => {}
            status => panic!("{status}"),
        }
    }
    let (_, body) = api.call("GET", "routes/1", Value::Null).await;
    assert_eq!(body["value"]["labels"].as_object().unwrap().len(), done);
}

#[tokio::test]
async fn the_snapshot_is_shown_with_a_key() {
    let api = Fixture::new();
    let response = api.raw("GET", "/v1/snapshot", "").await;
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(
        body,
        json!({"published": 7, "workers": [{"revision": 7}, {"revision": 6}], "rejected": [], "rejected_total": 0})
    );
}

#[tokio::test]
async fn the_envelopes_of_version_2_can_be_had() {
    let api = Fixture::over(Arc::new(Memory::default()), Config { v2: true, ..config() });
    let (status, made) = api.call("PUT", "routes/1", route()).await;
    assert_eq!(
        (status, &made["action"], &made["node"]["key"]),
        (201, &json!("set"), &json!("/apisix/routes/1"))
    );
    let (_, list) = api.call("GET", "routes", Value::Null).await;
    assert_eq!((&list["node"]["dir"], &list["node"]["key"]), (&json!(true), &json!("/apisix/routes")));
    assert_eq!(list["node"]["nodes"][0]["modifiedIndex"], 1);
    let (_, patched) = api.call("PATCH", "routes/1", json!({"desc": "x"})).await;
    assert_eq!(
        (&patched["action"], &patched["node"]["value"]["desc"]),
        (&json!("compareAndSwap"), &json!("x"))
    );
    let (_, deleted) = api.call("DELETE", "routes/1", Value::Null).await;
    assert_eq!((&deleted["action"], &deleted["deleted"]), (&json!("delete"), &json!("1")));
    let response = api.raw("GET", "/apisix/admin/routes", "").await;
    assert_eq!(response.headers()["x-api-version"], "v2");
}

#[tokio::test]
async fn an_id_in_the_path_is_a_text() {
    let api = Fixture::new();
    let mut value = route();
    value["id"] = json!(7);
    let (status, made) = api.call("PUT", "routes/7", value.clone()).await;
    assert_eq!((status, &made["key"], &made["value"]["id"]), (201, &json!("/apisix/routes/7"), &json!("7")));
    // An integer that only the body has stays one, until a path names it.
    let (status, made) = api.call("PUT", "routes", value).await;
    assert_eq!((status, &made["value"]["id"]), (200, &json!(7)));
    let (status, made) = api.call("PATCH", "routes/7", json!({"desc": "x"})).await;
    assert_eq!((status, &made["value"]["id"]), (200, &json!("7")));
}

#[tokio::test]
async fn expressions_are_checked() {
    let api = Fixture::new();
    let mut value = route();
    value["vars"] = json!([["arg_a", "nope", 1]]);
    let (status, reason) = api.refused("PUT", "routes/1", value.clone()).await;
    assert_eq!(status, 400);
    assert!(reason.starts_with("failed to validate the 'vars' expression: "), "{reason}");
    value["vars"] = json!([["arg_a", "==", "1"]]);
    assert_eq!(api.call("PUT", "routes/1", value).await.0, 201);
}

#[tokio::test]
async fn errors_do_not_repeat_request_values() {
    let api = Fixture::new();
    let secret = "canary-3b9d";
    api.call("PUT", "consumers", json!({"username": "a", "plugins": {"key-auth": {"key": secret}}})).await;
    let bodies = [
        json!({"username": "b", "plugins": {"key-auth": {"key": secret}}}),
        json!({"username": "b", "plugins": {"key-auth": secret}}),
        json!({"username": "b", "plugins": {"key-auth": [secret]}}),
        json!({"username": "b", "plugins": {"key-auth": {"key": {"value": secret}}}}),
        json!({"username": "b", "plugins": secret}),
        json!({"username": "b", "plugins": {"key-auth": {"key": "k"}, "limit-count": {"count": secret}}}),
    ];
    for body in bodies {
        let response = api.raw("PUT", "/apisix/admin/consumers", &body.to_string()).await;
        let said = String::from_utf8_lossy(response.body()).into_owned();
        assert!(response.status() == 400 && !said.contains("canary"), "{body}: {said}");
    }
}
