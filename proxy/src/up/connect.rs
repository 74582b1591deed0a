//! New connections to upstream servers.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustls::pki_types::ServerName;
use snapshot::certs::ClientTls;

use super::h1::Conn;
use super::tls::reason;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::rt::{self, tls::HandshakeError};
use crate::worker::Worker;
use crate::worker::shed::is_shortage;

/// How often a connection is tried for while there is no descriptor for it; between two tries are
/// about two ticks, in which other workers give some up.
const TRIES: u32 = 5;

/// How TLS is spoken with a server, and who it has to be.
#[derive(Debug, Clone)]
pub(crate) struct Secured {
    pub(crate) tls: Arc<ClientTls>,
    pub(crate) name: ServerName<'static>,
    /// It is asked for HTTP/2.
    pub(crate) h2: bool,
}

/// Connects within the time bound, TLS included. Where descriptors have run out, idle connections give way.
pub(crate) async fn connect(
    worker: &Worker,
    waiter: &Waiter,
    addr: SocketAddr,
    tls: Option<&Secured>,
    timeout: Duration,
) -> Result<Conn, Fault> {
    let deadline = worker.clock.after(timeout);
    let mut tries = 1;
    loop {
        match once(worker, waiter, addr, tls, deadline).await {
            Err(Failure::Shortage) if tries < TRIES && !worker.clock.is_over(deadline) => {
                if worker.free_descriptors() {
                    rt::turn().await;
                } else {
                    let pause = worker.clock.after(Duration::ZERO).min(deadline);
                    let _ = waiter.until(pause, |_| Poll::<()>::Pending).await;
                }
                tries += 1;
            }
            Err(Failure::Shortage) => return Err(Fault::upstream(FaultKind::ConnectFailed)),
            Err(Failure::Other(fault)) => return Err(fault),
            Ok(conn) => return Ok(conn),
        }
    }
}

/// Connects within the time bound and before `end`, for a request that nothing else gives way to.
pub(crate) async fn connect_humbly(
    worker: &Worker,
    waiter: &Waiter,
    addr: SocketAddr,
    tls: Option<&Secured>,
    timeout: Duration,
    end: u64,
) -> Result<Conn, Fault> {
    let connected = once(worker, waiter, addr, tls, end.min(worker.clock.after(timeout))).await;
    connected.map_err(|failure| match failure {
        Failure::Shortage => Fault::upstream(FaultKind::ConnectFailed),
        Failure::Other(fault) => fault,
    })
}

enum Failure {
    /// There is no descriptor for it.
    Shortage,
    Other(Fault),
}

async fn once(
    worker: &Worker,
    waiter: &Waiter,
    addr: SocketAddr,
    tls: Option<&Secured>,
    deadline: u64,
) -> Result<Conn, Failure> {
    use std::future::Future;
    let other = |kind| Failure::Other(Fault::upstream(kind));
    let io = {
        let mut connecting = pin!(rt::connect(addr));
        match waiter.until(deadline, |cx| connecting.as_mut().poll(cx)).await {
            Ok(Ok(io)) => io,
            Ok(Err(error)) if is_shortage(&error) => return Err(Failure::Shortage),
            Ok(Err(error)) => return Err(other(FaultKind::of_connect(&error))),
            Err(_) => return Err(other(FaultKind::ConnectTimeout)),
        }
    };
    let Some(Secured { tls, name, h2 }) = tls else { return Ok(Conn::new(io)) };
    // Boxed: it is large, and only connections with TLS need it.
    let mut shaking = Box::pin(rt::tls::connect(io, worker.tls_sessions.config(tls, *h2), name.clone()));
    match waiter.until(deadline, |cx| shaking.as_mut().poll(cx)).await {
        Ok(Ok(io)) => Ok(Conn::new(io)),
        Ok(Err(HandshakeError::Tls(error))) => Err(other(FaultKind::TlsFailed(reason(&error)))),
        Ok(Err(HandshakeError::Transport | HandshakeError::NoCertificate)) => {
            Err(other(FaultKind::TlsFailed("the upstream closed the connection during the TLS handshake")))
        }
        Err(_) => Err(other(FaultKind::ConnectTimeout)),
    }
}
