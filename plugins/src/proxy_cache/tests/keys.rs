//! Which requests share a stored answer, and which have their own.

use super::*;

#[test]
fn vary_keeps_answers_apart() {
    let site = Site::new(json!({}));
    let vary = [("Vary", "X-Lang, Accept")];
    let ask = |lang: &str, body: &str| site.ask("GET", "/", &[("x-lang", lang)], origin(&vary, &[body]));
    assert_eq!(ask("de", "eins").cache(), "MISS");
    assert_eq!(ask("fr", "un").cache(), "MISS");
    assert_eq!(ask("de", "?").body, "eins");
    assert_eq!(ask("fr", "?").body, "un");
    assert_eq!(site.get("/", origin(&vary, &["none"])).cache(), "MISS");
    assert_eq!(ask("", "empty").cache(), "MISS", "an empty field is not an absent one");
    // It varies on something else now: all answers from before end.
    assert_eq!(site.ask("GET", "/", &[("x-lang", "it")], origin(&[], &["uno"])).cache(), "MISS");
    assert_eq!(ask("de", "?").body, "uno");
    assert_eq!(site.ask("PURGE", "/", &[], origin(&[], &[])).status, 200);
    assert_eq!(site.ask("PURGE", "/", &[], origin(&[], &[])).status, 404);
    assert_eq!(ask("de", "zwei").cache(), "MISS");
}

#[test]
fn clients_do_not_see_each_other_s_answers() {
    let ask = |site: &Site, who: Option<&str>, token: &str, body: &str| {
        let mut probe = site.probe("GET", "/", &[("Authorization", token)][..usize::from(!token.is_empty())]);
        if let Some(who) = who {
            probe = probe.consumer::<crate::key_auth::KeyAuth>(who, json!({"key": who}));
        }
        let before = |x: &mut Exchange<'_>| {
            if let Some(identity) = who.and_then(|who| x.consumers().find("key-auth", who.as_bytes())) {
                x.authenticate(identity.clone());
            }
        };
        site.run(probe, before, origin(&[], &[body])).body
    };
    // A key that names the consumer still keeps credentials apart: one consumer may have several.
    let named = Site::new(json!({"cache_key": ["$consumer_name", "$uri"]}));
    assert_eq!(ask(&named, Some("jack"), "Bearer 1", "first's"), "first's");
    assert_eq!(ask(&named, Some("jack"), "Bearer 2", "second's"), "second's");
    assert_eq!(ask(&named, Some("jack"), "", "neither's"), "neither's");
    assert_eq!(ask(&named, Some("jack"), "Bearer 1", "?"), "first's");
    let site = Site::new(json!({}));
    assert_eq!(ask(&site, Some("jack"), "", "jack's"), "jack's");
    assert_eq!(ask(&site, Some("jill"), "", "jill's"), "jill's");
    assert_eq!(ask(&site, Some("jack"), "", "?"), "jack's");
    assert_eq!(ask(&site, None, "Bearer 1", "first's"), "first's");
    assert_eq!(ask(&site, None, "Bearer 2", "second's"), "second's");
    assert_eq!(ask(&site, None, "", "anyone's"), "anyone's");
    assert_eq!(ask(&site, None, "Bearer 1", "?"), "first's");
    for config in [json!({"consumer_isolation": false}), json!({"cache_key": ["$uri", "$consumer_group_id"]})]
    {
        let site = Site::new(config);
        assert_eq!(ask(&site, Some("jack"), "", "shared"), "shared");
        assert_eq!(ask(&site, Some("jill"), "", "?"), "shared");
    }
}

/// Asks with the path as it would be sent, beside the decoded one.
fn spelled(site: &Site, target: &str, sent: &str, host: &str, answer: &str) -> String {
    let mut probe = Probe::request("GET", target, &[("Host", host)]);
    probe.services.extensions = sdk::build::Extensions::default().with(site.caches.clone());
    probe.world.now_ms.set(site.now);
    let before = |x: &mut Exchange<'_>| x.engine_mut().forward.uri = Some(x.intern(sent.as_bytes()));
    site.run(probe, before, origin(&[], &[answer])).body
}

#[test]
fn requests_that_differ_for_the_upstream_have_their_own_keys() {
    for key in [json!(["$host", "$request_uri"]), json!(["$uri", "$args", "$http_host"])] {
        let site = Site::new(json!({ "cache_key": key }));
        let ask = |target: &str, sent: &str, host: &str| {
            let own = format!("{sent} {host}");
            let first = spelled(&site, target, sent, host, &own);
            assert_eq!(first, own, "{key}: it got another's answer");
            assert_eq!(spelled(&site, target, sent, host, "?"), own, "{key}");
        };
        // The decoded path of the first reads as the second's path and query.
        ask("/page?id=1", "/page%3Fid=1", "a.example");
        ask("/page?id=1", "/page?id=1", "a.example");
        ask("/page", "/page", "a.example");
        ask("/page?", "/page?", "a.example");
        ask("/page?id=1", "/page?id=1", "a.example:81");
        ask("/page?id=1", "/page?id=1", "A.example");
        // A stage's own path and query.
        ask("/page?id=1", "/other?id=1", "a.example");
        ask("/page?id=1", "/page?id=2", "a.example");
    }
    // A key without the query still goes without it.
    let site = Site::new(json!({"cache_key": ["$uri"]}));
    assert_eq!(spelled(&site, "/page", "/page?a=1", "a", "one"), "one");
    assert_eq!(spelled(&site, "/page", "/page?a=2", "b", "?"), "one");
    assert_eq!(spelled(&site, "/page", "/pagE?a=2", "b", "two"), "two");
}

#[test]
fn keys_that_name_the_same_share_an_answer() {
    let mut site = Site::new(json!({"cache_key": ["$host", "$uri"]}));
    assert_eq!(site.get("/page", origin(&[], &["one"])).cache(), "MISS");
    site.config["cache_key"] = json!(["$host", "$request_uri"]);
    assert_eq!(site.get("/page", origin(&[], &["two"])).cache(), "HIT");
    assert_eq!(site.get("/page?a=1", origin(&[], &["two"])).cache(), "MISS");
}

#[test]
fn the_host_a_stage_sets_is_part_of_the_key() {
    let site = Site::new(json!({}));
    let ask = |host: Option<&str>, answer: &str| {
        let before =
            |x: &mut Exchange<'_>| x.engine_mut().forward.host = host.map(|host| x.intern(host.as_bytes()));
        site.run(site.probe("GET", "/", &[]), before, origin(&[], &[answer])).body
    };
    assert_eq!(ask(None, "none"), "none");
    assert_eq!(ask(Some("one"), "one"), "one");
    assert_eq!(ask(Some("two"), "two"), "two");
    assert_eq!(ask(Some("one"), "?"), "one");
    assert_eq!(ask(None, "?"), "none");
}

#[test]
fn parts_of_a_key_do_not_run_together() {
    let site = Site::new(json!({"cache_key": ["$arg_a", "--", "$arg_b"]}));
    site.get("/?a=x--&b=y", origin(&[], &["one"]));
    assert_eq!(site.get("/?a=x&b=--y", origin(&[], &["two"])).body, "two");
    assert_eq!(site.get("/other?b=y&a=x--", origin(&[], &["?"])).body, "one");
}

#[test]
fn a_key_may_look_into_the_body() {
    let site = Site::new(json!({"cache_method": ["POST"], "cache_key": ["$uri", "$request_body"]}));
    let post = |body: &'static [u8], answer: &str| {
        site.run(site.probe("POST", "/", &[]), |x| sdk::testing::with_body(x, body), origin(&[], &[answer]))
            .body
    };
    assert_eq!(
        (post(b"1", "one"), post(b"2", "two"), post(b"1", "?")),
        ("one".into(), "two".into(), "one".into())
    );
    let mut probe = site.probe("POST", "/", &[]);
    let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let mut x = probe.exchange();
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(stage.access(&mut x), Step::Body(KEY_BODY)));
    x.engine_mut().body_state = Body::TooLarge;
    assert!(matches!(stage.access(&mut x), Step::Next));
}
