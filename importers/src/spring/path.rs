//! Path patterns (`/users/{id}/**`) as paths of routes and regular expressions.

use super::regexes;

/// A path pattern in the terms of the router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Paths, exact or prefixes, which cover everything that the pattern matches.
    pub anchors: Vec<Anchor>,
    /// Of the whole path; each variable is a group.
    pub regex: String,
    /// Whether the anchors match exactly what the pattern does.
    pub exact: bool,
    /// The names of the groups of `regex`, from 1.
    pub variables: Vec<String>,
}

/// A path of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anchor {
    Exact(String),
    /// Everything that begins with it.
    Prefix(String),
}

/// How patterns are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// `/a` also matches `/a/`.
    pub trailing_slash: bool,
    /// `AntPathMatcher`: a `*` between slashes may be empty.
    pub ant: bool,
}

impl Anchor {
    /// As in `uri`.
    pub fn uri(&self) -> String {
        match self {
            Anchor::Exact(path) => path.clone(),
            Anchor::Prefix(path) => format!("{path}*"),
        }
    }

    /// The prefixes that hold all of it and more.
    pub fn shorter(&self) -> impl Iterator<Item = &str> {
        let (path, ends) = match self {
            Anchor::Exact(path) => (path, path.len() + 1),
            Anchor::Prefix(path) => (path, path.len()),
        };
        (1..ends).filter_map(move |end| path.get(..end))
    }

    /// Whether each path of `other` is one of this, and this has more.
    pub fn contains(&self, other: &Anchor) -> bool {
        match (self, other) {
            (Anchor::Exact(_), _) => false,
            (Anchor::Prefix(path), Anchor::Exact(inner)) => inner.starts_with(path.as_str()),
            (Anchor::Prefix(path), Anchor::Prefix(inner)) => {
                inner.len() > path.len() && inner.starts_with(path.as_str())
            }
        }
    }
}

/// A part of a pattern between slashes.
enum Part {
    Literal(String),
    /// The expression of a part, and whether anything is allowed in it.
    Regex(String),
    /// `**` or `{*name}`: the rest of the path, slashes included.
    Rest,
}

/// Reads a pattern. `None` if it does not begin with a slash, so that no path matches it.
pub fn compile(pattern: &str, rules: Rules) -> Option<Pattern> {
    if !pattern.starts_with('/') {
        return None;
    }
    let mut variables = Vec::new();
    let mut parts: Vec<Part> = Vec::new();
    let slash_at_end = pattern.len() > 1 && pattern.ends_with('/');
    // Nothing stands before the first slash, and behind the last one.
    let mut texts = split(pattern).split_off(1);
    if pattern.ends_with('/') {
        texts.pop();
    }
    // Zuul takes several slashes for one.
    for text in texts.into_iter().filter(|text| !rules.ant || !text.is_empty()) {
        parts.push(part(&text, rules, &mut variables));
    }

    let literals = parts.iter().take_while(|part| matches!(part, Part::Literal(_))).count();
    let mut literal = String::new();
    for part in &parts[..literals] {
        if let Part::Literal(text) = part {
            literal.push('/');
            literal.push_str(text);
        }
    }
    let mut regex = format!("^{}", regexes::escape(&literal));
    for (at, part) in parts.iter().enumerate().skip(literals) {
        let is_last = at + 1 == parts.len();
        match part {
            Part::Literal(text) => regex.push_str(&format!("/{}", regexes::escape(text))),
            Part::Regex(text) => regex.push_str(&format!("/{text}")),
            Part::Rest if is_last => regex.push_str(rest(pattern)),
            Part::Rest => regex.push_str("(?:/[^/]+)*"),
        }
    }
    let ends_open = matches!(parts.last(), Some(Part::Rest));
    if parts.is_empty() || slash_at_end {
        regex.push('/');
    } else if !ends_open && rules.trailing_slash {
        regex.push_str("/?");
    }
    regex.push('$');

    let (anchors, exact) = match &parts[literals..] {
        [] if literal.is_empty() => (vec![Anchor::Exact("/".to_owned())], true),
        [] if slash_at_end => (vec![Anchor::Exact(literal + "/")], true),
        [] if rules.trailing_slash => {
            (vec![Anchor::Exact(literal.clone()), Anchor::Exact(literal + "/")], true)
        }
        [] => (vec![Anchor::Exact(literal)], true),
        [Part::Rest] if literal.is_empty() => (vec![Anchor::Prefix("/".to_owned())], true),
        [Part::Rest] => (vec![Anchor::Exact(literal.clone()), Anchor::Prefix(literal + "/")], true),
        [Part::Rest, ..] if !literal.is_empty() => {
            (vec![Anchor::Exact(literal.clone()), Anchor::Prefix(literal + "/")], false)
        }
        _ => (vec![Anchor::Prefix(literal + "/")], false),
    };
    Some(Pattern { anchors, regex, exact, variables })
}

/// The expression of the rest of a path: a group if it has a name.
fn rest(pattern: &str) -> &'static str {
    if pattern.ends_with("**") { "(?:/.*)?" } else { "((?:/.*)?)" }
}

/// The parts between slashes; a slash in braces separates none.
fn split(pattern: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0usize;
    for c in pattern.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            '/' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

fn part(text: &str, rules: Rules, variables: &mut Vec<String>) -> Part {
    if text == "**" {
        return Part::Rest;
    }
    if let Some(name) = text.strip_prefix("{*").and_then(|text| text.strip_suffix('}')) {
        variables.push(name.to_owned());
        return Part::Rest;
    }
    if text == "*" {
        return Part::Regex(if rules.ant { "[^/]*" } else { "[^/]+" }.to_owned());
    }
    if !text.contains(['*', '?', '{']) {
        return Part::Literal(text.to_owned());
    }
    Part::Regex(glob(text, "[^/]", variables))
}

/// The expression of a text with `*`, `?` and `{name}` or `{name:regex}`; `any` is one character.
pub fn glob(text: &str, any: &str, variables: &mut Vec<String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    // A variable alone in its part is not empty.
    let is_alone = text.starts_with('{') && closing(text) == Some(text.len() - 1);
    while let Some(c) = rest.chars().next() {
        if c == '{'
            && let Some(end) = closing(rest)
        {
            let (name, constraint) = match rest[1..end].split_once(':') {
                Some((name, constraint)) => (name, Some(constraint)),
                None => (&rest[1..end], None),
            };
            variables.push(name.to_owned());
            let inner = match constraint {
                Some(constraint) => regexes::within(constraint, any),
                None if is_alone => format!("{any}+"),
                None => format!("{any}*"),
            };
            out.push_str(&format!("({inner})"));
            rest = &rest[end + 1..];
            continue;
        }
        match c {
            '*' => out.push_str(&format!("{any}*")),
            '?' => out.push_str(any),
            c => out.push_str(&regexes::escape(c.encode_utf8(&mut [0; 4]))),
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// The offset of the brace that closes the one at the beginning.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The expression of a host pattern, whose parts dots separate: `**.example.com`, `{name}.example.com`.
pub fn host(pattern: &str, variables: &mut Vec<String>) -> String {
    let parts: Vec<&str> = pattern.split('.').collect();
    let mut out = String::from("^");
    for (at, part) in parts.iter().enumerate() {
        let (is_first, is_last) = (at == 0, at + 1 == parts.len());
        if *part == "**" {
            match (is_first, is_last) {
                (true, true) => out.push_str(".*"),
                (false, true) => {
                    // The dot before it is optional, too.
                    out.truncate(out.strip_suffix("\\.").map_or(out.len(), str::len));
                    out.push_str("(?:\\..*)?");
                }
                _ => out.push_str("(?:[^.]+\\.)*"),
            }
            continue;
        }
        out.push_str(&glob(part, "[^.]", variables));
        if !is_last {
            out.push_str("\\.");
        }
    }
    out.push('$');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPRING: Rules = Rules { trailing_slash: true, ant: false };

    fn compiled(pattern: &str) -> (Vec<String>, String, bool, Vec<String>) {
        let found = compile(pattern, SPRING).unwrap();
        (found.anchors.iter().map(Anchor::uri).collect(), found.regex, found.exact, found.variables)
    }

    #[test]
    fn patterns_become_paths_and_expressions() {
        for (pattern, uris, regex, exact, variables) in [
            ("/", &["/"][..], "^/$", true, &[][..]),
            ("/a/b", &["/a/b", "/a/b/"], "^/a/b/?$", true, &[]),
            ("/a/", &["/a/"], "^/a/$", true, &[]),
            ("/**", &["/*"], "^(?:/.*)?$", true, &[]),
            ("/a.b/**", &["/a.b", "/a.b/*"], r"^/a\.b(?:/.*)?$", true, &[]),
            ("/a/{*rest}", &["/a", "/a/*"], "^/a((?:/.*)?)$", true, &["rest"]),
            ("/a/{id}", &["/a/*"], "^/a/([^/]+)/?$", false, &["id"]),
            ("/a/{id:[0-9]+}/b", &["/a/*"], "^/a/([0-9]+)/b/?$", false, &["id"]),
            ("/{x:.{2}(?:y|(z))}", &["/*"], "^/([^/]{2}(?:y|(?:z)))/?$", false, &["x"]),
            ("/a/*.js", &["/a/*"], r"^/a/[^/]*\.js/?$", false, &[]),
            ("/a/*/c/**", &["/a/*"], "^/a/[^/]+/c(?:/.*)?$", false, &[]),
            ("/a/**/c", &["/a", "/a/*"], "^/a(?:/[^/]+)*/c/?$", false, &[]),
            ("//a/**", &["//a", "//a/*"], "^//a(?:/.*)?$", true, &[]),
            ("/a//", &["/a//"], "^/a//$", true, &[]),
        ] {
            let uris: Vec<_> = uris.iter().map(|uri| (*uri).to_owned()).collect();
            let variables: Vec<_> = variables.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(compiled(pattern), (uris, regex.to_owned(), exact, variables), "{pattern}");
        }
        assert_eq!(compile("a/**", SPRING), None);
        let ant = compile("//a//**", Rules { trailing_slash: false, ant: true }).unwrap();
        assert_eq!(ant.regex, "^/a(?:/.*)?$");
        assert!(compile("/a/{b", SPRING).is_some());
    }

    #[test]
    fn hosts_become_expressions() {
        let host = |pattern: &str| host(pattern, &mut Vec::new());
        assert_eq!(host("**.a.org"), r"^(?:[^.]+\.)*a\.org$");
        assert_eq!(host("{sub}.a.org"), r"^([^.]+)\.a\.org$");
        assert_eq!(host("a.**"), r"^a(?:\..*)?$");
        assert_eq!(host("*.a.org:8080"), r"^[^.]*\.a\.org:8080$");
    }
}
