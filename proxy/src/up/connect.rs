//! New connections to upstream servers.

use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::h1::Conn;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::rt;
use crate::worker::Worker;
use crate::worker::shed::is_shortage;

/// How often a connection is tried for while there is no descriptor for it; between two tries are
/// about two ticks, in which other workers give some up.
const TRIES: u32 = 5;

/// Connects within the time bound. Where descriptors have run out, idle connections give way.
pub(crate) async fn connect(
    worker: &Worker,
    waiter: &Waiter,
    addr: SocketAddr,
    timeout: Duration,
) -> Result<Conn, Fault> {
    let deadline = worker.clock.after(timeout);
    let mut tries = 1;
    loop {
        match once(waiter, addr, deadline).await {
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
    timeout: Duration,
    end: u64,
) -> Result<Conn, Fault> {
    let connected = once(waiter, addr, end.min(worker.clock.after(timeout))).await;
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

async fn once(waiter: &Waiter, addr: SocketAddr, deadline: u64) -> Result<Conn, Failure> {
    use std::future::Future;
    let mut connecting = pin!(rt::connect(addr));
    match waiter.until(deadline, |cx| connecting.as_mut().poll(cx)).await {
        Ok(Ok(io)) => Ok(Conn::new(io)),
        Ok(Err(error)) if is_shortage(&error) => Err(Failure::Shortage),
        Ok(Err(error)) => Err(Failure::Other(Fault::upstream(FaultKind::of_connect(&error)))),
        Err(_) => Err(Failure::Other(Fault::upstream(FaultKind::ConnectTimeout))),
    }
}
