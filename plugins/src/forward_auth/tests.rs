use sdk::Framing;
use sdk::exchange::Body;
use sdk::testing::{Probe, fields, now, with_body};
use sdk::world::FetchError;

use super::*;

fn answer(status: u16, headers: &[(&str, &str)]) -> Result<Fetched, FetchError> {
    Ok(Fetched { status, fields: fields(headers), body: b"says the server".to_vec(), ..Fetched::default() })
}

fn config(rest: Value) -> Value {
    let mut config = json!({"uri": "http://127.0.0.1:8199/auth?a=1"});
    config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    config
}

/// Asks for a GET with these headers; `then` sees the outcome and what the server was sent.
fn run(
    headers: &[(&str, &str)],
    rest: Value,
    answer: Result<Fetched, FetchError>,
    then: impl FnOnce(Step, &mut Exchange<'_>),
) -> Fetch {
    let mut probe = Probe::request("GET", "/hello?b=%20", headers);
    probe.world.answers.borrow_mut().push(answer);
    let stage: ForwardAuth = probe.stage(config(rest)).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Wait));
    let step = now(stage.wait(Phase::Access, &mut x));
    then(step, &mut x);
    drop(x);
    probe.world.sent.borrow_mut().pop().unwrap()
}

#[test]
fn the_server_may_get_the_request_itself() {
    let rest = json!({"original_request": true});
    let sent = run(&[], rest.clone(), answer(200, &[]), |step, _| assert!(matches!(step, Step::Next)));
    assert_eq!((sent.method, sent.uri), (Method::Get, b"/auth/hello?b=%20".to_vec()));
    run(&[], rest, answer(204, &[]), |step, _| {
        assert!(matches!(step, Step::Reply(reply) if reply.status == 204));
    });
    let mut probe = Probe::request("HEAD", "/a", &[]);
    probe.world.answers.borrow_mut().push(answer(200, &[]));
    let config = json!({"uri": "http://127.0.0.1:8199", "original_request": true});
    let stage: ForwardAuth = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(now(stage.wait(Phase::Access, &mut x)), Step::Next));
    drop(x);
    let sent = probe.world.sent.borrow_mut().pop().unwrap();
    assert_eq!((sent.method, sent.uri), (Method::Get, b"/a".to_vec()));
}

#[test]
fn the_server_gets_the_request_in_headers() {
    let headers =
        [("Host", "Example.com:9080"), ("Authorization", "a"), ("X-Forwarded-Uri", "/forged"), ("X", "no")];
    let rest = json!({
        "request_headers": ["authorization", "X-Forwarded-Uri", "missing"],
        "extra_headers": {"X-Client": "$remote_addr of $http_missing!", "x-forwarded-proto": "own"},
        "timeout": 700, "keepalive_pool": 7, "keepalive_timeout": 9000,
    });
    let sent = run(&headers, rest, answer(200, &[]), |step, _| assert!(matches!(step, Step::Next)));
    assert_eq!(
        (sent.method, &sent.uri[..], sent.target.authority.as_str()),
        (Method::Get, &b"/auth?a=1"[..], "127.0.0.1:8199")
    );
    let mut got: Vec<_> =
        sent.fields.iter().map(|(name, value, _)| (name.to_ascii_lowercase(), value.to_vec())).collect();
    got.sort();
    let expected = [
        ("authorization", "a"),
        ("sluice-hops", "1"),
        ("x-client", "127.0.0.1 of !"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "example.com"),
        ("x-forwarded-method", "GET"),
        ("x-forwarded-proto", "own"),
        ("x-forwarded-uri", "/hello?b=%20"),
    ];
    assert_eq!(got, expected.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())));
    assert_eq!(sent.timeouts.read, Duration::from_millis(700));
    assert_eq!(sent.keep, Keep { connections: 7, idle: Duration::from_secs(9) });
    let sent = run(&[], json!({"keepalive": false}), answer(204, &[]), |_, _| {});
    assert_eq!(sent.keep.connections, 0);
}

#[test]
fn of_all_headers_none_passes_for_one_of_the_gateway() {
    let headers = [
        ("X_Why", "forged"),
        ("x-why", "forged"),
        ("X_Forwarded_Uri", "/forged"),
        ("X-Forwarded_for", "192.0.2.1"),
        ("X-Forwarded-User", "root"),
        ("x_forwarded_USER", "root"),
        ("Cookie", "a=1"),
        ("X_Own", "1"),
        ("X-Own", "2"),
        ("x-own", "3"),
    ];
    let extra = json!({"X-Why": "gate", "X-Forwarded-User": ""});
    let rest = json!({"all_request_headers": true, "extra_headers": extra});
    let sent = run(&headers, rest, answer(200, &[]), |step, _| assert!(matches!(step, Step::Next)));
    let got = |name: &str| {
        let plain = |own: &[u8]| String::from_utf8_lossy(own).to_ascii_lowercase().replace('_', "-");
        let fields = sent.fields.iter().filter(|(own, _, _)| plain(own) == name);
        fields.map(|(_, value, _)| String::from_utf8(value.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(got("x-why"), ["gate"]);
    assert_eq!(got("x-forwarded-uri"), ["/hello?b=%20"]);
    assert_eq!(got("x-forwarded-for"), ["127.0.0.1"]);
    assert!(got("x-forwarded-user").is_empty());
    assert_eq!((got("cookie").len(), got("x-own").len()), (1, 3));
}

#[test]
fn an_invalid_value_is_refused_without_a_request() {
    let mut probe = Probe::request("GET", "/", &[("Host", "a")]);
    let rest =
        json!({"extra_headers": {"X-Bad": "a\r\nb: c"}, "allow_degradation": true, "status_on_error": 401});
    let stage: ForwardAuth = probe.stage(config(rest)).unwrap();
    let mut x = probe.exchange();
    let step = now(stage.wait(Phase::Access, &mut x));
    assert!(matches!(step, Step::Reply(reply) if reply.status == 401));
    drop(x);
    assert!(probe.world.sent.borrow().is_empty());
}

#[test]
fn headers_of_the_answer_take_the_place_of_the_client_s() {
    let headers = [("X-User", "root"), ("X-Group", "wheel"), ("X-Other", "1")];
    let rest = json!({"upstream_headers": ["X-User", "X-Group"]});
    run(
        &headers,
        rest,
        answer(200, &[("x-user", "jack"), ("X-User", "rose"), ("X-Other", "2")]),
        |step, x| {
            assert!(matches!(step, Step::Next));
            let users: Vec<_> = values(&x.request().fields, "x-user").collect();
            assert_eq!(users, [b"jack", b"rose"]);
            assert_eq!((x.header("X-Group"), x.header("X-Other")), (None, Some(&b"1"[..])));
        },
    );
}

#[test]
fn a_client_cannot_say_the_same_in_another_spelling() {
    let headers = [("X_User_Id", "admin"), ("x-user_ID", "admin"), ("X_Other", "1")];
    for rest in
        [json!({"upstream_headers": ["X-User-Id"]}), json!({"upstream_headers": ["X-User-Id", "X_User_Id"]})]
    {
        for (said, kept) in [(&[("X-User-Id", "jack")][..], vec![b"jack".to_vec()]), (&[], vec![])] {
            run(&headers, rest.clone(), answer(200, said), |_, x| {
                let users = x.request().fields.iter().filter(|(name, _, _)| name.len() == 9);
                assert_eq!(users.map(|(_, value, _)| value.to_vec()).collect::<Vec<_>>(), kept);
                assert_eq!(x.header("X_Other"), Some(&b"1"[..]));
            });
        }
    }
}

#[test]
fn a_refusal_is_the_server_s_own() {
    for status in [300, 302, 403, 500] {
        let said =
            [("Location", "http://login"), ("Set-Cookie", "a"), ("Set-Cookie", "b"), ("X-Secret", "1")];
        let rest = json!({"client_headers": ["location", "Set-Cookie"]});
        run(&[("X-User", "root")], rest, answer(status, &said), |step, x| {
            let Step::Reply(reply) = step else { panic!("{step:?}") };
            assert_eq!((reply.status, &reply.body[..]), (status, &b"says the server"[..]));
            sdk::testing::respond(x, status, &[]);
            let got: Vec<_> = x.response().fields.iter().map(|(_, value, _)| value.to_vec()).collect();
            assert_eq!(got, [&b"http://login"[..], b"a", b"b"]);
        });
    }
}

#[test]
fn without_an_answer_settings_decide() {
    for error in [FetchError::Refused, FetchError::Timeout, FetchError::Unresolved] {
        run(&[], json!({}), Err(error), |step, _| {
            assert!(matches!(step, Step::Reply(reply) if reply.status == 403))
        });
        run(&[], json!({"status_on_error": 503}), Err(error), |step, _| {
            assert!(matches!(step, Step::Reply(reply) if reply.status == 503));
        });
        let degraded = json!({"allow_degradation": true, "upstream_headers": ["X-User-ID"]});
        run(&[("X-User-ID", "forged"), ("X-Own", "stays")], degraded, Err(error), |step, x| {
            assert!(matches!(step, Step::Next));
            assert_eq!((x.header("X-User-ID"), x.header("X-Own")), (None, Some(&b"stays"[..])));
        });
    }
}

#[test]
fn a_body_goes_along_within_its_bound() {
    let post = json!({"request_method": "POST", "max_req_body_size": 4});
    let mut probe =
        Probe::request("PUT", "/", &[("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked")]);
    probe.world.answers.borrow_mut().push(answer(200, &[]));
    let stage: ForwardAuth = probe.stage(config(post)).unwrap();
    let mut x = probe.exchange();
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(stage.access(&mut x), Step::Body(4)));
    (x.engine_mut().body_state, x.engine_mut().body_asked) = (Body::TooLarge, 4);
    assert!(matches!(stage.access(&mut x), Step::Reply(reply) if reply.status == 413));
    with_body(&mut x, b"body");
    assert!(matches!(stage.access(&mut x), Step::Wait));
    assert!(matches!(now(stage.wait(Phase::Access, &mut x)), Step::Next));
    x.engine_mut().messages.request.framing = Framing::Length(5);
    assert!(matches!(stage.access(&mut x), Step::Reply(reply) if reply.status == 413));
    drop(x);
    let sent = probe.world.sent.borrow_mut().pop().unwrap();
    assert_eq!(
        (sent.method, &sent.body[..], sent.fields.get_named(b"content-encoding")),
        (Method::Post, &b"body"[..], Some(&b"gzip"[..]))
    );
    assert_eq!(sent.fields.get_named(b"transfer-encoding"), None);
    assert_eq!(probe.world.budget.taken(), 0);
}

#[test]
fn a_body_that_others_had_read_keeps_to_the_bound_and_the_budget() {
    let post = json!({"request_method": "POST", "max_req_body_size": 4});
    for (body, held, status) in [("bod", 3, None), ("bod", 2, Some(503)), ("body5", 9, Some(413))] {
        let mut probe = Probe::request("POST", "/", &[]);
        probe.world.answers.borrow_mut().push(answer(200, &[]));
        probe.world.budget = sdk::budget::Budget::new(held);
        let stage: ForwardAuth = probe.stage(config(post.clone())).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, body.as_bytes());
        let step = match stage.access(&mut x) {
            Step::Wait => now(stage.wait(Phase::Access, &mut x)),
            step => step,
        };
        let refused = if let Step::Reply(reply) = step { Some(reply.status) } else { None };
        assert_eq!(refused, status, "{body} {held}");
    }
}

#[test]
fn a_refusal_replaces_what_was_to_be_answered() {
    let rest = json!({"client_headers": ["Location"]});
    let mut probe = Probe::get("/");
    probe.world.answers.borrow_mut().push(answer(403, &[("Location", "http://login")]));
    let stage: ForwardAuth = probe.stage(config(rest)).unwrap();
    let mut x = probe.exchange();
    x.set_response_header("Location", b"http://early").unwrap();
    assert!(matches!(now(stage.wait(Phase::Access, &mut x)), Step::Reply(_)));
    sdk::testing::respond(&mut x, 403, &[]);
    assert_eq!(values(&x.response().fields, "location").collect::<Vec<_>>(), [b"http://login"]);
}

#[test]
fn an_answer_is_held_as_far_as_was_said() {
    for (attr, size) in [
        (None, 1 << 20),
        (Some(json!({})), 1 << 20),
        (Some(json!({"max_resp_body_size": null})), 1 << 20),
        (Some(json!({"max_resp_body_size": 5})), 5),
        (Some(json!({"max_resp_body_size": "2k"})), 2048),
    ] {
        assert_eq!(max_answer(attr.as_ref()), size, "{attr:?}");
    }
}

#[test]
fn a_header_made_of_the_body_reads_the_body_first() {
    let rest = json!({"extra_headers": {"X-Tenant": "$post_arg.tenant"}});
    let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
    probe.world.answers.borrow_mut().push(answer(200, &[]));
    let stage: ForwardAuth = probe.stage(config(rest)).unwrap();
    let mut x = probe.exchange();
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(stage.access(&mut x), Step::Body(_)));
    with_body(&mut x, br#"{"tenant": "t1"}"#);
    assert!(matches!(now(stage.wait(Phase::Access, &mut x)), Step::Next));
    drop(x);
    let sent = probe.world.sent.borrow_mut().pop().unwrap();
    assert_eq!(sent.fields.get_named(b"x-tenant"), Some(&b"t1"[..]));
    assert!(sent.body.is_empty());
}

#[test]
fn targets_are_taken_apart() {
    for (uri, expected) in [
        ("http://a", "/"),
        ("http://a/", "/"),
        ("http://a/b?c=/#d", "/b?c=/"),
        ("http://a?c=1", "/?c=1"),
        ("http://a#d", "/"),
    ] {
        assert_eq!(path_and_query(uri), expected, "{uri}");
    }
    let probe = Probe::default();
    for (wrong, pointer) in [
        (json!({"uri": "ftp://a"}), "/uri"),
        (json!({"uri": "http://a/ b"}), "/uri"),
        (json!({"uri": "http://a/\u{e9}"}), "/uri"),
        (json!({"uri": "http://a", "upstream_headers": ["a", "b c"]}), "/upstream_headers/1"),
        (json!({"uri": "http://a", "extra_headers": {"a b": "c"}}), "/extra_headers/a b"),
        (json!({"uri": "http://a", "extra_headers": {"a:b": 1}}), "/extra_headers/a:b"),
        (json!({"uri": "http://a", "timeout": 0}), "/timeout"),
        (json!({"uri": "http://a", "request_method": "PUT"}), "/request_method"),
    ] {
        assert_eq!(probe.stage::<ForwardAuth>(wrong.clone()).err().unwrap().pointer, pointer, "{wrong}");
    }
}

#[test]
fn all_headers_go_to_the_server_and_its_own_under_other_names() {
    let settings = json!({
        "all_request_headers": true,
        "extra_headers": {"X-Why": "gate", "Cookie": ""},
        "upstream_header_names": {"X-User": "x-auth-user"},
    });
    let headers = [
        ("Host", "a"),
        ("X-Own", "1"),
        ("X-Own", "2"),
        ("Cookie", "c=1"),
        ("X-User", "root"),
        ("Content-Length", "3"),
    ];
    let sent = run(&headers, settings, answer(200, &[("X-Auth-User", "jack")]), |step, x| {
        assert!(matches!(step, Step::Next));
        assert_eq!(x.header("X-User"), Some(&b"jack"[..]));
    });
    let values = |name: &str| -> Vec<&[u8]> {
        sent.fields
            .iter()
            .filter(|(own, _, _)| own.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value, _)| value)
            .collect()
    };
    assert_eq!(values("X-Own"), [b"1", b"2"]);
    assert_eq!(values("X-Why"), [b"gate"]);
    assert!(values("Cookie").is_empty() && values("Content-Length").is_empty());
}

#[test]
fn clients_get_some_statuses_alone() {
    let settings = json!({"client_statuses": [401, 403], "status_on_error": 500});
    for (status, expected) in [(401, 401), (403, 403), (404, 500), (302, 500)] {
        run(&[], settings.clone(), answer(status, &[]), |step, _| match step {
            Step::Reply(reply) => assert_eq!(reply.status, expected),
            other => panic!("{other:?}"),
        });
    }
}
