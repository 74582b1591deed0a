//! Answers with APISIX's envelopes, statuses and error messages.

use bytes::Bytes;
use control::store::{Refused, StoreError, Stored};
use http::header::{self, HeaderMap};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use model::key::DEFAULT_PREFIX;
use model::{Invalid, Key, gaps};
use serde_json::{Value, json};

use crate::conceal::conceal;
use crate::program::Outcome;

pub(crate) type Answer = Result<Response<Bytes>, ErrorAnswer>;

/// An answer that ends a request early.
#[derive(Debug)]
pub(crate) struct ErrorAnswer(Box<Response<Bytes>>);

impl ErrorAnswer {
    /// `{"error_msg":…}`
    pub fn new(status: StatusCode, reason: impl Into<String>) -> ErrorAnswer {
        ErrorAnswer::response(json(status, &json!({ "error_msg": reason.into() })))
    }

    /// A status without a body.
    pub fn bare(status: StatusCode) -> ErrorAnswer {
        ErrorAnswer::response(empty(status))
    }

    pub fn response(response: Response<Bytes>) -> ErrorAnswer {
        ErrorAnswer(Box::new(response))
    }

    /// Adds the index of the failed operation to the error.
    pub fn of_operation(self, at: usize) -> ErrorAnswer {
        let (status, body) = (self.0.status(), self.0.body());
        let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(fields) = body.as_object_mut() {
            fields.insert("operation".to_owned(), at.into());
            return ErrorAnswer::response(json(status, &body));
        }
        self
    }

    /// Adds the key of the resource to the error.
    pub fn about(self, key: &Key) -> ErrorAnswer {
        let (status, body) = (self.0.status(), self.0.body());
        let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(fields) = body.as_object_mut() {
            fields.insert("key".to_owned(), key.to_string().into());
            return ErrorAnswer::response(json(status, &body));
        }
        self
    }

    pub fn into_response(self) -> Response<Bytes> {
        *self.0
    }
}

/// Returns a 400 with this message.
pub(crate) fn said(reason: impl Into<String>) -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::BAD_REQUEST, reason)
}

impl From<Invalid> for ErrorAnswer {
    /// Answers 400 with APISIX's message, and beside it the place of the error and a hint.
    fn from(invalid: Invalid) -> ErrorAnswer {
        let mut body = json!({ "error_msg": invalid.reason });
        let parts = [
            ("pointer", Some(invalid.pointer).filter(|pointer| !pointer.is_empty())),
            ("expected", invalid.expected),
            ("got", invalid.got.map(String::from)),
            ("hint", invalid.hint),
        ];
        for (name, part) in parts {
            if let Some(part) = part {
                body[name] = Value::from(part);
            }
        }
        ErrorAnswer::response(json(StatusCode::BAD_REQUEST, &body))
    }
}

impl From<StoreError> for ErrorAnswer {
    fn from(error: StoreError) -> ErrorAnswer {
        let status = match error {
            StoreError::ReadOnly { .. } => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        ErrorAnswer::new(status, error.to_string())
    }
}

impl From<Refused> for ErrorAnswer {
    fn from(refused: Refused) -> ErrorAnswer {
        match refused {
            Refused::Invalid(invalid) => invalid.into(),
            Refused::Missing(crate::resources::KEY_NOT_FOUND) => not_found(),
            Refused::Missing(what) => ErrorAnswer::new(StatusCode::NOT_FOUND, what),
            Refused::Store(error) => error.into(),
        }
    }
}

/// Returns an answer of JSON and a newline, as APISIX prints tables.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response<Bytes> {
    text(status, value.to_string() + "\n")
}

/// Returns an answer of a plain text, with the content type that all of APISIX's admin answers have.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn empty(status: StatusCode) -> Response<Bytes> {
    text(status, Bytes::new())
}

pub(crate) fn not_found() -> ErrorAnswer {
    ErrorAnswer::response(json(StatusCode::NOT_FOUND, &json!({ "message": "Key not found" })))
}

/// Returns the store's path of a resource: `/apisix/routes/1`.
pub(crate) fn path(key: &Key) -> String {
    key.path(DEFAULT_PREFIX)
}

/// The envelope of answers: that of APISIX 3, or of APISIX 2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub v2: bool,
}

impl Envelope {
    /// Returns the value of `X-API-VERSION`.
    pub fn version(self) -> HeaderValue {
        HeaderValue::from_static(if self.v2 { "v2" } else { "v3" })
    }

    /// Returns the answer to a GET of one resource.
    pub fn one(self, entry: Value) -> Response<Bytes> {
        self.wrap(StatusCode::OK, entry, "get")
    }

    /// Returns the answer to a GET of a collection; `total` counts the items of all pages.
    pub fn list(self, collection: String, list: Vec<Value>, total: usize) -> Response<Bytes> {
        let body = match self.v2 {
            false => json!({ "list": list, "total": total }),
            true => json!({
                "action": "get",
                "count": total,
                "node": { "dir": true, "key": collection, "nodes": list },
            }),
        };
        json(StatusCode::OK, &body)
    }

    /// Returns the answer to a PUT (`set`), POST (`create`) or PATCH (`compareAndSwap`).
    pub fn written(self, status: StatusCode, stored: &Stored, action: &str) -> Response<Bytes> {
        let mut stored = stored.clone();
        conceal(&mut stored);
        self.wrap(status, json!({ "key": path(&stored.key), "value": &*stored.value }), action)
    }

    pub fn deleted(self, key: &Key) -> Response<Bytes> {
        let mut body = json!({ "key": path(key), "deleted": "1" });
        if self.v2 {
            body["action"] = "delete".into();
            body["node"] = json!({});
        }
        json(StatusCode::OK, &body)
    }

    fn wrap(self, status: StatusCode, node: Value, action: &str) -> Response<Bytes> {
        let body = if self.v2 { json!({ "action": action, "node": node }) } else { node };
        json(status, &body)
    }
}

/// The longest reason in a header, in characters.
const MAX_REASON: usize = 500;

/// Adds `X-Sluice-Revision`, which clients can wait for, and `X-Sluice-Outcome`, as far as it is known.
pub(crate) fn add_outcome(response: &mut Response<Bytes>, revision: u64, outcome: &Outcome) {
    let outcome = match outcome {
        Outcome::Published => "published".to_owned(),
        Outcome::Pending => "pending".to_owned(),
        Outcome::Rejected(reason) => format!("rejected: {reason}"),
    };
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("x-sluice-revision"), revision.into());
    if let Some(outcome) = visible(&outcome) {
        headers.insert(HeaderName::from_static("x-sluice-outcome"), outcome);
    }
}

/// The most `X-Sluice-Warning` headers of an answer, besides one that counts the rest.
const MOST_WARNINGS: usize = 10;

/// Adds an `X-Sluice-Warning` for each written setting that has no effect.
pub(crate) fn add_warnings<'a>(
    response: &mut Response<Bytes>,
    written: impl IntoIterator<Item = (&'a Key, &'a Value)>,
) {
    let mut lines = written.into_iter().flat_map(|(key, value)| {
        let ignored = gaps::ignored(key.kind, value);
        ignored.into_iter().map(move |invalid| gaps::line(key, &invalid))
    });
    let mut warnings: Vec<String> = lines.by_ref().take(MOST_WARNINGS).collect();
    let more = lines.count();
    if more > 0 {
        warnings.push(format!("and {more} more settings without effect"));
    }
    for line in warnings.iter().filter_map(|line| visible(line)) {
        response.headers_mut().append(HeaderName::from_static("x-sluice-warning"), line);
    }
}

/// Returns a text as a header value, with `?` for characters other than visible ASCII and spaces.
fn visible(text: &str) -> Option<HeaderValue> {
    let visible = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
    let text: String = text.chars().take(MAX_REASON).map(visible).collect();
    HeaderValue::from_str(&text).ok()
}

/// Returns the answer to a CORS preflight request.
pub(crate) fn preflight() -> Response<Bytes> {
    let mut response = empty(StatusCode::OK);
    let headers = response.headers_mut();
    allow_origins(headers);
    set(headers, "access-control-allow-methods", "POST, GET, PUT, OPTIONS, DELETE, PATCH");
    set(headers, "access-control-allow-headers", "*");
    headers.remove("access-control-expose-headers");
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

pub(crate) fn allow_origins(headers: &mut HeaderMap) {
    set(headers, "access-control-allow-origin", "*");
    set(headers, "access-control-allow-credentials", "true");
    set(headers, "access-control-expose-headers", "*");
    set(headers, "access-control-max-age", "3600");
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &'static str) {
    headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
}
