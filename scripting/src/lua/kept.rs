//! Values of Lua that Rust keeps for long, in one table of the machine.
//!
//! `mlua` has the values to which Rust refers on one stack, which ends at about 8,000 for all code of a machine
//! (`LUAI_MAXCSTACK`). Values of which each plugin instance or each exchange has some are kept here instead.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU32;

use mlua::{FromLua, IntoLua, Lua, Result, Table, Value};

use super::small;

/// The place of a kept value, which is freed by [`Kept::remove`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(NonZeroU32);

/// The values of a machine.
pub(super) struct Kept {
    table: Table,
    free: RefCell<Vec<Slot>>,
    last: Cell<u32>,
}

impl Kept {
    pub(super) fn new(lua: &Lua) -> Result<Kept> {
        Ok(Kept { table: lua.create_table()?, free: RefCell::default(), last: Cell::new(0) })
    }

    /// Keeps a value.
    ///
    /// # Errors
    /// Memory is short.
    pub(super) fn put(&self, lua: &Lua, value: impl IntoLua) -> Result<Slot> {
        let free = self.free.borrow_mut().pop();
        let slot = free.or_else(|| NonZeroU32::new(self.last.get().wrapping_add(1)).map(Slot));
        let slot = slot.ok_or(mlua::Error::StackError)?;
        // If the table grows, it is copied.
        let growth = self.last.get() as usize * 64;
        let put = small::lifted(lua, growth, || self.table.raw_set(slot.0.get(), value));
        self.last.set(self.last.get().max(slot.0.get()));
        if put.is_err() {
            self.free.borrow_mut().push(slot);
        }
        put.map(|()| slot)
    }

    pub(super) fn get<V: FromLua>(&self, slot: Slot) -> Result<V> {
        self.table.raw_get(slot.0.get())
    }

    /// Replaces a value.
    pub(super) fn set(&self, slot: Slot, value: impl IntoLua) -> Result<()> {
        self.table.raw_set(slot.0.get(), value)
    }

    /// Frees a slot. Its value is left to the collector.
    pub(super) fn remove(&self, lua: &Lua, slot: Slot) {
        // The key is there, so nothing is allocated.
        let removed = small::lifted(lua, 0, || self.table.raw_set(slot.0.get(), Value::Nil));
        if removed.is_ok() {
            self.free.borrow_mut().push(slot);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.last.get() as usize - self.free.borrow().len()
    }
}
