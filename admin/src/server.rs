//! A small HTTP/1 server for operators: bounded in connections, sizes and times.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::{MAX_BODY, answer, too_large};

/// What one client, and all together, may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// At once; more wait to be accepted.
    pub connections: usize,
    /// To send a request's head, and to begin the next one on a kept connection.
    pub head: Duration,
    /// To send a request's body.
    pub body: Duration,
    /// From accepting to closing.
    pub connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 256,
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            connection: Duration::from_secs(600),
        }
    }
}

/// Answers requests with `handler`, which gets whole bodies of at most [`MAX_BODY`].
pub(crate) async fn serve<H, F>(listener: TcpListener, limits: Limits, handler: H)
where
    H: Fn(IpAddr, Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Bytes>> + Send,
{
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        // Never closed, so this does not fail.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (limits, handler) = (limits.clone(), handler.clone());
                tokio::spawn(async move {
                    connection(stream, peer.ip(), limits, handler).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, mostly: others must close theirs first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection<H, F>(stream: TcpStream, peer: IpAddr, limits: Limits, handler: H)
where
    H: Fn(IpAddr, Request<Bytes>) -> F,
    F: Future<Output = Response<Bytes>>,
{
    // An answer is one write; nothing is gained by waiting for more.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: Request<Incoming>| async {
        let response = match whole(request, limits.body).await {
            Ok(request) => handler(peer, request).await,
            Err(refused) => *refused,
        };
        Ok::<_, Infallible>(response.map(Full::new))
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(100)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(limits.connection, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a connection ended early"),
        Err(_) => tracing::debug!(%peer, "a connection was closed for its age"),
    }
}

/// Reads the body.
async fn whole(request: Request<Incoming>, within: Duration) -> Result<Request<Bytes>, Box<Response<Bytes>>> {
    let (head, body) = request.into_parts();
    let announced = body.size_hint().lower();
    if announced > MAX_BODY as u64 {
        return Err(closing(too_large(announced)));
    }
    match timeout(within, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, body.to_bytes())),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(closing(too_large(MAX_BODY as u64 + 1))),
        Ok(Err(_)) => Err(closing(answer::empty(StatusCode::BAD_REQUEST))),
        Err(_) => Err(closing(answer::empty(StatusCode::REQUEST_TIMEOUT))),
    }
}

/// Whatever is left of the body must not be taken for a request.
fn closing(mut response: Response<Bytes>) -> Box<Response<Bytes>> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Box::new(response)
}
