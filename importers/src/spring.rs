//! Files of Spring Cloud Gateway.

use model::{Diagnostic, Severity};

use crate::{Import, Source};

/// Imports a file.
///
/// # Errors
/// A file that cannot be used as a whole.
pub fn import(source: &Source<'_>) -> Result<Import, Box<Diagnostic>> {
    Err(Box::new(Diagnostic::new(
        Severity::Error,
        source.file,
        "files of Spring Cloud Gateway cannot be imported yet",
    )))
}
