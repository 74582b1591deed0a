//! Applies a PATCH to a stored value.

use model::Invalid;
use model::json::MAX_DEPTH;
use serde_json::{Map, Value};

/// Merges `change` into `value`: objects are merged, `null` deletes, everything else replaces.
///
/// As in APISIX an empty object replaces too, since Lua cannot tell it from an empty list:
/// `{"plugins":{}}` removes all plugins.
pub(crate) fn merge(value: &mut Value, change: Value) {
    match (value, change) {
        (Value::Object(there), Value::Object(change)) => {
            for (name, part) in change {
                match (there.get_mut(&name), part) {
                    (_, Value::Null) => {
                        there.shift_remove(&name);
                    }
                    (Some(old @ Value::Object(_)), Value::Object(part)) if !part.is_empty() => {
                        merge(old, Value::Object(part));
                    }
                    (_, part) => {
                        there.insert(name, without_nulls(part));
                    }
                }
            }
        }
        (value, change) => *value = without_nulls(change),
    }
}

/// Replaces the value at `path`, creating missing objects; `null` deletes it.
///
/// # Errors
/// `invalid sub-path: /a/b` if the path passes through a value that is not an object, or if the result would be
/// nested more deeply than a body may be.
pub(crate) fn set(value: &mut Value, path: &[String], part: Value) -> Result<(), Invalid> {
    let invalid = |depth: usize| Invalid::new(format!("invalid sub-path: /{}", path[..depth].join("/")));
    let Some((last, way)) = path.split_last() else {
        *value = part;
        return Ok(());
    };
    if path.len() + levels(&part) > MAX_DEPTH {
        return Err(Invalid::new(format!(
            "invalid sub-path: nested too deeply, more than {MAX_DEPTH} levels"
        )));
    }
    let mut at = value;
    for (depth, name) in way.iter().enumerate() {
        let map = at.as_object_mut().ok_or_else(|| invalid(depth))?;
        at = map.entry(name.as_str()).or_insert_with(|| Value::Object(Map::new()));
        if !at.is_object() {
            return Err(invalid(depth + 1));
        }
    }
    let map = at.as_object_mut().ok_or_else(|| invalid(path.len()))?;
    match part {
        Value::Null => map.shift_remove(last),
        part => map.insert(last.clone(), part),
    };
    Ok(())
}

/// Returns the depth of nested lists and objects. A body has at most [`MAX_DEPTH`].
fn levels(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(levels).max().unwrap_or(0),
        Value::Array(list) => 1 + list.iter().map(levels).max().unwrap_or(0),
        _ => 0,
    }
}

/// Removes nulls from a new value: a deletion of a missing field must leave nothing behind.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let parts = map.into_iter().filter(|(_, part)| !part.is_null());
            Value::Object(parts.map(|(name, part)| (name, without_nulls(part))).collect())
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_merge_and_the_rest_is_replaced() {
        let mut value = json!({
            "uri": "/a",
            "methods": ["GET", "POST"],
            "upstream": {"type": "roundrobin", "nodes": {"a:1": 1, "b:1": 1}},
            "plugins": {"cors": {}}
        });
        merge(
            &mut value,
            json!({
                "desc": "x",
                "methods": ["PUT"],
                "upstream": {"nodes": {"b:1": null, "c:1": 2}},
                "plugins": {},
                "labels": {"a": null}
            }),
        );
        assert_eq!(
            value,
            json!({
                "uri": "/a",
                "desc": "x",
                "methods": ["PUT"],
                "upstream": {"type": "roundrobin", "nodes": {"a:1": 1, "c:1": 2}},
                "plugins": {},
                "labels": {}
            })
        );
    }

    #[test]
    fn lists_and_maps_replace_each_other() {
        let mut value = json!({"nodes": [{"host": "a"}]});
        merge(&mut value, json!({"nodes": {"a:1": 1}}));
        assert_eq!(value, json!({"nodes": {"a:1": 1}}));
        merge(&mut value, json!({"nodes": [1]}));
        assert_eq!(value, json!({"nodes": [1]}));
    }

    fn at(value: Value, path: &str, part: Value) -> Result<Value, Value> {
        let mut value = value;
        let path: Vec<String> = path.split('/').map(str::to_owned).collect();
        match set(&mut value, &path, part) {
            Ok(()) => Ok(value),
            Err(invalid) => Err(json!({ "error_msg": invalid.reason })),
        }
    }

    #[test]
    fn a_sub_path_is_replaced() {
        let value = json!({"upstream": {"nodes": {"a:1": 1}}, "uri": "/"});
        assert_eq!(
            at(value.clone(), "upstream/nodes", json!({"b:1": 0})),
            Ok(json!({"upstream": {"nodes": {"b:1": 0}}, "uri": "/"}))
        );
        assert_eq!(
            at(value.clone(), "plugins/cors/x", json!(1)),
            Ok(json!({"upstream": {"nodes": {"a:1": 1}}, "uri": "/", "plugins": {"cors": {"x": 1}}}))
        );
        assert_eq!(at(value.clone(), "upstream", Value::Null), Ok(json!({"uri": "/"})));
        assert_eq!(at(value.clone(), "uri/x", json!(1)), Err(json!({"error_msg": "invalid sub-path: /uri"})));
        assert_eq!(at(value, "uri/x/y", json!(1)), Err(json!({"error_msg": "invalid sub-path: /uri"})));
    }

    #[test]
    fn nothing_is_nested_more_deeply_than_a_body_may_be() {
        let path = |length: usize| vec!["a".to_owned(); length];
        for (length, part, fits) in [
            (128, json!(1), true),
            (129, json!(1), false),
            (30_000, json!(1), false),
            (127, json!({}), true),
            (127, json!({"b": [1]}), false),
            (126, json!([{"b": 1}, []]), true),
            (129, json!(null), false),
        ] {
            let mut value = json!({});
            let done = set(&mut value, &path(length), part);
            assert_eq!(done.is_ok(), fits, "{length}");
            assert!(model::json::read(value.to_string().as_bytes()).is_ok(), "{length}");
        }
    }
}
