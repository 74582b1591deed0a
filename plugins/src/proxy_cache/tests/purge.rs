//! The method PURGE: what it removes, and for which clients.

use super::*;

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
    stage.header_action(&mut x);
    stage.body_filter(&mut x, &mut chunk(b"old", true));
    drop(x);
    assert_eq!(site.get("/", origin(&[], &["new"])).body, "new");
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
