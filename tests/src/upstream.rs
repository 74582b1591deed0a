//! Fake upstreams: small servers that do as a case says and note what they saw.

mod serve;
mod spec;

pub use spec::{Reply, Spec};

use crate::http::Message;
use crate::ports;
use anyhow::{Context, Result};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A running fake upstream; dropping it frees its port.
pub struct Upstream {
    pub port: u16,
    shared: Arc<Shared>,
}

/// State shared by connections.
struct Shared {
    spec: Spec,
    port: u16,
    seen: Mutex<Vec<Message>>,
    problems: Mutex<Vec<String>>,
    connections: AtomicUsize,
    turns: AtomicUsize,
    stopped: AtomicBool,
}

impl Upstream {
    /// Reserves the port; what is answered may depend on the other ports.
    pub fn bind(port: Option<u16>, closed: bool) -> Result<(u16, Option<TcpListener>)> {
        if closed {
            return Ok((port.map_or_else(ports::free, Ok)?, None));
        }
        let address = ("127.0.0.1", port.unwrap_or(0));
        let listener =
            TcpListener::bind(address).with_context(|| format!("a fake upstream on {address:?}"))?;
        Ok((listener.local_addr()?.port(), Some(listener)))
    }

    pub fn start(spec: Spec, port: u16, listener: Option<TcpListener>) -> Upstream {
        let shared = Arc::new(Shared {
            spec,
            port,
            seen: Mutex::default(),
            problems: Mutex::default(),
            connections: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        if let Some(listener) = listener {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || accept(&listener, &shared));
        }
        Upstream { port, shared }
    }

    pub fn seen(&self) -> Vec<Message> {
        self.shared.seen.lock().expect("no holder panics").clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Errors of the upstream, for the report of a failing case.
    pub fn problems(&self) -> Vec<String> {
        self.shared.problems.lock().expect("no holder panics").clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then ends.
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            if let Err(error) = serve::connection(&shared, &stream) {
                shared.problems.lock().expect("no holder panics").push(format!("{error:#}"));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Spec, Upstream};
    use crate::client::{Call, Client};
    use serde_json::json;

    fn upstream(spec: serde_json::Value) -> Upstream {
        let (port, listener) = Upstream::bind(None, false).expect("a port");
        Upstream::start(Spec::from_value(spec).expect("valid"), port, listener)
    }

    fn get(upstream: &Upstream, call: Call) -> crate::client::Answer {
        Client::default().call(&format!("127.0.0.1:{}", upstream.port), &call).expect("answered")
    }

    #[test]
    fn echo_says_what_it_got() {
        let echo = upstream(json!("echo"));
        let call = Call::new("POST", "/a?b=c").header("X-One", "1").body("text".into());
        let body: serde_json::Value = serde_json::from_slice(&get(&echo, call).message.body).expect("JSON");
        assert_eq!(
            (&body["method"], &body["target"], &body["body"]),
            (&json!("POST"), &json!("/a?b=c"), &json!("text"))
        );
        assert_eq!(body["headers"]["x-one"], json!("1"));
        assert_eq!(echo.seen()[0].line, "POST /a?b=c HTTP/1.1");
    }

    #[test]
    fn replies_come_in_order_and_the_last_stays() {
        let two = upstream(json!({"replies": [{"status": 500}, {"body": "ok", "headers": {"X": "y"}}]}));
        assert_eq!(get(&two, Call::new("GET", "/")).message.status(), 500);
        for _ in 0..2 {
            assert_eq!(get(&two, Call::new("GET", "/")).message.body, b"ok");
        }
        assert_eq!((two.seen().len(), two.connections()), (3, 3));
    }

    #[test]
    fn chunks_trailers_cuts_and_raw_bytes() {
        let chunked = upstream(json!({"chunks": ["a", "b"], "trailers": {"T": "v"}}));
        let answer = get(&chunked, Call::new("GET", "/"));
        assert_eq!((answer.message.body.as_slice(), answer.message.trailers.len()), (&b"ab"[..], 1));
        let cut = upstream(json!({"body": "abcdef", "cut": 2}));
        assert!(!get(&cut, Call::new("GET", "/")).message.complete);
        let raw = upstream(json!({"raw": "HTTP/1.1 299 Odd\r\nContent-Length: 0\r\n\r\n"}));
        assert_eq!(get(&raw, Call::new("GET", "/")).message.status(), 299);
    }
}
