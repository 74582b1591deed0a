//! static-files: answers requests with the files of a folder.
//!
//! Sluice's own; APISIX has no such plugin. The folders that it may serve are listed in
//! `plugin_attr.static-files.roots` of `config.yaml`: by default none, so that a holder of the admin key cannot
//! read files of the machine. It answers in the place of the upstream, after all other plugins have let
//! the request through, with the path that they have made of it. GET and HEAD get files, with
//! Last-Modified, ETag, conditional requests and one range of bytes; other methods get 405. A folder without
//! a slash at its end is redirected, and no list of a folder is made. Nothing outside of the root is
//! reached: not by `..`, encoded or not, and not by symbolic links; an encoded slash finds nothing; FIFOs, devices and the gateway's
//! own files are refused. Files are read on threads of their own, in pieces of 64 KiB, each once the
//! client has taken the one before; the response to a file that becomes shorter meanwhile breaks off.

mod body;
mod candidates;
mod error_files;
mod find;
mod media_types;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::{Phase, Phases};
use sdk::files::{Files, PIECE, Root};
use sdk::{Build, Exchange, Method, Plugin, Reply, Step, SureAnswer};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::expiry::{self, Expiry};
use body::{FileBody, FilePart};
use candidates::{Candidates, Last};
use error_files::{ErrorFile, ErrorFiles};
use find::{Found, Lookup, Part, Served};

/// The plugin instance.
pub struct StaticFiles {
    files: Arc<Files>,
    root: Arc<Root>,
    candidates: Candidates,
    index: Arc<[String]>,
    types: Option<BTreeMap<String, String>>,
    default_type: Option<String>,
    charset: Option<String>,
    expires: Option<Expiry>,
    etag: bool,
    hidden_files: bool,
    error_files: ErrorFiles,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    root: String,
    strip: Option<String>,
    index: Vec<String>,
    try_files: Option<Vec<String>>,
    expires: Option<f64>,
    etag: bool,
    types: Option<BTreeMap<String, String>>,
    default_type: Option<String>,
    charset: Option<String>,
    hidden_files: bool,
    #[serde(default)]
    error_files: Vec<ErrorFile>,
}

impl Plugin for StaticFiles {
    const NAME: &'static str = "static-files";
    const PRIORITY: i32 = 300;
    const PHASES: Phases = Phases::BEFORE_PROXY.with(Phases::HEADER_FILTER);

    type Config = Config;

    fn schema() -> Value {
        // No control characters: it stands in a head.
        let media_type = json!({"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[ -~]*$"});
        let path = json!({"type": "string", "minLength": 1, "maxLength": 4096});
        json!({
            "type": "object",
            "properties": {
                "root": path,
                "strip": {"type": "string", "pattern": "^/", "maxLength": 4096},
                "index": {
                    "type": "array", "maxItems": 16, "default": ["index.html"],
                    "items": {"type": "string", "pattern": "^[^/]+$", "maxLength": 255},
                },
                "try_files": {"type": "array", "minItems": 1, "maxItems": 16, "items": path},
                "expires": expiry::schema(),
                "etag": {"type": "boolean", "default": true},
                "types": {"type": "object", "maxProperties": 1000, "additionalProperties": media_type},
                "default_type": media_type,
                "charset": {"type": "string", "pattern": "^[!#-'*+.0-9A-Z^_`a-z|~-]+$", "maxLength": 64},
                "hidden_files": {"type": "boolean", "default": false},
                "error_files": {
                    "type": "array", "maxItems": 64,
                    "items": {
                        "type": "object",
                        "properties": {
                            "status": {
                                "type": "array", "minItems": 1, "uniqueItems": true,
                                "items": {"type": "integer", "minimum": 300, "maximum": 599},
                            },
                            "root": path,
                            "file": {"type": "string", "pattern": "^/[^?#]*$", "maxLength": 4096},
                            "answer": {"type": "integer", "minimum": 200, "maximum": 599},
                            "of_upstream": {"type": "boolean", "default": false},
                        },
                        "required": ["status", "file"],
                    },
                },
            },
            "required": ["root"],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<StaticFiles, Invalid> {
        let Some(files) = cx.service::<Files>() else {
            return Err(Invalid::new("files are not available here").at("/root"));
        };
        let root = files.folders.root(&config.root).map_err(|invalid| invalid.at("/root"))?;
        let error_files = ErrorFiles::new(config.error_files, &files.folders)?;
        Ok(StaticFiles {
            files,
            root: Arc::new(root),
            candidates: Candidates::new(config.strip, config.try_files.as_deref())?,
            index: config.index.into(),
            types: config.types.map(|types| {
                types.into_iter().map(|(ending, kind)| (ending.to_ascii_lowercase(), kind)).collect()
            }),
            default_type: config.default_type,
            charset: config.charset,
            expires: config.expires.map(|seconds| Expiry::new(seconds as i64)),
            etag: config.etag,
            hidden_files: config.hidden_files,
            error_files,
        })
    }

    fn phases(&self) -> Phases {
        let serves = match self.candidates.only_upstream() {
            true => Phases::NONE,
            false => Phases::BEFORE_PROXY,
        };
        if self.error_files.is_empty() { serves } else { serves.with(Phases::HEADER_FILTER) }
    }

    fn sure_answer(&self, _: &Exchange<'_>) -> Option<SureAnswer> {
        (self.candidates.last() != Last::Upstream).then_some(SureAnswer::Unknown)
    }

    fn before_proxy(&self, x: &mut Exchange<'_>) -> Step {
        let is_read = matches!(x.method(), Method::Get | Method::Head);
        if is_read || self.candidates.are_listed() || x.method() == Method::Post {
            return Step::Wait;
        }
        not_allowed()
    }

    fn header_action(&self, x: &mut Exchange<'_>) -> Step {
        if self.error_files.of(x).is_some() { Step::Wait } else { Step::Next }
    }

    async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        match phase {
            Phase::HeaderFilter => self.error_file(x).await,
            _ => self.file(x).await,
        }
    }
}

impl StaticFiles {
    /// Answers the request.
    async fn file(&self, x: &mut Exchange<'_>) -> Step {
        let (path, lookup) = {
            let mut uri = Vec::new();
            x.upstream_uri(&mut uri);
            let path = candidates::path_of(&uri);
            let lookup = Lookup { candidates: self.candidates.of(x, &path), ..self.lookup(x) };
            (uri, lookup)
        };
        let (found, held) = match self.find(x, lookup).await {
            Ok(found) => found,
            Err(step) => return step,
        };
        let is_read = matches!(x.method(), Method::Get | Method::Head);
        match found {
            Found::File(_) if !is_read => not_allowed(),
            // As nginx: of the other methods, only POST learns what is the matter with a folder.
            Found::Folder | Found::NoIndex | Found::Denied | Found::Outside
                if !is_read && x.method() != Method::Post =>
            {
                not_allowed()
            }
            Found::File(served) => self.serve(x, served, held),
            Found::Folder => Step::Reply(self.with_expiry(x, redirect(x, &path))),
            Found::Nothing => match self.candidates.last() {
                Last::Upstream => Step::Next,
                Last::Status(status) => answer(status, "no file is at this path"),
            },
            Found::NoIndex => answer(403, "the folder has no index file"),
            Found::Denied => answer(403, "the process must not read the file"),
            Found::Outside => answer(403, "a link leads out of the root, or the file is the gateway's own"),
            Found::TooMany => answer(503, "too many files are open"),
            Found::Failed => answer(500, "the file cannot be read"),
        }
    }

    fn lookup(&self, x: &Exchange<'_>) -> Lookup {
        Lookup {
            files: self.files.clone(),
            root: self.root.clone(),
            candidates: Vec::new(),
            index: self.index.clone(),
            hidden_files: self.hidden_files,
            etag: self.etag,
            is_listed: self.candidates.are_listed(),
            part: Part::of(x),
        }
    }

    /// Looks for a file on the threads for files. The reservation is for its first piece.
    async fn find(&self, x: &Exchange<'_>, lookup: Lookup) -> Result<(Found, Reservation), Step> {
        let mut held = Reservation::default();
        if held.resize(x.world().budget(), PIECE).is_err() {
            return Err(crate::no_memory());
        }
        let timeout = self.files.read_timeout;
        let found = x.world().read_files(held, timeout, move |_| lookup.run()).await;
        found.ok_or_else(|| answer(504, "the file could not be read in time"))
    }

    fn serve(&self, x: &mut Exchange<'_>, served: Served, held: Reservation) -> Step {
        let mut reply = Reply::status(served.status);
        if matches!(served.status, 200 | 206) {
            reply = reply.header("Content-Type", self.media_type(&served.name));
        }
        if served.status == 200 {
            reply = reply.header("Accept-Ranges", "bytes");
        }
        if matches!(served.status, 412 | 416) {
            let mut reply = page(served.status, "the file does not meet the request's conditions");
            if let Some(range) = served.content_range {
                reply = reply.header("Content-Range", range);
            }
            return Step::Reply(reply);
        }
        reply = reply.header("Last-Modified", served.last_modified);
        if let Some(etag) = served.etag {
            reply = reply.header("ETag", etag);
        }
        if let Some(range) = served.content_range {
            reply = reply.header("Content-Range", range);
        }
        let reply = self.with_expiry(x, reply);
        self.give(x, reply, served.body, held)
    }

    /// Says how long the response may be kept.
    fn with_expiry(&self, x: &Exchange<'_>, reply: Reply) -> Reply {
        let Some(expiry) = &self.expires else { return reply };
        reply.header("Expires", expiry.date(x)).header("Cache-Control", expiry.control.clone())
    }

    /// Replies with a part of a file.
    fn give(&self, x: &mut Exchange<'_>, reply: Reply, part: FilePart, mut memory: Reservation) -> Step {
        match part.into_whole() {
            Ok(whole) => {
                // It only becomes smaller, so there is memory for it.
                let _ = memory.resize(x.world().budget(), whole.len());
                x.hold(memory);
                Step::Reply(Reply { body: whole, ..reply })
            }
            Err(part) => {
                let length = part.length();
                x.stream_body(length, Box::new(FileBody { files: self.files.clone(), part, memory }));
                Step::Reply(Reply { streamed: true, ..reply })
            }
        }
    }

    /// The value of `Content-Type` of a file.
    fn media_type(&self, name: &[u8]) -> String {
        let ending = media_types::ending(name);
        let known = match &self.types {
            Some(types) => ending.as_deref().and_then(|ending| types.get(ending)).map(String::as_str),
            None => ending.as_deref().and_then(media_types::of),
        };
        let kind = known.or(self.default_type.as_deref()).unwrap_or("application/octet-stream");
        match &self.charset {
            Some(charset) if media_types::is_text(kind) => format!("{kind}; charset={charset}"),
            _ => kind.to_owned(),
        }
    }
}

/// The redirect of a folder to its path with a slash at the end.
fn redirect(x: &Exchange<'_>, uri: &[u8]) -> Reply {
    let path = uri.split(|byte| *byte == b'?').next().unwrap_or_default();
    // With two slashes at its start it would name another host.
    let first = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let mut location = vec![b'/'];
    location.extend_from_slice(&path[first..]);
    if !location.ends_with(b"/") {
        location.push(b'/');
    }
    if x.request().has_query {
        location.push(b'?');
        location.extend_from_slice(x.query());
    }
    Reply::status(301).header("Location", location)
}

fn not_allowed() -> Step {
    Step::Reply(page(405, "files are only read").header("Allow", "GET, HEAD"))
}

fn answer(status: u16, reason: &'static str) -> Step {
    Step::Reply(page(status, reason))
}

/// A short page for people.
fn page(status: u16, reason: &'static str) -> Reply {
    let title = format!("{status} {}", sdk::reason(status));
    let title = title.trim_end();
    let page = format!("<html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>\n");
    let reply = Reply { status, body: page.into(), ..Reply::default() };
    reply.header("Content-Type", "text/html").because(reason)
}
