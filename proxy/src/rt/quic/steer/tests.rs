use super::*;

/// Gives this once, and nothing else ever.
#[derive(Debug, Default)]
struct Gives(Mutex<Option<Vec<u8>>>);

impl AsyncUdpSocket for Gives {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        unreachable!("nothing is sent")
    }

    fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
        Ok(())
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Some(bytes) = self.0.lock().unwrap().take() else { return Poll::Pending };
        bufs[0][..bytes.len()].copy_from_slice(&bytes);
        metas[0] = RecvMeta { len: bytes.len(), stride: bytes.len(), ..RecvMeta::default() };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    fn max_transmit_segments(&self) -> usize {
        7
    }

    fn max_receive_segments(&self) -> usize {
        9
    }

    fn may_fragment(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }
}

/// Bytes that one of these workers keeps of a datagram that comes to its socket.
fn kept(socket: &mut Socket, datagram: &[u8]) -> usize {
    socket.socket = Arc::new(Gives(Mutex::new(Some(datagram.to_vec()))));
    let mut buf = [0; 64];
    let mut metas = [RecvMeta::default()];
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let polled = socket.poll_recv(&mut cx, &mut [IoSliceMut::new(&mut buf)], &mut metas);
    assert!(matches!(polled, Poll::Ready(Ok(1))), "{polled:?}");
    metas[0].len
}

#[test]
fn a_worker_looks_whose_datagrams_are_unless_all_are_its_own() {
    crate::rt::run(async {
        let heirs = [(); 2].map(|()| Arc::<Heir>::default());
        let elders: Arc<[Elder]> =
            heirs.iter().map(|heir| Elder::new(heir.line().unwrap()).unwrap()).collect();
        let mut two = sockets(2);
        let other = datagram(&two[1].0.generate_cid(), 1);
        assert_eq!(kept(&mut two[0].1, &other), 0, "it is the other worker's");
        let mut alone = sockets(1);
        assert_eq!(kept(&mut alone[0].1, &other), other.len(), "there is no other worker");
        let mut after = made(posts(1, &elders, 0));
        after[0].1.gate = Gate::default();
        assert_eq!(kept(&mut after[0].1, &other), 0, "it is left to the process before");
        // Each worker has a socket of that process, however many there are of either.
        let routes = &after[0].1.routes;
        assert!((0..5).all(|from| routes.give_elder(from, &other, &RecvMeta::default())));
        let of = posts(2, &elders, 3).into_iter().map(|post| post.elder);
        assert_eq!(of.collect::<Vec<_>>(), [3, 4]);

        // A datagram that an heir passes on to the wrong worker goes to the right one.
        let lines: Arc<[Elder]> = Arc::from([Elder::new(heirs[0].line().unwrap()).unwrap()]);
        let post = |(post, heir): (Post, &Arc<Heir>)| {
            ((post.ids())(), post.receive(Arc::<Gives>::default(), heir.clone()).unwrap())
        };
        let mut old: Vec<_> = posts(2, &Arc::from([]), 0).into_iter().zip(&heirs).map(post).collect();
        let other = datagram(&old[1].0.generate_cid(), 1);
        assert!(lines[0].pass(&other, &RecvMeta::default()));
        let (mut one, mut metas) = ([0; 64], [RecvMeta::default()]);
        let polled = std::future::poll_fn(|cx| {
            let mut bufs = [IoSliceMut::new(&mut one)];
            assert!(old[0].1.poll_recv(cx, &mut bufs, &mut metas).is_pending(), "it is not this one's");
            old[1].1.poll_recv(cx, &mut bufs, &mut metas)
        });
        crate::rt::within(Duration::from_secs(30), polled).await.unwrap().unwrap();
        assert_eq!(one[..metas[0].len], other);
    })
    .unwrap();
}

#[test]
fn a_workers_socket_can_do_what_the_systems_can() {
    let socket = &mut sockets(1)[0].1;
    for (gives, may_fragment) in [(None, true), (Some(Vec::new()), false)] {
        socket.socket = Arc::new(Gives(Mutex::new(gives)));
        let can = (socket.max_transmit_segments(), socket.max_receive_segments(), socket.may_fragment());
        assert_eq!(can, (7, 9, may_fragment));
    }
}

fn sockets(workers: usize) -> Vec<(Box<dyn ConnectionIdGenerator>, Socket)> {
    made(posts(workers, &Arc::from([]), 0))
}

fn made(posts: Vec<Post>) -> Vec<(Box<dyn ConnectionIdGenerator>, Socket)> {
    let of = |post: Post| ((post.ids())(), post.receive(Arc::<Gives>::default(), Arc::default()).unwrap());
    posts.into_iter().map(of).collect()
}

/// A short header and the id of a connection, then a few bytes.
fn datagram(id: &ConnectionId, rest: u8) -> Vec<u8> {
    [&[0x40][..], id, &[rest; 20]].concat()
}

#[test]
fn ids_say_whose_they_are_and_only_here() {
    let mut workers = sockets(3);
    let strangers = sockets(300);
    let (mut same, mut seen) = (0, std::collections::HashSet::new());
    for owner in 0..3 {
        for _ in 0..200 {
            let id = workers[owner].0.generate_cid();
            assert!(workers.iter().all(|(_, socket)| socket.routes.owner(&id) == Some(owner)));
            same += usize::from(strangers[0].1.routes.owner(&id) == Some(owner));
            assert!(seen.insert(id.to_vec()), "every id is new");
            assert_eq!(id.len(), workers[owner].0.cid_len());
            assert!(workers[0].0.validate(&id).is_ok() && strangers[0].0.validate(&id).is_err());
        }
    }
    assert_eq!(same, 0, "another key reads something else");
    let routes = &workers[0].1.routes;
    assert_eq!(routes.owner(&routes.id(&[1; NONCE], 3)), None, "there is no fourth worker");
}

#[test]
fn what_is_anothers_is_passed_on() {
    let mut workers = sockets(2);
    let [mine, theirs] = [0, 1].map(|owner| workers[owner].0.generate_cid());
    let own = datagram(&mine, 1);
    let foreign = datagram(&theirs, 2);
    let mut invented = datagram(&theirs, 3);
    invented[0] = 0xc0;
    // As the kernel gives them: several of one length, the last may be shorter.
    let short = &foreign[..20];
    let mut buf = [&own[..], &foreign, &invented, short].concat();
    let stride = own.len();
    let mut meta = RecvMeta { len: buf.len(), stride, ..RecvMeta::default() };
    workers[0].1.keep_own(&mut buf, &mut meta);
    assert_eq!(buf[..meta.len], [&own[..], &invented].concat());
    let mut none = RecvMeta { len: 3, stride: 3, ..RecvMeta::default() };
    workers[0].1.keep_own(&mut [0x40, 1, 2], &mut none);
    assert_eq!(none.len, 3, "it has no id");
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let (mut one, mut two, mut three) = ([0; 64], [0; 64], [0; 64]);
    let mut bufs = [&mut one, &mut two, &mut three].map(|buf| IoSliceMut::new(buf));
    let mut metas = [RecvMeta::default(); 3];
    let got = workers[1].1.poll_recv(&mut cx, &mut bufs, &mut metas);
    assert!(matches!(got, Poll::Ready(Ok(2))), "{got:?}");
    for ((buf, meta), sent) in bufs.iter().zip(metas).zip([&foreign[..], short]) {
        assert_eq!((&buf[..meta.len], meta.stride), (sent, sent.len()));
    }
    assert!(workers[1].1.poll_recv(&mut cx, &mut bufs, &mut metas).is_pending());
}

#[test]
fn what_waits_is_bounded() {
    let mut workers = sockets(2);
    let foreign = datagram(&workers[1].0.generate_cid(), 2);
    for _ in 0..WAITING + 10 {
        let mut buf = foreign.clone();
        let mut meta = RecvMeta { len: buf.len(), stride: buf.len(), ..RecvMeta::default() };
        workers[0].1.keep_own(&mut buf, &mut meta);
        assert_eq!(meta.len, 0);
    }
    assert_eq!(workers[1].1.inbox.lock().unwrap().len(), WAITING);
}

/// A long header with an id, as of a handshake.
fn of_a_handshake(id: &[u8]) -> Vec<u8> {
    [&[0xe0, 0, 0, 0, 1, id.len() as u8][..], id, &[7; 20]].concat()
}

#[test]
fn at_an_upgrade_each_process_gets_what_is_its_own() {
    crate::rt::run(async {
        // Three processes: the oldest still drains when the second one hands over to the third.
        let [first, second] = [Arc::<Heir>::default(), Arc::<Heir>::default()];
        let line = |heir: &Heir| Arc::from([Elder::new(heir.line().unwrap()).unwrap()]);
        let start = |elders: &Arc<[Elder]>, heir: &Arc<Heir>| {
            let post = posts(1, elders, 0).remove(0);
            ((post.ids())(), post.receive(Arc::<Gives>::default(), heir.clone()).unwrap())
        };
        let mut oldest = start(&Arc::from([]), &first);
        let elders: Arc<[Elder]> = line(&first);
        let mut old = start(&elders, &second);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(old.1.gate.poll_open(&mut cx).is_pending(), "the socket is the oldest's still");
        first.hand_over();
        let opened = std::future::poll_fn(|cx| old.1.gate.poll_open(cx));
        crate::rt::within(Duration::from_secs(30), opened).await.unwrap();
        let elders: Arc<[Elder]> = line(&second);
        let mut new = start(&elders, &Arc::default());

        let [of_oldest, of_old, of_new] = [&mut oldest, &mut old, &mut new].map(|one| one.0.generate_cid());
        let parts = [
            datagram(&of_oldest, 1),
            datagram(&of_old, 2),
            datagram(&of_new, 3),
            of_a_handshake(&of_old),
            of_a_handshake(&of_new),
            // A client's invention.
            of_a_handshake(&[9; 8]),
            datagram(&of_old, 4),
        ];
        let address = SocketAddr::from(([127, 0, 0, 1], 4321));
        let mut kept = Vec::new();
        for part in &parts {
            let mut buf = part.clone();
            let mut meta =
                RecvMeta { addr: address, len: buf.len(), stride: buf.len(), ..RecvMeta::default() };
            new.1.keep_own(&mut buf, &mut meta);
            kept.push(meta.len > 0);
        }
        assert_eq!(kept, [false, false, true, true, true, true, false]);
        let mut got = Vec::new();
        for (socket, count) in [(&old.1, 3), (&oldest.1, 1)] {
            let mut mine = Vec::new();
            while mine.len() < count {
                let (mut one, mut two) = ([0; 64], [0; 64]);
                let mut bufs = [&mut one, &mut two].map(|buf| IoSliceMut::new(buf));
                let mut metas = [RecvMeta::default(); 2];
                let polled = std::future::poll_fn(|cx| socket.poll_recv(cx, &mut bufs, &mut metas));
                let n = crate::rt::within(Duration::from_secs(30), polled).await.unwrap().unwrap();
                for (buf, meta) in bufs.iter().zip(metas).take(n) {
                    assert_eq!(meta.addr, address);
                    mine.push(buf[..meta.len].to_vec());
                }
            }
            got.push(mine);
        }
        let of_old = [1, 3, 6].map(|at| parts[at].clone()).to_vec();
        assert_eq!(got, [of_old, vec![parts[0].clone()]]);
        // The old ones are gone: a datagram of theirs is kept here, as it has no other owner.
        drop((oldest, old, first, second));
        let mut buf = parts[1].clone();
        let mut meta = RecvMeta { len: buf.len(), stride: buf.len(), ..RecvMeta::default() };
        new.1.keep_own(&mut buf, &mut meta);
        assert_eq!(meta.len, parts[1].len());
    })
    .unwrap();
}
