//! Which routes are tried, in which order, and why each is skipped.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashSet;
use model::{Kind, Resource, Route, Served};
use sdk::exchange::Body;
use sdk::expr::Expr;
use sdk::vars::Var;
use sdk::{Exchange, RouteInfo, Verdict};
use serde_json::{Value, json};

use super::{Explanation, Input, MOST_CANDIDATES, MOST_OTHERS, printable, shown};
use crate::plan::Plan;
use crate::router::trace::{Miss, Outcome, PathKey, TracedCandidate, Tree};
use crate::router::{Options, Router, Rule};

/// The most routes scanned for near misses.
const LOOKED_THROUGH: usize = 20_000;

/// A route that was tried, or a near miss.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub route: String,
    pub name: String,
    pub uri: String,
    pub host: Option<String>,
    pub priority: i64,
    pub fate: CandidateOutcome,
    /// The reason, in words.
    pub why: String,
}

/// The result for a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandidateOutcome {
    Chosen,
    /// It matches, but comes later.
    Later,
    /// Undecidable: its conditions cannot be evaluated.
    Undecided,
    /// The route field of the first condition that fails.
    Failed(&'static str),
}

impl Candidate {
    pub(super) fn to_json(&self) -> Value {
        let (fate, condition) = match self.fate {
            CandidateOutcome::Chosen => ("chosen", None),
            CandidateOutcome::Later => ("later", None),
            CandidateOutcome::Undecided => ("undecided", None),
            CandidateOutcome::Failed(condition) => ("failed", Some(condition)),
        };
        json!({
            "route": self.route,
            "name": self.name,
            "uri": self.uri,
            "host": self.host,
            "priority": self.priority,
            "outcome": fate,
            "condition": condition,
            "why": self.why,
        })
    }
}

pub(super) fn explain(of: Input<'_>, x: &mut Exchange<'_>, out: &mut Explanation) {
    let trace = of.snapshot.router.trace(x, MOST_CANDIDATES, true);
    let first = trace.tried.iter().find(|tried| matches!(tried.outcome, Outcome::Matched(_)));
    let mut seen = HashSet::new();
    for tried in &trace.tried {
        seen.insert(tried.id);
        let route = route(of, tried.id);
        let (fate, why) = match tried.outcome {
            Outcome::Missed(miss) => missed(miss, tried, route, of, x),
            Outcome::Matched(_) if first.is_some_and(|first| !same(first, tried)) => {
                let first = first.map(|first| before(first, tried)).unwrap_or_default();
                (CandidateOutcome::Later, first)
            }
            Outcome::Matched(Verdict::Holds) => (CandidateOutcome::Chosen, chosen(tried)),
            Outcome::Matched(Verdict::NeedsBody | Verdict::Fails) => {
                (CandidateOutcome::Undecided, "its vars look into the body; give one with --body".to_owned())
            }
            Outcome::Matched(Verdict::Undecidable(why)) => {
                (CandidateOutcome::Undecided, why.as_str().to_owned())
            }
        };
        out.candidates.push(Candidate {
            route: tried.id.to_owned(),
            name: route.and_then(|route| route.meta.name.clone()).unwrap_or_default(),
            uri: tried.uri.to_owned(),
            host: tried.host.map(str::to_owned),
            priority: tried.priority,
            fate,
            why,
        });
    }
    out.more_candidates = trace.more;
    others(of, &seen, x, out);
}

fn route<'a>(of: Input<'a>, id: &str) -> Option<&'a Route> {
    match of.desired.get(Kind::Route, id)?.resource() {
        Resource::Route(route) => Some(route),
        _ => None,
    }
}

fn same(a: &TracedCandidate<'_>, b: &TracedCandidate<'_>) -> bool {
    (a.id, a.uri, a.host) == (b.id, b.uri, b.host)
}

fn chosen(tried: &TracedCandidate<'_>) -> String {
    match tried.key {
        PathKey::Exact => "exact path; exact paths beat patterns regardless of priority".to_owned(),
        PathKey::Begins(_) => "the matching pattern with the longest literal prefix".to_owned(),
    }
}

/// Why a matching route comes before another.
fn before(first: &TracedCandidate<'_>, other: &TracedCandidate<'_>) -> String {
    let rank = |tried: &TracedCandidate<'_>| match tried.priority {
        0 => String::new(),
        priority => format!(" (this one has {priority})"),
    };
    if first.id == other.id {
        return format!("it is tried under {} first", first.uri);
    }
    let it = format!("routes/{}", first.id);
    if first.tree != other.tree {
        let (a, b) = (tree(first), tree(other));
        return format!("{it} stands under {a}, which beats {b} regardless of path and priority");
    }
    match (first.key, other.key) {
        (PathKey::Exact, PathKey::Begins(_)) => {
            format!(
                "{it} has the exact path; exact paths beat patterns regardless of priority{}",
                rank(other)
            )
        }
        (PathKey::Begins(Reverse(a)), PathKey::Begins(Reverse(b))) if a != b => format!(
            "{it} has the longer literal prefix {}, which wins regardless of priority{}",
            &first.uri[..a],
            rank(other)
        ),
        _ if first.priority != other.priority => {
            format!("{it} has the higher priority, {} over {}", first.priority, other.priority)
        }
        _ if first.uri.len() != other.uri.len() => format!("{it} has the longer path, at the same priority"),
        _ => format!("{it} has the smaller id, at the same path and priority"),
    }
}

fn tree(tried: &TracedCandidate<'_>) -> String {
    let host = tried.host.unwrap_or_default();
    match tried.tree {
        Tree::Port => format!("the host and port {host}"),
        Tree::Host => format!("the host {host}"),
        Tree::Wildcard(_) => format!("the hosts {host}"),
        Tree::Any => "routes without a host".to_owned(),
    }
}

fn missed(
    miss: Miss,
    tried: &TracedCandidate<'_>,
    route: Option<&Route>,
    of: Input<'_>,
    x: &mut Exchange<'_>,
) -> (CandidateOutcome, String) {
    let rule = of.snapshot.router.rule(tried.id);
    match miss {
        Miss::Method => {
            let takes = rule.map(|rule| methods(rule)).unwrap_or_default();
            (CandidateOutcome::Failed("methods"), format!("it takes {takes}"))
        }
        Miss::RemoteAddr => {
            let nets: Vec<String> =
                rule.iter().flat_map(|rule| &rule.remote_addrs).take(10).map(ToString::to_string).collect();
            let ip = x.client().ip();
            (CandidateOutcome::Failed("remote_addr"), format!("{ip} is not in {}", nets.join(", ")))
        }
        Miss::Host => {
            let hosts = rule.map(|rule| list(&rule.hosts)).unwrap_or_default();
            (CandidateOutcome::Failed("host"), format!("it is for {hosts}"))
        }
        Miss::Vars => (CandidateOutcome::Failed("vars"), vars(route, x)),
        Miss::Code => (CandidateOutcome::Failed("filter_func"), "its filter_func does not hold".to_owned()),
        Miss::Path => {
            (CandidateOutcome::Failed("uri"), format!("the rest of the path does not fit {}", tried.uri))
        }
    }
}

fn methods(rule: &Rule) -> String {
    let all = wire::Method::KNOWN.into_iter().filter(|method| rule.methods & method.bit() != 0);
    all.map(wire::Method::as_str).collect::<Vec<_>>().join(", ")
}

fn list<T: AsRef<str>>(texts: &[T]) -> String {
    let mut shown = texts.iter().take(5).map(|text| printable(text.as_ref())).collect::<Vec<_>>().join(", ");
    if texts.len() > 5 {
        shown.push_str(&format!(" and {} more", texts.len() - 5));
    }
    shown
}

/// The first part of a route's `vars` that does not hold. The parts are compiled and evaluated by
/// the code that serves; the search decided their combined result.
fn vars(route: Option<&Route>, x: &mut Exchange<'_>) -> String {
    let parts = match route.and_then(|route| route.vars.as_deref()) {
        Some(Value::Array(parts)) if parts.first().is_some_and(Value::is_array) => parts.as_slice(),
        Some(whole) => return format!("{} does not hold", printable(&whole.to_string())),
        None => return "its vars do not hold".to_owned(),
    };
    let fails = |part: &Value, x: &mut Exchange<'_>| {
        let Ok(expr) = Expr::compile(&Value::Array(vec![part.clone()])) else { return false };
        reading(x, |x| expr.judge(x)) == Verdict::Fails
    };
    let Some(part) = parts.iter().find(|part| fails(part, x)) else {
        return "its vars do not hold".to_owned();
    };
    let mut words = format!("{} does not hold", printable(&part.to_string()));
    if let Some(name) = part.get(0).and_then(Value::as_str).filter(|name| !is_operator(name)) {
        let var = Var::parse(name);
        let value = reading(x, |x| var.of(x).map(|value| shown(&value)));
        match value {
            Some(value) => words.push_str(&format!(": {name} is `{value}`")),
            None => words.push_str(&format!(": there is no {name}")),
        }
    }
    words
}

fn reading<T>(x: &mut Exchange<'_>, read: impl FnOnce(&Exchange<'_>) -> T) -> T {
    if x.body_state() == Body::Whole { sdk::vars::reading_body(x, read) } else { read(x) }
}

fn is_operator(name: &str) -> bool {
    matches!(name, "AND" | "OR" | "!AND" | "!OR")
}

/// Routes that the search did not reach but that nearly match: for another host or path, or
/// disabled. Each is tested by a router that holds only a part of its conditions.
fn others(of: Input<'_>, seen: &HashSet<&str>, x: &mut Exchange<'_>, out: &mut Explanation) {
    let mut near: Vec<(Reverse<usize>, Candidate)> = Vec::new();
    let all = of.desired.of(Kind::Route);
    let rest = all.len().saturating_sub(LOOKED_THROUGH);
    if rest > 0 {
        out.notes.push(format!(
            "of {} routes, {LOOKED_THROUGH} were looked through for those that nearly match",
            all.len()
        ));
    }
    let mut count = 0;
    for entry in all.take(LOOKED_THROUGH) {
        let Resource::Route(route) = entry.resource() else { continue };
        let id = entry.key.id.as_str();
        if seen.contains(id) {
            continue;
        }
        count += 1;
        let rule = of.snapshot.router.rule(id);
        let hosts = match rule {
            Some(rule) => rule.hosts.clone(),
            None => shared(of.desired.hosts_of(route)),
        };
        let has_host = hosts.is_empty() || matches(of, shared(&["/*"]), hosts.clone(), x).is_some();
        let path = matches(of, shared(&route.uris), Box::default(), x);
        let (condition, why) = match (has_host, &path) {
            (true, Some(_)) if !route.enabled => ("disabled", "its status is 0".to_owned()),
            (true, Some(_)) if rule.is_none() => {
                let reason =
                    of.rejected.iter().find(|one| one.key == entry.key && one.served == Served::Nothing);
                (
                    "rejected",
                    reason.map_or("it is not served".to_owned(), |one| {
                        format!("it is not served: {}", one.invalid.reason)
                    }),
                )
            }
            (true, Some(_)) => continue,
            (false, Some(_)) => ("host", format!("it is for {}", list(&hosts))),
            (true, None) => ("uri", format!("its path is {}", list(&route.uris))),
            (false, None) => continue,
        };
        let alike = match condition {
            "uri" => route.uris.iter().map(|uri| alike(uri, x.path())).max().unwrap_or_default(),
            _ => usize::MAX,
        };
        let candidate = Candidate {
            route: id.to_owned(),
            name: route.meta.name.clone().unwrap_or_default(),
            uri: path.or_else(|| route.uris.first().cloned()).unwrap_or_default(),
            host: hosts.first().map(ToString::to_string),
            priority: route.priority,
            fate: CandidateOutcome::Failed(condition),
            why,
        };
        let at = near.partition_point(|(known, _)| *known <= Reverse(alike));
        if at < MOST_OTHERS {
            near.insert(at, (Reverse(alike), candidate));
            near.truncate(MOST_OTHERS);
        }
    }
    out.more_others = count + rest - near.len();
    out.others = near.into_iter().map(|(_, candidate)| candidate).collect();
    for one in of.rejected.iter().filter(|one| one.key.kind == Kind::Route) {
        let is_known = of.desired.get(Kind::Route, &one.key.id).is_some();
        if is_known || one.served != Served::Nothing || out.others.len() >= 2 * MOST_OTHERS {
            continue;
        }
        let field = if one.invalid.pointer == "/filter_func" { "filter_func" } else { "rejected" };
        out.others.push(Candidate {
            route: one.key.id.clone(),
            name: String::new(),
            uri: String::new(),
            host: None,
            priority: 0,
            fate: CandidateOutcome::Failed(field),
            why: format!("it is not served: {}", one.invalid.reason),
        });
    }
}

/// The path that a router with only this rule and these conditions matches.
fn matches(
    of: Input<'_>,
    uris: Box<[Arc<str>]>,
    hosts: Box<[Arc<str>]>,
    x: &mut Exchange<'_>,
) -> Option<String> {
    let mut router = Router::new(of.snapshot.router.mode(), Options::default());
    let rule = Rule {
        id: Box::default(),
        uris,
        hosts,
        methods: 0,
        remote_addrs: Box::default(),
        vars: None,
        code: None,
        priority: 0,
    };
    router.insert(Arc::new(rule), Arc::new(Plan::new(RouteInfo::default())));
    let trace = router.trace(x, 1, false);
    let hit = trace.tried.iter().find(|tried| matches!(tried.outcome, Outcome::Matched(_)));
    hit.map(|tried| tried.uri.to_owned())
}

/// Copies texts into a rule's form.
fn shared<T: AsRef<str>>(texts: &[T]) -> Box<[Arc<str>]> {
    texts.iter().map(|text| text.as_ref().into()).collect()
}

/// Length of the common prefix of a path and a pattern.
fn alike(uri: &str, path: &[u8]) -> usize {
    uri.bytes().zip(path).take_while(|(a, b)| a == *b).count()
}
