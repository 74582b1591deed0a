//! Tests of cors.

use sdk::testing::{FixedNames, Probe, respond};

use super::*;

/// The headers that matter of the answer to a GET with these headers.
fn answer_with(config: Value, metadata: Option<&Value>, headers: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut probe = Probe::request("GET", "/", headers);
    let stage: Cors = probe.stage_with(config, metadata, &FixedNames::default()).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.rewrite(&mut x), Step::Next));
    // Another stage may change the header on its way to the upstream.
    x.remove_header("Origin");
    respond(&mut x, 200, &[("Access-Control-Allow-Origin", "upstream")]);
    stage.header_filter(&mut x);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    x.response().fields.iter().map(|(name, value, _)| (text(name), text(value))).collect()
}

fn answer(config: Value, headers: &[(&str, &str)]) -> Vec<(String, String)> {
    answer_with(config, None, headers)
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn value<'a>(answer: &'a [(String, String)], name: &str) -> Option<&'a str> {
    answer.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

const ALLOW: &str = "Access-Control-Allow-Origin";

#[test]
fn by_default_everyone_may_call() {
    for headers in [&[][..], &[("Origin", "http://a.com")]] {
        let expected = [
            (ALLOW, "*"),
            ("Access-Control-Allow-Methods", "*"),
            ("Access-Control-Max-Age", "5"),
            ("Access-Control-Allow-Headers", "*"),
        ];
        assert_eq!(answer(json!({}), headers), pairs(&expected));
    }
}

#[test]
fn listed_origins_are_echoed_and_others_get_nothing() {
    let config = json!({
        "allow_origins": "http://a.com,https://b.com:8080",
        "allow_methods": "GET,POST",
        "allow_headers": "X-One",
        "expose_headers": "X-Two",
        "max_age": 50,
        "allow_credential": true,
    });
    let expected = [
        (ALLOW, "https://b.com:8080"),
        ("Vary", "Origin"),
        ("Access-Control-Allow-Methods", "GET,POST"),
        ("Access-Control-Max-Age", "50"),
        ("Access-Control-Expose-Headers", "X-Two"),
        ("Access-Control-Allow-Headers", "X-One"),
        ("Access-Control-Allow-Credentials", "true"),
    ];
    assert_eq!(answer(config.clone(), &[("Origin", "https://b.com:8080")]), pairs(&expected));
    // The upstream's own word stands where this has none.
    let own = pairs(&[(ALLOW, "upstream"), ("Vary", "Origin")]);
    assert_eq!(answer(config.clone(), &[("Origin", "http://c.com")]), own);
    assert_eq!(answer(config, &[]), own);
    let one = json!({"allow_origins": "http://a.com"});
    assert_eq!(value(&answer(one.clone(), &[("Origin", "http://a.com")]), ALLOW), Some("http://a.com"));
    assert_eq!(value(&answer(one, &[("Origin", "http://a.com.evil.org")]), ALLOW), Some("upstream"));
    let null = json!({"allow_origins": "null"});
    assert_eq!(value(&answer(null, &[("Origin", "null")]), ALLOW), Some("null"));
}

#[test]
fn two_stars_allow_by_force() {
    let config = json!({
        "allow_origins": "**", "allow_methods": "**", "allow_headers": "**", "expose_headers": "*",
    });
    let headers = [("Origin", "http://any.com"), ("Access-Control-Request-Headers", "X-A, X-B")];
    let expected = [
        (ALLOW, "http://any.com"),
        ("Vary", "Origin"),
        ("Access-Control-Allow-Methods", "GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE"),
        ("Access-Control-Max-Age", "5"),
        ("Access-Control-Expose-Headers", "*"),
        ("Access-Control-Allow-Headers", "X-A, X-B"),
    ];
    assert_eq!(answer(config.clone(), &headers), pairs(&expected));
    let without = answer(config, &[]);
    assert_eq!(value(&without, ALLOW), Some("*"));
    assert_eq!(value(&without, "Access-Control-Allow-Headers"), None);
}

#[test]
fn patterns_stand_in_the_place_of_the_list() {
    let config = json!({"allow_origins_by_regex": [r".*\.test\.com$", "^http://other"]});
    for (origin, allowed) in [
        ("http://a.test.com", "http://a.test.com"),
        ("http://other.org", "http://other.org"),
        ("http://a.test.com.evil.org", "upstream"),
    ] {
        assert_eq!(value(&answer(config.clone(), &[("Origin", origin)]), ALLOW), Some(allowed), "{origin}");
    }
    assert_eq!(value(&answer(config, &[]), ALLOW), Some("upstream"));
}

#[test]
fn metadata_names_origins() {
    let metadata = json!({"allow_origins": {"shops": "https://a.com,https://b.com", "one": "https://c.com"}});
    let by = |config: Value, origin: &str| {
        let answer = answer_with(config, Some(&metadata), &[("Origin", origin)]);
        value(&answer, ALLOW).unwrap().to_owned()
    };
    let config = json!({"allow_origins_by_metadata": ["shops", "one", "none"]});
    for (origin, allowed) in [
        ("https://b.com", "https://b.com"),
        ("https://c.com", "https://c.com"),
        ("https://d.com", "upstream"),
    ] {
        assert_eq!(by(config.clone(), origin), allowed);
    }
    // With a list of its own, both count.
    let both = json!({"allow_origins_by_metadata": ["one"], "allow_origins": "https://d.com"});
    assert_eq!(by(both.clone(), "https://d.com"), "https://d.com");
    assert_eq!(by(both.clone(), "https://c.com"), "https://c.com");
    assert_eq!(by(both, "https://b.com"), "upstream");
}

#[test]
fn metadata_lets_in_nobody_who_is_from_nowhere() {
    let metadata = json!({"allow_origins": {"all": "*", "forced": "**", "one": "https://c.com"}});
    for name in ["all", "forced", "one"] {
        for own in ["*", "**", "https://d.com"] {
            let config = json!({"allow_origins_by_metadata": [name], "allow_origins": own});
            let answer = answer_with(config, Some(&metadata), &[]);
            assert_eq!(value(&answer, ALLOW), Some("upstream"), "{name}, {own}");
        }
    }
    let forced = json!({"allow_origins_by_metadata": ["forced"]});
    let answer = answer_with(forced, Some(&metadata), &[("Origin", "http://a.com")]);
    assert_eq!(value(&answer, ALLOW), Some("http://a.com"));
}

#[test]
fn timing_is_shown_to_allowed_origins() {
    let timing = |config: Value, headers: &[(&str, &str)]| {
        value(&answer(config, headers), "Timing-Allow-Origin").map(str::to_owned)
    };
    let origin = [("Origin", "http://a.com")];
    assert_eq!(timing(json!({}), &origin), None);
    assert_eq!(timing(json!({"timing_allow_origins": "*"}), &origin).as_deref(), Some("*"));
    assert_eq!(timing(json!({"timing_allow_origins": "**"}), &origin).as_deref(), Some("http://a.com"));
    let list = json!({"timing_allow_origins": "http://b.com,http://a.com"});
    assert_eq!(timing(list.clone(), &origin).as_deref(), Some("http://a.com"));
    assert_eq!(timing(list, &[("Origin", "http://c.com")]), None);
    let regex = json!({"timing_allow_origins_by_regex": ["^http://a"], "timing_allow_origins": "*"});
    assert_eq!(timing(regex.clone(), &origin).as_deref(), Some("http://a.com"));
    assert_eq!(timing(regex, &[("Origin", "http://c.com")]), None);
}

#[test]
fn preflights_are_answered_here() {
    let mut probe = Probe::request("OPTIONS", "/", &[("Origin", "http://a.com")]);
    let stage: Cors = probe.stage(json!({})).unwrap();
    let Step::Reply(reply) = stage.rewrite(&mut probe.exchange()) else { panic!("no answer") };
    assert_eq!((reply.status, reply.body.len(), reply.headers.len()), (200, 0, 0));
}

#[test]
fn settings_are_checked() {
    let probe = Probe::default();
    let star = "you can not set '*' for other option when 'allow_credential' is true";
    for (config, reason) in [
        (json!({"allow_credential": true}), star),
        (
            json!({"allow_credential": true, "allow_origins": "**", "allow_methods": "GET", "allow_headers": "**",
                "expose_headers": "*"}),
            star,
        ),
        (
            json!({"allow_origins": "a.com"}),
            "property \"allow_origins\" validation failed: failed to match pattern \
             \"^(\\\\*|\\\\*\\\\*|null|\\\\w+://[^,]+(,\\\\w+://[^,]+)*)$\" with \"a.com\"",
        ),
        (
            json!({"allow_origins_by_regex": ["a", "a"]}),
            "property \"allow_origins_by_regex\" validation failed: \
             expected unique items but items 1 and 2 are equal",
        ),
    ] {
        assert_eq!(probe.stage::<Cors>(config.clone()).err().unwrap().reason, reason, "{config}");
    }
    let broken = probe.stage::<Cors>(json!({"allow_origins_by_regex": ["a", "[b"]})).err().unwrap();
    assert_eq!(broken.pointer, "/allow_origins_by_regex/1");
    let forced = json!({"allow_credential": true, "allow_origins": "**", "allow_methods": "**", "allow_headers": "**"});
    assert!(probe.stage::<Cors>(forced).is_ok());
}

#[test]
fn an_origin_whose_searches_come_to_no_end_is_not_let_in() {
    // Four of the first cost what the searches of one exchange may cost.
    let list = ["(?=.*b)c", "(?=.*b)d", "(?=.*b)e", "(?=.*b)f", "(?=a)a"];
    for (length, allowed) in [(100, true), (8 << 10, false)] {
        let origin = "a".repeat(length);
        let mut probe = Probe::request("GET", "/", &[("Host", "a.com"), ("Origin", &origin)]);
        let stage: Cors = probe
            .stage(json!({"allow_origins_by_regex": list, "timing_allow_origins_by_regex": ["(?=a)a"]}))
            .unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        respond(&mut x, 200, &[]);
        stage.header_filter(&mut x);
        for header in ["Access-Control-Allow-Origin", "Timing-Allow-Origin"] {
            assert_eq!(x.response_header(header).is_some(), allowed, "{header}, {length}");
        }
    }
}

/// The status with which a request is answered at once, if it is, and the headers of its answer.
fn standard(method: &str, headers: &[(&str, &str)]) -> (Option<u16>, Vec<(String, String)>) {
    let config = json!({
        "allow_origins": "http://a.com", "allow_methods": "GET,PUT", "allow_headers": "X-One,X-Two",
        "expose_headers": "X-Three", "max_age": -1,
        "preflight_headers_only": true, "reject_other_origins": true,
    });
    let mut probe = Probe::request(method, "/", headers);
    let stage: Cors = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    let status = match stage.rewrite(&mut x) {
        Step::Reply(reply) => Some(reply.status),
        _ => None,
    };
    respond(&mut x, status.unwrap_or(200), &[]);
    stage.header_filter(&mut x);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (status, x.response().fields.iter().map(|(name, value, _)| (text(name), text(value))).collect())
}

#[test]
fn headers_of_preflights_alone() {
    const METHOD: (&str, &str) = ("Access-Control-Request-Method", "PUT");
    const ORIGIN: (&str, &str) = ("Origin", "http://a.com");
    let allowed =
        pairs(&[(ALLOW, "http://a.com"), ("Vary", "Origin"), ("Access-Control-Expose-Headers", "X-Three")]);
    assert_eq!(standard("GET", &[ORIGIN]).1.len(), allowed.len());
    assert!(standard("GET", &[ORIGIN]).1.iter().all(|pair| allowed.contains(pair)));
    assert_eq!(
        standard("OPTIONS", &[ORIGIN, METHOD]),
        (
            Some(200),
            pairs(&[
                (ALLOW, "http://a.com"),
                ("Access-Control-Allow-Methods", "GET,PUT"),
                ("Access-Control-Expose-Headers", "X-Three"),
                ("Access-Control-Allow-Headers", "X-One,X-Two"),
            ])
        )
    );
    // Not a preflight, so it is for the upstream.
    assert_eq!(standard("OPTIONS", &[]).0, None);
}

#[test]
fn other_sites_are_rejected() {
    const METHOD: &str = "Access-Control-Request-Method";
    const HEADERS: &str = "Access-Control-Request-Headers";
    let status = |method, headers: &[(&str, &str)]| standard(method, headers).0;
    for (method, headers, expected) in [
        ("GET", &[("Origin", "http://a.com")][..], None),
        ("GET", &[("Origin", "http://b.com")], Some(403)),
        ("GET", &[("Origin", "http://me.com"), ("Host", "me.com")], None),
        ("GET", &[("Origin", "https://me.com"), ("Host", "me.com")], Some(403)),
        ("POST", &[("Origin", "http://a.com")], Some(403)),
        ("POST", &[], None),
        ("OPTIONS", &[("Origin", "http://a.com"), (METHOD, "POST")], Some(403)),
        ("OPTIONS", &[("Origin", "http://b.com"), (METHOD, "PUT")], Some(403)),
        ("OPTIONS", &[("Origin", "http://a.com"), (METHOD, "PUT"), (HEADERS, "x-one, x-9")], Some(200)),
        ("OPTIONS", &[("Origin", "http://a.com"), (METHOD, "PUT"), (HEADERS, "x-9")], Some(403)),
    ] {
        assert_eq!(status(method, headers), expected, "{method} {headers:?}");
    }
    assert_eq!(standard("GET", &[("Origin", "http://b.com")]).1, []);
}
