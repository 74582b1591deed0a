//! Host names that are met at run time.
//!
//! Names in settings are resolved when they are compiled ([`crate::Build::target`]). A name that only a request brings
//! is looked up by the control plane: a worker sends it there, awaits the answer, and keeps it for its time.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The control plane's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// At least one address, or the reason for none.
    pub addresses: Result<Arc<[IpAddr]>, Arc<str>>,
    /// How long that holds.
    pub ttl: Duration,
}

/// The future of an answer; `None` if too many questions wait.
pub type Answer = Pin<Box<dyn Future<Output = Option<Resolved>> + Send>>;

/// Looks up names on the control side.
pub trait Resolve: Send + Sync {
    /// Must not wait.
    fn resolve(&self, host: &str) -> Answer;
}

/// Why a name was not resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolveError {
    /// The name server's reason.
    Failed(Arc<str>),
    Timeout,
    /// Too many names are being resolved.
    Limit,
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResolveError::Failed(why) => f.write_str(why),
            ResolveError::Timeout => f.write_str("resolving timed out"),
            ResolveError::Limit => {
                f.write_str("too many names are being resolved (nginx_config.http.max_resolved_names)")
            }
        }
    }
}

impl std::error::Error for ResolveError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_text() {
        for (error, word) in [
            (ResolveError::Failed("there is no such name".into()), "no such name"),
            (ResolveError::Timeout, "timed out"),
            (ResolveError::Limit, "max_resolved_names"),
        ] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
