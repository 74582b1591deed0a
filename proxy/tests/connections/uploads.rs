//! Request bodies: buffered prefixes, filters, and servers that do not read them.

use super::{OK, case};
use crate::support::{Case, Do, Do::*};

fn answers(last: &'static str) -> Vec<Vec<Do>> {
    vec![vec![Until(last), Send(OK), ToEnd]]
}

#[test]
fn conditions_read_a_limited_prefix_of_a_body() {
    fn ten(settings: &mut proxy::Settings) {
        settings.bounds.body = 10;
    }
    let form = "POST /held HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                Content-Type: application/x-www-form-urlencoded\r\n";
    let sized = |body: &str| format!("{form}Content-Length: {}\r\n\r\n{body}", body.len()).leak() as &str;
    let chunk = |body: &str| {
        format!("{form}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n", body.len()).leak() as &str
    };
    for client in [
        vec![Send(sized("x=y&z=1234")), ToEnd],
        // The gateway learns only later whether anything follows.
        vec![Send(chunk("x=y&z=1234")), Wait(100), Send("0\r\n\r\n"), ToEnd],
    ] {
        let about = format!("{client:?}");
        let servers = answers("x=y&z=1234");
        Case { client, servers, wants: vec!["HTTP/1.1 200 "], settings: ten, seeds: 8, ..case() }.run(&about);
    }
    for client in [
        vec![Send(sized("x=y&z=12345")), ToEnd],
        vec![Send(chunk("x=y&z=12345")), Wait(100), Send("0\r\n\r\n"), ToEnd],
        vec![Send(format!("{}0\r\n\r\n", chunk("x=y&z=12345")).leak()), ToEnd],
    ] {
        let about = format!("{client:?}");
        Case { client, wants: vec!["HTTP/1.1 4"], silent: true, settings: ten, seeds: 8, ..case() }
            .run(&about);
    }
}

#[test]
fn bodies_too_large_to_buffer_get_another_status_than_those_that_do_not_fit_now() {
    fn little(settings: &mut proxy::Settings) {
        settings.budgets.held_bodies = 100_000;
        // The client reads its answer when all is sent.
        settings.limits.linger_bytes = 1 << 20;
    }
    let head = |length: usize| {
        format!(
            "POST /held HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {length}\r\n\r\n"
        )
        .leak() as &str
    };
    Case {
        client: vec![Send(head(200_000)), Many(b'x', 200_000), ToEnd],
        wants: vec!["HTTP/1.1 413 "],
        silent: true,
        settings: little,
        seeds: 2,
        ..case()
    }
    .run("longer than the memory for bodies");
    Case {
        beside: vec![Send(head(80_000)), Many(b'x', 79_000), Wait(5000), Reset],
        client: vec![Wait(1000), Send(head(50_000)), Many(b'x', 50_000), ToEnd],
        wants: vec!["HTTP/1.1 503 "],
        silent: true,
        settings: little,
        seeds: 2,
        ..case()
    }
    .run("others use too much of it");
}

#[test]
fn a_body_goes_through_filters_with_its_trailers() {
    let post = |query: &str| format!("POST /filters?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n";
    for (about, ask, last, heard) in [
        ("chunks", format!("{}{chunked}\r\n", post("")), "0\r\n\r\n", "DE"),
        ("trailers", format!("{}{chunked}X-Sum: 5\r\n\r\n", post("")), "0\r\nX-Sum: 5\r\n\r\n", "DE"),
        ("nothing is left", format!("{}{chunked}\r\n", post("swallow")), "\r\n\r\n0\r\n\r\n", "chunked"),
        ("a length", format!("{}Content-Length: 3\r\n\r\nabc", post("")), "0\r\n\r\n", "C"),
    ] {
        let (client, servers) = (vec![Send(ask.leak() as &str), ToEnd], answers(last));
        Case { client, servers, heard: vec![heard], wants: vec!["HTTP/1.1 200 "], seeds: 8, ..case() }
            .run(about);
    }
    let get = "GET /filters HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let (client, servers) = (vec![Send(get), ToEnd], answers("\r\n\r\n"));
    Case { client, servers, unheard: vec!["chunked", "Content-Length"], seeds: 2, ..case() }
        .run("there is no body");
    let ask = format!("{}Content-Length: 3\r\n\r\nabc", post("grow")).leak() as &str;
    Case {
        client: vec![Send(ask), ToEnd],
        servers: vec![vec![ToEnd]],
        wants: vec!["HTTP/1.1 503 "],
        maybe: true,
        settings: |settings| settings.budgets.held_bodies = 100_000,
        seeds: 4,
        ..case()
    }
    .run("more than may be held");
}

#[test]
fn a_chunked_body_without_trailers_ends_once() {
    let ask = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}0\r\n\r\n").leak()
            as &str
    };
    for body in ["", "3\r\nabc\r\n"] {
        Case {
            client: vec![
                Send(ask("/a", body)),
                Until("\r\n\r\nok"),
                Send(ask("/a", body)),
                Until("\r\n\r\nok"),
                Close,
            ],
            servers: vec![vec![Until("0\r\n\r\n"), Send(OK), Until("0\r\n\r\n"), Send(OK), ToEnd]],
            unheard: vec!["\r\n\r\n\r\n", "\r\n\r\n0\r\n\r\n\r\n"],
            seeds: 8,
            ..case()
        }
        .run(body);
    }
}

#[test]
fn trailers_do_not_override_fields_of_the_head() {
    let theirs = "X-User: theirs\r\nX-Sum: 5\r\nx_secret: theirs\r\nX-Consumer-Group-Id: theirs\r\n";
    for (path, sum, last) in [
        ("/edits", true, "0\r\nX-Sum: 5\r\n\r\n"),
        ("/edits", false, "0\r\n\r\n"),
        ("/edits-and-filters?", true, "0\r\nX-Sum: 5\r\n\r\n"),
        ("/edits-and-filters?", false, "0\r\n\r\n"),
        ("/edits-and-filters?look", true, "0\r\nX-Sum: 5\r\n\r\n"),
        ("/edits-and-sets", true, "0\r\nX-Up: set\r\nX-Sum: 5\r\n\r\n"),
        ("/edits-and-sets?beginning", true, "0\r\nX-Up: set\r\nX-Sum: 5\r\n\r\n"),
    ] {
        let theirs = if sum { theirs.to_owned() } else { theirs.replace("X-Sum: 5\r\n", "") };
        let ask = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nX-Secret: theirs\r\nConnection: close\r\n\
             Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{theirs}\r\n"
        );
        Case {
            client: vec![Send(ask.leak()), ToEnd],
            servers: answers(last),
            heard: vec!["X-User: ours\r\n"],
            unheard: vec!["theirs"],
            wants: vec!["HTTP/1.1 200 "],
            seeds: 16,
            ..case()
        }
        .run(path);
    }
    // Nor fields of the client's own head, which plugins may have checked.
    for path in ["/a", "/recorded"] {
        let ask = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nX-Token: good\r\nConnection: close\r\n\
             Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 5\r\nx_token: forged\r\n\r\n"
        );
        Case {
            client: vec![Send(ask.leak()), ToEnd],
            servers: answers("0\r\nX-Sum: 5\r\n\r\n"),
            heard: vec!["X-Token: good\r\n"],
            unheard: vec!["forged"],
            wants: vec!["HTTP/1.1 200 "],
            seeds: 16,
            ..case()
        }
        .run(path);
    }
    // Other trailers are forwarded, and the edits of one request do not affect the next.
    let chunked = "Transfer-Encoding: chunked\r\n\r\n0\r\nX-User: theirs\r\n\r\n";
    let ask = |path: &str| format!("POST {path} HTTP/1.1\r\nHost: a\r\n{chunked}").leak() as &str;
    Case {
        client: vec![Send(ask("/edits")), Until("\r\n\r\nok"), Send(ask("/a")), Until("\r\n\r\nok"), Close],
        servers: vec![vec![
            Until("\r\n\r\n0\r\n\r\n"),
            Send(OK),
            Until("\r\n\r\n0\r\nX-User: theirs\r\n\r\n"),
            Send(OK),
            ToEnd,
        ]],
        seeds: 8,
        ..case()
    }
    .run("another request");
}

#[test]
fn a_body_longer_than_a_plugin_s_prefix_is_forwarded_whole() {
    let more = "Transfer-Encoding: chunked\r\n\r\nf\r\nabcdefghijklmnz\r\n0\r\nX-Sum: 5\r\n\r\n";
    for (query, heard) in [("look", "abcdefghijklmnz"), ("look-and-filter", "ABCDEFGHIJKLMNZ")] {
        let ask = format!("POST /filters?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}");
        let client = vec![Send(ask.leak() as &str), ToEnd];
        let last = "\r\n0\r\nX-Sum: 5\r\n\r\n";
        // All of it comes in one packet: what is read is the whole body, with its end.
        let all = format!("chunked\r\n\r\nf\r\n{heard}{last}").leak() as &str;
        let wants = vec!["HTTP/1.1 200 "];
        Case {
            client: client.clone(),
            servers: answers(last),
            heard: vec![all],
            wants: wants.clone(),
            seeds: 1,
            ..case()
        }
        .run(query);
        Case { client, servers: answers(last), wants, seeds: 8, ..case() }.run(query);
    }
}

#[test]
fn servers_that_do_not_read_the_body_get_their_status() {
    let head = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n";
    fn lingering(settings: &mut proxy::Settings) {
        // The client reads its answer when all is sent.
        settings.limits.linger_bytes = 1 << 20;
    }
    let ask = || vec![Send(head), Many(b'x', 200_000), ToEnd];
    let check = |about, server: Vec<Do>, wants| {
        Case { client: ask(), servers: vec![server], wants, settings: lingering, seeds: 1, ..case() }
            .run(about);
    };
    check(
        "it reads no more",
        vec![Until("\r\n\r\n"), Wait(10_000), Close],
        vec!["HTTP/1.1 504 ", "the upstream did not read the request in time"],
    );
    check("it leaves", vec![Until("\r\n\r\n"), Close], vec!["HTTP/1.1 502 "]);
}

#[test]
fn an_empty_body_goes_through_no_filter() {
    for (about, ask) in [
        ("no body", "GET /filters?grow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
        (
            "an empty one",
            "POST /filters?grow HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        ),
    ] {
        let (client, servers) = (vec![Send(ask), ToEnd], answers("\r\n\r\n"));
        Case {
            client,
            servers,
            unheard: vec!["chunked", "gg"],
            wants: vec!["HTTP/1.1 200 "],
            seeds: 4,
            ..case()
        }
        .run(about);
    }
}

#[test]
fn an_answer_under_way_goes_on_where_its_server_takes_no_more_of_the_request() {
    Case {
        client: vec![
            Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 200005\r\n\r\nfirst"),
            Until("\r\n\r\nab"),
            Many(b'x', 200_000),
            Until("cd"),
            ToEnd,
        ],
        servers: vec![vec![
            Until("first"),
            Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab"),
            Wait(1500),
            Send("c"),
            Wait(1500),
            Send("d"),
            // A close would be a reset.
            Wait(1000),
            Close,
        ]],
        // The client reads the rest when all is sent.
        settings: |settings| settings.limits.linger_bytes = 1 << 20,
        ..case()
    }
    .run("it reads nothing for longer than sending may take");
}

#[test]
fn the_beginning_of_a_body_is_read_for_who_wants_that_also_where_its_length_is_known() {
    Case {
        client: vec![
            Send(
                "POST /trailers?beginning HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                 Content-Length: 5\r\n\r\nhello",
            ),
            ToEnd,
        ],
        servers: answers("X-Up: set\r\n\r\n"),
        wants: vec!["HTTP/1.1 200 "],
        seeds: 4,
        ..case()
    }
    .run("five bytes, of which one is wanted");
}

#[test]
fn who_wants_a_little_more_of_a_body_than_another_is_not_asked_for_ever() {
    Case {
        client: vec![
            Send(
                "POST /looks?beginning HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                 Transfer-Encoding: chunked\r\n\r\n14\r\n01234567890123456789\r\n",
            ),
            // Nor is more of it waited for.
            Until("HTTP/1.1 103 "),
            Send("0\r\n\r\n"),
            ToEnd,
        ],
        servers: vec![vec![
            Until("01234567890123456789"),
            Send("HTTP/1.1 103 Early Hints\r\n\r\n"),
            Until("X-Up: set\r\n\r\n"),
            Send(OK),
            ToEnd,
        ]],
        wants: vec!["HTTP/1.1 200 "],
        seeds: 1,
        ..case()
    }
    .run("one byte, then ten, of twenty that are here");
}

#[test]
fn a_plugin_that_asks_again_for_what_it_got_is_broken() {
    Case {
        client: vec![
            Send("POST /filters?insist HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
            Until("HTTP/1.1 500 "),
            Close,
        ],
        silent: true,
        seeds: 2,
        ..case()
    }
    .run("the first byte of five");
}
