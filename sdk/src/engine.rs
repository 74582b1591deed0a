//! hot path
//!
//! The engine's side of an [`Exchange`]: its whole state, open to whoever serves it.
//!
//! The engine (`proxy`, and `snapshot`, which finds routes and explains requests) fills in what came,
//! and carries out what plugins decided. Plugins have methods on [`Exchange`] instead: this module is
//! closed to them (`xtask/walls.toml`), and so are [`Exchange::engine`] and [`Exchange::engine_mut`]
//! (`plugins/clippy.toml`).

use std::any::Any;
use std::net::SocketAddr;
use std::rc::Rc;

use smallvec::SmallVec;
use wire::{BadField, Fields, Framing, Method, RequestHead, ResponseHead, Span, Version};

use crate::budget::Held;
use crate::chain::LocalFuture;
use crate::client::Caller;
use crate::coder::Coder;
use crate::consumers::Consumers;
use crate::exchange::{Body, Chunk, Exchange, RouteInfo, Source, Timing, Try};
use crate::header::Named;
use crate::step::Step;
use crate::stream::Stream;
use crate::upload::RequestFilter;
use crate::upstream::Chosen;
use crate::world::World;

/// What the engine knows of an exchange. Its fields are open, so that several of them can be borrowed at
/// once.
pub struct Engine<'s> {
    pub messages: &'s mut Messages,
    pub client: Caller<'s>,
    pub matched: Matched<'s>,
    pub consumers: &'s Consumers,
    pub forward: Forward,
    pub timing: Timing,
    pub body_state: Body,
    /// The most bytes of the body that anybody asked for so far.
    pub body_asked: usize,
    /// Of a body that is longer than asked for, the beginning is read: so many bytes, and maybe more.
    pub body_beginning: bool,
    /// Who asked last can do without the body.
    pub body_spared: bool,
    /// There was no memory for it, and it was done without: what of it was read is its beginning.
    pub body_unheld: bool,
    pub source: Source,
    /// The plugin that answered; empty if none did.
    pub answered_by: &'static str,
    /// Why the gateway refused the request, or could not answer as the upstream did; empty if neither is so.
    pub reason: &'static str,
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
    /// What plugins let the request's body go through; the engine takes them when it goes out.
    pub request_filters: Vec<Box<dyn RequestFilter>>,
    /// See [`Exchange::encode_with`]. Forgotten before the header filters run again, on another response.
    pub coder: Option<Box<dyn Coder>>,
}

impl Engine<'_> {
    /// Applies the changes of the response head that plugins made before there was one. Called when the
    /// head is there.
    #[inline]
    pub fn apply_early_edits(&mut self) {
        if !self.messages.early.is_empty() {
            self.messages.apply_early_edits();
        }
    }

    /// Lets the coder change a piece of the body that all body filters have seen.
    #[inline]
    pub fn code(&mut self, chunk: &mut Chunk) -> Step {
        self.coder.as_mut().map_or(Step::Next, |coder| coder.encode(chunk))
    }

    /// The same after it answered [`Step::Wait`].
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
        let (id, name) = (name.id(), name.text());
        if self.source == Source::None {
            let text = &mut self.messages.early_text;
            let field = wire::Field { id, name: text.intern(name), value: text.intern(value) };
            self.messages.early.push((edit, field));
        } else {
            self.apply_early_edits();
            edit.apply(&mut self.messages.response.fields, id, name, value);
        }
        Ok(())
    }
}

/// Called when all header filters have run: the coder, if there is one, changes the head or steps back.
#[inline]
pub fn begin_coding(x: &mut Exchange<'_>) {
    if let Some(mut coder) = x.engine_mut().coder.take()
        && coder.begin(x)
    {
        x.engine_mut().coder = Some(coder);
    }
}

/// The reusable memory of one exchange: heads, edits and notes. A worker keeps a
/// few of these and hands one to each exchange.
#[derive(Debug, Default)]
pub struct Messages {
    pub request: RequestHead,
    pub response: ResponseHead,
    /// Response fields set before the response head is there.
    early: Vec<(Edit, wire::Field)>,
    early_text: Fields,
    pub(crate) notes: Vec<Box<dyn Any>>,
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
    /// Names of the request's headers that plugins have set or taken away, where trailers may follow: a client
    /// does not say the same behind the body, as some servers take trailers for headers. Shared while the
    /// request is on its way to an upstream.
    pub edited: Rc<Fields>,
    /// The request's headers as they go to the upstream ([`Messages::withheld`]).
    pub head: Rc<Fields>,
    /// The trailers of the response: those that a plugin has set, and behind the body those that came.
    pub response_trailers: Fields,
}

/// See [`Messages::withheld`].
#[derive(Debug, Clone, Default)]
pub struct Withheld {
    pub edited: Rc<Fields>,
    pub head: Rc<Fields>,
}

impl Withheld {
    /// Whether a trailer of this name stays here.
    pub fn has(&self, name: &[u8]) -> bool {
        self.edited.contains_alike(name) || self.head.contains_alike(name)
    }
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

    /// Names that none of the client's trailers goes on with: of headers that plugins have set or taken away, and of
    /// all that go to the upstream, as one of them may have said who the client is.
    pub fn withheld(&mut self) -> Withheld {
        if self.may_have_trailers() {
            Rc::make_mut(&mut self.head).copy_from(&self.request.fields);
        }
        Withheld { edited: self.edited.clone(), head: self.head.clone() }
    }

    /// A plugin sees to this header of the request.
    pub(crate) fn note_edited(&mut self, name: &(impl Named + ?Sized)) {
        if self.may_have_trailers() {
            self.request_trailers.remove_alike(name.text());
            if !self.edited.contains_alike(name.text()) {
                Rc::make_mut(&mut self.edited).append_checked(name.id(), name.text(), b"");
            }
        }
    }

    fn apply_early_edits(&mut self) {
        let Messages { early, early_text, response, .. } = self;
        for (edit, field) in early.drain(..) {
            let (name, value) = (early_text.bytes(field.name), early_text.bytes(field.value));
            edit.apply(&mut response.fields, field.id, name, value);
        }
        early_text.clear(1 << 10);
    }
}

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
    /// Gateways that the request has passed through, this one included, as far as they say so; 0 if it comes
    /// straight from a client.
    pub hops: u16,
}

/// A set of the fields by which the gateway tells the upstream of the client's connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Own(u8);

impl Own {
    pub const PROTO: Own = Own(1);
    pub const HOST: Own = Own(2);
    pub const PORT: Own = Own(4);

    pub(crate) fn of(name: wire::Name) -> Own {
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
