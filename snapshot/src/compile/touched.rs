//! Tracks changes between two compiles.

use std::collections::BTreeSet;

use model::{Key, Kind};

/// The changes since the last compile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Everything, the plugin list included; the other fields then add nothing.
    pub all: bool,
    /// Resources that were created, changed or deleted.
    pub keys: BTreeSet<Key>,
    /// Host names whose addresses changed.
    pub hosts: BTreeSet<String>,
}

impl Touched {
    pub fn all() -> Touched {
        Touched { all: true, ..Touched::default() }
    }

    pub fn is_empty(&self) -> bool {
        !self.all && self.keys.is_empty() && self.hosts.is_empty()
    }

    /// The union of both.
    pub fn merge(&mut self, other: Touched) {
        self.all |= other.all;
        self.keys.extend(other.keys);
        self.hosts.extend(other.hosts);
    }
}

impl FromIterator<Key> for Touched {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Touched {
        Touched { keys: keys.into_iter().collect(), ..Touched::default() }
    }
}

/// The resources still to compile, by kind.
#[derive(Debug, Default)]
pub(super) struct Work([Vec<String>; Kind::ALL.len()]);

impl Work {
    pub fn add(&mut self, key: Key) {
        self.0[key.kind.index()].push(key.id);
    }

    /// The ids of a kind, each once, in order.
    pub fn take(&mut self, kind: Kind) -> Vec<String> {
        let mut ids = std::mem::take(&mut self.0[kind.index()]);
        ids.sort();
        ids.dedup();
        ids
    }
}
