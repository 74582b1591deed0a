//! The functions of plugin instances in a machine.

use mlua::{Function, Lua, Result};
use sdk::Phase;

use super::kept::{Kept, Slot};

/// Code that a machine has loaded.
pub(super) enum Loaded {
    /// One function for all phases.
    One(Function),
    /// Makes the function of a phase, which takes the context of the exchange or nil.
    Phases(Function),
}

/// The functions of an instance, kept by the machine.
#[derive(Debug, Clone, Copy)]
pub(super) enum Functions {
    One(Slot),
    Phases([Option<Slot>; Phase::ALL.len()]),
}

impl Functions {
    /// Keeps the functions of code.
    ///
    /// # Errors
    /// Memory is short.
    pub(super) fn keep(lua: &Lua, kept: &Kept, loaded: Loaded) -> Result<Functions> {
        let make = match loaded {
            Loaded::One(call) => return kept.put(lua, call).map(Functions::One),
            Loaded::Phases(make) => make,
        };
        let mut slots = [None; Phase::ALL.len()];
        let made = Phase::ALL.iter().try_for_each(|phase| {
            if let Some(call) = make.call::<Option<Function>>(name_of(*phase))? {
                slots[*phase as usize] = Some(kept.put(lua, call)?);
            }
            Ok(())
        });
        let functions = Functions::Phases(slots);
        if made.is_err() {
            functions.remove(lua, kept);
        }
        made.map(|()| functions)
    }

    /// The function for a phase, if there is one.
    pub(super) fn get(&self, kept: &Kept, phase: Phase) -> Result<Option<Function>> {
        let slot = match self {
            Functions::One(slot) => Some(*slot),
            Functions::Phases(slots) => slots[phase as usize],
        };
        slot.map(|slot| kept.get(slot)).transpose()
    }

    pub(super) fn remove(&self, lua: &Lua, kept: &Kept) {
        let slots = match self {
            Functions::One(slot) => &[Some(*slot)][..],
            Functions::Phases(slots) => slots,
        };
        slots.iter().flatten().for_each(|slot| kept.remove(lua, *slot));
    }
}

/// The name of a phase's function in a plugin.
pub(super) fn name_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Rewrite => "rewrite",
        Phase::Access => "access",
        Phase::BeforeProxy => "before_proxy",
        Phase::HeaderFilter => "header_filter",
        Phase::BodyFilter => "body_filter",
        Phase::Log => "log",
        Phase::Preread => "preread",
        Phase::StreamData => "stream_data",
    }
}
