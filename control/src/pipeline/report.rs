//! How the control plane is doing, for the control API, metrics and tests.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::{Diagnostic, Invalid, Key, Kind, Rejected};
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

/// Logs a resource that names others which do not exist.
pub(super) fn log_dangling(dangling: &Rejected) {
    let Rejected { key, invalid, .. } = dangling;
    let Invalid { pointer, reason, .. } = invalid;
    tracing::warn!(resource = key.to_string(), pointer, reason, "resource is incomplete");
}

/// Logs a rejected resource, with the fields that the control API has at `/v1/rejected`.
pub(super) fn log_rejected(rejected: &Rejected) {
    let Rejected { key, invalid, served } = rejected;
    let Invalid { pointer, reason, expected, got, hint, .. } = invalid;
    let (expected, got, hint) = (expected.as_deref(), got.as_deref(), hint.as_deref());
    let pointer = Some(&**pointer).filter(|pointer| !pointer.is_empty());
    let (resource, state) = (key.to_string(), served.as_str());
    tracing::error!(
        resource,
        pointer,
        reason,
        expected,
        got,
        hint,
        state,
        "resource is not served as written"
    );
}
