//! Schemas of OpenAPI in the words of the drafts 4 to 7, which the gateway's schemas have.
//!
//! The whole document is changed in place, so that pointers lead where they led. Members that are no schemas are changed
//! as well where they look like one, which has no effect.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Translates a document.
pub(super) fn document(document: &mut Value, is_3_0: bool) {
    let mut anchors = BTreeMap::new();
    collect_anchors(document, "", &mut anchors);
    translate(document, is_3_0, &anchors);
}

/// The places of `$anchor` and `$dynamicAnchor`, by name.
fn collect_anchors(value: &Value, pointer: &str, anchors: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            for keyword in ["$anchor", "$dynamicAnchor"] {
                if let Some(Value::String(name)) = members.get(keyword) {
                    anchors.entry(name.clone()).or_insert_with(|| pointer.to_owned());
                }
            }
            for (name, value) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect_anchors(value, &format!("{pointer}/{name}"), anchors);
            }
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(at, value)| collect_anchors(value, &format!("{pointer}/{at}"), anchors));
        }
        _ => {}
    }
}

fn translate(value: &mut Value, is_3_0: bool, anchors: &BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(|value| translate(value, is_3_0, anchors));
            if is_3_0 {
                of_3_0(members);
            } else {
                of_3_1(members, anchors);
            }
            forget_read_only(members);
        }
        Value::Array(items) => items.iter_mut().for_each(|value| translate(value, is_3_0, anchors)),
        _ => {}
    }
}

/// `nullable`, and bounds that are excluded by a boolean.
fn of_3_0(schema: &mut Map<String, Value>) {
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        if let Some(Value::String(kind)) = schema.get("type").cloned() {
            schema.insert("type".to_owned(), json!([kind, "null"]));
        }
        if let Some(Value::Array(values)) = schema.get_mut("enum")
            && !values.contains(&Value::Null)
        {
            values.push(Value::Null);
        }
    }
    for (bound, excluded) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        match schema.get(excluded) {
            Some(Value::Bool(true)) => {
                let value = schema.shift_remove(bound);
                schema.shift_remove(excluded);
                schema.extend(value.map(|value| (excluded.to_owned(), value)));
            }
            Some(Value::Bool(false)) => _ = schema.shift_remove(excluded),
            _ => {}
        }
    }
}

/// Keywords of JSON Schema 2020-12.
fn of_3_1(schema: &mut Map<String, Value>, anchors: &BTreeMap<String, String>) {
    if let Some(Value::Array(_)) = schema.get("prefixItems") {
        let first = schema.shift_remove("prefixItems").unwrap_or_default();
        let rest = schema.insert("items".to_owned(), first);
        schema.extend(rest.map(|rest| ("additionalItems".to_owned(), rest)));
    }
    for (new, old) in [("dependentRequired", "dependencies"), ("dependentSchemas", "dependencies")] {
        if let Some(Value::Object(members)) = schema.get(new).cloned() {
            let all = schema.entry(old).or_insert_with(|| json!({}));
            if let Value::Object(all) = all {
                all.extend(members);
            }
        }
    }
    // There is one schema resource, so an anchor has one place.
    for keyword in ["$dynamicRef", "$ref"] {
        let Some(Value::String(reference)) = schema.get(keyword) else { continue };
        let name = reference.strip_prefix('#').filter(|name| !name.is_empty() && !name.starts_with('/'));
        let place = name.and_then(|name| anchors.get(name));
        let target = match (place, keyword) {
            (Some(pointer), _) => format!("#{pointer}"),
            (None, "$dynamicRef") => reference.clone(),
            _ => continue,
        };
        schema.shift_remove(keyword);
        schema.insert("$ref".to_owned(), json!(target));
    }
    // Keywords beside a reference count as well.
    const NOTES: [&str; 3] = ["$ref", "description", "summary"];
    if schema.get("$ref").is_some_and(Value::is_string)
        && schema.keys().any(|keyword| !NOTES.contains(&keyword.as_str()))
    {
        let reference = schema.shift_remove("$ref").unwrap_or_default();
        let others = std::mem::take(schema);
        schema.insert("allOf".to_owned(), json!([{"$ref": reference}, others]));
    }
}

/// A request need not have the properties that only answers have.
fn forget_read_only(schema: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    let is_read_only = |name: &Value| {
        let property = name.as_str().and_then(|name| properties.get(name));
        property.is_some_and(|property| property.get("readOnly") == Some(&Value::Bool(true)))
    };
    let Some(Value::Array(required)) = schema.get("required") else { return };
    let left: Vec<Value> = required.iter().filter(|name| !is_read_only(name)).cloned().collect();
    schema.insert("required".to_owned(), Value::Array(left));
}
