//! Requests on the data port that the control side answers.
//!
//! The proxy knows nothing of who answers: it reads the whole (bounded) request,
//! hands it over with the peer's real address as a typed value, and writes the
//! answer. Used for the Admin API on the data port, where an operator asks for it.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use bytes::Bytes;

/// A whole request.
#[derive(Debug)]
pub struct HandoffRequest {
    /// The other end of the connection, never taken from a header.
    pub peer: IpAddr,
    pub method: String,
    /// Path and query as received.
    pub target: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Bytes,
}

/// A whole answer.
#[derive(Debug)]
pub struct HandoffReply {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Bytes,
}

pub type HandoffFuture = Pin<Box<dyn Future<Output = Option<HandoffReply>> + Send>>;

/// Who answers.
pub trait Handoff: Send + Sync {
    /// Whether a request for this (normalised) path is handed over.
    fn takes(&self, path: &[u8]) -> bool;

    /// Bodies may be at most so long, in bytes.
    fn max_body(&self) -> usize;

    /// Answers; `None` when the other side has stopped.
    fn call(&self, request: HandoffRequest) -> HandoffFuture;
}
