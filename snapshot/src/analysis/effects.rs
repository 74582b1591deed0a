//! What resources ask for that has no effect, as this version does not have it.

use model::gaps;

use super::{Analysis, Code, Of};

pub(super) fn look(of: Of<'_>, found: &mut Analysis) {
    for entry in of.desired.iter() {
        for invalid in gaps::ignored_by(&entry.key, entry.resource()) {
            found.add(Code::NoEffect, &entry.key, invalid);
        }
    }
}
