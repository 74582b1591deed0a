//! The Admin API, the control API and the metrics listener.
//!
//! The Admin API checks the resources that operators write and puts them into the
//! store; it writes nowhere else and applies nothing. Answers have the texts and
//! envelopes of APISIX 3. Errors never repeat a key, password or other value of
//! the request.

#![forbid(unsafe_code)]

mod answer;
mod auth;
mod author;
mod batch;
mod check;
mod conceal;
pub mod config;
mod configs;
mod confirm;
pub mod control_api;
mod defaults;
mod expiry;
mod explain;
mod front;
mod guesses;
mod health_page;
mod hosts;
pub mod key;
mod list;
pub mod live;
pub mod metrics;
mod openapi;
mod patch;
mod patience;
mod plugins;
mod program;
mod request;
mod resources;
mod revisions;
mod server;
mod session;
pub mod status;
mod streams;
mod turns;
mod ui;
mod unhealthy;
mod validate;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use control::store::Store;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use sdk::Catalog;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;

use answer::{Answer, ErrorAnswer};
use author::{Author, Lines};
use confirm::{Confirm, Start};
use guesses::Guesses;
use request::Call;
use session::Sessions;
use streams::{Sent, Stream};

pub use config::{AdminKey, AdminRole, Config};
pub use control_api::ControlApi;
pub use expiry::{Expiring, Source};
pub use openapi::answers;
pub use plugins::store_plugins;
pub use program::{
    Draft, Dump, Info, Instances, Listed, NotServed, Outcome, Preview, PreviewFuture, Program, Published,
    Question, Reloading, Report, ReportFuture, Rereading, Verdict,
};
pub use server::{Limits, Listener};

/// The `Server` header. Tools such as ADC read the APISIX version of the API from it.
pub const SERVER: &str = "APISIX/3.18.0";

/// The same without the version (`enable_server_tokens: false`).
pub const SERVER_ALONE: &str = "APISIX";

/// The largest body taken, as in APISIX: 1.5 MiB.
pub const MAX_BODY: usize = 1_572_864;

/// The Admin API. Cheap to clone; everything in it is shared.
#[derive(Clone)]
pub struct Admin {
    store: Arc<dyn Store>,
    catalog: Arc<dyn Catalog>,
    program: Arc<dyn Program>,
    config: Arc<Config>,
    refused: Arc<Lines>,
    guesses: Arc<Guesses>,
    start: Arc<Start>,
    sessions: Arc<Sessions>,
}

/// The decision on a request from its head alone.
enum Admitted {
    Author(Author),
    /// The body has the key with which a user of the dashboard signs in.
    SignIn,
    Answered(Response<Bytes>),
}

impl Admin {
    pub fn new(
        store: Arc<dyn Store>,
        catalog: Arc<dyn Catalog>,
        program: Arc<dyn Program>,
        config: Config,
    ) -> Admin {
        let guesses = Arc::new(Guesses::new(config.failed_keys));
        let (config, refused, start) = (Arc::new(config), Arc::default(), Arc::default());
        let sessions = Arc::default();
        Admin { store, catalog, program, config, refused, guesses, start, sessions }
    }

    /// Serves the API on `listener` for as long as the runtime lives.
    pub async fn serve(self, listener: TcpListener) {
        self.serve_over(listener.into(), None).await;
    }

    /// Serves the API until the listener stops; over TLS, if `tls` is set.
    pub async fn serve_over(self, listener: Listener, tls: Option<Arc<ServerConfig>>) {
        let limits = Limits { body_size: MAX_BODY, ..self.config.limits.clone() };
        server::run(listener, limits, tls, self).await;
    }

    /// Answers requests that need no body, among them those without a valid key, so that the body of an
    /// unauthenticated client is never read. `None` leaves the request to [`handle`](Admin::handle).
    pub fn answer_head(&self, peer: IpAddr, head: &Parts) -> Option<Response<Bytes>> {
        match self.admit(peer, head) {
            Admitted::Author(_) | Admitted::SignIn => None,
            Admitted::Answered(response) => Some(self.finish(response, head)),
        }
    }

    /// Answers one request; `peer` is the address of the connection's other end, never one
    /// that a header claims.
    ///
    /// The path must be the one under `/apisix/admin` (or `/v1/snapshot`), wherever it came in.
    pub async fn handle(&self, peer: IpAddr, request: Request<Bytes>) -> Response<Bytes> {
        let (head, body) = request.into_parts();
        let response = match self.admit(peer, &head) {
            Admitted::Answered(response) => response,
            Admitted::SignIn => self.sign_in(peer, &body),
            Admitted::Author(author) => self.answer(&author, &head, &body).await,
        };
        self.finish(response, &head)
    }

    /// Returns whether `allow_admin` holds this address.
    pub(crate) fn knows(&self, peer: IpAddr) -> bool {
        auth::is_allowed(&self.config, peer)
    }

    fn admit(&self, peer: IpAddr, head: &Parts) -> Admitted {
        let answered = |refusal: ErrorAnswer, why: &str| {
            self.refused.refused(peer.to_canonical(), why);
            Admitted::Answered(refusal.into_response())
        };
        if let Err(refusal) = auth::check_address(&self.config, peer) {
            return answered(refusal, "its address is not in deployment.admin.allow_admin");
        }
        if head.method == Method::OPTIONS && self.cors() {
            return Admitted::Answered(answer::preflight());
        }
        // ADC's ping; the answer reveals nothing, so it needs no key.
        if head.method == Method::HEAD && head.uri.path().trim_end_matches('/') == "/apisix/admin" {
            return Admitted::Answered(answer::empty(StatusCode::OK));
        }
        if head.method == Method::GET && head.uri.path() == "/" {
            return Admitted::Answered(front::of_admin());
        }
        // The page holds no secret; it signs in.
        if ui::is_ui(head.uri.path()) {
            return self.ui(peer, head).map_or(Admitted::SignIn, Admitted::Answered);
        }
        // Authenticates before revealing whether a path exists.
        let user = if auth::has_key(head) { None } else { self.sessions.find(&head.headers, Instant::now()) };
        // Wrong keys sent by a page in the same browser must not end a session.
        if user.is_none()
            && let Some(seconds) = self.guesses.wait(peer, Instant::now())
        {
            return answered(auth::too_many(seconds), "too many wrong keys came from there");
        }
        let checked = match &user {
            Some(user) => auth::check_session(&self.config, user, head),
            None => auth::check_key(&self.config, head),
        };
        match checked {
            Ok((key, role)) => match Confirm::of_head(&head.headers) {
                Ok(confirm) => {
                    let message = author::message_of(head);
                    Admitted::Author(Author { peer: peer.to_canonical(), key, role, message, confirm })
                }
                Err(wrong) => Admitted::Answered(wrong.into_response()),
            },
            Err((refusal, why)) => {
                if why == auth::WRONG_KEY {
                    self.guesses.wrong(peer, Instant::now());
                }
                answered(refusal, why)
            }
        }
    }

    /// Returns whether CORS headers are sent. Without keys, requests from web pages are refused, so CORS is off.
    fn cors(&self) -> bool {
        self.config.cors && self.config.key_required
    }

    /// Answers a request, which may be one for a stream of events.
    pub(crate) async fn handle_streams(&self, peer: IpAddr, request: Request<Bytes>) -> Response<Sent> {
        let (head, body) = request.into_parts();
        let Some(stream) = Stream::at(&head, "/apisix/admin/") else {
            return self.handle(peer, Request::from_parts(head, body)).await.map(Sent::from);
        };
        let response = match self.admit(peer, &head) {
            Admitted::SignIn => answer::empty(StatusCode::NOT_FOUND).map(Sent::from),
            Admitted::Answered(response) => response.map(Sent::from),
            Admitted::Author(author) => {
                let shows_headers = author.role == AdminRole::Admin;
                streams::answer(&*self.program, stream, &head, shows_headers)
                    .unwrap_or_else(|refused| refused.into_response().map(Sent::from))
            }
        };
        self.finish(response, &head)
    }

    fn finish<B>(&self, mut response: Response<B>, head: &Parts) -> Response<B> {
        let headers = response.headers_mut();
        let server = if self.config.server_tokens { SERVER } else { SERVER_ALONE };
        headers.insert(header::SERVER, HeaderValue::from_static(server));
        headers.insert(
            HeaderName::from_static("x-sluice-version"),
            HeaderValue::from_static(env!("CARGO_PKG_VERSION")),
        );
        if self.cors() && head.method != Method::OPTIONS {
            answer::allow_origins(headers);
        }
        response
    }

    async fn answer(&self, author: &Author, head: &Parts, body: &Bytes) -> Response<Bytes> {
        let mut response = match head.uri.path() {
            "/v1/snapshot" if head.method == Method::GET => {
                Ok(answer::json(StatusCode::OK, &control_api::snapshot(&*self.program)))
            }
            _ => match Call::read(head) {
                Some(call) => self.route(author, call, head, body).await,
                None => Err(ErrorAnswer::bare(StatusCode::NOT_FOUND)),
            },
        }
        .unwrap_or_else(ErrorAnswer::into_response);
        response.headers_mut().insert("x-api-version", self.envelope().version());
        response
    }

    async fn route(&self, author: &Author, call: Call<'_>, head: &Parts, body: &Bytes) -> Answer {
        match (call.method, call.segments()) {
            (method, ["plugins", "reload"]) => match *method {
                Method::PUT => self.reload_plugins(author).await,
                Method::GET | Method::POST | Method::DELETE | Method::PATCH => Err(ErrorAnswer::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    format!("please use PUT method to reload the plugins, {method} method is not allowed."),
                )),
                _ => Err(ErrorAnswer::bare(StatusCode::NOT_FOUND)),
            },
            (&Method::GET, ["plugins", "list"]) => self.list_plugins(&call).await,
            (&Method::GET, ["openapi.json"]) => Ok(openapi::answer()),
            (&Method::GET | &Method::POST, ["explain"]) => explain::explain(&*self.program, head, body).await,
            (&Method::POST, ["explain", "change"]) => self.preview(body).await,
            (&Method::GET, ["status"]) => {
                let status = control_api::status(&*self.program, &*self.store).await;
                Ok(answer::json(StatusCode::OK, &status))
            }
            (&Method::GET, ["instances"]) => match self.program.instances().await {
                Ok(all) => {
                    let listed = json!({ "total": all.len(), "list": all });
                    Ok(answer::json(StatusCode::OK, &listed))
                }
                Err(reason) => Err(ErrorAnswer::new(StatusCode::SERVICE_UNAVAILABLE, reason)),
            },
            (&Method::GET, ["healthcheck"]) => {
                let shown = health_page::Shown { stored: self.store.writable(), details: true };
                Ok(answer::json(StatusCode::OK, &health_page::all(&self.program.health(), shown)))
            }
            (&Method::GET, ["live", "history"]) => streams::history(&*self.program, head),
            (&Method::GET, ["live" | "tap"]) => Err(ErrorAnswer::new(
                StatusCode::BAD_REQUEST,
                "streams are served at deployment.admin.admin_listen, not at the ports for traffic",
            )),
            (&Method::GET, ["analysis"]) => explain::analysis(&*self.program, head).await,
            (&Method::POST, ["batch"]) => self.batch(author, body).await,
            (&Method::GET | &Method::HEAD, ["configs"]) => self.configs(head).await,
            (&Method::PUT, ["configs"]) => self.put_configs(author, head, body).await,
            (&Method::GET, ["revisions", "unconfirmed"]) => self.unconfirmed().await,
            (&Method::POST, ["revisions", "unconfirmed", "confirm"]) => self.confirm(author).await,
            (&Method::POST, ["revisions", "unconfirmed", "undo"]) => self.undo_unconfirmed(author).await,
            (&Method::GET, ["revisions", rest @ ..]) => self.revisions(&call, rest).await,
            (&Method::POST, ["revisions", revision, "rollback"]) => {
                self.rollback(author, &call, revision).await
            }
            (&Method::POST, ["schema", "validate", collection]) => validate::one(collection, body),
            (&Method::POST, ["configs", "validate"]) => self.validate_all(head, body).await,
            (&Method::GET, ["plugins", rest @ ..] | ["schema", "plugins", rest @ ..]) => {
                self.plugin(&call, rest.first().copied()).await
            }
            (&Method::GET, ["schema", rest @ ..]) => {
                plugins::schema(rest.first().copied().unwrap_or_default())
            }
            (&Method::GET | &Method::PUT | &Method::POST | &Method::DELETE | &Method::PATCH, _) => {
                self.resource(author, call, body).await
            }
            _ => Err(ErrorAnswer::bare(StatusCode::NOT_FOUND)),
        }
    }
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

/// The answer to a body that is too large, which the server gives before reading it.
fn too_large(size: u64, most: usize) -> Response<Bytes> {
    let reason =
        format!("invalid request body: request size {size} is greater than the maximum size {most} allowed");
    answer::json(StatusCode::BAD_REQUEST, &json!({ "error_msg": reason }))
}

/// Parses a JSON body; `None` if it is empty.
fn read_body(body: &[u8]) -> Result<Option<serde_json::Value>, ErrorAnswer> {
    if body.len() > MAX_BODY {
        return Err(ErrorAnswer::response(too_large(body.len() as u64, MAX_BODY)));
    }
    if body.is_empty() {
        return Ok(None);
    }
    model::json::read(body).map(Some).map_err(|error| {
        let model::Position { line, column } = error.position;
        // APISIX repeats the body here; it may hold keys and passwords.
        let reason = format!("invalid request body: {} at line {line} column {column}", error.message);
        model::Invalid { hint: error.hint, ..model::Invalid::new(reason) }.into()
    })
}
