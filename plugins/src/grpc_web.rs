//! hot path
//!
//! grpc-web: lets browsers call gRPC servers.
//!
//! Settings, headers and answers as in APISIX 3.18. The trailers that end a call stand behind its last
//! message, all of them; APISIX gives on `grpc-status` and `grpc-message` alone.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Invalid;
use sdk::chain::Phases;
use sdk::exchange::{Body, Chunk, NotSet};
use sdk::{Build, Exchange, Method, Name, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct GrpcWeb {
    allow_headers: String,
    max_body: usize,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    max_req_body_size: usize,
    cors_allow_headers: String,
}

/// A call on its way.
struct Call {
    /// The content type the client sent, which is that of the answer.
    mime: &'static [u8],
    /// Bodies are in base64.
    text: bool,
    /// The outcome stands in the head already.
    has_status: bool,
}

/// The gRPC server is given this.
const GRPC: &[u8] = b"application/grpc";

const EXPOSED: &[u8] = b"grpc-message,grpc-status";

impl Plugin for GrpcWeb {
    const NAME: &'static str = "grpc-web";
    const PRIORITY: i32 = 505;
    const PHASES: Phases = Phases::ACCESS.with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "max_req_body_size": {
                    "type": "integer", "minimum": 1, "default": 67_108_864,
                    "description": "maximum request body size in bytes buffered into memory; larger request bodies are rejected",
                },
                "cors_allow_headers": {
                    "type": "string", "default": "content-type,x-grpc-web,x-user-agent",
                    "description": "multiple header use ',' to split. default: content-type,x-grpc-web,x-user-agent.",
                },
            },
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<GrpcWeb, Invalid> {
        Ok(GrpcWeb { allow_headers: config.cors_allow_headers, max_body: config.max_req_body_size })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        match x.method() {
            Method::Options => return Step::Reply(Reply::status(204)),
            Method::Post => {}
            _ => return refuse(405),
        }
        let Some((mime, text)) = x.header("Content-Type").and_then(coding) else { return refuse(400) };
        if x.lacks_body(self.max_body) {
            return Step::Body(self.max_body);
        }
        if x.body_state() != Body::Whole || x.body().is_empty() || x.body().len() > self.max_body {
            return refuse(400);
        }
        if text {
            let Some(body) = decode(x.body()) else { return refuse(400) };
            match x.set_body(body) {
                Ok(()) => {}
                Err(NotSet::Spent) => return crate::no_memory(),
                Err(NotSet::Unread) => return refuse(400),
            }
        }
        set_path(x);
        // A constant can always stand in a head.
        let _ = x.set_header("Content-Type", GRPC);
        x.set_note(Call { mime, text, has_status: false });
        Step::Next
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        let mut set = |name: &str, value: &[u8]| {
            // A value of the settings that cannot stand in a head is left out.
            let _ = x.set_response_header(name, value);
        };
        set("Access-Control-Expose-Headers", EXPOSED);
        if x.method() == Method::Options {
            let _ = x.set_response_header("Access-Control-Allow-Methods", b"POST");
            let _ = x.set_response_header("Access-Control-Allow-Headers", self.allow_headers.as_bytes());
        }
        if x.response_header("Access-Control-Allow-Origin").is_none() {
            let _ = x.set_response_header("Access-Control-Allow-Origin", b"*");
        }
        let has_status = x.response_header("grpc-status").is_some();
        let Some(call) = x.note_mut::<Call>() else { return };
        call.has_status = has_status;
        // Also of an answer that takes another one's place. It may stand in a head.
        let mime = call.mime;
        let _ = x.set_response_header("Content-Type", mime);
        x.remove_response_header("Content-Length");
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        x.note::<Call>().is_some()
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        let Some(&Call { text, has_status, .. }) = x.note::<Call>() else { return };
        if text && !chunk.data.is_empty() {
            chunk.data = STANDARD.encode(&chunk.data).into_bytes();
        }
        if !chunk.last {
            return;
        }
        if !has_status {
            let end = end(x);
            match text {
                true => chunk.data.extend_from_slice(STANDARD.encode(end).as_bytes()),
                false => chunk.data.extend_from_slice(&end),
            }
        }
        // They stand in the body now.
        x.clear_response_trailers();
    }
}

/// A content type, if it is one of gRPC-Web's, and whether its bodies are in base64.
fn coding(mime: &[u8]) -> Option<(&'static [u8], bool)> {
    const ALL: [(&[u8], bool); 4] = [
        (b"application/grpc-web", false),
        (b"application/grpc-web+proto", false),
        (b"application/grpc-web-text", true),
        (b"application/grpc-web-text+proto", true),
    ];
    ALL.into_iter().find(|(known, _)| *known == mime)
}

/// Answers as nginx answers what it refuses.
fn refuse(status: u16) -> Step {
    let words = if status == 405 { "405 Not Allowed" } else { "400 Bad Request" };
    let body = format!("<html><head><title>{words}</title></head><body><h1>{words}</h1></body></html>\n");
    Step::Reply(Reply {
        status,
        headers: vec![("Content-Type", b"text/html".to_vec())],
        body: body.into(),
        ..Reply::default()
    })
}

/// Takes a body out of base64, in which parts may be padded by themselves.
fn decode(body: &[u8]) -> Option<Vec<u8>> {
    let body = body.trim_ascii_end();
    let mut out = Vec::with_capacity(body.len() / 4 * 3);
    for part in body.split_inclusive(|&byte| byte == b'=') {
        // Left over from padding of two.
        if part == b"=" {
            continue;
        }
        let bare = part.strip_suffix(b"=").unwrap_or(part);
        STANDARD_BARE.decode_vec(bare, &mut out).ok()?;
    }
    Some(out)
}

const STANDARD_BARE: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD_NO_PAD;

/// Sets the path of the call to the part that the `*` at the end of the route's URI stands for.
fn set_path(x: &mut Exchange<'_>) {
    let Some(prefix) = x.matched_uri().strip_suffix('*') else { return };
    let head = x.request();
    let Some(rest) = head.encoded_path().strip_prefix(prefix.as_bytes()).filter(|rest| !rest.is_empty())
    else {
        return;
    };
    let mut uri = Vec::with_capacity(rest.len() + head.query().len() + 2);
    if !rest.starts_with(b"/") {
        uri.push(b'/');
    }
    uri.extend_from_slice(rest);
    if head.has_query {
        uri.push(b'?');
        uri.extend_from_slice(head.query());
    }
    x.set_upstream_uri(&uri);
}

/// The trailers as the body's last frame.
fn end(x: &Exchange<'_>) -> Vec<u8> {
    let mut lines = Vec::new();
    let mut line = |name: &[u8], value: &[u8]| {
        lines.extend_from_slice(name);
        lines.push(b':');
        lines.extend_from_slice(value);
        lines.extend_from_slice(b"\r\n");
    };
    let trailers = x.response_trailers();
    match trailers.get_named(b"grpc-status").filter(|status| !status.is_empty()) {
        Some(status) => {
            line(b"grpc-status", status);
            line(b"grpc-message", trailers.get_named(b"grpc-message").unwrap_or_default());
        }
        None => {
            line(b"grpc-status", b"2");
            line(b"grpc-message", b"upstream grpc status not received");
        }
    }
    for (name, value, id) in trailers.iter() {
        let said = name.eq_ignore_ascii_case(b"grpc-status") || name.eq_ignore_ascii_case(b"grpc-message");
        if !said && id != Name::Trailer {
            line(name, value);
        }
    }
    let mut frame = vec![0x80];
    frame.extend_from_slice(&u32::try_from(lines.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.append(&mut lines);
    frame
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, chunk, respond};

    use super::*;

    fn refused(method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut probe = Probe::request(method, "/grpc/a.B/C", headers);
        let stage: GrpcWeb = probe.stage(json!({})).unwrap();
        match stage.access(&mut probe.exchange()) {
            Step::Reply(reply) => reply.status,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn only_calls_pass() {
        assert_eq!(refused("OPTIONS", &[]), 204);
        assert_eq!(refused("GET", &[]), 405);
        assert_eq!(refused("POST", &[]), 400);
        assert_eq!(refused("POST", &[("Content-Type", "application/json")]), 400);
        assert_eq!(refused("POST", &[("Content-Type", "application/grpc-web")]), 400, "without a body");
    }

    #[test]
    fn a_call_has_a_bound() {
        for (body, passes) in [("ab", true), ("abc", true), ("abcd", false)] {
            let mut probe = Probe::request("POST", "/a.B/C", &[("Content-Type", "application/grpc-web")]);
            let stage: GrpcWeb = probe.stage(json!({"max_req_body_size": 3})).unwrap();
            let mut x = probe.exchange();
            sdk::testing::with_body(&mut x, body.as_bytes());
            assert_eq!(matches!(stage.access(&mut x), Step::Next), passes, "{body}");
            assert_eq!(stage.filters_body(&x), passes, "{body}");
        }
    }

    #[test]
    fn the_path_of_a_call_is_what_the_star_stands_for() {
        for (route, target, asked) in [
            ("/grpc/*", "/grpc/a.B/C?x=1", "/a.B/C?x=1"),
            ("/grpc*", "/grpc/a.B/C", "/a.B/C"),
            ("/*", "/a.B/C", "/a.B/C"),
            ("/grpc/*", "/grpc/", "/grpc/"),
            ("/grpc/a.B/C", "/grpc/a.B/C?x", "/grpc/a.B/C?x"),
        ] {
            let mut probe = Probe::request("POST", target, &[("Content-Type", "application/grpc-web")]);
            let stage: GrpcWeb = probe.stage(json!({})).unwrap();
            let mut x = probe.exchange();
            x.engine_mut().matched.uri = route;
            sdk::testing::with_body(&mut x, b"a");
            assert!(matches!(stage.access(&mut x), Step::Next));
            let mut uri = Vec::new();
            x.upstream_uri(&mut uri);
            assert_eq!(String::from_utf8(uri).unwrap(), asked, "{route} {target}");
        }
    }

    #[test]
    fn a_preflight_is_answered_with_the_allowed_methods() {
        for (method, allowed) in [("OPTIONS", [Some("POST"), Some("a,b")]), ("POST", [None, None])] {
            let mut probe = Probe::request(method, "/x", &[]);
            let stage: GrpcWeb = probe.stage(json!({"cors_allow_headers": "a,b"})).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[]);
            stage.header_filter(&mut x);
            let has_status = ["Access-Control-Allow-Methods", "Access-Control-Allow-Headers"]
                .map(|name| x.response_header(name));
            assert_eq!(has_status, allowed.map(|value| value.map(str::as_bytes)), "{method}");
        }
    }

    #[test]
    fn what_is_refused_is_said_as_nginx_says_it() {
        let page = |method: &str, headers: &[(&str, &str)], body: Option<&[u8]>| {
            let mut probe = Probe::request(method, "/a.B/C", headers);
            let stage: GrpcWeb = probe.stage(json!({})).unwrap();
            let mut x = probe.exchange();
            if let Some(body) = body {
                sdk::testing::with_body(&mut x, body);
            }
            match stage.access(&mut x) {
                Step::Reply(reply) => String::from_utf8(reply.body.to_vec()).unwrap(),
                Step::Next => String::new(),
                step => panic!("{step:?}"),
            }
        };
        assert!(page("GET", &[], None).contains("<h1>405 Not Allowed</h1>"));
        let binary = [("Content-Type", "application/grpc-web")];
        let text = [("Content-Type", "application/grpc-web-text")];
        assert!(page("POST", &binary, Some(b"")).contains("<h1>400 Bad Request</h1>"));
        assert!(page("POST", &text, Some(b"not base64")).contains("<h1>400 Bad Request</h1>"));
        assert_eq!(page("POST", &binary, Some(b"a")), "");
        assert_eq!(page("POST", &text, Some(b"AAAA")), "");
    }

    #[test]
    fn parts_of_base64_are_put_together() {
        assert_eq!(decode(b"AAAA").as_deref(), Some(&[0, 0, 0][..]));
        assert_eq!(decode(b"YQ==YmI=Y2Nj\n").as_deref(), Some(&b"abbccc"[..]));
        assert_eq!(decode(b"").as_deref(), Some(&b""[..]));
        for bad in [&b"A"[..], b"A===", b"AA!A", b"AAAAA"] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }

    /// The answer's head and body, to a call whose outcome stands there.
    fn answer(mime: &str, head: &[(&str, &str)], trailers: &[(&str, &str)]) -> (Option<Vec<u8>>, Vec<u8>) {
        let mut probe = Probe::request("POST", "/x", &[("Content-Type", mime)]);
        let stage: GrpcWeb = probe.stage(json!({})).unwrap();
        let mut x = probe.exchange();
        let (known, text) = coding(mime.as_bytes()).unwrap();
        x.set_note(Call { mime: known, text, has_status: false });
        respond(&mut x, 200, head);
        stage.header_filter(&mut x);
        assert_eq!(x.response_header("Content-Type"), Some(mime.as_bytes()));
        for (name, value) in trailers {
            x.engine_mut().messages.response_trailers.append(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let mut all = Vec::new();
        for (piece, last) in [(&b""[..], false), (b"one", false), (b"", true)] {
            let mut chunk = chunk(piece, last);
            stage.body_filter(&mut x, &mut chunk);
            all.extend(chunk.data);
        }
        assert!(x.response_trailers().is_empty());
        (x.response_header("Access-Control-Allow-Origin").map(<[u8]>::to_vec), all)
    }

    #[test]
    fn the_outcome_stands_behind_the_last_message() {
        let good = [("grpc-status", "0"), ("grpc-message", ""), ("more", "x")];
        let (origin, body) = answer("application/grpc-web", &[], &good);
        assert_eq!(origin.as_deref(), Some(&b"*"[..]));
        assert_eq!(body, b"one\x80\x00\x00\x00\x26grpc-status:0\r\ngrpc-message:\r\nmore:x\r\n");
        let (_, body) = answer("application/grpc-web-text+proto", &[], &good);
        assert_eq!(
            decode(&body).unwrap(),
            b"one\x80\x00\x00\x00\x26grpc-status:0\r\ngrpc-message:\r\nmore:x\r\n"
        );
        let (_, body) = answer("application/grpc-web+proto", &[], &[]);
        assert!(body.ends_with(b"grpc-status:2\r\ngrpc-message:upstream grpc status not received\r\n"));
    }

    #[test]
    fn an_outcome_in_the_head_is_not_said_twice() {
        let head = [("grpc-status", "5"), ("Access-Control-Allow-Origin", "https://a.example")];
        let (origin, body) = answer("application/grpc-web", &head, &[]);
        assert_eq!((origin.as_deref(), &body[..]), (Some(&b"https://a.example"[..]), &b"one"[..]));
    }
}
