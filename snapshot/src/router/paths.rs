//! hot path
//!
//! One tree of paths: exact ones by hash, patterns by their literal beginning.

use std::sync::Arc;

use sdk::Exchange;

use super::candidates::{Candidate, Candidates, Hit, Remain};
use super::map::Map;
use super::pattern::{Pattern, Rest};
use super::prefixes::Prefixes;
use super::{Hasher, Mode, Rule};

#[derive(Debug, Clone, Default)]
pub(super) struct Paths {
    exact: Map<Candidates>,
    patterns: Prefixes<Candidates>,
}

impl Paths {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.len() == 0 && self.patterns.len() == 0
    }

    pub(super) fn insert(&mut self, rule: &Arc<Rule>, host: Option<u16>, mode: Mode, hasher: &Hasher) {
        for (index, path) in rule.uris.iter().enumerate() {
            match Pattern::parse(path, mode) {
                Pattern::Exact(path) => {
                    let (hash, key) = (hasher.hash(path.as_bytes()), path.as_bytes());
                    let candidate = Candidate::new(rule, index, host, Rest::Any);
                    match self.exact.get_mut(hash, key) {
                        Some(candidates) => candidates.insert(candidate),
                        None => self.exact.insert(hash, key, Candidates::new(candidate)),
                    }
                }
                Pattern::Prefix(prefix, rest) => {
                    let candidate = Candidate::new(rule, index, host, rest);
                    match self.patterns.get_mut(prefix.as_bytes()) {
                        Some(candidates) => candidates.insert(candidate),
                        None => self.patterns.insert(prefix.as_bytes(), Candidates::new(candidate)),
                    }
                }
            }
        }
    }

    /// Takes out every path of the rule.
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
                    let remain = self.patterns.get_mut(key).map(|candidates| candidates.remove(&rule.id));
                    if remain == Some(Remain::None) {
                        self.patterns.remove(key);
                    }
                }
            }
        }
    }

    /// An exact path before any pattern, then the longest literal beginning first.
    #[inline]
    pub(super) fn find<'s>(&'s self, x: &Exchange<'_>, path: &[u8], hash: u64) -> Option<Hit<'s>> {
        if self.exact.len() != 0
            && let Some(candidates) = self.exact.get(hash, path)
            && let Some(hit) = candidates.find(x, path, path.len())
        {
            return Some(hit);
        }
        if self.patterns.len() == 0 {
            return None;
        }
        self.patterns.of(path).iter().rev().find_map(|(len, candidates)| candidates.find(x, path, *len))
    }
}
