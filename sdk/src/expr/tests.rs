use serde_json::json;

use super::*;
use crate::exchange::Body;
use crate::testing::{Probe, with_body};

fn holds(expr: Json) -> bool {
    let headers = [
        ("Host", "example.com"),
        ("X-Tenant", "Acme"),
        ("X-Number", " 0x10 "),
        ("X-List", "1"),
        ("X-Ip", "::ffff:10.1.2.3"),
        ("Content-Type", "application/json"),
    ];
    let mut probe = Probe::request("GET", "/a?n=80&f=1.5&s=abc&e=&flag", &headers).from_ip("10.1.2.3");
    let mut x = probe.exchange();
    with_body(&mut x, br#"{"n":5,"s":"5","t":true,"l":["a",1,true,null],"o":{"a":1},"z":null}"#);
    Expr::compile(&expr).unwrap_or_else(|invalid| panic!("{expr}: {invalid}")).matches(&x)
}

#[test]
fn operators_follow_lua_resty_expr() {
    for (condition, expected) in [
        // Equality converts the left side only for a number on the right.
        (json!(["arg_n", "==", "80"]), true),
        (json!(["arg_n", "==", 80]), true),
        (json!(["arg_n", "==", 81]), false),
        (json!(["arg_s", "==", 80]), false),
        (json!(["arg_s", "~=", 80]), true),
        (json!(["arg_n", "~=", 80]), false),
        (json!(["arg_none", "==", 80]), false),
        (json!(["arg_none", "~=", 80]), true),
        (json!(["arg_none", "==", "x"]), false),
        (json!(["arg_none", "~=", "x"]), true),
        (json!(["arg_none", "==", null]), true),
        (json!(["arg_s", "==", null]), false),
        (json!(["arg_s", "~=", null]), true),
        (json!(["arg_e", "==", ""]), true),
        (json!(["arg_flag", "==", true]), true),
        (json!(["arg_flag", "==", "true"]), false),
        (json!(["http_x_number", "==", 16]), true),
        (json!(["arg_s", "==", ["abc"]]), false),
        (json!(["arg_s", "~=", ["abc"]]), true),
        (json!(["post_arg.n", "==", 5]), true),
        (json!(["post_arg.n", "==", "5"]), false),
        (json!(["post_arg.s", "==", 5]), true),
        (json!(["post_arg.t", "==", true]), true),
        (json!(["post_arg.z", "==", null]), false),
        // Order is for numbers.
        (json!(["arg_n", ">", 79]), true),
        (json!(["arg_n", ">", "79"]), true),
        (json!(["arg_n", ">", 80]), false),
        (json!(["arg_n", ">=", 80]), true),
        (json!(["arg_f", "<", 2]), true),
        (json!(["arg_n", "<", 80]), false),
        (json!(["arg_f", "<=", 1.5]), true),
        (json!(["arg_s", "<", "b"]), false),
        (json!(["arg_none", "<", 1]), false),
        (json!(["arg_n", "<", "many"]), false),
        (json!(["arg_n", "<", null]), false),
        // Patterns.
        (json!(["arg_s", "~~", "^[a-z]+$"]), true),
        (json!(["http_x_tenant", "~~", "^[a-z]+$"]), false),
        (json!(["http_x_tenant", "~*", "^[a-z]+$"]), true),
        (json!(["arg_none", "~~", ".*"]), false),
        (json!(["arg_none", "!", "~~", ".*"]), true),
        (json!(["arg_n", "~~", 8]), true),
        (json!(["uri", "~~", "^(?!/b)"]), true),
        // Lists.
        (json!(["arg_s", "in", ["x", "abc"]]), true),
        (json!(["arg_n", "in", [80]]), false),
        (json!(["arg_n", "in", ["80"]]), true),
        (json!(["arg_n", "IN", ["80"]]), true),
        (json!(["arg_s", "in", "abc"]), false),
        (json!(["arg_s", "in", []]), false),
        (json!(["arg_none", "in", [null]]), false),
        (json!(["post_arg.n", "in", [1, 5]]), true),
        (json!(["post_arg.l", "has", "a"]), true),
        (json!(["post_arg.l", "has", 1]), true),
        (json!(["post_arg.l", "has", "1"]), false),
        (json!(["post_arg.l", "has", true]), true),
        (json!(["post_arg.o", "has", 1]), false),
        (json!(["http_x_list", "has", "1"]), false),
        (json!(["arg_none", "has", "1"]), false),
        // Addresses.
        (json!(["remote_addr", "ipmatch", ["10.1.0.0/16", "::1"]]), true),
        (json!(["remote_addr", "ipmatch", "10.1.2.3"]), true),
        (json!(["remote_addr", "IPMATCH", "10.1.2.4"]), false),
        (json!(["remote_addr", "!", "ipmatch", ["10.1.2.4"]]), true),
        (json!(["http_x_ip", "ipmatch", "10.1.2.3"]), true),
        (json!(["arg_s", "ipmatch", "10.1.2.3"]), false),
        (json!(["arg_none", "ipmatch", "0.0.0.0/0"]), false),
        // Negation and the short form, whose value loses its capitals.
        (json!(["arg_s", "!", "==", "abc"]), false),
        (json!(["arg_s", "!", "in", ["x"]]), true),
        (json!(["arg_s", "abc"]), true),
        (json!(["arg_n", 80]), true),
        (json!(["arg_s", "ABC"]), true),
        (json!(["http_x_tenant", "Acme"]), false),
        (json!(["arg_none", "=="]), true),
    ] {
        assert_eq!(holds(json!([condition])), expected, "{condition}");
    }
}

#[test]
fn logic_nests() {
    let (t, f) = (json!(["arg_n", "==", "80"]), json!(["arg_n", "==", "81"]));
    for (expr, expected) in [
        (json!([]), true),
        (json!([t, t]), true),
        (json!([t, f]), false),
        (json!(["AND", t, f]), false),
        (json!(["OR", t, f]), true),
        (json!(["or", f, f]), false),
        (json!(["!AND", t, f]), true),
        (json!(["!AND", t, t]), false),
        (json!(["!OR", f, f]), true),
        (json!(["!OR", t, f]), false),
        (json!([t, ["OR", f, ["!AND", t, f]]]), true),
        (json!(["OR", f, [t, t]]), true),
        (json!([[[t]]]), true),
    ] {
        assert_eq!(holds(expr.clone()), expected, "{expr}");
    }
}

#[test]
fn errors_have_a_reason_and_a_pointer() {
    let deep = (0..200).fold(json!(["a", "==", "b"]), |inner, _| json!([inner]));
    for (expr, reason, pointer) in [
        (json!({}), "rule should be an array", ""),
        (json!(["arg_a", "==", "b"]), "rule should be wrapped inside brackets", ""),
        (json!([1]), "rule should be wrapped inside brackets", ""),
        (json!([[]]), "rule too short", "/0"),
        (json!(["OR", ["a", "b"]]), "rule too short", ""),
        (json!([["a", "b"], ["a"]]), "invalid expression", "/1/1"),
        (json!([["a", "b"], "a"]), "invalid expression", "/1"),
        (json!([["a", "=", "b"]]), "invalid operator '='", "/0/1"),
        (json!([["OR", ["a", "b"], ["a", "like", "b"]]]), "invalid operator 'like'", "/0/2/1"),
        (json!([["a", "x", "==", "b"]]), "bad 'not' expression", "/0/1"),
        (json!([["a", true]]), "invalid expression", "/0/1"),
        (json!([["a", null]]), "invalid expression", "/0/1"),
        (json!([["a", "ipmatch", ""]]), "invalid ip address", "/0/2"),
        (json!([["a", "ipmatch", []]]), "invalid ip address", "/0/2"),
        (json!([["a", "ipmatch", ["::1", "10.0.0.0/33"]]]), "invalid ip address: 10.0.0.0/33", "/0/2/1"),
        (json!([["a", "ipmatch", "here"]]), "invalid ip address: here", "/0/2"),
        (json!([["a", "~~", ["b"]]]), "invalid expression", "/0/2"),
        (json!([["a", "~~"]]), "invalid expression", "/0/2"),
    ] {
        let invalid = Expr::compile(&expr).unwrap_err();
        assert_eq!((invalid.reason.as_str(), invalid.pointer.as_str()), (reason, pointer), "{expr}");
    }
    let invalid = Expr::compile(&json!([["a", "~~", "("]])).unwrap_err();
    assert_eq!(invalid.pointer, "/0/2");
    assert!(Expr::compile(&deep).unwrap_err().reason.contains("nested deeper"));
}

#[test]
fn needs_body_is_set_for_body_variables() {
    for (expr, expected) in [
        (json!([["uri", "==", "/"]]), false),
        (json!([["uri", "==", "/"], ["OR", ["graphql_name", "a"], ["uri", "b"]]]), true),
    ] {
        assert_eq!(Expr::compile(&expr).unwrap().needs_body(), expected);
    }
}

#[test]
fn numbers_parse_as_in_lua() {
    for (text, expected) in [
        ("1", Some(1.0)),
        (" -1.5e2\t", Some(-150.0)),
        ("+.5", Some(0.5)),
        ("5.", Some(5.0)),
        ("0x1F", Some(31.0)),
        ("-0xa", Some(-10.0)),
        ("inf", Some(f64::INFINITY)),
        ("", None),
        ("-", None),
        ("--1", None),
        ("0x", None),
        ("1 2", None),
        ("1_000", None),
        ("abc", None),
    ] {
        assert_eq!(number(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn undecidable_conditions_neither_hold_nor_fail() {
    use Verdict::{Fails, Holds, NeedsBody};
    let spent = Verdict::Undecidable(Undecidable::Spent);
    let unreadable = Verdict::Undecidable(Undecidable::Unreadable);
    let hard = json!(["arg_long", "~~", r"^(a|a)*(?=b)\1$"]);
    let body = json!(["post_arg.a", "==", "x"]);
    let (yes, no) = (json!(["arg_n", "==", 1]), json!(["arg_n", "==", 2]));
    let target = format!("/?n=1&long={}", "a".repeat(4096));
    for (expr, streaming, broken) in [
        (json!([hard]), spent, spent),
        (json!([hard, no]), Fails, Fails),
        (json!([no, hard]), Fails, Fails),
        (json!([hard, yes]), spent, spent),
        (json!(["OR", hard, yes]), Holds, Holds),
        (json!(["OR", hard, no]), spent, spent),
        (json!(["!OR", hard, yes]), Fails, Fails),
        (json!(["!AND", hard, yes]), spent, spent),
        (json!([["arg_long", "!", "~~", r"^(a|a)*(?=b)\1$"]]), spent, spent),
        (json!([["post_arg.a", "!", "==", "x"]]), NeedsBody, unreadable),
        (json!([["post_arg.a", "~=", "x"]]), NeedsBody, unreadable),
        (json!([["post_arg.a", "==", null]]), NeedsBody, unreadable),
        (json!([body]), NeedsBody, unreadable),
        (json!([body, no]), Fails, Fails),
        (json!([hard, body]), NeedsBody, unreadable),
        (json!([body, hard]), NeedsBody, spent),
        (json!([["OR", body, yes], ["AND", yes, yes]]), Holds, Holds),
        (json!([yes, ["arg_long", "~~", "(?!b)a"]]), Holds, Holds),
    ] {
        let mut probe = Probe::request("POST", &target, &[("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        let compiled = Expr::compile(&expr).unwrap();
        assert!(compiled.may_be_undecided());
        x.engine_mut().body_state = Body::Streaming;
        assert_eq!(compiled.judge(&x), streaming, "{expr}");
        with_body(&mut x, b"{");
        assert_eq!(compiled.judge(&x), broken, "{expr}");
    }
}

#[test]
fn unreadable_values_are_found_early() {
    let mut probe = Probe::request("POST", "/?n=1", &[("Content-Type", "application/json")]);
    let mut x = probe.exchange();
    with_body(&mut x, b"{");
    let mut check_early = |expr: Json| Expr::compile(&expr).unwrap().check_early(&mut x);
    let both = json!([["arg_n", "==", 2], ["post_arg.a", "==", 1]]);
    assert!(matches!(check_early(both.clone()), Step::Refuse(Undecidable::Unreadable)));
    assert!(matches!(check_early(json!([["arg_n", "==", 2]])), Step::Next));
    assert!(matches!(check_early(json!([["arg_n", "~~", "(?=1)"]])), Step::Next));
    let expr = Expr::compile(&both).unwrap();
    assert!(matches!(expr.decide(&mut x), Ok(false)), "the argument decides");
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(expr.check_early(&mut x), Step::Body(limit) if limit == 64 << 20));
    x.engine_mut().body_state = Body::TooLarge;
    x.engine_mut().body_asked = 1 << 20;
    assert!(matches!(expr.check_early(&mut x), Step::Body(_)), "the body was requested with a smaller limit");
    x.engine_mut().body_asked = 64 << 20;
    assert!(matches!(expr.check_early(&mut x), Step::Refuse(Undecidable::TooLarge)));
    let body = Expr::compile(&json!([["post_arg.a", "==", 1]])).unwrap();
    assert!(matches!(body.decide(&mut x), Err(Step::Refuse(Undecidable::TooLarge))));
}

#[test]
fn networks_match_mapped_ipv4_addresses() {
    for (network, expected) in [
        ("::ffff:10.1.2.3", true),
        ("::ffff:10.1.0.0/112", true),
        ("::ffff:0:0/96", true),
        ("::ffff:10.2.0.0/112", false),
        ("::/0", false),
        ("10.0.0.0/8", true),
    ] {
        assert_eq!(holds(json!([["remote_addr", "ipmatch", network]])), expected, "{network}");
        assert_eq!(holds(json!([["http_x_ip", "ipmatch", [network]]])), expected, "{network}");
    }
}

/// The body is requested before anything is rejected: with it, the result may differ.
#[test]
fn reading_the_body_takes_precedence_over_rejecting() {
    let long = format!("/?x={}", "a".repeat(4096));
    let mut probe = Probe::request("POST", &long, &[("Content-Type", "application/json")]);
    let mut x = probe.exchange();
    x.engine_mut().body_state = Body::Streaming;
    let hard = json!([["post_arg.a", "==", "1"], ["arg_x", "~~", r"^(a|a)*(?=b)\1$"]]);
    assert!(matches!(Expr::compile(&hard).unwrap().check_early(&mut x), Step::Body(_)));
}

#[test]
fn errors_name_the_type_they_got() {
    for (expr, got) in [
        (json!(true), "boolean"),
        (json!(1), "number"),
        (json!("a"), "string"),
        (json!({}), "object"),
        (json!([[null, "==", 1]]), "null"),
    ] {
        let invalid = Expr::compile(&expr).unwrap_err();
        assert_eq!(invalid.got.as_deref(), Some(got), "{expr}: {invalid:?}");
    }
}

#[test]
fn lookaround_patterns_share_a_budget_per_request() {
    let target = format!("/?long={}&short=b", "a".repeat(8000));
    let mut probe = Probe::get(&target);
    let long = Expr::compile(&json!([["arg_long", "~~", "(?!a)b"]])).unwrap();
    let short = Expr::compile(&json!([["arg_short", "~~", "(?!a)b"]])).unwrap();
    let other = Expr::compile(&json!([["arg_long", "~~", "(?=a)a"]])).unwrap();
    assert!(other.matches(&probe.exchange()));
    // Each request has a new budget.
    for _ in 0..2 {
        let x = probe.exchange();
        for _ in 0..4 {
            assert_eq!(long.judge(&x), Verdict::Fails);
        }
        assert_eq!(long.judge(&x), Verdict::Undecidable(Undecidable::Spent));
        // With the budget spent, `matches` does not search either.
        assert!(!other.matches(&x));
        for _ in 0..1000 {
            assert_eq!(short.judge(&x), Verdict::Holds);
        }
    }
}
