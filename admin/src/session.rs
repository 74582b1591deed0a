//! Sessions of the dashboard: a key is exchanged for a cookie, so that no script of the page keeps it.
//!
//! The cookie is `HttpOnly` and `SameSite=Strict`. Requests that change something also need the
//! session's token in `X-CSRF-Token`, and no other origin.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::{self, HeaderMap, HeaderValue};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::author::KeyName;
use crate::config::AdminRole;

/// The name of the cookie.
const COOKIE: &[u8] = b"sluice_session=";

/// Sessions at once; one more ends the one that was unused for longest, of the same key if it has any.
const MOST: usize = 256;

/// A session ends after this time in any case.
const AGE: Duration = Duration::from_hours(12);

/// A session that is not used for this time ends.
const IDLE: Duration = Duration::from_hours(2);

/// A signed-in user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub key: KeyName,
    pub role: AdminRole,
    /// The token for requests that change something.
    pub csrf: String,
}

#[derive(Debug)]
struct Session {
    user: User,
    began: Instant,
    used: Instant,
}

/// The sessions, by the value of their cookie.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, Session>>);

impl Sessions {
    /// Begins a session; returns the value of its cookie.
    pub fn begin(&self, key: KeyName, role: AdminRole, now: Instant) -> (String, User) {
        let secret = || format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let (cookie, csrf) = (secret(), secret());
        let mut all = self.lock();
        all.retain(|_, session| session.lives(now));
        if all.len() >= MOST
            && let Some(oldest) = all
                .iter()
                .min_by_key(|(_, session)| (session.user.key != key, session.used))
                .map(|(one, _)| one.clone())
        {
            all.remove(&oldest);
        }
        let user = User { key, role, csrf };
        all.insert(cookie.clone(), Session { user: user.clone(), began: now, used: now });
        (cookie, user)
    }

    /// Returns the user of a request's session.
    pub fn find(&self, headers: &HeaderMap, now: Instant) -> Option<User> {
        let cookie = cookie_of(headers)?;
        let mut all = self.lock();
        let session = all.get_mut(cookie).filter(|session| session.lives(now))?;
        session.used = now;
        Some(session.user.clone())
    }

    /// Ends a request's session.
    pub fn end(&self, headers: &HeaderMap) {
        if let Some(cookie) = cookie_of(headers) {
            self.lock().remove(cookie);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn lives(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) < AGE && now.saturating_duration_since(self.used) < IDLE
    }
}

impl User {
    /// Whether a request has the session's token.
    pub fn has_token(&self, headers: &HeaderMap) -> bool {
        let token = headers.get("x-csrf-token");
        token.is_some_and(|token| token.as_bytes().ct_eq(self.csrf.as_bytes()).into())
    }
}

/// Adds the cookie of a session to an answer; an empty value deletes it.
pub(crate) fn set_cookie(answer: &mut HeaderMap, value: &str, tls: bool) {
    let age = if value.is_empty() { 0 } else { AGE.as_secs() };
    let secure = if tls { "; Secure" } else { "" };
    let cookie = format!("sluice_session={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        answer.insert(header::SET_COOKIE, cookie);
    }
}

fn cookie_of(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut parts = cookies.flat_map(|cookie| cookie.as_bytes().split(|byte| *byte == b';'));
    let value = parts.find_map(|part| part.trim_ascii().strip_prefix(COOKIE))?;
    std::str::from_utf8(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(cookie: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("a=b; sluice_session={cookie}; c=d").parse().unwrap());
        headers
    }

    #[test]
    fn sessions_end_by_age_disuse_and_sign_out() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let begin = || sessions.begin(KeyName::Named("a".to_owned()), AdminRole::Viewer, start).0;
        let (one, other) = (begin(), begin());
        assert_ne!(one, other);
        let user = sessions.find(&headers(&one), start).unwrap();
        assert_eq!(user.role, AdminRole::Viewer);
        assert!(
            sessions.find(&HeaderMap::new(), start).is_none()
                && sessions.find(&headers("x"), start).is_none()
        );
        sessions.end(&headers(&other));
        assert!(sessions.find(&headers(&other), start).is_none());
        // Used each hour, it lasts for twelve.
        for hour in 1..12 {
            assert!(sessions.find(&headers(&one), start + Duration::from_hours(hour)).is_some(), "{hour}");
        }
        assert!(sessions.find(&headers(&one), start + AGE).is_none());
        let unused = begin();
        assert!(sessions.find(&headers(&unused), start + IDLE).is_none());
    }

    #[test]
    fn their_number_is_bounded() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let begin =
            |at| sessions.begin(KeyName::NotAsked, AdminRole::Admin, start + Duration::from_millis(at)).0;
        let first = begin(0);
        (1..=MOST as u64).for_each(|at| drop(begin(at)));
        assert!(sessions.find(&headers(&first), start + Duration::from_secs(1)).is_none());
        assert_eq!(sessions.lock().len(), MOST);
    }

    #[test]
    fn a_key_ends_no_session_of_another_key() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let begin = |name: &str, at| {
            let at = start + Duration::from_millis(at);
            sessions.begin(KeyName::Named(name.to_owned()), AdminRole::Viewer, at).0
        };
        let (admin, first) = (begin("admin", 0), begin("viewer", 1));
        (1..=2 * MOST as u64).for_each(|at| drop(begin("viewer", at)));
        let find = |cookie: &str| sessions.find(&headers(cookie), start + Duration::from_secs(1));
        assert!(find(&admin).is_some() && find(&first).is_none());
    }

    #[test]
    fn the_token_must_be_the_sessions_own() {
        let (_, user) = Sessions::default().begin(KeyName::NotAsked, AdminRole::Admin, Instant::now());
        let mut headers = HeaderMap::new();
        assert!(!user.has_token(&headers));
        headers.insert("x-csrf-token", "other".parse().unwrap());
        assert!(!user.has_token(&headers));
        headers.insert("x-csrf-token", user.csrf.parse().unwrap());
        assert!(user.has_token(&headers));
    }
}
