//! The target of a driver: address, protocol, and the expected response.

use std::net::SocketAddr;

use anyhow::Result;
use serde::Serialize;

use crate::{certificate, mixture};

/// The protocol between clients and a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Front {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 in clear text, with prior knowledge.
    H2c,
    /// HTTP/2 over TLS.
    H2,
    Http3,
}

impl Front {
    pub fn tls(self) -> bool {
        matches!(self, Self::Https | Self::H2 | Self::Http3)
    }

    pub fn http2(self) -> bool {
        matches!(self, Self::H2c | Self::H2)
    }
}

/// The kind of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    Get,
    /// A unary gRPC call, to a gRPC upstream.
    Grpc,
    /// A WebSocket whose messages are echoed.
    WebSocket,
}

/// The requests of a driver and the expected response.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: SocketAddr,
    pub front: Front,
    pub call: Call,
    /// Number of different paths, requested in turn: `/hello` if 1, else `/hello/0`, `/hello/1`,
    /// ...
    pub paths: usize,
    /// Sent as `apikey` if present.
    pub key: Option<&'static str>,
    /// Bytes of a correct response's body.
    pub body: u64,
    /// Use the paths and hosts of `mixture.rs` instead.
    pub mixed: bool,
    /// Offer the post-quantum key exchange instead of X25519.
    pub hybrid: bool,
}

impl Target {
    /// One path by HTTP/1.1 in clear text.
    pub fn plain(address: SocketAddr, body: u64) -> Self {
        Self {
            address,
            front: Front::Http,
            call: Call::Get,
            paths: 1,
            key: None,
            body,
            mixed: false,
            hybrid: false,
        }
    }

    pub fn path(&self, index: usize) -> String {
        match self.call {
            Call::Grpc => GRPC_PATH.to_owned(),
            _ if self.mixed => mixture::path(index % self.paths),
            _ if self.paths == 1 => "/hello".to_owned(),
            _ => format!("/hello/{}", index % self.paths),
        }
    }

    /// A complete GET request for path number `index`.
    pub fn request(&self, index: usize) -> Vec<u8> {
        let key = self.key.map(|key| format!("apikey: {key}\r\n")).unwrap_or_default();
        let own = if self.mixed { mixture::host(index % self.paths) } else { None };
        let host = own.unwrap_or_else(|| self.host());
        format!("GET {} HTTP/1.1\r\nHost: {host}\r\n{key}\r\n", self.path(index)).into_bytes()
    }

    /// The URL for tools; over TLS with the certificate's name.
    pub fn url(&self) -> String {
        let scheme = if self.front.tls() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.host(), self.path(0))
    }

    fn host(&self) -> String {
        if self.front.tls() {
            format!("{}:{}", certificate::NAME, self.address.port())
        } else {
            self.address.to_string()
        }
    }

    /// An HTTP/2 or HTTP/3 request for path number `index`, without its body.
    pub(super) fn request_head(&self, index: usize) -> Result<http::Request<()>> {
        let scheme = if self.front.tls() { "https" } else { "http" };
        let uri = format!("{scheme}://{}{}", self.host(), self.path(index));
        let mut request = http::Request::builder().uri(uri);
        if self.call == Call::Grpc {
            request =
                request.method("POST").header("content-type", "application/grpc").header("te", "trailers");
        }
        if let Some(key) = self.key {
            request = request.header("apikey", key);
        }
        Ok(request.body(())?)
    }
}

/// The method of gRPC calls.
pub const GRPC_PATH: &str = "/bench.Echo/Unary";

/// The message of a gRPC call and of its response: 100 bytes, not compressed.
pub fn grpc_message() -> Vec<u8> {
    let mut message = vec![0, 0, 0, 0, 100];
    message.resize(105, b'x');
    message
}
