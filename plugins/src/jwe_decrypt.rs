//! jwe-decrypt: decrypts a token that a client sends (RFC 7516, direct encryption with A256GCM).
//!
//! Settings, messages and statuses as in APISIX 3.18. Unlike there, the header of the token is authenticated with the text
//! where the token follows the RFC; tokens without that, as APISIX makes them, are accepted as well. It does not identify
//! a consumer, though it finds the secret by one.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use model::Invalid;
use model::apisix_plugins::{self, Subsystem};
use sdk::chain::Phases;
use sdk::consumers::Credential;
use sdk::{Build, Exchange, HeaderName, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::auth::{Vouched, base64url};

/// The configured plugin.
pub struct JweDecrypt {
    header: HeaderName,
    forward_header: HeaderName,
    strict: bool,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    header: String,
    forward_header: String,
    strict: bool,
}

/// A consumer's key.
struct Secret(LessSafeKey);

impl Plugin for JweDecrypt {
    const NAME: &'static str = "jwe-decrypt";
    const PRIORITY: i32 = 2509;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn consumer_schema() -> Option<Value> {
        apisix_plugins::find(Subsystem::Http, Self::NAME)?.facts().consumer_schema
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<JweDecrypt, Invalid> {
        let header = |name: &str, field: &str| {
            HeaderName::new(name).map_err(|_| {
                Invalid::new("this is not a valid header name").at(format!("/{field}")).got(name)
            })
        };
        Ok(JweDecrypt {
            header: header(&config.header, "header")?,
            forward_header: header(&config.forward_header, "forward_header")?,
            strict: config.strict,
        })
    }

    fn credential(consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        let text = |name: &str| consumer_config.get(name).and_then(Value::as_str);
        let (Some(key), Some(secret)) = (text("key"), text("secret")) else { return Ok(None) };
        let (bytes, words) = match consumer_config.get("is_base64_encoded") {
            Some(Value::Bool(true)) => (
                base64url(secret.as_bytes()).map(|bytes| bytes.to_vec()).unwrap_or_default(),
                "the secret length after base64 decode should be 32 chars",
            ),
            _ => (secret.as_bytes().to_vec(), "the secret length should be 32 chars"),
        };
        let key_of = UnboundKey::new(&AES_256_GCM, &bytes);
        let key_of = key_of.map_err(|_| Invalid::new(words).at("/secret"))?;
        let secret = Secret(LessSafeKey::new(key_of));
        Ok(Some(Credential { key: key.into(), secret: Some(Arc::new(secret)) }))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let refuse = |status, message: &'static str| {
            Step::Reply(Reply::json(status, &json!({ "message": message })).because(message))
        };
        let Some(value) = x.header(&self.header) else {
            return if self.strict {
                refuse(403, "missing JWE token in request")
            } else {
                // The client's own text must not pass for one that was decrypted.
                x.remove_lookalikes(&self.forward_header);
                x.remove_header(&self.forward_header);
                Step::Next
            };
        };
        let token =
            value.strip_prefix(b"Bearer ").or_else(|| value.strip_prefix(b"bearer ")).unwrap_or(value);
        let parts: Vec<&[u8]> = token.splitn(6, |byte| *byte == b'.').collect();
        let &[head, _, nonce, text, tag] = parts.as_slice() else { return refuse(400, "JWE token invalid") };
        let header: Option<Map<String, Value>> =
            base64url(head).and_then(|head| serde_json::from_slice(&head).ok());
        let Some(header) = header else { return refuse(400, "JWE token invalid") };
        let Some(id) = header.get("kid").filter(|id| !matches!(id, Value::Null | Value::Bool(false))) else {
            return refuse(400, "missing kid in JWE token");
        };
        let found = id.as_str().and_then(|id| x.consumers().find(Self::NAME, id.as_bytes()));
        let Some(secret) = found.and_then(|identity| identity.secret::<Secret>()) else {
            return refuse(400, "invalid kid in JWE token");
        };
        let Some(plain) = decrypt(secret, head, nonce, text, tag) else {
            return refuse(400, "failed to decrypt JWE token");
        };
        x.remove_lookalikes(&self.forward_header);
        if x.set_header(&self.forward_header, &plain).is_err() {
            return refuse(400, "failed to decrypt JWE token");
        }
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        vouched.add(self.forward_header.as_str().as_bytes());
        vouched.add(&plain);
        x.set_note(vouched);
        Step::Next
    }
}

fn decrypt(secret: &Secret, head: &[u8], nonce: &[u8], text: &[u8], tag: &[u8]) -> Option<Vec<u8>> {
    let nonce: [u8; 12] = base64url(nonce)?.as_slice().try_into().ok()?;
    let tag = base64url(tag).filter(|tag| tag.len() == AES_256_GCM.tag_len())?;
    let sealed = [&base64url(text)?[..], &tag].concat();
    // The RFC authenticates the header, as sent; APISIX does not.
    [head, b""].into_iter().find_map(|authenticated| {
        let mut text = sealed.clone();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let length = secret.0.open_in_place(nonce, Aad::from(authenticated), &mut text).ok()?.len();
        text.truncate(length);
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use sdk::testing::Probe;

    use super::*;

    const SECRET: &str = "01234567890123456789012345678901";

    fn encoded(bytes: impl AsRef<[u8]>) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    fn token(head: &str, authenticates: bool, plain: &[u8]) -> String {
        let head = encoded(head);
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, SECRET.as_bytes()).unwrap());
        let mut text = plain.to_vec();
        let aad = if authenticates { head.as_bytes() } else { b"" };
        let nonce = Nonce::assume_unique_for_key([7; 12]);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), &mut text).unwrap();
        format!("{head}..{}.{}.{}", encoded([7; 12]), encoded(text), encoded(tag))
    }

    /// Status, message and the header for the upstream.
    fn run(config: Value, headers: &[(&str, &str)]) -> (u16, String, Option<String>) {
        let mut probe = Probe::request("GET", "/", headers)
            .consumer::<JweDecrypt>("jack", json!({"key": "k", "secret": SECRET}))
            .consumer::<JweDecrypt>(
                "rose",
                json!({"key": "r", "secret": encoded(SECRET), "is_base64_encoded": true}),
            );
        let mut written = json!({"header": "Authorization", "forward_header": "Authorization"});
        for (name, value) in config.as_object().unwrap() {
            written[name] = value.clone();
        }
        let plugin: JweDecrypt = probe.stage(written).unwrap();
        let mut x = probe.exchange();
        match plugin.rewrite(&mut x) {
            Step::Next => {
                let value =
                    x.header("Authorization").map(|value| String::from_utf8_lossy(value).into_owned());
                (200, String::new(), value)
            }
            Step::Reply(reply) => (reply.status, String::from_utf8_lossy(&reply.body).into_owned(), None),
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn tokens_are_decrypted_with_the_secret_of_their_key() {
        for (head, prefix) in
            [(r#"{"kid":"k"}"#, "Bearer "), (r#"{"kid":"r"}"#, "bearer "), (r#"{"kid":"k"}"#, "")]
        {
            for authenticates in [true, false] {
                let value = format!("{prefix}{}", token(head, authenticates, b"hello"));
                let ran = run(json!({}), &[("Authorization", &value)]);
                assert_eq!(ran, (200, String::new(), Some("hello".to_owned())), "{head}");
            }
        }
        let other = token(r#"{"kid":"k"}"#, true, b"hello");
        let ran = run(json!({"header": "X-Token"}), &[("X-Token", &other), ("Authorization", "forged")]);
        assert_eq!(ran.2.as_deref(), Some("hello"));
    }

    #[test]
    fn other_tokens_are_refused() {
        let good = token(r#"{"kid":"k"}"#, true, b"hello");
        let changed = |at: usize, part: &str| {
            let mut parts: Vec<_> = good.split('.').collect();
            parts[at] = part;
            parts.join(".")
        };
        for (value, status, message) in [
            ("a.b.c".to_owned(), 400, "JWE token invalid"),
            (format!("{good}.x"), 400, "JWE token invalid"),
            (changed(0, "e30"), 400, "missing kid in JWE token"),
            (changed(0, "bm8"), 400, "JWE token invalid"),
            (changed(0, &encoded(r#"{"kid":"other"}"#)), 400, "invalid kid in JWE token"),
            (changed(0, &encoded(r#"{"kid":7}"#)), 400, "invalid kid in JWE token"),
            (changed(0, &encoded(r#"{"kid":"r","a":1}"#)), 400, "failed to decrypt JWE token"),
            (changed(2, "AAAA"), 400, "failed to decrypt JWE token"),
            (changed(3, "AAAA"), 400, "failed to decrypt JWE token"),
            (changed(4, "AAAA"), 400, "failed to decrypt JWE token"),
            (token(r#"{"kid":"k"}"#, true, b"a\r\nX: y"), 400, "failed to decrypt JWE token"),
        ] {
            let ran = run(json!({}), &[("Authorization", &value)]);
            assert_eq!(ran, (status, format!("{{\"message\":\"{message}\"}}\n"), None), "{value}");
        }
        assert_eq!(run(json!({}), &[]).0, 403);
        let lax = json!({"strict": false, "header": "X-Token"});
        assert_eq!(run(lax, &[("Authorization", "forged")]), (200, String::new(), None));
    }

    #[test]
    fn secrets_have_the_length_of_the_key() {
        for (config, words) in [
            (json!({"key": "k", "secret": "short"}), "the secret length should be 32 chars"),
            (
                json!({"key": "k", "secret": SECRET, "is_base64_encoded": true}),
                "the secret length after base64 decode should be 32 chars",
            ),
            (
                json!({"key": "k", "secret": "+", "is_base64_encoded": true}),
                "the secret length after base64 decode should be 32 chars",
            ),
        ] {
            let error = JweDecrypt::credential(&config).map(drop).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(!error.to_string().contains(SECRET));
        }
    }
}
