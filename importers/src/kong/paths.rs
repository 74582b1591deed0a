//! Paths of Kong's routes, and regular expressions.

/// A path of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathRule {
    /// Paths that begin with this text.
    Prefix(String),
    /// Paths whose beginning matches this expression.
    Regex(String),
}

impl PathRule {
    /// Reads a path as a version of the format has it: regular expressions begin with `~` since 3.0; before,
    /// a path with another character than those of plain paths was one.
    pub(super) fn read(path: &str, tilde: bool) -> PathRule {
        if tilde {
            return match path.strip_prefix('~') {
                Some(regex) => PathRule::Regex(regex.to_owned()),
                None => PathRule::Prefix(decoded(path)),
            };
        }
        match looks_plain(path) {
            true => PathRule::Prefix(decoded(path)),
            false => PathRule::Regex(path.to_owned()),
        }
    }

    /// The text that all matching paths begin with.
    pub(super) fn literal(&self) -> String {
        match self {
            PathRule::Prefix(prefix) => prefix.split('*').next().unwrap_or("").to_owned(),
            PathRule::Regex(regex) => literal_beginning(regex),
        }
    }

    /// An expression for the matching beginning of a path, without an anchor.
    pub(super) fn pattern(&self) -> String {
        match self {
            PathRule::Prefix(prefix) => escape(prefix),
            PathRule::Regex(regex) => regex.strip_prefix('^').unwrap_or(regex).to_owned(),
        }
    }

    /// Whether a pattern of paths cannot say it, so that a condition must.
    pub(super) fn needs_condition(&self) -> bool {
        match self {
            PathRule::Prefix(prefix) => prefix.contains('*'),
            PathRule::Regex(_) => true,
        }
    }
}

/// Kong 2.x: a path of these characters is no regular expression.
pub(super) fn looks_plain(path: &str) -> bool {
    path.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_~/%".contains(&b))
}

/// A path with its percent-encoding removed, as it is compared.
fn decoded(path: &str) -> String {
    let (bytes, mut out, mut at) = (path.as_bytes(), Vec::with_capacity(path.len()), 0);
    let digit = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16));
    while at < bytes.len() {
        match (bytes[at], digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, _, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| path.to_owned())
}

/// A text as a regular expression.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~ ".contains(c) && !"-~ &#".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The literal text at the beginning of everything that an expression matches at the start.
fn literal_beginning(regex: &str) -> String {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    if has_alternatives(regex) {
        return "/".to_owned();
    }
    let mut out = String::new();
    let mut chars = regex.chars().peekable();
    while let Some(c) = chars.next() {
        let literal = match c {
            '\\' => match chars.next() {
                Some(c) if !c.is_ascii_alphanumeric() => c,
                _ => break,
            },
            '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' | '|' => break,
            c => c,
        };
        // A character that may be repeated or absent is no longer literal.
        match chars.peek() {
            Some('?' | '*' | '{') => break,
            Some('+') => {
                out.push(literal);
                break;
            }
            _ => out.push(literal),
        }
    }
    if out.is_empty() { "/".to_owned() } else { out }
}

/// Whether an expression has alternatives outside of groups.
fn has_alternatives(regex: &str) -> bool {
    let mut depth = 0_i32;
    each_special(regex, &mut |at, _| match at {
        '(' => depth += 1,
        ')' => depth -= 1,
        '|' if depth == 0 => depth = i32::MIN / 2,
        _ => {}
    });
    depth < 0
}

/// The number of capturing groups of an expression.
pub(super) fn groups(regex: &str) -> usize {
    let mut count = 0;
    each_special(regex, &mut |at, rest| {
        let named = rest.starts_with("?<") && !rest.starts_with("?<=") && !rest.starts_with("?<!");
        let captures = !rest.starts_with('?') || named || rest.starts_with("?P<") || rest.starts_with("?'");
        count += usize::from(at == '(' && captures && !rest.starts_with("*"));
    });
    count
}

/// Calls a function with each unescaped parenthesis and bar outside of character classes, and what follows it.
fn each_special(regex: &str, call: &mut dyn FnMut(char, &str)) {
    let mut class: Option<usize> = None;
    let mut escaped = false;
    for (at, c) in regex.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match (c, class) {
            ('\\', _) => escaped = true,
            ('[', None) => class = Some(at),
            // `]` is literal as the first character of a class.
            (']', Some(start))
                if at > start + 1 && !(at == start + 2 && regex[start..].starts_with("[^")) =>
            {
                class = None
            }
            ('(' | ')' | '|', None) => call(c, &regex[at + c.len_utf8()..]),
            _ => {}
        }
    }
}

/// An expression that matches at the start only.
pub(super) fn anchored(pattern: &str) -> String {
    match has_alternatives(pattern) {
        true => format!("^(?:{pattern})"),
        false => format!("^{pattern}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_their_version_has_them() {
        let prefix = |text: &str| PathRule::Prefix(text.to_owned());
        let regex = |text: &str| PathRule::Regex(text.to_owned());
        for (path, tilde, expected) in [
            ("/a", true, prefix("/a")),
            ("~/a/\\d+", true, regex("/a/\\d+")),
            ("/a/.+", true, prefix("/a/.+")),
            ("/a/.+", false, regex("/a/.+")),
            ("/a.b~c", false, prefix("/a.b~c")),
            ("/a%20b", true, prefix("/a b")),
        ] {
            assert_eq!(PathRule::read(path, tilde), expected, "{path}");
        }
    }

    #[test]
    fn expressions_have_a_literal_beginning_and_groups() {
        for (expression, literal, count) in [
            ("/a/\\d+", "/a/", 0),
            ("/a\\.b/(?<id>[(]x)/(y)", "/a.b/", 2),
            ("/ab?c", "/a", 0),
            ("/ab+", "/ab", 0),
            ("/a|/b", "/", 0),
            ("/(a|b)(?:c)", "/", 1),
            ("/x[])(]$", "/x", 0),
            ("^/a$", "/a", 0),
        ] {
            assert_eq!(PathRule::Regex(expression.to_owned()).literal(), literal, "{expression}");
            assert_eq!(groups(expression), count, "{expression}");
        }
        assert_eq!(anchored("/a|/b"), "^(?:/a|/b)");
        assert_eq!(escape("/a.b-c"), "/a\\.b-c");
    }
}
