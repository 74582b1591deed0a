//! JSON as `cjson` reads and writes it.

mod decode;
mod encode;
mod number;

use mlua::{Lua, LuaString, Result, Table, Value};

use super::super::small;
use super::call::function;

pub(super) use number::shortest;

/// Nested tables at most, which a script cannot raise: each takes some of the thread's stack.
const DEEPEST: usize = 1000;

/// The marks by which scripts say that a table is an array.
#[derive(Clone)]
struct Marks {
    array: Table,
    empty_array: Table,
    /// The value that is written as `[]`.
    empty: Value,
}

/// The native group: `encoder(options)` and `decoder(options)` return functions, which return a result, or `nil` and an
/// error.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    let marks = marks(lua)?;
    group.raw_set("array_mt", &marks.array)?;
    group.raw_set("empty_array_mt", &marks.empty_array)?;
    group.raw_set("empty_array", &marks.empty)?;
    let of_encoder = marks.clone();
    let encoder = move |lua: &Lua, options: Table| {
        let (options, marks) = (encode::Options::read(&options)?, of_encoder.clone());
        function(lua, "encode", move |lua, value: Value| {
            Ok(match encode::encode(lua, value, &options, &marks) {
                Ok(text) => (Some(small::string(lua, text)?), None),
                Err(reason) => (None, Some(reason)),
            })
        })
    };
    group.raw_set("encoder", function(lua, "encoder", encoder)?)?;
    let decoder = move |lua: &Lua, options: Table| {
        let (options, marks) = (decode::Options::read(&options)?, marks.clone());
        function(lua, "decode", move |lua, text: LuaString| {
            let text = text.as_bytes();
            let decode = || decode::decode(lua, &text, &options, &marks);
            let decoded = match text.len() {
                0..SMALL => small::lifted(lua, text.len() * GROWTH, decode),
                _ => decode(),
            };
            Ok(match decoded {
                Ok(value) => (value, None),
                Err(reason) => (Value::Nil, Some(reason)),
            })
        })
    };
    group.raw_set("decoder", function(lua, "decoder", decoder)?)
}

/// Texts below this length are decoded without protection of each value.
const SMALL: usize = 64 << 10;

/// Bytes in memory for a byte of text at most: `[[],[],` has a table for three bytes.
const GROWTH: usize = 64;

/// The marks of a machine: the same in each library.
fn marks(lua: &Lua) -> Result<Marks> {
    const KEY: &str = "sluice.json";
    if let Some(known) = lua.named_registry_value::<Option<Table>>(KEY)? {
        return Ok(Marks { array: known.get(1)?, empty_array: known.get(2)?, empty: known.get(3)? });
    }
    static EMPTY: u8 = 0;
    let empty = Value::LightUserData(mlua::LightUserData((&raw const EMPTY).cast_mut().cast()));
    let marks = Marks { array: lua.create_table()?, empty_array: lua.create_table()?, empty };
    let all = (marks.array.clone(), marks.empty_array.clone(), marks.empty.clone());
    let known = lua.create_table()?;
    known.raw_set(1, all.0)?;
    known.raw_set(2, all.1)?;
    known.raw_set(3, all.2)?;
    lua.set_named_registry_value(KEY, known)?;
    Ok(marks)
}

/// A Lua value as JSON of serde, with the rules of `cjson` for arrays.
pub(in super::super) fn to_serde(lua: &Lua, value: Value) -> std::result::Result<serde_json::Value, String> {
    let text = to_text(lua, value)?;
    serde_json::from_slice(&text).map_err(|_| "a text is not UTF-8".to_owned())
}

/// The text of a Lua value.
pub(in super::super) fn to_text(lua: &Lua, value: Value) -> std::result::Result<Vec<u8>, String> {
    let marks = marks(lua).map_err(|error| error.to_string())?;
    encode::encode(lua, value, &encode::Options::for_schemas(), &marks)
}
