//! An HTTP server: each batch is the body of a POST.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use sdk::chain::LocalFuture;
use sdk::sink::{self, Batch, Deliver, Destination, Outcome, Taken};
use serde::Deserialize;

use super::{Context, Format, Kind, Server, TIMEOUT, Tls, within};

pub const KIND: Kind = Kind { name: "http", blocks: false, make };

/// Batches of one sink that are under way at the same time.
const AT_ONCE: usize = 8;

/// The most bytes of an answer that are read, as the message about an error repeats some.
const ANSWER: usize = 64 << 10;

/// Ends loops of entries that are sent to this gateway (`nginx_config.http.max_hops`).
const HOPS: &str = "sluice-hops";

/// Bytes of an answer that a message repeats.
const REPEATED: usize = 200;

#[derive(Debug, Deserialize)]
struct Settings {
    /// Path and query.
    uri: String,
    format: Format,
    content_type: String,
    authorization: Option<String>,
    tls: Option<Tls>,
    /// Milliseconds for each step.
    timeout: u64,
}

/// The contents of a request.
struct Body {
    text: Bytes,
    hops: u16,
}

struct Http {
    server: Server,
    settings: Settings,
    idle: RefCell<Vec<SendRequest<Full<Bytes>>>>,
}

/// Gateways that an entry's request has passed through.
fn hops(record: &Taken) -> Option<u16> {
    std::str::from_utf8(record.field(sink::HOPS)?).ok()?.parse().ok()
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    let mut settings: Settings = super::settings(to)?;
    let timeout = Duration::from_millis(settings.timeout);
    let server = Server::new(to, settings.tls.take(), timeout, context)?;
    Ok(Box::new(Http { server, settings, idle: RefCell::default() }))
}

impl Deliver for Http {
    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(async move {
            let Server { host, port, .. } = &self.server;
            let (status, body) = match self.post(batch).await {
                Ok(answer) => answer,
                Err(reason) => return Outcome::retry(reason),
            };
            if status < 400 {
                return Outcome::Delivered;
            }
            let body = String::from_utf8_lossy(&body[..body.len().min(REPEATED)]);
            Outcome::retry(format!(
                "server returned status code[{status}] host[{host}] port[{port}] body[{body}]"
            ))
        })
    }
}

impl Http {
    /// Sends a request over a kept connection or a new one; gives the status and some of the body.
    async fn post(&self, batch: Batch<'_>) -> Result<(u16, Bytes), String> {
        let Server { host, port, timeout, .. } = &self.server;
        let body = Body {
            text: Bytes::from(self.settings.format.text(batch.records)),
            hops: batch.records.iter().filter_map(hops).max().unwrap_or(1),
        };
        let kept = std::iter::from_fn(|| self.idle.borrow_mut().pop()).find(SendRequest::is_ready);
        if let Some(sender) = kept {
            match self.answered(sender, &body).await {
                // The server may have the entries: sent at once over another connection, they would
                // arrive twice.
                Err(error) if error == TIMEOUT => {
                    return Err(format!("error while sending data to [{host}] port[{port}] {error}"));
                }
                // The connection may have been closed while it was idle.
                Err(_) => {}
                answer => return answer,
            }
        }
        let stream = self.server.connect(batch.addresses).await;
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
        let answered = self.answered(sender, &body).await;
        answered.map_err(|error| format!("error while sending data to [{host}] port[{port}] {error}"))
    }

    async fn answered(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        body: &Body,
    ) -> Result<(u16, Bytes), String> {
        let timeout = self.server.timeout;
        let response = within(timeout, sender.send_request(self.request(body)?)).await?;
        let status = response.status().as_u16();
        let body = within(timeout, Limited::new(response.into_body(), ANSWER).collect()).await;
        // Of an answer that was too long or broke off, the status is what counts.
        let body = body.map(|body| body.to_bytes());
        if body.is_ok() && sender.is_ready() {
            let mut idle = self.idle.borrow_mut();
            if idle.len() < AT_ONCE {
                idle.push(sender);
            }
        }
        Ok((status, body.unwrap_or_default()))
    }

    fn request(&self, body: &Body) -> Result<Request<Full<Bytes>>, String> {
        let Settings { uri, content_type, authorization, .. } = &self.settings;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(HOST, &self.server.host)
            .header(CONTENT_TYPE, content_type)
            .header(HOPS, body.hops)
            .header(USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request
            .body(Full::new(body.text.clone()))
            .map_err(|error| format!("no request can be made of it: {error}"))
    }
}
