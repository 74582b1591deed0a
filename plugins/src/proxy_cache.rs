//! proxy-cache: caches answers of the upstream, in memory or on disk.
//!
//! Settings, statuses and messages as in APISIX 3.18. Stricter where a shared cache could
//! give one client's answer to another or half an answer to anyone: only what the upstream
//! itself sent whole, with a known end, is stored, and the gateway's own 502 and 504 in its
//! place where `cache_http_status` names them; where `cache_key` names the host or the URI,
//! these are part of the key as the upstream gets them, too; a request's `Authorization` is
//! part of the key like the consumer and like what forward-auth lets its server say of the client
//! (unless `consumer_isolation` is off); GET with a body is
//! never answered from the cache; POST has entries of its own. HEAD is answered from what GET
//! stored, and a Range with that part of it. No answer is stored that varies on headers which the
//! gateway adds about the client: `X-Real-IP` and `X-Forwarded-*`.
//!
//! With `cache_control: true` a zone in memory is a shared cache by RFC 9111, where APISIX only reads
//! lifetimes and some directives: stale answers are validated with `ETag` and `Last-Modified`
//! (`Apisix-Cache-Status: REVALIDATED`), ages count from `Date` and `Age`, fields that `no-cache` or
//! `private` name are not stored, and a success of an unsafe method, POST included, ends what is stored.
//! RFC 5861 holds as well: a stale answer is used while one request revalidates it in the background
//! (`UPDATING`, `stale-while-revalidate`), and in the place of 500, 502, 503 and 504 (`STALE`,
//! `stale-if-error`). A client gets one with `max-stale` (`STALE`), too; none of this where the origin
//! forbids it by `must-revalidate`, `proxy-revalidate`, `s-maxage` or `no-cache`. The background request
//! passes the plugins of the route again, as the client's request with `Cache-Control: no-cache`.
//!
//! With `collapse_timeout`, requests for the same key that miss wait for the first one's answer, at
//! most that long, and are sent themselves if it was not stored.
//!
//! `PURGE` removes the answers of its URI, for any `cache_method`. It is accepted from the
//! addresses in `plugin_attr.proxy-cache.purge_allow` (default: loopback only; an empty list
//! means none); other clients get 403.
//!
//! As in APISIX, a zone in memory answers in the access phase, in the place of plugins of a
//! lower priority; one on disk answers after all of them, so that limits count its hits.

mod answer;
mod collapse;
mod date;
mod directives;
mod key;
mod life;
mod purge;
pub(crate) mod range;
pub(crate) mod rules;
mod settings;
mod store;
#[cfg(test)]
mod tests;
mod validate;

use std::sync::Arc;

use cache::{Caches, Entry, Flight, Leader, Zone};
use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::exchange::Body;
use sdk::state::WorkerState;
use sdk::{Build, Chunk, Exchange, Fields, Method, Plugin, Reply, Step};
use serde_json::Value;

use directives::CacheControl;
use key::{Key, Part, holds};
use purge::MayPurge;
use settings::{Config, Rfc, Strategy};
use store::Gathering;
use validate::Received;

/// The stage.
pub struct ProxyCache {
    zone: Arc<Zone>,
    key: Key,
    bypass: Vec<Part>,
    no_cache: Vec<Part>,
    needs_body: bool,
    may_purge: MayPurge,
    config: Config,
    /// The key of the request at hand, and the values its answers vary on.
    scratch: WorkerState<(Vec<u8>, Vec<u8>)>,
}

/// Why an exchange still concerns this stage after the access phase. Names the stage: it
/// may be on a global rule and on the route.
struct Pending {
    stage: usize,
    key: Box<[u8]>,
    epoch: u64,
    then: Then,
}

enum Then {
    /// The answer may be stored.
    Store(Asked),
    /// A method that changes things: what is stored under the key ends with its success.
    Purge,
    /// An answer on disk that is still to be read.
    Load { entry: Arc<Entry>, class: u8 },
}

/// A request that was forwarded.
struct Asked {
    class: u8,
    /// On the clock of [`ProxyCache::now_ms`].
    at_ms: u64,
    /// The stored response that does not suffice.
    old: Option<Arc<Entry>>,
    /// The client's conditions and range, where those of the cache are sent instead.
    own: Option<Box<Fields>>,
    /// Requests with the same key wait for this one.
    leader: Option<Leader>,
}

/// How a request is answered.
enum Use {
    /// The stored response is the answer, under this status.
    Stored(&'static str),
    /// The same, and it is revalidated in the background.
    Refreshed,
    /// The upstream answers.
    Upstream(&'static str),
}

/// GET and HEAD share answers.
const GET: u8 = 0;
const POST: u8 = 1;

/// A body that a variable in the key or a condition wants to see may be at most so long.
const KEY_BODY: usize = 1 << 20;

/// A background revalidation that has not replaced its entry after this time may be repeated.
const REFRESH_MS: u64 = 10_000;

const STATUS: &str = "Apisix-Cache-Status";

impl Plugin for ProxyCache {
    const NAME: &'static str = "proxy-cache";
    const PRIORITY: i32 = 1085;
    const VERSION: &'static str = "0.2";
    const PHASES: Phases =
        Phases::ACCESS.with(Phases::BEFORE_PROXY).with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        settings::schema()
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ProxyCache, Invalid> {
        if let Some(at) = config.cache_key.iter().position(|part| part == "$request_method") {
            return Err(Invalid::new("cache_key variable $request_method unsupported")
                .at(format!("/cache_key/{at}"))
                .hint("list the methods in cache_method; POST never shares an answer with GET"));
        }
        let zone = settings::zone(&config, &cx.service::<Caches>().unwrap_or_default())
            .map_err(|error| error.at("/cache_zone"))?;
        zone.open().map_err(|error| error.at("/cache_zone"))?;
        let [bypass, no_cache] = [&config.cache_bypass, &config.no_cache].map(|list| key::parts(list));
        let key = Key::new(&config.cache_key, config.consumer_isolation);
        let needs_body = key.needs_body() || bypass.iter().chain(&no_cache).any(Part::needs_body);
        let may_purge = MayPurge::from_attr(cx.attr);
        let scratch = cx.shared_worker_state("scratch");
        Ok(ProxyCache { zone, key, bypass, no_cache, needs_body, may_purge, config, scratch })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        if x.method() == Method::Purge {
            return if self.may_purge.is_heard(x.client().ip()) {
                self.with_key(x)
            } else {
                Step::Reply(self.may_purge.refusal())
            };
        }
        if self.on_disk() { Step::Next } else { self.with_key(x) }
    }

    fn before_proxy(&self, x: &mut Exchange<'_>) -> Step {
        if self.on_disk() { self.with_key(x) } else { Step::Next }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        if self.wait_for_other(x).await {
            return self.with_key(x);
        }
        let Some(Pending { stage, key, epoch, then: Then::Load { entry, class } }) = x.take_note() else {
            return Step::Next;
        };
        match self.zone.load(entry.clone()).await {
            Some(content) => Step::Reply(self.answer(x, &entry, &content, "HIT")),
            None => {
                let asked = Asked { class, at_ms: self.now_ms(x), old: None, own: None, leader: None };
                x.set_note(Pending { stage, key, epoch, then: Then::Store(asked) });
                pass(x, "MISS")
            }
        }
    }

    fn header_action(&self, x: &mut Exchange<'_>) -> Step {
        // Of an answer that failed, when this is the gateway's own in its place.
        if x.note::<Gathering>().is_some_and(|gathering| gathering.stage == self.id())
            && let Some(reply) = x.take_note().and_then(|gathering| self.in_place_of(x, gathering))
        {
            return Step::Reply(reply);
        }
        let mut gathering = None;
        if x.note::<Pending>().is_some_and(|pending| pending.stage == self.id())
            && let Some(pending) = x.take_note()
        {
            match self.received(x, pending) {
                Received::Stored(reply) => return Step::Reply(reply),
                Received::New(new) => gathering = new,
            }
        }
        if self.config.hide_cache_headers {
            x.remove_response_header("Cache-Control");
            x.remove_response_header("Expires");
        }
        if let Some(gathering) = gathering {
            x.set_note(gathering);
        }
        Step::Next
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        x.note::<Gathering>().is_some_and(|gathering| gathering.stage == self.id())
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        self.gather(x, chunk);
    }
}

impl Pending {
    fn is_conditional(&self) -> bool {
        matches!(&self.then, Then::Store(asked) if asked.own.is_some())
    }
}

impl ProxyCache {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn on_disk(&self) -> bool {
        self.config.cache_strategy == Strategy::Disk
    }

    /// Whether the rules of RFC 9111 hold, for requests and responses.
    fn by_rfc(&self) -> bool {
        self.config.cache_control && !self.on_disk()
    }

    /// Returns the clock for the ages of answers. Memory ends with the process, and no step of the
    /// wall clock changes its ages; files are read by later processes too.
    fn now_ms(&self, x: &Exchange<'_>) -> u64 {
        if self.on_disk() { x.world().now_ms() } else { x.world().steady_ms() }
    }

    /// Makes the request's key and asks for its answer.
    fn with_key(&self, x: &mut Exchange<'_>) -> Step {
        if self.needs_body {
            match x.body_state() {
                Body::Streaming => return Step::Body(KEY_BODY),
                // Without its body the request has no key.
                Body::TooLarge => return pass(x, "BYPASS"),
                Body::None | Body::Whole => {}
            }
        }
        self.scratch.with(x.world(), |(key, scratch)| {
            self.key.write(x, key);
            self.ask(x, key, scratch)
        })
    }

    /// Looks the request up by its key.
    fn ask(&self, x: &mut Exchange<'_>, key: &[u8], scratch: &mut Vec<u8>) -> Step {
        if x.method() == Method::Purge {
            return Step::Reply(Reply::status(if self.zone.purge(key) { 200 } else { 404 }));
        }
        let Some(class) = self.class(x) else { return self.other_method(x, key) };
        let with_body = class == GET && x.body_state() != Body::None;
        if with_body || x.request().upgrade {
            return pass(x, "BYPASS");
        }
        let bypassed = holds(&self.bypass, x);
        if bypassed && !self.on_disk() {
            return pass(x, "BYPASS");
        }
        let control =
            if self.by_rfc() { CacheControl::of(&x.request().fields) } else { CacheControl::default() };
        // Another instance has made the request conditional and waits for the response to that.
        let taken = x.note::<Pending>().is_some_and(|it| it.stage != self.id() && it.is_conditional());
        if control.no_store || taken {
            return pass(x, "BYPASS");
        }
        let found = self.zone.find(key, class, &x.request().fields, scratch);
        let now = self.now_ms(x);
        let found_use = match &found.entry {
            _ if bypassed || control.no_cache => Use::Upstream("BYPASS"),
            None => Use::Upstream("MISS"),
            Some(entry) => self.use_of(entry, &control, now),
        };
        let status = match (found_use, &found.entry) {
            (Use::Upstream(status), _) => status,
            (Use::Stored(status), Some(entry)) => match entry.content() {
                Some(content) => return Step::Reply(self.answer(x, entry, content, status)),
                None => {
                    let then = Then::Load { entry: entry.clone(), class };
                    x.set_note(Pending { stage: self.id(), key: key.into(), epoch: found.epoch, then });
                    return Step::Wait;
                }
            },
            (Use::Refreshed, Some(entry)) => {
                if entry.begin_refresh(now, REFRESH_MS) {
                    self.refresh(x);
                }
                // Entries with such a window are in memory.
                let Some(content) = entry.content() else { return Step::Next };
                return Step::Reply(self.answer(x, entry, content, "UPDATING"));
            }
            (Use::Stored(_) | Use::Refreshed, None) => "MISS",
        };
        if control.only_if_cached {
            pass(x, status);
            return Step::Reply(Reply::status(504).because("only-if-cached: no stored response"));
        }
        let leader = match self.join(x, key, class, status) {
            Flight::Waits(landing) => return self.begin_wait(x, landing),
            Flight::Leads(leader) => Some(leader),
            Flight::Alone => None,
        };
        let old = found.entry.filter(|_| self.by_rfc());
        let own = old.as_ref().and_then(|entry| validate::make_conditional(x, entry));
        let then = Then::Store(Asked { class, at_ms: now, old, own, leader });
        x.set_note(Pending { stage: self.id(), key: key.into(), epoch: found.epoch, then });
        pass(x, status)
    }

    /// How a stored response is used for a request with these directives.
    fn use_of(&self, entry: &Entry, control: &CacheControl, now_ms: u64) -> Use {
        let suits = suits(control, entry, now_ms);
        if entry.is_fresh(now_ms) && !entry.terms.validate {
            return if suits { Use::Stored("HIT") } else { Use::Upstream("STALE") };
        }
        if entry.terms.no_stale || entry.terms.validate || !suits || control.min_fresh.is_some() {
            return Use::Upstream("EXPIRED");
        }
        let within = |seconds| entry.is_within(seconds, now_ms);
        if control.max_stale.is_some_and(|seconds| within(seconds as u32)) {
            Use::Stored("STALE")
        } else if within(entry.terms.while_revalidate) {
            Use::Refreshed
        } else {
            Use::Upstream("EXPIRED")
        }
    }

    /// Which answers the request may be given; `None` if its method is not to be cached.
    fn class(&self, x: &Exchange<'_>) -> Option<u8> {
        let (name, class) = match x.method() {
            Method::Get => ("GET", GET),
            Method::Head => ("HEAD", GET),
            Method::Post => ("POST", POST),
            _ => return None,
        };
        self.config.cache_method.iter().any(|method| method == name).then_some(class)
    }

    fn other_method(&self, x: &mut Exchange<'_>, key: &[u8]) -> Step {
        let safe = matches!(x.method(), Method::Get | Method::Head | Method::Options | Method::Trace);
        if self.by_rfc() && !safe {
            x.set_note(Pending { stage: self.id(), key: key.into(), epoch: 0, then: Then::Purge });
        }
        match (self.on_disk(), x.method()) {
            (false, _) => pass(x, "MISS"),
            (true, Method::Get | Method::Head | Method::Post) => pass(x, "BYPASS"),
            // nginx's cache knows no other methods, and says nothing of itself.
            (true, _) => Step::Next,
        }
    }
}

/// The request goes on to the upstream.
fn pass(x: &mut Exchange<'_>, status: &str) -> Step {
    // Name and value are ours and valid.
    let _ = x.set_response_header(STATUS, status.as_bytes());
    Step::Next
}

/// Whether a fresh answer is what the client asks for (RFC 9111 section 5.2.1).
fn suits(control: &CacheControl, entry: &Entry, now_ms: u64) -> bool {
    let left = entry.expires_ms.saturating_sub(now_ms) / 1000;
    control.max_age.is_none_or(|max| entry.age_at(now_ms) <= max)
        && control.min_fresh.is_none_or(|min| left >= min)
}
