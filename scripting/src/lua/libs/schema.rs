//! JSON schemas: the checks of the configuration, for tables of scripts.

use mlua::{Lua, Result, Table, UserData, UserDataMethods, Value};
use model::schema::Schema;

use super::super::native::to_lua;
use super::call::function;
use super::json::to_serde;

struct Checker(Schema);

impl UserData for Checker {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        // Fills in defaults, as the `jsonschema` of APISIX does; returns `true`, or `false` and the first fault.
        methods.add_method("check", |lua, checker, value: Value| {
            let json = match to_serde(lua, value.clone()) {
                Ok(json) => json,
                Err(reason) => return Ok((false, Some(reason))),
            };
            match checker.0.parse(json) {
                Ok(filled) => {
                    fill(lua, &value, &filled)?;
                    Ok((true, None))
                }
                Err(invalid) => Ok((false, Some(invalid.reason))),
            }
        });
    }
}

/// Makes property schemas that are texts accept anything: APISIX's validator looks for their fields and finds none.
pub fn accept_texts(schema: &mut serde_json::Value) {
    let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) else {
        return;
    };
    for property in properties.values_mut() {
        match property {
            serde_json::Value::String(_) => *property = serde_json::Value::Bool(true),
            _ => accept_texts(property),
        }
    }
}

/// Adds the fields to a table that a check has filled in.
fn fill(lua: &Lua, value: &Value, filled: &serde_json::Value) -> Result<()> {
    let Value::Table(table) = value else { return Ok(()) };
    match filled {
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                match table.raw_get::<Value>(name.as_str())? {
                    Value::Nil => {
                        // A number as a key is a text in JSON.
                        let is_number = name
                            .parse::<f64>()
                            .is_ok_and(|key| table.raw_get::<Value>(key).is_ok_and(|value| !value.is_nil()));
                        if !is_number {
                            table.raw_set(name.as_str(), to_lua(lua, field)?)?;
                        }
                    }
                    inner => fill(lua, &inner, field)?,
                }
            }
        }
        serde_json::Value::Array(items) => {
            for (index, item) in (1_i64..).zip(items) {
                fill(lua, &table.raw_get::<Value>(index)?, item)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The native group: `compile(schema)` returns a checker, or `nil` and an error.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    group.raw_set(
        "compile",
        function(lua, "compile", |lua, schema: Value| {
            let compiled = to_serde(lua, schema).and_then(|mut schema| {
                accept_texts(&mut schema);
                Schema::new(&schema).map_err(|invalid| invalid.reason)
            });
            Ok(match compiled {
                Ok(schema) => (Some(Checker(schema)), None),
                Err(reason) => (None, Some(reason)),
            })
        })?,
    )
}
