//! Files in the place of responses with certain statuses.

use std::sync::Arc;

use model::Invalid;
use sdk::exchange::Source;
use sdk::files::{Root, ServedFolders};
use sdk::{Exchange, Reply, Step};
use serde::Deserialize;

use super::StaticFiles;
use super::candidates::Candidate;
use super::find::{Found, Lookup, Part};

/// An entry of `error_files`.
#[derive(Debug, Deserialize)]
pub struct ErrorFile {
    status: Vec<u16>,
    root: Option<String>,
    file: String,
    answer: Option<u16>,
    of_upstream: bool,
}

/// The entries with their own folders.
pub(super) struct ErrorFiles(Vec<(ErrorFile, Option<Arc<Root>>)>);

/// Marks a response that was replaced: it is not replaced again.
struct Replaced;

/// Fields of a refusal that clients need, which its page keeps.
const KEPT: [&str; 7] = [
    "WWW-Authenticate",
    "Retry-After",
    "Allow",
    "Location",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];

impl ErrorFiles {
    pub(super) fn new(files: Vec<ErrorFile>, folders: &ServedFolders) -> Result<ErrorFiles, Invalid> {
        let with_root = |(index, file): (usize, ErrorFile)| {
            let root = file.root.as_deref().map(|root| folders.root(root).map(Arc::new)).transpose();
            Ok((file, root.map_err(|invalid| invalid.at(format!("/error_files/{index}/root")))?))
        };
        Ok(ErrorFiles(files.into_iter().enumerate().map(with_root).collect::<Result<_, Invalid>>()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry of the response whose head is there.
    pub(super) fn of(&self, x: &Exchange<'_>) -> Option<&(ErrorFile, Option<Arc<Root>>)> {
        if self.0.is_empty() || x.note::<Replaced>().is_some() {
            return None;
        }
        let of_upstream = x.source() == Source::Upstream;
        let applies = |(file, _): &&(ErrorFile, Option<Arc<Root>>)| {
            file.status.contains(&x.status()) && (!of_upstream || file.of_upstream)
        };
        self.0.iter().find(applies)
    }
}

impl StaticFiles {
    /// Replaces the response by the file of its status. Without the file it stays.
    pub(super) async fn error_file(&self, x: &mut Exchange<'_>) -> Step {
        let Some((file, root)) = self.error_files.of(x) else { return Step::Next };
        let candidates =
            vec![Candidate { path: file.file.clone().into_bytes(), is_folder: false, has_slash: false }];
        let root = root.as_ref().unwrap_or(&self.root).clone();
        let lookup = Lookup { root, candidates, is_listed: true, part: Part::Whole, ..self.lookup(x) };
        let Ok((Found::File(served), held)) = self.find(x, lookup).await else {
            x.complain(<Self as sdk::Plugin>::NAME, "the file of `error_files` cannot be read");
            return Step::Next;
        };
        let mut reply = Reply::status(file.answer.unwrap_or(x.status()));
        reply = reply.header("Content-Type", self.media_type(&served.name));
        for name in KEPT {
            if let Some(value) = x.response_header(name) {
                reply = reply.header(name, value);
            }
        }
        x.set_note(Replaced);
        self.give(x, reply, served.body, held)
    }
}
