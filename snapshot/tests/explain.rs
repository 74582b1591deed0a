//! Explanations: the chosen route is always the router's.

use crate::support::{self, Table, compiler, desired};
use model::{Invalid, Key, Kind, Rejected, Served};
use proptest::prelude::*;
use sdk::testing::{Probe, messages};
use serde_json::{Value, json};
use snapshot::explain::{
    CandidateOutcome, Explanation, Input, MOST_CANDIDATES, MOST_OTHERS, Question, StageOutcome, explain,
};
use snapshot::{Compiled, Touched};
use wire::h1::decode::Limits;

fn compiled(text: &str) -> (Compiled, model::Desired) {
    let desired = desired(text);
    (compiler().compile(&desired, &Touched::all(), &Table::default(), 7), desired)
}

fn ask(text: &str, method: &str, url: &str, headers: &[(&str, &str)]) -> Explanation {
    let (compiled, desired) = compiled(text);
    let question = Question {
        method: method.to_owned(),
        url: url.to_owned(),
        headers: headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        ..Question::default()
    };
    let of = Input {
        snapshot: &compiled.snapshot,
        desired: &desired,
        rejected: &compiled.rejected,
        not_asked: &[],
        now_ms: 0,
        limits: Limits::default(),
    };
    explain(of, &question).expect("a question that can be one")
}

const NODE: &str = "{type: roundrobin, nodes: {\"127.0.0.1:80\": 1}}";

#[test]
fn each_candidate_names_its_failed_condition() {
    let text = format!(
        "routes:\n  \
           - {{id: late, uri: /a/*, priority: 9, upstream: {NODE}}}\n  \
           - {{id: post, uri: /a/b, methods: [POST, PUT], upstream: {NODE}}}\n  \
           - {{id: net, uri: /a/b, remote_addr: 10.0.0.0/8, upstream: {NODE}}}\n  \
           - {{id: vars, uri: /a/b, vars: [[arg_x, ==, '1'], [http_y, ==, '2']], upstream: {NODE}}}\n  \
           - {{id: here, uri: /a/b, upstream: {NODE}}}\n  \
           - {{id: host, uri: /a/b, host: other.org, upstream: {NODE}}}\n  \
           - {{id: 'off', uri: /a/b, status: 0, upstream: {NODE}}}\n  \
           - {{id: path, uri: /a/c, upstream: {NODE}}}\n"
    );
    let explanation = ask(&text, "GET", "http://a.org/a/b?x=1", &[("Y", "3")]);
    let shown: Vec<(&str, CandidateOutcome)> =
        explanation.candidates.iter().map(|one| (one.route.as_str(), one.fate)).collect();
    let expected = [
        ("here", CandidateOutcome::Chosen),
        ("net", CandidateOutcome::Failed("remote_addr")),
        ("post", CandidateOutcome::Failed("methods")),
        ("vars", CandidateOutcome::Failed("vars")),
        ("late", CandidateOutcome::Later),
    ];
    assert_eq!(shown, expected);
    assert_eq!(explanation.candidates[2].why, "it takes POST, PUT");
    assert_eq!(explanation.candidates[3].why, "[\"http_y\",\"==\",\"2\"] does not hold: http_y is `3`");
    assert!(
        explanation.candidates[4].why.contains("regardless of priority (this one has 9)"),
        "{explanation}"
    );
    let others: Vec<(&str, CandidateOutcome)> =
        explanation.others.iter().map(|one| (one.route.as_str(), one.fate)).collect();
    let expected = [
        ("host", CandidateOutcome::Failed("host")),
        ("off", CandidateOutcome::Failed("disabled")),
        ("path", CandidateOutcome::Failed("uri")),
    ];
    assert_eq!(others, expected);
    let target = explanation.upstream.expect("an upstream");
    assert_eq!((target.from.as_str(), target.chosen.as_deref()), ("routes/here", Some("127.0.0.1:80")));
}

#[test]
fn plugins_come_from_the_first_resource_that_has_them() {
    let text = format!(
        "routes: [{{id: 1, uri: /, plugins: {{log: {{}}}}, service_id: s, plugin_config_id: p}}]\n\
         services: [{{id: s, plugins: {{log: {{}}, limit: {{}}, cors: {{}}}}, upstream: {NODE}}}]\n\
         plugin_configs: [{{id: p, plugins: {{limit: {{}}}}}}]\n\
         global_rules: [{{id: g, plugins: {{mirror: {{host: 10.0.0.1}}}}}}]\n"
    );
    let explanation = ask(&text, "GET", "/", &[]);
    let mut from: Vec<(&str, &str)> =
        explanation.stages.iter().map(|stage| (stage.name, stage.from.as_str())).collect();
    from.sort();
    let expected = [
        ("cors", "services/s"),
        ("limit", "plugin_configs/p"),
        ("log", "routes/1"),
        ("mirror", "global_rules/g"),
    ];
    assert_eq!(from, expected);
    assert!(
        explanation.stages.iter().all(|stage| stage.ran == StageOutcome::Undecided),
        "none of them is pure"
    );
    assert_eq!(explanation.upstream.map(|target| target.from), Some("services/s".to_owned()));
}

#[test]
fn the_list_of_candidates_is_bounded() {
    let routes = (1..=MOST_CANDIDATES + 10).map(|n| format!("  - {{id: {n}, uri: /a, upstream: {NODE}}}\n"));
    let explanation = ask(&format!("routes:\n{}", routes.collect::<String>()), "GET", "/a", &[]);
    assert_eq!((explanation.candidates.len(), explanation.more_candidates), (MOST_CANDIDATES, 10));
    assert!(explanation.others.is_empty(), "the others match as well: {explanation}");
}

#[test]
fn rejected_resources_are_noted() {
    let text = format!(
        "routes: [{{id: 1, uri: /a, upstream: {NODE}}}, {{id: 2, uri: /b, upstream: {NODE}}}]\n\
         services: [{{id: 1, upstream: {NODE}}}]\n"
    );
    let (compiled, desired) = compiled(&text);
    let rejected = |kind, id: &str, pointer: &str, served| Rejected {
        key: Key::new(kind, id),
        invalid: Invalid::new("why").at(pointer),
        served,
    };
    let mut all = vec![
        rejected(Kind::Service, "1", "/plugins", Served::LastGoodForm),
        rejected(Kind::Service, "gone", "/plugins", Served::Nothing),
        rejected(Kind::Route, "kept", "/uri", Served::LastGoodForm),
        rejected(Kind::Route, "1", "/plugins", Served::LastGoodForm),
        rejected(Kind::Route, "2", "/plugins", Served::Nothing),
        rejected(Kind::Route, "gone", "/uri", Served::Nothing),
        rejected(Kind::Route, "lua", "/filter_func", Served::Nothing),
    ];
    let ask = |rejected: &[Rejected]| {
        let (snapshot, limits) = (&compiled.snapshot, Limits::default());
        let of = Input { snapshot, desired: &desired, rejected, not_asked: &[], now_ms: 0, limits };
        let question = Question { method: "GET".to_owned(), url: "/a".to_owned(), ..Question::default() };
        explain(of, &question).expect("a question that can be one")
    };
    let explanation = ask(&all);
    assert_eq!(explanation.notes, ["routes/1 is served in its last good form, not as configured: why"]);
    let others: Vec<(&str, CandidateOutcome)> =
        explanation.others.iter().map(|one| (one.route.as_str(), one.fate)).collect();
    let expected = [
        ("2", CandidateOutcome::Failed("uri")),
        ("gone", CandidateOutcome::Failed("rejected")),
        ("lua", CandidateOutcome::Failed("filter_func")),
    ];
    assert_eq!(others, expected);
    assert_eq!(explanation.others[1].why, "it is not served: why");
    all.extend((0..50).map(|n| rejected(Kind::Route, &format!("more-{n}"), "/uri", Served::Nothing)));
    assert_eq!(ask(&all).others.len(), 2 * MOST_OTHERS);
}

#[test]
fn requests_refused_before_routing() {
    let text = format!("routes: [{{id: 1, uri: '/*', upstream: {NODE}}}]\n");
    for (method, url, status) in
        [("GET", "/%zz", 400), ("GET", "/../..", 400), ("CONNECT", "/", 400), ("TRACE", "/", 405)]
    {
        let explanation = ask(&text, method, url, &[]);
        assert_eq!(
            explanation.refused.as_ref().map(|(status, _)| *status),
            Some(status),
            "{method} {url}: {explanation}"
        );
        assert!(explanation.route.is_none() && explanation.upstream.is_none());
    }
    let none = ask("routes: []\n", "GET", "/x", &[]);
    assert_eq!(none.answer.and_then(|answer| answer.status), Some(404));
}

#[test]
fn an_invalid_question_is_an_error() {
    let (compiled, desired) = compiled("routes: []\n");
    let of = Input {
        snapshot: &compiled.snapshot,
        desired: &desired,
        rejected: &[],
        not_asked: &[],
        now_ms: 0,
        limits: Limits::default(),
    };
    for (method, url, header) in [
        ("GET", "/a b", ("A", "b")),
        ("GET /x HTTP/1.1\r\nA:", "/", ("A", "b")),
        ("GET", "/a\r\nX: y", ("A", "b")),
        ("GET", "a", ("A", "b")),
        ("GET", "/", ("A\r\nB", "b")),
        ("GET", "/", ("A", "b\r\nB: c")),
        ("GET", "/", ("A: b", "c")),
    ] {
        let headers = vec![(header.0.to_owned(), header.1.to_owned())];
        let (method, url) = (method.to_owned(), url.to_owned());
        assert!(explain(of, &Question { method, url, headers, ..Question::default() }).is_err());
    }
}

fn some_route() -> impl Strategy<Value = Value> {
    (
        prop::sample::subsequence(vec!["/a", "/a/*", "/a/b", "/*", "/a/b*", "/a*"], 1..3),
        prop::sample::subsequence(vec!["a.b", "*.b", "c.a.b"], 0..3),
        prop::sample::subsequence(vec!["GET", "POST"], 0..2),
        -1..2i64,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(uris, hosts, methods, priority, vars, off)| {
            let mut route =
                json!({"uris": uris, "priority": priority, "upstream": {"nodes": {"127.0.0.1:80": 1}}});
            if !hosts.is_empty() {
                route["hosts"] = json!(hosts);
            }
            if !methods.is_empty() {
                route["methods"] = json!(methods);
            }
            if vars {
                route["vars"] = json!([["arg_v", "==", "1"]]);
            }
            if off {
                route["status"] = json!(0);
            }
            route
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The route that an explanation reports as chosen, and the candidate it marks, is what the
    /// router finds.
    #[test]
    fn the_chosen_route_is_the_routers(
        routes in prop::collection::vec(some_route(), 0..8),
        method in prop::sample::select(vec!["GET", "POST", "PUT"]),
        host in prop::sample::select(vec!["a.b", "c.a.b", "x"]),
        target in prop::sample::select(vec!["/a", "/a/b", "/a/b?v=1", "/a/c?v=1", "/x", "/"]),
    ) {
        let mut all = model::Desired::default();
        for (id, route) in routes.iter().enumerate() {
            all.put(support::entry(model::Kind::Route, &id.to_string(), route.clone()));
        }
        let compiled = compiler().compile(&all, &Touched::all(), &Table::default(), 1);
        let of = Input { snapshot: &compiled.snapshot, desired: &all, rejected: &compiled.rejected, not_asked: &[], now_ms: 0, limits: Limits::default() };
        let question = Question { method: method.into(), url: format!("http://{host}{target}"), ..Question::default() };
        let explanation = explain(of, &question).expect("a request");
        let mut probe = Probe { messages: messages(method, target, &[("Host", host)]), ..Probe::default() };
        let found = compiled.snapshot.router.find(&mut probe.exchange()).plan().map(|plan| plan.info.id.to_string());
        prop_assert_eq!(explanation.route.as_ref().map(|route| &route.id), found.as_ref());
        let marked = explanation.candidates.iter().find(|one| one.fate == CandidateOutcome::Chosen).map(|one| &one.route);
        prop_assert_eq!(marked, found.as_ref());
        // Every route is listed or counted.
        let named: std::collections::BTreeSet<&str> = explanation.candidates.iter().chain(&explanation.others).map(|one| one.route.as_str()).collect();
        prop_assert_eq!(named.len() + explanation.more_others, routes.len());
    }
}
