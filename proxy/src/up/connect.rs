//! New connections to upstream servers.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use super::pool::UpConn;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::rt;
use crate::worker::Worker;

/// Connects within the time bound.
pub(crate) async fn connect(
    worker: &Worker,
    waiter: &Waiter,
    addr: SocketAddr,
    timeout: Duration,
) -> Result<UpConn, Fault> {
    use std::future::Future;
    let mut connecting = pin!(rt::connect(addr));
    let deadline = worker.clock.after(timeout);
    match waiter.until(deadline, |cx| connecting.as_mut().poll(cx)).await {
        Ok(Ok(stream)) => Ok(UpConn { stream, requests: 0, reused: false }),
        Ok(Err(error)) => Err(Fault::upstream(FaultKind::of_connect(&error))),
        Err(_) => Err(Fault::upstream(FaultKind::ConnectTimeout)),
    }
}
