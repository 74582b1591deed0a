//! The methods of an exchange for plugins, and their effect on the engine's state.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::json;
use wire::{Fields, Framing, Name, Version};

use super::*;
use crate::Step;
use crate::engine::{ForwardedHeaders, begin_coding};
use crate::header::HeaderName;
use crate::response_body::Coder;
use crate::step::LocalFuture;
use crate::stream::Stream;
use crate::testing::{Probe, chunk, now, respond, with_body};
use crate::upload::RequestFilter;
use crate::upstream::{RuntimeUpstream, UpstreamHandle};

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn all<'a>(fields: &'a Fields, name: &'a str) -> Vec<&'a str> {
    fields.all(name.as_bytes()).map(|value| std::str::from_utf8(value).unwrap()).collect()
}

#[test]
fn edited_header_names_are_noted_if_trailers_may_follow() {
    let notes = |framing, version| {
        let mut probe = Probe::get("/a");
        probe.messages.request.framing = framing;
        probe.messages.request.version = version;
        for name in ["x-set", "X_Set", "X-Added", "x-removed", "X-Spelled", "X-Sum"] {
            probe.messages.request_trailers.append(name.as_bytes(), b"theirs").unwrap();
        }
        let mut x = probe.exchange();
        for _ in 0..2 {
            x.set_header("X-Set", b"1").unwrap();
            x.add_header("x_set", b"2").unwrap();
            x.add_header("X-Added", b"3").unwrap();
            x.remove_header(&HeaderName::new("X-Removed").unwrap());
            x.remove_lookalikes("X-Spelled");
            assert!(x.set_header("X-Sum", b"\n").is_err(), "it changes nothing");
        }
        x.set_request_trailer("X-Set", b"ours").unwrap();
        drop(x);
        let names = |fields: &Fields| {
            let names = fields.iter().map(|(name, ..)| String::from_utf8_lossy(name).into_owned());
            names.collect::<Vec<_>>().join(" ")
        };
        let both = (names(&probe.messages.edited), names(&probe.messages.request_trailers));
        probe.messages.clear();
        assert!(probe.messages.edited.is_empty());
        both
    };
    let all = ("X-Set X-Added X-Removed X-Spelled".to_owned(), "X-Sum X-Set".to_owned());
    for (framing, version, noted) in [
        (Framing::Chunked, Version::Http11, true),
        (Framing::Chunked, Version::Http2, true),
        (Framing::Length(0), Version::Http2, true),
        (Framing::Length(9), Version::Http3, true),
        (Framing::Length(9), Version::Http11, false),
        (Framing::None, Version::Http11, false),
        (Framing::None, Version::Http3, false),
    ] {
        let (edited, trailers) = notes(framing, version);
        match noted {
            true => assert_eq!((edited, trailers), all, "{framing:?}, {version:?}"),
            false => assert_eq!(edited, "", "{framing:?}, {version:?}"),
        }
    }
}

#[test]
fn request_headers_are_read_and_changed() {
    let mut probe = Probe::request("POST", "/a/b?c=d", &[("Host", "x"), ("X-A", "1"), ("X-A", "2")]);
    let mut x = probe.exchange();
    assert_eq!((x.method(), x.path(), x.query()), (Method::Post, &b"/a/b"[..], &b"c=d"[..]));
    assert_eq!((x.header("x-a"), x.header("X-None")), (Some(&b"1"[..]), None));
    assert_eq!(x.header(&Name::Host), Some(&b"x"[..]));
    x.set_header("X-A", b"3").unwrap();
    assert_eq!(all(&x.request().fields, "X-A"), ["3"]);
    x.add_header(&HeaderName::new("x-a").unwrap(), b"4").unwrap();
    assert_eq!(all(&x.request().fields, "X-A"), ["3", "4"]);
    // Invalid names and values change nothing.
    for (name, value) in [("X A", "5"), ("", "5"), ("X-A", "5\r\nX-B: 6"), ("X-A", "\0")] {
        assert!(x.set_header(name, value.as_bytes()).is_err(), "{name:?}: {value:?}");
        assert!(x.add_header(&name.to_owned(), value.as_bytes()).is_err(), "{name:?}: {value:?}");
    }
    assert_eq!(all(&x.request().fields, "X-A"), ["3", "4"]);
    x.remove_header("x-A");
    assert_eq!(x.header("X-A"), None);
    x.set_query(b"e=f");
    assert_eq!((x.query(), x.request().has_query), (&b"e=f"[..], true));
    x.set_query(b"");
    assert_eq!((x.query(), x.request().has_query), (&b""[..], false));
    let span = x.intern(b"kept");
    assert_eq!(x.request().fields.bytes(span), b"kept");
}

#[test]
fn removed_forwarded_headers_are_not_added_again() {
    let mut probe = Probe::default();
    for (name, own) in [
        ("x-forwarded-proto", ForwardedHeaders::PROTO),
        ("X-Forwarded-Host", ForwardedHeaders::HOST),
        ("X-Forwarded-Port", ForwardedHeaders::PORT),
    ] {
        let mut x = probe.exchange();
        x.remove_header("X-Other");
        let all = [ForwardedHeaders::PROTO, ForwardedHeaders::HOST, ForwardedHeaders::PORT];
        assert!(all.iter().all(|own| !x.engine().forward.without.has(*own)));
        x.remove_header(name);
        x.remove_header(name);
        assert!(all.iter().all(|other| x.engine().forward.without.has(*other) == (*other == own)), "{name}");
    }
    let mut x = probe.exchange();
    x.remove_header("X-Forwarded-Host");
    x.remove_header("X-Forwarded-Port");
    assert!(
        x.engine().forward.without.has(ForwardedHeaders::HOST)
            && x.engine().forward.without.has(ForwardedHeaders::PORT)
    );
}

#[test]
fn every_exchange_has_a_unique_id_and_a_start_time() {
    let mut probe = Probe::default();
    let halves: Vec<_> = (0..64).flat_map(|_| probe.exchange().unique()).collect();
    assert!((0..halves.len()).all(|at| !halves[..at].contains(&halves[at])), "{halves:?}");
    let mut x = probe.exchange();
    assert_eq!(x.unique(), x.unique());
    // The clock is read at the first call.
    let world = x.world();
    assert_eq!((x.start_ms(), world.now_ms()), (1_700_000_000_000, 1_700_000_000_000));
    crate::testing::now(world.sleep(std::time::Duration::from_millis(500)));
    assert_eq!((x.start_ms(), world.now_ms()), (1_700_000_000_000, 1_700_000_000_500));
    x.engine_mut().timing.sent = 7;
    assert_eq!(x.timing().sent, 7);
}

#[test]
fn a_plugin_may_set_the_client_address() {
    let mut probe = Probe::default().from_ip("10.0.0.1");
    let mut x = probe.exchange();
    assert_eq!((x.client().ip_text(), x.client().port()), (&b"10.0.0.1"[..], 40000));
    x.set_client_address("::ffff:10.0.0.9".parse().unwrap(), Some(7));
    assert_eq!((x.client().ip_text(), x.client().port()), (&b"10.0.0.9"[..], 7));
    assert_eq!(x.client().peer, address("127.0.0.1:40000"), "the connection is the same");
    x.set_client_address("10.0.0.10".parse().unwrap(), None);
    assert_eq!((x.client().ip_text(), x.client().port()), (&b"10.0.0.10"[..], 0));
}

#[test]
fn the_forwarded_port_is_that_of_host_or_of_the_listener() {
    for (host, port) in [
        ("a.example", 9080),
        ("a.example:81", 81),
        ("A.example:65535", 65535),
        ("a.example:65536", 9080),
        ("a.example:", 9080),
        ("a.example:8:", 9080),
        ("a.example:8/", 9080),
    ] {
        let mut probe = Probe::request("GET", "/", &[("Host", host)]);
        assert_eq!(probe.exchange().forwarded_port(), port, "{host}");
    }
}

#[test]
fn the_route_match_is_readable() {
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    assert_eq!((x.matched_uri(), x.matched_host(), x.path_param("a")), ("", "", None));
    let spans = [&b"one"[..], b"two", b"three"].map(|text| x.intern(text));
    let matched = &mut x.engine_mut().matched;
    (matched.uri, matched.host) = ("/:a/:b/:a", "*.example");
    matched.params.extend([("a", spans[0]), ("b", spans[1]), ("a", spans[2])]);
    assert_eq!((x.matched_uri(), x.matched_host()), ("/:a/:b/:a", "*.example"));
    assert_eq!(x.path_param("a"), Some(&b"three"[..]), "the last value of that name");
    assert_eq!((x.path_param("b"), x.path_param("c")), (Some(&b"two"[..]), None));
    assert_eq!(x.route().map(|route| &*route.name), Some("route-1"));
    x.engine_mut().matched.route = None;
    assert!(x.route().is_none());
}

#[test]
fn identity_headers_are_set_and_forged_ones_removed() {
    let identity = |custom: Option<&str>, credential: Option<&str>| {
        let consumer = Consumer {
            name: "jack".into(),
            group_id: None,
            custom_id: custom.map(str::to_owned),
            labels: Vec::new(),
            chain: None,
            slot: 1,
        };
        let secret: crate::consumers::Secret = Some(Arc::new(7_u8));
        Identity { consumer: Arc::new(consumer), credential_id: credential.map(str::to_owned), secret }
    };
    let forged = [
        ("X-Consumer-Username", "root"),
        ("X-Credential-Identifier", "root"),
        ("X-Consumer-Custom-ID", "0"),
        ("X-Consumer-Custom-ID", "1"),
    ];
    for (identity, expected) in [
        (identity(None, None), [vec!["jack"], vec![], vec![]]),
        (identity(Some("7"), Some("c1")), [vec!["jack"], vec!["c1"], vec!["7"]]),
        // Not valid in a field: neither this value nor the client's is sent.
        (identity(Some("a\nb"), None), [vec!["jack"], vec![], vec![]]),
    ] {
        let mut probe = Probe::request("GET", "/", &forged);
        let mut x = probe.exchange();
        assert!(x.identity().is_none() && x.consumer().is_none());
        x.authenticate(identity);
        let names = ["X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID"];
        assert_eq!(names.map(|name| all(&x.request().fields, name)), expected);
        assert_eq!(x.consumer().map(|consumer| &*consumer.name), Some("jack"));
        assert_eq!(x.identity().unwrap().secret::<u8>(), Some(&7));
        assert_eq!(x.identity().unwrap().secret::<u16>(), None);
    }
}

#[test]
fn notes_are_one_per_type_and_holds_are_dropped_at_the_end() {
    let mut probe = Probe::default();
    let held = Rc::new(());
    let mut x = probe.exchange();
    assert_eq!(x.note::<u8>(), None);
    x.set_note(1_u8);
    x.set_note("text");
    x.set_note(2_u8);
    assert_eq!((x.note::<u8>(), x.note::<&str>(), x.note::<u16>()), (Some(&2), Some(&"text"), None));
    *x.note_mut::<u8>().unwrap() += 1;
    assert_eq!((x.take_note::<u8>(), x.take_note::<u8>()), (Some(3), None));
    assert_eq!(x.note_mut::<u8>(), None);
    assert_eq!(x.note::<&str>(), Some(&"text"));
    x.hold(held.clone());
    x.set_note(held.clone());
    drop(x);
    assert_eq!(Rc::strong_count(&held), 3);
    probe.messages.clear();
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn complaints_are_logged() {
    let mut probe = Probe::default();
    probe.exchange().complain("a-plugin", "no reason");
    assert_eq!(*probe.world.complaints.borrow(), [("a-plugin", "no reason")]);
}

#[test]
fn streams_and_requests_have_their_own_fields() {
    let mut probe = Probe::stream();
    let mut x = probe.exchange();
    x.set_mqtt_client_id(Some((*b"me").into()));
    let name = |x: &Exchange<'_>| x.stream().and_then(|stream: &Stream| stream.mqtt_client_id.clone());
    assert_eq!(name(&x).as_deref(), Some(&b"me"[..]));
    x.set_mqtt_client_id(None);
    assert!(x.stream().is_some() && name(&x).is_none());
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    x.set_mqtt_client_id(Some((*b"me").into()));
    assert!(x.stream().is_none() && x.refused_line().is_none());
    x.engine_mut().refused = Some(b"GET /");
    assert_eq!(x.refused_line(), Some(&b"GET /"[..]));
}

// ---- forwarding ----

#[test]
fn plugins_change_the_forwarded_request() {
    let uri = |x: &Exchange<'_>| {
        let mut out = Vec::new();
        x.upstream_uri(&mut out);
        String::from_utf8(out).unwrap()
    };
    for (target, sent) in [("/a/b?c=d", "/a/b?c=d"), ("/a?", "/a?"), ("/a", "/a")] {
        let mut probe = Probe::get(target);
        let mut x = probe.exchange();
        assert_eq!((uri(&x), x.rewritten_uri()), (sent.to_owned(), None));
        x.set_upstream_uri(b"/other?x");
        assert_eq!((uri(&x), x.rewritten_uri()), ("/other?x".to_owned(), Some(&b"/other?x"[..])));
        assert_eq!((x.rewritten_host(), x.upstream_method()), (None, Method::Get));
        x.set_upstream_host(b"b.example");
        assert_eq!(x.rewritten_host(), Some(&b"b.example"[..]));
        x.set_upstream_method(Method::Post, b"POST");
        assert_eq!((x.upstream_method(), x.method()), (Method::Post, Method::Get));
        let spelled = |x: &Exchange<'_>| x.request().fields.bytes(x.request().method_span).to_vec();
        assert_eq!(spelled(&x), b"GET", "the client's spelling is kept for the log");
        x.set_upstream_method(Method::Other, b"BREW");
        assert_eq!((x.upstream_method(), spelled(&x)), (Method::Other, b"BREW".to_vec()));
        assert!(x.engine().forward.upstream.is_none());
        x.choose_upstream(&UpstreamHandle::default());
        assert_eq!(x.engine().forward.upstream, Some(None), "an upstream that does not exist");
        let handle = UpstreamHandle::default();
        handle.place(7);
        x.choose_upstream(&handle);
        assert_eq!(x.engine().forward.upstream, Some(Some(7)));
        // The last choice counts.
        x.forward_to(&RuntimeUpstream(Arc::new(7_u8)));
        assert!(x.engine().forward.upstream.is_none() && x.engine().runtime_upstream.is_some());
        x.choose_upstream(&handle);
        assert!(x.engine().forward.upstream.is_some() && x.engine().runtime_upstream.is_none());
    }
}

#[test]
fn upstream_statuses_lists_all_attempts_in_order() {
    let statuses = |tried: &[u16], status: u16| {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        let addr = address("10.0.0.1:80");
        x.engine_mut().upstream_addr = Some(addr);
        x.engine_mut().upstream_status = status;
        x.engine_mut().tried = tried.iter().map(|&status| Try { addr, status, took_us: 1 }).collect();
        assert_eq!(
            (x.upstream_addr(), x.upstream_status(), x.tried().len()),
            (Some(addr), status, tried.len())
        );
        let mut out = Vec::new();
        x.upstream_statuses(&mut out).then(|| String::from_utf8(out).unwrap())
    };
    assert_eq!(statuses(&[], 0), None, "chosen, but not contacted");
    for (tried, status, expected) in [
        (&[][..], 200, "200"),
        (&[502], 407, "502, 407"),
        (&[504, 0], 999, "504, -, 999"),
        (&[502], 0, "502, -"),
    ] {
        assert_eq!(statuses(tried, status).as_deref(), Some(expected));
    }
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    x.engine_mut().upstream_status = 502;
    assert!(!x.upstream_statuses(&mut Vec::new()), "no server was chosen");
    assert_eq!(x.upstream_addr(), None);
}

#[test]
fn limits_count_by_a_clock_that_is_read_again_after_a_wait() {
    let mut probe = Probe::default();
    let x = probe.exchange();
    let now = x.world().steady_ms();
    assert_eq!(x.steady_ms(), now);
    x.set_steady_ms(Some(now - 7));
    assert_eq!(x.steady_ms(), now - 7, "as the engine has read it");
    x.set_steady_ms(None);
    assert_eq!(x.steady_ms(), now);
}

// ---- the response ----

#[test]
fn early_response_headers_are_applied_to_the_head() {
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    assert!(!x.has_response());
    x.set_response_header("X-Set", b"ours").unwrap();
    x.add_response_header("X-Add", b"ours").unwrap();
    x.remove_response_header("X-Gone");
    let line = |name: &str, value: &str| FieldLines::new([(name.as_bytes(), value.as_bytes())]).unwrap();
    x.set_response_lines(&line("X-Line", "ours"));
    x.set_response_lines(&line("X-Own", "2"));
    assert!(x.set_response_header("X Y", b"1").is_err());
    assert!(x.add_response_header("X-Y", b"1\r\n").is_err());
    assert_eq!(x.response_header("X-Set"), None);
    respond(&mut x, 201, &[("X-Set", "theirs"), ("X-Add", "theirs"), ("X-Gone", "theirs"), ("X-Own", "1")]);
    assert!(x.has_response());
    assert_eq!((x.status(), x.source()), (201, Source::Upstream));
    let fields = &x.response().fields;
    assert_eq!(["X-Set", "X-Gone", "X-Own"].map(|name| all(fields, name)), [vec!["ours"], vec![], vec!["2"]]);
    assert_eq!(all(fields, "X-Line"), ["ours"]);
    assert_eq!(all(fields, "X-Add"), ["theirs", "ours"]);
    // From now on, changes apply immediately.
    x.remove_response_header("X-Own");
    x.set_response_header("X-Set", b"later").unwrap();
    assert_eq!((x.response_header("X-Own"), x.response_header("x-set")), (None, Some(&b"later"[..])));
    x.set_response_lines(&line("x-set", "last"));
    x.set_response_lines(&line("X-New", "1"));
    assert_eq!(
        (x.response_header("X-Set"), x.response_header("X-New")),
        (Some(&b"last"[..]), Some(&b"1"[..]))
    );
    x.set_status(418);
    assert_eq!(x.status(), 418);
}

/// Puts brackets around each chunk, unless the response has no `X-Code`.
struct Brackets;

impl Coder for Brackets {
    fn begin(&mut self, x: &mut Exchange<'_>) -> bool {
        x.response_header("X-Code").is_some()
    }

    fn encode(&mut self, chunk: &mut Chunk) -> Step {
        if chunk.data.len() > 1 {
            return Step::Wait;
        }
        chunk.data.insert(0, b'[');
        chunk.data.push(b']');
        Step::Next
    }

    fn wait<'a>(&'a mut self, _: &'a dyn World, chunk: &'a mut Chunk) -> LocalFuture<'a, ()> {
        chunk.data.clear();
        Box::pin(async {})
    }
}

#[test]
fn a_coder_may_decline() {
    for (headers, body) in [(&[("X-Code", "1")][..], &b"[a]"[..]), (&[], b"a")] {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        respond(&mut x, 200, headers);
        assert!(!x.codes_body());
        x.encode_with(Box::new(Brackets));
        assert!(x.codes_body());
        begin_coding(&mut x);
        assert_eq!(x.codes_body(), !headers.is_empty());
        let mut piece = chunk(b"a", true);
        assert!(matches!(x.engine_mut().code(&mut piece), Step::Next));
        assert_eq!(piece.data, body);
        // A longer chunk waits, with the same coder.
        piece.data = b"abc".to_vec();
        assert_eq!(matches!(x.engine_mut().code(&mut piece), Step::Wait), x.codes_body());
        now(x.engine_mut().wait_code(&mut piece));
        assert_eq!(piece.data.is_empty(), x.codes_body());
    }
}

// ---- bodies ----

struct Nothing;

impl RequestFilter for Nothing {
    fn filter(&mut self, _: &mut Chunk) -> crate::Step {
        crate::Step::Next
    }
}

#[test]
fn an_optional_body_is_requested_once() {
    let mut probe = Probe::request("POST", "/", &[]);
    let mut x = probe.exchange();
    assert!(x.ask_for_optional_body(9).is_none(), "there is no body");
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(x.ask_for_optional_body(9), Some(crate::Step::Body(9))));
    assert!(x.engine_mut().body_optional);
    // The budget sufficed for a part of it.
    with_body(&mut x, b"abcd");
    let engine = x.engine_mut();
    (engine.body_state, engine.body_asked, engine.body_over_budget) = (Body::TooLarge, 9, true);
    assert!(x.ask_for_optional_body(9).is_none());
    assert_eq!((x.body(), x.body_prefix()), (&b""[..], &b"abcd"[..]));
    assert!(x.lacks_body(9), "a mandatory request may find memory now");
    assert!(!x.lacks_body(3));
}

#[test]
fn a_body_is_buffered_up_to_the_requested_limit() {
    let mut probe = Probe::request("POST", "/", &[]);
    let mut x = probe.exchange();
    let state = |x: &mut Exchange<'_>, state| x.engine_mut().body_state = state;
    assert_eq!((x.body_state(), x.body_asked(), x.lacks_body(9)), (Body::None, 0, false));
    state(&mut x, Body::Streaming);
    assert!(x.lacks_body(0) && x.body().is_empty() && x.body_prefix().is_empty());
    with_body(&mut x, b"abcd");
    assert_eq!((x.body(), x.body_prefix(), x.lacks_body(9)), (&b"abcd"[..], &b"abcd"[..], false));
    // Four bytes were requested, and the body is longer.
    state(&mut x, Body::TooLarge);
    x.engine_mut().body_asked = 4;
    assert_eq!((x.body(), x.body_prefix(), x.body_asked()), (&b""[..], &b"abcd"[..], 4));
    assert_eq!([3, 4, 5].map(|limit| x.lacks_body(limit)), [false, false, true]);
    x.want_body_prefix();
    assert_eq!([3, 4, 5].map(|limit| x.lacks_body(limit)), [false, true, true]);
    state(&mut x, Body::None);
    assert!(x.body_prefix().is_empty());
    x.filter_request_body(Box::new(Nothing));
    assert_eq!(x.engine().request_filters.len(), 1);
}

#[test]
fn trailers_are_set_and_removed() {
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    assert!(x.request_trailers().is_empty() && x.response_trailers().is_empty());
    x.set_request_trailer("X-Sum", b"1").unwrap();
    x.set_request_trailer("x-sum", b"2").unwrap();
    x.set_response_trailer("X-Check", b"3").unwrap();
    assert_eq!(all(x.request_trailers(), "X-Sum"), ["2"]);
    assert_eq!(all(x.response_trailers(), "X-Check"), ["3"]);
    for name in ["Content-Length", "transfer-encoding", "Host", "X Y"] {
        assert!(x.set_request_trailer(name, b"1").is_err(), "{name}");
        assert!(x.set_response_trailer(name, b"1").is_err(), "{name}");
    }
    x.remove_request_trailer("x-Sum");
    x.remove_response_trailer("x-Check");
    assert!(x.request_trailers().is_empty() && x.response_trailers().is_empty());
    x.set_response_trailer("X-A", b"1").unwrap();
    x.clear_response_trailers();
    assert!(x.response_trailers().is_empty());
}

#[test]
fn messages_are_reset_between_exchanges() {
    let mut probe = Probe::request("POST", "/a", &[("X-A", "1")]);
    let budget = probe.world.budget.clone();
    let mut x = probe.exchange();
    x.set_body(vec![b'x'; 100]).unwrap();
    x.set_request_trailer("X-B", b"1").unwrap();
    x.set_response_trailer("X-C", b"1").unwrap();
    x.set_note(json!("note"));
    respond(&mut x, 200, &[("X-D", "1")]);
    x.engine_mut().source = Source::None;
    x.set_response_header("X-E", b"1").unwrap();
    drop(x);
    // Another owner of the body keeps it, and the next exchange does not see it.
    let sent = probe.messages.body.clone();
    probe.messages.clear();
    assert_eq!((sent.len(), budget.taken()), (100, 0));
    let mut x = probe.exchange();
    assert!(x.note::<serde_json::Value>().is_none());
    respond(&mut x, 200, &[]);
    assert_eq!((x.header("X-A"), x.response_header("X-D"), x.response_header("X-E")), (None, None, None));
    assert!(x.request_trailers().is_empty() && x.response_trailers().is_empty());
    x.engine_mut().body_state = Body::Whole;
    assert!(x.body().is_empty());
    assert_eq!(x.request().framing, Framing::None);
}

#[test]
fn a_request_without_room_for_a_change_is_not_forwarded() {
    let long = [b'x'; 1 << 20];
    for change in [
        |x: &mut Exchange<'_>, long: &[u8]| x.set_header("X-A", long).is_err(),
        |x: &mut Exchange<'_>, long: &[u8]| x.add_header("X-A", long).is_err(),
        |x: &mut Exchange<'_>, long: &[u8]| x.add_response_header("X-A", long).is_err(),
    ] {
        let mut probe = Probe::get("/hello");
        let mut x = probe.exchange();
        while !change(&mut x, &long) {
            assert!(!x.engine().forward.lacks_text);
        }
        assert!(x.engine().forward.lacks_text);
    }
    // Headers of a response that is there go away without room.
    let mut probe = Probe::get("/hello");
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("X-Secret", "1")]);
    while x.set_response_header("X-A", &long).is_ok() {}
    x.remove_response_header("X-Secret");
    assert_eq!(x.response_header("X-Secret"), None);
}

#[test]
fn texts_that_plugins_set_again_and_again_are_bounded() {
    let mut probe = Probe::get("/hello");
    let mut x = probe.exchange();
    let long = [&b"/"[..], &[b'x'; 1 << 20]].concat();
    for _ in 0..15 {
        x.set_upstream_uri(&long);
        assert!(!x.engine().forward.lacks_text);
    }
    x.set_upstream_uri(&long);
    assert!(x.engine().forward.lacks_text && x.rewritten_uri() == Some(b""));
    assert!(x.set_header("X-A", &long).is_err() && x.add_header("X-A", &long).is_err());
    // Those of the response are another text.
    assert!(x.set_response_header("X-A", &long).is_ok());
    for _ in 0..15 {
        let _ = x.set_response_header("X-A", &long);
    }
    assert!(x.set_response_header("X-A", &long).is_err());
}
