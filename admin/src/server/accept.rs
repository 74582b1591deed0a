//! Accepts connections, up to a limit, until the listener stops.

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

/// The time that a connection has to make room before the next one in line is closed too.
const LEAVE: Duration = Duration::from_millis(100);
/// One of this many failed accepts is logged, besides the first; after a failure, the next try is 100 ms later.
const LOG_EACH: u64 = 100;

/// The permit and the turn that a connection holds while it is open.
pub(super) struct Held {
    pub place: OwnedSemaphorePermit,
    pub turn: Arc<Turn>,
}

/// A listening socket with a stop signal.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    stop: watch::Receiver<()>,
    /// Keeps `stop` from firing if there is no other sender.
    _never: Option<watch::Sender<()>>,
}

impl Listener {
    /// Returns a listener that stops when the returned sender is dropped. Its server then ends after the
    /// last connection.
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

/// Serves until the listener stops and the last connection has ended. A connection then ends after the request
/// under way, or after its first request if it has not sent one yet.
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
    // Each connection holds a receiver: it learns of the stop, and the server waits until all are dropped.
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
                    // Clients that will be refused have permits of their own, so they cannot keep others out.
                    false => {
                        let place = few.clone().try_acquire_owned().ok();
                        place.map(|place| Held { place, turn: strangers.join() })
                    }
                };
                if let Some(held) = held {
                    // An answer is one write, so Nagle's algorithm would only delay it.
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
                // Mostly out of file descriptors: waits until other connections have closed.
                failures += 1;
                if failures.is_multiple_of(LOG_EACH) || failures == 1 {
                    tracing::warn!(%error, failures, "cannot accept a connection");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop((socket, ended));
    // An error means that no connection is open.
    let _ = serving.send(());
    serving.closed().await;
}

/// Returns a permit for one more connection; if none is free, closes connections that wait for a request.
async fn place_of(places: &Arc<Semaphore>, line: &Line) -> OwnedSemaphorePermit {
    loop {
        if let Ok(place) = places.clone().try_acquire_owned() {
            return place;
        }
        line.make_room();
        // The semaphore is never closed, so only the timeout can fail.
        if let Ok(Ok(place)) = timeout(LEAVE, places.clone().acquire_owned()).await {
            return place;
        }
    }
}

/// The TLS acceptor, and the log of the clients it refused.
#[derive(Clone)]
struct Tls {
    acceptor: TlsAcceptor,
    refusals: Arc<Refusals>,
}

/// Serves a connection over TLS. The handshake may take as long as a request head.
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
        Ok(Err(error)) if is_for_its_certificate(&error) => tls.refusals.log(peer, &error),
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
    }
}
