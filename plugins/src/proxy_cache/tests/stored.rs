//! Which answers are stored, how long they are kept and how they are given again.

use super::*;

#[test]
fn what_was_stored_is_given_again() {
    let mut site = Site::new(json!({}));
    let headers = [
        ("X-A", "1"),
        ("Link", "a"),
        ("Link", "b"),
        ("Date", "Tue, 14 Nov 2023 22:13:20 GMT"),
        ("Connection", "close"),
        ("Apisix-Cache-Status", "Foo"),
        ("Age", "7"),
    ];
    let first = site.get("/a?b=c", origin(&headers, &["one", "two"]));
    assert_eq!((first.cache(), first.stored), ("MISS", false));
    site.now += 3000;
    let second = site.get("/a?b=c", origin(&[], &["three"]));
    assert_eq!((second.cache(), second.status, &*second.body), ("HIT", 200, "onetwo"));
    assert_eq!(second.header("Age"), Some("10"));
    assert_eq!(second.header("Date"), Some("Tue, 14 Nov 2023 22:13:20 GMT"));
    assert_eq!(second.header("Connection"), None);
    let links: Vec<_> = second.headers.iter().filter(|one| one.0 == "Link").map(|one| &*one.1).collect();
    assert_eq!(links, ["a", "b"]);
    assert_eq!(site.get("/a?b=d", origin(&[], &[""])).cache(), "MISS");
    let other_host = site.probe("GET", "/a?b=c", &[]);
    let mut probe = Probe::request("GET", "/a?b=c", &[("Host", "b.example")]);
    probe.services = other_host.services;
    probe.world.now_ms.set(NOW);
    assert_eq!(site.run(probe, |_| {}, origin(&[], &[""])).cache(), "MISS");
}

#[test]
fn an_answer_ends_with_its_time() {
    let mut site = Site::new(json!({"cache_ttl": 1}));
    site.get("/", origin(&[("Cache-Control", "max-age=100")], &["old"]));
    site.now += 999;
    assert_eq!(site.get("/", origin(&[], &["new"])).cache(), "HIT");
    site.now += 1;
    let got = site.get("/", origin(&[], &["new"]));
    assert_eq!((got.cache(), &*got.body), ("EXPIRED", "new"));
    assert_eq!(site.get("/", origin(&[], &["newer"])).body, "new");
}

#[test]
fn only_whole_answers_of_known_end_are_stored() {
    let keeps = |change: fn(&mut Origin<'_>)| {
        let mut first = origin(&[], &["12345", "67890"]);
        change(&mut first);
        Site::new(json!({})).keeps(first)
    };
    assert!(keeps(|_| {}));
    assert!(keeps(|first| first.framing = Framing::Chunked));
    assert!(!keeps(|first| first.whole = false));
    assert!(!keeps(|first| first.framing = Framing::UntilClose));
    assert!(!keeps(|first| first.framing = Framing::Length(11)));
    assert!(!keeps(|first| first.status = 500));
    for status in [206, 304, 416] {
        let site = Site::new(json!({"cache_http_status": [200, 206, 304, 416]}));
        assert!(!site.keeps(Origin { status, ..origin(&[], &["x"]) }), "{status}");
    }
}

#[test]
fn answers_that_are_too_large_pass_by() {
    let large = "x".repeat(100);
    let whole = [&*large, &*large];
    for framing in [Framing::Chunked, Framing::Length(200)] {
        let first = || Origin { framing, ..origin(&[], &whole) };
        assert!(Site::new(json!({"max_resp_body_size": 200})).keeps(first()));
        let site = Site::new(json!({"max_resp_body_size": 199}));
        assert!(!site.keeps(first()));
        // Larger than the whole zone.
        let mut site = Site::new(json!({}));
        let zone = Settings { name: "m".into(), memory_size: 150, disk: None };
        site.caches = Arc::new(Caches::new(vec![zone]));
        let got = site.get("/", first());
        assert_eq!((got.body.len(), site.caches.zone("m").unwrap().used()), (200, 0));
    }
}

#[test]
fn what_is_for_one_client_is_not_stored() {
    let keeps = |config: Value, headers: &[(&str, &str)]| Site::new(config).keeps(origin(headers, &["x"]));
    for value in ["private", "no-store", "no-cache", "max-age=9, Private=\"x\""] {
        assert!(!keeps(json!({}), &[("Cache-Control", value)]), "{value}");
    }
    assert!(keeps(json!({}), &[("Cache-Control", "max-age=0")]), "cache_ttl holds");
    assert!(!keeps(json!({}), &[("Set-Cookie", "a=b")]));
    assert!(keeps(json!({"cache_set_cookie": true}), &[("Set-Cookie", "a=b")]));
    assert!(!keeps(json!({}), &[("Vary", "Accept, *")]));
}

#[test]
fn a_stage_s_own_answer_is_not_stored() {
    let site = Site::new(json!({}));
    let mut probe = site.probe("GET", "/", &[]);
    let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    respond(&mut x, 200, &[]);
    x.engine_mut().source = Source::Plugin;
    stage.header_action(&mut x);
    stage.body_filter(&mut x, &mut chunk(b"refused", true));
    drop(x);
    assert_eq!(site.get("/", origin(&[], &["x"])).cache(), "MISS");
}

#[test]
fn answers_say_how_long_they_keep() {
    let keeps =
        |headers: &[(&str, &str)]| Site::new(json!({"cache_control": true})).keeps(origin(headers, &["x"]));
    assert!(!keeps(&[]));
    assert!(keeps(&[("Cache-Control", "max-age=0, s-maxage=5")]));
    assert!(!keeps(&[("Cache-Control", "max-age=5, s-maxage=0")]));
    assert!(!keeps(&[("Cache-Control", "max-age=5"), ("Age", "5")]));
    assert!(keeps(&[("Expires", "Tue, 14 Nov 2023 22:13:25 GMT")]));
    assert!(!keeps(&[("Expires", "Tue, 14 Nov 2023 22:13:20 GMT")]));
    // Not even for a moment, in which it would only take up room.
    let site = Site::new(json!({"cache_control": true}));
    for _ in 0..2 {
        assert_eq!(site.get("/", origin(&[("Cache-Control", "max-age=0")], &["x"])).cache(), "MISS");
    }
    assert_eq!(site.caches.zone("m").unwrap().used(), 0);
}

#[test]
fn the_answer_in_the_place_of_one_that_broke_off_is_not_stored_as_its_end() {
    let site = Site::new(json!({}));
    let mut probe = site.probe("GET", "/", &[]);
    let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    respond(&mut x, 200, &[]);
    x.engine_mut().messages.response.framing = Framing::Chunked;
    stage.header_action(&mut x);
    assert!(stage.filters_body(&x));
    // Nothing was sent yet, so the client gets the gateway's own answer instead.
    respond(&mut x, 502, &[]);
    x.engine_mut().source = Source::Gateway;
    stage.header_action(&mut x);
    assert!(!stage.filters_body(&x));
    stage.body_filter(&mut x, &mut chunk(b"it broke off", true));
    drop(x);
    assert_eq!(site.get("/", origin(&[], &["x"])).cache(), "MISS");
}

#[test]
fn an_upstream_that_failed_is_remembered_if_its_status_is_named() {
    let fail = |site: &Site, status: u16, source: Source| {
        let mut probe = site.probe("GET", "/", &[]);
        let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Next));
        respond(&mut x, status, &[]);
        x.engine_mut().source = source;
        x.engine_mut().messages.response.framing = Framing::UntilClose;
        stage.header_action(&mut x);
        stage.body_filter(&mut x, &mut chunk(b"failed", true));
    };
    let site = Site::new(json!({"cache_http_status": [502, 503, 504]}));
    for status in [502, 504] {
        fail(&site, status, Source::Gateway);
        let got = site.get("/", origin(&[], &["x"]));
        assert_eq!((got.cache(), got.status, &*got.body), ("HIT", status, "failed"));
        assert_eq!(site.ask("PURGE", "/", &[], origin(&[], &[])).status, 200);
    }
    // Not what says nothing of the upstream.
    for (status, source) in [(503, Source::Gateway), (502, Source::Plugin)] {
        fail(&site, status, source);
        assert_eq!(site.ask("PURGE", "/", &[], origin(&[], &[])).status, 404, "{status} {source:?}");
    }
    let unnamed = Site::new(json!({}));
    fail(&unnamed, 502, Source::Gateway);
    assert_eq!(unnamed.get("/", origin(&[], &["x"])).cache(), "MISS");
}

#[test]
fn cache_headers_are_hidden_if_so_set() {
    let headers = [("Cache-Control", "max-age=5"), ("Expires", "0")];
    let site = Site::new(json!({"hide_cache_headers": true}));
    for status in ["MISS", "HIT"] {
        let got = site.get("/", origin(&headers, &["x"]));
        assert_eq!((got.cache(), got.header("Cache-Control"), got.header("Expires")), (status, None, None));
    }
}

#[test]
fn a_clock_that_is_set_ages_nothing_in_memory() {
    let mut site = Site::new(json!({"cache_ttl": 60}));
    let ask = |site: &Site, set_by: i64| {
        let probe = site.probe("GET", "/a", &[]);
        probe.world.set_by_ms.set(set_by);
        let got = site.run(probe, |_| {}, origin(&[], &["body"]));
        (got.cache().to_owned(), got.header("Age").map(str::to_owned))
    };
    assert_eq!(ask(&site, 0).0, "MISS");
    site.now += 30_000;
    for set_by in [-31_536_000_000, -3_600_000, 3_600_000, 31_536_000_000] {
        assert_eq!(ask(&site, set_by), ("HIT".to_owned(), Some("30".to_owned())), "{set_by}");
    }
    site.now += 31_000;
    assert_eq!(ask(&site, -31_536_000_000).0, "EXPIRED");
}
