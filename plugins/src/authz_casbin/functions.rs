//! Casbin's functions that compare a text with a pattern.

use std::net::IpAddr;

use ipnet::IpNet;
use sdk::pattern::{Pattern, Searches};

/// A function with its pattern.
#[derive(Debug)]
pub(super) enum Function {
    Exact(Box<[u8]>),
    Prefix(Box<[u8]>),
    Regex(Pattern),
    Network(IpNet),
}

impl Function {
    pub const NAMES: [&'static str; 6] =
        ["keyMatch", "keyMatch2", "keyMatch3", "regexMatch", "ipMatch", "globMatch"];

    /// `None` for an unknown name.
    ///
    /// # Errors
    /// The pattern is invalid, in words.
    pub fn compile(name: &str, pattern: &str) -> Result<Option<Function>, String> {
        let regex = |text: &str| {
            Pattern::new(text, false)
                .map(Function::Regex)
                .map_err(|invalid| format!("`{pattern}`: {invalid}"))
        };
        Ok(Some(match name {
            "keyMatch" => match pattern.split_once('*') {
                Some((prefix, _)) => Function::Prefix(prefix.as_bytes().into()),
                None => Function::Exact(pattern.as_bytes().into()),
            },
            "keyMatch2" => regex(&key_pattern(pattern, |part| part.starts_with(':').then_some(part.len())))?,
            "keyMatch3" => {
                let braces =
                    |part: &str| part.strip_prefix('{').and_then(|rest| rest.find('}')).map(|at| at + 2);
                regex(&key_pattern(pattern, braces))?
            }
            "regexMatch" => regex(pattern)?,
            "globMatch" => regex(&glob(pattern))?,
            "ipMatch" => {
                let network = pattern.parse::<IpNet>().ok();
                let network = network.or_else(|| pattern.parse::<IpAddr>().ok().map(IpNet::from));
                // An empty field of a line is checked with the matcher.
                match network {
                    Some(network) => Function::Network(network),
                    None if pattern.is_empty() => Function::Exact(b"".as_slice().into()),
                    None => return Err(format!("`{pattern}` is no address and no network")),
                }
            }
            _ => return Ok(None),
        }))
    }

    pub fn holds(&self, text: &[u8]) -> bool {
        match self {
            Function::Exact(own) => **own == *text,
            Function::Prefix(prefix) => text.starts_with(prefix),
            // An undecided search is no match.
            Function::Regex(pattern) => pattern.judge(text, &Searches::default()).unwrap_or(false),
            Function::Network(network) => {
                let address = std::str::from_utf8(text).ok().and_then(|text| text.parse::<IpAddr>().ok());
                address.is_some_and(|address| network.contains(&address))
            }
        }
    }
}

/// The regular expression of a path with parameters: `parameter` says how long the one is that a part begins with. A `*`
/// behind a slash stands for the rest; other characters stand for themselves.
fn key_pattern(pattern: &str, parameter: impl Fn(&str) -> Option<usize>) -> String {
    let mut out = "^".to_owned();
    for (at, part) in pattern.split('/').enumerate() {
        if at > 0 {
            out.push('/');
        }
        if let Some(rest) = part.strip_prefix('*') {
            out.push_str(".*");
            escape(rest, &mut out);
        } else if let Some(length) = parameter(part) {
            out.push_str("[^/]+");
            escape(&part[length..], &mut out);
        } else {
            escape(part, &mut out);
        }
    }
    out.push('$');
    out
}

/// The regular expression of a glob: `*` and `?` stop at slashes, `**` does not.
fn glob(pattern: &str) -> String {
    let mut out = "^".to_owned();
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let (text, length) = match c {
            '*' if rest.starts_with("**") => (".*", 2),
            '*' => ("[^/]*", 1),
            '?' => ("[^/]", 1),
            c => {
                escape(c.encode_utf8(&mut [0; 4]), &mut out);
                ("", c.len_utf8())
            }
        };
        out.push_str(text);
        rest = &rest[length..];
    }
    out.push('$');
    out
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        if c.is_ascii_punctuation() && !matches!(c, '/' | '_' | '-' | '%') || c == '-' {
            out.push('\\');
        }
        out.push(c);
    }
}
