//! Variables of the request, its connection and its route.

use super::*;

#[test]
fn request_variables() {
    let mut probe = Probe::request(
        "POST",
        "/a/b?x=1%202&X=3&flag&x=4",
        &[
            ("Host", "Example.com:8080"),
            ("X-Forwarded-For", "1.2.3.4"),
            ("X-Tenant", "t1"),
            ("X-Tenant", "t2"),
            ("Cookie", "sid=abc; theme=dark"),
            ("Content-Type", "text/plain"),
            ("Content-Length", "5"),
        ],
    );
    probe.client = Client::new("10.0.0.9:1234".parse().unwrap(), "10.0.0.1:9443".parse().unwrap(), true);
    let mut x = probe.exchange();
    x.engine_mut().timing.received = 321;
    x.engine_mut().timing.connection_requests = 7;
    x.engine_mut().timing.total_us = 1_234_567;
    for (name, expected) in [
        ("arg_x", Some("1 2")),
        ("arg_X", Some("3")),
        ("arg_flag", Some("true")),
        ("arg_none", None),
        ("http_x_tenant", Some("t1, t2")),
        ("http_X_Tenant", Some("t1, t2")),
        ("http_host", Some("Example.com:8080")),
        ("cookie_sid", Some("abc")),
        ("cookie_SID", None),
        ("uri", Some("/a/b")),
        ("request_uri", Some("/a/b?x=1%202&X=3&flag&x=4")),
        ("real_request_uri", Some("/a/b?x=1%202&X=3&flag&x=4")),
        ("normal_request_uri", Some("/a/b?x=1%202&X=3&flag&x=4")),
        ("query_string", Some("x=1%202&X=3&flag&x=4")),
        ("args", Some("x=1%202&X=3&flag&x=4")),
        ("is_args", Some("?")),
        ("remote_addr", Some("10.0.0.9")),
        ("remote_port", Some("1234")),
        ("server_addr", Some("10.0.0.1")),
        ("server_port", Some("9443")),
        ("request_port", Some("8080")),
        ("server_protocol", Some("HTTP/1.1")),
        ("host", Some("example.com")),
        ("scheme", Some("https")),
        ("https", Some("on")),
        ("request_method", Some("POST")),
        ("request", Some("POST /a/b?x=1%202&X=3&flag&x=4 HTTP/1.1")),
        ("content_type", Some("text/plain")),
        ("content_length", Some("5")),
        ("request_length", Some("321")),
        ("connection_requests", Some("7")),
        ("proxy_add_x_forwarded_for", Some("1.2.3.4, 10.0.0.9")),
        ("request_time", Some("1.234")),
        ("status", Some("000")),
        ("upstream_status", None),
        ("upstream_addr", None),
        ("upstream_response_time", None),
        ("time_iso8601", Some("2023-11-14T22:13:20+00:00")),
        ("time_local", Some("14/Nov/2023:22:13:20 +0000")),
        ("msec", Some("1700000000.000")),
        ("route_id", Some("1")),
        ("route_name", Some("route-1")),
        ("service_id", None),
        ("consumer_name", None),
        ("upstream_uri", Some("/a/b?x=1%202&X=3&flag&x=4")),
        ("no_such_thing", None),
        ("", None),
    ] {
        assert_eq!(text(&x, name).as_deref(), expected, "{name}");
    }
    assert!(!Var::parse("no_such_thing").is_known());
}

#[test]
fn values_in_the_exchange_are_borrowed() {
    let mut probe = Probe::request("GET", "/a?b=c", &[("Host", "h"), ("X-A", "1"), ("Cookie", "k=v")]);
    let x = probe.exchange();
    for name in
        ["uri", "request_uri", "arg_b", "http_x_a", "cookie_k", "remote_addr", "host", "request_method"]
    {
        let var = Var::parse(name);
        assert!(matches!(var.of(&x), Some(Cow::Borrowed(_))), "{name}");
    }
}

#[test]
fn request_ids_differ_and_are_stable() {
    let mut probe = Probe::get("/");
    let first = {
        let x = probe.exchange();
        assert_eq!(text(&x, "request_id"), text(&x, "request_id"));
        text(&x, "request_id").unwrap()
    };
    assert_eq!(first.len(), 32);
    assert_ne!(text(&probe.exchange(), "request_id").unwrap(), first);
}

#[test]
fn route_match_variables() {
    let mut probe = Probe::get("/user/7/x");
    let mut x = probe.exchange();
    let start = x.request().path_span.start;
    x.engine_mut().matched.uri = "/user/:id/*";
    x.engine_mut().matched.params.push(("id", wire::Span { start: start + 6, len: 1 }));
    x.engine_mut().matched.params.push((":ext", wire::Span { start: start + 8, len: 1 }));
    for (name, expected) in [
        ("uri_param_id", Some("7")),
        ("uri_param_:ext", Some("x")),
        ("uri_param_none", None),
        ("uri_param__path", Some("/user/:id/*")),
        ("uri_param__host", None),
        ("matched_uri", Some("/user/:id/*")),
        ("matched_host", None),
    ] {
        assert_eq!(text(&x, name).as_deref(), expected, "{name}");
    }
}

#[test]
fn labels_at_the_end_of_a_host_are_left_out() {
    let mut probe = Probe::request("GET", "/", &[("Host", "a.b.example.com:81")]);
    let x = probe.exchange();
    for (name, expected) in [
        ("host_before_1", Some("a.b.example")),
        ("host_before_2", Some("a.b")),
        ("host_before_3", Some("a")),
        ("host_before_4", None),
        ("host_before_0", None),
        ("host_before_x", None),
    ] {
        assert_eq!(text(&x, name).as_deref(), expected, "{name}");
    }
}

#[test]
fn an_empty_query_has_no_question_mark() {
    for (target, expected) in [("/a", "/a"), ("/a?b=c", "/a?b=c"), ("/a?b?c", "/a?b?c"), ("/a?", "/a")] {
        let mut probe = Probe::get(target);
        assert_eq!(text(&probe.exchange(), "request_uri").as_deref(), Some(expected), "{target}");
    }
}

#[test]
fn user_names_decode_all_base64_digits() {
    for credentials in ["Basic Pj4+Pz8/Ong=", "basic  Pj4-Pz8_Ong"] {
        let mut probe = Probe::request("GET", "/", &[("Authorization", credentials)]);
        assert_eq!(text(&probe.exchange(), "remote_user").as_deref(), Some(">>>???"), "{credentials}");
    }
}

#[test]
fn requests_without_a_host_have_the_default_server_name() {
    let mut probe = Probe::request("GET", "/", &[]);
    assert_eq!(text(&probe.exchange(), "host").as_deref(), Some("_"));
}

/// The header of a proxy in front takes precedence over the client's own request.
#[test]
fn forwarded_variables_come_from_the_header_or_the_request() {
    let values = |headers: &[(&str, &str)]| {
        let mut probe = Probe::request("GET", "/", headers);
        let x = probe.exchange();
        ["http_x_forwarded_proto", "http_x_forwarded_host"].map(|name| text(&x, name))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(values(&[("Host", "a.test:81")]), [some("http"), some("a.test:81")]);
    assert_eq!(values(&[]), [some("http"), None]);
    let empty = [("Host", "a.test"), ("X-Forwarded-Proto", ""), ("X-Forwarded-Host", "")];
    assert_eq!(values(&empty), [some("http"), some("a.test")]);
    let both = [("Host", "a.test"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "b.test")];
    assert_eq!(values(&both), [some("https"), some("b.test")]);
}

#[test]
fn request_ids_have_128_bits_in_hexadecimal() {
    let mut probe = Probe::get("/");
    let x = probe.exchange();
    let [high, low] = x.unique();
    assert_eq!(text(&x, "request_id"), Some(format!("{high:016x}{low:016x}")));
}
