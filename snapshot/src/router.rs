//! hot path
//!
//! Finds the rule of a request, in exactly APISIX 3.x's order.
//!
//! The three routers of APISIX are modes of this one ([`Mode`]). Within a tree of paths an exact
//! path is always tried before any pattern; then patterns, the longest literal prefix first; among
//! those with the same prefix by higher priority, longer pattern and smaller id. The rule must also
//! match the request's method, address, host and variables, otherwise the search continues.
//!
//! A router is a value: cloning it costs the same however many rules it holds, and changing a clone
//! copies only the path to the change. Searching neither allocates nor locks, and its time does not
//! grow with the number of rules, except for those that share one path (and host) and must be tried
//! one after another.

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
use sdk::condition::Condition;
use sdk::engine::Matched;
use sdk::exchange::Body;
use sdk::expr::Expr;
use sdk::{Exchange, Undecidable, Verdict};
use smallvec::SmallVec;

use crate::plan::Plan;
use candidates::Hit;
use hash::{Hashed, Hasher};
use hosts::Hosts;
use paths::Paths;
use pattern::Cut;
use rules::Rules;
use trace::{Tree, Watch};

/// The conditions of a plan.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Unique among the rules of a router; the smaller one wins a tie.
    pub id: Box<str>,
    /// Paths and patterns, at least one: `/a`, `/a/*`, `/user/:id`. Shared with search results.
    pub uris: Box<[Arc<str>]>,
    /// Host names, `*.suffix`, or names with a port; empty matches any. Shared likewise.
    pub hosts: Box<[Arc<str>]>,
    /// [`wire::Method::bit`] of each allowed method; 0 allows any.
    pub methods: u16,
    /// Empty allows any.
    pub remote_addrs: Box<[IpNet]>,
    pub vars: Option<Box<Expr>>,
    pub code: Option<Box<Code>>,
    pub priority: i64,
}

/// A condition that is code (`filter_func`).
#[derive(Debug, Clone)]
pub struct Code {
    pub text: Box<str>,
    pub condition: Arc<dyn Condition>,
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
    /// `/a;x=1/b` is looked up as `/a/b`; the upstream still gets the original path.
    pub normalize_uri_like_servlet: bool,
}

/// A path that [`Options::normalize_uri_like_servlet`] rejects because servers interpret it
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
pub enum RouteLookup<'s> {
    Plan(&'s Arc<Plan>),
    Nothing,
    /// A rule that may match needs the request's body: search again once it is buffered.
    NeedsBody,
    /// A rule is undecidable, and a later one would let the request through.
    Refused(Undecidable),
}

impl<'s> RouteLookup<'s> {
    /// The plan, if there is one.
    pub fn plan(self) -> Option<&'s Arc<Plan>> {
        match self {
            RouteLookup::Plan(plan) => Some(plan),
            RouteLookup::Nothing | RouteLookup::NeedsBody | RouteLookup::Refused(_) => None,
        }
    }
}

/// The request being looked up.
#[derive(Clone, Copy)]
struct Query<'a, 'x> {
    x: &'a Exchange<'x>,
    /// Its path, for patterns over segments.
    cut: &'a Cut<'a>,
    /// Unreadable values in conditions count as absent.
    lenient: bool,
}

/// All rules, in a searchable form.
#[derive(Debug, Clone)]
pub struct Router {
    mode: Mode,
    options: Options,
    hasher: Hasher,
    rules: Rules,
    /// Rules by their hosts, if hosts are looked up first.
    hosts: Hosts,
    /// The same for hosts with a port, which are compared with the whole Host field.
    ports: Hosts,
    /// Rules without a host, or all rules if the host is only a condition.
    paths: Paths,
    /// The number of rules with conditions on variables.
    reading: usize,
    /// The number of rules whose conditions need the request's body.
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

    /// The plan of the rule of this id.
    pub fn plan(&self, id: &str) -> Option<&Arc<Plan>> {
        let (rule, mode, hasher) = (self.rule(id)?, self.mode, &self.hasher);
        // All entries of a rule share one plan.
        let (host, table) = *tables(rule, mode).first()?;
        let paths = match table {
            HostTable::Paths => &self.paths,
            HostTable::Hosts => self.hosts.paths(&rule.hosts[host as usize], hasher)?,
            HostTable::Ports => self.ports.paths(&rule.hosts[host as usize], hasher)?,
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

    /// Adds a rule whose id is new.
    pub(crate) fn insert_new(&mut self, rule: Arc<Rule>, plan: Arc<Plan>) {
        let (mode, hasher) = (self.mode, &self.hasher);
        for (host, table) in tables(&rule, mode) {
            match table {
                HostTable::Paths => self.paths.insert(&rule, &plan, None, mode, hasher),
                HostTable::Hosts => self.hosts.insert(&rule, &plan, host, mode, hasher),
                HostTable::Ports => self.ports.insert(&rule, &plan, host, mode, hasher),
            }
        }
        self.reading += usize::from(reads(&rule));
        self.reading_body += usize::from(reads_body(&rule));
        self.rules.insert(hasher.hash(rule.id.as_bytes()), rule.clone());
    }

    /// Replaces the plan of the rule with this id, which is much cheaper than inserting the rule
    /// again. Has no effect without such a rule.
    pub fn replace(&mut self, id: &str, plan: Arc<Plan>) {
        let (mode, hasher) = (self.mode, &self.hasher);
        let Some(rule) = self.rules.get(hasher.hash(id.as_bytes()), id) else { return };
        for (host, table) in tables(rule, mode) {
            let name = || &rule.hosts[host as usize];
            match table {
                HostTable::Paths => self.paths.replace(rule, &plan, mode, hasher),
                HostTable::Hosts => self.hosts.replace(rule, &plan, name(), mode, hasher),
                HostTable::Ports => self.ports.replace(rule, &plan, name(), mode, hasher),
            }
        }
    }

    /// Removes the rule of this id, if there is one.
    pub fn remove(&mut self, id: &str) {
        let Some(rule) = self.rule(id).cloned() else { return };
        let (mode, hasher) = (self.mode, &self.hasher);
        for (host, table) in tables(&rule, mode) {
            let name = || &rule.hosts[host as usize];
            match table {
                HostTable::Paths => self.paths.remove(&rule, mode, hasher),
                HostTable::Hosts => self.hosts.remove(&rule, name(), mode, hasher),
                HostTable::Ports => self.ports.remove(&rule, name(), mode, hasher),
            }
        }
        self.reading -= usize::from(reads(&rule));
        self.reading_body -= usize::from(reads_body(&rule));
        self.rules.remove(hasher.hash(id.as_bytes()), id);
    }

    /// Normalises the request's path according to the options, for this search and for all later
    /// readers. The upstream still gets the original path. Idempotent.
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

    /// Finds the rule of a request and records in [`Matched`] what matched. Normalises the path if
    /// necessary; a rejected path matches nothing.
    ///
    /// Rules are tested in order, first by conditions that need no body: the body is requested only
    /// if a rule depends on it alone. If even the body leaves the rule undecidable, the request
    /// must not fall through to the next rule as if the condition were false; if no rule would let
    /// it through anyway, nothing is found, as in APISIX.
    pub fn find<'s>(&'s self, x: &mut Exchange<'s>) -> RouteLookup<'s> {
        if self.normalize(x).is_err() {
            return RouteLookup::Nothing;
        }
        let hit = self.search_once(x, false, &mut ());
        let Some(Hit { candidate, host, params, verdict }) = hit else { return RouteLookup::Nothing };
        match verdict {
            Verdict::NeedsBody => return RouteLookup::NeedsBody,
            Verdict::Undecidable(why) => {
                return match self.search_once(x, true, &mut ()) {
                    Some(_) => RouteLookup::Refused(why),
                    None => RouteLookup::Nothing,
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
        RouteLookup::Plan(&candidate.plan)
    }

    /// Searches; variables that several conditions of a long request read are computed once.
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
        let query = Query { x, cut: &Cut::new(x.path()), lenient };
        if !self.ports.is_empty() {
            let authority = hosts::lower(x.request().authority());
            let hit = self.ports.find(query, &authority, &path, hasher, Tree::Port, watch);
            if hit.is_some() {
                return hit;
            }
        }
        if !self.hosts.is_empty() {
            let hit = self.hosts.find(query, x.request().host(), &path, hasher, Tree::Host, watch);
            if hit.is_some() {
                return hit;
            }
        }
        watch.tree(Tree::Any);
        self.paths.find(query, &path, hasher, watch)
    }
}

/// The tables a rule is stored in, each with the index of the host it is stored under.
fn tables(rule: &Rule, mode: Mode) -> SmallVec<[(u32, HostTable); 4]> {
    if mode != Mode::HostUri || rule.hosts.is_empty() {
        return std::iter::once((0, HostTable::Paths)).collect();
    }
    let table = |host: &Arc<str>| if has_port(host) { HostTable::Ports } else { HostTable::Hosts };
    rule.hosts.iter().enumerate().map(|(i, host)| (i as u32, table(host))).collect()
}

/// The table that a rule is stored in for one of its hosts.
#[derive(Debug, Clone, Copy)]
enum HostTable {
    Paths,
    Hosts,
    Ports,
}

/// `a.com:80`, `[::1]:80`, but not `[::1]`.
fn has_port(host: &str) -> bool {
    host.contains(':') && !host.ends_with(']')
}

fn reads(rule: &Rule) -> bool {
    rule.vars.is_some() || rule.code.is_some()
}

fn reads_body(rule: &Rule) -> bool {
    rule.vars.as_deref().is_some_and(Expr::needs_body)
        || rule.code.as_ref().is_some_and(|code| code.condition.needs_body())
}

/// Removes the part of each segment from `;` on.
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
