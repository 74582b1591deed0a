//! A naive matcher that follows the documentation rule by rule, and the router compared with it.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use sdk::pattern::{Pattern as Regex, Searches};

use super::*;

#[derive(Debug)]
struct Request {
    method: Method,
    host: String,
    path: String,
    v: u8,
    ip: IpAddr,
}

/// The expected result of [`found`].
fn expected(rules: &BTreeMap<Box<str>, Rule>, mode: Mode, request: &Request) -> Option<String> {
    let all: Vec<&Rule> = rules.values().collect();
    if mode != Mode::HostUri {
        return in_tree(&all, mode, request, None);
    }
    // The exact host, then every wildcard from the longest, then rules without a host.
    let mut hosts = vec![request.host.clone()];
    hosts.extend((0..=request.host.len()).map(|at| format!("*{}", &request.host[at..])));
    hosts
        .iter()
        .find_map(|host| {
            let under: Vec<&Rule> =
                all.iter().copied().filter(|rule| rule.hosts.iter().any(|own| **own == **host)).collect();
            in_tree(&under, mode, request, Some(host.as_str()))
        })
        .or_else(|| {
            let without: Vec<&Rule> = all.iter().copied().filter(|rule| rule.hosts.is_empty()).collect();
            in_tree(&without, mode, request, None)
        })
}

fn in_tree(rules: &[&Rule], mode: Mode, request: &Request, host: Option<&str>) -> Option<String> {
    let varies = |c: char| c == '*' || (c == ':' && mode == Mode::UriWithParameter);
    let mut entries: Vec<(&Rule, &str)> =
        rules.iter().flat_map(|rule| rule.uris.iter().map(|uri| (*rule, &**uri))).collect();
    entries.sort_by_key(|(rule, uri)| (Reverse(rule.priority), Reverse(uri.len()), rule.id.clone()));
    let exact = entries.iter().filter(|(_, uri)| !uri.contains(varies) && *uri == request.path);
    let by_length = (0..=request.path.len()).rev().flat_map(|len| {
        let entries = &entries;
        entries
            .iter()
            .filter(move |(_, uri)| uri.find(varies) == Some(len) && uri[..len] == request.path[..len])
    });
    exact.chain(by_length).find_map(|(rule, uri)| admits(rule, uri, mode, request, host))
}

fn admits(rule: &Rule, uri: &str, mode: Mode, request: &Request, host: Option<&str>) -> Option<String> {
    if rule.methods != 0 && rule.methods & request.method.bit() == 0 {
        return None;
    }
    if !rule.remote_addrs.is_empty() && !rule.remote_addrs.iter().any(|net| net.contains(&request.ip)) {
        return None;
    }
    let host = match host {
        None if !rule.hosts.is_empty() => {
            Some(rule.hosts.iter().find(|host| match host.strip_prefix('*') {
                Some(suffix) => request.host.ends_with(suffix),
                None => *request.host == ***host,
            })?)
            .map(|host| &**host)
        }
        host => host,
    };
    // The only expression that the strategies below generate.
    if rule.vars.is_some() && request.v != 1 {
        return None;
    }
    let mut answer = format!("{} {uri}", rule.id);
    answer += &host.map(|host| format!(" @{host}")).unwrap_or_default();
    Some(answer + &captured(uri, mode, &request.path)?)
}

thread_local! {
    static REGEXES: RefCell<BTreeMap<String, Regex>> = RefCell::default();
}

/// The captures of a pattern by the regular expression radixtree makes of it.
fn captured(uri: &str, mode: Mode, path: &str) -> Option<String> {
    let mut names = Vec::new();
    let mut regex = Vec::new();
    for segment in uri.split('/') {
        regex.push(match segment.chars().next() {
            Some(':') if mode == Mode::UriWithParameter => {
                names.push(segment[1..].to_owned());
                "([^/]+)".to_owned()
            }
            Some('*') => {
                names.push(if segment == "*" { ":ext".to_owned() } else { segment[1..].to_owned() });
                "((?s:.)*)".to_owned()
            }
            _ => segment.to_owned(),
        });
    }
    let varies = uri.contains('*') || (uri.contains(':') && mode == Mode::UriWithParameter);
    if names.is_empty() || !varies {
        return Some(String::new());
    }
    let regex = format!("^{}$", regex.join("/"));
    let found = REGEXES
        .with_borrow_mut(|known| {
            let compiled = known.entry(regex).or_insert_with_key(|regex| Regex::new(regex, false).unwrap());
            compiled.captures(path.as_bytes(), &Searches::default())
        })
        .ok()??;
    let text = |i: usize| String::from_utf8_lossy(found.group(i + 1).unwrap()).into_owned();
    Some(names.iter().enumerate().map(|(i, name)| format!(" {name}={}", text(i))).collect())
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", ""]), 1..5)
        .prop_map(|segments| format!("/{}", segments.join("/")))
}

fn uri() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "ab", ":x", ":y", "*", "*r"]);
    let tail = prop::sample::select(vec!["", "", "/", "*", "/*"]);
    (prop::collection::vec(segment, 0..4), tail)
        .prop_map(|(segments, tail)| format!("/{}{tail}", segments.join("/")))
        // Stars within a segment beside other variable parts have their own tests.
        .prop_filter("no stem", |uri| {
            let inner = |segment: &str| segment.len() > 1 && segment[1..].contains('*');
            !uri.split('/').any(inner) || !uri.split('/').any(|segment| segment.starts_with(['*', ':']))
        })
}

fn some_rule() -> impl Strategy<Value = Rule> {
    let hosts = vec!["a.b", "c.a.b", "*.a.b", "*.b", "*b", "*"];
    (
        0..8u8,
        prop::collection::vec(uri(), 1..3),
        prop::sample::subsequence(hosts, 0..3),
        prop::sample::select(vec![0, 0, Method::Get.bit(), Method::Get.bit() | Method::Post.bit()]),
        prop::sample::select(vec!["", "", "10.0.0.0/8", "10.0.0.0/31"]),
        prop::bool::weighted(0.2),
        -1..2i64,
    )
        .prop_map(|(id, uris, hosts, methods, net, vars, priority)| {
            let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
            let mut rule = rule(&id.to_string(), &uris).hosts(&hosts).priority(priority);
            rule.methods = methods;
            rule = if net.is_empty() { rule } else { rule.from(&[net]) };
            if vars { rule.vars(json!([["arg_v", "==", 1]])) } else { rule }
        })
}

fn request() -> impl Strategy<Value = Request> {
    (
        prop::sample::select(vec![Method::Get, Method::Post, Method::Put]),
        prop::sample::select(vec!["a.b", "c.a.b", "d.c.a.b", "x", "b", "xb"]),
        path(),
        0..2u8,
        prop::sample::select(vec![1, 2, 200]),
    )
        .prop_map(|(method, host, path, v, last)| Request {
            method,
            host: host.to_owned(),
            path,
            v,
            ip: Ipv4Addr::new(if last == 200 { 11 } else { 10 }, 0, 0, last).into(),
        })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop::sample::select(vec![Mode::HostUri, Mode::Uri, Mode::UriWithParameter])
}

fn holds(router: &Router, rules: &BTreeMap<Box<str>, Rule>, mode: Mode, requests: &[Request]) {
    assert_eq!(router.len(), rules.len());
    for request in requests {
        let line = format!("{} {}{}?v={}", request.method.as_str(), request.host, request.path, request.v);
        let answer = found(router, &line, request.ip);
        assert_eq!(answer, expected(rules, mode, request), "{line} in {mode:?}");
        traced(router, rules, &line, request, answer.as_deref());
    }
}

/// A trace sees the same search: its first match is the result, candidates are in the order in
/// which they are tried, and a trace that continues after the match sees every matching rule.
fn traced(
    router: &Router,
    rules: &BTreeMap<Box<str>, Rule>,
    line: &str,
    request: &Request,
    answer: Option<&str>,
) {
    let trace = |most, goes_on| {
        PROBE.with_borrow_mut(|probe| {
            let (method, rest) = line.split_once(' ').unwrap();
            let at = rest.find('/').unwrap();
            probe.messages = messages(method, &rest[at..], &[("Host", &rest[..at])]);
            probe.client.set_ip(request.ip);
            router.trace(&mut probe.exchange(), most, goes_on)
        })
    };
    let matched = |tried: &&trace::TracedCandidate<'_>| matches!(tried.outcome, trace::Outcome::Matched(_));
    let (short, long) = (trace(usize::MAX, false), trace(usize::MAX, true));
    let first = short.tried.iter().find(matched);
    let shown = first.map(|tried| {
        let host = tried.host.map(|host| format!(" @{host}")).unwrap_or_default();
        format!("{} {}{host}", tried.id, tried.uri)
    });
    let begins = |answer: &str| shown.as_deref().is_some_and(|shown| answer.starts_with(shown));
    assert!(answer.map_or(shown.is_none(), begins), "{line}: {answer:?} and {shown:?}");
    assert_eq!(short.tried.iter().position(|tried| matched(&tried)), first.map(|_| short.tried.len() - 1));
    assert!(short.tried.iter().zip(&long.tried).all(|(a, b)| (a.id, a.uri) == (b.id, b.uri)));
    let places: Vec<_> = long.tried.iter().map(|tried| (tried.tree, tried.key, -tried.priority)).collect();
    assert!(places.is_sorted(), "{line}: {:?}", long.tried);
    for rule in rules.values() {
        let alone = BTreeMap::from([(rule.id.clone(), rule.clone())]);
        let takes = expected(&alone, router.mode(), request).is_some();
        assert_eq!(long.tried.iter().filter(matched).any(|tried| *tried.id == *rule.id), takes, "{line}");
    }
    let few = trace(1, true);
    let firsts = few.tried.iter().filter(matched).map(|tried| tried.id).next();
    assert_eq!(firsts, first.map(|tried| tried.id));
    assert!(few.tried.len() <= 2 && few.tried.len() + few.more == long.tried.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    /// After any sequence of inserts and removals the router agrees with the naive matcher on the
    /// remaining rules, and so does every older copy on its own.
    #[test]
    fn the_router_agrees_with_the_naive_matcher(
        mode in mode(),
        steps in prop::collection::vec((some_rule(), 0..4u8), 1..24),
        cut in 0..24usize,
        requests in prop::collection::vec(request(), 12),
    ) {
        let mut router = Router::new(mode, Options::default());
        let mut rules = BTreeMap::new();
        let mut old = (router.clone(), rules.clone());
        for (i, (rule, how)) in steps.into_iter().enumerate() {
            if i == cut {
                old = (router.clone(), rules.clone());
            }
            match how {
                0 => {
                    router.remove(&rule.id);
                    rules.remove(&rule.id);
                }
                1 => {
                    let new = plan(&rule.id);
                    router.replace(&rule.id, new.clone());
                    let now = rules.get(&rule.id).and_then(|_| router.plan(&rule.id));
                    prop_assert!(now.is_none_or(|now| Arc::ptr_eq(now, &new)));
                }
                _ => {
                    router.insert(Arc::new(rule.clone()), plan(&rule.id));
                    rules.insert(rule.id.clone(), rule);
                }
            }
        }
        holds(&router, &rules, mode, &requests);
        holds(&old.0, &old.1, mode, &requests);
        let mut anew = Router::new(mode, Options::default());
        for rule in rules.values().rev() {
            anew.insert(Arc::new(rule.clone()), plan(&rule.id));
        }
        holds(&anew, &rules, mode, &requests);
    }
}
