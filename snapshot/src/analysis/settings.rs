//! Plugin settings that no plugin reads: as in APISIX, a misspelt name is accepted and has no
//! effect.
//!
//! Only reported where the schema lists every field; a schema that allows others proves nothing.

use std::collections::HashMap;

use model::invalid::{nearest, push_pointer};
use model::{Invalid, Key, Kind, Resource};
use sdk::catalog::{Facts, SchemaType, Subsystem};
use serde_json::{Map, Value};

use super::{Analysis, Code, Input};

/// JSON Schema keywords whose subschemas apply to the same value.
const MORE: [&str; 7] = ["allOf", "anyOf", "oneOf", "if", "then", "else", "not"];

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    let mut declared: HashMap<(Subsystem, String), Option<Facts>> = HashMap::new();
    for entry in of.desired.iter() {
        let key = &entry.key;
        let subsystem = match key.kind {
            Kind::StreamRoute => Subsystem::Stream,
            _ => Subsystem::Http,
        };
        let mut check = |plugin: &str, fields, place, besides: &[&str], pointer: &str| {
            let facts = declared
                .entry((subsystem, plugin.to_owned()))
                .or_insert_with(|| of.catalog.facts(subsystem, plugin));
            let Some(facts) = facts else { return };
            let schema = match place {
                SchemaType::Metadata => facts.metadata_schema.as_ref(),
                SchemaType::Consumer => facts.consumer_schema.as_ref().or(Some(&facts.schema)),
                SchemaType::Route | SchemaType::Stream => Some(&facts.schema),
            };
            let of_consumers = facts.consumer_schema.as_ref().filter(|_| place == SchemaType::Route);
            let mut check = FieldCheck { key, plugin, of_consumers, found };
            if let Some(schema) = schema {
                check.fields(fields, &[schema], besides, pointer);
            }
        };
        if let Resource::PluginMetadata(metadata) = entry.resource() {
            let besides = ["id", "create_time", "update_time"];
            check(&key.id, &metadata.value, SchemaType::Metadata, &besides, "");
        }
        let place = match key.kind {
            Kind::Consumer | Kind::Credential => SchemaType::Consumer,
            _ => SchemaType::Route,
        };
        for (name, config) in entry.resource().plugins().into_iter().flatten() {
            let mut pointer = String::from("/plugins");
            push_pointer(&mut pointer, name);
            if let Value::Object(fields) = config {
                check(name, fields, place, &["_meta"], &pointer);
            }
        }
    }
}

/// The plugin whose settings are checked.
struct FieldCheck<'a> {
    key: &'a Key,
    plugin: &'a str,
    /// Its schema on consumers, when it is checked on a route.
    of_consumers: Option<&'a Value>,
    found: &'a mut Analysis,
}

impl FieldCheck<'_> {
    /// Checks the field names of an object; those in `besides` are always allowed.
    fn fields(&mut self, fields: &Map<String, Value>, schemas: &[&Value], besides: &[&str], pointer: &str) {
        let declared = DeclaredFields::of(schemas);
        for (name, value) in fields {
            let mut pointer = pointer.to_owned();
            push_pointer(&mut pointer, name);
            match declared.fields.get(name.as_str()) {
                Some(schemas) => self.value(value, schemas, &pointer),
                None if declared.is_open
                    || declared.fields.is_empty()
                    || besides.contains(&name.as_str()) => {}
                None => self.report(name, &declared, pointer),
            }
        }
    }

    fn value(&mut self, value: &Value, schemas: &[&Value], pointer: &str) {
        match value {
            Value::Object(fields) => self.fields(fields, schemas, &[], pointer),
            Value::Array(items) => {
                let declared = DeclaredFields::of(schemas);
                for (at, item) in items.iter().enumerate() {
                    self.value(item, &declared.items, &format!("{pointer}/{at}"));
                }
            }
            _ => {}
        }
    }

    fn report(&mut self, name: &str, declared: &DeclaredFields<'_>, pointer: String) {
        let is_of_consumers =
            self.of_consumers.is_some_and(|schema| DeclaredFields::of(&[schema]).fields.contains_key(name));
        let hint = match nearest(name, declared.fields.keys().copied()) {
            _ if is_of_consumers => {
                "write it on a consumer or its credential, which it identifies".to_owned()
            }
            Some(near) => format!("did you mean `{near}`?"),
            // APISIX before version 3 had this field.
            None if name == "disable" => "write `_meta: {disable: true}` to switch a plugin off".to_owned(),
            None => "remove it, or see the plugin's page for its settings".to_owned(),
        };
        let reason = format!("{} has no setting `{name}`, which is ignored", self.plugin);
        self.found.add(Code::UnknownSetting, self.key, Invalid::new(reason).at(pointer).hint(hint));
    }
}

/// The fields that all schemas of a value declare together.
#[derive(Default)]
struct DeclaredFields<'s> {
    fields: HashMap<&'s str, Vec<&'s Value>>,
    items: Vec<&'s Value>,
    /// Other fields are allowed as well.
    is_open: bool,
}

impl<'s> DeclaredFields<'s> {
    fn of(schemas: &[&'s Value]) -> DeclaredFields<'s> {
        let mut declared = DeclaredFields::default();
        schemas.iter().for_each(|schema| declared.add(schema));
        declared
    }

    fn add(&mut self, schema: &'s Value) {
        let Value::Object(words) = schema else { return };
        let others = words.get("additionalProperties").is_some_and(|others| *others != Value::Bool(false));
        self.is_open |= others || words.contains_key("patternProperties") || words.contains_key("$ref");
        match words.get("properties").and_then(Value::as_object) {
            Some(properties) => {
                for (name, schema) in properties {
                    self.fields.entry(name).or_default().push(schema);
                }
            }
            // An alternative that lists no fields.
            None => self.is_open |= is_bare_object(words),
        }
        if let Some(schema @ Value::Object(_)) = words.get("items") {
            self.items.push(schema);
        }
        for more in MORE.iter().filter_map(|word| words.get(*word)) {
            match more {
                Value::Array(schemas) => schemas.iter().for_each(|schema| self.add(schema)),
                schema => self.add(schema),
            }
        }
        let dependent = words.get("dependencies").and_then(Value::as_object);
        dependent.into_iter().flat_map(Map::values).for_each(|schema| self.add(schema));
    }
}

fn is_bare_object(words: &Map<String, Value>) -> bool {
    let is_object = words.get("type").is_some_and(|of| of == "object");
    is_object && !MORE.iter().any(|word| words.contains_key(*word)) && !words.contains_key("dependencies")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The names reported in `settings`, each with its hint.
    fn reported(schema: &Value, settings: &Value) -> Vec<(String, String)> {
        let (key, mut found) = (Key::new(Kind::Route, "1"), Analysis::default());
        let consumers = json!({"properties": {"secret": {}}});
        let mut check =
            FieldCheck { key: &key, plugin: "p", of_consumers: Some(&consumers), found: &mut found };
        check.fields(settings.as_object().unwrap(), &[schema], &["_meta"], "");
        let findings = found.findings.into_iter().map(|one| one.invalid);
        findings.map(|invalid| (invalid.pointer, invalid.hint.unwrap_or_default())).collect()
    }

    #[test]
    fn unknown_settings_are_reported_at_any_depth() {
        let inner = json!({"type": "object", "properties": {"interval": {"type": "integer"}}});
        let schema = json!({
            "type": "object",
            "properties": {"header": {}, "inner": inner, "list": {"type": "array", "items": inner}, "any": {"type": "object"}},
            "oneOf": [{"properties": {"count": {}}, "required": ["count"]}, {"allOf": [{"properties": {"rules": {}}}]}],
            "if": {"properties": {"if": {}}}, "then": {"properties": {"then": {}}},
            "dependencies": {"header": ["inner"], "inner": {"properties": {"dependent": {}}}},
        });
        let good = json!({
            "header": 1, "inner": {"interval": 1}, "list": [{"interval": 1}], "any": {"thing": 1},
            "count": 1, "rules": 1, "if": 1, "then": 1, "dependent": 1, "_meta": {"disable": true},
        });
        assert_eq!(reported(&schema, &good), []);
        let bad = json!({
            "heder": 1, "inner": {"intervall": 1}, "list": [{}, {"x/y": 1}], "any": {"thing": {"more": 1}}, "disable": true,
            "secret": 1,
        });
        let found = reported(&schema, &bad);
        let places: Vec<&str> = found.iter().map(|(pointer, _)| &**pointer).collect();
        assert_eq!(places, ["/heder", "/inner/intervall", "/list/1/x~1y", "/disable", "/secret"]);
        let expected = ["`header`?", "`interval`?", "remove it", "_meta: {disable: true}", "on a consumer"];
        for ((_, hint), expected) in found.iter().zip(expected) {
            assert!(hint.contains(expected), "{hint}");
        }
    }

    #[test]
    fn an_open_schema_reports_nothing() {
        for schema in [
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "patternProperties": {".*": {}}}),
            json!({"properties": {"a": {}}, "allOf": [{"$ref": "#/definitions/x"}]}),
            json!({"anyOf": [{"properties": {"a": {}}}, {"type": "object"}]}),
            json!(true),
        ] {
            assert_eq!(reported(&schema, &json!({"b": 1})), [], "{schema}");
        }
        for schema in [
            json!({"properties": {"a": {}}, "additionalProperties": false}),
            // Alternatives that declare no fields of their own.
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"not": {"required": ["a"]}}]}),
            json!({"type": "object", "oneOf": [{"properties": {"a": {}}}, {"required": ["a"]}]}),
            json!({"type": "object", "dependencies": {"a": {"properties": {"a": {}}}}}),
        ] {
            assert_eq!(reported(&schema, &json!({"b": 1})).len(), 1, "{schema}");
        }
    }
}
