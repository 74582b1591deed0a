//! A Lua virtual machine without access to files, processes and foreign code.

use mlua::{Lua, LuaOptions, Result, StdLib};

use super::libs;

/// Makes a machine that has the libraries of Lua which reach nothing outside it.
///
/// # Errors
/// A library cannot be loaded, for want of memory.
pub fn new() -> Result<Lua> {
    let safe = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::PACKAGE | StdLib::BIT;
    let lua = Lua::new_with(safe, LuaOptions::default())?;
    libs::install(&lua)?;
    Ok(lua)
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_and_processes_are_out_of_reach() {
        let lua = super::new().unwrap();
        for name in ["io", "os", "ffi", "debug", "jit"] {
            assert!(lua.globals().get::<mlua::Value>(name).unwrap().is_nil(), "{name}");
        }
    }
}
