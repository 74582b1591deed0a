//! Compiles consumers and their credentials.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::apisix_plugins::{self, Subsystem};
use model::{Entry, Fault, Invalid, Key, Kind, Plugins, Resource};
use sdk::build::Names;
use sdk::catalog::SchemaType;
use sdk::consumers::Credential;
use sdk::{Chain, Consumer};

use super::chains::Source;
use super::chosen::RequestedUpstreams;
use super::consumer_table::{AuthKey, ConsumerUnit, CredentialUnit, KeyedCredential};
use super::metadata::ReadSet;
use super::refusing;
use super::wanted::{Part, Recorder};
use super::{Compiler, Pass, mixed_up, references};

impl Compiler {
    pub(super) fn compile_consumers(&mut self, pass: &mut Pass<'_>) {
        let mut touched = BTreeSet::new();
        let (consumers, credentials) = (pass.work.take(Kind::Consumer), pass.work.take(Kind::Credential));
        self.note_read(Kind::Consumer, &consumers);
        self.note_read(Kind::Credential, &credentials);
        for id in consumers {
            let key = Key { kind: Kind::Consumer, id };
            self.compile_consumer(&key, pass);
            touched.extend(self.consumers.credentials_of(&key.id));
            touched.insert(key);
        }
        for id in credentials {
            let key = Key { kind: Kind::Credential, id };
            self.compile_credential(&key, pass);
            touched.insert(key);
        }
        if !touched.is_empty() {
            for key in self.consumers.update_index(touched) {
                let invalid = self.consumers.duplicate_key(&key);
                self.rejections.set_duplicate(key, invalid);
            }
        }
    }

    fn compile_consumer(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(Kind::Consumer, &key.id) else {
            self.consumers.units.remove(&key.id);
            self.users.refer(key, Vec::new());
            self.hosts.forget(key);
            self.place_chosen(key, RequestedUpstreams::default());
            self.consumers.slots.release(key);
            return self.rejections.accept(key);
        };
        let last_good = self.consumers.units.get(&key.id).filter(|unit| !unit.refused);
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
            Some(unit) => _ = self.consumers.units.insert(key.id.clone(), unit),
            // A refusing version is not a valid one; neither is one whose secret was removed.
            None if is_new || self.lacks_a_secret(key) => _ = self.consumers.units.remove(&key.id),
            None => {}
        }
        let served = self.consumers.units.get(&key.id).map(|unit| &unit.entry);
        let refers = [Some(entry), served].into_iter().flatten().filter_map(group_of).collect();
        self.users.refer(key, refers);
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
            slot: self.consumers.slots.of(key),
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
            self.consumers.credentials.remove(&key.id);
            return self.rejections.accept(key);
        };
        let last_good = self.consumers.credentials.get(&key.id).map(|unit| unit.entry.clone());
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
            Some(Some(unit)) => _ = self.consumers.credentials.insert(key.id.clone(), unit),
            None if self.lacks_a_secret(key) => _ = self.consumers.credentials.remove(&key.id),
            _ => {}
        }
    }

    fn lacks_a_secret(&self, key: &Key) -> bool {
        self.rejections.get(key).is_some_and(|rejected| rejected.invalid.fault == Fault::Unread)
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
}

fn group_of(entry: &Arc<Entry>) -> Option<Key> {
    match entry.resource() {
        Resource::Consumer(consumer) => Some(Key::new(Kind::ConsumerGroup, consumer.group_id.as_deref()?)),
        _ => None,
    }
}
