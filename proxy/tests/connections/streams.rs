//! Streams: the choice of a server, plugins that read the first bytes, and the recorded lines of streams and calls.

use super::case;
use crate::support::{Case, Do, Do::*};

/// The script of a client that sends `asks` and waits for `got!`.
fn asks() -> Vec<Do> {
    vec![Send("asks"), Until("got!"), Close]
}

fn answers() -> Vec<Do> {
    vec![Until("asks"), Send("got!"), ToEnd]
}

fn stream(port: u16, servers: Vec<Vec<Do>>, recorded: Vec<&'static str>) -> Case {
    Case { stream: Some(port), client: asks(), servers, recorded, seeds: 4, ..case() }
}

#[test]
fn bytes_go_both_ways_and_are_counted() {
    stream(7001, vec![answers()], vec!["stream 200 up 4 down 4 from []"]).run("all of them");
    let header = "PROXY TCP4 127.0.0.1 127.0.0.1 40000 7001\r\n";
    let servers = vec![vec![Until(header), Until("asks"), Send("got!"), ToEnd]];
    Case { header: true, ..stream(7001, servers, vec!["stream 200 up 47 down 4 from []"]) }
        .run("after a PROXY protocol header");
}

#[test]
fn servers_that_refuse_connections_are_replaced_by_others() {
    let refuses = || vec![Refuse];
    // The gateway begins TLS, which this server does not speak.
    let is_silent = || vec![ToEnd];
    let fails =
        |port, servers, recorded| Case { client: vec![ToEnd], ..stream(port, servers, vec![recorded]) };
    stream(7001, vec![refuses(), answers()], vec!["stream 200 up 4 down 4 from [502, -]"])
        .run("the next one accepts");
    fails(7001, vec![refuses(), refuses()], "stream 502 up 0 down 0 from [502, -]").run("no server accepts");
    fails(7002, vec![refuses()], "stream 502 up 0 down 0 from []").run("once");
    fails(7003, vec![refuses(), refuses()], "stream 502 up 0 down 0 from [502, -]").run("twice of three");
    fails(7004, vec![is_silent(), is_silent()], "stream 502 up 0 down 0 from [504, -]").run("both take long");
    fails(7005, vec![is_silent()], "stream 502 up 0 down 0 from []").run("no time is left for another");
    fails(7010, vec![], "stream 503 up 0 down 0 from []").run("no servers");
    fails(7009, vec![], "stream 502 up 0 down 0 from []").run("an upstream for HTTPS requests");
    Case { header: true, ..fails(7004, vec![], "stream 502 up 0 down 0 from []") }
        .run("a PROXY protocol header before TLS is not supported");
}

#[test]
fn unhealthy_servers_are_not_tried_first() {
    let recorded = vec![
        "stream 200 up 4 down 4 from [502, -]",
        "stream 200 up 4 down 4 from [] again",
        "stream 200 up 4 down 4 from [] again",
    ];
    let servers = vec![vec![Refuse], answers(), answers(), answers()];
    Case { then: vec![asks(), asks()], seeds: 1, ..stream(7008, servers, recorded) }.run("passive checks");
}

#[test]
fn servers_with_fewer_or_faster_streams_are_preferred() {
    let good = |again| match again {
        true => "stream 200 up 4 down 4 from [] again",
        false => "stream 200 up 4 down 4 from []",
    };
    let lasts = |ms| vec![Send("asks"), Until("got!"), Wait(ms), Close];
    Case {
        beside: lasts(60_000),
        client: vec![Wait(10), Send("asks"), Until("got!"), Close],
        then: vec![asks(), asks()],
        ..stream(7006, vec![answers(); 4], vec![good(false), good(true), good(true), good(false)])
    }
    .run("one of two has a stream that lasts");
    let broken = "stream 502 up 4 down 0 from [] again";
    let breaks = vec![Until("asks"), Reset];
    let mut servers = vec![answers(); 5];
    servers[3] = breaks;
    let recorded = vec![good(false), good(false), good(true), broken, good(false)];
    Case {
        // An EWMA sample weighs more the longer ago the previous one was.
        client: [vec![Wait(20_000)], lasts(500)].concat(),
        then: vec![lasts(100), lasts(100), vec![Wait(5000), Send("asks"), ToEnd], asks()],
        ..stream(7007, servers, recorded)
    }
    .run("the faster one, until it breaks a stream off");
}

#[test]
fn plugins_see_and_change_the_bytes_of_both_sides_and_keep_them_for_a_while() {
    let large = || vec![Until("ASKS"), Send("got"), Wait(10), Send(" it"), ToEnd];
    let client = || vec![Send("asks"), Until("GOT IT"), Close];
    let seen = |client, servers, recorded| Case { client, ..stream(7017, servers, vec![recorded]) };
    seen(client(), vec![large()], "stream 200 up 4 down 6 from []").run("both sides");
    let header = "PROXY TCP4 127.0.0.1 127.0.0.1 40000 7017\r\n";
    let servers = vec![[vec![Until(header)], large()].concat()];
    Case { header: true, ..seen(client(), servers, "stream 200 up 47 down 6 from []") }
        .run("after a PROXY protocol header, which no plugin sees");
    // The server's end is kept as well.
    let ends = vec![Until("ASKS"), Send("got it"), Close];
    seen(vec![Send("asks"), Until("GOT IT"), ToEnd], vec![ends], "stream 200 up 4 down 6 from []")
        .run("the server ends first");
    let refused = || vec![Send("asks"), Until("GOT IT"), Send("no!"), ToEnd];
    seen(refused(), vec![large()], "stream 403 up 7 down 6 from []").run("a plugin closes it");
    let fails = vec![Send("asks"), Until("GOT IT"), Send("no?"), ToEnd];
    let fails = seen(fails, vec![large()], "stream 500 up 7 down 6 from []");
    Case { panics: true, broken: true, ..fails }.run("a plugin fails, which both sides see");
    let breaks = vec![Until("ASKS"), Reset];
    let asks = vec![Send("asks"), ToEnd];
    Case { broken: true, ..seen(asks, vec![breaks], "stream 502 up 4 down 0 from []") }
        .run("the server breaks off");
}

#[test]
fn plugins_see_as_many_first_bytes_as_they_ask_for() {
    let good = "stream 200 up 4 down 4 from []";
    let run = |port, client: Vec<Do>, servers: Vec<Vec<Do>>, recorded| {
        Case { client, ..stream(port, servers, vec![recorded]) }.run(recorded);
    };
    for port in [7014, 7015] {
        let slow = vec![Send("as"), Wait(500), Send("ks"), Until("got!"), Close];
        run(port, asks(), vec![answers()], good);
        run(port, slow, vec![answers()], good);
        run(port, vec![Send("nope"), ToEnd], vec![], "stream 403 up 0 down 0 from []");
    }
    let few = vec![Send("ask"), ShutDown, Until("got!"), Close];
    let servers = vec![vec![Until("ask"), Send("got!"), ToEnd]];
    run(7014, few, servers, "stream 200 up 3 down 4 from []");
    run(7014, vec![Send("as"), ToEnd], vec![], "stream 400 up 0 down 0 from []");
    // The plugin asks again for bytes that it already has.
    run(7016, vec![Send("more"), ToEnd], vec![], "stream 500 up 0 down 0 from []");
}

/// Returns a Dubbo frame: a head with these flags and this id, and a body.
fn frame(flags: u8, id: u64, body: &str) -> Vec<u8> {
    let mut frame = vec![0xda, 0xbb, flags, 20];
    frame.extend(id.to_be_bytes());
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body.bytes());
    frame
}

fn frames(all: &[Vec<u8>]) -> Do {
    Bytes(all.concat().leak())
}

const CALL: u8 = 0xc2;
const ONE_WAY: u8 = 0x82;
const REPLY: u8 = 0x02;
const EVENT: u8 = 0x20;

#[test]
fn dubbo_calls_are_recorded_with_their_response() {
    for (port, whole) in [
        (7011, "stream 200 up 159 down 134 from []"),
        // After a PROXY protocol header, and with first bytes that a plugin has read.
        (7012, "stream 200 up 202 down 134 from []"),
    ] {
        let client = vec![
            frames(&[frame(CALL | EVENT, 52, "N"), frame(CALL, 1, "hello"), frame(CALL, 2, "bye")]),
            Until("ask"),
            // A response to a call of the server, and a call that gets no response from it.
            frames(&[frame(REPLY, 9, "pong"), frame(CALL, 3, "")]),
            Until("one"),
            frames(&[frame(CALL, 4, ""), frame(CALL, 4, "")]),
            Wait(300),
            frames(&[frame(ONE_WAY, 5, "go"), frame(ONE_WAY, 6, "")]),
            Wait(100),
            Close,
        ];
        let server = vec![
            Until("N"),
            frames(&[frame(REPLY | EVENT, 52, "N")]),
            Until("bye"),
            frames(&[frame(CALL, 9, "ask"), frame(CALL | EVENT, 53, "")]),
            Until("pong"),
            Wait(200),
            frames(&[frame(REPLY, 2, "two")]),
            Wait(200),
            frames(&[frame(REPLY, 3, ""), frame(REPLY, 77, "unknown call")]),
            Bytes(&frame(REPLY, 1, "one").leak()[..17]),
            Wait(200),
            Send("ne"),
            ToEnd,
        ];
        let recorded = vec![
            "call in 2: ",
            "call in 4: ",
            "call in 6: ",
            "call in 0: ",
            "call in 0: ",
            "call in 4: ",
            whole,
        ];
        Case { client, header: port == 7012, ..stream(port, vec![server], recorded) }.run("calls");
    }
}

#[test]
fn recorded_calls_of_a_stream_are_limited() {
    let call = |id| frame(CALL, id, "");
    let many: Vec<_> = (0..1026).chain([1, 1, 2000]).map(call).collect();
    let recorded = [vec!["call in 1: "; 1024], vec!["stream 200 up 16464 down 0 from []"]].concat();
    Case { client: vec![frames(&many), Wait(100), Close], ..stream(7011, vec![vec![ToEnd]], recorded) }
        .run("none is answered");
}

#[test]
fn protocol_errors_of_client_and_server_have_their_status() {
    let client = vec![Send("GET / HTTP/1.1\r\n\r\n"), ToEnd];
    let recorded = vec!["stream 400 up 18 down 0 from []"];
    Case { client, seeds: 1, ..stream(7011, vec![vec![ToEnd]], recorded) }.run("the client");
    let server = vec![Send("HTTP/1.1 400 Bad Request"), ToEnd];
    let recorded = vec!["stream 502 up 0 down 24 from []"];
    Case { client: vec![ToEnd], seeds: 1, ..stream(7011, vec![server], recorded) }.run("the server");
}

#[test]
fn uncounted_commands_of_redis_are_logged() {
    let client = vec![Send("*2\r\n$3\r\nGET\r\n$1\r\na\r\n"), Until("+OK\r\n"), Close];
    let server = vec![Until("a\r\n"), Send("+OK\r\n"), ToEnd];
    let recorded = vec!["call in 0: get a", "stream 200 up 20 down 5 from []"];
    Case { client, ..stream(7013, vec![server], recorded) }.run("get");
}
