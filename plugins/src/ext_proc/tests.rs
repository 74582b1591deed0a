use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use sdk::RequestFilter;
use sdk::budget::Budget;
use sdk::call::{Call, Pipe};
use sdk::grpc::unframed;
use sdk::testing::{FakeWorld, Probe, chunk, now, respond, with_body};

use super::*;
use crate::protobuf::{Field, Fields as Parts};

/// An exchange with a server that gives these answers, one to each message.
struct Server {
    world: Rc<FakeWorld>,
    /// Its messages; `None` is the end of the stream.
    got: Rc<RefCell<Vec<Option<Vec<u8>>>>>,
    /// It is gone once the call is dropped.
    alive: std::rc::Weak<()>,
}

fn session(answers: Vec<Vec<u8>>, mode: Mode, budget: usize) -> (Server, Session) {
    let world = FakeWorld { sleeps_last: true.into(), budget: Budget::new(budget), ..FakeWorld::default() };
    let (world, got, alive) = (Rc::new(world), Rc::<RefCell<Vec<_>>>::default(), Rc::new(()));
    let (pipe, messages) = (Rc::<Pipe>::default(), got.clone());
    let end = pipe.clone();
    let server = Server { world: world.clone(), got, alive: Rc::downgrade(&alive) };
    let call = Call::new(
        pipe,
        Box::pin(async move {
            let _alive = alive;
            let mut answers = VecDeque::from(answers);
            end.set_head(200, Fields::new());
            while let Some(piece) = poll_fn(|_| end.poll_piece()).await {
                messages.borrow_mut().push(Some(piece.to_vec()));
                match answers.pop_front() {
                    Some(answer) => end.put(&answer),
                    None => std::future::pending().await,
                }
            }
            messages.borrow_mut().push(None);
            let mut trailers = Fields::new();
            trailers.set(b"grpc-status", b"0").unwrap();
            end.set_trailers(trailers);
            Ok(())
        }),
    );
    (server, Session::new(world, call, mode, Duration::from_secs(1), 1 << 20))
}

impl Server {
    /// Whether the stream has ended without a reset.
    fn has_ended(&self) -> bool {
        self.world.until(async {});
        self.got.borrow().last() == Some(&None) && self.alive.strong_count() == 0
    }
}

/// An answer with this message at the field of `ProcessingResponse`.
fn answer(field: u32, message: &Writer) -> Vec<u8> {
    let mut answer = Writer::default();
    answer.message(field, message);
    answer.framed()
}

/// `CommonResponse` with a status and a body.
fn common(status: u64, body: &[u8]) -> Writer {
    let (mut new, mut common, mut outer) = (Writer::default(), Writer::default(), Writer::default());
    new.bytes(1, body);
    common.number(1, status).message(3, &new);
    outer.message(1, &common);
    outer
}

fn immediate_with(status: u64, name: &[u8], value: &[u8]) -> Vec<u8> {
    let [mut code, mut header, mut option, mut set, mut message] = std::array::from_fn(|_| Writer::default());
    code.number(1, status);
    header.bytes(1, name).bytes(3, value);
    option.message(1, &header);
    set.message(1, &option);
    message.message(1, &code).message(2, &set).bytes(3, b"no");
    answer(7, &message)
}

fn plugin(probe: &Probe, rest: Value) -> ExtProc {
    let mut config = json!({"uri": "http://127.0.0.1:9191"});
    config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    probe.stage(config).unwrap()
}

const BUFFERED: Mode =
    Mode { request_body: BodyMode::Buffered, response_body: BodyMode::Buffered, ..Mode::HEADERS };

#[test]
fn the_server_gets_the_clients_address_and_no_forged_one() {
    let headers =
        [("Host", "a"), ("X-Forwarded-For", "1.2.3.4"), ("X_Forwarded_Proto", "https"), ("X-A", "b")];
    let mut probe = Probe::request("GET", "/hello", &headers);
    let plugin = plugin(&probe, json!({}));
    let mut x = probe.exchange();
    let (server, session) = session(vec![answer(1, &Writer::default())], Mode::HEADERS, 1 << 20);
    let stream = plugin.keep(session, &mut x);
    assert!(matches!(plugin.access(&mut x), Step::Wait));
    assert!(matches!(now(plugin.wait(Phase::Access, &mut x)), Step::Next));
    let sent = server.got.borrow()[0].clone().unwrap();
    let part = |message: &[u8], wanted: u64| -> Vec<Vec<u8>> {
        let fields = Parts::of(message).map(Result::unwrap);
        fields
            .filter_map(|field| match field {
                (number, Field::Bytes(bytes)) if number == wanted => Some(bytes.to_vec()),
                _ => None,
            })
            .collect()
    };
    let headers = part(&part(unframed(&sent).unwrap(), 2)[0], 1).remove(0);
    let headers: Vec<_> = part(&headers, 1)
        .iter()
        .map(|header| [1, 3].map(|field| String::from_utf8(part(header, field).concat()).unwrap()))
        .filter(|[name, _]| name.starts_with('x'))
        .collect();
    assert_eq!(headers, [["x-a", "b"], ["x-forwarded-for", "127.0.0.1"], ["x-forwarded-proto", "http"]]);
    // The response is still to come, and the exchange ends without it.
    assert!(stream.session.is_open());
    plugin.log(&mut x);
    assert!(server.has_ended());
}

#[test]
fn an_immediate_response_ends_the_exchange_where_failures_are_ignored() {
    for (status, expected) in [(0, 200), (403, 403), (99, 503), (600, 503), (1 << 40, 503)] {
        let mut probe = Probe::get("/hello");
        let plugin = plugin(&probe, json!({"allow_degradation": true, "status_on_error": 503}));
        let mut x = probe.exchange();
        let (server, session) =
            session(vec![immediate_with(status, b"x-a", b"a\r\nb: c")], Mode::HEADERS, 1 << 20);
        plugin.keep(session, &mut x);
        let Step::Reply(reply) = now(plugin.wait(Phase::Access, &mut x)) else { panic!("{status}") };
        assert_eq!((reply.status, &reply.body[..]), (expected, &b"no"[..]));
        assert_eq!(reply.fields.unwrap().get_named(b"x-a"), None);
        assert!(server.has_ended());
    }
}

#[test]
fn an_immediate_response_to_a_piece_refuses_the_rest_of_the_exchange() {
    for (status, expected) in [(0, 503), (403, 403), (700, 503)] {
        let mut probe = Probe::request("POST", "/hello", &[("Host", "a"), ("Content-Length", "4")]);
        let plugin = plugin(&probe, json!({"allow_degradation": true, "status_on_error": 503}));
        let mut x = probe.exchange();
        let mode = Mode { request_body: BodyMode::Streamed, ..Mode::HEADERS };
        let (_server, session) = session(vec![immediate_with(status, b"x", b"")], mode, 1 << 20);
        let stream = plugin.keep(session, &mut x);
        let mut upload = bodies::Upload::of(stream);
        let mut piece = chunk(b"text", false);
        assert!(matches!(upload.filter(&mut piece), Step::Wait));
        assert!(matches!(now(upload.wait(&mut piece)), Step::Reply(reply) if reply.status == expected));
        assert!(matches!(upload.filter(&mut piece), Step::Reply(reply) if reply.status == expected));
        respond(&mut x, 200, &[]);
        assert!(matches!(plugin.header_action(&mut x), Step::Reply(reply) if reply.status == expected));
    }
}

#[test]
fn held_bytes_count_against_the_budget_and_are_dropped_at_the_end() {
    let headers = [("Host", "a"), ("Content-Length", "4")];
    let body = [b'a'; 10_000];
    // Enough for the answer and the body, and too little for both.
    for (budget, fits) in [(1 << 20, true), (15_000, false)] {
        let mut probe = Probe::request("POST", "/hello", &headers);
        let plugin = plugin(&probe, json!({"allow_degradation": true}));
        let mut x = probe.exchange();
        x.engine_mut().messages.request.framing = Framing::Length(4);
        x.engine_mut().body_state = sdk::exchange::Body::Streaming;
        let (server, session) = session(vec![answer(1, &common(1, &body))], Mode::HEADERS, budget);
        let stream = plugin.keep(session, &mut x);
        let step = now(plugin.wait(Phase::Access, &mut x));
        let taken = server.world.budget.taken();
        if fits {
            assert!(matches!(step, Step::Body(_)));
            assert_eq!((stream.replacement.borrow().bytes.len(), taken), (10_000, 10_000));
            with_body(&mut x, b"text");
            assert!(matches!(plugin.access(&mut x), Step::Next));
            assert_eq!((x.body(), server.world.budget.taken()), (&body[..], 0));
        } else {
            assert!(matches!(step, Step::Reply(reply) if reply.status == 503));
            assert_eq!((taken, server.alive.strong_count()), (0, 0));
        }
    }
}

#[test]
fn a_server_that_is_late_is_left_where_failures_are_ignored() {
    let mut probe = Probe::get("/hello");
    let plugin = plugin(&probe, json!({"allow_degradation": true}));
    let mut x = probe.exchange();
    // Half an answer.
    let (server, session) = session(vec![b"\0\0\0\0\x09\x0a".to_vec()], Mode::HEADERS, 1 << 20);
    server.world.sleeps_last.set(false);
    let stream = plugin.keep(session, &mut x);
    assert!(matches!(now(plugin.wait(Phase::Access, &mut x)), Step::Next));
    assert!(!stream.session.is_open());
    assert_eq!((server.world.budget.taken(), server.alive.strong_count()), (0, 0));
}

#[test]
fn the_stream_ends_once_nothing_more_can_be_sent() {
    let mut probe = Probe::get("/hello");
    let plugin = plugin(&probe, json!({}));
    let mut x = probe.exchange();
    let (server, session) = session(vec![answer(1, &Writer::default()); 2], Mode::HEADERS, 1 << 20);
    session.mode.set(Mode { response_headers: false, ..Mode::HEADERS });
    plugin.keep(session, &mut x);
    assert!(matches!(now(plugin.wait(Phase::Access, &mut x)), Step::Next));
    assert!(server.has_ended());
    assert!(matches!(plugin.header_action(&mut x), Step::Next));
}

#[test]
fn a_response_without_a_body_gets_no_message_for_it() {
    for (method, length) in [("GET", "0"), ("HEAD", "7")] {
        let mut probe = Probe::request(method, "/hello", &[("Host", "a")]);
        let plugin = plugin(&probe, json!({}));
        let mut x = probe.exchange();
        let answers = vec![answer(1, &Writer::default()), answer(2, &Writer::default())];
        let (server, session) = session(answers, BUFFERED, 1 << 20);
        plugin.keep(session, &mut x);
        assert!(matches!(now(plugin.wait(Phase::Access, &mut x)), Step::Next));
        respond(&mut x, 200, &[("Content-Length", length)]);
        x.engine_mut().messages.response.framing = Framing::Length(length.parse().unwrap());
        assert!(matches!(plugin.header_action(&mut x), Step::Wait));
        assert!(matches!(now(plugin.wait(Phase::HeaderFilter, &mut x)), Step::Next));
        assert!(!plugin.filters_body(&x) && !plugin.holds_body(&x));
        assert!(matches!(plugin.body_action(&mut x, &mut chunk(b"", true)), Step::Next));
        assert_eq!(x.response_header("Content-Length"), Some(length.as_bytes()));
        assert!(server.has_ended());
    }
}

#[test]
fn a_mode_counts_where_it_is_allowed() {
    // GRPC, which is not supported.
    let mut mode = Writer::default();
    mode.number(3, 4);
    let mut message = Writer::default();
    message.message(1, &Writer::default()).message(9, &mode);
    for (allowed, status) in [(false, None), (true, Some(500))] {
        let mut probe = Probe::get("/hello");
        let plugin = plugin(&probe, json!({"allow_mode_override": allowed}));
        let mut x = probe.exchange();
        let (_server, session) = session(vec![message.framed()], Mode::HEADERS, 1 << 20);
        plugin.keep(session, &mut x);
        let step = now(plugin.wait(Phase::Access, &mut x));
        let got = if let Step::Reply(reply) = step { Some(reply.status) } else { None };
        assert_eq!(got, status);
    }
}

#[test]
fn an_answer_that_comes_late_is_no_longer_waited_for() {
    let (server, session) = session(Vec::new(), Mode::HEADERS, 1 << 20);
    let session = Rc::new(session);
    let mut ask = Box::pin(session.ask(Part::ResponseHeaders, Writer::default()));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(ask.as_mut().poll(&mut cx).is_pending());
    session.abort();
    assert!(matches!(ask.as_mut().poll(&mut cx), Poll::Ready(Ok(None))));
    drop(ask);
    assert_eq!((server.world.budget.taken(), server.alive.strong_count()), (0, 0));
}
