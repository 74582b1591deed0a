//! The groups of Rust functions that the sources of libraries get.

use mlua::{Error, Lua, Result, Table};

use super::{cipher, digest, ip, json, pkey, regex, schema, text};

/// Makes a group of functions.
pub(super) fn group(lua: &Lua, name: &str) -> Result<Table> {
    let group = lua.create_table()?;
    match name {
        "cipher" => cipher::add_native(lua, &group)?,
        "digest" => digest::add_native(lua, &group)?,
        "ip" => ip::add_native(lua, &group)?,
        "json" => json::add_native(lua, &group)?,
        "pkey" => pkey::add_native(lua, &group)?,
        "regex" => regex::add_native(lua, &group)?,
        "schema" => schema::add_native(lua, &group)?,
        "text" => text::add_native(lua, &group)?,
        _ => return Err(Error::runtime(format!("no native group {name}"))),
    }
    Ok(group)
}
