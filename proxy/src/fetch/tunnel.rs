//! Tunnels through HTTP proxies.

use std::net::SocketAddr;

use sdk::world::{FetchError, FetchTimeouts, Tunnel};
use wire::h1::encode::BadTarget;
use wire::{Method, ResponseHead};

use super::error_of;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::up::connect::{Secured, connect_humbly, secure};
use crate::up::h1::{Conn, Wish};
use crate::up::{Head, Lines, Size};
use crate::worker::Worker;

/// Asks the proxy at this address for the tunnel, and does the handshake with the server through it.
pub(super) async fn open(
    worker: &Worker,
    [sending, receiving]: &[Waiter; 2],
    proxy: SocketAddr,
    tunnel: &Tunnel,
    secured: &Secured,
    timeouts: FetchTimeouts,
    end: u64,
) -> Result<Conn, FetchError> {
    let FetchTimeouts { connect, send, read } = timeouts;
    let mut conn = connect_humbly(worker, sending, proxy, None, connect, end).await.map_err(error_of)?;
    let (mut head, mut out) = (ResponseHead::default(), Vec::new());
    let is_clean = {
        let (mut to, mut from) = conn.begin(worker, [sending, receiving], &mut out, send);
        to.head(tunnel, Size::None, Wish::Keep).map_err(|_| FetchError::Broken)?;
        to.flush().await.map_err(|_| FetchError::Broken)?;
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
        200..300 if is_clean => {}
        200..300 => return Err(FetchError::Broken),
        _ => return Err(FetchError::NoTunnel),
    }
    let counted = conn.counted.take();
    let deadline = end.min(worker.clock.after(connect));
    let secured = secure(worker, sending, conn.io, secured, deadline).await.map_err(error_of)?;
    Ok(Conn { counted, ..secured })
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
            to.field(b"Proxy-Authorization", authorization.as_bytes());
        }
    }
}
