//! What a plugin answers itself, where a route exposes it.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use wire::Method;

use crate::chain::Chain;

/// A path of a plugin's own. It answers nobody until a route with the plugin public-api leads there.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub method: Method,
    pub path: String,
}

/// An endpoint with the plugin that serves it; see [`crate::Build::endpoints`].
#[derive(Debug)]
pub struct Served {
    pub endpoint: Endpoint,
    /// Holds that plugin alone: ask its instance to [`crate::Instance::serve`].
    pub chain: Arc<Chain>,
}

/// What the program answers when the metrics are asked for, outside the workers. A service
/// ([`crate::Build::service`]) of a gateway that serves.
#[derive(Default)]
pub struct MetricsPage(OnceLock<Source>);

type Source = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Bytes>>>> + Send + Sync>;

impl MetricsPage {
    /// Says who writes the page. Plugins are built before there is anybody.
    pub fn written_by(
        &self,
        source: impl Fn() -> Pin<Box<dyn Future<Output = Option<Bytes>>>> + Send + Sync + 'static,
    ) {
        let _ = self.0.set(Box::new(source));
    }

    /// The page as it is now; nothing if nobody writes it, or that failed.
    pub async fn get(&self) -> Option<Bytes> {
        self.0.get()?().await
    }
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MetricsPage").field(&self.0.get().is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn page(metrics: &MetricsPage) -> Option<Bytes> {
        let mut got = std::pin::pin!(metrics.get());
        match got.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(page) => page,
            Poll::Pending => panic!("nothing is waited for"),
        }
    }

    #[test]
    fn the_page_is_written_by_whoever_said_so_first() {
        let metrics = MetricsPage::default();
        assert_eq!(page(&metrics), None);
        metrics.written_by(|| Box::pin(async { Some(Bytes::from_static(b"one")) }));
        metrics.written_by(|| Box::pin(async { Some(Bytes::from_static(b"two")) }));
        assert_eq!(page(&metrics), Some(Bytes::from_static(b"one")));
    }
}
