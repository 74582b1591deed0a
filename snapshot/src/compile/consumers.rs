//! Consumers, their credentials, and the index by which auth plugins find them.

use std::sync::Arc;

use model::{Entry, Invalid, Key, Kind, Plugins, Resource};
use sdk::consumers::Identity;
use sdk::{Consumer, Consumers};
use serde_json::Value;

use super::chains::Source;
use super::hosts::{Part, Recorder};
use super::{Compiler, Pass, references};

/// A way to prove to be somebody.
struct Proof {
    plugin: &'static str,
    key: Vec<u8>,
    config: Arc<Value>,
}

/// The last good form of a consumer.
pub(super) struct ConsumerUnit {
    pub entry: Arc<Entry>,
    consumer: Arc<Consumer>,
    proofs: Vec<Proof>,
}

/// The last good form of a credential.
pub(super) struct CredentialUnit {
    entry: Arc<Entry>,
    proof: Option<Proof>,
}

impl Compiler {
    pub(super) fn compile_consumers(&mut self, pass: &mut Pass<'_>) {
        let consumers = pass.work.take(Kind::Consumer);
        let credentials = pass.work.take(Kind::Credential);
        if consumers.is_empty() && credentials.is_empty() {
            return;
        }
        for id in consumers {
            self.compile_consumer(&Key { kind: Kind::Consumer, id }, pass);
        }
        for id in credentials {
            self.compile_credential(&Key { kind: Kind::Credential, id }, pass);
        }
        self.index_consumers();
    }

    fn compile_consumer(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(Kind::Consumer, &key.id) else {
            self.consumers.remove(&key.id);
            self.refer(key, Vec::new());
            self.hosts.forget(key);
            self.consumer_slots.release(key);
            return self.accept(key);
        };
        let last_good = self.consumers.get(&key.id).map(|unit| unit.entry.clone());
        let made = self.try_both(key, entry, last_good, |compiler, entry| {
            let recorder = Recorder::new(pass.names);
            let unit = compiler.make_consumer(key, entry, &recorder)?;
            compiler.hosts.set(key, Part::Plugins, recorder.asked());
            Ok(unit)
        });
        if let Some(unit) = made {
            self.consumers.insert(key.id.clone(), unit);
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
        let Resource::Consumer(written) = &entry.resource else {
            return Err(Invalid::new("the resource is not of the kind its key says"));
        };
        let (proofs, others) = self.proofs(&written.plugins)?;
        let group = match &written.group_id {
            Some(id) => {
                let key = Key::new(Kind::ConsumerGroup, id.as_str());
                let group = self.shared.get(&key).ok_or_else(|| {
                    Invalid::new(format!("failed to fetch consumer group config by id: {id}"))
                        .at("/group_id")
                        .expected("the id of a consumer group that exists")
                        .hint("create the consumer group; until then nobody can sign in as this consumer")
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
                    group.as_ref().and_then(|(key, g)| Some(Source::new(key, g.entry.resource.plugins()?))),
                );
                self.chain(&sources, names).map_err(|blame| match blame.source {
                    0 => blame.invalid.under("/plugins"),
                    _ => blame.invalid.at("/group_id"),
                })?
            }
        };
        let consumer = Consumer {
            name: written.username.clone(),
            group_id: written.group_id.clone(),
            custom_id: written.custom_id().map(str::to_owned),
            labels: written.labels().iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            chain,
            slot: self.consumer_slots.of(key),
        };
        Ok(ConsumerUnit { entry: entry.clone(), consumer: Arc::new(consumer), proofs })
    }

    fn compile_credential(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(Kind::Credential, &key.id) else {
            self.credentials.remove(&key.id);
            return self.accept(key);
        };
        let last_good = self.credentials.get(&key.id).map(|unit| unit.entry.clone());
        let made = self.try_both(key, entry, last_good, |compiler, entry| {
            let Some(plugins) = entry.resource.plugins() else { return Ok(None) };
            let (mut proofs, others) = compiler.proofs(plugins)?;
            match others.keys().next() {
                Some(other) => Err(Invalid::new("only supports auth type plugins in consumer credential")
                    .within(other)
                    .under("/plugins")
                    .expected("an auth plugin")),
                None => Ok(Some(CredentialUnit { entry: entry.clone(), proof: proofs.pop() })),
            }
        });
        if let Some(Some(unit)) = made {
            self.credentials.insert(key.id.clone(), unit);
        }
    }

    /// What a consumer's plugins prove, and those that prove nothing.
    fn proofs(&self, plugins: &Plugins) -> Result<(Vec<Proof>, Plugins), Invalid> {
        let mut proofs = Vec::new();
        let mut others = Plugins::default();
        for (name, config) in plugins {
            let blame = |invalid: Invalid| invalid.within(name).under("/plugins");
            let config = references::resolve(config, &*self.settings.env).map_err(blame)?;
            match self.catalog.credential(name, &config).map_err(blame)? {
                Some((plugin, key, config)) => proofs.push(Proof { plugin, key, config: Arc::new(config) }),
                None => _ = others.insert(name.clone(), config.into_owned()),
            }
        }
        Ok((proofs, others))
    }

    /// Of two with the same key, the first by name has it, and the other is told.
    fn index_consumers(&mut self) {
        let mut index = Consumers::default();
        let mut twice = Vec::new();
        for (name, unit) in &self.consumers {
            index.add(unit.consumer.clone());
            for proof in &unit.proofs {
                if let Err(invalid) = proof.put(&mut index, &unit.consumer, None) {
                    twice.push((Key::new(Kind::Consumer, name.as_str()), invalid));
                }
            }
        }
        for (id, unit) in &self.credentials {
            let key = Key::new(Kind::Credential, id.as_str());
            let consumer = key.owner().and_then(|owner| self.consumers.get(owner));
            let (Some(consumer), Some(proof)) = (consumer, &unit.proof) else { continue };
            if let Err(invalid) = proof.put(&mut index, &consumer.consumer, Some(key.leaf())) {
                twice.push((key, invalid));
            }
        }
        self.index = Arc::new(index);
        self.reject_repeated(&[Kind::Consumer, Kind::Credential], twice);
    }
}

fn group_of(entry: &Arc<Entry>) -> Option<Key> {
    match &entry.resource {
        Resource::Consumer(consumer) => Some(Key::new(Kind::ConsumerGroup, consumer.group_id.as_deref()?)),
        _ => None,
    }
}

impl Proof {
    /// # Errors
    /// Somebody has this key already.
    fn put(
        &self,
        index: &mut Consumers,
        consumer: &Arc<Consumer>,
        credential_id: Option<&str>,
    ) -> Result<(), Invalid> {
        let identity = Identity {
            consumer: consumer.clone(),
            credential_id: credential_id.map(str::to_owned),
            config: self.config.clone(),
        };
        match index.add_credential(self.plugin, self.key.clone(), identity) {
            None => Ok(()),
            Some(other) => Err(Invalid::new(format!(
                "duplicate key of plugin {} found with consumer: {}",
                self.plugin, other.consumer.name
            ))
            .within(self.plugin)
            .under("/plugins")
            .hint("give each consumer a key of its own")),
        }
    }
}
