//! Raw connections, for protocols other than HTTP.
//!
//! [`World::connect`](crate::World::connect) opens one over the worker's own sockets. It reads and writes by the traits
//! of `futures`, which name no runtime; `adapters::stream::Stream` has tokio's traits for the client libraries of
//! engines. A connection belongs to the worker that opened it and is polled there.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::step::LocalFuture;

pub use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The server to connect to, and how.
#[derive(Debug, Clone)]
pub struct Connect {
    pub server: Server,
    /// Connections to one server with one `pool` are interchangeable: [`Connection::keep`] gives one to the next
    /// caller. It names everything that a session depends on, such as user and database.
    pub pool: Arc<str>,
    /// For all of it: resolving, every address, and the TLS handshake.
    pub timeout: Duration,
}

/// A server address and its transport.
#[derive(Debug, Clone)]
pub enum Server {
    /// A byte stream.
    Tcp { at: Addresses, tls: Option<Tls> },
    /// Each write is a datagram, and so is each read; the end of one that exceeds the buffer is lost. `close` has no
    /// effect on the server.
    Udp(Addresses),
    /// A byte stream over a socket in the file system.
    Unix(Arc<Path>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Tried in this order.
    Known(Arc<[SocketAddr]>),
    /// Resolved as by [`World::resolve`](crate::World::resolve). Connections that are kept outlive a change of its
    /// addresses by at most their idle time.
    Host { name: Arc<str>, port: u16 },
}

/// TLS with a server.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Sent to the server, whose certificate must be for it. An address, or text that is no name, is not sent.
    pub server_name: Arc<str>,
    pub trust: Trust,
}

/// The servers that are trusted.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Those with a certificate of an authority that the gateway trusts.
    Common,
    /// All: certificates are not verified.
    Any,
    /// As the handle says.
    Own(TlsHandle),
}

/// TLS with its own authorities or client certificate, parsed by the compiler: see [`crate::Build::client_tls`].
#[derive(Clone)]
pub struct TlsHandle(pub Arc<dyn Any + Send + Sync>);

impl fmt::Debug for TlsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsHandle")
    }
}

/// An open connection. Dropping it closes it.
pub struct Connection(Box<dyn Socket>);

/// A connection as a worker implements it.
pub trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// See [`Connection::is_reused`].
    fn is_reused(&self) -> bool;

    /// See [`Connection::reused_times`].
    fn reused_times(&self) -> u64 {
        u64::from(self.is_reused())
    }

    /// See [`Connection::keep`].
    fn keep(self: Box<Self>, idle: Duration);

    /// See [`Connection::secure`].
    fn secure(
        self: Box<Self>,
        _: Tls,
        _: Duration,
    ) -> LocalFuture<'static, Result<Connection, ConnectError>> {
        Box::pin(async { Err(ConnectError::Untrusted("TLS is not available on this connection")) })
    }
}

impl Connection {
    pub fn new(socket: impl Socket + 'static) -> Connection {
        Connection(Box::new(socket))
    }

    /// Whether it was in use before, so that its session is set up already. The server may have closed it unnoticed.
    pub fn is_reused(&self) -> bool {
        self.0.is_reused()
    }

    /// How often it was given back to the pool.
    pub fn reused_times(&self) -> u64 {
        self.0.reused_times()
    }

    /// Does a TLS handshake on an open connection without TLS, for protocols that begin without it. Everything
    /// written must be flushed, and everything the server sent must have been read. Then it is a connection as one
    /// that was opened with this TLS, in the same pool. A failed handshake closes it.
    pub fn secure(
        self,
        tls: Tls,
        timeout: Duration,
    ) -> LocalFuture<'static, Result<Connection, ConnectError>> {
        self.0.secure(tls, timeout)
    }

    /// Gives it back to the pool, where it stays open for `idle` unless the server closes it or the worker needs the
    /// descriptor. Everything written must be flushed, and everything the server sent must have been read.
    pub fn keep(self, idle: Duration) {
        self.0.keep(idle);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("is_reused", &self.is_reused()).finish()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_close(cx)
    }
}

/// Why a connection was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectError {
    Unresolved,
    Refused,
    Timeout,
    /// The TLS handshake failed, such as for a certificate that is not trusted.
    Untrusted(&'static str),
    /// The worker has as many connections of plugins as it may have, or no descriptor.
    Limit,
}

impl ConnectError {
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectError::Unresolved => "the host name has no address",
            ConnectError::Refused => "the connection was refused",
            ConnectError::Timeout => "connecting timed out",
            ConnectError::Untrusted(why) => why,
            ConnectError::Limit => {
                "too many connections are open (nginx_config.http.max_plugin_connections, and `ulimit -n`)"
            }
        }
    }

    /// Returns the error to report after the next address of the server failed as well: a refused connection there does
    /// not hide that TLS failed here.
    #[must_use]
    pub fn or(self, next: ConnectError) -> ConnectError {
        match (self, next) {
            (ConnectError::Untrusted(_), ConnectError::Refused) => self,
            _ => next,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for ConnectError {}

/// The worker runs as many tasks of plugins as it may: `nginx_config.http.max_plugin_connections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyTasks;

impl fmt::Display for TooManyTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many tasks of plugins are running (nginx_config.http.max_plugin_connections)")
    }
}

impl std::error::Error for TooManyTasks {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_text() {
        for (error, word) in [
            (ConnectError::Unresolved, "address"),
            (ConnectError::Refused, "refused"),
            (ConnectError::Timeout, "timed out"),
            (ConnectError::Untrusted("the TLS handshake failed"), "TLS"),
            (ConnectError::Limit, "max_plugin_connections"),
        ] {
            assert!(error.to_string().contains(word) && error.as_str().contains(word), "{error}");
        }
        assert!(TooManyTasks.to_string().contains("max_plugin_connections"));
    }
}
