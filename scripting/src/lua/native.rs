//! Rust functions for Lua, and values of JSON.

use mlua::{FromLuaMulti, IntoLuaMulti, Lua, Result, Table, Value};

use super::libs::call;

/// A table of Rust functions for the Lua sources of this room.
pub(super) struct Natives<'a> {
    pub lua: &'a Lua,
    pub table: &'a Table,
}

impl Natives<'_> {
    /// Adds a function whose errors are texts.
    pub(super) fn add<A, R>(
        &self,
        name: &'static str,
        function: impl Fn(&Lua, A) -> Result<R> + 'static,
    ) -> Result<()>
    where
        A: FromLuaMulti,
        R: IntoLuaMulti,
    {
        self.table.raw_set(name, call::function(self.lua, name, function)?)
    }
}

/// Converts JSON; null is `ngx.null`.
pub(super) fn to_lua(lua: &Lua, json: &serde_json::Value) -> Result<Value> {
    use serde_json::Value as Json;
    Ok(match json {
        Json::Null => Value::NULL,
        Json::Bool(truth) => Value::Boolean(*truth),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(list) => {
            let table = lua.create_table_with_capacity(list.len(), 0)?;
            for (at, item) in list.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
        Json::Object(object) => {
            let table = lua.create_table_with_capacity(0, object.len())?;
            for (key, value) in object {
                table.raw_set(key.as_str(), to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Tables within tables beyond this depth are not converted.
const DEEPEST: usize = 100;

/// Converts a value of Lua; a table with a first element is an array.
///
/// # Errors
/// Functions and other values that JSON lacks, and tables nested too deeply.
pub(super) fn to_json(value: &Value) -> Result<serde_json::Value> {
    json_at(value, 0)
}

fn json_at(value: &Value, depth: usize) -> Result<serde_json::Value> {
    use serde_json::Value as Json;
    if depth > DEEPEST {
        return Err(mlua::Error::runtime("excessive nesting"));
    }
    Ok(match value {
        Value::Nil => Json::Null,
        value if value.is_null() => Json::Null,
        Value::Boolean(truth) => Json::Bool(*truth),
        Value::Integer(number) => Json::from(*number),
        // Numbers without a fraction have none in JSON, as in cjson.
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => Json::from(*number as i64),
        Value::Number(number) => serde_json::Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Value::String(text) => Json::String(text.to_string_lossy()),
        Value::Table(table) => {
            let length = table.raw_len();
            if length > 0 {
                return (1..=length).map(|at| json_at(&table.raw_get(at)?, depth + 1)).collect::<Result<_>>();
            }
            let mut object = serde_json::Map::new();
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair?;
                let key = match key {
                    Value::String(key) => key.to_string_lossy(),
                    Value::Integer(key) => key.to_string(),
                    Value::Number(key) => key.to_string(),
                    _ => return Err(mlua::Error::runtime("table key must be a number or string")),
                };
                object.insert(key, json_at(&value, depth + 1)?);
            }
            Json::Object(object)
        }
        other => return Err(mlua::Error::runtime(format!("type not supported: {}", other.type_name()))),
    })
}
