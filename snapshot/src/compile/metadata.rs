//! Plugin metadata, and which resources were built with it.
//!
//! A resource is compiled again when the metadata change that one of its plugins has asked for. Most plugins
//! have none or do not ask, so that what they are configured on is not looked at.

use hashbrown::HashMap;
use model::{Key, Kind, Resource, Served};
use sdk::catalog::Place;
use serde_json::Value;

use super::{Compiler, Pass, guarded, references};

/// The metadata of plugins.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    values: HashMap<String, Value>,
    /// Plugins that have asked for theirs, each in the place of its bit in a [`Read`].
    asked: Vec<&'static str>,
}

/// The plugins whose metadata something was built with, a bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Read(u64);

/// Plugins beyond these share the last bit, and are built again with each other's metadata.
const LAST_BIT: usize = u64::BITS as usize - 1;

/// A plugin that exposes what others answer, and names none of them.
const EXPOSING: &str = "public-api";

impl Metadata {
    pub fn get(&self, plugin: &str) -> Option<&Value> {
        self.values.get(plugin)
    }

    /// The plugins that have some.
    pub fn plugins(&self) -> impl Iterator<Item = &String> {
        self.values.keys()
    }

    /// What these plugins have read.
    pub fn read_by<'p>(&mut self, plugins: impl IntoIterator<Item = &'p &'static str>) -> Read {
        let bit = |plugin: &'static str| {
            let at = self.place(plugin).unwrap_or_else(|| {
                self.asked.push(plugin);
                self.asked.len() - 1
            });
            1 << at.min(LAST_BIT)
        };
        Read(plugins.into_iter().copied().map(bit).fold(0, |read, bit| read | bit))
    }

    /// What whoever has read the metadata of a plugin has a bit of; nothing if nobody has.
    fn of(&self, plugin: &str) -> Read {
        Read(self.place(plugin).map_or(0, |at| 1 << at.min(LAST_BIT)))
    }

    fn place(&self, plugin: &str) -> Option<usize> {
        self.asked.iter().position(|asked| *asked == plugin)
    }
}

impl Read {
    fn meets(self, other: Read) -> bool {
        self.0 & other.0 != 0
    }
}

impl Compiler {
    /// Plugin metadata, and the resources whose plugins have read them.
    pub(super) fn compile_metadata(&mut self, pass: &mut Pass<'_>) {
        for plugin in pass.work.take(Kind::PluginMetadata) {
            let key = Key::new(Kind::PluginMetadata, plugin.as_str());
            match pass.desired.get(Kind::PluginMetadata, &plugin).map(|entry| entry.resource()) {
                Some(Resource::PluginMetadata(found)) => {
                    let value = Value::Object(found.value.clone());
                    let resolved = guarded(|| {
                        let value = references::resolve(&value, &*self.settings.env, pass.names)?;
                        self.catalog.check(&plugin, &value, Place::Metadata)?;
                        Ok(value.into_owned())
                    });
                    match resolved {
                        Ok(value) => {
                            self.accept(&key);
                            self.metadata.values.insert(plugin.clone(), value);
                        }
                        Err(invalid) => {
                            let instead = Served::last_good(self.metadata.get(&plugin).is_some());
                            self.reject(&key, invalid, instead);
                        }
                    }
                }
                _ => {
                    self.accept(&key);
                    self.metadata.values.remove(&plugin);
                }
            }
            self.touch_readers(&plugin, pass);
        }
    }

    /// Schedules the resources that are served with the metadata of a plugin, and those that are rejected and
    /// may no longer be with other metadata.
    fn touch_readers(&self, plugin: &str, pass: &mut Pass<'_>) {
        let of = self.metadata.of(plugin);
        // Most plugins have no readers, and a large configuration takes a while to look through.
        if of != Read::default() {
            let routes = self.routes.values().map(|unit| (unit.read, &unit.entry));
            let shared = self.shared.values().map(|shared| (shared.read, &shared.entry));
            let streams = self.stream_routes.values().map(|unit| (unit.read, &unit.entry));
            let consumers = self.consumers.values().map(|unit| (unit.read, &unit.entry));
            let all = routes.chain(shared).chain(streams).chain(consumers);
            all.filter(|(read, _)| read.meets(of)).for_each(|(_, entry)| pass.work.add(entry.key.clone()));
        }
        for key in self.rejected.keys().filter(|key| key.kind != Kind::PluginMetadata) {
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
    fn plugins_beyond_the_bits_there_are_share_the_last() {
        let names: Vec<&'static str> =
            (0..80).map(|n| &*Box::leak(format!("p{n}").into_boxed_str())).collect();
        let mut metadata = Metadata::default();
        let read: Vec<Read> = names.iter().map(|name| metadata.read_by([name])).collect();
        assert!(names.iter().zip(&read).all(|(name, read)| read.meets(metadata.of(name))));
        for (at, one) in read.iter().enumerate() {
            let meets = read.iter().filter(|other| other.meets(*one)).count();
            assert_eq!(meets, if at < LAST_BIT { 1 } else { names.len() - LAST_BIT });
        }
        assert!(!read.iter().any(|read| read.meets(metadata.of("nobody"))));
        let some = metadata.read_by([&names[3], &names[70]]);
        assert!(some.meets(read[3]) && some.meets(read[79]) && !some.meets(read[4]));
        assert_eq!(metadata.read_by([]), Read::default());
    }
}
