//! Java's regular expressions in the form of this gateway's.

/// Characters that mean something in an expression.
const SPECIAL: &str = r"\.+*?()|[]{}^$";

/// A text as an expression that matches it alone.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if SPECIAL.contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// An expression without groups, in which a dot is `any`.
pub fn within(regex: &str, any: &str) -> String {
    let mut out = String::new();
    scan(regex, |token, text| match token {
        Token::Group { .. } => out.push_str("(?:"),
        Token::Dot => out.push_str(any),
        Token::Other => out.push_str(text),
    });
    out
}

/// An expression whose named groups are plain groups, and the names of all groups from 1.
pub fn numbered(regex: &str) -> (String, Vec<Option<String>>) {
    let mut out = String::new();
    let mut names = Vec::new();
    scan(regex, |token, text| match token {
        Token::Group { name } => {
            names.push(name.map(str::to_owned));
            out.push('(');
        }
        _ => out.push_str(text),
    });
    (out, names)
}

/// A replacement of Java (`$1`, `${name}`, `\$`) for groups that begin after `before` others. `None` if it names a
/// group that is not there.
pub fn replacement(text: &str, names: &[Option<String>], before: usize) -> Option<String> {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => literal(&mut out, chars.next()?),
            '$' if chars.peek() == Some(&'{') => {
                chars.next();
                let name: String = chars.by_ref().take_while(|c| *c != '}').collect();
                let at = names.iter().position(|known| known.as_deref() == Some(&name))?;
                out.push_str(&format!("${{{}}}", at + 1 + before));
            }
            '$' => {
                let mut number = chars.next()?.to_digit(10)? as usize;
                if number > names.len() {
                    return None;
                }
                while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
                    let longer = number * 10 + digit as usize;
                    if longer > names.len() {
                        break;
                    }
                    number = longer;
                    chars.next();
                }
                let number = if number == 0 { 0 } else { number + before };
                out.push_str(&format!("${{{number}}}"));
            }
            c => literal(&mut out, c),
        }
    }
    Some(out)
}

/// A text as a replacement that stands for itself.
pub fn literally(text: &str) -> String {
    text.replace('$', "$$")
}

fn literal(out: &mut String, c: char) {
    if c == '$' {
        out.push('$');
    }
    out.push(c);
}

enum Token<'t> {
    /// The opening of a group that captures.
    Group {
        name: Option<&'t str>,
    },
    Dot,
    Other,
}

fn scan<'t>(regex: &'t str, mut found: impl FnMut(Token<'t>, &'t str)) {
    let mut rest = regex;
    let mut in_class = 0usize;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        let mut token = Token::Other;
        match c {
            '\\' => length += rest[1..].chars().next().map_or(0, char::len_utf8),
            '[' => in_class += 1,
            ']' => in_class = in_class.saturating_sub(1),
            '.' if in_class == 0 => token = Token::Dot,
            '(' if in_class == 0 && !rest.starts_with("(?") => token = Token::Group { name: None },
            '(' if in_class == 0 && rest.starts_with("(?<") => {
                let name = &rest[3..];
                let end = name.find('>').filter(|_| !name.starts_with(['=', '!']));
                if let Some(end) = end {
                    token = Token::Group { name: Some(&name[..end]) };
                    length = 3 + end + 1;
                }
            }
            _ => {}
        }
        found(token, &rest[..length]);
        rest = &rest[length..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_groups_become_numbers() {
        let (regex, names) = numbered(r"/a/(?<x>.*)/(\d+)(?:b)[(](?<=c)\((?<y>d)");
        assert_eq!(regex, r"/a/(.*)/(\d+)(?:b)[(](?<=c)\((d)");
        assert_eq!(names, [Some("x".to_owned()), None, Some("y".to_owned())]);
        for (text, before, expected) in [
            ("/${x}", 0, Some("/${1}")),
            ("/$2/$y", 0, None),
            ("/$2${y}", 1, Some("/${3}${4}")),
            ("/$12", 0, Some("/${1}2")),
            ("$0", 2, Some("${0}")),
            (r"\$a\\", 0, Some("$$a\\")),
            ("$4", 0, None),
            ("${z}", 0, None),
            ("a\\", 0, None),
            ("$", 0, None),
        ] {
            assert_eq!(replacement(text, &names, before).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_dot_stays_within_its_part() {
        assert_eq!(within(r"a.\.[.](b)", "[^/]"), r"a[^/]\.[.](?:b)");
        assert_eq!(escape("a.b$"), r"a\.b\$");
    }
}
