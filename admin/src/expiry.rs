//! Certificates and how long they are still valid, for the status.

use serde_json::{Map, Value, json};

/// A certificate in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiring {
    pub source: Source,
    /// In seconds since 1970.
    pub not_after: i64,
    /// Whole days; below 0 once it has expired.
    pub days_left: i64,
}

/// Where a certificate is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An ssl resource, with the first name it is served under; one that is shown to upstreams has none.
    Ssl { id: String, sni: Option<String> },
    /// A file that the gateway read at its start.
    File(String),
}

/// Certificates that the status lists.
pub(crate) const MOST: usize = 20;

pub(crate) fn listed(soonest: &[Expiring]) -> Value {
    let entry = |one: &Expiring| {
        let mut entry = match &one.source {
            Source::Ssl { id, sni } => {
                let mut entry = Map::new();
                entry.insert("ssl".to_owned(), id.as_str().into());
                if let Some(sni) = sni {
                    entry.insert("sni".to_owned(), sni.as_str().into());
                }
                entry
            }
            Source::File(path) => Map::from_iter([("file".to_owned(), json!(path))]),
        };
        entry.insert("not_after".to_owned(), one.not_after.into());
        entry.insert("days_left".to_owned(), one.days_left.into());
        Value::Object(entry)
    };
    soonest.iter().map(entry).collect()
}
