//! The stage in front of a pretended upstream.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use cache::{Caches, DiskSettings, Settings};
use sdk::Framing;
use sdk::testing::{Probe, chunk, respond};

use sdk::exchange::Source;

use super::*;

const NOW: u64 = 1_700_000_000_000;

/// A route with the plugin on it, over a memory zone.
struct Site {
    caches: Arc<Caches>,
    config: Value,
    now: u64,
}

/// The upstream's answer.
struct Origin<'a> {
    status: u16,
    headers: &'a [(&'a str, &'a str)],
    chunks: &'a [&'a str],
    framing: Framing,
    /// The last chunk comes.
    whole: bool,
}

#[derive(Debug)]
struct Got {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    /// The upstream was not asked.
    stored: bool,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|one| one.0.eq_ignore_ascii_case(name)).map(|one| one.1.as_str())
    }

    fn cache(&self) -> &str {
        self.header(STATUS).unwrap_or_default()
    }
}

fn origin<'a>(headers: &'a [(&'a str, &'a str)], chunks: &'a [&'a str]) -> Origin<'a> {
    let length = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    Origin { status: 200, headers, chunks, framing: Framing::Length(length), whole: true }
}

impl Site {
    fn new(mut config: Value) -> Site {
        config["cache_strategy"] = json!("memory");
        config["cache_zone"] = json!("m");
        let zone = Settings { name: "m".into(), memory_size: 1 << 20, disk: None };
        Site { caches: Arc::new(Caches::new(vec![zone])), config, now: NOW }
    }

    fn probe(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Probe {
        let mut all = vec![("Host", "a.example")];
        all.extend(headers);
        let mut probe = Probe::request(method, target, &all);
        probe.services.extensions = sdk::build::Extensions::default().with(self.caches.clone());
        probe.world.now_ms.set(self.now);
        probe
    }

    fn get(&self, target: &str, origin: Origin<'_>) -> Got {
        self.ask("GET", target, &[], origin)
    }

    fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], origin: Origin<'_>) -> Got {
        self.run(self.probe(method, target, headers), |_| {}, origin)
    }

    fn run(&self, mut probe: Probe, before: impl FnOnce(&mut Exchange<'_>), origin: Origin<'_>) -> Got {
        let stage: ProxyCache = probe.stage(self.config.clone()).unwrap();
        let mut x = probe.exchange();
        before(&mut x);
        let mut step = stage.access(&mut x);
        if matches!(step, Step::Next) {
            step = stage.before_proxy(&mut x);
        }
        if matches!(step, Step::Wait) {
            step = block_on(stage.wait(Phase::BeforeProxy, &mut x));
        }
        let (body, stored) = match step {
            Step::Reply(reply) => {
                x.engine_mut().messages.response.status = reply.status;
                for (name, value) in &reply.headers {
                    x.engine_mut().messages.response.fields.append(name.as_bytes(), value).unwrap();
                }
                x.engine_mut().source = Source::Plugin;
                x.engine_mut().apply_early_edits();
                stage.header_filter(&mut x);
                assert!(!stage.filters_body(&x), "what is given from the cache is not looked at");
                let mut whole = chunk(&reply.body, true);
                stage.body_filter(&mut x, &mut whole);
                (whole.data, true)
            }
            Step::Next => {
                respond(&mut x, origin.status, origin.headers);
                x.engine_mut().messages.response.framing = origin.framing;
                stage.header_filter(&mut x);
                let mut body = Vec::new();
                for (at, text) in origin.chunks.iter().enumerate() {
                    let last = origin.whole && at + 1 == origin.chunks.len();
                    let mut piece = chunk(text.as_bytes(), last);
                    if x.method() != Method::Head {
                        stage.body_filter(&mut x, &mut piece);
                    }
                    body.extend(piece.data);
                }
                (body, false)
            }
            step => panic!("{step:?}"),
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = &x.response().fields;
        Got {
            status: x.status(),
            headers: fields.iter().map(|(name, value, _)| (text(name), text(value))).collect(),
            body: text(&body),
            stored,
        }
    }

    /// Whether a second GET of the same is answered from the cache.
    fn keeps(&self, first: Origin<'_>) -> bool {
        self.get("/keeps", first);
        self.get("/keeps", origin(&[], &["other"])).stored
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}

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
    stage.header_filter(&mut x);
    stage.body_filter(&mut x, &mut chunk(b"refused", true));
    drop(x);
    assert_eq!(site.get("/", origin(&[], &["x"])).cache(), "MISS");
}

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
fn purge_also_takes_what_has_expired() {
    let mut site = Site::new(json!({"cache_ttl": 1}));
    site.get("/", origin(&[], &["x"]));
    site.now += 5000;
    assert_eq!(site.ask("PURGE", "/", &[], origin(&[], &[])).status, 200);
    assert_eq!(site.get("/", origin(&[], &["x"])).cache(), "MISS");
}

#[test]
fn an_answer_asked_for_before_a_purge_is_not_stored_after_it() {
    let site = Site::new(json!({}));
    let mut probe = site.probe("GET", "/", &[]);
    let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    assert_eq!(site.ask("PURGE", "/", &[], origin(&[], &[])).status, 404);
    respond(&mut x, 200, &[]);
    stage.header_filter(&mut x);
    stage.body_filter(&mut x, &mut chunk(b"old", true));
    drop(x);
    assert_eq!(site.get("/", origin(&[], &["new"])).body, "new");
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
    stage.header_filter(&mut x);
    assert!(stage.filters_body(&x));
    // Nothing was sent yet, so the client gets the gateway's own answer instead.
    respond(&mut x, 502, &[]);
    x.engine_mut().source = Source::Gateway;
    stage.header_filter(&mut x);
    assert!(!stage.filters_body(&x));
    stage.body_filter(&mut x, &mut chunk(b"it broke off", true));
    drop(x);
    assert_eq!(site.get("/", origin(&[], &["x"])).cache(), "MISS");
}

#[test]
fn of_two_stages_on_one_request_the_later_keeps_the_answer() {
    let mut global = Site::new(json!({"cache_key": ["$uri"]}));
    global.caches = Arc::new(Caches::new(
        ["m", "n"].map(|name| Settings { name: name.into(), memory_size: 1 << 20, disk: None }).into(),
    ));
    let mut probe = global.probe("GET", "/", &[]);
    let first: ProxyCache = probe.stage(global.config.clone()).unwrap();
    let route = json!({"cache_strategy": "memory", "cache_zone": "n"});
    let second: ProxyCache = probe.stage(route).unwrap();
    let stages = [&first, &second];
    let mut x = probe.exchange();
    assert!(stages.iter().all(|stage| matches!(stage.access(&mut x), Step::Next)));
    respond(&mut x, 200, &[]);
    x.engine_mut().messages.response.framing = Framing::Length(1);
    stages.iter().for_each(|stage| stage.header_filter(&mut x));
    assert_eq!(stages.map(|stage| stage.filters_body(&x)), [false, true]);
    stages.iter().for_each(|stage| stage.body_filter(&mut x, &mut chunk(b"x", true)));
    drop(x);
    let used = ["m", "n"].map(|name| global.caches.zone(name).unwrap().used() > 0);
    assert_eq!(used, [false, true]);
}

#[test]
fn what_is_on_its_way_into_a_zone_counts_as_much_as_it_is_long() {
    let mut site = Site::new(json!({}));
    let zone = Settings { name: "m".into(), memory_size: 8 << 10, disk: None };
    site.caches = Arc::new(Caches::new(vec![zone]));
    let piece = [b'x'; 700];
    let mut probes = [(); 3].map(|()| site.probe("GET", "/", &[]));
    let stage: ProxyCache = probes[0].stage(site.config.clone()).unwrap();
    // Three at a time, each of an unknown length: two have room, the third has none once it has grown.
    let mut gather = probes.iter_mut().map(|probe| {
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Next));
        respond(&mut x, 200, &[]);
        x.engine_mut().messages.response.framing = Framing::Chunked;
        stage.header_filter(&mut x);
        (0..5).for_each(|_| stage.body_filter(&mut x, &mut chunk(&piece, false)));
        x
    });
    let on_the_way: Vec<_> = gather.by_ref().collect();
    assert_eq!(on_the_way.iter().map(|x| stage.filters_body(x)).collect::<Vec<_>>(), [true, true, false]);
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
fn an_upstream_that_failed_is_remembered_if_its_status_is_named() {
    let fail = |site: &Site, status: u16, source: Source| {
        let mut probe = site.probe("GET", "/", &[]);
        let stage: ProxyCache = probe.stage(site.config.clone()).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Next));
        respond(&mut x, status, &[]);
        x.engine_mut().source = source;
        x.engine_mut().messages.response.framing = Framing::UntilClose;
        stage.header_filter(&mut x);
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
fn strangers_do_not_purge() {
    let site = Site::new(json!({}));
    site.get("/", origin(&[], &["x"]));
    let mut stranger = site.probe("PURGE", "/", &[]).from_ip("192.0.2.1");
    let stage: ProxyCache = stranger.stage(site.config.clone()).unwrap();
    let mut x = stranger.exchange();
    let Step::Reply(reply) = stage.access(&mut x) else { panic!() };
    assert_eq!(reply.status, 403);
    drop(x);
    assert_eq!(site.get("/", origin(&[], &["y"])).cache(), "HIT");
    assert_eq!(site.ask("PURGE", "/", &[], origin(&[], &[])).status, 200);
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
fn disk_follows_nginx() {
    let folder = std::env::temp_dir().join(format!("sluice-proxy-cache-{}", std::process::id()));
    let seconds = std::time::Duration::from_secs;
    let disk = DiskSettings {
        path: folder.clone(),
        size: 1 << 20,
        levels: vec![1, 2],
        ttl: seconds(10),
        read_timeout: seconds(600),
    };
    let zone = Settings { name: "d".into(), memory_size: 1 << 20, disk: Some(disk) };
    let mut site = Site::new(json!({"cache_bypass": ["$arg_b"]}));
    site.caches = Arc::new(Caches::new(vec![zone]));
    site.config["cache_strategy"] = json!("disk");
    site.config["cache_zone"] = json!("d");
    // Files that have expired by the clock on the wall are removed at the start.
    let today = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    site.now = today.as_millis() as u64;
    let flush = |site: &Site| site.caches.zone("d").unwrap().flush();
    // Once from memory, once from the file.
    let stored = |site: &Site, target: &str, headers: &[(&str, &str)]| {
        site.get(target, origin(headers, &["x"]));
        let before = site.get(target, origin(headers, &["x"])).stored;
        flush(site);
        let after = site.get(target, origin(headers, &["x"])).stored;
        assert_eq!(before, after, "{target}");
        after
    };
    assert!(stored(&site, "/plain", &[]));
    assert!(stored(&site, "/s-maxage", &[("Cache-Control", "max-age=0, s-maxage=9")]));
    assert!(stored(&site, "/accel", &[("Cache-Control", "private"), ("X-Accel-Expires", "9")]));
    let never: [&[(&str, &str)]; 4] = [
        &[("Cache-Control", "max-age=0")],
        &[("Cache-Control", "no-cache")],
        &[("Set-Cookie", "a=b")],
        &[("X-Accel-Expires", "0"), ("Cache-Control", "max-age=9")],
    ];
    for headers in never {
        assert!(!stored(&site, "/never", headers), "{headers:?}");
    }
    let bypass = site.get("/plain?b=1", origin(&[], &["x"]));
    assert_eq!((bypass.cache(), bypass.stored), ("BYPASS", false));
    assert_eq!(site.ask("POST", "/plain", &[], origin(&[], &[])).cache(), "BYPASS");
    site.now += 10_000;
    assert_eq!(site.get("/plain", origin(&[], &["y"])).cache(), "EXPIRED");
    assert_eq!(site.ask("PURGE", "/plain", &[], origin(&[], &[])).status, 200);
    // The thread that writes still may; a file it makes now would keep the folder from going.
    flush(&site);
    drop(site);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn zones_are_checked_in_apisix_words() {
    let caches = Arc::new(Caches::for_checking(vec![
        Settings { name: "memory_cache".into(), memory_size: 1, disk: None },
        Settings {
            name: "disk_cache_one".into(),
            memory_size: 1,
            disk: Some(DiskSettings {
                path: "/proc/no/such".into(),
                size: 1,
                levels: vec![],
                ttl: std::time::Duration::ZERO,
                read_timeout: std::time::Duration::ZERO,
            }),
        },
    ]));
    let build = |config: Value| {
        let mut probe = Probe::get("/");
        probe.services.extensions = sdk::build::Extensions::default().with(caches.clone());
        probe.stage::<ProxyCache>(config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(build(json!({})), "");
    assert_eq!(build(json!({"cache_strategy": "memory", "cache_zone": "memory_cache"})), "");
    let message = build(json!({"cache_strategy": "memory", "cache_zone": "nowhere"}));
    assert!(message.contains("cache_zone nowhere not found"), "{message}");
    for (strategy, zone) in [("memory", "disk_cache_one"), ("disk", "memory_cache")] {
        let message = build(json!({"cache_strategy": strategy, "cache_zone": zone}));
        let expected = format!("invalid or empty cache_zone for cache_strategy: {strategy}");
        assert!(message.contains(&expected), "{message}");
    }
    let message = build(json!({"cache_key": ["$uri", "$request_method"]}));
    assert!(message.contains("cache_key variable $request_method unsupported"), "{message}");
    for bad in [
        json!({"cache_key": ["${uri}"]}),
        json!({"cache_key": "$uri"}),
        json!({"cache_key": []}),
        json!({"cache_method": ["PUT"]}),
        json!({"cache_strategy": "network"}),
        json!({"cache_ttl": 0}),
        json!({"cache_http_status": [100]}),
    ] {
        assert_ne!(build(bad.clone()), "", "{bad}");
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
