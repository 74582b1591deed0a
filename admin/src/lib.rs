//! The Admin API, the control API and the metrics listener.
//!
//! What operators write comes in here, is checked, and goes to the store: this
//! room writes there and nowhere else, and applies nothing. It answers in
//! APISIX 3's words and envelopes. No key, password or other value that was
//! sent is ever repeated in an error.

#![forbid(unsafe_code)]

mod answer;
mod auth;
mod check;
pub mod config;
pub mod control_api;
pub mod key;
mod list;
pub mod metrics;
mod patch;
mod patience;
mod plugins;
mod program;
mod request;
mod resources;
mod server;
pub mod status;
mod validate;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use control::store::Store;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use sdk::Catalog;
use sdk::catalog::About;
use serde_json::json;
use tokio::net::TcpListener;

use answer::{Answer, Refusal, said};
use request::Call;

pub use config::{AdminKey, AdminRole, Config};
pub use control_api::ControlApi;
pub use program::{Program, Published, Rejected, Reloading};
pub use server::Limits;

/// Who this says it is. Tools (ADC) read the version of APISIX whose API this is from it.
pub const SERVER: &str = "APISIX/3.18.0";

/// The largest body taken, as in APISIX: 1.5 MiB.
pub const MAX_BODY: usize = 1_572_864;

/// The Admin API. Cheap to clone; everything in it is shared.
#[derive(Clone)]
pub struct Admin {
    store: Arc<dyn Store>,
    catalog: Arc<dyn Catalog>,
    program: Arc<dyn Program>,
    config: Arc<Config>,
    /// What the catalog says of its plugins, which never changes.
    about: Arc<Vec<About>>,
}

impl Admin {
    pub fn new(
        store: Arc<dyn Store>,
        catalog: Arc<dyn Catalog>,
        program: Arc<dyn Program>,
        config: Config,
    ) -> Admin {
        let about = Arc::new(catalog.about());
        Admin { store, catalog, program, config: Arc::new(config), about }
    }

    /// Serves the API on `listener` for as long as the runtime lives.
    pub async fn serve(self, listener: TcpListener) {
        server::serve(listener, Limits::default(), move |peer, request| {
            let admin = self.clone();
            async move { admin.handle(peer, request).await }
        })
        .await;
    }

    /// Answers one request; `peer` is the address of the connection's other end, never one
    /// that a header claims.
    ///
    /// The path must be the one under `/apisix/admin` (or `/v1/snapshot`), wherever it came in.
    pub async fn handle(&self, peer: IpAddr, request: Request<Bytes>) -> Response<Bytes> {
        let response = match self.admit(peer, &request) {
            Err(refusal) => refusal.into_response(),
            Ok(()) if self.is_preflight(&request) => answer::preflight(),
            Ok(()) => self.answer(&request).await.unwrap_or_else(Refusal::into_response),
        };
        self.signed(&request, response)
    }

    /// The answer to a request that need not be read further, by address, method and key alone;
    /// its body is not looked at.
    pub fn refuses(&self, peer: IpAddr, head: &Request<Bytes>) -> Option<Response<Bytes>> {
        let refusal = self.admit(peer, head).err()?;
        Some(self.signed(head, refusal.into_response()))
    }

    /// Before anything else is looked at: what does not exist is nobody's business either.
    fn admit(&self, peer: IpAddr, request: &Request<Bytes>) -> Result<(), Refusal> {
        auth::check_address(&self.config, peer)?;
        if self.is_preflight(request) || is_ping(request) {
            return Ok(());
        }
        auth::check_key(&self.config, request)
    }

    /// Without keys no web page may ask, so none is told that it may.
    fn allows_pages(&self) -> bool {
        self.config.cors && self.config.key_required
    }

    fn is_preflight(&self, request: &Request<Bytes>) -> bool {
        request.method() == Method::OPTIONS && self.allows_pages()
    }

    /// Every answer says whose it is.
    fn signed(&self, request: &Request<Bytes>, mut response: Response<Bytes>) -> Response<Bytes> {
        let headers = response.headers_mut();
        headers.insert(header::SERVER, HeaderValue::from_static(SERVER));
        headers.insert(
            HeaderName::from_static("x-sluice-version"),
            HeaderValue::from_static(env!("CARGO_PKG_VERSION")),
        );
        if self.allows_pages() && !self.is_preflight(request) {
            answer::allow_origins(headers);
        }
        response
    }

    async fn answer(&self, request: &Request<Bytes>) -> Answer {
        if is_ping(request) {
            return Ok(answer::empty(StatusCode::OK));
        }
        let mut response = match request.uri().path() {
            "/v1/snapshot" if request.method() == Method::GET => {
                Ok(answer::json(StatusCode::OK, &control_api::snapshot(&*self.program)))
            }
            _ => match Call::read(request) {
                Some(call) => self.route(call, request).await,
                None => Err(Refusal::bare(StatusCode::NOT_FOUND)),
            },
        }
        .unwrap_or_else(Refusal::into_response);
        response.headers_mut().insert("x-api-version", self.envelope().version());
        Ok(response)
    }

    async fn route(&self, call: Call<'_>, request: &Request<Bytes>) -> Answer {
        match (call.method, call.segments()) {
            (method, ["plugins", "reload"]) => match *method {
                Method::PUT => self.reload_plugins().await,
                Method::GET | Method::POST | Method::DELETE | Method::PATCH => Err(Refusal::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    format!("please use PUT method to reload the plugins, {method} method is not allowed."),
                )),
                _ => Err(Refusal::bare(StatusCode::NOT_FOUND)),
            },
            (&Method::GET, ["plugins", "list"]) => self.list_plugins(&call).await,
            (&Method::POST, ["schema", "validate", collection]) => validate::one(collection, request),
            (&Method::POST, ["configs", "validate"]) => self.validate_all(request).await,
            (&Method::GET, ["plugins", rest @ ..] | ["schema", "plugins", rest @ ..]) => {
                self.plugin(&call, rest.first().copied()).await
            }
            (&Method::GET, ["schema", rest @ ..]) => {
                plugins::schema(rest.first().copied().unwrap_or_default())
            }
            (&Method::GET | &Method::PUT | &Method::POST | &Method::DELETE | &Method::PATCH, _) => {
                self.resource(call, request.body()).await
            }
            _ => Err(Refusal::bare(StatusCode::NOT_FOUND)),
        }
    }
}

/// ADC's ping; it tells nothing, so it needs no key.
fn is_ping(request: &Request<Bytes>) -> bool {
    request.method() == Method::HEAD && request.uri().path().trim_end_matches('/') == "/apisix/admin"
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The answer to a body larger than [`MAX_BODY`], which the server gives before reading it.
fn too_large(size: u64) -> Response<Bytes> {
    let reason = format!(
        "invalid request body: request size {size} is greater than the maximum size {MAX_BODY} allowed"
    );
    answer::json(StatusCode::BAD_REQUEST, &json!({ "error_msg": reason }))
}

/// Reads a JSON body; `None` if there is none.
fn read_body(body: &[u8]) -> Result<Option<serde_json::Value>, Refusal> {
    if body.len() > MAX_BODY {
        return Err(Refusal::response(too_large(body.len() as u64)));
    }
    if body.is_empty() {
        return Ok(None);
    }
    model::json::read(body).map(Some).map_err(|error| {
        let model::Position { line, column } = error.position;
        // APISIX repeats the body here; it may hold keys and passwords.
        said(format!("invalid request body: {} at line {line} column {column}", error.message))
    })
}
