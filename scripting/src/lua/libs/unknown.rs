//! Unknown names: modules that no library has, and functions that a library lacks.
//!
//! Reading an unknown field is no error, since scripts look for optional functions that way. The names that
//! resemble it are searched when a script has failed.

use mlua::{Function, Lua, Result, Table, Value};

use super::{PACKAGE, sources, text::near};

/// Adds a last loader: its text ends the message of `require` for an unknown module.
pub(super) fn install(lua: &Lua) -> Result<()> {
    let package: Table = lua.globals().get("package")?;
    let loaders: Table = package.get("loaders")?;
    let last: Function = lua.create_function(|_, name: Value| {
        let name = name.to_string().unwrap_or_default();
        let near = near(&name, sources::names());
        Ok(match near.is_empty() {
            true => format!("\n\tno library '{name}'"),
            false => format!("\n\tno library '{name}'; similar names: {}", near.join(", ")),
        })
    })?;
    loaders.raw_push(last)
}

/// The names that resemble the function which a failed script called, as `library.function`.
///
/// `message` is the error of the script. `None` if it is about something else, or if no name is similar.
pub fn similar(lua: &Lua, message: &str) -> Option<String> {
    let (_, rest) = message.split_once("attempt to call ")?;
    let (before, _) = rest.split_once("' (a nil value)")?;
    let (_, name) = before.split_once('\'')?;
    let mut known = Vec::new();
    // Of equal names, that of `ngx` is named.
    if let Ok(ngx) = lua.globals().get::<Table>("ngx") {
        functions("ngx", &ngx, &mut known);
        for inner in ["re", "req", "socket"] {
            if let Ok(table) = ngx.raw_get::<Table>(inner) {
                functions(&format!("ngx.{inner}"), &table, &mut known);
            }
        }
    }
    let package: Table = lua.named_registry_value(PACKAGE).ok()?;
    let loaded: Table = package.get("loaded").ok()?;
    for pair in loaded.pairs::<String, Value>() {
        // The globals are no library.
        if let Ok((library, Value::Table(table))) = pair
            && library != "_G"
        {
            functions(&library, &table, &mut known);
        }
    }
    let names = near(name, known.iter().map(|(_, function)| function.as_str()));
    let full = names.iter().filter_map(|name| known.iter().find(|(_, function)| function == name));
    let full: Vec<String> = full.map(|(library, function)| format!("{library}.{function}")).collect();
    (!full.is_empty()).then(|| full.join(", "))
}

fn functions(library: &str, table: &Table, known: &mut Vec<(String, String)>) {
    for pair in table.pairs::<Value, Value>() {
        if let Ok((Value::String(name), Value::Function(_))) = pair {
            known.push((library.to_owned(), name.to_string_lossy()));
        }
    }
}
