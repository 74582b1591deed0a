//! Files in the place of responses with certain statuses.

use sdk::exchange::Source;
use sdk::{Exchange, Reply, Step};
use serde::Deserialize;

use super::StaticFiles;
use super::candidates::Candidate;
use super::find::{Found, Lookup, Part};

/// An entry of `error_files`.
#[derive(Debug, Deserialize)]
pub struct ErrorFile {
    status: Vec<u16>,
    file: String,
    answer: Option<u16>,
    of_upstream: bool,
}

pub(super) struct ErrorFiles(Vec<ErrorFile>);

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
    pub(super) fn new(files: Vec<ErrorFile>) -> ErrorFiles {
        ErrorFiles(files)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry of the response whose head is there.
    pub(super) fn of(&self, x: &Exchange<'_>) -> Option<&ErrorFile> {
        if self.0.is_empty() || x.note::<Replaced>().is_some() {
            return None;
        }
        let of_upstream = x.source() == Source::Upstream;
        let applies =
            |file: &&ErrorFile| file.status.contains(&x.status()) && (!of_upstream || file.of_upstream);
        self.0.iter().find(applies)
    }
}

impl StaticFiles {
    /// Replaces the response by the file of its status. Without the file it stays.
    pub(super) async fn error_file(&self, x: &mut Exchange<'_>) -> Step {
        let Some(file) = self.error_files.of(x) else { return Step::Next };
        let candidates = vec![Candidate { path: file.file.clone().into_bytes(), is_folder: false }];
        let lookup = Lookup { candidates, is_listed: true, part: Part::Whole, ..self.lookup(x) };
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
