//! hot path
//!
//! One request and its response, as plugins see and change them: by methods. The state behind them is the
//! engine's ([`crate::engine`]).

mod bodies;
mod facts;
mod onward;
mod response;

use std::cell::Cell;
use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use wire::{BadField, Method, RequestHead, Span};

use crate::client::{Caller, Client};
use crate::consumers::{Consumer, Consumers, Identity};
use crate::engine::{Engine, Forward, Matched, Messages, Own};
use crate::header::Named;
use crate::pattern::Searches;
use crate::stream::Stream;
use crate::world::World;
pub use bodies::NotSet;
pub use facts::{Body, Chunk, RouteInfo, RouteNames, Source, Timing, Try};

/// One request and its response.
pub struct Exchange<'s> {
    engine: Engine<'s>,
    identity: Option<Identity>,
    /// See [`Exchange::skip_plugin`].
    skipped: SmallVec<[&'static str; 2]>,
    /// Counts the exchanges of this thread; see [`Exchange::unique`].
    serial: u64,
    /// See [`Exchange::start_ms`]; 0 until it is asked for.
    start_ms: Cell<u64>,
    /// See [`Exchange::start_steady_ms`]; 0 until it is asked for.
    start_steady_ms: Cell<u64>,
    /// See [`Exchange::searches`].
    searches: Searches,
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
            engine: Engine {
                messages,
                client: Caller::Connection(client),
                matched: Matched::default(),
                consumers,
                forward: Forward::default(),
                timing: Timing::default(),
                body_state: Body::None,
                body_asked: 0,
                body_beginning: false,
                body_spared: false,
                body_unheld: false,
                source: Source::None,
                answered_by: "",
                reason: "",
                upstream_addr: None,
                upstream_status: 0,
                tried: Vec::new(),
                refused: None,
                world,
                stream: None,
                request_filters: Vec::new(),
                coder: None,
            },
            identity: None,
            skipped: SmallVec::new(),
            serial: SERIAL.replace(SERIAL.get().wrapping_add(1)),
            start_ms: Cell::new(0),
            start_steady_ms: Cell::new(0),
            searches: Searches::default(),
        }
    }

    /// The state behind these methods, for whoever serves the exchange. Plugins may not call this.
    #[inline]
    pub fn engine(&self) -> &Engine<'s> {
        &self.engine
    }

    /// As [`Exchange::engine`], to be changed.
    #[inline]
    pub fn engine_mut(&mut self) -> &mut Engine<'s> {
        &mut self.engine
    }

    /// The worker that serves the exchange.
    #[inline]
    pub fn world(&self) -> &'s dyn World {
        self.engine.world
    }

    #[inline]
    pub fn timing(&self) -> &Timing {
        &self.engine.timing
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
            self.start_ms.set(self.engine.world.now_ms());
        }
        self.start_ms.get()
    }

    /// The same by the clock that nobody sets; see [`World::steady_ms`].
    pub fn start_steady_ms(&self) -> u64 {
        if self.start_steady_ms.get() == 0 {
            self.start_steady_ms.set(self.engine.world.steady_ms());
        }
        self.start_steady_ms.get()
    }

    /// What the exchange's searches with patterns may still cost; see [`crate::pattern::Pattern::judge`].
    #[inline]
    pub fn searches(&self) -> &Searches {
        &self.searches
    }

    // ---- the client ----

    /// Who sent the request, as far as trusted proxies and plugins told.
    #[inline]
    pub fn client(&self) -> &Client {
        &self.engine.client
    }

    /// Takes another address for the client's, for whatever of this exchange is still to come. The
    /// port is the client's own there, if that is known.
    pub fn set_client_address(&mut self, ip: IpAddr, port: Option<u16>) {
        self.engine.client = Caller::Told(Box::new(self.engine.client.told(ip, port)));
    }

    // ---- the route ----

    /// The route that was found.
    #[inline]
    pub fn route(&self) -> Option<&'s RouteInfo> {
        self.engine.matched.route
    }

    /// The pattern of the route's that the path matched (`/anything/*`); empty without a route.
    #[inline]
    pub fn matched_uri(&self) -> &'s str {
        self.engine.matched.uri
    }

    /// The pattern of the route's that the host matched; empty if there is none.
    #[inline]
    pub fn matched_host(&self) -> &'s str {
        self.engine.matched.host
    }

    /// What stands in the path for a parameter of the matched pattern (`:id`); of several of one name the
    /// last.
    pub fn path_param(&self, name: &str) -> Option<&[u8]> {
        let (_, span) = self.engine.matched.params.iter().rev().find(|(key, _)| *key == name)?;
        Some(self.request().fields.bytes(*span))
    }

    // ---- the request ----

    #[inline]
    pub fn request(&self) -> &RequestHead {
        &self.engine.messages.request
    }

    #[inline]
    pub fn method(&self) -> Method {
        self.engine.messages.request.method
    }

    /// Path in normal form, decoded.
    #[inline]
    pub fn path(&self) -> &[u8] {
        self.engine.messages.request.path()
    }

    #[inline]
    pub fn query(&self) -> &[u8] {
        self.engine.messages.request.query()
    }

    /// First value of a request header, name in any case.
    #[inline]
    pub fn header(&self, name: &(impl Named + ?Sized)) -> Option<&[u8]> {
        self.engine.messages.request.fields.get_checked(name.id(), name.text())
    }

    /// Changes a header of the request as it goes to the upstream, and as later stages see it. As with the other
    /// methods that change headers, a trailer of that name goes no further, unless it is set behind this.
    pub fn set_header(&mut self, name: &(impl Named + ?Sized), value: &[u8]) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        self.engine.messages.note_edited(name);
        self.engine.messages.request.fields.set_checked(name.id(), name.text(), value);
        Ok(())
    }

    pub fn add_header(&mut self, name: &(impl Named + ?Sized), value: &[u8]) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        self.engine.messages.note_edited(name);
        self.engine.messages.request.fields.append_checked(name.id(), name.text(), value);
        Ok(())
    }

    /// Takes a header from the request. One that the gateway would add of itself stays away, unless
    /// a later stage sets it.
    pub fn remove_header(&mut self, name: &(impl Named + ?Sized)) {
        self.engine.messages.note_edited(name);
        self.engine.messages.request.fields.remove_checked(name.id(), name.text());
        self.engine.forward.without.insert(Own::of(name.id()));
    }

    /// Takes headers from the request that a server may take for the one of this name: they are spelled the
    /// same but for case, `-` and `_`. For a plugin that vouches for what the header says, before it sets it.
    pub fn remove_lookalikes(&mut self, name: &(impl Named + ?Sized)) {
        self.engine.messages.note_edited(name);
        self.engine.messages.request.fields.remove_lookalikes(name.text());
    }

    /// Takes another query, without its `?`, for the request's: for later plugins, and for the upstream
    /// unless a plugin has set its URI. With an empty one the request has no query.
    pub fn set_query(&mut self, query: &[u8]) {
        let head = &mut self.engine.messages.request;
        head.has_query = !query.is_empty();
        head.query_span = head.fields.intern(query);
    }

    /// What was read of the line of a request that was refused before it was one: there is no head.
    #[inline]
    pub fn refused_line(&self) -> Option<&'s [u8]> {
        self.engine.refused
    }

    /// Keeps text beside the request. Its place is valid as long as the request:
    /// `x.request().fields.bytes(span)`.
    pub fn intern(&mut self, bytes: &[u8]) -> Span {
        self.engine.messages.request.fields.intern(bytes)
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
        port.filter(|digits| !digits.is_empty()).and_then(number).unwrap_or(self.client().local.port())
    }

    // ---- a stream ----

    /// The stream that this is, if it is no request.
    #[inline]
    pub fn stream(&self) -> Option<&Stream> {
        self.engine.stream.as_deref()
    }

    /// Notes the name by which an MQTT client calls itself: `$mqtt_client_id`. Nothing is noted of a
    /// request.
    pub fn set_mqtt_client_id(&mut self, id: Option<Box<[u8]>>) {
        if let Some(stream) = &mut self.engine.stream {
            stream.mqtt_client_id = id;
        }
    }

    // ---- what other plugins do ----

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

    // ---- the consumer ----

    /// All consumers there are, for auth plugins.
    #[inline]
    pub fn consumers(&self) -> &'s Consumers {
        self.engine.consumers
    }

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
        let fields = &mut self.engine.messages.request.fields;
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
        self.engine.world.complain(self, plugin, reason);
    }

    // ---- notes ----

    /// What a stage noted on this exchange in an earlier phase. One value a type.
    pub fn note<T: 'static>(&self) -> Option<&T> {
        self.engine.messages.notes.iter().find_map(|note| note.downcast_ref())
    }

    pub fn note_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.engine.messages.notes.iter_mut().find_map(|note| note.downcast_mut())
    }

    /// Notes a value for later phases. It allocates: for stages whose work is larger than that.
    pub fn set_note<T: 'static>(&mut self, value: T) {
        match self.note_mut::<T>() {
            Some(old) => *old = value,
            None => self.engine.messages.notes.push(Box::new(value)),
        }
    }

    /// Keeps a value until the exchange is over, however it ends, and drops it then; where the exchange
    /// became a tunnel, when that is over.
    pub fn hold<T: 'static>(&mut self, value: T) {
        self.engine.messages.holds.push(Box::new(value));
    }

    pub fn take_note<T: 'static>(&mut self) -> Option<T> {
        let index = self.engine.messages.notes.iter().position(|note| note.is::<T>())?;
        self.engine.messages.notes.swap_remove(index).downcast().ok().map(|boxed| *boxed)
    }
}

#[cfg(test)]
mod tests;
