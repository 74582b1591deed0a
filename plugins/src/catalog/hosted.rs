//! Plugins that come and go while the program runs: the seam for Lua and WebAssembly.
//!
//! The gateway registers those in files (`scripting`), and the stored scripts are loaded by the compiler ([`stored`]).
//! `proxy/tests/hosted.rs` registers a plugin, serves requests by it, and removes it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use model::Invalid;
use model::apisix_plugins::Subsystem;
use sdk::Scripts;
use sdk::instance::Factory;

use super::stored::Stored;
use super::{Catalog, Compiled};

pub(super) type ByName = BTreeMap<&'static str, Arc<Compiled>>;

/// The hosted plugins of a catalog.
#[derive(Default)]
pub(super) struct Hosted {
    lists: ArcSwap<Lists>,
    /// Moves whenever one comes or goes.
    generation: AtomicU64,
}

#[derive(Default, Clone)]
struct Lists {
    registered: PerSubsystem,
    stored: Arc<Stored>,
    /// Both; a stored script takes the place of a registered plugin of its name.
    all: PerSubsystem,
}

/// Plugins of routes, and of streams.
#[derive(Default, Clone)]
struct PerSubsystem([Arc<ByName>; 2]);

impl PerSubsystem {
    fn of(&self, subsystem: Subsystem) -> &Arc<ByName> {
        &self.0[subsystem as usize]
    }

    fn of_mut(&mut self, subsystem: Subsystem) -> &mut ByName {
        Arc::make_mut(&mut self.0[subsystem as usize])
    }
}

impl Hosted {
    /// A copy, which changes on its own.
    pub(super) fn copy(&self) -> Hosted {
        let lists = ArcSwap::new(self.lists.load_full());
        Hosted { lists, generation: AtomicU64::new(self.generation()) }
    }

    pub(super) fn all(&self) -> Arc<ByName> {
        self.lists.load().all.of(Subsystem::Http).clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Compiled>> {
        self.all().get(name).cloned()
    }

    /// Those of streams.
    pub(super) fn streams(&self) -> Arc<ByName> {
        self.lists.load().all.of(Subsystem::Stream).clone()
    }

    pub(super) fn find_stream(&self, name: &str) -> Option<Arc<Compiled>> {
        self.streams().get(name).cloned()
    }

    pub(super) fn stored(&self) -> Arc<Stored> {
        self.lists.load().stored.clone()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the stored scripts.
    pub(super) fn set_stored(&self, stored: &Arc<Stored>) {
        let is_same = self.lists.load().stored.has_plugins_of(stored);
        self.change(|lists| lists.stored = stored.clone());
        if !is_same {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    fn register(&self, subsystem: Subsystem, change: impl Fn(&mut ByName)) {
        self.change(|lists| change(lists.registered.of_mut(subsystem)));
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn change(&self, change: impl Fn(&mut Lists)) {
        self.lists.rcu(|lists| {
            let mut lists = Lists::clone(lists);
            change(&mut lists);
            lists.all = lists.registered.clone();
            for (subsystem, name, plugin) in lists.stored.plugins() {
                lists.all.of_mut(subsystem).insert(name, plugin.clone());
            }
            lists
        });
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
        self.check_free(subsystem, name)?;
        let plugin = Compiled::hosted(plugin)?;
        self.hosted.register(subsystem, |hosted| _ = hosted.insert(name, plugin.clone()));
        Ok(())
    }

    /// Refuses the names of linked plugins.
    pub(super) fn check_free(&self, subsystem: Subsystem, name: &str) -> Result<(), Invalid> {
        let is_linked = match subsystem {
            Subsystem::Http => self.by_name.contains_key(name),
            Subsystem::Stream => self.streams.iter().any(|linked| linked.row.name() == name),
        };
        match is_linked {
            true => Err(Invalid::new(format!("there already is a plugin named {name}"))
                .got(name)
                .hint("take another name")),
            false => Ok(()),
        }
    }

    /// Sets the compiler of code in the configuration. The first call counts.
    pub fn set_scripts(&self, scripts: Box<dyn Scripts>) {
        let _ = self.scripts.set(scripts.into());
    }

    /// Whether a linked or hosted plugin has this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Takes out a hosted plugin. Exchanges in flight keep their instances of it; resources that name
    /// it are compiled again, and keep their last good form.
    pub fn remove(&self, name: &str) {
        self.hosted.register(Subsystem::Http, |hosted| _ = hosted.remove(name));
    }

    /// As [`Catalog::remove`], for a plugin of streams.
    pub fn remove_stream(&self, name: &str) {
        self.hosted.register(Subsystem::Stream, |hosted| _ = hosted.remove(name));
    }
}
