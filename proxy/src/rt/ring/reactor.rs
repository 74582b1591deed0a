//! hot path
//!
//! What waits for the ring, and what has come for it.
//!
//! Each socket, listener and timer has a *place*. Received bytes stay in the ring's buffers until
//! the tasks that are ready have been polled; what nobody took by then is copied to the place,
//! so that all buffers are the kernel's whenever it is entered. A place that holds much stops
//! receiving until its bytes were taken: that is the back-pressure.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::kernel::{Chunk, Completion, Kernel, POLLIN};

/// Bytes a place may hold untaken before it stops receiving. Until the kernel has stopped, a few
/// buffers more may come.
const UNTAKEN: usize = 64 << 10;

/// Spare room for untaken bytes above this is given back when the bytes were taken.
const KEPT: usize = 4 << 10;

const ENOBUFS: i32 = 105;
const ECANCELED: i32 = 125;

/// What a request was for; part of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Receive = 1,
    Poll = 2,
    Connect = 3,
    Timeout = 4,
    Event = 5,
}

/// Which of a place's two directions.
#[derive(Debug, Default)]
struct Interest {
    waker: Option<Waker>,
    waits: bool,
}

impl Interest {
    #[inline]
    fn register(&mut self, waker: &Waker) {
        self.waits = true;
        match &self.waker {
            Some(known) if known.will_wake(waker) => {}
            _ => self.waker = Some(waker.clone()),
        }
    }

    #[inline]
    fn wake(&mut self) {
        if std::mem::take(&mut self.waits)
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }
}

/// Whether the kernel receives for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Receiving {
    #[default]
    No,
    Yes,
    /// It was told to stop and has not said that it did.
    Stopping,
}

#[derive(Debug, Default)]
struct Place {
    /// A timer has none.
    socket: Option<OwnedFd>,
    /// Tells the requests of this place's user from those of users before.
    generation: u32,
    reader: Interest,
    writer: Interest,
    receiving: Receiving,
    /// Untaken bytes; older than those in `chunks`.
    untaken: Vec<u8>,
    /// Where in `untaken` those begin that were not taken.
    taken: usize,
    chunks: VecDeque<Chunk>,
    /// Zero for an orderly end, else the error's number.
    ended: Option<i32>,
    /// A request other than receiving is with the kernel.
    asked: Option<Kind>,
    /// Its result.
    answer: Option<i32>,
}

impl Place {
    fn has_bytes(&self) -> bool {
        self.taken < self.untaken.len() || !self.chunks.is_empty()
    }
}

/// A place's index and generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    index: u32,
    generation: u32,
}

fn name(key: Key, kind: Kind) -> u64 {
    u64::from(key.index) | u64::from(key.generation & 0x00ff_ffff) << 32 | (kind as u64) << 56
}

struct Inner {
    kernel: Kernel,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Places that got chunks since the last sweep.
    fresh: Vec<u32>,
    completions: Vec<Completion>,
}

pub(super) struct Reactor(RefCell<Inner>);

impl Reactor {
    pub(super) fn new(kernel: Kernel) -> Reactor {
        Reactor(RefCell::new(Inner {
            kernel,
            places: Vec::new(),
            free: Vec::new(),
            fresh: Vec::new(),
            completions: Vec::new(),
        }))
    }

    /// A place for a socket in blocking mode (else the ring would not wait for it), or for a timer.
    pub(super) fn open(&self, socket: Option<OwnedFd>) -> Key {
        let mut inner = self.0.borrow_mut();
        let index = inner.free.pop().unwrap_or_else(|| {
            inner.places.push(Place::default());
            (inner.places.len() - 1) as u32
        });
        let place = &mut inner.places[index as usize];
        place.socket = socket;
        Key { index, generation: place.generation }
    }

    /// Makes a system call on a place's socket, which must not wait.
    #[inline]
    pub(super) fn call<T>(
        &self,
        key: Key,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        match &self.0.borrow().places[key.index as usize].socket {
            Some(socket) => call(socket.as_fd()),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Ends what the kernel still does for a place, and closes its socket after it.
    pub(super) fn close(&self, key: Key) {
        let inner = &mut *self.0.borrow_mut();
        let place = &mut inner.places[key.index as usize];
        let generation = place.generation.wrapping_add(1) & 0x00ff_ffff;
        let place = std::mem::replace(place, Place { generation, ..Place::default() });
        if place.receiving == Receiving::Yes {
            inner.kernel.cancel(name(key, Kind::Receive));
        }
        if let Some(kind) = place.asked {
            inner.kernel.cancel(name(key, kind));
        }
        for chunk in place.chunks {
            inner.kernel.give_back(chunk);
        }
        if let Some(socket) = place.socket {
            inner.kernel.close(socket);
        }
        inner.free.push(key.index);
    }

    /// Takes bytes into `buf`, or waits for some. `Ok(0)` is the end.
    #[inline]
    pub(super) fn poll_read(
        &self,
        key: Key,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.borrow_mut();
        let place = &mut inner.places[key.index as usize];
        let n = take(place, &mut inner.kernel, buf);
        if n > 0 || buf.is_empty() {
            return Poll::Ready(Ok(n));
        }
        inner.poll_news(key, cx).map(|()| match inner.places[key.index as usize].ended {
            Some(errno) if errno != 0 => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(0),
        })
    }

    /// Waits for bytes, an end or an error.
    #[inline]
    pub(super) fn poll_readable(&self, key: Key, cx: &mut Context<'_>) -> Poll<()> {
        self.0.borrow_mut().poll_news(key, cx)
    }

    /// What there is to read: bytes, the end (`Ok(0)`), an error, or nothing yet (`WouldBlock`).
    pub(super) fn peek(&self, key: Key) -> io::Result<usize> {
        let inner = self.0.borrow();
        let place = &inner.places[key.index as usize];
        match place.ended {
            _ if place.has_bytes() => Ok(1),
            Some(0) => Ok(0),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// There are bytes, an end or an error; or the kernel was not asked.
    #[inline]
    pub(super) fn has_news(&self, key: Key) -> bool {
        let inner = self.0.borrow();
        let place = &inner.places[key.index as usize];
        place.receiving != Receiving::Yes || place.has_bytes() || place.ended.is_some()
    }

    /// The kernel receives for this place, so that [`Reactor::peek`] tells all there is to know.
    pub(super) fn is_receiving(&self, key: Key) -> bool {
        self.0.borrow().places[key.index as usize].receiving == Receiving::Yes
    }

    /// Waits until one of the `poll(2)` events has happened on a place's socket.
    pub(super) fn poll_event(&self, key: Key, events: i16, cx: &mut Context<'_>) -> Poll<()> {
        let ask =
            |kernel: &mut Kernel, socket: BorrowedFd<'_>, name| kernel.poll(socket, events, false, name);
        self.poll_answer(key, cx, Kind::Poll, ask).map(drop)
    }

    /// Connects; the answer is zero or the negative number of an error.
    pub(super) fn poll_connect(&self, key: Key, addr: SocketAddr, cx: &mut Context<'_>) -> Poll<i32> {
        let ask = |kernel: &mut Kernel, socket: BorrowedFd<'_>, name| kernel.connect(socket, addr, name);
        self.poll_answer(key, cx, Kind::Connect, ask)
    }

    /// Asks the kernel once about a place's socket, and hands out its one answer.
    fn poll_answer(
        &self,
        key: Key,
        cx: &mut Context<'_>,
        kind: Kind,
        ask: impl FnOnce(&mut Kernel, BorrowedFd<'_>, u64),
    ) -> Poll<i32> {
        let inner = &mut *self.0.borrow_mut();
        let place = &mut inner.places[key.index as usize];
        if let Some(answer) = place.answer.take() {
            return Poll::Ready(answer);
        }
        place.writer.register(cx.waker());
        if place.asked.is_none()
            && let Some(socket) = &place.socket
        {
            place.asked = Some(kind);
            ask(&mut inner.kernel, socket.as_fd(), name(key, kind));
        }
        Poll::Pending
    }

    pub(super) fn poll_timeout(&self, key: Key, after: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.0.borrow_mut();
        let place = &mut inner.places[key.index as usize];
        if place.answer.take().is_some() {
            return Poll::Ready(());
        }
        place.writer.register(cx.waker());
        if place.asked.is_none() {
            place.asked = Some(Kind::Timeout);
            inner.kernel.timeout(after, name(key, Kind::Timeout));
        }
        Poll::Pending
    }

    #[cfg(test)]
    pub(super) fn untaken(&self, key: Key) -> usize {
        self.0.borrow().places[key.index as usize].untaken.len()
    }

    /// From now on [`Reactor::turn`] says when this descriptor was written to.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>) {
        let key = Key { index: u32::MAX, generation: 0 };
        self.0.borrow_mut().kernel.poll(fd, POLLIN, true, name(key, Kind::Event));
    }

    /// Hands all requests to the kernel, waits for something to happen if asked to, and wakes
    /// whom it concerns.
    pub(super) fn turn(&self, wait: bool, event: impl FnMut(bool)) -> io::Result<()> {
        let inner = &mut *self.0.borrow_mut();
        inner.kernel.enter(wait)?;
        inner.dispatch(event);
        Ok(())
    }

    /// Copies what was not taken out of the ring's buffers. Called when every task that was
    /// woken has been polled.
    pub(super) fn sweep(&self) {
        let inner = &mut *self.0.borrow_mut();
        while let Some(index) = inner.fresh.pop() {
            let place = &mut inner.places[index as usize];
            if place.chunks.is_empty() {
                continue;
            }
            if place.taken > 0 {
                place.untaken.drain(..place.taken);
                place.taken = 0;
            }
            for chunk in place.chunks.drain(..) {
                place.untaken.extend_from_slice(inner.kernel.bytes(&chunk));
                inner.kernel.give_back(chunk);
            }
            if place.untaken.len() >= UNTAKEN && place.receiving == Receiving::Yes {
                place.receiving = Receiving::Stopping;
                let key = Key { index, generation: place.generation };
                inner.kernel.cancel(name(key, Kind::Receive));
            }
        }
    }
}

impl Inner {
    /// Ready with bytes, an end or an error.
    #[inline]
    fn poll_news(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<()> {
        let place = &mut self.places[key.index as usize];
        if place.has_bytes() || place.ended.is_some() {
            return Poll::Ready(());
        }
        place.reader.register(cx.waker());
        if place.receiving == Receiving::No {
            match &place.socket {
                Some(socket) => {
                    place.receiving = Receiving::Yes;
                    self.kernel.receive(socket.as_fd(), name(key, Kind::Receive));
                }
                None => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }

    fn dispatch(&mut self, mut event: impl FnMut(bool)) {
        let mut completions = std::mem::take(&mut self.completions);
        self.kernel.completions(&mut completions);
        for completion in completions.drain(..) {
            let index = completion.name as u32;
            let kind = (completion.name >> 56) as u8;
            if kind == Kind::Event as u8 {
                event(completion.more);
                continue;
            }
            let place = self.places.get_mut(index as usize).filter(|place| {
                kind != 0 && u64::from(place.generation) == completion.name >> 32 & 0x00ff_ffff
            });
            let Some(place) = place else {
                // Its place has another user by now, or it concerns nobody.
                if let Some(chunk) = completion.chunk {
                    self.kernel.give_back(chunk);
                }
                continue;
            };
            if kind != Kind::Receive as u8 {
                place.asked = None;
                place.answer = Some(completion.result);
                place.writer.wake();
                continue;
            }
            if !completion.more {
                place.receiving = Receiving::No;
            }
            match (completion.chunk, completion.result) {
                (Some(chunk), 1..) => {
                    if place.chunks.is_empty() {
                        self.fresh.push(index);
                    }
                    place.chunks.push_back(chunk);
                }
                (chunk, result) => {
                    if let Some(chunk) = chunk {
                        self.kernel.give_back(chunk);
                    }
                    // Without a buffer, or stopped: whoever reads asks again.
                    if result != -ENOBUFS && result != -ECANCELED {
                        place.ended = Some(-result);
                    }
                }
            }
            place.reader.wake();
        }
        self.completions = completions;
    }
}

/// Moves bytes from a place to `buf`.
#[inline]
fn take(place: &mut Place, kernel: &mut Kernel, buf: &mut [u8]) -> usize {
    let mut n = 0;
    if place.taken < place.untaken.len() {
        let bytes = &place.untaken[place.taken..];
        n = bytes.len().min(buf.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        place.taken += n;
        if place.taken == place.untaken.len() {
            place.taken = 0;
            place.untaken.clear();
            place.untaken.shrink_to(KEPT);
        }
    }
    while n < buf.len()
        && let Some(chunk) = place.chunks.front_mut()
    {
        let part = chunk.len().min(buf.len() - n);
        buf[n..n + part].copy_from_slice(&kernel.bytes(chunk)[..part]);
        n += part;
        chunk.consume(part);
        if chunk.len() == 0
            && let Some(chunk) = place.chunks.pop_front()
        {
            kernel.give_back(chunk);
        }
    }
    n
}
