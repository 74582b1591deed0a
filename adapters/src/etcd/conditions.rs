//! The conditions under which etcd makes a transaction.

use control::store::Revision;

use super::keys::Range;
use super::proto::Compare;
use super::proto::compare::{CompareResult, CompareTarget, TargetUnion};

/// A key is as it was; 0 is absent.
pub fn unchanged(key: Vec<u8>, revision: i64) -> Compare {
    compare((key, Vec::new()), CompareResult::Equal, revision)
}

/// Nothing in a range was changed or made after a revision.
pub fn nothing_since(range: Range, revision: Revision) -> Compare {
    let next = i64::try_from(revision).unwrap_or(i64::MAX).saturating_add(1);
    compare(range, CompareResult::Less, next)
}

/// A condition on the revisions at which the keys of a range were last written.
fn compare((key, range_end): Range, result: CompareResult, revision: i64) -> Compare {
    Compare {
        result: result.into(),
        target: CompareTarget::Mod.into(),
        key,
        range_end,
        target_union: Some(TargetUnion::ModRevision(revision)),
    }
}
