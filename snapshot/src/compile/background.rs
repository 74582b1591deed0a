//! Plugins that work without a request, once there is metadata for them.
//!
//! Their instances belong to no snapshot: the compiler keeps them until the metadata changes or goes.

use model::{Key, Kind, Plugins, Served};
use sdk::build::Names;
use serde_json::json;

use super::Compiler;
use super::chains::Source;
use super::rejections::guarded;
use super::wanted::{Part, Recorder};

impl Compiler {
    /// Builds the instance of such a plugin, or drops it if it has no metadata or is not enabled.
    pub(super) fn compile_background(&mut self, plugin: &str, names: &dyn Names) {
        if !self.catalog.background().contains(&plugin) {
            return;
        }
        let key = Key::new(Kind::PluginMetadata, plugin);
        let is_enabled = self.enabled.as_ref().is_none_or(|enabled| enabled.contains(plugin));
        if self.metadata.get(plugin).is_none() || !is_enabled {
            self.background.remove(plugin);
            self.hosts.forget(&key);
            return;
        }
        let plugins: Plugins = [(plugin.to_owned(), json!({}))].into_iter().collect();
        let recorder = Recorder::new(names);
        let made = guarded(|| {
            let chain = self.chain(&[Source::new(&key, &plugins)], &recorder);
            chain.map_err(|blame| *blame.invalid)
        });
        match made {
            Ok(chain) => {
                // The new instance has begun when the old one ends.
                self.background.extend(chain.map(|chain| (plugin.to_owned(), chain)));
            }
            Err(invalid) => {
                let instead = Served::last_good(self.background.contains_key(plugin));
                self.rejections.reject(&key, invalid, instead);
            }
        }
        self.hosts.set(&key, Part::Plugins, recorder.into_hosts());
    }
}
