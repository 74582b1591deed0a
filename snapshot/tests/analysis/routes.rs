//! Routes that no request reaches, or that others hide.

use proptest::prelude::*;
use sdk::testing::Probe;

use super::*;

#[test]
fn shadowed_and_unreachable_routes() {
    let codes = [Code::Unreachable, Code::Shadowed, Code::Ambiguous];
    for (about, routes, host_uri, uri) in [
        ("different paths", "{id: 1, uri: /a, U} {id: 2, uri: /b, U}", "", ""),
        ("the smaller id", "{id: 1, uri: /a, U} {id: 2, uri: /a, U}", "unreachable routes/2/uri", "="),
        (
            "a lower priority",
            "{id: 1, uri: /a, U} {id: 2, uri: /a, priority: 1, U}",
            "unreachable routes/1/uri",
            "=",
        ),
        ("other methods", "{id: 1, uri: /a, methods: [GET], U} {id: 2, uri: /a, methods: [POST], U}", "", ""),
        (
            "its method is taken",
            "{id: 1, uri: /a, priority: 1, methods: [GET, PUT], U} {id: 2, uri: /a, methods: [GET], U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "one method of two",
            "{id: 1, uri: /a, priority: 1, methods: [GET], U} {id: 2, uri: /a, methods: [GET, PUT], U}",
            "",
            "",
        ),
        (
            "methods taken by two",
            "{id: 1, uri: /a, priority: 1, methods: [GET], U} {id: 2, uri: /a, priority: 2, methods: [PUT], U} {id: 3, uri: /a, methods: [GET, PUT], U}",
            "unreachable routes/3/uri",
            "=",
        ),
        (
            "conditions that go first",
            "{id: 1, uri: /a, priority: 1, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, U}",
            "",
            "",
        ),
        (
            "conditions that come too late",
            "{id: 1, uri: /a, priority: 1, U} {id: 2, uri: /a, vars: [[arg_a, ==, b]], U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "the same conditions",
            "{id: 1, uri: /a, priority: 1, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, vars: [[arg_a, ==, b]], U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "only the id orders them",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "methods overlap",
            "{id: 1, uri: /a, methods: [GET, PUT], U} {id: 2, uri: /a, methods: [GET, POST], U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "conditions that exclude each other",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, vars: [[arg_a, ==, c]], U}",
            "",
            "",
        ),
        (
            "conditions that do not",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, vars: [[arg_b, ==, c]], U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "networks apart",
            "{id: 1, uri: /a, remote_addr: 10.0.0.0/8, U} {id: 2, uri: /a, remote_addr: 11.0.0.0/8, U}",
            "",
            "",
        ),
        (
            "networks within each other",
            "{id: 1, uri: /a, remote_addr: 10.0.0.0/8, U} {id: 2, uri: /a, remote_addr: 10.1.0.0/16, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "patterns, the longer beginning first",
            "{id: 1, uri: /a/*, priority: 9, U} {id: 2, uri: /a/b/*, U}",
            "",
            "",
        ),
        ("an exact path goes first", "{id: 1, uri: /a/*, priority: 9, U} {id: 2, uri: /a/b, U}", "", ""),
        (
            "one pattern twice",
            "{id: 1, uri: /a/*, priority: 9, U} {id: 2, uri: /a/*, U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "one of two paths",
            "{id: 1, uri: /a, priority: 9, U} {id: 2, uris: [/a, /b], U}",
            "shadowed routes/2/uris",
            "=",
        ),
        ("its own paths", "{id: 1, uris: [/a, '/a/*', '/a/b*'], U}", "", ""),
        (
            "a host and none",
            "{id: 1, uri: /a, priority: 9, U} {id: 2, uri: /a, host: h.org, U}",
            "",
            "unreachable routes/2/uri",
        ),
        (
            "one host twice",
            "{id: 1, uri: /a, host: H.org, priority: 9, U} {id: 2, uri: /a, host: h.org, U}",
            "unreachable routes/2/uri",
            "=",
        ),
        (
            "one host of two",
            "{id: 1, uri: /a, host: h.org, priority: 9, U} {id: 2, uri: /a, hosts: [h.org, i.org], U}",
            "shadowed routes/2/uris",
            "=",
        ),
        (
            "a wildcard host",
            "{id: 1, uri: /a, host: '*.org', priority: 9, U} {id: 2, uri: /a, host: h.org, U}",
            "",
            "",
        ),
        ("one that is off", "{id: 1, uri: /a, status: 0, U} {id: 2, uri: /a, U}", "", ""),
        ("hosts apart", "{id: 1, uri: /a, host: h.org, U} {id: 2, uri: /a, host: i.org, U}", "", ""),
        (
            "a host, and none behind it",
            "{id: 1, uri: /a, host: h.org, U} {id: 2, uri: /a, U}",
            "",
            "ambiguous routes/2/uri",
        ),
        (
            "a host behind none that has conditions",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, host: h.org, U}",
            "",
            "ambiguous routes/2/uri",
        ),
        (
            "one network, and clients from anywhere",
            "{id: 1, uri: /a, remote_addr: 10.0.0.0/8, U} {id: 2, uri: /a, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "conditions, and one network behind them",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, remote_addr: 10.0.0.0/8, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "the wider network behind",
            "{id: 1, uri: /a, remote_addr: 10.1.0.0/16, U} {id: 2, uri: /a, remote_addr: 10.0.0.0/8, U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "conditions of which one does not ask for equality",
            "{id: 1, uri: /a, vars: [[arg_a, '~=', b]], U} {id: 2, uri: /a, vars: [[arg_a, ==, c]], U}",
            "ambiguous routes/2/uri",
            "=",
        ),
        (
            "one of two paths, by its id",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uris: [/a, /b], U}",
            "ambiguous routes/2/uris",
            "=",
        ),
        (
            "the order is meant",
            "{id: 1, uri: /a, vars: [[arg_a, ==, b]], U} {id: 2, uri: /a, priority: -1, U}",
            "",
            "",
        ),
    ] {
        let routes = routes.replace("U}", &format!("{UP}}}")).replace("} {id", "}\n  - {id");
        let text = format!("routes:\n  - {routes}\n");
        let expected =
            |text: &str| -> Vec<String> { if text.is_empty() { Vec::new() } else { vec![text.to_owned()] } };
        assert_eq!(found(&text, Mode::HostUri, &codes), expected(host_uri), "{about}");
        let uri = if uri == "=" { host_uri } else { uri };
        assert_eq!(found(&text, Mode::Uri, &codes), expected(uri), "{about}, without trees of hosts");
    }
}

#[test]
fn parameters_take_less_than_the_rest_of_a_path() {
    let text = |first: &str, second: &str| {
        format!(
            "routes:\n  - {{id: 1, uri: '{first}', priority: 1, {UP}}}\n  - {{id: 2, uri: '{second}', {UP}}}\n"
        )
    };
    let codes = [Code::Unreachable];
    let mode = Mode::UriWithParameter;
    assert!(found(&text("/a/:id", "/a/*"), mode, &codes).is_empty());
    assert_eq!(found(&text("/a/*", "/a/:id"), mode, &codes), ["unreachable routes/2/uri"]);
    assert_eq!(found(&text("/a/:id", "/a/:id"), mode, &codes), ["unreachable routes/2/uri"]);
}

#[test]
fn patterns_of_one_beginning_may_meet_where_one_of_them_takes_all() {
    for (first, second, meet) in
        [("/a/*id", "/a/:id", true), ("/a/:id", "/a/*id", true), ("/a/:id/b", "/a/:id/c", false)]
    {
        let text = format!(
            "routes:\n  - {{id: 1, uri: '{first}', vars: [[arg_a, ==, b]], {UP}}}\n  - {{id: 2, uri: '{second}', {UP}}}\n"
        );
        let findings = found(&text, Mode::UriWithParameter, &[Code::Ambiguous]);
        assert_eq!(findings.len(), usize::from(meet), "{first} {second}: {findings:?}");
    }
    let alone = format!("routes:\n  - {{id: 1, uris: ['/a/*id', '/a/:id'], {UP}}}\n");
    assert!(found(&alone, Mode::UriWithParameter, &[Code::Ambiguous]).is_empty(), "they are of one route");
}

#[test]
fn the_reason_another_route_wins() {
    for (first, second, why) in [
        (
            "priority: 2, uri: /a",
            "uri: /a",
            "no request reaches this route: /a goes to routes/1: its priority is 2, over 0",
        ),
        (
            "uri: '/a/*all'",
            "uri: '/a/*'",
            "no request reaches this route: /a/* goes to routes/1: its path is longer",
        ),
        (
            "uri: /a",
            "uri: /a",
            "no request reaches this route: /a goes to routes/1: its id is smaller, at the same path and priority",
        ),
        (
            "priority: 2, uri: '/a/*'",
            "uri: '/a/*all'",
            "no request reaches this route: /a/*all goes to routes/1: its priority is 2, over 0",
        ),
        (
            "uri: /a, host: h.org",
            "uris: [/a, /b], host: h.org",
            "1 of its 2 paths are never reached: /a under h.org goes to routes/1: its id is smaller, at the same \
             path and priority",
        ),
    ] {
        let text = format!("routes:\n  - {{id: 1, {first}, {UP}}}\n  - {{id: 2, {second}, {UP}}}\n");
        let analysis = look(&desired(&text), Mode::UriWithParameter, false);
        let findings: Vec<&str> = analysis.findings.iter().map(|one| &*one.invalid.reason).collect();
        assert_eq!(findings, [why], "{first} {second}");
    }
}

#[test]
fn a_trailing_slash_that_requests_never_have() {
    let all = desired(&format!("routes:\n  - {{id: 1, uri: /a/, {UP}}}\n  - {{id: 2, uri: /, {UP}}}\n"));
    let options = Options { delete_uri_tail_slash: true, ..Options::default() };
    let of = Input {
        desired: &all,
        mode: Mode::HostUri,
        options,
        paths: PathRules::default(),
        catalog: &Plugins,
        encrypts: true,
        stream_ports: &[],
        now: 0,
    };
    let analysis = analyse(of);
    assert_eq!(analysis.findings.len(), 1);
    assert_eq!(analysis.findings[0].key.id, "1", "the path that is a slash stays");
    assert!(analysis.findings[0].invalid.reason.contains("delete_uri_tail_slash"));
    let hint = analysis.findings[0].invalid.hint.as_deref();
    assert_eq!(hint, Some("write the path without the slash at its end"));
}

#[test]
fn impossible_paths_and_unconfigured_stream_ports() {
    let text = format!(
        "routes:\n  - {{id: 1, uri: hello, {UP}}}\n  - {{id: 2, uris: [/a, 'b/*'], {UP}}}\n  - {{id: 3, uri: '*', {UP}}}\n\
         stream_routes:\n  - {{id: 1, server_port: 9100, {UP}}}\n  - {{id: 2, server_port: 9101, {UP}}}\n  \
         - {{id: 3, {UP}}}\n"
    );
    let mut analysis = look(&desired(&text), Mode::HostUri, true);
    analysis.findings.retain(|one| one.code != Code::NoAuthentication);
    assert_eq!(
        analysis.to_string(),
        "unreachable: routes/1/uri: no request reaches this route: hello does not begin with a slash, as the path of \
         each request does\n  help: begin the path with a slash\n\
         unreachable: stream_routes/2/server_port: no connection reaches this stream route: nothing listens on port \
         9101 for streams\n  help: add the port to apisix.stream_proxy in config.yaml, or use a port that is configured\n\
         shadowed: routes/2/uris: 1 of its 2 paths are never reached: b/* does not begin with a slash, as the path of \
         each request does\n  help: begin the path with a slash\n"
    );
}

#[test]
fn catch_all_routes_without_authentication() {
    for (routes, open) in [
        ("{id: 1, uri: '/*', U}", "/uri"),
        ("{id: 1, uris: [/a, '/*'], U}", "/uris/1"),
        ("{id: 1, uris: ['/*'], U}", "/uri"),
        ("{id: 1, uri: '/a/*', U}", ""),
        ("{id: 1, uri: '/*', remote_addr: 10.0.0.0/8, U}", ""),
        ("{id: 1, uri: '/*', plugins: {key: {}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {key: {_meta: {disable: true}}}, U}", "/uri"),
        ("{id: 1, uri: '/*', plugins: {log: {}}, U}", "/uri"),
        ("{id: 1, uri: '/*', plugins: {ip-restriction: {whitelist: [10.0.0.0/8]}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {mocking: {response_example: a}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {redirect: {uri: /b}}, U}", ""),
        ("{id: 1, uri: '/*', plugins: {redirect: {http_to_https: true}}, U}", "/uri"),
        ("{id: 1, uri: '/*', service_id: s}", ""),
        ("{id: 1, uri: '/*', plugin_config_id: p, U}", ""),
    ] {
        let text = format!(
            "routes:\n  - {}\nservices:\n  - {{id: s, plugins: {{key: {{}}}}, {UP}}}\nplugin_configs:\n  - {{id: p, plugins: {{key: {{}}}}}}\n",
            routes.replace("U}", &format!("{UP}}}"))
        );
        let open: Vec<_> =
            (!open.is_empty()).then(|| format!("no-authentication routes/1{open}")).into_iter().collect();
        assert_eq!(found(&text, Mode::HostUri, &[Code::NoAuthentication]), open, "{routes}");
        let guarded = format!("{text}global_rules:\n  - {{id: g, plugins: {{key: {{}}}}}}\n");
        assert!(found(&guarded, Mode::HostUri, &[Code::NoAuthentication]).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// No kind of request that routes distinguish reaches a route reported as unreachable.
    #[test]
    fn no_request_reaches_an_unreachable_route(
        routes in prop::collection::vec(
            (
                prop::sample::subsequence(vec!["/a", "/a/*", "/a/b", "/*", "/a/b*", "/a/:x", "/a/*/c"], 1..3),
                prop::sample::subsequence(vec!["a.b", "*.b", "c.a.b"], 0..3),
                prop::sample::subsequence(vec!["GET", "POST"], 0..3),
                -1..2i64,
                prop::bool::weighted(0.3),
            ),
            1..7,
        ),
        mode in prop::sample::select(vec![Mode::HostUri, Mode::Uri, Mode::UriWithParameter]),
    ) {
        let mut all = model::Desired::default();
        for (id, (uris, hosts, methods, priority, vars)) in routes.iter().enumerate() {
            let mut route = json!({"uris": uris, "priority": priority, "upstream": {"nodes": {"127.0.0.1:80": 1}}});
            if !hosts.is_empty() {
                route["hosts"] = json!(hosts);
            }
            if !methods.is_empty() {
                route["methods"] = json!(methods);
            }
            if *vars {
                route["vars"] = json!([["arg_v", "==", "1"]]);
            }
            all.put(entry(model::Kind::Route, &id.to_string(), route));
        }
        let settings = snapshot::compile::Settings { mode, ..snapshot::compile::Settings::default() };
        let mut compiler = snapshot::Compiler::new(std::sync::Arc::new(Plugins), settings);
        let compiled = compiler.compile(&all, &Touched::all(), &Table::default(), 1);
        let analysis = look(&all, mode, true);
        let unreachable: Vec<&str> = analysis.findings.iter()
            .filter(|one| one.code == Code::Unreachable).map(|one| one.key.id.as_str()).collect();
        let mut probe = Probe::default();
        for method in ["GET", "POST", "PUT", "SPECIAL"] {
            for host in ["a.b", "c.a.b", "x.b", "x"] {
                for target in ["/a", "/a/", "/a/b", "/a/b?v=1", "/a/bc", "/a/x/c", "/a/x/c?v=1", "/x", "/", "/a?v=1", "/x?v=1"] {
                    probe.ask(method, target, &[("Host", host)]);
                    let mut x = probe.exchange();
                    let taken = compiled.snapshot.router.find(&mut x).plan().map(|plan| &*plan.info.id);
                    prop_assert!(!taken.is_some_and(|id| unreachable.contains(&id)), "{} {}{} reaches {:?}", method, host, target, taken);
                }
            }
        }
    }
}
