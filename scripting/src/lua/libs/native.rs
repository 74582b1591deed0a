//! The groups of Rust functions that the sources of libraries get.

use mlua::{Error, Lua, Result, Table};

use super::{digest, text};

/// Makes a group of functions.
pub(super) fn group(lua: &Lua, name: &str) -> Result<Table> {
    let group = lua.create_table()?;
    match name {
        "digest" => digest::add_native(lua, &group)?,
        "text" => text::add_native(lua, &group)?,
        _ => return Err(Error::runtime(format!("no native group {name}"))),
    }
    Ok(group)
}
