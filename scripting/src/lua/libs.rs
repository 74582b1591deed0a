//! The libraries that Lua code may `require`: those which know no exchange.
//!
//! A library is Lua source (`libs/lua`), made when a script first asks for it. Computations are in Rust: a group
//! of functions in a file each, which the sources get as `native("group")`.

pub(super) mod call;
mod cipher;
mod constants;
mod digest;
mod ip;
pub(super) mod json;
mod native;
mod pkey;
mod regex;
mod schema;
pub mod shared;
mod sources;
#[cfg(test)]
mod tests;
mod text;
mod unknown;

use mlua::{Lua, Result, Table, Value};

pub(super) use schema::accept_texts;
pub(super) use sources::own;
pub use unknown::similar;

/// The registry's name of the table `package`, which is no global once there are environments of scripts.
pub(super) const PACKAGE: &str = "sluice.package";

/// Adds global `ngx`, the table `apisix.core` and all libraries to a machine.
///
/// Times, exchanges and sockets are other files' duty: they add to the two tables.
///
/// # Errors
/// Memory is short.
pub fn install(lua: &Lua) -> Result<()> {
    lua.set_named_registry_value(PACKAGE, lua.globals().get::<Table>("package")?)?;
    call::install(lua)?;
    let ngx = lua.create_table()?;
    constants::add(&ngx)?;
    ngx.raw_set("null", Value::NULL)?;
    text::add(lua, &ngx)?;
    shared::add(lua, &ngx)?;
    lua.globals().raw_set("ngx", ngx)?;
    sources::install(lua)?;
    unknown::install(lua)
}
