use sdk::pattern::Searches;
use sdk::testing::{FixedNames, Probe, now};

use super::*;

const MODEL: &str = "
    [request_definition]
    r = sub, obj, act
    [policy_definition]
    p = sub, obj, act
    [role_definition]
    g = _, _
    [policy_effect]
    e = some(where (p.eft == allow))
    [matchers]
    m = (g(r.sub, p.sub) || keyMatch(r.sub, p.sub)) && keyMatch(r.obj, p.obj) && keyMatch(r.act, p.act)";

const POLICY: &str = "
    # everybody
    p, *, /, GET
    p, admin, *, *
    g, alice, staff
    g, staff, admin";

impl Enforcer {
    /// The decision within a whole budget.
    fn decides(&self, values: [&[u8]; 3]) -> bool {
        self.accepts(values, &Searches::default()).unwrap()
    }
}

fn enforcer(matcher: &str, policy: &str) -> Result<Enforcer, Invalid> {
    let head = MODEL.split("m = ").next().unwrap();
    Enforcer::compile(&format!("{head}m = {matcher}"), policy)
}

/// Whether a matcher accepts with the line `p, a, B, c`.
fn accepts(matcher: &str, [subject, object, action]: [&str; 3]) -> bool {
    let policy = "p, a, /x/:id/*, GET\ng, bob, a";
    let enforcer = enforcer(matcher, policy).unwrap_or_else(|invalid| panic!("{matcher}: {invalid}"));
    enforcer.decides([subject.as_bytes(), object.as_bytes(), action.as_bytes()])
}

#[test]
fn roles_and_patterns_decide() {
    let enforcer = Enforcer::compile(MODEL, POLICY).unwrap();
    let accepts = |subject: &str, object: &str, action: &str| {
        enforcer.decides([subject.as_bytes(), object.as_bytes(), action.as_bytes()])
    };
    assert!(accepts("anonymous", "/", "GET") && !accepts("anonymous", "/", "POST"));
    assert!(!accepts("anonymous", "/a", "GET"));
    assert!(
        accepts("admin", "/a", "DELETE") && accepts("alice", "/a", "DELETE") && accepts("staff", "/b", "PUT")
    );
    assert!(!accepts("bob", "/a", "GET"));
}

#[test]
fn matchers_are_expressions() {
    let request = ["a", "/x/1/y", "GET"];
    for (matcher, expected) in [
        ("r.sub == p.sub", true),
        ("r.sub != p.sub", false),
        ("!(r.sub == p.sub) || r.act == 'GET'", true),
        ("keyMatch2(r.obj, p.obj)", true),
        ("keyMatch(r.obj, p.obj)", false),
        ("keyMatch(r.obj, '/x/*')", true),
        ("keyMatch3(r.obj, '/x/{id}/y')", true),
        ("keyMatch3(r.obj, '/x/{id}')", false),
        ("regexMatch(r.obj, '^/x/\\d+/')", true),
        ("globMatch(r.obj, '/x/*')", false),
        ("globMatch(r.obj, '/x/*/*')", true),
        ("keyMatch2(r.obj, '/x/1:a')", false),
        ("keyMatch2(r.obj, '/:a/:b.c/y')", true),
        ("keyMatch3(r.obj, '/{a}/{b}/y')", true),
        ("keyMatch3(r.obj, '/{a}{b}/1/y')", true),
        ("globMatch(r.obj, '/x/?/y')", true),
        ("r.act in ('PUT', \"GET\")", true),
        ("r.act in ('PUT', 'POST')", false),
        ("r.sub < 'b' && r.sub >= 'a'", true),
        ("r.sub > 'a'", false),
        ("true && p.act == 'GET'", true),
        ("false || p.act == 'PUT'", false),
        ("keyMatch(p.act, 'G*')", true),
        ("regexMatch('GET', 'G.T')", true),
        ("g(r.sub, p.sub)", true),
    ] {
        assert_eq!(accepts(matcher, request), expected, "{matcher}");
    }
    assert!(accepts("g(r.sub, p.sub)", ["bob", "", ""]));
    assert!(!accepts("g(r.sub, p.sub)", ["eve", "", ""]));
    assert!(accepts("ipMatch(r.sub, '10.0.0.0/8')", ["10.1.2.3", "", ""]));
    assert!(!accepts("ipMatch(r.sub, '10.0.0.0/8')", ["11.1.2.3", "", ""]));
    assert!(!accepts("ipMatch(r.sub, '10.0.0.1')", ["no address", "", ""]));
    assert!(!accepts("keyMatch2(r.obj, '/a.b/:c')", ["", "/axb/1", ""]), "characters stand for themselves");
}

#[test]
fn effects_are_those_of_casbin() {
    let decide = |effect: &str, policy: &str| {
        let model = MODEL
            .replace("some(where (p.eft == allow))", effect)
            .replace("p = sub, obj, act", "p = sub, obj, act, eft");
        Enforcer::compile(&model, policy).unwrap().decides([b"a", b"/", b"GET"])
    };
    let (allow, deny) = ("p, a, /, GET, allow\n", "p, a, /, GET, deny\n");
    let both = [allow, deny].concat();
    let reversed = [deny, allow].concat();
    for (effect, policy, expected) in [
        ("some(where (p.eft == allow))", &both[..], true),
        ("some(where (p.eft == allow))", deny, false),
        ("some(where (p.eft == allow))", "", false),
        ("!some(where (p.eft == deny))", &both, false),
        ("!some(where (p.eft == deny))", "", true),
        ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", &both, false),
        ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", allow, true),
        ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", "", false),
        ("priority(p.eft) || deny", &both, true),
        ("priority(p.eft) || deny", &reversed, false),
        ("priority(p.eft) || deny", "p, a, /, GET\n", true),
    ] {
        assert_eq!(decide(effect, policy), expected, "{effect} with {policy}");
    }
}

#[test]
fn roles_have_domains_and_no_endless_circles() {
    let model = MODEL.replace("g = _, _", "g = _, _, _").replace("g(r.sub, p.sub)", "g(r.sub, p.sub, r.obj)");
    let enforcer =
        Enforcer::compile(&model, "p, admin, /d, GET\ng, bob, x, /d\ng, x, bob, /d\ng, x, admin, /d")
            .unwrap();
    assert!(enforcer.decides([b"bob", b"/d", b"GET"]));
    assert!(!enforcer.decides([b"bob", b"/e", b"GET"]));
    let chain: String = (0..12).map(|n| format!("g, r{n}, r{}\n", n + 1)).collect();
    let enforcer = Enforcer::compile(MODEL, &format!("p, r12, *, *\n{chain}")).unwrap();
    assert!(enforcer.decides([b"r2", b"/", b"GET"]) && !enforcer.decides([b"r1", b"/", b"GET"]));
}

#[test]
fn mistakes_are_named() {
    let refused = |model: &str, policy: &str| Enforcer::compile(model, policy).unwrap_err();
    assert_eq!(refused("", "").reason, "section [request_definition] is missing");
    assert_eq!(refused("[other]", "").pointer, "/model");
    assert_eq!(refused("r = a", "").reason, "a definition stands in no section");
    assert!(
        refused(&MODEL.replace("sub, obj, act\n    [policy", "sub, obj\n    [policy"), "")
            .reason
            .contains("three")
    );
    assert_eq!(refused(&MODEL.replace("some(", "most("), "").reason, "unknown policy_effect");
    for matcher in [
        "",
        "r.sub",
        "r.none == p.sub",
        "other(r.sub, p.sub)",
        "keyMatch(r.sub)",
        "(r.sub == p.sub",
        "r.sub == p.sub extra",
        "g(r.sub)",
        "r.sub == 'x",
        "regexMatch(r.sub, '(')",
        "ipMatch(r.sub, 'x')",
    ] {
        assert_eq!(enforcer(matcher, "").unwrap_err().pointer, "/model", "{matcher}");
    }
    let deep = format!("{}true{}", "(".repeat(100), ")".repeat(100));
    assert!(enforcer(&deep, "").unwrap_err().reason.contains("nested"));
    for (policy, line) in [("p, a", 1), ("p, a, b, c, d, e", 1), ("\nq, a, b, c", 2), ("g, a", 1)] {
        let invalid = refused(MODEL, policy);
        assert!(
            invalid.pointer == "/policy" && invalid.reason.starts_with(&format!("line {line}: ")),
            "{invalid}"
        );
    }
    for (policy, why) in [
        ("p, bob, /admin, GET, deny", "fields of policy_definition"),
        ("p, \"a\"b, /, GET", "text follows a closing quote"),
        ("p, \"a, /, GET", "a quote does not end"),
    ] {
        assert!(refused(MODEL, policy).reason.ends_with(why), "{policy}");
    }
    let with_effect = MODEL.replace("p = sub, obj, act", "p = sub, obj, act, eft");
    for effect in ["Deny", "denied", ""] {
        let invalid = refused(&with_effect, &format!("p, a, /, GET, {effect}"));
        assert_eq!(invalid.reason, "line 1: its effect must be allow or deny");
    }
    for pattern in [
        "globMatch(r.obj, '/**')",
        "globMatch(r.obj, '/[ab]')",
        "keyMatch2(r.obj, '/a+')",
        "keyMatch2(r.obj, '*')",
        "keyMatch3(r.obj, '/{a')",
    ] {
        assert!(enforcer(pattern, "").unwrap_err().reason.contains("not supported"), "{pattern}");
    }
    let regex = enforcer("regexMatch(r.obj, p.obj)", "p, a, (, GET").unwrap_err();
    assert_eq!(regex.pointer, "/policy");
}

fn stage(config: Value, metadata: Option<&Value>) -> Result<AuthzCasbin, Invalid> {
    Probe::default().stage_with(config, metadata, &FixedNames::default())
}

fn status(plugin: &AuthzCasbin, headers: &[(&str, &str)]) -> (u16, String) {
    let mut probe = Probe::request("GET", "/a", headers);
    let mut x = probe.exchange();
    let step = match plugin.rewrite(&mut x) {
        Step::Wait => now(plugin.wait(Phase::Rewrite, &mut x)),
        step => step,
    };
    match step {
        Step::Next => (200, String::new()),
        Step::Reply(reply) => (reply.status, String::from_utf8(reply.body.to_vec()).unwrap()),
        step => panic!("{step:?}"),
    }
}

#[test]
fn the_subject_is_a_header() {
    let plugin = stage(json!({"username": "user", "model": MODEL, "policy": POLICY}), None).unwrap();
    assert_eq!(status(&plugin, &[("User", "alice")]).0, 200);
    assert_eq!(status(&plugin, &[]), (403, "{\"message\":\"Access Denied\"}\n".to_owned()));
    assert_eq!(status(&plugin, &[("user", "alice"), ("user", "bob")]).0, 403);
    let long: String = (0..2 * ON_WORKER).map(|n| format!("p, u{n}, *, *\n")).collect();
    let plugin = stage(json!({"username": "user", "model": MODEL, "policy": long}), None).unwrap();
    assert_eq!((status(&plugin, &[("user", "u999")]).0, status(&plugin, &[("user", "u1000")]).0), (200, 403));
}

#[test]
fn metadata_and_files_have_models_too() {
    let metadata = json!({"model": MODEL, "policy": POLICY});
    let plugin = stage(json!({"username": "user"}), Some(&metadata)).unwrap();
    assert_eq!(status(&plugin, &[("user", "alice")]).0, 200);
    let plugin = stage(json!({"username": "user"}), None).unwrap();
    assert_eq!(status(&plugin, &[("user", "alice")]).0, 503);
    for wrong in [
        json!({"model": MODEL, "policy": POLICY}),
        json!({"username": "user", "model": MODEL}),
        json!({"username": "user", "model_path": "/m"}),
    ] {
        let invalid = stage(wrong, None).err().unwrap();
        assert_eq!(invalid.reason, "value should match only one schema, but matches none");
    }
    assert_eq!(
        stage(json!({"username": "a b", "model": "", "policy": ""}), None).err().unwrap().pointer,
        "/username"
    );
    let name = |kind: &str| {
        std::env::temp_dir()
            .join(format!("sluice-casbin-{}-{kind}", std::process::id()))
            .display()
            .to_string()
    };
    let (model, policy) = (name("model"), name("policy"));
    std::fs::write(&model, MODEL).unwrap();
    let files =
        || stage(json!({"username": "user", "model_path": model, "policy_path": policy}), None).unwrap();
    assert_eq!(status(&files(), &[("user", "alice")]).0, 503, "there is no policy yet");
    std::fs::write(&policy, POLICY).unwrap();
    assert_eq!(status(&files(), &[("user", "alice")]).0, 200);
    assert_eq!(status(&files(), &[("user", "bob")]).0, 403);
    let _ = (std::fs::remove_file(model), std::fs::remove_file(policy));
}

#[test]
fn an_undecided_search_refuses_the_request() {
    let matcher = "regexMatch(r.sub, '(a|a)*(?=b)\\1$')";
    let subject = "a".repeat(4096);
    for matcher in [matcher.to_owned(), format!("!{matcher}")] {
        let enforcer = enforcer(&matcher, "p, a, b, c").unwrap();
        assert!(
            enforcer.accepts([subject.as_bytes(), b"/", b"GET"], &Searches::default()).is_err(),
            "{matcher}"
        );
    }
    let late = enforcer("regexMatch(p.sub, r.sub)", "p, a, b, c").unwrap_err();
    assert_eq!(late.reason, "matcher: the pattern of regexMatch is a value of the request");
    let head = MODEL.split("m = ").next().unwrap();
    let config =
        json!({"username": "user", "model": format!("{head}m = !{matcher}"), "policy": "p, a, b, c"});
    let plugin = stage(config, None).unwrap();
    let mut probe = Probe::request("GET", "/a", &[("user", &subject)]);
    assert!(matches!(plugin.rewrite(&mut probe.exchange()), Step::Refuse(Undecidable::Spent)));
}

#[test]
fn many_links_between_roles_are_followed_on_a_background_thread() {
    let users: String = (0..2 * ON_WORKER).map(|n| format!("g, u{n}, r{}\n", n % 10)).collect();
    assert!(Enforcer::compile(MODEL, &format!("p, r1, *, *\n{users}")).unwrap().work() < 10);
    let chain: String = (0..2 * ON_WORKER).map(|n| format!("g, r{n}, r{}\n", n + 1)).collect();
    assert!(Enforcer::compile(MODEL, &format!("p, r1, *, *\n{chain}")).unwrap().work() > ON_WORKER);
    // Each line asks for the roles of a name of its own.
    let turned = MODEL.replace("g(r.sub, p.sub)", "g(p.sub, r.sub)");
    let lines: String = (0..100).map(|n| format!("p, r{n}, *, *\ng, r{n}, r{}\n", n + 1)).collect();
    assert_eq!(Enforcer::compile(&turned, &lines).unwrap().work(), 100 + 100 * 100);
    assert_eq!(Enforcer::compile(MODEL, &lines).unwrap().work(), 100 + 100);
}
