//! The tests that every compressor in a body filter passes.

use sdk::testing::{Probe, chunk, now, respond};
use sdk::{Chunk, Exchange, Step};
use serde_json::{Value, json};

use super::filtered::Filtered;

/// A compressor, and a decoder of what it makes.
pub(crate) trait Coding: Filtered {
    fn decode(coded: &[u8]) -> Vec<u8>;

    /// Decodes the part of a stream that a client can read before its end has come.
    fn readable(coded: &[u8], length: usize) -> Vec<u8>;
}

pub(crate) const HTML: (&str, &str) = ("Content-Type", "text/html");

/// The request header of a client that reads the coding.
pub(crate) fn asks<P: Coding>() -> [(&'static str, &'static str); 1] {
    [("Accept-Encoding", P::CODING)]
}

/// Puts a piece through the plugin, and through the background threads where it wants them.
pub(crate) fn filter<P: Coding>(plugin: &P, x: &mut Exchange<'_>, chunk: &mut Chunk) {
    if matches!(plugin.body_action(x, chunk), Step::Wait) {
        assert!(matches!(now(plugin.wait_body(x, chunk)), Step::Next));
    }
}

/// The coded body, if the response is compressed; it has been compared with the plain one, each piece as it came.
pub(crate) fn answer<P: Coding>(
    config: Value,
    request: &[(&str, &str)],
    status: u16,
    head: &[(&str, &str)],
    body: &[&[u8]],
) -> Option<Vec<u8>> {
    let mut probe = Probe::request("GET", "/hello", request);
    let plugin: P = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, status, head);
    plugin.header_filter(&mut x);
    if !plugin.filters_body(&x) {
        return None;
    }
    assert_eq!(x.response_header("Content-Encoding"), Some(P::CODING.as_bytes()));
    let (mut out, mut seen) = (Vec::new(), Vec::new());
    for (index, piece) in body.iter().enumerate() {
        let last = index + 1 == body.len();
        let mut chunk = chunk(piece, last);
        filter(&plugin, &mut x, &mut chunk);
        assert!(!chunk.refused);
        assert!(!piece.is_empty() || last || chunk.data.is_empty());
        out.extend_from_slice(&chunk.data);
        seen.extend_from_slice(piece);
        assert!(last || P::readable(&out, seen.len()) == seen);
    }
    assert_eq!(x.world().budget().taken(), 0);
    assert!(P::decode(&out) == seen);
    Some(out)
}

/// Rows of settings, the length of a piece, and the number of jobs that it takes, at once and in turns.
pub(crate) fn a_background_thread_is_for_what_takes_long<P: Coding>(rows: &[(Value, usize, [usize; 2])]) {
    let text = b"0123456789".repeat(10_000);
    for (config, piece, jobs) in rows {
        for (short_turns, jobs) in [false, true].into_iter().zip(jobs) {
            let mut probe = Probe::request("GET", "/", &asks::<P>());
            probe.world.short_turns.set(short_turns);
            let plugin: P = probe.stage(config.clone()).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[HTML]);
            plugin.header_filter(&mut x);
            let before = x.world().budget().taken();
            let mut first = chunk(&text[..*piece], false);
            filter(&plugin, &mut x, &mut first);
            assert!(P::readable(&first.data, *piece) == text[..*piece]);
            assert_eq!(x.world().budget().taken(), before);
            let mut last = chunk(b"x", true);
            filter(&plugin, &mut x, &mut last);
            assert_eq!(x.world().budget().taken(), 0);
            assert!(P::decode(&[first.data, last.data].concat()) == [&text[..*piece], b"x"].concat());
            drop(x);
            assert_eq!(probe.world.jobs.get(), *jobs, "{config}, {piece}, {short_turns}");
        }
    }
}

pub(crate) fn responses_are_chosen<P: Coding>() {
    let taken = |config: Value, request: &[(&str, &str)], status, head: &[(&str, &str)]| {
        answer::<P>(config, request, status, head, &[b"x"]).is_some()
    };
    let asks = &asks::<P>();
    let accepts = |value: &str| taken(json!({}), &[("Accept-Encoding", value)], 200, &[HTML]);
    assert!(taken(json!({}), asks, 500, &[HTML]));
    for status in [204, 206, 304] {
        assert!(!taken(json!({}), asks, status, &[HTML]), "{status}");
    }
    assert!(accepts(&format!("other, {};q=0.5", P::CODING)));
    assert!(accepts("gzip, *;q=0.1"));
    assert!(!accepts(&format!("{};q=0, *", P::CODING)));
    assert!(!accepts("gzip"));
    assert!(!taken(json!({}), &[], 200, &[HTML]));
    assert!(!taken(json!({}), asks, 200, &[HTML, ("Content-Encoding", "gzip")]));
    assert!(!taken(json!({}), asks, 200, &[]));
    assert!(!taken(json!({"min_length": 21}), asks, 200, &[HTML, ("Content-Length", "20")]));
}

pub(crate) fn a_second_one_finds_the_response_coded<P: Coding>() {
    let mut probe = Probe::request("GET", "/", &asks::<P>());
    let global: P = probe.stage(json!({"vary": true})).unwrap();
    let own: P = probe.stage(json!({"vary": true})).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, &[HTML]);
    global.header_filter(&mut x);
    own.header_filter(&mut x);
    assert!(global.filters_body(&x) && !own.filters_body(&x));
    assert_eq!(x.response().fields.all(b"Vary").count(), 1);
}

pub(crate) fn without_memory_the_response_stays_plain<P: Coding>() {
    let mut probe = Probe::request("GET", "/", &asks::<P>());
    probe.world.budget = sdk::budget::Budget::new(1 << 20);
    let plugin: P = probe.stage(json!({"vary": true})).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, &[HTML]);
    plugin.header_filter(&mut x);
    assert!(!plugin.filters_body(&x));
    assert_eq!(x.response_header("Content-Encoding"), None);
    drop(x);
    assert_eq!(probe.world.complaints.borrow().len(), 1);
}
