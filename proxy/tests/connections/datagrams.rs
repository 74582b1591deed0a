//! UDP streams: sessions, their queues, and their ends.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use proxy::Settings;
use proxy::testing::{self, Gateway};

use crate::support::datagrams::{Peer, hear_any, late, settle};
use crate::support::{recorder, snapshot};

const IDLE: Duration = Duration::from_secs(10);

/// Runs a test with a worker that has a UDP port of this number, and passes the port's address.
fn beside(
    number: u16,
    change: impl FnOnce(&mut Settings),
    test: impl AsyncFnOnce(Gateway, SocketAddr) + 'static,
) {
    let (snapshot, meters) = snapshot();
    let mut settings = Settings::default();
    settings.streams.udp_idle_timeout = IDLE;
    change(&mut settings);
    testing::run(settings, snapshot, &meters, 1, async move |mut gateways| {
        let gateway = gateways.next().unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = socket.local_addr().unwrap();
        gateway.open_datagrams(socket, number).unwrap();
        test(gateway, port).await;
    })
    .unwrap();
}

fn peer() -> Peer {
    Peer::at((Ipv4Addr::LOCALHOST, 0).into())
}

/// Waits until all sessions have ended.
async fn over(gateway: &Gateway) {
    testing::sleep(IDLE + Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(gateway.datagrams(), (0, 0));
}

/// Sends a datagram to the server and its answer to the client. Returns the address from which the server got it.
async fn call(client: &Peer, port: SocketAddr, server: &Peer, says: &[u8], answer: &[u8]) -> SocketAddr {
    client.send(port, says);
    let (heard, from) = server.hear().await;
    assert_eq!(heard, says);
    server.send(from, answer);
    assert_eq!(client.hear().await, (answer.to_vec(), port));
    from
}

#[test]
fn sessions_are_limited_and_a_finished_one_makes_room() {
    beside(
        7020,
        |settings| settings.streams.max_udp_sessions = 2,
        async |gateway, port| {
            let (server, clients) = (Peer::server(), [peer(), peer(), peer()]);
            for _ in 0..3 {
                call(&clients[0], port, &server, b"1", b"one").await;
                call(&clients[1], port, &server, b"", b"").await;
                assert_eq!(gateway.datagrams(), (2, 0));
                // The datagram of a third client is dropped: the server next gets that of the first.
                clients[2].send(port, b"lost");
                call(&clients[0], port, &server, b"22", b"two").await;
                call(&clients[0], port, &server, &[b'l'; 60_000], b"").await;
                assert_eq!(gateway.datagrams(), (2, 0));
                over(&gateway).await;
                let mut recorded = recorder::lines();
                recorded.sort();
                assert_eq!(
                    recorded,
                    [
                        "stream 200 up 0 down 0 from [], 0 and 0",
                        "stream 200 up 60003 down 6 from [], 60003 and 6",
                    ]
                );
                call(&clients[2], port, &server, b"3", b"three").await;
                over(&gateway).await;
                assert_eq!(recorder::lines(), ["stream 200 up 1 down 5 from [], 1 and 5"]);
            }
        },
    );
}

#[test]
fn a_session_lasts_while_either_side_sends() {
    beside(
        7020,
        |_| {},
        async |gateway, port| {
            let (server, client) = (Peer::server(), peer());
            let from = call(&client, port, &server, b"a", b"b").await;
            let most = IDLE - Duration::from_secs(1);
            for _ in 0..3 {
                // Only the client sends.
                testing::sleep(most).await;
                client.send(port, b"c");
                assert_eq!(server.hear().await, (b"c".to_vec(), from));
                // Only the server sends.
                testing::sleep(most).await;
                server.send(from, b"s");
                assert_eq!(client.hear().await, (b"s".to_vec(), port));
            }
            over(&gateway).await;
            assert_eq!(recorder::lines(), ["stream 200 up 4 down 4 from [], 4 and 4"]);
            assert_ne!(call(&client, port, &server, b"a", b"b").await, from, "a session of its own");
        },
    );
}

#[test]
fn queues_are_bounded_while_a_plugin_waits() {
    let queue = |settings: &mut Settings| settings.streams.udp_queue = 10;
    beside(7021, queue, async |gateway, port| {
        let server = Peer::server();
        for _ in 0..3 {
            // One session: bytes, and empty datagrams.
            let (client, other) = (peer(), peer());
            for says in [&b"1234"[..], b"567890", b"too much", b""] {
                client.send(port, says);
            }
            for _ in 0..70 {
                other.send(port, b"");
            }
            settle().await;
            assert_eq!(gateway.datagrams(), (2, 10));
            testing::sleep(Duration::from_secs(2)).await;
            let mut heard = Vec::new();
            for _ in 0..3 + 64 {
                heard.push(server.hear().await.0);
            }
            assert_eq!(gateway.datagrams(), (2, 0));
            heard.retain(|datagram| !datagram.is_empty());
            assert_eq!(heard, [b"1234".to_vec(), b"567890".to_vec()]);
            call(&client, port, &server, b"later", b"").await;
            over(&gateway).await;
            // All sessions together.
            let clients: Vec<Peer> = (0..70).map(|_| peer()).collect();
            for client in &clients {
                client.send(port, b"0123456789");
            }
            settle().await;
            assert_eq!(gateway.datagrams(), (70, 640));
            testing::sleep(Duration::from_secs(2)).await;
            for _ in 0..64 {
                assert_eq!(server.hear().await.0, b"0123456789");
            }
            call(&clients[69], port, &server, b"later", b"").await;
            over(&gateway).await;
        }
    });
}

#[test]
fn a_plugin_sees_the_first_datagram_and_may_end_the_session() {
    beside(
        7022,
        |_| {},
        async |gateway, port| {
            let (server, good, bad) = (Peer::server(), peer(), peer());
            bad.send(port, b"what is it");
            call(&good, port, &server, b"asked", b"yes").await;
            // A refused client stays refused for a second, even with valid datagrams.
            bad.send(port, b"asked");
            settle().await;
            assert_eq!(gateway.datagrams(), (2, 0));
            call(&good, port, &server, b"more", b"yes").await;
            testing::sleep(Duration::from_secs(2)).await;
            assert_eq!(gateway.datagrams(), (1, 0));
            call(&bad, port, &server, b"asked", b"yes").await;
            over(&gateway).await;
            let mut recorded = recorder::lines();
            recorded.sort();
            assert_eq!(
                recorded,
                [
                    "stream 200 up 5 down 3 from [], 5 and 3",
                    "stream 200 up 9 down 6 from [], 9 and 6",
                    "stream 403 up 0 down 0 from [], 10 and 0",
                ]
            );
        },
    );
}

#[test]
fn a_port_without_a_route_serves_no_client() {
    beside(
        7999,
        |_| {},
        async |gateway, port| {
            let client = peer();
            client.send(port, b"any");
            settle().await;
            assert_eq!(gateway.datagrams(), (1, 0));
            client.send(port, b"more");
            over(&gateway).await;
        },
    );
}

#[test]
fn a_closed_server_port_is_recorded_and_tried_again_later() {
    beside(
        7023,
        |_| {},
        async |gateway, port| {
            let client = peer();
            client.send(port, b"any");
            settle().await;
            assert_eq!(gateway.datagrams(), (1, 0));
            // The kernel reports the closed port with the next datagram.
            client.send(port, b"more");
            settle().await;
            assert_eq!(gateway.datagrams(), (1, 0), "the server is not tried again at once");
            testing::sleep(Duration::from_secs(2)).await;
            assert_eq!(gateway.datagrams(), (0, 0));
            assert_eq!(recorder::lines(), ["stream 502 up 3 down 0 from [], 7 and 0"]);
            let server = Peer::at(late());
            call(&client, port, &server, b"again", b"yes").await;
            // A server that closes ends the session as well.
            drop(server);
            for says in [b"who", b"are"] {
                client.send(port, says);
                settle().await;
            }
            assert_eq!(gateway.datagrams(), (0, 0));
            assert_eq!(recorder::lines(), ["stream 502 up 8 down 3 from [], 11 and 3"]);
        },
    );
}

#[test]
fn a_session_that_times_out_counts_as_a_success_of_its_server() {
    let brief = |settings: &mut Settings| settings.streams.udp_idle_timeout = Duration::from_millis(100);
    beside(7024, brief, async |gateway, port| {
        let servers = [Peer::server(), Peer::at(late())];
        // Runs a session, kept alive by `more` datagrams, and returns the index of its server.
        let session = async |more: usize| {
            let client = peer();
            client.send(port, b"first");
            let (which, ..) = hear_any([&servers[0], &servers[1]]).await;
            for _ in 0..more {
                testing::sleep(Duration::from_millis(100)).await;
                client.send(port, b"more");
                assert_eq!(servers[which].hear().await.0, b"more");
            }
            testing::sleep(Duration::from_secs(1)).await;
            settle().await;
            assert_eq!(gateway.datagrams(), (0, 0));
            which
        };
        // An EWMA sample weighs more the longer ago the previous one was.
        testing::sleep(Duration::from_secs(20)).await;
        let long = session(5).await;
        let short = session(0).await;
        assert_ne!(long, short, "the other server has no samples yet");
        // Failures would count as one second each, and older samples less.
        assert_eq!(session(0).await, short, "the one whose sessions are over sooner");
    });
}
