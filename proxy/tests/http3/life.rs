//! The life of a connection, from its handshake to its end (RFC 9114 section 5).

use std::net::SocketAddr;
use std::time::Duration;

use proxy::testing::{self, H3};
use proxy::{FaultKind, Settings, Stage};
use quinn::{ConnectionError, RecvStream, TransportConfig, VarInt};

use super::client::*;
use crate::support::Do::{Send, ToEnd, Until, Wait};

const SECOND: Duration = Duration::from_secs(1);

/// The highest id of a client's stream.
const LAST: u64 = (1 << 62) - 4;

/// Returns the gateway's control stream, after its settings.
async fn control(client: &Client) -> RecvStream {
    let (kind, mut control) = client.hear().await;
    assert_eq!((kind, next_frame(&mut control).await.0), (CONTROL, SETTINGS));
    control
}

/// Reads a GOAWAY and returns its stream id.
async fn going(control: &mut RecvStream) -> u64 {
    let (kind, id) = next_frame(control).await;
    assert_eq!(kind, GOAWAY);
    wire::h3::number(&id).unwrap().0
}

/// Checks that nothing arrives on the control stream for this time.
async fn stays(control: &mut RecvStream, time: Duration) {
    let mut byte = [0];
    assert!(
        testing::within(time, control.read_exact(&mut byte)).await.is_none(),
        "a frame on the control stream"
    );
}

#[test]
fn a_connection_has_a_request_limit_and_rejects_late_ones_as_unprocessed() {
    beside(
        |settings| settings.limits.keepalive_requests = 3,
        async |site| {
            let client = site.client().await;
            let mut control = control(&client).await;
            client.is_served(site, "first").await;
            client.is_served(site, "second").await;
            stays(&mut control, SECOND).await;
            client.is_served(site, "third").await;
            assert_eq!(going(&mut control).await, LAST);
            // The client may not have seen GOAWAY yet.
            client.is_served(site, "fourth").await;
            assert_eq!(going(&mut control).await, 4 * 4, "the streams before this one");
            let (send, mut recv) = client.begin(&head("GET", "/a", &[])).await;
            assert_eq!(answer(&mut recv).await, format!("reset {REQUEST_REJECTED:x}"));
            let stopped = within(send.stopped()).await.unwrap();
            assert_eq!(stopped, Some(VarInt::from_u32(REQUEST_REJECTED as u32)));
            assert_eq!(client.closed().await, NO_ERROR);
        },
    );
}

#[test]
fn a_draining_worker_serves_requests_under_way() {
    beside(
        |_| {},
        async |site| {
            let (client, idle) = (site.client().await, site.client().await);
            let (mut control, mut of_idle) = (control(&client).await, self::control(&idle).await);
            idle.is_served(site, "before").await;
            let slowly = Wait(1500);
            site.serves(vec![Until("\r\n\r\n"), slowly, Send(OK), ToEnd]);
            let (mut send, mut recv) = client.begin(&head("GET", "/a", &[])).await;
            send.finish().unwrap();
            lull().await;
            site.gateway.drain();
            assert_eq!(going(&mut control).await, LAST);
            // At once, without waiting for another event.
            let soon = testing::within(SECOND, going(&mut control)).await;
            assert_eq!(soon, Some(4));
            assert_eq!((going(&mut of_idle).await, going(&mut of_idle).await), (LAST, 4));
            assert_eq!(answer(&mut recv).await, WELL);
            assert_eq!((client.closed().await, idle.closed().await), (NO_ERROR, NO_ERROR));
        },
    );
}

#[test]
fn a_stopping_worker_closes_all_connections() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            site.serves(vec![Until("\r\n\r\n"), ToEnd]);
            let (mut send, mut recv) = client.begin(&head("GET", "/a", &[])).await;
            send.finish().unwrap();
            lull().await;
            site.gateway.enter(Stage::Drain);
            lull().await;
            assert_eq!(client.conn.close_reason(), None);
            site.gateway.enter(Stage::Stop);
            assert_eq!(answer(&mut recv).await, format!("closed {NO_ERROR:x}"));
        },
    );
}

#[test]
fn idle_connections_are_closed() {
    let settings = |settings: &mut Settings| {
        settings.timeouts.header = 3 * SECOND;
        settings.timeouts.keepalive = 6 * SECOND;
    };
    beside(settings, async |site| {
        for (asks, patience) in [(false, 3), (true, 6)] {
            let client = site.client().await;
            let mut control = control(&client).await;
            if asks {
                client.is_served(site, "once").await;
            }
            stays(&mut control, (patience - 1) * SECOND).await;
            assert_eq!(testing::within(2 * SECOND, going(&mut control)).await, Some(LAST));
            assert_eq!(going(&mut control).await, if asks { 4 } else { 0 });
            assert_eq!(client.closed().await, NO_ERROR);
        }
    });
}

#[test]
fn a_connection_with_a_request_is_not_idle() {
    beside(
        |settings| settings.timeouts.keepalive = SECOND / 2,
        async |site| {
            let client = site.client().await;
            let mut control = control(&client).await;
            // The request takes 1.5 s.
            site.serves(vec![Until("\r\n\r\n"), Wait(1500), Send(OK), ToEnd]);
            let (mut send, mut recv) = client.begin(&head("GET", "/a", &[])).await;
            send.finish().unwrap();
            stays(&mut control, SECOND + SECOND / 4).await;
            assert_eq!(answer(&mut recv).await, WELL);
            assert_eq!(going(&mut control).await, LAST);
            assert_eq!(client.closed().await, NO_ERROR);
        },
    );
}

#[test]
fn clients_without_settings_are_served() {
    beside(
        |_| {},
        async |site| {
            // Settings may arrive later (section 7.2.4.2).
            let client = site.mute(TransportConfig::default()).await.unwrap();
            client.is_served(site, "without").await;
            client.bye();
        },
    );
}

#[test]
fn a_client_without_a_stream_for_the_gateway_s_settings_is_disconnected() {
    beside(
        |_| {},
        async |site| {
            // The client must allow at least three unidirectional streams (section 6.2).
            let mut transport = TransportConfig::default();
            transport.max_concurrent_uni_streams(0u32.into());
            let client = site.mute(transport).await.unwrap();
            assert_eq!(client.closed().await, STREAM_CREATION_ERROR);
        },
    );
}

#[test]
fn dead_clients_are_detected_and_live_ones_are_kept() {
    let settings = |settings: &mut Settings| {
        settings.http3.idle_timeout = 3 * SECOND;
        settings.timeouts.keepalive = 60 * SECOND;
    };
    beside(settings, async |site| {
        let client = site.client().await;
        client.is_served(site, "before").await;
        testing::sleep(20 * SECOND).await;
        client.is_served(site, "after a while").await;
        client.bye();
        let client = site.client().await;
        lull().await;
        site.port.lets_through(client.at, Some(0));
        site.port.silence(client.at);
        // The client acknowledges nothing and sends nothing.
        testing::sleep(10 * SECOND).await;
        assert_eq!(site.gateway.connections(), 0);
    });
}

/// Sends a request and returns a header field that the server got about the client and its connection.
async fn seen(site: &Site, client: &Client, field: &str) -> String {
    site.serves(answers(OK));
    assert_eq!(client.ask(&head("GET", "/seen", &[])).await, WELL);
    let heard = site.heard().await.concat();
    heard.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().to_owned()
}

#[test]
fn negotiated_tls_parameters_are_variables() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            let agreed = client.ask(&head("GET", "/agreed", &[])).await;
            assert!(agreed.ends_with(" | \"TLSv1.3, h3, .\" | end"), "{agreed}");
            client.bye();
        },
    );
}

#[test]
fn a_migrated_client_is_served_under_its_new_address() {
    beside(
        |_| {},
        async |site| {
            let own = Some((pem!("client.crt"), pem!("client.key")));
            let config = trusting(pem!("ca.crt"), "h3", TransportConfig::default(), own);
            let client = site.connect(config, H3, "own.server.test").await.unwrap();
            // The client certificate was verified in the handshake, so it is valid after the migration as well.
            let known = "127.0.0.1 own.server.test SUCCESS";
            assert_eq!(seen(site, &client, "X-Seen: ").await, known);
            assert_eq!(seen(site, &client, "X-Real-IP: ").await, "127.0.0.1");
            site.port.move_client(&client.endpoint, SocketAddr::from(([127, 0, 0, 2], 50_000))).unwrap();
            // The first packet from the new address starts the migration.
            seen(site, &client, "").await;
            assert_eq!(seen(site, &client, "X-Real-IP: ").await, "127.0.0.2");
            assert_eq!(seen(site, &client, "X-Seen: ").await, known);
            client.bye();
        },
    );
}

#[test]
fn long_client_certificate_chains_complete_the_handshake() {
    beside(
        |_| {},
        async |site| {
            // The chain does not fit into one datagram.
            let chain = [pem!("client.crt"), &pem!("ca.crt").repeat(8)].concat();
            let own = Some((&chain[..], pem!("client.key")));
            let config = trusting(pem!("ca.crt"), "h3", TransportConfig::default(), own);
            let client = site.connect(config, H3, "own.server.test").await.unwrap();
            assert_eq!(seen(site, &client, "X-Seen: ").await, "127.0.0.1 own.server.test SUCCESS");
            client.bye();
        },
    );
}

#[test]
fn the_local_address_is_the_one_that_the_client_connected_to() {
    let all = SocketAddr::from(([0, 0, 0, 0], H3.port()));
    beside_port(
        all,
        |_| {},
        async |site| {
            for last in [1, 9] {
                let to = SocketAddr::from(([127, 0, 0, last], H3.port()));
                let config = tls("h3", TransportConfig::default());
                let client = site.connect(config, to, "server.test").await.unwrap();
                assert_eq!(seen(site, &client, "X-Seen: ").await, format!("{} server.test NONE", to.ip()));
                client.bye();
            }
        },
    );
}

/// Runs a handshake that must fail, and returns the client's error.
async fn fails(site: &Site, config: quinn::ClientConfig, name: &str) -> ConnectionError {
    let (endpoint, _) = site.endpoint();
    let error = within(endpoint.connect_with(config, H3, name).unwrap()).await.unwrap_err();
    lull().await;
    error
}

#[test]
fn failed_handshakes_are_reported() {
    let (report, reported) = faults();
    beside(report, async move |site| {
        let fault = || {
            let all: Vec<_> = reported.try_iter().collect();
            assert_eq!(all.len(), 1, "{all:?}");
            (all[0].fault.kind, all[0].tls.server.as_deref().unwrap_or_default().to_owned())
        };
        let plain = || TransportConfig::default();
        // Alerts are RFC 8446's: unrecognized_name, no_application_protocol.
        let error = fails(site, tls("h3", plain()), "other.test").await;
        assert!(error.to_string().contains("112"), "{error}");
        assert_eq!(fault(), (FaultKind::NoCertificate, "other.test".to_owned()));
        let error = fails(site, tls("http/0.9", plain()), "server.test").await;
        assert!(error.to_string().contains("120"), "{error}");
        assert!(matches!(fault().0, FaultKind::HandshakeFailed(_)));
        fails(site, trusting(pem!("other-ca.crt"), "h3", plain(), None), "server.test").await;
        let ended = FaultKind::HandshakeFailed("the client ended the TLS handshake");
        assert_eq!(fault(), (ended, "server.test".to_owned()));
        // A client that sends nothing more.
        let _stalled = site.stall().await;
        testing::sleep(9 * SECOND).await;
        assert_eq!(reported.try_iter().count(), 0);
        testing::sleep(2 * SECOND).await;
        assert_eq!(fault(), (FaultKind::HandshakeTimeout, "server.test".to_owned()));
        let totals = site.meters.read(1, |reading| reading.totals());
        assert_eq!(totals.waiting, 0);
    });
}

#[test]
fn addresses_are_validated_by_retry_under_load() {
    for (retry_from, alone, beside_one) in [(0, 1, 2), (1, 0, 1), (2, 0, 0)] {
        let settings = move |settings: &mut Settings| settings.http3.retry_from = retry_from;
        beside(settings, async move |site| {
            site.client().await.bye();
            assert_eq!(site.port.retries(), alone, "{retry_from}");
            let _stalled = site.stall().await;
            let asked = site.port.retries();
            site.client().await.bye();
            assert_eq!(site.port.retries() - asked + alone, beside_one, "{retry_from}, beside one");
            // The stalled handshake has timed out and no longer counts.
            testing::sleep(15 * SECOND).await;
            let asked = site.port.retries();
            site.client().await.bye();
            assert_eq!(site.port.retries() - asked, alone, "{retry_from}, afterwards");
        });
    }
}

#[test]
fn handshakes_beyond_the_limit_wait() {
    beside(
        |settings| settings.http3.max_handshakes = 1,
        async |site| {
            let _stalled = site.stall().await;
            let mut next = Box::pin(site.client());
            assert!(testing::within(5 * SECOND, &mut next).await.is_none());
            within(next).await.bye();
        },
    );
}

#[test]
fn idle_connections_make_room_and_busy_ones_do_not() {
    beside(
        |settings| settings.limits.connections = 1,
        async |site| {
            // A connection in its handshake counts as idle.
            let _stalled = site.stall().await;
            let client = testing::within(SECOND, site.client()).await.expect("there is room");
            site.serves(vec![Until("\r\n\r\n"), Wait(500), Send(OK), ToEnd]);
            let (mut send, mut recv) = client.begin(&head("GET", "/a", &[])).await;
            send.finish().unwrap();
            lull().await;
            let refused = site.mute(TransportConfig::default()).await;
            assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "{:?}", refused.err());
            assert_eq!(answer(&mut recv).await, WELL);
            client.bye();
        },
    );
}

#[test]
fn a_new_client_is_not_refused_while_an_idle_connection_ends() {
    beside(
        |settings| settings.limits.connections = 8,
        async |site| {
            let mut clients = Vec::new();
            for _ in 0..8 {
                let client = site.client().await;
                client.is_served(site, "before").await;
                clients.push(client);
            }
            // A client is idle when it has acknowledged its answer.
            while site.meters.read(1, |reading| reading.totals()).waiting < 8 {
                testing::sleep(Duration::from_millis(1)).await;
            }
            // All connect at once, and retry until there is room.
            let (done, mut all) = tokio::sync::mpsc::unbounded_channel();
            for number in 0..7 {
                let (endpoint, _) = site.endpoint();
                let config = tls("h3", TransportConfig::default());
                let connecting = endpoint.connect_with(config, H3, "server.test").unwrap();
                let done = done.clone();
                testing::spawn(async move {
                    let _ = done.send((number, endpoint, connecting.await));
                });
            }
            drop(done);
            let mut new = Vec::new();
            while let Some((number, endpoint, conn)) = within(all.recv()).await {
                let conn = conn.unwrap_or_else(|error| panic!("the new client {number}: {error}"));
                new.push((endpoint, conn));
            }
            let ended = clients.iter().filter(|client| client.conn.close_reason().is_some()).count();
            assert!(ended >= 7, "{ended} made room");
            for (_, conn) in new {
                conn.close(0u32.into(), b"");
            }
            clients.iter().filter(|client| client.conn.close_reason().is_none()).for_each(Client::bye);
        },
    );
}
