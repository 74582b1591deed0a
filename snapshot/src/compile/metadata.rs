//! Plugin metadata, and which resources were built with it.
//!
//! A change of metadata recompiles the resources with a plugin that has read it. Most plugins have
//! none or do not read it, so resources that use them are skipped.

use hashbrown::HashMap;
use model::{Key, Kind, Resource, Served};
use sdk::catalog::SchemaType;
use serde_json::Value;

use super::{Compiler, Pass, guarded, references};

/// The metadata of plugins.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    values: HashMap<String, Value>,
    /// Plugins that have read their metadata; the index is the plugin's bit in a [`ReadSet`].
    readers: Vec<&'static str>,
}

/// The plugins whose metadata went into a resource, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReadSet(u64);

/// Plugins beyond these share the last bit, and are rebuilt with each other's metadata.
const LAST_BIT: usize = u64::BITS as usize - 1;

/// A plugin that exposes endpoints of other plugins without naming them.
const EXPOSING: &str = "public-api";

impl Metadata {
    pub fn get(&self, plugin: &str) -> Option<&Value> {
        self.values.get(plugin)
    }

    /// The plugins with metadata.
    pub fn plugins(&self) -> impl Iterator<Item = &String> {
        self.values.keys()
    }

    /// The set of these plugins, which have read their metadata.
    pub fn read_by<'p>(&mut self, plugins: impl IntoIterator<Item = &'p &'static str>) -> ReadSet {
        let bit = |plugin: &'static str| {
            let at = self.index(plugin).unwrap_or_else(|| {
                self.readers.push(plugin);
                self.readers.len() - 1
            });
            1 << at.min(LAST_BIT)
        };
        ReadSet(plugins.into_iter().copied().map(bit).fold(0, |read, bit| read | bit))
    }

    /// The bit of a plugin; empty if no resource has read its metadata.
    fn of(&self, plugin: &str) -> ReadSet {
        ReadSet(self.index(plugin).map_or(0, |at| 1 << at.min(LAST_BIT)))
    }

    fn index(&self, plugin: &str) -> Option<usize> {
        self.readers.iter().position(|readers| *readers == plugin)
    }
}

impl ReadSet {
    fn intersects(self, other: ReadSet) -> bool {
        self.0 & other.0 != 0
    }
}

impl Compiler {
    /// Compiles plugin metadata and schedules the resources whose plugins read it.
    pub(super) fn compile_metadata(&mut self, pass: &mut Pass<'_>) {
        for plugin in pass.work.take(Kind::PluginMetadata) {
            let key = Key::new(Kind::PluginMetadata, plugin.as_str());
            match pass.desired.get(Kind::PluginMetadata, &plugin).map(|entry| entry.resource()) {
                Some(Resource::PluginMetadata(found)) => {
                    let value = Value::Object(found.value.clone());
                    let resolved = guarded(|| {
                        let value = references::resolve(&value, &*self.settings.env, pass.names)?;
                        self.catalog.check(&plugin, &value, SchemaType::Metadata)?;
                        Ok(value.into_owned())
                    });
                    match resolved {
                        Ok(value) => {
                            self.rejections.accept(&key);
                            self.metadata.values.insert(plugin.clone(), value);
                        }
                        Err(invalid) => {
                            let instead = Served::last_good(self.metadata.get(&plugin).is_some());
                            self.rejections.reject(&key, invalid, instead);
                        }
                    }
                }
                _ => {
                    self.rejections.accept(&key);
                    self.metadata.values.remove(&plugin);
                }
            }
            self.compile_background(&plugin, pass.names);
            self.touch_readers(&plugin, pass);
        }
    }

    /// Schedules the resources built with the metadata of a plugin, and the rejected ones that
    /// other metadata may repair.
    pub(super) fn touch_readers(&self, plugin: &str, pass: &mut Pass<'_>) {
        let of = self.metadata.of(plugin);
        // Most plugins have no readers, and a large configuration takes a while to scan.
        if of != ReadSet::default() {
            let routes = self.routes.values().map(|unit| (unit.read, &unit.entry));
            let shared = self.shared.values().map(|shared| (shared.read, &shared.entry));
            let streams = self.stream_routes.values().map(|unit| (unit.read, &unit.entry));
            let consumers = self.consumers.units.values().map(|unit| (unit.read, &unit.entry));
            let all = routes.chain(shared).chain(streams).chain(consumers);
            all.filter(|(read, _)| read.intersects(of))
                .for_each(|(_, entry)| pass.work.add(entry.key.clone()));
        }
        for key in self.rejections.keys().filter(|key| key.kind != Kind::PluginMetadata) {
            let entry = pass.desired.get(key.kind, &key.id);
            if entry.is_some_and(|entry| entry.may_contain(plugin) || entry.may_contain(EXPOSING)) {
                pass.work.add(key.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_beyond_the_last_bit_share_it() {
        let names: Vec<&'static str> =
            (0..80).map(|n| &*Box::leak(format!("p{n}").into_boxed_str())).collect();
        let mut metadata = Metadata::default();
        let read: Vec<ReadSet> = names.iter().map(|name| metadata.read_by([name])).collect();
        assert!(names.iter().zip(&read).all(|(name, read)| read.intersects(metadata.of(name))));
        for (at, one) in read.iter().enumerate() {
            let intersects = read.iter().filter(|other| other.intersects(*one)).count();
            assert_eq!(intersects, if at < LAST_BIT { 1 } else { names.len() - LAST_BIT });
        }
        assert!(!read.iter().any(|read| read.intersects(metadata.of("unread"))));
        let some = metadata.read_by([&names[3], &names[70]]);
        assert!(some.intersects(read[3]) && some.intersects(read[79]) && !some.intersects(read[4]));
        assert_eq!(metadata.read_by([]), ReadSet::default());
    }
}
