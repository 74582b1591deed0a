//! batch-requests: many requests in one. Each is an exchange of its own, through the gateway's router,
//! with its route, plugins and upstream, in the client's name.
//!
//! Settings, words and answers as in APISIX 3.18; a route with public-api exposes it. The requests go
//! out one after the other; when one takes longer than `timeout`, those behind it are not sent, and get
//! 504 as well. Stricter in three points: a batch within a batch is refused; headers that tell of proxies
//! on the way are the outer request's alone, as a trusted peer vouches for no more than that; and what a
//! batch adds to the head of each request has bounds.

use std::time::Duration;

use bytes::Bytes;
use model::boot::Section;
use model::{Invalid, Schema};
use sdk::chain::{Phase, Phases};
use sdk::exchange::Body;
use sdk::world::{Fetch, FetchError, FetchTimeouts, Fetched, Keep, Target};
use sdk::{Build, Endpoint, Exchange, Fields, Method, Name, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::tree::{self, quote};

/// The stage.
pub struct BatchRequests {
    requests: Schema,
    max_body: usize,
    max_items: usize,
    max_response: usize,
}

#[derive(Debug, Deserialize)]
pub struct Config {}

/// The batch that a client sends.
#[derive(Debug, Deserialize)]
struct Batch {
    #[serde(default)]
    query: Map<String, Value>,
    #[serde(default)]
    headers: Map<String, Value>,
    timeout: u64,
    pipeline: Vec<Item>,
}

#[derive(Debug, Deserialize)]
struct Item {
    method: String,
    path: String,
    #[serde(default)]
    query: Map<String, Value>,
    #[serde(default)]
    headers: Map<String, Value>,
    body: Option<String>,
}

const ATTR: &str = "/plugin_attr/batch-requests";
const MAX_BODY: u64 = 1 << 20;
const MAX_ITEMS: u64 = 1000;
/// Bytes read beyond the limit of a body without Content-Length, so that the answer can name its size.
const BEYOND: usize = 64 << 10;
/// Bounds for the parts a batch adds to the head of one request: fields, arguments, and bytes of either. Headers and the
/// query of a batch are copied into each of its requests, so a short body could ask for gigabytes.
const MAX_FIELDS: usize = 256;
const MAX_HEAD: usize = 64 << 10;

impl Plugin for BatchRequests {
    const NAME: &'static str = "batch-requests";
    const PRIORITY: i32 = 4010;
    const PHASES: Phases = Phases::NONE;

    type Config = Config;

    fn schema() -> Value {
        json!({"type": "object"})
    }

    fn metadata_schema() -> Option<Value> {
        Some(json!({
            "type": "object",
            "properties": {
                "max_body_size": {
                    "description": "max pipeline body size in bytes",
                    "type": "integer", "exclusiveMinimum": 0, "default": MAX_BODY,
                },
                "max_pipeline_items": {
                    "description": "max number of requests allowed in the pipeline",
                    "type": "integer", "exclusiveMinimum": 0, "default": MAX_ITEMS,
                },
            },
        }))
    }

    fn endpoints(attr: Option<&Value>) -> Vec<Endpoint> {
        let path = Section::attr(ATTR, attr).text("/uri").unwrap_or_default();
        vec![Endpoint { method: Method::Post, path: path.to_owned() }]
    }

    fn build(_config: Config, cx: &mut Build<'_>) -> Result<BatchRequests, Invalid> {
        let metadata = cx.metadata();
        let read = |key: &str, default| {
            let bound = metadata.and_then(|metadata| metadata[key].as_u64()).filter(|bound| *bound > 0);
            usize::try_from(bound.unwrap_or(default)).unwrap_or(usize::MAX)
        };
        Ok(BatchRequests {
            requests: Schema::new(&requests())?,
            max_body: read("max_body_size", MAX_BODY),
            max_items: read("max_pipeline_items", MAX_ITEMS),
            max_response: Section::attr(ATTR, cx.attr).number("/max_response_size"),
        })
    }

    fn serve(&self, x: &mut Exchange<'_>) -> Step {
        if x.client().is_subrequest() {
            return refuse(400, "a batch cannot stand in a batch".to_owned());
        }
        // A body with a Content-Length is refused before it is sent.
        let announced = x.request().fields.get(Name::ContentLength);
        let announced = announced.and_then(|length| std::str::from_utf8(length).ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > self.max_body as u64) {
            return self.too_large(announced);
        }
        let limit = self.max_body.saturating_add(BEYOND);
        if x.lacks_body(limit) {
            return Step::Body(limit);
        }
        match x.body_state() {
            Body::TooLarge => self.too_large(None),
            Body::Whole if x.body().len() > self.max_body => self.too_large(Some(x.body().len() as u64)),
            _ if x.body().is_empty() => {
                refuse(400, "no request body, you should give at least one pipeline setting".to_owned())
            }
            _ => Step::Wait,
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let mut memory = sdk::budget::Reservation::default();
        if memory.resize(x.world().budget(), tree::weight(x.body())).is_err() {
            return crate::no_memory();
        }
        let batch = match self.read(x.body()) {
            Ok(batch) => batch,
            Err(words) => return refuse(400, words),
        };
        // All must be right before one goes out. They are made again then, so that only one takes memory.
        if let Some(words) = batch.pipeline.iter().find_map(|item| request(x, &batch, item).err()) {
            return refuse(400, format!("request failed: {words}"));
        }
        let (mut out, mut held) = (vec![b'['], sdk::budget::Reservation::default());
        let mut late = false;
        for item in &batch.pipeline {
            if out.len() > 1 {
                out.push(b',');
            }
            let max_body = self.max_response.saturating_sub(out.len());
            let answer = match request(x, &batch, item) {
                _ if late => Err(FetchError::Timeout),
                Ok(fetch) => x.world().dispatch(x.client(), Fetch { max_body, ..fetch }).await,
                Err(_) => Err(FetchError::Broken),
            };
            late |= matches!(answer, Err(FetchError::Timeout));
            match answer {
                Ok(answer) => {
                    let length = answer.body.len();
                    let has_body = item.method != "HEAD" && !matches!(answer.status, 204 | 304);
                    // Escaped, a byte becomes six at most.
                    let most = answer
                        .fields
                        .iter()
                        .fold(length, |all, (name, value, _)| all + name.len() + value.len());
                    let budget = x.world().budget();
                    if held.reserve(budget, &mut out, 6 * most + 4096, self.max_response).is_err() {
                        return crate::no_memory();
                    }
                    write_answer(&answer, has_body, &mut out);
                }
                Err(FetchError::Timeout) => {
                    out.extend_from_slice(br#"{"status":504,"reason":"upstream timeout"}"#)
                }
                Err(FetchError::TooLarge) => {
                    out.extend_from_slice(br#"{"status":502,"reason":"the answers are too large"}"#);
                }
                Err(_) => out.extend_from_slice(br#"{"status":400,"reason":"Bad Request"}"#),
            }
        }
        out.extend_from_slice(b"]\n");
        let headers = vec![("Content-Type", b"application/json".to_vec())];
        Step::Reply(Reply { status: 200, headers, body: Bytes::from(out), ..Reply::default() })
    }
}

impl BatchRequests {
    fn too_large(&self, length: Option<u64>) -> Step {
        let length = length.map(|length| format!(" {length}")).unwrap_or_default();
        refuse(
            413,
            format!("request size{length} is greater than the maximum size {} allowed", self.max_body),
        )
    }

    fn read(&self, body: &[u8]) -> Result<Batch, String> {
        let value = tree::read(body).map_err(|error| {
            format!("invalid request body: {}, err: {error}", String::from_utf8_lossy(body))
        })?;
        let invalid = |error: String| format!("bad request body: {error}");
        let value = self.requests.parse(value).map_err(|error| invalid(error.reason))?;
        let batch: Batch = serde_json::from_value(value).map_err(|error| invalid(error.to_string()))?;
        let (count, most) = (batch.pipeline.len(), self.max_items);
        if count > most {
            return Err(format!("too many pipeline requests, {count} exceeds the maximum of {most}"));
        }
        Ok(batch)
    }
}

/// The schema of a batch.
fn requests() -> Value {
    json!({
        "type": "object",
        "properties": {
            "query": {"description": "pipeline query string", "type": "object"},
            "headers": {"description": "pipeline header", "type": "object"},
            "timeout": {"description": "pipeline timeout(ms)", "type": "integer", "minimum": 1, "default": 30000},
            "pipeline": {
                "type": "array", "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "properties": {
                        "version": {"description": "HTTP version", "type": "number", "enum": [1.0, 1.1], "default": 1.1},
                        "method": {
                            "description": "HTTP method", "type": "string", "default": "GET",
                            "enum": ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"],
                        },
                        "path": {"type": "string", "minLength": 1},
                        "query": {"description": "request query string", "type": "object"},
                        "headers": {"description": "request headers", "type": "object"},
                        "body": {"description": "request body", "type": "string"},
                        "ssl_verify": {"type": "boolean", "default": false},
                    },
                    "required": ["path"],
                },
            },
        },
        "anyOf": [{"required": ["pipeline"]}],
    })
}

fn refuse(status: u16, words: String) -> Step {
    Step::Reply(Reply::json(status, &json!({"error_msg": words})))
}

/// One request of the batch: its own headers and query go before those of the batch, and these before
/// the headers of the request that brought it. The error is the text for the client.
fn request(x: &Exchange<'_>, batch: &Batch, item: &Item) -> Result<Fetch, &'static str> {
    const INVALID: &str = "invalid header";
    const TOO_LONG: &str = "too many headers or arguments, or too long ones";
    // Also those that are passed over below: each request goes through those of the batch again.
    if item.headers.len() + batch.headers.len() > MAX_FIELDS
        || item.query.len() + batch.query.len() > MAX_FIELDS
    {
        return Err(TOO_LONG);
    }
    let mut fields = Fields::new();
    let mut bytes = 0;
    for headers in [&item.headers, &batch.headers] {
        let before = fields.clone();
        for (name, value) in headers {
            if before.get_named(name.as_bytes()).is_some() || is_of_proxies(name) {
                continue;
            }
            each_text(value, &mut |text| {
                bytes += name.len() + text.len();
                if fields.len() == MAX_FIELDS || bytes > MAX_HEAD {
                    return Err(TOO_LONG);
                }
                fields.append(name.as_bytes(), text.as_bytes()).map_err(|_| INVALID)
            })?;
        }
    }
    let before = fields.clone();
    for (name, value, _) in x.request().fields.iter() {
        let own = name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"));
        let client = name.eq_ignore_ascii_case(b"x-real-ip");
        if !own && !client && before.get_named(name).is_none() {
            fields.append(name, value).map_err(|_| INVALID)?;
        }
    }
    fields.append(b"X-Real-IP", x.client().ip_text()).map_err(|_| INVALID)?;
    if x.hops() > 0 {
        // The forwarded headers by which a loop is found may be gone: they are not those of a trusted peer.
        x.count_hop(&mut fields);
    }
    let mut uri = item.path.clone().into_bytes();
    let (path, mut mark) = (uri.len(), if uri.contains(&b'?') { b'&' } else { b'?' });
    let own = item.query.iter();
    let shared = batch.query.iter().filter(|(name, _)| !item.query.contains_key(*name));
    for (name, value) in own.chain(shared) {
        // `false` leaves the argument out, and `true` writes it without a value, as NGINX writes arguments.
        let mut add = |value: Option<&str>| {
            uri.push(std::mem::replace(&mut mark, b'&'));
            encode(name, &mut uri);
            if let Some(value) = value {
                uri.push(b'=');
                encode(value, &mut uri);
            }
            if uri.len() - path > MAX_HEAD { Err(TOO_LONG) } else { Ok(()) }
        };
        match value {
            Value::Bool(true) => add(None)?,
            Value::Bool(false) | Value::Null => {}
            value => each_text(value, &mut |text| add(Some(text)))?,
        }
    }
    let timeout = Duration::from_millis(batch.timeout);
    let method = Method::from_bytes(item.method.as_bytes());
    Ok(Fetch {
        verify: false,
        target: Target {
            authority: String::from_utf8_lossy(x.request().authority()).into_owned(),
            addresses: [].into(),
            tls: false,
        },
        method,
        method_name: item.method.clone().into_bytes(),
        uri,
        fields,
        body: Bytes::from(item.body.clone().unwrap_or_default()),
        timeouts: FetchTimeouts { connect: timeout, send: timeout, read: timeout },
        max_body: 0,
        repeatable: false,
        http2: false,
        keep: Keep { connections: 0, idle: Duration::ZERO },
        tunnel: None,
    })
}

/// Whether a header is one in which proxies report who came before them. The peer that brought the batch may be trusted to
/// write these, but it has not looked into the body.
fn is_of_proxies(name: &str) -> bool {
    let forwarded = name.get(..12).is_some_and(|start| start.eq_ignore_ascii_case("x-forwarded-"));
    let others = ["forwarded", "sluice-hops", "x-real-ip"];
    forwarded || others.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// A value as Lua writes it, or each of a list.
fn each_text<E>(value: &Value, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    match value {
        Value::String(text) => each(text),
        Value::Array(list) => list.iter().try_for_each(|value| each_text(value, each)),
        value => each(&value.to_string()),
    }
}

/// As `ngx.escape_uri` writes an argument.
fn encode(text: &str, out: &mut Vec<u8>) {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    out.extend(percent_encoding::utf8_percent_encode(text, KEPT).flat_map(str::bytes));
}

fn write_answer(answer: &Fetched, has_body: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{{\"status\":{},\"reason\":", answer.status).as_bytes());
    quote(sdk::reason(answer.status).as_bytes(), out);
    out.extend_from_slice(b",\"headers\":{");
    let mut first = true;
    for (index, (name, _, _)) in answer.fields.iter().enumerate() {
        // Several of a name are a list, where the first of them stands.
        if answer.fields.iter().take(index).any(|(before, _, _)| before.eq_ignore_ascii_case(name)) {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        quote(name, out);
        out.push(b':');
        let mut values = answer.fields.all(name);
        match (values.next(), values.next()) {
            (Some(only), None) => quote(only, out),
            _ => {
                for (at, value) in answer.fields.all(name).enumerate() {
                    out.push(if at == 0 { b'[' } else { b',' });
                    quote(value, out);
                }
                out.push(b']');
            }
        }
    }
    out.push(b'}');
    if has_body {
        out.extend_from_slice(b",\"body\":");
        quote(&answer.body, out);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests;
