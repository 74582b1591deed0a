//! One connection of a worker to one Redis server, shared by all its requests: commands are written in a pipeline, and
//! answers come in their order.
//!
//! A task drives the connection while it is in use. The pipeline and each wait in it are bounded. A command stays in its
//! place when its request has gone, so that the answers behind it reach the right ones.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{Parser, Value};
use sdk::World;
use sdk::chain::LocalFuture;
use sdk::connection::{AsyncRead, AsyncWrite, Connect, ConnectError, Connection};

/// Commands that may wait for their answers. More are refused at once.
const MOST_WAITING: usize = 4096;

/// Bytes of commands that wait to be written.
const MOST_OUT: usize = 4 << 20;

/// Bytes of one answer. The longest is the map of a large cluster.
const MOST_ANSWER: usize = 1 << 20;
/// Times between attempts to connect while they fail.
const BACKOFF_MS: std::ops::RangeInclusive<u64> = 20..=500;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Connect(ConnectError),
    /// Redis rejected the user, the password or the database.
    Login,
    /// The connection was closed, or the answer was no Redis answer.
    Broken,
    Timeout,
    /// The connection was closed because another request's time was over without an answer.
    Hung,
    Full,
}

impl Failure {
    pub fn as_str(self) -> &'static str {
        match self {
            Failure::Connect(ConnectError::Unresolved) => "the name of the Redis server has no address",
            Failure::Connect(ConnectError::Refused) => "the Redis server refused the connection",
            Failure::Connect(ConnectError::Timeout) => "connecting to the Redis server timed out",
            Failure::Connect(ConnectError::Untrusted(_)) => "the TLS handshake with the Redis server failed",
            Failure::Connect(ConnectError::Limit) => ConnectError::Limit.as_str(),
            Failure::Login => "the Redis server rejected the user, the password or the database",
            Failure::Broken => "the connection to the Redis server broke",
            Failure::Timeout | Failure::Hung => "the Redis server did not answer in time",
            Failure::Full => "too many requests wait for the Redis server",
        }
    }
}

/// The end of a request's patience; all its waits share it.
pub struct Deadline(LocalFuture<'static, ()>);

impl Deadline {
    pub fn after(world: &dyn World, time: Duration) -> Deadline {
        Deadline(world.sleep(time))
    }
}

/// A server, and how to log in there.
#[derive(Debug, Clone)]
pub struct Server {
    pub connect: Connect,
    /// AUTH and SELECT, as bytes; and how many there are.
    pub login: (Vec<u8>, usize),
    /// How long an unused connection stays open.
    pub idle: Duration,
}

pub struct Link {
    server: Server,
    state: RefCell<State>,
    /// Answers since the beginning.
    answers: Cell<u64>,
}

#[derive(Default)]
struct State {
    out: Vec<u8>,
    waiting: VecDeque<Awaited>,
    later: Later,
    driver: Driver,
    /// Wakes the driver.
    waker: Option<Waker>,
    /// Those who will send something over this connection ([`Hold`]).
    holds: usize,
    /// The last attempt to connect failed, and when the next one may be made.
    failed: Option<(Failure, Option<u64>)>,
    backoff_ms: u64,
}

/// Commands for the next connection whose answers do not matter. They outlive failed attempts to connect.
#[derive(Default)]
struct Later {
    bytes: Vec<u8>,
    count: usize,
}

#[derive(Default, PartialEq)]
enum Driver {
    #[default]
    None,
    Connecting,
    Connected,
    /// To be closed: the server hangs.
    Closing,
}

enum Awaited {
    Login,
    Ignored,
    Answer(Rc<Slot>),
}

/// The place of an answer.
#[derive(Default)]
struct Slot {
    answer: Cell<Option<Result<Value, Failure>>>,
    waker: Cell<Option<Waker>>,
}

impl Slot {
    fn put(&self, answer: Result<Value, Failure>) {
        self.answer.set(Some(answer));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// An answer that is awaited.
pub struct Posted(Rc<Slot>);

impl Future for Posted {
    type Output = Result<Value, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                self.0.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Link {
    pub fn new(server: Server) -> Rc<Link> {
        Rc::new(Link { server, state: RefCell::default(), answers: Cell::new(0) })
    }

    /// Sends a command and awaits its answer, which may be an error of the server. Sends it once more if the server
    /// closed the connection, as an idle or restarted one does, or if another request closed it because it hangs.
    pub async fn call(
        self: &Rc<Link>,
        world: &dyn World,
        command: &[u8],
        answers: usize,
        deadline: &mut Deadline,
    ) -> Result<Value, Failure> {
        let mut again = true;
        loop {
            let before = self.answers.get();
            let answer = self.send(world, command, answers)?;
            match select(answer, &mut deadline.0).await {
                Either::Left((Err(Failure::Broken | Failure::Hung), _)) if again => again = false,
                Either::Left((Err(failure), _)) => {
                    self.hold_off(world);
                    return Err(failure);
                }
                Either::Left((answer, _)) => return answer,
                Either::Right(_) => {
                    if self.answers.get() == before {
                        self.close();
                    }
                    return Err(Failure::Timeout);
                }
            }
        }
    }

    /// Queues commands, the answer to the last of which is awaited, and sees to it that there is a driver.
    fn send(self: &Rc<Link>, world: &dyn World, command: &[u8], answers: usize) -> Result<Posted, Failure> {
        let slot = Rc::new(Slot::default());
        let mut state = self.state.borrow_mut();
        if state.waiting.len() >= MOST_WAITING || state.out.len() + command.len() > MOST_OUT {
            return Err(Failure::Full);
        }
        if let (Driver::None, Some((failure, Some(until)))) = (&state.driver, state.failed)
            && world.steady_ms() < until
        {
            return Err(failure);
        }
        state.out.extend_from_slice(command);
        state.waiting.extend((1..answers).map(|_| Awaited::Ignored));
        state.waiting.push_back(Awaited::Answer(slot.clone()));
        if state.driver == Driver::None {
            state.driver = Driver::Connecting;
            let connecting = world.connect(self.server.connect.clone());
            let idle = world.sleep(self.server.idle);
            let link = self.clone();
            let task = async move {
                let outcome = link.drive(connecting, idle).await;
                link.end(outcome.err().unwrap_or(Failure::Broken));
            };
            if world.run(Box::pin(task)).is_err() {
                drop(state);
                self.end(Failure::Full);
                return Err(Failure::Full);
            }
        } else if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        Ok(Posted(slot))
    }

    /// Whether there is a connection.
    pub fn is_open(&self) -> bool {
        self.state.borrow().driver == Driver::Connected
    }

    /// Queues a command, if there is a connection.
    pub fn post(&self, command: &[u8]) -> Option<Posted> {
        let mut state = self.state.borrow_mut();
        // Half of the places are for requests: their deadlines are what closes a connection that hangs.
        let is_full =
            state.waiting.len() >= MOST_WAITING / 2 || state.out.len() + command.len() > MOST_OUT / 2;
        if state.driver != Driver::Connected || is_full {
            return None;
        }
        let slot = Rc::new(Slot::default());
        state.out.extend_from_slice(command);
        state.waiting.push_back(Awaited::Answer(slot.clone()));
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        Some(Posted(slot))
    }

    /// Queues a command whose answer does not matter. Without a connection, the next one sends it first.
    pub fn tell(&self, command: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        match state.driver {
            _ if command.is_empty() => {}
            // A connection that hangs takes it behind the command that it undoes.
            Driver::Connected | Driver::Closing => {
                if state.waiting.len() < MOST_WAITING && state.out.len() + command.len() <= MOST_OUT {
                    state.out.extend_from_slice(command);
                    state.waiting.push_back(Awaited::Ignored);
                }
            }
            Driver::None | Driver::Connecting => state.later.push(command),
        }
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Closes a connection that hangs.
    fn close(&self) {
        let mut state = self.state.borrow_mut();
        if state.driver == Driver::Connected {
            state.driver = Driver::Closing;
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }

    /// After a failed attempt to connect, the next one is made a little later.
    fn hold_off(&self, world: &dyn World) {
        let state = &mut *self.state.borrow_mut();
        if let Some((_, until @ None)) = &mut state.failed {
            *until = Some(world.steady_ms() + state.backoff_ms);
        }
    }

    /// Answers all that wait: the connection is over.
    fn end(&self, failure: Failure) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            state.out.clear();
            state.driver = Driver::None;
            state.waker = None;
            if matches!(failure, Failure::Connect(_) | Failure::Login) {
                let (least, most) = (*BACKOFF_MS.start(), *BACKOFF_MS.end());
                state.backoff_ms = (state.backoff_ms * 2).clamp(least, most);
                state.failed = Some((failure, None));
            }
            std::mem::take(&mut state.waiting)
        };
        for awaited in waiting {
            if let Awaited::Answer(slot) = awaited {
                slot.put(Err(failure));
            }
        }
    }

    /// Drives a connection until it breaks, or gives it back when it is unused.
    async fn drive(
        &self,
        connecting: LocalFuture<'static, Result<Connection, ConnectError>>,
        mut idle: LocalFuture<'static, ()>,
    ) -> Result<(), Failure> {
        let mut connection = connecting.await.map_err(Failure::Connect)?;
        let mut pipe = Pipe::default();
        {
            let state = &mut *self.state.borrow_mut();
            state.driver = Driver::Connected;
            // Behind the commands that wait: one of them may add the entry that is removed.
            let later = std::mem::take(&mut state.later);
            state.out.extend_from_slice(&later.bytes);
            state.waiting.extend((0..later.count).map(|_| Awaited::Ignored));
            let (login, answers) = &self.server.login;
            if !connection.is_reused() && *answers > 0 {
                pipe.out.extend_from_slice(login);
                (0..*answers).for_each(|_| state.waiting.push_front(Awaited::Login));
            } else {
                state.failed = None;
                state.backoff_ms = 0;
            }
        }
        let mut unused = false;
        poll_fn(|cx| {
            unused = unused || idle.as_mut().poll(cx).is_ready();
            self.turn(&mut connection, &mut pipe, unused, cx)
        })
        .await?;
        connection.keep(self.server.idle);
        Ok(())
    }

    /// Writes and reads as far as that is possible. Ready without an error if the connection is unused.
    fn turn(
        &self,
        connection: &mut Connection,
        pipe: &mut Pipe,
        unused: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            {
                let mut state = self.state.borrow_mut();
                // No command may run before the login is accepted.
                if !state.awaits_login() {
                    pipe.take(&mut state.out);
                }
                if state.driver == Driver::Closing {
                    // Requests that may be in leave, once the server goes on.
                    let _ = pipe.write(connection, cx);
                    return Poll::Ready(Err(Failure::Hung));
                }
                state.waker = Some(cx.waker().clone());
            }
            if pipe.write(connection, cx).map_err(|_| Failure::Broken)?.is_pending() || pipe.is_written() {
                break;
            }
        }
        while pipe.read(connection, cx).map_err(|_| Failure::Broken)?.is_ready() {
            while let Some(value) = pipe.parse()? {
                self.answers.set(self.answers.get() + 1);
                let mut state = self.state.borrow_mut();
                match state.waiting.pop_front() {
                    None => return Poll::Ready(Err(Failure::Broken)),
                    Some(Awaited::Ignored) => {}
                    Some(Awaited::Login) => {
                        if matches!(value, Value::ServerError(_)) {
                            return Poll::Ready(Err(Failure::Login));
                        }
                        state.failed = None;
                        state.backoff_ms = 0;
                    }
                    Some(Awaited::Answer(slot)) => slot.put(Ok(value)),
                }
            }
        }
        let state = self.state.borrow();
        if !state.out.is_empty() && pipe.is_written() && !state.awaits_login() {
            // The login was accepted just now.
            cx.waker().wake_by_ref();
        }
        if unused && state.waiting.is_empty() && state.holds == 0 {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}

impl State {
    fn awaits_login(&self) -> bool {
        matches!(self.waiting.front(), Some(Awaited::Login))
    }
}

impl Later {
    fn push(&mut self, command: &[u8]) {
        if self.count < MOST_WAITING && self.bytes.len() + command.len() <= MOST_OUT {
            self.bytes.extend_from_slice(command);
            self.count += 1;
        }
    }
}

/// The bytes on their way in both directions.
#[derive(Default)]
struct Pipe {
    out: Vec<u8>,
    written: usize,
    flushed: bool,
    input: Vec<u8>,
    filled: std::ops::Range<usize>,
    parser: Parser,
    /// Bytes of the answer that is being read.
    partial: usize,
}

impl Pipe {
    /// Takes more bytes to write, when the last ones are written.
    fn take(&mut self, out: &mut Vec<u8>) {
        if self.written == self.out.len() && !out.is_empty() {
            self.out.clear();
            std::mem::swap(&mut self.out, out);
            (self.written, self.flushed) = (0, false);
        }
    }

    fn is_written(&self) -> bool {
        self.written == self.out.len() && self.flushed
    }

    fn write(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            match Pin::new(&mut *connection).poll_write(cx, &self.out[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => self.written += bytes,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.flushed {
            match Pin::new(connection).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flushed = true,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.resize(4096, 0);
        match Pin::new(connection).poll_read(cx, &mut self.input) {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Ok(bytes)) => {
                self.filled = 0..bytes;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The next whole answer of what was read.
    fn parse(&mut self) -> Result<Option<Value>, Failure> {
        let before = self.filled.len();
        let parsed = self.parser.parse_value(Feed { input: &self.input, filled: &mut self.filled });
        self.partial += before - self.filled.len();
        match parsed {
            Ok(value) => {
                self.partial = 0;
                Ok(Some(value))
            }
            // The rest has not come yet.
            Err(error) if error.is_io_error() && self.partial <= MOST_ANSWER => Ok(None),
            Err(_) => Err(Failure::Broken),
        }
    }
}

/// Bytes that were read, for the parser.
struct Feed<'p> {
    input: &'p [u8],
    filled: &'p mut std::ops::Range<usize>,
}

impl io::Read for Feed<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.filled.start == self.filled.end {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = self.filled.len().min(to.len());
        to[..bytes].copy_from_slice(&self.input[self.filled.start..self.filled.start + bytes]);
        self.filled.start += bytes;
        Ok(bytes)
    }
}

/// Keeps a connection open that something will be sent over; sends a command, if there is one, when it is dropped.
pub struct Hold {
    link: Rc<Link>,
    command: Vec<u8>,
}

impl Hold {
    pub fn new(link: Rc<Link>, command: Vec<u8>) -> Hold {
        link.state.borrow_mut().holds += 1;
        Hold { link, command }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.link.state.borrow_mut().holds -= 1;
        self.link.tell(&self.command);
    }
}
