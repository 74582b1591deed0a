//! A gRPC call that is open: its connection, and the messages of both directions.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use sdk::World;
use sdk::budget::Reservation;
use sdk::call::Call;
use sdk::chain::LocalFuture;
use sdk::grpc::{OK, PREFIX, Prefix, outcome, status_of_http, unframed};
use sdk::resolve::ResolveError;
use sdk::world::{Fetch, FetchError};

use crate::wasm::headers::{Owned, lower};
use crate::wasm::memory::{Outcome, Refusal};

/// Statuses of gRPC that the gateway reports itself.
const DEADLINE_EXCEEDED: u32 = 4;
const RESOURCE_EXHAUSTED: u32 = 8;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;

const LATE: &str = "the call took too long";
const TOO_LONG: &str = "a message is too long";
const COMPRESSED: &str = "a message is compressed";

/// A call of an instance.
pub(in crate::wasm) struct Open {
    /// The plugin context that gets its callbacks.
    pub plugin: u32,
    /// The context of the request that it belongs to; 0 for none.
    pub context: u32,
    /// It has one message each way.
    pub is_call: bool,
    pub rpc: Rpc,
    /// Of the task that drives it.
    pub waker: Option<Waker>,
}

/// The connection and the messages of a call.
pub(in crate::wasm) struct Rpc {
    stage: Stage,
    late: Option<LocalFuture<'static, ()>>,
    /// Messages that are sent once the server's address is known, and bytes of them.
    early: (Vec<Bytes>, usize),
    is_finished: bool,
    has_head: bool,
    /// Bytes of a message that is not complete.
    buffer: Vec<u8>,
    held: Reservation,
    /// For messages that are not sent yet.
    unsent: Reservation,
    most: usize,
    /// News that are not reported yet.
    news: VecDeque<Event>,
}

enum Stage {
    Resolving(LocalFuture<'static, Result<Arc<[IpAddr]>, ResolveError>>, u16, Option<Box<Fetch>>),
    Open(Call),
    Over,
}

/// News of a call, with a callback each.
pub(in crate::wasm) enum Event {
    Head(Owned),
    Message(Vec<u8>),
    Trailers(Owned),
    /// The status, and its message as it came.
    Close(u32, Vec<u8>),
}

impl Open {
    pub fn new(plugin: u32, context: u32, is_call: bool, rpc: Rpc) -> Open {
        Open { plugin, context, is_call, rpc, waker: None }
    }

    /// Has the call driven by its task.
    pub fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The next news. After those for which [`Open::ends_with`] is true there are none.
    pub fn poll(&mut self, world: &dyn World, cx: &mut Context<'_>) -> Poll<Event> {
        self.rpc.poll(world, self.is_call, cx)
    }

    /// Whether a call ends with this. Of one message each way, the message is the end.
    pub fn ends_with(&self, event: &Event) -> bool {
        self.is_call || matches!(event, Event::Close(..))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Its task ends.
        self.wake();
    }
}

impl Rpc {
    pub fn begin(
        world: &dyn World,
        mut fetch: Fetch,
        host: &str,
        port: u16,
        timeout: Option<Duration>,
        most: usize,
    ) -> Rpc {
        let late = timeout.map(|timeout| world.sleep(timeout));
        let stage = match host.parse::<IpAddr>() {
            Ok(ip) => {
                fetch.target.addresses = Arc::new([SocketAddr::new(ip, port)]);
                Stage::Open(world.call(fetch))
            }
            Err(_) => {
                let connect = fetch.timeouts.connect;
                Stage::Resolving(world.resolve(host, connect), port, Some(Box::new(fetch)))
            }
        };
        Rpc {
            stage,
            late,
            early: (Vec::new(), 0),
            is_finished: false,
            has_head: false,
            buffer: Vec::new(),
            held: Reservation::default(),
            unsent: Reservation::default(),
            most,
            news: VecDeque::new(),
        }
    }

    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Sends a message behind its prefix. Those that the server does not take are kept, as many as a body may have
    /// bytes.
    pub fn send(&mut self, world: &dyn World, framed: Bytes, ends: bool) -> Outcome {
        let size = framed.len() + size_of::<Bytes>();
        let waiting = self.waiting() + size;
        if waiting > self.most.saturating_add(PREFIX + size_of::<Bytes>())
            || self.unsent.resize(world.budget(), waiting).is_err()
        {
            return Err(Refusal::INTERNAL_FAILURE);
        }
        match &self.stage {
            Stage::Open(call) => call.send(framed),
            Stage::Resolving(..) => {
                self.early.0.push(framed);
                self.early.1 += size;
            }
            // The rest of an ended call is not sent.
            Stage::Over => {}
        }
        if ends {
            self.finish();
        }
        Ok(())
    }

    /// Ends the messages to the server.
    pub fn finish(&mut self) {
        self.is_finished = true;
        if let Stage::Open(call) = &self.stage {
            call.finish();
        }
    }

    /// Bytes of messages that are not sent.
    fn waiting(&self) -> usize {
        match &self.stage {
            Stage::Open(call) => call.unsent(),
            _ => self.early.1,
        }
    }

    fn poll(&mut self, world: &dyn World, is_call: bool, cx: &mut Context<'_>) -> Poll<Event> {
        let mut news = self.next(world, is_call, cx);
        if let (Poll::Pending, Some(late)) = (&news, &mut self.late) {
            news = late.as_mut().poll(cx).map(|()| Event::Close(DEADLINE_EXCEEDED, LATE.into()));
        }
        let waiting = self.waiting().min(self.unsent.bytes());
        // It only shrinks.
        let _ = self.unsent.resize(world.budget(), waiting);
        news
    }

    fn next(&mut self, world: &dyn World, is_call: bool, cx: &mut Context<'_>) -> Poll<Event> {
        loop {
            if let Some(event) = self.news.pop_front() {
                return Poll::Ready(event);
            }
            match &mut self.stage {
                Stage::Over => return Poll::Pending,
                Stage::Resolving(resolving, port, fetch) => {
                    match (ready!(resolving.as_mut().poll(cx)), fetch.take()) {
                        (Ok(found), Some(mut fetch)) => {
                            fetch.target.addresses =
                                found.iter().map(|ip| SocketAddr::new(*ip, *port)).collect();
                            let call = world.call(*fetch);
                            std::mem::take(&mut self.early).0.into_iter().for_each(|piece| call.send(piece));
                            if self.is_finished {
                                call.finish();
                            }
                            self.stage = Stage::Open(call);
                        }
                        _ => self.close(UNAVAILABLE, FetchError::Unresolved.as_str()),
                    }
                }
                Stage::Open(call) => {
                    let read = call.poll_read(cx);
                    if !is_call
                        && !self.has_head
                        && let Some((_, fields)) = call.head()
                    {
                        self.has_head = true;
                        self.news.push_back(Event::Head(lower(&fields).collect()));
                    }
                    match read {
                        Poll::Pending if self.news.is_empty() => return Poll::Pending,
                        Poll::Pending => {}
                        Poll::Ready(Ok(Some(piece))) => self.read(world, is_call, &piece),
                        Poll::Ready(Ok(None)) => self.end(is_call),
                        Poll::Ready(Err(FetchError::Timeout)) => self.close(DEADLINE_EXCEEDED, LATE),
                        Poll::Ready(Err(error)) => self.close(UNAVAILABLE, error.as_str()),
                    }
                }
            }
        }
    }

    /// Adds a piece of the response's body. The messages of a stream that it completes are news.
    fn read(&mut self, world: &dyn World, is_call: bool, piece: &[u8]) {
        let Stage::Open(call) = &self.stage else { return };
        // The body of another status is no message.
        if let Some(status) = call.status().filter(|status| *status != 200) {
            return self.close(status_of_http(status), "the server does not answer with status 200");
        }
        let most = self.most + PREFIX;
        let reserved = self.held.reserve(world.budget(), &mut self.buffer, piece.len(), most);
        if reserved.is_err() || (is_call && self.buffer.len() + piece.len() > most) {
            return self.close(RESOURCE_EXHAUSTED, TOO_LONG);
        }
        self.buffer.extend_from_slice(piece);
        let mut rest = &self.buffer[..];
        while let Some((Prefix { is_compressed, length }, after)) = Prefix::read(rest).filter(|_| !is_call) {
            if is_compressed {
                return self.close(INTERNAL, COMPRESSED);
            }
            if length > self.most {
                return self.close(RESOURCE_EXHAUSTED, TOO_LONG);
            }
            let Some((message, next)) = after.split_at_checked(length) else { break };
            self.news.push_back(Event::Message(message.to_vec()));
            rest = next;
        }
        if !is_call {
            let at = self.buffer.len() - rest.len();
            self.buffer.drain(..at);
        }
        if self.buffer.is_empty() {
            (self.buffer, self.held) = Default::default();
        }
    }

    /// The server has ended the response.
    fn end(&mut self, is_call: bool) {
        let Stage::Open(call) = &self.stage else { return };
        let (status, head) = call.head().unwrap_or_default();
        let trailers = call.trailers();
        let (code, message) = outcome(status, &head, &trailers);
        if is_call && code == OK {
            return match unframed(&self.buffer).map(<[u8]>::to_vec) {
                Some(message) => {
                    self.stage = Stage::Over;
                    self.news.push_back(Event::Message(message));
                }
                None => self.close(INTERNAL, "the response is no message"),
            };
        }
        if !is_call && !trailers.is_empty() {
            self.news.push_back(Event::Trailers(lower(&trailers).collect()));
        }
        if code == OK && !self.buffer.is_empty() {
            return self.close(INTERNAL, "the last message is incomplete");
        }
        self.stage = Stage::Over;
        self.news.push_back(Event::Close(code, message));
    }

    /// Ends the call with a status of the gateway's own.
    fn close(&mut self, code: u32, message: &str) {
        self.stage = Stage::Over;
        self.news.push_back(Event::Close(code, message.as_bytes().to_vec()));
    }
}
