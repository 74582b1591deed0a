//! Proofs that the client holds a key, to which the provider binds its tokens (RFC 9449).

use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use model::Invalid;
use sdk::budget::Reservation;
use sdk::state::WorkerState;
use sdk::world::Fetched;
use sdk::{Build, Exchange, Fields, Method};
use serde_json::{Map, Value, json};

use super::OpenidConnect;
use super::client::{Form, SigningKey, random};
use super::config;
use super::provider::{Provider, accepted, object};
use crate::jwks::KeySet;
use crate::jwt_auth::token::Token;
use crate::remote::Remote;

/// The key, and the nonces that the provider asks for.
pub(super) struct Dpop {
    key: Arc<SigningKey>,
    algorithm: Arc<str>,
    /// The head of proofs with the public key, encoded.
    head: String,
    nonces: WorkerState<Nonces>,
}

/// The latest nonce of the provider, and that of its userinfo endpoint (section 8).
#[derive(Default)]
struct Nonces([Option<String>; 2]);

/// The longest nonce that is sent back, in bytes.
const LONGEST: usize = 1024;

/// The request that a proof is for.
struct Proven<'a> {
    method: Method,
    remote: &'a Remote,
    url: &'a str,
    /// For the userinfo endpoint.
    access_token: Option<&'a str>,
}

impl Dpop {
    /// # Errors
    /// The key cannot be used with the algorithm, or the public key is another one's.
    pub fn new(config: &config::Dpop, cx: &Build<'_>) -> Result<Option<Dpop>, Invalid> {
        if !config.enabled {
            return Ok(None);
        }
        let key = config.private_key.as_deref().and_then(SigningKey::read).ok_or_else(|| {
            let text = "property \"dpop.private_key\" is not a valid key: RSA or P-256 in PEM";
            Invalid::new(text).at("/dpop/private_key")
        })?;
        let algorithm = config.signing_alg.clone().unwrap_or_else(|| "ES256".to_owned());
        if !key.fits(&algorithm) {
            let text = format!("property \"dpop.private_key\" cannot sign by \"{algorithm}\"");
            return Err(Invalid::new(text).at("/dpop/signing_alg").got(algorithm));
        }
        let empty = Map::new();
        let given = config.public_jwk.as_ref().unwrap_or(&empty);
        let members: &[&str] =
            if algorithm == "ES256" { &["kty", "crv", "x", "y"] } else { &["kty", "n", "e"] };
        let jwk: Map<String, Value> = members
            .iter()
            .filter_map(|name| given.get(*name).map(|value| ((*name).to_owned(), value.clone())))
            .collect();
        let head = encoded(&json!({"typ": "dpop+jwt", "alg": algorithm, "jwk": jwk}));
        let nonces = cx.worker_state("nonces");
        let dpop = Dpop { key: Arc::new(key), algorithm: algorithm.into(), head, nonces };
        if !dpop.is_pair(&jwk) {
            let text = "property \"dpop.public_jwk\" is not the public key of \"dpop.private_key\"";
            return Err(Invalid::new(text).at("/dpop/public_jwk"));
        }
        Ok(Some(dpop))
    }

    /// Whether the public key verifies a signature of the private one.
    fn is_pair(&self, jwk: &Map<String, Value>) -> bool {
        let signed = self.unsigned(&json!({}));
        let Some(signature) = self.key.sign(&self.algorithm, signed.as_bytes()) else { return false };
        let token = format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature));
        let keys = KeySet::read(json!({ "keys": [jwk] }).to_string().as_bytes());
        keys.is_ok_and(|keys| Token::parse(token.as_bytes()).is_some_and(|token| keys.verify(&token)))
    }

    fn unsigned(&self, payload: &Value) -> String {
        format!("{}.{}", self.head, encoded(payload))
    }

    /// A proof for one request (section 4.2).
    async fn proof(
        &self,
        x: &Exchange<'_>,
        request: &Proven<'_>,
        nonce: Option<String>,
    ) -> Result<String, &'static str> {
        const FAILED: &str = "the key of dpop cannot sign";
        let url = request.url.split(['?', '#']).next().unwrap_or_default();
        let mut payload = json!({
            "jti": random(16).ok_or(FAILED)?, "htm": request.method.as_str(), "htu": url,
            "iat": x.world().now_ms() / 1000,
        });
        if let Some(nonce) = nonce {
            payload["nonce"] = nonce.into();
        }
        if let Some(token) = request.access_token {
            let hash = digest::digest(&digest::SHA256, token.as_bytes());
            payload["ath"] = BASE64_URL_SAFE_NO_PAD.encode(hash).into();
        }
        let signed = self.unsigned(&payload);
        let (key, algorithm, text) = (self.key.clone(), self.algorithm.clone(), signed.clone());
        // A signature with RSA takes about a millisecond.
        let job = x.world().offload(Reservation::default(), move |_| key.sign(&algorithm, text.as_bytes()));
        let signature = job.await.0.ok_or(FAILED)?;
        Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Sends a request with a proof, and once more if the server wants a nonce. `make` gives its fields and its body: those
    /// of the second one differ if the client proves itself by a token, which is good for one request.
    async fn send(
        &self,
        x: &Exchange<'_>,
        provider: &Provider,
        request: &Proven<'_>,
        make: impl AsyncFn() -> Result<(Fields, Bytes), &'static str>,
    ) -> Result<Fetched, &'static str> {
        let of_userinfo = usize::from(request.access_token.is_some());
        let mut again = true;
        loop {
            let nonce = self.nonces.with(x.world(), |nonces| nonces.0[of_userinfo].clone());
            let (mut fields, body) = make().await?;
            // Base64 is valid in a header.
            let _ = fields.set(b"DPoP", self.proof(x, request, nonce).await?.as_bytes());
            let answer = provider.fetch(x, request.remote, request.method, fields, body).await;
            let answer = answer.map_err(|error| error.as_str())?;
            let new = answer.fields.get_named(b"dpop-nonce").filter(|nonce| nonce.len() <= LONGEST);
            let new = new.and_then(|nonce| String::from_utf8(nonce.to_vec()).ok());
            let has_new = new.is_some();
            if has_new {
                self.nonces.with(x.world(), |nonces| nonces.0[of_userinfo] = new);
            }
            if !(again && has_new && wants_nonce(&answer)) {
                return Ok(answer);
            }
            again = false;
        }
    }
}

fn encoded(part: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(part.to_string())
}

fn wants_nonce(answer: &Fetched) -> bool {
    const ERROR: &str = "use_dpop_nonce";
    match answer.status {
        400 => object(&answer.body).is_ok_and(|body| body.get("error").is_some_and(|error| error == ERROR)),
        401 => answer
            .fields
            .all(b"www-authenticate")
            .any(|value| value.windows(ERROR.len()).any(|part| part == ERROR.as_bytes())),
        _ => false,
    }
}

impl OpenidConnect {
    /// Sends a form to an endpoint of the provider, where the client proves itself by `method`, and by its key if the
    /// settings say so. Returns the JSON object of the answer.
    pub(super) async fn post(
        &self,
        x: &Exchange<'_>,
        (remote, url): (&Remote, &str),
        method: &str,
        form: Form,
    ) -> Result<Map<String, Value>, &'static str> {
        let make = async || {
            let (mut fields, form) = self.client.prove(x, method, url, form.clone()).await?;
            Provider::describe_form(&mut fields);
            Ok((fields, form.bytes().into()))
        };
        let answer = match &self.dpop {
            None => {
                let (fields, body) = make().await?;
                let answer = self.provider.fetch(x, remote, Method::Post, fields, body).await;
                answer.map_err(|error| error.as_str())?
            }
            Some(dpop) => {
                let request = Proven { method: Method::Post, remote, url, access_token: None };
                dpop.send(x, &self.provider, &request, make).await?
            }
        };
        object(&accepted(answer)?)
    }

    /// The claims of the userinfo endpoint; only those in plain JSON.
    pub(super) async fn userinfo(
        &self,
        x: &Exchange<'_>,
        (remote, url): (&Remote, &str),
        access_token: &str,
    ) -> Option<Map<String, Value>> {
        const INVALID: &str = "the access token cannot stand in a header";
        let scheme = if self.dpop.is_some() { "DPoP" } else { "Bearer" };
        let make = async || {
            let mut fields = Fields::new();
            // The name and value are valid.
            let _ = fields.set(b"Accept", b"application/json");
            let authorization = format!("{scheme} {access_token}");
            fields.set(b"Authorization", authorization.as_bytes()).map_err(|_| INVALID)?;
            Ok((fields, Bytes::new()))
        };
        let answer = match &self.dpop {
            None => {
                let (fields, body) = make().await.ok()?;
                self.provider.fetch(x, remote, Method::Get, fields, body).await.ok()?
            }
            Some(dpop) => {
                let request = Proven { method: Method::Get, remote, url, access_token: Some(access_token) };
                dpop.send(x, &self.provider, &request, make).await.ok()?
            }
        };
        if answer.status == 200 { object(&answer.body).ok() } else { None }
    }
}
