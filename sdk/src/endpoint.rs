//! Endpoints that plugins serve where a route exposes them.

mod control;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use wire::Method;

use crate::chain::Chain;
pub use control::{ControlReply, ControlRequest};

/// A path served by a plugin. Unreachable until a route with the plugin public-api leads to it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub method: Method,
    pub path: String,
}

impl Endpoint {
    /// Whether a request for this path is the endpoint's. A path that ends with `*` is a prefix.
    pub fn takes(&self, method: Method, path: &[u8]) -> bool {
        let own = self.path.as_bytes();
        let fits = match own.strip_suffix(b"*") {
            Some(prefix) => path.starts_with(prefix),
            None => path == own,
        };
        fits && self.method == method
    }
}

/// A note of an exchange: the endpoint that is called, by its place in the list of its plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called(pub usize);

/// An endpoint and the plugin that serves it; see [`crate::Build::endpoints`].
#[derive(Debug)]
pub struct Served {
    pub endpoint: Endpoint,
    /// Its place in the list of its plugin.
    pub at: usize,
    /// A chain of that plugin alone; its instance handles requests with [`crate::Instance::serve`].
    pub chain: Arc<Chain>,
}

/// The metrics page of the program, rendered outside of the workers. A service
/// ([`crate::Build::service`]) of a running gateway.
#[derive(Default)]
pub struct MetricsPage(OnceLock<Source>);

type Source = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Bytes>>>> + Send + Sync>;

impl MetricsPage {
    /// Sets the source of the page. Plugins are built before there is one; the first source is
    /// kept.
    pub fn set_source(
        &self,
        source: impl Fn() -> Pin<Box<dyn Future<Output = Option<Bytes>>>> + Send + Sync + 'static,
    ) {
        let _ = self.0.set(Box::new(source));
    }

    /// Renders the page; `None` without a source, or if rendering fails.
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
            Poll::Pending => panic!("the page must not wait"),
        }
    }

    #[test]
    fn a_path_with_a_star_is_a_prefix() {
        let endpoint = |path: &str| Endpoint { method: Method::Get, path: path.to_owned() };
        assert!(endpoint("/a").takes(Method::Get, b"/a") && endpoint("/a/*").takes(Method::Get, b"/a/b"));
        assert!(!endpoint("/a").takes(Method::Post, b"/a") && !endpoint("/a").takes(Method::Get, b"/a/b"));
        assert!(!endpoint("/a/*").takes(Method::Get, b"/a"));
    }

    #[test]
    fn the_first_source_of_the_page_is_kept() {
        let metrics = MetricsPage::default();
        assert_eq!(page(&metrics), None);
        metrics.set_source(|| Box::pin(async { Some(Bytes::from_static(b"one")) }));
        metrics.set_source(|| Box::pin(async { Some(Bytes::from_static(b"two")) }));
        assert_eq!(page(&metrics), Some(Bytes::from_static(b"one")));
    }
}
