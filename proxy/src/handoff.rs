//! Requests on the data port that the control side answers.
//!
//! The proxy knows nothing of who answers: it asks by the head whether the request
//! may come in, reads the (bounded) body of one that may, hands the whole over with
//! the peer's real address as a typed value, and writes the answer. Used for the Admin API on the data port, where an operator asks for it.

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

pub type HandoffFuture<T> = Pin<Box<dyn Future<Output = Option<T>> + Send>>;

/// The decision on a request by its head alone.
#[derive(Debug)]
pub enum Admission {
    /// The rest of it may be read.
    Granted(HandoffRequest),
    /// It is answered without its body.
    Refused(HandoffReply),
}

/// Answers requests outside of the workers.
pub trait Handoff: Send + Sync {
    /// Whether a request for this (normalised) path is handed over.
    fn takes(&self, path: &[u8]) -> bool;

    /// Bodies may be at most so long, in bytes.
    fn max_body(&self) -> usize;

    /// Looks at peer and head, before any of the body is read: strangers cost no memory. The body
    /// of `head` is empty. `None` when the other side has stopped.
    fn admit(&self, head: HandoffRequest) -> HandoffFuture<Admission>;

    /// Answers; `None` when the other side has stopped.
    fn call(&self, request: HandoffRequest) -> HandoffFuture<HandoffReply>;
}
