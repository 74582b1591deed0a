//! Lua plugins, on LuaJIT with the extensions of Lua 5.2 that OpenResty enables.

mod libs;
pub mod vm;
