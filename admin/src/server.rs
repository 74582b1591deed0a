//! A small HTTP/1 server for operators: bounded in connections, sizes and times.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::patience::Patience;
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
    /// To take what is buffered of an answer, some 64 KiB.
    pub send: Duration,
    /// From accepting to the last request; an answer under way then has `body` to be finished.
    pub connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 256,
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            send: Duration::from_secs(30),
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
    let whole = move |peer, request| {
        let answer = handler(peer, request);
        async move { answer.await.map(Full::new) }
    };
    serve_with(listener, limits, whole).await;
}

/// The same with bodies of another kind.
pub(crate) async fn serve_with<H, F, B>(listener: TcpListener, limits: Limits, handler: H)
where
    H: Fn(IpAddr, Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
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

async fn connection<H, F, B>(stream: TcpStream, peer: IpAddr, limits: Limits, handler: H)
where
    H: Fn(IpAddr, Request<Bytes>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error = Infallible> + 'static,
{
    // An answer is one write; nothing is gained by waiting for more.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: Request<Incoming>| async {
        let response = match whole(request, limits.body).await {
            Ok(request) => handler(peer, request).await.map(Either::Left),
            Err(refused) => refused.map(|body| Either::Right(Full::new(body))),
        };
        Ok::<_, Infallible>(response)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(100)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(Patience::new(stream, limits.send)), service);
    let mut serving = pin!(serving);
    let served = match timeout(limits.connection, serving.as_mut()).await {
        Ok(served) => served,
        Err(_) => {
            tracing::debug!(%peer, "a connection is closed for its age");
            serving.as_mut().graceful_shutdown();
            timeout(limits.body, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A server that answers with the length of the body.
    async fn server(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, limits, |peer, request: Request<Bytes>| async move {
            assert!(request.uri().path() != "/panic", "asked to");
            answer::text(StatusCode::OK, format!("{peer} {}", request.body().len()))
        }));
        address
    }

    /// Sends bytes and reads until the other side closes.
    async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The other side may close before all is sent.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.expect("it closes");
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn connections_are_kept_and_bodies_are_whole() {
        let address = server(Limits::default()).await;
        let two = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello\
            POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let answers = exchange(address, two).await;
        assert!(answers.contains("127.0.0.1 5") && answers.contains("127.0.0.1 3"), "{answers}");
    }

    #[tokio::test]
    async fn large_bodies_are_refused_before_and_while_they_are_read() {
        let address = server(Limits::default()).await;
        let head = format!("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", MAX_BODY + 1);
        let said = exchange(address, head.as_bytes()).await;
        assert!(said.starts_with("HTTP/1.1 400") && said.contains("maximum size 1572864 allowed"), "{said}");
        let mut chunked = b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..200 {
            chunked.extend_from_slice(b"4000\r\n");
            chunked.extend_from_slice(&[b'x'; 0x4000]);
            chunked.extend_from_slice(b"\r\n");
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        let (mut read, mut write) = stream.split();
        let mut said = vec![0; 12];
        let sending = async {
            let _ = write.write_all(&chunked).await;
            // Nothing more: the answer must not wait for the end of the body.
            std::future::pending::<()>().await;
        };
        let reading = timeout(Duration::from_secs(10), read.read_exact(&mut said));
        tokio::select! { () = sending => {}, read = reading => { read.unwrap().unwrap(); } }
        assert_eq!(String::from_utf8_lossy(&said), "HTTP/1.1 400");
    }

    #[tokio::test]
    async fn slow_clients_are_cut() {
        let short = Duration::from_millis(100);
        let address = server(Limits { head: short, body: short, ..Limits::default() }).await;
        let start = Instant::now();
        exchange(address, b"GET / HTTP/1.1\r\nhost:").await;
        exchange(address, b"").await;
        let late = exchange(address, b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe").await;
        assert!(late.starts_with("HTTP/1.1 408"), "{late}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn connections_are_limited_in_number_and_age() {
        let limits = Limits { connections: 1, connection: Duration::from_millis(300), ..Limits::default() };
        let address = server(limits).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut byte = [0];
        first.read_exact(&mut byte).await.unwrap();
        // The second waits until the first is closed for its age.
        let start = Instant::now();
        let second = exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(
            second.starts_with("HTTP/1.1 200") && start.elapsed() > Duration::from_millis(150),
            "{second}"
        );
    }

    #[tokio::test]
    async fn bad_requests_and_panics_hurt_nobody_else() {
        let address = server(Limits::default()).await;
        for bad in
            ["\0\0\0\r\n\r\n", "GET / HTTP/1.1\r\na b: c\r\n\r\n", "GET /panic HTTP/1.1\r\nhost: x\r\n\r\n"]
        {
            let said = exchange(address, bad.as_bytes()).await;
            assert!(!said.starts_with("HTTP/1.1 200"), "{said}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
        assert!(exchange(address, many.as_bytes()).await.starts_with("HTTP/1.1 431"));
        let good = exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(good.starts_with("HTTP/1.1 200"));
    }
}
