//! forward-auth: asks another server whether to accept a request.
//!
//! Settings, headers and statuses as in APISIX 3.18. The server's answer is held in memory up to
//! `plugin_attr.forward-auth.max_resp_body_size` bytes (ours, 1 MiB); a longer one is an error.

use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use model::{Invalid, boot};
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::exchange::Body;
use sdk::template::Template;
use sdk::world::{Fetch, FetchTimeouts, Fetched, Keep, Target};
use sdk::{Build, Exchange, Fields, Framing, Method, Phase, Plugin, Reply, Step, target};
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
    upstream_headers: Vec<String>,
    client_headers: Vec<String>,
    timeout: u64,
    keepalive: bool,
    keepalive_timeout: u64,
    keepalive_pool: usize,
}

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
        let needs_body = extra_headers.iter().any(|(_, template)| template.needs_body());
        Ok(ForwardAuth { target, uri, config, extra_headers, needs_body, max_answer: max_answer(cx.attr)? })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let is_post = self.config.request_method == "POST";
        let limit = match (is_post, self.needs_body) {
            (true, _) => self.config.max_req_body_size,
            (false, true) => x.world().bounds().body,
            (false, false) => return Step::Wait,
        };
        if matches!(x.request().framing, Framing::Length(length) if length > limit as u64) {
            return Step::Reply(Reply::status(413).because(crate::TOO_LARGE));
        }
        if x.lacks_body(limit) {
            return Step::Body(limit);
        }
        let too_long = matches!(x.body_state(), Body::Streaming | Body::TooLarge) || x.body().len() > limit;
        if too_long { Step::Reply(Reply::status(413).because(crate::TOO_LARGE)) } else { Step::Wait }
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
        let answer = x.world().fetch(self.request(x, body)).await;
        drop(held);
        match answer {
            Ok(answer) if self.accepts(answer.status) => {
                pass_on(x, &self.config.upstream_headers, &answer);
                Step::Next
            }
            Ok(answer) => self.refuse(x, answer),
            Err(_) if self.config.allow_degradation => {
                // The request was not judged, so the client's own values for these headers are not trusted.
                pass_on(x, &self.config.upstream_headers, &Fetched::default());
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

    /// The request to the server.
    fn request(&self, x: &Exchange<'_>, body: Bytes) -> Fetch {
        let is_post = self.config.request_method == "POST";
        let head = x.request();
        let mut fields = Fields::new();
        let mut set = |name: &str, value: &[u8]| {
            if fields.set(name.as_bytes(), value).is_err() {
                x.complain(
                    Self::NAME,
                    "a header for the authorization server has an invalid value and was left out",
                );
            }
        };
        set("X-Forwarded-Proto", x.client().scheme().as_bytes());
        set("X-Forwarded-Method", head.method_bytes());
        set("X-Forwarded-Host", head.host());
        // The normal form, by which routes are found and which the upstream gets: another spelling of a path must
        // not pass a server that judges by paths.
        let mut uri = Vec::with_capacity(head.target().len());
        target::encode_path(x.path(), &mut uri);
        if head.has_query {
            uri.push(b'?');
            uri.extend_from_slice(x.query());
        }
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
        let mut value = Vec::new();
        for (name, template) in &self.extra_headers {
            value.clear();
            template.render(x, &mut value);
            set(name, &value);
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
        Fetch {
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
            keep,
        }
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
        Step::Reply(
            Reply::text(answer.status, answer.body).because("the authorization server refuses the request"),
        )
    }
}

/// Sets `upstream_headers` from the server's answer. The client's own headers of these names are removed,
/// even if the answer has no such header, and so are lookalikes.
fn pass_on(x: &mut Exchange<'_>, names: &[String], answer: &Fetched) {
    for name in names {
        x.remove_lookalikes(name);
    }
    for name in names {
        x.remove_header(name);
        for (at, value) in values(&answer.fields, name).enumerate() {
            // As in `refuse`.
            let _ = match at {
                0 => x.set_header(name, value),
                _ => x.add_header(name, value),
            };
        }
    }
    let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
    for name in names {
        vouched.add(name.as_bytes());
        values(&answer.fields, name).for_each(|value| vouched.add(value));
    }
    if !names.is_empty() {
        x.set_note(vouched);
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

fn max_answer(attr: Option<&Value>) -> Result<usize, Invalid> {
    match attr.and_then(|attr| attr.get("max_resp_body_size")).filter(|value| !value.is_null()) {
        None => Ok(1 << 20),
        Some(value) => match boot::size(value) {
            Ok(size) => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
            Err(invalid) => Err(invalid.said("plugin_attr.forward-auth.max_resp_body_size in config.yaml: ")),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use sdk::testing::{Probe, fields, with_body};
    use sdk::world::FetchError;

    use super::*;

    /// The future of a fake world never waits.
    fn ready<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn answer(status: u16, headers: &[(&str, &str)]) -> Result<Fetched, FetchError> {
        Ok(Fetched {
            status,
            fields: fields(headers),
            body: b"says the server".to_vec(),
            ..Fetched::default()
        })
    }

    fn config(rest: Value) -> Value {
        let mut config = json!({"uri": "http://127.0.0.1:8199/auth?a=1"});
        config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        config
    }

    /// Asks for a GET with these headers; `then` sees the outcome and what the server was sent.
    fn run(
        headers: &[(&str, &str)],
        rest: Value,
        answer: Result<Fetched, FetchError>,
        then: impl FnOnce(Step, &mut Exchange<'_>),
    ) -> Fetch {
        let mut probe = Probe::request("GET", "/hello?b=%20", headers);
        probe.world.answers.borrow_mut().push(answer);
        let stage: ForwardAuth = probe.stage(config(rest)).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Wait));
        let step = ready(stage.wait(Phase::Access, &mut x));
        then(step, &mut x);
        drop(x);
        probe.world.sent.borrow_mut().pop().unwrap()
    }

    #[test]
    fn the_server_may_get_the_request_itself() {
        let rest = json!({"original_request": true});
        let sent = run(&[], rest.clone(), answer(200, &[]), |step, _| assert!(matches!(step, Step::Next)));
        assert_eq!((sent.method, sent.uri), (Method::Get, b"/auth/hello?b=%20".to_vec()));
        run(&[], rest, answer(204, &[]), |step, _| {
            assert!(matches!(step, Step::Reply(reply) if reply.status == 204));
        });
        let mut probe = Probe::request("HEAD", "/a", &[]);
        probe.world.answers.borrow_mut().push(answer(200, &[]));
        let config = json!({"uri": "http://127.0.0.1:8199", "original_request": true});
        let stage: ForwardAuth = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(ready(stage.wait(Phase::Access, &mut x)), Step::Next));
        drop(x);
        let sent = probe.world.sent.borrow_mut().pop().unwrap();
        assert_eq!((sent.method, sent.uri), (Method::Get, b"/a".to_vec()));
    }

    #[test]
    fn the_server_gets_the_request_in_headers() {
        let headers = [
            ("Host", "Example.com:9080"),
            ("Authorization", "a"),
            ("X-Forwarded-Uri", "/forged"),
            ("X", "no"),
        ];
        let rest = json!({
            "request_headers": ["authorization", "X-Forwarded-Uri", "missing"],
            "extra_headers": {"X-Client": "$remote_addr of $http_missing!", "x-forwarded-proto": "own"},
            "timeout": 700, "keepalive_pool": 7, "keepalive_timeout": 9000,
        });
        let sent = run(&headers, rest, answer(200, &[]), |step, _| assert!(matches!(step, Step::Next)));
        assert_eq!(
            (sent.method, &sent.uri[..], sent.target.authority.as_str()),
            (Method::Get, &b"/auth?a=1"[..], "127.0.0.1:8199")
        );
        let mut got: Vec<_> =
            sent.fields.iter().map(|(name, value, _)| (name.to_ascii_lowercase(), value.to_vec())).collect();
        got.sort();
        let expected = [
            ("authorization", "a"),
            ("sluice-hops", "1"),
            ("x-client", "127.0.0.1 of !"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "example.com"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-proto", "own"),
            ("x-forwarded-uri", "/hello?b=%20"),
        ];
        assert_eq!(got, expected.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())));
        assert_eq!(sent.timeouts.read, Duration::from_millis(700));
        assert_eq!(sent.keep, Keep { connections: 7, idle: Duration::from_secs(9) });
        let sent = run(&[], json!({"keepalive": false}), answer(204, &[]), |_, _| {});
        assert_eq!(sent.keep.connections, 0);
    }

    #[test]
    fn headers_of_the_answer_take_the_place_of_the_client_s() {
        let headers = [("X-User", "root"), ("X-Group", "wheel"), ("X-Other", "1")];
        let rest = json!({"upstream_headers": ["X-User", "X-Group"]});
        run(
            &headers,
            rest,
            answer(200, &[("x-user", "jack"), ("X-User", "rose"), ("X-Other", "2")]),
            |step, x| {
                assert!(matches!(step, Step::Next));
                let users: Vec<_> = values(&x.request().fields, "x-user").collect();
                assert_eq!(users, [b"jack", b"rose"]);
                assert_eq!((x.header("X-Group"), x.header("X-Other")), (None, Some(&b"1"[..])));
            },
        );
    }

    #[test]
    fn a_client_cannot_say_the_same_in_another_spelling() {
        let headers = [("X_User_Id", "admin"), ("x-user_ID", "admin"), ("X_Other", "1")];
        for rest in [
            json!({"upstream_headers": ["X-User-Id"]}),
            json!({"upstream_headers": ["X-User-Id", "X_User_Id"]}),
        ] {
            for (said, kept) in [(&[("X-User-Id", "jack")][..], vec![b"jack".to_vec()]), (&[], vec![])] {
                run(&headers, rest.clone(), answer(200, said), |_, x| {
                    let users = x.request().fields.iter().filter(|(name, _, _)| name.len() == 9);
                    assert_eq!(users.map(|(_, value, _)| value.to_vec()).collect::<Vec<_>>(), kept);
                    assert_eq!(x.header("X_Other"), Some(&b"1"[..]));
                });
            }
        }
    }

    #[test]
    fn a_refusal_is_the_server_s_own() {
        for status in [300, 302, 403, 500] {
            let said =
                [("Location", "http://login"), ("Set-Cookie", "a"), ("Set-Cookie", "b"), ("X-Secret", "1")];
            let rest = json!({"client_headers": ["location", "Set-Cookie"]});
            run(&[("X-User", "root")], rest, answer(status, &said), |step, x| {
                let Step::Reply(reply) = step else { panic!("{step:?}") };
                assert_eq!((reply.status, &reply.body[..]), (status, &b"says the server"[..]));
                sdk::testing::respond(x, status, &[]);
                let got: Vec<_> = x.response().fields.iter().map(|(_, value, _)| value.to_vec()).collect();
                assert_eq!(got, [&b"http://login"[..], b"a", b"b"]);
            });
        }
    }

    #[test]
    fn without_an_answer_settings_decide() {
        for error in [FetchError::Refused, FetchError::Timeout, FetchError::Unresolved] {
            run(&[], json!({}), Err(error), |step, _| {
                assert!(matches!(step, Step::Reply(reply) if reply.status == 403))
            });
            run(&[], json!({"status_on_error": 503}), Err(error), |step, _| {
                assert!(matches!(step, Step::Reply(reply) if reply.status == 503));
            });
            let degraded = json!({"allow_degradation": true, "upstream_headers": ["X-User-ID"]});
            run(&[("X-User-ID", "forged"), ("X-Own", "stays")], degraded, Err(error), |step, x| {
                assert!(matches!(step, Step::Next));
                assert_eq!((x.header("X-User-ID"), x.header("X-Own")), (None, Some(&b"stays"[..])));
            });
        }
    }

    #[test]
    fn a_body_goes_along_within_its_bound() {
        let post = json!({"request_method": "POST", "max_req_body_size": 4});
        let mut probe =
            Probe::request("PUT", "/", &[("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked")]);
        probe.world.answers.borrow_mut().push(answer(200, &[]));
        let stage: ForwardAuth = probe.stage(config(post)).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().body_state = Body::Streaming;
        assert!(matches!(stage.access(&mut x), Step::Body(4)));
        (x.engine_mut().body_state, x.engine_mut().body_asked) = (Body::TooLarge, 4);
        assert!(matches!(stage.access(&mut x), Step::Reply(reply) if reply.status == 413));
        with_body(&mut x, b"body");
        assert!(matches!(stage.access(&mut x), Step::Wait));
        assert!(matches!(ready(stage.wait(Phase::Access, &mut x)), Step::Next));
        x.engine_mut().messages.request.framing = Framing::Length(5);
        assert!(matches!(stage.access(&mut x), Step::Reply(reply) if reply.status == 413));
        drop(x);
        let sent = probe.world.sent.borrow_mut().pop().unwrap();
        assert_eq!(
            (sent.method, &sent.body[..], sent.fields.get_named(b"content-encoding")),
            (Method::Post, &b"body"[..], Some(&b"gzip"[..]))
        );
        assert_eq!(sent.fields.get_named(b"transfer-encoding"), None);
        assert_eq!(probe.world.budget.taken(), 0);
    }

    #[test]
    fn a_body_that_others_had_read_keeps_to_the_bound_and_the_budget() {
        let post = json!({"request_method": "POST", "max_req_body_size": 4});
        for (body, held, status) in [("bod", 3, None), ("bod", 2, Some(503)), ("body5", 9, Some(413))] {
            let mut probe = Probe::request("POST", "/", &[]);
            probe.world.answers.borrow_mut().push(answer(200, &[]));
            probe.world.budget = sdk::budget::Budget::new(held);
            let stage: ForwardAuth = probe.stage(config(post.clone())).unwrap();
            let mut x = probe.exchange();
            with_body(&mut x, body.as_bytes());
            let step = match stage.access(&mut x) {
                Step::Wait => ready(stage.wait(Phase::Access, &mut x)),
                step => step,
            };
            let refused = if let Step::Reply(reply) = step { Some(reply.status) } else { None };
            assert_eq!(refused, status, "{body} {held}");
        }
    }

    #[test]
    fn a_refusal_replaces_what_was_to_be_answered() {
        let rest = json!({"client_headers": ["Location"]});
        let mut probe = Probe::get("/");
        probe.world.answers.borrow_mut().push(answer(403, &[("Location", "http://login")]));
        let stage: ForwardAuth = probe.stage(config(rest)).unwrap();
        let mut x = probe.exchange();
        x.set_response_header("Location", b"http://early").unwrap();
        assert!(matches!(ready(stage.wait(Phase::Access, &mut x)), Step::Reply(_)));
        sdk::testing::respond(&mut x, 403, &[]);
        assert_eq!(values(&x.response().fields, "location").collect::<Vec<_>>(), [b"http://login"]);
    }

    #[test]
    fn an_answer_is_held_as_far_as_was_said() {
        for (attr, size) in [
            (None, Ok(1 << 20)),
            (Some(json!({})), Ok(1 << 20)),
            (Some(json!({"max_resp_body_size": null})), Ok(1 << 20)),
            (Some(json!({"max_resp_body_size": 5})), Ok(5)),
            (Some(json!({"max_resp_body_size": "2k"})), Ok(2048)),
        ] {
            assert_eq!(max_answer(attr.as_ref()), size, "{attr:?}");
        }
        let wrong = max_answer(Some(&json!({"max_resp_body_size": "much"}))).unwrap_err().reason;
        assert!(wrong.starts_with("plugin_attr.forward-auth.max_resp_body_size in config.yaml: "), "{wrong}");
    }

    #[test]
    fn a_header_made_of_the_body_reads_the_body_first() {
        let rest = json!({"extra_headers": {"X-Tenant": "$post_arg.tenant"}});
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
        probe.world.answers.borrow_mut().push(answer(200, &[]));
        let stage: ForwardAuth = probe.stage(config(rest)).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().body_state = Body::Streaming;
        assert!(matches!(stage.access(&mut x), Step::Body(_)));
        with_body(&mut x, br#"{"tenant": "t\r\n1"}"#);
        assert!(matches!(ready(stage.wait(Phase::Access, &mut x)), Step::Next));
        drop(x);
        let sent = probe.world.sent.borrow_mut().pop().unwrap();
        assert_eq!(sent.fields.get_named(b"x-tenant"), None, "no line end gets out");
        assert!(sent.body.is_empty());
    }

    #[test]
    fn targets_are_taken_apart() {
        for (uri, expected) in [
            ("http://a", "/"),
            ("http://a/", "/"),
            ("http://a/b?c=/#d", "/b?c=/"),
            ("http://a?c=1", "/?c=1"),
            ("http://a#d", "/"),
        ] {
            assert_eq!(path_and_query(uri), expected, "{uri}");
        }
        let probe = Probe::default();
        for (wrong, pointer) in [
            (json!({"uri": "ftp://a"}), "/uri"),
            (json!({"uri": "http://a/ b"}), "/uri"),
            (json!({"uri": "http://a/\u{e9}"}), "/uri"),
            (json!({"uri": "http://a", "upstream_headers": ["a", "b c"]}), "/upstream_headers/1"),
            (json!({"uri": "http://a", "extra_headers": {"a b": "c"}}), "/extra_headers/a b"),
            (json!({"uri": "http://a", "extra_headers": {"a:b": 1}}), "/extra_headers/a:b"),
            (json!({"uri": "http://a", "timeout": 0}), "/timeout"),
            (json!({"uri": "http://a", "request_method": "PUT"}), "/request_method"),
        ] {
            assert_eq!(probe.stage::<ForwardAuth>(wrong.clone()).err().unwrap().pointer, pointer, "{wrong}");
        }
    }
}
