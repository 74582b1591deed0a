//! The first route that matches wins, as in Spring: a model of Spring against a model of the router.

use proptest::prelude::*;
use serde_json::Value;

use super::{import, route};

/// Paths of which requests and patterns are made.
const PATHS: &[&str] = &["/", "/a", "/a/", "/a/b", "/a/b/c", "/b", "/b/x/c", "/a/x/c", "/ab"];
const PATTERNS: &[&str] =
    &["/**", "/a", "/a/**", "/a/b", "/a/{x}", "/b/**", "/a/*/c", "/{x}/**", "/a/b/**", "/a/b/c", "/a*"];

/// Whether a pattern matches, by the rules of Spring's documentation.
fn spring_matches(pattern: &str, path: &str) -> bool {
    let split = |text: &str| -> Vec<String> { text.split('/').skip(1).map(str::to_owned).collect() };
    let (mut parts, mut segments) = (split(pattern), split(path));
    if segments.len() > 1
        && segments.last().is_some_and(String::is_empty)
        && parts.last().is_some_and(|p| p != "**")
    {
        segments.pop();
    }
    if parts.last().is_some_and(|part| part == "**") {
        parts.pop();
        return segments.len() >= parts.len()
            && parts.iter().zip(&segments).all(|(part, segment)| one(part, segment));
    }
    parts.len() == segments.len() && parts.iter().zip(&segments).all(|(part, segment)| one(part, segment))
}

fn one(part: &str, segment: &str) -> bool {
    match part {
        "*" => !segment.is_empty(),
        part if part.starts_with('{') => !segment.is_empty(),
        part => match part.strip_suffix('*') {
            Some(prefix) => segment.starts_with(prefix),
            None => part == segment,
        },
    }
}

/// The route that the router chooses: exact paths, then longer prefixes, then priorities.
fn router_chooses(routes: &[(String, &Value)], path: &str, method: &str) -> Option<String> {
    let mut candidates = Vec::new();
    for (id, value) in routes {
        let uris: Vec<&str> = match (&value["uri"], &value["uris"]) {
            (Value::String(one), _) => vec![one],
            (_, Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => panic!("no paths"),
        };
        for uri in uris {
            let rank = match uri.strip_suffix('*') {
                Some(prefix) if path.starts_with(prefix) => prefix.len(),
                None if uri == path => usize::MAX,
                _ => continue,
            };
            candidates.push((rank, value["priority"].as_u64().unwrap(), id, value));
        }
    }
    candidates.sort_by_key(|(rank, priority, ..)| std::cmp::Reverse((*rank, *priority)));
    let meets = |value: &Value| {
        let methods = value["methods"].as_array();
        let by_method = methods.is_none_or(|methods| methods.iter().any(|one| one == method));
        let vars = value["vars"].as_array();
        by_method
            && vars.is_none_or(|vars| {
                vars.iter().all(|var| regex::Regex::new(var[2].as_str().unwrap()).unwrap().is_match(path))
            })
    };
    candidates.into_iter().find(|(.., value)| meets(value)).map(|(_, _, id, _)| id.clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_first_match_wins(
        chosen in proptest::collection::vec((proptest::collection::vec(0..PATTERNS.len(), 1..3), 0..3u8, -1..2i8), 1..7),
    ) {
        let mut text = String::from("spring.cloud.gateway.routes:\n");
        for (at, (patterns, method, order)) in chosen.iter().enumerate() {
            let patterns: Vec<_> = patterns.iter().map(|at| PATTERNS[*at]).collect();
            let method = match method { 0 => "", 1 => ", Method=GET", _ => ", Method=POST" };
            text.push_str(&format!(
                "- {{id: r{at}, uri: 'http://h:1', order: {order}, predicates: ['Path={}'{method}]}}\n",
                patterns.join(",")
            ));
        }
        let import = import(&text);
        let routes: Vec<(String, &Value)> =
            (0..chosen.len()).map(|at| (format!("r{at}"), route(&import, &format!("r{at}")))).collect();
        let mut tried: Vec<usize> = (0..chosen.len()).collect();
        tried.sort_by_key(|at| chosen[*at].2);
        for path in PATHS {
            for (method, number) in [("GET", 1), ("POST", 2)] {
                let expected = tried.iter().find(|at| {
                    let (patterns, wanted, _) = &chosen[**at];
                    (*wanted == 0 || *wanted == number)
                        && patterns.iter().any(|pattern| spring_matches(PATTERNS[*pattern], path))
                });
                let expected = expected.map(|at| format!("r{at}"));
                prop_assert_eq!(router_chooses(&routes, path, method), expected, "{} {}\n{}", method, path, text);
            }
        }
    }
}
