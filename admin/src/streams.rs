//! Answers that do not end: the live view and taps, as `text/event-stream`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use sdk::tap::Filter;
use tokio::sync::{Semaphore, mpsc};

use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::live::Live;
use crate::program::Program;
use crate::request::pairs;

/// Clients of the live view at once, over the Admin API and the control API.
const MOST_CLIENTS: usize = 32;

static CLIENTS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(MOST_CLIENTS));

/// A body: whole, or events until the client leaves.
#[derive(Debug)]
pub(crate) enum Sent {
    Whole(Full<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl From<Bytes> for Sent {
    fn from(body: Bytes) -> Sent {
        Sent::Whole(Full::new(body))
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Sent::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Sent::Events(events) => {
                events.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Sent::Whole(whole) => whole.is_end_stream(),
            Sent::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Sent::Whole(whole) => whole.size_hint(),
            Sent::Events(_) => SizeHint::default(),
        }
    }
}

/// The streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Live,
    Tap,
}

impl Stream {
    /// Returns the stream at a path below `prefix`.
    pub fn at(head: &Parts, prefix: &str) -> Option<Stream> {
        if head.method != Method::GET {
            return None;
        }
        match head.uri.path().strip_prefix(prefix)?.trim_end_matches('/') {
            "live" => Some(Stream::Live),
            "tap" => Some(Stream::Tap),
            _ => None,
        }
    }
}

/// Answers with a stream. `shows_headers` is false for clients that may not see headers of requests.
pub(crate) fn answer(
    program: &dyn Program,
    stream: Stream,
    head: &Parts,
    shows_headers: bool,
) -> Result<Response<Sent>, ErrorAnswer> {
    let live = live(program)?;
    let events = match stream {
        Stream::Live => live_events(&live)?,
        Stream::Tap => {
            let filter = filter(head)?;
            if filter.headers && !shows_headers {
                let reason = "headers of requests are shown by the Admin API to keys of the role admin";
                return Err(ErrorAnswer::new(StatusCode::FORBIDDEN, reason));
            }
            let busy = |reason: &str| ErrorAnswer::new(StatusCode::SERVICE_UNAVAILABLE, reason);
            live.taps.open(filter).map_err(busy)?
        }
    };
    let mut response = Response::new(Sent::Events(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Answers `live/history?of=gateway&step=1`; `route=ID` is `of=route:ID`, as for nodes, streams and workers.
pub(crate) fn history(program: &dyn Program, head: &Parts) -> Answer {
    let (mut of, mut step) = ("gateway".to_owned(), 1);
    for (name, value) in query(head)? {
        match &*name {
            "of" => of = value,
            "route" | "node" | "stream" | "worker" => of = format!("{name}:{value}"),
            "step" => step = value.parse().map_err(|_| said("`step` must be 1, 10 or 60"))?,
            _ => {}
        }
    }
    let columns = live(program)?.columns(&of, step).map_err(said)?;
    Ok(answer::json(StatusCode::OK, &columns))
}

fn live(program: &dyn Program) -> Result<std::sync::Arc<Live>, ErrorAnswer> {
    let none = || ErrorAnswer::new(StatusCode::SERVICE_UNAVAILABLE, "the live view is not available");
    program.live().ok_or_else(none)
}

fn live_events(live: &Live) -> Result<mpsc::Receiver<Bytes>, ErrorAnswer> {
    let busy = |_| ErrorAnswer::new(StatusCode::SERVICE_UNAVAILABLE, "32 clients see the live view already");
    let permit = CLIENTS.try_acquire().map_err(busy)?;
    let mut made = live.events();
    // A slow client gets the newest event when it has read the one before.
    let (send, events) = mpsc::channel(1);
    control::tasks::spawn(async move {
        let _permit = permit;
        loop {
            tokio::select! {
                () = send.closed() => return,
                changed = made.changed() => if changed.is_err() { return },
            }
            let event = made.borrow_and_update().clone();
            if !event.is_empty() && send.send(event).await.is_err() {
                return;
            }
        }
    });
    Ok(events)
}

fn filter(head: &Parts) -> Result<Filter, ErrorAnswer> {
    let mut filter = Filter::default();
    for (name, value) in query(head)? {
        // The key of the Admin API may stand here, too.
        if name != "api_key" {
            filter.set(&name, &value).map_err(said)?;
        }
    }
    Ok(filter)
}

fn query(head: &Parts) -> Result<Vec<(String, String)>, ErrorAnswer> {
    let all = pairs(head.uri.query().unwrap_or_default()).ok_or_else(|| said("the query is not UTF-8"))?;
    Ok(all.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
}
