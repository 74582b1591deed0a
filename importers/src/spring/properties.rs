//! Files of Java properties.

use model::Position;

use super::names::{self, Segment};
use crate::finding::Place;

/// A property of a file: its name in segments, its text and its place.
#[derive(Debug, Clone)]
pub struct Property {
    pub name: Vec<Segment>,
    pub value: String,
    pub place: Place,
}

/// Why a file of properties cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    pub message: &'static str,
    pub position: Position,
}

/// The properties of each document of a file. Lines `#---` and `!---` separate documents.
///
/// # Errors
/// An escape `\u` without four hexadecimal digits.
pub fn read(file: &std::sync::Arc<str>, text: &str) -> Result<Vec<Vec<Property>>, Malformed> {
    let mut documents = vec![Vec::new()];
    let mut lines = text.lines().enumerate();
    while let Some((at, first)) = lines.next() {
        let line = first.trim_start_matches([' ', '\t', '\u{c}']);
        if line.trim_end() == "#---" || line.trim_end() == "!---" {
            documents.push(Vec::new());
            continue;
        }
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let column = first.chars().count() - line.chars().count() + 1;
        let position = Position { line: number(at + 1), column: number(column) };
        let mut logical = line.to_owned();
        while continues(&logical) {
            logical.pop();
            let Some((_, next)) = lines.next() else { break };
            logical.push_str(next.trim_start_matches([' ', '\t', '\u{c}']));
        }
        let (name, value) = split(&logical);
        let unescaped = |text: &str| unescape(text).map_err(|message| Malformed { message, position });
        let (name, value) = (unescaped(name)?, unescaped(value)?);
        if let Some(document) = documents.last_mut() {
            let place = Place { file: file.clone(), position };
            document.push(Property { name: names::parse(&name), value, place });
        }
    }
    Ok(documents)
}

/// Whether a line ends with an odd number of backslashes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Name and value, which `=`, `:` or white space separate.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '=' | ':' => return (&line[..at], line[at + 1..].trim_start()),
            ' ' | '\t' | '\u{c}' => {
                let rest = line[at..].trim_start();
                let value = rest.strip_prefix(['=', ':']).map_or(rest, str::trim_start);
                return (&line[..at], value);
            }
            _ => {}
        }
    }
    (line, "")
}

fn unescape(text: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(text.len());
    let mut units = Vec::new();
    let mut chars = text.chars();
    let flush = |units: &mut Vec<u16>, out: &mut String| {
        out.push_str(&String::from_utf16_lossy(units));
        units.clear();
    };
    while let Some(c) = chars.next() {
        if c != '\\' {
            flush(&mut units, &mut out);
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4);
                units.push(unit.ok_or("`\\u` needs four hexadecimal digits")?);
            }
            other => {
                flush(&mut units, &mut out);
                out.extend(match other {
                    Some('n') => Some('\n'),
                    Some('t') => Some('\t'),
                    Some('r') => Some('\r'),
                    Some('f') => Some('\u{c}'),
                    other => other,
                });
            }
        }
    }
    flush(&mut units, &mut out);
    Ok(out)
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<Vec<(String, String)>> {
        let documents = read(&"t.properties".into(), text).unwrap();
        let pair = |property: Property| (names::printed(&property.name), property.value);
        documents.into_iter().map(|document| document.into_iter().map(pair).collect()).collect()
    }

    #[test]
    fn names_and_values_are_separated_as_java_does() {
        let text = "# c\n! c\n\n  a = 1 \nb:2\nc 3\nd\\ e=4\nf==5\ng\nh = x\\\n   y\\\\\ni=\\u00e9\\t\\z\n";
        let expected = [
            ("a", "1 "),
            ("b", "2"),
            ("c", "3"),
            ("d e", "4"),
            ("f", "=5"),
            ("g", ""),
            ("h", "xy\\"),
            ("i", "é\tz"),
        ];
        let expected: Vec<_> = expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        assert_eq!(pairs(text), [expected]);
    }

    #[test]
    fn documents_and_indexes_are_read() {
        let found = pairs("a[0].b=1\na[1].c-d=2\n#---\nx.[/**].y=3\n");
        assert_eq!(found[0][1], ("a[1].c-d".to_owned(), "2".to_owned()));
        assert_eq!(found[1], [("x[/**].y".to_owned(), "3".to_owned())]);
    }

    #[test]
    fn a_broken_escape_has_a_place() {
        let error = read(&"t".into(), "a=1\n b=\\u12\n").unwrap_err();
        assert_eq!((error.position.line, error.position.column), (2, 2));
    }
}
