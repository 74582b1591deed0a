//! hot path
//!
//! Hosts, each with its own tree of paths.

use std::sync::Arc;

use sdk::Exchange;
use smallvec::SmallVec;

use super::candidates::Hit;
use super::map::Map;
use super::paths::Paths;
use super::prefixes::Prefixes;
use super::{Hasher, Mode, Rule};

/// A host name on the stack; the longest has 253 characters.
type Text = SmallVec<[u8; 256]>;

#[derive(Debug, Clone, Default)]
pub(super) struct Hosts {
    exact: Map<Paths>,
    /// Patterns with a leading `*`, by what follows it, from the end.
    wildcards: Prefixes<Paths>,
}

impl Hosts {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.len() == 0 && self.wildcards.len() == 0
    }

    /// Adds the rule's paths to the tree of its host of this index.
    pub(super) fn insert(&mut self, rule: &Arc<Rule>, index: u16, mode: Mode, hasher: &Hasher) {
        let fresh = || {
            let mut paths = Paths::default();
            paths.insert(rule, Some(index), mode, hasher);
            paths
        };
        match Key::of(&rule.hosts[index as usize]) {
            Key::Exact(host) => match self.exact.get_mut(hasher.hash(&host), &host) {
                Some(paths) => paths.insert(rule, Some(index), mode, hasher),
                None => self.exact.insert(hasher.hash(&host), &host, fresh()),
            },
            Key::Wildcard(suffix) => match self.wildcards.get_mut(&suffix) {
                Some(paths) => paths.insert(rule, Some(index), mode, hasher),
                None => self.wildcards.insert(&suffix, fresh()),
            },
        }
    }

    /// Takes the rule's paths out of this host's tree.
    pub(super) fn remove(&mut self, rule: &Rule, host: &str, mode: Mode, hasher: &Hasher) {
        let is_empty_without = |paths: &mut Paths| {
            paths.remove(rule, mode, hasher);
            paths.is_empty()
        };
        match Key::of(host) {
            Key::Exact(host) => {
                let hash = hasher.hash(&host);
                if self.exact.get_mut(hash, &host).is_some_and(is_empty_without) {
                    self.exact.remove(hash, &host);
                }
            }
            Key::Wildcard(suffix) => {
                if self.wildcards.get_mut(&suffix).is_some_and(is_empty_without) {
                    self.wildcards.remove(&suffix);
                }
            }
        }
    }

    /// The exact host first, then wildcards with the longest suffix first; a host in whose tree
    /// nothing fits gives way to the next.
    #[inline]
    pub(super) fn find<'s>(
        &'s self,
        x: &Exchange<'_>,
        host: &[u8],
        hasher: &Hasher,
        path: &[u8],
        path_hash: u64,
    ) -> Option<Hit<'s>> {
        if self.exact.len() != 0
            && let Some(paths) = self.exact.get(hasher.hash(host), host)
            && let Some(hit) = paths.find(x, path, path_hash)
        {
            return Some(hit);
        }
        if self.wildcards.len() == 0 {
            return None;
        }
        self.wildcards.of(&reversed(host)).iter().rev().find_map(|(_, paths)| paths.find(x, path, path_hash))
    }
}

/// What a host pattern stands under.
enum Key {
    Exact(Text),
    Wildcard(Text),
}

impl Key {
    fn of(host: &str) -> Key {
        match host.strip_prefix('*') {
            Some(suffix) => Key::Wildcard(reversed(suffix.as_bytes())),
            None => Key::Exact(lower(host.as_bytes())),
        }
    }
}

/// In lower case, from the end.
fn reversed(host: &[u8]) -> Text {
    host.iter().rev().map(u8::to_ascii_lowercase).collect()
}

pub(super) fn lower(host: &[u8]) -> Text {
    host.iter().map(u8::to_ascii_lowercase).collect()
}
