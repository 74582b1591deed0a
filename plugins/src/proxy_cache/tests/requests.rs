//! Requests that are answered from the cache: methods, ranges, conditions and freshness.

use super::*;

#[test]
fn a_range_is_cut_out_of_what_was_stored() {
    let site = Site::new(json!({"cache_http_status": [200, 404]}));
    let ask = |headers: &[(&str, &str)]| {
        let got = site.ask("GET", "/", headers, origin(&[("ETag", "\"e\"")], &["01234", "56789"]));
        (got.status, got.body.clone(), got.header("Content-Range").map(str::to_owned))
    };
    // The upstream is asked for what the client asked for, and what is no whole answer is not stored.
    assert_eq!(ask(&[]), (200, "0123456789".into(), None));
    let range = |text: &str| Some(text.to_owned());
    assert_eq!(ask(&[("Range", "bytes=2-4")]), (206, "234".into(), range("bytes 2-4/10")));
    assert_eq!(ask(&[("Range", "bytes=-3")]), (206, "789".into(), range("bytes 7-9/10")));
    assert_eq!(ask(&[("Range", "bytes=10-")]), (416, String::new(), range("bytes */10")));
    assert_eq!(ask(&[("Range", "bytes=0-1,3-4")]).0, 200);
    assert_eq!(ask(&[("Range", "bytes=0-1"), ("If-Range", "\"old\"")]).0, 200);
    assert_eq!(ask(&[("Range", "bytes=0-1"), ("If-None-Match", "\"e\"")]).0, 304);
    let head = site.ask("HEAD", "/", &[("Range", "bytes=0-1")], origin(&[], &[""]));
    assert_eq!((head.status, head.stored), (200, true));
    let mut missing = origin(&[], &["none"]);
    missing.status = 404;
    site.get("/no", missing);
    assert_eq!(site.ask("GET", "/no", &[("Range", "bytes=0-1")], origin(&[], &[""])).body, "none");
}

#[test]
fn head_is_answered_from_get_and_post_from_post() {
    let site = Site::new(json!({"cache_method": ["GET", "HEAD", "POST"]}));
    assert_eq!(site.ask("HEAD", "/", &[], origin(&[], &["body"])).cache(), "MISS");
    assert_eq!(site.get("/", origin(&[], &["body"])).cache(), "MISS", "HEAD stored nothing");
    assert_eq!(site.ask("HEAD", "/", &[], origin(&[], &[])).cache(), "HIT");
    assert_eq!(site.ask("POST", "/", &[], origin(&[], &["posted"])).cache(), "MISS");
    assert_eq!(site.ask("POST", "/", &[], origin(&[], &[])).body, "posted");
    assert_eq!(site.get("/", origin(&[], &[])).body, "body");
    let get_only = Site::new(json!({"cache_method": ["GET"]}));
    get_only.get("/", origin(&[], &["body"]));
    assert_eq!(get_only.ask("HEAD", "/", &[], origin(&[], &[])).cache(), "MISS");
    assert!(!get_only.ask("PUT", "/", &[], origin(&[], &[])).stored);
}

#[test]
fn get_with_a_body_is_not_for_the_cache() {
    let site = Site::new(json!({}));
    let with_body = |body| {
        site.run(
            site.probe("GET", "/", &[]),
            |x| x.engine_mut().body_state = Body::Streaming,
            origin(&[], &[body]),
        )
    };
    assert_eq!(with_body("poison").cache(), "BYPASS");
    assert_eq!(site.get("/", origin(&[], &["good"])).body, "good");
    assert!(!with_body("own").stored);
}

#[test]
fn conditions_keep_requests_and_answers_out() {
    let site = Site::new(json!({"cache_bypass": ["$arg_b", "$http_b"], "no_cache": ["$arg_n"]}));
    let ask = |target: &str| site.get(target, origin(&[], &["x"])).cache().to_owned();
    assert_eq!((ask("/?b=0"), ask("/?b=0")), ("MISS".into(), "HIT".into()));
    assert_eq!((ask("/?b=1"), ask("/?b=1")), ("BYPASS".into(), "BYPASS".into()));
    // Requests that bypass the cache are not stored either.
    assert_eq!(site.ask("GET", "/", &[("B", "1")], origin(&[], &["x"])).cache(), "BYPASS");
    assert_eq!(ask("/"), "MISS");
    assert_eq!((ask("/?n=1"), ask("/?n=1")), ("MISS".into(), "MISS".into()));
    assert_eq!((ask("/?n=0"), ask("/?n=0")), ("MISS".into(), "HIT".into()));
}

#[test]
fn clients_may_ask_for_freshness() {
    let mut site = Site::new(json!({"cache_control": true}));
    let fresh = [("Cache-Control", "max-age=100")];
    let with = |site: &Site, value: &str| {
        site.ask("GET", "/", &[("Cache-Control", value)], origin(&[("Cache-Control", "max-age=100")], &["x"]))
    };
    assert_eq!(with(&site, "only-if-cached").status, 504);
    site.get("/", origin(&fresh, &["x"]));
    site.now += 10_000;
    assert_eq!(with(&site, "max-age=10").cache(), "HIT");
    assert_eq!(with(&site, "min-fresh=90").cache(), "HIT");
    assert_eq!(with(&site, "only-if-cached").cache(), "HIT");
    assert_eq!(with(&site, "max-stale=0").cache(), "HIT");
    for value in ["no-cache", "no-store"] {
        assert_eq!(with(&site, value).cache(), "BYPASS", "{value}");
    }
    // The answer to `no-cache` was stored.
    site.now += 10_000;
    assert_eq!(with(&site, "max-age=9, only-if-cached").status, 504);
    assert_eq!(with(&site, "max-age=9").cache(), "STALE");
    assert_eq!(with(&site, "max-age=9").cache(), "HIT", "the answer to it was stored");
    assert_eq!(with(&site, "min-fresh=101").cache(), "STALE");
    // Without cache_control what the client says does not count.
    let plain = Site::new(json!({}));
    plain.get("/", origin(&[], &["x"]));
    assert_eq!(with(&plain, "no-cache").cache(), "HIT");
}

#[test]
fn what_changes_things_ends_what_is_stored() {
    for (control, method, status, after) in [
        (true, "DELETE", 500, "HIT"),
        (true, "DELETE", 204, "MISS"),
        (true, "OPTIONS", 204, "HIT"),
        (false, "DELETE", 204, "HIT"),
    ] {
        let site = Site::new(json!({"cache_control": control}));
        let fresh = || origin(&[("Cache-Control", "max-age=9")], &["x"]);
        site.get("/", fresh());
        site.ask(method, "/", &[], Origin { status, ..origin(&[], &[]) });
        assert_eq!(site.get("/", fresh()).cache(), after, "{control} {method} {status}");
    }
}

#[test]
fn a_client_that_has_it_gets_304() {
    let site = Site::new(json!({}));
    site.get("/", origin(&[("ETag", "\"v1\"")], &["x"]));
    let got = site.ask("GET", "/", &[("If-None-Match", "W/\"v1\"")], origin(&[], &[]));
    assert_eq!((got.status, got.cache(), &*got.body), (304, "HIT", ""));
    assert_eq!(got.header("ETag"), Some("\"v1\""));
    let got = site.ask("GET", "/", &[("If-None-Match", "\"v2\"")], origin(&[], &[]));
    assert_eq!((got.status, &*got.body), (200, "x"));
}
