//! A small HTTP/1 server for operators: bounded in connections, sizes and times.

mod accept;
mod connection;
mod limits;
mod refusals;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Body;

use crate::Admin;
use crate::streams::Sent;
pub use accept::Listener;
pub(crate) use accept::run;
pub use limits::Limits;

/// A handler of requests.
pub(crate) trait Service: Clone + Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error = Infallible> + Send + 'static;

    /// Returns whether connections from `_peer` count against the general limit; those of other clients have
    /// the limit [`Limits::strangers`].
    fn knows(&self, _peer: IpAddr) -> bool {
        true
    }

    /// Answers requests that need no body, so that none is read.
    fn answer_head(&self, _peer: IpAddr, _head: &Parts) -> Option<Response<Bytes>> {
        None
    }

    /// Answers the rest; bodies are whole and within [`Limits::body_size`].
    fn answer(
        &self,
        peer: IpAddr,
        request: Request<Bytes>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A handler that answers all clients alike.
#[derive(Clone)]
struct Open<H>(H);

impl<H, F, B> Service for Open<H>
where
    H: Fn(IpAddr, Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    type Body = B;

    fn answer(&self, peer: IpAddr, request: Request<Bytes>) -> impl Future<Output = Response<B>> + Send {
        self.0(peer, request)
    }
}

impl Service for Admin {
    type Body = Sent;

    fn knows(&self, peer: IpAddr) -> bool {
        Admin::knows(self, peer)
    }

    fn answer_head(&self, peer: IpAddr, head: &Parts) -> Option<Response<Bytes>> {
        Admin::answer_head(self, peer, head)
    }

    async fn answer(&self, peer: IpAddr, request: Request<Bytes>) -> Response<Sent> {
        self.handle_streams(peer, request).await
    }
}

/// Answers requests with `handler`, as [`run`] does.
pub(crate) async fn serve<H, F>(listener: Listener, limits: Limits, handler: H)
where
    H: Fn(IpAddr, Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Bytes>> + Send,
{
    let whole = move |peer, request| {
        let answer = handler(peer, request);
        async move { answer.await.map(Full::new) }
    };
    serve_with(listener, limits, whole).await;
}

/// Answers requests with `handler`, whose bodies may be of any type.
pub(crate) async fn serve_with<H, F, B>(listener: Listener, limits: Limits, handler: H)
where
    H: Fn(IpAddr, Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    run(listener, limits, None, Open(handler)).await;
}
