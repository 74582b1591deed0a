//! Taking QUIC connections: as many as there is room for, from clients that are where they say.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quinn::{
    AsyncUdpSocket, Connection, ConnectionError, Endpoint, Incoming, ServerConfig, TransportConfig, VarInt,
};
use sdk::Client;
use sdk::client::TlsSession;
use wire::h3::code;

use super::tls::{Crypto, Seen, serve_here};
use super::{FIRST_WINDOW, ONE_WAY, sending, serve};
use crate::down::refusal::report_handshake;
use crate::exchange::fault::{Fault, FaultKind, TlsNames};
use crate::rt::{self, quic};
use crate::settings::Settings;
use crate::stage::Stage;
use crate::worker::{Handed, Worker};

/// Connections that are begun or refused before everything else that is ready gets its turn.
const TURN: u32 = 16;

/// Bytes that are kept for a connection before it is taken or refused, and for all such connections.
const EARLY_BYTES: u64 = 16 << 10;
const ALL_EARLY_BYTES: u64 = 4 << 20;

/// After another process has got the socket, what was read before comes in this time.
const LAST_TURN: Duration = Duration::from_millis(50);

/// A worker's part of a port.
pub(crate) struct Port {
    /// A copy, for another process …
    socket: UdpSocket,
    /// … and that process, as soon as there is one.
    heir: Arc<quic::Heir>,
    /// The processes before, of which the numbered one is passed what comes here for it.
    elders: (Arc<[quic::Elder]>, usize),
    endpoint: Endpoint,
    config: ServerConfig,
    crypto: Crypto,
    local: SocketAddr,
    /// Counts the bytes for addresses that are not proved.
    unproved: Arc<quic::Unproved>,
    /// Handshakes under way.
    shaking: Cell<usize>,
}

impl Port {
    /// Opens it on a socket that is bound already.
    pub(crate) fn open(settings: &Settings, socket: UdpSocket, post: quic::Post) -> io::Result<Rc<Port>> {
        let copy = socket.try_clone()?;
        Port::over(settings, quic::socket(socket)?, copy, post)
    }

    /// The same over anything that carries datagrams. `copy` is what another process is given.
    pub(crate) fn over(
        settings: &Settings,
        socket: Arc<dyn AsyncUdpSocket>,
        copy: UdpSocket,
        post: quic::Post,
    ) -> io::Result<Rc<Port>> {
        let local = socket.local_addr()?;
        let crypto = Crypto::new().map_err(io::Error::other)?;
        let config = config(settings, &crypto);
        let heir = Arc::<quic::Heir>::default();
        let elders = post.elders();
        let unproved = Arc::<quic::Unproved>::default();
        let endpoint = quic::endpoint(socket, post, heir.clone(), unproved.clone(), config.clone())?;
        Ok(Rc::new(Port {
            socket: copy,
            heir,
            elders,
            endpoint,
            config,
            crypto,
            local,
            unproved,
            shaking: Cell::new(0),
        }))
    }

    /// Whether the process before this one is there still, and gets by this one what comes for its connections.
    pub(crate) fn has_elder(&self) -> bool {
        let (elders, mine) = &self.elders;
        elders.get(*mine).is_some_and(quic::Elder::is_there)
    }
}

impl Handed for Port {
    /// The socket, and the line by which the other process passes on what is for connections here.
    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![self.socket.try_clone()?.into(), self.heir.line()?])
    }
}

fn config(settings: &Settings, crypto: &Crypto) -> ServerConfig {
    let bounds = &settings.http3;
    let idle = bounds.idle_timeout.max(Duration::from_secs(1));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(bounds.max_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(ONE_WAY))
        .stream_receive_window(VarInt::from_u32(bounds.stream_window))
        .receive_window(VarInt::from_u32(FIRST_WINDOW))
        .send_window(sending::first(bounds.send_window))
        .max_idle_timeout(idle.try_into().ok())
        // A response may be long in coming; a client that is gone does not answer this.
        .keep_alive_interval(Some(idle / 3))
        .datagram_receive_buffer_size(None);
    let mut config = ServerConfig::with_crypto(Arc::new(crypto.clone()));
    config
        .transport_config(Arc::new(transport))
        .max_incoming(bounds.max_handshakes)
        .incoming_buffer_size(EARLY_BYTES)
        .incoming_buffer_size_total(ALL_EARLY_BYTES);
    config
}

/// Takes connections until the worker is to stop.
pub(crate) async fn listen(worker: Rc<Worker>, port: Rc<Port>, mut signal: rt::Signal) {
    serve_here(&worker);
    let mut done_this_turn = 0;
    while worker.stage() == Stage::Run {
        let accepted = pin!(port.endpoint.accept());
        let stopped = pin!(rt::changed(&mut signal));
        match rt::either(accepted, stopped).await {
            Ok(Some(incoming)) => take(&worker, &port, incoming).await,
            Ok(None) | Err(_) => break,
        }
        done_this_turn += 1;
        if done_this_turn == TURN {
            done_this_turn = 0;
            rt::turn().await;
        }
    }
    // Connections that have begun here stay.
    if *signal.borrow() == Stage::HandOver {
        hand_over(&worker, &port).await;
    }
    port.endpoint.set_server_config(None);
    let mut stage = *signal.borrow();
    while stage < Stage::Stop {
        stage = rt::changed(&mut signal).await;
        if stage == Stage::HandOver {
            port.heir.hand_over();
        }
    }
    port.endpoint.close(VarInt::from_u32(code::NO_ERROR), b"");
}

/// Leaves the socket to another process, and serves the connections that have begun here before.
async fn hand_over(worker: &Rc<Worker>, port: &Rc<Port>) {
    port.heir.hand_over();
    let deadline = worker.clock.after(LAST_TURN);
    let waiter = worker.clock.waiter();
    loop {
        let mut accepted = pin!(port.endpoint.accept());
        match waiter.until(deadline, |cx| accepted.as_mut().poll(cx)).await {
            Ok(Some(incoming)) => take(worker, port, incoming).await,
            Ok(None) | Err(_) => break,
        }
    }
}

async fn take(worker: &Rc<Worker>, port: &Rc<Port>, incoming: Incoming) {
    let bounds = &worker.settings.http3;
    if port.shaking.get() >= bounds.max_handshakes {
        worker.shard.handshake(false, false);
        return incoming.ignore();
    }
    if port.shaking.get() >= bounds.retry_from && !incoming.remote_address_validated() {
        // It costs nothing to keep: all that is to be known stands in the token that comes back.
        return drop(incoming.retry());
    }
    if worker.is_full() {
        if !worker.make_room().await {
            worker.shard.handshake(false, false);
            return incoming.refuse();
        }
        if worker.is_full() {
            // An idle connection ends soon, and the client sends its first packet again.
            return incoming.ignore();
        }
    }
    let seen = Arc::<Seen>::default();
    let mut config = port.config.clone();
    let (peer, ip) = (incoming.remote_address(), incoming.local_ip());
    let address = (!incoming.remote_address_validated()).then(|| port.unproved.begin(peer));
    config.crypto = port.crypto.watched(&seen, address.clone());
    let connecting = match port.unproved.connect(address, || incoming.accept_with(Arc::new(config))) {
        Ok(connecting) => connecting,
        Err(_) => {
            return fail(worker, &Client::new(peer, port.local, true), &seen, seen.fault.get().copied());
        }
    };
    // The listener's own address says enough unless it is a wildcard.
    let local = match ip {
        Some(ip) if port.local.ip().is_unspecified() => SocketAddr::new(ip, port.local.port()),
        _ => port.local,
    };
    let shaking = Shaking::new(port);
    worker.hold(move |worker| async move {
        let mut client = Client::new(peer, local, true);
        let Some((conn, session)) = Box::pin(shake(&worker, connecting, &client, &seen)).await else {
            return;
        };
        drop(shaking);
        client.session = Some(Arc::new(session));
        serve(worker, conn, client).await;
    });
}

/// Counts a handshake while it is under way.
struct Shaking(Rc<Port>);

impl Shaking {
    fn new(port: &Rc<Port>) -> Shaking {
        port.shaking.set(port.shaking.get() + 1);
        Shaking(port.clone())
    }
}

impl Drop for Shaking {
    fn drop(&mut self) {
        self.0.shaking.set(self.0.shaking.get() - 1);
    }
}

/// Waits for the end of a handshake. A client that takes too long is disconnected; while the handshake runs,
/// the connection counts as idle and gives way to others.
async fn shake(
    worker: &Rc<Worker>,
    connecting: quinn::Connecting,
    client: &Client,
    seen: &Seen,
) -> Option<(Connection, TlsSession)> {
    let waiter = worker.clock.waiter();
    let deadline = worker.clock.after(worker.settings.timeouts.handshake);
    let mut connecting = pin!(connecting);
    worker.shard.waiting(1);
    waiter.rest();
    let shaken = waiter
        .until(deadline, |cx| match connecting.as_mut().poll(cx) {
            Poll::Pending if waiter.is_unwanted() => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await;
    waiter.end_rest();
    worker.shard.waiting(-1);
    let kind = match shaken {
        Ok(Some(Ok(conn))) => {
            let session = conn.handshake_data()?.downcast::<TlsSession>().ok()?;
            worker.shard.handshake(true, session.reused);
            return Some((conn, *session));
        }
        // It gave way to others.
        Ok(None) => return None,
        Ok(Some(Err(error))) => match (seen.fault.get(), error) {
            (Some(fault), _) => *fault,
            (None, ConnectionError::ConnectionClosed(_)) => {
                FaultKind::HandshakeFailed("the client ended the TLS handshake")
            }
            // A client that begins and leaves without a word is a probe, which is not logged.
            _ => {
                fail(worker, client, seen, None);
                return None;
            }
        },
        Err(_) => FaultKind::HandshakeTimeout,
    };
    fail(worker, client, seen, Some(kind));
    None
}

/// Counts a failed handshake, and logs it if there is a cause to log.
#[cold]
fn fail(worker: &Worker, client: &Client, seen: &Seen, kind: Option<FaultKind>) {
    worker.shard.handshake(false, false);
    let Some(kind) = kind else { return };
    let server = seen.name.get().cloned();
    let names = seen.names.get().cloned().unwrap_or(TlsNames { server, certificate: None });
    report_handshake(worker, client, Fault::client(kind), names);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{beside_worker, sleep};
    use quic::memory::Net;
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixDatagram;

    fn port(worker: &Worker, elders: Vec<quic::Elder>) -> Rc<Port> {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 9443));
        let copy = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let post = quic::posts(1, &elders.into(), 0).pop().unwrap();
        Port::over(&worker.settings, Net::default().place(at), copy, post).unwrap()
    }

    /// The line by which another process learns that the socket is its own.
    fn line(port: &Port) -> OwnedFd {
        let [_, line] = port.copies().unwrap().try_into().unwrap();
        line
    }

    #[test]
    fn a_socket_is_handed_over_whatever_was_before_that_and_not_before() {
        beside_worker(Settings::default(), async |worker, _| {
            for (stages, at_last) in [
                (&[Stage::HandOver][..], true),
                (&[Stage::Drain, Stage::HandOver], true),
                (&[Stage::Drain, Stage::Stop], false),
            ] {
                let port = port(&worker, vec![]);
                let line = UnixDatagram::from(line(&port));
                line.set_nonblocking(true).unwrap();
                let signal = rt::signaller();
                rt::spawn(listen(worker.clone(), port, signal.subscribe()));
                let is_notified = async || {
                    sleep(Duration::from_secs(1)).await;
                    // An end is no word.
                    matches!(line.recv(&mut [0; 9]), Ok(1..))
                };
                let mut notified = vec![is_notified().await];
                for stage in stages {
                    worker.set_stage(*stage);
                    signal.send_replace(*stage);
                    notified.push(is_notified().await);
                }
                let mut expected = vec![false; stages.len()];
                expected.push(at_last);
                assert_eq!(notified, expected, "{stages:?}");
                signal.send_replace(Stage::Stop);
                worker.set_stage(Stage::Run);
            }
        });
    }

    #[test]
    fn a_process_has_an_elder_until_that_is_gone() {
        beside_worker(Settings::default(), async |worker, _| {
            let old = port(&worker, vec![]);
            assert!(!old.has_elder());
            let young = port(&worker, vec![quic::Elder::new(line(&old)).unwrap()]);
            assert!(young.has_elder());
            drop(old);
            sleep(Duration::from_secs(1)).await;
            assert!(!young.has_elder());
        });
    }
}
