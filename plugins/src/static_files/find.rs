//! Finding a file, on the threads for files: everything here may block.

use std::sync::Arc;

use sdk::files::{Files, OpenError, OpenFile, Opened, Root};
use sdk::{Exchange, Fields, Method};

use super::body::FilePart;
use super::candidates::{Candidate, relative};
use crate::expiry::http_date;
use crate::proxy_cache::{range, rules};

/// The question for a file. It owns all it needs.
pub(super) struct Lookup {
    pub(super) files: Arc<Files>,
    pub(super) root: Arc<Root>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) index: Arc<[String]>,
    pub(super) hidden_files: bool,
    pub(super) etag: bool,
    /// The candidates are those of `try_files`, which names folders itself.
    pub(super) is_listed: bool,
    pub(super) part: Part,
}

/// The answer.
pub(super) enum Found {
    File(Served),
    /// A folder whose path has no slash at its end.
    Folder,
    Nothing,
    NoIndex,
    Denied,
    Outside,
    TooMany,
    Failed,
}

/// A file as the request wants it.
pub(super) struct Served {
    /// The path below the root.
    pub(super) name: Vec<u8>,
    /// 200, 206, 304, 412 or 416.
    pub(super) status: u16,
    pub(super) etag: Option<String>,
    pub(super) last_modified: String,
    pub(super) content_range: Option<String>,
    pub(super) body: FilePart,
}

/// The part of a file that is wanted.
pub(super) enum Part {
    /// All, regardless of the request: for pages of errors.
    Whole,
    /// As the fields of the request say: conditions and ranges.
    Asked(Fields),
}

/// The fields of requests that [`Part`] is about.
const FIELDS: [&str; 6] =
    ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range"];

impl Part {
    /// The conditions of a request. Ranges count for GET alone.
    pub(super) fn of(x: &Exchange<'_>) -> Part {
        let mut fields = Fields::new();
        for name in FIELDS.iter().filter(|name| x.method() == Method::Get || !name.ends_with("Range")) {
            for value in x.request().fields.all(name.to_ascii_lowercase().as_bytes()) {
                // It was a field before, so it can be one again.
                let _ = fields.append(name.as_bytes(), value);
            }
        }
        Part::Asked(fields)
    }
}

impl Lookup {
    pub(super) fn run(self) -> Found {
        for candidate in &self.candidates {
            match self.at(candidate) {
                Found::Nothing => {}
                // As nginx: an entry that cannot be read is passed over.
                Found::Denied | Found::Outside if self.is_listed => {}
                found => return found,
            }
        }
        Found::Nothing
    }

    fn at(&self, candidate: &Candidate) -> Found {
        let Some(path) = relative(&candidate.path, self.hidden_files) else { return Found::Nothing };
        let has_slash = candidate.has_slash;
        match self.files.opener.open(&self.root, &path) {
            Ok(Opened::File(_)) if has_slash || candidate.is_folder => Found::Nothing,
            Ok(Opened::File(file)) => self.served(path, file),
            Ok(Opened::Folder) if self.is_listed && !candidate.is_folder => Found::Nothing,
            Ok(Opened::Folder) if !has_slash => Found::Folder,
            Ok(Opened::Folder) => self.index(&path),
            Err(error) => unserved(error),
        }
    }

    /// The first index file of a folder.
    fn index(&self, folder: &[u8]) -> Found {
        for name in &*self.index {
            let mut path = folder.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            let Some(path) = relative(&path, self.hidden_files) else { continue };
            match self.files.opener.open(&self.root, &path) {
                Ok(Opened::File(file)) => return self.served(path, file),
                Ok(Opened::Folder) | Err(OpenError::Missing) => {}
                Err(error) => return unserved(error),
            }
        }
        Found::NoIndex
    }

    fn served(&self, name: Vec<u8>, file: OpenFile) -> Found {
        let OpenFile { length, modified: (seconds, nanos), content } = file;
        let etag = self.etag.then(|| etag(seconds, nanos, length));
        let last_modified = http_date(seconds);
        let (status, from, end) = match &self.part {
            Part::Whole => (200, 0, length),
            Part::Asked(request) => wanted(request, etag.as_deref(), &last_modified, length),
        };
        let content_range = match status {
            206 => Some(format!("bytes {from}-{}/{length}", end - 1)),
            416 => Some(format!("bytes */{length}")),
            _ => None,
        };
        let body = match status {
            200 | 206 => FilePart::open(content, from, end),
            _ => Ok(FilePart::none()),
        };
        match body {
            Ok(body) => Found::File(Served { name, status, etag, last_modified, content_range, body }),
            Err(_) => Found::Failed,
        }
    }
}

fn unserved(error: OpenError) -> Found {
    match error {
        OpenError::Missing => Found::Nothing,
        OpenError::Denied => Found::Denied,
        OpenError::Outside => Found::Outside,
        OpenError::TooMany => Found::TooMany,
        OpenError::Failed => Found::Failed,
    }
}

/// The status, and the bytes from the first to before the second (RFC 9110 section 13.2.2).
fn wanted(request: &Fields, etag: Option<&str>, last_modified: &str, length: u64) -> (u16, u64, u64) {
    let mut answer = Fields::new();
    for (name, value) in [("ETag", etag), ("Last-Modified", Some(last_modified))] {
        if let Some(value) = value {
            // Made of digits and a date.
            let _ = answer.append(name.as_bytes(), value.as_bytes());
        }
    }
    if !precondition(request, &answer) {
        return (412, 0, 0);
    }
    if rules::not_modified(request, &answer) {
        return (304, 0, 0);
    }
    let whole = usize::try_from(length).unwrap_or(usize::MAX);
    match range::wanted(request, &answer, whole) {
        range::Wanted::Whole => (200, 0, length),
        range::Wanted::Part(from, end) => (206, from as u64, end as u64),
        range::Wanted::Nothing => (416, 0, 0),
    }
}

/// If-Match and If-Unmodified-Since (RFC 9110 sections 13.1.1 and 13.1.4).
fn precondition(request: &Fields, answer: &Fields) -> bool {
    if request.get_named(b"if-match").is_some() {
        let etag = answer.get_named(b"etag");
        let tags = request.all(b"if-match").flat_map(|line| line.split(|byte| *byte == b','));
        let mut tags = tags.map(<[u8]>::trim_ascii);
        return tags.any(|tag| tag == b"*" || Some(tag) == etag);
    }
    let since = request.get_named(b"if-unmodified-since").and_then(rules::date);
    let modified = answer.get_named(b"last-modified").and_then(rules::date);
    !matches!((modified, since), (Some(modified), Some(since)) if modified > since)
}

/// As nginx makes it of the time and the length; with the part of a second, where the file system has one.
fn etag(seconds: u64, nanos: u32, length: u64) -> String {
    match nanos {
        0 => format!("\"{seconds:x}-{length:x}\""),
        nanos => format!("\"{seconds:x}-{length:x}-{nanos:x}\""),
    }
}
