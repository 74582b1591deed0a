//! A small HTTP/1 server for operators: bounded in connections, sizes and times.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::patience::Patience;
use crate::{Admin, MAX_BODY, answer, too_large};

/// What one client, and all together, may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// At once; more wait to be accepted.
    pub connections: usize,
    /// At once of clients that will be refused; more are closed.
    pub strangers: usize,
    /// To send a request's head, and to begin the next one on a kept connection.
    pub head: Duration,
    /// To send a request's body.
    pub body: Duration,
    /// Bytes of a request's body.
    pub body_size: usize,
    /// To take what is buffered of an answer, some 64 KiB.
    pub send: Duration,
    /// From accepting to the last request; an answer under way then has `body` to be finished.
    pub connection: Duration,
}

impl Limits {
    /// What config.yaml says (`deployment.admin`), for requests with small bodies.
    pub fn of(boot: &model::boot::AdminLimits) -> Limits {
        Limits {
            connections: boot.connections,
            strangers: boot.refused_connections,
            head: boot.client_header_timeout,
            body: boot.client_body_timeout,
            body_size: SMALL,
            send: boot.send_timeout,
            connection: boot.connection_timeout,
        }
    }
}

impl Default for Limits {
    /// What an empty config.yaml says.
    fn default() -> Self {
        Limits::of(&model::boot::Boot::default().admin.limits)
    }
}

/// A body that costs nothing to speak of.
const SMALL: usize = 64 * 1024;

/// For how long a kept connection that is to be closed may still ask once more.
const LAST_REQUEST: Duration = Duration::from_millis(100);

/// For how long a refused body is let pass by.
const LINGER: Duration = Duration::from_secs(2);

/// A socket to accept connections from, until it is told to stop.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    stop: watch::Receiver<()>,
    /// Where nobody else can tell it.
    _never: Option<watch::Sender<()>>,
}

impl Listener {
    /// Stops when the returned sender is dropped. Then whoever serves it ends with its last connection.
    pub fn until_dropped(socket: TcpListener) -> (watch::Sender<()>, Listener) {
        let (sender, stop) = watch::channel(());
        (sender, Listener { socket, stop, _never: None })
    }
}

impl From<TcpListener> for Listener {
    /// Accepts for as long as the runtime lives.
    fn from(socket: TcpListener) -> Listener {
        let (never, stop) = watch::channel(());
        Listener { socket, stop, _never: Some(never) }
    }
}

/// Somebody who answers requests.
pub(crate) trait Service: Clone + Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error = Infallible> + Send + 'static;

    /// Whether connections from there may take the places that are for everybody.
    fn knows(&self, _peer: IpAddr) -> bool {
        true
    }

    /// Answers what needs no body, so that none is read.
    fn answer_head(&self, _peer: IpAddr, _head: &Parts) -> Option<Response<Bytes>> {
        None
    }

    /// Answers the rest; bodies are whole and within [`Limits::body_size`].
    fn answer(
        &self,
        peer: IpAddr,
        request: Request<Bytes>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Answers everybody alike.
#[derive(Clone)]
struct Open<H>(H);

impl<H, F, B> Service for Open<H>
where
    H: Fn(IpAddr, Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    type Body = B;

    fn answer(&self, peer: IpAddr, request: Request<Bytes>) -> impl Future<Output = Response<B>> + Send {
        self.0(peer, request)
    }
}

impl Service for Admin {
    type Body = Full<Bytes>;

    fn knows(&self, peer: IpAddr) -> bool {
        Admin::knows(self, peer)
    }

    fn answer_head(&self, peer: IpAddr, head: &Parts) -> Option<Response<Bytes>> {
        Admin::answer_head(self, peer, head)
    }

    async fn answer(&self, peer: IpAddr, request: Request<Bytes>) -> Response<Full<Bytes>> {
        self.handle(peer, request).await.map(Full::new)
    }
}

/// Answers requests with `handler`, as [`run`] does.
pub(crate) async fn serve<H, F>(listener: Listener, limits: Limits, handler: H)
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
pub(crate) async fn serve_with<H, F, B>(listener: Listener, limits: Limits, handler: H)
where
    H: Fn(IpAddr, Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    run(listener, limits, None, Open(handler)).await;
}

/// Serves until the listener is told to stop, and then until the last connection has ended: after the request
/// it is at, or the first one it has not sent yet.
pub(crate) async fn run(
    listener: Listener,
    limits: Limits,
    tls: Option<Arc<ServerConfig>>,
    service: impl Service,
) {
    let tls = tls.map(TlsAcceptor::from);
    let places = Arc::new(Semaphore::new(limits.connections));
    let few = Arc::new(Semaphore::new(limits.strangers));
    let Listener { socket, mut stop, _never } = listener;
    // Each connection has a receiver: it hears of the end, and is waited for.
    let (serving, ended) = watch::channel(());
    loop {
        let next = async {
            // Never closed, so this does not fail.
            let place = places.clone().acquire_owned().await.ok()?;
            Some((place, socket.accept().await))
        };
        let next = tokio::select! {
            biased;
            _ = stop.changed() => None,
            next = next => next,
        };
        let Some((place, accepted)) = next else { break };
        match accepted {
            Ok((stream, peer)) => {
                let peer = peer.ip();
                let place = match service.knows(peer) {
                    true => Some(place),
                    // They may not keep those out who are known.
                    false => few.clone().try_acquire_owned().ok(),
                };
                if let Some(place) = place {
                    // An answer is one write; nothing is gained by waiting for more.
                    let _ = stream.set_nodelay(true);
                    let (limits, service, ended) = (limits.clone(), service.clone(), ended.clone());
                    match tls.clone() {
                        None => tokio::spawn(connection(stream, peer, limits, service, place, ended)),
                        Some(tls) => tokio::spawn(secured(tls, stream, peer, limits, service, place, ended)),
                    };
                }
            }
            Err(error) => {
                // Out of descriptors, mostly: others must close theirs first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop((socket, ended));
    // An error means that there is no connection.
    let _ = serving.send(());
    serving.closed().await;
}

/// The same over TLS. The handshake has the time of a head.
async fn secured(
    tls: TlsAcceptor,
    stream: TcpStream,
    peer: IpAddr,
    limits: Limits,
    service: impl Service,
    place: OwnedSemaphorePermit,
    ended: watch::Receiver<()>,
) {
    match timeout(limits.head, tls.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, peer, limits, service, place, ended).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Send + Unpin>(
    stream: S,
    peer: IpAddr,
    limits: Limits,
    service: impl Service,
    place: OwnedSemaphorePermit,
    mut ended: watch::Receiver<()>,
) {
    let (asked, leaving) = (AtomicBool::new(false), AtomicBool::new(false));
    let answer = service_fn(|request: Request<Incoming>| async {
        asked.store(true, Ordering::Relaxed);
        let response = answer(&service, &limits, peer, request).await;
        Ok::<_, Infallible>(match leaving.load(Ordering::Relaxed) {
            true => closing(response),
            false => response,
        })
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(100)
        .max_buf_size(SMALL)
        .serve_connection(TokioIo::new(Patience::new(stream, limits.send)), answer);
    let mut serving = pin!(serving);
    let last = async {
        tokio::select! {
            () = tokio::time::sleep(limits.connection) => "a connection is closed for its age",
            _ = ended.changed() => "a connection is closed as nobody listens any more",
        }
    };
    let served = tokio::select! {
        served = serving.as_mut() => served,
        why = last => {
            tracing::debug!(%peer, "{why}");
            // The next answer is the last one, and says so.
            leaving.store(true, Ordering::Relaxed);
            // Hyper closes at once what it has read nothing from, though a request may be on its way.
            let grace = if asked.load(Ordering::Relaxed) { LAST_REQUEST } else { limits.head };
            match timeout(grace, serving.as_mut()).await {
                Ok(served) => served,
                Err(_) => {
                    serving.as_mut().graceful_shutdown();
                    timeout(limits.body, serving).await.unwrap_or(Ok(()))
                }
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
    drop(place);
}

async fn answer<S: Service>(
    service: &S,
    limits: &Limits,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Response<Either<S::Body, Full<Bytes>>> {
    let short = |response: Response<Bytes>| response.map(|body| Either::Right(Full::new(body)));
    let (head, body) = request.into_parts();
    if let Some(response) = service.answer_head(peer, &head) {
        if body.is_end_stream() {
            return short(response);
        }
        // Whoever waits to be told to send it is not told.
        if !head.headers.contains_key(header::EXPECT) {
            tokio::spawn(timeout(LINGER, forget(body)));
        }
        return short(closing(response));
    }
    match whole(body, limits).await {
        Ok(body) => service.answer(peer, Request::from_parts(head, body)).await.map(Either::Left),
        Err(refused) => short(closing(*refused)),
    }
}

/// Reads the body.
async fn whole(body: Incoming, limits: &Limits) -> Result<Bytes, Box<Response<Bytes>>> {
    let refused = |response| Err(Box::new(response));
    let announced = body.size_hint().lower();
    if announced > limits.body_size as u64 {
        return refused(too_large(announced, limits.body_size));
    }
    match timeout(limits.body, Limited::new(body, limits.body_size).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            refused(too_large(limits.body_size as u64 + 1, limits.body_size))
        }
        Ok(Err(_)) => refused(answer::empty(StatusCode::BAD_REQUEST)),
        Err(_) => refused(answer::empty(StatusCode::REQUEST_TIMEOUT)),
    }
}

/// Lets a body pass by: closing while it is still sent would take the answer from the client.
async fn forget(mut body: Incoming) {
    let mut left = MAX_BODY;
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(size) {
            Some(less) => left = less,
            None => return,
        }
    }
}

/// Whatever is left of the body must not be taken for a request.
fn closing<B>(mut response: Response<B>) -> Response<B> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A server that answers with the length of the body.
    async fn server(limits: Limits) -> SocketAddr {
        let service = |peer, request: Request<Bytes>| async move {
            assert!(request.uri().path() != "/panic", "asked to");
            answer::text(StatusCode::OK, format!("{peer} {}", request.body().len())).map(Full::new)
        };
        serve_here(limits, Open(service)).await
    }

    async fn serve_here(limits: Limits, service: impl Service) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(run(listener.into(), limits, None, service));
        address
    }

    fn large() -> Limits {
        Limits { body_size: MAX_BODY, ..Limits::default() }
    }

    /// Refuses everybody: with 401, and strangers at all.
    #[derive(Clone)]
    struct Closed {
        strangers: bool,
    }

    impl Service for Closed {
        type Body = Full<Bytes>;

        fn knows(&self, _: IpAddr) -> bool {
            !self.strangers
        }

        fn answer_head(&self, _: IpAddr, head: &Parts) -> Option<Response<Bytes>> {
            (head.uri.path() != "/open").then(|| answer::empty(StatusCode::UNAUTHORIZED))
        }

        async fn answer(&self, _: IpAddr, _: Request<Bytes>) -> Response<Full<Bytes>> {
            answer::empty(StatusCode::OK).map(Full::new)
        }
    }

    #[tokio::test]
    async fn what_needs_no_body_is_answered_before_one_is_read() {
        let address = serve_here(large(), Closed { strangers: false }).await;
        // The body never comes; the answer and the end of the connection do.
        for head in [
            "content-length: 1000000",
            "transfer-encoding: chunked",
            "content-length: 5\r\nexpect: 100-continue",
        ] {
            let said =
                exchange(address, format!("PUT / HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n").as_bytes()).await;
            assert!(said.starts_with("HTTP/1.1 401"), "{said}");
            assert!(said.contains("connection: close"), "{said}");
        }
        // One that is on its way does not keep the answer from its sender.
        let mut large = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 1500000\r\n\r\n".to_vec();
        large.resize(large.len() + 1_500_000, b'x');
        let said = exchange(address, &large).await;
        assert!(said.starts_with("HTTP/1.1 401") && said.ends_with("\r\n\r\n"), "{said}");
        let kept =
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /open HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let said = exchange(address, kept).await;
        assert!(said.starts_with("HTTP/1.1 401") && said.contains("HTTP/1.1 200"), "{said}");
    }

    #[tokio::test]
    async fn strangers_have_few_places_and_take_none_of_the_others() {
        let limits = Limits { connections: 3, strangers: 1, ..Limits::default() };
        let address = serve_here(limits, Closed { strangers: true }).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut byte = [0];
        first.read_exact(&mut byte).await.unwrap();
        for _ in 0..5 {
            assert_eq!(exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await, "");
        }
        drop(first);
        let asked = async {
            while exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                .await
                .is_empty()
            {}
        };
        timeout(Duration::from_secs(30), asked).await.expect("the place is free again");
    }

    #[tokio::test]
    async fn a_kept_connection_that_asks_nothing_is_closed() {
        let address = server(Limits { head: Duration::from_millis(100), ..Limits::default() }).await;
        let said = exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }

    #[tokio::test]
    async fn whoever_does_not_read_is_cut() {
        let limits = Limits { connections: 1, send: Duration::from_millis(100), ..Limits::default() };
        let large = Bytes::from(vec![b'x'; 32 << 20]);
        let service = move |_, _: Request<Bytes>| {
            let large = large.clone();
            async { answer::text(StatusCode::OK, large).map(Full::new) }
        };
        let address = serve_here(limits, Open(service)).await;
        let mut stalled = TcpStream::connect(address).await.unwrap();
        stalled.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        // Its place is free for the next one, though it is still there.
        let mut next = TcpStream::connect(address).await.unwrap();
        next.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut start = [0; 12];
        let read = timeout(Duration::from_secs(30), next.read_exact(&mut start)).await;
        read.expect("the stalled one is cut").unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        drop(stalled);
    }

    /// Answers when it is told to, and tells what it has come to know.
    #[derive(Clone)]
    struct Told {
        accepted: Arc<Semaphore>,
        begun: Arc<Semaphore>,
        go: Arc<Semaphore>,
    }

    impl Service for Told {
        type Body = Full<Bytes>;

        fn knows(&self, _: IpAddr) -> bool {
            self.accepted.add_permits(1);
            true
        }

        async fn answer(&self, _: IpAddr, _: Request<Bytes>) -> Response<Full<Bytes>> {
            self.begun.add_permits(1);
            self.go.acquire().await.unwrap().forget();
            answer::empty(StatusCode::OK).map(Full::new)
        }
    }

    #[tokio::test]
    async fn whoever_was_accepted_is_answered_though_nobody_listens_any_more() {
        let none = || Arc::new(Semaphore::new(0));
        let service = Told { accepted: none(), begun: none(), go: none() };
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, listener) = Listener::until_dropped(socket);
        let mut serving = tokio::spawn(run(listener, Limits::default(), None, service.clone()));
        let [mut idle, mut busy, mut fresh] = [
            TcpStream::connect(address).await.unwrap(),
            TcpStream::connect(address).await.unwrap(),
            TcpStream::connect(address).await.unwrap(),
        ];
        service.accepted.acquire_many(3).await.unwrap().forget();
        let head = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n";
        // Has been answered.
        idle.write_all(head).await.unwrap();
        idle.write_all(b"hello").await.unwrap();
        service.go.add_permits(1);
        let mut answer = [0; 12];
        idle.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        // Is at its request; the other has not sent one yet.
        busy.write_all(head).await.unwrap();
        busy.write_all(b"hello").await.unwrap();
        service.begun.acquire_many(2).await.unwrap().forget();
        drop(stop);
        // The idle one is told by its end, which is later than that of accepting.
        let mut rest = String::new();
        idle.read_to_string(&mut rest).await.unwrap();
        assert!(rest.ends_with("\r\n\r\n") && !rest.contains("connection: close"), "{rest}");
        assert!(!serving.is_finished());
        fresh.write_all(head).await.unwrap();
        service.go.add_permits(2);
        fresh.write_all(b"hello").await.unwrap();
        for mut one in [busy, fresh] {
            let mut said = String::new();
            one.read_to_string(&mut said).await.unwrap();
            assert!(said.starts_with("HTTP/1.1 200") && said.contains("connection: close"), "{said}");
        }
        timeout(Duration::from_secs(30), &mut serving).await.expect("all have ended").unwrap();
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
        let address = server(large()).await;
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
