//! ext-authz: asks a server of `envoy.service.auth.v3.Authorization` by gRPC whether to accept a request.
//!
//! Native: APISIX has no such plugin. Requests and answers are those of Envoy's filter `ext_authz`, so servers such as
//! Open Policy Agent can be used unchanged.

mod message;

use bytes::Bytes;
use indexmap::IndexMap;
use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::grpc;
use sdk::world::{Fetch, Fetched};
use sdk::{Build, Exchange, Framing, Phase, Plugin, Reply, Step, Version};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::Vouched;
use crate::envoy::headers::{Action, Header, remove_from_request};
use crate::envoy::{Server, Settings};
use crate::protobuf::Writer;
use message::Answer;

/// The method that servers of the API v3 offer.
const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// The configured plugin.
pub struct ExtAuthz {
    server: Server,
    config: Config,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    server: Settings,
    request_headers: Vec<String>,
    max_request_bytes: usize,
    allow_partial_body: bool,
    pack_as_bytes: bool,
    #[serde(default)]
    context_extensions: IndexMap<String, String>,
    max_response_bytes: usize,
}

impl Plugin for ExtAuthz {
    const NAME: &'static str = "ext-authz";
    const PRIORITY: i32 = 2003;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
                "request_headers": {"type": "array", "default": [], "items": {"type": "string"}},
                "max_request_bytes": {"type": "integer", "minimum": 0, "maximum": 67_108_864, "default": 0},
                "allow_partial_body": {"type": "boolean", "default": false},
                "pack_as_bytes": {"type": "boolean", "default": false},
                "context_extensions": {"type": "object", "additionalProperties": {"type": "string"}},
                "max_response_bytes": {"type": "integer", "minimum": 5, "maximum": 67_108_864, "default": 1_048_576},
        });
        crate::envoy::schema(403, own)
    }

    fn build(mut config: Config, cx: &mut Build<'_>) -> Result<ExtAuthz, Invalid> {
        let server = Server::build(&config.server, CHECK, cx)?;
        config.request_headers.iter_mut().for_each(|name| name.make_ascii_lowercase());
        Ok(ExtAuthz { server, config })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let Config { max_request_bytes: limit, allow_partial_body, .. } = self.config;
        if limit == 0 {
            return Step::Wait;
        }
        if allow_partial_body {
            x.want_body_prefix();
            return x.ask_for_optional_body(limit).unwrap_or(Step::Wait);
        }
        crate::buffer_body(x, limit)
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        // The copy counts against the worker's budget until the answer has arrived.
        let mut held = Reservation::default();
        let message = self.message(x);
        if held.resize(x.world().budget(), message.len()).is_err() {
            return crate::no_memory();
        }
        let fetched = x.world().fetch(self.request(x, message)).await;
        drop(held);
        let failed = match &fetched {
            Ok(fetched) => match read(fetched) {
                Ok(answer) => return self.obey(x, &answer),
                Err(why) => why,
            },
            Err(error) => error.as_str(),
        };
        if self.config.server.allow_degradation {
            return Step::Next;
        }
        x.complain(Self::NAME, failed);
        Step::Reply(Reply::status(self.config.server.status_on_error).because(failed))
    }
}

/// The server's answer.
fn read(fetched: &Fetched) -> Result<Answer<'_>, &'static str> {
    if fetched.status != 200 {
        return Err("the authorization server does not answer with status 200");
    }
    let (code, _) = grpc::outcome(fetched.status, &fetched.fields, &fetched.trailers);
    if code != grpc::OK || fetched.body.is_empty() {
        return Err("the authorization server sent no message with grpc-status 0");
    }
    let message = grpc::unframed(&fetched.body);
    message
        .and_then(|message| Answer::read(message).ok())
        .ok_or("the authorization server's answer is not a CheckResponse")
}

impl ExtAuthz {
    fn request(&self, x: &Exchange<'_>, message: Vec<u8>) -> Fetch {
        Fetch {
            body: Bytes::from(message),
            max_body: self.config.max_response_bytes,
            // Asking the server twice does no harm.
            repeatable: true,
            ..self.server.request(x)
        }
    }

    /// `CheckRequest`, with the prefix of gRPC.
    fn message(&self, x: &Exchange<'_>) -> Vec<u8> {
        let head = x.request();
        let scheme = x.client().scheme().as_bytes();
        // The normal form, by which routes are found and which the upstream gets: another spelling of a path must
        // not pass a server that judges by paths.
        let mut path = Vec::with_capacity(head.target().len());
        head.write_normal_target(&mut path);
        let mut http = Writer::default();
        let [high, low] = x.unique();
        http.bytes(1, format!("{high:016x}{low:016x}").as_bytes()).bytes(2, head.method_bytes());
        let pseudo: [(&[u8], &[u8]); 4] = [
            (b":authority", head.authority()),
            (b":method", head.method_bytes()),
            (b":path", &path),
            (b":scheme", scheme),
        ];
        for (name, value) in pseudo {
            http.entry(3, name, value);
        }
        for (name, value) in self.headers(x) {
            http.entry(3, name.as_bytes(), &value);
        }
        let protocol: &[u8] = match head.version {
            Version::Http10 => b"HTTP/1.0",
            Version::Http11 => b"HTTP/1.1",
            Version::Http2 => b"HTTP/2",
            Version::Http3 => b"HTTP/3",
        };
        http.bytes(4, &path).bytes(5, head.authority()).bytes(6, scheme);
        // An unknown length is -1.
        http.number(9, if let Framing::Length(length) = head.framing { length } else { u64::MAX });
        http.bytes(10, protocol);
        if self.config.max_request_bytes > 0 {
            let body = x.body_prefix();
            let body = &body[..body.len().min(self.config.max_request_bytes)];
            if self.config.pack_as_bytes {
                http.bytes(12, body);
            } else {
                // A field of text must be UTF-8.
                http.bytes(11, String::from_utf8_lossy(body).as_bytes());
            }
        }
        let mut time = Writer::default();
        let now = x.world().now_ms();
        time.number(1, now / 1000).number(2, now % 1000 * 1_000_000);
        let mut request = Writer::default();
        request.message(1, &time).message(2, &http);
        let mut attributes = Writer::default();
        let client = x.client();
        attributes.message(1, &peer(client.ip_text(), client.port()));
        attributes.message(2, &peer(client.local.ip().to_string().as_bytes(), client.local.port()));
        attributes.message(4, &request);
        for (name, value) in &self.config.context_extensions {
            attributes.entry(10, name.as_bytes(), value.as_bytes());
        }
        if let Some(session) = &client.session {
            let mut tls = Writer::default();
            tls.bytes(1, session.server_name.as_deref().unwrap_or_default().as_bytes());
            attributes.message(12, &tls);
        }
        let mut message = Writer::default();
        message.message(1, &attributes);
        message.framed()
    }

    /// The headers of the request, in lower case, with the values of one name in one.
    fn headers(&self, x: &Exchange<'_>) -> IndexMap<String, Vec<u8>> {
        let mut headers: IndexMap<String, Vec<u8>> = IndexMap::new();
        let wanted = &self.config.request_headers;
        for (name, value, _) in x.request().fields.iter() {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            if name == "host" || !wanted.is_empty() && !wanted.contains(&name) {
                continue;
            }
            let separator: &[u8] = if name == "cookie" { b"; " } else { b"," };
            // A field of text must be UTF-8.
            let value = String::from_utf8_lossy(value).into_owned().into_bytes();
            match headers.get_mut(&name) {
                Some(values) => values.extend_from_slice(&[separator, &value].concat()),
                None => _ = headers.insert(name, value),
            }
        }
        // Clients cannot forge these.
        for (name, value) in
            [("x-forwarded-for", x.client().ip_text()), ("x-forwarded-proto", x.client().scheme().as_bytes())]
        {
            if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
                headers.insert(name.to_owned(), value.to_vec());
            }
        }
        headers
    }

    fn obey(&self, x: &mut Exchange<'_>, answer: &Answer<'_>) -> Step {
        if answer.code != 0 {
            return refuse(x, answer);
        }
        if answer.changes_query {
            x.complain(Self::NAME, "the authorization server changes the query, which is not supported");
            let reply = Reply::status(self.config.server.status_on_error);
            return Step::Reply(reply.because("the authorization server changes the query"));
        }
        to_client(x, &answer.response_headers);
        if answer.headers.is_empty() && answer.removed.is_empty() {
            return Step::Next;
        }
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        remove_from_request(x, &answer.removed, &mut vouched);
        for header in &answer.headers {
            // As in Envoy, values are appended to a header that is there alone.
            if header.action == Action::Append && x.header(header.name).is_none() {
                continue;
            }
            if header.change_request(x, &mut vouched).is_err() {
                x.complain(Self::NAME, "a header of the authorization server is invalid and was left out");
            }
        }
        x.set_note(vouched);
        Step::Next
    }
}

/// Answers the client as the server says.
fn refuse(x: &mut Exchange<'_>, answer: &Answer<'_>) -> Step {
    to_client(x, &answer.headers);
    let status =
        u16::try_from(answer.status).ok().filter(|status| (200..=599).contains(status)).unwrap_or(403);
    Step::Reply(
        Reply::text(status, answer.body.to_vec()).because("the authorization server refuses the request"),
    )
}

/// Sets headers of the response; those with one name stay beside each other.
fn to_client(x: &mut Exchange<'_>, headers: &[Header<'_>]) {
    for (at, header) in headers.iter().enumerate() {
        let again = |one: &Header<'_>| one.name.eq_ignore_ascii_case(header.name);
        let _ = if header.action == Action::Replace && headers[..at].iter().any(again) {
            // An invalid name or value is left out.
            Header { action: Action::Append, ..*header }.change_response(x)
        } else {
            header.change_response(x)
        };
    }
}

/// `AttributeContext.Peer`, with its address.
fn peer(ip: &[u8], port: u16) -> Writer {
    let mut socket = Writer::default();
    socket.bytes(2, ip).number(3, port.into());
    let mut address = Writer::default();
    address.message(1, &socket);
    let mut peer = Writer::default();
    peer.message(1, &address);
    peer
}

#[cfg(test)]
mod tests;
