use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use crate::{MAX_BODY, answer};

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

/// Answers 401, except to `/open`; with `strangers`, all clients count as strangers.
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
async fn refusals_do_not_wait_for_the_body() {
    let address = serve_here(large(), Closed { strangers: false }).await;
    // The body never comes; the answer and the end of the connection do.
    for head in
        ["content-length: 1000000", "transfer-encoding: chunked", "content-length: 5\r\nexpect: 100-continue"]
    {
        let said = exchange(address, format!("PUT / HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n").as_bytes()).await;
        assert!(said.starts_with("HTTP/1.1 401"), "{said}");
        assert!(said.contains("connection: close"), "{said}");
    }
    // A client that is still sending its body gets the answer.
    let mut large = b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 1500000\r\n\r\n".to_vec();
    large.resize(large.len() + 1_500_000, b'x');
    let said = exchange(address, &large).await;
    assert!(said.starts_with("HTTP/1.1 401") && said.ends_with("\r\n\r\n"), "{said}");
    let kept = b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /open HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let said = exchange(address, kept).await;
    assert!(said.starts_with("HTTP/1.1 401") && said.contains("HTTP/1.1 200"), "{said}");
}

#[tokio::test]
async fn refused_clients_have_a_connection_limit_of_their_own() {
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
        while exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.is_empty() {}
    };
    timeout(Duration::from_secs(30), asked).await.expect("the permit is free again");
}

#[tokio::test]
async fn slow_heads_make_room_and_answered_clients_stay() {
    let none = || Arc::new(Semaphore::new(0));
    let service = Gated { accepted: none(), begun: none(), go: none() };
    let day = Duration::from_secs(24 * 3600);
    let limits = Limits { connections: 4, head: day, body: day, connection: day, ..Limits::default() };
    let address = serve_here(limits, service.clone()).await;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(request).await.unwrap();
    service.begun.acquire().await.unwrap().forget();
    // More connections than permits; each has sent a part of a head.
    let mut slow = Vec::new();
    for _ in 0..12 {
        let mut one = TcpStream::connect(address).await.unwrap();
        one.write_all(b"GET / HTTP/1.1\r\nhost: ").await.unwrap();
        slow.push(one);
    }
    let mut next = TcpStream::connect(address).await.unwrap();
    next.write_all(request).await.unwrap();
    let begun = timeout(Duration::from_secs(600), service.begun.acquire()).await;
    begun.expect("a slow head made room").unwrap().forget();
    service.go.add_permits(2);
    for mut one in [busy, next] {
        let mut said = String::new();
        one.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }
    // The oldest ones were closed.
    let mut said = String::new();
    let first = timeout(Duration::from_secs(600), slow[0].read_to_string(&mut said)).await;
    assert!(first.expect("it is closed").map_or(true, |read| read == 0), "{said}");
}

#[tokio::test]
async fn a_kept_connection_that_asks_nothing_is_closed() {
    let address = server(Limits { head: Duration::from_millis(100), ..Limits::default() }).await;
    let said = exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
}

#[tokio::test]
async fn clients_that_do_not_read_are_disconnected() {
    let limits = Limits { connections: 1, send: Duration::from_millis(100), ..Limits::default() };
    let large = Bytes::from(vec![b'x'; 32 << 20]);
    let service = move |_, _: Request<Bytes>| {
        let large = large.clone();
        async { answer::text(StatusCode::OK, large).map(Full::new) }
    };
    let address = serve_here(limits, Open(service)).await;
    let mut stalled = TcpStream::connect(address).await.unwrap();
    stalled.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    // Its permit is free for the next client, though it has not closed its socket.
    let mut next = TcpStream::connect(address).await.unwrap();
    next.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut start = [0; 12];
    let read = timeout(Duration::from_secs(30), next.read_exact(&mut start)).await;
    read.expect("the stalled one is cut").unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    drop(stalled);
}

/// Waits for a permit of `go` before each answer, and counts accepted connections and requests begun.
#[derive(Clone)]
struct Gated {
    accepted: Arc<Semaphore>,
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Service for Gated {
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
async fn accepted_connections_are_answered_after_the_listener_stops() {
    let none = || Arc::new(Semaphore::new(0));
    let service = Gated { accepted: none(), begun: none(), go: none() };
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
    // `idle` has had its answer.
    idle.write_all(head).await.unwrap();
    idle.write_all(b"hello").await.unwrap();
    service.go.add_permits(1);
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // `busy` waits for its answer; `fresh` has not sent a request yet.
    busy.write_all(head).await.unwrap();
    busy.write_all(b"hello").await.unwrap();
    service.begun.acquire_many(2).await.unwrap().forget();
    drop(stop);
    // Accepting has stopped by the time that the idle connection is closed.
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
async fn slow_clients_are_disconnected() {
    let short = Duration::from_millis(100);
    let address = server(Limits { head: short, body: short, ..Limits::default() }).await;
    // Each call returns when the server closes the connection.
    exchange(address, b"GET / HTTP/1.1\r\nhost:").await;
    exchange(address, b"").await;
    let late = exchange(address, b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe").await;
    assert!(late.starts_with("HTTP/1.1 408"), "{late}");
}

#[tokio::test]
async fn a_kept_connection_makes_room_and_ends_with_its_age() {
    let day = Duration::from_secs(24 * 3600);
    let age = Duration::from_millis(300);
    let limits = Limits { connections: 1, head: day, connection: age, ..Limits::default() };
    let address = server(limits).await;
    for others in [true, false] {
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut byte = [0];
        first.read_exact(&mut byte).await.unwrap();
        if others {
            let second = exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
            assert!(second.starts_with("HTTP/1.1 200"), "{second}");
        }
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_secs(600), first.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "it is still open");
    }
}

#[tokio::test]
async fn bad_requests_and_panics_affect_only_their_connection() {
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
