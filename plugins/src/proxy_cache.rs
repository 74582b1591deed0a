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
//! stored, and a Range with that part of it. A stale answer is never given, so `max-stale`
//! changes nothing. Nor is one stored that varies on what the gateway tells of the client:
//! `X-Real-IP` and `X-Forwarded-*`.
//!
//! `PURGE` removes the answers of its URI, for any `cache_method`. It is accepted from the
//! addresses in `plugin_attr.proxy-cache.purge_allow` (default: loopback only; an empty list
//! means none); other clients get 403.
//!
//! As in APISIX, a zone in memory answers in the access phase, in the place of plugins of a
//! lower priority; one on disk answers after all of them, so that limits count its hits.

mod key;
mod purge;
pub(crate) mod range;
pub(crate) mod rules;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use cache::{Caches, Content, Entry, Zone};
use model::Invalid;
use model::invalid::nearest;
use sdk::chain::{Phase, Phases};
use sdk::exchange::Body;
use sdk::state::WorkerState;
use sdk::{Build, Chunk, Exchange, Method, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use key::{Key, Part, holds};
use purge::MayPurge;
use range::Wanted;
use rules::CacheControl;
use store::Gathering;

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

#[derive(Debug, Deserialize)]
pub struct Config {
    max_resp_body_size: u64,
    cache_zone: String,
    cache_strategy: Strategy,
    cache_key: Vec<String>,
    cache_http_status: Vec<u16>,
    cache_method: Vec<String>,
    hide_cache_headers: bool,
    cache_control: bool,
    #[serde(default)]
    cache_bypass: Vec<String>,
    #[serde(default)]
    no_cache: Vec<String>,
    cache_ttl: u64,
    consumer_isolation: bool,
    cache_set_cookie: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Strategy {
    Disk,
    Memory,
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
    Store { class: u8 },
    /// A method that changes things: what is stored under the key ends with its success.
    Purge,
    /// An answer on disk that is still to be read.
    Load { entry: Arc<Entry>, class: u8 },
}

/// GET and HEAD share answers.
const GET: u8 = 0;
const POST: u8 = 1;

/// A body that a variable in the key or a condition wants to see may be at most so long.
const KEY_BODY: usize = 1 << 20;

const STATUS: &str = "Apisix-Cache-Status";

impl Plugin for ProxyCache {
    const NAME: &'static str = "proxy-cache";
    const PRIORITY: i32 = 1085;
    const VERSION: &'static str = "0.2";
    const PHASES: Phases =
        Phases::ACCESS.with(Phases::BEFORE_PROXY).with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let part = "(^[^\\$].+$|^\\$[0-9a-zA-Z_]+$)";
        json!({
            "type": "object",
            "properties": {
                "max_resp_body_size": {
                    "type": "integer", "minimum": 1, "default": 67_108_864,
                    "description": "maximum response body size in bytes buffered into memory by the memory cache strategy; larger responses are streamed through without being cached",
                },
                "cache_zone": {"type": "string", "minLength": 1, "maxLength": 100, "default": "disk_cache_one"},
                "cache_strategy": {"type": "string", "enum": ["disk", "memory"], "default": "disk"},
                "cache_key": {
                    "type": "array", "minItems": 1,
                    "items": {"description": "a key for caching", "type": "string", "pattern": part},
                    "default": ["$host", "$request_uri"],
                },
                "cache_http_status": {
                    "type": "array", "minItems": 1,
                    "items": {"description": "http response status", "type": "integer", "minimum": 200, "maximum": 599},
                    "uniqueItems": true, "default": [200, 301, 404],
                },
                "cache_method": {
                    "type": "array", "minItems": 1,
                    "items": {"description": "supported http method", "type": "string", "enum": ["GET", "POST", "HEAD"]},
                    "uniqueItems": true, "default": ["GET", "HEAD"],
                },
                "hide_cache_headers": {"type": "boolean", "default": false},
                "cache_control": {"type": "boolean", "default": false},
                "cache_bypass": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": part}},
                "no_cache": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": part}},
                "cache_ttl": {"type": "integer", "minimum": 1, "default": 300},
                "consumer_isolation": {"type": "boolean", "default": true},
                "cache_set_cookie": {"type": "boolean", "default": false},
            },
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ProxyCache, Invalid> {
        if let Some(at) = config.cache_key.iter().position(|part| part == "$request_method") {
            return Err(Invalid::new("cache_key variable $request_method unsupported")
                .at(format!("/cache_key/{at}"))
                .hint("list the methods in cache_method; POST never shares an answer with GET"));
        }
        let zone = zone(&config, &cx.service::<Caches>().unwrap_or_default())
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
        let Some(Pending { stage, key, epoch, then: Then::Load { entry, class } }) = x.take_note() else {
            return Step::Next;
        };
        match self.zone.load(entry.clone()).await {
            Some(content) => self.answer(x, &entry, &content),
            None => {
                x.set_note(Pending { stage, key, epoch, then: Then::Store { class } });
                pass(x, "MISS")
            }
        }
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        // Of an answer that failed, when this is the gateway's own in its place.
        if x.note::<Gathering>().is_some_and(|gathering| gathering.stage == self.id()) {
            x.take_note::<Gathering>();
        }
        let gathering = match x.note::<Pending>() {
            Some(pending) if pending.stage == self.id() => {
                x.take_note().and_then(|pending| self.begin(x, pending))
            }
            _ => None,
        };
        if self.config.hide_cache_headers {
            x.remove_response_header("Cache-Control");
            x.remove_response_header("Expires");
        }
        if let Some(gathering) = gathering {
            x.set_note(gathering);
        }
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        x.note::<Gathering>().is_some_and(|gathering| gathering.stage == self.id())
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        self.gather(x, chunk);
    }
}

impl ProxyCache {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn on_disk(&self) -> bool {
        self.config.cache_strategy == Strategy::Disk
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
        let control = if self.config.cache_control && !self.on_disk() {
            CacheControl::of(&x.request().fields)
        } else {
            CacheControl::default()
        };
        if control.no_store || control.no_cache {
            return pass(x, "BYPASS");
        }
        let found = self.zone.find(key, class, &x.request().fields, scratch);
        let now = self.now_ms(x);
        let status = match &found.entry {
            _ if bypassed => "BYPASS",
            None => "MISS",
            Some(entry) if !entry.is_fresh(now) => "EXPIRED",
            Some(entry) if !suits(&control, entry, now) => "STALE",
            Some(entry) => match entry.content() {
                Some(content) => return self.answer(x, entry, content),
                None => {
                    let then = Then::Load { entry: entry.clone(), class };
                    x.set_note(Pending { stage: self.id(), key: key.into(), epoch: found.epoch, then });
                    return Step::Wait;
                }
            },
        };
        if control.only_if_cached {
            pass(x, status);
            return Step::Reply(Reply::status(504).because("only-if-cached: no stored response"));
        }
        let then = Then::Store { class };
        x.set_note(Pending { stage: self.id(), key: key.into(), epoch: found.epoch, then });
        pass(x, status)
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
        if self.config.cache_control && !self.on_disk() && !safe {
            x.set_note(Pending { stage: self.id(), key: key.into(), epoch: 0, then: Then::Purge });
        }
        match (self.on_disk(), x.method()) {
            (false, _) => pass(x, "MISS"),
            (true, Method::Get | Method::Head | Method::Post) => pass(x, "BYPASS"),
            // nginx's cache knows no other methods, and says nothing of itself.
            (true, _) => Step::Next,
        }
    }

    /// Answers from the cache.
    fn answer(&self, x: &mut Exchange<'_>, entry: &Entry, content: &Content) -> Step {
        for (at, field) in content.fields.list().iter().enumerate() {
            let name = content.fields.bytes(field.name);
            let Ok(text) = std::str::from_utf8(name) else { continue };
            let before = &content.fields.list()[..at];
            let again = before.iter().any(|one| content.fields.bytes(one.name).eq_ignore_ascii_case(name));
            let value = content.fields.bytes(field.value);
            // The value came as a field, so it is valid in one.
            let _ = match again {
                false => x.set_response_header(text, value),
                true => x.add_response_header(text, value),
            };
        }
        let age = entry.age_at(self.now_ms(x)).to_string();
        let _ = x.set_response_header("Age", age.as_bytes());
        let _ = x.set_response_header(STATUS, b"HIT");
        let (request, body) = (&x.request().fields, &content.body);
        let whole = Reply { status: content.status, body: body.clone(), ..Reply::default() };
        if content.status != 200 || x.method() == Method::Post {
            return Step::Reply(whole);
        }
        if rules::not_modified(request, &content.fields) {
            return Step::Reply(Reply::status(304));
        }
        let wanted = match x.method() {
            Method::Get => range::wanted(request, &content.fields, body.len()),
            _ => Wanted::Whole,
        };
        Step::Reply(match wanted {
            Wanted::Whole => whole,
            Wanted::Part(from, to) => Reply { status: 206, body: body.slice(from..to), ..whole }
                .header("Content-Range", format!("bytes {from}-{}/{}", to - 1, body.len())),
            Wanted::Nothing => Reply::status(416).header("Content-Range", format!("bytes */{}", body.len())),
        })
    }
}

/// The request goes on to the upstream.
fn pass(x: &mut Exchange<'_>, status: &str) -> Step {
    // Name and value are ours and valid.
    let _ = x.set_response_header(STATUS, status.as_bytes());
    Step::Next
}

/// The zone, if it is of the strategy's kind.
fn zone(config: &Config, caches: &Caches) -> Result<Arc<Zone>, Invalid> {
    let name = config.cache_zone.as_str();
    let Some(zone) = caches.zone(name) else {
        let hint = match nearest(name, caches.names()) {
            Some(near) => format!("there is a zone {near}"),
            None => "zones are made in config.yaml: apisix.proxy_cache.zones".to_owned(),
        };
        return Err(Invalid::new(format!("cache_zone {name} not found")).hint(hint));
    };
    let (strategy, fits) = match config.cache_strategy {
        Strategy::Disk => ("disk", zone.disk().is_some()),
        Strategy::Memory => ("memory", zone.disk().is_none()),
    };
    if !fits {
        return Err(Invalid::new(format!("invalid or empty cache_zone for cache_strategy: {strategy}"))
            .hint("a zone with disk_path is for disk, one without for memory"));
    }
    Ok(zone.clone())
}

/// Whether a fresh answer is what the client asks for (RFC 9111 section 5.2.1).
fn suits(control: &CacheControl, entry: &Entry, now_ms: u64) -> bool {
    let left = entry.expires_ms.saturating_sub(now_ms) / 1000;
    control.max_age.is_none_or(|max| entry.age_at(now_ms) <= max)
        && control.min_fresh.is_none_or(|min| left >= min)
}
