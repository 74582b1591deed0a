//! hot path
//!
//! Upstreams that a plugin chooses.
//!
//! A plugin requests one when it is built ([`crate::Build::upstream`]) and gets an opaque handle.
//! The compiler builds the upstream like a route's own.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use model::Invalid;
use serde_json::Value;

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

/// An upstream that was made while the gateway runs; see [`crate::Exchange::forward_to`]. Clones refer to the same one.
#[derive(Clone)]
pub struct RuntimeUpstream(pub Arc<dyn Any + Send + Sync>);

impl fmt::Debug for RuntimeUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuntimeUpstream")
    }
}

/// Makes upstreams while the gateway runs, on the worker that uses them. Implemented by the compiler.
pub trait MakeUpstream: Send + Sync {
    /// Makes an upstream; `addresses` has those of its host names.
    ///
    /// # Errors
    /// Errors in the settings, and settings that need the control plane: health checks, registries.
    fn make(
        &self,
        id: &str,
        settings: &Value,
        addresses: &[(String, Vec<IpAddr>)],
    ) -> Result<RuntimeUpstream, Invalid>;
}

/// The maker of upstreams of a running gateway, a service ([`crate::Build::service`]).
#[derive(Default)]
pub struct RuntimeUpstreams(OnceLock<Box<dyn MakeUpstream>>);

impl RuntimeUpstreams {
    /// Sets the maker. Plugins are built before there is one; the first maker is kept.
    pub fn set_maker(&self, maker: Box<dyn MakeUpstream>) {
        let _ = self.0.set(maker);
    }

    /// The maker; `None` where no requests are served.
    pub fn get(&self) -> Option<&dyn MakeUpstream> {
        self.0.get().map(|maker| &**maker)
    }
}

impl fmt::Debug for RuntimeUpstreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RuntimeUpstreams").field(&self.0.get().is_some()).finish()
    }
}
