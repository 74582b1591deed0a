//! What commands print. A reader that has gone away (`| head`) is no reason to panic.

use std::fmt::Display;
use std::io::Write;

/// A line on standard output.
pub fn out(line: impl Display) {
    // Nobody is left to tell.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A line on standard error.
pub fn err(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
