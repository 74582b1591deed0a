//! Serves one connection: reads each request whole within the limits, then answers it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::timeout;

use super::accept::Held;
use super::limits::SMALL;
use super::{Limits, Service};
use crate::patience::Patience;
use crate::turns::Answering;
use crate::{MAX_BODY, answer, too_large};

/// The time in which a kept-alive connection that is about to close may still send one more request.
const LAST_REQUEST: Duration = Duration::from_millis(100);

/// The time for which a refused body is read and discarded.
const LINGER: Duration = Duration::from_secs(2);

pub(super) async fn connection<S: AsyncRead + AsyncWrite + Send + Unpin>(
    stream: S,
    peer: IpAddr,
    limits: Limits,
    service: impl Service,
    Held { place, turn }: Held,
    mut ended: watch::Receiver<()>,
) {
    let (asked, leaving) = (AtomicBool::new(false), AtomicBool::new(false));
    let answer = service_fn(|request: Request<Incoming>| async {
        let answering = turn.answering();
        asked.store(true, Ordering::Relaxed);
        let response = answer(&service, &limits, peer, request).await;
        // The connection counts as being answered until the body of the response has been sent.
        let response = response.map(|body| Guarded { body: Box::pin(body), _answering: answering });
        Ok::<_, Infallible>(match leaving.load(Ordering::Relaxed) {
            true => closing(response),
            false => response,
        })
    });
    let stream = Patience::new(stream, limits.send);
    let sends = stream.sends();
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(100)
        .max_buf_size(SMALL)
        .serve_connection(TokioIo::new(stream), answer);
    let mut serving = pin!(serving);
    let last = async {
        tokio::select! {
            () = tokio::time::sleep(limits.connection) => "a connection is closed for its age",
            _ = ended.changed() => "a connection is closed as its listener has stopped",
        }
    };
    let room = async {
        loop {
            turn.ended().await;
            if !sends.load(Ordering::Relaxed) {
                return;
            }
            // The client is still reading an answer.
            turn.wait();
        }
    };
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = room => {
            tracing::debug!(%peer, "a connection without a request made room for another one");
            Ok(())
        }
        why = last => {
            tracing::debug!(%peer, "{why}");
            // The next answer is the last one and has `Connection: close`.
            leaving.store(true, Ordering::Relaxed);
            // Hyper at once closes connections it has read nothing from, though a request may be under way.
            let grace = if asked.load(Ordering::Relaxed) { LAST_REQUEST } else { limits.head };
            match timeout(grace, serving.as_mut()).await {
                Ok(served) => served,
                Err(_) => {
                    serving.as_mut().graceful_shutdown();
                    timeout(limits.body, serving).await.unwrap_or(Ok(()))
                }
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
    drop(place);
}

async fn answer<S: Service>(
    service: &S,
    limits: &Limits,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Response<Either<S::Body, Full<Bytes>>> {
    let short = |response: Response<Bytes>| response.map(|body| Either::Right(Full::new(body)));
    let (head, body) = request.into_parts();
    if let Some(response) = service.answer_head(peer, &head) {
        if body.is_end_stream() {
            return short(response);
        }
        // A client that waits for `100 Continue` does not get it, so it sends no body to discard.
        if !head.headers.contains_key(header::EXPECT) {
            control::tasks::spawn(async { _ = timeout(LINGER, forget(body)).await });
        }
        return short(closing(response));
    }
    match whole(body, limits).await {
        Ok(body) => service.answer(peer, Request::from_parts(head, body)).await.map(Either::Left),
        Err(refused) => short(closing(*refused)),
    }
}

/// Reads the whole body.
async fn whole(body: Incoming, limits: &Limits) -> Result<Bytes, Box<Response<Bytes>>> {
    let refused = |response| Err(Box::new(response));
    let announced = body.size_hint().lower();
    if announced > limits.body_size as u64 {
        return refused(too_large(announced, limits.body_size));
    }
    match timeout(limits.body, Limited::new(body, limits.body_size).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            refused(too_large(limits.body_size as u64 + 1, limits.body_size))
        }
        Ok(Err(_)) => refused(answer::empty(StatusCode::BAD_REQUEST)),
        Err(_) => refused(answer::empty(StatusCode::REQUEST_TIMEOUT)),
    }
}

/// Reads and discards a body: closing while the client still sends would reset the connection and lose the answer.
async fn forget(mut body: Incoming) {
    let mut left = MAX_BODY;
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(size) {
            Some(less) => left = less,
            None => return,
        }
    }
}

/// A body that marks its connection as being answered until the whole body has been sent.
struct Guarded<B> {
    body: Pin<Box<B>>,
    _answering: Answering,
}

impl<B: Body> Body for Guarded<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.body.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Adds `Connection: close`, so that the rest of an unread body is not taken for a request.
fn closing<B>(mut response: Response<B>) -> Response<B> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
