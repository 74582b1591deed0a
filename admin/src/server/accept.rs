//! Accepting connections, within their number, until there is an end to it.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::connection::connection;
use super::refusals::{Refusals, is_for_its_certificate};
use super::{Limits, Service};
use crate::turns::{Line, Turn};

/// How long a connection that is to make room may take before the next one is asked.
const LEAVE: Duration = Duration::from_millis(100);
/// Of the connections that cannot be accepted, which are tried ten times a second, one of so many is logged.
const TELL_EACH: u64 = 100;

/// What a connection takes up while it lasts.
pub(super) struct Held {
    pub place: OwnedSemaphorePermit,
    pub turn: Arc<Turn>,
}

/// A socket to accept connections from, until it is told to stop.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    stop: watch::Receiver<()>,
    /// Where nobody else can tell it.
    _never: Option<watch::Sender<()>>,
}

impl Listener {
    /// Stops when the returned sender is dropped. Then whoever serves it ends with its last connection.
    pub fn until_dropped(socket: TcpListener) -> (watch::Sender<()>, Listener) {
        let (sender, stop) = watch::channel(());
        (sender, Listener { socket, stop, _never: None })
    }
}

impl From<TcpListener> for Listener {
    /// Accepts for as long as the runtime lives.
    fn from(socket: TcpListener) -> Listener {
        let (never, stop) = watch::channel(());
        Listener { socket, stop, _never: Some(never) }
    }
}

/// Serves until the listener is told to stop, and then until the last connection has ended: after the request
/// it is at, or the first one it has not sent yet.
pub(crate) async fn run(
    listener: Listener,
    limits: Limits,
    tls: Option<Arc<ServerConfig>>,
    service: impl Service,
) {
    let tls = tls.map(|tls| Tls { acceptor: tls.into(), refusals: Arc::default() });
    let places = Arc::new(Semaphore::new(limits.connections));
    let few = Arc::new(Semaphore::new(limits.strangers));
    let (line, strangers) = (Arc::new(Line::default()), Arc::new(Line::default()));
    let Listener { socket, mut stop, _never } = listener;
    // Each connection has a receiver: it hears of the end, and is waited for.
    let (serving, ended) = watch::channel(());
    let mut failures: u64 = 0;
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.changed() => break,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let peer = peer.ip();
                let held = match service.knows(peer) {
                    true => Some(Held { place: place_of(&places, &line).await, turn: line.join() }),
                    // They may not keep those out who are known.
                    false => {
                        let place = few.clone().try_acquire_owned().ok();
                        place.map(|place| Held { place, turn: strangers.join() })
                    }
                };
                if let Some(held) = held {
                    // An answer is one write; nothing is gained by waiting for more.
                    let _ = stream.set_nodelay(true);
                    let (limits, service, ended) = (limits.clone(), service.clone(), ended.clone());
                    match tls.clone() {
                        None => control::tasks::spawn(connection(stream, peer, limits, service, held, ended)),
                        Some(tls) => {
                            control::tasks::spawn(secured(tls, stream, peer, limits, service, held, ended))
                        }
                    };
                }
            }
            Err(error) => {
                // Out of descriptors, mostly: others must close theirs first.
                failures += 1;
                if failures.is_multiple_of(TELL_EACH) || failures == 1 {
                    tracing::warn!(%error, failures, "cannot accept a connection");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop((socket, ended));
    // An error means that there is no connection.
    let _ = serving.send(());
    serving.closed().await;
}

/// A place for one more connection, made by closing others that are not being answered if need be.
async fn place_of(places: &Arc<Semaphore>, line: &Line) -> OwnedSemaphorePermit {
    loop {
        if let Ok(place) = places.clone().try_acquire_owned() {
            return place;
        }
        line.make_room();
        // Never closed, so only the time can run out.
        if let Ok(Ok(place)) = timeout(LEAVE, places.clone().acquire_owned()).await {
            return place;
        }
    }
}

/// How TLS is spoken, and whom it has kept out.
#[derive(Clone)]
struct Tls {
    acceptor: TlsAcceptor,
    refusals: Arc<Refusals>,
}

/// The same over TLS. The handshake has the time of a head.
async fn secured(
    tls: Tls,
    stream: TcpStream,
    peer: std::net::IpAddr,
    limits: Limits,
    service: impl Service,
    held: Held,
    ended: watch::Receiver<()>,
) {
    let handshake = async {
        tokio::select! {
            shaken = timeout(limits.head, tls.acceptor.accept(stream)) => Some(shaken),
            () = held.turn.ended() => None,
        }
    };
    let Some(shaken) = handshake.await else {
        return tracing::debug!(%peer, "a TLS handshake made room for another connection");
    };
    match shaken {
        Ok(Ok(stream)) => connection(stream, peer, limits, service, held, ended).await,
        Ok(Err(error)) if is_for_its_certificate(&error) => tls.refusals.tell(peer, &error),
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
    }
}
