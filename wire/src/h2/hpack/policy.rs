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
        let id = FIELDS[index - 1].about.id as usize;
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
    const KEY: u32 = u32::from_be_bytes(*b"\0key");
    let mut last = 0u32;
    name.iter().any(|byte| {
        last = last << 8 | u32::from(byte | 0x20);
        let begins = matches!(
            &last.to_be_bytes(),
            b"auth" | b"cred" | b"csrf" | b"pass" | b"secr" | b"sess" | b"sign" | b"toke" | b"xsrf"
        );
        begins || last & 0xff_ffff == KEY
    })
}
