//! hot path
//!
//! Upstreams that a plugin chooses.
//!
//! A plugin asks for one when it is built ([`crate::Build::upstream`]) and gets a handle, which is
//! all it ever sees of it. Compile makes the upstream as it makes a route's own.

use std::sync::{Arc, OnceLock};

use model::Invalid;

/// An upstream that requests may be sent to; see [`crate::Exchange::choose_upstream`]. Clones stand
/// for the same one.
#[derive(Debug, Clone, Default)]
pub struct UpstreamHandle(Arc<OnceLock<u32>>);

/// Where a request goes instead of the route's upstream: a slot, or to nothing if the upstream
/// that was chosen does not exist.
pub type Chosen = Option<u32>;

/// Makes upstreams for plugins. Implemented by compile.
pub trait Upstreams {
    /// # Errors
    /// What is wrong with it, its pointer beginning within it.
    fn inline(&self, written: &model::Upstream) -> Result<UpstreamHandle, Invalid>;

    fn by_id(&self, id: &str) -> UpstreamHandle;
}

impl UpstreamHandle {
    /// Gives it its slot. Compile does so once, before anybody serves with it.
    pub fn place(&self, slot: u32) {
        // A second slot would be a mistake of compile's, and the first one serves.
        let _ = self.0.set(slot);
    }

    /// Its slot; `None` if there is no such upstream.
    #[inline]
    pub fn slot(&self) -> Chosen {
        self.0.get().copied()
    }
}
