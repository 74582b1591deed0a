//! hot path
//!
//! One tree of paths: exact ones by hash, patterns by their literal prefix.

use std::cmp::Reverse;
use std::sync::Arc;

use super::candidates::{Candidate, Candidates, Hit, Remain};
use super::hash::{Hashed, Hasher};
use super::map::Map;
use super::pattern::{Pattern, Rest};
use super::prefixes::Prefixes;
use super::trace::{PathKey, Watch};
use super::{Mode, Query, Rule};
use crate::plan::Plan;

#[derive(Debug, Clone, Default)]
pub(super) struct Paths {
    exact: Map<Candidates>,
    patterns: Prefixes<Candidates>,
}

impl Paths {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.len() == 0 && self.patterns.len() == 0
    }

    pub(super) fn insert(
        &mut self,
        rule: &Arc<Rule>,
        plan: &Arc<Plan>,
        host: Option<u32>,
        mode: Mode,
        hasher: &Hasher,
    ) {
        for (index, path) in rule.uris.iter().enumerate() {
            match Pattern::parse(path, mode) {
                Pattern::Exact(path) => {
                    let (hash, key) = (hasher.hash(path.as_bytes()), path.as_bytes());
                    let candidate = Candidate::new(rule, plan, index, host, Rest::ANY);
                    match self.exact.get_mut(hash, key) {
                        Some(candidates) => candidates.insert(candidate),
                        None => self.exact.insert(hash, key, Candidates::new(candidate)),
                    }
                }
                Pattern::Prefix(prefix, rest) => {
                    let key = prefix.as_bytes();
                    let candidate = Candidate::new(rule, plan, index, host, rest);
                    match self.patterns.get_mut(key, hasher) {
                        Some(candidates) => candidates.insert(candidate),
                        None => self.patterns.insert(key, Candidates::new(candidate), hasher),
                    }
                }
            }
        }
    }

    /// Sets this plan on every path of the rule.
    pub(super) fn replace(&mut self, rule: &Rule, plan: &Arc<Plan>, mode: Mode, hasher: &Hasher) {
        for path in &rule.uris {
            let candidates = match Pattern::parse(path, mode) {
                Pattern::Exact(path) => self.exact.get_mut(hasher.hash(path.as_bytes()), path.as_bytes()),
                Pattern::Prefix(prefix, _) => self.patterns.get_mut(prefix.as_bytes(), hasher),
            };
            if let Some(candidates) = candidates {
                candidates.replace(&rule.id, plan);
            }
        }
    }

    /// The plan of a rule that is stored here.
    pub(super) fn plan(&self, rule: &Rule, mode: Mode, hasher: &Hasher) -> Option<&Arc<Plan>> {
        let candidates = match Pattern::parse(rule.uris.first()?, mode) {
            Pattern::Exact(path) => self.exact.get(hasher.hash(path.as_bytes()), path.as_bytes()),
            Pattern::Prefix(prefix, _) => self.patterns.get(prefix.as_bytes(), hasher),
        };
        candidates?.plan(&rule.id)
    }

    /// Removes every path of the rule.
    pub(super) fn remove(&mut self, rule: &Rule, mode: Mode, hasher: &Hasher) {
        for path in &rule.uris {
            match Pattern::parse(path, mode) {
                Pattern::Exact(path) => {
                    let (hash, key) = (hasher.hash(path.as_bytes()), path.as_bytes());
                    let remain = self.exact.get_mut(hash, key).map(|candidates| candidates.remove(&rule.id));
                    if remain == Some(Remain::None) {
                        self.exact.remove(hash, key);
                    }
                }
                Pattern::Prefix(prefix, _) => {
                    let key = prefix.as_bytes();
                    let candidates = self.patterns.get_mut(key, hasher);
                    let remain = candidates.map(|candidates| candidates.remove(&rule.id));
                    if remain == Some(Remain::None) {
                        self.patterns.remove(key, hasher);
                    }
                }
            }
        }
    }

    /// An exact path before any pattern, then the longest literal prefix first.
    #[inline]
    pub(super) fn find<'s>(
        &'s self,
        query: Query<'_, '_>,
        path: &Hashed<'_>,
        hasher: &Hasher,
        watch: &mut impl Watch<'s>,
    ) -> Option<Hit<'s>> {
        let text = path.text;
        if self.exact.may_have(text.len())
            && let Some(candidates) = self.exact.get(path.hash(hasher), text)
            && let Some(hit) = candidates.find(query, text.len(), PathKey::Exact, watch)
        {
            return Some(hit);
        }
        self.patterns.find(text, hasher, |len, candidates| {
            candidates.find(query, len, PathKey::Begins(Reverse(len)), watch)
        })
    }
}
