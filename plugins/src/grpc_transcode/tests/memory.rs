//! Limits of messages and of JSON, and memory taken from the worker's budget.

use super::*;

#[test]
fn memory_counts_against_the_budget() {
    let mut probe = Probe::get("/").proto("1", PROTO);
    probe.world.budget = sdk::budget::Budget::new(1000);
    let budget = probe.world.budget.clone();
    let stage: GrpcTranscode = probe.stage(config(&json!({}))).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, b"");
    assert!(matches!(stage.access(&mut x), Step::Next));
    respond(&mut x, 200, &[("Content-Type", "application/grpc")]);
    stage.header_filter(&mut x);
    let mut first = chunk(b"\x00\x00\x00\x0f\x00", false);
    assert!(matches!(stage.body_action(&mut x, &mut first), Step::Next) && !first.refused);
    assert!(budget.taken() > 0);
    let mut second = chunk(&[b'x'; 2000], false);
    assert!(matches!(stage.body_action(&mut x, &mut second), Step::Next) && second.refused);
}

#[test]
fn json_has_the_limit_of_each_message_and_the_room_of_all() {
    let plan = plan(PROTO, "t.T", "Many", &["no_default_values"]);
    let message = |text: &[u8]| {
        let mut message = vec![0x0a];
        write::bytes(text, &mut message);
        frame(&message)
    };
    // Ten control characters become sixty bytes and `{"text":""}`.
    let body = message(&[1; 10]).repeat(10);
    let made =
        |json, room| plan.json(&body, true, Limits { message: 100, json, room }).map(|made| made.0.len());
    assert_eq!(made(71, 720), Ok(720));
    assert_eq!(made(70, 720), Err(Fault::TooLong));
    assert_eq!(made(71, 700), Err(Fault::NoRoom));
    // The length is checked within a value: a vector that was far beyond the limit would show it.
    for text in [vec![1; 1 << 20], vec![0xff; 1 << 20]] {
        let mut out = Vec::new();
        let limits = Limits { message: 1 << 21, json: 1 << 30, room: 50_000 };
        let framed = message(&text);
        assert_eq!(plan.write(&framed[PREFIX..], limits, &mut out), Err(Fault::NoRoom));
        assert!(out.capacity() <= limits.memory(), "{}", out.capacity());
    }
    // Places of fields, and messages in parts, need room, too.
    let fields = frame(&[0x10, 0].repeat(1000));
    let with =
        |body: &[u8], room| plan.json(body, false, Limits { message: 1 << 20, json: 1 << 20, room }).err();
    assert_eq!((with(&fields, 1000), with(&fields, 33_000)), (Some(Fault::NoRoom), None));
    let mut part = vec![0x8a, 0x01];
    write::bytes(&[&[0x0a, 100][..], &[b'x'; 100]].concat(), &mut part);
    let parts = frame(&part.repeat(10));
    assert_eq!((with(&parts, 1000), with(&parts, 3000)), (Some(Fault::NoRoom), None));
}

#[test]
fn memory_is_reserved_before_the_work_and_put_back() {
    let long = [&[0x0a, 0xa0, 0x8d, 0x06][..], &[b'x'; 100_000]].concat();
    // Fields without a value become much JSON.
    let grows = [0xaa, 0x01, 0].repeat(1000);
    for (message, budget, is_refused) in
        [(&long, 2 << 20, false), (&long, 1 << 20, true), (&grows, 2 << 20, false), (&grows, 200 << 10, true)]
    {
        let mut probe = Probe::get("/").proto("1", PROTO);
        probe.world.budget = sdk::budget::Budget::new(budget);
        let budget = probe.world.budget.clone();
        let stage: GrpcTranscode = probe.stage(config(&json!({}))).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, b"");
        assert!(matches!(stage.access(&mut x), Step::Next));
        let before = budget.taken();
        respond(&mut x, 200, &[("Content-Type", "application/grpc")]);
        stage.header_filter(&mut x);
        let mut chunk = chunk(&frame(message), true);
        let mut step = stage.body_action(&mut x, &mut chunk);
        if matches!(step, Step::Wait) {
            step = now(stage.wait_body(&mut x, &mut chunk));
        }
        assert!(matches!(step, Step::Next), "{step:?}");
        assert_eq!(chunk.refused, is_refused, "{}", message.len());
        let held = if is_refused { 0 } else { chunk.data.capacity() };
        assert!((held..=held + message.len() * 2).contains(&(budget.taken() - before)), "{}", budget.taken());
        assert_eq!(is_refused, chunk.data.is_empty());
        drop(x);
        probe.messages.clear();
        assert_eq!(budget.taken(), 0);
    }
}

#[test]
fn a_response_that_is_given_up_leaves_no_memory() {
    let mut probe = Probe::get("/").proto("1", PROTO);
    let budget = probe.world.budget.clone();
    let stage: GrpcTranscode = probe.stage(config(&json!({"max_resp_body_size": 100}))).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, b"");
    assert!(matches!(stage.access(&mut x), Step::Next));
    let before = budget.taken();
    respond(&mut x, 200, &[("Content-Type", "application/grpc")]);
    stage.header_filter(&mut x);
    assert!(matches!(stage.body_action(&mut x, &mut chunk(b"\0\0\0\0\x50abc", false)), Step::Next));
    assert!(budget.taken() > before);
    assert!(matches!(stage.body_action(&mut x, &mut chunk(&[b'x'; 200], false)), Step::Reply(_)));
    assert_eq!(budget.taken(), before);
}

#[test]
fn the_message_of_a_long_request_is_reserved() {
    let body = format!(r#"{{"loose": [{}0]}}"#, "0,".repeat(50_000));
    for (budget, expected) in [(2 << 20, None), (500 << 10, Some(503))] {
        let json = [("Content-Type", "application/json")];
        let mut probe = Probe::request("POST", "/", &json).proto("1", PROTO);
        probe.world.budget = sdk::budget::Budget::new(budget);
        let budget = probe.world.budget.clone();
        let stage: GrpcTranscode = probe.stage(config(&json!({}))).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, body.as_bytes());
        assert!(matches!(stage.access(&mut x), Step::Wait));
        let refused = match now(stage.wait(Phase::Access, &mut x)) {
            Step::Next => None,
            Step::Reply(reply) => Some(reply.status),
            step => panic!("{step:?}"),
        };
        assert_eq!(refused, expected);
        drop(x);
        probe.messages.clear();
        assert_eq!(budget.taken(), 0);
    }
}

#[test]
fn no_message_is_longer_than_its_reservation() {
    let proto = r#"syntax = "proto3"; package t; service T { rpc One(All) returns (All) {} }
        message All { repeated double a = 536870911 [packed = false]; All b = 536870910; }"#;
    let plan = plan(proto, "t.T", "One", &[]);
    for text in [
        format!(r#"{{"a":[{}0]}}"#, "0,".repeat(10_000)),
        format!(r#"{{"a":[{}""]}}"#, "\"1\",".repeat(10_000)).replace("\"\"", "1"),
        format!("{{{}\"b\":{{}}}}", "\"b\":{},".repeat(10_000)),
    ] {
        let framed = plan.framed(Form::Json, text.as_bytes()).unwrap();
        assert!(framed.capacity() <= ENCODED * text.len(), "{} of {}", framed.capacity(), text.len());
    }
}
