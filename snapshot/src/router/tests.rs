//! The router against cases from the documented behaviour of APISIX and lua-resty-radixtree, and
//! against a slow and obviously correct matcher.

mod bodies;
mod code;
mod naive;

use std::cell::RefCell;
use std::net::IpAddr;

use sdk::testing::{Probe, messages};
use serde_json::json;
use wire::Method;

use super::*;

pub(super) fn plan(id: &str) -> Arc<Plan> {
    Arc::new(Plan::new(sdk::RouteInfo::new(id, Default::default())))
}

pub(super) fn rule(id: &str, uris: &[&str]) -> Rule {
    Rule {
        id: id.into(),
        uris: uris.iter().map(|&uri| uri.into()).collect(),
        hosts: Box::default(),
        methods: 0,
        remote_addrs: Box::default(),
        vars: None,
        code: None,
        priority: 0,
    }
}

impl Rule {
    pub(super) fn hosts(mut self, hosts: &[&str]) -> Rule {
        self.hosts = hosts.iter().map(|&host| host.into()).collect();
        self
    }

    fn priority(mut self, priority: i64) -> Rule {
        self.priority = priority;
        self
    }

    fn methods(mut self, methods: &[Method]) -> Rule {
        self.methods = methods.iter().map(|method| method.bit()).sum();
        self
    }

    fn from(mut self, nets: &[&str]) -> Rule {
        self.remote_addrs = nets.iter().map(|net| net.parse().unwrap()).collect();
        self
    }

    fn code(mut self, condition: Arc<dyn Condition>) -> Rule {
        self.code = Some(Box::new(Code { text: "text".into(), condition }));
        self
    }

    fn vars(mut self, vars: serde_json::Value) -> Rule {
        self.vars = Some(Box::new(Expr::compile(&vars).unwrap()));
        self
    }
}

pub(super) fn router(mode: Mode, rules: impl IntoIterator<Item = Rule>) -> Router {
    let mut router = Router::new(mode, Options::default());
    for rule in rules {
        let plan = plan(&rule.id);
        router.insert(Arc::new(rule), plan);
    }
    router
}

thread_local! {
    static PROBE: RefCell<Probe> = RefCell::default();
}

/// Id, pattern and captures of the rule that a request `METHOD host/path` finds.
pub(super) fn found(router: &Router, request: &str, ip: IpAddr) -> Option<String> {
    let (method, rest) = request.split_once(' ').unwrap_or(("GET", request));
    let at = rest.find('/').unwrap_or(rest.len());
    let (host, target) = rest.split_at(at);
    PROBE.with_borrow_mut(|probe| {
        probe.messages = messages(method, target, &[("Host", host)]);
        probe.client.set_ip(ip);
        answer(router, &mut probe.exchange())
    })
}

#[test]
fn a_route_may_have_more_than_65536_hosts_and_paths() {
    const MANY: usize = 70_000;
    let mut hosts = rule("hosts", &["/a"]);
    hosts.hosts = (0..MANY).map(|n| format!("h{n}.test").into()).collect();
    let uris: Vec<String> = (0..MANY).map(|n| format!("/p/{n}")).collect();
    let paths = rule("paths", &uris.iter().map(String::as_str).collect::<Vec<_>>());
    let ip = IpAddr::from([127, 0, 0, 1]);
    for mode in [Mode::HostUri, Mode::Uri] {
        let mut router = router(mode, [hosts.clone(), paths.clone()]);
        for n in [0, 65_535, 65_536, MANY - 1] {
            let host = found(&router, &format!("h{n}.test/a"), ip);
            assert_eq!(host, Some(format!("hosts /a @h{n}.test")), "{mode:?}");
            let path = found(&router, &format!("b.test/p/{n}"), ip);
            assert_eq!(path, Some(format!("paths /p/{n}")), "{mode:?}");
        }
        router.remove("hosts");
        assert_eq!(found(&router, "h65536.test/a", ip), None);
    }
}

fn answer<'s>(router: &'s Router, x: &mut Exchange<'s>) -> Option<String> {
    let plan = router.find(x).plan()?;
    let id = plan.info.id.to_string();
    assert!(Arc::ptr_eq(plan, router.plan(&id).unwrap()));
    assert_eq!(x.route().map(|route| &*route.id), Some(&*id));
    let rule = router.rule(&id).unwrap();
    assert_eq!(&*rule.uris[x.engine().matched.uri_index as usize], x.matched_uri());
    assert_eq!(
        rule.hosts.get(x.engine().matched.host_index as usize).map_or("", |host| &**host),
        x.matched_host()
    );
    let mut answer = format!("{id} {}", x.matched_uri());
    if !x.matched_host().is_empty() {
        answer = format!("{answer} @{}", x.matched_host());
    }
    for (name, span) in &x.engine().matched.params {
        answer += &format!(" {name}={}", String::from_utf8_lossy(x.request().fields.bytes(*span)));
    }
    Some(answer)
}

#[track_caller]
fn check(router: &Router, cases: &[(&str, Option<&str>)]) {
    for (request, expected) in cases {
        let answer = found(router, request, "127.0.0.1".parse().unwrap());
        assert_eq!(answer.as_deref(), *expected, "{request}");
    }
}

#[test]
fn exact_paths_then_longest_prefix_regardless_of_priority() {
    let rules = [
        rule("exact", &["/blog/bar"]),
        rule("any", &["/*"]).priority(100),
        rule("blog", &["/blog/*"]).priority(10),
        rule("foo", &["/blog/foo*"]),
    ];
    check(
        &router(Mode::Uri, rules),
        &[
            ("h/blog/bar", Some("exact /blog/bar")),
            ("h/blog/foo", Some("foo /blog/foo*")),
            ("h/blog/foo/gloo", Some("foo /blog/foo*")),
            ("h/blog/x", Some("blog /blog/* :ext=x")),
            ("h/blog", Some("any /* :ext=blog")),
            ("h/", Some("any /* :ext=")),
        ],
    );
}

#[test]
fn priority_then_length_then_id_among_equal_keys() {
    let rules = [
        rule("b", &["/a"]),
        rule("a", &["/a"]),
        rule("low", &["/p/*"]).priority(-1),
        rule("high", &["/p/*"]).priority(1).methods(&[Method::Post]),
        rule("mid", &["/p/*"]),
        rule("longer", &["/p/*named"]),
    ];
    check(
        &router(Mode::HostUri, rules),
        &[
            ("h/a", Some("a /a")),
            ("POST h/p/1", Some("high /p/* :ext=1")),
            ("h/p/1", Some("longer /p/*named named=1")),
        ],
    );
}

#[test]
fn hosts_come_first_in_host_uri() {
    let rules = || {
        [
            rule("none", &["/*"]).priority(100),
            rule("exact", &["/foo"]).hosts(&["www.bar.com"]),
            rule("wild", &["/*"]).hosts(&["*.bar.com"]),
            rule("deep", &["/deep"]).hosts(&["*.a.bar.com"]),
            rule("two", &["/two"]).hosts(&["one.org", "Two.org"]),
            rule("port", &["/*"]).hosts(&["port.org:8080"]),
            rule("six", &["/six"]).hosts(&["[::1]"]),
        ]
    };
    check(
        &router(Mode::HostUri, rules()),
        &[
            ("www.bar.com/foo", Some("exact /foo @www.bar.com")),
            ("WWW.Bar.com:9080/foo", Some("exact /foo @www.bar.com")),
            ("www.bar.com/x", Some("wild /* @*.bar.com :ext=x")),
            ("x.a.bar.com/deep", Some("deep /deep @*.a.bar.com")),
            ("x.a.bar.com/x", Some("wild /* @*.bar.com :ext=x")),
            ("bar.com/x", Some("none /* :ext=x")),
            ("two.org/two", Some("two /two @Two.org")),
            ("port.org:8080/x", Some("port /* @port.org:8080 :ext=x")),
            ("port.org/x", Some("none /* :ext=x")),
        ],
    );
    // Where the host is only a condition, priority and path decide.
    check(
        &router(Mode::Uri, rules()),
        &[
            ("www.bar.com/foo", Some("exact /foo @www.bar.com")),
            ("www.bar.com/x", Some("none /* :ext=x")),
            ("two.org/two", Some("two /two @Two.org")),
        ],
    );
    let some = rules().into_iter().filter(|rule| *rule.id != *"none");
    check(
        &router(Mode::Uri, some),
        &[
            ("www.bar.com/x", Some("wild /* @*.bar.com :ext=x")),
            ("bar.com/x", None),
            ("port.org:8080/x", Some("port /* @port.org:8080 :ext=x")),
            ("port.org/x", None),
        ],
    );
}

#[test]
fn any_host_means_any() {
    check(
        &router(Mode::HostUri, [rule("any", &["/a"]).hosts(&["*"]), rule("none", &["/a", "/b"])]),
        &[("x.y/a", Some("any /a @*")), ("/a", Some("any /a @*")), ("x.y/b", Some("none /b"))],
    );
}

#[test]
fn conditions_are_checked_and_the_search_continues() {
    let rules = [
        rule("post", &["/a"]).methods(&[Method::Post, Method::Put]).priority(3),
        rule("ip", &["/a"]).from(&["10.0.0.0/8", "::1/128"]).priority(2),
        rule("vars", &["/a"]).vars(json!([["arg_v", "==", "1"]])).priority(1),
        rule("last", &["/a*"]),
    ];
    let router = router(Mode::Uri, rules);
    check(
        &router,
        &[
            ("POST h/a", Some("post /a")),
            ("PUT h/a?v=1", Some("post /a")),
            ("h/a?v=1", Some("vars /a")),
            ("h/a", Some("last /a*")),
            ("SPECIAL h/a", Some("last /a*")),
        ],
    );
    for (ip, expected) in [("10.1.1.1", "ip /a"), ("::1", "ip /a"), ("11.1.1.1", "last /a*")] {
        assert_eq!(found(&router, "h/a", ip.parse().unwrap()).as_deref(), Some(expected));
    }
}

#[test]
fn parameters() {
    let rules = || {
        [
            rule("user", &["/user/:id"]),
            rule("me", &["/user/me"]),
            rule("posts", &["/user/:id/posts/:post", "/user/:id/files/*path"]),
            rule("rest", &["/user/*"]),
        ]
    };
    check(
        &router(Mode::UriWithParameter, rules()),
        &[
            ("h/user/7", Some("user /user/:id id=7")),
            ("h/user/me", Some("me /user/me")),
            ("h/user/7/posts/9", Some("posts /user/:id/posts/:post id=7 post=9")),
            ("h/user/7/files/a/b", Some("posts /user/:id/files/*path id=7 path=a/b")),
            ("h/user/7/posts/", Some("rest /user/* :ext=7/posts/")),
            ("h/user/", Some("rest /user/* :ext=")),
        ],
    );
    check(
        &router(Mode::Uri, rules()),
        &[("h/user/:id", Some("user /user/:id")), ("h/user/7", Some("rest /user/* :ext=7"))],
    );
}

#[test]
fn paths_are_normalised_if_configured() {
    let find = |options: Options, target: &str| {
        let mut router = Router::new(Mode::Uri, options);
        router.insert(Arc::new(rule("a", &["/a", "/a/b", "/"])), plan("a"));
        let mut probe = Probe::get(target);
        let mut x = probe.exchange();
        let answer = router.normalize(&mut x);
        let found = router.find(&mut x).plan().map(|_| x.matched_uri().to_owned());
        (answer, found, String::from_utf8_lossy(x.request().encoded_path()).into_owned())
    };
    let plain = Options::default();
    let tail = Options { delete_uri_tail_slash: true, ..plain };
    let servlet = Options { normalize_uri_like_servlet: true, ..plain };
    for (options, target, answer, expected) in [
        (plain, "/a/", Ok(()), None),
        (tail, "/a/", Ok(()), Some("/a")),
        (tail, "/", Ok(()), Some("/")),
        (plain, "/a;x=1", Ok(()), None),
        (servlet, "/a;x=1", Ok(()), Some("/a")),
        (servlet, "/a;x=1;y/b;z", Ok(()), Some("/a/b")),
        (servlet, "/;x", Ok(()), Some("/")),
        (servlet, "/a/..;/b", Err(BadPath), None),
        (servlet, "/a/.;x/b", Err(BadPath), None),
        (servlet, "/;/a", Err(BadPath), None),
        (servlet, "/%2E;/a", Err(BadPath), None),
    ] {
        let expected = expected.map(str::to_owned);
        assert_eq!(find(options, target), (answer, expected, target.to_owned()), "{target}");
    }
}

#[test]
fn a_rule_is_replaced_and_removed_completely() {
    let mut router = router(Mode::HostUri, [rule("a", &["/a", "/a", "/b*"]).hosts(&["h", "*.h"])]);
    assert_eq!((router.len(), router.needs_body()), (1, false));
    let before = router.clone();
    router.insert(Arc::new(rule("a", &["/c"]).vars(json!([["post_arg_x", "!", "==", "1"]]))), plan("a"));
    assert_eq!((router.len(), router.needs_body()), (1, true));
    check(&router, &[("h/a", None), ("x.h/b", None), ("h/c", Some("a /c"))]);
    check(&before, &[("h/a", Some("a /a @h")), ("x.h/b1", Some("a /b* @*.h")), ("h/c", None)]);
    router.remove("a");
    router.remove("a");
    assert_eq!((router.len(), router.is_empty(), router.needs_body()), (0, true, false));
    assert!(router.hosts.is_empty() && router.ports.is_empty() && router.paths.is_empty());
}

#[test]
fn removing_a_rule_keeps_the_others_of_its_host() {
    for host in ["h.test", "*.test", "h.test:80"] {
        let rules = [rule("a", &["/a"]).hosts(&[host]), rule("b", &["/b"]).hosts(&[host])];
        let mut router = router(Mode::HostUri, rules);
        router.remove("a");
        let name = host.replace('*', "h");
        let of = |path: &str| found(&router, &format!("{name}{path}"), "::1".parse().unwrap());
        assert_eq!((of("/a"), of("/b")), (None, Some(format!("b /b @{host}"))));
        assert!(!router.is_empty());
    }
}

#[test]
fn variables_see_the_body() {
    let router = router(Mode::Uri, [rule("a", &["/a"]).vars(json!([["post_arg.model", "==", "m"]]))]);
    for (body, expected) in [(r#"{"model":"m"}"#, true), (r#"{"model":"n"}"#, false)] {
        let mut probe = Probe::request("POST", "/a", &[("Host", "h"), ("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        sdk::testing::with_body(&mut x, body.as_bytes());
        assert_eq!(router.find(&mut x).plan().is_some(), expected);
    }
}

#[test]
fn many_patterns_scan_a_path_as_often_as_one() {
    // Patterns with the same prefix, all of which must be tried.
    let of = |shapes: &[&str]| {
        let rules = (0..200).flat_map(|n| shapes.iter().map(move |shape| shape.replace('#', &n.to_string())));
        let rules = rules.enumerate().map(|(id, uri)| rule(&id.to_string(), &[&uri]));
        router(Mode::UriWithParameter, rules)
    };
    let (fixed, open) = (["/api/:tenant/r#/:id"], ["/api/:tenant/r#/:id", "/api/*/r#", "/api/*/r#/*/x"]);
    let long = format!("h/api{}", "/a".repeat(14_000));
    for (shapes, path, passes, expected) in [
        // The number of segments excludes all patterns.
        (&fixed[..], &*long, 1, None),
        (&fixed, "h/api/t/r9", 1, None),
        (&fixed, "h/api/t/r200/1", 2, None),
        (&fixed, "h/api/t/r199/1", 2, Some("199 /api/:tenant/r#/:id tenant=t id=1")),
        (&open, &*long, 2, None),
        (&open, &format!("{long}/r199"), 2, Some("598 /api/*/r# :ext=")),
    ] {
        let router = of(shapes);
        pattern::tests::SCANS.set(0);
        let answer = found(&router, path, "::1".parse().unwrap());
        let expected = expected.map(|expected| expected.replace('#', "199"));
        let begins = |expected: &String| answer.as_ref().is_some_and(|answer| answer.starts_with(expected));
        assert!(expected.as_ref().map_or(answer.is_none(), begins), "{answer:?}");
        assert_eq!(pattern::tests::SCANS.get(), passes, "{shapes:?}");
    }
}

#[test]
fn many_conditions_read_a_long_request_as_often_as_one() {
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    for (name, pad) in [("arg_x", "a=b&"), ("cookie_x", "a=b; "), ("post_arg_x", "a=b&")] {
        let rules =
            (0..200).map(|n| rule(&n.to_string(), &["/s"]).vars(json!([[name, "==", n.to_string()]])));
        let router = router(Mode::Uri, rules);
        let long = pad.repeat(1_000);
        for (text, expected, most) in [
            (format!("{long}x=199"), Some("199"), 1),
            (format!("{long}x=%31"), Some("1").filter(|_| name != "cookie_x"), 1),
            (long.clone(), None, 1),
            ("x=199".to_owned(), Some("199"), 200),
        ] {
            let (mut target, mut cookie, mut body) = ("/s".to_owned(), "", "");
            match name {
                "arg_x" => target = format!("/s?{text}"),
                "cookie_x" => cookie = &text,
                _ => body = &text,
            }
            let mut probe = Probe::request("POST", &target, &[("Host", "h"), form, ("Cookie", cookie)]);
            let mut x = probe.exchange();
            sdk::testing::with_body(&mut x, body.as_bytes());
            sdk::testing::SCANS.set(0);
            let found = router.find(&mut x).plan().map(|plan| &*plan.info.id);
            assert_eq!(found, expected, "{name}, {} bytes", text.len());
            let looks = sdk::testing::SCANS.get();
            assert!((1..=most).contains(&looks), "{name}, {} bytes: {looks} looks", text.len());
        }
    }
}

#[test]
fn an_unreadable_body_is_scanned_twice_for_all_conditions() {
    let rules = (0..200)
        .map(|n| rule(&n.to_string(), &["/s"]).vars(json!([["post_arg.model", "==", n.to_string()]])))
        .chain([rule("last", &["/s"])]);
    let router = router(Mode::Uri, rules);
    let mut probe = Probe::request("POST", "/s", &[("Host", "h"), ("Content-Type", "application/json")]);
    let mut x = probe.exchange();
    sdk::testing::with_body(&mut x, br#"{"model":"#);
    sdk::testing::SCANS.set(0);
    assert!(matches!(router.find(&mut x), RouteLookup::Refused(_)));
    // One scan finds that it is unreadable, and one finds the rule that would match an empty body.
    assert_eq!(sdk::testing::SCANS.get(), 2);
}

#[test]
fn long_and_hostile_paths_stay_cheap() {
    let nested: Vec<String> = (1..200).map(|n| format!("{}*", "/a".repeat(n))).collect();
    let nested: Vec<&str> = nested.iter().map(String::as_str).collect();
    let router = router(Mode::UriWithParameter, [rule("n", &nested), rule("p", &["/:x/*a/b/*c/d/:e"])]);
    // A backtracking search would not finish.
    for length in [1_000, 4_000, 16_000] {
        let path = format!("h{}", "/a".repeat(length));
        assert!(found(&router, &path, "::1".parse().unwrap()).is_some());
        assert_eq!(found(&router, &format!("h/b{}", "/".repeat(length)), "::1".parse().unwrap()), None);
    }
}
