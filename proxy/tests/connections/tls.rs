//! TLS clients: variables of the handshake, and failed handshakes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use proxy::testing::{self, End, Gateway, Schedule};
use proxy::{FaultKind, Listener, Settings, TlsNames, Traffic, Versions};
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::support::Do::{AskAll, ToEnd};
use crate::support::recorder::faults;
use crate::support::tls::{Tls, shows, speaks};
use crate::support::{self, Got, http2, settle};

fn connect(gateway: &Gateway) -> End {
    gateway.connect_tls(Schedule::default(), Schedule::default())
}

#[test]
fn negotiated_tls_parameters_have_openssl_names() {
    support::with_gateways(Settings::default(), 1, async |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        for (version, alpn, expected) in [
            (&TLS13, &["http/1.1"][..], "TLSv1.3, http/1.1, "),
            (&TLS12, &["http/1.0", "http/1.1"], "TLSv1.2, http/1.1, "),
            (&TLS13, &["http/1.0"], "TLSv1.3, http/1.0, "),
            (&TLS12, &[], "TLSv1.2, , "),
            (&TLS13, &["h2", "http/1.1"], "TLSv1.3, h2, "),
            (&TLS12, &["h2"], "TLSv1.2, h2, "),
        ] {
            let config = speaks(version, alpn);
            // The second connection resumes the session.
            for reused in [".", "r"] {
                let mut tls = Tls::shake(connect(&gateway), &config, "server.test").await.unwrap();
                let answer = match alpn.contains(&"h2") {
                    true => {
                        let got = RefCell::<Got>::default();
                        http2::play("the client", &[AskAll("GET /agreed"), ToEnd], tls, &got).await;
                        got.take().text()
                    }
                    false => {
                        let close = "Host: server.test\r\nConnection: close\r\n\r\n";
                        tls.ask(&format!("GET /agreed HTTP/1.1\r\n{close}")).await
                    }
                };
                assert!(answer.contains(&format!("\n{expected}{reused}")), "{expected}{reused}: {answer}");
            }
        }
        settle(&gateway, "afterwards").await;
    });
}

#[test]
fn alt_svc_is_added_unless_the_response_sets_it() {
    let settings = Settings {
        listen: vec![Listener {
            address: SocketAddr::from(([127, 0, 0, 1], 9080)),
            traffic: Traffic::Http(Versions { h1: true, h2: true, h3: true }),
            tls: true,
            proxy_protocol: false,
        }],
        ..Settings::default()
    };
    support::with_gateways(settings, 1, async |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        let config = speaks(&TLS13, &["h2"]);
        for (path, alt_svc) in [("GET /agreed", "h3=\":9080\"; ma=86400\n"), ("GET /elsewhere", "clear\n")] {
            let tls = Tls::shake(connect(&gateway), &config, "server.test").await.unwrap();
            let got = RefCell::<Got>::default();
            http2::play("the client", &[AskAll(path), ToEnd], tls, &got).await;
            let answer = got.take().text();
            assert_eq!(answer.matches("alt-svc: ").count(), 1, "{path}: {answer}");
            assert!(answer.contains(&format!("alt-svc: {alt_svc}")), "{path}: {answer}");
        }
        settle(&gateway, "afterwards").await;
    });
}

#[test]
fn failed_handshakes_are_reported_and_leave_nothing() {
    let (report, reported) = faults();
    let mut settings = Settings::with(|settings| settings.timeouts.handshake = Duration::from_secs(3));
    report(&mut settings);
    support::with_gateways(settings, 1, async move |mut gateways, meters| {
        let gateway = gateways.next().unwrap();
        let is_over = async |about: &str| {
            settle(&gateway, about).await;
            let totals = meters.read(1, |reading| reading.totals());
            assert_eq!(totals.waiting, 0, "{about}: clients that wait");
            let mut all = reported
                .try_iter()
                .map(|fault| (fault.fault.kind, fault.tls.server.unwrap_or_default().into_string()));
            let first = all.next();
            assert_eq!(all.next(), None, "{about}: a second report");
            first
        };
        let config = speaks(&TLS13, &[]);
        // The alert is RFC 6066's, unrecognized_name.
        for (name, kind) in [("other.test", Some(FaultKind::NoCertificate)), ("127.0.0.1", None)] {
            let failed = Tls::shake(connect(&gateway), &config, name).await.err().unwrap();
            assert!(failed.to_string().contains("UnrecognisedName"), "{name}: {failed}");
            let reported = is_over(name).await.unwrap();
            match kind {
                Some(kind) => assert_eq!(reported, (kind, name.to_owned())),
                None => {
                    let FaultKind::HandshakeFailed(why) = reported.0 else { panic!("{reported:?}") };
                    assert!(why.contains("named no server") && reported.1.is_empty(), "{reported:?}");
                }
            }
        }
        let end = connect(&gateway);
        end.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        assert_eq!(end.read(&mut answer).await.unwrap(), 12);
        assert_eq!(&answer, b"HTTP/1.1 400");
        let reported = is_over("plain HTTP").await.unwrap();
        assert!(
            matches!(reported.0, FaultKind::HandshakeFailed(why) if why.contains("plain HTTP request")),
            "{reported:?}"
        );
        drop(connect(&gateway));
        assert_eq!(is_over("one that goes without a word").await, None);
        let silent = connect(&gateway);
        testing::sleep(Duration::from_secs(2)).await;
        assert_eq!(meters.read(1, |reading| reading.totals()).waiting, 1, "it waits");
        assert_eq!(
            is_over("one that says nothing").await,
            Some((FaultKind::HandshakeTimeout, String::new()))
        );
        drop(silent);
        let silent = connect(&gateway);
        testing::turn().await;
        assert!(gateway.close_idle_clients(), "there is one");
        testing::turn().await;
        assert_eq!(gateway.connections(), 0, "it gives way at once");
        assert_eq!(is_over("one that gives way").await, None);
        drop(silent);
    });
}

#[test]
fn missing_client_certificates_are_reported() {
    let (report, reported) = faults();
    let mut settings = Settings::default();
    report(&mut settings);
    support::with_gateways(settings, 1, async move |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        let stranger = (
            include_bytes!("../../../tests/certs/stranger.crt").as_slice(),
            include_bytes!("../../../tests/certs/stranger.key").as_slice(),
        );
        for (own, why) in [
            (None, "client certificate was not present"),
            (Some(stranger), "client certificate verification is not passed"),
        ] {
            let config = shows(&TLS13, &[], own);
            let mut tls = Tls::shake(connect(&gateway), &config, "partly.server.test").await.unwrap();
            let close = "Host: partly.server.test\r\nConnection: close\r\n\r\n";
            let answer = tls.ask(&format!("GET /agreed HTTP/1.1\r\n{close}")).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
            let reported: Vec<_> = reported.try_iter().map(|fault| fault.fault.kind).collect();
            assert_eq!(reported, [FaultKind::NotProven(why)]);
        }
        settle(&gateway, "afterwards").await;
    });
}

#[test]
fn refused_clients_read_the_alert_even_after_sending_more() {
    let (report, reported) = faults();
    let mut settings = Settings::default();
    report(&mut settings);
    support::with_gateways(settings, 1, async move |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        let stranger = (
            include_bytes!("../../../tests/certs/stranger.crt").as_slice(),
            include_bytes!("../../../tests/certs/stranger.key").as_slice(),
        );
        for (own, alert, certificate) in [
            (None, "CertificateRequired", None),
            (
                Some(stranger),
                "UnknownCA",
                Some(("CN=stranger,O=Sluice tests".into(), "CN=other-ca,O=Sluice tests".into())),
            ),
        ] {
            let config = shows(&TLS13, &["h2"], own);
            let mut tls = Tls::shake(connect(&gateway), &config, "own.server.test").await.unwrap();
            // More than the gateway reads at once, so some bytes are unread when the handshake fails.
            for _ in 0..3 {
                poll_fn(|cx| Pin::new(&mut tls).poll_write(cx, &[b'x'; 16 << 10])).await.unwrap();
            }
            let mut part = [0; 100];
            let mut buf = ReadBuf::new(&mut part);
            let refused = poll_fn(|cx| Pin::new(&mut tls).poll_read(cx, &mut buf)).await.unwrap_err();
            assert!(refused.to_string().contains(alert), "{alert}: {refused}");
            let names = TlsNames { server: Some("own.server.test".into()), certificate };
            let reported: Vec<_> = reported.try_iter().map(|fault| fault.tls).collect();
            assert_eq!(reported, [names], "{alert}");
            drop(tls);
            settle(&gateway, alert).await;
        }
        // A client that keeps sending and does not close gets `linger_timeout`, as after other refusals.
        let mut tls =
            Tls::shake(connect(&gateway), &shows(&TLS13, &["h2"], None), "own.server.test").await.unwrap();
        poll_fn(|cx| Pin::new(&mut tls).poll_write(cx, b"x")).await.unwrap();
        testing::sleep(Duration::from_millis(500)).await;
        assert_eq!(gateway.connections(), 1);
        testing::sleep(Duration::from_secs(2)).await;
        assert_eq!(gateway.connections(), 0, "it has had its time");
    });
}

#[test]
fn a_client_that_does_not_read_the_end_of_a_response_gets_the_send_timeout() {
    let settings = Settings::with(|settings| {
        settings.timeouts.send = Duration::from_secs(3);
        settings.timeouts.keepalive = Duration::from_secs(600);
    });
    support::with_gateways(settings, 1, async |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        let narrow = Schedule { room: 2048, ..Schedule::default() };
        let end = gateway.connect_tls(Schedule::default(), narrow);
        let mut tls = Tls::shake(end, &speaks(&TLS13, &[]), "server.test").await.unwrap();
        let ask = b"GET /recorded-long HTTP/1.1\r\nHost: server.test\r\n\r\n";
        poll_fn(|cx| Pin::new(&mut tls).poll_write(cx, ask)).await.unwrap();
        poll_fn(|cx| Pin::new(&mut tls).poll_flush(cx)).await.unwrap();
        testing::sleep(Duration::from_secs(2)).await;
        assert_eq!(gateway.connections(), 1);
        testing::sleep(Duration::from_secs(60)).await;
        assert_eq!(gateway.connections(), 0, "all of it is in the session, and not with the client");
    });
}
