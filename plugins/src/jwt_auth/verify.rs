//! Algorithms and keys (RFC 7518, RFC 8037).

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, ParsedPublicKey, VerificationAlgorithm};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::Invalid;
use serde_json::Value;

use super::token::Token;
use crate::auth;

/// All algorithms, as written in tokens. The first [`HASHED`] use a shared secret.
pub(super) const ALGORITHMS: [&str; 13] = [
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384",
    "PS512", "EdDSA",
];

pub(super) const HASHED: usize = 3;

/// A consumer's algorithm and key.
pub(super) struct Verifier {
    algorithm: &'static str,
    key: Key,
}

enum Key {
    Secret(hmac::Algorithm, Box<[u8]>),
    Public(Box<ParsedPublicKey>),
    /// As in APISIX, a consumer with an unusable public key is accepted; all its tokens are refused.
    Unusable(&'static str),
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Wrong,
    /// The consumer's public key cannot be used, and why.
    Unusable(&'static str),
}

impl Verifier {
    /// # Errors
    /// APISIX's messages for a missing secret or public key, and for a secret that is not base64.
    pub fn read(config: &Value) -> Result<Verifier, Invalid> {
        let text = |name: &str| config.get(name).and_then(Value::as_str);
        let written = text("algorithm").unwrap_or("HS256");
        // The schema allows no others.
        let algorithm = ALGORITHMS.into_iter().find(|name| *name == written).unwrap_or("HS256");
        let key = match hash(algorithm) {
            Some(hash) => {
                let secret = text("secret").ok_or_else(|| {
                    Invalid::new("property \"secret\" is required when using HS based algorithms")
                        .at("/secret")
                })?;
                let secret = match config.get("base64_secret") {
                    Some(Value::Bool(true)) => auth::base64(secret.as_bytes())
                        .filter(|secret| !secret.is_empty())
                        .ok_or_else(|| {
                            let said = "base64_secret required but the secret is not in base64 format";
                            Invalid::new(said)
                                .at("/secret")
                                .hint("write it in base64, or leave base64_secret out")
                        })?
                        .into_vec(),
                    _ => secret.as_bytes().to_vec(),
                };
                Key::Secret(hash, secret.into())
            }
            None => {
                let pem = text("public_key")
                    .ok_or_else(|| Invalid::new("missing valid public key").at("/public_key"))?;
                match public_key(algorithm, pem) {
                    Ok(key) => Key::Public(Box::new(key)),
                    Err(why) => Key::Unusable(why),
                }
            }
        };
        Ok(Verifier { algorithm, key })
    }

    /// Checks that the token was signed with this key and this algorithm.
    pub fn check(&self, token: &Token<'_>) -> Result<(), Refusal> {
        if token.algorithm() != Some(self.algorithm) || token.is_critical() {
            return Err(Refusal::Wrong);
        }
        let signature = token.signature().ok_or(Refusal::Wrong)?;
        let right = match &self.key {
            // Compares in constant time.
            Key::Secret(hash, secret) => {
                hmac::verify(&hmac::Key::new(*hash, secret), token.signed, &signature).is_ok()
            }
            Key::Public(key) => key.verify_sig(token.signed, &signature).is_ok(),
            Key::Unusable(why) => return Err(Refusal::Unusable(why)),
        };
        if right { Ok(()) } else { Err(Refusal::Wrong) }
    }
}

fn hash(algorithm: &str) -> Option<hmac::Algorithm> {
    Some(match algorithm {
        "HS256" => hmac::HMAC_SHA256,
        "HS384" => hmac::HMAC_SHA384,
        "HS512" => hmac::HMAC_SHA512,
        _ => return None,
    })
}

fn public_key(algorithm: &str, pem: &str) -> Result<ParsedPublicKey, &'static str> {
    let (scheme, why): (&'static dyn VerificationAlgorithm, _) = match algorithm {
        "RS256" => (&signature::RSA_PKCS1_2048_8192_SHA256, RSA),
        "RS384" => (&signature::RSA_PKCS1_2048_8192_SHA384, RSA),
        "RS512" => (&signature::RSA_PKCS1_2048_8192_SHA512, RSA),
        "PS256" => (&signature::RSA_PSS_2048_8192_SHA256, RSA),
        "PS384" => (&signature::RSA_PSS_2048_8192_SHA384, RSA),
        "PS512" => (&signature::RSA_PSS_2048_8192_SHA512, RSA),
        "ES256" => (&signature::ECDSA_P256_SHA256_FIXED, "public_key of the consumer is not a P-256 key"),
        "ES384" => (&signature::ECDSA_P384_SHA384_FIXED, "public_key of the consumer is not a P-384 key"),
        "ES512" => (&signature::ECDSA_P521_SHA512_FIXED, "public_key of the consumer is not a P-521 key"),
        _ => (&signature::ED25519, "public_key of the consumer is not an Ed25519 key"),
    };
    let der = read_pem(pem).ok_or(
        "public_key of the consumer is not a public key in PEM (-----BEGIN PUBLIC KEY-----); all its tokens are refused",
    )?;
    ParsedPublicKey::new(scheme, der).map_err(|_| why)
}

const RSA: &str = "public_key of the consumer is not an RSA key of 2048 to 8192 bits";

/// The first public key in a PEM text (RFC 7468).
pub(crate) fn read_pem(text: &str) -> Option<Vec<u8>> {
    ["PUBLIC KEY", "RSA PUBLIC KEY"].into_iter().find_map(|label| {
        let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
        let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
        let body: String = body.split_ascii_whitespace().collect();
        BASE64_STANDARD.decode(body).ok()
    })
}
