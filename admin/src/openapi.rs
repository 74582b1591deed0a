//! `/apisix/admin/openapi.json`: this API as an OpenAPI 3.1 document.
//!
//! It is built from the tables that the API itself uses: the kinds, their methods and their
//! schemas. Schemas are converted to JSON Schema draft 2020-12.

mod answers;
mod paths;

use std::sync::LazyLock;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use model::Kind;
use serde_json::{Map, Value, json};

use crate::answer;
use crate::plugins::SCHEMAS;
use crate::resources::allows;

/// Answers with the document, which is built once.
pub(crate) fn answer() -> Response<Bytes> {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| (document().to_string() + "\n").into());
    answer::text(StatusCode::OK, DOCUMENT.clone())
}

/// Returns a document with the schemas of the answers that the dashboard reads, for the types of its code.
pub fn answers() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Answers of the Sluice Admin API", "version": "1"},
        "paths": {},
        "components": {"schemas": answers::schemas()},
    })
}

fn document() -> Value {
    let mut paths = Map::new();
    for kind in Kind::ALL {
        of_kind(kind, &mut paths);
    }
    paths::add(&mut paths);
    let mut schemas = answers::schemas();
    for kind in Kind::ALL {
        schemas.insert(name_of(kind), modern(model::schema::document(kind).clone()));
        schemas.insert(format!("{}_entry", name_of(kind)), entry(kind));
    }
    let text = json!({"type": "string"});
    schemas.insert(
        "error".to_owned(),
        json!({
            "type": "object",
            "properties": {
                "error_msg": text, "description": text, "message": text, "pointer": text, "expected": text,
                "got": text, "hint": text, "operation": {"type": "integer"},
            },
        }),
    );
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice Admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The Admin API of Apache APISIX 3.18, and what Sluice adds to it: \
                batch, revisions, explain, analysis, openapi.json.",
        },
        "servers": [{"url": "/apisix/admin"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"}},
            "schemas": schemas,
        },
    })
}

/// Returns the name of a kind among the schemas.
fn name_of(kind: Kind) -> String {
    let known = SCHEMAS.iter().find(|(_, known)| *known == kind);
    known.map_or_else(|| kind.word().replace(' ', "_"), |(name, _)| (*name).to_owned())
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Returns the schema of one resource with its key and, in answers to GET, its revisions.
fn entry(kind: Kind) -> Value {
    let index = json!({"type": "integer"});
    // The value has no schema here: it may have been stored by a version with another one.
    json!({
        "type": "object",
        "description": format!("One of {}, as it is stored.", kind.collection()),
        "properties": {
            "key": {"type": "string"},
            "value": {"type": "object"},
            "createdIndex": index,
            "modifiedIndex": index,
        },
        "required": ["key", "value"],
    })
}

/// Adds the paths of a kind.
fn of_kind(kind: Kind, paths: &mut Map<String, Value>) {
    let collection = match kind {
        Kind::Credential => "/consumers/{username}/credentials".to_owned(),
        Kind::CostDecoration => "/services/{service_id}/graphql_cost_decorations".to_owned(),
        kind => format!("/{}", kind.collection()),
    };
    let one = match kind {
        Kind::Consumer => format!("{collection}/{{username}}"),
        Kind::PluginMetadata => format!("{collection}/{{name}}"),
        Kind::Secret => format!("{collection}/{{manager}}/{{id}}"),
        _ => format!("{collection}/{{id}}"),
    };
    let entry = reference(&format!("{}_entry", name_of(kind)));
    let list = json!({
        "type": "object",
        "properties": {"list": {"type": "array", "items": entry}, "total": {"type": "integer"}},
        "required": ["list", "total"],
    });
    let word = kind.word();
    let mut on_all = with_parameters(&collection);
    on_all["get"] = operation(
        &format!("Lists {}", kind.collection()),
        &format!("list_{}", name_of(kind)),
        None,
        &[(200, Some(list))],
    );
    on_all["get"]["parameters"] = list_parameters();
    let body = || Some(reference(&name_of(kind)));
    if kind == Kind::Consumer {
        on_all["put"] = operation(
            "Makes or replaces the consumer of this name",
            "put_consumer_by_body",
            body(),
            &[(200, Some(entry.clone())), (201, Some(entry.clone()))],
        );
    }
    if allows(kind, &Method::POST) {
        on_all["post"] = operation(
            &format!("Makes a {word}, under an id of its own"),
            &format!("post_{}", name_of(kind)),
            body(),
            &[(201, Some(entry.clone()))],
        );
    }
    paths.insert(collection, on_all);

    let mut on_one = with_parameters(&one);
    let id = name_of(kind);
    on_one["get"] =
        operation(&format!("Reads a {word}"), &format!("get_{id}"), None, &[(200, Some(entry.clone()))]);
    on_one["put"] = operation(
        &format!("Makes or replaces a {word}"),
        &format!("put_{id}"),
        body(),
        &[(200, Some(entry.clone())), (201, Some(entry.clone()))],
    );
    on_one["put"]["parameters"] = json!([ttl()]);
    if allows(kind, &Method::PATCH) {
        let any = Some(json!({"type": "object"}));
        let summary = format!("Merges into a {word}; null removes");
        on_one["patch"] = operation(&summary, &format!("patch_{id}"), any, &[(200, Some(entry))]);
    }
    let deleted = json!({
        "type": "object",
        "properties": {"key": {"type": "string"}, "deleted": {"type": "string"}},
        "required": ["key", "deleted"],
    });
    on_one["delete"] =
        operation(&format!("Deletes a {word}"), &format!("delete_{id}"), None, &[(200, Some(deleted))]);
    on_one["delete"]["parameters"] =
        json!([query("force", json!({"type": "string", "enum": ["true", "false"]}))]);
    paths.insert(one, on_one);
}

fn operation(summary: &str, id: &str, body: Option<Value>, good: &[(u16, Option<Value>)]) -> Value {
    let mut responses = Map::new();
    for (status, schema) in good {
        let mut response = json!({"description": "Done."});
        if let Some(schema) = schema {
            response["content"] = json!({"application/json": {"schema": schema}});
        }
        responses.insert(status.to_string(), response);
    }
    for (status, words) in [
        ("400", "The request is invalid; `pointer`, `expected`, `got` and `hint` show where and why."),
        ("401", "The key is missing or wrong, or its role does not allow the method."),
        ("403", "The address may not use this API, or a web page sent it without the token of a session."),
        ("404", "The resource does not exist."),
        ("405", "The kind does not have this method, or the store is read-only."),
        ("429", "Too many wrong keys came from this address."),
        ("503", "The store cannot be reached, or another write came first."),
    ] {
        responses.insert(status.to_owned(), json!({"description": words}));
    }
    for status in ["400", "401"] {
        // Some of APISIX's answers are plain texts, which a schema of objects would reject.
        let error = json!({"anyOf": [reference("error"), {"type": "string"}]});
        if status == "401" {
            responses[status]["content"] = json!({"application/json": {"schema": error}});
        }
    }
    let mut operation = json!({"summary": summary, "operationId": id, "responses": responses});
    if let Some(schema) = body {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// Returns a path item with the parameters of the path.
fn with_parameters(path: &str) -> Value {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters = names.map(|name| {
        let schema = match name {
            "revision" => json!({"type": "integer", "minimum": 0}),
            "manager" => json!({"type": "string", "enum": ["vault", "aws", "gcp"]}),
            "username" => json!({"type": "string", "pattern": "^[a-zA-Z0-9_\\-]{1,64}$"}),
            _ => json!({"type": "string", "pattern": "^[a-zA-Z0-9_\\-]{1,64}$"}),
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    json!({"parameters": parameters.collect::<Vec<_>>()})
}

fn query(name: &str, schema: Value) -> Value {
    json!({"name": name, "in": "query", "schema": schema})
}

fn ttl() -> Value {
    query("ttl", json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000_000}))
}

/// The values of `sort`.
const SORTS: [&str; 8] = ["id", "-id", "name", "-name", "created", "-created", "updated", "-updated"];

fn list_parameters() -> Value {
    let text = json!({"type": "string"});
    json!([
        query("page", json!({"type": "integer", "minimum": 1})),
        query("page_size", json!({"type": "integer", "minimum": 10, "maximum": 500})),
        query("name", text.clone()),
        query("label", text.clone()),
        query("uri", text.clone()),
        query("filter", text.clone()),
        query("search", text),
        query("status", json!({"type": "string", "enum": ["0", "1"]})),
        query("sort", json!({"type": "string", "enum": SORTS})),
    ])
}

/// Converts a schema to the keywords of draft 2020-12.
fn modern(schema: Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let mut out = Map::new();
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("dependencies", Value::Object(all)) => {
                        let (names, schemas): (Map<_, _>, Map<_, _>) =
                            all.into_iter().partition(|(_, needed)| needed.is_array());
                        if !names.is_empty() {
                            out.insert("dependentRequired".to_owned(), names.into());
                        }
                        if !schemas.is_empty() {
                            out.insert("dependentSchemas".to_owned(), modern(schemas.into()));
                        }
                    }
                    ("items", items @ Value::Array(_)) => {
                        out.insert("prefixItems".to_owned(), modern(items));
                    }
                    // Texts and values, not schemas.
                    ("default" | "enum" | "const" | "required", value) => {
                        out.insert(name, value);
                    }
                    (_, value) => {
                        out.insert(name, modern(value));
                    }
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => items.into_iter().map(modern).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_paths_and_methods() {
        let document = document();
        for kind in Kind::ALL {
            let of_kind = |path: &&String| match kind {
                kind if kind.owner().is_some() => path.contains(&format!("/{}", kind.collection())),
                kind => {
                    let owned = kind.owned().is_some_and(|owned| path.contains(owned.collection()));
                    path.split('/').nth(1) == Some(kind.collection()) && !owned
                }
            };
            let paths = document["paths"].as_object().unwrap();
            let items: Vec<&Value> =
                paths.iter().filter(|(path, _)| of_kind(path)).map(|(_, item)| item).collect();
            assert_eq!(items.len(), 2, "{kind}");
            let has = |method: &str| items.iter().any(|item| item.get(method).is_some());
            assert_eq!(has("post"), allows(kind, &Method::POST), "{kind}");
            assert_eq!(has("patch"), allows(kind, &Method::PATCH), "{kind}");
            assert!(has("get") && has("put") && has("delete"), "{kind}");
        }
    }

    #[test]
    fn operations_have_names_of_their_own_and_references_lead_somewhere() {
        let document = document();
        let mut ids = Vec::new();
        let mut references = Vec::new();
        walk(&document, &mut |name, value| match name {
            "operationId" => ids.push(value.as_str().unwrap().to_owned()),
            "$ref" => references.push(value.as_str().unwrap().to_owned()),
            _ => {}
        });
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count);
        for reference in references {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }

    #[test]
    fn schemas_speak_the_newer_draft() {
        let old =
            json!({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}, "items": [{"type": "string"}]});
        assert_eq!(
            modern(old),
            json!({
                "dependentRequired": {"a": ["b"]},
                "dependentSchemas": {"c": {"required": ["d"]}},
                "prefixItems": [{"type": "string"}],
            })
        );
    }

    fn walk(value: &Value, look: &mut dyn FnMut(&str, &Value)) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                if value.is_string() {
                    look(name, value);
                }
                walk(value, look);
            }),
            Value::Array(items) => items.iter().for_each(|item| walk(item, look)),
            _ => {}
        }
    }
}
