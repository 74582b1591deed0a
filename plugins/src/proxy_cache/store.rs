//! From the upstream's answer to a stored one.

use bytes::Bytes;
use cache::{Content, New, variant};
use sdk::exchange::Source;
use sdk::{Chunk, Exchange, Fields, Framing, Method};

use super::key::holds;
use super::rules::{self, CacheControl};
use super::{Pending, ProxyCache, Then};

/// An answer on its way to the client and into the cache.
pub(super) struct Gathering {
    pub(super) stage: usize,
    epoch: u64,
    new: New,
    body: Vec<u8>,
    /// The length it said it has.
    announced: Option<u64>,
}

impl ProxyCache {
    /// The response head is there: whether what follows is gathered.
    pub(super) fn begin(&self, x: &mut Exchange<'_>, pending: Pending) -> Option<Gathering> {
        // The answer to HEAD is no whole answer, and what a stage says itself is not the upstream's.
        if !speaks_for_upstream(x) || x.method() == Method::Head {
            return None;
        }
        let Pending { stage, key, epoch, then } = pending;
        let class = match then {
            Then::Store { class } => class,
            Then::Purge if (200..400).contains(&x.status()) => {
                self.zone.purge(&key);
                return None;
            }
            Then::Purge | Then::Load { .. } => return None,
        };
        let ttl = self.storable(x)?;
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
        let fields = kept(&x.response().fields);
        let held = self.zone.hold(announced.unwrap_or(0).max(1 << 10))?;
        let mut values = Vec::new();
        variant(&vary, class, &x.request().fields, &mut values);
        let now = self.now_ms(x);
        let new = New {
            key,
            vary,
            variant: values.into(),
            stored_ms: now,
            expires_ms: now.saturating_add(ttl.saturating_mul(1000)),
            age: rules::age(&x.response().fields),
            content: Content { status: x.status(), fields, body: Bytes::new() },
            held,
        };
        let capacity = usize::try_from(announced.unwrap_or(0)).unwrap_or(0);
        Some(Gathering { stage, epoch, new, body: Vec::with_capacity(capacity), announced })
    }

    /// Seconds the answer may be given again; `None` if it must not be stored.
    fn storable(&self, x: &Exchange<'_>) -> Option<u64> {
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
        let set_cookie = x.response_header("Set-Cookie").is_some();
        if set_cookie && (self.on_disk() || !config.cache_set_cookie) {
            return None;
        }
        let now = x.world().now_ms();
        let control = CacheControl::of(fields);
        let age = u64::from(rules::age(fields));
        let ttl = if let Some(disk) = self.zone.disk() {
            let accel = x.response().accel_expires.map(|span| fields.bytes(span));
            match accel.and_then(|value| rules::accel_expires(value, now)) {
                Some(seconds) => seconds,
                None if control.forbids_storing() => 0,
                None => match rules::lifetime(fields, &control, now) {
                    Some(seconds) => seconds.saturating_sub(age),
                    None => disk.ttl.as_secs(),
                },
            }
        } else if control.forbids_storing() {
            0
        } else if config.cache_control {
            rules::lifetime(fields, &control, now).map_or(0, |seconds| seconds.saturating_sub(age))
        } else {
            config.cache_ttl
        };
        (ttl > 0).then_some(ttl)
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
            && let Some(Gathering { epoch, mut new, mut body, announced, .. }) = x.take_note()
            && announced.is_none_or(|announced| announced == length)
        {
            body.shrink_to_fit();
            new.content.body = body.into();
            self.zone.store(new, epoch);
        }
    }
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
fn kept(fields: &Fields) -> Fields {
    let mut kept = Fields::new();
    for (name, value, _) in fields.iter().filter(|(name, _, _)| !rules::is_of_the_message(name)) {
        // It was a field before, so it can be one again.
        let _ = kept.append(name, value);
    }
    kept
}
