//! The clock of the worker.

use mlua::Result;

use super::super::access;
use super::super::native::Natives;

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    // A machine of the control side has no worker, and its code no time.
    natives.add("now_ms", |_, ()| {
        let seen = access::seen(|x| x.world().now_ms());
        Ok(seen.or_else(|| access::world(|world| world.now_ms()).ok()).unwrap_or_default() as f64)
    })
}
