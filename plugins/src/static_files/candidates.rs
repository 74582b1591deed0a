//! The paths at which a file is looked for.

use model::Invalid;
use sdk::template::Template;
use sdk::{Exchange, target};

/// The files of `try_files`, or the path of the request alone.
pub(super) struct Candidates {
    strip: Option<Vec<u8>>,
    listed: Option<Vec<Item>>,
    last: Last,
}

/// The end of the list, when no file was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Status(u16),
    Upstream,
}

struct Item {
    parts: Vec<ItemPart>,
    is_folder: bool,
}

enum ItemPart {
    /// The path of the request, without the prefix.
    Path,
    Text(Template),
}

/// A path below the root. It is checked when it is opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) path: Vec<u8>,
    /// Only a folder counts.
    pub(super) is_folder: bool,
    /// A folder at this path needs no redirect.
    pub(super) has_slash: bool,
}

const UPSTREAM: &str = "@upstream";

impl Candidates {
    pub(super) fn new(strip: Option<String>, listed: Option<&[String]>) -> Result<Candidates, Invalid> {
        let strip = strip.map(String::into_bytes);
        let Some(listed) = listed else {
            return Ok(Candidates { strip, listed: None, last: Last::Status(404) });
        };
        let (mut items, mut last) = (Vec::new(), Last::Status(404));
        for (index, text) in listed.iter().enumerate() {
            let is_last = index + 1 == listed.len();
            let at = |invalid: Invalid| Err(invalid.at(format!("/try_files/{index}")).got(text.as_str()));
            match (text.as_str(), text.strip_prefix('=')) {
                (UPSTREAM, _) if is_last => last = Last::Upstream,
                (_, Some(status)) if is_last => match status.parse() {
                    Ok(status @ 400..=599) => last = Last::Status(status),
                    _ => return at(Invalid::new("`=` must be followed by a status from 400 to 599")),
                },
                (UPSTREAM, _) | (_, Some(_)) => {
                    return at(Invalid::new(format!("`{UPSTREAM}` and `=STATUS` must be last")));
                }
                (name, _) if name.starts_with('@') => {
                    return at(Invalid::new("an unknown fallback").expected(UPSTREAM));
                }
                (text, _) => items.push(Item::parse(text)),
            }
        }
        Ok(Candidates { strip, listed: Some(items), last })
    }

    pub(super) fn last(&self) -> Last {
        self.last
    }

    /// Whether they are those of `try_files`.
    pub(super) fn are_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// Whether no file is ever looked for.
    pub(super) fn only_upstream(&self) -> bool {
        self.last == Last::Upstream && self.listed.as_ref().is_some_and(Vec::is_empty)
    }

    /// The candidates of a request with this path.
    pub(super) fn of(&self, x: &Exchange<'_>, path: &[u8]) -> Vec<Candidate> {
        let has_slash = path.ends_with(b"/");
        let path = self.without_prefix(path);
        match &self.listed {
            None => vec![Candidate { path: path.to_vec(), is_folder: false, has_slash }],
            Some(items) => items.iter().map(|item| item.render(x, path)).collect(),
        }
    }
}

impl Candidates {
    /// The path without the prefix, which ends where a part of the path does.
    fn without_prefix<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        let Some(prefix) = &self.strip else { return path };
        let rest = path.strip_prefix(&prefix[..]);
        let ends = |rest: &&[u8]| prefix.ends_with(b"/") || rest.is_empty() || rest.starts_with(b"/");
        rest.filter(ends).unwrap_or(path)
    }
}

impl Item {
    fn parse(text: &str) -> Item {
        let is_folder = text.len() > 1 && text.ends_with('/');
        let mut rest = text.strip_suffix('/').filter(|_| is_folder).unwrap_or(text);
        let mut parts = Vec::new();
        while let Some((before, after)) = split_path(rest) {
            if !before.is_empty() {
                parts.push(ItemPart::Text(Template::parse(before)));
            }
            parts.push(ItemPart::Path);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(ItemPart::Text(Template::parse(rest)));
        }
        Item { parts, is_folder }
    }

    fn render(&self, x: &Exchange<'_>, uri: &[u8]) -> Candidate {
        let mut path = Vec::new();
        for part in &self.parts {
            match part {
                ItemPart::Path => path.extend_from_slice(uri),
                ItemPart::Text(template) => {
                    template.render(x, &mut path);
                }
            }
        }
        // A redirect adds a slash to the request's path. Where the folder does not end with that path, it would never
        // end.
        let is_fixed = self.is_folder && !matches!(self.parts.last(), Some(ItemPart::Path));
        let has_slash = path.is_empty() || path.ends_with(b"/") || is_fixed;
        Candidate { path, is_folder: self.is_folder, has_slash }
    }
}

/// The texts before and after the first `$uri` or `${uri}`. A longer name is another variable.
fn split_path(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(at) = text[from..].find('$').map(|at| from + at) {
        if let Some(after) = text[at..].strip_prefix("${uri}") {
            return Some((&text[..at], after));
        }
        let longer = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if let Some(after) = text[at..].strip_prefix("$uri")
            && !after.bytes().next().is_some_and(longer)
        {
            return Some((&text[..at], after));
        }
        from = at + 1;
    }
    None
}

/// The path of a URI, with all encodings decoded. An encoded slash separates nothing for routes and plugins, and no
/// name of a file has one: it becomes NUL, which [`relative`] refuses. As a slash, it would lead around routes that
/// guard a folder.
pub(super) fn path_of(uri: &[u8]) -> Vec<u8> {
    let path = uri.split(|byte| *byte == b'?').next().unwrap_or_default();
    let mut decoded = Vec::with_capacity(path.len());
    for (at, part) in path.split(|byte| *byte == b'/').enumerate() {
        if at > 0 {
            decoded.push(b'/');
        }
        let from = decoded.len();
        target::percent_decode(part, false, &mut decoded);
        decoded[from..].iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = 0);
    }
    decoded
}

/// A path as it is opened: without slashes at its ends and empty components. `None` for one that is never served: with
/// `.` or `..`, NUL, or a hidden file or folder (except `.well-known` at the start, RFC 8615) unless these are served.
pub(super) fn relative(path: &[u8], hidden_files: bool) -> Option<Vec<u8>> {
    let mut relative = Vec::with_capacity(path.len());
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        let is_hidden = part[0] == b'.' && !(relative.is_empty() && part == b".well-known");
        if matches!(part, b"." | b"..") || part.contains(&0) || is_hidden && !hidden_files {
            return None;
        }
        if !relative.is_empty() {
            relative.push(b'/');
        }
        relative.extend_from_slice(part);
    }
    Some(relative)
}
