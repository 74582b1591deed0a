//! Requests to registries.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;

/// The largest answer that is taken.
const MOST: usize = 64 << 20;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// `host:port`
    pub authority: String,
    /// What stands before every path, without a slash at its end.
    pub base: String,
    user: Option<(String, String)>,
}

/// Milliseconds, as APISIX writes them.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default)]
pub struct Timeouts {
    pub connect: u64,
    pub send: u64,
    pub read: u64,
    /// Seconds that a registry may wait for changes.
    pub wait: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { connect: 2000, send: 2000, read: 5000, wait: 60 }
    }
}

/// An answer of a server.
#[derive(Debug)]
pub struct Answer {
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Result<Value, String> {
        serde_json::from_slice(&self.body).map_err(|error| format!("the answer is not JSON: {error}"))
    }
}

impl Server {
    /// Of `http://user:password@host:port/base`.
    pub fn parse(url: &str) -> Result<Server, String> {
        let Some(rest) = url.strip_prefix("http://") else {
            return Err(format!("{url}: expected an http:// address; registries are not asked over TLS yet"));
        };
        let (place, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, authority) = match place.rsplit_once('@') {
            Some((user, authority)) => (user.split_once(':'), authority),
            None => (None, place),
        };
        if authority.is_empty() || base.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(format!("{url}: expected http://host:port"));
        }
        let port_at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let authority = if port_at.is_some() { authority.to_owned() } else { format!("{authority}:80") };
        let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        Ok(Server { authority, base: base.trim_end_matches('/').to_owned(), user })
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
    ) -> Result<Answer, String> {
        let millis = Duration::from_millis;
        let all = millis(timeouts.connect) + millis(timeouts.send) + millis(timeouts.read) + wait;
        match tokio::time::timeout(all, self.exchange(method, path, headers, timeouts)).await {
            Ok(answer) => answer.map_err(|error| format!("{}: {error}", self.authority)),
            Err(_) => Err(format!("{}: no answer in time", self.authority)),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        timeouts: Timeouts,
    ) -> Result<Answer, String> {
        let connecting = TcpStream::connect(&self.authority);
        let stream = match tokio::time::timeout(Duration::from_millis(timeouts.connect), connecting).await {
            Ok(stream) => stream.map_err(|error| error.to_string())?,
            Err(_) => return Err("connecting timed out".to_owned()),
        };
        let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|error| error.to_string())?;
        let connection = tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(HOST, &self.authority)
            .header("accept", "application/json");
        if let Some((name, password)) = &self.user {
            let both = STANDARD.encode(format!("{name}:{password}"));
            request = request.header(AUTHORIZATION, format!("Basic {both}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::<Bytes>::default()).map_err(|error| error.to_string())?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            if head.status != 200 {
                return Err(format!("status {}", head.status.as_u16()));
            }
            let body = Limited::new(body, MOST).collect().await.map_err(|error| error.to_string())?;
            Ok(Answer { headers: head.headers, body: body.to_bytes() })
        }
        .await;
        connection.abort();
        answer
    }
}

/// Asks servers in turn, beginning anywhere, until one answers.
pub async fn first<'s, T, F: Future<Output = Result<T, String>>>(
    servers: &'s [Server],
    mut ask: impl FnMut(&'s Server) -> F,
) -> Result<T, String> {
    let start = fastrand::usize(..servers.len().max(1));
    let mut errors = Vec::new();
    for server in servers.iter().cycle().skip(start).take(servers.len()) {
        match ask(server).await {
            Ok(answer) => return Ok(answer),
            Err(error) => errors.push(error),
        }
    }
    Err(if errors.is_empty() { "there is no server".to_owned() } else { errors.join("; ") })
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
        let server = Server::parse("http://jack:se:cret@127.0.0.1:8848/base/").unwrap();
        assert_eq!((server.authority.as_str(), server.base.as_str()), ("127.0.0.1:8848", "/base"));
        assert_eq!(server.user, Some(("jack".to_owned(), "se:cret".to_owned())));
        assert_eq!(Server::parse("http://[::1]").unwrap().authority, "[::1]:80");
        for wrong in ["127.0.0.1:80", "https://a", "http://", "http://a/b c\r\n"] {
            assert!(Server::parse(wrong).is_err(), "{wrong}");
        }
    }
}
