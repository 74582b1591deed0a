//! The paths outside the collections of resources.

use serde_json::{Map, Value, json};

use super::answers::of_any_name;
use super::{operation, query, reference, with_parameters};

/// Adds them.
pub(super) fn add(paths: &mut Map<String, Value>) {
    let mut add = |path: &str, methods: &[(&str, Value)]| {
        let mut item = with_parameters(path);
        for (method, operation) in methods {
            item[*method] = operation.clone();
        }
        paths.insert(path.to_owned(), item);
    };
    plugins_and_schemas(&mut add);
    documents(&mut add);
    revisions(&mut add);
    explanations(&mut add);
    state(&mut add);
}

/// Adds a path with its methods.
type Add<'a> = &'a mut dyn FnMut(&str, &[(&str, Value)]);

fn object() -> Option<Value> {
    Some(json!({"type": "object"}))
}

fn answer(name: &str) -> [(u16, Option<Value>); 1] {
    [(200, Some(reference(name)))]
}

fn plugins_and_schemas(add: Add<'_>) {
    let names = json!({"type": "array", "items": {"type": "string"}});
    add(
        "/plugins/list",
        &[("get", operation("Names of the plugins in use", "list_plugins", None, &[(200, Some(names))]))],
    );
    add(
        "/plugins/reload",
        &[("put", operation("Reads the list of plugins again", "reload_plugins", None, &[(200, None)]))],
    );
    let described = of_any_name(&reference("described_plugin"));
    let mut all =
        operation("Describes the plugins in use", "describe_plugins", None, &[(200, Some(described))]);
    all["parameters"] = json!([
        query("all", json!({"const": "true"})),
        query("subsystem", json!({"type": "string", "enum": ["http", "stream"]})),
    ]);
    all["parameters"][0]["required"] = json!(true);
    add("/plugins", &[("get", all)]);
    add(
        "/plugins/{name}",
        &[("get", operation("The schema of a plugin", "plugin", None, &[(200, object())]))],
    );
    add("/schema/{name}", &[("get", operation("The schema of a kind", "schema", None, &[(200, object())]))]);
    add(
        "/schema/plugins/{name}",
        &[("get", operation("The schema of a plugin", "plugin_schema", None, &[(200, object())]))],
    );
    add(
        "/schema/validate/{collection}",
        &[("post", operation("Checks an object", "validate", object(), &[(200, None)]))],
    );
    add(
        "/configs/validate",
        &[("post", operation("Checks a whole document", "validate_all", object(), &[(200, object())]))],
    );
}

/// Whole documents, and several writes at once.
fn documents(add: Add<'_>) {
    let mut put =
        operation("Replaces everything by a document", "put_configs", object(), &[(202, None), (204, None)]);
    put["parameters"] = json!([{"name": "X-Digest", "in": "header", "required": true, "schema": {"type": "string", "pattern": "^[!-~]{1,64}$"}}]);
    add(
        "/configs",
        &[("get", operation("Everything as a document", "configs", None, &[(200, object())])), ("put", put)],
    );
    let operations = json!({
        "type": "object",
        "properties": {"operations": {"type": "array", "minItems": 1, "maxItems": 1000, "items": {
            "type": "object",
            "properties": {
                "method": {"type": "string", "enum": ["PUT", "POST", "PATCH", "DELETE"]},
                "path": {"type": "string", "description": "below /apisix/admin, such as /routes/1"},
                "body": {},
            },
            "required": ["method", "path"],
        }}},
        "required": ["operations"],
    });
    add(
        "/batch",
        &[("post", operation("Several writes, all or none", "batch", Some(operations), &[(200, object())]))],
    );
}

/// The history, and the change that waits to be confirmed.
fn revisions(add: Add<'_>) {
    let revision = json!({"type": "integer", "minimum": 0});
    let mut list = operation("Lists revisions, newest first", "list_revisions", None, &answer("revisions"));
    list["parameters"] = json!([query("limit", revision.clone()), query("before", revision.clone())]);
    add("/revisions", &[("get", list)]);
    let summary = "Shows the differences between two revisions";
    let mut diff = operation(summary, "diff_revisions", None, &answer("revision_diff"));
    diff["parameters"] = json!([query("from", revision.clone()), query("to", revision)]);
    add("/revisions/diff", &[("get", diff)]);
    let summary = "The change that waits to be confirmed (X-Sluice-Confirm)";
    let waits = operation(summary, "get_unconfirmed", None, &answer("unconfirmed"));
    add("/revisions/unconfirmed", &[("get", waits)]);
    let confirm = operation("Keeps the change that waits", "confirm", None, &[(200, object())]);
    add("/revisions/unconfirmed/confirm", &[("post", confirm)]);
    let mut undo =
        operation("Takes the change that waits back", "undo_unconfirmed", None, &[(200, object())]);
    undo["responses"]["409"] = json!({"description": "The history does not have the change any more."});
    add("/revisions/unconfirmed/undo", &[("post", undo)]);
    add(
        "/revisions/{revision}",
        &[("get", operation("One write", "get_revision", None, &answer("revision")))],
    );
    let summary = "Puts everything back to what it was after a revision";
    add(
        "/revisions/{revision}/rollback",
        &[("post", operation(summary, "rollback", None, &[(200, object())]))],
    );
}

/// Explanations of requests and of a change, and the analysis.
fn explanations(add: Add<'_>) {
    let text = json!({"type": "string"});
    let mut url = query("url", json!({"type": "string", "minLength": 1}));
    url["required"] = json!(true);
    let summary = "Explains which route, plugins and server a request would meet";
    let mut explain = operation(summary, "explain", None, &answer("explanation"));
    explain["parameters"] = json!([
        url,
        query("method", text.clone()),
        query("header", json!({"type": "array", "items": text.clone()})),
        query("remote_addr", text),
        query("revision", json!({"type": "integer", "minimum": 0})),
    ]);
    add("/explain", &[("get", explain)]);
    let request = json!({"type": "object", "required": ["url"], "properties": {
        "method": {"type": "string"}, "url": {"type": "string"}, "remote_addr": {"type": "string"},
        "headers": {"type": "array", "items": {"type": "string"}},
    }});
    let change = json!({"type": "object", "required": ["kind", "id", "requests"], "properties": {
        "kind": {"type": "string"}, "id": {"type": "string"}, "value": {"type": "object"},
        "requests": {"type": "array", "minItems": 1, "maxItems": 20, "items": request},
    }});
    let summary = "Explains requests before and after a change that is not made";
    let preview = operation(summary, "explain_change", Some(change), &answer("explained_change"));
    add("/explain/change", &[("post", preview)]);
    let summary = "Lists likely mistakes in the configuration";
    add("/analysis", &[("get", operation(summary, "analysis", None, &answer("analysis")))]);
}

/// The state of the gateway, and this document.
fn state(add: Add<'_>) {
    let summary = "Describes the gateway and the parts that need attention";
    add("/status", &[("get", operation(summary, "status", None, &answer("status")))]);
    let summary = "Lists the other instances of the cluster that report themselves in etcd, up to 200";
    add("/instances", &[("get", operation(summary, "instances", None, &answer("instances")))]);
    let summary = "Lists the results of health checks";
    add("/healthcheck", &[("get", operation(summary, "healthcheck", None, &answer("healthcheck")))]);
    let mut history = operation("One ring of the live view", "live_history", None, &answer("live_history"));
    let text = json!({"type": "string"});
    history["parameters"] = json!([
        query("of", text.clone()),
        query("route", text.clone()),
        query("node", text.clone()),
        query("stream", text.clone()),
        query("worker", text),
        query("step", json!({"type": "integer", "enum": [1, 10, 60]})),
    ]);
    add("/live/history", &[("get", history)]);
    add("/openapi.json", &[("get", operation("This document", "openapi", None, &[(200, object())]))]);
}
