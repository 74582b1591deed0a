use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};

use super::*;
use crate::rt::memory::{self, Cut, Schedule};
use crate::rt::{self, WriteHalf};

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../../../../tests/certs/", $name))
    };
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

const TLS12: &[&rustls::SupportedProtocolVersion] = &[&version::TLS12];
const TLS13: &[&rustls::SupportedProtocolVersion] = &[&version::TLS13];

fn server(versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(pem!("server-ec.crt")).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(pem!("server-ec.key")).unwrap();
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions).unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

fn client(alpn: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem!("ca.crt")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

fn name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).unwrap()
}

/// Both ends of a connection whose transport has these schedules.
async fn pair(theirs: Schedule, ours: Schedule, config: Arc<ServerConfig>, alpn: &[&str]) -> (Io, Io) {
    let (one, other) = memory::pair(theirs, ours);
    over(Io::Memory(one), Io::Memory(other), config, alpn).await
}

async fn over(one: Io, other: Io, config: Arc<ServerConfig>, alpn: &[&str]) -> (Io, Io) {
    let mut accepting = Box::pin(accept(one, b"", move |_| Some(config)));
    let mut connecting = Box::pin(connect(other, client(alpn), name("server.test")));
    let (mut accepted, mut connected) = (None, None);
    poll_fn(|cx| {
        if accepted.is_none()
            && let Poll::Ready(io) = accepting.as_mut().poll(cx)
        {
            accepted = Some(io.unwrap());
        }
        if connected.is_none()
            && let Poll::Ready(io) = connecting.as_mut().poll(cx)
        {
            connected = Some(io.unwrap());
        }
        if accepted.is_some() && connected.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (accepted.unwrap(), connected.unwrap())
}

async fn write_all(io: &mut Io, bytes: &[u8]) -> io::Result<()> {
    let mut to: WriteHalf<'_> = io.split().1;
    let mut written = 0;
    while written < bytes.len() {
        written += poll_fn(|cx| to.poll_write(cx, &bytes[written..])).await?;
    }
    poll_fn(|cx| to.poll_flush(cx)).await
}

async fn read(io: &mut Io, buf: &mut [u8]) -> io::Result<usize> {
    poll_fn(|cx| io.split().0.poll_read(cx, buf)).await
}

/// Lets all bytes that are under way arrive.
async fn settle() {
    rt::sleep(Duration::from_millis(1)).await;
}

#[test]
fn every_byte_arrives_in_order_whatever_the_transport_does() {
    for seed in 0..10 {
        let config = server(if seed % 2 == 0 { TLS13 } else { TLS12 });
        let rough =
            Schedule { seed, most: 1 + seed as usize * 600, pauses: 90, room: 2000, ..Schedule::default() };
        rt::run_paused(async move {
            let (mut server, mut client) = pair(rough.clone(), rough, config, &["http/1.1"]).await;
            let sent: Vec<u8> = (0..100_000u32).map(|n| (n / 7) as u8).collect();
            let copy = sent.clone();
            rt::spawn(async move {
                write_all(&mut server, &copy).await.unwrap();
                poll_fn(|cx| server.split().1.poll_shutdown(cx)).await.unwrap();
                assert_eq!(read(&mut server, &mut [0; 8]).await.unwrap(), 0, "the client's end");
            });
            let (mut got, mut part) = (Vec::new(), [0; 3000]);
            loop {
                match read(&mut client, &mut part).await.unwrap() {
                    0 => break,
                    n => got.extend_from_slice(&part[..n]),
                }
            }
            assert!(got == sent);
        })
        .unwrap();
    }
}

#[test]
fn session_tickets_are_no_news() {
    rt::run_paused(async {
        let config = server(TLS13);
        let (mut server, mut client) = pair(Schedule::default(), Schedule::default(), config, &[]).await;
        settle().await;
        assert!(client.maybe_readable(), "the server's tickets have come");
        assert!(client.is_idle());
        assert!(!client.maybe_readable(), "and are out of the way");
        assert!(server.is_idle());
        // A task that waits sees nothing of them, and is still woken after the look in between.
        let mut waited = false;
        write_all(&mut server, b"news").await.unwrap();
        poll_fn(|cx| {
            if !std::mem::replace(&mut waited, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            client.poll_readable(cx)
        })
        .await
        .unwrap();
        assert!(!client.is_idle());
        assert!(client.maybe_readable(), "it was taken from the transport");
        assert_eq!(read(&mut client, &mut [0; 8]).await.unwrap(), 4);
        assert!(client.is_idle());
    })
    .unwrap();
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn who_waits_looks_again_after_a_look_in_between() {
    rt::run_paused(async {
        let config = server(TLS13);
        let (_server, client) = pair(Schedule::default(), Schedule::default(), config, &[]).await;
        let woken = Arc::<Woken>::default();
        let was_woken = || woken.0.load(std::sync::atomic::Ordering::Relaxed);
        let waker = Waker::from(woken.clone());
        assert!(client.poll_readable(&mut Context::from_waker(&waker)).is_pending() && !was_woken());
        assert!(client.is_idle() && was_woken());
    })
    .unwrap();
}

#[test]
fn what_is_written_leaves_when_there_is_room() {
    rt::run_paused(async {
        let narrow = Schedule { room: 2000, ..Schedule::default() };
        let (mut server, _client) = pair(Schedule::default(), narrow, server(TLS13), &[]).await;
        let mut to = server.split().1;
        let taken = poll_fn(|cx| to.poll_write(cx, &[7; 8000])).await.unwrap();
        assert_eq!(taken, 8000);
        assert!(!to.is_direct() && to.poll_flush(&mut Context::from_waker(Waker::noop())).is_pending());
        let (one, _other) = memory::pair(Schedule::default(), Schedule::default());
        assert!(Io::Memory(one).split().1.is_direct());
    })
    .unwrap();
}

#[test]
fn nothing_is_written_to_a_transport_that_has_failed() {
    rt::run_paused(async {
        let config = server(TLS13);
        let (server, mut client) = pair(Schedule::default(), Schedule::default(), config, &[]).await;
        server.abort();
        drop(server);
        let written = rt::within(Duration::from_secs(1), write_all(&mut client, b"news")).await;
        assert!(matches!(written, Some(Err(_))), "{written:?}");
    })
    .unwrap();
}

#[test]
fn a_look_does_not_lose_the_wake_up() {
    rt::run_paused(async {
        let config = server(TLS13);
        let (mut server, client) = pair(Schedule::default(), Schedule::default(), config, &[]).await;
        rt::spawn(async move {
            settle().await;
            write_all(&mut server, b"news").await.unwrap();
            settle().await;
        });
        let mut looked = false;
        let waited = poll_fn(|cx| {
            let readable = client.poll_readable(cx);
            if readable.is_pending() && !std::mem::replace(&mut looked, true) {
                assert!(client.is_idle());
            }
            readable
        });
        rt::within(Duration::from_secs(1), waited).await.expect("woken").unwrap();
    })
    .unwrap();
}

#[test]
fn what_comes_along_with_the_end_of_the_handshake_is_not_lost() {
    rt::run_paused(async {
        for size in [4, 30_000] {
            let (one, other) = memory::pair(Schedule::default(), Schedule::default());
            let config = server(TLS13);
            let mut accepting = Box::pin(accept(Io::Memory(one), b"", move |_| Some(config)));
            let connecting = connect(Io::Memory(other), client(&[]), name("server.test"));
            let mut connecting = Box::pin(connecting);
            // The client is through first, and writes before the server has heard of that.
            let mut client = poll_fn(|cx| match connecting.as_mut().poll(cx) {
                Poll::Pending => {
                    assert!(accepting.as_mut().poll(cx).is_pending());
                    Poll::Pending
                }
                done => done,
            })
            .await
            .unwrap();
            write_all(&mut client, &vec![7; size]).await.unwrap();
            let mut server = accepting.await.unwrap();
            assert!(server.maybe_readable() && !server.is_idle());
            let (mut got, mut part) = (0, [0; 1000]);
            while got < size {
                got += read(&mut server, &mut part).await.unwrap();
            }
            assert!(server.is_idle());
        }
    })
    .unwrap();
}

#[test]
fn an_end_shows_whether_all_arrived() {
    rt::run_paused(async {
        let config = server(TLS13);
        let open = || pair(Schedule::default(), Schedule::default(), config.clone(), &[]);
        // Dropped: an orderly end.
        let (mut server, mut client) = open().await;
        write_all(&mut server, b"all").await.unwrap();
        drop(server);
        assert_eq!(read(&mut client, &mut [0; 8]).await.unwrap(), 3);
        assert_eq!(read(&mut client, &mut [0; 8]).await.unwrap(), 0);
        assert!(!client.is_idle() && client.maybe_readable(), "an end is news");
        // Also where the transport has not reported its own end.
        let late = Schedule { late: true, ..Schedule::default() };
        let (server, mut client) = pair(Schedule::default(), late, config.clone(), &[]).await;
        drop(server);
        assert_eq!(read(&mut client, &mut [0; 8]).await.unwrap(), 0);
        assert!(client.maybe_readable());
        // Aborted: none.
        let (mut server, mut client) = open().await;
        write_all(&mut server, b"part").await.unwrap();
        server.abort();
        drop(server);
        assert!(read(&mut client, &mut [0; 8]).await.is_err());
        // The transport ends without a word.
        let cut = Schedule { cut: Some((3000, Cut::Close)), ..Schedule::default() };
        let (mut server, mut client) = pair(Schedule::default(), cut, config.clone(), &[]).await;
        write_all(&mut server, &[1; 4000]).await.unwrap();
        let end = loop {
            match read(&mut client, &mut [0; 512]).await {
                Ok(1..) => {}
                end => break end,
            }
        };
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    })
    .unwrap();
}

#[test]
fn handshakes_fail_with_a_reason() {
    rt::run_paused(async {
        // Nothing is served under that name.
        let (one, other) = memory::pair(Schedule::default(), Schedule::default());
        rt::spawn(async move {
            let refused = accept(Io::Memory(one), b"", |hello| {
                assert_eq!(hello.server_name(), Some("server.test"));
                None
            });
            assert!(matches!(refused.await, Err(Refused { error: HandshakeError::NoCertificate, .. })));
        });
        let refused = connect(Io::Memory(other), client(&[]), name("server.test")).await;
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::UnrecognisedName);
        assert!(matches!(&refused, Err(HandshakeError::Tls(error)) if *error == alert), "{refused:?}");
        // The certificate is another's.
        let (one, other) = memory::pair(Schedule::default(), Schedule::default());
        rt::spawn(async move {
            let refused = accept(Io::Memory(one), b"", |_| Some(server(TLS13))).await;
            let error = refused.map(drop).unwrap_err().error;
            assert!(matches!(error, HandshakeError::Tls(rustls::Error::AlertReceived(_))));
        });
        let refused = connect(Io::Memory(other), client(&[]), name("another.test")).await;
        assert!(matches!(refused, Err(HandshakeError::Tls(rustls::Error::InvalidCertificate(_)))));
        // The client's bytes are no TLS, or end.
        for (text, is_tls) in [(&b"GET / HTTP/1.1\r\n\r\n"[..], true), (&b""[..], false)] {
            let (one, other) = memory::pair(Schedule::default(), Schedule::default());
            other.write_all(text).await.unwrap();
            other.shut_down();
            let refused =
                accept(Io::Memory(one), b"", |_| unreachable!("there is no hello")).await.unwrap_err();
            assert_eq!(matches!(refused.error, HandshakeError::Tls(_)), is_tls, "{refused:?}");
        }
    })
    .unwrap();
}

#[test]
fn garbage_behind_the_handshake_is_an_error_and_is_answered_with_an_alert() {
    rt::run_paused(async {
        let config = server(TLS13);
        let (mut server, client) = pair(Schedule::default(), Schedule::default(), config, &[]).await;
        let Io::Tls(tls) = client else { unreachable!("it was made with TLS") };
        let mut garbage = vec![23, 3, 3, 0, 20];
        garbage.extend(1..=20);
        poll_fn(|cx| tls.0.borrow_mut().io.split().1.poll_write(cx, &garbage)).await.unwrap();
        assert_eq!(read(&mut server, &mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        let heard = poll_fn(|cx| tls.0.borrow_mut().poll_plaintext(cx)).await;
        assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::InvalidData, "an alert is no orderly end");
    })
    .unwrap();
}

#[test]
fn both_agree_on_a_protocol() {
    rt::run_paused(async {
        for (alpn, h2) in [(&["h2", "http/1.1"][..], true), (&["http/1.1"], false), (&[], false)] {
            let config = server(&[&version::TLS13, &version::TLS12]);
            let (server, client) = pair(Schedule::default(), Schedule::default(), config, alpn).await;
            assert_eq!((server.agreed_on_h2(), client.agreed_on_h2()), (h2, h2));
            let group =
                client.tls().unwrap().agreed(|agreed| agreed.negotiated_key_exchange_group().unwrap().name());
            assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
        }
    })
    .unwrap();
}

#[test]
fn a_request_without_tls_gets_an_explanation() {
    for (sent, is_http) in [
        (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], true),
        (b"PROPFIND / HTTP/1.0\r\n", true),
        (b"get / HTTP/1.1\r\n", false),
        (b"GE / HTTP/1.1\r\n", false),
        (b"\x16\x03\x01\x00\x05GET / ", false),
        (b"SSH-2.0-OpenSSH_9 x\r\n", false),
    ] {
        assert_eq!(super::handshake::is_http(sent), is_http, "{sent:?}");
    }
}

#[test]
fn what_a_peer_has_is_known_below_tls() {
    rt::run(async {
        let listener = rt::listen(std::net::SocketAddr::from(([127, 0, 0, 1], 0)), 8, false).unwrap();
        // The accepted connection, which is the end of TLS's client, has room for less than is sent.
        socket2::SockRef::from(&listener).set_recv_buffer_size(4 << 10).unwrap();
        let addr = listener.local_addr().unwrap();
        let listener = rt::Listener::new(listener).unwrap();
        let ours = rt::connect(addr).await.unwrap();
        let theirs = Io::Plain(listener.accept().await.unwrap().0);
        let (mut server, mut client) = over(ours, theirs, server(TLS13), &[]).await;
        let mut written = 0;
        while let Poll::Ready(n) =
            server.split().1.poll_write(&mut Context::from_waker(Waker::noop()), &[0; 64 << 10])
        {
            written += n.unwrap();
            // The reactor says when the kernel has made room.
            rt::turn().await;
        }
        let has = server.acknowledged().expect("more than the peer has room for");
        assert!((2..2 * written as u64).contains(&has), "{has} of {written}");
        let (mut part, mut got) = (vec![0; 64 << 10], 0);
        while got < written {
            // Bytes that the server still holds go out as there is room for them.
            let both = |cx: &mut Context<'_>| {
                let _ = server.split().1.poll_flush(cx);
                client.split().0.poll_read(cx, &mut part)
            };
            got += poll_fn(both).await.unwrap();
        }
        while server.acknowledged().is_some() {
            rt::turn().await;
        }
    })
    .unwrap();
}
