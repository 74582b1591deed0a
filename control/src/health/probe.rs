//! One probe of one server.
//!
//! As little as will do: connect, shake hands where it is `https`, send a request, read the first line of
//! the answer, close. All of it has one time-out, so that a server that does a little now and then is no healthier for it.

use std::io;
use std::time::Duration;

use model::upstream::{Active, CheckType};
use snapshot::certs::ClientTls;
use snapshot::health::{Probed, Target};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{Ask, Outcome, Probing};

/// The longest first line of an answer.
const MOST_LINE: usize = 1024;

/// Probes over the network.
#[derive(Debug, Default)]
pub struct Network {}

impl Ask for Network {
    fn ask(&self, active: &Active, target: &Target, tls: Option<&ClientTls>) -> Probing {
        let (addr, timeout) = (target.addr, active.timeout.max(Duration::from_millis(1)));
        let request = match active.kind {
            CheckType::Tcp => None,
            CheckType::Http | CheckType::Https => Some(request(active, target)),
        };
        let tls = tls.map(|tls| (TlsConnector::from(tls.without_sessions()), server_name(tls, target)));
        Box::pin(async move {
            let probing = async {
                let mut stream = TcpStream::connect(addr).await?;
                match (request, tls) {
                    (None, _) => Ok(None),
                    (Some(request), None) => ask(&mut stream, &request).await.map(Some),
                    (Some(request), Some((connector, name))) => {
                        let mut stream = connector.connect(name, stream).await?;
                        ask(&mut stream, &request).await.map(Some)
                    }
                }
            };
            match tokio::time::timeout(timeout, probing).await {
                Err(_) => outcome(Probed::TimedOut, "timed out"),
                Ok(Ok(None)) => outcome(Probed::Connected, "connected"),
                Ok(Ok(Some(0))) => outcome(Probed::Status(0), "the answer is not HTTP"),
                Ok(Ok(Some(status))) => outcome(Probed::Status(status), status.to_string()),
                Ok(Err(error)) if is_ours(&error) => {
                    Outcome { probed: None, words: format!("not probed: {error}") }
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    outcome(Probed::TimedOut, "timed out")
                }
                Ok(Err(error)) => outcome(Probed::Failed, words(&error)),
            }
        })
    }
}

fn outcome(probed: Probed, words: impl Into<String>) -> Outcome {
    Outcome { probed: Some(probed), words: words.into() }
}

/// Whether it is our own machine that has run out of something.
fn is_ours(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| short.iter().any(|errno| errno.raw_os_error() == code))
}

/// The server name that is sent and verified: that of the upstream (`tls.sni`), else the `Host` without its port. If
/// that is not a name, the address is verified and no name is sent.
fn server_name(tls: &ClientTls, target: &Target) -> ServerName<'static> {
    if let Some(name) = &tls.name {
        return name.clone();
    }
    let text = target.host_header.as_deref().unwrap_or(&target.hostname);
    let host = sdk::build::split_authority(text, 443).map_or(text, |(host, _)| host);
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    ServerName::try_from(host).unwrap_or_else(|_| target.addr.ip().into())
}

fn words(error: &io::Error) -> String {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<tokio_rustls::rustls::Error>()) {
        return format!("TLS: {tls}");
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::UnexpectedEof => "the connection was closed before an answer".to_owned(),
        _ => error.to_string(),
    }
}

/// Sends the request and gives the status of the answer; 0 if it is not HTTP.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> io::Result<u16> {
    stream.write_all(request).await?;
    let mut line = Vec::with_capacity(128);
    let mut piece = [0; 256];
    while line.len() < MOST_LINE && !line.contains(&b'\n') {
        match stream.read(&mut piece).await {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&piece[..count]),
            // Many close without a word in TLS.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(status(&line))
}

fn status(line: &[u8]) -> u16 {
    let status = || {
        let rest = line.strip_prefix(b"HTTP/")?;
        let space = rest.iter().position(|&byte| byte == b' ')?;
        let version = &rest[..space];
        let is_version = version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        let text = rest[space..].trim_ascii_start();
        let digits = text.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        // A number that goes on is no status.
        let ends = text.get(3).is_none_or(|byte| byte.is_ascii_whitespace());
        std::str::from_utf8(digits).ok().filter(|_| is_version && ends)?.parse().ok()
    };
    status().unwrap_or(0)
}

/// The bytes of a probe. Nothing an operator wrote can end a line of them.
fn request(active: &Active, target: &Target) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(active.http_method.as_bytes());
    out.push(b' ');
    if !active.http_path.starts_with('/') {
        out.push(b'/');
    }
    for &byte in active.http_path.as_bytes() {
        match byte {
            0x21..=0x7e => out.push(byte),
            _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\nConnection: close\r\n");
    let mut has_host = false;
    for line in &active.req_headers {
        let Some((name, value)) = header(line) else { continue };
        has_host |= name.eq_ignore_ascii_case("host");
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if !has_host {
        let host = target.host_header.as_deref().unwrap_or(&target.hostname);
        out.extend_from_slice(b"Host: ");
        // An IPv6 address stands in brackets (RFC 3986 section 3.2.2).
        match host.parse::<std::net::Ipv6Addr>() {
            Ok(address) => out.extend_from_slice(format!("[{address}]").as_bytes()),
            Err(_) => out.extend(host.bytes().filter(u8::is_ascii_graphic)),
        }
        out.extend_from_slice(b"\r\n");
    }
    let body = active.http_req_body.as_bytes();
    if !body.is_empty() {
        out.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    out
}

/// A line of `req_headers`, unless it would break the request or is for us to say.
fn header(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(':')?;
    let value = value.trim_matches([' ', '\t']);
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let ours = ["connection", "content-length", "transfer-encoding"];
    let fits = !name.is_empty()
        && name.bytes().all(is_token)
        && value.bytes().all(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f)
        && !ours.iter().any(|own| name.eq_ignore_ascii_case(own));
    fits.then_some((name, value))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;
    use crate::health::tests::checked;

    fn active(value: Value) -> Active {
        checked(json!({"active": value}), &["127.0.0.1:80"]).active().unwrap().clone()
    }

    fn target_at(addr: SocketAddr) -> std::sync::Arc<Target> {
        checked(json!({"active": {}}), &[&addr.to_string()]).targets().next().unwrap().clone()
    }

    #[test]
    fn a_probe_is_one_request_whatever_is_written() {
        let text = |value: Value| {
            let health = checked(json!({"active": value}), &["127.0.0.1:80"]);
            String::from_utf8(request(health.active().unwrap(), health.targets().next().unwrap())).unwrap()
        };
        assert_eq!(text(json!({})), "GET / HTTP/1.1\r\nConnection: close\r\nHost: 127.0.0.1\r\n\r\n");
        assert_eq!(
            text(json!({
                "http_method": "POST", "http_path": "/a b\r\nX: y", "host": "foo.com", "http_req_body": "{}",
                "req_headers": ["User-Agent: curl", "X-Bad: a\r\nHost: evil", "Content-Length: 9", "no colon"],
            })),
            "POST /a%20b%0D%0AX:%20y HTTP/1.1\r\nConnection: close\r\nUser-Agent: curl\r\nHost: foo.com\r\n\
             Content-Length: 2\r\n\r\n{}"
        );
        assert_eq!(
            text(json!({"req_headers": ["host: own"]})),
            "GET / HTTP/1.1\r\nConnection: close\r\nhost: own\r\n\r\n"
        );
    }

    #[test]
    fn a_status_is_read_from_the_first_line() {
        for (line, expected) in [
            ("HTTP/1.1 200 OK\r\n", 200),
            ("HTTP/1.0 503\r\n", 503),
            ("HTTP/2 404 \n", 404),
            ("HTTP/1.1 2000\r\n", 0),
            ("HTTP/1.1 20\r\n", 0),
            ("HTTP/x.1 200\r\n", 0),
            ("SSH-2.0\r\n", 0),
            ("", 0),
        ] {
            assert_eq!(status(line.as_bytes()), expected, "{line:?}");
        }
    }

    /// Probes a server that sends these bytes and closes.
    async fn probed(kind: &str, says: Option<&'static [u8]>) -> Option<Probed> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 1024];
            let _ = stream.read(&mut bytes).await;
            match says {
                Some(says) => _ = stream.write_all(says).await,
                None => std::future::pending().await,
            }
        });
        let active = active(json!({"type": kind, "timeout": if says.is_none() { 0.05 } else { 10.0 }}));
        Network::default().ask(&active, &target_at(addr), None).await.probed
    }

    #[tokio::test]
    async fn servers_are_distinguished() {
        assert_eq!(probed("http", Some(b"HTTP/1.1 204 No Content\r\n\r\n")).await, Some(Probed::Status(204)));
        assert_eq!(probed("http", Some(b"220 smtp\r\n")).await, Some(Probed::Status(0)));
        assert_eq!(probed("http", Some(b"")).await, Some(Probed::Failed));
        assert_eq!(probed("http", None).await, Some(Probed::TimedOut));
        assert_eq!(probed("tcp", Some(b"")).await, Some(Probed::Connected));
        // A line without an end is not waited for.
        let endless: &'static [u8] = Box::leak(vec![b'x'; 1 << 20].into_boxed_slice());
        assert_eq!(probed("http", Some(endless)).await, Some(Probed::Status(0)));
    }

    #[tokio::test]
    async fn nobody_there_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        for kind in ["http", "tcp"] {
            let outcome =
                Network::default().ask(&active(json!({"type": kind})), &target_at(addr), None).await;
            assert_eq!(outcome, super::outcome(Probed::Failed, "connection refused"));
        }
    }
}
