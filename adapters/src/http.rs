//! Requests to registries and secret managers, with or without TLS.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use control::discovery::without_user;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use hyper::{Method, rt};
use hyper_util::rt::TokioIo;
use sdk::resolve::Resolve;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The largest answer of a registry that is taken.
pub const MOST: usize = 64 << 20;
/// The values that an answer of a registry may hold. A list of zeros or of empty objects takes forty times the memory of
/// its text.
const MOST_VALUES: usize = 2_000_000;

/// How long a server may be silent before the next one is asked as well.
const SILENCE: Duration = Duration::from_secs(1);

/// How TLS is spoken: with servers that are verified by whom the gateway trusts, and with any.
#[derive(Debug, Clone)]
pub struct Trust {
    pub verifying: Arc<ClientConfig>,
    pub trusting: Arc<ClientConfig>,
    /// How servers that settings name are resolved; without it, as the system does.
    pub names: Option<Names>,
}

/// Addresses of host names from the control plane's resolver.
#[derive(Clone)]
pub struct Names(pub Arc<dyn Resolve>);

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

/// A connection over TLS; see [`Trust::secure`].
pub type Secured = tokio_rustls::client::TlsStream<TcpStream>;

impl Trust {
    /// Speaks TLS over a connection with the server of this name or address, and HTTP/2 within, if the server must
    /// speak that.
    ///
    /// # Errors
    /// The name is invalid, or the handshake failed, for example because the certificate is not valid.
    pub async fn secure(
        &self,
        stream: TcpStream,
        name: &str,
        verify: bool,
        http2: bool,
    ) -> Result<Secured, String> {
        let mut config = if verify { self.verifying.clone() } else { self.trusting.clone() };
        if http2 {
            Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".to_vec()];
        }
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| format!("`{name}` is no server name for a TLS handshake"))?;
        let secured = TlsConnector::from(config).connect(name, stream).await;
        secured.map_err(|error| format!("TLS: {error}"))
    }
}

/// TLS in the settings of registries (ours, where APISIX has no such setting).
#[derive(Debug, Clone, Deserialize)]
pub struct TlsSettings {
    pub ssl_verify: bool,
    /// A file with the authorities that are trusted instead of the general ones.
    pub ssl_trusted_certificate: Option<String>,
}

impl Trust {
    /// Returns the client configuration for these settings.
    ///
    /// # Errors
    /// A file that cannot be read, or has no certificate.
    pub fn of(&self, settings: &TlsSettings) -> Result<Arc<ClientConfig>, String> {
        match &settings.ssl_trusted_certificate {
            _ if !settings.ssl_verify => Ok(self.trusting.clone()),
            None => Ok(self.verifying.clone()),
            Some(path) => self.of_file(Path::new(path)).map_err(|why| format!("{path}: {why}")),
        }
    }

    /// Trusts only the authorities that a file names.
    ///
    /// # Errors
    /// A file that cannot be read, or has no certificate.
    pub fn of_file(&self, path: &Path) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        for found in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
            roots.add(found.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("there is no certificate in it".to_owned());
        }
        let builder = ClientConfig::builder_with_provider(self.verifying.crypto_provider().clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    }
}

/// The address of a server.
#[derive(Debug, Clone)]
pub struct Server {
    /// `host:port`
    pub authority: String,
    /// The `Host` it gets: without the port where that is the scheme's own.
    pub host: String,
    /// The prefix of every path, without a slash at its end.
    pub base: String,
    user: Option<(String, String)>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    names: Option<Names>,
}

/// A request to a server.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    pub method: Method,
    /// Below the base, with its query.
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Bytes,
}

/// An answer whose body is still to come.
pub struct Open {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Incoming,
    _driver: Driver,
}

/// Drives a connection for as long as it is needed.
struct Driver(tokio::task::JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Milliseconds, as APISIX writes them.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Timeouts {
    pub connect: u64,
    pub send: u64,
    pub read: u64,
    /// Seconds that a registry may wait for changes, if it can.
    #[serde(default)]
    pub wait: u64,
}

/// An answer of a server.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl HttpAnswer {
    /// # Errors
    /// It is no JSON, or holds too many values; in words.
    pub fn json(&self) -> Result<Value, String> {
        parse(&self.body).map_err(|why| format!("the answer is not JSON that can be read: {why}"))
    }

    /// How many values it holds, if it is JSON.
    pub fn values(&self) -> usize {
        values(&self.body)
    }
}

impl Server {
    /// Of `http://user:password@host:port/base`, or the same with `https`, where TLS is spoken as `tls` says.
    ///
    /// # Errors
    /// It is no such address; in words, without the name and the password.
    pub fn parse(url: &str, tls: &Arc<ClientConfig>) -> Result<Server, String> {
        let shown = || match url.starts_with("http://") || url.starts_with("https://") {
            true => without_user(url),
            false => url.rsplit('@').next().unwrap_or_default().to_owned(),
        };
        let (secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(format!("{}: expected an http:// or https:// address", shown())),
        };
        let (place, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, authority) = match place.rsplit_once('@') {
            Some((user, authority)) => (user.split_once(':'), authority),
            None => (None, place),
        };
        if authority.is_empty() || base.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(format!("{}: expected http://host:port", shown()));
        }
        let port_at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        // A `/` in the password ends the authority within it, and what is taken for the port is a piece of the password.
        if port_at.is_some_and(|at| authority[at + 1..].parse::<u16>().is_err()) {
            return Err(format!("{}: expected http://host:port with a number as the port", shown()));
        }
        let host = &authority[..port_at.unwrap_or(authority.len())];
        let tls = match secure {
            true => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(bare.to_owned());
                Some((tls.clone(), name.map_err(|_| format!("{}: it has no host name", shown()))?))
            }
            false => None,
        };
        let default = if secure { 443 } else { 80 };
        let authority = match port_at {
            Some(_) => authority.to_owned(),
            None => format!("{authority}:{default}"),
        };
        let host = match authority.strip_suffix(&format!(":{default}")) {
            Some(host) => host.to_owned(),
            None => authority.clone(),
        };
        let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        Ok(Server { authority, host, base: base.trim_end_matches('/').to_owned(), user, tls, names: None })
    }

    /// The same server, resolved so.
    #[must_use]
    pub fn resolved_by(self, names: Option<Names>) -> Server {
        Server { names, ..self }
    }

    async fn connect(&self) -> Result<TcpStream, String> {
        let (host, port) = self.authority.rsplit_once(':').unwrap_or((&self.authority, ""));
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| format!("{}: expected a port", self.authority))?;
        connect(host, port, self.names.as_ref()).await
    }

    /// The name and password in its address.
    pub fn user(&self) -> Option<&(String, String)> {
        self.user.as_ref()
    }

    /// Asks for a path below the base, which may take the timeouts and `wait` longer.
    ///
    /// # Errors
    /// No answer, or another status than 200, in words.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        timeouts: Timeouts,
        wait: Duration,
    ) -> Result<HttpAnswer, String> {
        let question = Question { method, path, headers, body: Bytes::new() };
        let answer = self.send(question, timeouts, wait, MOST).await?;
        self.accept(answer)
    }

    /// Lets only an answer with the status 200 pass.
    ///
    /// # Errors
    /// Another status, in words.
    pub fn accept(&self, answer: HttpAnswer) -> Result<HttpAnswer, String> {
        match answer.status {
            200 => Ok(answer),
            status => Err(format!("{}: status {status}", self.authority)),
        }
    }

    /// Sends a question and reads the answer, of any status, up to `most` bytes.
    ///
    /// # Errors
    /// No answer, in words.
    pub async fn send(
        &self,
        question: Question<'_>,
        timeouts: Timeouts,
        wait: Duration,
        most: usize,
    ) -> Result<HttpAnswer, String> {
        let millis = Duration::from_millis;
        let all = millis(timeouts.connect) + millis(timeouts.send) + millis(timeouts.read) + wait;
        let exchange = async {
            let open = self.open(question, timeouts).await?;
            let body = Limited::new(open.body, most).collect().await.map_err(|error| error.to_string())?;
            Ok(HttpAnswer { status: open.status, headers: open.headers, body: body.to_bytes() })
        };
        match tokio::time::timeout(all, exchange).await {
            Ok(answer) => answer.map_err(|error: String| match error.starts_with(&self.authority) {
                true => error,
                false => format!("{}: {error}", self.authority),
            }),
            Err(_) => Err(format!("{}: no answer in time", self.authority)),
        }
    }

    /// Sends a question and reads the head of the answer. Only connecting has a time-out.
    ///
    /// # Errors
    /// No answer, in words.
    pub async fn open(&self, question: Question<'_>, timeouts: Timeouts) -> Result<Open, String> {
        let connecting = async {
            let stream = self.connect().await?;
            // Questions are small, and each is waited for.
            let _ = stream.set_nodelay(true);
            match &self.tls {
                None => shake(stream).await,
                Some((config, name)) => {
                    let connector = TlsConnector::from(config.clone());
                    let stream = connector.connect(name.clone(), stream).await;
                    shake(stream.map_err(|error| format!("TLS: {error}"))?).await
                }
            }
        };
        let shaken = tokio::time::timeout(Duration::from_millis(timeouts.connect), connecting).await;
        let (mut sender, driver) = match shaken {
            Ok(shaken) => shaken.map_err(|error| format!("{}: {error}", self.authority))?,
            Err(_) => return Err(format!("{}: connecting timed out", self.authority)),
        };
        let mut request = hyper::Request::builder()
            .method(question.method)
            .uri(match (self.base.as_str(), question.path) {
                ("", "") => "/".to_owned(),
                (base, path) => format!("{base}{path}"),
            })
            .header(HOST, &self.host)
            .header("accept", "application/json");
        if let Some((name, password)) = &self.user {
            let both = STANDARD.encode(format!("{name}:{password}"));
            request = request.header(AUTHORIZATION, format!("Basic {both}"));
        }
        for (name, value) in question.headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(question.body)).map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await;
        let (head, body) = response.map_err(|error| format!("{}: {error}", self.authority))?.into_parts();
        Ok(Open { status: head.status.as_u16(), headers: head.headers, body, _driver: driver })
    }
}

/// Connects to a host name or an address without brackets. The caller bounds the time.
///
/// # Errors
/// The name has no address, or none of them takes the connection; in words.
pub async fn connect(host: &str, port: u16, names: Option<&Names>) -> Result<TcpStream, String> {
    let connected = match names {
        Some(names) if host.parse::<IpAddr>().is_err() => {
            let answer = names.0.resolve(host).await.ok_or("too many names are being resolved")?;
            let found = answer.addresses.map_err(|why| format!("{host} has no address: {why}"))?;
            let addresses: Vec<SocketAddr> = found.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
            TcpStream::connect(&addresses[..]).await
        }
        _ => TcpStream::connect((host, port)).await,
    };
    connected.map_err(|error| error.to_string())
}

async fn shake<T>(stream: T) -> Result<(SendRequest<Full<Bytes>>, Driver), String>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    TokioIo<T>: rt::Read + rt::Write,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // If it fails, the question under way returns the error.
    let driver = control::tasks::spawn(async move { _ = connection.await });
    Ok((sender, Driver(driver)))
}

/// Each server once, beginning anywhere.
pub fn in_turn(servers: &[Server]) -> impl Iterator<Item = &Server> {
    let start = fastrand::usize(..servers.len().max(1));
    servers.iter().cycle().skip(start).take(servers.len())
}

/// Asks servers in turn, beginning anywhere, until one answers. The next one is asked when those before it have failed
/// or were silent for [`SILENCE`].
pub async fn first<'s, T, F: Future<Output = Result<T, String>>>(
    servers: &'s [Server],
    mut ask: impl FnMut(&'s Server) -> F,
) -> Result<T, String> {
    let mut errors = Vec::new();
    let mut rest = in_turn(servers).peekable();
    let mut under_way = FuturesUnordered::new();
    loop {
        under_way.extend(rest.next().map(&mut ask));
        let more = rest.peek().is_some();
        tokio::select! {
            answer = under_way.next() => match answer {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) => errors.push(error),
                None if errors.is_empty() => return Err("there is no server".to_owned()),
                None => return Err(errors.join("; ")),
            },
            () = tokio::time::sleep(SILENCE), if more => {}
        }
    }
}

/// Reads JSON that a registry has sent.
///
/// # Errors
/// It is not JSON, or holds too many values; in words.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    if values(text) > MOST_VALUES {
        return Err(format!("it holds more than {MOST_VALUES} values"));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// How many values JSON holds: there is one behind each comma, and at most one more for each list and object.
pub fn values(text: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if std::mem::take(&mut escaped) => {}
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// A part of a path or a query.
pub fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let tls = &crate::testing::trust().verifying;
        let server = Server::parse("http://jack:se:cret@127.0.0.1:8848/base/", tls).unwrap();
        assert_eq!((server.authority.as_str(), server.base.as_str()), ("127.0.0.1:8848", "/base"));
        assert_eq!(server.user, Some(("jack".to_owned(), "se:cret".to_owned())));
        assert!(server.tls.is_none());
        assert_eq!(Server::parse("http://[::1]", tls).unwrap().authority, "[::1]:80");
        for (url, authority, name) in
            [("https://a.test/x", "a.test:443", "a.test"), ("https://[::1]:8443", "[::1]:8443", "::1")]
        {
            let server = Server::parse(url, tls).unwrap();
            assert_eq!(
                (server.authority.as_str(), server.tls.unwrap().1.to_str().as_ref()),
                (authority, name)
            );
        }
        for wrong in [
            "127.0.0.1:80",
            "ftp://a",
            "http://",
            "https://",
            "https://a b",
            "http://a/b c\r\n",
            "http://a:b",
        ] {
            assert!(Server::parse(wrong, tls).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_about_addresses_hold_no_passwords() {
        let tls = &crate::testing::trust().verifying;
        for wrong in [
            "jack:s3cret@a.test",
            "ftp://jack:s3cret@a.test",
            "http://jack:s3cret@",
            "http://jack:s3c/cret@a.test",
            "https://jack:s3cret@a b",
            "http://jack:s3cret@a.test/b c",
        ] {
            let why = Server::parse(wrong, tls).unwrap_err();
            assert!(!why.contains("s3c") && !why.contains("jack"), "{why}");
        }
    }

    #[test]
    fn values_are_counted_before_they_are_read() {
        assert_eq!(values(br#"{"a": [1, {"b": "x,y[{\\\",,"}], "c": 2}"#), 5);
        assert_eq!(values(br#"["a\\", 1]"#), 2);
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(parse::<Value>(list(1000).as_bytes()).is_ok());
        for bomb in [list(MOST_VALUES + 1), format!("[{}0]", "{},".repeat(MOST_VALUES))] {
            let why = parse::<Value>(bomb.as_bytes()).unwrap_err();
            assert_eq!(why, "it holds more than 2000000 values");
        }
    }

    #[tokio::test]
    async fn servers_are_verified_by_the_authorities_that_are_named() {
        use tokio_rustls::TlsAcceptor;
        use tokio_rustls::rustls::ServerConfig;
        use tokio_rustls::rustls::pki_types::PrivateKeyDer;
        let certs = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certs/");
        let path = |name: &str| format!("{certs}{name}");
        let trust = crate::testing::trust();
        let chain: Vec<_> =
            CertificateDer::pem_file_iter(path("server-ec.crt")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(path("server-ec.key")).unwrap();
        let builder = ServerConfig::builder_with_provider(trust.verifying.crypto_provider().clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await;
                let _ = stream.shutdown().await;
            }
        });
        let ask = async |ca: Option<&str>, verify: bool, name: &'static str| {
            let patient = Timeouts { connect: 2000, send: 2000, read: 5000, wait: 0 };
            let settings = TlsSettings { ssl_verify: verify, ssl_trusted_certificate: ca.map(path) };
            let tls = trust.of(&settings).unwrap();
            let mut server = Server::parse(&format!("https://{addr}"), &tls).unwrap();
            server.tls = server.tls.map(|(config, _)| (config, ServerName::try_from(name).unwrap()));
            server.ask(Method::GET, "/", &[], patient, Duration::ZERO).await
        };
        assert_eq!(ask(Some("ca.crt"), true, "server.test").await.unwrap().body, "{}");
        assert!(ask(Some("ca.crt"), true, "other.example").await.unwrap_err().contains("not valid for name"));
        assert!(ask(Some("other-ca.crt"), true, "server.test").await.unwrap_err().contains("UnknownIssuer"));
        assert!(ask(None, true, "server.test").await.is_err());
    }
}
