//! Watching a search: what it looks at, in order, and why each candidate is passed over.
//!
//! The search for a request is watched by `()`, of which nothing is left in the code. Whoever explains a
//! decision watches the same search with a [`Trace`], so that the two cannot disagree.

use sdk::{Exchange, Verdict};

use super::candidates::{Candidate, Hit};
use super::pattern::Pattern;
use super::{Mode, Router};

/// Sees what a search looks at.
pub(super) trait Watch<'s> {
    /// The search turns to this tree of paths.
    #[inline]
    fn tree(&mut self, _tree: Tree) {}

    /// A candidate that does not match.
    #[inline]
    fn missed(&mut self, _candidate: &'s Candidate, _key: PathKey, _miss: Miss) {}

    /// A candidate that matches, or may. `None`: the search goes on as if it did not.
    #[inline]
    fn hit(&mut self, hit: Hit<'s>, _key: PathKey) -> Option<Hit<'s>> {
        Some(hit)
    }
}

impl Watch<'_> for () {}

/// Which of the trees of paths a candidate stands in, in the order in which they are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// That of a host with a port, which is compared with the whole Host field.
    Port,
    /// That of the request's host.
    Host,
    /// That of a pattern of hosts, with so many characters that are fixed.
    Wildcard(std::cmp::Reverse<usize>),
    /// That of rules for any host, or of all rules where the host is but a condition.
    Any,
}

/// What candidates are looked up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathKey {
    /// The whole path.
    Exact,
    /// So many bytes the path begins with.
    Begins(std::cmp::Reverse<usize>),
}

/// The first condition that a candidate fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    Method,
    RemoteAddr,
    Host,
    Vars,
    /// The rest of the path, behind the literal beginning of the pattern.
    Path,
}

/// What came of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Missed(Miss),
    /// [`Verdict::Holds`], or why it cannot be told.
    Matched(Verdict),
}

/// A candidate that a search looked at.
#[derive(Debug, Clone, Copy)]
pub struct Tried<'s> {
    /// The rule's.
    pub id: &'s str,
    /// The path as written.
    pub uri: &'s str,
    /// The host it stands under, or that matched.
    pub host: Option<&'s str>,
    pub priority: i64,
    pub tree: Tree,
    pub key: PathKey,
    pub outcome: Outcome,
}

/// What a search looked at, in order. The first one that matched is what it found.
#[derive(Debug)]
pub struct Trace<'s> {
    pub tried: Vec<Tried<'s>>,
    /// Candidates behind those, which were looked at as well.
    pub more: usize,
    most: usize,
    /// Whether it goes on behind the first that matches.
    goes_on: bool,
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
        self.tried.push(Tried { id, uri, host, priority, tree: self.tree, key, outcome });
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
        if self.goes_on { None } else { Some(hit) }
    }
}

impl Router {
    /// Does what [`Router::find`] does and tells what it looked at: at most so many candidates, what
    /// is found among them. With `goes_on` also those that would have been next. Changes nothing but the
    /// normal form of the path.
    pub fn trace<'s>(&'s self, x: &mut Exchange<'_>, most: usize, goes_on: bool) -> Trace<'s> {
        let mut trace = Trace { tried: Vec::new(), more: 0, most, goes_on, tree: Tree::Any, found: false };
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
