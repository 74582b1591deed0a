//! One HTTP/2 connection to one member of the cluster.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tower_service::Service;

use crate::Names;

/// A connection on which nothing comes is asked whether it lives after so long.
const PING: Duration = Duration::from_secs(5);

/// And is given up after as long again without an answer.
const PONG: Duration = Duration::from_secs(3);

/// The bytes that a member may send before they are read, for a stream and for the connection.
const WINDOW: u32 = 4 << 20;

/// The address of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub tls: bool,
    /// Without the brackets of an IPv6 address.
    pub name: String,
    pub port: u16,
}

impl Host {
    /// Reads `http://127.0.0.1:2379`.
    ///
    /// # Errors
    /// It is not an address of etcd; in words.
    pub fn parse(url: &str) -> Result<Host, String> {
        let wrong =
            || format!("`{url}` is no address of etcd: expected http://host:port or https://host:port");
        let (tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(wrong()),
        };
        let uri: http::Uri = rest.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let authority =
            uri.authority().filter(|_| uri.path().is_empty() || uri.path() == "/").ok_or_else(wrong)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(wrong());
        }
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // An authority keeps an invalid port as part of its text.
        let has_port = !authority.as_str().ends_with(authority.host());
        let port = match (authority.port_u16(), has_port) {
            (Some(port), _) => port,
            (None, false) => 2379,
            (None, true) => return Err(wrong()),
        };
        Ok(Host { tls, name, port })
    }

    /// As the origin of requests.
    pub fn uri(&self) -> http::Uri {
        self.to_string().parse().unwrap_or_default()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match self.name.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.name, self.port),
            false => write!(f, "{scheme}://{}:{}", self.name, self.port),
        }
    }
}

/// TLS towards etcd.
#[derive(Debug, Clone)]
pub struct Tls {
    pub config: Arc<ClientConfig>,
    /// The name to ask for and to expect; `None` is that of the address.
    pub sni: Option<String>,
}

/// A connection. It ends with its last clone.
#[derive(Debug, Clone)]
pub struct Link {
    sender: SendRequest<Body>,
    _driver: Arc<Driver>,
}

/// Ends the connection's task.
#[derive(Debug)]
struct Driver(tokio::task::JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Link {
    /// Connects. May take as long as the system likes: the caller bounds it.
    ///
    /// # Errors
    /// In words.
    pub async fn connect(host: &Host, tls: Option<&Tls>, names: Option<&Names>) -> Result<Link, String> {
        let stream = crate::http::connect(&host.name, host.port, names).await?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let stream: Box<dyn Stream> = match (host.tls, tls) {
            (false, _) => Box::new(stream),
            (true, None) => return Err("there are no settings of TLS".to_owned()),
            (true, Some(tls)) => {
                let name = tls.sni.as_ref().unwrap_or(&host.name).clone();
                let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
                let connecting = TlsConnector::from(tls.config.clone()).connect(name, stream);
                Box::new(connecting.await.map_err(|error| format!("TLS: {error}"))?)
            }
        };
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let driver = control::tasks::spawn(async {
            // Requests on the connection return its error.
            let _ = connection.await;
        });
        Ok(Link { sender, _driver: Arc::new(Driver(driver)) })
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Service<http::Request<Body>> for Link {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (url, shown) in [
            ("http://127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("https://etcd-1.example:12379/", "https://etcd-1.example:12379"),
            ("http://etcd", "http://etcd:2379"),
            ("http://[::1]:1", "http://[::1]:1"),
        ] {
            let host = Host::parse(url).unwrap();
            assert_eq!(host.to_string(), shown);
            assert_eq!(host.uri().to_string().trim_end_matches('/'), shown);
        }
        for wrong in [
            "127.0.0.1:2379",
            "ftp://a:1",
            "http://",
            "http://a:x",
            "http://a:70000",
            "http://u:p@a:1",
            "http://a:1/v3",
        ] {
            assert!(Host::parse(wrong).is_err(), "{wrong}");
        }
    }
}
