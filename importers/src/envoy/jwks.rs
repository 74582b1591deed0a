//! A set of keys (RFC 7517) that holds one: as the settings of jwt-auth.

use serde_json::{Map, Value, json};

use crate::base64;

/// A key.
pub(super) struct Key {
    /// `algorithm`, with `secret` or `public_key`.
    pub(super) settings: Map<String, Value>,
}

/// Reads a set of keys.
pub(super) fn read(text: &str) -> Result<Key, String> {
    if text.contains("-----BEGIN PUBLIC KEY-----") {
        return Ok(public("RS256", text.trim()));
    }
    let set: Value = serde_json::from_str(text.trim()).map_err(|_| "`local_jwks` is not JSON".to_owned())?;
    let one = [set.clone()];
    let keys = set.get("keys").and_then(Value::as_array).map_or(&one[..], Vec::as_slice);
    let [key] = keys else {
        return Err(format!("the provider has {} keys; a consumer has one", keys.len()));
    };
    let field = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or_default();
    let bytes = |name: &str| {
        base64::decode(field(name))
            .filter(|bytes| !bytes.is_empty())
            .ok_or_else(|| format!("`{name}` of the key is not readable"))
    };
    let algorithm = field("alg");
    match field("kty") {
        "oct" => {
            let algorithm = if algorithm.is_empty() { "HS256" } else { algorithm };
            let secret = base64::encode(&bytes("k")?);
            let settings = json!({"algorithm": algorithm, "secret": secret, "base64_secret": true});
            Ok(Key { settings: settings.as_object().cloned().unwrap_or_default() })
        }
        "RSA" => {
            let algorithm = if algorithm.is_empty() { "RS256" } else { algorithm };
            let numbers = der(0x30, &[integer(&bytes("n")?), integer(&bytes("e")?)].concat());
            // rsaEncryption, with the parameters NULL.
            let kind = der(
                0x30,
                &[&[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00][..]]
                    .concat(),
            );
            Ok(public(algorithm, &pem(&kind, &numbers)))
        }
        "EC" => {
            let (curve, default): (&[u8], _) = match field("crv") {
                "P-256" => (&[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], "ES256"),
                "P-384" => (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22], "ES384"),
                "P-521" => (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23], "ES512"),
                other => return Err(format!("the curve `{other}` is unknown")),
            };
            let id = [0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
            let kind = der(0x30, &[&id[..], curve].concat());
            let point = [&[0x04][..], &bytes("x")?, &bytes("y")?].concat();
            Ok(public(if algorithm.is_empty() { default } else { algorithm }, &pem(&kind, &point)))
        }
        other => Err(format!("keys of the type `{other}` are not supported")),
    }
}

fn public(algorithm: &str, pem: &str) -> Key {
    let settings = json!({"algorithm": algorithm, "public_key": pem});
    Key { settings: settings.as_object().cloned().unwrap_or_default() }
}

/// SubjectPublicKeyInfo (RFC 5280 4.1) in PEM.
fn pem(kind: &[u8], key: &[u8]) -> String {
    let bits = der(0x03, &[&[0][..], key].concat());
    let text = base64::encode(&der(0x30, &[kind, &bits].concat()));
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
}

/// A number that is not negative.
fn integer(bytes: &[u8]) -> Vec<u8> {
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len().saturating_sub(1));
    let bytes = &bytes[start..];
    let sign: &[u8] = if bytes.first().is_some_and(|byte| *byte >= 0x80) { &[0] } else { &[] };
    der(0x02, &[sign, bytes].concat())
}

/// A value with its tag and length.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len() - 1);
        out.push(0x80 | (bytes.len() - start) as u8);
        out.extend_from_slice(&bytes[start..]);
    }
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_settings() {
        let secret = read(r#"{"keys":[{"kty":"oct","alg":"HS256","k":"c2VjcmV0"}]}"#).unwrap();
        assert_eq!(secret.settings["secret"], "c2VjcmV0");
        let curve = read(r#"{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}"#).unwrap();
        assert_eq!(
            curve.settings["public_key"],
            "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEMKBCTNIcKUSDii11ySs3526iDZ8A\niTo7Tu6KPAqv7D7gS2XpJFbZiItSs3m9+9Ue6GnvHw/GW2ZZaVtszggXIw==\n-----END PUBLIC KEY-----\n"
        );
        let rsa = read(r#"{"keys":[{"kty":"RSA","n":"3Q","e":"AQAB"}]}"#).unwrap();
        assert_eq!(
            rsa.settings["public_key"],
            "-----BEGIN PUBLIC KEY-----\nMB0wDQYJKoZIhvcNAQEBBQADDAAwCQICAN0CAwEAAQ==\n-----END PUBLIC KEY-----\n"
        );
        for wrong in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"RSA"}]}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
