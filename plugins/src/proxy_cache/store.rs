//! From the upstream's answer to a stored one.

use std::sync::Arc;

use bytes::Bytes;
use cache::{Content, Entry, Leader, New, Terms, TransferShare, variant};
use sdk::exchange::Source;
use sdk::{Chunk, Exchange, Fields, Framing, Method};

use super::directives::{CacheControl, named_fields};
use super::key::holds;
use super::life::{Life, Received};
use super::rules;
use super::{Asked, POST, Pending, ProxyCache, Then};

/// An answer on its way to the client and into the cache.
pub(super) struct Gathering {
    pub(super) stage: usize,
    /// The stored response that it replaces.
    pub(super) old: Option<Arc<Entry>>,
    /// The client's conditions and range, where those of the cache were sent instead.
    pub(super) own: Option<Box<Fields>>,
    /// Others wait until this is stored.
    leader: Option<Leader>,
    epoch: u64,
    new: New,
    body: Vec<u8>,
    /// The length it said it has.
    announced: Option<u64>,
}

/// The most fields that `no-cache` and `private` may name; with more, a response is not stored.
const MAX_NAMED: usize = 64;

impl ProxyCache {
    /// The response head is there: whether what follows is gathered.
    pub(super) fn begin(&self, x: &mut Exchange<'_>, pending: Pending) -> Option<Gathering> {
        // A plugin's own answer is not the upstream's.
        if !speaks_for_upstream(x) {
            return None;
        }
        let Pending { stage, key, mut epoch, then } = pending;
        let succeeded = (200..400).contains(&x.status());
        let Asked { class, at_ms, old, own, leader } = match then {
            Then::Store(asked) => asked,
            Then::Purge if succeeded => {
                self.zone.purge(&key);
                return None;
            }
            Then::Purge | Then::Load { .. } => return None,
        };
        // The answer to HEAD is no whole answer.
        if x.method() == Method::Head {
            old.iter().for_each(|old| self.compare_head(x, old));
            return None;
        }
        // It changes things, even if its answer may be stored.
        if class == POST && self.by_rfc() && succeeded {
            self.zone.purge(&key);
            epoch = self.zone.epoch(&key);
        }
        let Some((new, announced)) = self.new_entry(x, key, class, at_ms) else {
            // The origin has another response now, which is not for the cache. A fresh one that was not
            // compared with it stays.
            let is_outdated = |old: &Arc<Entry>| own.is_some() || !old.is_fresh(self.now_ms(x));
            if let Some(old) = old.filter(|old| replaces(x.status()) && is_outdated(old)) {
                self.zone.remove(&old);
            }
            return None;
        };
        // No body follows, so no filter sees its end.
        if matches!(x.status(), 204 | 205) {
            self.zone.store(new, epoch);
            return None;
        }
        let capacity = usize::try_from(announced.unwrap_or(0)).unwrap_or(0);
        Some(Gathering { stage, old, own, leader, epoch, new, body: Vec::with_capacity(capacity), announced })
    }

    /// An entry for the answer, still without its body, and the body's announced length. `None` if it is not
    /// stored.
    fn new_entry(
        &self,
        x: &Exchange<'_>,
        key: Box<[u8]>,
        class: u8,
        at_ms: u64,
    ) -> Option<(New, Option<u64>)> {
        let life = self.storable(x, at_ms)?;
        let vary = rules::vary(&x.response().fields)?;
        let announced = match x.response().framing {
            // Our own answer comes in one piece.
            _ if x.source() == Source::Gateway => None,
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
            // Where it ends only the connection's end would tell, and that an accident may bring about.
            Framing::UntilClose => return None,
        };
        if announced.is_some_and(|length| length > self.config.max_resp_body_size) {
            return None;
        }
        let held = self.zone.hold(announced.unwrap_or(0).max(1 << 10))?;
        let fields = kept(&x.response().fields);
        let content = Content { status: x.status(), fields, body: Bytes::new() };
        Some((self.entry(x, (key, class), vary, life, content, held), announced))
    }

    /// An entry for this content, without the fields that `no-cache` and `private` name.
    pub(super) fn entry(
        &self,
        x: &Exchange<'_>,
        (key, class): (Box<[u8]>, u8),
        vary: Vec<Box<[u8]>>,
        life: Life,
        mut content: Content,
        held: TransferShare,
    ) -> New {
        if self.by_rfc() {
            let names: Vec<_> = named_fields(&content.fields).map(<[u8]>::to_vec).collect();
            names.iter().for_each(|name| _ = content.fields.remove(name));
        }
        let mut values = Vec::new();
        variant(&vary, class, &x.request().fields, &mut values);
        let now = self.now_ms(x);
        New {
            key,
            vary,
            variant: values.into(),
            stored_ms: now,
            expires_ms: now.saturating_add(life.fresh.saturating_mul(1000)),
            age: life.age,
            terms: life.terms,
            content,
            held,
        }
    }

    /// How the answer may be used; `None` if it must not be stored.
    fn storable(&self, x: &Exchange<'_>, at_ms: u64) -> Option<Life> {
        let config = &self.config;
        let status = x.status();
        // Parts, and answers that are about another one.
        if !config.cache_http_status.contains(&status) || matches!(status, 206 | 304 | 416) {
            return None;
        }
        if holds(&self.no_cache, x) || x.request().upgrade {
            return None;
        }
        let fields = &x.response().fields;
        let set_cookie = fields.get_named(b"set-cookie").is_some();
        if set_cookie && (self.on_disk() || !config.cache_set_cookie) {
            // Unless the origin keeps it out of caches itself.
            let is_named = |name: &[u8]| name.eq_ignore_ascii_case(b"set-cookie");
            if !self.by_rfc() || !named_fields(fields).any(is_named) {
                return None;
            }
        }
        self.life_of(x, status, fields, at_ms)
    }

    /// How a response with this head may be used; `None` if it must not be stored.
    pub(super) fn life_of(&self, x: &Exchange<'_>, status: u16, fields: &Fields, at_ms: u64) -> Option<Life> {
        let now_ms = x.world().now_ms();
        if self.by_rfc() {
            if named_fields(fields).nth(MAX_NAMED).is_some() {
                return None;
            }
            let shares_authorized = !self.config.consumer_isolation && x.header("Authorization").is_some();
            let delay_ms = self.now_ms(x).saturating_sub(at_ms);
            return Received { status, fields, shares_authorized, now_ms, delay_ms }.life(&self.config.rfc);
        }
        let control = CacheControl::of(fields);
        let age = rules::age(fields);
        let fresh = if let Some(disk) = self.zone.disk() {
            let accel = x.response().accel_expires.map(|span| x.response().fields.bytes(span));
            match accel.and_then(|value| rules::accel_expires(value, now_ms)) {
                Some(seconds) => seconds,
                None if control.forbids_storing() => 0,
                None => match rules::lifetime(fields, &control, now_ms) {
                    Some(seconds) => seconds.saturating_sub(u64::from(age)),
                    None => disk.ttl.as_secs(),
                },
            }
        } else if control.forbids_storing() {
            0
        } else {
            self.config.cache_ttl
        };
        (fresh > 0).then_some(Life { fresh, age, terms: Terms::default() })
    }

    /// One piece of the body, on its way to the client.
    pub(super) fn gather(&self, x: &mut Exchange<'_>, chunk: &Chunk) {
        let Some(gathering) = x.note_mut::<Gathering>().filter(|gathering| gathering.stage == self.id())
        else {
            return;
        };
        let length = gathering.body.len() as u64 + chunk.data.len() as u64;
        let held = &mut gathering.new.held;
        let fits = length <= self.config.max_resp_body_size
            && (length <= held.bytes() || held.grow(length - held.bytes()));
        if !fits {
            x.take_note::<Gathering>();
            return;
        }
        gathering.body.extend_from_slice(&chunk.data);
        if chunk.last
            && let Some(Gathering { epoch, mut new, mut body, announced, leader, .. }) = x.take_note()
            && announced.is_none_or(|announced| announced == length)
        {
            body.shrink_to_fit();
            new.content.body = body.into();
            self.zone.store(new, epoch);
            drop(leader);
        }
    }
}

/// Whether a response that is not stored still shows that the stored one is outdated. Errors of the request
/// or the server and parts do not.
fn replaces(status: u16) -> bool {
    matches!(status, 200..=399 | 404 | 410) && !matches!(status, 206 | 304)
}

/// Whether the response is the upstream's, or says in its place that it gave none.
fn speaks_for_upstream(x: &Exchange<'_>) -> bool {
    match x.source() {
        Source::Upstream => true,
        Source::Gateway => matches!(x.status(), 502 | 504),
        Source::None | Source::Plugin => false,
    }
}

/// The fields that are stored with an answer.
pub(super) fn kept(fields: &Fields) -> Fields {
    let mut kept = Fields::new();
    for (name, value, _) in fields.iter().filter(|(name, _, _)| !rules::is_of_the_message(name)) {
        // It was a field before, so it can be one again.
        let _ = kept.append(name, value);
    }
    kept
}
