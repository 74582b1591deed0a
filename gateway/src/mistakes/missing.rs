//! The required fields that a value lacks, by its schema, and stand-ins for them.
//!
//! Only what a schema requires in any case is looked for. Where one of several will do, the check says which
//! it takes the operator to have meant.

use std::collections::BTreeMap;

use model::Invalid;
use model::invalid::push_pointer;
use serde_json::{Map, Value, json};

/// The most items or characters of a stand-in; a schema may require more.
const MOST_PARTS: u64 = 64;

/// A required field that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Where the object stands that lacks it.
    pub object: String,
    pub name: String,
}

impl Missing {
    /// Where it would stand.
    pub fn place(&self) -> String {
        let mut place = self.object.clone();
        push_pointer(&mut place, &self.name);
        place
    }

    /// Whether a check reports this field as missing in APISIX's words, after any prefix.
    pub fn is_told_by(&self, invalid: &Invalid) -> bool {
        invalid.pointer == self.object && of_reason(&invalid.reason) == Some(&self.name)
    }

    /// The same where a check says something else first; as `other` is said, if the same object lacks that.
    pub fn said_as(&self, other: &Invalid) -> Invalid {
        let invalid = Invalid::missing(&self.name).at(self.object.clone());
        let before = of_reason(&other.reason).and_then(|name| {
            other.reason.strip_suffix(&Invalid::missing(name).reason).filter(|_| other.pointer == self.object)
        });
        invalid.said(before.unwrap_or_default())
    }

    pub fn expected(&self) -> String {
        format!("a property `{}`", self.name)
    }

    pub fn hint(&self) -> String {
        format!("property `{}` is required", self.name)
    }

    /// `value` without what stands in its place; `None` if the object is not there either.
    pub fn taken_from(&self, value: &Value) -> Option<Value> {
        let mut value = value.clone();
        value.pointer_mut(&self.object)?.as_object_mut()?.shift_remove(&self.name)?;
        Some(value)
    }
}

/// The field that is missing, where that is what a refusal says.
pub fn named<'a>(reason: &'a str, hint: Option<&'a str>) -> Option<&'a str> {
    of_reason(reason).or_else(|| hint?.strip_prefix("property `")?.strip_suffix("` is required"))
}

fn of_reason(reason: &str) -> Option<&str> {
    reason.strip_suffix("\" is required")?.rsplit_once("property \"").map(|(_, name)| name)
}

/// All that `value` lacks of one alternative, filled in, except at the places `but`: that of which a refusal names a
/// field, or the only one of which something is there. `None` if nothing is filled in.
pub fn fill_alternative(
    schema: &Value,
    value: &mut Value,
    invalid: &Invalid,
    but: &[String],
) -> Option<Vec<Missing>> {
    let schema = schema_at(schema, &invalid.pointer);
    let fields = value.pointer_mut(&invalid.pointer)?.as_object_mut()?;
    let alternatives = ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    let required: Vec<&Vec<Value>> = alternatives.filter_map(|one| one["required"].as_array()).collect();
    let has = |names: &[Value], is: &dyn Fn(&str) -> bool| names.iter().filter_map(Value::as_str).any(is);
    let meant = match named("", invalid.hint.as_deref()) {
        Some(name) => *required.iter().find(|names| has(names, &|one| one == name))?,
        None => {
            let mut begun = required.iter().filter(|names| has(names, &|one| fields.contains_key(one)));
            begun.next().filter(|_| begun.next().is_none())?
        }
    };
    let missing = meant.iter().filter_map(Value::as_str).filter(|name| !fields.contains_key(*name));
    let missing = missing.map(|name| Missing { object: invalid.pointer.clone(), name: name.to_owned() });
    let missing: Vec<Missing> = missing.filter(|found| !but.contains(&found.place())).collect();
    for found in &missing {
        fields.insert(found.name.clone(), stand_in(&schema["properties"][&found.name]));
    }
    (!missing.is_empty()).then_some(missing)
}

/// Returns the part of a schema that describes the value at a pointer.
fn schema_at<'s>(schema: &'s Value, pointer: &str) -> &'s Value {
    pointer.split('/').skip(1).fold(schema, |schema, part| match part.parse::<usize>() {
        Ok(_) if schema["items"].is_object() => &schema["items"],
        _ => {
            let name = part.replace("~1", "/").replace("~0", "~");
            schema["properties"].get(&name).unwrap_or(&schema["additionalProperties"])
        }
    })
}

/// Puts a stand-in where a required field is missing, except at the places `but`; what was missing.
pub fn fill(schema: &Value, value: &mut Value, but: &[String]) -> Vec<Missing> {
    let mut missing = Vec::new();
    walk(schema, value, "", &mut |found| {
        let is_wanted = !but.contains(&found.place());
        missing.extend(is_wanted.then_some(found));
        is_wanted
    });
    missing
}

/// Calls `visit` for each missing field, and fills in those for which it returns true.
fn walk(schema: &Value, value: &mut Value, pointer: &str, visit: &mut impl FnMut(Missing) -> bool) {
    match value {
        Value::Object(fields) => {
            // Those that were there, as stand-ins lack nothing.
            let known: BTreeMap<&String, &Value> =
                schema["properties"].as_object().into_iter().flatten().collect();
            for (name, field) in &mut *fields {
                let inside = known.get(name).copied().unwrap_or(&schema["additionalProperties"]);
                walk(inside, field, &below(pointer, name), visit);
            }
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let found = Missing { object: pointer.to_owned(), name: name.to_owned() };
                if !fields.contains_key(name) && visit(found) {
                    fields.insert(name.to_owned(), stand_in(&schema["properties"][name]));
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                walk(&schema["items"], item, &below(pointer, &at.to_string()), visit);
            }
        }
        _ => {}
    }
}

fn below(pointer: &str, name: &str) -> String {
    let mut pointer = pointer.to_owned();
    push_pointer(&mut pointer, name);
    pointer
}

/// A value that a schema takes, unless it asks for more than is understood here.
fn stand_in(schema: &Value) -> Value {
    if let Some(value) = schema.get("default").or_else(|| schema.get("const")) {
        return value.clone();
    }
    let first = ["enum", "oneOf", "anyOf"].iter().find_map(|key| Some((*key, schema.get(*key)?.get(0)?)));
    match first {
        Some(("enum", value)) => return value.clone(),
        Some((_, one)) => return stand_in(one),
        None => {}
    }
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let parts = |key: &str| schema.get(key).and_then(Value::as_u64).unwrap_or(0).min(MOST_PARTS);
    let kind = &schema["type"];
    match kind.as_str().or_else(|| kind.get(0)?.as_str()).unwrap_or("object") {
        "integer" | "number" => {
            let least = number("minimum").or_else(|| Some(number("exclusiveMinimum")?.floor() + 1.0));
            let most = number("maximum").or_else(|| Some(number("exclusiveMaximum")? / 2.0));
            let some = least.unwrap_or(1.0).max(1.0);
            let within = most.map_or(some, |most| some.min(most));
            if within.fract() == 0.0 { json!(within as i64) } else { json!(within) }
        }
        "boolean" => json!(true),
        "array" => {
            let items = (0..parts("minItems")).map(|_| stand_in(&schema["items"]));
            Value::Array(items.collect())
        }
        "string" => json!("x".repeat(parts("minLength").max(1) as usize)),
        "object" => {
            let mut value = Value::Object(Map::new());
            walk(schema, &mut value, "", &mut |_| true);
            value
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_found_at_any_depth_and_filled() {
        let schema = json!({
            "required": ["n", "kind"],
            "properties": {
                "n": {"type": "integer", "minimum": 5},
                "kind": {"enum": ["a", "b"]},
                "list": {"type": "array", "items": {"required": ["x/y"], "properties": {"x/y": {"type": "string", "minLength": 2}}}},
            },
            "additionalProperties": {"required": ["z"]},
        });
        let mut value = json!({"list": [{"x/y": "is there"}, {}], "other": {}});
        let missing = fill(&schema, &mut value, &[]);
        let places: Vec<String> = missing.iter().map(Missing::place).collect();
        assert_eq!(places, ["/list/1/x~1y", "/other/z", "/n", "/kind"]);
        assert_eq!(
            value,
            json!({"list": [{"x/y": "is there"}, {"x/y": "xx"}], "other": {"z": {}}, "n": 5, "kind": "a"})
        );
        assert_eq!(missing[0].taken_from(&value).unwrap()["list"][1], json!({}));
        assert_eq!(fill(&schema, &mut json!({}), &["/n".to_owned()]), missing[3..]);
        assert_eq!(fill(&schema, &mut value, &[]), []);
    }

    #[test]
    fn stand_ins_are_what_a_schema_takes() {
        for (schema, value) in [
            (json!({"type": "number", "exclusiveMinimum": 0}), json!(1)),
            (json!({"type": "number", "maximum": 0.5}), json!(0.5)),
            (json!({"type": ["string", "integer"]}), json!("x")),
            (json!({"type": "array", "minItems": 2, "items": {"const": 7}}), json!([7, 7])),
            (json!({"oneOf": [{"type": "boolean"}, {"type": "string"}]}), json!(true)),
            (json!({"default": "d", "enum": ["e"]}), json!("d")),
            (json!({"type": "object", "required": ["a"]}), json!({"a": {}})),
        ] {
            assert_eq!(stand_in(&schema), value, "{schema}");
        }
    }

    #[test]
    fn a_message_names_the_field() {
        assert_eq!(
            named("failed to check the configuration of plugin x err: property \"a b\" is required", None),
            Some("a b")
        );
        assert_eq!(named("matches none", Some("property `a` is required")), Some("a"));
        assert_eq!(named("property \"a\" is required when \"b\" is set", None), None);
    }
}
