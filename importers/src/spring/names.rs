//! Names of properties, as Spring Boot reads them: `a.b[0].c-d` and `a.[/**].b`.

/// A part of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// As written; compared by [`uniform`].
    Name(String),
    Index(usize),
}

/// At most this many parts of a name are separated; the rest is one part.
const MAX_SEGMENTS: usize = 64;

/// The parts of a name.
pub fn parse(name: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        if segments.len() == MAX_SEGMENTS {
            segments.push(Segment::Name(rest.to_owned()));
            break;
        }
        if let Some(inner) = rest.strip_prefix('[')
            && let Some(end) = inner.find(']')
        {
            let text = &inner[..end];
            segments.push(match text.parse() {
                Ok(index) => Segment::Index(index),
                Err(_) => Segment::Name(text.to_owned()),
            });
            rest = &inner[end + 1..];
            rest = rest.strip_prefix('.').unwrap_or(rest);
            continue;
        }
        // A bracket that never closes is part of the name.
        let end =
            rest.char_indices().skip(1).find(|(at, c)| *c == '.' || *c == '[' && rest[*at..].contains(']'));
        let end = if rest.starts_with('.') { 0 } else { end.map_or(rest.len(), |(at, _)| at) };
        segments.push(Segment::Name(rest[..end].to_owned()));
        rest = &rest[end..];
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    segments
}

/// The form in which names are compared: `default-filters`, `defaultFilters` and `default_filters` are one.
pub fn uniform(name: &str) -> String {
    name.chars().filter(|c| *c != '-' && *c != '_').flat_map(char::to_lowercase).collect()
}

/// As people write it.
#[cfg(test)]
pub fn printed(segments: &[Segment]) -> String {
    let mut out = String::new();
    for segment in segments {
        append(&mut out, segment);
    }
    out
}

/// Appends a part to a printed name.
pub fn append(out: &mut String, segment: &Segment) {
    match segment {
        Segment::Index(index) => out.push_str(&format!("[{index}]")),
        Segment::Name(name) if name.contains(['/', '*', '.', ' ']) && !out.is_empty() => {
            out.push_str(&format!("[{name}]"));
        }
        Segment::Name(name) => {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_dots_and_brackets() {
        for name in ["a.b", "a[0].b-c", "a[0][1]", "a[/api/**].b", "a"] {
            assert_eq!(printed(&parse(name)), name);
        }
        assert_eq!(parse("a.[/x.y].z"), parse("a[/x.y].z"));
        assert_eq!(parse("[/**]"), [Segment::Name("/**".to_owned())]);
        assert_eq!(parse("a[b"), [Segment::Name("a[b".to_owned())]);
        assert_eq!(parse(".a..b"), parse(".a..b"));
        assert_eq!(parse(&"a.".repeat(1000)).len(), MAX_SEGMENTS + 1);
    }

    #[test]
    fn names_are_compared_without_dashes_and_case() {
        assert_eq!(uniform("default-filters"), uniform("defaultFilters"));
        assert_eq!(uniform("default_filters"), "defaultfilters");
    }
}
