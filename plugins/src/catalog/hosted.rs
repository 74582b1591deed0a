//! Plugins that come and go while the program runs: the seam for Lua and WebAssembly.
//!
//! The gateway registers those in Lua (`scripting`). `proxy/tests/hosted.rs` registers a plugin, serves requests by
//! it, and removes it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use model::Invalid;
use model::apisix_plugins::Subsystem;
use sdk::Scripts;
use sdk::instance::Factory;

use super::{Catalog, Compiled};

type ByName = BTreeMap<&'static str, Arc<Compiled>>;

/// The hosted plugins of a catalog.
#[derive(Default)]
pub(super) struct Hosted {
    by_name: ArcSwap<ByName>,
    /// Those of streams.
    streams: ArcSwap<ByName>,
    /// Moves whenever one comes or goes.
    generation: AtomicU64,
}

impl Hosted {
    pub(super) fn all(&self) -> Guard<Arc<ByName>> {
        self.by_name.load()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Compiled>> {
        self.all().get(name).cloned()
    }

    /// Those of streams.
    pub(super) fn streams(&self) -> Guard<Arc<ByName>> {
        self.streams.load()
    }

    pub(super) fn find_stream(&self, name: &str) -> Option<Arc<Compiled>> {
        self.streams().get(name).cloned()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn change(&self, subsystem: Subsystem, change: impl Fn(&mut ByName)) {
        let list = match subsystem {
            Subsystem::Http => &self.by_name,
            Subsystem::Stream => &self.streams,
        };
        list.rcu(|by_name| {
            let mut by_name = BTreeMap::clone(by_name);
            change(&mut by_name);
            by_name
        });
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl Catalog {
    /// Adds a hosted plugin, in the place of one of the same name. Resources that name it are compiled again
    /// with the next compile. It needs no entry in the list of plugins: to register it is to enable it.
    ///
    /// # Errors
    /// A name that a linked plugin has, or a schema that does not compile.
    pub fn register(&self, plugin: Box<dyn Factory>) -> Result<(), Invalid> {
        self.add(Subsystem::Http, plugin)
    }

    /// As [`Catalog::register`], for a plugin of streams. Their lists of plugins have to name it.
    ///
    /// # Errors
    /// As for [`Catalog::register`].
    pub fn register_stream(&self, plugin: Box<dyn Factory>) -> Result<(), Invalid> {
        self.add(Subsystem::Stream, plugin)
    }

    fn add(&self, subsystem: Subsystem, plugin: Box<dyn Factory>) -> Result<(), Invalid> {
        let name = plugin.name();
        let is_linked = match subsystem {
            Subsystem::Http => self.by_name.contains_key(name),
            Subsystem::Stream => self.streams.iter().any(|linked| linked.row.name() == name),
        };
        if is_linked {
            return Err(Invalid::new(format!("there already is a plugin named {name}"))
                .got(name)
                .hint("take another name"));
        }
        let plugin = Compiled::hosted(plugin)?;
        self.hosted.change(subsystem, |hosted| _ = hosted.insert(name, plugin.clone()));
        Ok(())
    }

    /// Sets the compiler of code in the configuration. The first call counts.
    pub fn set_scripts(&self, scripts: Box<dyn Scripts>) {
        let _ = self.scripts.set(scripts);
    }

    /// Whether a linked or hosted plugin has this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Takes out a hosted plugin. Exchanges in flight keep their instances of it; resources that name
    /// it are compiled again, and keep their last good form.
    pub fn remove(&self, name: &str) {
        self.hosted.change(Subsystem::Http, |hosted| _ = hosted.remove(name));
    }

    /// As [`Catalog::remove`], for a plugin of streams.
    pub fn remove_stream(&self, name: &str) {
        self.hosted.change(Subsystem::Stream, |hosted| _ = hosted.remove(name));
    }
}
