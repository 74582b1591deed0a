use super::*;
use crate::client::Client;
use crate::exchange::{Body, Try};
use crate::testing::{Probe, respond, with_body};
use crate::verdict::Undecidable;

fn text(x: &Exchange<'_>, name: &str) -> Option<String> {
    let var = Var::parse(name);
    let value = var.of(x).map(|value| String::from_utf8(value.into_owned()).unwrap());
    let mut written = Vec::new();
    assert_eq!(var.write(x, &mut written), value.is_some(), "{name}");
    assert_eq!(written, value.as_deref().unwrap_or_default().as_bytes(), "{name}");
    value
}

#[test]
fn every_variable_is_in_the_documentation() {
    let pages = [include_str!("../../../docs/operating.md"), include_str!("../../../docs/streams.md")];
    for name in NAMES {
        let shown = format!("`${name}`");
        assert!(pages.iter().any(|page| page.contains(&shown)), "{shown} is not in docs/operating.md, Logs");
    }
}

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
        ("query_string", Some("x=1%202&X=3&flag&x=4")),
        ("args", Some("x=1%202&X=3&flag&x=4")),
        ("is_args", Some("?")),
        ("remote_addr", Some("10.0.0.9")),
        ("remote_port", Some("1234")),
        ("server_addr", Some("10.0.0.1")),
        ("server_port", Some("9443")),
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
fn response_variables() {
    let mut probe = Probe::get("/");
    let mut x = probe.exchange();
    x.engine_mut().upstream_addr = Some("10.0.0.2:80".parse().unwrap());
    x.engine_mut().timing.upstream_us = 5_900;
    assert_eq!(text(&x, "upstream_scheme").as_deref(), Some("http"));
    x.engine_mut().forward.scheme = "https";
    respond(&mut x, 502, &[("X-Cache", "HIT")]);
    for (name, expected) in [
        ("status", Some("502")),
        ("upstream_status", Some("502")),
        ("upstream_scheme", Some("https")),
        ("upstream_addr", Some("10.0.0.2:80")),
        ("upstream_response_time", Some("0.005")),
        ("balancer_ip", Some("10.0.0.2")),
        ("balancer_port", Some("80")),
        ("sent_http_x_cache", Some("HIT")),
        ("upstream_http_x_cache", Some("HIT")),
        ("sent_http_none", None),
        ("is_args", Some("")),
        ("args", None),
    ] {
        assert_eq!(text(&x, name).as_deref(), expected, "{name}");
    }
    assert_eq!(Var::parse("balancer_port").value(&x), Some(Value::Number(80.0)));
}

#[test]
fn attempts_are_lists() {
    let mut probe = Probe::get("/");
    let mut x = probe.exchange();
    let addr = |n: u8| std::net::SocketAddr::from(([10, 0, 0, n], 80));
    x.engine_mut().upstream_addr = Some(addr(1));
    assert_eq!(text(&x, "upstream_status"), None, "not contacted yet");
    x.engine_mut().tried.push(Try { addr: addr(1), status: 502, took_us: 5_999 });
    x.engine_mut().tried.push(Try { addr: addr(2), status: 504, took_us: 1_000_000 });
    x.engine_mut().upstream_addr = Some(addr(3));
    assert_eq!(text(&x, "upstream_status").as_deref(), Some("502, 504, -"));
    respond(&mut x, 200, &[]);
    assert_eq!(text(&x, "upstream_status").as_deref(), Some("502, 504, 200"));
    assert_eq!(text(&x, "upstream_addr").as_deref(), Some("10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80"));
    assert_eq!(text(&x, "balancer_ip").as_deref(), Some("10.0.0.3"));
    x.engine_mut().timing.upstream_us = 1_008_000;
    assert_eq!(text(&x, "upstream_response_time").as_deref(), Some("0.005, 1.000, 0.002"));
    x.engine_mut().upstream_addr = Some("[::1]:80".parse().unwrap());
    assert_eq!(text(&x, "upstream_addr").as_deref(), Some("10.0.0.1:80, 10.0.0.2:80, [::1]:80"));
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

fn posted(kind: &str, body: &str, name: &str) -> Option<String> {
    let mut probe = Probe::request("POST", "/", &[("Host", "h"), ("Content-Type", kind)]);
    let mut x = probe.exchange();
    assert!(Var::parse(name).needs_body());
    assert_eq!(text(&x, name), None, "no body, no value");
    with_body(&mut x, body.as_bytes());
    let alone = text(&x, name);
    let together = reading_body(&mut x, |x| [text(x, name), text(x, name)]);
    assert_eq!(together, [alone.clone(), alone.clone()]);
    alone
}

#[test]
fn body_variables() {
    let form = "application/x-www-form-urlencoded; charset=utf-8";
    let multipart = "multipart/form-data; boundary=\"xyz\"";
    let parts = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n2\r\n--xyz\r\n\
        content-disposition: form-data; name=b; filename=\"f\"\r\nContent-Type: x/y\r\n\r\n--xy\r\n--xyz--\r\n";
    let json = r#"{"a":{"b":[1,{"c":"x"},{"c":"y"}],"n":null,"t":true,"f":1.5},"model":"m"}"#;
    for (kind, body, name, expected) in [
        (form, "a=1+2&b=%41&a=3", "post_arg_a", Some("1 2")),
        (form, "a=1&b=%41", "post_arg_b", Some("A")),
        (form, "a=1&b=%41&a=2", "post_arg.a", Some(r#"["1","2"]"#)),
        ("text/plain", "a=1", "post_arg_a", None),
        ("application/json", json, "post_arg.model", Some("m")),
        ("application/json; charset=utf-8", json, "post_arg.a.f", Some("1.5")),
        ("application/json", json, "post_arg.a.t", Some("true")),
        ("application/json", json, "post_arg.a.n", Some("null")),
        ("application/json", json, "post_arg.a.missing", None),
        ("application/json", json, "post_arg.model.x", None),
        ("application/json", json, "post_arg.a.b[*].c", Some(r#"["x","y"]"#)),
        ("application/json", json, "post_arg.a.b[1].c", Some(r#"["x"]"#)),
        ("application/json", json, "post_arg.a['f']", Some("[1.5]")),
        ("application/json", json, "post_arg.a..c", Some(r#"["x","y"]"#)),
        ("application/json", json, "post_arg.a.b[9]", None),
        ("application/json", "{", "post_arg.a", None),
        (multipart, parts, "post_arg.a", Some("1\r\n2")),
        (multipart, parts, "post_arg.b", Some("--xy")),
        (multipart, "--xyz", "post_arg.b", None),
        ("application/json", r#"{"query":"mutation M { a }"}"#, "graphql_operation", Some("mutation")),
        ("application/graphql", "mutation M { a }", "graphql_name", Some("M")),
        ("application/graphql", "{ a b }", "graphql_root_fields", Some(r#"["a","b"]"#)),
        ("application/graphql", "{ a b", "graphql_root_fields", None),
    ] {
        assert_eq!(posted(kind, body, name).as_deref(), expected, "{name} of {body}");
    }
    for (kind, body, name, expected) in [
        // Negative numbers, and null.
        ("application/json", r#"{"a":-7}"#, "post_arg.a", Some("-7")),
        ("application/json", r#"{"a":[-7,null]}"#, "post_arg.a", Some("[-7,null]")),
        ("application/json", r#"{"a":[-7,null]}"#, "post_arg.a.*", Some("[-7,null]")),
        // A form is an object of texts and lists of them.
        (form, "a=1&b", "post_arg.a.b", None),
        (form, "a=1&b&a=2&a=3", "post_arg.", Some(r#"{"a":["1","2","3"],"b":true}"#)),
        (form, "a=1&b=2", "post_arg.*", Some(r#"["1","2"]"#)),
        (multipart, parts, "post_arg.", Some(r#"{"a":"1\r\n2","b":"--xy"}"#)),
        (multipart, parts, "post_arg.['b']", Some(r#"["--xy"]"#)),
        (multipart, parts, "post_arg.a.b", None),
        // A delimiter starts a line.
        (
            multipart,
            "--xyz\r\nContent-Disposition: form-data; name=a\r\n\r\n1--xyz\r\n2\r\n--xyz--",
            "post_arg.a",
            Some("1--xyz\r\n2"),
        ),
    ] {
        assert_eq!(posted(kind, body, name).as_deref(), expected, "{name} of {body}");
    }
    assert!(["post_arg.a[0].b", "post_arg_a[", "uri", "none"].into_iter().all(is_readable));
    for path in [
        "post_arg.a[?(@.b)]",
        "post_arg.a[1:2]",
        "post_arg.a..",
        "post_arg.a[",
        "post_arg.[]",
        "post_arg.a[0]b",
    ] {
        assert!(!Var::parse(path).is_known() && !is_readable(path), "{path}");
    }
}

/// The value of a variable in a condition, for a POST with these fields and this body.
fn judged(fields: &[(&str, &str)], body: &[u8], name: &str) -> Result<Option<String>, ReadError> {
    let mut probe = Probe::request("POST", "/", fields);
    let mut x = probe.exchange();
    with_body(&mut x, body);
    let var = Var::parse(name);
    let alone = var.judge(&x).map(|value| value.map(|value| value.into_text().into_owned()));
    let together = reading_body(&mut x, |x| {
        [0, 1].map(|_| var.judge(x).map(|value| value.map(|value| value.into_text().into_owned())))
    });
    assert_eq!(together, [alone.clone(), alone.clone()], "{name}");
    alone.map(|text| text.map(|text| String::from_utf8(text).unwrap()))
}

#[test]
fn cached_lookups_equal_uncached_ones() {
    for pad in [0, 400] {
        let of = |sep: &str, more: &str| format!("n=1{sep}{}{more}", format!("pad=x{sep}").repeat(pad));
        let query = of("&", "bare&e=&x=%41+b&y=plain&x=2&%6e=3");
        let form = of("&", "bare&e=&x=%42+b&y=form&z=1");
        let cookies = [of("; ", "x=first; y=\"c d\"; e="), of("; ", "x=last%41")];
        let mut probe = Probe::request(
            "POST",
            &format!("/a?{query}"),
            &[
                ("Host", "h"),
                ("Content-Type", "application/x-www-form-urlencoded"),
                ("Cookie", &cookies[0]),
                ("Cookie", &cookies[1]),
            ],
        );
        let mut x = probe.exchange();
        with_body(&mut x, form.as_bytes());
        // More names than the cache holds.
        let names = ["n", "bare", "e", "x", "y", "z", "none", "pad"];
        let vars: Vec<Var> = ["arg_", "cookie_", "post_arg_"]
            .iter()
            .flat_map(|place| names.iter().map(move |name| Var::parse(&format!("{place}{name}"))))
            .collect();
        let read = |x: &Exchange<'_>| -> Vec<_> {
            let owned = |value: Value<'_>| value.into_owned();
            vars.iter().map(|var| (var.value(x).map(owned), var.judge(x).map(|v| v.map(owned)))).collect()
        };
        let alone = read(&x);
        let values =
            [&alone[3].0, &alone[11].0, &alone[19].0].map(|value| value.clone().unwrap().into_text());
        assert_eq!(values, [b"A b", &b"last%41"[..], b"B b"]);
        let together = reading(&mut x, |x| [read(x), read(x)]);
        assert_eq!(together, [alone.clone(), alone]);
        x.set_query(b"x=new");
        assert_eq!(text(&x, "arg_x").as_deref(), Some("new"), "changes after the conditions are visible");
    }
}

/// Long texts of a request are scanned once per name while conditions are evaluated, and short ones
/// each time.
#[test]
fn a_long_request_is_scanned_once_per_name() {
    for (pad, expected) in [(0, 6), (400, 2)] {
        let mut probe = Probe::get(&format!("/?a=1&b=2{}", "&pad=x".repeat(pad)));
        let mut x = probe.exchange();
        let [a, b] = ["arg_a", "arg_b"].map(Var::parse);
        crate::testing::SCANS.set(0);
        reading(&mut x, |x| {
            for _ in 0..3 {
                let texts = [&a, &b].map(|var| var.value(x).map(|value| value.into_text().into_owned()));
                assert_eq!(texts, [Some(b"1".to_vec()), Some(b"2".to_vec())]);
            }
        });
        assert_eq!(crate::testing::SCANS.get(), expected, "with {pad} further arguments");
    }
}

#[test]
fn unreadable_values_are_not_absent() {
    let unreadable = Err(ReadError::Undecidable(Undecidable::Unreadable));
    let found = |text: &str| Ok(Some(text.to_owned()));
    let json = [("Content-Type", "application/json")];
    let odd = [("Content-Type", "Text/Plain; x=Application/JSON")];
    let form = [("Content-Type", "Application/X-WWW-Form-Urlencoded")];
    let parts = [("Content-Type", "Multipart/Form-Data; boundary=b")];
    let graphql = [("Content-Type", "application/graphql")];
    let twice = [("Content-Type", "text/plain"), ("Content-Type", "application/json")];
    let spelled = [("Content_Type", "application/json")];
    let packed = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
    let spelled_packed = [("Content-Type", "application/json"), ("Content_Encoding", "gzip")];
    let plain = [("Content-Type", "application/json"), ("Content-Encoding", "Identity")];
    let json_16 = [("Content-Type", "application/json; charset=utf-16")];
    let form_16 = [("Content-Type", "application/x-www-form-urlencoded; charset=utf-16")];
    let graphql_16 = [("Content-Type", "application/graphql; charset=utf-16")];
    let padded = format!(r#"{{"pad":"{}","a":"x"}}"#, "p".repeat(5 << 20));
    let long = "{ a } ".repeat(1 << 18);
    let body: &[u8] = br#"{"a":"x"}"#;
    for (fields, body, name, expected) in [
        (&json[..], body, "post_arg.a", found("x")),
        (&odd, body, "post_arg.a", found("x")),
        (&plain, body, "post_arg.a", found("x")),
        (&json, padded.as_bytes(), "post_arg.a", found("x")),
        (&json, br#"{"b":1e999,"a":"x"}"#, "post_arg.a", found("x")),
        (&json, b"\xef\xbb\xbf{\"a\":\"x\"}", "post_arg.a", unreadable.clone()),
        (&json, br#"{"a":1e999}"#, "post_arg.a", unreadable.clone()),
        (&json, b"{", "post_arg.a", unreadable.clone()),
        (&json, b"{", "post_arg..a", unreadable.clone()),
        (&json, b"", "post_arg.a", Ok(None)),
        (&[], body, "post_arg.a", Ok(None)),
        (&twice, body, "post_arg.a", unreadable.clone()),
        (&spelled, body, "post_arg.a", unreadable.clone()),
        (&packed, body, "post_arg.a", unreadable.clone()),
        (&spelled_packed, body, "post_arg.a", unreadable.clone()),
        (&json_16, body, "post_arg.a", unreadable.clone()),
        (&form_16, b"a=x", "post_arg.a", unreadable.clone()),
        (&form_16, b"a=x", "post_arg_a", unreadable.clone()),
        (&json_16, br#"{"query":"{a}"}"#, "graphql_operation", unreadable.clone()),
        (&graphql_16, b"{a}", "graphql_operation", unreadable.clone()),
        (&form, b"a=x", "post_arg_a", found("x")),
        (&form, b"a=x", "post_arg.a", found("x")),
        (&form, b"a=x", "post_arg.b", Ok(None)),
        (&json, b"{", "post_arg_a", Ok(None)),
        (&parts, b"a=x", "post_arg.a", unreadable.clone()),
        (
            &parts,
            b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--b--",
            "post_arg.a",
            found("x"),
        ),
        (&json, br#"{"query":"{a}"}"#, "graphql_operation", found("query")),
        (
            &json,
            br#"{"query":"query A {a} mutation B {b}","operationName":"B"}"#,
            "graphql_operation",
            found("mutation"),
        ),
        (&json, br#"[{"query":"{a}"}]"#, "graphql_operation", unreadable.clone()),
        (&json, br#"{"query":1}"#, "graphql_operation", unreadable.clone()),
        (&json, b"{}", "graphql_operation", Ok(None)),
        (&graphql, b"AA", "graphql_operation", unreadable.clone()),
        (&graphql, b"", "graphql_operation", Ok(None)),
        (&graphql, long.as_bytes(), "graphql_operation", Err(ReadError::Undecidable(Undecidable::TooLarge))),
        (&json, b"raw", "request_body", found("raw")),
    ] {
        let short = String::from_utf8_lossy(&body[..body.len().min(60)]);
        assert_eq!(judged(fields, body, name), expected, "{name} of {short}, {fields:?}");
    }
}

#[test]
fn graphql_in_a_query_and_its_size_limit() {
    let operation = |probe: &mut Probe, body: Option<&[u8]>| {
        let mut x = probe.exchange();
        body.into_iter().for_each(|body| with_body(&mut x, body));
        let var = Var::parse("graphql_operation");
        let judged = var.judge(&x);
        judged.map(|value| value.map(|value| String::from_utf8(value.into_text().into_owned()).unwrap()))
    };
    let get = |query: &str| operation(&mut Probe::get(&format!("/?{query}")), None);
    let found = |text: &str| Ok(Some(text.to_owned()));
    let two = "query=query+A%7Ba%7Dmutation+B%7Bb%7D";
    assert_eq!(get(two), found("query"));
    assert_eq!(get(&format!("{two}&operationName=B")), found("mutation"));
    assert_eq!(get("operationName=B"), Ok(None));
    assert_eq!(get("query"), Err(ReadError::Undecidable(Undecidable::Unreadable)));
    // Other arguments may be repeated.
    assert_eq!(get(&format!("{two}&x=1&x=2&y=3")), found("query"));
    // Servers disagree about repeated documents and names.
    let unreadable = Err(ReadError::Undecidable(Undecidable::Unreadable));
    let post = |query: &str, body: &str| {
        let fields = [("Content-Type", "application/json")];
        operation(&mut Probe::request("POST", &format!("/?{query}"), &fields), Some(body.as_bytes()))
    };
    let body = r#"{"query":"query A {a} mutation B {b}"}"#;
    let named = r#"{"query":"query A {a} mutation B {b}","operationName":"B"}"#;
    assert_eq!(post("x=1&x=2", body), found("query"));
    assert_eq!(post("operationName=B", body), found("mutation"));
    assert_eq!(post("operationName=B", named), found("mutation"));
    assert_eq!(post("operationName=A", named), unreadable);
    assert_eq!(post("query=%7Ba%7D", body), unreadable);
    for names in ["operationName=A&operationName=B", "operationName=B&operationName=B"] {
        assert_eq!(get(&format!("{two}&{names}")), unreadable, "{names}");
        assert_eq!(post(names, body), unreadable, "{names}");
    }
    assert_eq!(get(&format!("{two}&query=%7Ba%7D")), unreadable);
    let put = format!("/?{two}&{two}");
    assert_eq!(operation(&mut Probe::request("PUT", &put, &[]), None), Ok(None), "not a GraphQL request");
    let limit = Probe::default().exchange().world().bounds().graphql;
    let too_large = Err(ReadError::Undecidable(Undecidable::TooLarge));
    for (length, expected) in [(limit, found("query")), (limit + 1, too_large)] {
        let document = format!("{{a}}{}", " ".repeat(length - 3));
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/graphql")]);
        assert_eq!(operation(&mut probe, Some(document.as_bytes())), expected, "{length}");
    }
}

#[test]
fn only_body_variables_need_the_body() {
    for (method, kind, name, expected) in [
        ("POST", "application/json", "post_arg.a", Err(ReadError::NeedsBody)),
        ("POST", "text/plain", "post_arg.a", Ok(None)),
        ("POST", "application/json", "post_arg_a", Ok(None)),
        ("POST", "text/plain", "graphql_name", Err(ReadError::NeedsBody)),
        ("PUT", "text/plain", "graphql_name", Ok(None)),
        ("GET", "text/plain", "graphql_name", Ok(None)),
        ("PUT", "text/plain", "request_body", Err(ReadError::NeedsBody)),
    ] {
        let mut probe = Probe::request(method, "/", &[("Content-Type", kind)]);
        let mut x = probe.exchange();
        let var = Var::parse(name);
        assert_eq!(var.judge(&x), Ok(None), "no body: {name}");
        x.engine_mut().body_state = Body::Streaming;
        assert_eq!(var.judge(&x), expected, "{method} {kind}: {name}");
        x.engine_mut().body_state = Body::TooLarge;
        let too_large = Err(ReadError::Undecidable(Undecidable::TooLarge));
        assert_eq!(var.judge(&x), if expected.is_err() { too_large } else { Ok(None) }, "{name}");
    }
}

#[test]
fn wildcard_paths_are_bounded() {
    let body = format!("[{}]", vec!["[[1,2],[3]]"; 50_000].join(","));
    assert_eq!(posted("application/json", &body, "post_arg...*..*..*"), None);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(posted("application/json", &deep, "post_arg...a"), None);
    let many = [("Content-Type", "application/json")];
    let too_large = Err(ReadError::Undecidable(Undecidable::TooLarge));
    assert_eq!(judged(&many, body.as_bytes(), "post_arg...*..*..*"), too_large);
    // A long path without a match is bounded, too; one with many matches is an error.
    let objects = |count: usize| format!("[{}]", vec![r#"{"a":1}"#; count].join(","));
    assert_eq!(judged(&many, objects(60_000).as_bytes(), "post_arg.*..z"), too_large);
    let found = judged(&many, objects(1_000).as_bytes(), "post_arg.*.a");
    assert_eq!(found, Ok(Some(format!("[{}]", vec!["1"; 1_000].join(",")))));
    // A list nested in a hundred others would be copied a hundred times.
    let nested = format!("{}{}{}", "[".repeat(100), "0,".repeat(60_000) + "0", "]".repeat(100));
    assert_eq!(judged(&many, nested.as_bytes(), "post_arg...[0]"), too_large);
}

#[test]
fn searches_of_long_bodies_are_limited() {
    let searched = |length: usize, paths: usize| {
        let body = format!("{{\"a\":1,{}\"b\":1}}", " ".repeat(length));
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        with_body(&mut x, body.as_bytes());
        let vars: Vec<Var> = (0..paths).map(|path| Var::parse(&format!("post_arg.k{path}.x"))).collect();
        super::reading_body(&mut x, |x| {
            // A cached value is not searched again.
            assert_eq!(vars[0].judge(x), vars[0].judge(x));
            vars.iter().filter(|var| var.judge(x) == Ok(None)).count()
        })
    };
    assert_eq!(searched(17 << 20, 6), 4, "the number of paths for any length");
    assert_eq!(searched(1 << 20, 80), 63, "64 MiB in total");
    assert_eq!(searched(100, 80), 80);
}

/// `Plain::read`, `read_other` and `ssl::read` together read every name: with a complete exchange,
/// every variable has a value.
#[test]
fn every_variable_can_have_a_value() {
    let mut probe = Probe::request(
        "POST",
        "/a/b?x=1",
        &[
            ("Host", "a.com:81"),
            ("Content-Type", "text/plain"),
            ("Content-Length", "2"),
            ("Authorization", "Basic YTpi"),
        ],
    );
    probe.route.service_id = "s".into();
    probe.route.service_name = "service".into();
    let addr = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
    let ends = wire::proxy_protocol::Ends { source: addr("10.0.0.8:1"), destination: addr("10.0.0.7:2") };
    probe.client = Client::new(addr("10.0.0.9:1234"), addr("10.0.0.1:9443"), true).proxied(ends);
    let certificate = crate::client::ClientCertificate {
        subject: "CN=c".into(),
        issuer: "CN=ca".into(),
        serial: "01".into(),
        fingerprint: "02".into(),
        not_before: "then".into(),
        not_after: "later".into(),
        ends: 1_700_000_000 + 3 * 86_400 + 5,
        der: vec![1],
    };
    let session = crate::client::TlsSession {
        server_name: Some("a.com".into()),
        protocol: "TLSv1.3",
        cipher: "c",
        curve: "x",
        alpn: "h2",
        certificate: Some(Box::new(certificate)),
        ..Default::default()
    };
    probe.client.session = Some(std::sync::Arc::new(session));
    let consumer = crate::consumers::Consumer {
        name: "jack".into(),
        group_id: Some("g".into()),
        custom_id: None,
        labels: Vec::new(),
        chain: None,
        slot: 1,
    };
    let identity =
        crate::consumers::Identity { consumer: consumer.into(), credential_id: None, secret: None };
    let mut x = probe.exchange();
    with_body(&mut x, b"ab");
    respond(&mut x, 200, &[]);
    x.authenticate(identity);
    let server = x.intern(b"upstream.test:80");
    let engine = x.engine_mut();
    engine.matched.uri = "/a/*";
    engine.matched.host = "*.com";
    engine.reason = "no route matches";
    engine.upstream_addr = Some(addr("10.0.0.2:80"));
    engine.forward.server = Some(server);
    engine.stream = Some(Box::new(crate::stream::Stream {
        server_name: Some("a.com".into()),
        mqtt_client_id: Some((*b"m").into()),
        connect_us: Some(21_999),
        call: Some(crate::stream::Call { took_us: 1_999, redis_line: Some(b"get a".to_vec()) }),
        ..Default::default()
    }));
    x.engine_mut().timing.total_us = 2_345_678;
    assert_eq!(text(&x, "rpc_time").as_deref(), Some("0.001"));
    assert_eq!(text(&x, "session_time").as_deref(), Some("2.345"));
    assert_eq!(text(&x, "upstream_connect_time").as_deref(), Some("0.021"));
    for (name, expected) in [
        ("proxy_protocol_addr", "10.0.0.8"),
        ("proxy_protocol_port", "1"),
        ("proxy_protocol_server_addr", "10.0.0.7"),
        ("proxy_protocol_server_port", "2"),
        ("upstream_unresolved_host", "upstream.test"),
        ("ssl_client_v_remain", "3"),
        ("uri_param__host", "*.com"),
        ("uri_param__method", "POST"),
    ] {
        assert_eq!(text(&x, name).as_deref(), Some(expected), "{name}");
    }
    let server = x.intern(b"[::1]:80");
    x.engine_mut().forward.server = Some(server);
    assert_eq!(text(&x, "upstream_unresolved_host").as_deref(), Some("[::1]"));
    for name in plain::NAMES {
        assert!(text(&x, name).is_some_and(|value| !value.is_empty()), "{name}");
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
fn responses_of_the_gateway_have_no_upstream_headers() {
    let mut probe = Probe::get("/");
    let mut x = probe.exchange();
    respond(&mut x, 403, &[("X-Cache", "HIT")]);
    x.engine_mut().source = crate::exchange::Source::Plugin;
    assert_eq!(text(&x, "sent_http_x_cache").as_deref(), Some("HIT"));
    assert_eq!(text(&x, "upstream_http_x_cache"), None);
}

#[test]
fn names_of_variables() {
    assert_eq!(nearest("upstream_adr"), Some("upstream_addr"));
    assert_eq!(nearest("nothing_like_any"), None);
    let names_server = |name: &str| Var::parse(name).names_server();
    assert!(names_server("upstream_unresolved_host") && !names_server("upstream_addr"));
}

#[test]
fn hex_has_eight_digits() {
    for value in [0, 1, 9, 10, 15, 16, 0x0123_4567, 0x89ab_cdef, 0xfedc_ba98, 0xa0b0_c0d0, u32::MAX] {
        assert_eq!(plain::hex(value), *format!("{value:08x}").as_bytes());
    }
}

#[test]
fn undecidable_conditions_have_a_status_and_a_text() {
    let all = [Undecidable::TooLarge, Undecidable::Unreadable, Undecidable::Spent];
    assert_eq!(all.map(Undecidable::status), [413, 400, 400]);
    let texts: std::collections::BTreeSet<_> = all.map(Undecidable::as_str).into_iter().collect();
    assert!(texts.len() == 3 && texts.iter().all(|text| text.len() > 20), "{texts:?}");
}

#[test]
fn request_ids_have_128_bits_in_hexadecimal() {
    let mut probe = Probe::get("/");
    let x = probe.exchange();
    let [high, low] = x.unique();
    assert_eq!(text(&x, "request_id"), Some(format!("{high:016x}{low:016x}")));
}

#[test]
fn long_names_and_texts_are_counted_by_their_length() {
    // A thousand members with long names and texts: far below the limit of a tree.
    let long = "n".repeat(1000);
    let members: Vec<_> = (0..1000).map(|at| format!("\"{long}{at}\":\"{long}\"")).collect();
    let body = format!("{{\"a\":{{{}}},\"null\":null}}", members.join(","));
    let tree = json::tree(body.as_bytes()).expect("a tree of two megabytes");
    assert_eq!(tree["a"].as_object().map(|members| members.len()), Some(1000));
    assert_eq!(tree["null"], serde_json::Value::Null);
}
