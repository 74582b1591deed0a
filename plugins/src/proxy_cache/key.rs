//! The cache key: it separates one request's answers from another's.

use sdk::Exchange;
use sdk::vars::Var;
use sha2::{Digest, Sha256};

use crate::auth::Vouched;

/// The key of answers: who asks, and `cache_key`.
///
/// Variables name the host and the path in a normal form: `$host` has no port and no capital letters,
/// `$uri` is decoded. The upstream gets both as the client spelled them, or as a stage rewrote them,
/// and may answer two spellings differently. So where `cache_key` names them, the form that is
/// sent goes into the key as well: requests share an answer only if they do so by `cache_key` and
/// the upstream could not tell them apart by what `cache_key` is about.
pub(super) struct Key {
    parts: Vec<Part>,
    /// The parts of the request line as sent that belong to `cache_key`.
    sent: Vec<Sent>,
    with_consumer: bool,
    with_authorization: bool,
    /// Facts about the client from another server belong to the key.
    with_vouched: bool,
}

/// A piece of `cache_key`, `cache_bypass` or `no_cache`.
pub(super) enum Part {
    Text(Box<str>),
    Var(Var),
}

/// A piece of the request as the upstream gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    Authority,
    Path,
    /// With its `?`, so that an empty query differs from no query.
    Query,
}

impl Sent {
    /// Returns the parts that the variable of this name stands for.
    fn of(name: &str) -> &'static [Sent] {
        match name {
            "host" | "http_host" | "upstream_host" => &[Sent::Authority],
            "uri" | "document_uri" => &[Sent::Path],
            "args" | "query_string" => &[Sent::Query],
            "request_uri" | "real_request_uri" | "normal_request_uri" | "upstream_uri" | "request"
            | "request_line" => &[Sent::Path, Sent::Query],
            _ => &[],
        }
    }

    fn write(self, x: &Exchange<'_>, out: &mut Vec<u8>) {
        let head = x.request();
        match self {
            Sent::Authority => {
                // The client's own goes on too, as `X-Forwarded-Host`.
                sized(out, |out| out.extend_from_slice(head.authority()));
                if let Some(host) = x.rewritten_host() {
                    sized(out, |out| out.extend_from_slice(host));
                }
            }
            Sent::Path | Sent::Query => {
                let at = out.len();
                sized(out, |out| {
                    let from = out.len();
                    x.upstream_uri(out);
                    let path = out[from..].iter().take_while(|&&byte| byte != b'?').count();
                    match self {
                        Sent::Query => drop(out.drain(from..from + path)),
                        _ => out.truncate(from + path),
                    }
                });
                // No query at all is the same request by `$uri` and by `$request_uri`. The part before it
                // is a path, and begins otherwise, so nothing else reads like this.
                if self == Sent::Query && out.len() == at + 4 {
                    out.truncate(at);
                }
            }
        }
    }
}

impl Key {
    /// With `isolated`, who asks is part of the key, unless a part says so already.
    pub(super) fn new(texts: &[String], isolated: bool) -> Key {
        // Only a variable that can have a value tells anybody apart.
        let has = |name: &str| {
            let known = |text: &String| text.strip_prefix('$') == Some(name) && Var::parse(name).is_known();
            texts.iter().any(known)
        };
        let authorization = has("http_authorization");
        let consumer = ["consumer_name", "consumer_group_id", "remote_user"].into_iter().any(has);
        let names = texts.iter().filter_map(|text| text.strip_prefix('$'));
        let mut sent: Vec<Sent> = names.flat_map(Sent::of).copied().collect();
        sent.sort_unstable();
        sent.dedup();
        Key {
            parts: parts(texts),
            sent,
            with_consumer: isolated && !consumer && !authorization,
            with_authorization: isolated && !authorization,
            with_vouched: isolated,
        }
    }

    pub(super) fn needs_body(&self) -> bool {
        self.parts.iter().any(Part::needs_body)
    }

    /// Writes the request's key. Every part goes with its length, so that no two requests
    /// are taken for one another.
    pub(super) fn write(&self, x: &Exchange<'_>, out: &mut Vec<u8>) {
        out.clear();
        if self.with_consumer
            && let Some(consumer) = x.consumer()
        {
            out.push(b'c');
            sized(out, |out| out.extend_from_slice(consumer.name.as_bytes()));
        }
        if self.with_authorization
            && let Some(authorization) = x.header("Authorization")
        {
            // A digest: keys stand in files.
            out.push(b'a');
            out.extend_from_slice(&Sha256::digest(authorization));
        }
        if self.with_vouched
            && let Some(vouched) = x.note::<Vouched>()
        {
            out.push(b'v');
            out.extend_from_slice(&Sha256::digest(vouched.bytes()));
        }
        out.push(b'k');
        for part in &self.parts {
            sized(out, |out| part.write(x, out));
        }
        for sent in &self.sent {
            sent.write(x, out);
        }
    }
}

impl Part {
    pub(super) fn needs_body(&self) -> bool {
        matches!(self, Part::Var(var) if var.needs_body())
    }

    fn write(&self, x: &Exchange<'_>, out: &mut Vec<u8>) {
        match self {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            // An absent variable is an empty text.
            Part::Var(var) => {
                var.write(x, out);
            }
        }
    }
}

pub(super) fn parts(texts: &[String]) -> Vec<Part> {
    let part = |text: &String| match text.strip_prefix('$') {
        Some(name) => Part::Var(Var::parse(name)),
        None => Part::Text(text.as_str().into()),
    };
    texts.iter().map(part).collect()
}

/// Whether the joined values are something other than nothing and `0`.
pub(super) fn holds(parts: &[Part], x: &Exchange<'_>) -> bool {
    if parts.is_empty() {
        return false;
    }
    let mut value = Vec::new();
    parts.iter().for_each(|part| part.write(x, &mut value));
    !value.is_empty() && value != b"0"
}

/// Writes a length and then what has that length.
fn sized(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}
