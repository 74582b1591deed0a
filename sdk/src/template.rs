//! hot path
//!
//! Texts with variables in them: `${http_x_tenant}-$remote_addr`.
//!
//! The rules are APISIX 3.x's (`core.utils.resolve_var`): `$name` takes letters, digits, `_` and
//! `.`; `${name}` takes anything but `}`; `${name ?? text}` uses the text if the variable is
//! absent; `\$` keeps backslash and dollar; an absent variable is empty; any other `$` is literal.

use crate::exchange::Exchange;
use crate::vars::Var;

/// A parsed text.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(Box<str>),
    Var {
        var: Var,
        default: Option<Box<str>>,
    },
    /// `$1`: a group of an earlier pattern match. Empty without groups.
    Capture(usize),
}

impl Template {
    /// Parses a text; every text is a template.
    pub fn parse(text: &str) -> Template {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let escaped = rest[..at].ends_with('\\');
            let reference = if escaped { None } else { reference(&rest[at + 1..]) };
            let (before, after) = rest.split_at(at);
            literal.push_str(before);
            match reference {
                Some((part, len)) => {
                    if !literal.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut literal).into()));
                    }
                    parts.push(part);
                    rest = &after[1 + len..];
                }
                None => {
                    literal.push('$');
                    rest = &after[1..];
                }
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal.into()));
        }
        parts.shrink_to_fit();
        Template { parts }
    }

    /// The whole text if it has no variables.
    pub fn constant(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub fn vars(&self) -> impl Iterator<Item = &Var> {
        self.parts.iter().filter_map(|part| if let Part::Var { var, .. } = part { Some(var) } else { None })
    }

    /// Whether one of its variables needs the request's body.
    pub fn needs_body(&self) -> bool {
        self.vars().any(Var::needs_body)
    }

    /// Appends the text with its variables filled in. Returns how many of them had a value, their
    /// own or the default.
    pub fn render(&self, x: &Exchange<'_>, out: &mut Vec<u8>) -> usize {
        self.render_with_captures(x, &[], out)
    }

    /// As [`Template::render`], with the groups of a match for `$0`, `$1` and so on.
    pub fn render_with_captures(&self, x: &Exchange<'_>, captures: &[Vec<u8>], out: &mut Vec<u8>) -> usize {
        let mut found = 0;
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Var { var, default } => {
                    if var.write(x, out) {
                        found += 1;
                    } else if let Some(default) = default {
                        out.extend_from_slice(default.as_bytes());
                        found += 1;
                    }
                }
                Part::Capture(index) => {
                    if let Some(group) = captures.get(*index) {
                        out.extend_from_slice(group);
                        found += 1;
                    }
                }
            }
        }
        found
    }

    /// As [`Template::render`], with each byte of a variable's value written by `escape`.
    pub fn render_escaped(&self, x: &Exchange<'_>, out: &mut Vec<u8>, escape: impl Fn(u8, &mut Vec<u8>)) {
        let mut value = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Var { var, default } => {
                    value.clear();
                    match default {
                        Some(default) if !var.write(x, &mut value) => {
                            out.extend_from_slice(default.as_bytes())
                        }
                        Some(_) => value.iter().for_each(|&byte| escape(byte, out)),
                        None => {
                            var.write(x, &mut value);
                            value.iter().for_each(|&byte| escape(byte, out));
                        }
                    }
                }
                Part::Capture(_) => {}
            }
        }
    }
}

/// Parses the text after a `$`: the variable and its length in bytes. `None` if it is not a
/// variable.
fn reference(text: &str) -> Option<(Part, usize)> {
    if let Some(inside) = text.strip_prefix('{') {
        let end = inside.find('}')?;
        let inner = inside[..end].trim();
        return if inner.is_empty() { None } else { Some((with_default(inner), end + 2)) };
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).unwrap_or(text.len());
    if end == 0 {
        return None;
    }
    Some((part(&text[..end], None), end))
}

fn with_default(inner: &str) -> Part {
    let mut pieces = inner.split("??").map(str::trim);
    let name = pieces.next().unwrap_or_default();
    let default = pieces.next().filter(|text| !text.is_empty()).map(Into::into);
    part(name, default)
}

/// A name that consists of digits is a group.
fn part(name: &str, default: Option<Box<str>>) -> Part {
    match name.parse() {
        Ok(index) if name.bytes().all(|byte| byte.is_ascii_digit()) => Part::Capture(index),
        _ => Part::Var { var: Var::parse(name), default },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Probe;

    fn rendered(template: &str) -> (String, usize) {
        let mut probe = Probe::request("GET", "/a?b=c", &[("Host", "example.com"), ("X-Id", "7")]);
        let x = probe.exchange();
        let mut out = Vec::new();
        let found = Template::parse(template).render(&x, &mut out);
        (String::from_utf8(out).unwrap(), found)
    }

    #[test]
    fn variables_are_filled_in() {
        for (template, expected, found) in [
            ("", "", 0),
            ("plain", "plain", 0),
            ("$uri", "/a", 1),
            ("$uri$arg_b", "/ac", 2),
            ("${uri}x-$http_x_id/", "/ax-7/", 2),
            ("${ uri }", "/a", 1),
            ("$remote_addr $nothing.", "127.0.0.1 ", 1),
            ("$nothing", "", 0),
            ("${nothing ?? else}", "else", 1),
            ("${nothing??}", "", 0),
            ("${uri ?? else}", "/a", 1),
            (r"\$uri $uri", r"\$uri /a", 1),
            (r"\${uri}", r"\${uri}", 0),
            (r"$uri\$uri", r"/a\$uri", 1),
            ("$ $$uri ${} ${uri", "$ $/a ${} ${uri", 1),
            ("é$uri€", "é/a€", 1),
            ("$uri_", "", 0),
        ] {
            assert_eq!(rendered(template), (expected.to_owned(), found), "{template}");
        }
    }

    #[test]
    fn groups_of_a_match_are_found_and_values_are_escaped() {
        let mut probe = Probe::request("GET", "/a?b=c", &[]);
        let x = probe.exchange();
        let captures = [b"all".to_vec(), b"one".to_vec()];
        for (template, expected, found) in
            [("$1-$0-$2", "one-all-", 2), ("$2", "", 0), ("${none ?? d}$0", "dall", 2)]
        {
            let mut out = Vec::new();
            let count = Template::parse(template).render_with_captures(&x, &captures, &mut out);
            assert_eq!((String::from_utf8(out).unwrap(), count), (expected.to_owned(), found), "{template}");
        }
        let mut out = Vec::new();
        let template = Template::parse("<$uri>${none ?? <d>}${uri ?? d}$none");
        template.render_escaped(&x, &mut out, |byte, out| out.extend_from_slice(&[b'%', byte]));
        assert_eq!(String::from_utf8(out).unwrap(), "<%/%a><d>%/%a");
    }

    #[test]
    fn constants_and_needed_bodies_are_recognised() {
        assert_eq!(Template::parse("").constant(), Some(""));
        assert_eq!(Template::parse(r"a $ \$b").constant(), Some(r"a $ \$b"));
        assert_eq!(Template::parse("a$b").constant(), None);
        assert!(Template::parse("$uri$post_arg_a").needs_body());
        assert!(!Template::parse("$uri").needs_body());
        assert_eq!(Template::parse("$a${b ?? c}").vars().map(Var::name).collect::<Vec<_>>(), ["a", "b"]);
    }
}
