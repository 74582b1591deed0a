//! Output of commands. Errors of writing, such as a closed pipe (`| head`), are ignored.

use std::fmt::Display;
use std::io::Write;

/// A line on standard output.
pub fn out(line: impl Display) {
    // There is no other place to report a failure.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A count with its word: `1 change`, `2 changes`.
pub fn counted(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// A point in time, of seconds since 1970: `2026-11-21T10:00:00Z`.
pub fn utc(seconds: u64) -> String {
    let mut text = Vec::new();
    sdk::vars::write_rfc3339(seconds.saturating_mul(1000), &mut text);
    String::from_utf8_lossy(&text).replace(".000Z", "Z")
}

/// A line on standard error.
pub fn err(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
