//! Rust functions whose errors are plain texts in Lua.
//!
//! An error of a Rust function reaches Lua as an object, which `..` and `string.find` refuse. Scripts expect texts
//! from `pcall`, so errors are returned behind a mark, and a few lines of Lua raise them.

use mlua::{Error, FromLuaMulti, Function, IntoLuaMulti, LightUserData, Lua, MultiValue, Result, Value};

const GUARD: &str = "sluice.guard";

const SOURCE: &str = "
local failed = ...
local error = error
local function check(...)
    local first, message = ...
    if first == failed then
        error(message, 2)
    end
    return ...
end
return function(call)
    return function(...)
        return check(call(...))
    end
end";

static FAILED: u8 = 0;

/// The first result of a call that failed; scripts never see it.
fn failed() -> Value {
    Value::LightUserData(LightUserData((&raw const FAILED).cast_mut().cast()))
}

pub(super) fn install(lua: &Lua) -> Result<()> {
    let guard: Function = lua.load(SOURCE).set_name("=sluice").call(failed())?;
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
    let inner = lua.create_function(move |lua, args: MultiValue| {
        let done = A::from_lua_args(args, 1, Some(name), lua).and_then(|args| call(lua, args));
        match done.and_then(|results| results.into_lua_multi(lua)) {
            Ok(results) => Ok(results),
            Err(error @ Error::MemoryError(_)) => Err(error),
            Err(error) => (failed(), text_of(&error)).into_lua_multi(lua),
        }
    })?;
    let guard: Function = lua.named_registry_value(GUARD)?;
    guard.call(inner)
}

/// The text of an error, in the words of Lua's own libraries.
fn text_of(error: &Error) -> String {
    match error {
        Error::RuntimeError(text) => text.clone(),
        Error::CallbackError { cause, .. } => text_of(cause),
        Error::FromLuaConversionError { from, to, .. } => {
            format!("{} expected, got {from}", lua_name(to))
        }
        Error::BadArgument { to, pos, cause, .. } => {
            format!("bad argument #{pos} to '{}' ({})", to.as_deref().unwrap_or("?"), text_of(cause))
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
