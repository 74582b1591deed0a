//! Merges the plugins of several resources into one chain.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashSet;
use model::{Invalid, Key, Plugins};
use sdk::Chain;
use sdk::build::Owner;
use sdk::catalog::{Configured, Scope};
use serde_json::Value;

use super::chosen::ForPlugins;
use super::wanted::Recorder;
use super::{Compiler, protos, references};

/// The plugins of one resource.
pub(super) struct Source<'a> {
    pub owner: Owner,
    pub plugins: &'a Plugins,
}

/// An error, and the source it is in.
#[derive(Debug)]
pub(super) struct ChainError {
    pub source: usize,
    /// Its pointer starts with the plugin's name.
    pub invalid: Box<Invalid>,
}

impl<'a> Source<'a> {
    pub fn new(key: &Key, plugins: &'a Plugins) -> Source<'a> {
        Source { owner: Owner { collection: key.kind.collection(), id: key.id.clone() }, plugins }
    }
}

impl Compiler {
    /// Builds one chain. If several sources have the same plugin, the first source's settings apply
    /// as a whole. `None` if there is no plugin.
    ///
    /// # Errors
    /// Invalid settings, or a plugin that is not enabled: a resource is never served without a
    /// plugin it names.
    pub(super) fn chain(
        &self,
        sources: &[Source<'_>],
        names: &Recorder<'_>,
    ) -> Result<Option<Arc<Chain>>, ChainError> {
        self.chain_in(sources, names, false)
    }

    /// Builds a chain, of stream plugins if `streams` is set.
    ///
    /// # Errors
    /// As for [`Compiler::chain`].
    pub(super) fn chain_in(
        &self,
        sources: &[Source<'_>],
        names: &Recorder<'_>,
        streams: bool,
    ) -> Result<Option<Arc<Chain>>, ChainError> {
        let mut seen = HashSet::new();
        let mut configs: Vec<(usize, &str, Cow<'_, Value>)> = Vec::new();
        for (source, from) in sources.iter().enumerate() {
            for (name, config) in from.plugins {
                if !seen.insert(name) {
                    continue;
                }
                let config = references::resolve(config, &*self.settings.env, names)
                    .map_err(|invalid| ChainError { source, invalid: Box::new(invalid.within(name)) })?;
                configs.push((source, name, config));
            }
        }
        if configs.is_empty() {
            return Ok(None);
        }
        let entries: Vec<Configured<'_>> = configs
            .iter()
            .map(|(source, name, config)| Configured { name, config, owner: &sources[*source].owner })
            .collect();
        let metadata = |plugin: &'static str| {
            names.read.borrow_mut().push(plugin);
            self.metadata.get(plugin)
        };
        let protos = |id: &str| {
            names.read.borrow_mut().push(protos::READER);
            self.protos.get(id)
        };
        let enabled = if streams { &self.enabled_on_streams } else { &self.enabled };
        let listed = |plugin: &str| enabled.as_ref().is_none_or(|enabled| enabled.contains(plugin));
        let upstreams = ForPlugins { compiler: self, recorder: names };
        let scope = Scope {
            names,
            upstreams: Some(&upstreams),
            metadata: &metadata,
            protos: &protos,
            enabled: Some(&listed),
        };
        let made = match streams {
            true => self.catalog.stream_chain(&entries, &scope),
            false => self.catalog.chain(&entries, &scope),
        };
        match made {
            Ok(chain) => Ok(Some(chain)),
            Err(invalid) => {
                let plugin = invalid.pointer.strip_prefix('/').and_then(|rest| rest.split('/').next());
                let source = configs.iter().find(|(_, name, _)| Some(*name) == plugin).map_or(0, |c| c.0);
                Err(ChainError { source, invalid: Box::new(invalid) })
            }
        }
    }
}

/// Turns a chain without work into `None`, unless it is laid over another chain.
pub(super) fn unless_idle(chain: Option<Arc<Chain>>) -> Option<Arc<Chain>> {
    chain.filter(|chain| !chain.names().is_empty())
}
