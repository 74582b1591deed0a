//! The plugins of a route.

use serde_json::{Map, Value, json};

/// Plugins by name.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Plugins {
    all: Map<String, Value>,
}

impl Plugins {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    pub(super) fn set(&mut self, name: &str, settings: Value) {
        self.all.insert(name.to_owned(), settings);
    }

    /// Sets a member of a plugin's settings.
    pub(super) fn set_member(&mut self, name: &str, member: &str, value: Value) {
        let settings = self.all.entry(name).or_insert_with(|| json!({}));
        settings[member] = value;
    }

    /// Answers with a status and no body.
    pub(super) fn answer(&mut self, status: u16) {
        self.mock(status, "", Map::new());
    }

    /// Answers in the place of an upstream, after all plugins that may refuse the request.
    pub(super) fn mock(&mut self, status: u16, body: &str, headers: Map<String, Value>) {
        let mut settings = json!({
            "response_status": status,
            "response_example": body,
            "content_type": "text/plain",
            "with_mock_header": false,
            "_meta": {"priority": 1},
        });
        if !headers.is_empty() {
            settings["response_headers"] = Value::Object(headers);
        }
        self.set("mocking", settings);
    }

    /// Adds the plugins of a filter. Returns the names of those that are there already.
    pub(super) fn join(&mut self, others: &Map<String, Value>) -> Vec<String> {
        let mut conflicts = Vec::new();
        for (name, settings) in others {
            match (self.all.get_mut(name), settings.get("rules").and_then(Value::as_array)) {
                (Some(known), Some(rules)) if name == "workflow" => {
                    if let Some(Value::Array(known)) = known.get_mut("rules") {
                        known.extend(rules.iter().cloned());
                    }
                }
                (Some(_), _) => conflicts.push(name.clone()),
                (None, _) => self.set(name, settings.clone()),
            }
        }
        conflicts
    }

    pub(super) fn value(&self) -> Value {
        Value::Object(self.all.clone())
    }
}

/// A rule that refuses requests for which a condition holds.
pub(super) fn refusal(case: Value, status: u16) -> Map<String, Value> {
    let rules = json!({"rules": [{"case": case, "actions": [["return", {"code": status}]]}]});
    Map::from_iter([("workflow".to_owned(), rules)])
}
