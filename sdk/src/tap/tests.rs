use super::*;
use crate::testing::{Probe, respond};

fn filter(conditions: &[(&str, &str)]) -> Filter {
    let mut filter = Filter::default();
    conditions.iter().for_each(|(name, value)| filter.set(name, value).unwrap());
    filter
}

fn offer(outlet: &Outlet, target: &str, status: u16, total_us: u64) {
    let headers = [
        ("host", "A.example"),
        ("Authorization", "Bearer s3cret"),
        ("X-Api-Key", "s3cret"),
        ("Referer", "https://a.example/x?token=s3cret"),
        ("X-Original-URL", "/y?apikey=s3cret"),
        ("accept", "*/*"),
    ];
    let mut probe = Probe::request("GET", target, &headers);
    let mut x = probe.exchange();
    respond(&mut x, status, &[]);
    outlet.offer(&x, &Times { total_us, ..Times::default() });
}

fn collected(taps: &Taps) -> Vec<Event> {
    let mut all = Vec::new();
    taps.collect(|event| all.push(*event));
    all
}

#[test]
fn events_go_to_the_taps_whose_conditions_hold() {
    let taps = Arc::new(Taps::default());
    let outlet = taps.outlet();
    assert!(!outlet.is_on());
    let all = taps.open(Filter::default()).unwrap();
    let slow = taps.open(filter(&[("min_latency", "10ms"), ("path", "/a*")])).unwrap();
    let failed = taps.open(filter(&[("status", "5xx"), ("host", "a.EXAMPLE"), ("headers", "true")])).unwrap();
    assert!(outlet.is_on());
    offer(&outlet, "/a/b?apikey=s3cret", 200, 20_000);
    offer(&outlet, "/b", 503, 20_000);
    offer(&outlet, "/a", 404, 9_999);
    let events = collected(&taps);
    let bits = |places: &[usize]| places.iter().fold(0u8, |bits, place| bits | 1 << place);
    let taken: Vec<u8> = events.iter().map(|event| event.taken_by).collect();
    assert_eq!(taken, [bits(&[all, slow]), bits(&[all, failed]), bits(&[all])]);
    assert_eq!(
        (events[0].path.as_str(), events[0].headers.len()),
        ("/a/b", 0),
        "no query, no headers unasked"
    );
    let shown: Vec<(&str, &str)> =
        events[1].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!(
        shown.contains(&("accept", "*/*"))
            && shown.iter().any(|(_, value)| *value == "https://a.example/x")
            && shown.iter().all(|(_, value)| !value.contains("s3cret")),
        "{shown:?}"
    );
    [all, slow].into_iter().for_each(|place| taps.close(place));
    assert!(outlet.is_on());
    offer(&outlet, "/a", 200, 20_000);
    assert!(collected(&taps).is_empty());
    taps.close(failed);
    assert!(!outlet.is_on() && taps.count() == 0);
}

#[test]
fn a_full_ring_loses_events_and_counts_them() {
    let taps = Arc::new(Taps::default());
    let (one, other) = (taps.outlet(), taps.outlet());
    let place = taps.open(Filter::default()).unwrap();
    let unrelated = taps.open(filter(&[("status", "500")])).unwrap();
    (0..RING + 7).for_each(|_| offer(&one, "/", 200, 1));
    offer(&other, "/", 200, 1);
    assert_eq!((taps.dropped(place), taps.dropped(unrelated)), (7, 0));
    assert_eq!(collected(&taps).len(), RING + 1);
    offer(&one, "/", 200, 1);
    assert_eq!(collected(&taps).len(), 1, "there is room again");
}

#[test]
fn taps_are_bounded_and_begin_without_events_of_earlier_ones() {
    let taps = Arc::new(Taps::default());
    let outlet = taps.outlet();
    let places: Vec<_> = (0..MOST).map(|_| taps.open(Filter::default()).unwrap()).collect();
    assert_eq!(taps.open(Filter::default()), None);
    offer(&outlet, "/", 200, 1);
    places.iter().for_each(|place| taps.close(*place));
    assert_eq!(taps.open(Filter::default()), Some(0));
    assert!(collected(&taps).is_empty());
}

#[test]
fn names_of_secrets_are_recognised() {
    for name in
        ["Authorization", "Proxy-Authorization", "Cookie", "apikey", "X-CSRF-Token", "X-Amz-Signature"]
    {
        assert!(is_secret(name.as_bytes()), "{name}");
    }
    for name in ["accept", "user-agent", "content-type", "x-request-id"] {
        assert!(!is_secret(name.as_bytes()), "{name}");
    }
}
