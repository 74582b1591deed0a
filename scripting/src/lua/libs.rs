//! The libraries that Lua code may `require`: those which know no exchange.

use mlua::{Lua, Result};

/// Adds all libraries to `package.preload`; each is made when a script first asks for it.
pub(crate) fn install(_lua: &Lua) -> Result<()> {
    Ok(())
}
