//! hot path
//!
//! TLS over another transport.
//!
//! Everything above reads and writes plaintext. TLS's own messages (handshakes, session tickets, key
//! updates, alerts) are read and answered here, and are invisible above.

mod handshake;

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};

use rustls::{AlertDescription, CommonState, Connection};

use super::io::Io;

pub(crate) use handshake::{HandshakeError, Refused, accept, connect};

/// Read from the transport at once: a whole record.
const READ: usize = 5 + (16 << 10) + 256;

/// Plaintext that a session holds at most before it takes more ciphertext.
const PLAINTEXT: usize = 16 << 10;

thread_local! {
    /// Ciphertext between the transport and a session. It is a thread's, so that idle connections hold none.
    static CIPHERTEXT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into_boxed_slice());
}

/// A connection whose handshake is over.
#[derive(Debug)]
pub(crate) struct Tls(RefCell<Inner>);

#[derive(Debug)]
struct Inner {
    io: Io,
    session: Connection,
    /// Bytes of plaintext that the session holds.
    plaintext: usize,
    /// Ciphertext that was read behind as much plaintext as the session takes.
    surplus: Vec<u8>,
    reading: Reading,
    /// With what the peer has broken the session off.
    alert: Option<AlertDescription>,
    /// Nothing more is sent, not even that.
    broken: bool,
    /// The task that waits to read, so that a look in between does not lose its wake-up.
    reader: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The peer has said that it sends no more.
    Ended,
    /// The transport has failed or ended without that word, or the peer has sent what is no TLS.
    Failed(io::ErrorKind),
}

impl Tls {
    /// The session behind a handshake. `surplus` is ciphertext that was read along with it.
    fn new(io: Io, session: Connection, surplus: &[u8]) -> Tls {
        let mut inner = Inner {
            io,
            session,
            plaintext: 0,
            surplus: Vec::new(),
            reading: Reading::Open,
            alert: None,
            broken: false,
            reader: None,
        };
        // Bytes that came along with the end of the handshake are in the session already.
        inner.digest();
        inner.take_in(surplus);
        Tls(RefCell::new(inner))
    }

    /// Reads what the handshake has agreed on.
    pub(crate) fn agreed<T>(&self, look: impl FnOnce(&CommonState) -> T) -> T {
        look(&self.0.borrow().session)
    }

    /// With what the peer has broken the session off, on a connection that is over.
    #[cold]
    pub(crate) fn alert(&self) -> Option<AlertDescription> {
        let mut inner = self.0.borrow_mut();
        // A write may have failed before the alert was read.
        let _ = inner.poll_plaintext(&mut Context::from_waker(Waker::noop()));
        inner.alert
    }

    /// As [`Io::maybe_readable`].
    pub(crate) fn maybe_readable(&self) -> bool {
        let inner = self.0.borrow();
        inner.plaintext > 0
            || inner.reading != Reading::Open
            || !inner.surplus.is_empty()
            || inner.io.maybe_readable()
    }

    /// As [`Io::is_idle`].
    pub(crate) fn is_idle(&self) -> bool {
        let mut inner = self.0.borrow_mut();
        let mut cx = Context::from_waker(Waker::noop());
        let idle = inner.poll_plaintext(&mut cx).is_pending();
        if let Some(reader) = inner.reader.take() {
            // This look has taken its place with the transport.
            reader.wake();
        }
        idle
    }

    /// As [`Io::acknowledged`].
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        self.0.borrow().io.acknowledged()
    }

    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ahead(cx).map_ok(drop)
    }

    /// As [`super::ReadHalf::poll_ahead`].
    pub(crate) fn poll_ahead(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut inner = self.0.borrow_mut();
        let ahead = inner.poll_plaintext(cx);
        match &mut inner.reader {
            reader if ahead.is_ready() => *reader = None,
            Some(reader) => reader.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        ahead
    }

    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.poll_ahead(cx) {
            Poll::Ready(Ok(1..)) => {}
            other => return other,
        }
        let inner = &mut *self.0.borrow_mut();
        let read = io::Read::read(&mut inner.session.reader(), buf)?;
        inner.plaintext -= read.min(inner.plaintext);
        Poll::Ready(Ok(read))
    }

    /// Takes what there is room for. It has left for the transport when [`Tls::poll_flush`] says so.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.borrow_mut();
        if inner.poll_send(cx)?.is_pending() {
            return Poll::Pending;
        }
        let taken = io::Write::write_vectored(&mut inner.session.writer(), slices)?;
        let _ = inner.poll_send(cx)?;
        Poll::Ready(Ok(taken))
    }

    /// Waits until everything written has left for the transport.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_send(cx)
    }

    /// Says that no more will be written, in TLS and below.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.borrow_mut();
        // It says so once.
        inner.session.send_close_notify();
        match inner.poll_send(cx)? {
            Poll::Ready(()) => inner.io.split().1.poll_shutdown(cx),
            Poll::Pending => Poll::Pending,
        }
    }

    /// As [`Io::abort`]. The peer gets no word of an orderly end.
    pub(crate) fn abort(&self) {
        let mut inner = self.0.borrow_mut();
        inner.broken = true;
        inner.io.abort();
    }
}

impl Drop for Tls {
    /// Without this word a peer must take what it got for cut off. Where the transport has no room for it,
    /// the peer is not reading.
    fn drop(&mut self) {
        let inner = self.0.get_mut();
        if !inner.broken {
            inner.session.send_close_notify();
            let _ = inner.poll_send(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl Inner {
    /// Waits for plaintext and returns how many bytes there are; 0 is the end.
    fn poll_plaintext(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            if self.plaintext > 0 {
                return Poll::Ready(Ok(self.plaintext));
            }
            if !self.surplus.is_empty() && self.reading == Reading::Open {
                let surplus = std::mem::take(&mut self.surplus);
                self.take_in(&surplus);
                continue;
            }
            match self.reading {
                Reading::Open => {}
                Reading::Ended => return Poll::Ready(Ok(0)),
                Reading::Failed(kind) => return Poll::Ready(Err(kind.into())),
            }
            // Unsent records go out beside reading, whether or not a task waits for that.
            let _ = self.poll_send(cx);
            let read = CIPHERTEXT.with_borrow_mut(|ciphertext| {
                let read = self.io.split().0.poll_read(cx, ciphertext);
                if let Poll::Ready(Ok(n @ 1..)) = read {
                    self.take_in(&ciphertext[..n]);
                }
                read
            });
            match read {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) => self.reading = Reading::Failed(io::ErrorKind::UnexpectedEof),
                Poll::Ready(Err(error)) => self.reading = Reading::Failed(error.kind()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Gives ciphertext to the session, as much as it takes.
    fn take_in(&mut self, mut ciphertext: &[u8]) {
        while !ciphertext.is_empty() && self.reading == Reading::Open {
            if self.plaintext >= PLAINTEXT {
                self.surplus = ciphertext.to_vec();
                return;
            }
            if self.session.read_tls(&mut ciphertext).is_err() {
                self.reading = Reading::Failed(io::ErrorKind::InvalidData);
                return;
            }
            self.digest();
        }
    }

    /// Makes plaintext of the ciphertext that the session has.
    fn digest(&mut self) {
        match self.session.process_new_packets() {
            Ok(state) => {
                self.plaintext = state.plaintext_bytes_to_read();
                if state.peer_has_closed() {
                    self.reading = Reading::Ended;
                }
            }
            Err(error) => {
                self.reading = Reading::Failed(io::ErrorKind::InvalidData);
                if let rustls::Error::AlertReceived(alert) = error {
                    self.alert = Some(alert);
                }
                // The session has an alert to send.
                let _ = self.poll_send(&mut Context::from_waker(Waker::noop()));
            }
        }
    }

    /// Sends ciphertext that waits.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let sent = poll_send(&mut self.io, &mut self.session, cx);
        self.broken = matches!(sent, Poll::Ready(Err(_)));
        sent
    }
}

/// Sends ciphertext that waits in a session.
fn poll_send(io: &mut Io, session: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    while session.wants_write() {
        match session.write_tls(&mut Transport { io, cx }) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
    Poll::Ready(Ok(()))
}

/// A transport as the session writes to it.
struct Transport<'a, 'b> {
    io: &'a mut Io,
    cx: &'a mut Context<'b>,
}

impl io::Write for Transport<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.io.split().1.poll_write_vectored(self.cx, slices) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
