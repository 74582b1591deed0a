//! The text of a file before it is parsed, and mistakes in it.

use model::SyntaxError;

use crate::Variables;

/// Replaces `${NAME}`, and `${NAME:default}`, by variables that are set. Envoy itself replaces nothing; such files are
/// templates that a script fills in.
pub(super) fn with_variables(text: &str, variables: Variables<'_>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let end = after.find(['}', '\n']).filter(|end| after.as_bytes()[*end] == b'}');
        let value = end.and_then(|end| {
            let inner = &after[2..end];
            let (name, default) = match inner.split_once(':') {
                Some((name, default)) => (name, Some(default.trim_start_matches('-'))),
                None => (inner, None),
            };
            let is_name =
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let value = if is_name { variables(name).or(default.map(str::to_owned)) } else { None };
            // A value of several lines would change the structure of the file.
            Some((end, value.filter(|value| !value.contains('\n'))?))
        });
        match value {
            Some((end, value)) => {
                out.push_str(&value);
                rest = &after[end + 1..];
            }
            None => {
                out.push_str("${");
                rest = &after[2..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Explains a mistake where names of an item are not aligned with its first one.
pub(super) fn explained(text: &str, mut error: SyntaxError) -> SyntaxError {
    let lines: Vec<&str> = text.lines().collect();
    let Some(at) = (error.position.line as usize).checked_sub(1).filter(|at| *at < lines.len()) else {
        return error;
    };
    // The parser may notice it one line later.
    for at in [at, at.saturating_sub(1)] {
        let line = lines[at];
        let indent = indentation(line);
        let above = lines[..at]
            .iter()
            .rev()
            .find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
        let Some(item) = above.filter(|above| above.trim_start().starts_with("- ")) else { continue };
        let names = line.contains(':') && !line.trim_start().starts_with('-');
        if names && indentation(item) == indent {
            let name = line.trim().split(':').next().unwrap_or_default();
            error.message = format!("`{name}` stands beside the `-` of the item above, not within the item");
            error.position = model::Position { line: at as u32 + 1, column: indent as u32 + 1 };
            error.hint = Some(format!(
                "indent this line and those below it that belong to the item by two more spaces: `{}{name}:`",
                " ".repeat(indent + 2)
            ));
            return error;
        }
    }
    error
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
