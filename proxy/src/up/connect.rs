//! New connections to upstream servers.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustls::Error;
use rustls::pki_types::ServerName;
use snapshot::certs::ClientTls;

use super::h1::Conn;
use super::tls::reason;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::failed::is_shortage;
use crate::rt::{self, Io, tls::HandshakeError};
use crate::worker::Worker;

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

/// Where a server is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) addr: SocketAddr,
    /// An address of the other family, which is tried as well if the first one takes long (RFC 8305).
    pub(crate) second: Option<SocketAddr>,
}

impl From<SocketAddr> for Place {
    fn from(addr: SocketAddr) -> Place {
        Place { addr, second: None }
    }
}

/// Connects within the time bound, TLS included, and says where to. Where descriptors have run out, idle
/// connections give way.
pub(crate) async fn connect(
    worker: &Worker,
    waiter: &Waiter,
    place: Place,
    tls: Option<&Secured>,
    timeout: Duration,
) -> Result<(Box<Conn>, SocketAddr), Fault> {
    let deadline = worker.clock.after(timeout);
    let mut tries = 1;
    loop {
        match once(worker, waiter, place, tls, deadline).await {
            Err(Failure::Shortage) if tries < TRIES && !worker.clock.is_over(deadline) => {
                if worker.free_descriptors() {
                    rt::turn().await;
                } else {
                    let pause = worker.clock.after(Duration::ZERO).min(deadline);
                    let _ = waiter.until(pause, |_| Poll::<()>::Pending).await;
                }
                tries += 1;
            }
            // It does not happen twice: no session is offered to that server any more.
            Err(Failure::Session) if tries < TRIES => tries += 1,
            Err(failure) => return Err(failure.fault()),
            Ok(made) => return Ok(made),
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
) -> Result<Box<Conn>, Fault> {
    let deadline = end.min(worker.clock.after(timeout));
    let connected = match once(worker, waiter, addr.into(), tls, deadline).await {
        Err(Failure::Session) => once(worker, waiter, addr.into(), tls, deadline).await,
        connected => connected,
    };
    connected.map(|(conn, _)| conn).map_err(Failure::fault)
}

enum Failure {
    /// There is no descriptor for it.
    Shortage,
    /// The server has refused a TLS handshake that was to resume a session. Some do so although they gave out
    /// the session themselves; the next handshake offers none.
    Session,
    Other(Fault),
}

impl Failure {
    fn fault(self) -> Fault {
        match self {
            Failure::Shortage => Fault::upstream(FaultKind::NoDescriptor),
            Failure::Session => Fault::upstream(FaultKind::TlsFailed(REFUSED_SESSION)),
            Failure::Other(fault) => fault,
        }
    }
}

pub(crate) const REFUSED_SESSION: &str =
    "the upstream refused the TLS handshake that was to resume a session";

async fn once(
    worker: &Worker,
    waiter: &Waiter,
    place: Place,
    tls: Option<&Secured>,
    deadline: u64,
) -> Result<(Box<Conn>, SocketAddr), Failure> {
    use std::future::Future;
    let other = |kind| Failure::Other(Fault::upstream(kind));
    let connected = match place.second {
        None => {
            let mut connecting = pin!(rt::connect(place.addr));
            waiter.until(deadline, |cx| connecting.as_mut().poll(cx)).await.map(|io| Ok((io?, place.addr)))
        }
        Some(second) => {
            // Boxed: it is larger, and only servers with addresses of both families need it.
            let mut racing = Box::pin(race(place.addr, second, worker.settings.timeouts.attempt_delay));
            waiter.until(deadline, |cx| racing.as_mut().poll(cx)).await
        }
    };
    let (io, addr) = match connected {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) if is_shortage(&error) => return Err(Failure::Shortage),
        Ok(Err(error)) => return Err(other(FaultKind::of_connect(&error))),
        Err(_) => return Err(other(FaultKind::ConnectTimeout)),
    };
    let io = match tls {
        None => io,
        Some(secured) => shake(worker, waiter, io, secured, deadline).await?,
    };
    let mut conn = Conn::new(io);
    conn.counted = Some(worker.pools.counted(addr));
    Ok((conn, addr))
}

/// Does the handshake on an open connection before `end`.
pub(crate) async fn secure(
    worker: &Worker,
    waiter: &Waiter,
    io: Io,
    secured: &Secured,
    end: u64,
) -> Result<Box<Conn>, Fault> {
    shake(worker, waiter, io, secured, end).await.map(Conn::new).map_err(Failure::fault)
}

async fn shake(
    worker: &Worker,
    waiter: &Waiter,
    io: Io,
    Secured { tls, name, h2 }: &Secured,
    deadline: u64,
) -> Result<Io, Failure> {
    use std::future::Future;
    let other = |kind| Failure::Other(Fault::upstream(kind));
    // Boxed: it is large, and only connections with TLS need it.
    let spoken = worker.tls_sessions.speak(tls, *h2, name);
    let mut shaking = Box::pin(rt::tls::connect(io, spoken.config.clone(), name.clone()));
    // It is begun here: what it offers is known before another handshake begins.
    let (mut offers, mut begun) = (false, false);
    let shaken = waiter.until(deadline, |cx| {
        let polled = shaking.as_mut().poll(cx);
        if !std::mem::replace(&mut begun, true) {
            offers = spoken.offers_session();
        }
        polled
    });
    match shaken.await {
        Ok(Ok(io)) => Ok(io),
        Ok(Err(HandshakeError::Tls(Error::AlertReceived(_)) | HandshakeError::Transport)) if offers => {
            worker.tls_sessions.refused(tls, *h2, name);
            Err(Failure::Session)
        }
        Ok(Err(HandshakeError::Tls(error))) => Err(other(FaultKind::TlsFailed(reason(&error)))),
        Ok(Err(HandshakeError::Transport | HandshakeError::NoCertificate | HandshakeError::PlainHttp)) => {
            Err(other(FaultKind::TlsFailed("the upstream closed the connection during the TLS handshake")))
        }
        Err(_) => Err(other(FaultKind::ConnectTimeout)),
    }
}

/// Connects to the first address, and to the second as well if that takes longer than `delay` or fails. The
/// first connection wins; the other attempt ends with it.
async fn race(first: SocketAddr, second: SocketAddr, delay: Duration) -> io::Result<(Io, SocketAddr)> {
    let mut one = pin!(rt::connect(first));
    let failed = match rt::either(one.as_mut(), pin!(rt::sleep(delay))).await {
        Ok(Ok(io)) => return Ok((io, first)),
        // A second attempt would find no descriptor either.
        Ok(Err(error)) if is_shortage(&error) => return Err(error),
        Ok(Err(error)) => error,
        Err(()) => {
            let mut two = pin!(rt::connect(second));
            match rt::either(one.as_mut(), two.as_mut()).await {
                Ok(Ok(io)) => return Ok((io, first)),
                Ok(Err(error)) => return two.await.map(|io| (io, second)).map_err(|_| error),
                Err(Ok(io)) => return Ok((io, second)),
                Err(Err(_)) => return one.await.map(|io| (io, first)),
            }
        }
    };
    rt::connect(second).await.map(|io| (io, second)).map_err(|_| failed)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }

    /// A listener whose queue is full, so that it answers no further connection, and the sockets that fill it.
    pub(crate) fn silent() -> (socket2::Socket, SocketAddr, Vec<socket2::Socket>) {
        use socket2::{Domain, Socket, Type};
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        let fill = |_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&addr.into());
            socket
        };
        let filling = (0..8).map(fill).collect();
        (listener, addr, filling)
    }

    fn raced(first: SocketAddr, second: SocketAddr, delay: Duration) -> io::Result<SocketAddr> {
        let race = async move { race(first, second, delay).await.map(|(_, addr)| addr) };
        rt::run(race).unwrap()
    }

    #[test]
    fn the_first_address_is_used_alone_while_it_answers() {
        let ((_first, one), (second, two)) = (listener(), listener());
        assert_eq!(raced(one, two, LONG).unwrap(), one);
        second.set_nonblocking(true).unwrap();
        assert_eq!(second.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_address_that_refuses_is_not_waited_for() {
        let ((gone, refused), (_second, two)) = (listener(), listener());
        drop(gone);
        assert_eq!(raced(refused, two, LONG).unwrap(), two);
        assert_eq!(raced(refused, refused, LONG).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn an_address_that_is_silent_is_passed_over_after_the_delay() {
        let (_silent, hangs, _filling) = silent();
        let (second, two) = listener();
        assert_eq!(raced(hangs, two, Duration::from_millis(10)).unwrap(), two);
        // The winner is the only one that is left open.
        let (mut accepted, _): (TcpStream, _) = second.accept().unwrap();
        assert_eq!(io::Read::read(&mut accepted, &mut [0]).unwrap(), 0);
        let (gone, refused) = listener();
        drop(gone);
        let late = async move {
            rt::either(
                Box::pin(race(hangs, refused, Duration::ZERO)),
                Box::pin(rt::sleep(Duration::from_millis(50))),
            )
            .await
            .is_err()
        };
        assert!(rt::run(late).unwrap(), "the first is still waited for when the second has failed");
    }
}
