//! Limits on clients: floods, windows, and slow reads.

use std::time::Duration;

use proxy::testing::{self, H3};
use proxy::{FaultKind, Flood, Settings};
use quinn::{RecvStream, TransportConfig, VarInt};

use super::client::*;
use crate::support::Do::{self, Count, Many, Send, ToEnd, Until, Wait};

/// Ways to cause work without a useful request.
enum Idle {
    /// Repeats the second bytes on a request stream that begins with the first.
    Within(Vec<u8>, Vec<u8>),
    /// Repeats these bytes on the control stream.
    Control(Vec<u8>),
    /// Opens unidirectional streams, each with these bytes and its end.
    OneWay(Vec<u8>),
    /// Cancels incomplete requests.
    Resets,
    /// Sends and cancels invalid requests.
    Refused,
}

impl Idle {
    /// Does it this many times.
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
fn floods_of_useless_frames_and_streams_end_the_connection() {
    let post = || head("POST", "/a", &[]);
    let push = |id: u64| frame(MAX_PUSH_ID, number(id));
    // A frame costs 1 and a 256th of its length, a cancelled request 8, a refused one more.
    let cases = [
        ("empty DATA", Idle::Within(post(), frame(DATA, [])), 15, 60),
        ("unknown frames before the head", Idle::Within(vec![], frame(GREASE, [])), 15, 60),
        ("unknown frames in a body", Idle::Within(post(), frame(GREASE, "x")), 15, 60),
        ("long unknown frames", Idle::Within(post(), cut_off(GREASE, 4000, [b'x'; 4000])), 1, 4),
        ("an unknown frame announced as long", Idle::Within(post(), cut_off(GREASE, 20_000, [])), 0, 1),
        ("an unknown frame announced as endless", Idle::Within(post(), cut_off(GREASE, 1 << 50, [])), 0, 1),
        ("control: unknown frames", Idle::Control(frame(GREASE, [])), 14, 60),
        ("control: long unknown frames", Idle::Control(frame(GREASE, [b'x'; 3500])), 1, 4),
        ("control: a frame announced as long", Idle::Control(cut_off(GREASE, 20_000, [])), 0, 1),
        ("control: a frame announced as endless", Idle::Control(cut_off(GREASE, 1 << 50, [])), 0, 1),
        ("MAX_PUSH_ID", Idle::Control(push(7)), 14, 60),
        ("streams of unknown types", Idle::OneWay(vec![0x21, 0]), 15, 60),
        ("empty streams", Idle::OneWay(vec![]), 15, 60),
        ("cancelled requests", Idle::Resets, 2, 20),
        ("invalid requests", Idle::Refused, 1, 9),
    ];
    let (report, reported) = faults();
    let settings = |settings: &mut Settings| {
        settings.http2.control_frames = 20;
        report(settings);
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
                    reported.try_iter().filter(|fault| fault.fault.kind == FaultKind::Flood(Flood::Frames));
                let limits: Vec<_> = floods.map(|fault| fault.limit).collect();
                let limit = Some(("nginx_config.http.http2_control_frames", 20));
                assert_eq!(limits, if flood { vec![limit] } else { vec![] }, "{about}");
            }
        }
    });
}

/// Configures a client whose streams have a receive window of this many bytes.
fn takes(stream: u32) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(stream.into());
    transport
}

const LARGE: usize = 20_000;

/// Adds a server with a response of [`LARGE`] bytes.
fn serve_large(site: &Site) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").leak();
    site.serves(vec![Until("\r\n\r\n"), Send(head), Many(b'x', LARGE), ToEnd]);
}

/// Sends a request for the large response, and reads nothing yet.
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

/// Reads up to 1000 bytes at a time, with a pause after each read.
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
fn slow_readers_are_served_and_stalled_ones_are_reset() {
    let second = Duration::from_secs(1);
    // With a small window the response waits at the server, with a large one all of it is sent (and the connection
    // may be closed).
    for send_window in [4096, 1 << 20] {
        for keepalive in [0, 5] {
            let settings = move |settings: &mut Settings| {
                settings.http3.send_window = send_window;
                settings.timeouts.send = 3 * second;
                settings.timeouts.keepalive = keepalive * second;
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
fn a_connection_ends_when_its_last_stream_takes_too_long_to_send() {
    let second = Duration::from_secs(1);
    let settings = move |settings: &mut Settings| {
        settings.http3.send_window = 4096;
        settings.timeouts.send = 3 * second;
        settings.timeouts.keepalive = 600 * second;
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
fn slow_readers_get_the_whole_response_while_draining() {
    let second = Duration::from_secs(1);
    beside(
        move |settings| settings.timeouts.send = 3 * second,
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

/// Sends a request to a server that answers after 100 ms, and receives at most `hears` datagrams of the response.
async fn ask_deafly(site: &Site, client: &Client, server: Vec<Do>, hears: usize) -> RecvStream {
    site.serves([vec![Until("\r\n\r\n"), Wait(100)], server].concat());
    let (mut send, recv) = client.begin(&head("GET", "/a", &[])).await;
    send.finish().unwrap();
    lull().await;
    site.port.lets_through(client.at, Some(hears));
    recv
}

#[test]
fn an_unacknowledged_response_is_kept_no_longer_than_an_idle_connection() {
    let second = Duration::from_secs(1);
    for (send_timeout, keepalive) in [(60, 2), (2, 60), (2, 0)] {
        let settings = move |settings: &mut Settings| {
            settings.timeouts.send = send_timeout * second;
            settings.timeouts.keepalive = keepalive * second;
            settings.http3.idle_timeout = 100 * second;
        };
        beside(settings, async move |site| {
            // A client that is unreachable for a second loses nothing.
            let client = site.client().await;
            let mut recv = ask_deafly(site, &client, vec![Send(OK), ToEnd], 0).await;
            testing::sleep(second).await;
            site.port.lets_through(client.at, None);
            assert_eq!(answer(&mut recv).await, WELL, "{send_timeout} {keepalive}");
            client.bye();
            lull().await;
            // For a client that stays unreachable, the response is given up, and the connection is idle.
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
fn a_response_that_is_acknowledged_bit_by_bit_is_kept() {
    let second = Duration::from_secs(1);
    let settings = move |settings: &mut Settings| {
        settings.timeouts.send = 20 * second;
        settings.timeouts.keepalive = 20 * second;
    };
    beside(settings, async move |site| {
        let client = site.client().await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").leak();
        let mut recv = ask_deafly(site, &client, vec![Send(head), Many(b'x', LARGE), ToEnd], 2).await;
        // Without an acknowledgement, it would be given up before the third pause ends.
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
fn an_unread_response_does_not_block_others() {
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
fn unread_bodies_do_not_block_others_and_their_windows_are_released() {
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
                // The server reads late.
                site.serves(vec![Wait(1000), Count(b'~', ALL), Send(OK), ToEnd]);
                let (mut send, recv) = client.begin(&post).await;
                let mut sent = 0;
                let quick = Duration::from_millis(100);
                while let Some(Ok(n)) = testing::within(quick, send.write(&body[sent..])).await {
                    sent += n;
                }
                // The buffers of the server's connection, and the window of the stream.
                assert!(sent > 2 * WINDOW - 1000, "{sent}");
                uploads.push((send, recv, sent));
            }
            assert_eq!(site.gateway.promised(), 4 * WINDOW - (128 << 10), "as docs/configuration.md says");
            for (mut send, mut recv, sent) in uploads {
                within(send.write_all(&body[sent..])).await.unwrap();
                send.finish().unwrap();
                assert_eq!(answer(&mut recv).await, WELL);
            }
            // A window is released only when it is used up.
            site.serves(vec![Count(b'~', ALL), Send(OK), ToEnd]);
            assert_eq!(client.ask(&[post, body].concat()).await, WELL);
            assert_eq!(site.gateway.promised(), 0, "afterwards");
            client.bye();
        },
    );
}

#[test]
fn windows_count_at_most_for_all_streams_of_a_connection() {
    const WINDOW: usize = 1 << 20;
    beside(
        |settings| (settings.http3.stream_window, settings.http3.max_streams) = (WINDOW as u32, 1),
        async |site| {
            let client = site.client().await;
            for _ in 0..12 {
                // Its body gets a window, of which nothing is used.
                let (_send, mut recv) = client.begin(&head("POST", "/nowhere", &[])).await;
                assert!(answer(&mut recv).await.starts_with("404 "));
                lull().await;
            }
            // One request stream, and eight unidirectional ones.
            assert_eq!(site.gateway.promised(), 9 * WINDOW - (128 << 10));
            client.bye();
        },
    );
}

#[test]
fn an_unvalidated_address_gets_at_most_three_times_the_bytes_it_sent() {
    for name in ["server.test", "long.server.test"] {
        for size in [1200, 1201, 1250, 1399, 1452] {
            for silent in [true, false] {
                beside(|_| {}, async move |site| unheard(site, name, size, silent).await);
            }
        }
    }
}

/// Starts a client that receives nothing, as with a spoofed address, and sends its first message once (`silent`) or
/// repeatedly; checks that the gateway sends at most three times the bytes it received.
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
    // Longer than a handshake may take, with all retransmissions.
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
fn a_long_handshake_continues_once_the_address_is_validated() {
    for size in [1200, 1250, 1452] {
        beside(
            |_| {},
            async move |site| {
                // No datagram is lost, so there is no retransmission.
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
