//! hmac-auth: identifies a consumer by a signature over the request.
//!
//! Settings, messages and headers as in APISIX 3.18 (`Authorization: Signature keyId="…",…`). The
//! body is read only after the signature was verified, and at most `max_req_body_size` bytes of it.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::Invalid;
use sdk::chain::Phases;
use sdk::consumers::{Credential, Identity};
use sdk::exchange::Body;
use sdk::{Build, Exchange, Framing, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{self, Challenge};

/// The configured plugin.
pub struct HmacAuth {
    config: Config,
    challenge: Challenge,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    allowed_algorithms: Vec<String>,
    clock_skew: u64,
    signed_headers: Vec<String>,
    validate_request_body: bool,
    max_req_body_size: usize,
    hide_credentials: bool,
    realm: String,
    anonymous_consumer: Option<String>,
}

/// A consumer's secret.
struct SecretKey(Box<[u8]>);

/// Why a request is not accepted (yet).
enum Denied {
    /// The message for the client, as in APISIX.
    Message(&'static str),
    /// The body must be read first, up to this many bytes.
    Body(usize),
    TooLarge(String),
}

/// For everything but a missing or foreign header: the client does not learn which check failed.
const UNKNOWN: Denied = Denied::Message("client request can't be validated");

/// The most headers a signature may cover. Each is hashed before the client is known, so a long list
/// that repeats one long header would cost far more to check than to send.
const MOST_SIGNED: usize = 128;

const ALGORITHMS: [&str; 3] = ["hmac-sha1", "hmac-sha256", "hmac-sha512"];

impl Plugin for HmacAuth {
    const NAME: &'static str = "hmac-auth";
    const PRIORITY: i32 = 2530;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "title": "work with route or service object",
            "properties": {
                "allowed_algorithms": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "string", "enum": ALGORITHMS},
                    "default": ALGORITHMS,
                },
                "clock_skew": {"type": "integer", "default": 300, "minimum": 1},
                "signed_headers": {
                    "type": "array",
                    "default": ["date"],
                    "items": {"type": "string", "minLength": 1, "maxLength": 50},
                },
                "validate_request_body": {
                    "type": "boolean",
                    "description": "A boolean value telling the plugin to enable body validation",
                    "default": false,
                },
                "max_req_body_size": {"type": "integer", "minimum": 1, "default": 67_108_864},
                "hide_credentials": {"type": "boolean", "default": false},
                "realm": auth::realm("hmac"),
                "anonymous_consumer": auth::anonymous_consumer(),
            },
        })
    }

    fn consumer_schema() -> Option<Value> {
        Some(json!({
            "type": "object",
            "title": "work with consumer object",
            "properties": {
                "key_id": {"type": "string", "minLength": 1, "maxLength": 256},
                "secret_key": {"type": "string", "minLength": 1, "maxLength": 256},
            },
            "encrypt_fields": ["secret_key"],
            "required": ["key_id", "secret_key"],
        }))
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<HmacAuth, Invalid> {
        let challenge = Challenge::new("hmac", &config.realm);
        Ok(HmacAuth { config, challenge })
    }

    fn credential(consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        let text = |name: &str| consumer_config.get(name).and_then(Value::as_str);
        let Some((key, secret)) = text("key_id").zip(text("secret_key")) else { return Ok(None) };
        let secret = SecretKey(secret.as_bytes().into());
        Ok(Some(Credential { key: key.into(), secret: Some(Arc::new(secret)) }))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let step = match (self.identify(x), &self.config.anonymous_consumer) {
            (Ok(identity), _) => {
                x.authenticate(identity);
                Step::Next
            }
            (Err(Denied::Body(limit)), _) => return Step::Body(limit),
            (Err(Denied::TooLarge(message)), _) => {
                return Step::Reply(
                    Reply::json(413, &json!({ "message": message })).because(crate::TOO_LARGE),
                );
            }
            (Err(Denied::Message(_)), Some(anonymous)) => self.challenge.admit(x, Self::NAME, anonymous),
            (Err(Denied::Message(message)), None) => self.challenge.refuse(x, message),
        };
        if self.config.hide_credentials && matches!(step, Step::Next) {
            x.remove_header("Authorization");
        }
        step
    }
}

impl HmacAuth {
    /// Finds the consumer that signed the request.
    fn identify(&self, x: &Exchange<'_>) -> Result<Identity, Denied> {
        let header = x
            .header("Authorization")
            .ok_or(Denied::Message("client request can't be validated: missing Authorization header"))?;
        let fields = header.strip_prefix(b"Signature").ok_or(Denied::Message(
            "client request can't be validated: Authorization header does not start with 'Signature'",
        ))?;
        let sent = Signature::read(fields).ok_or(UNKNOWN)?;
        let found = x.consumers().find(Self::NAME, sent.key_id);
        // An unknown key is checked too, so that timing does not reveal which keys exist.
        let secret = found.and_then(Identity::secret::<SecretKey>).map_or(&[][..], |secret| &secret.0);
        if !self.is_allowed(&sent) || !self.is_recent(x) || !self.covers_enough(&sent) {
            return Err(UNKNOWN);
        }
        let right = sent.is_of(x, secret) && sent.is_plain(x);
        let identity = found.filter(|_| right).ok_or(UNKNOWN)?;
        if self.config.validate_request_body {
            self.check_body(x)?;
        }
        Ok(identity.clone())
    }

    fn is_allowed(&self, sent: &Signature<'_>) -> bool {
        self.config.allowed_algorithms.iter().any(|allowed| allowed.as_bytes() == sent.algorithm)
    }

    /// Whether `Date` is within `clock_skew` of the current time.
    fn is_recent(&self, x: &Exchange<'_>) -> bool {
        let date = x.header("Date").and_then(|date| std::str::from_utf8(date).ok());
        let Some(date) = date.and_then(|date| httpdate::parse_http_date(date).ok()) else { return false };
        let now = UNIX_EPOCH + Duration::from_secs(x.world().now_ms() / 1000);
        let apart = now.duration_since(date).unwrap_or_else(|ahead| ahead.duration());
        apart <= Duration::from_secs(self.config.clock_skew)
    }

    /// Whether the signature covers all of `signed_headers`, and the digest of a body that is checked.
    fn covers_enough(&self, sent: &Signature<'_>) -> bool {
        let covers = |wanted: &[u8]| sent.headers().any(|name| name == wanted);
        // An unsigned digest can be replaced together with the body.
        let with_digest = || sent.headers().any(|name| name.eq_ignore_ascii_case(b"digest"));
        self.config.signed_headers.iter().all(|wanted| covers(wanted.as_bytes()))
            && (!self.config.validate_request_body || with_digest())
    }

    fn check_body(&self, x: &Exchange<'_>) -> Result<(), Denied> {
        let sent = x.header("Digest").ok_or(UNKNOWN)?;
        let limit = self.config.max_req_body_size;
        let size = match x.request().framing {
            Framing::Length(length) if length > limit as u64 => length.to_string(),
            _ if x.lacks_body(limit) => return Err(Denied::Body(limit)),
            _ if matches!(x.body_state(), Body::Streaming | Body::TooLarge) => format!("over {limit}"),
            _ if x.body().len() > limit => x.body().len().to_string(),
            _ => {
                let digest = BASE64_STANDARD.encode(digest(&SHA256, x.body()));
                let right =
                    sent.strip_prefix(b"SHA-256=").is_some_and(|sent| auth::same(sent, digest.as_bytes()));
                return if right { Ok(()) } else { Err(UNKNOWN) };
            }
        };
        Err(Denied::TooLarge(format!("request size {size} is greater than the maximum size {limit} allowed")))
    }
}

/// The parameters of the `Authorization` header.
struct Signature<'x> {
    key_id: &'x [u8],
    algorithm: &'x [u8],
    signature: &'x [u8],
    headers: &'x [u8],
}

impl<'x> Signature<'x> {
    /// `None` if a required parameter is missing.
    fn read(text: &'x [u8]) -> Option<Signature<'x>> {
        let (mut key_id, mut algorithm, mut signature, mut headers) = (None, None, None, &[][..]);
        for field in text.split(|&byte| byte == b',') {
            let Some((name, value)) = assignment(field) else { continue };
            match name {
                b"keyId" => key_id = Some(value),
                b"algorithm" => algorithm = Some(value),
                b"signature" => signature = Some(value),
                b"headers" => headers = value,
                _ => {}
            }
        }
        let sent = Signature { key_id: key_id?, algorithm: algorithm?, signature: signature?, headers };
        (sent.headers().count() <= MOST_SIGNED).then_some(sent)
    }

    /// The names of the signed headers, in order.
    fn headers(&self) -> impl Iterator<Item = &'x [u8]> {
        self.headers.split(|&byte| byte == b' ')
    }

    /// Whether each signed header came once, in one spelling. The signature covers the first field of a name alone, and
    /// servers may read another one, or one with `_` for `-`.
    fn is_plain(&self, x: &Exchange<'_>) -> bool {
        self.headers().all(|name| x.request().fields.count_alike(name) <= 1)
    }

    /// Whether this is the signature of the request under `secret`.
    fn is_of(&self, x: &Exchange<'_>, secret: &[u8]) -> bool {
        let algorithm = match self.algorithm {
            b"hmac-sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            b"hmac-sha256" => hmac::HMAC_SHA256,
            b"hmac-sha512" => hmac::HMAC_SHA512,
            _ => return false,
        };
        let mut signing = hmac::Context::with_key(&hmac::Key::new(algorithm, secret));
        signing.update(self.key_id);
        signing.update(b"\n");
        for name in self.headers() {
            // No header name is anything but ASCII.
            let value = std::str::from_utf8(name).ok().and_then(|name| x.header(name));
            match value {
                Some(value) => [name, b": ", value, b"\n"].map(|part| signing.update(part)),
                None if name == b"@request-target" => {
                    let (method, target) = (x.request().method_bytes(), x.request().target());
                    [method, b" ", target, b"\n"].map(|part| signing.update(part))
                }
                None => continue,
            };
        }
        let expected = signing.sign();
        auth::base64(self.signature).is_some_and(|sent| auth::same(&sent, expected.as_ref()))
    }
}

/// The first `name="value"` in a parameter.
fn assignment(field: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = field.windows(2).position(|pair| pair == b"=\"")?;
    let (before, value) = (&field[..at], &field[at + 2..]);
    let start = before.iter().rposition(|byte| !byte.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
    let end = value.iter().position(|&byte| byte == b'"')?;
    (start < before.len()).then_some((&before[start..], &value[..end]))
}

#[cfg(test)]
mod tests;
