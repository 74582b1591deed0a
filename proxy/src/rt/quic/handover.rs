#![expect(clippy::disallowed_types, reason = "as in `steer`: one thread alone uses what quinn wants `Sync`")]
//! Two processes at an upgrade, and one socket.
//!
//! The new process gets the old one's very sockets, and a datagram is gone for the one that has not read it.
//! So one alone reads a socket at any time: the old process until it hands over, the new one from then on. What
//! is of a connection of the old process's, the new one passes on by a pair of Unix sockets, one for each
//! socket. The old process answers by its own copy of the UDP socket, as ever.
//!
//! That goes on until the old process ends, which `worker_shutdown_timeout` bounds. A process that has handed over as
//! well stays for as long, since all datagrams for its elder come by it. Datagrams that wait are bounded by the
//! pair's buffer in the kernel; further ones are dropped, as on any network.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdLine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quinn::udp::{EcnCodepoint, RecvMeta};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::ReadBuf;
use tokio::net::UnixDatagram;

/// Old to new: the socket is yours.
const YOURS: u8 = b'Y';
/// New to old: a datagram, behind what is known of it.
const DATAGRAM: u8 = b'D';
const HEADER: usize = 42;

/// The longest datagram there is, and its header.
const LONGEST: usize = HEADER + (64 << 10);

/// Datagrams that are looked at before everything else that is ready gets its turn.
const TURN: u32 = 64;

/// The process that takes this one's place, as a worker's socket sees it.
#[derive(Debug, Default)]
pub(crate) struct Heir(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    line: Option<UnixDatagram>,
    over: bool,
    /// Of the task that reads the socket.
    waker: Option<Waker>,
    scratch: Vec<u8>,
}

impl Heir {
    /// The end of a new line, for a process that may take over. One that did not is forgotten.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn line(&self) -> io::Result<OwnedFd> {
        // Datagrams in order and an end that is seen, as no pair of UDP sockets has.
        let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        ours.set_nonblocking(true)?;
        let line = UnixDatagram::from_std(StdLine::from(OwnedFd::from(ours)))?;
        let mut state = self.state();
        state.line = Some(line);
        state.scratch.resize(LONGEST, 0);
        wake(&mut state);
        Ok(theirs.into())
    }

    /// From now on the socket is the other process's.
    pub(crate) fn hand_over(&self) {
        let mut state = self.state();
        state.over = true;
        if let Some(line) = &state.line {
            // It is the first word on a line that has room. The runtime does not know of a line that is new that it can
            // be written to.
            let _ = SockRef::from(line).send(&[YOURS]);
        }
        wake(&mut state);
    }

    /// Gives what has been passed on to `take`, until that wants no more. True if the socket is the other's.
    pub(super) fn poll(&self, cx: &mut Context<'_>, mut take: impl FnMut(&[u8], RecvMeta) -> bool) -> bool {
        let mut state = self.state();
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        let State { line, over, scratch, .. } = &mut *state;
        let Some(open) = line else { return *over };
        for _ in 0..TURN {
            let mut buf = ReadBuf::new(scratch);
            match open.poll_recv(cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                    *line = None;
                    *scratch = Vec::new();
                    return *over;
                }
                Poll::Ready(Ok(())) => {
                    if let Some((meta, datagram)) = decode(buf.filled())
                        && !take(datagram, meta)
                    {
                        return *over;
                    }
                }
                Poll::Ready(Err(_)) => {}
                Poll::Pending => return *over,
            }
        }
        cx.waker().wake_by_ref();
        *over
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(state: &mut State) {
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
}

/// A worker's socket in the process whose place this one takes.
#[derive(Debug)]
pub(crate) struct Elder {
    line: StdLine,
    gone: AtomicBool,
}

impl Elder {
    /// # Errors
    /// It is no socket.
    pub(crate) fn new(line: OwnedFd) -> io::Result<Elder> {
        let line = StdLine::from(line);
        line.set_nonblocking(true)?;
        Ok(Elder { line, gone: AtomicBool::new(false) })
    }

    /// Passes a datagram on. False if the old process is gone.
    pub(super) fn pass(&self, datagram: &[u8], meta: &RecvMeta) -> bool {
        if self.gone.load(Ordering::Relaxed) {
            return false;
        }
        let header = encode(meta);
        let parts = [IoSlice::new(&header), IoSlice::new(datagram)];
        match SockRef::from(&self.line).send_vectored(&parts) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                self.gone.store(true, Ordering::Relaxed);
                false
            }
            // Where there is no room, it is dropped.
            Ok(_) | Err(_) => true,
        }
    }

    /// Whether the old process is there still.
    pub(crate) fn is_there(&self) -> bool {
        // It says nothing more: there is its end to be read, or nothing.
        let read = SockRef::from(&self.line).peek(&mut [MaybeUninit::uninit()]);
        match read {
            Ok(n) => n > 0,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Returns the gate that keeps the socket from being read here until the old process has left it.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(super) fn gate(&self) -> io::Result<Gate> {
        Ok(Gate(Mutex::new(Some(UnixDatagram::from_std(self.line.try_clone()?)?))))
    }
}

/// Open by default.
#[derive(Debug, Default)]
pub(super) struct Gate(Mutex<Option<UnixDatagram>>);

impl Gate {
    pub(super) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(line) = &*gate {
            let mut word = [0];
            let mut buf = ReadBuf::new(&mut word);
            match line.poll_recv(cx, &mut buf) {
                Poll::Ready(Ok(())) if !matches!(buf.filled(), [] | [YOURS]) => {}
                // The old process has handed over, or has ended.
                Poll::Ready(_) => *gate = None,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

/// Whether an address is one of IPv6, and whether there is one.
const PEER_V6: u8 = 1;
const LOCAL: u8 = 2;
const LOCAL_V6: u8 = 4;

fn encode(meta: &RecvMeta) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let mut flags = 0;
    if put(meta.addr.ip(), &mut header[10..26]) {
        flags |= PEER_V6;
    }
    if let Some(local) = meta.dst_ip {
        flags |= LOCAL;
        if put(local, &mut header[26..42]) {
            flags |= LOCAL_V6;
        }
    }
    if let SocketAddr::V6(addr) = meta.addr {
        header[6..10].copy_from_slice(&addr.scope_id().to_be_bytes());
    }
    header[0] = DATAGRAM;
    header[1] = meta.ecn.map_or(0, |ecn| ecn as u8);
    header[2] = flags;
    header[4..6].copy_from_slice(&meta.addr.port().to_be_bytes());
    header
}

fn decode(record: &[u8]) -> Option<(RecvMeta, &[u8])> {
    let (header, datagram) = record.split_at_checked(HEADER)?;
    if header[0] != DATAGRAM || datagram.is_empty() {
        return None;
    }
    let flags = header[2];
    let port = u16::from_be_bytes(header[4..6].try_into().ok()?);
    let scope = u32::from_be_bytes(header[6..10].try_into().ok()?);
    let addr = match get(flags & PEER_V6 != 0, &header[10..26])? {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    };
    let dst_ip = match flags & LOCAL != 0 {
        true => Some(get(flags & LOCAL_V6 != 0, &header[26..42])?),
        false => None,
    };
    let ecn = EcnCodepoint::from_bits(header[1]);
    let len = datagram.len();
    Some((RecvMeta { addr, len, stride: len, ecn, dst_ip }, datagram))
}

/// Writes an address; says whether it is one of IPv6.
fn put(ip: IpAddr, to: &mut [u8]) -> bool {
    match ip {
        IpAddr::V4(ip) => to[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => to.copy_from_slice(&ip.octets()),
    }
    ip.is_ipv6()
}

fn get(v6: bool, from: &[u8]) -> Option<IpAddr> {
    Some(match v6 {
        true => Ipv6Addr::from(<[u8; 16]>::try_from(from).ok()?).into(),
        false => IpAddr::from(<[u8; 4]>::try_from(from.get(..4)?).ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_comes_as_it_was() {
        let v6 = SocketAddrV6::new("fe80::7".parse().unwrap(), 5, 0, 3).into();
        for (addr, dst_ip, ecn) in [
            ("192.0.2.1:443".parse().unwrap(), None, None),
            (v6, Some("2001:db8::1".parse().unwrap()), Some(EcnCodepoint::Ce)),
            (
                "[::ffff:192.0.2.1]:9".parse().unwrap(),
                Some("127.0.0.1".parse().unwrap()),
                Some(EcnCodepoint::Ect0),
            ),
        ] {
            let meta = RecvMeta { addr, dst_ip, ecn, len: 3, stride: 3 };
            let record = [&encode(&meta)[..], b"abc"].concat();
            let (got, datagram) = decode(&record).unwrap();
            assert_eq!(datagram, b"abc");
            assert_eq!((got.addr, got.dst_ip, got.ecn, got.len, got.stride), (addr, dst_ip, ecn, 3, 3));
            assert!(decode(&record[..HEADER]).is_none() && decode(&record[..20]).is_none());
        }
        assert!(decode(&[YOURS; 100]).is_none());
    }

    #[test]
    fn an_elder_is_there_until_it_ends_whatever_it_leaves_unread() {
        crate::rt::run(async {
            let heir = Heir::default();
            let elder = Elder::new(heir.line().unwrap()).unwrap();
            let meta = RecvMeta { addr: "192.0.2.1:443".parse().unwrap(), ..RecvMeta::default() };
            assert!(elder.pass(&[1; 1200], &meta) && elder.is_there());
            drop(heir);
            assert!(!elder.is_there() && !elder.is_there());
        })
        .unwrap();
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_reads_a_socket_is_woken_for_each_news_of_the_other_process() {
        crate::rt::run(async {
            let woken = std::sync::Arc::<Woken>::default();
            let waker = Waker::from(woken.clone());
            let mut cx = Context::from_waker(&waker);
            let was_woken = || woken.0.swap(false, Ordering::Relaxed);
            let heir = Heir::default();
            let mut is_over = || heir.poll(&mut cx, |_, _| true);
            assert!(!is_over() && !was_woken());
            let elder = Elder::new(heir.line().unwrap()).unwrap();
            assert!(was_woken(), "there is a line to look at");
            assert!(!is_over());
            heir.hand_over();
            assert!(was_woken(), "the socket is the other's");
            assert!(is_over());
            assert!(elder.is_there(), "its word is not read yet");
            drop(elder);
            // The runtime learns of the end.
            let line = heir.state().line.take().unwrap();
            line.readable().await.unwrap();
            heir.state().line = Some(line);
            assert!(is_over());
            assert!(heir.state().line.is_none(), "there is nothing more to wait for");
        })
        .unwrap();
    }

    #[test]
    fn what_waits_is_bounded() {
        crate::rt::run(async {
            let heir = Heir::default();
            let elder = Elder::new(heir.line().unwrap()).unwrap();
            let meta = RecvMeta { addr: "192.0.2.1:443".parse().unwrap(), ..RecvMeta::default() };
            let sent = 10_000;
            for _ in 0..sent {
                assert!(elder.pass(&[1; 1200], &meta), "the old process is there");
            }
            let mut got = 0;
            let mut cx = Context::from_waker(Waker::noop());
            // The runtime learns what is there, then all of it is taken.
            let line = heir.0.lock().unwrap().line.take().unwrap();
            line.readable().await.unwrap();
            heir.0.lock().unwrap().line = Some(line);
            loop {
                let before = got;
                let over = heir.poll(&mut cx, |datagram, _| {
                    assert_eq!(datagram, [1; 1200]);
                    got += 1;
                    true
                });
                assert!(!over);
                if got == before {
                    break;
                }
            }
            assert!(got > 10 && got < sent, "{got}");
        })
        .unwrap();
    }
}
