use std::net::IpAddr;
use std::task::Wake;

use super::super::steer::posts;
use super::*;

/// A network that gives these datagrams, and keeps what is sent.
#[derive(Debug, Default)]
struct Wire {
    gives: Mutex<Vec<(SocketAddr, Vec<u8>)>>,
    sent: Mutex<Vec<Vec<u8>>>,
    is_full: AtomicBool,
}

#[derive(Debug)]
struct AlwaysReady;

impl UdpPoller for AlwaysReady {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Wire {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysReady)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.is_full.load(Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let size = transmit.segment_size.unwrap_or(transmit.contents.len());
        lock(&self.sent).extend(transmit.contents.chunks(size).map(<[u8]>::to_vec));
        Ok(())
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Some((addr, bytes)) = lock(&self.gives).pop() else { return Poll::Pending };
        bufs[0][..bytes.len()].copy_from_slice(&bytes);
        // Datagrams of one sender come together, as far as they are of one length.
        metas[0] = RecvMeta { addr, len: bytes.len(), stride: bytes.len().min(1300), ..RecvMeta::default() };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(at(1))
    }
}

struct Site {
    wire: Arc<Wire>,
    unproved: Arc<Unproved>,
    socket: Arc<Limited>,
}

fn site() -> Site {
    let (wire, unproved) = (Arc::<Wire>::default(), Arc::<Unproved>::default());
    let post = posts(1, &Arc::from([]), 0).pop().unwrap();
    let socket = post.receive(wire.clone(), Arc::default()).unwrap();
    let socket = Arc::new(Limited::new(socket, unproved.clone()));
    Site { wire, unproved, socket }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, 1]), port)
}

/// A datagram of a client that has no connection yet.
fn first(size: usize) -> Vec<u8> {
    let mut datagram = vec![7; size];
    datagram[..5].copy_from_slice(&[0xc3, 0, 0, 0, 1]);
    datagram
}

impl Site {
    fn receive(&self, from: SocketAddr, bytes: Vec<u8>) {
        lock(&self.wire.gives).push((from, bytes));
        let (mut buf, mut metas) = (vec![0; 9000], [RecvMeta::default()]);
        let mut cx = Context::from_waker(Waker::noop());
        let polled = self.socket.poll_recv(&mut cx, &mut [IoSliceMut::new(&mut buf)], &mut metas);
        assert!(matches!(polled, Poll::Ready(Ok(1))), "{polled:?}");
    }

    fn connect(&self, to: SocketAddr) -> (Arc<Address>, Connection<'_>) {
        let address = self.unproved.begin(to);
        let poller = self.unproved.connect(Some(address.clone()), || self.socket.clone().create_io_poller());
        (address, Connection { site: self, to, poller })
    }

    /// Lengths of what was sent since the last time.
    fn sent(&self) -> Vec<usize> {
        mem::take(&mut *lock(&self.wire.sent)).iter().map(Vec::len).collect()
    }

    fn remembered(&self) -> (usize, usize) {
        let addresses = lock(&self.unproved.addresses);
        (addresses.of.len(), addresses.recent.iter().map(HashMap::len).sum())
    }
}

/// One of `quinn`'s, which sends as that does.
struct Connection<'a> {
    site: &'a Site,
    to: SocketAddr,
    poller: Pin<Box<dyn UdpPoller>>,
}

impl Connection<'_> {
    /// Sends datagrams of this size together; false if that is not all sent yet.
    fn send(&mut self, bytes: &[u8], size: Option<usize>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            if self.poller.as_mut().poll_writable(&mut cx).is_pending() {
                return false;
            }
            let sent = self.site.socket.try_send(&transmit(self.to, bytes, size));
            match sent {
                Ok(()) => return true,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert!(self.site.wire.is_full.load(Relaxed), "it does not try for ever");
        false
    }
}

fn transmit(destination: SocketAddr, contents: &[u8], segment_size: Option<usize>) -> Transmit<'_> {
    Transmit { destination, ecn: None, contents, segment_size, src_ip: None }
}

#[test]
fn a_datagram_that_does_not_fit_waits_until_it_may_be_sent_and_those_before_are_sent_once() {
    let site = site();
    site.receive(at(2), first(1250));
    let (address, mut conn) = site.connect(at(2));
    // 3,750 bytes may be sent.
    let flight = vec![0xe0; 4900];
    site.wire.is_full.store(true, Relaxed);
    assert!(!conn.send(&flight, Some(1200)));
    site.wire.is_full.store(false, Relaxed);
    assert!(!conn.send(&flight, Some(1200)));
    assert_eq!(site.sent(), [1200; 3]);
    assert!(!conn.send(&flight, Some(1200)), "nothing has come");
    site.receive(at(3), first(1200));
    assert!(!conn.send(&flight, Some(1200)), "it has come from another address");
    site.receive(at(2), [0x40].repeat(1200));
    assert!(!conn.send(&flight, Some(1200)), "none of a handshake");
    site.receive(at(2), vec![0xe0; 350]);
    assert!(!conn.send(&flight, Some(1200)), "there is room for 1,200 bytes, but not for all");
    assert_eq!(site.sent(), [1200]);
    address.prove();
    assert!(conn.send(&flight, Some(1200)));
    assert_eq!(site.sent(), [100]);
    for _ in 0..9 {
        assert!(conn.send(&flight, Some(1200)), "there is no limit any more");
    }
    assert_eq!(site.sent().len(), 9 * 5);
    assert_eq!(site.remembered(), (0, 1), "the other address");
}

#[test]
fn a_connection_that_waits_is_woken() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    for proved in [false, true] {
        let site = site();
        site.receive(at(2), first(1200));
        let (address, mut conn) = site.connect(at(2));
        assert!(conn.send(&[0xe0; 3000], None));
        assert!(!conn.send(&[0xe0; 601], None));
        let count = Arc::<Count>::default();
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        for _ in 0..2 {
            assert!(conn.poller.as_mut().poll_writable(&mut cx).is_pending());
        }
        match proved {
            true => address.prove(),
            false => site.receive(at(2), vec![0xe0; 1]),
        }
        assert_eq!(count.0.load(Relaxed), 1);
        assert!(conn.poller.as_mut().poll_writable(&mut cx).is_ready());
    }
}

#[test]
fn connections_of_one_address_share_what_it_may_get_and_answers_without_a_connection_count() {
    let site = site();
    // Two came together.
    site.receive(at(2), first(1300).repeat(2));
    site.socket.try_send(&transmit(at(2), &[0xf0; 200], None)).unwrap();
    let (_, mut one) = site.connect(at(2));
    let (_, mut other) = site.connect(at(2));
    assert!(one.send(&[0xe0; 4000], Some(1000)));
    site.socket.try_send(&transmit(at(2), &[0x80; 600], None)).unwrap();
    let (_, mut third) = site.connect(at(2));
    assert!(!third.send(&[0xe0; 3001], None));
    assert!(other.send(&[0xe0; 3000], None), "7,800 in all");
    assert!(!one.send(&[0xe0; 1], None));
    assert_eq!(site.sent().iter().sum::<usize>(), 7800);
    drop((one, third));
    assert_eq!(site.remembered(), (1, 0));
    drop(other);
    assert_eq!(site.remembered(), (0, 0));
    // Answers without a connection have used up all that one may get.
    site.receive(at(3), first(1200));
    site.socket.try_send(&transmit(at(3), &[0xf0; 3600], None)).unwrap();
    assert!(!site.connect(at(3)).1.send(&[0xe0; 1], None));
}

#[test]
fn addresses_of_first_packets_are_forgotten_when_there_are_many() {
    let site = site();
    for (datagram, why) in [
        (first(1199), "too short"),
        ([&[0xc3, 0, 0, 0, 2][..], &[0; 1300]].concat(), "another version"),
        ([&[0xe3, 0, 0, 0, 1][..], &[0; 1300]].concat(), "no first packet"),
    ] {
        site.receive(at(2), datagram);
        assert_eq!(site.remembered(), (0, 0), "{why}");
    }
    for port in 1..=5000 {
        site.receive(at(port), first(1300));
        assert!(site.remembered().1 <= 2 * RECENT);
    }
    for (port, may_get) in [(5000, 3900), (4500, 3900), (1, 3600)] {
        let (_, mut conn) = site.connect(at(port));
        assert!(!conn.send(&vec![0xe0; may_get + 1], None), "{port}");
    }
    for (port, may_get) in [(4999, 3900), (4501, 3900), (2, 3600)] {
        let (_, mut conn) = site.connect(at(port));
        assert!(conn.send(&vec![0xe0; may_get], None), "{port}");
    }
}
