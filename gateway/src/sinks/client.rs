//! One batch to one server: by HTTP, over a TCP connection, or as datagrams.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use adapters::Trust;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use sdk::sink::{Destination, Spec, Taken};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UdpSocket};

/// Batches of one sink that are under way at the same time.
const AT_ONCE: usize = 8;

/// The most bytes of an answer that are read, as the message about an error repeats some.
const ANSWER: usize = 64 << 10;

/// Bytes of an answer that a message repeats.
const REPEATED: usize = 200;

/// The longest datagram there can be.
const DATAGRAM: usize = 65_507;

/// A connection, over TLS or not.
trait Connection: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection for T {}

type Stream = Box<dyn Connection>;

/// How batches of a sink reach their server, with the connections that are kept.
pub(super) struct Client {
    way: Way,
    trust: Arc<OnceLock<Trust>>,
}

enum Way {
    Http {
        idle: RefCell<Vec<SendRequest<Full<Bytes>>>>,
    },
    /// Entries stay in order, so there is one connection.
    Tcp {
        kept: RefCell<Option<Stream>>,
        keep: bool,
    },
    Udp,
}

impl Client {
    pub(super) fn new(target: &Destination, trust: Arc<OnceLock<Trust>>) -> Client {
        let way = match target {
            Destination::Http { .. } => Way::Http { idle: RefCell::default() },
            Destination::Tcp { keep, .. } => Way::Tcp { kept: RefCell::default(), keep: *keep },
            // Files have a thread and no client.
            Destination::Udp { .. } | Destination::File { .. } => Way::Udp,
        };
        Client { way, trust }
    }

    /// Batches that may be under way at the same time.
    pub(super) fn at_once(&self) -> usize {
        match self.way {
            Way::Http { .. } | Way::Tcp { keep: false, .. } => AT_ONCE,
            Way::Tcp { keep: true, .. } | Way::Udp => 1,
        }
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// The reason, if known, in APISIX's words where it has some.
    pub(super) async fn send(
        &self,
        spec: &Spec,
        addresses: &[SocketAddr],
        batch: &[Taken],
    ) -> Result<(), String> {
        let Some((host, port)) = spec.target.server() else { return Err("there is no server".to_owned()) };
        tracing::debug!("sending a batch logs to {host}:{port}");
        match (&self.way, &spec.target) {
            (Way::Http { idle }, Destination::Http { timeout, .. }) => {
                let text = Bytes::from(text(spec, batch));
                let (status, body) = self.post(idle, spec, addresses, text, *timeout).await?;
                if status < 400 {
                    return Ok(());
                }
                let body = String::from_utf8_lossy(&body[..body.len().min(REPEATED)]).into_owned();
                Err(format!("server returned status code[{status}] host[{host}] port[{port}] body[{body}]"))
            }
            (Way::Tcp { kept, keep }, Destination::Tcp { timeout, .. }) => {
                let text = text(spec, batch);
                let mut idle = kept.take();
                if let Some(mut stream) = idle.take_if(is_open)
                    && within(*timeout, write(&mut stream, &text)).await.is_ok()
                {
                    kept.replace(Some(stream));
                    return Ok(());
                }
                let place = format!("host[{host}] port[{port}] err: ");
                let mut stream = self
                    .connect(&spec.target, addresses, *timeout)
                    .await
                    .map_err(|error| format!("failed to connect to TCP server: {place}{error}"))?;
                let sent = async {
                    write(&mut stream, &text).await?;
                    if *keep { Ok(()) } else { stream.shutdown().await }
                };
                within(*timeout, sent)
                    .await
                    .map_err(|error| format!("failed to send data to TCP server: {place}{error}"))?;
                if *keep {
                    kept.replace(Some(stream));
                } else if spec.target.tls().is_some() {
                    // Closing with unread session tickets would reset the connection, and lose the bytes that the
                    // server has not read yet.
                    let _ = within(*timeout, tokio::io::copy(&mut stream, &mut tokio::io::sink())).await;
                }
                Ok(())
            }
            (_, Destination::Udp { timeout, .. }) => {
                within(*timeout, datagrams(addresses, batch)).await.map_err(|error| {
                    format!("failed to send data to UDP server: host[{host}] port[{port}] err: {error}")
                })
            }
            _ => Err("the target is of another kind".to_owned()),
        }
    }

    /// Sends a request over a kept connection or a new one; gives the status and some of the body.
    async fn post(
        &self,
        idle: &RefCell<Vec<SendRequest<Full<Bytes>>>>,
        spec: &Spec,
        addresses: &[SocketAddr],
        text: Bytes,
        timeout: Duration,
    ) -> Result<(u16, Bytes), String> {
        let Destination::Http { host, port, uri, content_type, authorization, .. } = &spec.target else {
            return Err("the target is of another kind".to_owned());
        };
        let request = || {
            let mut request = http::Request::post(uri.as_str())
                .header(HOST, host)
                .header(CONTENT_TYPE, *content_type)
                .header(http::header::USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION")));
            if let Some(authorization) = authorization {
                request = request.header(AUTHORIZATION, authorization);
            }
            request
                .body(Full::new(text.clone()))
                .map_err(|error| format!("no request can be made of it: {error}"))
        };
        let answered = async |mut sender: SendRequest<Full<Bytes>>| {
            let response = within(timeout, sender.send_request(request()?)).await?;
            let status = response.status().as_u16();
            let body = within(timeout, Limited::new(response.into_body(), ANSWER).collect()).await;
            // Of an answer that was too long or broke off, the status is what counts.
            let body = body.map(|body| body.to_bytes());
            if body.is_ok() && sender.is_ready() {
                let mut idle = idle.borrow_mut();
                if idle.len() < AT_ONCE {
                    idle.push(sender);
                }
            }
            Ok::<_, String>((status, body.unwrap_or_default()))
        };
        let kept = std::iter::from_fn(|| idle.borrow_mut().pop()).find(SendRequest::is_ready);
        if let Some(sender) = kept {
            match answered(sender).await {
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
        let stream = self
            .connect(&spec.target, addresses, timeout)
            .await
            .map_err(|error| format!("failed to connect to host[{host}] port[{port}] {error}"))?;
        let (mut sender, connection) = within(timeout, handshake(TokioIo::new(stream))).await?;
        tokio::task::spawn_local(super::task(async move {
            // The request that waits for the answer returns the error.
            let _ = connection.await;
        }));
        // Without this the first request could find it not ready.
        let _ = within(timeout, sender.ready()).await;
        answered(sender)
            .await
            .map_err(|error| format!("error while sending data to [{host}] port[{port}] {error}"))
    }
}

/// The body of a batch.
fn text(spec: &Spec, batch: &[Taken]) -> Vec<u8> {
    spec.joined.text(batch.iter().map(Taken::bytes))
}

/// Each entry is a datagram (RFC 5426 section 3.1).
async fn datagrams(addresses: &[SocketAddr], batch: &[Taken]) -> io::Result<()> {
    let address = *addresses.first().ok_or_else(unresolved)?;
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    for entry in batch {
        let bytes = entry.bytes();
        // One that is too long is cut, as many a syslog server would do itself.
        socket.send(&bytes[..bytes.len().min(DATAGRAM)]).await?;
    }
    Ok(())
}

impl Client {
    /// Connects to the first address that takes it.
    async fn connect(
        &self,
        target: &Destination,
        addresses: &[SocketAddr],
        timeout: Duration,
    ) -> Result<Stream, String> {
        let mut last = unresolved().to_string();
        for &address in addresses {
            let connected = within(timeout, TcpStream::connect(address)).await;
            let secured = match connected {
                Ok(stream) => within(timeout, self.secure(target, stream)).await,
                Err(error) => Err(error),
            };
            match secured {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Speaks TLS, where the target wants it.
    async fn secure(&self, target: &Destination, stream: TcpStream) -> Result<Stream, String> {
        // Whether small writes wait does not matter: a batch is one write.
        let _ = stream.set_nodelay(true);
        let (Some(tls), Some((host, _))) = (target.tls(), target.server()) else {
            return Ok(Box::new(stream));
        };
        let trust = self.trust.get().ok_or("it is not known yet which servers are trusted")?;
        let name = tls.name.as_deref().unwrap_or(host);
        Ok(Box::new(trust.secure(stream, name, tls.verify).await?))
    }
}

async fn write(stream: &mut Stream, text: &[u8]) -> io::Result<()> {
    stream.write_all(text).await?;
    stream.flush().await
}

/// Whether the server has neither closed the connection nor sent bytes, which no request would read.
fn is_open(stream: &mut Stream) -> bool {
    let mut byte = [0; 1];
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
}

fn unresolved() -> io::Error {
    io::Error::other("the host name has no address")
}

/// APISIX's word for it.
const TIMEOUT: &str = "timeout";

async fn within<T, E: std::fmt::Display>(
    timeout: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(timeout, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(TIMEOUT.to_owned()),
    }
}
