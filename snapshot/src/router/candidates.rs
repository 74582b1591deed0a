//! hot path
//!
//! The rules that share one path key, in the order they are tried.

use std::cmp::Reverse;
use std::sync::Arc;

use sdk::{Exchange, Verdict};

use super::pattern::{Params, Rest};
use super::trace::{Miss, PathKey, Watch};
use super::{Query, Rule};
use crate::plan::Plan;

/// One path of one rule, under one host if hosts are looked up first. The fields that matching
/// needs are copied from the rule, so a rule without conditions is not read.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) plan: Arc<Plan>,
    rule: Arc<Rule>,
    /// The configured path.
    pub(super) uri: Arc<str>,
    /// The host it is stored under, if there is one.
    host: Option<Arc<str>>,
    /// The check on the rest of the path.
    rest: Rest,
    /// The index of the path among the rule's; the lowest bit is set if only the path must be
    /// checked. Packed so that a candidate stays within two cache lines.
    uri_index_and_free: u32,
    /// The index of the host among the rule's.
    host_index: u32,
}

/// With its key, a candidate lies in two cache lines.
const _: () = assert!(size_of::<Candidates>() <= 72);

/// Candidates with one key, at least one; the first match wins.
#[derive(Debug, Clone)]
pub(super) struct Candidates {
    first: Candidate,
    #[allow(clippy::box_collection, reason = "hardly any key has more than one candidate")]
    more: Option<Box<Vec<Candidate>>>,
}

/// The host pattern that matched and its index among the rule's.
type Under<'s> = (&'s str, u32);

/// The candidate that won, and what it matched.
#[derive(Debug)]
pub(super) struct Hit<'s> {
    pub(super) candidate: &'s Candidate,
    /// If the rule has hosts.
    pub(super) host: Option<Under<'s>>,
    pub(super) params: Params<'s>,
    /// Whether it matches, or may match if the condition cannot be evaluated.
    pub(super) verdict: Verdict,
}

impl Candidate {
    pub(super) fn new(
        rule: &Arc<Rule>,
        plan: &Arc<Plan>,
        uri: usize,
        host: Option<u32>,
        rest: Rest,
    ) -> Candidate {
        let free = rule.methods == 0
            && rule.remote_addrs.is_empty()
            && rule.vars.is_none()
            && rule.code.is_none()
            && (rule.hosts.is_empty() || host.is_some());
        Candidate {
            plan: plan.clone(),
            rule: rule.clone(),
            uri: rule.uris[uri].clone(),
            host: host.map(|index| rule.hosts[index as usize].clone()),
            rest,
            uri_index_and_free: (uri as u32) << 1 | u32::from(free),
            host_index: host.unwrap_or_default(),
        }
    }

    /// The index of the path among the rule's.
    pub(super) fn uri_index(&self) -> u32 {
        self.uri_index_and_free >> 1
    }

    fn is_free(&self) -> bool {
        self.uri_index_and_free & 1 != 0
    }

    /// Higher priority first, then the longer pattern, then the smaller id (which stands for the
    /// store's order), then the order within the rule.
    fn order(&self) -> impl Ord + '_ {
        let within = (self.uri_index(), &self.host, self.host_index);
        (Reverse(self.rule.priority), Reverse(self.uri.len()), &self.rule.id, within)
    }

    pub(super) fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The host it is stored under, if there is one.
    pub(super) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Checks everything but the path: methods, addresses, hosts, variables and code, cheapest first.
    /// Returns the host that matched, if the rule has hosts, and the verdict of the variables
    /// unless they fail; otherwise the first condition that fails.
    #[inline]
    fn admits(&self, query: Query<'_, '_>) -> Result<(Option<Under<'_>>, Verdict), Miss> {
        let under = self.host.as_ref().map(|host| (&**host, self.host_index));
        if self.is_free() {
            return Ok((under, Verdict::Holds));
        }
        let x = query.x;
        let rule = &*self.rule;
        if rule.methods != 0 && rule.methods & x.method().bit() == 0 {
            return Err(Miss::Method);
        }
        if !rule.remote_addrs.is_empty() {
            let ip = x.client().ip();
            if !rule.remote_addrs.iter().any(|net| net.contains(&ip)) {
                return Err(Miss::RemoteAddr);
            }
        }
        let host = if under.is_some() || rule.hosts.is_empty() {
            under
        } else {
            let index = rule.hosts.iter().position(|host| host_matches(host, x)).ok_or(Miss::Host)?;
            Some((&*rule.hosts[index], index as u32))
        };
        let verdict = match &rule.vars {
            None => Verdict::Holds,
            Some(vars) if query.lenient => {
                if vars.matches(x) {
                    Verdict::Holds
                } else {
                    Verdict::Fails
                }
            }
            Some(vars) => vars.judge(x),
        };
        match (verdict, &rule.code) {
            (Verdict::Fails, _) => Err(Miss::Vars),
            (Verdict::Holds, Some(code)) => match code.condition.judge(x, query.lenient) {
                Verdict::Fails => Err(Miss::Code),
                verdict => Ok((host, verdict)),
            },
            // Code is judged once the variables are known.
            (verdict, _) => Ok((host, verdict)),
        }
    }
}

/// Whether a host pattern (`a.com`, `*.a.com`, `*`, `a.com:8080`) matches the request's host. A
/// pattern with a port is compared with the original Host header.
fn host_matches(pattern: &str, x: &Exchange<'_>) -> bool {
    let head = x.request();
    let (suffix, wildcard) = match pattern.strip_prefix('*') {
        Some(suffix) => (suffix.as_bytes(), true),
        None => (pattern.as_bytes(), false),
    };
    let is = |host: &[u8]| match host.len().checked_sub(suffix.len()) {
        Some(0) => host.eq_ignore_ascii_case(suffix),
        Some(more) => wildcard && host[more..].eq_ignore_ascii_case(suffix),
        None => false,
    };
    if suffix.contains(&b':') { is(head.authority()) || is(head.host()) } else { is(head.host()) }
}

impl Candidates {
    pub(super) fn new(first: Candidate) -> Candidates {
        Candidates { first, more: None }
    }

    pub(super) fn insert(&mut self, mut candidate: Candidate) {
        if candidate.order() < self.first.order() {
            std::mem::swap(&mut self.first, &mut candidate);
        }
        let more = self.more.get_or_insert_default();
        let at = more.partition_point(|known| known.order() <= candidate.order());
        more.insert(at, candidate);
    }

    /// The plan of the rule of this id, if it is one of them.
    pub(super) fn plan(&self, id: &str) -> Option<&Arc<Plan>> {
        self.all().find(|candidate| *candidate.rule.id == *id).map(|candidate| &candidate.plan)
    }

    #[inline]
    fn all(&self) -> impl Iterator<Item = &Candidate> {
        std::iter::once(&self.first).chain(self.more.iter().flat_map(|more| more.iter()))
    }

    /// Sets this plan on the rule's candidates.
    pub(super) fn replace(&mut self, id: &str, plan: &Arc<Plan>) {
        let all =
            std::iter::once(&mut self.first).chain(self.more.iter_mut().flat_map(|more| more.iter_mut()));
        all.filter(|candidate| *candidate.rule.id == *id).for_each(|candidate| candidate.plan = plan.clone());
    }

    /// Removes the rule's candidates. If none would be left, reports so and changes nothing.
    pub(super) fn remove(&mut self, id: &str) -> Remain {
        let mut rest = self.more.take().unwrap_or_default();
        rest.retain(|candidate| *candidate.rule.id != *id);
        if *self.first.rule.id == *id {
            if rest.is_empty() {
                return Remain::None;
            }
            self.first = rest.remove(0);
        }
        self.more = Some(rest).filter(|rest| !rest.is_empty());
        Remain::Some
    }

    /// The first matching candidate. `prefix` is the length of their key.
    #[inline]
    pub(super) fn find<'s>(
        &'s self,
        query: Query<'_, '_>,
        prefix: usize,
        key: PathKey,
        watch: &mut impl Watch<'s>,
    ) -> Option<Hit<'s>> {
        let base = query.x.request().path_span.start;
        self.all().find_map(|candidate| {
            let (host, verdict) = match candidate.admits(query) {
                Ok(admitted) => admitted,
                Err(miss) => {
                    watch.missed(candidate, key, miss);
                    return None;
                }
            };
            let mut params = Params::new();
            if !candidate.rest.matches(query.cut, prefix, base, &mut params) {
                watch.missed(candidate, key, Miss::Path);
                return None;
            }
            watch.hit(Hit { candidate, host, params, verdict }, key)
        })
    }
}

/// Whether candidates are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remain {
    Some,
    None,
}
