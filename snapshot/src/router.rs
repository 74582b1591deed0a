//! hot path
//!
//! Finding the rule for a request, in exactly APISIX 3.x's order.
//!
//! The three routers of APISIX are modes of this one ([`Mode`]). Within a tree
//! of paths an exact path is always tried before any pattern; then patterns,
//! the longest literal beginning first; among those with the same beginning the
//! higher priority, the longer pattern, the smaller id. Whatever is found must
//! also admit the request's method, address, host and variables, else the
//! search goes on.
//!
//! A router is a value: cloning it costs the same however many rules it holds,
//! and changing a clone copies only what lies on the way to the change.
//! Searching neither allocates nor locks, and its time does not grow with the
//! number of rules, except for those that share one path (and host) and must be
//! asked one after another.

mod candidates;
mod filter;
pub(crate) mod hash;
mod hosts;
pub(crate) mod map;
mod paths;
mod pattern;
mod prefixes;
mod rules;
pub mod trace;

use std::sync::Arc;

use ipnet::IpNet;
use sdk::engine::Matched;
use sdk::exchange::Body;
use sdk::expr::Expr;
use sdk::{Exchange, Unjudged, Verdict};
use smallvec::SmallVec;

use crate::plan::Plan;
use candidates::Hit;
use hash::{Hashed, Hasher};
use hosts::Hosts;
use paths::Paths;
use pattern::Cut;
use rules::Rules;
use trace::{Tree, Watch};

/// The conditions under which a plan applies.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Unique among the rules of a router; the smaller one wins a tie.
    pub id: Box<str>,
    /// Paths and patterns, at least one: `/a`, `/a/*`, `/user/:id`. Shared with what a search finds.
    pub uris: Box<[Arc<str>]>,
    /// Host names, `*.suffix`, or names with a port; none is any. Shared likewise.
    pub hosts: Box<[Arc<str>]>,
    /// [`wire::Method::bit`] of each method that is admitted; 0 is any.
    pub methods: u16,
    /// None is any.
    pub remote_addrs: Box<[IpNet]>,
    pub vars: Option<Box<Expr>>,
    pub priority: i64,
}

/// Which of APISIX's routers this one is (`apisix.router.http`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// `radixtree_host_uri`: each host has its own tree of paths; hosts go before paths.
    #[default]
    HostUri,
    /// `radixtree_uri`: one tree of paths; the host is one more condition.
    Uri,
    /// `radixtree_uri_with_parameter`: as before, and `:name` in a path stands for a segment.
    UriWithParameter,
}

/// How paths are normalised before the search (`apisix.delete_uri_tail_slash`,
/// `apisix.normalize_uri_like_servlet`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// `/a/` is looked up as `/a`.
    pub delete_uri_tail_slash: bool,
    /// `/a;x=1/b` is looked up as `/a/b`; the upstream still gets what was sent.
    pub normalize_uri_like_servlet: bool,
}

/// A path that [`Options::normalize_uri_like_servlet`] refuses, since servers understand it
/// differently: a dot or empty segment with parameters. APISIX answers 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPath;

impl std::fmt::Display for BadPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the path has a dot segment or an empty segment with `;` parameters")
    }
}

impl std::error::Error for BadPath {}

/// The result of a search.
#[derive(Debug, Clone, Copy)]
pub enum Found<'s> {
    Plan(&'s Arc<Plan>),
    Nothing,
    /// A rule that may match needs the request's body: search again with the body in memory.
    NeedsBody,
    /// Whether a rule applies cannot be decided, and another one would let the request through.
    Refused(Unjudged),
}

impl<'s> Found<'s> {
    /// The plan, if there is one.
    pub fn plan(self) -> Option<&'s Arc<Plan>> {
        match self {
            Found::Plan(plan) => Some(plan),
            Found::Nothing | Found::NeedsBody | Found::Refused(_) => None,
        }
    }
}

/// What to look up.
#[derive(Clone, Copy)]
struct Asked<'a, 'x> {
    x: &'a Exchange<'x>,
    /// Its path, for patterns that look at segments.
    cut: &'a Cut<'a>,
    /// What conditions cannot read is treated as absent.
    lenient: bool,
}

/// All rules, ready to be searched.
#[derive(Debug, Clone)]
pub struct Router {
    mode: Mode,
    options: Options,
    hasher: Hasher,
    rules: Rules,
    /// Rules under the hosts they name, if hosts are looked up first.
    hosts: Hosts,
    /// The same for hosts with a port, which are compared with the whole Host field.
    ports: Hosts,
    /// Rules without a host, or all rules if the host is only a condition.
    paths: Paths,
    /// Rules with conditions on variables.
    reading: usize,
    /// Rules whose conditions need the request's body.
    reading_body: usize,
}

impl Router {
    pub fn new(mode: Mode, options: Options) -> Router {
        Router {
            mode,
            options,
            hasher: Hasher::default(),
            rules: Rules::default(),
            hosts: Hosts::default(),
            ports: Hosts::default(),
            paths: Paths::default(),
            reading: 0,
            reading_body: 0,
        }
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rule of this id.
    pub fn rule(&self, id: &str) -> Option<&Arc<Rule>> {
        self.rules.get(self.hasher.hash(id.as_bytes()), id)
    }

    /// The plan that applies when the rule of this id does.
    pub fn plan(&self, id: &str) -> Option<&Arc<Plan>> {
        let (rule, mode, hasher) = (self.rule(id)?, self.mode, &self.hasher);
        // It is the same everywhere.
        let (host, place) = *places(rule, mode).first()?;
        let paths = match place {
            Place::Paths => &self.paths,
            Place::Hosts => self.hosts.paths(&rule.hosts[host as usize], hasher)?,
            Place::Ports => self.ports.paths(&rule.hosts[host as usize], hasher)?,
        };
        paths.plan(rule, mode, hasher)
    }

    /// Whether [`Router::find`] may need the request's body.
    #[inline]
    pub fn needs_body(&self) -> bool {
        self.reading_body > 0
    }

    /// Adds a rule and its plan, replacing those with the same id.
    pub fn insert(&mut self, rule: Arc<Rule>, plan: Arc<Plan>) {
        self.remove(&rule.id);
        self.insert_new(rule, plan);
    }

    /// The same for a rule whose id is not there.
    pub(crate) fn insert_new(&mut self, rule: Arc<Rule>, plan: Arc<Plan>) {
        let (mode, hasher) = (self.mode, &self.hasher);
        for (host, place) in places(&rule, mode) {
            match place {
                Place::Paths => self.paths.insert(&rule, &plan, None, mode, hasher),
                Place::Hosts => self.hosts.insert(&rule, &plan, host, mode, hasher),
                Place::Ports => self.ports.insert(&rule, &plan, host, mode, hasher),
            }
        }
        self.reading += usize::from(rule.vars.is_some());
        self.reading_body += usize::from(reads_body(&rule));
        self.rules.insert(hasher.hash(rule.id.as_bytes()), rule.clone());
    }

    /// Replaces the plan of the rule with this id, which is much cheaper than inserting it again.
    /// Without such a rule it does nothing.
    pub fn replace(&mut self, id: &str, plan: Arc<Plan>) {
        let (mode, hasher) = (self.mode, &self.hasher);
        let Some(rule) = self.rules.get(hasher.hash(id.as_bytes()), id) else { return };
        for (host, place) in places(rule, mode) {
            let name = || &rule.hosts[host as usize];
            match place {
                Place::Paths => self.paths.replace(rule, &plan, mode, hasher),
                Place::Hosts => self.hosts.replace(rule, &plan, name(), mode, hasher),
                Place::Ports => self.ports.replace(rule, &plan, name(), mode, hasher),
            }
        }
    }

    /// Removes the rule of this id, if there is one.
    pub fn remove(&mut self, id: &str) {
        let Some(rule) = self.rule(id).cloned() else { return };
        let (mode, hasher) = (self.mode, &self.hasher);
        for (host, place) in places(&rule, mode) {
            let name = || &rule.hosts[host as usize];
            match place {
                Place::Paths => self.paths.remove(&rule, mode, hasher),
                Place::Hosts => self.hosts.remove(&rule, name(), mode, hasher),
                Place::Ports => self.ports.remove(&rule, name(), mode, hasher),
            }
        }
        self.reading -= usize::from(rule.vars.is_some());
        self.reading_body -= usize::from(reads_body(&rule));
        self.rules.remove(hasher.hash(id.as_bytes()), id);
    }

    /// Normalises the request's path as the options say, for this search and for everything that reads
    /// it later. What goes to the upstream stays unchanged. Idempotent.
    pub fn normalize(&self, x: &mut Exchange<'_>) -> Result<(), BadPath> {
        if self.options.normalize_uri_like_servlet && x.path().contains(&b';') {
            let path = without_parameters(x.path())?;
            x.engine_mut().messages.request.path_span = x.intern(&path);
        }
        if self.options.delete_uri_tail_slash {
            let span = x.request().path_span;
            if span.len > 1 && x.path().ends_with(b"/") {
                x.engine_mut().messages.request.path_span.len = span.len - 1;
            }
        }
        Ok(())
    }

    /// Finds the rule for a request and records in [`Matched`] what matched. Normalises
    /// the path if that was not done; a refused path matches nothing.
    ///
    /// Rules are tested in order, first by what needs no body: the body is requested only if it
    /// decides about a rule that nothing else rules out. If even the body cannot decide, the
    /// request must not fall through to the next rule as if the condition were false; if no rule
    /// would let it through anyway, nothing is found, as in APISIX.
    pub fn find<'s>(&'s self, x: &mut Exchange<'s>) -> Found<'s> {
        if self.normalize(x).is_err() {
            return Found::Nothing;
        }
        let hit = self.search_once(x, false, &mut ());
        let Some(Hit { candidate, host, params, verdict }) = hit else { return Found::Nothing };
        match verdict {
            Verdict::NeedsBody => return Found::NeedsBody,
            Verdict::Unjudged(why) => {
                return match self.search_once(x, true, &mut ()) {
                    Some(_) => Found::Refused(why),
                    None => Found::Nothing,
                };
            }
            Verdict::Holds | Verdict::Fails => {}
        }
        let (host, host_index) = host.unwrap_or_default();
        x.engine_mut().matched = Matched {
            route: Some(&candidate.plan.info),
            uri: &candidate.uri,
            uri_index: candidate.uri_index(),
            host,
            host_index,
            params,
        };
        Found::Plan(&candidate.plan)
    }

    /// Searches; what conditions read more than once of a long request is found once.
    fn search_once<'s>(
        &'s self,
        x: &mut Exchange<'_>,
        lenient: bool,
        watch: &mut impl Watch<'s>,
    ) -> Option<Hit<'s>> {
        if self.needs_body() && x.body_state() == Body::Whole {
            sdk::vars::reading_body(x, |x| self.search(x, lenient, watch))
        } else if self.reading > 0 {
            sdk::vars::reading(x, |x| self.search(x, lenient, watch))
        } else {
            self.search(x, lenient, watch)
        }
    }

    fn search<'s>(&'s self, x: &Exchange<'_>, lenient: bool, watch: &mut impl Watch<'s>) -> Option<Hit<'s>> {
        let hasher = &self.hasher;
        let path = Hashed::new(x.path());
        let asked = Asked { x, cut: &Cut::new(x.path()), lenient };
        if !self.ports.is_empty() {
            let authority = hosts::lower(x.request().authority());
            let hit = self.ports.find(asked, &authority, &path, hasher, Tree::Port, watch);
            if hit.is_some() {
                return hit;
            }
        }
        if !self.hosts.is_empty() {
            let hit = self.hosts.find(asked, x.request().host(), &path, hasher, Tree::Host, watch);
            if hit.is_some() {
                return hit;
            }
        }
        watch.tree(Tree::Any);
        self.paths.find(asked, &path, hasher, watch)
    }
}

/// The table a rule is stored in, with the index of the host it is stored under.
fn places(rule: &Rule, mode: Mode) -> SmallVec<[(u32, Place); 4]> {
    if mode != Mode::HostUri || rule.hosts.is_empty() {
        return std::iter::once((0, Place::Paths)).collect();
    }
    let place = |host: &Arc<str>| if has_port(host) { Place::Ports } else { Place::Hosts };
    rule.hosts.iter().enumerate().map(|(i, host)| (i as u32, place(host))).collect()
}

/// The table that a rule is stored in under one of its hosts.
#[derive(Debug, Clone, Copy)]
enum Place {
    Paths,
    Hosts,
    Ports,
}

/// `a.com:80`, `[::1]:80`, but not `[::1]`.
fn has_port(host: &str) -> bool {
    host.contains(':') && !host.ends_with(']')
}

fn reads_body(rule: &Rule) -> bool {
    rule.vars.as_deref().is_some_and(Expr::needs_body)
}

/// The path without the part of each segment from `;` on.
fn without_parameters(path: &[u8]) -> Result<SmallVec<[u8; 256]>, BadPath> {
    let mut out = SmallVec::with_capacity(path.len());
    let mut segments = path.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let name = segment.split(|&byte| byte == b';').next().unwrap_or_default();
        if name.len() != segment.len() {
            let dots = matches!(name.to_ascii_lowercase().as_slice(), b"." | b".." | b"%2e" | b"%2e%2e");
            if dots || (name.is_empty() && segments.peek().is_some()) {
                return Err(BadPath);
            }
        }
        out.extend_from_slice(name);
        if segments.peek().is_some() {
            out.push(b'/');
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
