//! TLS handshakes: each thread connects, does a handshake, waits for a session ticket (which shows
//! that the gateway has processed the client's last message) and closes, in a loop. There are no
//! requests: this measures accepting, the handshake and closing.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustls::client::ClientConnection;
use rustls::{ClientConfig, HandshakeKind};

use super::{Load, Tally, Target};
use crate::certificate;
use crate::machine::{Cores, pin_this_thread};

pub fn run(
    threads: usize,
    resumed: bool,
    target: &Target,
    duration: Duration,
    cores: &Cores,
) -> Result<Load> {
    let started = Instant::now();
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (target, cores) = (target.clone(), cores.clone());
            std::thread::spawn(move || {
                pin_this_thread(&cores).context("cannot pin the load driver")?;
                again_and_again(&target, resumed, started + duration)
            })
        })
        .collect();
    let mut tally = Tally::new()?;
    for worker in workers {
        match worker.join() {
            Ok(part) => tally.add(part?)?,
            Err(_) => bail!("the load driver panicked"),
        }
    }
    Ok(tally.load(started.elapsed()))
}

fn again_and_again(target: &Target, resumed: bool, deadline: Instant) -> Result<Tally> {
    // Each thread has its own sessions.
    let client = certificate::Client { alpn: None, hybrid: target.hybrid, resume: resumed };
    let config = Arc::new(client.config()?);
    let expected = if resumed { HandshakeKind::Resumed } else { HandshakeKind::Full };
    if resumed {
        handshake(&config, target.address).context("the first handshake")?;
    }
    let mut tally = Tally::new()?;
    while Instant::now() < deadline {
        let begun = Instant::now();
        let kind = handshake(&config, target.address).and_then(|kind| {
            ensure!(kind == Some(expected), "a handshake was {kind:?}");
            Ok(())
        });
        match kind {
            Ok(()) => tally.count(begun.elapsed()),
            Err(problem) => {
                tally.fail(&problem);
                // One wrong handshake invalidates the numbers, so stop here.
                break;
            }
        }
    }
    Ok(tally)
}

/// Does one handshake on a new connection.
///
/// # Errors
/// It fails or no ticket arrives.
pub fn handshake(config: &Arc<ClientConfig>, address: SocketAddr) -> Result<Option<HandshakeKind>> {
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut connection = ClientConnection::new(config.clone(), certificate::server_name()?)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    while connection.tls13_tickets_received() == 0 {
        ensure!(connection.read_tls(&mut socket)? > 0, "closed before a session ticket came");
        connection.process_new_packets()?;
    }
    let kind = connection.handshake_kind();
    connection.send_close_notify();
    while connection.wants_write() {
        connection.write_tls(&mut socket)?;
    }
    Ok(kind)
}
