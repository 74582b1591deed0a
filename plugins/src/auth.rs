//! Shared by the auth plugins: the 401 answer, the anonymous consumer, base64, comparing secrets.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use model::Invalid;
use sdk::consumers::Identity;
use sdk::template::Template;
use sdk::{Exchange, Reply, Step};
use serde_json::{Value, json};
use smallvec::{SmallVec, smallvec};

/// The schema of `realm`: characters that need no escape in a quoted string.
pub(crate) fn realm(default: &str) -> Value {
    json!({
        "type": "string",
        "pattern": "^[\\x20-\\x21\\x23-\\x5B\\]-\\x7E]+$",
        "default": default,
        "minLength": 1,
        "maxLength": 128,
    })
}

/// The schema of `anonymous_consumer`.
pub(crate) fn anonymous_consumer() -> Value {
    json!({"type": "string", "minLength": 1})
}

/// The value of `WWW-Authenticate` in a 401 (RFC 9110 section 11.6.1).
pub(crate) enum Challenge {
    Text(Vec<u8>),
    /// With variables in the realm.
    Of(Template),
}

impl Challenge {
    /// `realm` must have passed its schema, so that it needs no escapes.
    pub fn new(scheme: &str, realm: &str) -> Challenge {
        Challenge::Text(format!("{scheme} realm=\"{realm}\"").into_bytes())
    }

    /// Of tokens (RFC 6750 section 3). Without a realm if it is empty; `${name}` in it is a variable.
    pub fn bearer(realm: &str) -> Challenge {
        match realm {
            "" => Challenge::Text(b"Bearer".to_vec()),
            realm if realm.contains("${") => {
                Challenge::Of(Template::parse(&format!("Bearer realm=\"{realm}\"")))
            }
            realm => Challenge::new("Bearer", realm),
        }
    }

    pub fn has_variables(&self) -> bool {
        matches!(self, Challenge::Of(_))
    }

    /// The value for a request.
    fn value(&self, x: &Exchange<'_>) -> Vec<u8> {
        match self {
            Challenge::Text(text) => text.clone(),
            Challenge::Of(template) => {
                let mut value = Vec::new();
                // A quoted string (RFC 9110 section 5.6.4), on one line.
                template.render_escaped(x, &mut value, |byte, out| match byte {
                    b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                    0x20..=0x7e => out.push(byte),
                    _ => {}
                });
                value
            }
        }
    }

    /// Refuses a token: the client learns that it sent one, and that it is not accepted.
    pub fn refuse_token(&self, x: &Exchange<'_>, message: &'static str) -> Step {
        let value = self.value(x);
        let separator = if value.contains(&b' ') { ", " } else { " " };
        let error = "error=\"invalid_token\"";
        let page = "error_uri=\"https://tools.ietf.org/html/rfc6750#section-3.1\"";
        let challenge = format!("{separator}{error}, error_description=\"{message}\", {page}").into_bytes();
        let reply = Reply::json(401, &json!({ "message": message })).because(message);
        Step::Reply(reply.header("WWW-Authenticate", [value, challenge].concat()))
    }

    pub fn refuse(&self, x: &Exchange<'_>, message: &'static str) -> Step {
        let reply = Reply::json(401, &json!({ "message": message })).because(message);
        Step::Reply(reply.header("WWW-Authenticate", self.value(x)))
    }

    /// Accepts the request as the anonymous consumer; refuses it if that consumer does not exist.
    pub fn admit(&self, x: &mut Exchange<'_>, plugin: &'static str, anonymous: &str) -> Step {
        let Some(consumer) = x.consumers().by_name(anonymous) else {
            x.complain(plugin, "the configured anonymous_consumer does not exist");
            return self.refuse(x, "Invalid user authorization");
        };
        let identity = Identity::anonymous(consumer);
        x.authenticate(identity);
        Step::Next
    }
}

/// Facts about the client from another server, as the upstream receives them. Answers that follow from it are for this
/// client alone.
#[derive(Default)]
pub(crate) struct Vouched(Vec<u8>);

impl Vouched {
    /// Adds a name or a value, with its length.
    pub fn add(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(part);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Refuses a credential that is empty, since a client that sends nothing would have it.
pub(crate) fn filled(config: &Value, fields: &[&'static str]) -> Result<(), Invalid> {
    for name in fields {
        if config.get(name).and_then(Value::as_str).is_some_and(str::is_empty) {
            return Err(Invalid::new(format!("property \"{name}\" must not be empty"))
                .at(format!("/{name}"))
                .expected("at least one character"));
        }
    }
    Ok(())
}

/// Compares two secrets in constant time. Only their lengths can be learnt from the time it takes.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    verify_slices_are_equal(a, b).is_ok()
}

/// Decoded bytes of a header; on the stack if short.
pub(crate) type Decoded = SmallVec<[u8; 256]>;

/// Decodes base64 as `ngx.decode_base64` does: padding is optional.
pub(crate) fn base64(text: &[u8]) -> Option<Decoded> {
    const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
    decode(&STANDARD, text)
}

/// Decodes `Basic …` to `name:password`.
pub(crate) fn basic(header: &[u8]) -> Option<Decoded> {
    let (scheme, rest) = header.split_at_checked(5)?;
    let (space, text) = rest.split_first()?;
    if !scheme.eq_ignore_ascii_case(b"basic") || !space.is_ascii_whitespace() || text.is_empty() {
        return None;
    }
    base64(text)
}

/// Decodes base64url (RFC 4648 section 5), which JSON web tokens use.
pub(crate) fn base64url(text: &[u8]) -> Option<Decoded> {
    const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);
    decode(&URL_SAFE, text)
}

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

fn decode(engine: &GeneralPurpose, text: &[u8]) -> Option<Decoded> {
    let mut out: Decoded = smallvec![0; text.len().div_ceil(4) * 3];
    let length = engine.decode_slice(text, &mut out).ok()?;
    out.truncate(length);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for (text, expected) in
            [("", Some("")), ("Zm9v", Some("foo")), ("Zm8=", Some("fo")), ("Zm8", Some("fo"))]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), expected.map(str::as_bytes), "{text}");
        }
        for wrong in ["Z", "Zm9v Zm9v", "aca_a", "Zm=9", "===="] {
            assert_eq!(base64(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(base64url(b"-_8").as_deref(), Some(&[0xfb, 0xff][..]));
        assert_eq!(base64url(b"+/8"), None);
        let long = "Zm9v".repeat(1000);
        assert_eq!(base64(long.as_bytes()).map(|bytes| bytes.len()), Some(3000));
    }

    #[test]
    fn secrets_are_the_same_or_not() {
        assert!(same(b"", b"") && same(b"ab", b"ab"));
        assert!(!same(b"ab", b"ac") && !same(b"ab", b"abc") && !same(b"ab", b""));
    }
}
