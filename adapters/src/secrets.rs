//! Secret managers, one file each: how a secret is asked for.

mod aws;
mod gcp;
mod vault;

use std::sync::Arc;

use bytes::Bytes;
use control::secrets::{Failure, Fetching, Managers};
use model::secret::SecretManager;
use serde_json::Value;

use crate::http::{Server, Timeouts, Trust};
use crate::service_account::Tokens;

/// The largest answer of a manager that is taken.
const MOST: usize = 4 << 20;

/// Asks the managers there are.
#[derive(Debug)]
pub struct Secrets {
    trust: Trust,
    /// Google's access tokens, which hold for an hour.
    tokens: Arc<Tokens>,
}

impl Secrets {
    pub fn new(trust: Trust) -> Secrets {
        Secrets { trust, tokens: Arc::default() }
    }
}

impl Managers for Secrets {
    fn fetch(&self, manager: &SecretManager, key: &str) -> Fetching {
        let (trust, key) = (self.trust.clone(), key.to_owned());
        match manager.clone() {
            SecretManager::Vault(vault) => Box::pin(async move { vault::fetch(&vault, &key, &trust).await }),
            SecretManager::Aws(aws) => Box::pin(async move { aws::fetch(&aws, &key, &trust).await }),
            SecretManager::Gcp(gcp) => {
                let tokens = self.tokens.clone();
                Box::pin(async move { gcp::fetch(&gcp, &key, &trust, &tokens).await })
            }
        }
    }
}

/// How long a manager may take: the control plane bounds a question as a whole.
fn timeouts() -> Timeouts {
    Timeouts { connect: 60_000, send: 60_000, read: 60_000, wait: 0 }
}

fn server(uri: &str, verify: bool, trust: &Trust) -> Result<Server, Failure> {
    crate::service_account::server(uri, verify, trust).map_err(Failure::Unavailable)
}

/// Parses an answer as JSON. The error does not repeat the text, which may hold a secret.
fn json(body: &Bytes) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|_| Failure::Unavailable("the answer is not JSON".to_owned()))
}

/// A field of an object as text.
fn field(object: &Value, name: &str) -> Option<String> {
    match object.get(name)? {
        Value::String(text) => Some(text.clone()),
        other @ (Value::Number(_) | Value::Bool(_)) => Some(other.to_string()),
        _ => None,
    }
}

/// A field of a secret that is an object.
fn field_of(secret: &str, name: &str) -> Result<String, Failure> {
    let object: Option<Value> = serde_json::from_str(secret).ok();
    object
        .and_then(|object| field(&object, name))
        .ok_or_else(|| Failure::Missing(format!("the secret is no JSON object with the field `{name}`")))
}

#[cfg(test)]
mod tests;
