//! The metrics listener (`127.0.0.1:9091/apisix/prometheus/metrics`).
//!
//! It prints what it is given and knows nothing of metrics. Printing happens on
//! a thread of its own, one scrape at a time, so that neither the workers nor
//! the control plane wait for a scraper.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::answer;
use crate::server::{self, Limits};

/// Writes all metrics in the text format.
pub type Print = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Serves `GET path` on `listener` for as long as the runtime lives.
pub async fn serve(listener: TcpListener, path: String, print: Print) {
    let path: Arc<str> = path.into();
    let scraping = Arc::new(Mutex::new(()));
    server::serve(listener, Limits::default(), move |_, request| {
        let (path, print, scraping) = (path.clone(), print.clone(), scraping.clone());
        async move {
            if request.uri().path() != &*path {
                return plain(StatusCode::NOT_FOUND, Bytes::new());
            }
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                return plain(StatusCode::METHOD_NOT_ALLOWED, Bytes::new());
            }
            let _alone = scraping.lock().await;
            match tokio::task::spawn_blocking(move || print()).await {
                Ok(text) => plain(StatusCode::OK, text),
                Err(error) => {
                    tracing::error!(%error, "printing metrics failed");
                    plain(StatusCode::INTERNAL_SERVER_ERROR, Bytes::new())
                }
            }
        }
    })
    .await;
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = answer::text(status, body);
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}
