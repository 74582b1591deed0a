//! Calls: requests whose body is sent piece by piece while the response comes, such as streams of gRPC.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use wire::Fields;

use crate::fetch_error::FetchError;
use crate::step::LocalFuture;

/// Bytes of the response that are read ahead of their reader.
const AHEAD: usize = 64 << 10;

/// A call in progress. Dropping it resets its stream; the connection stays.
///
/// It proceeds only while [`Call::poll_read`] is polled, by a task of the exchange that it belongs to.
pub struct Call {
    pipe: Rc<Pipe>,
    /// Sends and receives; `None` once it has ended.
    driver: Option<LocalFuture<'static, Result<(), FetchError>>>,
    outcome: Result<(), FetchError>,
}

impl Call {
    /// A call whose other end is the driver's.
    pub fn new(pipe: Rc<Pipe>, driver: LocalFuture<'static, Result<(), FetchError>>) -> Call {
        Call { pipe, driver: Some(driver), outcome: Ok(()) }
    }

    /// Sends a piece of the body. It is kept in memory until the server takes it.
    pub fn send(&self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        self.pipe.unsent.set(self.pipe.unsent.get() + piece.len());
        self.pipe.out.borrow_mut().push_back(piece);
    }

    /// The memory of pieces that the server has not taken.
    pub fn unsent(&self) -> usize {
        let out = self.pipe.out.borrow();
        self.pipe.unsent.get() + out.len() * size_of::<Bytes>()
    }

    /// Ends the body.
    pub fn finish(&self) {
        self.pipe.is_finished.set(true);
    }

    /// Returns the status of the response, if its head has come.
    pub fn status(&self) -> Option<u16> {
        self.pipe.head.borrow().as_ref().map(|(status, _)| *status)
    }

    /// The head of the response, if it has come: the status and the fields.
    pub fn head(&self) -> Option<(u16, Fields)> {
        self.pipe.head.borrow().clone()
    }

    /// The trailers of the response; empty before its end.
    pub fn trailers(&self) -> Fields {
        self.pipe.trailers.borrow().clone()
    }

    /// Returns the next piece of the response's body; `None` at its end.
    ///
    /// # Errors
    /// The server cannot be reached, or the response breaks off.
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, FetchError>> {
        if let Some(driver) = &mut self.driver
            && let Poll::Ready(outcome) = driver.as_mut().poll(cx)
        {
            self.outcome = outcome;
            self.driver = None;
        }
        if let Some(piece) = self.pipe.read.borrow_mut().pop_front() {
            self.pipe.ahead.set(self.pipe.ahead.get() - piece.len());
            return Poll::Ready(Ok(Some(piece)));
        }
        match &self.driver {
            Some(_) => Poll::Pending,
            None => Poll::Ready(self.outcome.map(|()| None)),
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("ended", &self.driver.is_none()).finish_non_exhaustive()
    }
}

/// The end of a call that its driver has. The driver runs within [`Call::poll_read`], after every change of this end's
/// state, so nothing here wakes it.
#[derive(Debug, Default)]
pub struct Pipe {
    out: RefCell<VecDeque<Bytes>>,
    /// Bytes in `out`.
    unsent: Cell<usize>,
    is_finished: Cell<bool>,
    read: RefCell<VecDeque<Vec<u8>>>,
    /// Bytes in `read`.
    ahead: Cell<usize>,
    head: RefCell<Option<(u16, Fields)>>,
    trailers: RefCell<Fields>,
}

impl Pipe {
    /// Returns the next piece to send; `None` at the end of the body.
    pub fn poll_piece(&self) -> Poll<Option<Bytes>> {
        match self.out.borrow_mut().pop_front() {
            Some(piece) => {
                self.unsent.set(self.unsent.get() - piece.len());
                Poll::Ready(Some(piece))
            }
            None if self.is_finished.get() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Whether more of the response may be read.
    pub fn poll_room(&self) -> Poll<()> {
        if self.ahead.get() < AHEAD { Poll::Ready(()) } else { Poll::Pending }
    }

    pub fn set_head(&self, status: u16, fields: Fields) {
        *self.head.borrow_mut() = Some((status, fields));
    }

    /// Hands a piece of the response's body to the reader.
    pub fn put(&self, piece: &[u8]) {
        if !piece.is_empty() {
            self.ahead.set(self.ahead.get() + piece.len());
            self.read.borrow_mut().push_back(piece.to_vec());
        }
    }

    pub fn set_trailers(&self, trailers: Fields) {
        *self.trailers.borrow_mut() = trailers;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use super::*;

    fn read(call: &mut Call) -> Poll<Result<Option<Vec<u8>>, FetchError>> {
        call.poll_read(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn pieces_go_both_ways_until_the_end() {
        let pipe = Rc::new(Pipe::default());
        let end = pipe.clone();
        let mut call = Call::new(
            pipe,
            Box::pin(async move {
                while let Some(piece) = poll_fn(|_| end.poll_piece()).await {
                    end.set_head(200, Fields::new());
                    end.put(&piece);
                }
                Err(FetchError::Broken)
            }),
        );
        assert_eq!((read(&mut call), call.status()), (Poll::Pending, None));
        call.send(&b"a"[..]);
        call.send(&b"b"[..]);
        assert_eq!(call.unsent(), 2 + 2 * size_of::<Bytes>());
        assert_eq!(read(&mut call), Poll::Ready(Ok(Some(b"a".to_vec()))));
        assert_eq!(call.unsent(), 0);
        call.finish();
        assert_eq!(read(&mut call), Poll::Ready(Ok(Some(b"b".to_vec()))));
        assert_eq!(call.status(), Some(200));
        assert_eq!(read(&mut call), Poll::Ready(Err(FetchError::Broken)));
        assert_eq!(read(&mut call), Poll::Ready(Err(FetchError::Broken)), "again");
    }

    #[test]
    fn a_reader_that_does_not_read_stops_the_server() {
        let pipe = Rc::new(Pipe::default());
        let end = pipe.clone();
        let produced = Rc::new(Cell::new(0));
        let count = produced.clone();
        let mut call = Call::new(
            pipe,
            Box::pin(async move {
                loop {
                    poll_fn(|_| end.poll_room()).await;
                    end.put(&[0; 10_000]);
                    count.set(count.get() + 1);
                }
            }),
        );
        for _ in 0..5 {
            assert!(matches!(read(&mut call), Poll::Ready(Ok(Some(_)))));
        }
        assert!(produced.get() <= 5 + AHEAD / 10_000 + 1, "{}", produced.get());
    }
}
