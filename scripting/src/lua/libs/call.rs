//! Rust functions whose errors are plain texts in Lua.
//!
//! An error of a Rust function reaches Lua as an object, which `..` and `string.find` refuse. Scripts expect texts
//! from `pcall`, so a few lines of Lua catch the objects and raise their texts.

use mlua::{Error, FromLuaMulti, Function, IntoLuaMulti, Lua, Result, Value};

const GUARD: &str = "sluice.guard";

const SOURCE: &str = "
local text_of = ...
local error, pcall, type = error, pcall, type
local function check(name, ok, ...)
    if not ok then
        local err = ...
        if type(err) == 'string' then
            error(err, 0)
        end
        error(text_of(err, name), 2)
    end
    return ...
end
return function(call, name)
    return function(...)
        return check(name, pcall(call, ...))
    end
end";

pub(super) fn install(lua: &Lua) -> Result<()> {
    let text_of = lua.create_function(|lua, (error, name): (Value, String)| match error {
        Value::Error(error) if is_of_memory(&error) => Ok(Value::Error(error)),
        Value::Error(error) => lua.create_string(text_of(&error, &name)).map(Value::String),
        other => Ok(other),
    })?;
    let guard: Function = lua.load(SOURCE).set_name("=sluice").call(text_of)?;
    lua.set_named_registry_value(GUARD, guard)
}

/// Makes a Lua function of a Rust function. Its errors are texts, with the position of the caller.
///
/// # Errors
/// Memory is short.
pub fn function<A, R>(
    lua: &Lua,
    name: &'static str,
    call: impl Fn(&Lua, A) -> Result<R> + 'static,
) -> Result<Function>
where
    A: FromLuaMulti,
    R: IntoLuaMulti,
{
    let inner = lua.create_function(call)?;
    let guard: Function = lua.named_registry_value(GUARD)?;
    guard.call((inner, name))
}

fn is_of_memory(error: &Error) -> bool {
    match error {
        Error::MemoryError(_) => true,
        Error::CallbackError { cause, .. } => is_of_memory(cause),
        _ => false,
    }
}

/// The text of an error, in the words of Lua's own libraries.
fn text_of(error: &Error, function: &str) -> String {
    match error {
        Error::RuntimeError(text) => text.clone(),
        Error::CallbackError { cause, .. } => text_of(cause, function),
        Error::FromLuaConversionError { from, to, .. } => {
            format!("{} expected, got {from}", lua_name(to))
        }
        Error::BadArgument { to, pos, cause, .. } => {
            let function = to.as_deref().unwrap_or(function);
            format!("bad argument #{pos} to '{function}' ({})", text_of(cause, function))
        }
        other => other.to_string(),
    }
}

/// Lua's name of a Rust type.
fn lua_name(rust: &str) -> &str {
    match rust {
        "LuaString" | "String" | "BString" => "string",
        "f64" | "f32" | "i64" | "i32" | "u64" | "u32" | "usize" | "isize" | "u8" | "u16" => "number",
        "Table" => "table",
        "Function" => "function",
        "bool" => "boolean",
        other => other,
    }
}
