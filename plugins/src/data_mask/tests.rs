use sdk::testing::{Probe, now, with_body};
use serde_json::json;

use super::*;

/// Query, headers, rewritten URI and body, as logs show them.
fn logged(request: Value, target: &str, headers: &[(&str, &str)], body: &[u8]) -> (String, String, String) {
    let mut probe = Probe::request("POST", target, headers);
    let plugin: DataMask = probe.stage(json!({"request": request, "max_body_size": 100_000})).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, body);
    x.engine_mut().body_asked = 1;
    match plugin.before_proxy(&mut x) {
        Step::Wait => assert!(matches!(now(plugin.wait(Phase::BeforeProxy, &mut x)), Step::Next)),
        Step::Next => {}
        step => panic!("{step:?}"),
    }
    assert_eq!(x.body(), body, "until the log phase the request is what it was");
    plugin.log(&mut x);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let fields = x.request().fields.iter().map(|(name, value, _)| format!("{}={} ", text(name), text(value)));
    (text(x.request().target()), fields.collect(), text(x.body_prefix()))
}

fn query(action: Value, target: &str) -> String {
    let mut rule = json!({"type": "query", "name": "a"});
    rule.as_object_mut().unwrap().extend(action.as_object().unwrap().clone());
    logged(json!([rule]), target, &[], b"").0
}

fn body(rules: Value, text: &str) -> String {
    logged(rules, "/", &[], text.as_bytes()).2
}

#[test]
fn arguments_are_masked() {
    let replace = || json!({"action": "replace", "value": "*** &"});
    assert_eq!(query(replace(), "/x?b=%31&a=1&c"), "/x?b=%31&a=***%20%26&c");
    assert_eq!(query(replace(), "/x?a=1&a=2&a"), "/x?a=***%20%26", "one is left");
    assert_eq!(query(replace(), "/x?%61=1"), "/x?a=***%20%26", "a coded name is the same name");
    assert_eq!(query(replace(), "/x?b=1"), "/x?b=1");
    assert_eq!(query(replace(), "/x"), "/x");
    let remove = || json!({"action": "remove"});
    assert_eq!(query(remove(), "/x?a=1&b=2&a"), "/x?b=2");
    assert_eq!(query(remove(), "/x?a=1"), "/x");
    let regex = || json!({"action": "regex", "regex": "(\\d+)-\\d+-(\\d+)", "value": "$1-**-$2"});
    assert_eq!(query(regex(), "/x?a=1-2-3&a=4-5-6&a&a=no"), "/x?a=1-**-3&a=4-**-6&a&a=no");
}

#[test]
fn headers_are_masked() {
    let headers = [("Host", "h"), ("Token", "abc"), ("Card", "1-2"), ("Gone", "1"), ("Odd", "1")];
    let rules = json!([
        {"type": "header", "name": "token", "action": "replace", "value": "***"},
        {"type": "header", "name": "card", "action": "regex", "regex": "^\\d", "value": "*"},
        {"type": "header", "name": "gone", "action": "remove"},
        {"type": "header", "name": "none", "action": "replace", "value": "1"},
        {"type": "header", "name": "odd", "action": "replace", "value": "a\nb"},
    ]);
    assert_eq!(
        logged(rules, "/", &headers, b"").1.replace("Content-Length=0 ", ""),
        "Host=h Token=*** Card=*-2 "
    );
}

#[test]
fn masks_of_headers_do_not_change_the_kind_of_a_body() {
    let rules = |header: &str| {
        json!([
            {"type": "header", "name": header, "action": "remove"},
            {"type": "body", "body_format": "urlencoded", "name": "a", "action": "replace", "value": "*"},
        ])
    };
    for header in [("Content-Type", "multipart/form-data; boundary=x"), ("Content-Encoding", "gzip")] {
        let (_, _, body) = logged(rules(header.0), "/", &[header], b"b=secret");
        assert_eq!(body, "", "{header:?}");
    }
}

#[test]
fn all_values_of_a_header_are_masked() {
    let rules = json!([
        {"type": "header", "name": "cookie", "action": "regex", "regex": "key=\\w+", "value": "key=*"},
        {"type": "header", "name": "gone", "action": "remove"},
    ]);
    let headers = [("Cookie", "a=1"), ("Cookie", "key=secret"), ("Gone", "1"), ("Gone", "2")];
    let fields = logged(rules, "/", &headers, b"").1;
    assert_eq!(fields.replace("Content-Length=0 ", "").to_ascii_lowercase(), "cookie=a=1 cookie=key=* ");
}

#[test]
fn the_query_that_the_client_sent_is_masked() {
    let mut probe = Probe::get("/x?key=secret&a=1");
    let rule = json!([{"type": "query", "name": "key", "action": "remove"}]);
    let plugin: DataMask = probe.stage(json!({"request": rule})).unwrap();
    let mut x = probe.exchange();
    // As plugins do that hide credentials.
    x.set_query(b"a=1");
    plugin.log(&mut x);
    assert_eq!((x.request().target(), x.query()), (&b"/x?a=1"[..], &b"a=1"[..]));
}

#[test]
fn masks_of_a_global_rule_and_of_a_route_apply_both() {
    let long = "x".repeat(50_000);
    let text = format!("{{\"a\":\"{long}\",\"password\":1,\"email\":1}}");
    for text in [&text, "{\"password\":1,\"email\":1}"] {
        let mut probe = Probe::request("POST", "/", &[]);
        let stage = |name: &str| -> DataMask {
            probe.stage(json!({"request": [{"type": "body", "body_format": "json", "name": name, "action": "remove"}]})).unwrap()
        };
        let plugins = [stage("$.password"), stage("$.email")];
        let mut x = probe.exchange();
        with_body(&mut x, text.as_bytes());
        x.engine_mut().body_asked = 1;
        for plugin in &plugins {
            if let Step::Wait = plugin.before_proxy(&mut x) {
                now(plugin.wait(Phase::BeforeProxy, &mut x));
            }
        }
        plugins.iter().for_each(|plugin| plugin.log(&mut x));
        let logged = String::from_utf8_lossy(x.body_prefix()).into_owned();
        assert!(logged.starts_with('{') && !logged.contains("password") && !logged.contains("email"));
    }
}

#[test]
fn json_is_masked() {
    let rules = json!([
        {"type": "body", "body_format": "json", "name": "$.password", "action": "remove"},
        {"type": "body", "body_format": "json", "name": "$.users[*].token", "action": "replace", "value": "*"},
        {"type": "body", "body_format": "json", "name": "$..card", "action": "regex", "regex": "\\d+$", "value": "#"},
    ]);
    assert_eq!(
        body(rules.clone(), r#"{"password": "p", "users": [{"token": 1, "card": "12-34"}, {"card": 5}]}"#),
        r##"{"users":[{"token":"*","card":"12-#"},{"card":5}]}"##
    );
    assert_eq!(body(rules.clone(), r#"{ "other": 1 }"#), r#"{"other":1}"#);
    assert_eq!(body(rules.clone(), r#"{"card": "1234", "card": null}"#), r#"{"card":null}"#);
    for withheld in ["{\"password\": \"p\"", "password=p"] {
        assert_eq!(body(rules.clone(), withheld), "");
    }
    let long = "x".repeat(50_000);
    assert_eq!(
        body(rules.clone(), &format!("{{\"a\":\"{long}\",\"password\":1}}")),
        format!("{{\"a\":\"{long}\"}}")
    );
    assert_eq!(body(rules.clone(), &format!("{{ \"a\":\"{long}\"}}")), format!("{{\"a\":\"{long}\"}}"));
    assert_eq!(body(rules, &format!("{{\"a\":\"{long}{long}{long}\"}}")), "", "longer than max_body_size");
}

#[test]
fn forms_are_masked() {
    let rules = || {
        json!([
            {"type": "body", "body_format": "urlencoded", "name": "password", "action": "remove"},
            {"type": "body", "body_format": "urlencoded", "name": "token", "action": "replace", "value": "*****"},
        ])
    };
    assert_eq!(body(rules(), "password=p&token=t&b=%20"), "token=*****&b=%20");
    let many: String = (1..=150).map(|n| format!("arg{n}={n}&")).collect();
    let masked = body(rules(), &format!("token=1&{many}"));
    assert!(masked.ends_with("arg99=99"), "further arguments are left out: {masked}");
    let first = "a=1&".repeat(100);
    assert_eq!(
        body(rules(), &format!("{first}password=p")),
        first.trim_end_matches('&'),
        "of which none is masked"
    );
    let sent = |headers: &[(&str, &str)], text: &str| logged(rules(), "/", headers, text.as_bytes()).2;
    let form = ("Content-Type", "application/x-www-form-urlencoded; charset=utf-8");
    assert_eq!(sent(&[form], "{password=p&b=1"), "{password=p&b=1");
    assert_eq!(sent(&[form], "password=p&b=1"), "b=1");
    for headers in [
        &[("Content-Type", "application/json")][..],
        &[("Content-Type", "multipart/form-data")],
        &[form, ("Content-Encoding", "gzip")],
        &[form, form],
    ] {
        assert_eq!(sent(headers, "password=p"), "", "{headers:?}");
    }
    assert_eq!(body(rules(), "[\"password=p\"]"), "");
    let mut both = rules();
    both.as_array_mut()
        .unwrap()
        .push(json!({"type": "body", "body_format": "json", "name": "token", "action": "remove"}));
    assert_eq!(body(both.clone(), "token=t"), "token=*****");
    assert_eq!(body(both.clone(), "{\"token\":1}"), "{}");
    assert_eq!(body(both, " {\"token\":1"), "");
}

#[test]
fn a_part_of_a_body_is_not_logged() {
    let mut probe = Probe::request("POST", "/", &[]);
    let rule = json!([{"type": "body", "body_format": "json", "name": "a", "action": "remove"}]);
    let plugin: DataMask = probe.stage(json!({"request": rule})).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, b"{\"a\":");
    x.engine_mut().body_state = Body::TooLarge;
    plugin.log(&mut x);
    assert_eq!((x.body_prefix(), x.body_state()), (&b""[..], Body::TooLarge));
    // No plugin wants the body, so it is not buffered.
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(plugin.before_proxy(&mut x), Step::Next));
    x.engine_mut().body_asked = 1;
    assert!(matches!(plugin.before_proxy(&mut x), Step::Body(1_048_576)));
}

#[test]
fn an_undecided_search_shows_nothing() {
    let regex = json!({"action": "regex", "regex": "^(a|aa)+\\1$", "value": "*"});
    assert_eq!(query(regex, &format!("/x?a={}b", "a".repeat(60))), "/x");
}

#[test]
fn the_query_of_a_rewritten_uri_is_masked() {
    let mut probe = Probe::get("/x?a=1");
    let rule = json!([{"type": "query", "name": "a", "action": "replace", "value": "*"}]);
    let plugin: DataMask = probe.stage(json!({"request": rule})).unwrap();
    let mut x = probe.exchange();
    x.set_upstream_uri(b"/y?b=2&a=1");
    plugin.log(&mut x);
    assert_eq!((x.rewritten_uri(), x.query()), (Some(&b"/y?b=2&a=*"[..]), &b"a=*"[..]));
}

#[test]
fn mistakes_are_named() {
    let build = |rule: Value| Probe::default().stage::<DataMask>(json!({"request": [rule]})).map(drop);
    for (rule, pointer) in [
        (json!({"type": "header", "name": "a b", "action": "remove"}), "/request/0/name"),
        (
            json!({"type": "query", "name": "a", "action": "regex", "regex": "(", "value": ""}),
            "/request/0/regex",
        ),
        (json!({"type": "body", "body_format": "json", "name": "$", "action": "remove"}), "/request/0/name"),
        (
            json!({"type": "body", "body_format": "json", "name": "$[?", "action": "remove"}),
            "/request/0/name",
        ),
    ] {
        assert_eq!(build(rule.clone()).unwrap_err().pointer, pointer, "{rule}");
    }
    for rule in [
        json!({"type": "body", "name": "a", "action": "remove"}),
        json!({"type": "query", "name": "a", "action": "replace"}),
        json!({"type": "query", "name": "a", "action": "regex", "value": ""}),
    ] {
        assert!(build(rule).is_err());
    }
}
