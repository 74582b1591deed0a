//! hot path
//!
//! The rules that share one path key, in the order they are tried.

use std::cmp::Reverse;
use std::sync::Arc;

use sdk::Exchange;

use super::Rule;
use super::pattern::{Params, Rest};

/// One path of one rule, under one host if hosts are looked up beforehand.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) rule: Arc<Rule>,
    /// Index of the path among the rule's.
    pub(super) uri: u16,
    /// Index of the host it stands under, if it stands under one.
    pub(super) host: Option<u16>,
    pub(super) rest: Rest,
    /// Nothing but the path has to be checked.
    free: bool,
}

/// A list of candidates, the first that fits wins. Copies share it until one changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Candidates(Arc<Vec<Candidate>>);

/// The candidate that won, and what it matched.
#[derive(Debug)]
pub(super) struct Hit<'s> {
    pub(super) candidate: &'s Candidate,
    pub(super) host: Option<u16>,
    pub(super) params: Params<'s>,
}

impl Candidate {
    pub(super) fn new(rule: &Arc<Rule>, uri: u16, host: Option<u16>, rest: Rest) -> Candidate {
        let free = rule.methods == 0
            && rule.remote_addrs.is_empty()
            && rule.vars.is_none()
            && (rule.hosts.is_empty() || host.is_some());
        Candidate { rule: rule.clone(), uri, host, rest, free }
    }

    fn pattern(&self) -> &str {
        &self.rule.uris[self.uri as usize]
    }

    /// Higher priority first, then the longer pattern, then the smaller id (which stands for
    /// the store's order), then the order within the rule.
    fn order(&self) -> impl Ord + '_ {
        (Reverse(self.rule.priority), Reverse(self.pattern().len()), &self.rule.id, self.uri, self.host)
    }

    /// Methods, addresses, hosts, variables: all but the path, cheapest first. Gives the index
    /// of the host that matched, if the rule has hosts.
    #[inline]
    fn admits(&self, x: &Exchange<'_>) -> Option<Option<u16>> {
        let rule = &*self.rule;
        if self.free {
            return Some(self.host);
        }
        if rule.methods != 0 && rule.methods & x.method().bit() == 0 {
            return None;
        }
        if !rule.remote_addrs.is_empty() {
            let ip = x.client.ip();
            if !rule.remote_addrs.iter().any(|net| net.contains(&ip)) {
                return None;
            }
        }
        let host = if self.host.is_some() || rule.hosts.is_empty() {
            self.host
        } else {
            Some(rule.hosts.iter().position(|host| host_matches(host, x))? as u16)
        };
        match &rule.vars {
            Some(vars) if !vars.matches(x) => None,
            _ => Some(host),
        }
    }
}

/// Whether a host pattern (`a.com`, `*.a.com`, `*`, `a.com:8080`) means the request's host.
/// One with a port is compared with the Host field as it was sent.
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
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, candidate: Candidate) {
        let list = Arc::make_mut(&mut self.0);
        let at = list.partition_point(|known| known.order() <= candidate.order());
        list.insert(at, candidate);
    }

    pub(super) fn remove(&mut self, id: &str) {
        Arc::make_mut(&mut self.0).retain(|candidate| candidate.rule.id != id);
    }

    /// The first candidate that fits. `prefix` is the length of the key they stand under.
    #[inline]
    pub(super) fn find<'s>(&'s self, x: &Exchange<'_>, path: &[u8], prefix: usize) -> Option<Hit<'s>> {
        let base = x.request().path_span.start;
        self.0.iter().find_map(|candidate| {
            let host = candidate.admits(x)?;
            let mut params = Params::new();
            let fits = candidate.rest.matches(path, prefix, base, &mut params);
            fits.then_some(Hit { candidate, host, params })
        })
    }
}
