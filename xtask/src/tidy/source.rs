//! A Rust file as tidy sees it: its text, and its code with comments and texts blanked.

pub struct Source {
    /// From the root of the repository.
    pub path: String,
    pub text: String,
    /// Same lines and columns, with comments, strings and characters as spaces.
    pub code: String,
    /// Lines before the test module at the foot of the file.
    pub production_lines: usize,
}

impl Source {
    pub fn new(path: String, text: String) -> Source {
        let code = blank(&text);
        let is_test_file =
            ["/tests/", "/benches/", "/examples/", "/tests.rs"].iter().any(|part| path.contains(part));
        let production_lines = if is_test_file {
            0
        } else {
            let mut lines = code.lines();
            lines.position(|line| line.trim() == "#[cfg(test)]").unwrap_or(usize::MAX)
        };
        Source { path, text, code, production_lines }
    }

    /// The text with its code blanked: comments and strings, with lines kept.
    pub fn prose(&self) -> String {
        let letters = self.text.chars().zip(self.code.chars());
        letters.map(|(letter, code)| if code == letter && letter != '\n' { ' ' } else { letter }).collect()
    }

    pub fn has_module_doc(&self) -> bool {
        self.text
            .lines()
            .take_while(|line| !line.is_empty() || self.text.is_empty())
            .any(|line| line.starts_with("//!"))
    }
}

/// Replaces the inside of comments, strings and character literals by spaces.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            'r' | 'b' | 'c' if !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') => {
                prefixed_string(rest)
            }
            '\'' => character(rest),
            _ => 0,
        };
        if length == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        out.extend(rest[..length].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' }));
        rest = &rest[length..];
    }
    out
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of a string that begins with a quote.
fn string(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a raw, byte or C string; 0 when this is only a name.
fn prefixed_string(rest: &str) -> usize {
    let letters = rest.len() - rest.trim_start_matches(['r', 'b', 'c']).len();
    let after = &rest[letters..];
    if !rest[..letters].contains('r') {
        return if letters == 1 && after.starts_with('"') { letters + string(after) } else { 0 };
    }
    let hashes = after.len() - after.trim_start_matches('#').len();
    if letters > 2 || !after[hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = letters + hashes + 1;
    rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len())
}

/// Length of a character literal; 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => rest[3.min(rest.len())..].find('\'').map_or(0, |at| at + 4),
        Some(_) => match letters.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, blank};

    #[test]
    fn comments_and_texts_are_blanked_and_lines_kept() {
        assert_eq!(blank("a // b\nc"), "a     \nc");
        assert_eq!(blank("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(blank(r#"a("x\"y") b"#), "a(      ) b");
        assert_eq!(blank("r#\"a\"b\"# c"), "         c");
        assert_eq!(blank("'a' '\\n' &'static str for"), "         &'static str for");
        assert_eq!(blank("bar(r, b)"), "bar(r, b)");
    }

    #[test]
    fn prose_is_comments_and_texts() {
        let source = Source::new("a.rs".into(), "let a = \"b c\"; // d\nfn e() {}\n".into());
        assert_eq!(source.prose(), "        \"b c\"  // d\n         \n");
    }

    #[test]
    fn tests_at_the_foot_are_not_production() {
        let source = Source::new("a.rs".into(), "//! d\nfn a() {}\n#[cfg(test)]\nmod tests {}\n".into());
        assert_eq!(source.production_lines, 2);
        assert!(source.has_module_doc());
    }
}
