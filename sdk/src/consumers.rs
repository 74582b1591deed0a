//! Consumers, and their lookup by auth plugins.

use std::any::Any;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use serde_json::Value;

use crate::chain::{Chain, Phase, Phases};

/// The consumer of an authenticated request.
#[derive(Debug)]
pub struct Consumer {
    /// The `username`.
    pub name: String,
    pub group_id: Option<String>,
    /// The label `custom_id`, sent as `X-Consumer-Custom-ID`.
    pub custom_id: Option<String>,
    pub labels: Vec<(String, String)>,
    /// Plugins of the consumer and its group, without the auth plugins' credentials.
    pub chain: Option<Arc<Chain>>,
    /// A number that stays the same across configuration changes.
    pub slot: u32,
}

/// The credential in an auth plugin's configuration on a consumer.
pub struct Credential {
    /// The lookup key, for instance key-auth's key. Unique among the plugin's consumers.
    pub key: Vec<u8>,
    /// See [`Identity::secret`].
    pub secret: Secret,
}

/// An auth plugin's parsed form of a consumer's secret, in a type of the plugin; `None` if the key
/// alone is proof enough.
pub type Secret = Option<Arc<dyn Any + Send + Sync>>;

/// A consumer found by one of its credentials.
#[derive(Clone)]
pub struct Identity {
    pub consumer: Arc<Consumer>,
    /// The id of the credential resource, if the credential came from one.
    pub credential_id: Option<String>,
    pub secret: Secret,
}

/// The claims of a verified token, noted on an exchange for plugins that run later.
#[derive(Debug)]
pub struct Claims(pub Value);

/// Claims about a user that another server vouches for, noted on an exchange for plugins that decide by them:
/// `ctx.external_user` of scripts.
#[derive(Debug)]
pub struct ExternalUser(pub Value);

impl Identity {
    /// Returns the consumer without a credential, for the `anonymous_consumer` of an auth plugin.
    pub fn anonymous(consumer: &Arc<Consumer>) -> Identity {
        Identity { consumer: consumer.clone(), credential_id: None, secret: None }
    }

    /// The secret of the credential, if the plugin stored one of this type.
    #[inline]
    pub fn secret<T: 'static>(&self) -> Option<&T> {
        self.secret.as_deref()?.downcast_ref()
    }
}

/// Secrets are not shown.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("consumer", &self.consumer)
            .field("credential_id", &self.credential_id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

/// All consumers by auth plugin and credential key. Copies share their parts, so the cost of a
/// change does not depend on the number of consumers.
#[derive(Debug, Clone, Default)]
pub struct Consumers {
    /// A few plugins, searched one after the other.
    by_plugin: Vec<(&'static str, Parts<Identity>)>,
    by_name: Parts<Arc<Consumer>>,
    /// Number of consumers with plugins in these phases.
    bringing: Vec<(Phases, usize)>,
    /// Phases in which a plugin of some consumer runs.
    phases: Phases,
}

impl Consumers {
    /// Finds the consumer with this `key` for an auth plugin. The lookup uses a keyed hash, so its
    /// time reveals nothing useful about stored keys.
    #[inline]
    pub fn find(&self, plugin: &str, key: &[u8]) -> Option<&Identity> {
        self.of_plugin(plugin)?.get(key)
    }

    /// Whether any consumer has a credential for this plugin.
    pub fn any(&self, plugin: &str) -> bool {
        self.of_plugin(plugin).is_some_and(|keys| keys.len > 0)
    }

    /// All credentials for this plugin with their keys, in no order.
    pub fn all(&self, plugin: &str) -> impl Iterator<Item = (&[u8], &Identity)> {
        self.of_plugin(plugin).into_iter().flat_map(Parts::iter)
    }

    /// Marks the state of the credentials for this plugin: after a change it is another one.
    pub fn mark(&self, plugin: &str) -> Option<&Arc<Mark>> {
        self.of_plugin(plugin).map(|keys| &keys.mark)
    }

    #[inline]
    fn of_plugin(&self, plugin: &str) -> Option<&Parts<Identity>> {
        self.by_plugin.iter().find(|(name, _)| *name == plugin).map(|(_, keys)| keys)
    }

    pub fn by_name(&self, name: &str) -> Option<&Arc<Consumer>> {
        self.by_name.get(name.as_bytes())
    }

    /// Whether a consumer has a plugin that runs in this phase.
    #[inline]
    pub fn bring(&self, phase: Phase) -> bool {
        self.phases.has(phase)
    }

    /// Adds a consumer; replaces the one of the same name.
    pub fn add(&mut self, consumer: Arc<Consumer>) {
        self.count(consumer.chain.as_deref(), 1);
        let before = self.by_name.insert(consumer.name.as_bytes(), consumer.clone());
        self.count(before.as_deref().and_then(|before| before.chain.as_deref()), -1);
    }

    /// Removes a consumer; its credentials are removed separately.
    pub fn remove(&mut self, name: &str) {
        let before = self.by_name.remove(name.as_bytes());
        self.count(before.as_deref().and_then(|before| before.chain.as_deref()), -1);
    }

    /// Adds a credential; replaces one with the same key.
    pub fn add_credential(&mut self, plugin: &'static str, key: &[u8], identity: Identity) {
        let at = self.by_plugin.iter().position(|(name, _)| *name == plugin).unwrap_or_else(|| {
            self.by_plugin.push((plugin, Parts::default()));
            self.by_plugin.len() - 1
        });
        self.by_plugin[at].1.insert(key, identity);
    }

    /// Removes a credential.
    pub fn remove_credential(&mut self, plugin: &str, key: &[u8]) {
        if let Some((_, keys)) = self.by_plugin.iter_mut().find(|(name, _)| *name == plugin) {
            keys.remove(key);
        }
    }

    fn count(&mut self, chain: Option<&Chain>, by: isize) {
        let Some(phases) = chain.map(Chain::phases).filter(|phases| !phases.is_empty()) else { return };
        match self.bringing.iter().position(|(known, _)| *known == phases) {
            Some(at) => self.bringing[at].1 = self.bringing[at].1.saturating_add_signed(by),
            None => self.bringing.push((phases, usize::from(by > 0))),
        }
        self.bringing.retain(|(_, count)| *count > 0);
        self.phases = self.bringing.iter().fold(Phases::NONE, |all, (phases, _)| all.with(*phases));
    }
}

/// See [`Consumers::mark`].
#[derive(Debug, Default)]
pub struct Mark(());

/// A map in parts: copies share all of them, and a change copies only the part it affects.
#[derive(Debug, Clone)]
struct Parts<V> {
    parts: Arc<[Part<V>]>,
    len: usize,
    mark: Arc<Mark>,
    /// Shared by all copies.
    hasher: DefaultHashBuilder,
}

/// `None` while empty.
type Part<V> = Option<Arc<HashTable<Arc<Leaf<V>>>>>;

#[derive(Debug)]
struct Leaf<V> {
    hash: u64,
    key: Box<[u8]>,
    value: V,
}

/// With 100,000 keys, a change copies 400 pointers, and the table of one part.
const PARTS: usize = 256;

impl<V> Default for Parts<V> {
    fn default() -> Parts<V> {
        Parts { parts: Arc::default(), len: 0, mark: Arc::default(), hasher: DefaultHashBuilder::default() }
    }
}

impl<V> Parts<V> {
    #[inline]
    fn get(&self, key: &[u8]) -> Option<&V> {
        let hash = self.hasher.hash_one(key);
        let part = self.parts.get(part(hash))?.as_ref()?;
        part.find(hash, |leaf| *leaf.key == *key).map(|leaf| &leaf.value)
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        let tables = self.parts.iter().flatten();
        tables.flat_map(|table| table.iter()).map(|leaf| (&*leaf.key, &leaf.value))
    }

    fn insert(&mut self, key: &[u8], value: V) -> Option<V>
    where
        V: Clone,
    {
        let before = self.remove(key);
        if self.parts.is_empty() {
            self.parts = (0..PARTS).map(|_| None).collect();
        }
        let hash = self.hasher.hash_one(key);
        let table = Arc::make_mut(Arc::make_mut(&mut self.parts)[part(hash)].get_or_insert_default());
        let leaf = Leaf { hash, key: key.into(), value };
        table.insert_unique(hash, Arc::new(leaf), |leaf| leaf.hash);
        self.len += 1;
        self.mark = Arc::default();
        before
    }

    fn remove(&mut self, key: &[u8]) -> Option<V>
    where
        V: Clone,
    {
        self.get(key)?;
        let hash = self.hasher.hash_one(key);
        let table = Arc::make_mut(Arc::make_mut(&mut self.parts)[part(hash)].as_mut()?);
        let (leaf, _) = table.find_entry(hash, |leaf| *leaf.key == *key).ok()?.remove();
        self.len -= 1;
        self.mark = Arc::default();
        Some(leaf.value.clone())
    }
}

/// Uses hash bits that the tables use neither for positions nor for tags.
#[inline]
fn part(hash: u64) -> usize {
    (hash >> 40) as usize % PARTS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::chain::Fitting;

    struct Phased(Phases);

    impl crate::Instance for Phased {
        fn phases(&self) -> Phases {
            self.0
        }
    }

    /// A consumer with a plugin that runs in these phases.
    fn consumer(name: &str, phases: Phases) -> Arc<Consumer> {
        let stage = Fitting { name: "in", priority: 0, meta: None }.stage(Phased(phases));
        Arc::new(Consumer {
            name: name.to_owned(),
            group_id: None,
            custom_id: None,
            labels: Vec::new(),
            chain: Some(Arc::new(Chain::of(stage))),
            slot: 0,
        })
    }

    #[test]
    fn a_consumer_is_found_by_name_and_by_each_of_its_credentials() {
        let mut consumers = Consumers::default();
        assert!(!consumers.any("key-auth") && consumers.by_name("jack").is_none());
        let (jack, jill) = (consumer("jack", Phases::NONE), consumer("jill", Phases::NONE));
        consumers.add(jack.clone());
        consumers.add(jill.clone());
        let name = |found: Option<&Identity>| found.map(|identity| identity.consumer.name.clone());
        consumers.add_credential("key-auth", b"one", Identity::anonymous(&jack));
        consumers.add_credential("key-auth", b"two", Identity::anonymous(&jack));
        consumers.add_credential("key-auth", b"two", Identity::anonymous(&jill));
        assert!(consumers.any("key-auth") && !consumers.any("jwt-auth"));
        assert_eq!(name(consumers.find("key-auth", b"one")).as_deref(), Some("jack"));
        assert_eq!(name(consumers.find("key-auth", b"two")).as_deref(), Some("jill"), "the last owner");
        assert!(consumers.find("jwt-auth", b"one").is_none() && consumers.find("key-auth", b"on").is_none());
        let before = consumers.clone();
        consumers.remove_credential("key-auth", b"one");
        consumers.remove_credential("jwt-auth", b"two");
        consumers.remove("jack");
        assert!(consumers.find("key-auth", b"one").is_none() && consumers.by_name("jack").is_none());
        assert_eq!(consumers.by_name("jill").map(|found| &*found.name), Some("jill"));
        assert!(before.by_name("jack").is_some(), "a copy is unaffected by the change");
        consumers.remove_credential("key-auth", b"two");
        assert!(!consumers.any("key-auth"));
    }

    #[test]
    fn credentials_are_listed_and_each_change_has_a_mark() {
        let mut consumers = Consumers::default();
        assert!(consumers.mark("key-auth").is_none() && consumers.all("key-auth").next().is_none());
        let jack = consumer("jack", Phases::NONE);
        for key in [b"one", b"two"] {
            consumers.add_credential("key-auth", key, Identity::anonymous(&jack));
        }
        let mut keys: Vec<_> = consumers.all("key-auth").map(|(key, _)| key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [b"one", b"two"]);
        let before = consumers.clone();
        let is_same = |consumers: &Consumers| {
            Arc::ptr_eq(before.mark("key-auth").unwrap(), consumers.mark("key-auth").unwrap())
        };
        consumers.add_credential("jwt-auth", b"one", Identity::anonymous(&jack));
        consumers.remove_credential("key-auth", b"three");
        assert!(is_same(&consumers));
        consumers.remove_credential("key-auth", b"two");
        assert!(!is_same(&consumers));
    }

    #[test]
    fn phases_run_while_a_consumer_has_plugins_there() {
        let mut consumers = Consumers::default();
        let brings = |consumers: &Consumers| {
            [Phase::Rewrite, Phase::Access, Phase::Log].map(|phase| consumers.bring(phase))
        };
        assert_eq!(brings(&consumers), [false; 3]);
        consumers.add(consumer("a", Phases::REWRITE));
        consumers.add(consumer("b", Phases::REWRITE | Phases::LOG));
        consumers.add(consumer("c", Phases::REWRITE));
        consumers.add(consumer("d", Phases::NONE));
        assert_eq!(brings(&consumers), [true, false, true]);
        // The new version has plugins in other phases.
        consumers.add(consumer("b", Phases::ACCESS));
        assert_eq!(brings(&consumers), [true, true, false]);
        consumers.remove("a");
        assert_eq!(brings(&consumers), [true, true, false], "c still has one there");
        consumers.remove("c");
        consumers.remove("unknown");
        assert_eq!(brings(&consumers), [false, true, false]);
        consumers.remove("b");
        consumers.remove("d");
        assert_eq!(brings(&consumers), [false; 3]);
    }

    #[test]
    fn secrets_are_found_by_type_and_never_shown() {
        let mut identity = Identity::anonymous(&consumer("jack", Phases::NONE));
        assert_eq!(identity.secret::<String>(), None);
        identity.secret = Some(Arc::new("hunter2".to_owned()));
        assert_eq!(identity.secret::<String>().map(String::as_str), Some("hunter2"));
        assert_eq!(identity.secret::<u8>(), None);
        assert!(!format!("{identity:?}").contains("hunter2"));
    }

    #[test]
    fn a_map_in_parts_is_a_map_and_copies_are_independent() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut map, mut model) = (Parts::default(), BTreeMap::new());
        let mut old = (map.clone(), model.clone());
        for step in 0..6_000 {
            let key = rng.u32(..1_500).to_string();
            if rng.u8(..3) == 0 {
                assert_eq!(map.remove(key.as_bytes()), model.remove(&key));
            } else {
                assert_eq!(map.insert(key.as_bytes(), step), model.insert(key, step));
            }
            if step == 3_000 {
                old = (map.clone(), model.clone());
            }
        }
        for (map, model) in [old, (map, model)] {
            assert_eq!(map.len, model.len());
            for key in 0..1_500 {
                let key = key.to_string();
                assert_eq!(map.get(key.as_bytes()), model.get(&key), "{key}");
            }
        }
    }

    #[test]
    fn a_change_copies_one_part() {
        let mut map = Parts::default();
        (0..10_000).for_each(|n: u32| _ = map.insert(&n.to_be_bytes(), n));
        let before = map.clone();
        map.insert(&7u32.to_be_bytes(), 8);
        let same = |(a, b): (&Part<u32>, &Part<u32>)| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let changed = map.parts.iter().zip(before.parts.iter()).filter(|pair| !same(*pair)).count();
        assert_eq!(changed, 1);
        assert!(map.parts.iter().flatten().all(|part| part.len() < 100), "keys are spread over the parts");
    }
}
