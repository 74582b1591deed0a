//! Connections in memory: a pair of pipes that behaves as TCP does. The gateway sends requests to itself
//! over them; tests give them a seeded schedule of short reads, short writes, pauses and cuts.

use std::cell::{Cell, RefCell};
#[cfg(feature = "testing")]
use std::collections::HashMap;
use std::collections::VecDeque;
use std::io;
#[cfg(feature = "testing")]
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;

/// Disturbances of one end of a connection. The default is a perfect one.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    pub seed: u64,
    /// Bytes one read or write moves at most; 0 is no bound. Each moves a random part of it.
    pub most: usize,
    /// Of 256 attempts to read or write, this many come too early and are to be repeated.
    pub pauses: u8,
    /// Bytes that wait to be read at most; 0 is 64 KiB.
    pub room: usize,
    /// When this many bytes were read from the peer, the connection ends.
    pub cut: Option<(u64, Cut)>,
    /// Data is reported a turn after a task waits for it, as data on a socket is when the kernel is next
    /// asked for events.
    pub late: bool,
}

/// How a connection ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "only tests cut connections"))]
pub enum Cut {
    /// The peer closes.
    Close,
    /// It is reset.
    Reset,
}

/// One direction.
#[derive(Debug)]
struct Pipe {
    bytes: VecDeque<u8>,
    room: usize,
    /// Bytes that were read.
    taken: u64,
    /// The writer has said that no more comes.
    ended: bool,
    /// The reader has closed.
    deaf: bool,
    /// A reset: what was not read is lost.
    broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    incoming: Rc<RefCell<Pipe>>,
    outgoing: Rc<RefCell<Pipe>>,
    schedule: Schedule,
    rng: RefCell<Rng>,
    read: Cell<u64>,
    /// The data that is there was reported.
    reported: Cell<bool>,
    aborted: Cell<bool>,
}

/// A connection; each end has its own schedule.
pub fn pair(one: Schedule, other: Schedule) -> (End, End) {
    let pipe = |reader: &Schedule| {
        Rc::new(RefCell::new(Pipe {
            bytes: VecDeque::new(),
            room: if reader.room == 0 { 64 << 10 } else { reader.room },
            taken: 0,
            ended: false,
            deaf: false,
            broken: false,
            reader: None,
            writer: None,
        }))
    };
    let (to_one, to_other) = (pipe(&one), pipe(&other));
    let end = |incoming: &Rc<RefCell<Pipe>>, outgoing: &Rc<RefCell<Pipe>>, schedule: Schedule| End {
        incoming: incoming.clone(),
        outgoing: outgoing.clone(),
        rng: RefCell::new(Rng::with_seed(schedule.seed)),
        reported: Cell::new(!schedule.late),
        schedule,
        read: Cell::new(0),
        aborted: Cell::new(false),
    };
    (end(&to_one, &to_other, one), end(&to_other, &to_one, other))
}

impl Pipe {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    fn is_readable(&self) -> bool {
        !self.bytes.is_empty() || self.ended || self.broken
    }

    fn reset(&mut self) {
        self.broken = true;
        self.bytes.clear();
        self.wake();
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl End {
    pub(crate) fn is_readable(&self) -> bool {
        self.incoming.borrow().is_readable()
    }

    /// The same, as far as it was reported.
    pub(crate) fn maybe_readable(&self) -> bool {
        self.reported.get() && self.is_readable()
    }

    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.incoming.borrow_mut();
        if pipe.is_readable() {
            return Poll::Ready(Ok(()));
        }
        pipe.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn poll_ahead(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut pipe = self.incoming.borrow_mut();
        match (pipe.broken, pipe.bytes.len(), pipe.ended) {
            (true, _, _) => Poll::Ready(Err(reset())),
            (_, 0, false) => {
                pipe.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            (_, n, _) => Poll::Ready(Ok(n)),
        }
    }

    /// Whether this attempt comes too early.
    fn pauses(&self, cx: &mut Context<'_>) -> bool {
        let pauses = self.schedule.pauses > 0 && self.rng.borrow_mut().u8(..) < self.schedule.pauses;
        if pauses {
            cx.waker().wake_by_ref();
        }
        pauses
    }

    /// How many of `all` bytes this attempt moves.
    fn part(&self, all: usize) -> usize {
        match self.schedule.most {
            0 => all,
            most => self.rng.borrow_mut().usize(1..=most).min(all),
        }
    }

    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Some((after, how)) = self.schedule.cut
            && self.read.get() >= after
        {
            self.cut(how);
        }
        let mut pipe = self.incoming.borrow_mut();
        if pipe.is_readable() && !self.reported.replace(true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if pipe.broken {
            return Poll::Ready(Err(reset()));
        }
        if pipe.bytes.is_empty() && pipe.ended {
            return Poll::Ready(Ok(0));
        }
        if pipe.bytes.is_empty() {
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.pauses(cx) {
            return Poll::Pending;
        }
        let mut n = self.part(buf.len().min(pipe.bytes.len()));
        if let Some((after, _)) = self.schedule.cut {
            n = n.min(usize::try_from(after - self.read.get()).unwrap_or(usize::MAX));
        }
        for (slot, byte) in buf.iter_mut().zip(pipe.bytes.drain(..n)) {
            *slot = byte;
        }
        self.read.set(self.read.get() + n as u64);
        pipe.taken += n as u64;
        self.reported.set(!self.schedule.late || !pipe.bytes.is_empty());
        if let Some(waker) = pipe.writer.take() {
            waker.wake();
        }
        Poll::Ready(Ok(n))
    }

    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = self.outgoing.borrow_mut();
        if pipe.broken || pipe.ended {
            return Poll::Ready(Err(reset()));
        }
        if pipe.deaf {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let free = pipe.room.saturating_sub(pipe.bytes.len());
        if free == 0 && !bytes.is_empty() {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.pauses(cx) {
            return Poll::Pending;
        }
        let n = if bytes.is_empty() { 0 } else { self.part(bytes.len().min(free)) };
        pipe.bytes.extend(&bytes[..n]);
        if let Some(waker) = pipe.reader.take() {
            waker.wake();
        }
        Poll::Ready(Ok(n))
    }

    /// As [`super::Io::acknowledged`]: the peer has what it has read.
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        let pipe = self.outgoing.borrow();
        (!pipe.bytes.is_empty()).then_some(pipe.taken)
    }

    /// Says that no more will be written.
    pub fn shut_down(&self) {
        let mut pipe = self.outgoing.borrow_mut();
        pipe.ended = true;
        pipe.wake();
    }

    /// Makes the coming close a reset.
    pub fn abort(&self) {
        self.aborted.set(true);
    }

    fn cut(&self, how: Cut) {
        let mut incoming = self.incoming.borrow_mut();
        match how {
            Cut::Close => {
                incoming.bytes.clear();
                incoming.ended = true;
                incoming.deaf = true;
                incoming.wake();
                drop(incoming);
                self.outgoing.borrow_mut().deaf = true;
            }
            Cut::Reset => {
                incoming.reset();
                drop(incoming);
                self.outgoing.borrow_mut().reset();
            }
        }
    }

    /// Waits until it has read something; 0 is the end.
    #[cfg(feature = "testing")]
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    #[cfg(feature = "testing")]
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = std::future::poll_fn(|cx| self.poll_write(cx, bytes)).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut incoming = self.incoming.borrow_mut();
        // As TCP: closing before everything was read tells the peer so.
        let unread = !incoming.bytes.is_empty();
        incoming.deaf = true;
        incoming.wake();
        drop(incoming);
        let mut outgoing = self.outgoing.borrow_mut();
        if self.aborted.get() || unread {
            outgoing.reset();
        } else {
            outgoing.ended = true;
            outgoing.wake();
        }
    }
}

/// Accepts the connections to one address.
#[cfg(feature = "testing")]
type Server = Rc<dyn Fn() -> io::Result<End>>;

#[cfg(feature = "testing")]
thread_local! {
    static NETWORK: RefCell<Option<HashMap<SocketAddr, Server>>> = const { RefCell::new(None) };
}

#[cfg(feature = "testing")]
/// From now on this thread's connections go only to servers in memory.
pub fn install() {
    NETWORK.set(Some(HashMap::new()));
}

#[cfg(feature = "testing")]
/// Makes `server` give an end for each connection to this address, or what connecting to it comes to.
pub fn serve(addr: SocketAddr, server: impl Fn() -> io::Result<End> + 'static) {
    NETWORK.with_borrow_mut(|network| {
        network.get_or_insert_default().insert(addr, Rc::new(server));
    });
}

#[cfg(feature = "testing")]
/// Connects to a server in memory; `None` where this thread has no such network.
pub(crate) fn connect(addr: SocketAddr) -> Option<io::Result<End>> {
    let server =
        NETWORK.with_borrow(|network| network.as_ref().map(|network| network.get(&addr).cloned()))?;
    Some(server.map_or_else(|| Err(io::ErrorKind::ConnectionRefused.into()), |server| server()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_in_order_whatever_the_schedule() {
        for seed in 0..20 {
            let schedule = Schedule { seed, most: 7, pauses: 128, room: 16, ..Schedule::default() };
            let (one, other) = pair(schedule.clone(), schedule);
            let sent: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
            let copy = sent.clone();
            crate::rt::run_paused(async move {
                crate::rt::spawn(async move {
                    let _ = one.write_all(&copy).await;
                    one.shut_down();
                    // Dropped once the other has everything.
                    let _ = one.read(&mut [0]).await;
                });
                let mut got = Vec::new();
                let mut part = [0; 32];
                loop {
                    match other.read(&mut part).await.unwrap() {
                        0 => break,
                        n => got.extend_from_slice(&part[..n]),
                    }
                }
                assert_eq!(got, sent);
            })
            .unwrap();
        }
    }

    #[test]
    fn what_comes_late_is_there_before_it_is_reported() {
        crate::rt::run_paused(async {
            let (late, other) = pair(Schedule { late: true, ..Schedule::default() }, Schedule::default());
            let mut byte = [0; 1];
            for text in [b"ab", b"cd"] {
                other.write_all(text).await.unwrap();
                assert_eq!((late.is_readable(), late.maybe_readable()), (true, false));
                let early = std::future::poll_fn(|cx| Poll::Ready(late.poll_read(cx, &mut byte))).await;
                assert!(early.is_pending() && late.maybe_readable());
                assert_eq!(late.read(&mut byte).await.unwrap(), 1);
                assert!(late.maybe_readable(), "there is more");
                assert_eq!(late.read(&mut byte).await.unwrap(), 1);
                assert!(!late.maybe_readable());
            }
            assert!(!other.maybe_readable(), "nothing has come");
            late.write_all(b"ef").await.unwrap();
            assert!(other.maybe_readable(), "it is reported at once");
            assert_eq!(other.read(&mut byte).await.unwrap(), 1);
            assert!(other.maybe_readable(), "and stays so");
        })
        .unwrap();
    }

    #[test]
    fn ends_are_seen_as_with_tcp() {
        crate::rt::run_paused(async {
            let mut byte = [0; 8];
            let (one, other) = pair(Schedule::default(), Schedule::default());
            one.write_all(b"ab").await.unwrap();
            drop(one);
            assert_eq!(other.read(&mut byte).await.unwrap(), 2, "what was sent before the close");
            assert_eq!(other.read(&mut byte).await.unwrap(), 0);
            assert_eq!(other.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);

            let (one, other) = pair(Schedule::default(), Schedule::default());
            one.write_all(b"ab").await.unwrap();
            one.abort();
            drop(one);
            assert_eq!(other.read(&mut byte).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);

            let (one, other) = pair(Schedule::default(), Schedule::default());
            other.write_all(b"unread").await.unwrap();
            drop(one);
            assert_eq!(other.read(&mut byte).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);

            for (how, seen) in [(Cut::Close, None), (Cut::Reset, Some(io::ErrorKind::ConnectionReset))] {
                let cut = Schedule { cut: Some((3, how)), ..Schedule::default() };
                let (one, other) = pair(cut, Schedule::default());
                other.write_all(b"abcdef").await.unwrap();
                assert_eq!(one.read(&mut byte[..2]).await.unwrap(), 2);
                assert_eq!(one.read(&mut byte).await.unwrap(), 1);
                assert_eq!(one.read(&mut byte).await.map_err(|error| error.kind()).err(), seen);
                assert!(other.write_all(b"x").await.is_err());
            }
        })
        .unwrap();
    }
}
