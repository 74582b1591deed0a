use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sdk::testing::{Probe, fields, with_body};

use super::*;

const DEFAULT_PATH: &str = "/apisix/batch-requests";

fn ask(body: &[u8], answers: Vec<Result<Fetched, FetchError>>) -> (u16, Value, Vec<Fetch>) {
    let headers =
        [("Host", "a.example"), ("X-Outer", "o"), ("X-Both", "outer"), ("Content-Type", "application/json")];
    let mut probe = Probe::request("POST", DEFAULT_PATH, &headers);
    let stage: BatchRequests = probe.stage(json!({})).unwrap();
    *probe.world.answers.borrow_mut() = answers.into_iter().rev().collect();
    let mut x = probe.exchange();
    with_body(&mut x, body);
    let step = match stage.serve(&mut x) {
        Step::Wait => {
            let waiting = pin!(stage.wait(Phase::Access, &mut x));
            match waiting.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(step) => step,
                Poll::Pending => panic!("it waits"),
            }
        }
        step => step,
    };
    drop(x);
    let Step::Reply(reply) = step else { panic!("no reply") };
    (reply.status, serde_json::from_slice(&reply.body).unwrap(), probe.world.sent.take())
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Result<Fetched, FetchError> {
    Ok(Fetched { status, fields: fields(headers), body: body.into(), ..Fetched::default() })
}

#[test]
fn headers_and_query_come_from_three_places() {
    let body = br#"{
            "query": {"base": "b", "both": "batch"}, "headers": {"X-Batch": "1", "X-Both": "batch", "X-Real-IP": "9.9.9.9"},
            "pipeline": [
                {"path": "/b", "headers": {"X-Own": ["1", 2], "x-both": "own"}, "query": {"both": "o n", "flag": true, "no": false}},
                {"path": "/c?x=1", "method": "PUT", "body": "text"}
            ]
        }"#;
    let both = vec![answer(200, &[("A", "1"), ("B", "3"), ("a", "2")], "B\"\n"), answer(204, &[], "")];
    let (status, out, sent) = ask(body, both);
    assert_eq!(status, 200);
    let expected = json!([
        {"status": 200, "reason": "OK", "headers": {"A": ["1", "2"], "B": "3"}, "body": "B\"\n"},
        {"status": 204, "reason": "No Content", "headers": {}},
    ]);
    assert_eq!(out, expected);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(text(&sent[0].uri), "/b?both=o%20n&flag&base=b");
    assert_eq!(text(&sent[1].uri), "/c?x=1&base=b&both=batch");
    let values =
        |at: usize, name: &str| -> Vec<String> { sent[at].fields.all(name.as_bytes()).map(text).collect() };
    assert_eq!(values(0, "X-Own"), ["1", "2"]);
    assert_eq!(values(0, "X-Both"), ["own"]);
    assert_eq!(values(1, "X-Both"), ["batch"]);
    assert_eq!(values(1, "X-Outer"), ["o"]);
    assert_eq!(values(1, "X-Batch"), ["1"]);
    assert_eq!(values(0, "X-Real-IP"), ["127.0.0.1"]);
    assert!(values(0, "Content-Type").is_empty());
    assert_eq!((sent[1].method, &sent[1].body[..]), (Method::Put, &b"text"[..]));
}

#[test]
fn no_batch_sets_headers_of_proxies() {
    let body = br#"{
            "headers": {"x-forwarded-for": "9.9.9.9", "Forwarded": "for=9.9.9.9", "Sluice-Hops": "0", "X-Forwarded": "stays"},
            "pipeline": [{"path": "/", "headers": {"X-Forwarded-Proto": "https", "X-FORWARDED-HOST": "evil", "x-real-ip": "9.9.9.9"}}]
        }"#;
    let (_, _, sent) = ask(body, vec![answer(200, &[], "")]);
    let mut got: Vec<_> =
        sent[0].fields.iter().map(|(name, _, _)| String::from_utf8_lossy(name).to_lowercase()).collect();
    got.sort();
    assert_eq!(got, ["host", "x-both", "x-forwarded", "x-outer", "x-real-ip"]);
    assert_eq!(sent[0].fields.get_named(b"x-real-ip"), Some(&b"127.0.0.1"[..]));
}

#[test]
fn what_cannot_be_asked_is_reported() {
    let answer = |body: &str| {
        let (status, out, sent) = ask(body.as_bytes(), Vec::new());
        assert!(sent.is_empty());
        (status, out["error_msg"].as_str().unwrap().to_owned())
    };
    assert_eq!(answer(""), (400, "no request body, you should give at least one pipeline setting".into()));
    let shared = |what: &str, of: &str| format!(r#"{{"{what}": {{{of}}}, "pipeline": [{{"path": "/"}}]}}"#);
    let fields = |count: usize| (0..count).map(|n| format!(r#""a{n}": "1""#)).collect::<Vec<_>>().join(",");
    let words = "invalid request body: no, err: Expected value but found invalid token at character 1";
    assert_eq!(answer("no"), (400, words.into()));
    for (body, words) in [
        ("{}", "bad request body: object matches none of the required"),
        (
            r#"{"pipeline": []}"#,
            "bad request body: property \"pipeline\" validation failed: expect array to have at least 1 items",
        ),
        (r#"{"pipeline": [{}]}"#, "property \"path\" is required"),
        (r#"{"timeout": 0, "pipeline": [{"path": "/"}]}"#, "expected 0 to be at least 1"),
        (r#"{"pipeline": [{"path": "/", "headers": {"a b": "1"}}]}"#, "request failed: invalid header"),
        (r#"{"pipeline": [{"path": "/", "headers": {"a": "1\r\nb: 2"}}]}"#, "request failed: invalid header"),
        (&shared("headers", &fields(257)), "request failed: too many headers"),
        (&shared("query", &fields(257)), "request failed: too many headers"),
        (
            &shared("headers", &format!(r#""a": "{}""#, "x".repeat(65_536))),
            "request failed: too many headers",
        ),
        (&shared("query", &format!(r#""a": "{}""#, "/".repeat(22_000))), "request failed: too many headers"),
        (
            &shared("headers", &format!(r#""a": [{}]"#, vec!["1"; 257].join(","))),
            "request failed: too many headers",
        ),
    ] {
        let (status, answer) = answer(body);
        assert!(status == 400 && answer.contains(words), "{body}: {answer}");
    }
    // Those that are passed over count, too.
    let over: Vec<_> = (0..257).map(|n| format!(r#""X-Forwarded-{n}": "1""#)).collect();
    let (status, words) = answer(&shared("headers", &over.join(",")));
    assert_eq!((status, &*words), (400, "request failed: too many headers or arguments, or too long ones"));
    // The bounds themselves still pass.
    let goes = |body: &str| ask(body.as_bytes(), Vec::new()).0;
    for body in [
        shared("headers", &fields(256)),
        shared("query", &fields(256)),
        shared("headers", &format!(r#""a": "{}""#, "x".repeat(65_535))),
        shared("query", &format!(r#""a": "{}""#, "x".repeat(65_533))),
        format!(r#"{{"pipeline": [{}]}}"#, vec![r#"{"path": "/"}"#; 1000].join(",")),
    ] {
        assert_eq!(goes(&body), 200, "{}", &body[..40]);
    }
    assert_eq!(goes(&shared("query", &format!(r#""a": "{}""#, "x".repeat(65_534)))), 400);
    let many = format!(r#"{{"pipeline": [{}]}}"#, vec![r#"{"path": "/"}"#; 1001].join(","));
    assert_eq!(answer(&many).1, "too many pipeline requests, 1001 exceeds the maximum of 1000");
    let long = answer(&" ".repeat((1 << 20) + 1));
    assert_eq!(long, (413, "request size 1048577 is greater than the maximum size 1048576 allowed".into()));
}

fn built(probe: &Probe, metadata: Value, attr: Value) -> BatchRequests {
    let owner = sdk::build::Owner { collection: "routes", id: "1".into() };
    let names = sdk::testing::FixedNames::default();
    let metadata = || Some(&metadata);
    let mut cx = Build::new(&owner, &probe.services, &names).with_metadata(&metadata);
    cx.attr = Some(&attr);
    BatchRequests::build(Config {}, &mut cx).unwrap()
}

#[test]
fn bounds_are_those_that_were_set() {
    let bounds = |metadata, attr| {
        let stage = built(&Probe::get("/"), metadata, attr);
        [stage.max_body, stage.max_items, stage.max_response]
    };
    assert_eq!(bounds(json!({}), json!({})), [1 << 20, 1000, 64 << 20]);
    let all = bounds(json!({"max_body_size": 1, "max_pipeline_items": 2}), json!({"max_response_size": 3}));
    assert_eq!(all, [1, 2, 3]);
    assert_eq!(
        bounds(json!({"max_body_size": 0, "max_pipeline_items": -1}), json!({"max_response_size": "3"})),
        [1 << 20, 1000, 64 << 20]
    );
}

#[test]
fn a_body_is_refused_by_its_length() {
    let asked = |length: &str, body: &[u8], state: Option<Body>| {
        let mut probe = Probe::request("POST", DEFAULT_PATH, &[("Content-Length", length)]);
        let stage = built(&probe, json!({"max_body_size": 10}), json!({}));
        let mut x = probe.exchange();
        with_body(&mut x, body);
        if let Some(state) = state {
            (x.engine_mut().body_state, x.engine_mut().body_asked) = (state, usize::MAX);
        }
        match stage.serve(&mut x) {
            Step::Reply(reply) => String::from_utf8(reply.body.to_vec()).unwrap(),
            Step::Body(limit) => limit.to_string(),
            Step::Wait => "taken".to_owned(),
            step => panic!("{step:?}"),
        }
    };
    let words = |length: &str| {
        format!("{{\"error_msg\":\"request size{length} is greater than the maximum size 10 allowed\"}}")
    };
    assert_eq!(asked("10", b"0123456789", None), "taken");
    assert_eq!(asked("11", b"", Some(Body::Streaming)).trim(), words(" 11"));
    assert_eq!(asked("10", b"", Some(Body::Streaming)), (10 + BEYOND).to_string());
    // Without a length, or with a wrong one.
    assert_eq!(asked("", b"0123456789a", None).trim(), words(" 11"));
    assert_eq!(asked("", b"0123", Some(Body::TooLarge)).trim(), words(""));
}

/// The answers together have a bound, and memory is taken for each before it is written.
#[test]
fn answers_have_a_bound_together() {
    let asked = |most: usize, budget: usize, bodies: &[usize]| {
        let mut probe = Probe::request("POST", DEFAULT_PATH, &[("Host", "a")]);
        let stage = built(&probe, json!({}), json!({ "max_response_size": most }));
        probe.world.budget = sdk::budget::Budget::new(budget);
        let answers = bodies
            .iter()
            .rev()
            .map(|length| answer(200, &[("X", &"v".repeat(*length))], &"\u{1}".repeat(*length)));
        *probe.world.answers.borrow_mut() = answers.collect();
        let mut x = probe.exchange();
        let item = r#"{"path": "/"}"#;
        with_body(&mut x, format!("{{\"pipeline\": [{}]}}", vec![item; bodies.len()].join(",")).as_bytes());
        let step = sdk::testing::now(stage.wait(Phase::Access, &mut x));
        drop(x);
        let Step::Reply(reply) = step else { panic!("no reply") };
        let asked: Vec<_> = probe.world.sent.take().iter().map(|fetch| fetch.max_body).collect();
        (reply.status, asked)
    };
    let (status, bounds) = asked(100_000, 1 << 20, &[1000, 1000]);
    assert_eq!((status, bounds[0]), (200, 99_999));
    // Behind an answer of 1,000 bytes, each of which was escaped as six, and of a header of as many.
    assert!((92_000..93_000).contains(&bounds[1]), "{bounds:?}");
    // 6 times 2,001 bytes and 4 KiB beside them.
    assert_eq!(asked(100_000, 22_000, &[1000]).0, 200);
    assert_eq!(asked(100_000, 15_000, &[1000]).0, 503);
}

#[test]
fn memory_is_taken_for_names_of_fields_as_well() {
    for (budget, status) in [(40_000, 503), (80_000, 200)] {
        let mut probe = Probe::request("POST", DEFAULT_PATH, &[("Host", "a")]);
        let stage = built(&probe, json!({}), json!({}));
        probe.world.budget = sdk::budget::Budget::new(budget);
        // 6 times as many bytes.
        *probe.world.answers.borrow_mut() = vec![answer(200, &[(&"n".repeat(10_000), "")], "")];
        let mut x = probe.exchange();
        with_body(&mut x, br#"{"pipeline": [{"path": "/"}]}"#);
        let step = sdk::testing::now(stage.wait(Phase::Access, &mut x));
        assert!(matches!(step, Step::Reply(reply) if reply.status == status), "{budget}");
    }
}

#[test]
fn behind_a_late_answer_nothing_is_sent() {
    let body = br#"{"pipeline": [{"path": "/a"}, {"path": "/b"}, {"path": "/c"}]}"#;
    let (_, out, sent) =
        ask(body, vec![answer(200, &[], ""), Err(FetchError::Timeout), answer(200, &[], "")]);
    assert_eq!(sent.len(), 2);
    assert_eq!(out[0]["body"], "");
    for at in [1, 2] {
        assert_eq!(out[at], json!({"status": 504, "reason": "upstream timeout"}));
    }
}

#[test]
fn a_batch_within_a_batch_is_refused() {
    let mut probe = Probe::request("POST", DEFAULT_PATH, &[]);
    probe.client = probe.client.for_subrequest();
    let stage: BatchRequests = probe.stage(json!({})).unwrap();
    assert!(matches!(stage.serve(&mut probe.exchange()), Step::Reply(reply) if reply.status == 400));
}
