//! What a client may cost: floods, windows, and time that it takes to read.

use std::time::Duration;

use proxy::testing::{self, H3};
use proxy::{FaultKind, Flood, Settings};
use quinn::{RecvStream, TransportConfig, VarInt};

use super::client::*;
use crate::support::Do::{self, Count, Many, Send, ToEnd, Until, Wait};

/// What asks for nothing, or is work for nothing.
enum Idle {
    /// On a stream of a request, behind this.
    Within(Vec<u8>, Vec<u8>),
    Control(Vec<u8>),
    /// Streams of one way, each with this, and its end.
    OneWay(Vec<u8>),
    /// Requests that are taken back.
    Resets,
    /// Such as are none.
    Refused,
}

impl Idle {
    /// Says so much of it.
    async fn say(&self, client: &mut Client, times: usize) {
        match self {
            Idle::Within(before, unit) => {
                let (send, _) = client.begin(&[&before[..], &unit.repeat(times)].concat()).await;
                client.kept.push(send);
            }
            Idle::Control(unit) => say(&mut client.kept[0], &unit.repeat(times), false).await,
            Idle::OneWay(bytes) => {
                for _ in 0..times {
                    let Ok(mut send) = client.conn.open_uni().await else { return };
                    say(&mut send, bytes, false).await;
                    let _ = send.finish();
                    lull().await;
                }
            }
            Idle::Resets | Idle::Refused => {
                for _ in 0..times {
                    let Ok((mut send, _recv)) = client.conn.open_bi().await else { return };
                    let refused = matches!(self, Idle::Refused);
                    let said = if refused { head("GET", "/a", &[("te", "gzip")]) } else { vec![1] };
                    say(&mut send, &said, false).await;
                    lull().await;
                    let _ = send.reset(VarInt::from_u32(REQUEST_CANCELLED as u32));
                    lull().await;
                }
            }
        }
        lull().await;
    }
}

#[test]
fn a_client_that_asks_for_nothing_has_little_credit() {
    let post = || head("POST", "/a", &[]);
    let push = |id: u64| frame(MAX_PUSH_ID, number(id));
    // A frame costs 1 and a 256th of its length, a request that is taken back 8, one that is refused more.
    let cases = [
        ("DATA of nothing", Idle::Within(post(), frame(DATA, [])), 15, 60),
        ("what is unknown, first", Idle::Within(vec![], frame(GREASE, [])), 15, 60),
        ("what is unknown, in a body", Idle::Within(post(), frame(GREASE, "x")), 15, 60),
        ("what is unknown, and long", Idle::Within(post(), cut_off(GREASE, 4000, [b'x'; 4000])), 1, 4),
        ("what is unknown, and said to be long", Idle::Within(post(), cut_off(GREASE, 20_000, [])), 0, 1),
        ("what is unknown, and has no end", Idle::Within(post(), cut_off(GREASE, 1 << 50, [])), 0, 1),
        ("the same for the connection", Idle::Control(frame(GREASE, [])), 14, 60),
        ("what is long for the connection", Idle::Control(frame(GREASE, [b'x'; 3500])), 1, 4),
        ("what is said to be long for it", Idle::Control(cut_off(GREASE, 20_000, [])), 0, 1),
        ("what has no end for it", Idle::Control(cut_off(GREASE, 1 << 50, [])), 0, 1),
        ("pushes that are allowed", Idle::Control(push(7)), 14, 60),
        ("streams that nobody knows", Idle::OneWay(vec![0x21, 0]), 15, 60),
        ("streams that are over at once", Idle::OneWay(vec![]), 15, 60),
        ("requests that are taken back", Idle::Resets, 2, 20),
        ("requests that are none", Idle::Refused, 1, 9),
    ];
    let (tells, told) = faults();
    let settings = |settings: &mut Settings| {
        settings.http2.control_frames = 20;
        tells(settings);
    };
    beside(settings, async move |site| {
        for (about, idle, few, many) in cases {
            for (times, flood) in [(few, false), (many, true)] {
                let mut client = site.client().await;
                site.serves(vec![ToEnd]);
                idle.say(&mut client, times).await;
                site.forget();
                if flood {
                    assert_eq!(client.closed().await, EXCESSIVE_LOAD, "{about}");
                } else {
                    assert_eq!(client.conn.close_reason(), None, "{about}");
                    client.kept.truncate(1);
                    client.is_served(site, about).await;
                    client.bye();
                }
                site.heard().await;
                let floods =
                    told.try_iter().filter(|fault| fault.fault.kind == FaultKind::Flood(Flood::Frames));
                let limits: Vec<_> = floods.map(|fault| fault.limit).collect();
                let limit = Some(("nginx_config.http.http2_control_frames", 20));
                assert_eq!(limits, if flood { vec![limit] } else { vec![] }, "{about}");
            }
        }
    });
}

/// A client that takes so many bytes of a stream before it has read them.
fn takes(stream: u32) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(stream.into());
    transport
}

const LARGE: usize = 20_000;

/// A server with an answer of so many bytes.
fn serve_large(site: &Site) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").leak();
    site.serves(vec![Until("\r\n\r\n"), Send(head), Many(b'x', LARGE), ToEnd]);
}

/// Asks for that, and reads nothing yet.
async fn ask_large(site: &Site, client: &Client) -> RecvStream {
    serve_large(site);
    let (mut send, recv) = client.begin(&head("GET", "/a", &[])).await;
    send.finish().unwrap();
    lull().await;
    recv
}

fn is_large(answer: &str) -> bool {
    answer == format!("200 content-length: {LARGE} | \"{}\" | end", "x".repeat(LARGE))
}

/// Reads a thousand bytes at a time, each so long after the last.
async fn read_slowly(mut recv: RecvStream, pause: Duration) -> String {
    let mut got = Vec::new();
    loop {
        let mut part = [0; 1000];
        match within(recv.read(&mut part)).await {
            Ok(Some(n)) => got.extend_from_slice(&part[..n]),
            Ok(None) => return [parts(&got).join(" | "), "end".to_owned()].join(" | "),
            Err(error) => return format!("{error:?}"),
        }
        testing::sleep(pause).await;
    }
}

#[test]
fn an_answer_waits_for_a_client_that_reads_slowly_and_not_for_one_that_does_not() {
    let second = Duration::from_secs(1);
    // Where it waits: with the server, or all of it on the way to the client (its connection may end then).
    for send_window in [4096, 1 << 20] {
        for keepalive in [0, 5] {
            let settings = move |settings: &mut Settings| {
                settings.http3.send_window = send_window;
                settings.send_timeout = 3 * second;
                settings.keepalive_timeout = keepalive * second;
            };
            beside(settings, async move |site| {
                let client = site.client_with(takes(1000)).await;
                let recv = ask_large(site, &client).await;
                let answer = read_slowly(recv, 2 * second).await;
                assert!(is_large(&answer), "{send_window} {keepalive}: {answer}");
                let client = site.client_with(takes(1000)).await;
                let mut recv = ask_large(site, &client).await;
                testing::sleep(30 * second).await;
                let (bytes, end) = rest(&mut recv).await;
                let given_up = format!("reset {INTERNAL_ERROR:x}");
                assert!(
                    end == given_up || end == format!("closed {NO_ERROR:x}"),
                    "{send_window}: {end} {}",
                    bytes.len()
                );
                site.heard().await;
            });
        }
    }
}

#[test]
fn a_client_whose_last_stream_takes_too_long_to_be_sent_loses_its_connection() {
    let second = Duration::from_secs(1);
    let settings = move |settings: &mut Settings| {
        settings.http3.send_window = 4096;
        settings.send_timeout = 3 * second;
        settings.keepalive_timeout = 600 * second;
    };
    beside(settings, async move |site| {
        let client = site.client_with(takes(1000)).await;
        let _recv = ask_large(site, &client).await;
        testing::sleep(second).await;
        assert_eq!(client.conn.close_reason(), None);
        testing::sleep(20 * second).await;
        assert_eq!(client.closed().await, NO_ERROR);
        site.heard().await;
    });
}

#[test]
fn who_reads_slowly_gets_all_though_the_gateway_goes() {
    let second = Duration::from_secs(1);
    beside(
        move |settings| settings.send_timeout = 3 * second,
        async move |site| {
            let client = site.client_with(takes(1000)).await;
            let recv = ask_large(site, &client).await;
            site.gateway.drain();
            let answer = read_slowly(recv, 2 * second).await;
            assert!(is_large(&answer), "{answer}");
            assert_eq!(client.closed().await, NO_ERROR);
        },
    );
}

/// Asks a server that answers after a while, and hears no more than so many datagrams of the answer.
async fn ask_deafly(site: &Site, client: &Client, server: Vec<Do>, hears: usize) -> RecvStream {
    site.serves([vec![Until("\r\n\r\n"), Wait(100)], server].concat());
    let (mut send, recv) = client.begin(&head("GET", "/a", &[])).await;
    send.finish().unwrap();
    lull().await;
    site.port.lets_through(client.at, Some(hears));
    recv
}

#[test]
fn an_answer_that_nobody_acknowledges_is_kept_no_longer_than_a_connection_without_requests() {
    let second = Duration::from_secs(1);
    for (send_timeout, keepalive) in [(60, 2), (2, 60), (2, 0)] {
        let settings = move |settings: &mut Settings| {
            settings.send_timeout = send_timeout * second;
            settings.keepalive_timeout = keepalive * second;
            settings.http3.idle_timeout = 100 * second;
        };
        beside(settings, async move |site| {
            // Who is away for a moment misses nothing.
            let client = site.client().await;
            let mut recv = ask_deafly(site, &client, vec![Send(OK), ToEnd], 0).await;
            testing::sleep(second).await;
            site.port.lets_through(client.at, None);
            assert_eq!(answer(&mut recv).await, WELL, "{send_timeout} {keepalive}");
            client.bye();
            lull().await;
            // Who does not come back loses it, and then the connection is without requests.
            let client = site.client().await;
            let _recv = ask_deafly(site, &client, vec![Send(OK), ToEnd], 0).await;
            site.gateway.drain();
            testing::sleep(10 * second).await;
            assert_eq!(site.gateway.connections(), 0, "{send_timeout} {keepalive}");
            site.port.lets_through(client.at, None);
        });
    }
}

#[test]
fn an_answer_that_is_acknowledged_bit_by_bit_is_kept() {
    let second = Duration::from_secs(1);
    let settings = move |settings: &mut Settings| {
        settings.send_timeout = 20 * second;
        settings.keepalive_timeout = 20 * second;
    };
    beside(settings, async move |site| {
        let client = site.client().await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").leak();
        let mut recv = ask_deafly(site, &client, vec![Send(head), Many(b'x', LARGE), ToEnd], 2).await;
        // It would be given up by the third time.
        for _ in 0..6 {
            while site.port.room(client.at) != Some(0) {
                testing::sleep(second).await;
            }
            testing::sleep(8 * second).await;
            site.port.lets_through(client.at, Some(2));
        }
        site.port.lets_through(client.at, None);
        let answer = answer(&mut recv).await;
        assert!(is_large(&answer), "{answer}");
        client.bye();
    });
}

#[test]
fn an_answer_that_is_not_read_holds_up_no_other() {
    beside(
        |_| {},
        async |site| {
            let client = site.client_with(takes(1000)).await;
            let unread = ask_large(site, &client).await;
            site.serves(answers(OK));
            assert_eq!(client.ask(&head("GET", "/a", &[])).await, WELL);
            let answer = read_slowly(unread, Duration::ZERO).await;
            assert!(is_large(&answer), "{answer}");
            client.bye();
        },
    );
}

#[test]
fn bodies_that_are_not_read_hold_up_no_other_and_what_was_promised_for_them_is_given_back() {
    const WINDOW: usize = 64 << 10;
    const ALL: usize = 300_000;
    beside(
        |settings| settings.http3.stream_window = WINDOW as u32,
        async |site| {
            let client = site.client().await;
            let post = head("POST", "/a", &[("content-length", &ALL.to_string())]);
            let body = frame(DATA, vec![b'~'; ALL]);
            assert_eq!(site.gateway.promised(), 0, "before");
            let mut uploads = Vec::new();
            for _ in 0..4 {
                // It reads late.
                site.serves(vec![Wait(1000), Count(b'~', ALL), Send(OK), ToEnd]);
                let (mut send, recv) = client.begin(&post).await;
                let mut sent = 0;
                let quick = Duration::from_millis(100);
                while let Some(Ok(n)) = testing::within(quick, send.write(&body[sent..])).await {
                    sent += n;
                }
                // What the server's connection takes, and the stream's own window.
                assert!(sent > 2 * WINDOW - 1000, "{sent}");
                uploads.push((send, recv, sent));
            }
            assert_eq!(site.gateway.promised(), 4 * WINDOW - (128 << 10), "as docs/configuration.md says");
            for (mut send, mut recv, sent) in uploads {
                within(send.write_all(&body[sent..])).await.unwrap();
                send.finish().unwrap();
                assert_eq!(answer(&mut recv).await, WELL);
            }
            // It is not given back before it is used up.
            site.serves(vec![Count(b'~', ALL), Send(OK), ToEnd]);
            assert_eq!(client.ask(&[post, body].concat()).await, WELL);
            assert_eq!(site.gateway.promised(), 0, "afterwards");
            client.bye();
        },
    );
}

#[test]
fn no_more_is_counted_as_promised_than_all_streams_of_a_connection_may_leave_unread() {
    const WINDOW: usize = 1 << 20;
    beside(
        |settings| (settings.http3.stream_window, settings.http3.max_streams) = (WINDOW as u32, 1),
        async |site| {
            let client = site.client().await;
            for _ in 0..12 {
                // Its body is promised a window, of which nothing is used.
                let (_send, mut recv) = client.begin(&head("POST", "/nowhere", &[])).await;
                assert!(answer(&mut recv).await.starts_with("404 "));
                lull().await;
            }
            // One of a request, and eight that go one way.
            assert_eq!(site.gateway.promised(), 9 * WINDOW - (128 << 10));
            client.bye();
        },
    );
}

#[test]
fn an_address_that_is_not_proved_gets_at_most_three_times_what_came_from_it() {
    for name in ["server.test", "long.server.test"] {
        for size in [1200, 1201, 1250, 1399, 1452] {
            for silent in [true, false] {
                beside(|_| {}, async move |site| unheard(site, name, size, silent).await);
            }
        }
    }
}

/// A client that hears nothing, as at an address of another machine, and says its first message once or again
/// and again.
async fn unheard(site: &Site, name: &str, size: u16, silent: bool) {
    let (endpoint, at) = site.endpoint();
    site.port.lets_through(at, Some(0));
    let connecting = endpoint.connect_with(brief(size), H3, name).unwrap();
    lull().await;
    if silent {
        site.port.silence(at);
    }
    let about = format!("{name}, {size} bytes, silent: {silent}");
    let mut most = 0;
    // Longer than a handshake may take, with all that is sent again.
    for _ in 0..120 {
        let (came, went) = site.port.traffic(at);
        most = most.max(100 * went / came);
        assert!(went <= 3 * came, "{about}: {went} bytes for {came}");
        testing::sleep(Duration::from_millis(250)).await;
    }
    let (came, _) = site.port.traffic(at);
    assert_eq!(came == u64::from(size), silent, "{about}: {came} bytes came");
    assert!(most >= 100, "{about}: {most}%, as if there was no answer");
    drop(connecting);
}

#[test]
fn a_handshake_of_more_than_three_times_what_came_goes_on_when_the_address_is_proved() {
    for size in [1200, 1250, 1452] {
        beside(
            |_| {},
            async move |site| {
                // No datagram is lost, so none has to be sent again.
                let soon = Duration::from_millis(100);
                let connecting = site.connect(brief(size), H3, "long.server.test");
                let client = testing::within(soon, connecting).await.expect("nothing waits").unwrap();
                let (came, went) = site.port.traffic(client.at);
                assert!(went > 3 * u64::from(size), "{size}: {went} for {came}");
                client.is_served(site, "after that").await;
                client.bye();
            },
        );
    }
}
