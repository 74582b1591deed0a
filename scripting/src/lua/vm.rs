//! A Lua virtual machine without access to files, processes and foreign code.

use mlua::{Function, Lua, LuaOptions, Result, StdLib, Table, Value};

use super::libs;

/// Functions of `os` that reach nothing outside the machine but the clock.
const OS: [&str; 4] = ["clock", "date", "difftime", "time"];

/// Globals of the base library and of LuaJIT that would read files, load machine code or change the compiler.
const REMOVED: [&str; 6] = ["dofile", "loadfile", "module", "jit", "gcinfo", "newproxy"];

/// The registry's name of a function that returns the number of another function's parameters.
pub(super) const FUNCTION_INFO: &str = "sluice.function_info";

/// Libraries of Lua that `require` finds. Globals and loaders are not among them.
const LIBRARIES: [&str; 5] = ["string", "table", "math", "bit", "os"];

/// Removes all other entries of a table.
fn keep(table: &Table, is_kept: impl Fn(&str) -> bool) -> Result<()> {
    let names = table.pairs::<String, Value>().map(|pair| pair.map(|(name, _)| name));
    for name in names.collect::<Result<Vec<_>>>()? {
        if !is_kept(&name) {
            table.raw_set(name, Value::Nil)?;
        }
    }
    Ok(())
}

/// Makes a machine that has the libraries of Lua which reach nothing outside it.
///
/// # Errors
/// A library cannot be loaded, for want of memory.
pub fn new() -> Result<Lua> {
    // LuaJIT compiles only once its library is loaded.
    let safe = StdLib::TABLE
        | StdLib::STRING
        | StdLib::MATH
        | StdLib::PACKAGE
        | StdLib::BIT
        | StdLib::OS
        | StdLib::JIT;
    let lua = Lua::new_with(safe, LuaOptions::default())?;
    let globals = lua.globals();
    let os: Table = globals.get("os")?;
    let os = OS.iter().map(|name| Ok((*name, os.get(*name)?))).collect::<Result<Vec<(&str, Value)>>>()?;
    globals.raw_set("os", lua.create_table_from(os)?)?;
    for name in REMOVED {
        globals.raw_set(name, Value::Nil)?;
    }
    // `require` finds only what was put into `package.preload`.
    let package: Table = globals.get("package")?;
    for (name, value) in [("path", Some("")), ("cpath", Some("")), ("loadlib", None), ("seeall", None)] {
        package.raw_set(name, value)?;
    }
    // A number of 64 bits loads the library of foreign functions into `package.loaded`, once for each machine.
    lua.load("return 1LL").exec()?;
    keep(&package.get("loaded")?, |name| LIBRARIES.contains(&name))?;
    package.get::<Table>("loaded")?.raw_set("os", globals.raw_get::<Value>("os")?)?;
    // LuaJIT offers parts of its compiler, and buffers with pointers. Only this room uses one function of them.
    let compiler: Table = package.get::<Table>("preload")?.get::<Function>("jit.util")?.call(())?;
    lua.set_named_registry_value(FUNCTION_INFO, compiler.get::<Function>("funcinfo")?)?;
    keep(&package.get("preload")?, |name| name.starts_with("table."))?;
    let string: Table = globals.get("string")?;
    string.raw_set("dump", Value::Nil)?;
    libs::install(&lua)?;
    Ok(lua)
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_and_processes_are_out_of_reach() {
        let lua = super::new().unwrap();
        for name in ["io", "ffi", "debug", "jit", "dofile", "loadfile", "module"] {
            assert!(lua.globals().get::<mlua::Value>(name).unwrap().is_nil(), "{name}");
        }
        for code in [
            "local number = 1LL return package.loaded.ffi",
            "return package.loaded._G or package.loaded.package",
            "return package.preload['jit.util'] or package.preload['string.buffer']",
            "return os.execute or os.remove or os.rename or os.exit or os.getenv or os.tmpname",
            "return package.loadlib",
            "return string.dump",
            "local ok = pcall(require, 'jit') return ok or nil",
            "local ok = pcall(require, 'ffi') return ok or nil",
            "local ok = pcall(require, 'io') return ok or nil",
            "local ok = pcall(require, '/etc/hostname') return ok or nil",
        ] {
            assert!(lua.load(code).eval::<mlua::Value>().unwrap().is_nil(), "{code}");
        }
        assert!(lua.load("return os.time() > 0 and os.date('%Y')").eval::<String>().is_ok());
    }
}
