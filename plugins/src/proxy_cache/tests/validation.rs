//! Stored responses that are validated, used stale, or dropped (`cache_control: true`).

use super::*;

const TAGGED: [(&str, &str); 3] = [("Cache-Control", "max-age=10"), ("ETag", "\"v1\""), ("X-Kept", "old")];

fn site(config: Value) -> Site {
    let mut config = config;
    config["cache_control"] = json!(true);
    Site::new(config)
}

/// A site with a response to GET / that has been stale for five seconds.
fn stale_site(config: Value, headers: &[(&str, &str)]) -> Site {
    let mut site = site(config);
    site.get("/", origin(headers, &["0123456789"]));
    site.now += 15_000;
    site
}

fn status_of(status: u16, headers: &'static [(&'static str, &'static str)]) -> Origin<'static> {
    Origin { status, framing: Framing::None, ..origin(headers, &[]) }
}

/// The request fields that the upstream gets.
fn forwarded(site: &Site, method: &str, headers: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut probe = site.probe(method, "/", headers);
    let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let fields = x.request().fields.iter().map(|(name, value, _)| (text(name), text(value)));
    fields.filter(|(name, _)| name.starts_with("If-") || name == "Range").collect()
}

#[test]
fn a_stale_response_is_validated_with_what_it_has() {
    let pairs = |list: &[(&str, &str)]| -> Vec<_> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let modified = "Tue, 14 Nov 2023 20:00:00 GMT";
    let both = [TAGGED[0], TAGGED[1], ("Last-Modified", modified)];
    let site = stale_site(json!({}), &both);
    let sent = pairs(&[("If-None-Match", "\"v1\""), ("If-Modified-Since", modified)]);
    assert_eq!(forwarded(&site, "GET", &[]), sent);
    assert_eq!(forwarded(&site, "HEAD", &[]), sent);
    let own = [("If-None-Match", "\"mine\""), ("Range", "bytes=0-1"), ("If-Range", "\"mine\"")];
    assert_eq!(forwarded(&site, "GET", &own), sent, "the cache needs the whole response");
    let precondition = [("If-Match", "\"mine\"")];
    assert_eq!(forwarded(&site, "GET", &precondition), pairs(&precondition), "only the origin can judge it");
    let without = stale_site(json!({}), &[("Cache-Control", "max-age=10, stale-if-error=60")]);
    assert_eq!(forwarded(&without, "GET", &own[..1]), pairs(&own[..1]));
}

#[test]
fn a_confirmed_response_is_fresh_again() {
    let mut site = stale_site(json!({}), &TAGGED);
    let confirm: &[_] = &[("Cache-Control", "max-age=20"), ("X-Kept", "new"), ("Content-Length", "3")];
    let got = site.get("/", status_of(304, confirm));
    assert_eq!((got.status, got.cache(), &*got.body), (200, "REVALIDATED", "0123456789"));
    assert_eq!(
        (got.header("X-Kept"), got.header("ETag"), got.header("Age")),
        (Some("new"), Some("\"v1\""), Some("0"))
    );
    assert_eq!(got.header("Content-Length"), None);
    site.now += 15_000;
    let got = site.get("/", origin(&[], &["other"]));
    assert_eq!((got.cache(), got.header("Age"), got.header("X-Kept")), ("HIT", Some("15"), Some("new")));
}

#[test]
fn the_client_s_own_conditions_are_judged_on_the_confirmed_response() {
    let ask = |headers: &[(&str, &str)]| {
        let site = stale_site(json!({}), &TAGGED);
        let got = site.ask("GET", "/", headers, status_of(304, &[]));
        (got.status, got.body)
    };
    assert_eq!(ask(&[("If-None-Match", "\"v1\"")]), (304, String::new()));
    assert_eq!(ask(&[("If-None-Match", "\"v0\"")]), (200, "0123456789".into()));
    assert_eq!(ask(&[("Range", "bytes=2-3")]), (206, "23".into()));
    assert_eq!(ask(&[("Range", "bytes=2-3"), ("If-Range", "\"v0\"")]).0, 200);
    // Ten thousand tags are read once.
    let many = (0..10_000).map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(",");
    assert_eq!(ask(&[("If-None-Match", &many)]).0, 200);
    assert_eq!(ask(&[("If-None-Match", &format!("{many},W/\"v1\""))]).0, 304);
}

#[test]
fn another_response_replaces_or_ends_the_stored_one() {
    for (status, headers, after) in [
        (200, &[("Cache-Control", "max-age=9")][..], Some("new")),
        (200, &[("Cache-Control", "no-store")], None),
        (200, &[("Cache-Control", "private")], None),
        (200, &[("Cache-Control", "max-age=9"), ("Vary", "*")], None),
        (404, &[("Cache-Control", "no-store")], None),
        (410, &[], None),
        // These are about this request, not about the resource.
        (401, &[], Some("REVALIDATED")),
        (429, &[], Some("REVALIDATED")),
        (500, &[], Some("REVALIDATED")),
    ] {
        let site = stale_site(json!({}), &TAGGED);
        let got = site.get("/", Origin { status, ..origin(headers, &["new"]) });
        assert_eq!((got.status, &*got.body), (status, "new"), "{status} {headers:?}");
        let got = site.get("/", status_of(304, &[]));
        let seen = match got.status {
            304 => None,
            _ if got.cache() == "HIT" => Some("new"),
            _ => Some("REVALIDATED"),
        };
        assert_eq!(seen, after, "{status} {headers:?}");
    }
}

#[test]
fn a_fresh_response_outlives_one_that_is_not_stored() {
    for (tag, after) in [(&[("Cache-Control", "max-age=9")][..], "HIT"), (&TAGGED, "MISS")] {
        let site = site(json!({}));
        site.get("/", origin(tag, &["old"]));
        let got = site.ask("GET", "/", &[("Cache-Control", "min-fresh=99")], origin(&[], &["new"]));
        assert_eq!((got.cache(), &*got.body), ("STALE", "new"));
        // With a tag the two were compared.
        assert_eq!(site.get("/", origin(&[], &["new"])).cache(), after);
    }
}

#[test]
fn a_304_that_contradicts_itself_confirms_nothing() {
    for headers in [
        &[("ETag", "\"v2\"")][..],
        &[("Cache-Control", "no-store")],
        &[("Cache-Control", "max-age=60, private")],
        &[("Vary", "*")],
    ] {
        let site = stale_site(json!({}), &TAGGED);
        let got = site.get("/", Origin { status: 304, framing: Framing::None, ..origin(headers, &[]) });
        assert_eq!((got.status, &*got.body), (200, "0123456789"), "{headers:?}");
        assert_eq!(site.caches.zone("m").unwrap().used(), 0, "{headers:?}");
    }
    // One that was not asked for goes on to the client.
    let site = stale_site(json!({}), &TAGGED);
    let got = site.ask("GET", "/new", &[("If-None-Match", "\"v1\"")], status_of(304, &[]));
    assert_eq!((got.status, got.cache()), (304, "MISS"));
    assert_eq!(site.ask("GET", "/new", &[], origin(&[], &["x"])).cache(), "MISS");
}

#[test]
fn no_cache_responses_are_validated_at_each_use() {
    let site = site(json!({}));
    let headers = [("Cache-Control", "no-cache, max-age=100"), ("ETag", "\"v1\"")];
    site.get("/", origin(&headers, &["body"]));
    for _ in 0..2 {
        let got = site.get("/", status_of(304, &[]));
        assert_eq!((got.cache(), &*got.body), ("REVALIDATED", "body"));
    }
    // A client's own no-cache validates as well.
    let site = stale_site(json!({}), &TAGGED);
    let got = site.ask("GET", "/", &[("Cache-Control", "no-cache")], status_of(304, &[]));
    assert_eq!((got.status, got.cache(), &*got.body), (200, "REVALIDATED", "0123456789"));
}

#[test]
fn a_stale_response_stands_in_for_errors_if_allowed() {
    let fails = |site: &Site, status: u16, source: Source| {
        let probe = site.probe("GET", "/", &[]);
        let failed = Origin { status, ..origin(&[], &["failed"]) };
        let got = site.run_from(probe, |_| {}, failed, source);
        (got.status, got.cache().to_owned())
    };
    let stale = (200, "STALE".to_owned());
    let window = "max-age=10, stale-if-error=6";
    for (config, control, status, expected) in [
        (json!({}), window, 503, &stale),
        (json!({}), window, 502, &stale),
        (json!({}), window, 501, &(501, "EXPIRED".to_owned())),
        (json!({}), window, 404, &(404, "EXPIRED".to_owned())),
        (json!({}), "max-age=10, stale-if-error=5", 503, &(503, "EXPIRED".to_owned())),
        (json!({}), "max-age=10", 503, &(503, "EXPIRED".to_owned())),
        (json!({"stale_if_error": 60}), "max-age=10", 503, &stale),
        (json!({"stale_if_error": 60}), "max-age=10, stale-if-error=0", 503, &(503, "EXPIRED".to_owned())),
        (json!({"stale_if_error": 60}), "max-age=10, must-revalidate", 503, &(503, "EXPIRED".to_owned())),
        (json!({"stale_if_error": 60}), "s-maxage=10", 503, &(503, "EXPIRED".to_owned())),
    ] {
        let site = stale_site(config, &[("Cache-Control", control), ("ETag", "\"v1\"")]);
        assert_eq!(&fails(&site, status, Source::Upstream), expected, "{control} {status}");
    }
    // The gateway's own answer, when there was none; but not that of another plugin.
    let site = stale_site(json!({}), &[("Cache-Control", window)]);
    assert_eq!(fails(&site, 502, Source::Gateway), stale);
    assert_eq!(fails(&site, 503, Source::Plugin).0, 503);
    // Nor one whose body broke off before any of it was sent.
    let mut probe = site.probe("GET", "/", &[]);
    let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    respond(&mut x, 200, &[("Cache-Control", "max-age=10")]);
    x.engine_mut().messages.response.framing = Framing::Length(10);
    assert!(matches!(stage.header_action(&mut x), Step::Next));
    respond(&mut x, 502, &[]);
    x.engine_mut().source = Source::Gateway;
    let Step::Reply(reply) = stage.header_action(&mut x) else { panic!("no reply") };
    assert_eq!((reply.status, &reply.body[..]), (200, &b"0123456789"[..]));
}

#[test]
fn a_stale_response_is_used_while_one_request_revalidates_it() {
    let site = stale_site(
        json!({}),
        &[("Cache-Control", "max-age=10, stale-while-revalidate=6"), ("ETag", "\"v1\"")],
    );
    let ask = |headers: &[(&str, &str)]| {
        let mut probe = site.probe("GET", "/?", headers);
        probe.ask("GET", "/", &[("Host", "a.example"), ("Range", "bytes=0-1"), ("X-Own", "1")]);
        let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
        let mut x = probe.exchange();
        let Step::Reply(reply) = stage.access(&mut x) else { panic!("no reply") };
        drop(x);
        (reply.status, probe.world.sent.take())
    };
    let (status, sent) = ask(&[]);
    assert_eq!(status, 206);
    let [fetch] = &sent[..] else { panic!("{} requests", sent.len()) };
    assert_eq!((&fetch.uri[..], fetch.method), (&b"/"[..], Method::Get));
    assert_eq!(fetch.fields.get_named(b"cache-control"), Some(&b"no-cache"[..]));
    assert_eq!((fetch.fields.get_named(b"range"), fetch.fields.get_named(b"x-own")), (None, Some(&b"1"[..])));
    assert!(ask(&[]).1.is_empty(), "one is under way");
    let got = site.ask("GET", "/", &[("Cache-Control", "max-age=5")], status_of(304, &[]));
    assert_eq!(got.cache(), "REVALIDATED", "the client wants it fresher");
}

#[test]
fn clients_may_accept_stale_responses() {
    let ask = |control: &str, wish: &str| {
        let site = stale_site(json!({}), &[("Cache-Control", control), ("ETag", "\"v1\"")]);
        site.ask("GET", "/", &[("Cache-Control", wish)], origin(&[], &["new"])).cache().to_owned()
    };
    for (control, wish, expected) in [
        ("max-age=10", "max-stale", "STALE"),
        ("max-age=10", "max-stale=6", "STALE"),
        ("max-age=10", "max-stale=5", "EXPIRED"),
        ("max-age=10", "max-stale, max-age=14", "EXPIRED"),
        ("max-age=10", "max-stale, max-age=15, only-if-cached", "STALE"),
        ("max-age=10, proxy-revalidate", "max-stale", "EXPIRED"),
    ] {
        assert_eq!(ask(control, wish), expected, "{control} {wish}");
    }
}

#[test]
fn fields_named_by_the_origin_are_not_stored() {
    let site = site(json!({}));
    let control = ("Cache-Control", "max-age=9, no-cache=\"Set-Cookie, X-A\", private=x-b");
    let headers = [control, ("Set-Cookie", "a=b"), ("X-A", "1"), ("X-B", "2"), ("X-C", "3")];
    assert!(site.get("/", origin(&headers, &["x"])).header("Set-Cookie").is_some());
    let got = site.get("/", origin(&[], &["y"]));
    let names = ["Set-Cookie", "X-A", "X-B", "X-C"].map(|name| got.header(name));
    assert_eq!((got.cache(), names), ("HIT", [None, None, None, Some("3")]));
    // Nor those of a 304, which the client that validated gets.
    let stale = stale_site(json!({}), &TAGGED);
    let confirm = &[("Cache-Control", "max-age=9, private=\"X-User\""), ("X-User", "alice")];
    assert_eq!(stale.get("/", status_of(304, confirm)).header("X-User"), Some("alice"));
    let got = stale.get("/", origin(&[], &["y"]));
    assert_eq!((got.cache(), got.header("X-User"), got.header("X-Kept")), ("HIT", None, Some("old")));
    let many = (0..65).map(|n| format!("x{n}")).collect::<Vec<_>>().join(",");
    let control = format!("max-age=9, no-cache=\"{many}\"");
    assert!(!site.keeps(origin(&[("Cache-Control", &control)], &["x"])));
}

#[test]
fn post_ends_what_get_stored_and_head_compares() {
    let mut site = site(json!({"cache_method": ["GET", "HEAD", "POST"]}));
    let fresh = || origin(&[("Cache-Control", "max-age=9"), ("ETag", "\"v1\"")], &["x"]);
    site.get("/", fresh());
    assert_eq!(site.ask("POST", "/", &[], fresh()).cache(), "MISS");
    assert_eq!(site.get("/", fresh()).cache(), "MISS");
    assert_eq!(site.ask("POST", "/", &[], fresh()).cache(), "HIT", "GET and POST are apart");
    site.now += 10_000;
    let same =
        Origin { framing: Framing::Length(1), ..origin(&[("ETag", "\"v1\""), ("Content-Length", "1")], &[]) };
    site.ask("HEAD", "/", &[], same);
    assert_eq!(site.get("/", status_of(304, &[("Cache-Control", "max-age=9")])).cache(), "REVALIDATED");
    site.now += 10_000;
    site.ask("HEAD", "/", &[], origin(&[("ETag", "\"v2\"")], &[]));
    assert_eq!(site.get("/", fresh()).cache(), "MISS");
}

#[test]
fn responses_without_a_body_are_stored() {
    let site = site(json!({"cache_http_status": [204]}));
    site.get("/", status_of(204, &[("Cache-Control", "max-age=9")]));
    let got = site.get("/", origin(&[], &["x"]));
    assert_eq!((got.status, got.cache()), (204, "HIT"));
}

#[test]
fn two_instances_do_not_condition_one_request_twice() {
    let site = stale_site(json!({}), &TAGGED);
    let mut probe = site.probe("GET", "/", &[]);
    let first: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let second: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(first.access(&mut x), Step::Next));
    assert!(matches!(second.access(&mut x), Step::Next));
    respond(&mut x, 304, &[]);
    assert!(matches!(second.header_action(&mut x), Step::Next));
    assert!(matches!(first.header_action(&mut x), Step::Reply(_)), "the client did not ask for a 304");
}
