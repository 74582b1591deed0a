//! HashiCorp Vault: the key-value engines of version 1 and 2.
//!
//! A key is the path of a secret below the manager's prefix, and behind the last slash the field. The
//! prefix is the mount, and for version 2 also `data` (`kv/data`).

use bytes::Bytes;
use control::secrets::Failure;
use hyper::Method;
use model::secret::Vault;
use serde_json::Value;

use super::{MOST, field, json, server, timeouts};
use crate::http::{Question, Trust, encoded};

pub(super) async fn fetch(vault: &Vault, key: &str, trust: &Trust) -> Result<String, Failure> {
    let Some((path, name)) = key.rsplit_once('/') else {
        return Err(Failure::Missing(format!("error key format, key: {key}")));
    };
    if path.is_empty() {
        return Err(Failure::Missing(format!("can't find main key, key: {key}")));
    }
    if name.is_empty() {
        return Err(Failure::Missing(format!("can't find sub key, key: {key}")));
    }
    let path = below(&format!("{}/{path}", vault.prefix))?;
    let server = server(&vault.uri, true, trust)?;
    let mut headers = vec![("x-vault-token", vault.token.as_str())];
    if let Some(namespace) = &vault.namespace {
        headers.push(("x-vault-namespace", namespace));
    }
    let question = Question { method: Method::GET, path: &path, headers: &headers, body: Bytes::new() };
    let answer = server.send(question, timeouts(), std::time::Duration::ZERO, MOST).await;
    let answer = answer.map_err(Failure::Unavailable)?;
    match answer.status {
        200 => {}
        404 => return Err(Failure::Missing("vault has no secret there (status 404)".to_owned())),
        status => return Err(Failure::Unavailable(format!("{}: status {status}", server.authority))),
    }
    let body = json(&answer.body)?;
    let data = body.get("data").unwrap_or(&Value::Null);
    // Version 2 has one more level, with the version's metadata beside it.
    let inner = data.get("data").filter(|inner| inner.is_object() && data.get("metadata").is_some());
    field(inner.unwrap_or(data), name)
        .ok_or_else(|| Failure::Missing(format!("the secret has no field `{name}`")))
}

/// The path of a request. Nothing in it leads anywhere else than below the prefix.
fn below(path: &str) -> Result<String, Failure> {
    let mut out = "/v1".to_owned();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(Failure::Missing("`..` may not stand in the path of a secret".to_owned()));
        }
        out.push('/');
        out.push_str(&encoded(part));
    }
    Ok(out)
}
