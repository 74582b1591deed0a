//! Values on a server that several nodes share, such as the sessions of browsers.
//!
//! A plugin instance gets its storage when it is built, by the name of a kind ([`Build::storage`]). This crate knows no
//! server: the program registers the kinds it has ([`Storages`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use model::Invalid;
use serde_json::{Map, Value};

use crate::build::Build;
use crate::step::LocalFuture;
use crate::world::World;

#[cfg(any(test, feature = "testing"))]
mod memory;

#[cfg(any(test, feature = "testing"))]
pub use memory::Memory;

/// The answer of a storage; an error is for the log.
pub type Answer<'a, T> = LocalFuture<'a, Result<T, &'static str>>;

/// A storage of values by their keys.
///
/// Each call ends within the storage's own timeout, even if the server hangs.
pub trait Storage: Send + Sync {
    /// The value of a key, unless it has expired.
    fn get<'a>(&'a self, world: &'a dyn World, key: &'a [u8]) -> Answer<'a, Option<Vec<u8>>>;

    /// Sets the value of a key, which expires after `ttl`.
    fn set<'a>(
        &'a self,
        world: &'a dyn World,
        key: &'a [u8],
        value: &'a [u8],
        ttl: Duration,
    ) -> Answer<'a, ()>;

    /// As [`Storage::set`], if the key has a value: one that was removed meanwhile stays so. Returns whether it had one.
    fn replace<'a>(
        &'a self,
        world: &'a dyn World,
        key: &'a [u8],
        value: &'a [u8],
        ttl: Duration,
    ) -> Answer<'a, bool>;

    /// Removes a key and its value, if it has one.
    fn remove<'a>(&'a self, world: &'a dyn World, key: &'a [u8]) -> Answer<'a, ()>;
}

/// Opens storages of one kind.
pub trait Backend: Send + Sync {
    /// Connects to no server: that is done by the first call.
    ///
    /// # Errors
    /// Settings that do not fit, with a JSON pointer to the field.
    fn open(&self, settings: &Map<String, Value>, cx: &Build<'_>) -> Result<Arc<dyn Storage>, Invalid>;
}

/// The kinds of storage of the program, by name; a service of it ([`Build::service`]).
#[derive(Clone, Default)]
pub struct Storages(HashMap<&'static str, Arc<dyn Backend>>);

impl Storages {
    /// Adds a kind.
    #[must_use]
    pub fn with(mut self, name: &'static str, backend: Arc<dyn Backend>) -> Storages {
        self.0.insert(name, backend);
        self
    }
}

impl fmt::Debug for Storages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Build<'_> {
    /// Opens a storage of this kind.
    ///
    /// # Errors
    /// The program does not have the kind, or its settings do not fit.
    pub fn storage(&self, name: &str, settings: &Map<String, Value>) -> Result<Arc<dyn Storage>, Invalid> {
        let storages = self.service::<Storages>();
        match storages.as_ref().and_then(|storages| storages.0.get(name)) {
            Some(backend) => backend.open(settings, self),
            None => Err(Invalid::new(format!("storage {name} is not available in this build")).got(name)),
        }
    }
}
