//! oas-validator: lets only those requests pass that fit an OpenAPI document (3.0 and 3.1).
//!
//! Settings and answers as in APISIX 3.18. A document of the settings is compiled when the configuration changes; one of a
//! URL is fetched and compiled with the first request, and again when it is old. A body is read only for an operation that
//! describes one. A body of more than 64 KiB is checked on a background thread.

mod document;
mod operation;
mod schemas;
mod translate;
mod values;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::exchange::Body;
use sdk::state::WorkerState;
use sdk::world::Keep;
use sdk::{Build, Exchange, Fields, Method, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::logger::endpoint;
use crate::remote::cache::{Cache, obtain};
use crate::remote::{Manner, Remote};
use crate::tree;
use document::Document;
use operation::{Found, Skipped};

/// The plugin instance.
pub struct OasValidator {
    source: Source,
    skipped: Skipped,
    max_body: usize,
    verbose: bool,
    rejects: bool,
    code: u16,
}

enum Source {
    Compiled(Arc<Document>),
    Fetched(Box<Server>),
}

struct Server {
    remote: Remote,
    manner: Manner,
    fields: Fields,
    /// Milliseconds.
    ttl: u64,
    cache: WorkerState<Cache<Arc<Document>>>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    max_req_body_size: usize,
    spec: Option<String>,
    spec_url: Option<String>,
    spec_url_request_headers: Option<Map<String, Value>>,
    ssl_verify: bool,
    timeout: u64,
    verbose_errors: bool,
    skip_request_body_validation: bool,
    skip_request_header_validation: bool,
    skip_query_param_validation: bool,
    skip_path_params_validation: bool,
    reject_if_not_match: bool,
    rejection_status_code: u16,
}

/// The longest document, in bytes.
const DOCUMENT: usize = 8 << 20;

/// Seconds for which a document is kept, where the metadata does not say.
const TTL: u64 = 3600;

/// Bytes of a body that a worker checks itself.
const ON_WORKER: usize = 64 << 10;

impl Plugin for OasValidator {
    const NAME: &'static str = "oas-validator";
    const PRIORITY: i32 = 512;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn metadata_schema() -> Option<Value> {
        crate::apisix_metadata_schema(Self::NAME)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<OasValidator, Invalid> {
        let source = match (&config.spec, &config.spec_url) {
            (Some(text), _) => {
                let document = document::read(text.as_bytes()).map_err(|words| {
                    Invalid::new(format!("invalid JSON string provided, err: {words}")).at("/spec")
                })?;
                let compiled = Document::compile(document).map_err(|invalid| {
                    let pointer = invalid.pointer.clone();
                    let text = format!("failed to compile openapi spec, err: {}", invalid.reason);
                    Invalid::new(text).at("/spec").got(pointer)
                })?;
                Source::Compiled(Arc::new(compiled))
            }
            (None, Some(url)) => {
                let mut headers = json!({});
                if let Some(more) = &config.spec_url_request_headers {
                    endpoint::add_fields(&mut headers, more, "/spec_url_request_headers")?;
                }
                let mut fields = Fields::new();
                for (name, value) in headers.as_object().into_iter().flatten() {
                    // They were checked.
                    let _ = fields.set(name.as_bytes(), value.as_str().unwrap_or_default().as_bytes());
                }
                let timeout = Duration::from_millis(config.timeout);
                let manner =
                    Manner { timeout, verify: config.ssl_verify, most: DOCUMENT, keep: Keep::default() };
                let ttl =
                    cx.metadata().and_then(|metadata| metadata.get("spec_url_ttl")).and_then(Value::as_u64);
                Source::Fetched(Box::new(Server {
                    remote: Remote::parse(url)
                        .map_err(|why| Invalid::new(why).at("/spec_url").got(url.as_str()))?,
                    manner,
                    fields,
                    ttl: ttl.unwrap_or(TTL).saturating_mul(1000),
                    cache: cx.worker_state("document"),
                }))
            }
            (None, None) => return Err(Invalid::new("a document is missing").expected("spec or spec_url")),
        };
        Ok(OasValidator {
            source,
            skipped: Skipped {
                path: config.skip_path_params_validation,
                query: config.skip_query_param_validation,
                header: config.skip_request_header_validation,
                body: config.skip_request_body_validation,
            },
            max_body: config.max_req_body_size,
            verbose: config.verbose_errors,
            rejects: config.reject_if_not_match,
            code: config.rejection_status_code,
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        match &self.source {
            Source::Compiled(document) => self.begin(x, document),
            Source::Fetched(_) => Step::Wait,
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let document = match &self.source {
            Source::Compiled(document) => document.clone(),
            Source::Fetched(server) => match server.document(x).await {
                Some(document) => document,
                None => {
                    let body = json!({"message": "failed to parse openapi spec"});
                    return Step::Reply(Reply::json(500, &body).because("there is no OpenAPI document"));
                }
            },
        };
        match self.begin(x, &document) {
            Step::Wait => self.check_body(x, document).await,
            step => step,
        }
    }
}

impl OasValidator {
    /// Checks all but the body. Returns [`Step::Wait`] once a body is to be checked on a background thread.
    fn begin(&self, x: &mut Exchange<'_>, document: &Document) -> Step {
        let found = match document.find(x) {
            Ok(found) => found,
            Err(why) => return self.settle(x, Err(why)),
        };
        if !self.skipped.body && found.operation.has_body() {
            if x.lacks_body(self.max_body) {
                return Step::Body(self.max_body);
            }
            if matches!(x.body_state(), Body::Streaming | Body::TooLarge) || x.body().len() > self.max_body {
                return Step::Reply(Reply::status(413).because(crate::TOO_LARGE));
            }
        }
        if let Err(why) = found.check_parameters(x, self.skipped) {
            return self.settle(x, Err(why));
        }
        if self.skipped.body || !found.operation.has_body() {
            return Step::Next;
        }
        if x.body().len() > ON_WORKER {
            return Step::Wait;
        }
        let mut memory = Reservation::default();
        if memory.resize(x.world().budget(), tree::weight(x.body())).is_err() {
            return crate::no_memory();
        }
        let checked = content_type(x).and_then(|kind| found.operation.check_body(kind.as_deref(), x.body()));
        self.settle(x, checked)
    }

    /// Checks a long body.
    async fn check_body(&self, x: &mut Exchange<'_>, document: Arc<Document>) -> Step {
        let mut memory = Reservation::default();
        // It is copied, as the exchange keeps its own.
        if memory.resize(x.world().budget(), tree::weight(x.body()) + x.body().len()).is_err() {
            return crate::no_memory();
        }
        let (index, kind) = match (document.find(x), content_type(x)) {
            (Ok(Found { index, .. }), Ok(kind)) => (index, kind),
            (Err(why), _) | (_, Err(why)) => return self.settle(x, Err(why)),
        };
        let body = x.body().to_vec();
        let job =
            x.world().offload(memory, move |_| document.operation(index).check_body(kind.as_deref(), &body));
        let (checked, memory) = job.await;
        drop(memory);
        self.settle(x, checked)
    }

    fn settle(&self, x: &Exchange<'_>, checked: Result<(), String>) -> Step {
        const REASON: &str = "the request does not fit the OpenAPI document";
        let Err(why) = checked else { return Step::Next };
        if !self.rejects {
            x.complain(Self::NAME, REASON);
            return Step::Next;
        }
        let why = if self.verbose { &why[..] } else { "" };
        let body = json!({"message": format!("failed to validate request. {why}")});
        Step::Reply(Reply::json(self.code, &body).because(REASON))
    }
}

/// The media type of the request, without parameters and in lower case.
///
/// # Errors
/// There are several, in words: servers disagree about which one counts.
fn content_type(x: &Exchange<'_>) -> Result<Option<String>, String> {
    let mut all = x.request().fields.all(b"Content-Type");
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(text), None) => {
            let text = String::from_utf8_lossy(text).to_ascii_lowercase();
            Ok(Some(text.split(';').next().unwrap_or_default().trim().to_owned()))
        }
        _ => Err("there are several headers Content-Type".to_owned()),
    }
}

impl Server {
    /// The document, fetched and compiled if need be; without one, the reason is logged.
    async fn document(&self, x: &Exchange<'_>) -> Option<Arc<Document>> {
        let ask = async || {
            let fetched =
                self.remote.fetch(x, self.manner, Method::Get, self.fields.clone(), Bytes::new()).await;
            let body = fetched.map_err(|error| error.as_str()).and_then(|answer| match answer.status {
                200 => Ok((answer.body, answer.held)),
                _ => Err("the URL of the OpenAPI document does not answer with status 200"),
            });
            let (body, mut held) = body.map_err(|why| x.complain(OasValidator::NAME, why)).ok()?;
            if held.resize(x.world().budget(), body.len() + tree::weight(&body)).is_err() {
                x.complain(OasValidator::NAME, "the gateway holds as many bodies in memory as it may");
                return None;
            }
            let job = x.world().offload(held, move |_| {
                let document = document::read(&body).ok()?;
                Document::compile(document).ok()
            });
            let (compiled, held) = job.await;
            drop(held);
            if compiled.is_none() {
                x.complain(OasValidator::NAME, "failed to compile openapi spec fetched from URL");
            }
            compiled.map(Arc::new)
        };
        let wait = u64::try_from(self.manner.timeout.as_millis()).unwrap_or(u64::MAX);
        obtain(&self.cache, x.world(), (self.ttl, wait), |_| true, ask)
            .await
            .map(|document| Arc::clone(&document))
    }
}

#[cfg(test)]
mod tests;
