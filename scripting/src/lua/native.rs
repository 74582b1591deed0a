//! Rust functions for Lua, and values of JSON.

use mlua::{FromLuaMulti, IntoLuaMulti, Lua, Result, Table, Value};

use super::libs::call;
use super::libs::json::to_serde;

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

/// Converts a value of Lua, by the rules of `cjson` for arrays. Functions and the like in tables are left out.
///
/// # Errors
/// Other keys than texts and numbers, texts that are not UTF-8, tables nested more than 100 deep, and values that exceed
/// the machine's limits.
pub(super) fn to_json(lua: &Lua, value: Value) -> Result<serde_json::Value> {
    to_serde(lua, value).map_err(mlua::Error::runtime)
}
