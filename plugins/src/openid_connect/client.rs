//! How the gateway proves to the provider which client it is (OpenID Connect Core 1.0, section 9).

use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, EcdsaKeyPair, RsaKeyPair};
use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use model::Invalid;
use sdk::budget::Reservation;
use sdk::{Exchange, Fields};
use serde_json::json;

use super::config::Config;
pub(super) use crate::form::{Form, escape};

/// The client, and its keys.
pub(super) struct Client {
    id: String,
    secret: Option<String>,
    key: Option<Arc<SigningKey>>,
    key_id: Option<String>,
    /// Of signatures, where the settings name one.
    algorithm: Option<String>,
    audience: Option<String>,
    lifetime: u64,
}

pub(super) enum SigningKey {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    P521(EcdsaKeyPair),
}

/// This many random bytes, in base64url.
pub(super) fn random(bytes: usize) -> Option<String> {
    let mut out = vec![0; bytes];
    rand::fill(&mut out).ok()?;
    Some(BASE64_URL_SAFE_NO_PAD.encode(out))
}

impl Client {
    /// # Errors
    /// The private key cannot be used with its algorithm.
    pub fn new(config: &Config) -> Result<Client, Invalid> {
        let invalid = |why: String| Invalid::new(why).at("/client_rsa_private_key");
        let algorithm = config.client_jwt_assertion_alg.clone();
        let key = config.client_rsa_private_key.as_deref().and_then(SigningKey::read).map(Arc::new);
        // As in APISIX, a key that is not used may be anything.
        if key.is_none() && config.client_rsa_private_key.is_some() && config.signs_with_key() {
            return Err(invalid(
                "property \"client_rsa_private_key\" is not a valid key: RSA, P-256 or P-521 in PEM".into(),
            ));
        }
        if let (Some(key), Some(algorithm)) =
            (&key, algorithm.as_deref().filter(|name| !name.starts_with("HS")))
        {
            let needs = match (&**key, algorithm) {
                (SigningKey::Rsa(_), "RS256" | "RS512")
                | (SigningKey::P256(_), "ES256")
                | (SigningKey::P521(_), "ES512") => None,
                (_, "RS256" | "RS512") => Some("an RSA \"client_rsa_private_key\""),
                (_, "ES256") => Some("a \"client_rsa_private_key\" on curve \"P-256\""),
                _ => Some("a \"client_rsa_private_key\" on curve \"P-521\""),
            };
            if let Some(needs) = needs {
                let text = format!("property \"client_jwt_assertion_alg\" \"{algorithm}\" requires {needs}");
                return Err(Invalid::new(text).at("/client_jwt_assertion_alg"));
            }
        }
        Ok(Client {
            id: config.client_id.clone(),
            secret: config.client_secret.clone(),
            key,
            key_id: config.client_rsa_private_key_id.clone(),
            algorithm,
            audience: config.client_jwt_assertion_audience.clone(),
            lifetime: config.assertion_lifetime(),
        })
    }

    /// Whether this method can be used.
    fn can(&self, method: &str) -> bool {
        match method {
            "client_secret_basic" | "client_secret_post" | "client_secret_jwt" => self.secret.is_some(),
            "private_key_jwt" => self.key.is_some(),
            _ => false,
        }
    }

    /// Chooses the method: the configured one, unless the provider supports others only.
    pub fn method<'m>(&self, configured: &'m str, supported: Option<&'m Vec<String>>) -> &'m str {
        let usable = |method: &str| self.can(method);
        match supported {
            Some(list) if !(usable(configured) && list.iter().any(|own| own == configured)) => {
                list.iter().map(String::as_str).find(|method| usable(method)).unwrap_or(configured)
            }
            _ => configured,
        }
    }

    /// Adds the proof to a request to the endpoint `url`. A client without credentials only names itself.
    pub async fn prove(
        &self,
        x: &Exchange<'_>,
        method: &str,
        url: &str,
        mut form: Form,
    ) -> Result<(Fields, Form), &'static str> {
        let mut fields = Fields::new();
        match (method, &self.secret) {
            ("client_secret_basic", Some(secret)) => {
                let pair = format!("{}:{}", escape(&self.id), escape(secret));
                // Base64 is valid in a header.
                let _ = fields
                    .set(b"Authorization", format!("Basic {}", BASE64_STANDARD.encode(pair)).as_bytes());
                return Ok((fields, form));
            }
            ("client_secret_post", Some(secret)) => form.add("client_secret", secret),
            ("private_key_jwt" | "client_secret_jwt", _) => {
                let signed = self.assertion(x, method, url).await?;
                form.add("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer");
                form.add("client_assertion", &signed);
            }
            _ => {}
        }
        if !form.has("client_id") {
            form.add("client_id", &self.id);
        }
        Ok((fields, form))
    }

    /// A token that the client signs (RFC 7523).
    async fn assertion(&self, x: &Exchange<'_>, method: &str, url: &str) -> Result<String, &'static str> {
        const NO_KEY: &str = "the client has no key for its authentication method";
        const FAILED: &str = "the client's key cannot sign";
        let now = x.world().now_ms() / 1000;
        let mut header = json!({"typ": "JWT"});
        let payload = json!({
            "iss": self.id, "sub": self.id, "aud": self.audience.as_deref().unwrap_or(url),
            "jti": random(16).ok_or(FAILED)?, "iat": now, "exp": now.saturating_add(self.lifetime),
        });
        let with_key = method == "private_key_jwt";
        let default = match (with_key, self.key.as_deref()) {
            (true, Some(SigningKey::P256(_))) => "ES256",
            (true, Some(SigningKey::P521(_))) => "ES512",
            (true, _) => "RS256",
            (false, _) => "HS256",
        };
        let algorithm = self.algorithm.clone().unwrap_or_else(|| default.to_owned());
        header["alg"] = json!(algorithm);
        if let Some(id) = self.key_id.as_ref().filter(|_| with_key) {
            header["kid"] = json!(id);
        }
        let encoded = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encoded(&header), encoded(&payload));
        let signature = if with_key {
            let key = self.key.clone().ok_or(NO_KEY)?;
            let text = signed.clone();
            // A signature with RSA takes about a millisecond.
            let job =
                x.world().offload(Reservation::default(), move |_| key.sign(&algorithm, text.as_bytes()));
            job.await.0.ok_or(FAILED)?
        } else {
            let secret = self.secret.as_ref().ok_or(NO_KEY)?;
            let hash = if algorithm == "HS512" { hmac::HMAC_SHA512 } else { hmac::HMAC_SHA256 };
            hmac::sign(&hmac::Key::new(hash, secret.as_bytes()), signed.as_bytes()).as_ref().to_vec()
        };
        Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl SigningKey {
    /// Reads a private key in PEM (PKCS #8, PKCS #1 or SEC 1).
    pub fn read(pem: &str) -> Option<SigningKey> {
        let der = |label: &str| {
            let (_, rest) = pem.split_once(&format!("-----BEGIN {label}-----"))?;
            let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
            BASE64_STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).ok()
        };
        if let Some(der) = der("RSA PRIVATE KEY") {
            return RsaKeyPair::from_der(&der).ok().map(SigningKey::Rsa);
        }
        let p256 = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let p521 = &signature::ECDSA_P521_SHA512_FIXED_SIGNING;
        if let Some(der) = der("EC PRIVATE KEY") {
            let key = |of| EcdsaKeyPair::from_private_key_der(of, &der).ok();
            return key(p256).map(SigningKey::P256).or_else(|| key(p521).map(SigningKey::P521));
        }
        let der = der("PRIVATE KEY")?;
        let key = |of| EcdsaKeyPair::from_pkcs8(of, &der).ok();
        let rsa = || RsaKeyPair::from_pkcs8(&der).ok().map(SigningKey::Rsa);
        rsa().or_else(|| key(p256).map(SigningKey::P256)).or_else(|| key(p521).map(SigningKey::P521))
    }

    /// Whether it can sign by this algorithm of [`super::dpop`].
    pub fn fits(&self, algorithm: &str) -> bool {
        matches!((self, algorithm), (SigningKey::Rsa(_), "RS256" | "PS256") | (SigningKey::P256(_), "ES256"))
    }

    pub fn sign(&self, algorithm: &str, text: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            SigningKey::Rsa(key) => {
                let padding: &dyn signature::RsaEncoding = match algorithm {
                    "RS512" => &signature::RSA_PKCS1_SHA512,
                    "PS256" => &signature::RSA_PSS_SHA256,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut out = vec![0; key.public_modulus_len()];
                key.sign(padding, &random, text, &mut out).ok()?;
                Some(out)
            }
            SigningKey::P256(key) | SigningKey::P521(key) => {
                Some(key.sign(&random, text).ok()?.as_ref().to_vec())
            }
        }
    }
}
