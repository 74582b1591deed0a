//! Raw connections of plugins and of engines' clients, and the tasks that drive them.
//!
//! Idle ones are kept with those to upstreams ([`crate::up::pool`]) and count against the same bound.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sdk::chain::LocalFuture;
use sdk::connection::{
    Addresses, AsyncRead, AsyncWrite, Connect, ConnectError, Connection, Server, Socket, Tls, TooManyTasks,
    Trust,
};
use snapshot::certs::ClientTls;
use snapshot::upstream::Keepalive;

use crate::exchange::fault::{Fault, FaultKind};
use crate::in_use::Permit;
use crate::rt::{self, Io};
use crate::up::connect::{self, Secured};
use crate::up::h1::Conn;
use crate::up::pool::Peer;
use crate::up::tls::server_name;
use crate::worker::Worker;

/// As [`sdk::World::run`].
pub(crate) fn run(worker: &Worker, task: LocalFuture<'static, ()>) -> Result<(), TooManyTasks> {
    // A worker that is gone runs nothing.
    let worker = worker.strong().ok_or(TooManyTasks)?;
    let permit = worker.tasks.permit(worker.settings.limits.plugin_connections).ok_or(TooManyTasks)?;
    let running = Running { worker, _permit: permit };
    rt::spawn(async move {
        let _running = running;
        task.await;
    });
    Ok(())
}

/// Counts a panic in a task.
struct Running {
    worker: Rc<Worker>,
    _permit: Permit,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker.shard.panicked();
        }
    }
}

/// As [`sdk::World::connect`].
pub(crate) async fn connect(worker: &Rc<Worker>, to: &Connect) -> Result<Connection, ConnectError> {
    let way = Way::of(worker, &to.server, &to.pool)?;
    let permit = permit(worker).ok_or(ConnectError::Limit)?;
    let conn = match worker.pools.take(way.peer, worker.clock.coarse_ms(), true) {
        Some(conn) => conn,
        None => Conn::new(open(worker, to, way.tls.as_ref()).await?),
    };
    Ok(Raw::connection(worker, conn, way.peer, to, permit))
}

/// As [`sdk::World::idle`].
pub(crate) fn idle(worker: &Rc<Worker>, to: &Connect) -> Option<Connection> {
    let way = Way::of(worker, &to.server, &to.pool).ok()?;
    let permit = permit(worker)?;
    let conn = worker.pools.take(way.peer, worker.clock.coarse_ms(), true)?;
    Some(Raw::connection(worker, conn, way.peer, to, permit))
}

fn permit(worker: &Worker) -> Option<Permit> {
    worker.raw.permit(worker.settings.limits.plugin_connections)
}

/// The pool of a server's connections, and their TLS.
struct Way {
    peer: Peer,
    tls: Option<(Arc<ClientTls>, Tls)>,
}

impl Way {
    fn of(worker: &Worker, server: &Server, pool: &Arc<str>) -> Result<Way, ConnectError> {
        let tls = match server {
            Server::Tcp { tls: Some(tls), .. } => Some((client_tls(worker, tls)?, tls.clone())),
            _ => None,
        };
        let peer = match server {
            Server::Tcp { at, .. } => {
                let identity = tls.as_ref().map(|(client, tls)| (*client.identity(), &tls.server_name));
                worker.pools.raw(&(0, at, identity, pool))
            }
            Server::Udp(at) => worker.pools.raw(&(1, at, pool)),
            Server::Unix(path) => worker.pools.raw(&(2, path, pool)),
        };
        Ok(Way { peer, tls })
    }
}

/// As [`Connection::secure`].
async fn secure(raw: Raw, tls: Tls, timeout: Duration) -> Result<Connection, ConnectError> {
    let Raw { conn, worker, to, permit, .. } = raw;
    // A worker that is gone runs nothing.
    let worker = worker.upgrade().ok_or(ConnectError::Refused)?;
    let (Server::Tcp { at, tls: None }, None) = (&to.server, conn.io.tls()) else {
        return Err(ConnectError::Untrusted("TLS is not available on this connection"));
    };
    // A name that is an address has no name server; a text that is no name is of no server.
    let addr = match at {
        Addresses::Known(all) => all.first().copied(),
        Addresses::Host { .. } => None,
    };
    let addr = addr.unwrap_or(SocketAddr::from(([0; 4], 0)));
    let to = Connect { server: Server::Tcp { at: at.clone(), tls: Some(tls) }, ..to };
    let way = Way::of(&worker, &to.server, &to.pool)?;
    let Some((client, tls)) = way.tls else { return Err(ConnectError::Refused) };
    let secured = Secured { tls: client, name: server_name(tls.server_name.as_bytes(), addr), h2: false };
    let waiter = worker.clock.waiter();
    let end = worker.clock.after(timeout);
    let conn = connect::secure(&worker, &waiter, conn.io, &secured, end).await.map_err(of_fault)?;
    Ok(Raw::connection(&worker, conn, way.peer, &to, permit))
}

fn client_tls(worker: &Worker, tls: &Tls) -> Result<Arc<ClientTls>, ConnectError> {
    let client = match &tls.trust {
        Trust::Common => worker.settings.tls.verifying.clone(),
        Trust::Any => worker.settings.tls.trusting.clone(),
        Trust::Own(handle) => {
            let own = handle.0.clone().downcast::<ClientTls>();
            own.map_err(|_| ConnectError::Untrusted("the TLS settings are not of this gateway"))?
        }
    };
    client.lacks.map_or(Ok(client), |why| Err(ConnectError::Untrusted(why)))
}

/// Connects within the timeout. An address gets its part of the time that is left.
async fn open(
    worker: &Rc<Worker>,
    to: &Connect,
    tls: Option<&(Arc<ClientTls>, Tls)>,
) -> Result<Io, ConnectError> {
    let (clock, waiter) = (&worker.clock, worker.clock.waiter());
    let end = clock.after(to.timeout);
    let at = match &to.server {
        Server::Tcp { at, .. } | Server::Udp(at) => at,
        Server::Unix(path) => {
            let mut connecting = pin!(rt::Socket::unix(path));
            let connected = waiter.until(end, |cx| connecting.as_mut().poll(cx)).await;
            let socket = connected.map_err(|_| ConnectError::Timeout)?.map_err(|error| of_io(&error))?;
            return Ok(Io::Socket(Box::new(socket)));
        }
    };
    let addresses = addresses(worker, at, end).await?;
    let mut last = ConnectError::Unresolved;
    for (tried, &addr) in addresses.iter().enumerate() {
        if let Server::Udp(_) = to.server {
            match rt::Socket::udp(addr) {
                Ok(socket) => return Ok(Io::Socket(Box::new(socket))),
                Err(error) => last = of_io(&error),
            }
            continue;
        }
        if clock.is_over(end) {
            return Err(ConnectError::Timeout);
        }
        let secured = tls.map(|(client, tls)| Secured {
            tls: client.clone(),
            name: server_name(tls.server_name.as_bytes(), addr),
            h2: false,
        });
        let left = end.saturating_sub(clock.coarse_ms()) / (addresses.len() - tried) as u64;
        let left = Duration::from_millis(left);
        match connect::connect(worker, &waiter, addr.into(), secured.as_ref(), left).await {
            Ok((conn, _)) => return Ok(conn.io),
            Err(fault) => last = last.or(of_fault(fault)),
        }
    }
    Err(last)
}

async fn addresses(worker: &Rc<Worker>, at: &Addresses, end: u64) -> Result<Arc<[SocketAddr]>, ConnectError> {
    match at {
        Addresses::Known(all) => Ok(all.clone()),
        Addresses::Host { name, port } => {
            let found = worker.names.resolve(name, end).await.map_err(|_| ConnectError::Unresolved)?;
            Ok(found.iter().map(|ip: &IpAddr| SocketAddr::new(*ip, *port)).collect())
        }
    }
}

fn of_io(error: &io::Error) -> ConnectError {
    match crate::failed::is_shortage(error) {
        true => ConnectError::Limit,
        false => ConnectError::Refused,
    }
}

fn of_fault(fault: Fault) -> ConnectError {
    match fault.kind {
        FaultKind::TlsFailed(why) => ConnectError::Untrusted(why),
        FaultKind::ConnectTimeout => ConnectError::Timeout,
        FaultKind::NoDescriptor => ConnectError::Limit,
        _ => ConnectError::Refused,
    }
}

/// A connection in use.
struct Raw {
    conn: Box<Conn>,
    peer: Peer,
    to: Connect,
    /// Not held: a plugin's state on the worker may hold the connection.
    worker: Weak<Worker>,
    permit: Permit,
}

impl Raw {
    fn connection(
        worker: &Rc<Worker>,
        conn: Box<Conn>,
        peer: Peer,
        to: &Connect,
        permit: Permit,
    ) -> Connection {
        Connection::new(Raw { conn, peer, to: to.clone(), worker: Rc::downgrade(worker), permit })
    }
}

impl Socket for Raw {
    fn is_reused(&self) -> bool {
        self.conn.reused
    }

    fn reused_times(&self) -> u64 {
        self.conn.requests
    }

    fn keep(self: Box<Self>, idle: Duration) {
        let Raw { mut conn, peer, worker, permit, .. } = *self;
        drop(permit);
        conn.requests = conn.requests.saturating_add(1);
        // There, zero is no limit.
        if let Some(worker) = worker.upgrade().filter(|_| !idle.is_zero()) {
            let size = worker.settings.limits.plugin_connections;
            let keepalive = Keepalive { size, idle_timeout: idle, requests: u64::MAX };
            worker.pools.give(peer, conn, &keepalive, worker.clock.coarse_ms());
        }
    }

    fn secure(
        self: Box<Self>,
        tls: Tls,
        timeout: Duration,
    ) -> LocalFuture<'static, Result<Connection, ConnectError>> {
        Box::pin(secure(*self, tls, timeout))
    }
}

impl AsyncRead for Raw {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.conn.io.split().0.poll_read(cx, buf)
    }
}

impl AsyncWrite for Raw {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.conn.io.split().1.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.conn.io.split().1.poll_write_vectored(cx, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.conn.io.split().1.poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.conn.io.split().1.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
