//! Plugins, schemas and validation without a write.

use serde_json::{Value, json};

use crate::fixture::{Fixture, route};

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
