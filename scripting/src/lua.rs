//! Lua plugins, on LuaJIT with the extensions of Lua 5.2 that OpenResty enables.

pub mod libs;
pub mod vm;
