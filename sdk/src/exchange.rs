//! hot path
//!
//! One request and its response. Plugins read and change them by methods; the state behind them
//! belongs to the engine ([`crate::engine`]).

mod bodies;
mod facts;
mod masks;
mod onward;
mod response;

use std::cell::Cell;
use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::quality::RandomState;
use wire::{BadField, FieldLines, Method, RequestHead, Span};

use crate::client::{Caller, Client};
use crate::consumers::{Consumer, Consumers, Identity};
use crate::engine::{Engine, Forward, ForwardedHeaders, Held, Matched, Messages};
use crate::header::Named;
use crate::meters::SeriesMemo;
use crate::pattern::Searches;
use crate::permit::Permit;
use crate::stream::Stream;
use crate::trace::{SpanContext, Tracer};
use crate::world::World;
pub use bodies::NotSet;
pub use facts::{Body, Chunk, RouteInfo, RouteNames, Source, Timing, Try};

/// One request and its response.
pub struct Exchange<'s> {
    engine: Engine<'s>,
    identity: Option<Identity>,
    /// See [`Exchange::skip_plugin`].
    skipped: Vec<&'static str>,
    /// The number of this exchange on its thread; see [`Exchange::unique`].
    serial: u64,
    /// See [`Exchange::start_ms`]; 0 until the first call.
    start_ms: Cell<u64>,
    /// See [`Exchange::steady_ms`]; 0 if the clock has to be read.
    steady_ms: Cell<u64>,
    /// See [`Exchange::searches`].
    searches: Searches,
    /// See [`Exchange::span`].
    spans: [Option<SpanContext>; 2],
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
                body_prefix_wanted: false,
                body_optional: false,
                body_over_budget: false,
                max_body: None,
                source: Source::None,
                answered_by: "",
                reason: "",
                upstream_addr: None,
                upstream_status: 0,
                tried: Vec::new(),
                refused: None,
                world,
                series_memo: None,
                stream: None,
                request_filters: Vec::new(),
                coder: None,
                reply_filter: None,
                reply_at_end: None,
                body_source: None,
                runtime_upstream: None,
            },
            identity: None,
            skipped: Vec::new(),
            serial: SERIAL.replace(SERIAL.get().wrapping_add(1)),
            start_ms: Cell::new(0),
            steady_ms: Cell::new(0),
            searches: Searches::default(),
            spans: [None; 2],
        }
    }

    /// The state behind these methods, for the engine. Plugins must not call this.
    #[inline]
    pub fn engine(&self) -> &Engine<'s> {
        &self.engine
    }

    /// As [`Exchange::engine`], mutable.
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

    /// 128 bits that differ from those of all other exchanges, the same at every call:
    /// `$request_id`. A hash of the exchange's number on this thread with a random seed: an
    /// identifier, not a secret.
    pub fn unique(&self) -> [u64; 2] {
        SEED.with(|seed| [0, 1].map(|half| seed.hash_one((self.serial << 1) | half)))
    }

    /// Sets the time at which the exchange began, where the engine has read the clock anyway.
    #[inline]
    pub fn set_start_ms(&self, unix_ms: u64) {
        if self.start_ms.get() == 0 {
            self.start_ms.set(unix_ms);
        }
    }

    /// Unix milliseconds at which the exchange began. The clock is read at the first call, unless the engine has read
    /// it; later calls return the same time.
    pub fn start_ms(&self) -> u64 {
        if self.start_ms.get() == 0 {
            self.start_ms.set(self.engine.world.now_ms());
        }
        self.start_ms.get()
    }

    /// Asks for the log phase of this exchange, which is timed at the latest from now on. Called before the upstream,
    /// by instances that log on demand ([`crate::Plugin::logs_on_demand`]).
    pub fn expect_log(&mut self) {
        if self.engine.timing.log_asked_us.is_none() {
            self.engine.timing.log_asked_us = Some(self.engine.world.clock_us());
        }
        self.start_ms();
    }

    /// Sets the time that limits count by, where the engine has just read the clock; `None` once the exchange has
    /// waited, as a client may decide for how long.
    #[inline]
    pub fn set_steady_ms(&self, steady_ms: Option<u64>) {
        self.steady_ms.set(steady_ms.unwrap_or(0));
    }

    /// The time by the monotonic clock ([`World::steady_ms`]), for limits: read once, and again after each wait for a
    /// plugin or the body before the upstream. Later phases read the clock themselves.
    pub fn steady_ms(&self) -> u64 {
        if self.steady_ms.get() == 0 {
            self.steady_ms.set(self.engine.world.steady_ms());
        }
        self.steady_ms.get()
    }

    /// The budget left for the exchange's pattern searches; see [`crate::pattern::Pattern::judge`].
    #[inline]
    pub fn searches(&self) -> &Searches {
        &self.searches
    }

    // ---- the client ----

    /// The client, with the address set by trusted proxies and plugins.
    #[inline]
    pub fn client(&self) -> &Client {
        &self.engine.client
    }

    /// Sets another client address for the rest of this exchange. The port is the client's own at
    /// that address, if known.
    pub fn set_client_address(&mut self, ip: IpAddr, port: Option<u16>) {
        self.engine.client = Caller::Changed(Box::new(self.engine.client.with_address(ip, port)));
    }

    // ---- the route ----

    /// The matched route.
    #[inline]
    pub fn route(&self) -> Option<&'s RouteInfo> {
        self.engine.matched.route
    }

    /// Label sets of the metrics, by addresses of the snapshot that the exchange was matched with.
    #[inline]
    pub fn series_memo(&self) -> Option<&'s SeriesMemo> {
        self.engine.series_memo
    }

    /// The pattern of the route that the path matched (`/anything/*`); empty without a route.
    #[inline]
    pub fn matched_uri(&self) -> &'s str {
        self.engine.matched.uri
    }

    /// The pattern of the route that the host matched; empty without one.
    #[inline]
    pub fn matched_host(&self) -> &'s str {
        self.engine.matched.host
    }

    /// The value in the path of a parameter of the matched pattern (`:id`); the last of several of
    /// the same name.
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

    /// The path, decoded and in normal form.
    #[inline]
    pub fn path(&self) -> &[u8] {
        self.engine.messages.request.path()
    }

    #[inline]
    pub fn query(&self) -> &[u8] {
        self.engine.messages.request.query()
    }

    /// First value of a request header; the name's case does not matter.
    #[inline]
    pub fn header(&self, name: &(impl Named + ?Sized)) -> Option<&[u8]> {
        self.engine.messages.request.fields.get_checked(name.id(), name.text())
    }

    /// Sets a header of the request for later plugins and the upstream. As with the other methods
    /// that change headers, a trailer of that name is not forwarded, unless it is set after this
    /// call.
    pub fn set_header(&mut self, name: &(impl Named + ?Sized), value: &[u8]) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        self.check_room(name.text().len() + value.len())?;
        self.engine.messages.note_edited(name.id(), name.text());
        self.engine.messages.request.fields.set_checked(name.id(), name.text(), value);
        Ok(())
    }

    /// As [`Exchange::set_header`], with lines that were made when the plugin was built; see
    /// [`Exchange::set_response_lines`].
    pub fn set_header_lines(&mut self, lines: &FieldLines) {
        let messages = &mut self.engine.messages;
        lines.iter().for_each(|(name, _, id)| messages.note_edited(id, name));
        messages.request.fields.set_lines(lines);
    }

    pub fn add_header(&mut self, name: &(impl Named + ?Sized), value: &[u8]) -> Result<(), BadField> {
        name.check()?;
        wire::fields::check_value(value)?;
        self.check_room(name.text().len() + value.len())?;
        self.engine.messages.note_edited(name.id(), name.text());
        self.engine.messages.request.fields.append_checked(name.id(), name.text(), value);
        Ok(())
    }

    /// A request that lacks a header for want of room is not forwarded: a client's own could take its place.
    fn check_room(&mut self, bytes: usize) -> Result<(), BadField> {
        let room = self.engine.messages.request.fields.check_room(bytes);
        self.engine.forward.lacks_text |= room.is_err();
        room
    }

    /// Removes a header of the request. The gateway does not add it by itself either, unless a
    /// later plugin sets it.
    pub fn remove_header(&mut self, name: &(impl Named + ?Sized)) {
        self.engine.messages.note_edited(name.id(), name.text());
        self.engine.messages.request.fields.remove_checked(name.id(), name.text());
        self.engine.forward.without.insert(ForwardedHeaders::of(name.id()));
    }

    /// Removes request headers that a server may confuse with this one: names that differ only in
    /// case, `-` and `_`. Call it before setting a header whose value the plugin vouches for.
    pub fn remove_lookalikes(&mut self, name: &(impl Named + ?Sized)) {
        self.engine.messages.note_edited(name.id(), name.text());
        self.engine.messages.request.fields.remove_lookalikes(name.text());
    }

    /// Replaces the query, given without its `?`, for later plugins, and for the upstream unless a
    /// plugin has set its URI. An empty query removes it.
    pub fn set_query(&mut self, query: &[u8]) {
        let span = self.intern(query);
        let head = &mut self.engine.messages.request;
        head.has_query = span.len > 0;
        head.query_span = span;
    }

    /// The bytes read of a request line that was rejected: there is no head.
    #[inline]
    pub fn refused_line(&self) -> Option<&'s [u8]> {
        self.engine.refused
    }

    /// Stores text beside the request. The span is valid as long as the request:
    /// `x.request().fields.bytes(span)`. Beyond the limit of all texts it is empty, and the request is not forwarded.
    pub fn intern(&mut self, bytes: &[u8]) -> Span {
        let fields = &mut self.engine.messages.request.fields;
        if fields.check_room(bytes.len()).is_err() {
            self.engine.forward.lacks_text = true;
            return Span::default();
        }
        fields.intern(bytes)
    }

    /// The value of `X-Forwarded-Port`: the port in Host, else that of the listener.
    pub fn forwarded_port(&self) -> u16 {
        self.authority_port().unwrap_or(self.client().local.port())
    }

    /// The port in Host.
    pub fn authority_port(&self) -> Option<u16> {
        let (authority, host) = (self.request().authority(), self.request().host());
        let digits = authority.get(host.len()..).and_then(|rest| rest.strip_prefix(b":"))?;
        if !(1..=5).contains(&digits.len()) {
            return None;
        }
        let mut port = 0;
        for digit in digits {
            let digit = digit.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            port = port * 10 + u32::from(digit);
        }
        u16::try_from(port).ok()
    }

    // ---- a stream ----

    /// The stream, if this exchange is not a request.
    #[inline]
    pub fn stream(&self) -> Option<&Stream> {
        self.engine.stream.as_deref()
    }

    /// Sets the client identifier of an MQTT client: `$mqtt_client_id`. Ignored for requests.
    pub fn set_mqtt_client_id(&mut self, id: Option<Box<[u8]>>) {
        if let Some(stream) = &mut self.engine.stream {
            stream.mqtt_client_id = id;
        }
    }

    // ---- what other plugins do ----

    /// Makes the chains skip this plugin from here on: another one does its work on this exchange.
    pub fn skip_plugin(&mut self, name: &'static str) {
        if !self.skips(name) {
            self.skipped.push(name);
        }
    }

    /// Whether there are such plugins.
    #[inline]
    pub(crate) fn skips_plugins(&self) -> bool {
        !self.skipped.is_empty()
    }

    #[inline]
    pub(crate) fn skips(&self, name: &str) -> bool {
        self.skipped.contains(&name)
    }

    // ---- the consumer ----

    /// All consumers, for auth plugins.
    #[inline]
    pub fn consumers(&self) -> &'s Consumers {
        self.engine.consumers
    }

    /// The authenticated consumer and its credential.
    #[inline]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    #[inline]
    pub fn consumer(&self) -> Option<&Consumer> {
        self.identity.as_ref().map(|identity| &*identity.consumer)
    }

    /// Sets the identity of the request, and the identity headers for the upstream (APISIX 3.x:
    /// `X-Consumer-Username`, `X-Credential-Identifier`, `X-Consumer-Custom-ID`). The consumer must be
    /// one of [`Exchange::consumers`]: metrics find its label by its address.
    pub fn authenticate(&mut self, identity: Identity) {
        use wire::Name;
        let fields = &mut self.engine.messages.request.fields;
        // A client may have sent some.
        for forged in [Name::XConsumerUsername, Name::XCredentialIdentifier, Name::XConsumerCustomId] {
            fields.remove_id(forged);
        }
        let mut append = |name, value: &str| {
            // A value that is not valid in a header is omitted.
            let _ = fields.append_id(name, value.as_bytes());
        };
        append(Name::XConsumerUsername, &identity.consumer.name);
        if let Some(credential) = &identity.credential_id {
            append(Name::XCredentialIdentifier, credential);
        }
        if let Some(custom) = &identity.consumer.custom_id {
            append(Name::XConsumerCustomId, custom);
        }
        self.identity = Some(identity);
    }

    /// Logs an error of a plugin on this exchange. Further ones within the same second are dropped.
    #[cold]
    pub fn complain(&self, plugin: &'static str, reason: &'static str) {
        self.engine.world.complain(self, plugin, reason);
    }

    // ---- traces ----

    /// The span of this exchange, for variables such as `$opentelemetry_trace_id`.
    pub fn span(&self, of: Tracer) -> Option<&SpanContext> {
        self.spans[of as usize].as_ref()
    }

    /// Sets the span that the variables of this tracer show.
    pub fn set_span(&mut self, of: Tracer, span: SpanContext) {
        self.spans[of as usize] = Some(span);
    }

    // ---- notes ----

    /// The value of this type that a plugin noted in an earlier phase. One value per type.
    pub fn note<T: 'static>(&self) -> Option<&T> {
        self.engine.messages.notes.iter().find_map(|note| note.downcast_ref())
    }

    pub fn note_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.engine.messages.notes.iter_mut().find_map(|note| note.downcast_mut())
    }

    /// Notes a value for later phases. Allocates, so it is for plugins whose work outweighs that.
    pub fn set_note<T: 'static>(&mut self, value: T) {
        match self.note_mut::<T>() {
            Some(old) => *old = value,
            None => self.engine.messages.notes.push(Box::new(value)),
        }
    }

    /// The note of this type, which is made at first use.
    pub fn note_or_default<T: Default + 'static>(&mut self) -> &mut T {
        let notes = &mut self.engine.messages.notes;
        let known = notes.iter().position(|note| note.is::<T>());
        let at = known.unwrap_or(notes.len());
        if known.is_none() {
            notes.push(Box::new(T::default()));
        }
        match notes[at].downcast_mut() {
            Some(note) => note,
            None => unreachable!("the note was found by its type"),
        }
    }

    /// Keeps a value until the exchange ends, for any reason, and drops it then; if the exchange
    /// became a tunnel, when the tunnel ends.
    pub fn hold<T: 'static>(&mut self, value: T) {
        self.engine.messages.holds.push(Held::Value(Box::new(value)));
    }

    /// As [`Exchange::hold`], in memory that the exchange has already.
    #[inline]
    pub fn hold_permit(&mut self, permit: Permit) {
        self.engine.messages.holds.push(Held::Permit(permit));
    }

    pub fn take_note<T: 'static>(&mut self) -> Option<T> {
        let index = self.engine.messages.notes.iter().position(|note| note.is::<T>())?;
        self.engine.messages.notes.swap_remove(index).downcast().ok().map(|boxed| *boxed)
    }
}

#[cfg(test)]
mod tests;
