//! Tests of response-rewrite.

use sdk::testing::{Probe, chunk, now, respond};

use super::*;
use crate::decode::tests::{brotli, gzip};

/// A piece through the stage, and through the background threads where it asks for them.
fn filter(stage: &ResponseRewrite, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
    match stage.body_action(x, chunk) {
        Step::Wait => now(stage.wait_body(x, chunk)),
        step => step,
    }
}

/// Status, a header and the body after the stage.
fn rewritten(config: Value, headers: &[(&str, &str)], pieces: &[&str]) -> (u16, Option<String>, String) {
    let mut probe = Probe::get("/hello");
    let stage: ResponseRewrite = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, headers);
    stage.header_filter(&mut x);
    let mut body = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
        if stage.phases().has(sdk::Phase::BodyFilter) {
            filter(&stage, &mut x, &mut chunk);
        }
        body.extend_from_slice(&chunk.data);
    }
    let header = x.response_header("X-A").map(|value| String::from_utf8_lossy(value).into_owned());
    (x.status(), header, String::from_utf8(body).unwrap())
}

#[test]
fn status_headers_and_body_are_replaced() {
    let config = json!({"status_code": 201, "body": "new", "headers": {"X-A": "$remote_addr"}});
    let expected = (201, Some("127.0.0.1".into()), "new".into());
    assert_eq!(rewritten(config, &[("Content-Length", "6")], &["old", "old"]), expected);
    let base64 = json!({"body": "SGVsbG8=", "body_base64": true});
    assert_eq!(rewritten(base64, &[], &["x"]).2, "Hello");
}

#[test]
fn memory_is_held_for_what_comes_and_not_for_what_is_announced() {
    let mut probe = Probe::get("/hello");
    let filters = json!([{"regex": "z", "replace": "y"}]);
    let stage: ResponseRewrite =
        probe.stage(json!({"filters": filters, "max_resp_body_size": 64 << 20})).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("Content-Length", "67108864")]);
    stage.header_filter(&mut x);
    let mut came = 0;
    for piece in [1, 1000, 300_000, 300_000] {
        filter(&stage, &mut x, &mut chunk(&vec![b'a'; piece], false));
        came += piece;
        let taken = x.world().budget().taken();
        assert!((came..=(8 * came).max(1 << 20)).contains(&taken), "{taken} bytes are held for {came}");
    }
    // Moved once more, it has room for all that was announced, and no more.
    let mut probe = Probe::get("/hello");
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("Content-Length", "5000000")]);
    stage.header_filter(&mut x);
    for (piece, held) in [(100_000, 1 << 20), (1_000_000, 5_000_000)] {
        filter(&stage, &mut x, &mut chunk(&vec![b'a'; piece], false));
        assert_eq!(x.world().budget().taken(), held);
    }
    // The room does not exceed the announced length once all of it has come.
    assert_eq!(
        [believed(1, 5), believed(5, 5), believed(9, 5), believed(1 << 20, 2 << 20)],
        [5, 5, 9, 2 << 20]
    );
    assert_eq!([believed(1, 2 << 20), believed(1 << 18, 9 << 20)], [1 << 20, 2 << 20]);
}

/// An announced body gets its room once; if the budget has too little, room is made for the bytes as they come.
#[test]
fn a_body_that_was_announced_is_moved_once() {
    for (most, held) in [(1 << 20, 50_000), (30_000, 20_000)] {
        let mut probe = Probe::get("/hello");
        probe.world.budget = sdk::budget::Budget::new(most);
        let stage: ResponseRewrite =
            probe.stage(json!({"filters": [{"regex": "z", "replace": "y"}]})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("Content-Length", "50000")]);
        stage.header_filter(&mut x);
        assert!(stage.holds_body(&x));
        for _ in 0..2 {
            let mut chunk = chunk(&[b'a'; 10_000], false);
            filter(&stage, &mut x, &mut chunk);
            assert!(!chunk.refused && chunk.data.is_empty());
        }
        assert_eq!(x.world().budget().taken(), held);
        let mut last = chunk(&[b'a'; 30_000], true);
        filter(&stage, &mut x, &mut last);
        assert_eq!((last.refused, last.data.len() == 50_000), (most < 50_000, most > 50_000));
    }
}

/// The new body of a filter counts beside the old one.
#[test]
fn a_body_that_grows_is_paid_for() {
    let filtered = |filters: Value, length: usize| {
        let mut probe = Probe::get("/hello");
        probe.world.budget = Budget::new(10_000);
        let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        stage.header_filter(&mut x);
        let mut chunk = chunk(&vec![b'a'; length], true);
        filter(&stage, &mut x, &mut chunk);
        assert!(chunk.data.capacity() <= 10_000);
        assert!(chunk.refused || x.world().budget().taken() == chunk.data.capacity());
        chunk
    };
    for (length, grown, refused) in [(1000, 2, false), (3000, 2, false), (3400, 2, true), (1000, 40, true)] {
        let filters = json!([
            {"regex": "a", "replace": "b".repeat(grown), "scope": "global"},
            {"regex": "b{40}", "replace": "", "scope": "global"},
            {"regex": "z", "replace": ""},
        ]);
        assert_eq!(filtered(filters, length).refused, refused, "{length} {grown}");
    }
    for (length, refused) in [(2000, false), (2800, true)] {
        let chunk = filtered(json!([{"regex": "a", "replace": "bbb", "scope": "global"}]), length);
        assert_eq!((chunk.refused, chunk.data.len() == 3 * length), (refused, !refused));
    }
}

#[test]
fn a_body_over_the_bound_is_cut_and_reported_once() {
    for (pieces, given, logged) in
        [(&["abc"][..], "ABC", 0), (&["abcd"], "ABC", 1), (&["ab", "c", "d", "e", ""], "ABC", 1)]
    {
        let mut probe = Probe::get("/hello");
        let filters = json!([{"regex": "abc", "replace": "ABC"}]);
        let stage: ResponseRewrite =
            probe.stage(json!({"max_resp_body_size": 3, "filters": filters})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        assert!(!stage.filters_body(&x) && !stage.holds_body(&x));
        stage.header_filter(&mut x);
        assert!(stage.filters_body(&x) && stage.holds_body(&x));
        let mut out = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
            filter(&stage, &mut x, &mut chunk);
            out.extend_from_slice(&chunk.data);
        }
        drop(x);
        assert_eq!(
            (String::from_utf8(out).unwrap().as_str(), probe.world.complaints.borrow().len()),
            (given, logged)
        );
    }
}

#[test]
fn a_filter_that_comes_to_no_end_is_reported() {
    for (text, given, logged) in [("xyyz", "-z", 0), (&*format!("x{}", "y".repeat(4000)), "x", 1)] {
        let mut probe = Probe::get("/hello");
        let filters = json!([{"regex": r"x(y|y)*(?=z)(?!\1)", "replace": "-"}, {"regex": "y", "replace": "", "scope": "global"}]);
        let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        stage.header_filter(&mut x);
        let mut chunk = chunk(text.as_bytes(), true);
        filter(&stage, &mut x, &mut chunk);
        drop(x);
        assert_eq!(String::from_utf8(chunk.data).unwrap(), given);
        assert_eq!(probe.world.complaints.borrow().len(), logged);
    }
}

/// Both bodies count while a background thread works on them, and it gives way to other work.
#[test]
fn a_long_body_is_filtered_on_a_background_thread() {
    const LENGTH: usize = 1 << 20;
    for (most, refused) in [(2 * LENGTH + LENGTH / 2, false), (2 * LENGTH - 1, true)] {
        let mut probe = Probe::get("/hello");
        probe.world.budget = Budget::new(most);
        probe.world.short_turns.set(true);
        let filters = json!([
            {"regex": "^.|b", "replace": "d", "scope": "global"},
            {"regex": "z", "replace": ""},
            {"regex": "$", "replace": "e", "scope": "global"},
        ]);
        let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("Content-Length", &LENGTH.to_string())]);
        stage.header_filter(&mut x);
        let mut chunk = chunk(&vec![b'a'; LENGTH], true);
        assert!(matches!(stage.body_action(&mut x, &mut chunk), Step::Wait));
        assert_eq!(x.world().budget().taken(), LENGTH);
        assert!(matches!(now(stage.wait_body(&mut x, &mut chunk)), Step::Next));
        assert_eq!(chunk.refused, refused);
        if !refused {
            assert_eq!((chunk.data.len(), chunk.data.last()), (LENGTH + 1, Some(&b'e')));
            assert_eq!(x.world().budget().taken(), chunk.data.capacity());
        }
        drop(x);
        assert!(refused || probe.world.jobs.get() > 4, "{} jobs", probe.world.jobs.get());
    }
}

/// A short one is the worker's own work, unless its pattern costs much.
#[test]
fn a_background_thread_is_for_what_takes_long() {
    for (pattern, length, jobs) in
        [("b", 10_000, 0), ("(a)b", 10_000, 0), ("b", 1 << 20, 1), ("a.*c|a", 5000, 1)]
    {
        let mut probe = Probe::get("/hello");
        let filters = json!([{"regex": pattern, "replace": "d", "scope": "global"}]);
        let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        stage.header_filter(&mut x);
        let mut chunk = chunk(&vec![b'a'; length], true);
        filter(&stage, &mut x, &mut chunk);
        assert_eq!(chunk.data.len(), length);
        drop(x);
        assert_eq!(probe.world.jobs.get(), jobs, "{pattern}, {length}");
    }
}

/// A filter that finds nothing takes no memory for a new body, and hands on the old one as it lies.
#[test]
fn a_body_without_matches_stays_where_it_is() {
    const LENGTH: usize = 1 << 20;
    let mut probe = Probe::get("/hello");
    probe.world.budget = Budget::new(LENGTH + 10_000);
    let filters = json!([{"regex": "a.*c|b", "replace": "d"}, {"regex": "[yz]", "replace": ""}]);
    let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("Content-Length", &LENGTH.to_string())]);
    stage.header_filter(&mut x);
    filter(&stage, &mut x, &mut chunk(b"a", false));
    let body = stage.held(&mut x).unwrap().body.as_ptr();
    let mut rest = chunk(&vec![b'a'; LENGTH - 1], true);
    filter(&stage, &mut x, &mut rest);
    assert_eq!((rest.data.as_ptr(), rest.data.len(), rest.refused), (body, LENGTH, false));
}

/// The body as the client gets it, the coding in the head, and what was complained about.
fn decoded(
    max: usize,
    status: u16,
    coding: &str,
    body: &[u8],
) -> (Result<String, u16>, bool, Vec<&'static str>) {
    let mut probe = Probe::get("/hello");
    let filters = json!([{"regex": "hello", "replace": "bye", "scope": "global"}]);
    let stage: ResponseRewrite = probe.stage(json!({"filters": filters, "max_resp_body_size": max})).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, status, &[("Content-Encoding", coding), ("ETag", "\"1\"")]);
    stage.header_filter(&mut x);
    let mut chunk = chunk(body, true);
    let text = match filter(&stage, &mut x, &mut chunk) {
        Step::Next => Ok(String::from_utf8_lossy(&chunk.data).into_owned()),
        Step::Reply(reply) => Err(reply.status),
        step => panic!("{step:?}"),
    };
    let coded =
        [x.response_header("Content-Encoding"), x.response_header("ETag")].map(|field| field.is_some());
    assert_eq!(coded[0], coded[1]);
    drop(x);
    (text, coded[0], probe.world.complaints.take().into_iter().map(|(_, reason)| reason).collect())
}

#[test]
fn a_compressed_body_is_decoded() {
    let text = "hello hello ".repeat(20_000);
    let new = text.replace("hello", "bye");
    for (coding, body) in [
        ("gzip", gzip(text.as_bytes())),
        ("br", brotli(text.as_bytes())),
        ("zstd", zstd::encode_all(text.as_bytes(), 1).unwrap()),
    ] {
        assert!(decoded(1 << 20, 200, coding, &body) == (Ok(new.clone()), false, vec![]), "{coding}");
        // It may be as long as a plain one.
        assert!(
            decoded(5000, 200, coding, &body) == (Ok(text[..5000].replace("hello", "bye")), false, vec![CUT]),
            "{coding}"
        );
        // One whose own end is left out.
        let (short, _, logged) = decoded(body.len() - 1, 200, coding, &body);
        let short = short.unwrap();
        let whole = short.trim_end_matches(['h', 'e', 'l']);
        assert!(logged == [CUT, CUT] && new.starts_with(whole) && whole.len() + 5 > short.len());
        let (broken, coded, logged) = decoded(1 << 20, 200, coding, &body[..body.len() - 2]);
        assert_eq!((broken, coded, logged.len()), (Err(502), false, 1), "{coding}");
        assert_eq!(decoded(1 << 20, 200, coding, b""), (Ok(String::new()), false, vec![]));
    }
}

/// A coding that is not known, and a part of a body.
#[test]
fn some_bodies_are_left_alone() {
    for (status, coding, logged) in [
        (200, "deflate", "not gzip, br or zstd"),
        (200, "gzip, br", "not gzip, br or zstd"),
        (206, "gzip", "(206)"),
    ] {
        let (text, coded, complaints) = decoded(1 << 20, status, coding, b"hello");
        assert_eq!((text.as_deref(), coded), (Ok("hello"), true));
        assert!(complaints.len() == 1 && complaints[0].contains(logged), "{complaints:?}");
    }
    // The variable is the upstream's status, not the new one.
    let mut probe = Probe::get("/hello");
    let stage: ResponseRewrite =
        probe.stage(json!({"status_code": 200, "filters": [{"regex": "a", "replace": "b"}]})).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 206, &[]);
    stage.header_filter(&mut x);
    assert!(!stage.filters_body(&x));
}

#[test]
fn only_filters_need_the_whole_body_and_only_one_that_they_can_read() {
    for (config, head, filters, holds, complaints) in [
        (json!({"body": "x"}), &[][..], true, false, 0),
        (json!({"headers": {"X-A": "1"}}), &[], false, false, 0),
        (json!({"headers": {"X-A": "1"}}), &[("Content-Encoding", "gzip")], false, false, 0),
        (
            json!({"filters": [{"regex": "a", "replace": "b"}]}),
            &[("Content-Encoding", "gzip")],
            true,
            true,
            0,
        ),
        (
            json!({"filters": [{"regex": "a", "replace": "b"}]}),
            &[("Content-Encoding", "deflate")],
            false,
            false,
            1,
        ),
        (json!({"body": "x"}), &[("Content-Encoding", "gzip")], true, false, 0),
    ] {
        let mut probe = Probe::get("/hello");
        let stage: ResponseRewrite = probe.stage(config.clone()).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, head);
        stage.header_filter(&mut x);
        assert_eq!((stage.filters_body(&x), stage.holds_body(&x)), (filters, holds), "{config}");
        drop(x);
        assert_eq!(probe.world.complaints.borrow().len(), complaints, "{config}");
    }
}

#[test]
fn filters_see_the_whole_body() {
    let once = json!({"filters": [{"regex": "he(l+)o", "replace": "<$1>"}]});
    assert_eq!(rewritten(once, &[], &["hel", "lo hello"]).2, "<ll> hello");
    let global =
        json!({"filters": [{"regex": "HELLO", "replace": "x", "scope": "global", "options": "ijo"}]});
    assert_eq!(rewritten(global.clone(), &[], &["hel", "lo hello"]).2, "x x");
    assert_eq!(rewritten(global, &[("Content-Encoding", "deflate")], &["hello"]).2, "hello");
    let bounded = json!({"filters": [{"regex": "z", "replace": "y"}], "max_resp_body_size": 4});
    assert_eq!(rewritten(bounded, &[], &["abc", "def"]).2, "abcd");
}

#[test]
fn two_stages_do_not_mix_up_what_they_hold() {
    let mut probe = Probe::get("/hello");
    let global: ResponseRewrite = probe.stage(json!({"body": "hello"})).unwrap();
    let own: ResponseRewrite =
        probe.stage(json!({"filters": [{"regex": "hello", "replace": "bye"}]})).unwrap();
    let of_heads: ResponseRewrite = probe.stage(json!({"status_code": 201})).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, &[]);
    for (stage, filters) in [(&global, true), (&own, true), (&of_heads, false)] {
        stage.header_filter(&mut x);
        assert_eq!(stage.filters_body(&x), filters);
    }
    let mut body = Vec::new();
    for (text, last) in [("ab", false), ("cd", true)] {
        let mut chunk = chunk(text.as_bytes(), last);
        for stage in [&global, &own] {
            filter(stage, &mut x, &mut chunk);
        }
        body.extend(chunk.data);
    }
    assert_eq!(body, b"bye");
}

#[test]
fn conditions_hold_it_back() {
    let config = json!({"headers": {"X-A": "1"}, "vars": [["status", "==", 404]]});
    assert_eq!(rewritten(config, &[], &[""]).1, None);
    let config = json!({"headers": {"add": ["X-A: 1"], "remove": ["X-B"]}, "vars": [["status", "==", 200]]});
    assert_eq!(rewritten(config, &[("X-B", "2")], &[""]).1.as_deref(), Some("1"));
}

#[test]
fn mistakes_are_named() {
    let probe = Probe::get("/");
    let error = |config: Value| probe.stage::<ResponseRewrite>(config).err().unwrap().to_string();
    assert_eq!(error(json!({"body": "!", "body_base64": true})), "invalid base64 content");
    assert!(error(json!({"body": "a", "filters": [{"regex": "a", "replace": "b"}]})).contains("failed"));
    assert!(
        error(json!({"filters": [{"regex": "(", "replace": ""}]}))
            .starts_with("regex \"(\" validation failed")
    );
    assert!(error(json!({"status_code": 100})).contains("status_code"));
}
