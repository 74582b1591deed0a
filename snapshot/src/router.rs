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
mod hash;
mod hosts;
mod map;
mod paths;
mod pattern;
mod prefixes;

use std::sync::Arc;

use ipnet::IpNet;
use sdk::exchange::Body;
use sdk::expr::Expr;
use sdk::{Exchange, Matched, Unjudged, Verdict};
use smallvec::SmallVec;

use crate::plan::Plan;
use candidates::Hit;
use hash::{Hashed, Hasher};
use hosts::Hosts;
use map::Map;
use paths::Paths;

/// When a plan applies.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Unique among the rules of a router; the smaller wins between equals.
    pub id: String,
    /// Paths and patterns, at least one: `/a`, `/a/*`, `/user/:id`.
    pub uris: Vec<String>,
    /// Host names, `*.suffix`, or names with a port; none is any.
    pub hosts: Vec<String>,
    /// [`wire::Method::bit`] of each method that is admitted; 0 is any.
    pub methods: u16,
    /// None is any.
    pub remote_addrs: Vec<IpNet>,
    pub vars: Option<Expr>,
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

/// How paths are made alike before the search (`apisix.delete_uri_tail_slash`,
/// `apisix.normalize_uri_like_servlet`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// `/a/` is searched for as `/a`.
    pub delete_uri_tail_slash: bool,
    /// `/a;x=1/b` is searched for as `/a/b`; the upstream still gets what was sent.
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

/// What a search came to.
#[derive(Debug, Clone, Copy)]
pub enum Found<'s> {
    Plan(&'s Arc<Plan>),
    Nothing,
    /// A rule that may be the one looks into the request's body: search again with the body in memory.
    NeedsBody,
    /// Whether a rule applies cannot be told, and another one would let the request through.
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

/// What is searched for.
#[derive(Clone, Copy)]
struct Asked<'a, 'x> {
    x: &'a Exchange<'x>,
    /// What conditions cannot read counts as absent.
    lenient: bool,
}

/// All rules, ready to be searched.
#[derive(Debug, Clone)]
pub struct Router {
    mode: Mode,
    options: Options,
    hasher: Hasher,
    rules: Map<Arc<Rule>>,
    /// Rules under the hosts they name, if hosts are looked up first.
    hosts: Hosts,
    /// The same for hosts with a port, which are compared with the whole Host field.
    ports: Hosts,
    /// Rules without a host, or all of them if the host is but a condition.
    paths: Paths,
    /// Rules whose variables look into the request's body.
    reading_body: usize,
}

impl Router {
    pub fn new(mode: Mode, options: Options) -> Router {
        Router {
            mode,
            options,
            hasher: Hasher::default(),
            rules: Map::default(),
            hosts: Hosts::default(),
            ports: Hosts::default(),
            paths: Paths::default(),
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
        self.rules.get(self.hasher.hash(id.as_bytes()), id.as_bytes())
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

    /// Whether [`Router::find`] may want the request's body.
    #[inline]
    pub fn needs_body(&self) -> bool {
        self.reading_body > 0
    }

    /// Adds a rule and its plan, in place of those with the same id.
    pub fn insert(&mut self, rule: Arc<Rule>, plan: Arc<Plan>) {
        self.remove(&rule.id);
        let (mode, hasher) = (self.mode, &self.hasher);
        for (host, place) in places(&rule, mode) {
            match place {
                Place::Paths => self.paths.insert(&rule, &plan, None, mode, hasher),
                Place::Hosts => self.hosts.insert(&rule, &plan, host, mode, hasher),
                Place::Ports => self.ports.insert(&rule, &plan, host, mode, hasher),
            }
        }
        self.reading_body += usize::from(reads_body(&rule));
        self.rules.insert(hasher.hash(rule.id.as_bytes()), rule.id.as_bytes(), rule.clone());
    }

    /// Gives the rule of this id another plan, which is much cheaper than inserting it anew.
    /// Without such a rule it does nothing.
    pub fn replace(&mut self, id: &str, plan: Arc<Plan>) {
        let (mode, hasher) = (self.mode, &self.hasher);
        let Some(rule) = self.rules.get(hasher.hash(id.as_bytes()), id.as_bytes()) else { return };
        for (host, place) in places(rule, mode) {
            let name = || &rule.hosts[host as usize];
            match place {
                Place::Paths => self.paths.replace(rule, &plan, mode, hasher),
                Place::Hosts => self.hosts.replace(rule, &plan, name(), mode, hasher),
                Place::Ports => self.ports.replace(rule, &plan, name(), mode, hasher),
            }
        }
    }

    /// Takes out the rule of this id, if there is one.
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
        self.reading_body -= usize::from(reads_body(&rule));
        self.rules.remove(hasher.hash(id.as_bytes()), id.as_bytes());
    }

    /// Makes the path of the request what the options want it to be, for this search and for
    /// all who read it later. What goes to the upstream stays as it was. Calling it again
    /// changes nothing more.
    pub fn normalize(&self, x: &mut Exchange<'_>) -> Result<(), BadPath> {
        if self.options.normalize_uri_like_servlet && x.path().contains(&b';') {
            let path = without_parameters(x.path())?;
            x.messages.request.path_span = x.intern(&path);
        }
        if self.options.delete_uri_tail_slash {
            let span = x.request().path_span;
            if span.len > 1 && x.path().ends_with(b"/") {
                x.messages.request.path_span.len = span.len - 1;
            }
        }
        Ok(())
    }

    /// Finds the rule for a request and notes in [`Exchange::matched`] what matched. Normalizes
    /// the path if that was not done; one that is refused matches nothing.
    ///
    /// Rules are asked in their order, and by what needs no body first: the body is wanted only
    /// where it decides about a rule that nothing else rules out. Where even the body cannot
    /// decide, the request must not pass by the next rule as if the condition had said no; if no
    /// rule would let it through anyway, nothing is found, as in APISIX.
    pub fn find<'s>(&'s self, x: &mut Exchange<'s>) -> Found<'s> {
        if self.normalize(x).is_err() {
            return Found::Nothing;
        }
        let hit = if self.needs_body() && x.body_state == Body::Whole {
            sdk::vars::reading_body(x, |x| self.search(Asked { x, lenient: false }))
        } else {
            self.search(Asked { x, lenient: false })
        };
        let Some(Hit { candidate, host, params, verdict }) = hit else { return Found::Nothing };
        match verdict {
            Verdict::NeedsBody => return Found::NeedsBody,
            Verdict::Unjudged(why) => {
                return match self.search(Asked { x, lenient: true }) {
                    Some(_) => Found::Refused(why),
                    None => Found::Nothing,
                };
            }
            Verdict::Holds | Verdict::Fails => {}
        }
        let (host, host_index) = host.unwrap_or_default();
        x.matched = Matched {
            route: Some(&candidate.plan.info),
            uri: &candidate.uri,
            uri_index: candidate.uri_index(),
            host,
            host_index,
            params,
        };
        Found::Plan(&candidate.plan)
    }

    fn search(&self, asked: Asked<'_, '_>) -> Option<Hit<'_>> {
        let (hasher, x) = (&self.hasher, asked.x);
        let path = Hashed::new(x.path());
        if !self.ports.is_empty() {
            let authority = hosts::lower(x.request().authority());
            let hit = self.ports.find(asked, &authority, &path, hasher);
            if hit.is_some() {
                return hit;
            }
        }
        if !self.hosts.is_empty() {
            let hit = self.hosts.find(asked, x.request().host(), &path, hasher);
            if hit.is_some() {
                return hit;
            }
        }
        self.paths.find(asked, &path, hasher)
    }
}

/// Where a rule stands, with the index of the host it stands under.
fn places(rule: &Rule, mode: Mode) -> SmallVec<[(u32, Place); 4]> {
    if mode != Mode::HostUri || rule.hosts.is_empty() {
        return std::iter::once((0, Place::Paths)).collect();
    }
    let place = |host: &String| if has_port(host) { Place::Ports } else { Place::Hosts };
    rule.hosts.iter().enumerate().map(|(i, host)| (i as u32, place(host))).collect()
}

/// The table a rule, under one of its hosts, stands in.
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
    rule.vars.as_ref().is_some_and(Expr::needs_body)
}

/// The path with everything from `;` to the end of each segment left out.
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
