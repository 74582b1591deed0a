//! Contexts of the ABI: plugin instances of chains, and requests.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use sdk::budget::Reservation;

use super::call::Call;
use super::life::Life;
use super::reply::LocalReply;

/// A plugin instance of a chain.
pub(super) struct PluginContext {
    pub config: Arc<[u8]>,
    /// The period of its timer in milliseconds; 0 for none.
    pub tick: u32,
    /// Of the timer with this period, which ends once it is replaced.
    pub timer: Rc<Life>,
    /// Whether that timer begins once the running code has returned.
    pub begins_timer: bool,
    /// The queues it has registered.
    pub queues: Vec<u32>,
    /// Of its work beside exchanges.
    pub life: Rc<Life>,
}

impl PluginContext {
    pub(super) fn new(config: Arc<[u8]>) -> PluginContext {
        let (timer, life) = Default::default();
        PluginContext { config, tick: 0, timer, begins_timer: false, queues: Vec::new(), life }
    }
}

/// A request, or a TCP stream.
#[derive(Default)]
pub(super) struct HttpContext {
    /// The number of its plugin context.
    pub plugin: u32,
    /// Whether the module has paused the request, or the response.
    pub paused: [bool; 2],
    /// The response that the module has made.
    pub reply: Option<LocalReply>,
    /// Calls to other servers that are waited for, and their numbers.
    pub calls: Vec<(u32, Call)>,
    /// The numbers of its gRPC calls that are open, and whether the request waits for them: not for streams.
    pub rpcs: Vec<(u32, bool)>,
    /// Whether the exchange waits for the module.
    pub waits: bool,
    /// Of the exchange, while it waits.
    pub waker: Option<Waker>,
    /// The body that the running callback works on.
    pub body: Option<BodyOf>,
    /// The chunks of the response's body that the module sees with the next one.
    pub chunks: Vec<u8>,
    /// Those before them that the module has passed on, and that wait for the response's head.
    pub passed: Vec<u8>,
    /// For both.
    pub held: Reservation,
    /// The data of a TCP stream, for which the context is instead of a request.
    pub stream: Option<Box<StreamContext>>,
    /// Values that the module has set: names and values.
    pub properties: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of the properties, and of the headers that the module has added.
    pub added: usize,
    /// Whether the exchange is over.
    pub is_over: bool,
    /// Whether it is over and the module has still to call `proxy_done`.
    pub is_kept: bool,
}

/// The state of a TCP stream for each direction: from the client, and from the upstream.
#[derive(Default)]
pub(super) struct StreamContext {
    /// Bytes that the module sees with the next ones.
    pub data: [Vec<u8>; 2],
    /// For those and for bytes that are passed on.
    pub held: [Reservation; 2],
    /// Whether the side has ended, and whether that is still to be passed on.
    pub has_ended: [bool; 2],
    pub holds_end: [bool; 2],
}

/// Whose bytes a callback works on: those of a body, or of a stream from the client or the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyOf {
    Request,
    Response,
    Downstream,
    Upstream,
}

/// The direction of an exchange or a stream, an index of [`HttpContext::paused`].
pub(super) const REQUEST: usize = 0;
pub(super) const RESPONSE: usize = 1;
pub(super) const DOWNSTREAM: usize = 0;
pub(super) const UPSTREAM: usize = 1;

/// Bytes of properties and headers that a module may add to one exchange.
const MOST_ADDED: usize = 1 << 20;

/// The memory of a change besides its name and value.
const CHANGE: usize = 32;

/// Properties of one exchange.
const MOST_PROPERTIES: usize = 100;

impl HttpContext {
    /// Calls to other servers that have not ended.
    pub(super) fn open_calls(&self) -> usize {
        self.calls.len() + self.rpcs.len()
    }

    /// Whether the exchange waits for calls to other servers.
    pub(super) fn waits_for_calls(&self) -> bool {
        !self.calls.is_empty() || self.rpcs.iter().any(|(_, is_call)| *is_call)
    }

    /// Counts bytes that are added to the exchange; false if these are too many.
    pub(super) fn count(&mut self, bytes: usize) -> bool {
        let added = self.added.saturating_add(bytes);
        if added > MOST_ADDED {
            return false;
        }
        self.added = added;
        true
    }

    /// Counts a change of a header, of the forwarded target or the like: the exchange keeps the texts of earlier ones.
    pub(super) fn count_change(&mut self, name: &[u8], value: &[u8]) -> bool {
        self.count(name.len() + value.len() + CHANGE)
    }

    /// Whether these changes can all be counted.
    pub(super) fn has_room<'a>(&self, changes: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
        let sizes = changes.map(|(name, value)| name.len() + value.len() + CHANGE);
        self.added + sizes.sum::<usize>() <= MOST_ADDED
    }

    pub(super) fn property(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self.properties.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_slice())
    }

    /// Sets a property; false if there are too many.
    pub(super) fn set_property(&mut self, name: &[u8], value: &[u8]) -> bool {
        if self.is_kept || !self.count(name.len() + value.len()) {
            return false;
        }
        if let Some((_, known)) = self.properties.iter_mut().find(|(known, _)| known == name) {
            *known = value.to_vec();
            return true;
        }
        let has_room = self.properties.len() < MOST_PROPERTIES;
        if has_room {
            self.properties.push((name.to_vec(), value.to_vec()));
        }
        has_room
    }

    /// Forgets the chunks of a response that is abandoned or over.
    pub(super) fn drop_chunks(&mut self) {
        (self.chunks, self.passed, self.held) = Default::default();
    }

    /// Continues a paused direction, and wakes the exchange.
    pub(super) fn resume(&mut self, direction: usize) {
        self.paused[direction] = false;
        self.wake();
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
