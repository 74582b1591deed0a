//! The metrics listener (`127.0.0.1:9091/apisix/prometheus/metrics`).
//!
//! [`text`] prints the pages, on a background thread and one at a time, so that neither
//! the workers nor the control plane wait for a scraper. Concurrent scrapers share a page,
//! and at most [`MAX_PAGES`] are in memory, however many scrapers of this listener or of
//! the data plane ([`Pages::text`]) do not read theirs.

mod all;
pub mod facts;
pub mod otlp;
pub mod text;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Mutex;

use crate::hosts;
use crate::server::{self, Limits, Listener};

/// Writes all metrics in the text format, in pieces.
pub type Print = Arc<dyn Fn() -> Vec<Bytes> + Send + Sync>;

/// Pages in memory at once. While this many are being sent, a scraper gets the newest of them.
const MAX_PAGES: usize = 2;

/// Serves `GET path` on `listener` until it stops. `hosts` are the names that `Host` may have besides
/// addresses and names without a dot (`deployment.admin.hosts`).
pub async fn serve(listener: Listener, path: String, hosts: &[String], limits: Limits, pages: Arc<Pages>) {
    let path: Arc<str> = path.into();
    let hosts: Arc<[String]> = hosts.into();
    server::serve_with(listener, limits, move |_, request| {
        let (path, hosts, pages) = (path.clone(), hosts.clone(), pages.clone());
        async move {
            if let Err(refusal) = hosts::check(&hosts, request.uri(), request.headers()) {
                return refusal.into_response().map(Sheet::of_bytes);
            }
            if request.uri().path() != &*path {
                return plain(StatusCode::NOT_FOUND, Sheet::default());
            }
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                return plain(StatusCode::METHOD_NOT_ALLOWED, Sheet::default());
            }
            match pages.get().await {
                Ok(page) => plain(StatusCode::OK, Sheet::of(page)),
                Err(error) => {
                    tracing::error!(%error, "printing metrics failed");
                    plain(StatusCode::INTERNAL_SERVER_ERROR, Sheet::default())
                }
            }
        }
    })
    .await;
}

fn plain(status: StatusCode, body: Sheet) -> Response<Sheet> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

/// Prints pages and shares those that are in memory.
pub struct Pages {
    print: Print,
    /// The pages that scrapers still hold, newest last. Locked while a page is printed, even after its scraper
    /// has disconnected.
    sent: Arc<Mutex<Vec<Weak<Page>>>>,
}

/// One page.
#[derive(Debug)]
struct Page {
    begun: Instant,
    pieces: Vec<Bytes>,
    /// The pieces joined, on first use.
    text: OnceLock<Vec<u8>>,
}

/// A page as one text; the page counts against [`MAX_PAGES`] while any slice of the text is held.
struct Text(Arc<Page>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.text.get_or_init(|| self.0.pieces.concat())
    }
}

impl Pages {
    pub fn new(print: Print) -> Pages {
        Pages { print, sent: Arc::default() }
    }

    /// Returns a page as one text; `None`, and a log line, if it could not be printed.
    pub async fn text(&self) -> Option<Bytes> {
        let text = async {
            let page = self.get().await?;
            tokio::task::spawn_blocking(move || Bytes::from_owner(Text(page))).await
        };
        text.await.inspect_err(|error| tracing::error!(%error, "printing metrics failed")).ok()
    }

    /// Returns a page whose printing began after this call, or the newest if [`MAX_PAGES`] are in memory.
    async fn get(&self) -> Result<Arc<Page>, tokio::task::JoinError> {
        let asked = Instant::now();
        let mut sent = self.sent.clone().lock_owned().await;
        sent.retain(|page| page.strong_count() > 0);
        let newest = sent.last().and_then(Weak::upgrade);
        if let Some(page) = newest
            && (page.begun >= asked || sent.len() >= MAX_PAGES)
        {
            return Ok(page);
        }
        let (print, begun) = (self.print.clone(), Instant::now());
        let print = move || {
            let page = Arc::new(Page { begun, pieces: print(), text: OnceLock::new() });
            sent.push(Arc::downgrade(&page));
            page
        };
        tokio::task::spawn_blocking(print).await
    }
}

/// A body that sends a page to one scraper.
#[derive(Debug, Default)]
struct Sheet {
    page: Option<Arc<Page>>,
    next: usize,
    left: u64,
}

impl Sheet {
    fn of(page: Arc<Page>) -> Sheet {
        let left = page.pieces.iter().map(|piece| piece.len() as u64).sum();
        Sheet { page: Some(page), next: 0, left }
    }

    /// Returns a body other than a page of metrics.
    fn of_bytes(body: Bytes) -> Sheet {
        Sheet::of(Arc::new(Page { begun: Instant::now(), pieces: vec![body], text: OnceLock::new() }))
    }
}

impl Body for Sheet {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let at = self.next;
        let piece = self.page.as_ref().and_then(|page| page.pieces.get(at)).cloned();
        self.next += 1;
        match &piece {
            Some(piece) => self.left -= piece.len() as u64,
            None => self.page = None,
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
