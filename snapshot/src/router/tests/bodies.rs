//! Rules whose conditions look into the request's body.

use sdk::Undecidable;
use sdk::exchange::Body;
use sdk::testing::{Probe, with_body};
use serde_json::{Value, json};

use super::super::{Mode, RouteLookup, Router};
use super::{router, rule};

/// The result of a search: an id, or the word for another result.
fn found(router: &Router, request: (&str, &str), kind: &str, state: Body, body: &[u8]) -> String {
    let mut probe = Probe::request(request.0, request.1, &[("Host", "h"), ("Content-Type", kind)]);
    let mut x = probe.exchange();
    with_body(&mut x, body);
    x.engine_mut().body_state = state;
    match router.find(&mut x) {
        RouteLookup::Plan(plan) => plan.info.id.to_string(),
        RouteLookup::Nothing => "nothing".to_owned(),
        RouteLookup::NeedsBody => "needs body".to_owned(),
        RouteLookup::Refused(why) => format!("{why:?}"),
    }
}

fn model(name: &str) -> Value {
    json!([["post_arg.model", "==", name]])
}

#[test]
fn the_body_is_requested_only_if_a_rule_depends_on_it() {
    use wire::Method::{Post, Put};
    let router = router(
        Mode::HostUri,
        [
            rule("first", &["/a"]).priority(9).methods(&[Post]).vars(json!([["arg_x", "==", "1"]])),
            rule("body", &["/a"]).priority(8).methods(&[Post]).vars(model("m")),
            rule("both", &["/a"])
                .priority(7)
                .methods(&[Put])
                .vars(json!([["post_arg.model", "==", "m"], ["arg_x", "==", "2"],])),
            rule("last", &["/a"]),
            rule("other", &["/b"]),
            rule("under", &["/c/*"]).vars(model("m")),
            rule("near", &["/c/d"]),
        ],
    );
    let json = "application/json";
    for (request, kind, expected) in [
        (("POST", "/a?x=1"), json, "first"),
        (("POST", "/a"), json, "needs body"),
        (("POST", "/a"), "text/plain", "last"),
        (("PUT", "/a?x=2"), json, "needs body"),
        (("PUT", "/a?x=3"), json, "last"),
        (("PATCH", "/a"), json, "last"),
        (("POST", "/b"), json, "other"),
        (("POST", "/none"), json, "nothing"),
        (("POST", "/c/e"), json, "needs body"),
        (("POST", "/c/d"), json, "near"),
    ] {
        assert_eq!(found(&router, request, kind, Body::Streaming, b""), expected, "{request:?} {kind}");
        let without = if expected == "needs body" && request.1.starts_with("/a") { "last" } else { expected };
        let without = if request.1 == "/c/e" { "nothing" } else { without };
        assert_eq!(found(&router, request, kind, Body::None, b""), without, "{request:?} {kind}");
    }
    for (request, body, expected) in [
        (("POST", "/a"), r#"{"model":"m"}"#, "body"),
        (("POST", "/a"), r#"{"model":"n"}"#, "last"),
        (("PUT", "/a?x=2"), r#"{"model":"m"}"#, "both"),
        (("POST", "/c/e"), r#"{"model":"m"}"#, "under"),
        (("POST", "/c/e"), r#"{"model":"n"}"#, "nothing"),
    ] {
        assert_eq!(found(&router, request, json, Body::Whole, body.as_bytes()), expected, "{request:?}");
    }
}

#[test]
fn an_undecidable_rule_does_not_fall_through() {
    let guard = rule("guard", &["/a"]).priority(1).vars(model("m"));
    let guarded = router(Mode::HostUri, [guard.clone(), rule("open", &["/a"])]);
    let catch_all = router(Mode::HostUri, [guard.clone(), rule("open", &["/*"])]);
    let not = rule("not", &["/a"]).vars(json!([["post_arg.model", "~=", "m"]]));
    let alone = router(Mode::HostUri, [guard.clone()]);
    let negated = router(Mode::HostUri, [not]);
    let before = router(Mode::HostUri, [guard, rule("open", &["/a"]).priority(2)]);
    let (json, unreadable) = ("application/json", format!("{:?}", Undecidable::Unreadable));
    for (router, expected) in [
        (&guarded, &*unreadable),
        (&catch_all, &unreadable),
        (&negated, &unreadable),
        // No rule would match even without the condition.
        (&alone, "nothing"),
        // The rule that needs the body is never reached.
        (&before, "open"),
    ] {
        assert_eq!(found(router, ("POST", "/a"), json, Body::Whole, b"{"), expected);
        let too_large = if expected == unreadable { "TooLarge" } else { expected };
        assert_eq!(found(router, ("POST", "/a"), json, Body::TooLarge, b""), too_large);
    }
    assert_eq!(
        found(&guarded, ("POST", "/a"), json, Body::Whole, b""),
        "open",
        "an empty body counts as absent"
    );
}

#[test]
fn an_exhausted_pattern_search_does_not_fall_through() {
    let hard = json!([["arg_x", "~~", r"^(a|a)*(?=b)\1$"]]);
    let router = router(Mode::HostUri, [rule("hard", &["/a"]).priority(1).vars(hard), rule("open", &["/a"])]);
    let long = format!("/a?x={}", "a".repeat(4096));
    assert_eq!(found(&router, ("GET", &long), "", Body::None, b""), "Spent");
    assert_eq!(found(&router, ("GET", "/a?x=c"), "", Body::None, b""), "open");
}
