//! Coroutines that are used again: making one takes longer than most functions that run in it.

use std::cell::RefCell;

use mlua::{Function, Lua, Result, Table, Thread};

/// Coroutines that wait for a function. Each takes about a kilobyte.
const MOST: usize = 64;

/// The coroutines of a machine.
pub(super) struct Coroutines {
    /// Calls one function after the other (`coroutines.lua`).
    body: Function,
    idle: RefCell<Vec<Thread>>,
}

impl Coroutines {
    pub(super) fn new(lua: &Lua, natives: &Table) -> Result<Coroutines> {
        let source = lua.load(include_str!("coroutines.lua")).set_name("=coroutines");
        Ok(Coroutines { body: source.call(natives)?, idle: RefCell::default() })
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.idle.borrow().len()
    }

    /// A coroutine that takes a function and its argument.
    pub(super) fn take(&self, lua: &Lua) -> Result<Thread> {
        match self.idle.borrow_mut().pop() {
            Some(thread) => Ok(thread),
            None => lua.create_thread(self.body.clone()),
        }
    }

    /// Keeps a coroutine whose function has returned. Others, such as those whose function has failed or is never
    /// resumed, are left to the collector.
    pub(super) fn give_back(&self, thread: &Thread) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MOST {
            idle.push(thread.clone());
        }
    }
}
