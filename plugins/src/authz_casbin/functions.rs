//! Casbin's functions that compare a text with a pattern.

use std::net::IpAddr;

use ipnet::IpNet;
use sdk::pattern::{Pattern, Searches, StepLimit};

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
            "keyMatch2" => regex(&key_pattern(pattern, |part| Some((part.find(':')?, part.len())))?)?,
            "keyMatch3" => {
                let braces = |part: &str| Some((part.find('{')?, part.rfind('}')? + 1));
                regex(&key_pattern(pattern, braces)?)?
            }
            "regexMatch" => regex(pattern)?,
            "globMatch" => regex(&glob(pattern)?)?,
            "ipMatch" => {
                let network = pattern.parse::<IpNet>().ok();
                let network = network.or_else(|| pattern.parse::<IpAddr>().ok().map(IpNet::from));
                // An empty field of a line is checked with the matcher.
                match network {
                    Some(network) => Function::Network(network),
                    None if pattern.is_empty() => Function::Exact(b"".as_slice().into()),
                    None => return Err(format!("`{pattern}` must be an address or a network")),
                }
            }
            _ => return Ok(None),
        }))
    }

    /// # Errors
    /// The search is undecided.
    pub fn holds(&self, text: &[u8], searches: &Searches) -> Result<bool, StepLimit> {
        Ok(match self {
            Function::Exact(own) => **own == *text,
            Function::Prefix(prefix) => text.starts_with(prefix),
            Function::Regex(pattern) => pattern.judge(text, searches)?,
            Function::Network(network) => {
                let address = std::str::from_utf8(text).ok().and_then(|text| text.parse::<IpAddr>().ok());
                address.is_some_and(|address| network.contains(&address))
            }
        })
    }
}

/// The regular expression of a path with parameters: `parameter` says where the one of a part begins and ends. A `*`
/// behind a slash stands for the rest; other characters stand for themselves. Characters that Casbin's function, which
/// makes a regular expression of the pattern as it is, reads as parts of one are refused.
fn key_pattern(pattern: &str, parameter: impl Fn(&str) -> Option<(usize, usize)>) -> Result<String, String> {
    let mut out = "^".to_owned();
    for (at, part) in pattern.split('/').enumerate() {
        let mut rest = part;
        if at > 0 {
            out.push('/');
            if let Some(inner) = part.strip_prefix('*') {
                out.push_str(".*");
                rest = inner;
            }
        }
        // A parameter has a name.
        let after = match parameter(rest).filter(|(start, end)| end - start.min(end) > 1) {
            Some((start, end)) => {
                plain(&rest[..start], pattern, &mut out)?;
                out.push_str("[^/]+");
                &rest[end..]
            }
            None => rest,
        };
        plain(after, pattern, &mut out)?;
    }
    out.push('$');
    Ok(out)
}

fn plain(text: &str, pattern: &str, out: &mut String) -> Result<(), String> {
    if let Some(c) = text.chars().find(|c| "()[]{}+?*|^$\\".contains(*c)) {
        return Err(format!("`{pattern}`: the character {c} is not supported here"));
    }
    escape(text, out);
    Ok(())
}

/// The regular expression of a glob: `*` and `?` stop at slashes. Casbin's function reads `[` and `\` as fnmatch does, and
/// two stars as one; they are refused.
fn glob(pattern: &str) -> Result<String, String> {
    if let Some(text) = ["**", "[", "\\"].into_iter().find(|text| pattern.contains(text)) {
        return Err(format!("`{pattern}`: {text} is not supported in a glob"));
    }
    let mut out = "^".to_owned();
    for c in pattern.chars() {
        match c {
            '*' => out.push_str("[^/]*"),
            '?' => out.push_str("[^/]"),
            c => escape(c.encode_utf8(&mut [0; 4]), &mut out),
        }
    }
    out.push('$');
    Ok(out)
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        if c.is_ascii_punctuation() && !matches!(c, '/' | '_' | '-' | '%') || c == '-' {
            out.push('\\');
        }
        out.push(c);
    }
}
