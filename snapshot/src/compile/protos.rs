//! Proto resources, compiled once for all plugins that read them.
//!
//! A change recompiles every resource with a plugin that has read a proto: these are few, and protos change rarely.

use std::collections::BTreeMap;

use model::{Key, Kind, Resource, Served};
use sdk::protos::{self, DescriptorPool};

use super::{Compiler, Pass, guarded};

/// Stands among the plugins that have read their metadata for any plugin that has read a proto. No plugin has
/// this name.
pub(super) const READER: &str = "(protos)";

/// The valid protos, by id.
#[derive(Debug, Default)]
pub(super) struct Protos(BTreeMap<String, DescriptorPool>);

impl Protos {
    pub fn get(&self, id: &str) -> Option<DescriptorPool> {
        self.0.get(id).cloned()
    }

    pub fn ids(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }
}

impl Compiler {
    /// Compiles protos and schedules the resources whose plugins read protos.
    pub(super) fn compile_protos(&mut self, pass: &mut Pass<'_>) {
        let ids = pass.work.take(Kind::Proto);
        for id in &ids {
            let key = Key::new(Kind::Proto, id.as_str());
            match pass.desired.get(Kind::Proto, id).map(|entry| entry.resource()) {
                Some(Resource::Proto(proto)) => match guarded(|| protos::compile(&proto.content)) {
                    Ok(pool) => {
                        self.rejections.accept(&key);
                        self.protos.0.insert(id.clone(), pool);
                    }
                    Err(invalid) => {
                        let instead = Served::last_good(self.protos.0.contains_key(id));
                        self.rejections.reject(&key, invalid, instead);
                    }
                },
                _ => {
                    self.rejections.accept(&key);
                    self.protos.0.remove(id);
                }
            }
        }
        if !ids.is_empty() {
            self.touch_readers(READER, pass);
        }
    }
}
