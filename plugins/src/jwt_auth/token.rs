//! A token in compact form (RFC 7515 section 7.1): parsed, not yet verified.

use serde_json::{Map, Value};

use crate::auth::{Decoded, base64url};

pub(crate) struct Token<'t> {
    header: Map<String, Value>,
    payload: Map<String, Value>,
    /// The signed text: header and payload, as sent.
    pub signed: &'t [u8],
    signature: &'t [u8],
}

impl<'t> Token<'t> {
    /// `None` if it is not a signed token. Encrypted tokens are not supported.
    pub fn parse(text: &'t [u8]) -> Option<Token<'t>> {
        let mut dots = text.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
        let (first, second) = (dots.next()?, dots.next()?);
        if dots.next().is_some() {
            return None;
        }
        Some(Token {
            header: object(&text[..first])?,
            payload: object(&text[first + 1..second])?,
            signed: &text[..second],
            signature: &text[second + 1..],
        })
    }

    /// The key that signed it (`kid`), if it names one.
    pub fn key_id(&self) -> Option<&str> {
        self.header.get("kid")?.as_str()
    }

    pub fn algorithm(&self) -> Option<&str> {
        self.header.get("alg")?.as_str()
    }

    /// Whether it requires extensions (RFC 7515 section 4.1.11). None are supported.
    pub fn is_critical(&self) -> bool {
        self.header.contains_key("crit")
    }

    pub fn claim(&self, name: &str) -> Option<&Value> {
        self.payload.get(name)
    }

    pub fn signature(&self) -> Option<Decoded> {
        base64url(self.signature)
    }

    /// The payload as it was sent, in base64url.
    pub fn payload_text(&self) -> &'t [u8] {
        let from = self.signed.iter().position(|byte| *byte == b'.').map_or(0, |at| at + 1);
        &self.signed[from..]
    }

    pub fn into_claims(self) -> Value {
        Value::Object(self.payload)
    }

    /// Whether `exp` and `nbf` allow the token at `now` (Unix seconds). The claims in `required` must be
    /// present; if the list is empty, those that are present are checked.
    pub fn is_in_time(&self, required: &[String], now: u64, grace: f64) -> bool {
        let now = now as f64;
        ["nbf", "exp"].iter().all(|&name| match self.claim(name) {
            _ if !required.is_empty() && !required.iter().any(|one| one == name) => true,
            None => required.is_empty(),
            Some(claim) => claim.as_f64().is_some_and(|time| match name {
                "nbf" => time < now + grace,
                _ => time > now - grace,
            }),
        })
    }
}

fn object(part: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(&base64url(part)?).ok()
}
