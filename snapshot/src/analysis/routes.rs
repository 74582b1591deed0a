//! Routes whose requests other routes take.
//!
//! A path, or the literal prefix of a pattern, is the key under which rules are stored; the rules
//! under one key are tried in a fixed order. So only routes of the same host and key can shadow
//! each other, and one pass in that order, remembering which methods are already taken, finds all
//! unreachable routes without comparing every pair.

use std::cmp::Reverse;

use hashbrown::HashMap;
use model::{Invalid, Key, Kind, Resource, Route};
use serde_json::Value;

use super::{Analysis, Code, Input};
use crate::router::Mode;
use crate::router::trace::Shape;

/// One bit per method; the last is for unknown methods.
const METHODS: usize = 11;
/// Preceding rules of equal order that a route is compared with.
const NEIGHBOURS: usize = 8;

/// A path of a route, under one of its hosts.
struct Entry<'a> {
    /// The host whose tree the path is stored in, if hosts have trees.
    tree: Option<&'a str>,
    /// The host as a condition, if hosts have no trees.
    host: Option<&'a str>,
    shape: Shape<'a>,
    uri: &'a str,
    at: usize,
    route: usize,
}

struct Rule<'a> {
    id: &'a str,
    route: &'a Route,
    /// The conditions beside path, host and method, as text; empty if there are none.
    conditions: String,
    methods: u16,
    entries: usize,
    /// The number of unreachable entries; of the first, the path, the host and the route that takes
    /// its requests.
    covered: usize,
    by: Option<(String, Taker)>,
    reported: bool,
}

/// Why no request reaches a path.
#[derive(Clone, Copy)]
enum Taker {
    Route(usize),
    /// `apisix.delete_uri_tail_slash` removes the trailing slash of request paths.
    NoSlashAtEnd,
    /// Request paths start with a slash.
    SlashAtBegin,
}

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    let mut rules = Vec::new();
    let mut entries = Vec::new();
    for entry in of.desired.of(Kind::Route) {
        let Resource::Route(route) = entry.resource() else { continue };
        if !route.enabled {
            continue;
        }
        let hosts = of.desired.hosts_of(route);
        let before = entries.len();
        for (at, uri) in route.uris.iter().enumerate() {
            let shape = Shape::of(uri, of.mode);
            let mut add = |tree, host| {
                entries.push(Entry { tree, host, shape, uri: uri.as_str(), at, route: rules.len() });
            };
            match (of.mode, hosts) {
                (_, []) => add(None, None),
                (Mode::HostUri, hosts) => hosts.iter().for_each(|host| add(Some(host.as_str()), None)),
                (_, hosts) => hosts.iter().for_each(|host| add(None, Some(host.as_str()))),
            }
        }
        rules.push(Rule {
            id: &entry.key.id,
            route,
            conditions: conditions(route),
            methods: methods(&route.methods),
            entries: entries.len() - before,
            covered: 0,
            by: None,
            reported: false,
        });
    }
    entries.sort_by(|a, b| {
        let order = |entry: &Entry<'_>| {
            let rule = &rules[entry.route];
            (Reverse(rule.route.priority), Reverse(entry.uri.len()))
        };
        (a.tree, a.shape.exact, a.shape.key)
            .cmp(&(b.tree, b.shape.exact, b.shape.key))
            .then_with(|| order(a).cmp(&order(b)))
            .then_with(|| rules[a.route].id.cmp(rules[b.route].id))
            .then_with(|| (a.at, a.host).cmp(&(b.at, b.host)))
    });
    let same = |a: &Entry<'_>, b: &Entry<'_>| {
        (a.tree, a.shape.exact, a.shape.key) == (b.tree, b.shape.exact, b.shape.key)
    };
    for group in entries.chunk_by(same) {
        find_covered(of, group, &mut rules);
    }
    for group in entries.chunk_by(same) {
        ambiguous(group, &mut rules, found);
    }
    for at in 0..rules.len() {
        let rule = &rules[at];
        let Some((what, by)) = &rule.by else { continue };
        let key = Key::new(Kind::Route, rule.id);
        let pointer = if rule.entries > 1 { "/uris" } else { "/uri" };
        let why = why(&rules, *by, at);
        let invalid = |reason: String, hint: &str| {
            let hint = match by {
                Taker::SlashAtBegin => "begin the path with a slash",
                Taker::NoSlashAtEnd => "write the path without the slash at its end",
                Taker::Route(_) => hint,
            };
            Invalid::new(reason).at(pointer).hint(hint)
        };
        match rule.covered == rule.entries {
            true => found.add(
                Code::Unreachable,
                &key,
                invalid(
                    format!("no request reaches this route: {what} {why}"),
                    "delete it, give it a higher priority, or remove conditions that the other route lacks",
                ),
            ),
            false => found.add(
                Code::Shadowed,
                &key,
                invalid(
                    format!("{} of its {} paths are never reached: {what} {why}", rule.covered, rule.entries),
                    "take those paths out, or give the route a higher priority",
                ),
            ),
        }
    }
}

fn conditions(route: &Route) -> String {
    let vars = route.vars.as_ref().map(ToString::to_string);
    let clients = (!route.remote_addrs.is_empty()).then(|| format!("{:?}", route.remote_addrs));
    let code = route.filter_func.as_deref().map(str::to_owned);
    vars.into_iter().chain(clients).chain(code).collect::<Vec<_>>().join("\n")
}

fn methods(names: &[String]) -> u16 {
    match names {
        [] => (1 << METHODS) - 1,
        names => names.iter().fold(0, |bits, name| bits | wire::Method::from_bytes(name.as_bytes()).bit()),
    }
}

/// By method, the route that takes the requests that meet the same other conditions.
type TakenBy = [Option<usize>; METHODS];

/// Finds, for each entry of a key, the route that takes its requests.
fn find_covered(of: Input<'_>, group: &[Entry<'_>], rules: &mut [Rule<'_>]) {
    // By conditions, by the rest of the pattern if it does not match everything, and by host.
    let mut taken: HashMap<(String, &str, Option<&str>), TakenBy> = HashMap::new();
    for entry in group {
        let rule = &rules[entry.route];
        let rest = if entry.shape.whole { "" } else { entry.uri };
        let mut ways = vec![(String::new(), "", None), (String::new(), rest, None)];
        ways.extend([("", entry.host), (rest, entry.host)].map(|(rest, host)| (String::new(), rest, host)));
        if !rule.conditions.is_empty() {
            let with = |(rest, host)| (rule.conditions.clone(), rest, host);
            ways.extend([("", None), (rest, None), ("", entry.host), (rest, entry.host)].map(with));
        }
        let by = |bit: usize| ways.iter().find_map(|way| taken.get(way)?[bit]);
        let bits = (0..METHODS).filter(|bit| rule.methods & 1 << bit != 0);
        let takers: Option<Vec<usize>> = bits.map(by).collect();
        let slashed = of.options.delete_uri_tail_slash
            && entry.shape.exact
            && entry.uri.len() > 1
            && entry.uri.ends_with('/');
        let taker = takers.and_then(|takers| takers.into_iter().find(|taker| *taker != entry.route));
        let taker = match entry.shape.key.bytes().next() {
            Some(first) if first != b'/' => Some(Taker::SlashAtBegin),
            _ => taker.map(Taker::Route).or(slashed.then_some(Taker::NoSlashAtEnd)),
        };
        if let Some(taker) = taker {
            let host = entry.tree.or(entry.host).map(|host| format!(" under {host}")).unwrap_or_default();
            let what = format!("{}{host}", entry.uri);
            let rule = &mut rules[entry.route];
            rule.covered += 1;
            rule.by.get_or_insert((what, taker));
            continue;
        }
        let methods = rule.methods;
        let own = (rule.conditions.clone(), rest, entry.host);
        let taken = taken.entry(own).or_default();
        for bit in (0..METHODS).filter(|bit| methods & 1 << bit != 0) {
            taken[bit].get_or_insert(entry.route);
        }
    }
}

fn why(rules: &[Rule<'_>], by: Taker, at: usize) -> String {
    let by = match by {
        Taker::NoSlashAtEnd => {
            return "ends with a slash, which apisix.delete_uri_tail_slash takes from every request"
                .to_owned();
        }
        Taker::SlashAtBegin => {
            return "does not begin with a slash, as the path of each request does".to_owned();
        }
        Taker::Route(by) => by,
    };
    let (first, other) = (&rules[by], &rules[at]);
    let order = match first.route.priority > other.route.priority {
        true => format!("its priority is {}, over {}", first.route.priority, other.route.priority),
        false if longest(first.route) > longest(other.route) => "its path is longer".to_owned(),
        false => "its id is smaller, at the same path and priority".to_owned(),
    };
    format!("goes to routes/{}: {order}", first.id)
}

fn longest(route: &Route) -> usize {
    route.uris.iter().map(String::len).max().unwrap_or_default()
}

/// Reports neighbours that one request may match and that only their ids put in order.
fn ambiguous(group: &[Entry<'_>], rules: &mut [Rule<'_>], found: &mut Analysis) {
    for (at, entry) in group.iter().enumerate() {
        if rules[entry.route].reported || rules[entry.route].covered > 0 {
            continue;
        }
        let before = &group[at.saturating_sub(NEIGHBOURS)..at];
        let rivals = before.iter().rev().take_while(|other| {
            let priority = |entry: &Entry<'_>| rules[entry.route].route.priority;
            (priority(other), other.uri.len()) == (priority(entry), entry.uri.len())
        });
        let rival = rivals
            .filter(|other| other.route != entry.route && rules[other.route].covered == 0)
            .find(|other| may_meet(entry, other, &rules[entry.route], &rules[other.route]))
            .map(|other| other.route);
        let Some(rival) = rival else { continue };
        let reason = format!(
            "a request may fit this route and routes/{}, and only the smaller id decides: {} at the same priority",
            rules[rival].id, entry.uri
        );
        let pointer = if rules[entry.route].entries > 1 { "/uris" } else { "/uri" };
        let invalid = Invalid::new(reason)
            .at(pointer)
            .hint("give one of them a higher priority, so that the order is meant");
        found.add(Code::Ambiguous, &Key::new(Kind::Route, rules[entry.route].id), invalid);
        rules[entry.route].reported = true;
    }
}

fn may_meet(a: &Entry<'_>, b: &Entry<'_>, of_a: &Rule<'_>, of_b: &Rule<'_>) -> bool {
    let hosts = a.host.is_none() || b.host.is_none() || a.host == b.host;
    let paths = a.shape.whole || b.shape.whole || a.uri == b.uri;
    let (of_this, of_that) = (&of_a.route.remote_addrs, &of_b.route.remote_addrs);
    let clients = of_this.is_empty()
        || of_that.is_empty()
        || of_this.iter().any(|one| of_that.iter().any(|other| one.contains(other) || other.contains(one)));
    hosts && paths && clients && of_a.methods & of_b.methods != 0 && !exclude(of_a.route, of_b.route)
}

/// Whether two routes require different values of one variable.
fn exclude(a: &Route, b: &Route) -> bool {
    let (Some(a), Some(b)) = (equals(a), equals(b)) else { return false };
    a.iter().any(|(name, value)| b.iter().any(|(other, text)| name == other && value != text))
}

/// The variables that `vars` require to equal a value: `[["arg_a", "==", "1"], …]`, all of which
/// must hold.
fn equals(route: &Route) -> Option<Vec<(&str, &Value)>> {
    let parts = route.vars.as_ref()?.as_array()?;
    let equal = parts.iter().filter_map(|part| match part.as_array()?.as_slice() {
        [name, operator, value] if operator == "==" => Some((name.as_str()?, value)),
        _ => None,
    });
    Some(equal.collect())
}
