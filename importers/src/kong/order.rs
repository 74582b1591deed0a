//! Keeps Kong's order of routes in this gateway's router.
//!
//! Kong sorts all routes once and takes the first that matches. This gateway looks at the most specific
//! host first, then at the longest path, then at priorities. Both agree for most files. Where they do
//! not, the route that wins in Kong gets further places: more specific hosts or longer paths, at which
//! its priority decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Included, Unbounded};

/// The most places that are added to a file's routes.
const MAX_ADDED: usize = 20_000;

/// The most steps of comparing routes with those of wider hosts and of shorter paths, which usual files need
/// a few of for each route.
const MAX_STEPS: usize = 20_000_000;

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

/// The places of each entry of a list in Kong's order, and what is left of the budget for finding them.
pub(super) fn places(entries: &[Entry]) -> (Vec<Places>, Budget) {
    let router = Router::of(entries);
    let mut places: Vec<Places> = vec![Places::default(); entries.len()];
    let mut budget = Budget { added: MAX_ADDED, steps: MAX_STEPS, short: false };
    for (host, natives) in &router.by_host {
        let joined = router.joined(host, natives, &mut budget);
        let mut members: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for rank in natives.iter().chain(&joined) {
            for path in &entries[*rank].paths {
                members.entry(path).or_default().push(*rank);
            }
        }
        members.values_mut().for_each(|ranks| ranks.sort_unstable());
        joined.iter().for_each(|rank| places[*rank].extended = true);
        // In the order of texts a path comes after those that it begins with.
        let mut above: Vec<(&str, &[usize])> = Vec::new();
        for (path, ranks) in &members {
            while above.pop_if(|(prefix, _)| !path.starts_with(*prefix)).is_some() {}
            let added = router.beaten(ranks, &above, &mut budget);
            for (at, rank) in ranks.iter().chain(&added).enumerate() {
                let place = &mut places[*rank];
                place.shared |= ranks.len() + added.len() > 1;
                place.extended |= at >= ranks.len();
                place.by_host.entry((*host).clone()).or_default().insert((*path).to_owned());
            }
            above.push((path, ranks));
        }
    }
    (places, budget)
}

/// How many places may be added, and how many steps it may take to find them.
#[derive(Debug)]
pub(super) struct Budget {
    added: usize,
    steps: usize,
    /// Whether places are missing.
    short: bool,
}

impl Budget {
    /// Whether all places were found.
    pub(super) fn sufficed(&self) -> bool {
        !self.short
    }

    fn add(&mut self) -> bool {
        self.short |= self.added == 0;
        self.added = self.added.saturating_sub(1);
        !self.short
    }

    fn go(&mut self, steps: usize) -> bool {
        self.short |= steps > self.steps;
        self.steps = self.steps.saturating_sub(steps);
        !self.short
    }
}

/// The entries, in Kong's order, by what requests may have.
struct Router<'a> {
    entries: &'a [Entry],
    /// The ranks of the entries that name a host, the first one first.
    by_host: BTreeMap<&'a Host, Vec<usize>>,
    /// How long the suffixes among the hosts are.
    suffixes: BTreeSet<usize>,
    /// The methods of each entry, as numbers; empty for any.
    methods: Vec<Vec<usize>>,
}

impl<'a> Router<'a> {
    fn of(entries: &'a [Entry]) -> Router<'a> {
        let mut by_host: BTreeMap<&Host, Vec<usize>> = BTreeMap::new();
        for (rank, entry) in entries.iter().enumerate() {
            for host in &entry.hosts {
                let ranks = by_host.entry(host).or_default();
                if ranks.last() != Some(&rank) {
                    ranks.push(rank);
                }
            }
        }
        let suffix = |host: &&Host| match host {
            Host::Suffix(suffix) => Some(suffix.len()),
            _ => None,
        };
        let suffixes = by_host.keys().filter_map(suffix).collect();
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut number = |method: &'a String| {
            let next = numbers.len();
            *numbers.entry(method).or_insert(next)
        };
        let methods = entries.iter().map(|entry| entry.methods.iter().map(&mut number).collect()).collect();
        Router { entries, by_host, suffixes, methods }
    }

    /// The ranks of the entries of each host that contains this one.
    fn wider(&self, host: &Host) -> Vec<&[usize]> {
        let name = match host {
            Host::Any => return Vec::new(),
            Host::Suffix(name) => name,
            Host::Exact(name) => without_port(name),
        };
        let ends = self.suffixes.iter().filter_map(|length| name.get(name.len().checked_sub(*length)?..));
        let others = [Host::Any, Host::Exact(name.to_owned())].into_iter();
        let others = others.chain(ends.map(|end| Host::Suffix(end.to_owned())));
        let others = others.filter(|other| other.contains(host));
        others.filter_map(|other| self.by_host.get(&other).map(Vec::as_slice)).collect()
    }

    /// The entries of wider hosts that need places at a host, as they go before one of its own entries, the
    /// last ones first.
    fn joined(&self, host: &Host, natives: &[usize], budget: &mut Budget) -> Vec<usize> {
        let mut joined = Vec::new();
        let mut candidates = earlier(natives, self.wider(host).into_iter(), budget);
        candidates.retain(|rank| natives.binary_search(rank).is_err());
        let mut later = Paths::default();
        let mut natives = natives.iter().rev().peekable();
        // Last ones first: an entry that joins may need earlier ones to join.
        for rank in candidates {
            while let Some(native) = natives.next_if(|native| **native > rank) {
                self.entries[*native].paths.iter().for_each(|path| later.insert(path));
            }
            let paths = &self.entries[rank].paths;
            if budget.go(paths.len()) && paths.iter().any(|path| later.overlap(path)) && budget.add() {
                paths.iter().for_each(|path| later.insert(path));
                joined.push(rank);
            }
        }
        joined
    }

    /// The entries of shorter paths that need places at a path, as they go before one of its own entries.
    fn beaten(&self, here: &[usize], above: &[(&str, &[usize])], budget: &mut Budget) -> Vec<usize> {
        let mut added = Vec::new();
        let mut met = Met::default();
        // Last ones first, as above.
        for rank in earlier(here, above.iter().map(|(_, ranks)| *ranks), budget) {
            if met.last.is_none() {
                here.iter().for_each(|own| met.insert(*own, &self.methods[*own]));
            }
            let methods = &self.methods[rank];
            let new = budget.go(methods.len()) && here.binary_search(&rank).is_err();
            if new && met.has_later(rank, methods) && budget.add() {
                met.insert(rank, methods);
                added.push(rank);
            }
        }
        added
    }
}

/// The ranks of some lists before the last of `here`, the last ones first.
fn earlier<'a>(here: &[usize], lists: impl Iterator<Item = &'a [usize]>, budget: &mut Budget) -> Vec<usize> {
    let Some(last) = here.last() else { return Vec::new() };
    let mut all = Vec::new();
    for list in lists {
        let before = &list[..list.partition_point(|rank| rank < last)];
        if budget.go(1 + before.len()) {
            all.extend_from_slice(before);
        }
    }
    all.sort_unstable_by_key(|rank| std::cmp::Reverse(*rank));
    all.dedup();
    all
}

/// The beginnings of paths of some entries.
#[derive(Default)]
struct Paths<'a> {
    all: BTreeSet<&'a str>,
    /// Those that begin with no other one.
    shortest: BTreeSet<&'a str>,
}

impl<'a> Paths<'a> {
    fn insert(&mut self, path: &'a str) {
        if !self.all.insert(path) || self.has_prefix_of(path) {
            return;
        }
        while let Some(longer) = first_below(&self.shortest, path) {
            self.shortest.remove(longer);
        }
        self.shortest.insert(path);
    }

    /// Whether one of them begins with this path, or the other way around.
    fn overlap(&self, path: &str) -> bool {
        first_below(&self.all, path).is_some() || self.has_prefix_of(path)
    }

    /// Only the nearest of the shortest ones may be: what stands between two texts, of which one begins with
    /// the other, begins with it as well.
    fn has_prefix_of(&self, path: &str) -> bool {
        self.shortest
            .range::<str, _>((Unbounded, Included(path)))
            .next_back()
            .is_some_and(|prefix| path.starts_with(prefix))
    }
}

/// The first text that begins with this one.
fn first_below<'a>(texts: &BTreeSet<&'a str>, beginning: &str) -> Option<&'a str> {
    texts
        .range::<str, _>((Included(beginning), Unbounded))
        .next()
        .copied()
        .filter(|text| text.starts_with(beginning))
}

/// The last ranks of some entries, by method.
#[derive(Default)]
struct Met {
    last: Option<usize>,
    /// Of those with any method.
    last_of_any: Option<usize>,
    by_method: HashMap<usize, usize>,
}

impl Met {
    fn insert(&mut self, rank: usize, methods: &[usize]) {
        self.last = self.last.max(Some(rank));
        if methods.is_empty() {
            self.last_of_any = self.last_of_any.max(Some(rank));
        }
        for method in methods {
            let last = self.by_method.entry(*method).or_insert(rank);
            *last = rank.max(*last);
        }
    }

    /// Whether an entry after `rank` may match requests of these methods.
    fn has_later(&self, rank: usize, methods: &[usize]) -> bool {
        let later = |last: Option<usize>| last.is_some_and(|last| last > rank);
        match methods {
            [] => later(self.last),
            _ => {
                let of = |method: &usize| later(self.by_method.get(method).copied());
                later(self.last_of_any) || methods.iter().any(of)
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(route: usize, host: Host, path: String, methods: &[&str], headers: usize) -> Entry {
        let methods = methods.iter().map(|method| (*method).to_owned()).collect();
        let weight = Weight { headers, length: path.len(), ..Weight::default() };
        Entry { route, hosts: vec![host], paths: vec![path], methods, weight }
    }

    /// The places of routes, and the steps it took to find them.
    fn steps(entries: &[Entry]) -> (usize, Vec<Places>) {
        let sorted: Vec<Entry> = ranked(entries).into_iter().map(|at| entries[at].clone()).collect();
        let (places, budget) = places(&sorted);
        assert!(budget.sufficed(), "{budget:?}");
        (MAX_STEPS - budget.steps, places)
    }

    #[test]
    fn each_route_takes_a_few_steps() {
        let exact = |n: usize| Host::Exact(format!("h{n}.test"));
        type Shape<'a> = (&'a str, &'a dyn Fn(usize) -> Entry);
        let shapes: [Shape<'_>; 6] = [
            ("own paths", &|n| entry(n, Host::Any, format!("/p{n}"), &[], 0)),
            ("own hosts", &|n| entry(n, exact(n), "/".to_owned(), &[], 0)),
            ("hosts below a suffix", &|n| match n % 50 {
                0 => entry(n, Host::Suffix(".test".to_owned()), format!("/{n}"), &[], 0),
                _ => entry(n, exact(n), "/long-path".to_owned(), &[], 0),
            }),
            ("one path", &|n| entry(n, Host::Any, "/".to_owned(), &["GET"], n % 7)),
            ("nested paths", &|n| entry(n, Host::Any, "/a".repeat(n % 20 + 1) + &n.to_string(), &[], 0)),
            ("hosts and paths", &|n| entry(n, exact(n % 100), format!("/{n}"), &["GET", "PUT"], 0)),
        ];
        for (name, shape) in shapes {
            let (taken, _) = steps(&(0..20_000).map(shape).collect::<Vec<_>>());
            assert!(taken <= 20_000 * 20, "{name}: {taken}");
        }
    }

    #[test]
    fn routes_that_go_first_are_found_at_all_paths() {
        // Two routes with headers go before those of longer paths; one of them has another method.
        let mut entries: Vec<Entry> =
            (0..1000).map(|n| entry(n, Host::Any, format!("/p{n}"), &["GET"], 0)).collect();
        entries.push(entry(1000, Host::Any, "/".to_owned(), &["GET"], 1));
        entries.push(entry(1001, Host::Any, "/".to_owned(), &["PUT"], 1));
        let (_, places) = steps(&entries);
        let paths = |rank: usize| places[rank].by_host[&Host::Any].len();
        assert_eq!((paths(0), paths(1), paths(2)), (1001, 1, 1));
    }

    #[test]
    fn a_file_that_needs_too_much_is_cut_off() {
        // Each of the first routes goes before each of the others.
        let wide = |n: usize| entry(n, Host::Any, "/".to_owned(), &[], 1);
        let own = |n: usize| entry(n, Host::Exact(format!("h{n}.test")), format!("/p{n}"), &[], 0);
        let entries: Vec<Entry> = (0..20_000).map(wide).chain((20_000..40_000).map(own)).collect();
        let (places, budget) = places(&entries);
        assert!(!budget.sufficed());
        assert!(places.iter().all(|place| !place.by_host.is_empty()));
    }
}
