//! `_meta`: priorities, filters and error responses.

use super::*;

#[test]
fn meta_is_checked() {
    let catalog = catalog();
    for (meta, reason) in [
        (json!({"priorty": 1}), "additional properties forbidden, found priorty"),
        (
            json!({"disable": "yes"}),
            "property \"disable\" validation failed: wrong type: expected boolean, got string",
        ),
    ] {
        let invalid = catalog.check("key-auth", &json!({"_meta": meta}), SchemaType::Route).unwrap_err();
        assert!(
            invalid.reason.ends_with(&format!("property \"_meta\" validation failed: {reason}")),
            "{invalid}"
        );
    }
    let lua = json!({"_meta": {"pre_function": "return function() end"}});
    assert_eq!(
        catalog.check("key-auth", &lua, SchemaType::Route).unwrap_err().pointer,
        "/_meta/pre_function"
    );
}

#[test]
fn meta_moves_a_plugin_in_the_order() {
    let catalog = catalog();
    let at = |priority: i64| json!({"_meta": {"priority": priority}});
    let limit = |priority: i64| {
        let chain = chain(&catalog, &[("key-auth", at(priority)), ("request-id", json!({}))]).unwrap();
        chain.names().join(" ")
    };
    // request-id has 12015.
    for (priority, order) in [
        (12016, "key-auth request-id"),
        (12014, "request-id key-auth"),
        (1 << 40, "key-auth request-id"),
        (-(1 << 40), "request-id key-auth"),
    ] {
        assert_eq!(limit(priority), order, "{priority}");
    }
}

#[test]
fn an_error_response_takes_the_place_of_a_refusals_body() {
    let catalog = catalog();
    for (response, body, content_type) in [
        (json!("no"), "no", "text/plain; charset=utf-8"),
        (json!({"message": "no"}), "{\"message\":\"no\"}\n", "application/json"),
    ] {
        let chain = chain(&catalog, &[("key-auth", json!({"_meta": {"error_response": response}}))]).unwrap();
        let mut probe = Probe::default();
        let Step::Reply(reply) = chain.run(Phase::Rewrite, &mut 0, &mut probe.exchange()) else {
            panic!("no reply")
        };
        assert_eq!((reply.status, &reply.body[..]), (401, body.as_bytes()));
        let types: Vec<_> = reply.headers.iter().filter(|(name, _)| *name == "Content-Type").collect();
        assert_eq!(types, [&("Content-Type", content_type.as_bytes().to_vec())]);
        assert!(reply.headers.iter().any(|(name, _)| *name == "WWW-Authenticate"));
    }
}

#[test]
fn a_filter_decides_once_a_request() {
    let catalog = catalog();
    let filter = json!({"_meta": {"filter": [["arg_a", "==", "1"]]}});
    let chain = chain(&catalog, &[("key-auth", filter)]).unwrap();
    for (target, runs) in [("/?a=1", true), ("/?a=2", false)] {
        let mut probe = Probe::get(target);
        let mut x = probe.exchange();
        let step = chain.run(Phase::Rewrite, &mut 0, &mut x);
        assert_eq!(matches!(step, Step::Reply(_)), runs, "{target}");
        // Later changes of the request do not matter any more.
        x.engine_mut().messages.request.query_span = x.intern(if runs { b"a=2" } else { b"a=1" });
        assert_eq!(matches!(chain.run(Phase::Rewrite, &mut 0, &mut x), Step::Reply(_)), runs);
    }
    let wrong = json!({"_meta": {"filter": [["arg_a", "near", "1"]]}});
    let invalid = catalog.check("key-auth", &wrong, SchemaType::Route).unwrap_err();
    assert!(invalid.reason.starts_with("failed to validate the 'vars' expression: "), "{invalid}");
    assert!(invalid.pointer.starts_with("/_meta/filter"), "{invalid:?}");
}

#[test]
fn a_filter_that_cannot_be_judged_refuses_the_request() {
    use sdk::Undecidable;
    let catalog = catalog();
    let filter = json!({"_meta": {"filter": [["post_arg.a", "==", "1"], ["arg_x", "==", "1"]]}});
    let guard = chain(&catalog, &[("key-auth", filter)]).unwrap();
    let run = |target: &str, body: Option<&[u8]>| {
        let mut probe = Probe::request("POST", target, &[("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        match body {
            Some(body) => sdk::testing::with_body(&mut x, body),
            None => x.engine_mut().body_state = sdk::exchange::Body::TooLarge,
        }
        x.engine_mut().body_asked = 64 << 20;
        guard.run(Phase::Rewrite, &mut 0, &mut x)
    };
    assert!(matches!(run("/?x=1", Some(b"{")), Step::Refuse(Undecidable::Unreadable)));
    assert!(matches!(run("/?x=1", None), Step::Refuse(Undecidable::TooLarge)));
    assert!(matches!(run("/?x=2", Some(b"{")), Step::Next), "it does not matter");
    assert!(matches!(run("/?x=1", Some(b"")), Step::Next), "no body, no value");
    assert!(matches!(run("/?x=1", Some(br#"{"a":"1"}"#)), Step::Reply(_)));
}

#[test]
fn a_filter_of_a_response_stage_is_readable_before_the_response() {
    let catalog = catalog();
    let meta = json!({"filter": [["post_arg.a", "==", "1"], ["status", "==", "200"]]});
    let rewrite = json!({"headers": {"X-A": "1"}, "_meta": meta});
    let chain = chain(&catalog, &[("response-rewrite", rewrite)]).unwrap();
    assert!(chain.phases().has(Phase::Access));
    for (body, expected) in [(&br#"{"a":"1"}"#[..], Some(&b"1"[..])), (br#"{"a":"2"}"#, None)] {
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        x.engine_mut().body_state = sdk::exchange::Body::Streaming;
        assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Body(_)));
        sdk::testing::with_body(&mut x, body);
        assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Next));
        sdk::testing::respond(&mut x, 200, &[]);
        assert!(matches!(chain.header_filter(&mut 0, &mut x), Step::Next));
        assert_eq!(x.response_header("X-A"), expected);
    }
    let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
    let mut x = probe.exchange();
    sdk::testing::with_body(&mut x, b"{");
    assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Refuse(_)));
}

#[test]
fn a_filter_on_the_body_asks_for_the_body() {
    let catalog = catalog();
    let filter = json!({"_meta": {"filter": [["post_arg_a", "==", "1"]]}});
    let chain = chain(&catalog, &[("key-auth", filter)]).unwrap();
    let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/x-www-form-urlencoded")]);
    let mut x = probe.exchange();
    x.engine_mut().body_state = sdk::exchange::Body::Streaming;
    let mut cursor = 0;
    assert!(matches!(chain.run(Phase::Rewrite, &mut cursor, &mut x), Step::Body(_)));
    sdk::testing::with_body(&mut x, b"a=1");
    assert!(matches!(chain.run(Phase::Rewrite, &mut cursor, &mut x), Step::Reply(_)));
}
