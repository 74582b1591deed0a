//! Settings of plugins that no plugin reads: a misspelt name is accepted, as by APISIX, and has no effect.
//!
//! Names are told only where a schema lists all there are: one that leaves its fields open says nothing.

use std::collections::HashMap;

use model::invalid::{nearest, push_pointer};
use model::{Invalid, Key, Kind, Resource};
use sdk::catalog::{Facts, Place, Subsystem};
use serde_json::{Map, Value};

use super::{Analysis, Code, Of};

/// What a schema calls other schemas that a value is checked against as well.
const MORE: [&str; 7] = ["allOf", "anyOf", "oneOf", "if", "then", "else", "not"];

pub(super) fn look(of: Of<'_>, found: &mut Analysis) {
    let mut known: HashMap<(Subsystem, String), Option<Facts>> = HashMap::new();
    for entry in of.desired.iter() {
        let key = &entry.key;
        let subsystem = match key.kind {
            Kind::StreamRoute => Subsystem::Stream,
            _ => Subsystem::Http,
        };
        let mut look = |plugin: &str, fields, place, besides: &[&str], pointer: &str| {
            let facts = known
                .entry((subsystem, plugin.to_owned()))
                .or_insert_with(|| of.catalog.facts(subsystem, plugin));
            let Some(facts) = facts else { return };
            let schema = match place {
                Place::Metadata => facts.metadata_schema.as_ref(),
                Place::Consumer => facts.consumer_schema.as_ref().or(Some(&facts.schema)),
                Place::Route | Place::Stream => Some(&facts.schema),
            };
            let of_consumers = facts.consumer_schema.as_ref().filter(|_| place == Place::Route);
            let mut look = Look { key, plugin, of_consumers, found };
            if let Some(schema) = schema {
                look.fields(fields, &[schema], besides, pointer);
            }
        };
        if let Resource::PluginMetadata(metadata) = entry.resource() {
            let besides = ["id", "create_time", "update_time"];
            look(&key.id, &metadata.value, Place::Metadata, &besides, "");
        }
        let place = match key.kind {
            Kind::Consumer | Kind::Credential => Place::Consumer,
            _ => Place::Route,
        };
        for (name, config) in entry.resource().plugins().into_iter().flatten() {
            let mut pointer = String::from("/plugins");
            push_pointer(&mut pointer, name);
            if let Value::Object(fields) = config {
                look(name, fields, place, &["_meta"], &pointer);
            }
        }
    }
}

/// The plugin whose settings are looked at.
struct Look<'a> {
    key: &'a Key,
    plugin: &'a str,
    /// What it has on consumers, where it stands on a route.
    of_consumers: Option<&'a Value>,
    found: &'a mut Analysis,
}

impl Look<'_> {
    /// Looks at the names of an object; those of `besides` are there whether a schema has them or not.
    fn fields(&mut self, fields: &Map<String, Value>, schemas: &[&Value], besides: &[&str], pointer: &str) {
        let known = Known::of(schemas);
        for (name, value) in fields {
            let mut pointer = pointer.to_owned();
            push_pointer(&mut pointer, name);
            match known.fields.get(name.as_str()) {
                Some(schemas) => self.value(value, schemas, &pointer),
                None if known.is_open || known.fields.is_empty() || besides.contains(&name.as_str()) => {}
                None => self.tell(name, &known, pointer),
            }
        }
    }

    fn value(&mut self, value: &Value, schemas: &[&Value], pointer: &str) {
        match value {
            Value::Object(fields) => self.fields(fields, schemas, &[], pointer),
            Value::Array(items) => {
                let known = Known::of(schemas);
                for (at, item) in items.iter().enumerate() {
                    self.value(item, &known.items, &format!("{pointer}/{at}"));
                }
            }
            _ => {}
        }
    }

    fn tell(&mut self, name: &str, known: &Known<'_>, pointer: String) {
        let is_of_consumers =
            self.of_consumers.is_some_and(|schema| Known::of(&[schema]).fields.contains_key(name));
        let hint = match nearest(name, known.fields.keys().copied()) {
            _ if is_of_consumers => {
                "write it on a consumer or its credential, which it identifies".to_owned()
            }
            Some(near) => format!("did you mean `{near}`?"),
            // As in APISIX before version 3.
            None if name == "disable" => "write `_meta: {disable: true}` to switch a plugin off".to_owned(),
            None => "take it out, or see the plugin's page for the settings there are".to_owned(),
        };
        let reason = format!("{} has no setting `{name}`, which is ignored", self.plugin);
        self.found.add(Code::UnknownSetting, self.key, Invalid::new(reason).at(pointer).hint(hint));
    }
}

/// What schemas say of a value, all that apply together.
#[derive(Default)]
struct Known<'s> {
    fields: HashMap<&'s str, Vec<&'s Value>>,
    items: Vec<&'s Value>,
    /// There may be others.
    is_open: bool,
}

impl<'s> Known<'s> {
    fn of(schemas: &[&'s Value]) -> Known<'s> {
        let mut known = Known::default();
        schemas.iter().for_each(|schema| known.add(schema));
        known
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
            // An alternative without a list of names.
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

    /// The names that are told of `settings`, each with what is near.
    fn told(schema: &Value, settings: &Value) -> Vec<(String, String)> {
        let (key, mut found) = (Key::new(Kind::Route, "1"), Analysis::default());
        let consumers = json!({"properties": {"secret": {}}});
        let mut look = Look { key: &key, plugin: "p", of_consumers: Some(&consumers), found: &mut found };
        look.fields(settings.as_object().unwrap(), &[schema], &["_meta"], "");
        let told = found.findings.into_iter().map(|one| one.invalid);
        told.map(|invalid| (invalid.pointer, invalid.hint.unwrap_or_default())).collect()
    }

    #[test]
    fn names_that_no_schema_has_are_told_wherever_they_stand() {
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
        assert_eq!(told(&schema, &good), []);
        let bad = json!({
            "heder": 1, "inner": {"intervall": 1}, "list": [{}, {"x/y": 1}], "any": {"thing": {"more": 1}}, "disable": true,
            "secret": 1,
        });
        let found = told(&schema, &bad);
        let places: Vec<&str> = found.iter().map(|(pointer, _)| &**pointer).collect();
        assert_eq!(places, ["/heder", "/inner/intervall", "/list/1/x~1y", "/disable", "/secret"]);
        let expected = ["`header`?", "`interval`?", "take it out", "_meta: {disable: true}", "on a consumer"];
        for ((_, hint), expected) in found.iter().zip(expected) {
            assert!(hint.contains(expected), "{hint}");
        }
    }

    #[test]
    fn a_schema_that_leaves_names_open_tells_nothing() {
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
            assert_eq!(told(&schema, &json!({"b": 1})), [], "{schema}");
        }
        for schema in [
            json!({"properties": {"a": {}}, "additionalProperties": false}),
            // Alternatives that say nothing of names of their own.
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"not": {"required": ["a"]}}]}),
            json!({"type": "object", "oneOf": [{"properties": {"a": {}}}, {"required": ["a"]}]}),
            json!({"type": "object", "dependencies": {"a": {"properties": {"a": {}}}}}),
        ] {
            assert_eq!(told(&schema, &json!({"b": 1})).len(), 1, "{schema}");
        }
    }
}
