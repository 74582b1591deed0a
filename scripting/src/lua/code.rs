//! Compiled code, as the control side hands it to the workers.

use std::sync::Arc;

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, Result, Table};

/// One chunk: its name, and its bytecode.
#[derive(Debug, Clone)]
pub(super) struct Code {
    pub name: Arc<str>,
    binary: Arc<[u8]>,
}

impl Code {
    /// Compiles text; a chunk of bytecode is no text.
    ///
    /// # Errors
    /// The syntax is wrong.
    pub(super) fn compile(lua: &Lua, name: &str, source: &str) -> Result<Code> {
        let function = lua.load(source).set_mode(ChunkMode::Text).set_name(name).into_function()?;
        let binary = function.dump(false).into();
        Ok(Code { name: name.into(), binary })
    }

    /// The chunk as a function of a machine, with these globals.
    ///
    /// # Errors
    /// Memory is short.
    pub(super) fn load(&self, lua: &Lua, globals: &Table) -> Result<Function> {
        let chunk = lua.load(&*self.binary).set_mode(ChunkMode::Binary).set_name(&*self.name);
        let function = chunk.into_function()?;
        function.set_environment(globals.clone())?;
        Ok(function)
    }
}

#[cfg(test)]
mod tests {
    use super::super::vm;
    use super::*;

    #[test]
    fn code_is_compiled_once_and_loaded_into_other_machines() {
        let code = Code::compile(&vm::new().unwrap(), "=a.lua", "x = (x or 0) + 1 return x").unwrap();
        for _ in 0..2 {
            let lua = vm::new().unwrap();
            let globals = lua.create_table().unwrap();
            assert_eq!(code.load(&lua, &globals).unwrap().call::<u32>(()).unwrap(), 1);
            assert_eq!(globals.get::<u32>("x").unwrap(), 1);
            assert!(lua.globals().get::<mlua::Value>("x").unwrap().is_nil());
        }
    }

    #[test]
    fn bytecode_is_no_source() {
        let lua = vm::new().unwrap();
        let bytes = lua.load("return 1").into_function().unwrap().dump(false);
        // The bytes of a compiled chunk begin with an escape, which no text has.
        let text = String::from_utf8_lossy(&bytes);
        assert!(Code::compile(&lua, "x", &text).is_err());
    }
}
