//! Consumers, their credentials, and the index by which auth plugins find them.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use model::apisix_plugins::{self, Subsystem};
use model::{Entry, Fault, Invalid, Key, Kind, Plugins, Resource};
use sdk::build::Names;
use sdk::catalog::Place;
use sdk::consumers::{Credential, Identity, Secret};
use sdk::{Chain, Consumer};
use smallvec::SmallVec;

use super::chains::Source;
use super::chosen::Asked;
use super::metadata::Read;
use super::refusing;
use super::wanted::{Part, Recorder};
use super::{Compiler, Pass, mixed_up, references};

/// A credential, as an auth plugin looks it up.
struct Proof {
    lock: Lock,
    secret: Secret,
}

/// What only one consumer or credential may have: an auth plugin's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Lock {
    plugin: &'static str,
    key: Arc<[u8]>,
}

/// Which resources claim which key, so that a change visits only those it concerns.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Consumers come before credentials, then the smaller id: the first one gets the key.
    by_lock: HashMap<Lock, SmallVec<[Key; 1]>>,
    by_key: HashMap<Key, SmallVec<[Lock; 1]>>,
}

/// The last good form of a consumer.
pub(super) struct ConsumerUnit {
    pub entry: Arc<Entry>,
    consumer: Arc<Consumer>,
    proofs: Box<[Proof]>,
    /// Its group does not exist: it is identified, then refused.
    refused: bool,
    /// The metadata its plugins were built with.
    pub read: Read,
}

/// The last good form of a credential.
pub(super) struct CredentialUnit {
    pub entry: Arc<Entry>,
    proof: Option<Proof>,
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
            self.place_chosen(key, Asked::default());
            self.consumer_slots.release(key);
            return self.accept(key);
        };
        let last_good = self.consumers.get(&key.id).filter(|unit| !unit.refused);
        let last_good = last_good.map(|unit| unit.entry.clone());
        let is_new = last_good.is_none();
        let made = self.try_both(key, entry, last_good, |compiler, entry| {
            let recorder = Recorder::new(pass.names);
            let mut unit = compiler.make_consumer(key, entry, &recorder)?;
            unit.read = compiler.metadata.read_by(&recorder.read.take());
            compiler.place_chosen(key, recorder.chosen.take());
            compiler.hosts.set(key, Part::Plugins, recorder.asked());
            Ok(unit)
        });
        let made = made.or_else(|| self.make_refused(key, entry, pass.names).filter(|_| is_new));
        match made {
            Some(unit) => _ = self.consumers.insert(key.id.clone(), unit),
            // A form that was refused is not a last good form; neither is one whose secret was taken away.
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
        let (proofs, others) = self.proofs(&written.plugins, names)?;
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
        Ok(self.unit_of(key, entry, written, proofs, chain))
    }

    /// A consumer that lacks only its group: it is found by its keys, then refused.
    fn make_refused(&mut self, key: &Key, entry: &Arc<Entry>, names: &dyn Names) -> Option<ConsumerUnit> {
        let Resource::Consumer(written) = entry.resource() else { return None };
        let group = Key::new(Kind::ConsumerGroup, written.group_id.as_deref()?);
        if self.shared.contains_key(&group) {
            return None;
        }
        let (proofs, _) = self.proofs(&written.plugins, names).ok()?;
        let unit = self.unit_of(key, entry, written, proofs, Some(refusing::chain(refusing::NO_GROUP)));
        Some(ConsumerUnit { refused: true, ..unit })
    }

    fn unit_of(
        &mut self,
        key: &Key,
        entry: &Arc<Entry>,
        written: &model::Consumer,
        proofs: Vec<Proof>,
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
            proofs: proofs.into(),
            refused: false,
            read: Read::default(),
        }
    }

    fn compile_credential(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(Kind::Credential, &key.id) else {
            self.credentials.remove(&key.id);
            return self.accept(key);
        };
        let last_good = self.credentials.get(&key.id).map(|unit| unit.entry.clone());
        let made = self.try_both(key, entry, last_good, |compiler, entry| {
            let Some(plugins) = entry.resource().plugins() else { return Ok(None) };
            let (mut proofs, others) = compiler.proofs(plugins, pass.names)?;
            // One that this build lacks identifies nobody; the catalog says whether it may stand there.
            let lacking = |name: &str| {
                let known = apisix_plugins::find(Subsystem::Http, name);
                known.is_some_and(|known| known.is_auth() && known.unseen_in(Kind::Credential).is_some())
            };
            for (name, config) in others.iter().filter(|(name, _)| lacking(name)) {
                let checked = compiler.catalog.check(name, config, Place::Consumer);
                checked.map_err(|invalid| invalid.within(name).under("/plugins"))?;
            }
            match others.keys().find(|name| !lacking(name)) {
                Some(other) => Err(Invalid::new("only supports auth type plugins in consumer credential")
                    .within(other)
                    .under("/plugins")
                    .expected("an auth plugin")),
                None => Ok(Some(CredentialUnit { entry: entry.clone(), proof: proofs.pop() })),
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
    fn proofs(&self, plugins: &Plugins, names: &dyn Names) -> Result<(Vec<Proof>, Plugins), Invalid> {
        let mut proofs = Vec::new();
        let mut others = Plugins::default();
        for (name, config) in plugins {
            let blame = |invalid: Invalid| invalid.within(name).under("/plugins");
            let config = references::resolve(config, &*self.settings.env, names).map_err(blame)?;
            match self.catalog.credential(name, &config).map_err(blame)? {
                Some((plugin, Credential { key, secret })) => {
                    proofs.push(Proof { lock: Lock { plugin, key: key.into() }, secret });
                }
                None => _ = others.insert(name.clone(), config.into_owned()),
            }
        }
        Ok((proofs, others))
    }

    /// Updates the index with these consumers and credentials. Of two with the same key the first gets
    /// it, and the other is rejected.
    fn index_consumers(&mut self, mut touched: BTreeSet<Key>) {
        let mut locks: Vec<Lock> = Vec::new();
        for key in &touched {
            let now: SmallVec<[Lock; 1]> =
                self.proofs_of(key).iter().map(|proof| proof.lock.clone()).collect();
            let index = Arc::make_mut(&mut self.index);
            match self.consumers.get(&key.id) {
                _ if key.kind != Kind::Consumer => {}
                Some(unit) => index.add(unit.consumer.clone()),
                None => index.remove(&key.id),
            }
            locks.extend(now.iter().cloned());
            locks.extend(self.claims.set(key, now));
        }
        for lock in &locks {
            let claimants = self.claims.by_lock.get(lock);
            touched.extend(claimants.into_iter().flatten().cloned());
            let identity =
                claimants.and_then(|claimants| claimants.first()).and_then(|key| self.identity(key, lock));
            let index = Arc::make_mut(&mut self.index);
            match identity {
                Some(identity) => index.add_credential(lock.plugin, &lock.key, identity),
                None => index.remove_credential(lock.plugin, &lock.key),
            }
        }
        for key in touched {
            let invalid = self.lost(&key);
            self.tell_repeated(key, invalid);
        }
    }

    /// The credentials of a claimant whose consumer exists.
    fn proofs_of(&self, key: &Key) -> &[Proof] {
        match key.kind {
            Kind::Consumer => self.consumers.get(&key.id).map(|unit| &unit.proofs[..]),
            _ => {
                let owner = key.owner().filter(|owner| self.consumers.contains_key(*owner));
                owner.and_then(|_| self.credentials.get(&key.id)).map(|unit| unit.proof.as_slice())
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

    /// The consumer that a consumer or credential stands for.
    fn stands_for(&self, key: &Key) -> Option<&ConsumerUnit> {
        match key.kind {
            Kind::Consumer => self.consumers.get(&key.id),
            _ => self.consumers.get(key.owner()?),
        }
    }

    fn identity(&self, key: &Key, lock: &Lock) -> Option<Identity> {
        let proof = self.proofs_of(key).iter().find(|proof| proof.lock == *lock)?;
        Some(Identity {
            consumer: self.stands_for(key)?.consumer.clone(),
            credential_id: (key.kind == Kind::Credential).then(|| key.leaf().to_owned()),
            secret: proof.secret.clone(),
        })
    }

    /// The first of its keys that another claimant has.
    fn lost(&self, key: &Key) -> Option<Invalid> {
        let mut locks = self.claims.by_key.get(key)?.iter();
        let (lock, other) = locks.find_map(|lock| {
            let owner = self.claims.by_lock.get(lock)?.first()?;
            (owner != key).then_some((lock, owner))
        })?;
        let other = self.stands_for(other)?;
        let reason =
            format!("duplicate key of plugin {} found with consumer: {}", lock.plugin, other.consumer.name);
        let invalid = Invalid::new(reason).within(lock.plugin).under("/plugins");
        Some(invalid.hint("give each consumer a key of its own"))
    }
}

impl Claims {
    /// Replaces the keys of a claimant. Returns its previous keys.
    fn set(&mut self, key: &Key, now: SmallVec<[Lock; 1]>) -> SmallVec<[Lock; 1]> {
        let before = self.by_key.remove(key).unwrap_or_default();
        for lock in &before {
            if let Some(claimants) = self.by_lock.get_mut(lock) {
                claimants.retain(|claimant| claimant != key);
                if claimants.is_empty() {
                    self.by_lock.remove(lock);
                }
            }
        }
        for lock in &now {
            let claimants = self.by_lock.entry(lock.clone()).or_default();
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
