//! How the control plane is doing, for the control API, metrics and tests.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::{Diagnostic, Invalid, Key, Kind, Rejected, Served};
use snapshot::compile::Expiry;

use crate::store::Revision;

/// Numbers by kind.
pub type Counts = [(Kind, usize); Kind::ALL.len()];

/// A moment of a pipeline.
#[derive(Debug, Clone)]
pub struct Report {
    /// The store's revision of the published snapshot.
    pub revision: Revision,
    /// `None` until the first.
    pub published: Option<SystemTime>,
    /// How many resources of each kind are served, in this or an older form.
    pub counts: Counts,
    /// Resources that are not served as they are written.
    pub rejected: Arc<[Rejected]>,
    /// Resources that name others which do not exist.
    pub dangling: Arc<[Rejected]>,
    /// Items of a declarative file that were rejected.
    pub findings: Arc<[Diagnostic]>,
    /// Plugins that are not built and that resources are served without; how many name each.
    pub unseen_plugins: Vec<(&'static str, usize)>,
    /// Settings of resources that have no effect: the first, and how many resources ask so.
    pub without_effect: (Arc<[(Key, Invalid)]>, usize),
    /// Names that cannot be looked up now, and why.
    pub failing_names: Vec<(String, String)>,
    /// When the certificates of ssl resources expire, the soonest first.
    pub expiries: Arc<[Arc<Expiry>]>,
    /// Secrets that resources refer to, and how many of them have no value.
    pub secrets: (usize, usize),
    /// Snapshots published so far.
    pub compiles: u64,
    pub last_compile: Duration,
    pub longest_compile: Duration,
    /// All compiles together.
    pub compiling: Duration,
    /// Snapshots in memory, the current one included.
    pub kept_snapshots: usize,
}

impl Default for Report {
    fn default() -> Report {
        Report {
            revision: 0,
            published: None,
            counts: Kind::ALL.map(|kind| (kind, 0)),
            rejected: Arc::default(),
            dangling: Arc::default(),
            findings: Arc::default(),
            unseen_plugins: Vec::new(),
            without_effect: Default::default(),
            failing_names: Vec::new(),
            expiries: Arc::default(),
            secrets: (0, 0),
            compiles: 0,
            last_compile: Duration::ZERO,
            longest_compile: Duration::ZERO,
            compiling: Duration::ZERO,
            kept_snapshots: 1,
        }
    }
}

/// A resource that names what is not there, for a log.
pub(super) fn dangling_line(dangling: &Rejected) -> String {
    let Rejected { key, invalid, .. } = dangling;
    let at = if invalid.pointer.is_empty() { "" } else { " at " };
    format!("{key} is incomplete: {}{at}{}", invalid.reason, invalid.pointer)
}

/// A rejected resource for a log: which, where, why, what would be right.
pub(super) fn one_line(rejected: &Rejected) -> String {
    let Rejected { key, invalid, served: _ } = rejected;
    let mut line = format!("{key} is not served as written: {}", invalid.reason);
    let mut add = |words: &str, text: &str| {
        // Writing to a string cannot fail.
        let _ = write!(line, "; {words}{text}");
    };
    if !invalid.pointer.is_empty() {
        add("at ", &invalid.pointer);
    }
    let parts = [
        ("expected ", invalid.expected.as_deref()),
        ("got ", invalid.got.as_deref()),
        ("", invalid.hint.as_deref()),
    ];
    for (words, text) in parts {
        if let Some(text) = text {
            add(words, text);
        }
    }
    add(
        "",
        match rejected.served {
            Served::LastGoodForm => "its last good form stays in use",
            Served::Refusal => "what it is for is refused",
            Served::Nothing | Served::Incomplete => "it is left out",
        },
    );
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
