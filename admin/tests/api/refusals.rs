//! Refused requests: statuses and messages of APISIX 3.

use std::sync::Arc;

use admin::Config;
use control::store::Memory;
use serde_json::{Value, json};

use crate::fixture::{Fixture, config, route};

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
            "filter_func is not supported: it is Lua, which this build does not run",
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
