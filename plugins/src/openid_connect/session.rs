//! Sessions and logins in encrypted cookies; or sessions in a storage, and their random ids in cookies.
//!
//! A cookie, or a value in the storage, holds a random salt and the text, encrypted by AES-256-GCM with a key that HKDF
//! derives from `session.secret` and the salt, so each has a key of its own. Its purpose, the client's id, the provider
//! and the session's id are authenticated with it: a cookie of another kind or of another client does not open, nor does
//! the value of another session. A long text is split over several cookies (`session`, `session2`, …). The key of a value
//! is a keyed hash of the id, so that who reads the storage cannot use the sessions in it.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac, rand};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use model::Invalid;
use sdk::storage::Storage;
use sdk::{Build, Exchange, HeaderName};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::client::random;
use super::config::{self, Config, seconds};

/// The longest value of one cookie, in bytes: browsers keep 4096 with name and attributes.
const CHUNK: usize = 3_800;

/// Bytes of a session in a storage.
const LONGEST: usize = 64 << 10;

/// Random bytes of a session's id.
const ID: usize = 32;

/// Cookies of one text. All of them must fit into a request's head.
const CHUNKS: usize = 10;

/// Logins that one browser may have under way, as in several tabs; the oldest is forgotten first.
const LOGINS: usize = 4;

/// Seconds for which a login may take.
const LOGIN_TIME: u64 = 600;

/// Seconds between two notes that the session is used.
const TOUCH: u64 = 60;

/// The longest time of a session in a storage, in seconds: the 400 days for which browsers keep a cookie.
const MOST_SECONDS: u64 = 400 * 86_400;

const FORMAT: u8 = 1;
const SALT: usize = 16;

/// How cookies are named, sealed and set.
pub(super) struct Cookies {
    name: String,
    attributes: String,
    secure: Option<bool>,
    same_site: Option<&'static str>,
    secret: Vec<u8>,
    /// Authenticated with each cookie.
    identity: String,
    idling: u64,
    rolling: u64,
    absolute: u64,
    /// The place of sessions, and the beginning of their keys. `None` keeps them in cookies.
    storage: Option<(Arc<dyn Storage>, String)>,
}

/// The purpose of a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Session,
    Login,
}

/// How writing a session went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    TooLong,
    /// A logout removed it meanwhile.
    Gone,
}

/// A browser that has logged in. Times are Unix seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Session {
    /// In a storage; a session that is not there yet has none.
    #[serde(skip)]
    id: Option<String>,
    /// When the browser logged in, and when the session was extended and used last.
    made: u64,
    rolled: u64,
    touched: u64,
    /// When the provider was asked last.
    pub asked: u64,
    /// The ID token as the provider sent it.
    pub id_token: String,
    pub access_token: Option<String>,
    pub access_until: u64,
    pub refresh_token: Option<String>,
    pub user: Option<Map<String, Value>>,
}

/// The logins of a browser that are under way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Logins {
    pub list: Vec<Login>,
    /// How often a failed login was begun again since the last success.
    pub restarts: u8,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Login {
    pub state: String,
    pub nonce: Option<String>,
    pub verifier: Option<String>,
    pub redirect_uri: String,
    /// Path and query that the browser asked for.
    pub url: String,
    pub at: u64,
}

impl Session {
    pub fn new(now: u64) -> Session {
        Session { made: now, rolled: now, touched: now, asked: now, ..Session::default() }
    }
}

impl Logins {
    /// Adds a login, and forgets those that took too long.
    pub fn begin(&mut self, login: Login) {
        self.expire(login.at);
        if self.list.len() >= LOGINS {
            self.list.remove(0);
        }
        self.list.push(login);
    }

    fn expire(&mut self, now: u64) {
        self.list.retain(|login| login.at.saturating_add(LOGIN_TIME) > now);
    }

    /// Takes out the login of this state.
    pub fn take(&mut self, state: &str) -> Option<Login> {
        let at = self.list.iter().position(|login| login.state == state)?;
        Some(self.list.remove(at))
    }
}

impl Cookies {
    /// # Errors
    /// A name or an attribute that cannot stand in a cookie.
    pub fn new(session: &config::Session, config: &Config, cx: &Build<'_>) -> Result<Cookies, Invalid> {
        let name = session.cookie_name.clone().unwrap_or_else(|| "session".to_owned());
        if HeaderName::new(&name).is_err() {
            return Err(Invalid::new("this cannot name a cookie").at("/session/cookie_name").got(name));
        }
        let part = |value: Option<&str>, field: &str| match value {
            Some(text) if text.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b';') => {
                Err(Invalid::new("this cannot stand in a cookie").at(format!("/session/{field}")).got(text))
            }
            value => Ok(value.filter(|text| !text.is_empty()).map(str::to_owned)),
        };
        let path = part(session.cookie_path.as_deref(), "cookie_path")?;
        let mut attributes = format!("; Path={}", path.as_deref().unwrap_or("/"));
        if let Some(domain) = part(session.cookie_domain.as_deref(), "cookie_domain")? {
            attributes.push_str("; Domain=");
            attributes.push_str(&domain);
        }
        if session.cookie_http_only != Some(false) {
            attributes.push_str("; HttpOnly");
        }
        let same_site = match session.cookie_same_site.as_deref() {
            Some("Strict") => Some("Strict"),
            Some("None") => Some("None"),
            Some("Default") => None,
            _ => Some("Lax"),
        };
        let time = |value: Option<i64>, default| value.map_or(default, seconds);
        let storage = match (&*session.storage, &session.redis) {
            ("cookie", _) | (_, None) => None,
            (kind, Some(settings)) => {
                let opened = cx.storage(kind, settings);
                let opened = opened.map_err(|invalid| invalid.under(&format!("/session/{kind}")))?;
                let prefix = settings.get("prefix").and_then(Value::as_str).unwrap_or("sessions");
                Some((opened, format!("{prefix}:{name}:")))
            }
        };
        Ok(Cookies {
            storage,
            name,
            attributes,
            secure: session.cookie_secure,
            same_site,
            secret: session.secret.as_bytes().to_vec(),
            identity: format!("{}\n{}", config.client_id, config.discovery),
            idling: time(session.idling_timeout, 900),
            rolling: time(session.rolling_timeout, 3600),
            absolute: time(session.absolute_timeout.or(session.cookie.lifetime), 86_400),
        })
    }

    /// The session of a request, if it has a valid one, and whether it is to be written again, since its use was noted.
    ///
    /// # Errors
    /// The storage does not answer.
    pub async fn session(&self, x: &Exchange<'_>, now: u64) -> Result<Option<(Session, bool)>, &'static str> {
        let found: Option<Session> = match (&self.storage, self.id(x)) {
            (None, _) => self.read(x, Kind::Session),
            (Some(_), None) => None,
            (Some((storage, prefix)), Some(id)) => {
                let sealed = storage.get(x.world(), &self.key_of(prefix, &id)).await?;
                let plain = sealed.and_then(|sealed| self.open(&self.label(Kind::Session, &id), &sealed));
                let session = plain.and_then(|plain| serde_json::from_slice::<Session>(&plain).ok());
                session.map(|session| Session { id: Some(id), ..session })
            }
        };
        let Some(mut session) = found else { return Ok(None) };
        let is_over = |since: u64, limit: u64| limit > 0 && since.saturating_add(limit) <= now;
        if is_over(session.made, self.absolute)
            || is_over(session.rolled, self.rolling)
            || is_over(session.touched, self.idling)
        {
            return Ok(None);
        }
        let is_used = self.idling > 0 && is_over(session.touched, TOUCH.min(self.idling.div_ceil(2)));
        let is_rolled = self.rolling > 0 && is_over(session.rolled, self.rolling.div_ceil(4) * 3);
        if is_used || is_rolled {
            session.touched = now;
            session.rolled = if is_rolled { now } else { session.rolled };
        }
        Ok(Some((session, is_used || is_rolled)))
    }

    /// The id in the cookie, where sessions are in a storage.
    fn id(&self, x: &Exchange<'_>) -> Option<String> {
        let id = x.cookie(&self.named(Kind::Session, 0))?.strip_prefix(b"1.")?;
        let is_coded = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        let is_id = id.len() == (ID * 8).div_ceil(6) && id.iter().all(is_coded);
        is_id.then(|| String::from_utf8_lossy(id).into_owned())
    }

    /// The logins under way.
    pub fn logins(&self, x: &Exchange<'_>, now: u64) -> Logins {
        let mut logins: Logins = self.read(x, Kind::Login).unwrap_or_default();
        logins.expire(now);
        logins
    }

    fn read<T: DeserializeOwned>(&self, x: &Exchange<'_>, kind: Kind) -> Option<T> {
        let first = x.cookie(&self.named(kind, 0))?;
        let dot = first.iter().position(|byte| *byte == b'.').filter(|at| *at <= 2)?;
        let count: usize = str::from_utf8(&first[..dot]).ok()?.parse().ok()?;
        let mut text = first[dot + 1..].to_vec();
        for at in 1..count.min(CHUNKS) {
            text.extend_from_slice(x.cookie(&self.named(kind, at))?);
        }
        let plain = self.open(&self.label(kind, ""), &BASE64_URL_SAFE_NO_PAD.decode(text).ok()?)?;
        serde_json::from_slice(&plain).ok()
    }

    /// Writes a session.
    ///
    /// # Errors
    /// The storage does not answer, or there are no random numbers.
    pub async fn set_session(
        &self,
        x: &mut Exchange<'_>,
        session: &Session,
        secure: bool,
    ) -> Result<Kept, &'static str> {
        let Some((storage, prefix)) = &self.storage else {
            let written = self.write(x, Kind::Session, session, secure);
            return Ok(if written.is_some() { Kept::Yes } else { Kept::TooLong });
        };
        const FAILED: &str = "the session cannot be encrypted";
        let plain = serde_json::to_vec(session).map_err(|_| FAILED)?;
        if plain.len() > LONGEST {
            return Ok(Kept::TooLong);
        }
        let (is_new, id) = match session.id.clone() {
            Some(id) => (false, id),
            // No session that the browser brought becomes one of a user who logs in.
            None => {
                self.forget(x).await?;
                (true, random(ID).ok_or(FAILED)?)
            }
        };
        let sealed = self.seal(&self.label(Kind::Session, &id), &plain).ok_or(FAILED)?;
        let ends =
            [(session.made, self.absolute), (session.rolled, self.rolling), (session.touched, self.idling)];
        let ends = ends.into_iter().filter(|(_, limit)| *limit > 0);
        let end = ends.map(|(since, limit)| since.saturating_add(limit)).min().unwrap_or(u64::MAX);
        let now = x.world().now_ms() / 1000;
        let ttl = Duration::from_secs(end.saturating_sub(now).clamp(1, MOST_SECONDS));
        let key = self.key_of(prefix, &id);
        if is_new {
            storage.set(x.world(), &key, &sealed, ttl).await?;
        } else if !storage.replace(x.world(), &key, &sealed, ttl).await? {
            return Ok(Kept::Gone);
        }
        self.set(x, Kind::Session, 0, &format!("1.{id}"), secure, "");
        // Those of a session that was in cookies.
        self.remove(x, Kind::Session, 1, secure);
        Ok(Kept::Yes)
    }

    /// Removes the session of a request from the storage.
    ///
    /// # Errors
    /// The storage does not answer.
    pub async fn forget(&self, x: &Exchange<'_>) -> Result<(), &'static str> {
        match (&self.storage, self.id(x)) {
            (Some((storage, prefix)), Some(id)) => storage.remove(x.world(), &self.key_of(prefix, &id)).await,
            _ => Ok(()),
        }
    }

    /// The key of a session. Someone who sees it, and not the secret, does not know the id in the cookie.
    fn key_of(&self, prefix: &str, id: &str) -> Vec<u8> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        let tag = hmac::sign(&secret, format!("openid-connect key\n{id}").as_bytes());
        format!("{prefix}{}", BASE64_URL_SAFE_NO_PAD.encode(tag)).into_bytes()
    }

    /// Sets the cookies of the logins under way, or removes them if there are none.
    pub fn set_logins(&self, x: &mut Exchange<'_>, logins: &Logins, secure: bool) -> Option<()> {
        if logins.list.is_empty() && logins.restarts == 0 {
            self.remove(x, Kind::Login, 0, secure);
            return Some(());
        }
        self.write(x, Kind::Login, logins, secure)
    }

    fn write(&self, x: &mut Exchange<'_>, kind: Kind, what: &impl Serialize, secure: bool) -> Option<()> {
        let text =
            BASE64_URL_SAFE_NO_PAD.encode(self.seal(&self.label(kind, ""), &serde_json::to_vec(what).ok()?)?);
        let count = text.len().div_ceil(CHUNK);
        if count > CHUNKS {
            return None;
        }
        for (at, chunk) in text.as_bytes().chunks(CHUNK).enumerate() {
            let chunk = str::from_utf8(chunk).ok()?;
            let count = if at == 0 { format!("{count}.") } else { String::new() };
            self.set(x, kind, at, &format!("{count}{chunk}"), secure, "");
        }
        self.remove(x, kind, count, secure);
        Some(())
    }

    /// Removes the cookies of this kind from the browser, from this one on.
    pub fn remove(&self, x: &mut Exchange<'_>, kind: Kind, from: usize, secure: bool) {
        for at in from..CHUNKS {
            if x.cookie(&self.named(kind, at)).is_some() {
                self.set(x, kind, at, "", secure, "; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:00 GMT");
            }
        }
    }

    /// Removes the cookies from the request: the upstream has no use for them.
    pub fn hide(&self, x: &mut Exchange<'_>) {
        for kind in [Kind::Session, Kind::Login] {
            for name in (0..CHUNKS).map(|at| self.named(kind, at)) {
                if x.cookie(&name).is_none() {
                    break;
                }
                x.remove_cookie(&name);
            }
        }
    }

    fn set(&self, x: &mut Exchange<'_>, kind: Kind, at: usize, value: &str, secure: bool, more: &str) {
        let mut text = format!("{}={value}{}", self.named(kind, at), self.attributes);
        // The provider sends the browser back from another site: `Strict` would withhold the cookie of the login.
        let same_site = match (kind, self.same_site) {
            (Kind::Login, Some("Strict")) => Some("Lax"),
            (_, same_site) => same_site,
        };
        if let Some(same_site) = same_site {
            text.push_str("; SameSite=");
            text.push_str(same_site);
        }
        if self.secure.unwrap_or(secure) || same_site == Some("None") {
            text.push_str("; Secure");
        }
        if more.is_empty() && kind == Kind::Login {
            text.push_str(&format!("; Max-Age={LOGIN_TIME}"));
        }
        text.push_str(more);
        // Name, attributes and base64 are valid in a head.
        let _ = x.add_response_header("Set-Cookie", text.as_bytes());
    }

    fn named(&self, kind: Kind, at: usize) -> String {
        let number = if at == 0 { String::new() } else { (at + 1).to_string() };
        match kind {
            Kind::Session => format!("{}{number}", self.name),
            Kind::Login => format!("{}_login{number}", self.name),
        }
    }

    fn key(&self, label: &str, salt: &[u8]) -> Option<(LessSafeKey, Nonce)> {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&self.secret);
        let mut out = [0; 44];
        root.expand(&[label.as_bytes()], Length(out.len())).ok()?.fill(&mut out).ok()?;
        let key = UnboundKey::new(&AES_256_GCM, &out[..32]).ok()?;
        Some((LessSafeKey::new(key), Nonce::try_assume_unique_for_key(&out[32..]).ok()?))
    }

    /// The purpose of a text; `id` is that of a session in a storage.
    fn label(&self, kind: Kind, id: &str) -> String {
        let purpose = match kind {
            Kind::Session => "session",
            Kind::Login => "login",
        };
        let id = if id.is_empty() { String::new() } else { format!("\n{id}") };
        format!("openid-connect {purpose}\n{}{id}", self.identity)
    }

    fn seal(&self, label: &str, plain: &[u8]) -> Option<Vec<u8>> {
        let mut salt = [0; SALT];
        rand::fill(&mut salt).ok()?;
        let (key, nonce) = self.key(label, &salt)?;
        let mut text = plain.to_vec();
        key.seal_in_place_append_tag(nonce, Aad::from(label.as_bytes()), &mut text).ok()?;
        Some([&[FORMAT][..], &salt, &text].concat())
    }

    fn open(&self, label: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (&format, rest) = sealed.split_first()?;
        let (salt, text) = rest.split_at_checked(SALT).filter(|_| format == FORMAT)?;
        let (key, nonce) = self.key(label, salt)?;
        let mut text = text.to_vec();
        let length = key.open_in_place(nonce, Aad::from(label.as_bytes()), &mut text).ok()?.len();
        text.truncate(length);
        Some(text)
    }
}
