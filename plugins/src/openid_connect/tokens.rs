//! Tokens of the token endpoint: got for a code, renewed, and verified.

use std::rc::Rc;

use aws_lc_rs::digest;
use hashbrown::HashMap;
use sdk::state::WorkerState;
use sdk::{Exchange, World};
use serde_json::{Map, Value};

use super::client::Form;
use super::config::seconds;
use super::provider::Document;
use super::session::{Login, Session};
use super::{OpenidConnect, claims};
use crate::jwks::KeySet;
use crate::jwt_auth::token::Token;

/// How long a request waits before it looks again whether another one has renewed the token.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Milliseconds for which renewed tokens are kept for requests that still carry the old session.
const KEPT_FOR: u64 = 30_000;

/// Sessions of which a worker keeps renewed tokens.
const KEPT: usize = 256;

/// Renewals by the hash of the old refresh token. A browser sends several requests at once, and a provider may take a
/// refresh token that is used twice for stolen.
#[derive(Default)]
pub(super) struct Renewals(HashMap<[u8; 32], Renewal>);

struct Renewal {
    /// In steady milliseconds.
    at: u64,
    /// `None` while a request renews it; else the answer, and when it was asked for, in Unix seconds.
    tokens: Option<Dated>,
}

type Dated = (Rc<Map<String, Value>>, u64);

/// The next step of a request whose access token has expired.
enum Next {
    Use(Dated),
    Ask,
    Wait,
}

impl Renewals {
    /// A provider may return the same refresh token again, so that an answer is used only while its access token is valid.
    fn next(&mut self, key: [u8; 32], now: u64, is_valid: impl Fn(&Dated) -> bool) -> Next {
        if self.0.len() >= KEPT {
            self.0.retain(|_, renewal| now < renewal.at.saturating_add(KEPT_FOR));
        }
        match self.0.get(&key).filter(|renewal| now < renewal.at.saturating_add(KEPT_FOR)) {
            Some(Renewal { tokens: Some(tokens), .. }) if is_valid(tokens) => Next::Use(tokens.clone()),
            Some(Renewal { tokens: None, .. }) => Next::Wait,
            _ => {
                if self.0.len() < KEPT {
                    self.0.insert(key, Renewal { at: now, tokens: None });
                }
                Next::Ask
            }
        }
    }
}

/// Forgets a renewal that was given up, when it is dropped.
struct Renewing<'a> {
    renewals: &'a WorkerState<Renewals>,
    world: &'a dyn World,
    key: [u8; 32],
}

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.renewals.with(self.world, |renewals| {
            if renewals.0.get(&self.key).is_some_and(|renewal| renewal.tokens.is_none()) {
                renewals.0.remove(&self.key);
            }
        });
    }
}

impl OpenidConnect {
    /// Gets the tokens for a code, and makes the session.
    pub(super) async fn redeem(
        &self,
        x: &Exchange<'_>,
        document: &Document,
        login: &Login,
        code: &str,
        now: u64,
    ) -> Result<Session, &'static str> {
        let mut form = Form::default()
            .with("grant_type", "authorization_code")
            .with("code", code)
            .with("redirect_uri", &login.redirect_uri);
        if let Some(verifier) = &login.verifier {
            form.add("code_verifier", verifier);
        }
        let answer = self.ask_for_tokens(x, document, form).await?;
        let mut session = Session::new(now);
        let id_token = answer.get("id_token").and_then(Value::as_str);
        let id_token = id_token.ok_or("the token endpoint returns no ID token")?;
        let subject = self.check_id_token(x, document, id_token, login.nonce.as_deref()).await?;
        self.store(&mut session, &answer, now);
        if self.config.set_userinfo_header || self.claim_schema.is_some() {
            session.user = self.user(x, document, session.access_token.as_deref(), &subject).await;
        }
        Ok(session)
    }

    /// Renews the tokens of a session.
    pub(super) async fn renew(
        &self,
        x: &Exchange<'_>,
        session: &mut Session,
        now: u64,
    ) -> Result<(), &'static str> {
        let old = session.refresh_token.clone().ok_or("token expired and no refresh token available")?;
        let hash = digest::digest(&digest::SHA256, old.as_bytes());
        let key: [u8; 32] = hash.as_ref().try_into().map_err(|_| "token expired")?;
        let world = x.world();
        let end = world.steady_ms().saturating_add(self.provider.wait_ms());
        let (answer, asked) = loop {
            let steady = world.steady_ms();
            let is_valid = |(answer, asked): &Dated| self.access_until(answer, *asked) > now;
            match self.renewals.with(world, |renewals| renewals.next(key, steady, is_valid)) {
                Next::Use(found) => break found,
                Next::Wait if steady < end => world.sleep(PAUSE).await,
                Next::Wait => return Err("the renewal of the token takes too long"),
                Next::Ask => {
                    let renewing = Renewing { renewals: &self.renewals, world, key };
                    let answer = Rc::new(self.ask_to_renew(x, session, &old).await?);
                    let at = world.steady_ms();
                    self.renewals.with(world, |renewals| {
                        if let Some(renewal) = renewals.0.get_mut(&key) {
                            *renewal = Renewal { at, tokens: Some((answer.clone(), now)) };
                        }
                    });
                    drop(renewing);
                    break (answer, now);
                }
            }
        };
        self.store(session, &answer, asked);
        Ok(())
    }

    async fn ask_to_renew(
        &self,
        x: &Exchange<'_>,
        session: &Session,
        refresh_token: &str,
    ) -> Result<Map<String, Value>, &'static str> {
        let document = self.provider.document(x).await.ok_or("accessing discovery url failed")?;
        let form = Form::default()
            .with("grant_type", "refresh_token")
            .with("refresh_token", refresh_token)
            .with("scope", &self.config.scope);
        let answer = self.ask_for_tokens(x, &document, form).await?;
        if let Some(id_token) = answer.get("id_token").and_then(Value::as_str) {
            let subject = self.check_id_token(x, &document, id_token, None).await?;
            let before = Token::parse(session.id_token.as_bytes());
            if before.as_ref().and_then(|token| token.claim("sub")).and_then(Value::as_str) != Some(&*subject)
            {
                return Err("the renewed ID token is of another user");
            }
        }
        Ok(answer)
    }

    async fn ask_for_tokens(
        &self,
        x: &Exchange<'_>,
        document: &Document,
        form: Form,
    ) -> Result<Map<String, Value>, &'static str> {
        let remote = document.token.as_ref().ok_or("no endpoint URI for token")?;
        let method = self.token_method(document);
        let answer = self.post(x, (remote, &document.token_url), method, form).await?;
        let r#type = answer.get("token_type").and_then(Value::as_str).unwrap_or_default();
        if self.dpop.is_some() && !r#type.eq_ignore_ascii_case("DPoP") {
            return Err("the provider does not bind the access token to the key of dpop");
        }
        Ok(answer)
    }

    /// When the access token of an answer has to be renewed, in Unix seconds.
    fn access_until(&self, answer: &Map<String, Value>, asked: u64) -> u64 {
        let lifetime = answer.get("expires_in").and_then(Value::as_f64).map(|seconds| seconds as i64);
        let lifetime = lifetime.or(self.config.access_token_expires_in).unwrap_or(3600);
        let leeway = self.config.access_token_expires_leeway.max(0);
        asked.saturating_add(seconds(lifetime.saturating_sub(1).saturating_sub(leeway)))
    }

    /// Takes the tokens of an answer over into a session.
    fn store(&self, session: &mut Session, answer: &Map<String, Value>, asked: u64) {
        let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
        session.access_until = self.access_until(answer, asked);
        session.access_token = text("access_token").or(session.access_token.take());
        session.refresh_token = text("refresh_token").or(session.refresh_token.take());
        if let Some(id_token) = text("id_token") {
            session.id_token = id_token;
        }
    }

    /// The claims of the userinfo endpoint, if they are of this user.
    async fn user(
        &self,
        x: &Exchange<'_>,
        document: &Document,
        access_token: Option<&str>,
        subject: &str,
    ) -> Option<Map<String, Value>> {
        let remote = document.userinfo.as_ref()?;
        let user = self.userinfo(x, (remote, &document.userinfo_url), access_token?).await?;
        Some(user).filter(|user| user.get("sub").and_then(Value::as_str) == Some(subject))
    }

    /// Verifies an ID token, and returns its subject.
    async fn check_id_token(
        &self,
        x: &Exchange<'_>,
        document: &Document,
        text: &str,
        nonce: Option<&str>,
    ) -> Result<String, &'static str> {
        let token = Token::parse(text.as_bytes()).ok_or("the ID token is not a signed token")?;
        let algorithm = token.algorithm().ok_or("the ID token has no algorithm")?;
        let is_listed = |list: &Vec<String>| list.iter().any(|own| own == algorithm);
        if algorithm == "none" {
            let is_unsigned = token.signature().is_some_and(|signature| signature.is_empty());
            if !self.config.accept_none_alg || !is_unsigned {
                return Err("token uses \"none\" alg but accept_none_alg is not enabled");
            }
        } else {
            if !document.id_token_algorithms.as_ref().is_none_or(is_listed) {
                return Err("the ID token is signed by an unexpected algorithm");
            }
            let is_signed = match algorithm.get(..2) {
                Some("HS") => {
                    let secret = self.config.client_secret.as_deref().filter(|secret| !secret.is_empty());
                    secret.is_some_and(|secret| KeySet::of_secret(secret.as_bytes()).verify(&token))
                }
                Some("RS" | "PS" | "ES" | "Ed") => match &self.public_key {
                    Some(key) => key.verify(&token),
                    None => {
                        let keys = self.provider.keys(x, token.key_id()).await;
                        keys.ok_or("the keys of the provider are not available")?.verify(&token)
                    }
                },
                // The token comes from the provider itself (OpenID Connect Core 1.0, section 3.1.3.7).
                _ => self.config.accept_unsupported_alg,
            };
            if !is_signed {
                return Err("the signature of the ID token is wrong");
            }
        }
        let now = x.world().now_ms() as f64 / 1000.0;
        claims::check_id_token(&token, &self.config, document.issuer.as_deref(), nonce, now)?;
        Ok(token.claim("sub").and_then(Value::as_str).unwrap_or_default().to_owned())
    }
}
