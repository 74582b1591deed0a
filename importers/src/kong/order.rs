//! Keeps Kong's order of routes in this gateway's router.
//!
//! Kong sorts all routes once and takes the first that matches. This gateway looks at the most specific
//! host first, then at the longest path, then at priorities. Both agree for most files. Where they do
//! not, the route that wins in Kong gets further places: more specific hosts or longer paths, at which
//! its priority decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The most places that are added to a file's routes.
pub(super) const MAX_ADDED: usize = 20_000;

/// A host as the router has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Host {
    Any,
    /// `*.example.com`, without the star.
    Suffix(String),
    Exact(String),
}

/// A route of the file, or its paths of one length.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// The index of the route in the file.
    pub route: usize,
    pub hosts: Vec<Host>,
    /// The literal beginnings of its paths; at least one.
    pub paths: Vec<String>,
    /// Empty for any.
    pub methods: Vec<String>,
    pub weight: Weight,
}

/// The properties that Kong sorts by; the larger one goes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Weight {
    /// Routes with an expression go first, by their own priority.
    pub expression: Option<i64>,
    /// The number of kinds of conditions: hosts, paths, methods, …
    pub conditions: u32,
    /// Before 3.0: which kinds these are.
    pub category: u32,
    pub plain_hosts: bool,
    pub headers: usize,
    pub regex: bool,
    pub regex_priority: i64,
    pub length: usize,
}

/// The places of an entry in the router.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Beginnings of paths, by host.
    pub by_host: BTreeMap<Host, BTreeSet<String>>,
    /// Whether another entry has one of these places, so that priorities decide.
    pub shared: bool,
    /// Whether places were added.
    pub extended: bool,
}

/// The indices of entries in Kong's order.
pub(super) fn ranked(entries: &[Entry]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    let older = |a: &usize, b: &usize| entries[*a].route.cmp(&entries[*b].route);
    order.sort_by(|a, b| entries[*b].weight.cmp(&entries[*a].weight).then_with(|| older(a, b)));
    order
}

/// The places of each entry of a list in Kong's order, and whether all of them are there: their number is
/// limited.
pub(super) fn places(entries: &[Entry]) -> (Vec<Places>, bool) {
    let hosts: BTreeSet<&Host> = entries.iter().flat_map(|entry| &entry.hosts).collect();
    let mut places: Vec<Places> = vec![Places::default(); entries.len()];
    let mut left = MAX_ADDED;
    for host in hosts {
        at_host(entries, host, &mut places, &mut left);
    }
    (places, left > 0)
}

/// Finds the places of all entries at a host.
fn at_host(entries: &[Entry], host: &Host, places: &mut [Places], left: &mut usize) {
    let mut members = Members::default();
    for (rank, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.hosts.contains(host)) {
        entry.paths.iter().for_each(|path| members.insert(path, rank));
    }
    if *host != Host::Any {
        // Last ones first: an entry that joins may need earlier ones to join.
        for (rank, entry) in entries.iter().enumerate().rev() {
            let wider = |other: &Host| other.contains(host);
            if entry.hosts.contains(host) || !entry.hosts.iter().any(wider) {
                continue;
            }
            if entry.paths.iter().any(|path| members.has_later(path, rank)) && *left > 0 {
                *left -= 1;
                entry.paths.iter().for_each(|path| members.insert(path, rank));
                places[rank].extended = true;
            }
        }
    }
    let at_path: Vec<(String, Vec<usize>)> =
        members.at.iter().map(|(path, ranks)| (path.clone(), ranks.clone())).collect();
    for (path, mut here) in at_path {
        let natives = here.len();
        // Last ones first, as above.
        let mut wider: Vec<usize> =
            prefixes(&path).filter_map(|prefix| members.at.get(prefix)).flatten().copied().collect();
        wider.sort_unstable_by_key(|rank| std::cmp::Reverse(*rank));
        for rank in wider {
            let beaten = |other: &usize| *other > rank && overlap(&entries[*other], &entries[rank]);
            if !here.contains(&rank) && here.iter().any(beaten) && *left > 0 {
                *left -= 1;
                here.push(rank);
            }
        }
        for (at, rank) in here.iter().enumerate() {
            let place = &mut places[*rank];
            place.shared |= here.len() > 1;
            place.extended |= at >= natives;
            place.by_host.entry(host.clone()).or_default().insert(path.clone());
        }
    }
}

/// Entries at a host, by path.
#[derive(Default)]
struct Members {
    at: BTreeMap<String, Vec<usize>>,
    /// The last rank among paths that begin with this text.
    below: HashMap<String, usize>,
}

impl Members {
    fn insert(&mut self, path: &str, rank: usize) {
        let here = self.at.entry(path.to_owned()).or_default();
        if here.contains(&rank) {
            return;
        }
        here.push(rank);
        for prefix in prefixes(path).chain([path]) {
            match self.below.get_mut(prefix) {
                Some(last) => *last = rank.max(*last),
                None => drop(self.below.insert(prefix.to_owned(), rank)),
            }
        }
    }

    /// Whether an entry after `rank` has a path that begins with this one, or the other way around.
    fn has_later(&self, path: &str, rank: usize) -> bool {
        let below = self.below.get(path).is_some_and(|last| *last > rank);
        below
            || prefixes(path)
                .any(|prefix| self.at.get(prefix).is_some_and(|ranks| ranks.iter().any(|r| *r > rank)))
    }
}

/// The proper prefixes of a path, the shortest first.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    path.char_indices().map(|(at, _)| &path[..at])
}

/// Whether a request may match both, as far as methods tell.
fn overlap(one: &Entry, other: &Entry) -> bool {
    let any = one.methods.is_empty() || other.methods.is_empty();
    any || one.methods.iter().any(|method| other.methods.contains(method))
}

impl Host {
    /// Whether all names of another are names of this one, and more.
    pub(super) fn contains(&self, other: &Host) -> bool {
        match (self, other) {
            (Host::Any, Host::Any) => false,
            (Host::Any, _) => true,
            (Host::Suffix(_), Host::Any) => false,
            (Host::Suffix(suffix), Host::Suffix(name)) => name.len() > suffix.len() && name.ends_with(suffix),
            (Host::Suffix(suffix), Host::Exact(name)) => without_port(name).ends_with(suffix),
            (Host::Exact(host), Host::Exact(name)) => name != host && without_port(name) == host,
            (Host::Exact(_), _) => false,
        }
    }

    /// As in a resource.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Host::Any => None,
            Host::Suffix(suffix) => Some(format!("*{suffix}")),
            Host::Exact(name) => Some(name.clone()),
        }
    }
}

fn without_port(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(name, _)| name)
}
