//! Consumers, their credentials, and the index by which auth plugins find them.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use model::apisix_plugins::{self, Subsystem};
use model::{Entry, Fault, Invalid, Key, Kind, Plugins, Resource};
use sdk::build::Names;
use sdk::catalog::SchemaType;
use sdk::consumers::{Credential, Identity, Secret};
use sdk::{Chain, Consumer};
use smallvec::SmallVec;

use super::chains::Source;
use super::chosen::RequestedUpstreams;
use super::metadata::ReadSet;
use super::refusing;
use super::wanted::{Part, Recorder};
use super::{Compiler, Pass, mixed_up, references};

/// A credential with the key by which its auth plugin looks it up.
struct KeyedCredential {
    auth_key: AuthKey,
    secret: Secret,
}

/// The lookup key of an auth plugin, which only one consumer or credential may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AuthKey {
    plugin: &'static str,
    key: Arc<[u8]>,
}

/// Which resources claim which key, so that a change visits only the affected ones.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Consumers come before credentials, then the smaller id: the first one gets the key.
    by_auth_key: HashMap<AuthKey, SmallVec<[Key; 1]>>,
    by_key: HashMap<Key, SmallVec<[AuthKey; 1]>>,
}

/// The last valid version of a consumer.
pub(super) struct ConsumerUnit {
    pub entry: Arc<Entry>,
    consumer: Arc<Consumer>,
    keyed: Box<[KeyedCredential]>,
    /// Its group does not exist: it is identified, then refused.
    refused: bool,
    /// The metadata its plugins were built with.
    pub read: ReadSet,
}

/// The last valid version of a credential.
pub(super) struct CredentialUnit {
    pub entry: Arc<Entry>,
    keyed: Option<KeyedCredential>,
}

impl Compiler {
    pub(super) fn compile_consumers(&mut self, pass: &mut Pass<'_>) {
        let mut touched = BTreeSet::new();
        let (consumers, credentials) = (pass.work.take(Kind::Consumer), pass.work.take(Kind::Credential));
        self.note_read(Kind::Consumer, &consumers);
        self.note_read(Kind::Credential, &credentials);
        for id in consumers {
            let key = Key { kind: Kind::Consumer, id };
            self.compile_consumer(&key, pass);
            touched.extend(self.credentials_of(&key.id));
            touched.insert(key);
        }
        for id in credentials {
            let key = Key { kind: Kind::Credential, id };
            self.compile_credential(&key, pass);
            touched.insert(key);
        }
        if !touched.is_empty() {
            self.index_consumers(touched);
        }
    }

    fn compile_consumer(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(Kind::Consumer, &key.id) else {
            self.consumers.remove(&key.id);
            self.refer(key, Vec::new());
            self.hosts.forget(key);
            self.place_chosen(key, RequestedUpstreams::default());
            self.consumer_slots.release(key);
            return self.accept(key);
        };
        let last_good = self.consumers.get(&key.id).filter(|unit| !unit.refused);
        let last_good = last_good.map(|unit| unit.entry.clone());
        let is_new = last_good.is_none();
        let made = self.compile_or_last_good(key, entry, last_good, |compiler, entry| {
            let recorder = Recorder::new(pass.names);
            let mut unit = compiler.make_consumer(key, entry, &recorder)?;
            unit.read = compiler.metadata.read_by(&recorder.read.take());
            compiler.place_chosen(key, recorder.chosen.take());
            compiler.hosts.set(key, Part::Plugins, recorder.into_hosts());
            Ok(unit)
        });
        let made = made.or_else(|| self.make_refusing(key, entry, pass.names).filter(|_| is_new));
        match made {
            Some(unit) => _ = self.consumers.insert(key.id.clone(), unit),
            // A refusing version is not a valid one; neither is one whose secret was removed.
            None if is_new || self.lacks_a_secret(key) => _ = self.consumers.remove(&key.id),
            None => {}
        }
        let served = self.consumers.get(&key.id).map(|unit| &unit.entry);
        let refers = [Some(entry), served].into_iter().flatten().filter_map(group_of).collect();
        self.refer(key, refers);
    }

    fn make_consumer(
        &mut self,
        key: &Key,
        entry: &Arc<Entry>,
        names: &Recorder<'_>,
    ) -> Result<ConsumerUnit, Invalid> {
        let Resource::Consumer(written) = entry.resource() else {
            return Err(mixed_up());
        };
        let (keyed, others) = self.split_credentials(&written.plugins, names)?;
        let group = match &written.group_id {
            Some(id) => {
                let key = Key::new(Kind::ConsumerGroup, id.as_str());
                let group = self.shared.get(&key).ok_or_else(|| {
                    Invalid::new(format!("failed to fetch consumer group config by id: {id}"))
                        .at("/group_id")
                        .expected("the id of a consumer group that exists")
                        .hint("create the consumer group; until then requests of this consumer are answered with 503")
                })?;
                Some((key, group))
            }
            None => None,
        };
        let chain = match &group {
            Some((_, group)) if others.is_empty() => group.chain.clone(),
            _ => {
                let mut sources = vec![Source::new(key, &others)];
                sources.extend(
                    group.as_ref().and_then(|(key, g)| Some(Source::new(key, g.entry.resource().plugins()?))),
                );
                self.chain(&sources, names).map_err(|blame| match blame.source {
                    0 => blame.invalid.under("/plugins"),
                    _ => blame.invalid.at("/group_id"),
                })?
            }
        };
        Ok(self.unit_of(key, entry, written, keyed, chain))
    }

    /// A refusing unit for a consumer that lacks only its group: its keys identify it, then it is
    /// refused.
    fn make_refusing(&mut self, key: &Key, entry: &Arc<Entry>, names: &dyn Names) -> Option<ConsumerUnit> {
        let Resource::Consumer(written) = entry.resource() else { return None };
        let group = Key::new(Kind::ConsumerGroup, written.group_id.as_deref()?);
        if self.shared.contains_key(&group) {
            return None;
        }
        let (keyed, _) = self.split_credentials(&written.plugins, names).ok()?;
        let unit = self.unit_of(key, entry, written, keyed, Some(refusing::chain(refusing::NO_GROUP)));
        Some(ConsumerUnit { refused: true, ..unit })
    }

    fn unit_of(
        &mut self,
        key: &Key,
        entry: &Arc<Entry>,
        written: &model::Consumer,
        keyed: Vec<KeyedCredential>,
        chain: Option<Arc<Chain>>,
    ) -> ConsumerUnit {
        let consumer = Consumer {
            name: written.username.clone(),
            group_id: written.group_id.clone(),
            custom_id: written.custom_id().map(str::to_owned),
            labels: written.labels().map(|(name, value)| (name.clone(), value.clone())).collect(),
            chain,
            slot: self.consumer_slots.of(key),
        };
        ConsumerUnit {
            entry: entry.clone(),
            consumer: Arc::new(consumer),
            keyed: keyed.into(),
            refused: false,
            read: ReadSet::default(),
        }
    }

    fn compile_credential(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(Kind::Credential, &key.id) else {
            self.credentials.remove(&key.id);
            return self.accept(key);
        };
        let last_good = self.credentials.get(&key.id).map(|unit| unit.entry.clone());
        let made = self.compile_or_last_good(key, entry, last_good, |compiler, entry| {
            let Some(plugins) = entry.resource().plugins() else { return Ok(None) };
            let (mut keyed, others) = compiler.split_credentials(plugins, pass.names)?;
            // A plugin missing from this build identifies no consumer; the catalog decides whether
            // it is allowed here.
            let lacking = |name: &str| {
                let known = apisix_plugins::find(Subsystem::Http, name);
                known.is_some_and(|known| known.is_auth() && known.unseen_in(Kind::Credential).is_some())
            };
            for (name, config) in others.iter().filter(|(name, _)| lacking(name)) {
                let checked = compiler.catalog.check(name, config, SchemaType::Consumer);
                checked.map_err(|invalid| invalid.within(name).under("/plugins"))?;
            }
            match others.keys().find(|name| !lacking(name)) {
                Some(other) => Err(Invalid::new("only supports auth type plugins in consumer credential")
                    .within(other)
                    .under("/plugins")
                    .expected("an auth plugin")),
                None => Ok(Some(CredentialUnit { entry: entry.clone(), keyed: keyed.pop() })),
            }
        });
        match made {
            Some(Some(unit)) => _ = self.credentials.insert(key.id.clone(), unit),
            None if self.lacks_a_secret(key) => _ = self.credentials.remove(&key.id),
            _ => {}
        }
    }

    fn lacks_a_secret(&self, key: &Key) -> bool {
        self.rejected.get(key).is_some_and(|rejected| rejected.invalid.fault == Fault::Unread)
    }

    /// Separates a consumer's credentials from its other plugins.
    fn split_credentials(
        &self,
        plugins: &Plugins,
        names: &dyn Names,
    ) -> Result<(Vec<KeyedCredential>, Plugins), Invalid> {
        let mut keyed = Vec::new();
        let mut others = Plugins::default();
        for (name, config) in plugins {
            let blame = |invalid: Invalid| invalid.within(name).under("/plugins");
            let config = references::resolve(config, &*self.settings.env, names).map_err(blame)?;
            match self.catalog.credential(name, &config).map_err(blame)? {
                Some((plugin, Credential { key, secret })) => {
                    keyed.push(KeyedCredential { auth_key: AuthKey { plugin, key: key.into() }, secret });
                }
                None => _ = others.insert(name.clone(), config.into_owned()),
            }
        }
        Ok((keyed, others))
    }

    /// Updates the index with these consumers and credentials. If two have the same key, the first
    /// keeps it and the other is rejected.
    fn index_consumers(&mut self, mut touched: BTreeSet<Key>) {
        let mut auth_keys: Vec<AuthKey> = Vec::new();
        for key in &touched {
            let now: SmallVec<[AuthKey; 1]> =
                self.keyed_credentials_of(key).iter().map(|keyed| keyed.auth_key.clone()).collect();
            let index = Arc::make_mut(&mut self.index);
            match self.consumers.get(&key.id) {
                _ if key.kind != Kind::Consumer => {}
                Some(unit) => index.add(unit.consumer.clone()),
                None => index.remove(&key.id),
            }
            auth_keys.extend(now.iter().cloned());
            auth_keys.extend(self.claims.set(key, now));
        }
        for auth_key in &auth_keys {
            let claimants = self.claims.by_auth_key.get(auth_key);
            touched.extend(claimants.into_iter().flatten().cloned());
            let identity = claimants
                .and_then(|claimants| claimants.first())
                .and_then(|key| self.identity(key, auth_key));
            let index = Arc::make_mut(&mut self.index);
            match identity {
                Some(identity) => index.add_credential(auth_key.plugin, &auth_key.key, identity),
                None => index.remove_credential(auth_key.plugin, &auth_key.key),
            }
        }
        for key in touched {
            let invalid = self.duplicate_key(&key);
            self.set_duplicate(key, invalid);
        }
    }

    /// The credentials of a claimant whose consumer exists.
    fn keyed_credentials_of(&self, key: &Key) -> &[KeyedCredential] {
        match key.kind {
            Kind::Consumer => self.consumers.get(&key.id).map(|unit| &unit.keyed[..]),
            _ => {
                let owner = key.owner().filter(|owner| self.consumers.contains_key(*owner));
                owner.and_then(|_| self.credentials.get(&key.id)).map(|unit| unit.keyed.as_slice())
            }
        }
        .unwrap_or_default()
    }

    /// The credentials of a consumer, whether it exists or not.
    fn credentials_of(&self, consumer: &str) -> Vec<Key> {
        let first = Key::credential(consumer, "").id;
        let ids = self.credentials.range(first.clone()..).map(|(id, _)| id);
        let own = ids.take_while(|id| id.starts_with(&first));
        own.map(|id| Key::new(Kind::Credential, id.as_str())).collect()
    }

    /// The consumer that a consumer or credential identifies.
    fn consumer_of(&self, key: &Key) -> Option<&ConsumerUnit> {
        match key.kind {
            Kind::Consumer => self.consumers.get(&key.id),
            _ => self.consumers.get(key.owner()?),
        }
    }

    fn identity(&self, key: &Key, auth_key: &AuthKey) -> Option<Identity> {
        let keyed = self.keyed_credentials_of(key).iter().find(|keyed| keyed.auth_key == *auth_key)?;
        Some(Identity {
            consumer: self.consumer_of(key)?.consumer.clone(),
            credential_id: (key.kind == Kind::Credential).then(|| key.leaf().to_owned()),
            secret: keyed.secret.clone(),
        })
    }

    /// An error for the first of its keys that another claimant holds.
    fn duplicate_key(&self, key: &Key) -> Option<Invalid> {
        let mut auth_keys = self.claims.by_key.get(key)?.iter();
        let (auth_key, other) = auth_keys.find_map(|auth_key| {
            let owner = self.claims.by_auth_key.get(auth_key)?.first()?;
            (owner != key).then_some((auth_key, owner))
        })?;
        let other = self.consumer_of(other)?;
        let reason = format!(
            "duplicate key of plugin {} found with consumer: {}",
            auth_key.plugin, other.consumer.name
        );
        let invalid = Invalid::new(reason).within(auth_key.plugin).under("/plugins");
        Some(invalid.hint("give each consumer a key of its own"))
    }
}

impl Claims {
    /// Replaces the keys of a claimant. Returns its previous keys.
    fn set(&mut self, key: &Key, now: SmallVec<[AuthKey; 1]>) -> SmallVec<[AuthKey; 1]> {
        let before = self.by_key.remove(key).unwrap_or_default();
        for auth_key in &before {
            if let Some(claimants) = self.by_auth_key.get_mut(auth_key) {
                claimants.retain(|claimant| claimant != key);
                if claimants.is_empty() {
                    self.by_auth_key.remove(auth_key);
                }
            }
        }
        for auth_key in &now {
            let claimants = self.by_auth_key.entry(auth_key.clone()).or_default();
            if let Err(at) = claimants.binary_search(key) {
                claimants.insert(at, key.clone());
            }
        }
        if !now.is_empty() {
            self.by_key.insert(key.clone(), now);
        }
        before
    }
}

fn group_of(entry: &Arc<Entry>) -> Option<Key> {
    match entry.resource() {
        Resource::Consumer(consumer) => Some(Key::new(Kind::ConsumerGroup, consumer.group_id.as_deref()?)),
        _ => None,
    }
}
