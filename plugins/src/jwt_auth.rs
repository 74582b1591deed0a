//! jwt-auth: identifies a consumer by a signed JSON web token (RFC 7519).
//!
//! Settings, messages and headers as in APISIX 3.18. The algorithm is always the one configured for
//! the consumer: a token with another `alg` is refused before any cryptography. As RFC 7518 demands,
//! RSA keys must have at least 2048 bits.

pub(crate) mod token;
pub(crate) mod verify;

use std::borrow::Cow;
use std::sync::Arc;

use model::Invalid;
use sdk::chain::Phases;
use sdk::consumers::{Claims, Credential, Identity};
use sdk::{Build, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{self, Challenge};
use crate::query::{self, Arg};
use token::Token;
use verify::Verifier;

/// The configured plugin.
pub struct JwtAuth {
    config: Config,
    challenge: Challenge,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    header: String,
    query: String,
    cookie: String,
    hide_credentials: bool,
    key_claim_name: String,
    store_in_ctx: bool,
    realm: String,
    anonymous_consumer: Option<String>,
    #[serde(default)]
    claims_to_verify: Vec<String>,
}

/// How a consumer's tokens are verified.
struct Issuer {
    verifier: Verifier,
    /// `lifetime_grace_period`, in seconds.
    grace: f64,
}

const MISSING: &str = "Missing JWT token in request";

impl Plugin for JwtAuth {
    const NAME: &'static str = "jwt-auth";
    const PRIORITY: i32 = 2510;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "header": {"type": "string", "default": "authorization"},
                "query": {"type": "string", "default": "jwt"},
                "cookie": {"type": "string", "default": "jwt"},
                "hide_credentials": {"type": "boolean", "default": false},
                "key_claim_name": {"type": "string", "default": "key", "minLength": 1},
                "store_in_ctx": {"type": "boolean", "default": false},
                "realm": auth::realm("jwt"),
                "anonymous_consumer": auth::anonymous_consumer(),
                "claims_to_verify": {
                    "type": "array",
                    "items": {"type": "string", "enum": ["exp", "nbf"]},
                    "uniqueItems": true,
                },
            },
        })
    }

    fn consumer_schema() -> Option<Value> {
        let (hashed, signed) = verify::ALGORITHMS.split_at(verify::HASHED);
        Some(json!({
            "type": "object",
            "properties": {
                "key": {"type": "string", "minLength": 1},
                "secret": {"type": "string", "minLength": 1},
                "algorithm": {"type": "string", "enum": verify::ALGORITHMS, "default": "HS256"},
                "exp": {"type": "integer", "minimum": 1, "default": 86400},
                "base64_secret": {"type": "boolean", "default": false},
                "lifetime_grace_period": {"type": "integer", "minimum": 0, "default": 0},
            },
            "dependencies": {
                "algorithm": {
                    "oneOf": [
                        {"properties": {"algorithm": {"enum": hashed, "default": "HS256"}}},
                        {
                            "properties": {
                                "public_key": {"type": "string", "minLength": 1},
                                "algorithm": {"enum": signed},
                            },
                            "required": ["public_key"],
                        },
                    ],
                },
            },
            "encrypt_fields": ["secret"],
            "required": ["key"],
        }))
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<JwtAuth, Invalid> {
        let challenge = Challenge::bearer(&config.realm);
        Ok(JwtAuth { config, challenge })
    }

    fn credential(consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        let Some(key) = consumer_config.get("key").and_then(Value::as_str) else { return Ok(None) };
        let grace = consumer_config.get("lifetime_grace_period").and_then(Value::as_f64).unwrap_or(0.0);
        let issuer = Issuer { verifier: Verifier::read(consumer_config)?, grace };
        Ok(Some(Credential { key: key.into(), secret: Some(Arc::new(issuer)) }))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        match (self.identify(x), &self.config.anonymous_consumer) {
            (Ok((identity, claims)), _) => {
                x.authenticate(identity);
                if self.config.store_in_ctx {
                    x.set_note(Claims(claims));
                }
                Step::Next
            }
            (Err(_), Some(anonymous)) => self.challenge.admit(x, Self::NAME, anonymous),
            (Err(message), None) if message != MISSING && self.challenge.has_variables() => {
                self.challenge.refuse_token(x, message)
            }
            (Err(message), None) => self.challenge.refuse(x, message),
        }
    }
}

impl JwtAuth {
    /// Finds the consumer of a request, and the claims of its token. The error is APISIX's message.
    fn identify(&self, x: &mut Exchange<'_>) -> Result<(Identity, Value), &'static str> {
        const REFUSED: &str = "failed to verify jwt";
        let text = self.take(x).ok_or(MISSING)?;
        let token = Token::parse(&text).ok_or("JWT token invalid")?;
        let key = match token.claim(&self.config.key_claim_name) {
            None | Some(Value::Bool(false)) => return Err("missing user key in JWT token"),
            Some(key) => key.as_str(),
        };
        let identity = key.and_then(|key| x.consumers().find(Self::NAME, key.as_bytes()));
        let identity = identity.ok_or("Invalid user key in JWT token")?;
        let issuer = identity.secret::<Issuer>().ok_or(REFUSED)?;
        issuer.verifier.check(&token).map_err(|refusal| {
            if let verify::Refusal::Unusable(why) = refusal {
                x.complain(Self::NAME, why);
            }
            REFUSED
        })?;
        let now = x.world().now_ms() / 1000;
        if !token.is_in_time(&self.config.claims_to_verify, now, issuer.grace) {
            return Err(REFUSED);
        }
        let identity = identity.clone();
        Ok((identity, token.into_claims()))
    }

    /// Reads the token from header, query or cookie, whichever has one first. `hide_credentials` removes
    /// it from there, valid or not.
    fn take(&self, x: &mut Exchange<'_>) -> Option<Vec<u8>> {
        let Config { header, query, cookie, .. } = &self.config;
        let hide = self.config.hide_credentials;
        if let Some(value) = x.header(header) {
            let token = value.strip_prefix(b"Bearer ").or_else(|| value.strip_prefix(b"bearer "));
            let token = token.unwrap_or(value).to_vec();
            if hide {
                x.remove_header(header);
            }
            return Some(token);
        }
        let sent = match query::find(x.query(), query.as_bytes()) {
            Arg::One(token) => Some(Cow::into_owned(token)),
            // Present without a value or several times: an empty token is invalid.
            Arg::Other => Some(Vec::new()),
            Arg::Absent => None,
        };
        if let Some(token) = sent {
            if hide {
                query::hide(x, query);
            }
            return Some(token);
        }
        let token = x.cookie(cookie)?.to_vec();
        if hide {
            x.remove_cookie(cookie);
        }
        Some(token)
    }
}

#[cfg(test)]
mod tests;
