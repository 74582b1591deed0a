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
    exact: Map<Arc<Paths>>,
    /// Patterns with a leading `*`, by what follows it, from the end.
    wildcards: Prefixes<Arc<Paths>>,
}

impl Hosts {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.len() == 0 && self.wildcards.len() == 0
    }

    pub(super) fn insert(&mut self, rule: &Arc<Rule>, host: u16, mode: Mode, hasher: &Hasher) {
        self.update(&rule.hosts[host as usize], hasher, |paths| {
            paths.insert(rule, Some(host), mode, hasher);
        });
    }

    /// Takes the rule's paths out of this host's tree.
    pub(super) fn remove(&mut self, rule: &Rule, host: &str, mode: Mode, hasher: &Hasher) {
        self.update(host, hasher, |paths| paths.remove(rule, mode, hasher));
    }

    fn update(&mut self, host: &str, hasher: &Hasher, change: impl FnOnce(&mut Paths)) {
        let change = |known: Option<Arc<Paths>>| {
            let mut paths = known.unwrap_or_default();
            change(Arc::make_mut(&mut paths));
            Some(paths).filter(|paths| !paths.is_empty())
        };
        match host.strip_prefix('*') {
            Some(suffix) => self.wildcards.update(&reversed(suffix.as_bytes()), change),
            None => {
                let host = lower(host.as_bytes());
                self.exact.update(hasher.hash(&host), &host, change);
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
        self.wildcards.of(&reversed(host)).iter().rev().find_map(|paths| paths.find(x, path, path_hash))
    }
}

/// In lower case, from the end.
fn reversed(host: &[u8]) -> Text {
    host.iter().rev().map(u8::to_ascii_lowercase).collect()
}

pub(super) fn lower(host: &[u8]) -> Text {
    host.iter().map(u8::to_ascii_lowercase).collect()
}
