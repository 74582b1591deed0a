//! Small values, made without the protection that an allocation at the limit of memory needs.
//!
//! LuaJIT raises an error when an allocation fails, so while a machine has a limit, `mlua` allocates in protected calls,
//! each with closures of its own. That takes longer than the allocation. Far below the limit small allocations do not
//! fail, so the limit is lifted meanwhile.

use mlua::{Lua, LuaString, Result};

/// Strings beyond this length are made with protection.
const SMALL: usize = 64 << 10;

/// Bytes that must be free beyond those of the values, for what LuaJIT allocates at the same time.
const ROOM: usize = 64 << 10;

/// Makes a string.
///
/// # Errors
/// Memory is short.
pub(super) fn string(lua: &Lua, text: impl AsRef<[u8]>) -> Result<LuaString> {
    let text = text.as_ref();
    match text.len() {
        0..SMALL => lifted(lua, text.len(), || lua.create_string(text)),
        _ => lua.create_string(text),
    }
}

/// Makes values of at most this many bytes. No code of scripts may run meanwhile: it would have no limit.
pub(super) fn lifted<T>(lua: &Lua, bytes: usize, make: impl FnOnce() -> T) -> T {
    struct Limit<'a>(&'a Lua, usize);
    impl Drop for Limit<'_> {
        fn drop(&mut self) {
            // It fails only for machines without a limit.
            let _ = self.0.set_memory_limit(self.1);
        }
    }
    let Ok(limit) = lua.set_memory_limit(0) else { return make() };
    let limit = Limit(lua, limit);
    if limit.1 > 0 && lua.used_memory().saturating_add(bytes).saturating_add(ROOM) > limit.1 {
        drop(limit);
        return make();
    }
    make()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_before_and_after_and_near_to_it() {
        let lua = Lua::new();
        let most = lua.used_memory() + (1 << 20);
        lua.set_memory_limit(most).unwrap();
        assert_eq!(string(&lua, "a").unwrap(), "a");
        // All of them are kept.
        let table = lua.create_table().unwrap();
        let mut made = 0;
        let error = loop {
            let text = string(&lua, format!("{made:01000}"));
            match text.and_then(|text| table.raw_push(text)) {
                Ok(()) => made += 1,
                Err(error) => break error,
            }
            // The closures of a protected call are made beyond the limit.
            assert!(lua.used_memory() <= most + 4096, "{made}");
        };
        assert!(matches!(error, mlua::Error::MemoryError(_)), "{error}");
        assert!(made > 500, "{made}");
        assert!(lua.create_string(vec![0; 1 << 20]).is_err(), "the limit is set again");
    }
}
