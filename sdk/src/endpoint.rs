//! What a plugin answers itself, where a route exposes it.

use std::sync::Arc;

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
