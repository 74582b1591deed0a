//! jwks-auth: verifies JSON web tokens (RFC 7519) with a set of keys, given or fetched from a server.
//!
//! Native: APISIX verifies such tokens with openid-connect. A token needs no consumer here: who it is for stands in its
//! claims, which may be passed on to the upstream in headers.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use model::Invalid;
use sdk::chain::Phases;
use sdk::state::WorkerState;
use sdk::world::Keep;
use sdk::{Build, Exchange, Fields, Method, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{Challenge, Vouched};
use crate::jwks::KeySet;
use crate::jwt_auth::token::Token;
use crate::query::{self, Arg};
use crate::remote::cache::{Cache, Next, obtain};
use crate::remote::{Manner, Remote};

/// The configured plugin.
pub struct JwksAuth {
    config: Config,
    keys: Keys,
    challenge: Challenge,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    jwks: Option<String>,
    jwks_uri: Option<String>,
    discovery: Option<String>,
    ssl_verify: bool,
    timeout: u64,
    cache_ttl: u64,
    issuer: Option<String>,
    #[serde(default)]
    audiences: Vec<String>,
    header: String,
    prefix: String,
    query: Option<String>,
    cookie: Option<String>,
    hide_credentials: bool,
    allow_missing: bool,
    require_expiration: bool,
    clock_skew: u64,
    payload_header: Option<String>,
    #[serde(default)]
    claim_headers: IndexMap<String, String>,
    realm: String,
}

/// Where the keys come from.
enum Keys {
    Given(KeySet),
    Fetched { server: Server, cache: WorkerState<Cache<KeySet>> },
}

/// The address of a set of keys.
enum Server {
    Keys(Remote),
    /// A document that has it (OpenID Connect Discovery 1.0, RFC 8414).
    Metadata {
        document: Remote,
        named: WorkerState<Cache<Remote>>,
    },
}

/// Milliseconds for which the metadata of an issuer is fresh.
const METADATA_TTL: u64 = 3_600_000;

/// The largest set of keys, in bytes.
const MOST: usize = 1 << 20;

impl Plugin for JwksAuth {
    const NAME: &'static str = "jwks-auth";
    const PRIORITY: i32 = 2505;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        let name = json!({"type": "string", "minLength": 1});
        json!({
            "type": "object",
            "properties": {
                "jwks": {"type": "string", "minLength": 2},
                "jwks_uri": {"type": "string", "minLength": 8},
                "discovery": {"type": "string", "minLength": 8},
                "ssl_verify": {"type": "boolean", "default": true},
                "timeout": {"type": "integer", "minimum": 1, "maximum": 60000, "default": 3000},
                "cache_ttl": {"type": "integer", "minimum": 1, "maximum": 86400, "default": 300},
                "issuer": name,
                "audiences": {"type": "array", "items": name},
                "header": {"type": "string", "minLength": 1, "default": "Authorization"},
                "prefix": {"type": "string", "default": "Bearer "},
                "query": name,
                "cookie": name,
                "hide_credentials": {"type": "boolean", "default": false},
                "allow_missing": {"type": "boolean", "default": false},
                "require_expiration": {"type": "boolean", "default": false},
                "clock_skew": {"type": "integer", "minimum": 0, "maximum": 86400, "default": 60},
                "payload_header": name,
                "claim_headers": {"type": "object", "additionalProperties": name},
                "realm": {
                    "type": "string", "pattern": "^[\\x20-\\x21\\x23-\\x5B\\]-\\x7E]*$", "default": "jwt", "maxLength": 128,
                },
            },
            "oneOf": [{"required": ["jwks"]}, {"required": ["jwks_uri"]}, {"required": ["discovery"]}],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<JwksAuth, Invalid> {
        for name in config.payload_header.iter().chain(config.claim_headers.keys()) {
            Fields::new().append(name.as_bytes(), b"").map_err(|_| {
                Invalid::new("this is not a valid header name").expected("letters, digits and `-`").got(name)
            })?;
        }
        let remote = |url: &str, at: &str| Remote::parse(url).map_err(|why| Invalid::new(why).at(at));
        let server = match (&config.jwks_uri, &config.discovery) {
            (Some(url), _) => Some(Server::Keys(remote(url, "/jwks_uri")?)),
            (None, Some(url)) => Some(Server::Metadata {
                document: remote(url, "/discovery")?,
                named: cx.worker_state("metadata"),
            }),
            (None, None) => None,
        };
        let keys = match server {
            Some(server) => Keys::Fetched { server, cache: cx.worker_state("keys") },
            None => {
                let text = config.jwks.as_deref().unwrap_or_default();
                Keys::Given(KeySet::read(text.as_bytes()).map_err(|why| Invalid::new(why).at("/jwks"))?)
            }
        };
        let challenge = Challenge::bearer(&config.realm);
        Ok(JwksAuth { config, keys, challenge })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let Some(text) = self.find(x) else {
            if !self.config.allow_missing {
                return self.challenge.refuse(x, "Missing JWT token in request");
            }
            self.pass_on(x, None);
            return Step::Next;
        };
        let Some(token) = Token::parse(&text) else {
            return self.challenge.refuse_token(x, "JWT token invalid");
        };
        match &self.keys {
            Keys::Given(keys) => self.judge(x, keys, &token),
            Keys::Fetched { cache, .. } => {
                let now = x.world().steady_ms();
                let next = cache
                    .with(x.world(), |cache| cache.next(now, self.ttl(), |keys| holds(keys, token.key_id())));
                match next {
                    Next::Use(keys) => self.judge(x, &keys, &token),
                    _ => Step::Wait,
                }
            }
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Some(text) = self.find(x) else {
            return self.challenge.refuse(x, "Missing JWT token in request");
        };
        let Some(token) = Token::parse(&text) else {
            return self.challenge.refuse_token(x, "JWT token invalid");
        };
        match self.keys_for(x, token.key_id()).await {
            Ok(keys) => self.judge(x, &keys, &token),
            Err(why) => {
                x.complain(Self::NAME, why);
                Step::Reply(Reply::status(503).because(why))
            }
        }
    }
}

impl JwksAuth {
    fn ttl(&self) -> u64 {
        self.config.cache_ttl.saturating_mul(1000)
    }

    /// The server's keys, fetched if need be.
    async fn keys_for(&self, x: &Exchange<'_>, key: Option<&str>) -> Result<Rc<KeySet>, &'static str> {
        const FAILED: &str = "the server of the keys does not answer";
        let Keys::Fetched { server, cache } = &self.keys else { return Err(FAILED) };
        let times = (self.ttl(), self.config.timeout);
        let found = obtain(
            cache,
            x.world(),
            times,
            |keys| holds(keys, key),
            async || self.ask(x, server).await.map_err(|why| x.complain(Self::NAME, why)).ok(),
        );
        found.await.ok_or(FAILED)
    }

    async fn ask(&self, x: &Exchange<'_>, server: &Server) -> Result<KeySet, &'static str> {
        let keys = match server {
            Server::Keys(remote) => self.get(x, remote).await?,
            Server::Metadata { document, named } => {
                let times = (METADATA_TTL, self.config.timeout);
                let ask = async || {
                    let named = self.get(x, document).await.and_then(|text| self.named_by(document, &text));
                    named.map_err(|why| x.complain(Self::NAME, why)).ok()
                };
                let found = obtain(named, x.world(), times, |_| true, ask).await;
                self.get(x, &*found.ok_or("the metadata of the issuer names no keys")?).await?
            }
        };
        // Anyone can read what a server hands out, so a shared secret there would let anyone sign tokens.
        KeySet::read(&keys)?.public()
    }

    /// The address of the keys by the metadata of an issuer.
    fn named_by(&self, document: &Remote, metadata: &[u8]) -> Result<Remote, &'static str> {
        let metadata: Value =
            serde_json::from_slice(metadata).map_err(|_| "the metadata of the issuer is not JSON")?;
        // Of another issuer: its tokens are not those that are wanted.
        if self.config.issuer.as_deref().is_some_and(|issuer| metadata["issuer"].as_str() != Some(issuer)) {
            return Err("the metadata is another issuer's");
        }
        let url = metadata["jwks_uri"].as_str().unwrap_or_default();
        let keys = Remote::parse(url).map_err(|_| "the metadata of the issuer has no valid jwks_uri")?;
        if document.is_https() && !keys.is_https() {
            return Err("the metadata was fetched by https, but its jwks_uri is http");
        }
        Ok(keys)
    }

    async fn get(&self, x: &Exchange<'_>, remote: &Remote) -> Result<Vec<u8>, &'static str> {
        let mut fields = Fields::new();
        // The name and value are valid.
        let _ = fields.set(b"Accept", b"application/json");
        let manner = Manner {
            timeout: Duration::from_millis(self.config.timeout),
            verify: self.config.ssl_verify,
            most: MOST,
            keep: Keep { connections: 0, idle: Duration::ZERO },
        };
        match remote.fetch(x, manner, Method::Get, fields, Bytes::new()).await {
            Ok(answer) if answer.status == 200 => Ok(answer.body),
            Ok(_) => Err("the server of the keys does not answer with status 200"),
            Err(error) => Err(error.as_str()),
        }
    }

    fn judge(&self, x: &mut Exchange<'_>, keys: &KeySet, token: &Token<'_>) -> Step {
        let config = &self.config;
        if !keys.verify(token) {
            return self.challenge.refuse_token(x, "failed to verify jwt");
        }
        let claim = |name: &str| token.claim(name).and_then(Value::as_str);
        if config.issuer.as_deref().is_some_and(|issuer| claim("iss") != Some(issuer)) {
            return self.challenge.refuse_token(x, "the issuer of the token is not accepted");
        }
        if !config.audiences.is_empty() && !self.is_for_us(token.claim("aud")) {
            return self.challenge.refuse_token(x, "the audience of the token is not accepted");
        }
        let now = x.world().now_ms() / 1000;
        let lacks_end = config.require_expiration && token.claim("exp").is_none();
        let times_are_numbers =
            ["exp", "nbf"].iter().all(|name| token.claim(name).is_none_or(Value::is_number));
        if lacks_end || !times_are_numbers || !self.is_in_time(token, now) {
            return self.challenge.refuse_token(x, "the token is expired or not yet valid");
        }
        self.pass_on(x, Some(token));
        Step::Next
    }

    fn is_in_time(&self, token: &Token<'_>, now: u64) -> bool {
        let (now, skew) = (now as f64, self.config.clock_skew as f64);
        let time = |name: &str| token.claim(name).and_then(Value::as_f64);
        time("exp").is_none_or(|exp| exp > now - skew) && time("nbf").is_none_or(|nbf| nbf <= now + skew)
    }

    fn is_for_us(&self, audience: Option<&Value>) -> bool {
        let is_ours =
            |one: &Value| one.as_str().is_some_and(|one| self.config.audiences.iter().any(|own| own == one));
        match audience {
            Some(Value::Array(list)) => list.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        }
    }

    /// The token in the header, the query or the cookie, whichever has one first.
    fn find(&self, x: &Exchange<'_>) -> Option<Vec<u8>> {
        let Config { header, prefix, query, cookie, .. } = &self.config;
        let in_header = x.header(header.as_str()).and_then(|value| {
            let (start, rest) = value.split_at_checked(prefix.len())?;
            start.eq_ignore_ascii_case(prefix.as_bytes()).then(|| rest.trim_ascii().to_vec())
        });
        let in_query = || match query::find(x.query(), query.as_ref()?.as_bytes()) {
            Arg::One(token) => Some(Cow::into_owned(token)),
            // Present without a value or several times: an empty token is invalid.
            Arg::Other => Some(Vec::new()),
            Arg::Absent => None,
        };
        let in_cookie = || x.cookie(cookie.as_ref()?).map(<[u8]>::to_vec);
        in_header.or_else(in_query).or_else(in_cookie)
    }

    /// Hides the token, and sets the headers with its claims; the client's own headers of these names are removed.
    fn pass_on(&self, x: &mut Exchange<'_>, token: Option<&Token<'_>>) {
        let Config { header, query, cookie, payload_header, claim_headers, .. } = &self.config;
        if self.config.hide_credentials && token.is_some() {
            x.remove_header(header.as_str());
            if let Some(query) = query {
                query::hide(x, query);
            }
            if let Some(cookie) = cookie {
                x.remove_cookie(cookie);
            }
        }
        if payload_header.is_none() && claim_headers.is_empty() {
            return;
        }
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        let payload =
            payload_header.as_ref().map(|name| (name, token.map(|token| token.payload_text().to_vec())));
        let claims = claim_headers.iter().map(|(name, claim)| {
            let value = match token.and_then(|token| token.claim(claim)) {
                Some(Value::String(text)) => Some(text.clone()),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string()),
                _ => None,
            };
            (name, value.map(String::into_bytes))
        });
        for (name, value) in payload.into_iter().chain(claims) {
            x.remove_lookalikes(name.as_str());
            x.remove_header(name.as_str());
            vouched.add(name.as_bytes());
            if let Some(value) = value {
                match x.set_header(name.as_str(), &value) {
                    Ok(()) => vouched.add(&value),
                    Err(_) => x.complain(Self::NAME, "a claim cannot stand in a header and was left out"),
                }
            }
        }
        x.set_note(vouched);
    }
}

/// Whether the set may have the key of a token.
fn holds(keys: &KeySet, id: Option<&str>) -> bool {
    id.is_none_or(|id| keys.may_hold(id))
}

#[cfg(test)]
mod tests;
