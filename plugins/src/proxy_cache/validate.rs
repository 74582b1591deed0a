//! Stored responses that are validated, and stale ones in the place of errors (RFC 9111 section 4.3,
//! RFC 5861).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cache::{Content, Entry};
use sdk::exchange::Source;
use sdk::world::{Fetch, FetchTimeouts, Keep, Target};
use sdk::{Exchange, Fields, Method, Reply};

use super::answer::in_place;
use super::rules;
use super::store::{Gathering, kept};
use super::{Asked, Pending, ProxyCache, Then};

/// The use of the upstream's response.
#[expect(
    clippy::large_enum_variant,
    reason = "returned and taken apart at once; a box would be an allocation"
)]
pub(super) enum Received {
    /// A stored response takes its place.
    Stored(Reply),
    /// It is sent, and gathered if it may be stored.
    New(Option<Gathering>),
}

/// Request fields that are about one stored response of the client's, or a part of it.
const CONDITIONS: [&str; 6] =
    ["If-None-Match", "If-Modified-Since", "If-Match", "If-Unmodified-Since", "If-Range", "Range"];

/// Timeout of a revalidation in the background.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a request conditional on the validators of a stored response. Returns the client's own
/// conditions, which are removed. `None` without validators, or if the client has preconditions of its
/// own, which only the origin can judge.
pub(super) fn make_conditional(x: &mut Exchange<'_>, entry: &Entry) -> Option<Box<Fields>> {
    let stored = &entry.content()?.fields;
    let request = &x.request().fields;
    let has_precondition =
        ["if-match", "if-unmodified-since"].iter().any(|name| request.get_named(name.as_bytes()).is_some());
    if has_precondition || !rules::has_validator(stored) || x.method() == Method::Post {
        return None;
    }
    let mut own = Box::new(Fields::new());
    for name in CONDITIONS {
        for value in x.request().fields.all(name.as_bytes()) {
            // It was a field before.
            let _ = own.append(name.as_bytes(), value);
        }
    }
    for name in CONDITIONS {
        x.remove_header(name);
    }
    for (name, validator) in [("If-None-Match", &b"etag"[..]), ("If-Modified-Since", b"last-modified")] {
        if let Some(value) = stored.get_named(validator) {
            let _ = x.set_header(name, value);
        }
    }
    Some(own)
}

impl ProxyCache {
    /// The head of a response to a request that this instance passed on.
    pub(super) fn received(&self, x: &mut Exchange<'_>, pending: Pending) -> Received {
        if let Pending { then: Then::Store(Asked { old: Some(old), own, .. }), .. } = &pending {
            if x.status() == 304 && x.source() == Source::Upstream && own.is_some() {
                return self.not_modified(x, pending);
            }
            if let Some(reply) = self.stale_for_error(x, old, own.as_deref()) {
                return Received::Stored(reply);
            }
        }
        Received::New(self.begin(x, pending))
    }

    /// The gateway's own answer in the place of a response that broke off before any of it was sent.
    pub(super) fn in_place_of(&self, x: &Exchange<'_>, failed: Gathering) -> Option<Reply> {
        self.stale_for_error(x, failed.old.as_deref()?, failed.own.as_deref())
    }

    /// The stored response, if the origin failed and it may be used then.
    fn stale_for_error(&self, x: &Exchange<'_>, old: &Entry, own: Option<&Fields>) -> Option<Reply> {
        let failed =
            matches!(x.status(), 500 | 502..=504) && matches!(x.source(), Source::Upstream | Source::Gateway);
        let now = self.now_ms(x);
        if !failed || old.terms.no_stale || !old.is_within(old.terms.if_error, now) {
            return None;
        }
        Some(in_place(x, own, old.content()?, old.age_at(now), "STALE"))
    }

    /// The origin confirmed the stored response: it is freshened and sent.
    fn not_modified(&self, x: &Exchange<'_>, pending: Pending) -> Received {
        let Pending { key, epoch, then, .. } = pending;
        let Then::Store(Asked { class, at_ms, old: Some(old), own, leader: _leader }) = then else {
            return Received::New(None);
        };
        let Some(stored) = old.content() else { return Received::New(None) };
        let fresh = &x.response().fields;
        let (now, own) = (self.now_ms(x), own.as_deref());
        // A 304 for another representation confirms nothing (RFC 9111 section 4.3.4). The client gets the
        // response that was valid so far, and later requests do not.
        let other = fresh
            .get_named(b"etag")
            .is_some_and(|tag| rules::is_other_tag(tag, stored.fields.get_named(b"etag")));
        let fields = merged(&stored.fields, fresh, self.config.cache_set_cookie);
        let content = Content { status: stored.status, fields, body: stored.body.clone() };
        let life = self.life_of(x, content.status, &content.fields, at_ms);
        let (Some(life), Some(vary), false) = (life, rules::vary(&content.fields), other) else {
            self.zone.remove(&old);
            return Received::Stored(in_place(x, own, stored, old.age_at(now), "REVALIDATED"));
        };
        let reply = in_place(x, own, &content, u64::from(life.age), "REVALIDATED");
        if let Some(held) = self.zone.hold(0) {
            self.zone.store(self.entry(x, (key, class), vary, life, content, held), epoch);
        }
        Received::Stored(reply)
    }

    /// Sends the request again through the gateway, in the background, with `no-cache`: this instance then
    /// validates the entry and stores the result.
    #[cold]
    pub(super) fn refresh(&self, x: &Exchange<'_>) {
        let head = x.request();
        let mut fields = Fields::new();
        for (name, value, _) in head.fields.iter() {
            let dropped = CONDITIONS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
                || name.eq_ignore_ascii_case(b"cache-control");
            if !dropped {
                let _ = fields.append(name, value);
            }
        }
        let _ = fields.append(b"Cache-Control", b"no-cache");
        x.count_hop(&mut fields);
        let mut uri = head.encoded_path().to_vec();
        if head.has_query {
            uri.push(b'?');
            uri.extend_from_slice(head.query());
        }
        let fetch = Fetch {
            target: Target {
                authority: String::from_utf8_lossy(head.authority()).into_owned(),
                addresses: [].into(),
                tls: false,
            },
            method: Method::Get,
            method_name: Vec::new(),
            uri,
            fields,
            body: Bytes::new(),
            verify: false,
            timeouts: FetchTimeouts {
                connect: REFRESH_TIMEOUT,
                send: REFRESH_TIMEOUT,
                read: REFRESH_TIMEOUT,
            },
            max_body: usize::try_from(self.config.max_resp_body_size).unwrap_or(usize::MAX),
            repeatable: false,
            http2: false,
            keep: Keep { connections: 0, idle: Duration::ZERO },
            tunnel: None,
        };
        let exchange = x.world().dispatch(x.client(), fetch);
        // With too many tasks it is tried again after a while.
        let _ = x.world().run(Box::pin(async move { drop(exchange.await) }));
    }

    /// A complete response to HEAD says whether the stored response to GET is still the current one
    /// (RFC 9111 section 4.3.5).
    pub(super) fn compare_head(&self, x: &Exchange<'_>, old: &Arc<Entry>) {
        let Some(stored) = old.content() else { return };
        let new = &x.response().fields;
        let differs = |name: &[u8]| new.get_named(name) != stored.fields.get_named(name);
        let length =
            new.get_named(b"content-length").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let is_other = x.status() == 200
            && (differs(b"etag")
                || differs(b"last-modified")
                || length.is_some_and(|it: usize| it != stored.body.len()));
        if is_other {
            self.zone.remove(old);
        }
    }
}

/// The fields of a stored response after a 304 (RFC 9111 section 3.2). Fields that describe the stored
/// body stay as they are.
fn merged(stored: &Fields, fresh: &Fields, with_cookies: bool) -> Fields {
    let updates = |name: &[u8]| {
        let of_body = [&b"content-encoding"[..], b"content-range", b"content-length"];
        !of_body.iter().any(|known| name.eq_ignore_ascii_case(known))
            && (with_cookies || !name.eq_ignore_ascii_case(b"set-cookie"))
    };
    let fresh = kept(fresh);
    let mut all = Fields::new();
    for (name, value, _) in stored.iter() {
        if !updates(name) || fresh.get_named(name).is_none() {
            let _ = all.append(name, value);
        }
    }
    for (name, value, _) in fresh.iter().filter(|(name, _, _)| updates(name)) {
        let _ = all.append(name, value);
    }
    all
}
