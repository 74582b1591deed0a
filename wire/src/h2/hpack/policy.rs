//! hot path
//!
//! Which fields an encoder indexes, and their names in the static table.

use super::fixed::FIELDS;
use crate::names::Name;

/// How a field is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Indexed once its value repeats.
    Index,
    /// As a literal: its values hardly repeat on a connection, or take few bytes.
    Plain,
    /// As a literal that no proxy may index (RFC 7541 section 7.1.3): it may be a secret.
    Never,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    pub(super) rule: Rule,
    /// The index of the name in the static table; 0 if it is absent.
    pub(super) index: u8,
}

/// The policy of a name.
#[inline]
pub(super) fn of(id: Name) -> Policy {
    POLICIES[id as usize]
}

static POLICIES: [Policy; Name::KNOWN.len() + 1] = {
    let mut all = [Policy { rule: Rule::Index, index: 0 }; Name::KNOWN.len() + 1];
    let mut at = 0;
    while at < Name::KNOWN.len() {
        let id = Name::KNOWN[at].0;
        all[id as usize].rule = rule(id);
        at += 1;
    }
    // From the last to the first, as the first entry of a name has the lowest index.
    let mut index = FIELDS.len();
    while index > 0 {
        let id = FIELDS[index - 1].id as usize;
        if id != Name::Other as usize {
            all[id].index = index as u8;
        }
        index -= 1;
    }
    all
};

const fn rule(id: Name) -> Rule {
    match id {
        Name::Apikey
        | Name::Authorization
        | Name::Cookie
        | Name::ProxyAuthorization
        | Name::SetCookie
        | Name::XCredentialIdentifier => Rule::Never,
        Name::Age
        | Name::ContentLength
        | Name::ContentRange
        | Name::Etag
        | Name::IfMatch
        | Name::IfModifiedSince
        | Name::IfNoneMatch
        | Name::IfRange
        | Name::IfUnmodifiedSince
        | Name::LastModified
        | Name::Location
        | Name::Range
        | Name::Referer
        | Name::RetryAfter
        | Name::SecWebsocketKey
        | Name::XRateLimitRemaining
        | Name::XRateLimitReset
        | Name::XRequestId => Rule::Plain,
        _ => Rule::Index,
    }
}

/// Whether an unknown name is spelled like that of a secret.
pub(super) fn is_secret(name: &[u8]) -> bool {
    const WORDS: [&[u8]; 10] =
        [b"token", b"secret", b"passw", b"auth", b"key", b"session", b"csrf", b"xsrf", b"cred", b"sign"];
    (0..name.len()).any(|at| {
        matches!(name[at] | 0x20, b't' | b's' | b'p' | b'a' | b'k' | b'c' | b'x')
            && WORDS
                .iter()
                .any(|word| name.get(at..at + word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word)))
    })
}
