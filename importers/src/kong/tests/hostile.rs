//! Broken and hostile files.

use super::*;

#[test]
fn broken_files_are_errors_with_places() {
    for (text, line) in [
        ("_format_version: \"3.0\"\nservices: [\n", 2),
        ("_format_version: \"9\"\n", 1),
        ("- a\n", 0),
        ("\0", 0),
    ] {
        let error = try_import(text).unwrap_err();
        assert!(error.line >= line && !error.message.is_empty(), "{text:?}: {error}");
    }
}
