//! hot path
//!
//! One request and its response, as plugins see and change them.

mod bodies;

use std::any::Any;
use std::cell::Cell;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use wire::{BadField, Fields, Method, RequestHead, ResponseHead, Span};

use crate::budget::Held;
use crate::client::{Caller, Client};
use crate::coder::Coder;
use crate::consumers::{Consumer, Consumers, Identity};
use crate::header::Named;
use crate::stream::Stream;
use crate::upload::RequestFilter;
use crate::upstream::{Chosen, UpstreamHandle};
use crate::world::World;
pub use bodies::NotSet;

/// The reusable memory of one exchange: heads, edits and notes. A worker keeps a
/// few of these and hands one to each exchange.
#[derive(Debug, Default)]
pub struct Messages {
    pub request: RequestHead,
    pub response: ResponseHead,
    /// Response fields set before the response head is there.
    early: Vec<(Edit, wire::Field)>,
    early_text: Fields,
    notes: Vec<Box<dyn Any>>,
    /// See [`Exchange::hold`]. A tunnel takes them along.
    pub holds: Vec<Box<dyn Any>>,
    /// The request's body, where a stage asked for it. Shared while it is on its way to an upstream.
    pub body: Rc<Vec<u8>>,
    /// What the body counts as in the worker's budget.
    pub body_held: Held,
    /// What an answer of ours, or one of a stage, counts as while filters change its body.
    pub reply_held: Held,
    /// The trailers of a request whose body is held, and those that a plugin has set.
    pub request_trailers: Fields,
    /// The trailers of the response: those that a plugin has set, and behind the body those that came.
    pub response_trailers: Fields,
}

impl Messages {
    /// Forgets the last exchange; keeps small buffers.
    pub fn clear(&mut self) {
        self.request.clear();
        self.response.clear();
        self.early.clear();
        self.early_text.clear(1 << 10);
        self.notes.clear();
        self.holds.clear();
        // Nobody shares it now; if that were wrong, the other would keep what it has.
        match Rc::get_mut(&mut self.body) {
            Some(body) => {
                body.clear();
                body.shrink_to(16 << 10);
            }
            None => self.body = Rc::default(),
        }
        self.body_held = Held::default();
        self.reply_held = Held::default();
        self.request_trailers.clear(1 << 10);
        self.response_trailers.clear(1 << 10);
    }
}

/// A change of one response header.
#[derive(Debug, Clone, Copy)]
enum Edit {
    Set,
    Add,
    Remove,
}

impl Edit {
    /// Name and value were checked before.
    #[inline]
    fn apply(self, fields: &mut Fields, id: wire::Name, name: &[u8], value: &[u8]) {
        match self {
            Edit::Set => fields.set_checked(id, name, value),
            Edit::Add => fields.append_checked(id, name, value),
            Edit::Remove => _ = fields.remove_checked(id, name),
        }
    }
}

/// How far the request's body has been read into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Body {
    /// The request has no body.
    #[default]
    None,
    /// It has one, still to be streamed from the client.
    Streaming,
    /// All of it is in [`Exchange::body`].
    Whole,
    /// Somebody asked for it, but it is longer than that one's bound; it will be streamed.
    TooLarge,
}

/// What is known of a route while serving, fixed at compile time.
#[derive(Debug, Clone, Default)]
pub struct RouteInfo {
    pub id: String,
    pub name: String,
    pub service_id: String,
    pub service_name: String,
    /// A number that stays the same over configuration changes.
    pub slot: u32,
}

/// The match that chose the route.
#[derive(Debug, Default)]
pub struct Matched<'s> {
    pub route: Option<&'s RouteInfo>,
    /// The pattern that matched (`/anything/*`) and its index in the route's `uris`.
    pub uri: &'s str,
    pub uri_index: u32,
    /// The host pattern that matched, or empty, and its index in `hosts`.
    pub host: &'s str,
    pub host_index: u32,
    /// `uri_param_x` captures; spans lie in the request's text.
    pub params: SmallVec<[(&'s str, Span); 4]>,
}

/// Where and how the request goes on, as far as plugins changed it. Spans lie in
/// the request's text ([`Fields::intern`]).
#[derive(Debug, Default, Clone, Copy)]
pub struct Forward {
    /// Path and query, percent-encoded, instead of the client's.
    pub uri: Option<Span>,
    /// Instead of the client's method; [`Method::Other`] keeps the client's spelling.
    pub method: Option<Method>,
    /// Instead of what `pass_host` says.
    pub host: Option<Span>,
    /// What `pass_host` says of the server that was chosen, unless it is the client's.
    pub server_host: Option<Span>,
    /// Host and port of the server that was chosen, as its operator wrote them. Noted only where
    /// somebody logs.
    pub server: Option<Span>,
    /// The scheme of the upstream that was chosen; none yet if empty.
    pub scheme: &'static str,
    /// Fields the gateway adds of itself that a stage took away.
    pub without: Own,
    /// Instead of the route's upstream; see [`Exchange::choose_upstream`].
    pub upstream: Option<Chosen>,
}

/// A set of the fields by which the gateway tells the upstream of the client's connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Own(u8);

impl Own {
    pub const PROTO: Own = Own(1);
    pub const HOST: Own = Own(2);
    pub const PORT: Own = Own(4);

    fn of(name: wire::Name) -> Own {
        match name {
            wire::Name::XForwardedProto => Own::PROTO,
            wire::Name::XForwardedHost => Own::HOST,
            wire::Name::XForwardedPort => Own::PORT,
            _ => Own(0),
        }
    }

    #[inline]
    pub fn insert(&mut self, other: Own) {
        self.0 |= other.0;
    }

    #[inline]
    pub fn has(self, other: Own) -> bool {
        self.0 & other.0 != 0
    }
}

/// Milliseconds and bytes of an exchange, for metrics and logs.
#[derive(Debug, Default, Clone, Copy)]
pub struct Timing {
    /// Microseconds from the request's head until now; in the log phase, the whole exchange.
    pub total_us: u64,
    /// When the upstream was asked first, by the worker's own clock; 0 if nobody wants to know.
    pub asked_us: u64,
    /// When the head of the upstream's response came, by the worker's own clock; 0 if nobody wants to know.
    pub answered_us: u64,
    /// Microseconds from choosing the upstream to the end of its response.
    pub upstream_us: u64,
    /// Requests its connection has brought, this one included.
    pub connection_requests: u64,
    /// Bytes received from the client: head and body.
    pub received: u64,
    /// Bytes sent to the client: head and body.
    pub sent: u64,
    /// Body bytes sent to the client.
    pub body_sent: u64,
}

/// A server that was asked in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Try {
    pub addr: SocketAddr,
    /// 502 or 504; 0 if it was not asked in the end.
    pub status: u16,
    /// Microseconds, where somebody wants to know.
    pub took_us: u64,
}

/// Who made the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// No response yet.
    #[default]
    None,
    Upstream,
    /// A stage's reply.
    Plugin,
    /// An error of ours: no route, no upstream, time-out …
    Gateway,
}

/// One request and its response.
pub struct Exchange<'s> {
    pub messages: &'s mut Messages,
    pub client: Caller<'s>,
    pub matched: Matched<'s>,
    pub consumers: &'s Consumers,
    identity: Option<Identity>,
    pub forward: Forward,
    pub timing: Timing,
    pub body_state: Body,
    /// The most bytes of the body that anybody asked for so far.
    pub body_asked: usize,
    /// Of a body that is longer than asked for, the beginning is read: so many bytes, and maybe more.
    pub body_beginning: bool,
    pub source: Source,
    /// The server that was chosen, once it was.
    pub upstream_addr: Option<SocketAddr>,
    /// Status of the upstream's answer; 502 or 504 if there was none though it was asked for one,
    /// 0 before that.
    pub upstream_status: u16,
    /// The servers that were tried in vain before that one, and what came of it. Allocates only then.
    pub tried: Vec<Try>,
    /// What was read of the line of a request that was refused before it was one: there is no head.
    pub refused: Option<&'s [u8]>,
    pub world: &'s dyn World,
    /// It is a stream, which has no messages.
    pub stream: Option<Box<Stream>>,
    /// See [`Exchange::skip_plugin`].
    skipped: SmallVec<[&'static str; 2]>,
    request_filters: Vec<Box<dyn RequestFilter>>,
    /// See [`Exchange::encode_with`].
    coder: Option<Box<dyn Coder>>,
    /// Counts the exchanges of this thread; see [`Exchange::unique`].
    serial: u64,
    /// See [`Exchange::start_ms`]; 0 until it is asked for.
    start_ms: Cell<u64>,
}

thread_local! {
    static SERIAL: Cell<u64> = const { Cell::new(0) };
    static SEED: RandomState = RandomState::default();
}

impl<'s> Exchange<'s> {
    pub fn new(
        messages: &'s mut Messages,
        client: &'s Client,
        consumers: &'s Consumers,
        world: &'s dyn World,
    ) -> Exchange<'s> {
        Exchange {
            messages,
            client: Caller::Connection(client),
            matched: Matched::default(),
            consumers,
            identity: None,
            forward: Forward::default(),
            timing: Timing::default(),
            body_state: Body::None,
            body_asked: 0,
            body_beginning: false,
            source: Source::None,
            upstream_addr: None,
            upstream_status: 0,
            tried: Vec::new(),
            refused: None,
            world,
            stream: None,
            skipped: SmallVec::new(),
            request_filters: Vec::new(),
            coder: None,
            serial: SERIAL.replace(SERIAL.get().wrapping_add(1)),
            start_ms: Cell::new(0),
        }
    }

    /// 128 bits that no other exchange has, the same at every call: `$request_id`. A hash of the exchange's
    /// number on this thread under a random seed: an identifier, not a secret.
    pub fn unique(&self) -> [u64; 2] {
        SEED.with(|seed| [0, 1].map(|half| seed.hash_one((self.serial << 1) | half)))
    }

    /// Unix milliseconds at which the exchange began, as far as anybody wants to know: the clock
    /// is read at the first call, and the answer is the same from then on.
    pub fn start_ms(&self) -> u64 {
        if self.start_ms.get() == 0 {
            self.start_ms.set(self.world.now_ms());
        }
        self.start_ms.get()
    }

    /// What all tries came to, in order: `502, 200` (`$upstream_status`); nothing if no upstream
    /// was asked. A try without an outcome is `-`.
    pub fn upstream_statuses(&self, out: &mut impl Extend<u8>) -> bool {
        if self.upstream_addr.is_none() || self.upstream_status == 0 && self.tried.is_empty() {
            return false;
        }
        let all = self.tried.iter().map(|tried| tried.status).chain([self.upstream_status]);
        for (at, status) in all.enumerate() {
            if at > 0 {
                out.extend(*b", ");
            }
            match status {
                0 => out.extend(*b"-"),
                status => out.extend([100, 10, 1].map(|unit| b'0' + (status / unit % 10) as u8)),
            }
        }
        true
    }

    /// Takes another address for the client's, for whatever of this exchange is still to come. The
    /// port is the client's own there, if that is known.
    pub fn set_client_address(&mut self, ip: IpAddr, port: Option<u16>) {
        self.client = Caller::Told(Box::new(self.client.told(ip, port)));
    }

    // ---- the request ----

    #[inline]
    pub fn request(&self) -> &RequestHead {
        &self.messages.request
    }

    #[inline]
    pub fn method(&self) -> Method {
        self.messages.request.method
    }

    /// Path in normal form, decoded.
    #[inline]
    pub fn path(&self) -> &[u8] {
        self.messages.request.path()
    }

    #[inline]
    pub fn query(&self) -> &[u8] {
        self.messages.request.query()
    }

    /// First value of a request header, name in any case.
    #[inline]
    pub fn header(&self, name: &(impl Named + ?Sized)) -> Option<&[u8]> {
        self.messages.request.fields.get_checked(name.id(), name.text())
    }

    /// Changes a header of the request as it goes to the upstream, and as later stages see it.
    pub fn set_header(&mut self, name: &(impl Named + ?Sized), value: &[u8]) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        self.messages.request.fields.set_checked(name.id(), name.text(), value);
        Ok(())
    }

    pub fn add_header(&mut self, name: &(impl Named + ?Sized), value: &[u8]) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        self.messages.request.fields.append_checked(name.id(), name.text(), value);
        Ok(())
    }

    /// Takes a header from the request. One that the gateway would add of itself stays away, unless
    /// a later stage sets it.
    pub fn remove_header(&mut self, name: &(impl Named + ?Sized)) {
        self.messages.request.fields.remove_checked(name.id(), name.text());
        self.forward.without.insert(Own::of(name.id()));
    }

    /// Puts text beside the request, for [`Forward`]'s spans.
    pub fn intern(&mut self, bytes: &[u8]) -> Span {
        self.messages.request.fields.intern(bytes)
    }

    /// What `X-Forwarded-Port` tells: the port in Host, else that of the listener.
    pub fn forwarded_port(&self) -> u16 {
        let (authority, host) = (self.request().authority(), self.request().host());
        let port = authority.get(host.len()..).and_then(|rest| rest.strip_prefix(b":"));
        let number = |digits: &[u8]| {
            digits.iter().try_fold(0u16, |port, &digit| {
                port.checked_mul(10)?.checked_add(u16::from(digit.checked_sub(b'0').filter(|it| *it < 10)?))
            })
        };
        port.filter(|digits| !digits.is_empty()).and_then(number).unwrap_or(self.client.local.port())
    }

    /// Sends the request to this upstream instead of the route's own. The last choice counts. To be
    /// made before the request goes out: in `rewrite`, `access` or `before_proxy`.
    #[inline]
    pub fn choose_upstream(&mut self, upstream: &UpstreamHandle) {
        self.forward.upstream = Some(upstream.slot());
    }

    /// Path and query as they will go to the upstream.
    pub fn upstream_uri(&self, out: &mut Vec<u8>) {
        let head = &self.messages.request;
        match self.forward.uri {
            Some(span) => out.extend_from_slice(head.fields.bytes(span)),
            None => {
                out.extend_from_slice(head.encoded_path());
                if head.has_query {
                    out.push(b'?');
                    out.extend_from_slice(head.query());
                }
            }
        }
    }

    // ---- the response ----

    #[inline]
    pub fn response(&self) -> &ResponseHead {
        &self.messages.response
    }

    #[inline]
    pub fn status(&self) -> u16 {
        self.messages.response.status
    }

    /// The response head is there (header filter and later).
    #[inline]
    pub fn has_response(&self) -> bool {
        self.source != Source::None
    }

    pub fn response_header(&self, name: &(impl Named + ?Sized)) -> Option<&[u8]> {
        self.messages.response.fields.get_checked(name.id(), name.text())
    }

    /// Sets a response header: now if the head is there, else as soon as it is.
    pub fn set_response_header(
        &mut self,
        name: &(impl Named + ?Sized),
        value: &[u8],
    ) -> Result<(), BadField> {
        self.edit(Edit::Set, name, value)
    }

    /// Adds a response header beside those of the same name.
    pub fn add_response_header(
        &mut self,
        name: &(impl Named + ?Sized),
        value: &[u8],
    ) -> Result<(), BadField> {
        self.edit(Edit::Add, name, value)
    }

    pub fn remove_response_header(&mut self, name: &(impl Named + ?Sized)) {
        // No head has a field whose name is no token.
        let _ = self.edit(Edit::Remove, name, b"");
    }

    fn edit(&mut self, edit: Edit, name: &(impl Named + ?Sized), value: &[u8]) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        let (id, name) = (name.id(), name.text());
        if self.has_response() {
            self.apply_early_edits();
            edit.apply(&mut self.messages.response.fields, id, name, value);
        } else {
            let text = &mut self.messages.early_text;
            let field = wire::Field { id, name: text.intern(name), value: text.intern(value) };
            self.messages.early.push((edit, field));
        }
        Ok(())
    }

    /// Lays what was set before over the response head. The proxy calls it when the head is there.
    #[inline]
    pub fn apply_early_edits(&mut self) {
        if self.messages.early.is_empty() {
            return;
        }
        let Messages { early, early_text, response, .. } = &mut *self.messages;
        for (edit, field) in early.drain(..) {
            let (name, value) = (early_text.bytes(field.name), early_text.bytes(field.value));
            edit.apply(&mut response.fields, field.id, name, value);
        }
        early_text.clear(1 << 10);
    }

    /// From here on, the chains leave this plugin out: another one does its work on this exchange.
    pub fn skip_plugin(&mut self, name: &'static str) {
        if !self.skips(name) {
            self.skipped.push(name);
        }
    }

    #[inline]
    pub(crate) fn skips(&self, name: &str) -> bool {
        !self.skipped.is_empty() && self.skipped.contains(&name)
    }

    // ---- the coding of the response's body ----

    /// Lets a coder have the body behind all filters. Called by a stage in its header filter; there is
    /// one coder an exchange, and the last one set counts.
    pub fn encode_with(&mut self, coder: Box<dyn Coder>) {
        self.coder = Some(coder);
    }

    /// The proxy calls this before the header filters: what an earlier response was to be coded with is
    /// forgotten.
    #[inline]
    pub fn forget_coder(&mut self) {
        self.coder = None;
    }

    /// The proxy calls this when all header filters have run: the coder changes the head, or steps back.
    #[inline]
    pub fn begin_coding(&mut self) {
        if let Some(mut coder) = self.coder.take()
            && coder.begin(self)
        {
            self.coder = Some(coder);
        }
    }

    /// Whether a coder changes the body.
    #[inline]
    pub fn codes_body(&self) -> bool {
        self.coder.is_some()
    }

    /// The proxy calls this for each piece of the body, when all body filters have seen it.
    #[inline]
    pub fn code(&mut self, chunk: &mut Chunk) {
        if let Some(coder) = &mut self.coder {
            coder.encode(chunk);
        }
    }

    // ---- the consumer ----

    /// Who the request was authenticated as.
    #[inline]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    #[inline]
    pub fn consumer(&self) -> Option<&Consumer> {
        self.identity.as_ref().map(|identity| &*identity.consumer)
    }

    /// An auth stage found out who it is. Sets the identity headers the upstream gets
    /// (APISIX 3.x: `X-Consumer-Username`, `X-Credential-Identifier`, `X-Consumer-Custom-ID`).
    pub fn authenticate(&mut self, identity: Identity) {
        use wire::Name;
        let fields = &mut self.messages.request.fields;
        let pairs = [
            (Name::XConsumerUsername, Some(identity.consumer.name.as_str())),
            (Name::XCredentialIdentifier, identity.credential_id.as_deref()),
            (Name::XConsumerCustomId, identity.consumer.custom_id.as_deref()),
        ];
        for (name, value) in pairs {
            fields.remove_id(name);
            if let Some(value) = value {
                // A value that cannot stand in a header is left out rather than sent broken.
                let _ = fields.set_id(name, value.as_bytes());
            }
        }
        self.identity = Some(identity);
    }

    /// Says in the error log that a stage could not do its work on this exchange. What follows within
    /// the same second is not written.
    #[cold]
    pub fn complain(&self, plugin: &'static str, reason: &'static str) {
        self.world.complain(self, plugin, reason);
    }

    // ---- notes ----

    /// What a stage noted on this exchange in an earlier phase. One value a type.
    pub fn note<T: 'static>(&self) -> Option<&T> {
        self.messages.notes.iter().find_map(|note| note.downcast_ref())
    }

    pub fn note_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.messages.notes.iter_mut().find_map(|note| note.downcast_mut())
    }

    /// Notes a value for later phases. It allocates: for stages whose work is larger than that.
    pub fn set_note<T: 'static>(&mut self, value: T) {
        match self.note_mut::<T>() {
            Some(old) => *old = value,
            None => self.messages.notes.push(Box::new(value)),
        }
    }

    /// Keeps a value until the exchange is over, however it ends, and drops it then; where the exchange
    /// became a tunnel, when that is over.
    pub fn hold<T: 'static>(&mut self, value: T) {
        self.messages.holds.push(Box::new(value));
    }

    pub fn take_note<T: 'static>(&mut self) -> Option<T> {
        let index = self.messages.notes.iter().position(|note| note.is::<T>())?;
        self.messages.notes.swap_remove(index).downcast().ok().map(|boxed| *boxed)
    }
}

/// One piece of a response's body on its way to the client.
#[derive(Debug, Default)]
pub struct Chunk {
    /// May be changed in any way.
    pub data: Vec<u8>,
    /// No further piece follows; `data` may still hold bytes.
    pub last: bool,
    /// A stage would have to hold more of the body than the worker may ([`World::budget`]): the
    /// exchange fails.
    pub refused: bool,
}
