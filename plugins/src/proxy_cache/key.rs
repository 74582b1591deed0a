//! What tells one request's answers from another's.

use sdk::Exchange;
use sdk::vars::Var;
use sha2::{Digest, Sha256};

/// The key of answers: who asks, and `cache_key`.
pub(super) struct Key {
    parts: Vec<Part>,
    with_consumer: bool,
    with_authorization: bool,
}

/// A piece of `cache_key`, `cache_bypass` or `no_cache`.
pub(super) enum Part {
    Text(Box<str>),
    Var(Var),
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
        Key {
            parts: parts(texts),
            with_consumer: isolated && !consumer && !authorization,
            with_authorization: isolated && !authorization,
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
        out.push(b'k');
        for part in &self.parts {
            sized(out, |out| part.write(x, out));
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
