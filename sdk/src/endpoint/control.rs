//! Endpoints of plugins on the control API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use bytes::Bytes;
use wire::h1::decode::{self, Limits, Progress};

use crate::client::Client;
use crate::consumers::Consumers;
use crate::engine::Messages;
use crate::exchange::{Body, Exchange};
use crate::inert::InertWorld;

/// A request to the control API, for plugins that have endpoints there.
#[derive(Debug, Clone)]
pub struct ControlRequest {
    pub method: String,
    /// Path and query.
    pub uri: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Bytes,
    pub peer: IpAddr,
    pub now_ms: u64,
}

/// The response of such an endpoint.
#[derive(Debug, Clone, Default)]
pub struct ControlReply {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Bytes,
}

impl ControlRequest {
    pub fn path(&self) -> &str {
        self.uri.split('?').next().unwrap_or_default()
    }

    /// Calls `f` with an exchange for this request, off the data plane. `None` for a request that is invalid there.
    pub fn exchange<T>(&self, f: impl FnOnce(&mut Exchange<'_>) -> T) -> Option<T> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.uri).into_bytes();
        for (name, value) in &self.headers {
            let is_framing =
                ["content-length", "transfer-encoding"].iter().any(|own| name.eq_ignore_ascii_case(own));
            if !is_framing && !value.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
                text.extend_from_slice(name.as_bytes());
                text.extend_from_slice(b": ");
                text.extend_from_slice(value);
                text.extend_from_slice(b"\r\n");
            }
        }
        text.extend_from_slice(b"\r\n");
        let mut messages = Messages::default();
        decode::request(&text, &mut Progress::default(), &mut messages.request, &Limits::default())
            .ok()??;
        if !self.body.is_empty() {
            messages.body = Rc::new(self.body.to_vec());
        }
        let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let client = Client::new(SocketAddr::new(self.peer, 0), local, false);
        let (consumers, world) = (Consumers::default(), InertWorld::new(self.now_ms));
        let mut x = Exchange::new(&mut messages, &client, &consumers, &world);
        if !self.body.is_empty() {
            x.engine_mut().body_state = Body::Whole;
        }
        Some(f(&mut x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str, headers: &[(&str, &str)], body: &'static str) -> ControlRequest {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
        ControlRequest {
            method: method.to_owned(),
            uri: uri.to_owned(),
            headers: headers.collect(),
            body: body.into(),
            peer: IpAddr::from([127, 0, 0, 9]),
            now_ms: 7,
        }
    }

    #[test]
    fn it_becomes_an_exchange() {
        let headers = [("Host", "a:9090"), ("X-A", "1"), ("X-B", "x\r\ny: z"), ("Content-Length", "4")];
        let post = request("POST", "/v1/plugin/a?b=1", &headers, "text");
        assert_eq!(post.path(), "/v1/plugin/a");
        let seen = post.exchange(|x| {
            assert_eq!((x.path(), x.query()), (&b"/v1/plugin/a"[..], &b"b=1"[..]));
            assert_eq!((x.header("X-A"), x.header("X-B"), x.header("y")), (Some(&b"1"[..]), None, None));
            assert_eq!((x.body(), x.client().ip_text()), (&b"text"[..], &b"127.0.0.9"[..]));
            x.start_ms()
        });
        assert_eq!(seen, Some(7));
        for (method, uri) in [("GET", "/a b"), ("G ET", "/"), ("GET", "no-path"), ("GET", "/\r\nA: b")] {
            assert!(request(method, uri, &[("Host", "a")], "").exchange(|_| ()).is_none(), "{method} {uri}");
        }
    }
}
