//! Variables of the request body: forms, JSON, multipart and GraphQL, and their bounds.

use super::*;
use crate::exchange::Body;

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
