//! Consumers, and how an auth plugin finds one.

use std::sync::Arc;

use hashbrown::HashMap;
use serde_json::Value;

use crate::chain::{Chain, Phase, Phases};

/// Who a request was authenticated as.
#[derive(Debug)]
pub struct Consumer {
    /// The `username`.
    pub name: String,
    pub group_id: Option<String>,
    /// The label `custom_id`, sent as `X-Consumer-Custom-ID`.
    pub custom_id: Option<String>,
    pub labels: Vec<(String, String)>,
    /// Plugins the consumer and its group bring, apart from auth plugins' credentials.
    pub chain: Option<Arc<dyn Chain>>,
    /// A number that stays the same over configuration changes.
    pub slot: u32,
}

/// A consumer as found by one of its credentials.
#[derive(Debug, Clone)]
pub struct Identity {
    pub consumer: Arc<Consumer>,
    /// The id of the credential resource, if the match came from one.
    pub credential_id: Option<String>,
    /// The auth plugin's configuration on the consumer or credential, defaults filled in.
    pub config: Arc<Value>,
}

/// All consumers by auth plugin and credential key.
#[derive(Debug, Clone, Default)]
pub struct Consumers {
    by_plugin: HashMap<&'static str, HashMap<Box<[u8]>, Identity>>,
    by_name: HashMap<String, Arc<Consumer>>,
    /// Those in which a plugin of some consumer has work.
    phases: Phases,
}

impl Consumers {
    /// Finds the consumer that carries `key` for this auth plugin. The look-up is by
    /// keyed hash, so its time tells nothing of use about stored keys.
    #[inline]
    pub fn find(&self, plugin: &str, key: &[u8]) -> Option<&Identity> {
        self.by_plugin.get(plugin)?.get(key)
    }

    /// Whether any consumer has a credential for this plugin.
    pub fn any(&self, plugin: &str) -> bool {
        self.by_plugin.get(plugin).is_some_and(|keys| !keys.is_empty())
    }

    pub fn by_name(&self, name: &str) -> Option<&Arc<Consumer>> {
        self.by_name.get(name)
    }

    /// Whether some consumer brings a plugin with work in this phase.
    #[inline]
    pub fn bring(&self, phase: Phase) -> bool {
        self.phases.has(phase)
    }

    pub fn add(&mut self, consumer: Arc<Consumer>) {
        if let Some(chain) = &consumer.chain {
            self.phases = self.phases.with(chain.phases());
        }
        self.by_name.insert(consumer.name.clone(), consumer);
    }

    /// Adds a credential; gives back the identity that already had this key, unchanged, if any.
    pub fn add_credential(
        &mut self,
        plugin: &'static str,
        key: Vec<u8>,
        identity: Identity,
    ) -> Option<Identity> {
        let keys = self.by_plugin.entry(plugin).or_default();
        match keys.get(key.as_slice()) {
            Some(existing) => Some(existing.clone()),
            None => {
                keys.insert(key.into_boxed_slice(), identity);
                None
            }
        }
    }
}
