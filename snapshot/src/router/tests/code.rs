//! Conditions that are code.

use sdk::condition::Condition;

use super::*;

/// Holds for requests with this argument; without leniency, it needs the body first.
#[derive(Debug)]
struct HasArg(&'static str, Option<Verdict>);

impl Condition for HasArg {
    fn judge(&self, x: &Exchange<'_>, lenient: bool) -> Verdict {
        match self.1 {
            Some(doubt) if !lenient && x.body_state() != Body::Whole => doubt,
            _ if x.query() == self.0.as_bytes() => Verdict::Holds,
            _ => Verdict::Fails,
        }
    }

    fn needs_body(&self) -> bool {
        self.1.is_some()
    }
}

#[test]
fn code_decides_after_all_other_conditions() {
    let has = |arg, doubt| Arc::new(HasArg(arg, doubt)) as Arc<dyn Condition>;
    let mut router = router(
        Mode::HostUri,
        [
            rule("code", &["/a"]).priority(2).code(has("x=1", None)),
            rule("both", &["/a"]).priority(1).vars(json!([["arg_y", "==", "1"]])).code(has("y=1", None)),
            rule("rest", &["/a"]),
            rule("body", &["/b"]).priority(1).code(has("x=1", Some(Verdict::NeedsBody))),
            rule("unreadable", &["/c"]).code(has("x=1", Some(Verdict::Undecidable(Undecidable::TooLarge)))),
        ],
    );
    assert!(router.needs_body());
    for (uri, found) in [
        ("/a?x=1", "code"),
        ("/a?y=1", "both"),
        ("/a?y=1&x=1", "rest"),
        ("/a", "rest"),
        ("/b?x=1", "NeedsBody"),
        ("/c?x=1", "Refused(TooLarge)"),
        ("/c", "Nothing"),
    ] {
        let mut probe = Probe::request("GET", uri, &[("Host", "a")]);
        let answer = match router.find(&mut probe.exchange()) {
            RouteLookup::Plan(plan) => plan.info.id.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(answer, found, "{uri}");
    }
    for id in ["body", "unreadable"] {
        router.remove(id);
    }
    assert!(!router.needs_body());
    router.remove("code");
    router.remove("both");
    assert_eq!((router.reading, router.reading_body), (0, 0));
}
