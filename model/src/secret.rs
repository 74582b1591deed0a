//! A secret manager: where `$secret://manager/id/…` references are looked up.

use serde::Deserialize;
use serde_json::Value;

use crate::field::{Meta, typed};
use crate::{Invalid, Key};

/// A configured secret manager of APISIX 3.x.
#[derive(Debug, Clone, PartialEq)]
pub struct Secret {
    pub meta: Meta,
    pub manager: SecretManager,
}

/// The managers there are. Their tokens and keys may be `$env://` references.
#[derive(Debug, Clone, PartialEq)]
pub enum SecretManager {
    Vault(Vault),
    Aws(Aws),
    Gcp(Box<Gcp>),
}

/// HashiCorp Vault, key-value engine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Vault {
    pub uri: String,
    pub prefix: String,
    pub token: String,
    pub namespace: Option<String>,
}

/// AWS Secrets Manager.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Aws {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
    pub region: String,
    pub endpoint_url: Option<String>,
}

/// Google Cloud Secret Manager; exactly one of `auth_config` and `auth_file`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Gcp {
    pub auth_config: Option<GcpAuth>,
    pub auth_file: Option<String>,
    pub ssl_verify: bool,
}

/// A Google service account.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GcpAuth {
    pub client_email: String,
    pub private_key: String,
    pub project_id: String,
    pub token_uri: String,
    pub scope: Vec<String>,
    pub entries_uri: String,
}

impl Secret {
    /// Types a value that has passed its manager's schema.
    pub(crate) fn read(key: &Key, value: Value) -> Result<Secret, Invalid> {
        let meta = Meta::of(&value)?;
        let manager = match key.owner() {
            Some("vault") => SecretManager::Vault(typed(value)?),
            Some("aws") => SecretManager::Aws(typed(value)?),
            _ => SecretManager::Gcp(typed(value)?),
        };
        Ok(Secret { meta, manager })
    }
}
