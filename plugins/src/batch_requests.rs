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

const DEFAULT_PATH: &str = "/apisix/batch-requests";
const MAX_BODY: u64 = 1 << 20;
const MAX_ITEMS: u64 = 1000;
/// Bytes read beyond the limit of a body without Content-Length, so that the answer can name its size.
const BEYOND: usize = 64 << 10;
/// Bounds for the parts a batch adds to the head of one request: fields, arguments, and bytes of either. Headers and the
/// query of a batch are copied into each of its requests, so a short body could ask for gigabytes.
const MAX_FIELDS: usize = 256;
const MAX_HEAD: usize = 64 << 10;
/// Bytes of all answers together.
const MAX_RESPONSE: u64 = 64 << 20;

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

    fn endpoint(attr: Option<&Value>) -> Option<Endpoint> {
        let path = attr.and_then(|attr| attr["uri"].as_str()).unwrap_or(DEFAULT_PATH);
        Some(Endpoint { method: Method::Post, path: path.to_owned() })
    }

    fn build(_config: Config, cx: &mut Build<'_>) -> Result<BatchRequests, Invalid> {
        let read = |from: Option<&Value>, key: &str, default| {
            let bound = from.and_then(|from| from[key].as_u64()).filter(|bound| *bound > 0);
            usize::try_from(bound.unwrap_or(default)).unwrap_or(usize::MAX)
        };
        let metadata = cx.metadata();
        Ok(BatchRequests {
            requests: Schema::new(&requests())?,
            max_body: read(metadata, "max_body_size", MAX_BODY),
            max_items: read(metadata, "max_pipeline_items", MAX_ITEMS),
            max_response: read(cx.attr, "max_response_size", MAX_RESPONSE),
        })
    }

    fn serve(&self, x: &mut Exchange<'_>) -> Step {
        if x.client().is_subrequest() {
            return refuse(400, "a batch cannot stand in a batch".to_owned());
        }
        // A body with a Content-Length is refused before it is sent.
        let told = x.request().fields.get(Name::ContentLength);
        let told = told.and_then(|length| std::str::from_utf8(length).ok()?.parse::<u64>().ok());
        if told.is_some_and(|length| length > self.max_body as u64) {
            return self.too_large(told);
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
        Step::Reply(Reply { status: 200, headers, body: Bytes::from(out), reason: "" })
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
            if before.get_named(name.as_bytes()).is_some() || tells_of_proxies(name) {
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
        keep: Keep { connections: 0, idle: Duration::ZERO },
    })
}

/// Headers in which proxies tell of who came before them. The peer that brought the batch may be trusted to
/// write these, but it has not looked into the body.
fn tells_of_proxies(name: &str) -> bool {
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
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use sdk::testing::{Probe, fields, with_body};

    use super::*;

    fn ask(body: &[u8], answers: Vec<Result<Fetched, FetchError>>) -> (u16, Value, Vec<Fetch>) {
        let headers = [
            ("Host", "a.example"),
            ("X-Outer", "o"),
            ("X-Both", "outer"),
            ("Content-Type", "application/json"),
        ];
        let mut probe = Probe::request("POST", DEFAULT_PATH, &headers);
        let stage: BatchRequests = probe.stage(json!({})).unwrap();
        *probe.world.answers.borrow_mut() = answers.into_iter().rev().collect();
        let mut x = probe.exchange();
        with_body(&mut x, body);
        let step = match stage.serve(&mut x) {
            Step::Wait => {
                let waiting = pin!(stage.wait(Phase::Access, &mut x));
                match waiting.poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(step) => step,
                    Poll::Pending => panic!("it waits"),
                }
            }
            step => step,
        };
        drop(x);
        let Step::Reply(reply) = step else { panic!("no reply") };
        (reply.status, serde_json::from_slice(&reply.body).unwrap(), probe.world.sent.take())
    }

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Result<Fetched, FetchError> {
        Ok(Fetched { status, fields: fields(headers), body: body.into(), ..Fetched::default() })
    }

    #[test]
    fn headers_and_query_come_from_three_places() {
        let body = br#"{
            "query": {"base": "b", "both": "batch"}, "headers": {"X-Batch": "1", "X-Both": "batch", "X-Real-IP": "9.9.9.9"},
            "pipeline": [
                {"path": "/b", "headers": {"X-Own": ["1", 2], "x-both": "own"}, "query": {"both": "o n", "flag": true, "no": false}},
                {"path": "/c?x=1", "method": "PUT", "body": "text"}
            ]
        }"#;
        let both = vec![answer(200, &[("A", "1"), ("B", "3"), ("a", "2")], "B\"\n"), answer(204, &[], "")];
        let (status, out, sent) = ask(body, both);
        assert_eq!(status, 200);
        let expected = json!([
            {"status": 200, "reason": "OK", "headers": {"A": ["1", "2"], "B": "3"}, "body": "B\"\n"},
            {"status": 204, "reason": "No Content", "headers": {}},
        ]);
        assert_eq!(out, expected);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(text(&sent[0].uri), "/b?both=o%20n&flag&base=b");
        assert_eq!(text(&sent[1].uri), "/c?x=1&base=b&both=batch");
        let values = |at: usize, name: &str| -> Vec<String> {
            sent[at].fields.all(name.as_bytes()).map(text).collect()
        };
        assert_eq!(values(0, "X-Own"), ["1", "2"]);
        assert_eq!(values(0, "X-Both"), ["own"]);
        assert_eq!(values(1, "X-Both"), ["batch"]);
        assert_eq!(values(1, "X-Outer"), ["o"]);
        assert_eq!(values(1, "X-Batch"), ["1"]);
        assert_eq!(values(0, "X-Real-IP"), ["127.0.0.1"]);
        assert!(values(0, "Content-Type").is_empty());
        assert_eq!((sent[1].method, &sent[1].body[..]), (Method::Put, &b"text"[..]));
    }

    #[test]
    fn no_batch_tells_of_proxies() {
        let body = br#"{
            "headers": {"x-forwarded-for": "9.9.9.9", "Forwarded": "for=9.9.9.9", "Sluice-Hops": "0", "X-Forwarded": "stays"},
            "pipeline": [{"path": "/", "headers": {"X-Forwarded-Proto": "https", "X-FORWARDED-HOST": "evil", "x-real-ip": "9.9.9.9"}}]
        }"#;
        let (_, _, sent) = ask(body, vec![answer(200, &[], "")]);
        let mut got: Vec<_> =
            sent[0].fields.iter().map(|(name, _, _)| String::from_utf8_lossy(name).to_lowercase()).collect();
        got.sort();
        assert_eq!(got, ["host", "x-both", "x-forwarded", "x-outer", "x-real-ip"]);
        assert_eq!(sent[0].fields.get_named(b"x-real-ip"), Some(&b"127.0.0.1"[..]));
    }

    #[test]
    fn what_cannot_be_asked_is_told() {
        let answer = |body: &str| {
            let (status, out, sent) = ask(body.as_bytes(), Vec::new());
            assert!(sent.is_empty());
            (status, out["error_msg"].as_str().unwrap().to_owned())
        };
        assert_eq!(
            answer(""),
            (400, "no request body, you should give at least one pipeline setting".into())
        );
        let shared =
            |what: &str, of: &str| format!(r#"{{"{what}": {{{of}}}, "pipeline": [{{"path": "/"}}]}}"#);
        let fields =
            |count: usize| (0..count).map(|n| format!(r#""a{n}": "1""#)).collect::<Vec<_>>().join(",");
        let words = "invalid request body: no, err: Expected value but found invalid token at character 1";
        assert_eq!(answer("no"), (400, words.into()));
        for (body, words) in [
            ("{}", "bad request body: object matches none of the required"),
            (
                r#"{"pipeline": []}"#,
                "bad request body: property \"pipeline\" validation failed: expect array to have at least 1 items",
            ),
            (r#"{"pipeline": [{}]}"#, "property \"path\" is required"),
            (r#"{"timeout": 0, "pipeline": [{"path": "/"}]}"#, "expected 0 to be at least 1"),
            (r#"{"pipeline": [{"path": "/", "headers": {"a b": "1"}}]}"#, "request failed: invalid header"),
            (
                r#"{"pipeline": [{"path": "/", "headers": {"a": "1\r\nb: 2"}}]}"#,
                "request failed: invalid header",
            ),
            (&shared("headers", &fields(257)), "request failed: too many headers"),
            (&shared("query", &fields(257)), "request failed: too many headers"),
            (
                &shared("headers", &format!(r#""a": "{}""#, "x".repeat(65_536))),
                "request failed: too many headers",
            ),
            (
                &shared("query", &format!(r#""a": "{}""#, "/".repeat(22_000))),
                "request failed: too many headers",
            ),
            (
                &shared("headers", &format!(r#""a": [{}]"#, vec!["1"; 257].join(","))),
                "request failed: too many headers",
            ),
        ] {
            let (status, answer) = answer(body);
            assert!(status == 400 && answer.contains(words), "{body}: {answer}");
        }
        // Those that are passed over count, too.
        let over: Vec<_> = (0..257).map(|n| format!(r#""X-Forwarded-{n}": "1""#)).collect();
        let (status, words) = answer(&shared("headers", &over.join(",")));
        assert_eq!(
            (status, &*words),
            (400, "request failed: too many headers or arguments, or too long ones")
        );
        // The bounds themselves still pass.
        let goes = |body: &str| ask(body.as_bytes(), Vec::new()).0;
        for body in [
            shared("headers", &fields(256)),
            shared("query", &fields(256)),
            shared("headers", &format!(r#""a": "{}""#, "x".repeat(65_535))),
            shared("query", &format!(r#""a": "{}""#, "x".repeat(65_533))),
            format!(r#"{{"pipeline": [{}]}}"#, vec![r#"{"path": "/"}"#; 1000].join(",")),
        ] {
            assert_eq!(goes(&body), 200, "{}", &body[..40]);
        }
        assert_eq!(goes(&shared("query", &format!(r#""a": "{}""#, "x".repeat(65_534)))), 400);
        let many = format!(r#"{{"pipeline": [{}]}}"#, vec![r#"{"path": "/"}"#; 1001].join(","));
        assert_eq!(answer(&many).1, "too many pipeline requests, 1001 exceeds the maximum of 1000");
        let long = answer(&" ".repeat((1 << 20) + 1));
        assert_eq!(
            long,
            (413, "request size 1048577 is greater than the maximum size 1048576 allowed".into())
        );
    }

    fn built(probe: &Probe, metadata: Value, attr: Value) -> BatchRequests {
        let owner = sdk::build::Owner { collection: "routes", id: "1".into() };
        let names = sdk::testing::FixedNames::default();
        let metadata = || Some(&metadata);
        let mut cx = Build::new(&owner, &probe.services, &names).with_metadata(&metadata);
        cx.attr = Some(&attr);
        BatchRequests::build(Config {}, &mut cx).unwrap()
    }

    #[test]
    fn bounds_are_those_that_were_set() {
        let bounds = |metadata, attr| {
            let stage = built(&Probe::get("/"), metadata, attr);
            [stage.max_body, stage.max_items, stage.max_response]
        };
        assert_eq!(bounds(json!({}), json!({})), [1 << 20, 1000, 64 << 20]);
        let all =
            bounds(json!({"max_body_size": 1, "max_pipeline_items": 2}), json!({"max_response_size": 3}));
        assert_eq!(all, [1, 2, 3]);
        assert_eq!(
            bounds(json!({"max_body_size": 0, "max_pipeline_items": -1}), json!({"max_response_size": "3"})),
            [1 << 20, 1000, 64 << 20]
        );
    }

    #[test]
    fn a_body_is_refused_by_its_length() {
        let asked = |told: &str, body: &[u8], state: Option<Body>| {
            let mut probe = Probe::request("POST", DEFAULT_PATH, &[("Content-Length", told)]);
            let stage = built(&probe, json!({"max_body_size": 10}), json!({}));
            let mut x = probe.exchange();
            with_body(&mut x, body);
            if let Some(state) = state {
                (x.engine_mut().body_state, x.engine_mut().body_asked) = (state, usize::MAX);
            }
            match stage.serve(&mut x) {
                Step::Reply(reply) => String::from_utf8(reply.body.to_vec()).unwrap(),
                Step::Body(limit) => limit.to_string(),
                Step::Wait => "taken".to_owned(),
                step => panic!("{step:?}"),
            }
        };
        let words = |length: &str| {
            format!("{{\"error_msg\":\"request size{length} is greater than the maximum size 10 allowed\"}}")
        };
        assert_eq!(asked("10", b"0123456789", None), "taken");
        assert_eq!(asked("11", b"", Some(Body::Streaming)).trim(), words(" 11"));
        assert_eq!(asked("10", b"", Some(Body::Streaming)), (10 + BEYOND).to_string());
        // Without a length, or with a wrong one.
        assert_eq!(asked("", b"0123456789a", None).trim(), words(" 11"));
        assert_eq!(asked("", b"0123", Some(Body::TooLarge)).trim(), words(""));
    }

    /// The answers together have a bound, and memory is taken for each before it is written.
    #[test]
    fn answers_have_a_bound_together() {
        let asked = |most: usize, budget: usize, bodies: &[usize]| {
            let mut probe = Probe::request("POST", DEFAULT_PATH, &[("Host", "a")]);
            let stage = built(&probe, json!({}), json!({ "max_response_size": most }));
            probe.world.budget = sdk::budget::Budget::new(budget);
            let answers = bodies
                .iter()
                .rev()
                .map(|length| answer(200, &[("X", &"v".repeat(*length))], &"\u{1}".repeat(*length)));
            *probe.world.answers.borrow_mut() = answers.collect();
            let mut x = probe.exchange();
            let item = r#"{"path": "/"}"#;
            with_body(
                &mut x,
                format!("{{\"pipeline\": [{}]}}", vec![item; bodies.len()].join(",")).as_bytes(),
            );
            let step = sdk::testing::now(stage.wait(Phase::Access, &mut x));
            drop(x);
            let Step::Reply(reply) = step else { panic!("no reply") };
            let asked: Vec<_> = probe.world.sent.take().iter().map(|fetch| fetch.max_body).collect();
            (reply.status, asked)
        };
        let (status, bounds) = asked(100_000, 1 << 20, &[1000, 1000]);
        assert_eq!((status, bounds[0]), (200, 99_999));
        // Behind an answer of 1,000 bytes, each of which was escaped as six, and of a header of as many.
        assert!((92_000..93_000).contains(&bounds[1]), "{bounds:?}");
        // 6 times 2,001 bytes and 4 KiB beside them.
        assert_eq!(asked(100_000, 22_000, &[1000]).0, 200);
        assert_eq!(asked(100_000, 15_000, &[1000]).0, 503);
    }

    #[test]
    fn memory_is_taken_for_names_of_fields_as_well() {
        for (budget, status) in [(40_000, 503), (80_000, 200)] {
            let mut probe = Probe::request("POST", DEFAULT_PATH, &[("Host", "a")]);
            let stage = built(&probe, json!({}), json!({}));
            probe.world.budget = sdk::budget::Budget::new(budget);
            // 6 times as many bytes.
            *probe.world.answers.borrow_mut() = vec![answer(200, &[(&"n".repeat(10_000), "")], "")];
            let mut x = probe.exchange();
            with_body(&mut x, br#"{"pipeline": [{"path": "/"}]}"#);
            let step = sdk::testing::now(stage.wait(Phase::Access, &mut x));
            assert!(matches!(step, Step::Reply(reply) if reply.status == status), "{budget}");
        }
    }

    #[test]
    fn behind_a_late_answer_nothing_is_sent() {
        let body = br#"{"pipeline": [{"path": "/a"}, {"path": "/b"}, {"path": "/c"}]}"#;
        let (_, out, sent) =
            ask(body, vec![answer(200, &[], ""), Err(FetchError::Timeout), answer(200, &[], "")]);
        assert_eq!(sent.len(), 2);
        assert_eq!(out[0]["body"], "");
        for at in [1, 2] {
            assert_eq!(out[at], json!({"status": 504, "reason": "upstream timeout"}));
        }
    }

    #[test]
    fn a_batch_within_a_batch_is_refused() {
        let mut probe = Probe::request("POST", DEFAULT_PATH, &[]);
        probe.client = probe.client.for_subrequest();
        let stage: BatchRequests = probe.stage(json!({})).unwrap();
        assert!(matches!(stage.serve(&mut probe.exchange()), Step::Reply(reply) if reply.status == 400));
    }
}
