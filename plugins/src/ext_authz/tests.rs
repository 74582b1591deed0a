use std::time::Duration;

use sdk::Method;
use sdk::grpc::unframed;
use sdk::testing::{Probe, fields, now};
use sdk::world::FetchError;

use super::*;
use crate::protobuf::{Field, Fields as Parts};

fn answer(message: &Writer) -> Result<Fetched, FetchError> {
    let trailers = fields(&[("grpc-status", "0")]);
    Ok(Fetched { status: 200, body: message.framed(), trailers, ..Fetched::default() })
}

/// `HeaderValueOption`.
fn option(name: &str, value: &str, append: u64) -> Writer {
    let mut header = Writer::default();
    header.bytes(1, name.as_bytes()).bytes(2, value.as_bytes());
    let mut flag = Writer::default();
    flag.number(1, append);
    let mut option = Writer::default();
    option.message(1, &header).message(2, &flag);
    option
}

fn code(code: u64) -> Writer {
    let mut status = Writer::default();
    status.number(1, code);
    status
}

/// Asks for a GET with these headers; `then` sees the outcome.
fn run(
    headers: &[(&str, &str)],
    rest: Value,
    answer: Result<Fetched, FetchError>,
    then: impl FnOnce(Step, &mut Exchange<'_>),
) -> Fetch {
    let mut config = json!({"uri": "http://127.0.0.1:9191"});
    config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    let mut probe = Probe::request("GET", "/hello/a?b=%20", headers);
    probe.world.answers.borrow_mut().push(answer);
    let stage: ExtAuthz = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Wait));
    let step = now(stage.wait(Phase::Access, &mut x));
    then(step, &mut x);
    drop(x);
    probe.world.sent.borrow_mut().pop().unwrap()
}

/// The part of a message at these fields.
fn part<'m>(message: &'m [u8], path: &[u64]) -> Vec<&'m [u8]> {
    let Some((first, rest)) = path.split_first() else { return vec![message] };
    let fields = Parts::of(message).map(Result::unwrap);
    let bytes = fields.filter_map(|(number, field)| match field {
        Field::Bytes(bytes) if number == *first => Some(bytes),
        _ => None,
    });
    bytes.flat_map(|bytes| part(bytes, rest)).collect()
}

#[test]
fn the_server_gets_the_request() {
    let headers = [
        ("Host", "Example.com:9080"),
        ("Authorization", "a"),
        ("X-Forwarded-For", "1.2.3.4"),
        ("X", "1"),
        ("x", "2"),
    ];
    let rest = json!({"context_extensions": {"tenant": "t"}, "metadata": {"x-api": "k"}, "timeout": 700});
    let sent = run(&headers, rest, answer(&Writer::default()), |step, _| assert!(matches!(step, Step::Next)));
    assert_eq!((sent.method, sent.uri.as_slice(), sent.http2), (Method::Post, CHECK.as_bytes(), true));
    assert_eq!(sent.timeouts.read, Duration::from_millis(700));
    assert_eq!(sent.fields.get_named(b"x-api"), Some(&b"k"[..]));
    assert_eq!(sent.fields.get_named(b"content-type"), Some(&b"application/grpc"[..]));
    let attributes = part(unframed(&sent.body).unwrap(), &[1])[0];
    assert_eq!(part(attributes, &[1, 1, 1, 2]), [b"127.0.0.1"]);
    let http = part(attributes, &[4, 2])[0];
    let text = |path: &[u64]| String::from_utf8(part(http, path)[0].to_vec()).unwrap();
    assert_eq!(
        [text(&[2]), text(&[4]), text(&[5]), text(&[6]), text(&[10])],
        ["GET", "/hello/a?b=%20", "Example.com:9080", "http", "HTTP/1.1"]
    );
    let mut pairs: Vec<_> = part(http, &[3])
        .into_iter()
        .map(|entry| [1, 2].map(|field| String::from_utf8_lossy(part(entry, &[field])[0]).into_owned()))
        .collect();
    pairs.sort();
    let expected = [
        [":authority", "Example.com:9080"],
        [":method", "GET"],
        [":path", "/hello/a?b=%20"],
        [":scheme", "http"],
        ["authorization", "a"],
        ["x", "1,2"],
        ["x-forwarded-for", "127.0.0.1"],
        ["x-forwarded-proto", "http"],
    ];
    assert_eq!(pairs, expected);
    let entry = part(attributes, &[10])[0];
    assert_eq!((part(entry, &[1]), part(entry, &[2])), (vec![&b"tenant"[..]], vec![&b"t"[..]]));

    let rest = json!({"request_headers": ["Authorization"], "uri": "http://127.0.0.1:1/a.B/C"});
    let sent = run(&headers, rest, answer(&Writer::default()), |_, _| {});
    assert_eq!(sent.uri, b"/a.B/C");
    let message = unframed(&sent.body).unwrap();
    let names = part(message, &[1, 4, 2, 3, 1]);
    assert_eq!(names[4..], [b"authorization"]);
}

#[test]
fn an_accepted_request_gets_the_headers_of_the_answer() {
    let mut ok = Writer::default();
    ok.message(2, &option("x-user", "rose", 0))
        .message(2, &option("x-group", "b", 1))
        .message(2, &option("x-none", "c", 1))
        .message(2, &option("Host", "forged", 0))
        .bytes(5, b"cookie")
        .bytes(5, b"host")
        .message(6, &option("set-cookie", "a=b", 1));
    let mut message = Writer::default();
    message.message(1, &code(0)).message(3, &ok);
    let headers =
        [("Host", "a"), ("X-User", "root"), ("X_User", "root"), ("X-Group", "a"), ("Cookie", "sid")];
    run(&headers, json!({}), answer(&message), |step, x| {
        assert!(matches!(step, Step::Next));
        let names: Vec<_> = x
            .request()
            .fields
            .iter()
            .map(|(name, value, _)| [name.to_ascii_lowercase(), value.to_vec()])
            .collect();
        let expected = [["host", "a"], ["x-group", "a"], ["x-group", "b"], ["x-user", "rose"]];
        let mut names: Vec<_> =
            names.iter().map(|pair| pair.each_ref().map(|text| std::str::from_utf8(text).unwrap())).collect();
        names.sort_unstable();
        assert_eq!(names, expected);
        sdk::testing::respond(x, 200, &[]);
        assert_eq!(x.response_header("Set-Cookie"), Some(&b"a=b"[..]));
    });
}

#[test]
fn a_refused_request_gets_the_answer_of_the_server() {
    let mut status = Writer::default();
    status.number(1, 401);
    let mut denied = Writer::default();
    denied.message(1, &status).message(2, &option("www-authenticate", "Bearer", 0)).bytes(3, b"no");
    let mut message = Writer::default();
    message.message(1, &code(7)).message(2, &denied);
    run(&[], json!({}), answer(&message), |step, x| {
        let Step::Reply(reply) = step else { panic!("no reply") };
        assert_eq!(reply.status, 401);
        sdk::testing::respond(x, 401, &[]);
        assert_eq!(x.response_header("WWW-Authenticate"), Some(&b"Bearer"[..]));
    });
    let mut bare = Writer::default();
    bare.message(1, &code(16));
    run(&[], json!({}), answer(&bare), |step, _| {
        assert!(matches!(step, Step::Reply(reply) if reply.status == 403));
    });
    // A status that says no is not outdone by a part that says yes.
    let mut both = Writer::default();
    both.message(1, &code(7)).message(3, &Writer::default());
    run(&[], json!({}), answer(&both), |step, _| {
        assert!(matches!(step, Step::Reply(reply) if reply.status == 403));
    });
}

#[test]
fn without_an_answer_requests_are_refused_unless_the_plugin_is_lax() {
    let bad = || {
        let failed = Fetched { status: 200, fields: fields(&[("grpc-status", "12")]), ..Fetched::default() };
        let http = Fetched { status: 503, ..Fetched::default() };
        let broken = Fetched { status: 200, body: b"\0\0\0\0\x01\x0b".to_vec(), ..Fetched::default() };
        let empty = Fetched { status: 200, ..Fetched::default() };
        let late = Fetched { trailers: fields(&[("grpc-status", "13")]), ..answer(&code(0)).unwrap() };
        [Err(FetchError::Timeout), Ok(failed), Ok(http), Ok(broken), Ok(empty), Ok(late)]
    };
    for answer in bad() {
        run(&[], json!({"status_on_error": 503}), answer, |step, _| {
            assert!(matches!(step, Step::Reply(reply) if reply.status == 503));
        });
    }
    for answer in bad() {
        run(&[], json!({"allow_degradation": true}), answer, |step, _| {
            assert!(matches!(step, Step::Next));
        });
    }
    let mut query = Writer::default();
    query.message(3, &{
        let mut ok = Writer::default();
        ok.bytes(8, b"admin");
        ok
    });
    run(&[], json!({}), answer(&query), |step, _| {
        assert!(matches!(step, Step::Reply(reply) if reply.status == 403));
    });
}

#[test]
fn an_append_action_counts_more_than_append() {
    let [mut absent, mut present] = [option("x-user", "rose", 0), option("x-new", "a", 0)];
    absent.number(3, 1);
    present.number(3, 3);
    let mut new = option("x-first", "b", 1);
    new.number(3, 1);
    let mut ok = Writer::default();
    ok.message(2, &absent).message(2, &present).message(2, &new);
    let mut message = Writer::default();
    message.message(1, &code(0)).message(3, &ok);
    run(&[("X-User", "root")], json!({}), answer(&message), |step, x| {
        assert!(matches!(step, Step::Next));
        let values = ["x-user", "x-new", "x-first"].map(|name| x.header(name).map(<[u8]>::to_vec));
        assert_eq!(values, [Some(b"root".to_vec()), None, Some(b"b".to_vec())]);
    });
}

#[test]
fn invalid_settings_are_refused() {
    let probe = Probe::default();
    for config in [
        json!({"uri": "127.0.0.1:1"}),
        json!({"uri": "http://127.0.0.1:1/a?b"}),
        json!({"uri": "http://127.0.0.1:1", "metadata": {"a b": "c"}}),
        json!({"uri": "http://127.0.0.1:1", "metadata": {"a": "b\nc"}}),
    ] {
        assert!(probe.stage::<ExtAuthz>(config.clone()).is_err(), "{config}");
    }
}
