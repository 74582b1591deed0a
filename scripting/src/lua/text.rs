//! Errors of scripts, as they are logged and reported.

use mlua::Error;

/// Longer messages are cut, in bytes.
const LONGEST: usize = 4096;

/// The message of an error, without the stack traceback.
pub(super) fn message(error: &Error) -> String {
    let mut text = match error {
        Error::RuntimeError(text) | Error::MemoryError(text) => text.clone(),
        Error::SyntaxError { message, .. } => message.clone(),
        Error::CallbackError { cause, .. } => message(cause),
        other => other.to_string(),
    };
    let end = text.find("\nstack traceback:").unwrap_or(text.len());
    text.truncate(text.floor_char_boundary(end.min(LONGEST)));
    text
}

/// Whether a machine has no room for more: neither code nor data of a script need be wrong.
pub(super) fn is_full(error: &Error) -> bool {
    match error {
        Error::MemoryError(_) | Error::StackError => true,
        Error::CallbackError { cause, .. } => is_full(cause),
        _ => false,
    }
}

/// The line that a message `NAME:LINE: …` is about, and its source.
pub(super) fn excerpt(message: &str, source: &str) -> Option<(usize, String)> {
    let number = line(message)?;
    let text = source.lines().nth(number.checked_sub(1)?)?;
    Some((number, text.trim().chars().take(120).collect()))
}

/// The first `:NUMBER:` of a message.
fn line(message: &str) -> Option<usize> {
    let mut rest = message;
    while let Some((_, after)) = rest.split_once(':') {
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits > 0 && after[digits..].starts_with(':') {
            return after[..digits].parse().ok();
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_line() {
        let source = "local a = 1\nlocal b = = 2\n";
        assert_eq!(
            excerpt("[string \"local a = 1...\"]:2: unexpected symbol near '='", source),
            Some((2, "local b = = 2".to_owned()))
        );
        assert_eq!(excerpt("script.lua:9: x", source), None);
        assert_eq!(excerpt("no line", source), None);
        let error = Error::RuntimeError("a:1: b\nstack traceback:\n\t[C]: in ?".to_owned());
        assert_eq!(message(&error), "a:1: b");
    }
}
