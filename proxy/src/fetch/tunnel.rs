//! Tunnels through HTTP proxies.

use std::net::{IpAddr, SocketAddr};

use rustls::pki_types::ServerName;
use sdk::build::split_authority;
use sdk::world::{FetchError, FetchTimeouts, Tunnel};
use wire::h1::encode::BadTarget;
use wire::{Method, Name, ResponseHead};

use super::error_of;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::io::Failed;
use crate::rt::Io;
use crate::up::connect::{REFUSED_SESSION, Secured, connect_humbly, secure};
use crate::up::h1::{Conn, Wish};
use crate::up::{Head, Lines, Size};
use crate::worker::Worker;

/// Has the proxy at this address open the tunnel, and does the handshake with the server through it.
pub(super) async fn open(
    worker: &Worker,
    waiters: &[Waiter; 2],
    proxy: SocketAddr,
    tunnel: &Tunnel,
    secured: &Secured,
    timeouts: FetchTimeouts,
    end: u64,
) -> Result<Box<Conn>, FetchError> {
    let host = split_authority(&tunnel.authority, 443).map_or("", |(host, _)| host);
    if matches!(secured.name, ServerName::IpAddress(_)) && host.parse::<IpAddr>().is_err() {
        // It would be the proxy's address.
        return Err(FetchError::Untrusted("the server's name cannot stand in a certificate"));
    }
    let mut again = true;
    loop {
        let io = connect(worker, waiters, proxy, tunnel, timeouts, end).await?;
        let deadline = end.min(worker.clock.after(timeouts.connect));
        match secure(worker, &waiters[0], io, secured, deadline).await {
            // The next handshake offers no session.
            Err(fault) if again && fault.kind == FaultKind::TlsFailed(REFUSED_SESSION) => again = false,
            secured => return secured.map_err(error_of),
        }
    }
}

/// Connects to the server through the proxy.
async fn connect(
    worker: &Worker,
    [sending, receiving]: &[Waiter; 2],
    proxy: SocketAddr,
    tunnel: &Tunnel,
    FetchTimeouts { connect, send, read }: FetchTimeouts,
    end: u64,
) -> Result<Io, FetchError> {
    let mut conn = connect_humbly(worker, sending, proxy, None, connect, end).await.map_err(error_of)?;
    let (mut head, mut out) = (ResponseHead::default(), Vec::new());
    let is_clean = {
        let (mut to, mut from) = conn.begin(worker, [sending, receiving], &mut out, send);
        to.head(tunnel, Size::None, Wish::Keep).map_err(|_| FetchError::Broken)?;
        to.flush().await.map_err(|failed| match failed {
            Failed::Timeout => FetchError::Timeout,
            Failed::Closed | Failed::Broken => FetchError::Broken,
        })?;
        let mut deadline = end.min(worker.clock.after(read));
        let late = || Err(Fault::upstream(FaultKind::ReadTimeout));
        loop {
            from.head(&mut head, Method::Connect, &mut deadline, late).await.map_err(error_of)?;
            if head.status >= 200 || head.status == 101 {
                break;
            }
        }
        // With TLS the client speaks first.
        from.take_rest().is_none_or(|rest| rest.is_empty())
    };
    match head.status {
        200..300 if is_clean => Ok(conn.io),
        200..300 => Err(FetchError::Broken),
        _ => Err(FetchError::NoTunnel),
    }
}

impl Head for Tunnel {
    fn method(&self) -> &[u8] {
        b"CONNECT"
    }

    fn target(&self, out: &mut Vec<u8>) -> Result<(), BadTarget> {
        out.extend_from_slice(self.authority.as_bytes());
        Ok(())
    }

    fn authority(&self) -> &[u8] {
        self.authority.as_bytes()
    }

    fn fields(&self, to: &mut impl Lines) {
        if let Some(authorization) = &self.authorization {
            to.field(Name::ProxyAuthorization, b"Proxy-Authorization", authorization.as_bytes());
        }
    }
}
