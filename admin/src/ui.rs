//! The dashboard at `/ui/`: its files, and signing in and out.
//!
//! The files are built by `dashboard/` and compiled in, compressed. They hold no secret, so they need
//! no key; everything they show comes from the Admin API.

use std::io::Read;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Instant;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::Admin;
use crate::answer::{self, ErrorAnswer, said};
use crate::auth;
use crate::config::AdminRole;
use crate::hosts;
use crate::session::{User, set_cookie};

/// Bytes of the body with which a user signs in.
const MOST_BODY: u64 = 1024;

struct File {
    path: &'static str,
    kind: &'static str,
    compressed: &'static [u8],
}

/// The files of the page, by their path below `/ui/`.
const FILES: [File; 3] = [
    File {
        path: "",
        kind: "text/html; charset=utf-8",
        compressed: include_bytes!("../../dashboard/dist/index.html.gz"),
    },
    File {
        path: "app.js",
        kind: "text/javascript; charset=utf-8",
        compressed: include_bytes!("../../dashboard/dist/app.js.gz"),
    },
    File {
        path: "app.css",
        kind: "text/css; charset=utf-8",
        compressed: include_bytes!("../../dashboard/dist/app.css.gz"),
    },
];

/// The meanings of fields, out of the documentation; `cargo x gen` writes them.
const FIELDS: &str = include_str!("../../docs/fields.json");

/// The same, as it is sent to clients that take gzip.
static FIELDS_PACKED: LazyLock<Bytes> = LazyLock::new(|| {
    let mut packed = Vec::new();
    // Reading from memory does not fail.
    let _ = GzEncoder::new(FIELDS.as_bytes(), Compression::best()).read_to_end(&mut packed);
    packed.into()
});

/// The most bytes of all files as they are sent.
const MOST_BYTES: usize = 180 << 10;

const _: () = assert!(
    FILES[0].compressed.len() + FILES[1].compressed.len() + FILES[2].compressed.len() <= MOST_BYTES,
    "the dashboard is too large"
);

/// Scripts, styles and connections from here alone; nothing inline, nothing framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl Admin {
    /// Answers a request below `/ui` that needs no body; `None` for signing in.
    pub(crate) fn ui(&self, peer: IpAddr, head: &Parts) -> Option<Response<Bytes>> {
        let path = head.uri.path();
        if !self.config.ui {
            let reason = "the dashboard is switched off (deployment.admin.enable_admin_ui)";
            return Some(ErrorAnswer::new(StatusCode::NOT_FOUND, reason).into_response());
        }
        let response = match (&head.method, path.strip_prefix("/ui").unwrap_or_default()) {
            (&Method::GET, "") => moved(),
            (&Method::GET, "/session") => self.session(head),
            (&Method::DELETE, "/session") => self.sign_out(head),
            (&Method::POST, "/session") => match self.may_sign_in(peer, head) {
                Ok(()) => return None,
                Err(refused) => refused.into_response(),
            },
            (&Method::GET | &Method::HEAD, path) => file(head, path.trim_start_matches('/')),
            _ => answer::empty(StatusCode::METHOD_NOT_ALLOWED),
        };
        Some(guarded(response))
    }

    fn may_sign_in(&self, peer: IpAddr, head: &Parts) -> Result<(), ErrorAnswer> {
        if let Some(seconds) = self.guesses.wait(peer, Instant::now()) {
            return Err(auth::too_many(seconds));
        }
        if !auth::is_same_origin(head) {
            return Err(ErrorAnswer::new(StatusCode::FORBIDDEN, "pages of other origins cannot sign in"));
        }
        if !self.config.key_required {
            hosts::check(&self.config.hosts, &head.uri, &head.headers)?;
        }
        let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        match length.and_then(|length| length.parse::<u64>().ok()) {
            Some(length) if length <= MOST_BODY => Ok(()),
            _ => Err(ErrorAnswer::new(StatusCode::PAYLOAD_TOO_LARGE, "a key is at most 1 KiB")),
        }
    }

    /// Exchanges a key for a session.
    pub(crate) fn sign_in(&self, peer: IpAddr, body: &[u8]) -> Response<Bytes> {
        let key = serde_json::from_slice::<Value>(body).ok();
        let key = key.as_ref().and_then(|body| body.get("key")).and_then(Value::as_str);
        let Some(key) = key else { return guarded(said("the body must be {\"key\": …}").into_response()) };
        let (key, role) = match auth::user_of(&self.config, key.as_bytes()) {
            Some(found) => found,
            None => {
                self.guesses.wrong(peer, Instant::now());
                self.refused.refused(peer.to_canonical(), auth::WRONG_KEY);
                let refused =
                    ErrorAnswer::new(StatusCode::UNAUTHORIZED, "this is not an admin key of this gateway");
                return guarded(refused.into_response());
            }
        };
        let (cookie, user) = self.sessions.begin(key, role, Instant::now());
        let mut response = answer::json(StatusCode::OK, &shown(&user));
        set_cookie(response.headers_mut(), &cookie, self.config.tls);
        guarded(response)
    }

    fn session(&self, head: &Parts) -> Response<Bytes> {
        let user = self.sessions.find(&head.headers, Instant::now());
        let body = user.map_or_else(
            || json!({ "signed_in": false, "key_required": self.config.key_required }),
            |user| shown(&user),
        );
        answer::json(StatusCode::OK, &body)
    }

    fn sign_out(&self, head: &Parts) -> Response<Bytes> {
        let user = self.sessions.find(&head.headers, Instant::now());
        if user.is_some_and(|user| !user.has_token(&head.headers)) {
            return ErrorAnswer::new(StatusCode::FORBIDDEN, "the token of the session is missing")
                .into_response();
        }
        self.sessions.end(&head.headers);
        let mut response = answer::json(StatusCode::OK, &json!({ "signed_in": false }));
        set_cookie(response.headers_mut(), "", self.config.tls);
        response
    }
}

/// Whether the path belongs to the dashboard.
pub(crate) fn is_ui(path: &str) -> bool {
    path == "/ui" || path.starts_with("/ui/")
}

fn shown(user: &User) -> Value {
    json!({
        "signed_in": true,
        "name": user.key.name(),
        "role": if user.role == AdminRole::Admin { "admin" } else { "viewer" },
        "csrf": user.csrf,
    })
}

fn moved() -> Response<Bytes> {
    let mut response = answer::empty(StatusCode::PERMANENT_REDIRECT);
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/ui/"));
    response
}

fn file(head: &Parts, path: &str) -> Response<Bytes> {
    let found = match FILES.iter().find(|file| file.path == path) {
        Some(file) => (file.kind, Bytes::from_static(file.compressed)),
        None if path == "fields.json" => ("application/json", FIELDS_PACKED.clone()),
        None => {
            return ErrorAnswer::new(StatusCode::NOT_FOUND, "the dashboard has no such file").into_response();
        }
    };
    let (kind, compressed) = found;
    let tag = &format!("\"{:016x}\"", fnv(&compressed));
    let is_known = head.headers.get_all(header::IF_NONE_MATCH).iter().any(|known| {
        known
            .to_str()
            .is_ok_and(|known| known.split(',').any(|known| known.trim().trim_start_matches("W/") == tag))
    });
    let accepts = head.headers.get_all(header::ACCEPT_ENCODING).iter();
    let accepts_gzip = accepts.filter_map(|value| value.to_str().ok()).any(|value| value.contains("gzip"));
    let body = match (is_known, accepts_gzip) {
        (true, _) => Bytes::new(),
        (false, true) => compressed,
        (false, false) => {
            let mut plain = Vec::new();
            // The files are our own.
            let _ = GzDecoder::new(&*compressed).read_to_end(&mut plain);
            plain.into()
        }
    };
    let mut response = Response::new(body);
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    // Validated each time, so that a page is never older than its gateway.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if accepts_gzip && !is_known {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// FNV-1a: distinguishes versions of a file.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn guarded(mut response: Response<Bytes>) -> Response<Bytes> {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

#[cfg(test)]
mod tests {
    use model::Kind;
    use serde_json::Value;

    use super::FIELDS;
    use crate::plugins::SCHEMAS;

    /// Whether an object of this name has the field, anywhere in a schema.
    fn has(schema: &Value, object: &str, field: &str) -> bool {
        match schema {
            Value::Object(all) => all.iter().any(|(name, one)| {
                name == object && one.pointer("/properties").is_some_and(|own| own.get(field).is_some())
                    || has(one, object, field)
            }),
            Value::Array(all) => all.iter().any(|one| has(one, object, field)),
            _ => false,
        }
    }

    #[test]
    fn meanings_are_of_fields_that_exist() {
        let meanings: Value = serde_json::from_str(FIELDS).unwrap();
        let upstream = model::schema::document(Kind::Upstream);
        for (object, fields) in meanings["resources"].as_object().unwrap() {
            let kind = SCHEMAS.iter().find(|(name, _)| name == object).map(|(_, kind)| *kind);
            for field in fields.as_object().unwrap().keys() {
                let exists = match kind {
                    Some(kind) => model::schema::document(kind)["properties"].get(field).is_some(),
                    None => has(&upstream, object, field),
                };
                assert!(exists, "{object} has no field {field}");
            }
        }
        let parts = ["about", "price", "fields", "consumer"];
        for (plugin, means) in meanings["plugins"].as_object().unwrap() {
            assert!(means.as_object().unwrap().keys().all(|part| parts.contains(&part.as_str())), "{plugin}");
        }
    }
}
