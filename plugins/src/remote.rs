//! Requests to servers whose addresses may be known only at run time, such as those in a discovery document.

pub(crate) mod cache;
pub(crate) mod forward;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sdk::build::split_authority;
use sdk::world::{Fetch, FetchError, FetchTimeouts, Fetched, Keep, Target, Tunnel};
use sdk::{Exchange, Fields, Method};

use forward::{Forward, Proxy};

/// An `http` or `https` URL, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    host: String,
    port: u16,
    tls: bool,
    authority: String,
    /// Path and query.
    pub uri: String,
}

/// How requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// For connecting, sending and reading each.
    pub timeout: Duration,
    pub verify: bool,
    /// The largest answer, in bytes.
    pub most: usize,
    pub keep: Keep,
}

/// Why a URL is refused.
const NO_URL: &str = "it must be http://host[:port][/path] or https://…, percent-encoded";

impl Remote {
    /// # Errors
    /// Another scheme, credentials in the URL, an invalid host or port, characters that cannot stand in a request.
    pub fn parse(url: &str) -> Result<Remote, &'static str> {
        let (tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(NO_URL),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, uri) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        if !authority.bytes().all(is_name) || !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NO_URL);
        }
        let (host, port) = split_authority(authority, if tls { 443 } else { 80 }).ok_or(NO_URL)?;
        let slash = if uri.starts_with('/') { "" } else { "/" };
        Ok(Remote {
            host: host.to_owned(),
            port,
            tls,
            authority: authority.to_owned(),
            uri: format!("{slash}{uri}"),
        })
    }

    /// The same with a further argument in its query.
    #[must_use]
    pub fn with_query(&self, form: Vec<u8>) -> Remote {
        let mark = if self.uri.contains('?') { '&' } else { '?' };
        let form = String::from_utf8(form).unwrap_or_default();
        Remote { uri: format!("{}{mark}{form}", self.uri), ..self.clone() }
    }

    pub fn is_https(&self) -> bool {
        self.tls
    }

    /// Sends a request on behalf of `x` and returns the complete answer.
    pub async fn fetch(
        &self,
        x: &Exchange<'_>,
        manner: Manner,
        method: Method,
        fields: Fields,
        body: Bytes,
    ) -> Result<Fetched, FetchError> {
        self.fetch_by(x, manner, None, method, fields, body).await
    }

    /// As [`Remote::fetch`], through the proxies.
    pub async fn fetch_by(
        &self,
        x: &Exchange<'_>,
        manner: Manner,
        forward: Option<&Forward>,
        method: Method,
        mut fields: Fields,
        body: Bytes,
    ) -> Result<Fetched, FetchError> {
        let world = x.world();
        let proxy = forward.and_then(|forward| forward.to(&self.host, self.tls));
        let (host, port) = proxy.map_or((&self.host, self.port), |proxy| (&proxy.host, proxy.port));
        let found = match host.parse::<IpAddr>() {
            Ok(ip) => Arc::from([ip]),
            Err(_) => world.resolve(host, manner.timeout).await.map_err(|_| FetchError::Unresolved)?,
        };
        let mut uri = self.uri.clone();
        let mut tunnel = None;
        if let Some(Proxy { authorization, .. }) = proxy {
            if self.tls {
                let host =
                    if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
                let authority = format!("{host}:{}", self.port);
                tunnel = Some(Tunnel { authority, authorization: authorization.clone() });
            } else {
                // A proxy needs the whole of it (RFC 9112 section 3.2.2).
                uri = format!("http://{}{uri}", self.authority);
                if let Some(authorization) = authorization {
                    // It was checked.
                    let _ = fields.set(b"Proxy-Authorization", authorization.as_bytes());
                }
            }
        }
        x.count_hop(&mut fields);
        let Manner { timeout, verify, most, keep } = manner;
        let target = Target {
            authority: self.authority.clone(),
            addresses: found.iter().map(|ip| SocketAddr::new(*ip, port)).collect(),
            tls: self.tls,
        };
        let fetch = Fetch {
            verify,
            target,
            method_name: Vec::new(),
            method,
            uri: uri.into_bytes(),
            fields,
            body,
            timeouts: FetchTimeouts { connect: timeout, send: timeout, read: timeout },
            max_body: most,
            // Idempotent methods may be sent twice anyway. A code or a refresh token is valid once.
            repeatable: false,
            http2: false,
            keep,
            tunnel,
        };
        world.fetch(fetch).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let parsed = |url: &str| Remote::parse(url).map(|it| (it.host, it.port, it.tls, it.uri)).ok();
        let it = |host: &str, port, tls, uri: &str| Some((host.to_owned(), port, tls, uri.to_owned()));
        assert_eq!(parsed("http://a.test"), it("a.test", 80, false, "/"));
        assert_eq!(parsed("https://a.test/x?y#z"), it("a.test", 443, true, "/x?y"));
        assert_eq!(parsed("https://[::1]:8443?y"), it("::1", 8443, true, "/?y"));
        let both = |url: &str| Remote::parse(url).unwrap().with_query(b"a=%20".to_vec()).uri;
        assert_eq!([both("http://a"), both("http://a/x?y")], ["/?a=%20", "/x?y&a=%20"]);
        for wrong in
            ["ftp://a/", "a.test", "http://", "http://a:0/", "http://u:p@a/", "http://a/b c", "http://a\\b/"]
        {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
