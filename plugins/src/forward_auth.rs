//! forward-auth: asks another server whether to accept a request.
//!
//! Settings, headers and statuses as in APISIX 3.18. The server's answer is held in memory up to
//! `plugin_attr.forward-auth.max_resp_body_size` bytes (ours, 1 MiB); a longer one is an error.

use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use model::Invalid;
use model::boot::Section;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::template::Template;
use sdk::world::{Fetch, FetchTimeouts, Fetched, Keep, Target};
use sdk::{Build, Exchange, Fields, Method, Name, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::Vouched;

/// The configured plugin.
pub struct ForwardAuth {
    target: Target,
    /// Path and query of `uri`.
    uri: String,
    config: Config,
    extra_headers: Vec<(String, Template)>,
    /// A variable in `extra_headers` reads the client's body.
    needs_body: bool,
    max_answer: usize,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    uri: String,
    ssl_verify: bool,
    allow_degradation: bool,
    status_on_error: u16,
    request_method: String,
    original_request: bool,
    max_req_body_size: usize,
    request_headers: Vec<String>,
    #[serde(default)]
    extra_headers: IndexMap<String, Value>,
    all_request_headers: bool,
    upstream_headers: Vec<String>,
    #[serde(default)]
    upstream_header_names: IndexMap<String, String>,
    client_statuses: Option<Vec<u16>>,
    client_headers: Vec<String>,
    timeout: u64,
    keepalive: bool,
    keepalive_timeout: u64,
    keepalive_pool: usize,
}

const INVALID_VALUE: &str = "a header for the authorization server has an invalid value";

impl Plugin for ForwardAuth {
    const NAME: &'static str = "forward-auth";
    const PRIORITY: i32 = 2002;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        let names = |description: &str| json!({"type": "array", "default": [], "items": {"type": "string"}, "description": description});
        json!({
            "type": "object",
            "properties": {
                "uri": {"type": "string"},
                "allow_degradation": {"type": "boolean", "default": false},
                "status_on_error": {"type": "integer", "minimum": 200, "maximum": 599, "default": 403},
                "ssl_verify": {"type": "boolean", "default": true},
                "request_method": {
                    "type": "string",
                    "default": "GET",
                    "enum": ["GET", "POST"],
                    "description": "the method for client to request the authorization service",
                },
                "original_request": {
                    "type": "boolean",
                    "default": false,
                    "description": "call the server with the method, path and query of the request, the path behind that of `uri`; only status 200 accepts",
                },
                "max_req_body_size": {"type": "integer", "minimum": 1, "default": 67_108_864},
                "request_headers": names("client request header that will be sent to the authorization service"),
                "extra_headers": {
                    "type": "object",
                    "minProperties": 1,
                    "patternProperties": {"^[^:]+$": {"type": "string"}},
                },
                "all_request_headers": {
                    "type": "boolean",
                    "default": false,
                    "description": "send all client request headers to the authorization service",
                },
                "upstream_header_names": {
                    "type": "object",
                    "minProperties": 1,
                    "patternProperties": {"^[^:]+$": {"type": "string", "minLength": 1}},
                    "description": "authorization response headers that will be sent to the upstream under other names: the name for the upstream, and that of the response",
                },
                "client_statuses": {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 300, "maximum": 599},
                    "description": "statuses of the authorization service that the client gets; for others it gets `status_on_error`",
                },
                "upstream_headers": names("authorization response header that will be sent to the upstream"),
                "client_headers":
                    names("authorization response header that will be sent to the client when authorizing failed"),
                "timeout": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 60000,
                    "default": 3000,
                    "description": "timeout in milliseconds",
                },
                "keepalive": {"type": "boolean", "default": true},
                "keepalive_timeout": {"type": "integer", "minimum": 1000, "default": 60000},
                "keepalive_pool": {"type": "integer", "minimum": 1, "default": 5},
            },
            "required": ["uri"],
        })
    }

    fn build(mut config: Config, cx: &mut Build<'_>) -> Result<ForwardAuth, Invalid> {
        let target = cx.target(&config.uri).map_err(|invalid| invalid.at("/uri"))?;
        let uri = path_and_query(&config.uri);
        if !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Invalid::new("uri holds a character that cannot stand in a request")
                .at("/uri")
                .expected("other characters than ASCII ones percent-encoded"));
        }
        let mut extra_headers = Vec::new();
        for (name, value) in std::mem::take(&mut config.extra_headers) {
            let place = |invalid: Invalid| invalid.within(&name).under("/extra_headers");
            // The schema does not check the values of names with a colon.
            let value = value.as_str().ok_or_else(|| place(Invalid::new("wrong type").expected("string")))?;
            check_name(&name).map_err(place)?;
            let template = Template::parse(value);
            extra_headers.push((name, template));
        }
        let lists = [
            ("request_headers", &config.request_headers),
            ("upstream_headers", &config.upstream_headers),
            ("client_headers", &config.client_headers),
        ];
        for (list, names) in lists {
            for (at, name) in names.iter().enumerate() {
                check_name(name).map_err(|invalid| invalid.at(format!("/{list}/{at}")))?;
            }
        }
        for (name, from) in &config.upstream_header_names {
            let place = |invalid: Invalid| invalid.within(name).under("/upstream_header_names");
            check_name(name).and_then(|()| check_name(from)).map_err(place)?;
        }
        let needs_body = extra_headers.iter().any(|(_, template)| template.needs_body());
        Ok(ForwardAuth { target, uri, config, extra_headers, needs_body, max_answer: max_answer(cx.attr) })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let is_post = self.config.request_method == "POST";
        let limit = match (is_post, self.needs_body) {
            (true, _) => self.config.max_req_body_size,
            (false, true) => x.world().bounds().body,
            (false, false) => return Step::Wait,
        };
        crate::buffer_body(x, limit)
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        // The copy counts against the worker's budget until the answer has arrived.
        let mut held = Reservation::default();
        let body = match self.config.request_method == "POST" {
            true if held.resize(x.world().budget(), x.body().len()).is_err() => {
                return crate::no_memory();
            }
            true => Bytes::copy_from_slice(x.body()),
            false => Bytes::new(),
        };
        let Some(request) = self.request(x, body) else {
            // An invalid value is the client's: it may not skip the server by it, so `allow_degradation` has no effect.
            x.complain(Self::NAME, INVALID_VALUE);
            return Step::Reply(Reply::status(self.config.status_on_error).because(INVALID_VALUE));
        };
        let answer = x.world().fetch(request).await;
        drop(held);
        match answer {
            Ok(answer) if self.accepts(answer.status) => {
                self.pass_on(x, &answer);
                Step::Next
            }
            Ok(answer) => self.refuse(x, answer),
            Err(_) if self.config.allow_degradation => {
                // The request was not judged, so the client's own values for these headers are not trusted.
                self.pass_on(x, &Fetched::default());
                Step::Next
            }
            Err(error) => {
                x.complain(Self::NAME, error.as_str());
                Step::Reply(Reply::status(self.config.status_on_error).because(error.as_str()))
            }
        }
    }
}

impl ForwardAuth {
    /// Whether the server's status accepts the request.
    fn accepts(&self, status: u16) -> bool {
        if self.config.original_request { status == 200 } else { status < 300 }
    }

    /// The request to the server; `None` if a value cannot be that of a header, such as one with a line break.
    fn request(&self, x: &Exchange<'_>, body: Bytes) -> Option<Fetch> {
        let is_post = self.config.request_method == "POST";
        let head = x.request();
        let mut fields = Fields::new();
        let mut set = |name: &str, value: &[u8]| fields.set(name.as_bytes(), value).is_ok();
        set("X-Forwarded-Proto", x.client().scheme().as_bytes());
        set("X-Forwarded-Method", head.method_bytes());
        set("X-Forwarded-Host", head.host());
        let mut uri = Vec::with_capacity(head.target().len());
        head.write_normal_target(&mut uri);
        set("X-Forwarded-Uri", &uri);
        // The server has one answer to a HEAD and a GET, and sends no body that is not wanted.
        let (method, uri) = match (self.config.original_request, x.method()) {
            (false, _) => (if is_post { Method::Post } else { Method::Get }, self.uri.clone().into_bytes()),
            (true, Method::Head) => (Method::Get, self.original_uri(&uri)),
            (true, method) => (method, self.original_uri(&uri)),
        };
        set("X-Forwarded-For", x.client().ip_text());
        if is_post && let Some(coding) = x.header("Content-Encoding") {
            set("Content-Encoding", coding);
        }
        let (mut value, mut withheld) = (Vec::new(), Vec::new());
        for (name, template) in &self.extra_headers {
            value.clear();
            template.render(x, &mut value);
            if !set(name, &value) {
                return None;
            }
            if value.is_empty() {
                withheld.push(name.as_str());
            }
        }
        if self.config.all_request_headers {
            for name in &withheld {
                fields.remove(name.as_bytes());
            }
            add_all(&mut fields, &withheld, &head.fields);
        }
        for name in &self.config.request_headers {
            if fields.get_named(name.as_bytes()).is_none()
                && let Some(value) = x.header(name)
            {
                // It comes from a parsed head, so it is valid.
                let _ = fields.set(name.as_bytes(), value);
            }
        }
        x.count_hop(&mut fields);
        let timeout = Duration::from_millis(self.config.timeout);
        let keep = Keep {
            connections: if self.config.keepalive { self.config.keepalive_pool } else { 0 },
            idle: Duration::from_millis(self.config.keepalive_timeout),
        };
        Some(Fetch {
            verify: self.config.ssl_verify,
            target: self.target.clone(),
            method_name: if method == Method::Other { head.method_bytes().to_vec() } else { Vec::new() },
            method,
            uri,
            fields,
            body,
            timeouts: FetchTimeouts { connect: timeout, send: timeout, read: timeout },
            max_body: self.max_answer,
            // Asking the server twice does no harm.
            repeatable: true,
            http2: false,
            keep,
            tunnel: None,
        })
    }

    /// Path and query of the request, behind the path of `uri`.
    fn original_uri(&self, uri: &[u8]) -> Vec<u8> {
        let path = self.uri.split('?').next().unwrap_or_default();
        [path.trim_end_matches('/').as_bytes(), uri].concat()
    }

    /// Answers the client with the server's status and body, and with `client_headers`.
    fn refuse(&self, x: &mut Exchange<'_>, answer: Fetched) -> Step {
        for name in &self.config.client_headers {
            for (at, value) in values(&answer.fields, name).enumerate() {
                // The value comes from a parsed head, and the name was checked at build time.
                let _ = match at {
                    0 => x.set_response_header(name, value),
                    _ => x.add_response_header(name, value),
                };
            }
        }
        let because = "the authorization server refuses the request";
        let statuses = self.config.client_statuses.as_ref();
        if statuses.is_some_and(|statuses| !statuses.contains(&answer.status)) {
            return Step::Reply(Reply::status(self.config.status_on_error).because(because));
        }
        Step::Reply(Reply::text(answer.status, answer.body).because(because))
    }

    /// Sets `upstream_headers` and those of other names from the server's answer. The client's own headers of these
    /// names are removed, even if the answer has no such header, and so are lookalikes.
    fn pass_on(&self, x: &mut Exchange<'_>, answer: &Fetched) {
        let plain = self.config.upstream_headers.iter().map(|name| (name, name));
        let names = plain.chain(&self.config.upstream_header_names);
        for (name, _) in names.clone() {
            x.remove_lookalikes(name);
        }
        for (name, from) in names.clone() {
            x.remove_header(name);
            for (at, value) in values(&answer.fields, from).enumerate() {
                // As in `refuse`.
                let _ = match at {
                    0 => x.set_header(name, value),
                    _ => x.add_header(name, value),
                };
            }
        }
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        let mut is_any = false;
        for (name, from) in names {
            vouched.add(name.as_bytes());
            values(&answer.fields, from).for_each(|value| vouched.add(value));
            is_any = true;
        }
        if is_any {
            x.set_note(vouched);
        }
    }
}

/// Adds the client's headers, except those of its connection and its body, the ones that are set already or withheld,
/// and other spellings of these: servers that turn names into variables do not distinguish them.
fn add_all(fields: &mut Fields, withheld: &[&str], client: &Fields) {
    const OTHERS: [Name; 3] = [Name::Host, Name::ContentLength, Name::Expect];
    let mut own = fields.clone();
    for name in withheld {
        // The name was checked at build time.
        let _ = own.append(name.as_bytes(), b"");
    }
    for (name, value, _) in client.iter() {
        if !OTHERS.contains(&Name::from_lookalike(name)) && !own.contains_alike(name) {
            // They stand in a head already, so they can stand in another.
            let _ = fields.append(name, value);
        }
    }
}

fn values<'f>(fields: &'f Fields, name: &'f str) -> impl Iterator<Item = &'f [u8]> {
    fields.iter().filter(|(own, _, _)| own.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value, _)| value)
}

fn path_and_query(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let from = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let rest = rest[from..].split('#').next().unwrap_or_default();
    if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") }
}

fn check_name(name: &str) -> Result<(), Invalid> {
    let wrong =
        |_| Invalid::new("this is not a valid header name").expected("letters, digits and `-`").got(name);
    Fields::new().append(name.as_bytes(), b"").map_err(wrong)
}

fn max_answer(attr: Option<&Value>) -> usize {
    Section::attr("/plugin_attr/forward-auth", attr).bytes("/max_resp_body_size")
}

#[cfg(test)]
mod tests;
