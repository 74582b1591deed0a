//! hot path
//!
//! Hosts, each with its own tree of paths.

use std::cmp::Reverse;
use std::sync::Arc;

use smallvec::SmallVec;

use super::candidates::Hit;
use super::hash::{Hashed, Hasher};
use super::map::Map;
use super::paths::Paths;
use super::prefixes::Prefixes;
use super::trace::{Tree, Watch};
use super::{Mode, Query, Rule};
use crate::plan::Plan;

/// A host name on the stack; the longest has 253 characters.
type Text = SmallVec<[u8; 256]>;

#[derive(Debug, Clone, Default)]
pub(super) struct Hosts {
    exact: Map<Paths>,
    /// Patterns with a leading `*`, by the reversed rest.
    wildcards: Prefixes<Paths>,
}

impl Hosts {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.len() == 0 && self.wildcards.len() == 0
    }

    /// Adds the rule's paths to the tree of its host of this index.
    pub(super) fn insert(
        &mut self,
        rule: &Arc<Rule>,
        plan: &Arc<Plan>,
        index: u32,
        mode: Mode,
        hasher: &Hasher,
    ) {
        let key = HostPattern::of(&rule.hosts[index as usize]);
        if let Some(paths) = self.paths_mut(&key, hasher) {
            return paths.insert(rule, plan, Some(index), mode, hasher);
        }
        let mut paths = Paths::default();
        paths.insert(rule, plan, Some(index), mode, hasher);
        match key {
            HostPattern::Exact(host) => self.exact.insert(hasher.hash(&host), &host, paths),
            HostPattern::Wildcard(suffix) => self.wildcards.insert(&suffix, paths, hasher),
        }
    }

    /// Sets this plan on the rule's paths under this host.
    pub(super) fn replace(&mut self, rule: &Rule, plan: &Arc<Plan>, host: &str, mode: Mode, hasher: &Hasher) {
        if let Some(paths) = self.paths_mut(&HostPattern::of(host), hasher) {
            paths.replace(rule, plan, mode, hasher);
        }
    }

    /// Removes the rule's paths from this host's tree.
    pub(super) fn remove(&mut self, rule: &Rule, host: &str, mode: Mode, hasher: &Hasher) {
        let key = HostPattern::of(host);
        let Some(paths) = self.paths_mut(&key, hasher) else { return };
        paths.remove(rule, mode, hasher);
        if paths.is_empty() {
            match key {
                HostPattern::Exact(host) => self.exact.remove(hasher.hash(&host), &host),
                HostPattern::Wildcard(suffix) => self.wildcards.remove(&suffix, hasher),
            }
        }
    }

    /// The tree of a host.
    pub(super) fn paths(&self, host: &str, hasher: &Hasher) -> Option<&Paths> {
        match HostPattern::of(host) {
            HostPattern::Exact(host) => self.exact.get(hasher.hash(&host), &host),
            HostPattern::Wildcard(suffix) => self.wildcards.get(&suffix, hasher),
        }
    }

    /// The tree under a key, to change it.
    fn paths_mut(&mut self, key: &HostPattern, hasher: &Hasher) -> Option<&mut Paths> {
        match key {
            HostPattern::Exact(host) => self.exact.get_mut(hasher.hash(host), host),
            HostPattern::Wildcard(suffix) => self.wildcards.get_mut(suffix, hasher),
        }
    }

    /// Searches the exact host first, then wildcards with the longest suffix first; if nothing in
    /// one tree matches, the next is searched. `host` is in lower case. `exact` is the kind of the
    /// exact trees.
    #[inline]
    pub(super) fn find<'s>(
        &'s self,
        query: Query<'_, '_>,
        host: &[u8],
        path: &Hashed<'_>,
        hasher: &Hasher,
        exact: Tree,
        watch: &mut impl Watch<'s>,
    ) -> Option<Hit<'s>> {
        watch.tree(exact);
        if self.exact.may_have(host.len())
            && let Some(paths) = self.exact.get(hasher.hash(host), host)
            && let Some(hit) = paths.find(query, path, hasher, watch)
        {
            return Some(hit);
        }
        if self.wildcards.len() == 0 {
            return None;
        }
        // Only the last part of the host, as long as the longest suffix, matters.
        let end = host.len().saturating_sub(self.wildcards.longest());
        let host = reversed(&host[end..]);
        self.wildcards.find(&host, hasher, |len, paths| {
            watch.tree(Tree::Wildcard(Reverse(len)));
            paths.find(query, path, hasher, watch)
        })
    }
}

/// The key of a host pattern.
enum HostPattern {
    Exact(Text),
    Wildcard(Text),
}

impl HostPattern {
    fn of(host: &str) -> HostPattern {
        match host.strip_prefix('*') {
            Some(suffix) => HostPattern::Wildcard(reversed(&lower(suffix.as_bytes()))),
            None => HostPattern::Exact(lower(host.as_bytes())),
        }
    }
}

/// Reverses a host.
fn reversed(host: &[u8]) -> Text {
    let mut text = Text::from_slice(host);
    text.reverse();
    text
}

pub(super) fn lower(host: &[u8]) -> Text {
    let mut text = Text::from_slice(host);
    text.make_ascii_lowercase();
    text
}
