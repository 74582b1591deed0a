//! Which keys of a `config.yaml` are known, used, without effect, or wrong.

use serde_json::Value;

use super::keys;
use crate::Invalid;
use crate::diagnostic::{Diagnostic, Severity, Source};
use crate::document::Document;
use crate::invalid::push_pointer;
use crate::schema::json_name;

/// Gathers what is found in a file.
pub struct Findings<'a> {
    source: Source<'a>,
    document: &'a Document,
    found: Vec<Diagnostic>,
    failed: bool,
}

impl<'a> Findings<'a> {
    pub fn new(source: Source<'a>, document: &'a Document) -> Findings<'a> {
        Findings { source, document, found: Vec::new(), failed: false }
    }

    /// Checks the whole document against the table of keys.
    pub fn check(&mut self) {
        self.check_map(&self.document.value, "", "");
    }

    /// Reads what was checked, unless it is wrong; gives all findings in the order of the file.
    pub fn finish<T>(
        mut self,
        read: impl FnOnce() -> Result<T, Invalid>,
    ) -> Result<(T, Vec<Diagnostic>), Vec<Diagnostic>> {
        let value = if self.failed { None } else { read().map_err(|invalid| self.error(invalid)).ok() };
        self.found.sort_by_key(|found| (found.line, found.column));
        match value {
            Some(value) => Ok((value, self.found)),
            None => Err(self.found),
        }
    }

    /// Checks a map against the rows below `path` (names joined with dots).
    fn check_map(&mut self, value: &Value, path: &str, pointer: &str) {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => return,
            other => {
                let invalid = Invalid::new(format!("wrong type: expected object, got {}", json_name(other)))
                    .at(pointer)
                    .expected("a map of names to values")
                    .got(json_name(other));
                return self.error(invalid);
            }
        };
        for (name, value) in map {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let mut pointer = pointer.to_owned();
            push_pointer(&mut pointer, name);
            let below = keys::ROWS.iter().any(|row| is_prefix(&path, row.path));
            match keys::ROWS.iter().find(|row| matches(&path, row.path)) {
                _ if below => self.check_map(value, &path, &pointer),
                Some(row) => self.check_row(row, value, &path, pointer),
                None => {
                    let invalid = match keys::MOVED.iter().find(|(old, _)| *old == path) {
                        Some((_, new)) => Invalid::new(format!("unknown key `{path}`"))
                            .expected("a known property")
                            .hint(format!("this moved to `{new}` in APISIX 3")),
                        None => Invalid::unknown_key(&path, name, siblings(&path)),
                    };
                    self.error(invalid.at(pointer));
                }
            }
        }
    }

    fn check_row(&mut self, row: &keys::Row, value: &Value, path: &str, pointer: String) {
        if let Some(why) = row.idle {
            let written = value.to_string();
            if written == row.anyway {
                return;
            }
            let position = self.document.key_position(&pointer);
            let position = position.unwrap_or_else(|| self.document.nearest_position(&pointer));
            let invalid = Invalid::new(format!("`{path}` has no effect: {why}")).at(pointer);
            self.found.push(self.source.at(Severity::Warning, position, invalid));
        } else if !value.is_null()
            && let Err(invalid) = row.shape.check(value)
        {
            self.error(invalid.under(&pointer));
        }
    }

    fn error(&mut self, invalid: Invalid) {
        self.failed = true;
        self.found.push(self.source.invalid(self.document, invalid));
    }
}

/// Whether `path` is the row's, `*` being any name.
fn matches(path: &str, row: &str) -> bool {
    let (mut path, mut row) = (path.split('.'), row.split('.'));
    loop {
        match (path.next(), row.next()) {
            (None, None) => return true,
            (Some(name), Some(known)) if known == "*" || known == name => {}
            _ => return false,
        }
    }
}

/// Whether the row lies below `path`.
fn is_prefix(path: &str, row: &str) -> bool {
    let depth = path.split('.').count();
    let mut cut = row.match_indices('.').map(|(at, _)| at);
    cut.nth(depth - 1).is_some_and(|at| matches(path, &row[..at]))
}

/// The names known beside the last of `path`.
fn siblings(path: &str) -> impl Iterator<Item = &'static str> {
    let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent).to_owned();
    keys::ROWS.iter().filter_map(move |row| {
        let rest = if parent.is_empty() {
            row.path
        } else {
            let depth = parent.split('.').count();
            let at = row.path.match_indices('.').nth(depth - 1)?.0;
            if !matches(&parent, &row.path[..at]) {
                return None;
            }
            &row.path[at + 1..]
        };
        rest.split('.').next().filter(|name| *name != "*")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_in_the_table_twice() {
        for (at, row) in keys::ROWS.iter().enumerate() {
            assert!(keys::ROWS[..at].iter().all(|other| other.path != row.path), "{}", row.path);
        }
        for (old, new) in keys::MOVED {
            assert!(keys::ROWS.iter().all(|row| row.path != *old), "{old}");
            assert!(keys::ROWS.iter().any(|row| row.path == *new || is_prefix(new, row.path)), "{new}");
        }
    }
}
