//! Constructs and the resources they become.

use super::*;

#[test]
fn fixtures_are_valid() {
    for (name, text) in FIXTURES {
        let import = import(text);
        assert_valid(&import, name);
        assert_plugins_accept(&import, name);
    }
}
