//! hot path
//!
//! Upstreams that a plugin chooses.
//!
//! A plugin requests one when it is built ([`crate::Build::upstream`]) and gets an opaque handle.
//! The compiler builds the upstream like a route's own.

use std::sync::{Arc, OnceLock};

use model::Invalid;

use crate::connection::TlsHandle;

/// An upstream to send requests to; see [`crate::Exchange::choose_upstream`]. Clones refer to the
/// same one.
#[derive(Debug, Clone, Default)]
pub struct UpstreamHandle(Arc<OnceLock<u32>>);

/// The upstream chosen instead of the route's: a slot, or `None` if the chosen upstream does not
/// exist.
pub type Chosen = Option<u32>;

/// Builds upstreams for plugins. Implemented by the compiler.
pub trait Upstreams {
    /// # Errors
    /// Errors in the configuration, with pointers relative to it.
    fn inline(&self, written: &model::Upstream) -> Result<UpstreamHandle, Invalid>;

    fn by_id(&self, id: &str) -> UpstreamHandle;

    /// # Errors
    /// As [`Upstreams::inline`].
    fn client_tls(&self, written: &model::upstream::Tls) -> Result<TlsHandle, Invalid>;
}

impl UpstreamHandle {
    /// Sets the slot. Called once by the compiler, before the handle is used.
    pub fn place(&self, slot: u32) {
        // A second slot would be a bug in the compiler; the first one is kept.
        let _ = self.0.set(slot);
    }

    /// The slot; `None` if there is no such upstream.
    #[inline]
    pub fn slot(&self) -> Chosen {
        self.0.get().copied()
    }
}
