//! Constructs and the resources they become.

use super::*;

#[test]
fn fixtures_are_valid() {
    for (name, text) in FIXTURES {
        assert_valid(&import(text), name);
    }
}
