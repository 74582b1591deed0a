//! The provider: its discovery document, its keys, and calls of its endpoints.
//!
//! Answers are bounded in size and time. Nothing of them is logged: they hold tokens.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use model::Invalid;
use sdk::state::WorkerState;
use sdk::world::{FetchError, Fetched, Keep};
use sdk::{Build, Exchange, Fields, Method, Plugin};
use serde_json::{Map, Value};

use super::OpenidConnect;
use super::config::Config;
use crate::jwks::KeySet;
use crate::remote::cache::{Cache, obtain};
use crate::remote::forward::Forward;
use crate::remote::{Manner, Remote};

/// The largest answer of the provider, in bytes.
const MOST: usize = 1 << 20;

/// Milliseconds for which the discovery document is fresh.
const DOCUMENT_TTL: u64 = 3_600_000;

/// The address of a provider, and the documents of it that a worker keeps.
pub(super) struct Provider {
    discovery: Remote,
    pub manner: Manner,
    /// The proxies between the gateway and the provider.
    forward: Option<Forward>,
    document: WorkerState<Cache<Document>>,
    keys: WorkerState<Cache<KeySet>>,
    keys_ttl: u64,
}

/// The provider's metadata (OpenID Connect Discovery 1.0, section 3).
pub(super) struct Document {
    pub issuer: Option<String>,
    pub authorization: Option<Remote>,
    /// The address of the authorization endpoint as written, for redirects.
    pub authorization_url: String,
    pub token: Option<Remote>,
    pub token_url: String,
    pub userinfo: Option<Remote>,
    pub userinfo_url: String,
    pub introspection: Option<Remote>,
    pub introspection_url: String,
    pub revocation: Option<Remote>,
    pub revocation_url: String,
    pub pushed: Option<Remote>,
    pub pushed_url: String,
    pub end_session_url: Option<String>,
    jwks: Option<Remote>,
    /// Endpoints are left out, since they have no TLS.
    leaves_tls: bool,
    pub auth_methods: Option<Vec<String>>,
    pub id_token_algorithms: Option<Vec<String>>,
}

impl Provider {
    pub fn new(config: &Config, cx: &Build<'_>) -> Result<Provider, Invalid> {
        let discovery = Remote::parse(&config.discovery).map_err(|why| Invalid::new(why).at("/discovery"))?;
        let manner = Manner {
            timeout: config.timeout(),
            verify: config.ssl_verify,
            most: MOST,
            keep: Keep::default(),
        };
        let forward = config.proxy_opts.as_ref().map(Forward::parse).transpose();
        let forward = forward.map_err(|invalid| invalid.under("/proxy_opts"))?;
        Ok(Provider {
            discovery,
            manner,
            forward: forward.filter(|forward| *forward != Forward::default()),
            document: cx.worker_state("document"),
            keys: cx.worker_state("keys"),
            keys_ttl: config.keys_ttl(),
        })
    }

    /// Milliseconds for which a request waits for another one that asks the provider.
    pub fn wait_ms(&self) -> u64 {
        u64::try_from(self.manner.timeout.as_millis()).unwrap_or(u64::MAX)
    }

    /// The discovery document, fetched if need be.
    pub async fn document(&self, x: &Exchange<'_>) -> Option<Rc<Document>> {
        let times = (DOCUMENT_TTL, self.wait_ms());
        // Without verification, anyone between could have written the document anyway.
        let needs_tls = self.discovery.is_https() && self.manner.verify;
        let ask = async || {
            let document = self.get(x, &self.discovery, |body| Document::read(body, needs_tls)).await?;
            if document.leaves_tls {
                x.complain(
                    OpenidConnect::NAME,
                    "the discovery document names endpoints without TLS, which are left out (ssl_verify)",
                );
            }
            Some(document)
        };
        obtain(&self.document, x.world(), times, |_| true, ask).await
    }

    /// The provider's keys, fetched if need be, and again for a token of an unknown key.
    pub async fn keys(&self, x: &Exchange<'_>, id: Option<&str>) -> Option<Rc<KeySet>> {
        let document = self.document(x).await?;
        let Some(remote) = &document.jwks else {
            x.complain(OpenidConnect::NAME, "the discovery document has no valid jwks_uri");
            return None;
        };
        let holds = |keys: &KeySet| id.is_none_or(|id| keys.may_hold(id));
        let ask = async || self.get(x, remote, |body| KeySet::read(body).and_then(KeySet::public)).await;
        obtain(&self.keys, x.world(), (self.keys_ttl, self.wait_ms()), holds, ask).await
    }

    async fn get<T>(
        &self,
        x: &Exchange<'_>,
        remote: &Remote,
        read: impl FnOnce(&[u8]) -> Result<T, &'static str>,
    ) -> Option<T> {
        let mut fields = Fields::new();
        // The name and value are valid.
        let _ = fields.set(b"Accept", b"application/json");
        let read = match self.fetch(x, remote, Method::Get, fields, Bytes::new()).await {
            Ok(answer) if answer.status == 200 => read(&answer.body),
            Ok(_) => Err("the provider does not answer with status 200"),
            Err(error) => Err(error.as_str()),
        };
        read.map_err(|why| x.complain(OpenidConnect::NAME, why)).ok()
    }

    /// Sends a form to an endpoint. Returns its JSON object; the error is for the log and may be shown to the client.
    pub async fn post(
        &self,
        x: &Exchange<'_>,
        remote: &Remote,
        fields: Fields,
        form: Vec<u8>,
    ) -> Result<Map<String, Value>, &'static str> {
        object(&self.send(x, remote, fields, form).await?)
    }

    /// As [`Provider::post`], for an endpoint whose answer may be empty.
    pub async fn send(
        &self,
        x: &Exchange<'_>,
        remote: &Remote,
        mut fields: Fields,
        form: Vec<u8>,
    ) -> Result<Vec<u8>, &'static str> {
        Provider::describe_form(&mut fields);
        let answer = self.fetch(x, remote, Method::Post, fields, form.into()).await;
        accepted(answer.map_err(|error| error.as_str())?)
    }

    /// The fields of a request with a form.
    pub fn describe_form(fields: &mut Fields) {
        // The names and values are valid.
        let _ = fields.set(b"Accept", b"application/json");
        let _ = fields.set(b"Content-Type", b"application/x-www-form-urlencoded");
    }

    pub async fn fetch(
        &self,
        x: &Exchange<'_>,
        remote: &Remote,
        method: Method,
        fields: Fields,
        body: Bytes,
    ) -> Result<Fetched, FetchError> {
        remote.fetch_by(x, self.manner, self.forward.as_ref(), method, fields, body).await
    }
}

/// The body of an answer to a form, if it is a success.
pub(super) fn accepted(answer: Fetched) -> Result<Vec<u8>, &'static str> {
    match answer.status {
        200 | 201 => Ok(answer.body),
        _ => Err("response indicates failure"),
    }
}

pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, &'static str> {
    serde_json::from_slice(body).map_err(|_| "the provider's response is not a JSON object")
}

impl Document {
    /// A document that came over TLS leads the gateway to no endpoint without it.
    fn read(body: &[u8], needs_tls: bool) -> Result<Document, &'static str> {
        let document: Map<String, Value> =
            serde_json::from_slice(body).map_err(|_| "the discovery document is not a JSON object")?;
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        let url = |name: &str| text(name).unwrap_or_default().to_owned();
        let remote = |name: &str| text(name).and_then(|url| Remote::parse(url).ok());
        let leaves_tls = Cell::new(false);
        let called = |name: &str| {
            remote(name).filter(|remote| {
                let is_left_out = needs_tls && !remote.is_https();
                leaves_tls.set(leaves_tls.get() || is_left_out);
                !is_left_out
            })
        };
        let list = |name: &str| {
            let items = document.get(name)?.as_array()?;
            Some(items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect::<Vec<_>>())
        };
        Ok(Document {
            issuer: text("issuer").map(str::to_owned),
            authorization: remote("authorization_endpoint"),
            authorization_url: url("authorization_endpoint"),
            token: called("token_endpoint"),
            token_url: url("token_endpoint"),
            userinfo: called("userinfo_endpoint"),
            userinfo_url: url("userinfo_endpoint"),
            introspection: called("introspection_endpoint"),
            introspection_url: url("introspection_endpoint"),
            revocation: called("revocation_endpoint"),
            revocation_url: url("revocation_endpoint"),
            pushed: called("pushed_authorization_request_endpoint"),
            pushed_url: url("pushed_authorization_request_endpoint"),
            // Only an address that can stand in a Location.
            end_session_url: remote("end_session_endpoint").map(|_| url("end_session_endpoint")),
            jwks: called("jwks_uri"),
            leaves_tls: leaves_tls.get(),
            auth_methods: list("token_endpoint_auth_methods_supported"),
            id_token_algorithms: list("id_token_signing_alg_values_supported"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Document;

    #[test]
    fn a_document_over_tls_leads_to_no_endpoint_without_it() {
        let written = br#"{"authorization_endpoint": "http://a/", "token_endpoint": "http://a/t", "jwks_uri": "https://a/k"}"#;
        let document = Document::read(written, true).unwrap();
        assert!(document.token.is_none() && document.jwks.is_some() && document.leaves_tls);
        assert!(document.authorization.is_some(), "browsers ask it");
        assert!(Document::read(written, false).unwrap().token.is_some());
    }
}
