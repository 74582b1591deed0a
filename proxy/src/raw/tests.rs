use std::cell::RefCell;
use std::future::pending;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::JoinHandle;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sdk::World;
use sdk::connection::{AsyncReadExt, AsyncWriteExt, TlsHandle};
use sdk::meters::Meters;
use sdk::resolve::{Answer, Resolve, Resolved};
use snapshot::Publisher;
use snapshot::certs::{Authorities, CommonTls};

use super::*;
use crate::settings::Settings;
use crate::watch::Watch;
use crate::worker::tests::empty;

const CA: &[u8] = include_bytes!("../../../tests/certs/ca.crt");

/// Runs a test beside a worker with sockets of the kernel, and returns how many panics its tasks had.
fn beside_sockets(settings: Settings, test: impl AsyncFnOnce(Rc<Worker>) + 'static) -> u64 {
    let meters = Arc::new(Meters::default());
    let (_publisher, mut readers) = Publisher::new(empty(), 1);
    let shard = meters.shard(0);
    rt::run(async move {
        let reader = readers.pop().unwrap();
        test(Worker::new(0, Arc::new(settings), reader, shard, Arc::default(), Watch::new(1))).await;
    })
    .unwrap();
    meters.read(1, |reading| reading.totals().panics)
}

fn with_limit(connections: usize) -> Settings {
    Settings::with(|settings| settings.limits.plugin_connections = connections)
}

fn trusting_ca() -> Settings {
    let authorities = Authorities::new(vec![CertificateDer::from_pem_slice(CA).unwrap()]);
    let tls = CommonTls::new(Arc::new(authorities)).unwrap();
    Settings { tls, ..Settings::default() }
}

fn connect(server: Server) -> Connect {
    Connect { server, pool: "".into(), timeout: Duration::from_secs(20) }
}

fn tcp(addr: SocketAddr) -> Connect {
    connect(Server::Tcp { at: Addresses::Known([addr].into()), tls: None })
}

fn tls(addr: SocketAddr, name: &str, trust: Trust) -> Connect {
    let tls = Tls { server_name: name.into(), trust };
    connect(Server::Tcp { at: Addresses::Known([addr].into()), tls: Some(tls) })
}

fn copy(mut io: impl Read + Write) {
    let mut buf = [0; 1024];
    while let Ok(n @ 1..) = io.read(&mut buf) {
        if io.write_all(&buf[..n]).is_err() {
            break;
        }
    }
}

/// A server that sends back what it gets, on one connection after the other. It ends with the last of `connections`.
fn echo(connections: usize, serve: fn(TcpStream)) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            serve(stream.unwrap());
        }
    });
    (addr, serving)
}

fn serve_tls(stream: TcpStream) {
    let chain = CertificateDer::pem_slice_iter(include_bytes!("../../../tests/certs/server-ec.crt"))
        .map(Result::unwrap);
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../../../tests/certs/server-ec.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_no_client_auth().with_single_cert(chain.collect(), key).unwrap();
    copy(StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), stream));
}

/// Has something sent back.
async fn talk(connection: &mut Connection) {
    connection.write_all(b"hello").await.unwrap();
    connection.flush().await.unwrap();
    let mut answer = [0; 5];
    connection.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"hello");
}

#[test]
fn a_connection_that_is_given_back_is_used_again_unless_it_died() {
    beside_sockets(Settings::default(), async |worker| {
        let (addr, serving) = echo(1, copy);
        let mut first = worker.connect(tcp(addr)).await.unwrap();
        assert!(!first.is_reused());
        talk(&mut first).await;
        first.keep(Duration::from_secs(60));
        let other = Connect { pool: "another user".into(), ..tcp(addr) };
        let other = worker.connect(other).await;
        assert!(other.is_err() || !other.unwrap().is_reused(), "of another pool");
        let mut again = worker.connect(tcp(addr)).await.unwrap();
        assert!(again.is_reused());
        talk(&mut again).await;
        again.close().await.unwrap();
        serving.join().unwrap();
        again.keep(Duration::from_secs(60));
        assert_eq!(worker.connect(tcp(addr)).await.unwrap_err(), ConnectError::Refused, "the server is gone");

        let (addr, _serving) = echo(2, copy);
        worker.connect(tcp(addr)).await.unwrap().keep(Duration::ZERO);
        assert!(!worker.connect(tcp(addr)).await.unwrap().is_reused(), "kept for no time");
    });
}

#[test]
fn servers_are_verified_as_wanted() {
    beside_sockets(trusting_ca(), async |worker| {
        let (addr, _serving) = echo(usize::MAX, serve_tls);
        let mut verified = worker.connect(tls(addr, "server.test", Trust::Common)).await.unwrap();
        talk(&mut verified).await;
        verified.keep(Duration::from_secs(60));
        // The server serves one after the other.
        drop(worker.connect(tls(addr, "server.test", Trust::Common)).await.unwrap());
        let refused = worker.connect(tls(addr, "other.test", Trust::Common)).await.unwrap_err();
        assert!(refused.to_string().contains("for another name"), "{refused}");
        let mut any = worker.connect(tls(addr, "other.test", Trust::Any)).await.unwrap();
        assert!(!any.is_reused());
        talk(&mut any).await;
        drop(any);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let own = |authorities| {
            let tls = ClientTls::new(Some(Arc::new(authorities)), None, &provider).unwrap();
            Trust::Own(TlsHandle(Arc::new(tls)))
        };
        let nobodys = own(Authorities::default());
        let refused = worker.connect(tls(addr, "server.test", nobodys)).await.unwrap_err();
        assert!(refused.to_string().contains("not trusted"), "{refused}");
        let ours = own(Authorities::new(vec![CertificateDer::from_pem_slice(CA).unwrap()]));
        talk(&mut worker.connect(tls(addr, "server.test", ours)).await.unwrap()).await;
        let foreign = Trust::Own(TlsHandle(Arc::new(1)));
        assert!(matches!(
            worker.connect(tls(addr, "server.test", foreign)).await,
            Err(ConnectError::Untrusted(_))
        ));
    });
}

#[test]
fn a_connection_is_secured_later_and_kept_as_such() {
    beside_sockets(trusting_ca(), async |worker| {
        let (addr, _serving) = echo(usize::MAX, serve_tls);
        let with = |name: &str, trust| Tls { server_name: name.into(), trust };
        let time = Duration::from_secs(20);
        assert!(worker.idle(&tcp(addr)).is_none());
        let plain = worker.connect(tcp(addr)).await.unwrap();
        let mut secured = plain.secure(with("server.test", Trust::Common), time).await.unwrap();
        talk(&mut secured).await;
        assert_eq!((secured.is_reused(), secured.reused_times()), (false, 0));
        secured.keep(Duration::from_secs(60));
        for other in [tcp(addr), tls(addr, "other.test", Trust::Common), tls(addr, "server.test", Trust::Any)]
        {
            assert!(worker.idle(&other).is_none(), "{other:?}");
        }
        let mut again = worker.idle(&tls(addr, "server.test", Trust::Common)).unwrap();
        assert_eq!((again.is_reused(), again.reused_times()), (true, 1));
        talk(&mut again).await;
        let twice = again.secure(with("server.test", Trust::Common), time).await;
        assert!(matches!(twice, Err(ConnectError::Untrusted(_))), "{twice:?}");
        let refused = worker.connect(tcp(addr)).await.unwrap();
        let refused = refused.secure(with("other.test", Trust::Common), time).await.unwrap_err();
        assert!(refused.to_string().contains("for another name"), "{refused}");
        let any = worker.connect(tcp(addr)).await.unwrap();
        talk(&mut any.secure(with("other.test", Trust::Any), time).await.unwrap()).await;

        // A server that says nothing: the time limit holds, and closes the connection.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let waiting = worker.connect(tcp(silent.local_addr().unwrap())).await.unwrap();
        let waiting = waiting.secure(with("a", Trust::Any), Duration::from_millis(50)).await;
        assert_eq!(waiting.unwrap_err(), ConnectError::Timeout);
        assert_eq!(worker.raw.count(), 0);
    });
}

#[test]
fn sockets_of_the_file_system_and_of_datagrams_are_connections_too() {
    beside_sockets(Settings::default(), async |worker| {
        let path = std::env::temp_dir().join(format!("sluice-raw-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let unix = || connect(Server::Unix(Path::new(&path).into()));
        let serving = std::thread::spawn(move || copy(listener.accept().unwrap().0));
        let mut connection = worker.connect(unix()).await.unwrap();
        talk(&mut connection).await;
        connection.keep(Duration::from_secs(60));
        let mut connection = worker.connect(unix()).await.unwrap();
        assert!(connection.is_reused());
        talk(&mut connection).await;
        connection.close().await.unwrap();
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
        serving.join().unwrap();
        connection.keep(Duration::from_secs(60));
        assert_eq!(worker.connect(unix()).await.unwrap_err(), ConnectError::Refused);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(worker.connect(unix()).await.unwrap_err(), ConnectError::Refused);

        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buf = [0; 1024];
            while let Ok((n, from)) = server.recv_from(&mut buf) {
                server.send_to(&buf[..n], from).unwrap();
            }
        });
        let udp = || connect(Server::Udp(Addresses::Known([addr].into())));
        let mut connection = worker.connect(udp()).await.unwrap();
        talk(&mut connection).await;
        connection.write_all(b"long").await.unwrap();
        connection.write_all(b"short").await.unwrap();
        assert_eq!(connection.read(&mut [0; 2]).await.unwrap(), 2, "the end of a datagram is lost");
        assert_eq!(connection.read(&mut [0; 9]).await.unwrap(), 5);
        connection.keep(Duration::from_secs(60));
        let mut connection = worker.connect(udp()).await.unwrap();
        assert!(connection.is_reused());
        talk(&mut connection).await;
    });
}

#[test]
fn connections_in_use_are_bounded_and_a_dropped_one_is_closed() {
    beside_sockets(with_limit(2), async |worker| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (first, second) = (worker.connect(tcp(addr)).await, worker.connect(tcp(addr)).await);
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(worker.connect(tcp(addr)).await.unwrap_err(), ConnectError::Limit);
        let mut accepted = listener.accept().unwrap().0;
        drop(first);
        assert_eq!(accepted.read(&mut [0]).unwrap(), 0, "the end");
        second.unwrap().keep(Duration::from_secs(60));
        let reused = worker.connect(tcp(addr)).await.unwrap();
        let fresh = worker.connect(tcp(addr)).await.unwrap();
        assert_eq!((reused.is_reused(), fresh.is_reused()), (true, false));
        assert_eq!(worker.connect(tcp(addr)).await.unwrap_err(), ConnectError::Limit);
    });
}

#[test]
fn a_silent_address_gets_its_part_of_the_time() {
    beside_sockets(Settings::default(), async |worker| {
        let (_silent, hangs, _filling) = connect::tests::silent();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |all: &[SocketAddr]| Connect {
            timeout: Duration::from_millis(300),
            ..connect(Server::Tcp { at: Addresses::Known(all.into()), tls: None })
        };
        assert_eq!(worker.connect(at(&[hangs])).await.unwrap_err(), ConnectError::Timeout);
        let opened = worker.connect(at(&[hangs, listener.local_addr().unwrap()])).await;
        assert!(opened.is_ok(), "{opened:?}");
        assert_eq!(worker.connect(at(&[])).await.unwrap_err(), ConnectError::Unresolved);
    });
}

#[test]
fn hosts_are_resolved() {
    struct Local;
    impl Resolve for Local {
        fn resolve(&self, host: &str) -> Answer {
            let addresses = match host {
                "echo.test" => Ok([IpAddr::from([127, 0, 0, 1])].into()),
                _ => Err("there is no such name".into()),
            };
            Box::pin(async { Some(Resolved { addresses, ttl: Duration::from_secs(60) }) })
        }
    }
    let settings = Settings { resolver: Some(Arc::new(Local)), ..Settings::default() };
    beside_sockets(settings, async |worker| {
        let (addr, _serving) = echo(1, copy);
        let host = |name: &str| {
            let at = Addresses::Host { name: name.into(), port: addr.port() };
            connect(Server::Tcp { at, tls: None })
        };
        talk(&mut worker.connect(host("echo.test")).await.unwrap()).await;
        assert_eq!(worker.connect(host("none.test")).await.unwrap_err(), ConnectError::Unresolved);
    });
}

#[test]
fn tasks_are_bounded_end_with_the_worker_and_their_panics_are_counted() {
    thread_local! {
        static ENDED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }
    struct Ends(&'static str);
    impl Drop for Ends {
        fn drop(&mut self) {
            ENDED.with_borrow_mut(|ended| ended.push(self.0));
        }
    }
    let panics = beside_sockets(with_limit(2), async |worker| {
        let task = |name| {
            let ends = Ends(name);
            Box::pin(async move {
                let _ends = ends;
                pending().await
            })
        };
        worker.run(Box::pin(async { panic!("as a test of panics does") })).unwrap();
        worker.run(task("one")).unwrap();
        assert_eq!(worker.run(task("two")), Err(TooManyTasks));
        while worker.tasks.count() > 1 {
            rt::turn().await;
        }
        worker.run(task("three")).unwrap();
        rt::turn().await;
        assert_eq!(ENDED.take(), ["two"]);
    });
    let mut ended = ENDED.take();
    ended.sort_unstable();
    assert_eq!((panics, &ended[..]), (1, &["one", "three"][..]));
}
