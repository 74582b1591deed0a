//! hot path
//!
//! One tree of paths: exact ones by hash, patterns by their literal beginning.

use std::sync::Arc;

use sdk::Exchange;

use super::candidates::{Candidate, Candidates, Hit};
use super::map::Map;
use super::pattern::{Pattern, Rest};
use super::prefixes::Prefixes;
use super::{Hasher, Mode, Rule};

#[derive(Debug, Clone, Default)]
pub(super) struct Paths {
    exact: Map<Candidates>,
    patterns: Prefixes<Keyed>,
}

/// Candidates and the length of the key they stand under.
#[derive(Debug, Clone)]
struct Keyed {
    len: usize,
    candidates: Candidates,
}

impl Paths {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.len() == 0 && self.patterns.len() == 0
    }

    pub(super) fn insert(&mut self, rule: &Arc<Rule>, host: Option<u16>, mode: Mode, hasher: &Hasher) {
        for (uri, path) in rule.uris.iter().enumerate() {
            let candidate = |rest: Rest| Candidate::new(rule, uri as u16, host, rest);
            match Pattern::parse(path, mode) {
                Pattern::Exact(path) => {
                    self.exact.update(hasher.hash(path.as_bytes()), path.as_bytes(), |known| {
                        let mut candidates = known.unwrap_or_default();
                        candidates.insert(candidate(Rest::Any));
                        Some(candidates)
                    });
                }
                Pattern::Prefix(prefix, rest) => self.patterns.update(prefix.as_bytes(), |known| {
                    let empty = || Keyed { len: prefix.len(), candidates: Candidates::default() };
                    let mut keyed = known.unwrap_or_else(empty);
                    keyed.candidates.insert(candidate(rest));
                    Some(keyed)
                }),
            }
        }
    }

    /// Takes out every path of the rule.
    pub(super) fn remove(&mut self, rule: &Rule, mode: Mode, hasher: &Hasher) {
        for path in &rule.uris {
            match Pattern::parse(path, mode) {
                Pattern::Exact(path) => {
                    self.exact.update(hasher.hash(path.as_bytes()), path.as_bytes(), |known| {
                        let mut candidates = known?;
                        candidates.remove(&rule.id);
                        Some(candidates).filter(|candidates| !candidates.is_empty())
                    });
                }
                Pattern::Prefix(prefix, _) => self.patterns.update(prefix.as_bytes(), |known| {
                    let mut keyed = known?;
                    keyed.candidates.remove(&rule.id);
                    Some(keyed).filter(|keyed| !keyed.candidates.is_empty())
                }),
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
        self.patterns.of(path).iter().rev().find_map(|keyed| keyed.candidates.find(x, path, keyed.len))
    }
}
