//! The authors of changes, and the log lines about changes and refused requests.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use control::store::Step;

use crate::config::AdminRole;
use crate::confirm::Confirm;

/// The author of a change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Author {
    pub peer: IpAddr,
    pub key: KeyName,
    pub role: AdminRole,
    /// The author's message (`X-Sluice-Message`); may be empty.
    pub message: String,
    /// If set, the change is undone unless it is confirmed.
    pub confirm: Option<Confirm>,
}

/// The longest message that the history keeps, in characters.
const MAX_MESSAGE: usize = 500;

/// Returns the `X-Sluice-Message` of a request, without control characters and cut to [`MAX_MESSAGE`].
pub(crate) fn message_of(head: &http::request::Parts) -> String {
    let message = head.headers.get("x-sluice-message").map(|value| String::from_utf8_lossy(value.as_bytes()));
    message.unwrap_or_default().chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
}

/// The key with which a request was authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyName {
    /// The `name` of the key in config.yaml.
    Named(String),
    /// No key is required.
    NotAsked,
}

impl KeyName {
    /// Returns the name; empty if no key is required.
    pub fn name(&self) -> &str {
        match self {
            KeyName::Named(name) => name,
            KeyName::NotAsked => "",
        }
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            KeyName::Named(name) => write!(f, "by key {name:?} from {}", self.peer),
            KeyName::NotAsked => write!(f, "without a key from {}", self.peer),
        }
    }
}

impl Author {
    /// Returns the step that records the author in the store's history.
    pub fn step(&self) -> Step {
        Step::By { author: self.name(), message: self.message.clone() }
    }

    /// Returns the name of the key; empty if no key is required.
    pub fn name(&self) -> String {
        self.key.name().to_owned()
    }

    /// Logs a change.
    pub fn changed(&self, method: &http::Method, what: impl fmt::Display, revision: u64) {
        tracing::info!("{method} {what} {self}, revision {revision}");
    }
}

/// Log lines about refused requests in a second; a client that guesses keys must not fill the disk.
const LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Limits the log lines about refused requests to [`LINES`] a second and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// Logs a refused request, or only counts it.
    pub fn refused(&self, peer: IpAddr, why: &str) {
        if let Some(left_out) = self.may_write(Instant::now()) {
            if left_out > 0 {
                tracing::warn!("{left_out} more Admin API requests were refused");
            }
            tracing::warn!("an Admin API request from {peer} was refused: {why}");
        }
    }

    /// Returns how many lines were left out before, if one may be written now.
    fn may_write(&self, now: Instant) -> Option<u64> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            counted.since = Some(now);
            counted.written = 0;
        }
        if counted.written >= LINES {
            counted.left_out += 1;
            return None;
        }
        counted.written += 1;
        Some(std::mem::take(&mut counted.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authors_are_logged_with_key_and_address() {
        let peer = "127.0.0.1".parse().unwrap();
        let named = |name: &str| {
            let (key, role) = (KeyName::Named(name.to_owned()), AdminRole::Admin);
            Author { peer, key, role, message: String::new(), confirm: None }.to_string()
        };
        assert_eq!(named("admin"), r#"by key "admin" from 127.0.0.1"#);
        // A name with a line break must not start a new log line.
        assert_eq!(named("a\nb"), r#"by key "a\nb" from 127.0.0.1"#);
        let unasked = Author {
            peer,
            key: KeyName::NotAsked,
            role: AdminRole::Admin,
            message: String::new(),
            confirm: None,
        };
        assert_eq!(unasked.to_string(), "without a key from 127.0.0.1");
    }

    #[test]
    fn lines_are_limited_and_others_counted() {
        let (lines, start) = (Lines::default(), Instant::now());
        for _ in 0..LINES {
            assert_eq!(lines.may_write(start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(lines.may_write(start), None);
        }
        assert_eq!(lines.may_write(start + SECOND), Some(5));
        assert_eq!(lines.may_write(start + SECOND), Some(0));
    }
}
