//! APIs of log servers over HTTP/1: each batch is the body of a POST. An [`Api`] forms the body and reads the answer;
//! connections, times and bounds are here.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{
    ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use sdk::chain::LocalFuture;
use sdk::sink::{self, Batch, Deliver, Destination, Outcome, Taken};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Context, Server, TIMEOUT, Tls, within};

/// Batches of one sink that are under way at the same time.
pub(super) const AT_ONCE: usize = 8;

/// The most bytes of an answer that are read, as the message about an error repeats some.
pub(super) const ANSWER: usize = 64 << 10;

/// Ends loops of entries that are sent to this gateway (`nginx_config.http.max_hops`).
pub(super) const HOPS: &str = "sluice-hops";

/// Bytes of an answer that a message repeats.
const REPEATED: usize = 200;

/// Shorter values are no secrets, and would be found anywhere.
const SECRET: usize = 4;

/// The settings of every sink of this kind.
#[derive(Debug, Deserialize)]
pub(super) struct Settings {
    /// In the order of the destination's servers.
    pub endpoints: Vec<Endpoint>,
    #[serde(default)]
    pub headers: Map<String, Value>,
    /// Milliseconds for each step.
    pub timeout: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Endpoint {
    /// Path and query.
    pub uri: String,
    #[serde(default)]
    pub tls: Option<Tls>,
}

/// An API of a log server.
pub(super) trait Api {
    /// The body of the request for these records.
    fn body(&self, client: &Client, records: &[Taken]) -> Vec<u8>;

    /// Asks the server for facts that the body depends on. The error is a reason to try again.
    fn prepare<'a>(&'a self, _client: &'a Client, _batch: Batch<'a>) -> LocalFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Batches that may be under way at the same time.
    fn at_once(&self) -> usize {
        AT_ONCE
    }

    /// The most bytes of an answer, by the number of records.
    fn answer_bound(&self, _records: usize) -> usize {
        ANSWER
    }

    fn outcome(&self, client: &Client, batch: Batch<'_>, answer: &Answer) -> Outcome;
}

/// An answer as far as it was read.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// Empty if it was too long or broke off.
    pub body: Bytes,
    pub is_whole: bool,
    /// The seconds in `Retry-After`.
    pub retry_after: Option<u64>,
}

/// A request without the parts that all have.
struct Asked<'a> {
    method: Method,
    uri: &'a str,
    body: Bytes,
    hops: u16,
    /// The most bytes of its answer.
    bound: usize,
}

/// The connections to the servers of a destination.
pub(super) struct Client {
    servers: Vec<To>,
    headers: HeaderMap,
}

struct To {
    server: Server,
    uri: String,
    host: HeaderValue,
    idle: RefCell<Vec<SendRequest<Full<Bytes>>>>,
}

/// A sink that posts to an API.
struct Posts<A> {
    client: Client,
    api: A,
}

/// Makes the sink of an API.
pub(super) fn make<A: Api + 'static>(
    api: A,
    to: &Destination,
    context: &Context,
) -> Result<Box<dyn Deliver>, String> {
    Ok(Box::new(Posts { client: Client::new(to, context)?, api }))
}

/// The beginning of an answer for a message, without these values, which may be secrets.
pub(super) fn repeated<'v>(body: &[u8], values: impl Iterator<Item = &'v str>) -> String {
    let mut text = String::from_utf8_lossy(body).into_owned();
    // A scheme such as `Basic` is no secret; the rest of the value is.
    for part in values.flat_map(|value| value.split(' ')).filter(|part| part.len() >= SECRET) {
        text = text.replace(part, "***");
    }
    // An answer must not begin a line of the log.
    let mut text = text.replace(char::is_control, " ");
    let mut end = text.len().min(REPEATED);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// The most gateways that a request of these entries has passed through.
pub(super) fn most_hops(records: &[Taken]) -> u16 {
    records.iter().filter_map(hops).max().unwrap_or(1)
}

/// Gateways that an entry's request has passed through.
fn hops(record: &Taken) -> Option<u16> {
    std::str::from_utf8(record.field(sink::HOPS)?).ok()?.parse().ok()
}

impl<A: Api> Deliver for Posts<A> {
    fn at_once(&self) -> usize {
        self.api.at_once()
    }

    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(async move {
            if let Err(reason) = self.api.prepare(&self.client, batch).await {
                return Outcome::retry(reason);
            }
            let body = self.api.body(&self.client, batch.records);
            match self.client.post(batch, body, self.api.answer_bound(batch.records.len())).await {
                Ok(answer) => self.api.outcome(&self.client, batch, &answer),
                Err(reason) => Outcome::retry(reason),
            }
        })
    }
}

impl Client {
    fn new(to: &Destination, context: &Context) -> Result<Client, String> {
        let Settings { endpoints, headers, timeout } = super::settings(to)?;
        if endpoints.is_empty() || endpoints.len() != to.servers.len() {
            return Err("it has no server".to_owned());
        }
        let timeout = Duration::from_millis(timeout);
        let servers = to.servers.iter().zip(endpoints).map(|((host, port), Endpoint { uri, tls })| {
            let default = if tls.is_some() { 443 } else { 80 };
            let authority = if *port == default { host.clone() } else { format!("{host}:{port}") };
            let host_field = HeaderValue::try_from(authority).map_err(|error| error.to_string())?;
            let server = Server::of(host.clone(), *port, tls, timeout, context);
            Ok(To { server, uri, host: host_field, idle: RefCell::default() })
        });
        Ok(Client { servers: servers.collect::<Result<_, String>>()?, headers: fields(&headers)? })
    }

    /// The host and the port of a server, for messages.
    pub(super) fn place(&self, batch: Batch<'_>) -> (&str, u16) {
        let Server { host, port, .. } = &self.servers[batch.server].server;
        (host, *port)
    }

    /// The beginning of an answer for a message, without the values of our own fields, which may be secrets.
    pub(super) fn repeated(&self, answer: &[u8]) -> String {
        let ours = self.headers.iter().filter(|(name, _)| ![HOST, CONTENT_TYPE, ACCEPT].contains(*name));
        repeated(answer, ours.filter_map(|(_, value)| value.to_str().ok()))
    }

    /// Asks the batch's server for the resource at the root.
    pub(super) async fn get_root(&self, batch: Batch<'_>) -> Result<Answer, String> {
        let asked = Asked { method: Method::GET, uri: "/", body: Bytes::new(), hops: 1, bound: ANSWER };
        self.send(batch, &asked).await
    }

    async fn post(&self, batch: Batch<'_>, body: Vec<u8>, bound: usize) -> Result<Answer, String> {
        let asked = Asked {
            method: Method::POST,
            uri: &self.servers[batch.server].uri,
            body: Bytes::from(body),
            hops: most_hops(batch.records),
            bound,
        };
        self.send(batch, &asked).await
    }

    /// Sends a request over a kept connection or a new one.
    async fn send(&self, batch: Batch<'_>, asked: &Asked<'_>) -> Result<Answer, String> {
        let to = &self.servers[batch.server];
        let Server { host, port, timeout, .. } = &to.server;
        let failed = |error| format!("error while sending data to [{host}] port[{port}] {error}");
        let kept = std::iter::from_fn(|| to.idle.borrow_mut().pop()).find(SendRequest::is_ready);
        if let Some(sender) = kept {
            match self.answered(to, sender, asked).await {
                // The server may have the entries: sent at once over another connection, they would
                // arrive twice.
                Err(error) if error == TIMEOUT => return Err(failed(error)),
                // The connection may have been closed while it was idle.
                Err(_) => {}
                answer => return answer,
            }
        }
        let stream = to.server.connect(batch.addresses).await;
        let stream =
            stream.map_err(|error| format!("failed to connect to host[{host}] port[{port}] {error}"))?;
        let (mut sender, connection) = within(*timeout, handshake(TokioIo::new(stream))).await?;
        let driver: LocalFuture<'static, ()> = Box::pin(async move {
            // The request that waits for the answer returns the error.
            let _ = connection.await;
        });
        tokio::task::spawn_local(driver);
        // Without this the first request could find it not ready.
        let _ = within(*timeout, sender.ready()).await;
        self.answered(to, sender, asked).await.map_err(failed)
    }

    async fn answered(
        &self,
        to: &To,
        mut sender: SendRequest<Full<Bytes>>,
        asked: &Asked<'_>,
    ) -> Result<Answer, String> {
        let timeout = to.server.timeout;
        let response = within(timeout, sender.send_request(self.request(to, asked)?)).await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let body = within(timeout, Limited::new(response.into_body(), asked.bound).collect()).await;
        // Of an answer that was too long or broke off, the status is what counts.
        let body = body.map(|body| body.to_bytes());
        let is_whole = body.is_ok();
        if is_whole && sender.is_ready() {
            let mut idle = to.idle.borrow_mut();
            if idle.len() < AT_ONCE {
                idle.push(sender);
            }
        }
        Ok(Answer { status, body: body.unwrap_or_default(), is_whole, retry_after })
    }

    fn request(&self, to: &To, asked: &Asked<'_>) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(asked.method.clone())
            .uri(asked.uri)
            .header(HOST, &to.host)
            .header(HOPS, asked.hops)
            .header(USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION")));
        if let Some(all) = request.headers_mut() {
            for (name, value) in &self.headers {
                all.insert(name, value.clone());
            }
        }
        request
            .body(Full::new(asked.body.clone()))
            .map_err(|error| format!("no request can be made of it: {error}"))
    }
}

/// Fields of requests as a plugin states them; null is absence.
pub(super) fn fields(all: &Map<String, Value>) -> Result<HeaderMap, String> {
    let mut fields = HeaderMap::with_capacity(all.len());
    for (name, value) in all {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // The value may be a secret.
        let value = HeaderValue::try_from(text).map_err(|_| format!("the value of {name} is not valid"))?;
        let name = HeaderName::try_from(name).map_err(|_| format!("{name} is no name of a field"))?;
        fields.insert(name, value);
    }
    Ok(fields)
}

/// Whether a failure with this status depends on the entries alone, so that a retry would fail as well.
pub(super) fn is_final(status: u16) -> bool {
    matches!(status, 400 | 413 | 422)
}
