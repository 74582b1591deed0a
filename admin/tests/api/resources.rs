//! The Admin API as its users see it: resources, their methods and their envelopes.

use std::sync::Arc;

use admin::Config;
use control::store::Memory;
use serde_json::{Value, json};

use crate::fixture::{Fixture, config, route};

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
