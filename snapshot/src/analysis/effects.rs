//! Settings of resources that have no effect, since this version does not implement them.

use model::gaps;

use super::{Analysis, Code, Input};

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    for entry in of.desired.iter() {
        for invalid in gaps::ignored_by(&entry.key, entry.resource()) {
            found.add(Code::NoEffect, &entry.key, invalid);
        }
    }
}
