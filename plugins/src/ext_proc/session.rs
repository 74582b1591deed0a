//! The stream to the server that an exchange has.
//!
//! Both directions of the exchange share it: each waits for the answer to its own message.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use sdk::World;
use sdk::budget::Reservation;
use sdk::call::Call;
use sdk::grpc::{OK, PREFIX, Prefix, outcome};
use sdk::world::FetchError;

use super::message::{Part, Side, Subject};
use super::mode::Mode;
use crate::protobuf::Writer;
use crate::within::within;

/// Messages that ask for more time.
const MOST_DELAYS: u32 = 100;

/// Bytes that come at a time, besides the message that is read.
const AHEAD: usize = 64 << 10;

/// Pieces that are read behind the last answer, until the server ends the stream.
const MOST_LEFT: u32 = 16;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It cannot be reached, or the stream breaks off.
    Broken(&'static str),
    Timeout,
    NoMemory,
    /// The exchange has ended with this status meanwhile.
    Refused(u16),
}

impl Failure {
    pub fn as_str(self) -> &'static str {
        match self {
            Failure::Broken(why) => why,
            Failure::Timeout => "the processing server does not answer in time",
            Failure::NoMemory => "the gateway's memory for request and response bodies is used up",
            Failure::Refused(_) => "the processing of the exchange has ended",
        }
    }
}

pub(super) const INVALID: Failure = Failure::Broken("the processing server's answer is invalid");
const UNEXPECTED: Failure = Failure::Broken("the processing server sent an unexpected answer");
const TOO_LARGE: Failure = Failure::Broken("the processing server's answer exceeds max_message_bytes");
const ENDED: Failure =
    Failure::Broken("the stream of the processing server ended early or without grpc-status 0");
const STATUS: Failure = Failure::Broken("the processing server does not answer with status 200");

/// Where the processing of an exchange stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// The server has ended the stream or failed, or nothing more can be sent.
    Over,
}

pub(super) struct Session {
    pub world: Rc<dyn World>,
    pub mode: Cell<Mode>,
    pub state: Cell<State>,
    timeout: Duration,
    max_message: usize,
    /// `None` once it is over.
    call: RefCell<Option<Call>>,
    /// Something was sent.
    is_used: Cell<bool>,
    /// Bytes that have come, of messages that are not complete.
    buffer: RefCell<(Vec<u8>, Reservation)>,
    sides: [Waiting; 2],
    /// Messages that asked for more time.
    delays: Cell<u32>,
}

/// A direction that waits for an answer.
#[derive(Default)]
struct Waiting {
    part: Cell<Option<Part>>,
    /// Its answer, which came while the other direction read.
    answer: RefCell<Option<Message>>,
    waker: RefCell<Option<Waker>>,
}

/// A message of the server. It counts against the worker's budget, as all that is kept while something is awaited.
pub(super) struct Message(Held);

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes[PREFIX..]
    }
}

/// Bytes that count against the worker's budget.
#[derive(Default)]
pub(super) struct Held {
    pub bytes: Vec<u8>,
    pub held: Reservation,
}

impl Held {
    /// # Errors
    /// The budget is used up.
    pub fn copy_of(world: &dyn World, bytes: &[u8]) -> Result<Held, Failure> {
        let mut held = Reservation::default();
        held.resize(world.budget(), bytes.len()).map_err(|_| Failure::NoMemory)?;
        Ok(Held { bytes: bytes.to_vec(), held })
    }
}

impl Session {
    pub fn new(
        world: Rc<dyn World>,
        call: Call,
        mode: Mode,
        timeout: Duration,
        max_message: usize,
    ) -> Session {
        Session {
            world,
            mode: Cell::new(mode),
            state: Cell::new(State::Open),
            timeout,
            max_message,
            call: RefCell::new(Some(call)),
            is_used: Cell::new(false),
            buffer: RefCell::default(),
            sides: Default::default(),
            delays: Cell::new(0),
        }
    }

    pub fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    /// Sends a message about a part and returns its answer; `None` if the server has ended the stream.
    ///
    /// # Errors
    /// There is no answer to it.
    pub async fn ask(&self, part: Part, message: Writer) -> Result<Option<Message>, Failure> {
        let mut held = Reservation::default();
        let framed = message.framed();
        drop(message);
        held.resize(self.world.budget(), framed.len()).map_err(|_| Failure::NoMemory)?;
        match &*self.call.borrow() {
            Some(call) => call.send(framed),
            None => return Ok(None),
        }
        self.is_used.set(true);
        self.sides[part.side() as usize].part.set(Some(part));
        let answer =
            within(&*self.world, self.timeout, poll_fn(|cx| self.poll_answer(part.side(), cx))).await;
        self.sides[part.side() as usize].part.set(None);
        answer.unwrap_or(Err(Failure::Timeout))
    }

    /// Ends the stream, as nothing more is sent. The rest is read, so that the server sees no reset.
    pub fn finish(&self) {
        let Some(mut call) = self.close().filter(|_| self.is_used.get()) else { return };
        call.finish();
        let mut late = self.world.sleep(self.timeout);
        let mut left = MOST_LEFT;
        let rest = poll_fn(move |cx| {
            if late.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            while left > 0 && matches!(ready!(call.poll_read(cx)), Ok(Some(_))) {
                left -= 1;
            }
            Poll::Ready(())
        });
        // Where too many tasks run, it is reset.
        let _ = self.world.run(Box::pin(rest));
    }

    /// Resets the stream, after a failure.
    pub fn abort(&self) {
        drop(self.close());
    }

    /// Drops what is held for answers, and wakes a direction that waits for one.
    fn close(&self) -> Option<Call> {
        self.state.set(State::Over);
        drop(self.buffer.take());
        for side in &self.sides {
            drop(side.answer.take());
        }
        self.wake();
        self.call.take()
    }

    fn wake(&self) {
        self.sides.iter().filter_map(|side| side.waker.take()).for_each(Waker::wake);
    }

    fn poll_answer(&self, side: Side, cx: &mut Context<'_>) -> Poll<Result<Option<Message>, Failure>> {
        let own = &self.sides[side as usize];
        if let Some(answer) = own.answer.take() {
            return Poll::Ready(Ok(Some(answer)));
        }
        loop {
            while let Some(message) = self.take_message()? {
                let to = match Subject::of(&message).map_err(|_| INVALID)? {
                    // It is not granted.
                    Subject::MoreTime if self.delays.get() < MOST_DELAYS => {
                        self.delays.set(self.delays.get() + 1);
                        continue;
                    }
                    Subject::MoreTime => return Poll::Ready(Err(UNEXPECTED)),
                    // It ends the exchange, which either direction can.
                    Subject::Immediate => side,
                    Subject::Part(part) => {
                        if self.sides[part.side() as usize].part.get() != Some(part) {
                            return Poll::Ready(Err(UNEXPECTED));
                        }
                        part.side()
                    }
                };
                if to == side {
                    return Poll::Ready(Ok(Some(message)));
                }
                let other = &self.sides[to as usize];
                if other.answer.replace(Some(message)).is_some() {
                    return Poll::Ready(Err(UNEXPECTED));
                }
                if let Some(waker) = other.waker.take() {
                    waker.wake();
                }
            }
            let read = match &mut *self.call.borrow_mut() {
                Some(call) => call.poll_read(cx),
                None => return Poll::Ready(Ok(None)),
            };
            match read {
                Poll::Pending => {
                    *own.waker.borrow_mut() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(Ok(Some(piece))) => self.add(&piece)?,
                Poll::Ready(Ok(None)) => return Poll::Ready(self.ended()),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(failure_of(error))),
            }
        }
    }

    fn add(&self, piece: &[u8]) -> Result<(), Failure> {
        // An answer that is no message of gRPC is not read as one.
        let status = self.call.borrow().as_ref().and_then(Call::status);
        if status.is_some_and(|status| status != 200) {
            return Err(STATUS);
        }
        let (bytes, held) = &mut *self.buffer.borrow_mut();
        let room = held.reserve(self.world.budget(), bytes, piece.len(), self.max_message + AHEAD);
        room.map_err(|_| Failure::NoMemory)?;
        bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Takes a complete message.
    fn take_message(&self) -> Result<Option<Message>, Failure> {
        let (bytes, held) = &mut *self.buffer.borrow_mut();
        let Some((Prefix { is_compressed, length }, rest)) = Prefix::read(bytes) else { return Ok(None) };
        if is_compressed {
            return Err(INVALID);
        }
        if length > self.max_message {
            return Err(TOO_LARGE);
        }
        if rest.len() < length {
            return Ok(None);
        }
        // It keeps its bytes and their reservation; those behind it move.
        let rest = Held::copy_of(&*self.world, &rest[length..])?;
        let mut bytes = std::mem::replace(bytes, rest.bytes);
        bytes.truncate(PREFIX + length);
        Ok(Some(Message(Held { bytes, held: std::mem::replace(held, rest.held) })))
    }

    /// The server has ended the stream: with status 0 if it wants nothing more.
    fn ended(&self) -> Result<Option<Message>, Failure> {
        let Some(call) = self.call.take() else { return Ok(None) };
        let (status, head) = call.head().unwrap_or_default();
        let trailers = call.trailers();
        let is_cut = !self.buffer.borrow().0.is_empty();
        match outcome(status, &head, &trailers).0 {
            _ if status != 200 => Err(STATUS),
            OK if !is_cut => {
                self.state.set(State::Over);
                self.wake();
                Ok(None)
            }
            _ => Err(ENDED),
        }
    }
}

fn failure_of(error: FetchError) -> Failure {
    match error {
        FetchError::Timeout => Failure::Timeout,
        error => Failure::Broken(error.as_str()),
    }
}
