//! Streams: which server they go to, what plugins see of their first bytes, and what is told of them and of the
//! calls in them.

use super::case;
use super::support::{Case, Do, Do::*};

/// A client says `asks` and waits for `got!`; the server that hears it says so.
fn asks() -> Vec<Do> {
    vec![Send("asks"), Until("got!"), Close]
}

fn answers() -> Vec<Do> {
    vec![Until("asks"), Send("got!"), ToEnd]
}

fn stream(port: u16, servers: Vec<Vec<Do>>, told: Vec<&'static str>) -> Case {
    Case { stream: Some(port), client: asks(), servers, told, seeds: 4, ..case() }
}

#[test]
fn bytes_go_both_ways_and_are_told() {
    stream(7001, vec![answers()], vec!["stream 200 up 4 down 4 from []"]).run("all of them");
    let header = "PROXY TCP4 127.0.0.1 127.0.0.1 40000 7001\r\n";
    let servers = vec![vec![Until(header), Until("asks"), Send("got!"), ToEnd]];
    Case { header: true, ..stream(7001, servers, vec!["stream 200 up 47 down 4 from []"]) }
        .run("with a header of the PROXY protocol ahead");
}

#[test]
fn servers_that_take_no_connection_are_replaced_by_others() {
    let refuses = || vec![Refuse];
    // In TLS, which this one does not speak.
    let is_silent = || vec![ToEnd];
    let fails = |port, servers, told| Case { client: vec![ToEnd], ..stream(port, servers, vec![told]) };
    stream(7001, vec![refuses(), answers()], vec!["stream 200 up 4 down 4 from [502, -]"])
        .run("the next one does");
    fails(7001, vec![refuses(), refuses()], "stream 502 up 0 down 0 from [502, -]").run("nobody does");
    fails(7002, vec![refuses()], "stream 502 up 0 down 0 from []").run("once");
    fails(7003, vec![refuses(), refuses()], "stream 502 up 0 down 0 from [502, -]").run("twice of three");
    fails(7004, vec![is_silent(), is_silent()], "stream 502 up 0 down 0 from [504, -]").run("both take long");
    fails(7005, vec![is_silent()], "stream 502 up 0 down 0 from []").run("it takes too long for another");
    fails(7010, vec![], "stream 503 up 0 down 0 from []").run("there are none");
    fails(7009, vec![], "stream 502 up 0 down 0 from []").run("requests are to go there, and no streams");
    Case { header: true, ..fails(7004, vec![], "stream 502 up 0 down 0 from []") }
        .run("a header would have to go ahead of TLS");
}

#[test]
fn servers_that_failed_before_are_not_asked_first() {
    let told = vec![
        "stream 200 up 4 down 4 from [502, -]",
        "stream 200 up 4 down 4 from [] again",
        "stream 200 up 4 down 4 from [] again",
    ];
    let servers = vec![vec![Refuse], answers(), answers(), answers()];
    Case { then: vec![asks(), asks()], seeds: 1, ..stream(7008, servers, told) }.run("it is unhealthy");
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
    let told = vec![good(false), good(false), good(true), broken, good(false)];
    Case {
        // What is measured counts the more the longer nothing was.
        client: [vec![Wait(20_000)], lasts(500)].concat(),
        then: vec![lasts(100), lasts(100), vec![Wait(5000), Send("asks"), ToEnd], asks()],
        ..stream(7007, servers, told)
    }
    .run("the faster one, until it breaks a stream off");
}

#[test]
fn plugins_see_as_many_first_bytes_as_they_ask_for() {
    let good = "stream 200 up 4 down 4 from []";
    let run = |port, client: Vec<Do>, servers: Vec<Vec<Do>>, told| {
        Case { client, ..stream(port, servers, vec![told]) }.run(told);
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
    // It has them already.
    run(7016, vec![Send("more"), ToEnd], vec![], "stream 500 up 0 down 0 from []");
}

/// A frame of Dubbo: a head with these flags and this number, and a body.
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
fn calls_of_dubbo_are_told_when_their_response_is_there() {
    for (port, whole) in [
        (7011, "stream 200 up 159 down 134 from []"),
        // Behind a header of the PROXY protocol, and first bytes that a plugin has seen.
        (7012, "stream 200 up 202 down 134 from []"),
    ] {
        let client = vec![
            frames(&[frame(CALL | EVENT, 52, "N"), frame(CALL, 1, "hello"), frame(CALL, 2, "bye")]),
            Until("ask"),
            // What the server asks for, and what is not answered.
            frames(&[frame(REPLY, 9, "told"), frame(CALL, 3, "")]),
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
            Until("told"),
            Wait(200),
            frames(&[frame(REPLY, 2, "two")]),
            Wait(200),
            frames(&[frame(REPLY, 3, ""), frame(REPLY, 77, "nobody asked")]),
            Bytes(&frame(REPLY, 1, "one").leak()[..17]),
            Wait(200),
            Send("ne"),
            ToEnd,
        ];
        let told = vec![
            "call in 2: ",
            "call in 4: ",
            "call in 6: ",
            "call in 0: ",
            "call in 0: ",
            "call in 4: ",
            whole,
        ];
        Case { client, header: port == 7012, ..stream(port, vec![server], told) }.run("calls");
    }
}

#[test]
fn so_many_calls_of_a_stream_are_told_and_no_more() {
    let call = |id| frame(CALL, id, "");
    let many: Vec<_> = (0..1026).chain([1, 1, 2000]).map(call).collect();
    let told = [vec!["call in 1: "; 1024], vec!["stream 200 up 16464 down 0 from []"]].concat();
    Case { client: vec![frames(&many), Wait(100), Close], ..stream(7011, vec![vec![ToEnd]], told) }
        .run("none is answered");
}

#[test]
fn who_does_not_speak_the_protocol_is_told_apart() {
    let client = vec![Send("GET / HTTP/1.1\r\n\r\n"), ToEnd];
    let told = vec!["stream 400 up 18 down 0 from []"];
    Case { client, seeds: 1, ..stream(7011, vec![vec![ToEnd]], told) }.run("the client");
    let server = vec![Send("HTTP/1.1 400 Bad Request"), ToEnd];
    let told = vec!["stream 502 up 0 down 24 from []"];
    Case { client: vec![ToEnd], seeds: 1, ..stream(7011, vec![server], told) }.run("the server");
}

#[test]
fn commands_of_redis_are_told_where_nobody_counts_them() {
    let client = vec![Send("*2\r\n$3\r\nGET\r\n$1\r\na\r\n"), Until("+OK\r\n"), Close];
    let server = vec![Until("a\r\n"), Send("+OK\r\n"), ToEnd];
    let told = vec!["call in 0: get a", "stream 200 up 20 down 5 from []"];
    Case { client, ..stream(7013, vec![server], told) }.run("get");
}
