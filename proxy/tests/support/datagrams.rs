//! UDP sockets. They are real ones, though the clock is virtual.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use proxy::testing;

thread_local! {
    /// Each test runs on its own thread, with its own servers.
    static LATE: SocketAddr = Peer::at((Ipv4Addr::LOCALHOST, 0).into()).addr;
    static SERVER: Peer = Peer::at((Ipv4Addr::LOCALHOST, 0).into());
}

/// The address of the server of this thread's tests.
pub fn server() -> SocketAddr {
    SERVER.with(|server| server.addr)
}

/// An address on which no server listens at first.
pub fn late() -> SocketAddr {
    LATE.with(|addr| *addr)
}

/// A client, or a server.
pub struct Peer {
    pub addr: SocketAddr,
    socket: UdpSocket,
}

impl Peer {
    pub fn at(addr: SocketAddr) -> Peer {
        let socket = UdpSocket::bind(addr).unwrap();
        socket.set_nonblocking(true).unwrap();
        Peer { addr: socket.local_addr().unwrap(), socket }
    }

    /// Returns the server at [`server`].
    pub fn server() -> Peer {
        SERVER.with(|server| Peer { addr: server.addr, socket: server.socket.try_clone().unwrap() })
    }

    pub fn send(&self, to: SocketAddr, bytes: &[u8]) {
        assert_eq!(self.socket.send_to(bytes, to).unwrap(), bytes.len());
    }

    /// Waits for the next datagram and its source. The virtual clock stands still meanwhile.
    pub async fn hear(&self) -> (Vec<u8>, SocketAddr) {
        let (_, bytes, from) = hear_any([self]).await;
        (bytes, from)
    }

    /// Returns a datagram that has already arrived.
    fn heard(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut bytes = vec![0; 70_000];
        match self.socket.recv_from(&mut bytes) {
            Ok((n, from)) => {
                bytes.truncate(n);
                Some((bytes, from))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits for the next datagram to any of `peers`: the peer's index, the datagram and its source. The virtual clock
/// stands still meanwhile.
#[expect(clippy::disallowed_methods, reason = "the test waits for the kernel")]
pub async fn hear_any<const N: usize>(peers: [&Peer; N]) -> (usize, Vec<u8>, SocketAddr) {
    for _ in 0..20_000 {
        for (which, peer) in peers.iter().enumerate() {
            if let Some((bytes, from)) = peer.heard() {
                return (which, bytes, from);
            }
        }
        settle().await;
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing came in 20 s");
}

/// Runs all tasks as far as they can, so that they see the kernel's events.
pub async fn settle() {
    for _ in 0..200 {
        testing::turn().await;
    }
}
