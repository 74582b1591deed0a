//! Google Cloud Secret Manager: the access token of a service account reads the latest version of a secret.
//!
//! A key is the name of a secret, and behind its first slash a field where the secret is a JSON object.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use control::secrets::Failure;
use hyper::Method;
use model::secret::{Gcp, GcpAuth};
use serde_json::Value;

use super::{MOST, field_of, server, timeouts};
use crate::http::{Question, Trust, encoded};
use crate::service_account::{self, Defaults, Tokens};

const DEFAULTS: Defaults = Defaults {
    scope: "https://www.googleapis.com/auth/cloud-platform",
    entries_uri: "https://secretmanager.googleapis.com/v1",
};

pub(super) async fn fetch(gcp: &Gcp, key: &str, trust: &Trust, tokens: &Tokens) -> Result<String, Failure> {
    let (name, field) = match key.split_once('/') {
        Some((name, field)) => (name, Some(field)),
        None => (key, None),
    };
    if name.is_empty() {
        return Err(Failure::Missing(format!("can't find main key, key: {key}")));
    }
    let account = account(gcp).await?;
    let slot = tokens.of(&account);
    let token = service_account::token(&account, gcp.ssl_verify, trust, &slot, timeouts()).await;
    let token = token.map_err(Failure::Unavailable)?;
    let server = server(&account.entries_uri, gcp.ssl_verify, trust)?;
    let (project, secret) = (encoded(&account.project_id), encoded(name));
    let path = format!("/projects/{project}/secrets/{secret}/versions/latest:access");
    let headers = [("content-type", "application/json"), ("authorization", token.as_str())];
    let question = Question { method: Method::GET, path: &path, headers: &headers, body: Bytes::new() };
    let answer =
        server.send(question, timeouts(), Duration::ZERO, MOST).await.map_err(Failure::Unavailable)?;
    match answer.status {
        200 => {}
        404 => return Err(Failure::Missing("there is no secret of that name (status 404)".to_owned())),
        status => {
            if status == 401 {
                service_account::forget(&slot, &token).await;
            }
            return Err(Failure::Unavailable(format!("{}: status {status}", server.authority)));
        }
    }
    let body = super::json(&answer.body)?;
    let data = body.pointer("/payload/data").and_then(Value::as_str);
    let bytes = data.and_then(|data| STANDARD.decode(data).ok());
    let Some(secret) = bytes.and_then(|bytes| String::from_utf8(bytes).ok()) else {
        return Err(Failure::Missing("the secret is no text".to_owned()));
    };
    match field {
        Some(field) => field_of(&secret, field),
        None => Ok(secret),
    }
}

/// The service account, which may stand in a file of its own.
async fn account(gcp: &Gcp) -> Result<GcpAuth, Failure> {
    match (&gcp.auth_file, &gcp.auth_config) {
        (Some(path), _) => service_account::of_file(path, &DEFAULTS).await.map_err(Failure::Unavailable),
        (None, Some(account)) => Ok(account.clone()),
        (None, None) => Err(Failure::Missing("the manager has neither auth_config nor auth_file".to_owned())),
    }
}
