//! A set of keys (RFC 7517), and the verification of tokens with it.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, ParsedPublicKey, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::Value;

use crate::auth::base64url;
use crate::jwt_auth::token::Token;
use crate::jwt_auth::verify::read_pem;

/// Keys of a set that are kept; further ones are ignored.
const MOST: usize = 64;

/// Keys that are tried for a token that names none.
const TRIES: usize = 8;

/// A set of keys; never empty.
pub(crate) struct KeySet(Vec<Key>);

struct Key {
    id: Option<String>,
    algorithm: Option<String>,
    material: Material,
}

enum Material {
    Secret(Vec<u8>),
    /// RSAPublicKey in DER (RFC 8017 A.1.1).
    Rsa(Vec<u8>),
    /// The curve and the uncompressed point.
    Curve(&'static str, Vec<u8>),
    Ed25519(Vec<u8>),
}

impl KeySet {
    /// Reads a set. Keys for encryption, and those that are not supported, are left out.
    pub fn read(text: &[u8]) -> Result<KeySet, &'static str> {
        let set: Value = serde_json::from_slice(text).map_err(|_| "the set of keys is not JSON")?;
        let list = set.get("keys").and_then(Value::as_array).ok_or("the set of keys has no list `keys`")?;
        let keys: Vec<Key> = list.iter().filter_map(Key::read).take(MOST).collect();
        if keys.is_empty() { Err("the set has no key that is supported") } else { Ok(KeySet(keys)) }
    }

    /// The set of one public key in PEM, of any kind that is supported.
    pub fn of_pem(pem: &str) -> Result<KeySet, &'static str> {
        let der = read_pem(pem).ok_or("this is not a public key in PEM (-----BEGIN PUBLIC KEY-----)")?;
        let is = |scheme: &'static dyn VerificationAlgorithm| ParsedPublicKey::new(scheme, &der).is_ok();
        let material = if is(&signature::RSA_PKCS1_2048_8192_SHA256) {
            Material::Rsa(der)
        } else if is(&signature::ECDSA_P256_SHA256_FIXED) {
            Material::Curve("ES256", der)
        } else if is(&signature::ECDSA_P384_SHA384_FIXED) {
            Material::Curve("ES384", der)
        } else if is(&signature::ECDSA_P521_SHA512_FIXED) {
            Material::Curve("ES512", der)
        } else if is(&signature::ED25519) {
            Material::Ed25519(der)
        } else {
            return Err(
                "the public key is not an RSA key of 2048 to 8192 bits, of P-256, P-384, P-521 or Ed25519",
            );
        };
        Ok(KeySet(vec![Key { id: None, algorithm: None, material }]))
    }

    /// The set of one shared secret.
    pub fn of_secret(secret: &[u8]) -> KeySet {
        KeySet(vec![Key { id: None, algorithm: None, material: Material::Secret(secret.to_vec()) }])
    }

    /// The set without its shared secrets: a set that anyone can read holds none.
    pub fn public(self) -> Result<KeySet, &'static str> {
        let keys: Vec<Key> =
            self.0.into_iter().filter(|key| !matches!(key.material, Material::Secret(_))).collect();
        if keys.is_empty() { Err("the set has no public key that is supported") } else { Ok(KeySet(keys)) }
    }

    /// Whether it holds a key of this id, or keys without one.
    pub fn may_hold(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref().is_none_or(|own| own == id))
    }

    /// Whether one of the keys signed the token.
    pub fn verify(&self, token: &Token<'_>) -> bool {
        let (Some(algorithm), Some(signature)) = (token.algorithm(), token.signature()) else { return false };
        if token.is_critical() {
            return false;
        }
        let id = token.key_id();
        let fits = |key: &&Key| {
            let named = id.is_none_or(|id| key.id.as_deref().is_none_or(|own| own == id));
            named && key.algorithm.as_deref().is_none_or(|own| own == algorithm)
        };
        let tried = self.0.iter().filter(fits).take(TRIES);
        tried.into_iter().any(|key| key.material.verify(algorithm, token.signed, &signature))
    }
}

impl Key {
    fn read(key: &Value) -> Option<Key> {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        let bytes = |name: &str| base64url(text(name)?.as_bytes()).map(|bytes| bytes.to_vec());
        if text("use").is_some_and(|used| used != "sig") {
            return None;
        }
        let verifies =
            |uses: &Value| uses.as_array().is_some_and(|uses| uses.iter().any(|one| one == "verify"));
        if key.get("key_ops").is_some_and(|uses| !verifies(uses)) {
            return None;
        }
        let material = match text("kty")? {
            "oct" => Material::Secret(bytes("k").filter(|secret| !secret.is_empty())?),
            "RSA" => Material::Rsa(der(0x30, &[integer(&bytes("n")?), integer(&bytes("e")?)].concat())),
            "EC" => {
                let (curve, length) = match text("crv")? {
                    "P-256" => ("ES256", 32),
                    "P-384" => ("ES384", 48),
                    "P-521" => ("ES512", 66),
                    _ => return None,
                };
                let (x, y) = (bytes("x")?, bytes("y")?);
                if x.len() != length || y.len() != length {
                    return None;
                }
                Material::Curve(curve, [&[4][..], &x, &y].concat())
            }
            "OKP" if text("crv") == Some("Ed25519") => {
                Material::Ed25519(bytes("x").filter(|key| key.len() == 32)?)
            }
            _ => return None,
        };
        let owned = |name: &str| text(name).map(str::to_owned);
        Some(Key { id: owned("kid"), algorithm: owned("alg"), material })
    }
}

impl Material {
    /// The algorithm is the token's, but the kind of the key decides which ones are possible: a public key is never
    /// taken for a shared secret.
    fn verify(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        let (scheme, key): (&'static dyn VerificationAlgorithm, &[u8]) = match (self, algorithm) {
            (Material::Secret(secret), _) => {
                let hash = match algorithm {
                    "HS256" => hmac::HMAC_SHA256,
                    "HS384" => hmac::HMAC_SHA384,
                    "HS512" => hmac::HMAC_SHA512,
                    _ => return false,
                };
                // Compares in constant time.
                return hmac::verify(&hmac::Key::new(hash, secret), signed, signature).is_ok();
            }
            (Material::Rsa(key), "RS256") => (&signature::RSA_PKCS1_2048_8192_SHA256, key),
            (Material::Rsa(key), "RS384") => (&signature::RSA_PKCS1_2048_8192_SHA384, key),
            (Material::Rsa(key), "RS512") => (&signature::RSA_PKCS1_2048_8192_SHA512, key),
            (Material::Rsa(key), "PS256") => (&signature::RSA_PSS_2048_8192_SHA256, key),
            (Material::Rsa(key), "PS384") => (&signature::RSA_PSS_2048_8192_SHA384, key),
            (Material::Rsa(key), "PS512") => (&signature::RSA_PSS_2048_8192_SHA512, key),
            (Material::Curve("ES256", key), "ES256") => (&signature::ECDSA_P256_SHA256_FIXED, key),
            (Material::Curve("ES384", key), "ES384") => (&signature::ECDSA_P384_SHA384_FIXED, key),
            (Material::Curve("ES512", key), "ES512") => (&signature::ECDSA_P521_SHA512_FIXED, key),
            (Material::Ed25519(key), "EdDSA") => (&signature::ED25519, key),
            _ => return false,
        };
        UnparsedPublicKey::new(scheme, key).verify(signed, signature).is_ok()
    }
}

/// A number that is not negative.
fn integer(bytes: &[u8]) -> Vec<u8> {
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let sign: &[u8] = if bytes.get(start).is_none_or(|byte| *byte >= 0x80) { &[0] } else { &[] };
    der(0x02, &[sign, &bytes[start..]].concat())
}

/// A value with its tag and length.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len().to_be_bytes();
    match content.len() {
        short @ 0..0x80 => out.push(short as u8),
        _ => {
            let start = length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1);
            out.push(0x80 | (length.len() - start) as u8);
            out.extend_from_slice(&length[start..]);
        }
    }
    out.extend_from_slice(content);
    out
}
