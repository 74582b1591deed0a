//! Traces a search: the candidates it tests, in order, and why each is skipped.
//!
//! The search for a request uses the watcher `()`, which compiles to nothing. Explanations run the
//! same search with a [`Trace`], so the two cannot disagree.

use sdk::{Exchange, Verdict};

use super::candidates::{Candidate, Hit};
use super::pattern::Pattern;
use super::{Mode, Router};

/// Observes the steps of a search.
pub(super) trait Watch<'s> {
    /// The search starts with this tree of paths.
    #[inline]
    fn tree(&mut self, _tree: Tree) {}

    /// A candidate that does not match.
    #[inline]
    fn missed(&mut self, _candidate: &'s Candidate, _key: PathKey, _miss: Miss) {}

    /// A candidate that matches, or may match. `None` continues the search as if it did not.
    #[inline]
    fn hit(&mut self, hit: Hit<'s>, _key: PathKey) -> Option<Hit<'s>> {
        Some(hit)
    }
}

impl Watch<'_> for () {}

/// The tree of paths a candidate is stored in, in search order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// A host with a port, which is compared with the whole Host field.
    Port,
    /// The request's host.
    Host,
    /// A host pattern, with the number of its literal characters.
    Wildcard(std::cmp::Reverse<usize>),
    /// Rules for any host, or all rules if the host is only a condition.
    Any,
}

/// The key by which candidates are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathKey {
    /// The whole path.
    Exact,
    /// A literal prefix of this length in bytes.
    Begins(std::cmp::Reverse<usize>),
}

/// The first condition that a candidate fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    Method,
    RemoteAddr,
    Host,
    Vars,
    /// Its `filter_func`.
    Code,
    /// The rest of the path, after the pattern's literal prefix.
    Path,
}

/// The result for a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Missed(Miss),
    /// [`Verdict::Holds`], or why it is undecidable.
    Matched(Verdict),
}

/// A candidate that a search tested.
#[derive(Debug, Clone, Copy)]
pub struct TracedCandidate<'s> {
    /// The rule's.
    pub id: &'s str,
    /// The configured path.
    pub uri: &'s str,
    /// The host it is stored under, or that matched.
    pub host: Option<&'s str>,
    pub priority: i64,
    pub tree: Tree,
    pub key: PathKey,
    pub outcome: Outcome,
}

/// The candidates that a search tested, in order. The first match is the result.
#[derive(Debug)]
pub struct Trace<'s> {
    pub tried: Vec<TracedCandidate<'s>>,
    /// The number of further candidates that were tested.
    pub more: usize,
    most: usize,
    /// Whether the search continues after the first match.
    exhaustive: bool,
    tree: Tree,
    found: bool,
}

impl<'s> Trace<'s> {
    fn note(&mut self, candidate: &'s Candidate, host: Option<&'s str>, key: PathKey, outcome: Outcome) {
        let is_first_hit = matches!(outcome, Outcome::Matched(_)) && !self.found;
        if self.tried.len() >= self.most && !is_first_hit {
            self.more += 1;
            return;
        }
        self.found |= is_first_hit;
        let rule = candidate.rule();
        let (id, uri, priority) = (&*rule.id, &*candidate.uri, rule.priority);
        self.tried.push(TracedCandidate { id, uri, host, priority, tree: self.tree, key, outcome });
    }
}

impl<'s> Watch<'s> for Trace<'s> {
    fn tree(&mut self, tree: Tree) {
        self.tree = tree;
    }

    fn missed(&mut self, candidate: &'s Candidate, key: PathKey, miss: Miss) {
        self.note(candidate, candidate.host(), key, Outcome::Missed(miss));
    }

    fn hit(&mut self, hit: Hit<'s>, key: PathKey) -> Option<Hit<'s>> {
        let host = hit.host.map(|(host, _)| host);
        self.note(hit.candidate, host, key, Outcome::Matched(hit.verdict));
        if self.exhaustive { None } else { Some(hit) }
    }
}

impl Router {
    /// Does the same as [`Router::find`] and returns the tested candidates: at most `most`, the
    /// result among them. With `exhaustive`, also those that would have been next. The only side
    /// effect is the normalised path.
    pub fn trace<'s>(&'s self, x: &mut Exchange<'_>, most: usize, exhaustive: bool) -> Trace<'s> {
        let mut trace = Trace { tried: Vec::new(), more: 0, most, exhaustive, tree: Tree::Any, found: false };
        if self.normalize(x).is_err() {
            return trace;
        }
        self.search_once(x, false, &mut trace);
        trace
    }
}

/// How requests are matched with a path of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape<'a> {
    /// The whole path, or the literal part it begins with.
    pub key: &'a str,
    pub exact: bool,
    /// Every path with that key matches.
    pub whole: bool,
}

impl<'a> Shape<'a> {
    pub fn of(path: &'a str, mode: Mode) -> Shape<'a> {
        match Pattern::parse(path, mode) {
            Pattern::Exact(key) => Shape { key, exact: true, whole: true },
            Pattern::Prefix(key, rest) => Shape { key, exact: false, whole: rest.takes_all() },
        }
    }
}
