//! Compares our answers with those of api7's `jsonschema` 0.9.12.
//!
//! `api7.jsonl` holds, a case a line, a schema or the kind of resource whose
//! schema it was (APISIX 3.18's `schema_def.lua`), a value, and the answer: `ok`
//! or the message. They were recorded by running that library under LuaJIT on
//! random schemas and on resources with one thing changed.

use model::{Kind, Schema, schema};
use serde_json::Value;

#[test]
fn our_answers_are_the_recorded_ones() {
    let mut count = 0;
    for line in include_str!("api7.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let ours = match case.get("schema") {
            Some(schema) => Schema::new(schema).unwrap().check(&case["value"]),
            None => schema::of_kind(kind(&case["kind"])).check(&case["value"]),
        };
        let ours = ours.map_or_else(|invalid| invalid.reason, |()| "ok".to_owned());
        assert_eq!(ours, case["says"].as_str().unwrap(), "{line}");
        count += 1;
    }
    assert!(count > 300, "only {count} cases were found");
}

/// The kind whose schema has this name: `consumer_group`.
fn kind(name: &Value) -> Kind {
    let collection = format!("{}s", name.as_str().unwrap_or_default());
    Kind::from_collection(&collection).unwrap_or_else(|| panic!("no kind {name}"))
}
