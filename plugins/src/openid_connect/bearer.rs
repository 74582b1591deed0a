//! Tokens in requests: found, verified with a key or by introspection (RFC 7662), and judged.

use std::rc::Rc;

use aws_lc_rs::digest;
use hashbrown::HashMap;
use sdk::consumers::ExternalUser;
use sdk::{Exchange, Plugin, Reply, Step};
use serde_json::{Map, Value};

use super::client::Form;
use super::config::Config;
use super::{OpenidConnect, claims};
use crate::jwt_auth::token::Token;
use crate::remote::Remote;

/// The longest token, in bytes.
const LONGEST: usize = 16 << 10;

/// Introspected tokens that a worker keeps, and the largest answer it keeps, in bytes.
const KEPT: usize = 1024;
const LARGEST: usize = 8 << 10;

/// A token in a request.
pub(super) enum Sent {
    None,
    Token(Vec<u8>),
    /// `Authorization` without two parts.
    Invalid,
}

/// Answers of the introspection endpoint, by the hash of their token.
#[derive(Default)]
pub(super) struct Introspected(HashMap<[u8; 32], Held>);

struct Held {
    claims: Rc<Map<String, Value>>,
    /// In steady milliseconds.
    until: u64,
}

impl Introspected {
    fn find(&mut self, key: &[u8; 32], now: u64) -> Option<Rc<Map<String, Value>>> {
        self.0.get(key).filter(|held| now < held.until).map(|held| held.claims.clone())
    }

    fn keep(&mut self, key: [u8; 32], claims: Rc<Map<String, Value>>, now: u64, until: u64) {
        if self.0.len() >= KEPT {
            self.0.retain(|_, held| now < held.until);
        }
        if self.0.len() >= KEPT
            && let Some(first) = self.0.iter().min_by_key(|(_, held)| held.until).map(|(key, _)| *key)
        {
            self.0.remove(&first);
        }
        self.0.insert(key, Held { claims, until });
    }
}

/// Finds the token. `own` is the client's `X-Access-Token`.
pub(super) fn find(x: &Exchange<'_>, own: Option<Vec<u8>>) -> Sent {
    let Some(value) = x.header("Authorization") else {
        return own.map_or(Sent::None, Sent::Token);
    };
    let Some(space) = value.iter().position(|byte| *byte == b' ') else { return Sent::Invalid };
    match value[..space].eq_ignore_ascii_case(b"bearer") {
        true => Sent::Token(value[space..].trim_ascii().to_vec()),
        false => Sent::None,
    }
}

impl OpenidConnect {
    /// Handles the token of a request; `None` if it has none and the login decides.
    pub(super) async fn bearer(&self, x: &mut Exchange<'_>, own: Option<Vec<u8>>) -> Option<Step> {
        let token = match find(x, own) {
            Sent::Token(token) => token,
            Sent::Invalid => {
                return Some(Step::Reply(Reply::status(400).because("Invalid Authorization header format.")));
            }
            Sent::None if self.config.bearer_only => {
                let challenge = format!("Bearer realm=\"{}\"", quotable(&self.config.realm));
                let reply = Reply::status(401).because("No bearer token found in request.");
                return Some(Step::Reply(reply.header("WWW-Authenticate", challenge)));
            }
            Sent::None => return None,
        };
        let verified = match self.config.verifies_locally() {
            true => self.verify(x, &token).await,
            false => self.introspect(x, &token).await,
        };
        Some(match verified {
            Ok(claims) => self.admit(x, &token, &claims),
            Err(why) => self.invalid_token(why, why),
        })
    }

    /// Verifies a signed token.
    async fn verify(&self, x: &Exchange<'_>, text: &[u8]) -> Result<Rc<Map<String, Value>>, &'static str> {
        if text.len() > LONGEST {
            return Err("invalid jwt: too long");
        }
        let token = Token::parse(text).ok_or("invalid jwt")?;
        let algorithm = token.algorithm().unwrap_or_default();
        // Never accepted in a request, where every client can write it.
        if algorithm.eq_ignore_ascii_case("none") || algorithm.is_empty() {
            return Err("token uses none alg");
        }
        if self.config.token_signing_alg_values_expected.as_ref().is_some_and(|own| own != algorithm) {
            return Err("token is signed by unexpected algorithm");
        }
        let issuers = &self.config.claim_validator.issuer.valid_issuers;
        let discovered = match issuers {
            Some(_) => None,
            None => {
                let document = self.provider.document(x).await;
                Some(document.filter(|own| own.issuer.is_some()).ok_or("issuer validation unavailable")?)
            }
        };
        let is_signed = match &self.public_key {
            Some(key) => key.verify(&token),
            None => {
                let keys = self.provider.keys(x, token.key_id()).await;
                keys.ok_or("the keys of the provider are not available")?.verify(&token)
            }
        };
        if !is_signed {
            return Err("jwt signature verification failed");
        }
        let issuer = token.claim("iss").and_then(Value::as_str);
        let is_trusted = match (issuers, discovered) {
            (Some(list), _) => issuer.is_some_and(|issuer| list.iter().any(|own| own == issuer)),
            (None, document) => {
                issuer.is_some() && document.is_some_and(|own| own.issuer.as_deref() == issuer)
            }
        };
        if !is_trusted {
            return Err("the issuer of the token is not accepted");
        }
        let now = x.world().now_ms() as f64 / 1000.0;
        if !claims::in_time(|name| token.claim(name).cloned(), now, self.config.slack()) {
            return Err("JWT expired or not yet valid");
        }
        match token.into_claims() {
            Value::Object(claims) => Ok(Rc::new(claims)),
            _ => Err("invalid jwt"),
        }
    }

    /// Asks the provider about a token.
    async fn introspect(
        &self,
        x: &Exchange<'_>,
        token: &[u8],
    ) -> Result<Rc<Map<String, Value>>, &'static str> {
        let token =
            str::from_utf8(token).ok().filter(|token| token.len() <= LONGEST).ok_or("invalid token")?;
        let hash = digest::digest(&digest::SHA256, token.as_bytes());
        let key: [u8; 32] = hash.as_ref().try_into().map_err(|_| "invalid token")?;
        let world = x.world();
        let now = world.steady_ms();
        if let Some(claims) = self.introspected.with(world, |kept| kept.find(&key, now)) {
            return Ok(claims);
        }
        const NO_ENDPOINT: &str = "no endpoint URI for introspection";
        let document;
        let (remote, url): (&Remote, &str) = match (&self.introspection, &self.config.introspection_endpoint)
        {
            (Some(remote), Some(url)) => (remote, url),
            _ => {
                document = self.provider.document(x).await.ok_or("accessing discovery url failed")?;
                (document.introspection.as_ref().ok_or(NO_ENDPOINT)?, &document.introspection_url)
            }
        };
        let form = Form::default().with("token", token);
        let method = &*self.config.introspection_endpoint_auth_method;
        let (mut fields, form) = self.client.prove(x, method, url, form).await?;
        for name in &self.config.introspection_addon_headers {
            if let Some(value) = x.header(name) {
                // It comes from a parsed head, so it is valid.
                let _ = fields.set(name.as_bytes(), value);
            }
        }
        let claims = self.provider.post(x, remote, fields, form.bytes()).await.map_err(|why| {
            x.complain(Self::NAME, why);
            "accessing introspection endpoint failed"
        })?;
        if claims.get("active") != Some(&Value::Bool(true)) {
            return Err("invalid token");
        }
        let claims = Rc::new(claims);
        if let Some(ttl) = lifetime(&self.config, &claims, x.world().now_ms() / 1000)
            && serde_json::to_vec(&*claims).is_ok_and(|text| text.len() <= LARGEST)
        {
            let now = world.steady_ms();
            let until = now.saturating_add(ttl.saturating_mul(1000));
            self.introspected.with(world, |kept| kept.keep(key, claims.clone(), now, until));
        }
        Ok(claims)
    }

    /// Checks the claims of a verified token, and passes it on.
    fn admit(&self, x: &mut Exchange<'_>, token: &[u8], claims: &Map<String, Value>) -> Step {
        let granted = claims.get("scope").and_then(Value::as_str).unwrap_or_default();
        let judged = claims::check_scopes(&self.config.required_scopes, granted)
            .and_then(|()| claims::check_audience(&self.config, claims));
        if let Err(reply) = judged {
            return Step::Reply(reply);
        }
        let claims = Value::Object(claims.clone());
        if let Some(schema) = &self.claim_schema
            && let Err(error) = schema.check(&claims)
        {
            return self.invalid_token(&error.to_string(), "the claims do not fit claim_schema");
        }
        let mut vouched = self.vouched(x);
        self.pass_access_token(x, &mut vouched, token);
        if self.config.set_userinfo_header {
            self.pass_json(x, &mut vouched, super::USERINFO, &claims);
        }
        x.set_note(vouched);
        x.set_note(ExternalUser(claims));
        Step::Next
    }

    /// Refuses a token; `shown` is for the client.
    pub(super) fn invalid_token(&self, shown: &str, reason: &'static str) -> Step {
        let (realm, shown) = (quotable(&self.config.realm), quotable(shown));
        let challenge =
            format!("Bearer realm=\"{realm}\", error=\"invalid_token\", error_description=\"{shown}\"");
        Step::Reply(Reply::status(401).because(reason).header("WWW-Authenticate", challenge))
    }
}

/// Seconds for which an introspected token may be kept; `None` if it says no end.
fn lifetime(config: &Config, claims: &Map<String, Value>, now: u64) -> Option<u64> {
    let name = config.introspection_expiry_claim.as_deref().unwrap_or("exp");
    let end = claims.get(name)?.as_f64().filter(|end| *end > 0.0)? as u64;
    let left = if name == "exp" { end.saturating_sub(now) } else { end };
    let left = match config.introspection_interval() {
        0 => left,
        most => left.min(most),
    };
    Some(left).filter(|left| *left > 0)
}

/// Text that can stand in a quoted string of a header.
fn quotable(text: &str) -> String {
    let plain = |c: char| {
        if c == '"' || c == '\\' {
            '\''
        } else if c.is_ascii_graphic() {
            c
        } else {
            ' '
        }
    };
    text.chars().take(256).map(plain).collect()
}
