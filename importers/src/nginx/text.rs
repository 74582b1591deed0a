//! Texts with variables, as nginx writes them: `$host`, `${host}`, `$1`.

/// A text split at its variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Text(pub Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(String),
    /// Without `$`. Digits are a group of a regular expression.
    Variable(String),
}

/// The longest text that variables within variables may make.
const MAX_LENGTH: usize = 8 << 10;
/// The deepest nesting of variables that are set from variables.
const MAX_DEPTH: usize = 12;

impl Text {
    pub(super) fn parse(text: &str) -> Text {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let (before, after) = rest.split_at(at);
            literal.push_str(before);
            let (name, length) = variable(&after[1..]);
            if name.is_empty() {
                literal.push('$');
                rest = &after[1..];
                continue;
            }
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Variable(name.to_owned()));
            rest = &after[1 + length..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Text(pieces)
    }

    pub(super) fn literal(text: &str) -> Text {
        Text(if text.is_empty() { Vec::new() } else { vec![Piece::Literal(text.to_owned())] })
    }

    /// The text if it has no variables.
    pub(super) fn constant(&self) -> Option<&str> {
        match &self.0[..] {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The variable if there is nothing else.
    pub(super) fn single(&self) -> Option<&str> {
        match &self.0[..] {
            [Piece::Variable(name)] => Some(name),
            _ => None,
        }
    }

    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Variable(name) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// Replaces the variables that `lookup` knows, also within their values.
    pub(super) fn fill(&self, lookup: &dyn Fn(&str) -> Option<Text>) -> Text {
        let mut filled = Text::default();
        self.fill_into(lookup, &mut filled, &mut 0, 0);
        filled
    }

    fn fill_into(
        &self,
        lookup: &dyn Fn(&str) -> Option<Text>,
        filled: &mut Text,
        length: &mut usize,
        depth: usize,
    ) {
        for piece in &self.0 {
            if *length > MAX_LENGTH {
                return;
            }
            match piece {
                Piece::Literal(text) => {
                    *length += text.len();
                    filled.push(text);
                }
                Piece::Variable(name) => match lookup(name).filter(|_| depth < MAX_DEPTH) {
                    Some(value) => value.fill_into(lookup, filled, length, depth + 1),
                    None => {
                        *length += name.len();
                        filled.0.push(piece.clone());
                    }
                },
            }
        }
    }

    pub(super) fn push(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(Piece::Literal(last)) => last.push_str(text),
            _ => self.0.push(Piece::Literal(text.to_owned())),
        }
    }

    /// The template of our resources.
    ///
    /// # Errors
    /// The name of the first variable that the gateway does not have.
    pub(super) fn template(&self) -> Result<String, String> {
        let mut template = String::new();
        for (index, piece) in self.0.iter().enumerate() {
            match piece {
                Piece::Literal(text) => template.push_str(text),
                Piece::Variable(name) => {
                    if !is_known(name) {
                        return Err(name.clone());
                    }
                    let next = match self.0.get(index + 1) {
                        Some(Piece::Literal(text)) => text.chars().next(),
                        _ => None,
                    };
                    // The gateway's own variable of this name has the path in its normal form.
                    let name = if name == "request_uri" { "real_request_uri" } else { name };
                    let joined = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
                    if next.is_some_and(joined) {
                        template.push_str(&format!("${{{name}}}"));
                    } else {
                        template.push('$');
                        template.push_str(name);
                    }
                }
            }
        }
        Ok(template)
    }

    /// The text as nginx writes it.
    pub(super) fn source(&self) -> String {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Literal(text) => text.clone(),
            Piece::Variable(name) => format!("${{{name}}}"),
        });
        pieces.collect()
    }

    /// Replaces named groups by their numbers.
    pub(super) fn with_groups(&self, names: &[(String, usize)]) -> Text {
        self.fill_once(&|name| {
            let (_, number) = names.iter().find(|(group, _)| group == name)?;
            Some(Piece::Variable(number.to_string()))
        })
    }

    fn fill_once(&self, lookup: &dyn Fn(&str) -> Option<Piece>) -> Text {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Variable(name) => lookup(name).unwrap_or_else(|| piece.clone()),
            Piece::Literal(_) => piece.clone(),
        });
        Text(pieces.collect())
    }

    /// Whether a group of a regular expression is in it.
    pub(super) fn has_groups(&self) -> bool {
        self.variables().any(is_group)
    }
}

/// The name after a `$` and its length with braces.
fn variable(text: &str) -> (&str, usize) {
    if let Some(inside) = text.strip_prefix('{') {
        return match inside.find('}') {
            Some(end) if !inside[..end].is_empty() => (&inside[..end], end + 2),
            _ => ("", 0),
        };
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return (&text[..1], 1);
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    (&text[..end], end)
}

pub(super) fn is_group(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Variables that nginx and the gateway have in common, by name and by meaning.
const KNOWN: &[&str] = &[
    "args",
    "binary_remote_addr",
    "body_bytes_sent",
    "bytes_sent",
    "connection_requests",
    "content_length",
    "content_type",
    "document_uri",
    "host",
    "hostname",
    "https",
    "is_args",
    "msec",
    "pid",
    "proxy_add_x_forwarded_for",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "query_string",
    "realip_remote_addr",
    "realip_remote_port",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request",
    "request_id",
    "request_length",
    "request_method",
    "request_time",
    "request_uri",
    "scheme",
    "server_addr",
    "server_port",
    "server_protocol",
    "ssl_alpn_protocol",
    "ssl_cipher",
    "ssl_client_cert",
    "ssl_client_escaped_cert",
    "ssl_client_fingerprint",
    "ssl_client_i_dn",
    "ssl_client_raw_cert",
    "ssl_client_s_dn",
    "ssl_client_serial",
    "ssl_client_v_end",
    "ssl_client_v_remain",
    "ssl_client_v_start",
    "ssl_client_verify",
    "ssl_protocol",
    "ssl_server_name",
    "ssl_session_reused",
    "status",
    "time_iso8601",
    "time_local",
    "upstream_addr",
    "upstream_response_time",
    "upstream_status",
    "uri",
];

fn is_known(name: &str) -> bool {
    KNOWN.binary_search(&name).is_ok()
        || is_group(name)
        || ["http_", "arg_", "cookie_", "upstream_http_", "sent_http_", "host_before_"]
            .iter()
            .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
}

/// The parentheses of a regular expression that begin and end groups, with their places.
fn parentheses(pattern: &str) -> impl Iterator<Item = (usize, char)> {
    let mut chars = pattern.char_indices();
    let mut in_class = false;
    std::iter::from_fn(move || {
        loop {
            let (at, c) = chars.next()?;
            match c {
                '\\' => {
                    chars.next();
                }
                '[' => in_class = true,
                ']' => in_class = false,
                '(' | ')' if !in_class => return Some((at, c)),
                _ => {}
            }
        }
    })
}

/// The groups of a regular expression that have names, with their numbers.
pub(super) fn group_names(pattern: &str) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    let mut number = 0;
    for (at, _) in parentheses(pattern).filter(|(_, c)| *c == '(') {
        let after = &pattern[at + 1..];
        match ["?P<", "?<", "?'"].iter().find_map(|sign| after.strip_prefix(sign)) {
            Some(name) if !name.starts_with(['=', '!']) => {
                number += 1;
                let end = name.find(['>', '\'']).unwrap_or(0);
                names.push((name[..end].to_owned(), number));
            }
            Some(_) => {}
            None if after.starts_with('?') || after.starts_with('*') => {}
            None => number += 1,
        }
    }
    names
}

/// A literal text as a regular expression.
pub(super) fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\.+*?()|[]{}^$#&-~".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// The value of the named group that begins a pattern for hosts, if all after it is a fixed part of the name:
/// `^(?<group>…)\.example\.com$`.
pub(super) fn group_of_host(pattern: &str) -> Option<(String, Text)> {
    let names = group_names(pattern);
    let begins = ["^(?<", "^(?P<", "^(?'"].iter().any(|start| pattern.starts_with(start));
    let ([(name, 1)], true, Some(rest)) = (&names[..], begins, pattern.strip_prefix("^(?")) else {
        return None;
    };
    let mut depth = 1;
    let (end, _) = parentheses(rest).find(|(_, c)| {
        depth += if *c == '(' { 1 } else { -1 };
        depth == 0
    })?;
    let fixed = rest[end + 1..].strip_suffix('$')?.replace("\\.", "/");
    let is_fixed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '/');
    let labels = fixed.matches('/').count();
    (fixed.starts_with('/') && fixed.chars().all(is_fixed))
        .then(|| (name.clone(), Text::parse(&format!("$host_before_{labels}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_variables_are_sorted() {
        assert!(KNOWN.is_sorted());
    }

    #[test]
    fn texts_are_split_at_their_variables() {
        let template = |text: &str| Text::parse(text).template();
        assert_eq!(template("https://$host$request_uri").as_deref(), Ok("https://$host$real_request_uri"));
        assert_eq!(template("${host}x").as_deref(), Ok("${host}x"));
        assert_eq!(template("a$1b").as_deref(), Ok("a${1}b"));
        assert_eq!(template("$ $$host ${}").as_deref(), Ok("$ $$host ${}"));
        assert_eq!(template("$nothing"), Err("nothing".to_owned()));
    }

    #[test]
    fn values_within_values_are_bounded() {
        let looped = |name: &str| (name == "a").then(|| Text::parse("$a$a"));
        assert!(Text::parse("$a").fill(&looped).0.len() <= MAX_LENGTH);
    }

    #[test]
    fn the_first_group_of_a_host_is_what_stands_before_its_fixed_part() {
        for (pattern, value) in [
            (r"^(?<sub>.+)\.example\.com$", Some("${host_before_2}")),
            (r"^(?P<sub>[a-z)]+(?:-x)?)\.test$", Some("${host_before_1}")),
            (r"^(?<sub>.+).example\.com$", None),
            (r"^(?<sub>.+)?\.example\.com$", None),
            (r"^(?<sub>.+)\.example\.com", None),
            (r"^(?<sub>.+)\.(com|org)$", None),
            (r"^(www\.)?(?<sub>.+)\.com$", None),
            (r"^(?<sub>.+)\.(?<top>com)$", None),
            (r"(?<sub>.+)\.com$", None),
            (r"^(?:x-(?<sub>.+))\.com$", None),
            (r"^(?:(?<sub>a)|b)\.com$", None),
        ] {
            let found = group_of_host(pattern);
            assert_eq!(found.as_ref().map(|(_, text)| text.source()), value.map(str::to_owned), "{pattern}");
            assert!(found.is_none_or(|(name, _)| name == "sub"));
        }
    }

    #[test]
    fn groups_have_numbers() {
        let expected = vec![("a".to_owned(), 2), ("b".to_owned(), 3)];
        assert_eq!(group_names(r"(x)[(](?:y)(?<a>\()(?P<b>.)(?!z)(?<=q)"), expected);
    }
}
