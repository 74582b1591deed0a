//! Rejected resources, and what is served in their place.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use model::{Entry, Invalid, Key, Kind, Rejected, Served};

use super::memo::Memo;

/// The rejected resources, by key.
#[derive(Default)]
pub(super) struct Rejections {
    rejected: BTreeMap<Key, Rejected>,
    /// Resources rejected only because another resource already claims something unique.
    duplicates: BTreeSet<Key>,
    list: Memo<[Rejected]>,
}

impl Rejections {
    pub fn get(&self, key: &Key) -> Option<&Rejected> {
        self.rejected.get(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.rejected.keys()
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Rejected)> {
        self.rejected.range(Key::new(kind, "")..).take_while(move |(key, _)| key.kind == kind)
    }

    /// All of them. The same `Arc` as before if nothing changed.
    pub fn list(&mut self) -> Arc<[Rejected]> {
        self.list.get(|| self.rejected.values().cloned().collect())
    }

    pub fn accept(&mut self, key: &Key) {
        self.duplicates.remove(key);
        if self.rejected.remove(key).is_some() {
            self.list.reset();
        }
    }

    pub fn reject(&mut self, key: &Key, invalid: Invalid, served: Served) {
        self.duplicates.remove(key);
        self.rejected.insert(key.clone(), Rejected { key: key.clone(), invalid, served });
        self.list.reset();
    }

    /// Marks a rejected resource: requests that match it are refused.
    pub fn mark_refused(&mut self, key: &Key) {
        if let Some(rejected) = self.rejected.get_mut(key)
            && rejected.served != Served::Refusal
        {
            rejected.served = Served::Refusal;
            self.list.reset();
        }
    }

    /// Sets or clears a resource's rejection as a duplicate. A rejection for its own content takes
    /// precedence and stays.
    pub fn set_duplicate(&mut self, key: Key, invalid: Option<Invalid>) {
        if self.duplicates.contains(&key) {
            self.accept(&key);
        }
        if let Some(invalid) = invalid
            && !self.rejected.contains_key(&key)
        {
            self.reject(&key, invalid, Served::Nothing);
            self.duplicates.insert(key);
        }
    }

    /// Accepts or rejects a resource according to its outcome.
    pub fn settle<T>(&mut self, key: &Key, outcome: CompileOutcome<T>) -> Option<T> {
        match outcome.error {
            None => self.accept(key),
            Some(invalid) => self.reject(key, *invalid, outcome.served),
        }
        outcome.made
    }
}

/// A resource compiled from its entry or, if that is invalid, again from its last valid entry:
/// names, services and other inputs may have changed, and those changes apply to the last valid
/// version, too.
pub(super) struct CompileOutcome<T> {
    pub made: Option<T>,
    /// The error in the entry.
    pub error: Option<Box<Invalid>>,
    /// Whether the last valid version serves in its place.
    pub served: Served,
}

impl<T> CompileOutcome<T> {
    pub fn or_last_good(
        entry: &Arc<Entry>,
        last_good: Option<&Arc<Entry>>,
        mut make: impl FnMut(&Arc<Entry>) -> Result<T, Invalid>,
    ) -> CompileOutcome<T> {
        let served = Served::last_good(last_good.is_some());
        let mut make = |entry: &Arc<Entry>| guarded(|| make(entry));
        match make(entry) {
            Ok(made) => CompileOutcome { made: Some(made), error: None, served },
            Err(invalid) => {
                let last_good = last_good.filter(|last_good| !Arc::ptr_eq(last_good, entry));
                let made = last_good.and_then(|last_good| make(last_good).ok());
                CompileOutcome { made, error: Some(Box::new(invalid)), served }
            }
        }
    }
}

/// Contains a panic: only the resource that triggers our bug is rejected.
pub(super) fn guarded<T>(make: impl FnOnce() -> Result<T, Invalid>) -> Result<T, Invalid> {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| {
        Err(Invalid::new("compiling it failed through a fault in the gateway, not in the resource")
            .hint("the log says where; please report it"))
    })
}
