//! hot path
//!
//! The engine's view of an [`Exchange`]: its complete state.
//!
//! The engine (`proxy`, and `snapshot`, which finds routes and explains requests) fills in the
//! request and carries out the decisions of plugins. Plugins use methods of [`Exchange`] instead:
//! this module is closed to them (`xtask/walls.toml`), and so are [`Exchange::engine`] and
//! [`Exchange::engine_mut`] (`plugins/clippy.toml`).

use std::any::Any;
use std::net::SocketAddr;
use std::rc::Rc;

use smallvec::SmallVec;
use wire::{BadField, FieldLines, Fields, Framing, Method, RequestHead, ResponseHead, Span, Version};

use crate::budget::Reservation;
use crate::client::Caller;
use crate::consumers::Consumers;
use crate::exchange::{Body, Chunk, Exchange, RouteInfo, Source, Timing, Try};
use crate::header::Named;
use crate::meters::SeriesMemo;
use crate::permit::Permit;
use crate::response_body::{Coder, SizedSource};
use crate::step::{LocalFuture, Reply, Step};
use crate::stream::Stream;

use crate::upload::RequestFilter;
use crate::upstream::{Chosen, RuntimeUpstream};
use crate::world::World;

/// The engine's state of an exchange. Fields are public, so that several can be borrowed at once.
pub struct Engine<'s> {
    pub messages: &'s mut Messages,
    pub client: Caller<'s>,
    pub matched: Matched<'s>,
    pub consumers: &'s Consumers,
    pub forward: Forward,
    pub timing: Timing,
    pub body_state: Body,
    /// The largest limit in bytes with which the body was requested so far.
    pub body_asked: usize,
    /// If the body exceeds the limit, its prefix is buffered: `body_asked` bytes, or somewhat more.
    pub body_prefix_wanted: bool,
    /// The last request for the body was optional: without memory for it, the exchange continues.
    pub body_optional: bool,
    /// The worker's budget did not suffice for the body, which was optional; only a prefix is
    /// buffered.
    pub body_over_budget: bool,
    /// The limit in bytes that a plugin set for the request's body; 0 is no limit. Without one, that of
    /// the boot settings applies.
    pub max_body: Option<u64>,
    pub source: Source,
    /// The plugin that responded; empty if none did.
    pub answered_by: &'static str,
    /// Why the gateway or a plugin rejected the request, or why the upstream's response could not be
    /// passed on; empty otherwise.
    pub reason: &'static str,
    /// The chosen server, once there is one.
    pub upstream_addr: Option<SocketAddr>,
    /// The status of the upstream's response; 502 or 504 if it was contacted and did not respond, 0
    /// before that.
    pub upstream_status: u16,
    /// Failed attempts with other servers before that one, and their results. Allocates only then.
    pub tried: Vec<Try>,
    /// The bytes read of a request line that was rejected: there is no head.
    pub refused: Option<&'s [u8]>,
    pub world: &'s dyn World,
    /// See [`Exchange::series_memo`].
    pub series_memo: Option<&'s SeriesMemo>,
    /// Set for a stream, which has no messages.
    pub stream: Option<Box<Stream>>,
    /// Filters of the request's body, added by plugins; the engine takes them when it forwards the
    /// body.
    pub request_filters: Vec<Box<dyn RequestFilter>>,
    /// See [`Exchange::encode_with`]. Cleared before the header filters run again, on another
    /// response.
    pub coder: Option<Box<dyn Coder>>,
    /// See [`Exchange::filter_replies`].
    pub reply_filter: Option<ReplyFilter>,
    /// See [`Exchange::reply_at_end`]; with the plugin that answers.
    pub reply_at_end: Option<(&'static str, EndReply)>,
    /// See [`Exchange::stream_body`].
    pub body_source: Option<SizedSource>,
    /// Replaces the route's upstream; see [`Exchange::forward_to`].
    pub runtime_upstream: Option<RuntimeUpstream>,
}

impl Engine<'_> {
    /// Applies the changes that plugins made before there was a response head. Called when the head
    /// is there.
    #[inline]
    pub fn apply_early_edits(&mut self) {
        if !self.messages.early.is_empty() {
            self.messages.apply_early_edits();
        }
    }

    /// Lets the coder encode a chunk of the body, after all body filters.
    #[inline]
    pub fn code(&mut self, chunk: &mut Chunk) -> Step {
        self.coder.as_mut().map_or(Step::Next, |coder| coder.encode(chunk))
    }

    /// Awaits the coder after [`Engine::code`] returned [`Step::Wait`].
    pub fn wait_code<'a>(&'a mut self, chunk: &'a mut Chunk) -> LocalFuture<'a, ()> {
        match &mut self.coder {
            Some(coder) => coder.wait(self.world, chunk),
            None => Box::pin(async {}),
        }
    }

    /// Changes a response header: now if the head is there, else as soon as it is.
    pub(crate) fn edit(
        &mut self,
        edit: Edit,
        name: &(impl Named + ?Sized),
        value: &[u8],
    ) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        self.edit_checked(edit, name, value)
    }

    /// As [`Engine::edit`], with a name and a value that are known to be valid.
    #[inline]
    pub(crate) fn edit_checked(
        &mut self,
        edit: Edit,
        name: &(impl Named + ?Sized),
        value: &[u8],
    ) -> Result<(), BadField> {
        let (id, name) = (name.id(), name.text());
        let is_early = self.source == Source::None;
        if is_early {
            let room = self.messages.early_text.check_room(name.len() + value.len());
            // A request that lacks a change is not forwarded: a header that is to be hidden would be sent.
            self.forward.lacks_text |= room.is_err();
            room?;
            let field = self.messages.early_text.intern_line(id, name, value);
            self.messages.early.push((edit, field));
        } else {
            if !matches!(edit, Edit::Remove) {
                self.messages.response.fields.check_room(name.len() + value.len())?;
            }
            self.apply_early_edits();
            edit.apply(&mut self.messages.response.fields, id, name, value);
        }
        Ok(())
    }

    /// Sets response headers, as [`Engine::edit`] does, to lines that were made when the plugin was built.
    #[inline]
    pub(crate) fn set_lines(&mut self, lines: &FieldLines) {
        if self.source == Source::None {
            let Messages { early, early_text, .. } = &mut *self.messages;
            early.extend(early_text.intern_lines(lines).map(|field| (Edit::Set, field)));
        } else {
            self.apply_early_edits();
            self.messages.response.fields.set_lines(lines);
        }
    }
}

/// Called after all header filters: the coder, if there is one, changes the head or declines.
#[inline]
pub fn begin_coding(x: &mut Exchange<'_>) {
    if let Some(mut coder) = x.engine_mut().coder.take()
        && coder.begin(x)
    {
        x.engine_mut().coder = Some(coder);
    }
}

/// The reusable memory of one exchange: heads, edits and notes. A worker keeps a few of these and
/// lends one to each exchange.
#[derive(Debug, Default)]
pub struct Messages {
    pub request: RequestHead,
    pub response: ResponseHead,
    /// Response fields set before the response head is there.
    early: Vec<(Edit, wire::Field)>,
    early_text: Fields,
    pub(crate) notes: Vec<Box<dyn Any>>,
    /// See [`Exchange::hold`]. A tunnel keeps them until it ends.
    pub holds: Vec<Held>,
    /// The request's body, if a plugin requested it. Shared while it is forwarded to an upstream.
    pub body: Rc<Vec<u8>>,
    /// Bytes of the worker's budget reserved for the body.
    pub body_held: Reservation,
    /// Bytes of the budget reserved for the gateway's or a plugin's response while filters change
    /// its body.
    pub reply_held: Reservation,
    /// The trailers of a request whose body is buffered, and those that a plugin has set.
    pub request_trailers: Fields,
    /// Names of the request headers that plugins have set or removed, if trailers may follow. The
    /// client's trailers of these names are dropped, since some servers treat trailers as headers.
    /// Shared while the request is forwarded to an upstream.
    pub edited: Rc<Fields>,
    /// The request's headers as forwarded to the upstream ([`Messages::withheld`]).
    pub head: Rc<Fields>,
    /// The trailers of the response: those that a plugin has set and, after the body, those
    /// received.
    pub response_trailers: Fields,
}

/// A value that is kept until the exchange ends.
#[derive(Debug)]
pub enum Held {
    Permit(Permit),
    Value(Box<dyn Any>),
}

/// See [`Messages::withheld`].
#[derive(Debug, Clone, Default)]
pub struct Withheld {
    pub edited: Rc<Fields>,
    pub head: Rc<Fields>,
}

impl Withheld {
    /// Whether a trailer of this name is not forwarded.
    pub fn has(&self, name: &[u8]) -> bool {
        self.edited.contains_alike(name) || self.head.contains_alike(name)
    }
}

impl Messages {
    /// Resets the memory for the next exchange; keeps small buffers.
    pub fn clear(&mut self) {
        self.request.clear();
        self.response.clear();
        self.early.clear();
        self.early_text.clear(1 << 10);
        self.notes.clear();
        self.holds.clear();
        // Not shared any more. If it were, the other owner would keep its content.
        match Rc::get_mut(&mut self.body) {
            Some(body) => {
                body.clear();
                body.shrink_to(16 << 10);
            }
            None => self.body = Rc::default(),
        }
        self.body_held = Reservation::default();
        self.reply_held = Reservation::default();
        self.request_trailers.clear(1 << 10);
        self.response_trailers.clear(1 << 10);
        for shared in [&mut self.edited, &mut self.head] {
            match Rc::get_mut(shared) {
                Some(fields) => fields.clear(1 << 10),
                None => *shared = Rc::default(),
            }
        }
    }

    fn may_have_trailers(&self) -> bool {
        match self.request.framing {
            Framing::None => false,
            Framing::Length(_) => self.request.version >= Version::Http2,
            Framing::Chunked | Framing::UntilClose => true,
        }
    }

    /// The names of client trailers that are not forwarded: headers that plugins have set or
    /// removed, and all headers that go to the upstream, as one of them may identify the client.
    pub fn withheld(&mut self) -> Withheld {
        if self.may_have_trailers() {
            Rc::make_mut(&mut self.head).copy_from(&self.request.fields);
        }
        Withheld { edited: self.edited.clone(), head: self.head.clone() }
    }

    /// Notes that a plugin has set or removed this header of the request.
    #[inline]
    pub(crate) fn note_edited(&mut self, id: wire::Name, name: &[u8]) {
        if self.may_have_trailers() {
            self.request_trailers.remove_alike(name);
            if !self.edited.contains_alike(name) {
                Rc::make_mut(&mut self.edited).append_checked(id, name, b"");
            }
        }
    }

    fn apply_early_edits(&mut self) {
        let Messages { early, early_text, response, .. } = self;
        let fields = &mut response.fields;
        // All lines in one piece: hardly any response has these headers already.
        let start = fields.intern_text(early_text);
        for &(edit, field) in &*early {
            let name = early_text.bytes(field.name);
            match edit {
                Edit::Add => fields.push(field.behind(start)),
                Edit::Set if !fields.contains_checked(field.id, name) => fields.push(field.behind(start)),
                _ => edit.apply(fields, field.id, name, early_text.bytes(field.value)),
            }
        }
        early.clear();
        early_text.clear(1 << 10);
    }
}

/// Changes a reply before its head is made.
pub type ReplyFilter = fn(&mut Exchange<'_>, Reply) -> Reply;

/// Makes the response that plugins have prepared, if there is one.
pub type EndReply = fn(&mut Exchange<'_>) -> Option<Reply>;

/// A change of one response header.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Edit {
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

/// The route match.
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

/// The plugins' changes to where and how the request is forwarded. Spans refer to the request's
/// text ([`Fields::intern`]).
#[derive(Debug, Default, Clone, Copy)]
pub struct Forward {
    /// Path and query, percent-encoded; replaces the client's.
    pub uri: Option<Span>,
    /// Replaces the client's method; [`Method::Other`] keeps the client's spelling.
    pub method: Option<Method>,
    /// Replaces the Host that `pass_host` selects.
    pub host: Option<Span>,
    /// The Host that `pass_host` selects for the chosen server, unless it is the client's.
    pub server_host: Option<Span>,
    /// Host and port of the chosen server, as configured. Set only if logged.
    pub server: Option<Span>,
    /// The scheme of the chosen upstream; empty before one is chosen.
    pub scheme: &'static str,
    /// Headers that the gateway would add by itself, removed by a plugin.
    pub without: ForwardedHeaders,
    /// Replaces the route's upstream; see [`Exchange::choose_upstream`].
    pub upstream: Option<Chosen>,
    /// Gateways that the request has passed through, this one included, as reported by them; 0 if
    /// it comes directly from a client.
    pub hops: u16,
    /// It was refused for its hops.
    pub is_loop: bool,
    /// A text that a plugin has set is not kept, as all of them were too long.
    pub lacks_text: bool,
}

/// A set of the headers that describe the client's connection to the upstream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ForwardedHeaders(u8);

impl ForwardedHeaders {
    pub const PROTO: ForwardedHeaders = ForwardedHeaders(1);
    pub const HOST: ForwardedHeaders = ForwardedHeaders(2);
    pub const PORT: ForwardedHeaders = ForwardedHeaders(4);

    pub(crate) fn of(name: wire::Name) -> ForwardedHeaders {
        match name {
            wire::Name::XForwardedProto => ForwardedHeaders::PROTO,
            wire::Name::XForwardedHost => ForwardedHeaders::HOST,
            wire::Name::XForwardedPort => ForwardedHeaders::PORT,
            _ => ForwardedHeaders(0),
        }
    }

    #[inline]
    pub fn insert(&mut self, other: ForwardedHeaders) {
        self.0 |= other.0;
    }

    #[inline]
    pub fn has(self, other: ForwardedHeaders) -> bool {
        self.0 & other.0 != 0
    }
}
