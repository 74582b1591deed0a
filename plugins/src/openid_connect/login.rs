//! The login of a browser: authorization code flow, session, logout.

use aws_lc_rs::digest;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use indexmap::IndexMap;
use sdk::consumers::ExternalUser;
use sdk::{Exchange, Method, Plugin, Reply, Step, target};
use serde_json::{Map, Value, json};

use super::client::{Form, random};
use super::config::{Config, UnauthAction, seconds};
use super::provider::Document;
use super::session::{Cookies, Kept, Login, Logins, Session};
use super::{ID_TOKEN, OpenidConnect, RAW_ID_TOKEN, REFRESH_TOKEN, USERINFO, claims};
use crate::jwt_auth::token::Token;
use crate::query::{self, Arg};

/// Behind the path of the request, where `redirect_uri` is not configured.
const SUFFIX: &str = "/.apisix/redirect";

/// How often a login that failed is begun again.
const RESTARTS: u8 = 3;

/// The longest path and query that a browser is sent back to, in bytes.
const LONGEST_URL: usize = 2048;

const TOO_LONG: &str = "the session is too long";

/// The settings of logins.
pub(super) struct LoginRules {
    pub cookies: Cookies,
    redirect: Redirect,
}

/// Where the provider sends browsers to.
enum Redirect {
    /// At the gateway's own host, with this path.
    Path(String),
    Url {
        url: String,
        path: String,
    },
    /// At the path of the request, with [`SUFFIX`].
    Appended,
}

impl LoginRules {
    pub fn new(config: &Config, cookies: Cookies) -> LoginRules {
        let redirect = match config.redirect_uri.as_deref() {
            None | Some("") => Redirect::Appended,
            Some(path) if path.starts_with('/') => Redirect::Path(path.to_owned()),
            Some(url) => {
                let path = path_of(url).to_owned();
                Redirect::Url { url: url.to_owned(), path }
            }
        };
        LoginRules { cookies, redirect }
    }

    /// Whether the request is one that the provider sent.
    fn is_callback(&self, path: &[u8]) -> bool {
        match &self.redirect {
            Redirect::Path(own) => path == path_of(own).as_bytes(),
            Redirect::Url { path: own, .. } => path == own.as_bytes(),
            Redirect::Appended => path.ends_with(SUFFIX.as_bytes()),
        }
    }

    fn redirect_uri(&self, x: &Exchange<'_>) -> String {
        let here = |path: &str| format!("{}://{}{path}", scheme(x), host(x));
        match &self.redirect {
            Redirect::Path(path) => here(path),
            Redirect::Url { url, .. } => url.clone(),
            Redirect::Appended => {
                let mut path = Vec::new();
                target::encode_path(x.path(), &x.request().path_rules, &mut path);
                let path = String::from_utf8_lossy(&path).into_owned();
                match path.ends_with(SUFFIX) {
                    true => here(&path),
                    false => here(&format!("{}{SUFFIX}", path.strip_suffix('/').unwrap_or(&path))),
                }
            }
        }
    }
}

/// The path of an URL, or of an URL without its host.
fn path_of(url: &str) -> &str {
    let rest = url.split(['?', '#']).next().unwrap_or_default();
    match rest.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => rest,
    }
}

/// A parameter of the first element of `Forwarded` (RFC 7239), else the first value of another header. The gateway has
/// removed these headers of peers that are not trusted.
fn forwarded(x: &Exchange<'_>, parameter: &str, header: &str) -> Option<Vec<u8>> {
    let first = |name: &str| x.header(name).and_then(|value| value.split(|byte| *byte == b',').next());
    let of_pair = |pair: &[u8]| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let value = pair[at + 1..].trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
        pair[..at].trim_ascii().eq_ignore_ascii_case(parameter.as_bytes()).then(|| value.to_vec())
    };
    let found = first("Forwarded").and_then(|element| element.split(|byte| *byte == b';').find_map(of_pair));
    found.or_else(|| first(header).map(|value| value.trim_ascii().to_vec()))
}

/// The scheme that the browser uses.
pub(super) fn scheme(x: &Exchange<'_>) -> &'static str {
    match forwarded(x, "proto", "X-Forwarded-Proto") {
        Some(proto) if proto.eq_ignore_ascii_case(b"https") => "https",
        Some(proto) if proto.eq_ignore_ascii_case(b"http") => "http",
        _ => x.client().scheme(),
    }
}

fn host(x: &Exchange<'_>) -> String {
    let is_host = |host: &Vec<u8>| {
        let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(byte);
        !host.is_empty() && host.iter().all(is_valid)
    };
    let host = forwarded(x, "host", "X-Forwarded-Host").filter(is_host);
    String::from_utf8_lossy(&host.unwrap_or_else(|| x.request().authority().to_vec())).into_owned()
}

/// Path and query of the request, for a `Location` at the same host: never one that begins with two slashes, which
/// would lead to another.
fn own_url(x: &Exchange<'_>) -> String {
    let mut url = Vec::new();
    x.request().write_normal_target(&mut url);
    let start = url.iter().position(|byte| !b"/\\".contains(byte)).unwrap_or(url.len());
    url.splice(..start, *b"/");
    match String::from_utf8(url) {
        Ok(url) if url.len() <= LONGEST_URL && url.bytes().all(|byte| byte.is_ascii_graphic()) => url,
        _ => "/".to_owned(),
    }
}

fn fail(reason: &'static str) -> Step {
    Step::Reply(Reply::status(500).because(reason))
}

pub(super) fn redirect(to: impl Into<Vec<u8>>) -> Step {
    let reply = Reply::status(302).header("Location", to);
    Step::Reply(reply.header("Cache-Control", "no-cache, no-store, max-age=0"))
}

impl OpenidConnect {
    /// Handles a request without a token: by its session, or by a login.
    pub(super) async fn log_in(&self, x: &mut Exchange<'_>, rules: &LoginRules) -> Step {
        self.hide_bearer(x);
        let now = x.world().now_ms() / 1000;
        if rules.is_callback(x.path()) {
            return self.callback(x, rules, now).await.unwrap_or_else(|why| {
                x.complain(Self::NAME, why);
                fail(why)
            });
        }
        let found = match rules.cookies.session(x, now).await {
            Ok(found) => found,
            Err(why) => return self.storage_unavailable(x, why),
        };
        if x.path() == path_of(&self.config.logout_path).as_bytes() {
            return self.log_out(x, rules, found.map(|(session, _)| session)).await;
        }
        let current = match found {
            Some((session, changed)) => self.keep_current(x, rules, session, now, changed).await,
            None => Ok(None),
        };
        match current {
            Ok(Some(session)) if !self.config.force_reauthorize => {
                let interval = self.config.refresh_session_interval.map(seconds);
                if interval.is_some_and(|interval| session.asked.saturating_add(interval) < now) {
                    return self.authorize(x, rules, now, Some("none")).await;
                }
                return self.pass_session(x, rules, &session);
            }
            Ok(_) => {}
            Err(step) => return step,
        }
        match self.config.unauth_action {
            UnauthAction::Auth => self.authorize(x, rules, now, None).await,
            UnauthAction::Deny => Step::Reply(Reply::status(401).because("unauthorized request")),
            UnauthAction::Pass => {
                rules.cookies.hide(x);
                Step::Next
            }
        }
    }

    /// Removes a token of the client from `Authorization`, if the upstream expects that of the session there: nothing has
    /// verified it.
    fn hide_bearer(&self, x: &mut Exchange<'_>) {
        let is_ours = self.config.set_access_token_header && self.config.access_token_in_authorization_header;
        let is_bearer =
            |value: &[u8]| value.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"));
        if is_ours && x.request().fields.all(b"authorization").any(is_bearer) {
            x.remove_header("Authorization");
        }
    }

    pub(super) fn storage_unavailable(&self, x: &Exchange<'_>, why: &'static str) -> Step {
        x.complain(Self::NAME, why);
        Step::Reply(Reply::status(503).because("the storage of sessions does not answer"))
    }

    /// Renews the access token if it has expired, and writes a session that has changed. `None` if the browser has to log
    /// in again.
    async fn keep_current(
        &self,
        x: &mut Exchange<'_>,
        rules: &LoginRules,
        mut session: Session,
        now: u64,
        mut changed: bool,
    ) -> Result<Option<Session>, Step> {
        let renews = self.config.renew_access_token_on_expiry;
        match &session.access_token {
            None if renews => return Ok(None),
            Some(_) if now >= session.access_until && renews => {
                if let Err(why) = self.renew(x, &mut session, now).await {
                    // Another worker or node may have renewed it meanwhile.
                    let token = session.access_token.clone();
                    let kept = rules
                        .cookies
                        .session(x, now)
                        .await
                        .map_err(|why| self.storage_unavailable(x, why))?;
                    let renewed = kept.filter(|(kept, _)| kept.access_token != token);
                    if renewed.is_none() {
                        x.complain(Self::NAME, why);
                    }
                    return Ok(renewed.map(|(session, _)| session));
                }
                changed = true;
            }
            Some(_) if now >= session.access_until => session.access_token = None,
            None | Some(_) => {}
        }
        let secure = scheme(x) == "https";
        let is_kept = !changed || self.set_session(x, rules, &mut session, secure).await?;
        if !is_kept && self.config.revoke_tokens_on_logout {
            // The logout knew only those before.
            if let Some(document) = self.provider.document(x).await {
                self.revoke(x, &document, &session).await;
            }
        }
        Ok(is_kept.then_some(session))
    }

    /// Sends the browser to the provider.
    async fn authorize(
        &self,
        x: &mut Exchange<'_>,
        rules: &LoginRules,
        now: u64,
        prompt: Option<&str>,
    ) -> Step {
        const FAILED: &str = "a random number could not be made";
        let Some(document) = self.provider.document(x).await else {
            return fail("accessing discovery url failed");
        };
        if document.authorization.is_none() {
            return fail("the discovery document has no valid authorization_endpoint");
        }
        let (Some(state), nonce, verifier) =
            (random(24), self.config.use_nonce.then(|| random(24)), self.config.use_pkce.then(|| random(32)))
        else {
            return fail(FAILED);
        };
        let (Some(nonce), Some(verifier)) = (
            nonce.map_or(Some(None), |made| made.map(Some)),
            verifier.map_or(Some(None), |made| made.map(Some)),
        ) else {
            return fail(FAILED);
        };
        let redirect_uri = rules.redirect_uri(x);
        let params = self.params(&state, nonce.as_deref(), verifier.as_deref(), &redirect_uri, prompt);
        let params = match self.config.par.enabled {
            false => params,
            true => match self.push(x, &document, params).await {
                Ok(params) => params,
                Err(why) => {
                    x.complain(Self::NAME, why);
                    return fail(why);
                }
            },
        };
        let mut logins = rules.cookies.logins(x, now);
        logins.begin(Login { state, nonce, verifier, redirect_uri, url: own_url(x), at: now });
        let secure = scheme(x) == "https";
        if rules.cookies.set_logins(x, &logins, secure).is_none() {
            return fail("the login cannot be noted in cookies");
        }
        redirect(with_query(&document.authorization_url, params))
    }

    fn params(
        &self,
        state: &str,
        nonce: Option<&str>,
        verifier: Option<&str>,
        redirect_uri: &str,
        prompt: Option<&str>,
    ) -> Form {
        let mut params: IndexMap<&str, String> = IndexMap::new();
        params.insert("response_type", "code".to_owned());
        params.insert("client_id", self.config.client_id.clone());
        params.insert("scope", self.config.scope.clone());
        params.insert("redirect_uri", redirect_uri.to_owned());
        params.insert("state", state.to_owned());
        if let Some(nonce) = nonce {
            params.insert("nonce", nonce.to_owned());
        }
        if let Some(prompt) = prompt {
            params.insert("prompt", prompt.to_owned());
        }
        if let Some(verifier) = verifier {
            let hash = digest::digest(&digest::SHA256, verifier.as_bytes());
            params.insert("code_challenge_method", "S256".to_owned());
            params.insert("code_challenge", BASE64_URL_SAFE_NO_PAD.encode(hash));
        }
        for (name, value) in &self.config.authorization_params {
            match value {
                Value::String(text) => params.insert(name, text.clone()),
                Value::Number(_) | Value::Bool(_) => params.insert(name, value.to_string()),
                _ => None,
            };
        }
        params.iter().fold(Form::default(), |form, (name, value)| form.with(name, value))
    }

    /// Pushes the request to the provider (RFC 9126), which gives a reference to it.
    async fn push(&self, x: &Exchange<'_>, document: &Document, params: Form) -> Result<Form, &'static str> {
        let own = self.pushed.as_ref().zip(self.config.par.endpoint.as_deref());
        let found = own.or(document.pushed.as_ref().map(|remote| (remote, &*document.pushed_url)));
        let (remote, url) = found.ok_or("no endpoint URI for pushed authorization requests")?;
        let configured = self.config.par.endpoint_auth_method.as_deref();
        let method = configured.unwrap_or_else(|| self.token_method(document));
        let answer = self.post(x, (remote, url), method, params).await?;
        let reference = answer.get("request_uri").and_then(Value::as_str);
        let reference = reference.ok_or("the provider's response has no request_uri")?;
        Ok(Form::default().with("client_id", &self.config.client_id).with("request_uri", reference))
    }

    pub(super) fn token_method<'m>(&'m self, document: &'m Document) -> &'m str {
        self.client.method(&self.config.token_endpoint_auth_method, document.auth_methods.as_ref())
    }

    /// Handles the answer of the provider that the browser brings.
    async fn callback(
        &self,
        x: &mut Exchange<'_>,
        rules: &LoginRules,
        now: u64,
    ) -> Result<Step, &'static str> {
        let argument = |x: &Exchange<'_>, name: &str| match query::find(x.query(), name.as_bytes()) {
            Arg::One(value) => String::from_utf8(value.into_owned()).ok(),
            Arg::Absent | Arg::Other => None,
        };
        let mut logins = rules.cookies.logins(x, now);
        let (code, state) = (argument(x, "code"), argument(x, "state"));
        let Some(latest) = logins.list.last().map(|login| login.url.clone()) else {
            return Err("request to the redirect_uri path but there's no session state found");
        };
        let login = state.as_deref().and_then(|state| logins.take(state));
        let (code, login) = match (code, login) {
            (Some(code), Some(login)) => (code, login),
            (Some(_), None) if state.is_some() => {
                return self.restart(x, rules, logins, &latest, "state does not match that of the login");
            }
            (None, Some(login)) if argument(x, "error").as_deref() == Some("temporarily_unavailable") => {
                return self.restart(x, rules, logins, &login.url, "the provider is temporarily unavailable");
            }
            _ => return Err("unhandled request to the redirect_uri"),
        };
        let document = self.provider.document(x).await.ok_or("accessing discovery url failed")?;
        if argument(x, "iss").is_some_and(|iss| Some(iss) != document.issuer) {
            return Err("iss from argument does not match expected issuer");
        }
        if argument(x, "client_id").is_some_and(|id| id != self.config.client_id) {
            return Err("client_id from argument does not match expected client_id");
        }
        let mut session = self.redeem(x, &document, &login, &code, now).await?;
        let secure = scheme(x) == "https";
        if let Err(step) = self.set_session(x, rules, &mut session, secure).await {
            return Ok(step);
        }
        logins.restarts = 0;
        // Removing a login makes the cookie shorter.
        let _ = rules.cookies.set_logins(x, &logins, secure);
        Ok(redirect(login.url))
    }

    /// Sends the browser back to the page it asked for, which begins the login again; a few times only.
    fn restart(
        &self,
        x: &mut Exchange<'_>,
        rules: &LoginRules,
        mut logins: Logins,
        url: &str,
        why: &'static str,
    ) -> Result<Step, &'static str> {
        if x.method() != Method::Get || logins.restarts >= RESTARTS {
            return Err(why);
        }
        logins.restarts += 1;
        let secure = scheme(x) == "https";
        rules.cookies.set_logins(x, &logins, secure).ok_or("the login cannot be noted in cookies")?;
        x.complain(Self::NAME, why);
        Ok(redirect(url))
    }

    /// Writes a session, without the claims of the user if it is too long with them. Returns false if a logout removed it
    /// meanwhile.
    async fn set_session(
        &self,
        x: &mut Exchange<'_>,
        rules: &LoginRules,
        session: &mut Session,
        secure: bool,
    ) -> Result<bool, Step> {
        let mut kept = rules.cookies.set_session(x, session, secure).await;
        if kept == Ok(Kept::TooLong) && session.user.is_some() {
            x.complain(Self::NAME, "the session is too long: the claims of the user are left out");
            session.user = None;
            kept = rules.cookies.set_session(x, session, secure).await;
        }
        match kept {
            Ok(Kept::Yes) => Ok(true),
            Ok(Kept::Gone) => Ok(false),
            Ok(Kept::TooLong) => {
                x.complain(Self::NAME, TOO_LONG);
                Err(fail(TOO_LONG))
            }
            Err(why) => Err(self.storage_unavailable(x, why)),
        }
    }

    /// Accepts a request with a session, and passes its tokens on.
    fn pass_session(&self, x: &mut Exchange<'_>, rules: &LoginRules, session: &Session) -> Step {
        let id_token = Token::parse(session.id_token.as_bytes()).map_or(Value::Null, Token::into_claims);
        let user = session.user.clone().map(Value::Object);
        if let Some(schema) = &self.claim_schema {
            let mut claims = Map::new();
            claims.insert("id_token".to_owned(), id_token.clone());
            claims.extend(user.clone().map(|user| ("user".to_owned(), user)));
            claims
                .extend(session.access_token.clone().map(|token| ("access_token".to_owned(), token.into())));
            if let Err(error) = schema.check(&Value::Object(claims)) {
                return self.invalid_token(&error.to_string(), "the claims do not fit claim_schema");
            }
        }
        if !self.config.required_scopes.is_empty() {
            let token = session.access_token.as_deref().and_then(|token| Token::parse(token.as_bytes()));
            let granted = token.as_ref().and_then(|token| token.claim("scope")).or(id_token.get("scope"));
            let judged = match granted.and_then(Value::as_str) {
                Some(granted) => claims::check_scopes(&self.config.required_scopes, granted),
                None => {
                    let body = json!({"error": "required scopes not present"});
                    Err(Reply::json(403, &body).because("the scopes of the session are unknown"))
                }
            };
            if let Err(reply) = judged {
                return Step::Reply(reply);
            }
        }
        rules.cookies.hide(x);
        let mut vouched = self.vouched(x);
        vouched.add(session.id_token.as_bytes());
        if let Some(token) = &session.access_token {
            self.pass_access_token(x, &mut vouched, token.as_bytes());
        }
        if self.config.set_id_token_header && !id_token.is_null() {
            self.pass_json(x, &mut vouched, ID_TOKEN, &id_token);
        }
        if self.config.set_userinfo_header
            && let Some(user) = &user
        {
            self.pass_json(x, &mut vouched, USERINFO, user);
        }
        if self.config.set_refresh_token_header
            && let Some(token) = &session.refresh_token
        {
            self.pass(x, &mut vouched, REFRESH_TOKEN, token.as_bytes());
        }
        if self.config.set_raw_id_token_header {
            self.pass(x, &mut vouched, RAW_ID_TOKEN, session.id_token.as_bytes());
        }
        x.set_note(vouched);
        // The claims of the ID token, and those of the user in addition.
        let mut claims = match id_token {
            Value::Object(claims) => claims,
            _ => Map::new(),
        };
        claims.extend(session.user.clone().into_iter().flatten());
        x.set_note(ExternalUser(Value::Object(claims)));
        Step::Next
    }
}

pub(super) fn with_query(url: &str, params: Form) -> Vec<u8> {
    let (url, _) = url.split_once('#').unwrap_or((url, ""));
    let params = params.bytes();
    let between = match (params.is_empty(), url.contains('?')) {
        (true, _) => "",
        (false, true) => "&",
        (false, false) => "?",
    };
    [url.as_bytes(), between.as_bytes(), &params].concat()
}
