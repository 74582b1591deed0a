//! Who asks, and what the log says of it: changes, and those who were sent away.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use control::store::Step;

use crate::confirm::Confirm;

/// Who made a change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Author {
    pub peer: IpAddr,
    pub key: KeyName,
    /// What they say of it (`X-Sluice-Message`); may be empty.
    pub message: String,
    /// What they change is undone unless it is confirmed.
    pub confirm: Option<Confirm>,
}

/// The longest message that the history keeps, in characters.
const MAX_MESSAGE: usize = 500;

/// What a request says of the change it makes.
pub(crate) fn message_of(head: &http::request::Parts) -> String {
    let message = head.headers.get("x-sluice-message").map(|value| String::from_utf8_lossy(value.as_bytes()));
    message.unwrap_or_default().chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
}

/// By what they were let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyName {
    /// The `name` of the key in config.yaml.
    Named(String),
    /// No key is asked for.
    NotAsked,
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
    /// For the history of the store.
    pub fn step(&self) -> Step {
        Step::By { author: self.name(), message: self.message.clone() }
    }

    /// The name of the key; empty if none is asked for.
    pub fn name(&self) -> String {
        match &self.key {
            KeyName::Named(name) => name.clone(),
            KeyName::NotAsked => String::new(),
        }
    }

    /// Logs what was changed.
    pub fn changed(&self, method: &http::Method, what: impl fmt::Display, revision: u64) {
        tracing::info!("{method} {what} {self}, revision {revision}");
    }
}

/// Lines of refused requests a second; a guesser must not fill the disk.
const LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Counts lines, of which only so many are written.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// Logs that a request was refused, or counts it.
    pub fn refused(&self, peer: IpAddr, why: &str) {
        if let Some(left_out) = self.may_write(Instant::now()) {
            if left_out > 0 {
                tracing::warn!("{left_out} more Admin API requests were refused");
            }
            tracing::warn!("an Admin API request from {peer} was refused: {why}");
        }
    }

    /// Whether one more may be written now, and how many were left out before it.
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
    fn an_author_is_told_by_key_and_address() {
        let peer = "127.0.0.1".parse().unwrap();
        let named = |name: &str| {
            Author { peer, key: KeyName::Named(name.to_owned()), message: String::new(), confirm: None }
                .to_string()
        };
        assert_eq!(named("admin"), r#"by key "admin" from 127.0.0.1"#);
        // A name is what somebody wrote: no line may come of it.
        assert_eq!(named("a\nb"), r#"by key "a\nb" from 127.0.0.1"#);
        let unasked = Author { peer, key: KeyName::NotAsked, message: String::new(), confirm: None };
        assert_eq!(unasked.to_string(), "without a key from 127.0.0.1");
    }

    #[test]
    fn lines_are_bounded_and_what_is_left_out_is_counted() {
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
