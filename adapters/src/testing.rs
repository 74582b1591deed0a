//! A server that answers from a table, on a real socket.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use control::discovery::{Discovery, Service, ServiceNodes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Trust;

/// Begin of the request line, status, headers, body. Status 0 is no answer at all.
pub type Line = (&'static str, u16, Vec<(&'static str, String)>, String);

/// TLS settings for tests, which trust no authority.
pub fn trust() -> Trust {
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let builder = || {
        let builder = ClientConfig::builder_with_provider(provider.clone());
        builder.with_safe_default_protocol_versions().unwrap()
    };
    let without_roots = builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Trust { verifying: Arc::new(without_roots.clone()), trusting: Arc::new(without_roots), names: None }
}

pub struct Fake {
    pub addr: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Of several lines that fit, the first one is used and then gone, but for the last.
pub async fn server(lines: Vec<Line>) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let (lines, seen) = (Arc::new(Mutex::new(lines)), heads.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (lines, seen) = (lines.clone(), seen.clone());
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let found = {
                    let mut lines = lines.lock().unwrap();
                    let fits: Vec<usize> =
                        (0..lines.len()).filter(|&at| head.starts_with(lines[at].0)).collect();
                    match fits[..] {
                        [] => None,
                        [only] => Some(lines[only].clone()),
                        [first, ..] => Some(lines.remove(first)),
                    }
                };
                seen.lock().unwrap().push(head);
                let (_, status, headers, body) = found.unwrap_or(("", 404, Vec::new(), String::new()));
                if status == 0 {
                    return std::future::pending().await;
                }
                let headers: String =
                    headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let answer =
                    format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    Fake { addr, heads }
}

pub fn service(name: &str) -> Service {
    Service { service_name: name.to_owned(), kind: String::new(), namespace_id: None, group_name: None }
}

pub async fn ask(registry: &dyn Discovery, names: &[&str]) -> Result<ServiceNodes, String> {
    registry.ask(&names.iter().map(|name| service(name)).collect()).await
}
