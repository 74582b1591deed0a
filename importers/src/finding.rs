//! The reports of an importer about constructs.

use std::fmt;
use std::sync::Arc;

use model::{Key, Position};

/// Where a construct stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: Arc<str>,
    pub position: Position,
}

/// How a difference to the original matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// No effect on traffic.
    Cosmetic,
    /// Clients or upstreams may observe a difference.
    Behaviour,
    /// Access control, a limit or a verification of TLS is missing. The route is not served until the
    /// user accepts the finding.
    Guard,
}

impl Severity {
    /// As in reports: `guard`, `behaviour`, `cosmetic`.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Cosmetic => "cosmetic",
            Severity::Behaviour => "behaviour",
            Severity::Guard => "guard",
        }
    }
}

/// A construct that is not carried over, or not exactly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub place: Place,
    pub severity: Severity,
    /// The construct as its file names it: `plugins[].config.policy`, `proxy_cache`.
    pub construct: String,
    /// Its effect here, as a sentence without a final period.
    pub effect: String,
    /// How to get the same behaviour, if there is a way.
    pub hint: Option<String>,
    /// The routes that it concerns; of a guard, those that are not served. Empty if it concerns all.
    pub resources: Vec<Key>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.position)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}: {}", self.place, self.severity.as_str(), self.construct, self.effect)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}
