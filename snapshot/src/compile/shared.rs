//! Resources that several routes or consumers share: services, plugin configs, consumer groups, and
//! global rules, which all requests share.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use model::{Entry, Fault, Invalid, Key, Kind};
use sdk::Chain;
use sdk::build::Names;

use super::certificates::client_certificate_of;
use super::chains::{Source, unless_idle};
use super::chosen::RequestedUpstreams;
use super::metadata::ReadSet;
use super::wanted::{Part, Recorder};
use super::{Compiler, Pass, refusing};
use crate::upstream::Upstream;

/// The last valid version of a shared resource.
pub(super) struct SharedUnit {
    pub entry: Arc<Entry>,
    /// The chain of its own plugins, for resources that add none.
    pub chain: Option<Arc<Chain>>,
    /// A service's inline upstream.
    pub upstream: Option<Arc<Upstream>>,
    /// The metadata its plugins were built with.
    pub read: ReadSet,
}

impl Compiler {
    pub(super) fn compile_shared(&mut self, kind: Kind, pass: &mut Pass<'_>) {
        for id in pass.work.take(kind) {
            let key = Key { kind, id };
            self.compile_one_shared(&key, pass);
            self.touch_users(&key, pass);
        }
    }

    /// Global rules run as one chain, by priority, and at equal priority in the order of the rules;
    /// if several rules have the same plugin, the first one's applies (APISIX refuses the second on
    /// write).
    pub(super) fn compile_global(&mut self, pass: &mut Pass<'_>) {
        let touched = pass.work.take(Kind::GlobalRule);
        if touched.is_empty() {
            return;
        }
        for id in touched {
            self.compile_one_shared(&Key { kind: Kind::GlobalRule, id }, pass);
        }
        let rules: Vec<(Key, Arc<Entry>)> = self.global_rules().collect();
        let mut twice: HashMap<Key, Invalid> = HashMap::new();
        for (key, invalid) in repeated(&rules) {
            twice.entry(key).or_insert(invalid);
        }
        for (key, _) in &rules {
            let invalid = twice.remove(key);
            self.rejections.set_duplicate(key.clone(), invalid);
        }
        let of_rules = self.rejections.of_kind(Kind::GlobalRule);
        let lacking: Vec<Key> = of_rules
            .filter(|(key, rejected)| {
                let lacks = rejected.invalid.fault == Fault::Unread || self.lacking_rules.contains(*key);
                lacks && !self.shared.contains_key(*key)
            })
            .map(|(key, _)| key.clone())
            .collect();
        lacking.iter().for_each(|key| self.rejections.mark_refused(key));
        self.lacking_rules = lacking.iter().cloned().collect();
        self.global = self.joined(&rules);
        if !lacking.is_empty() {
            // Requests are never served without their guard. The other rules count and log the
            // refused ones.
            let refusing = refusing::chain(refusing::RULE_LACKS_SECRET);
            self.global = Some(match &self.global {
                Some(others) => Arc::new(others.overlay(&refusing)),
                None => refusing,
            });
        }
    }

    /// Joins the chains of these rules as each was built. Building them together again would let
    /// one rule that no longer compiles, and keeps its last valid version, block changes to the
    /// others.
    fn joined(&self, rules: &[(Key, Arc<Entry>)]) -> Option<Arc<Chain>> {
        let mut taken: HashSet<&str> = HashSet::new();
        let mut joined = Chain::default();
        for (key, entry) in rules {
            if let Some(chain) = self.shared.get(key).and_then(|shared| shared.chain.as_ref()) {
                // A plugin that an earlier rule disables is not taken from this one, either.
                let repeated = chain.names().into_iter().filter(|name| taken.contains(name)).collect();
                let others = chain.overlay(&Chain::new(Vec::new(), repeated));
                joined = others.overlay(&joined);
            }
            taken.extend(
                entry.resource().plugins().into_iter().flat_map(|plugins| plugins.keys().map(String::as_str)),
            );
        }
        unless_idle(Some(Arc::new(joined)))
    }

    fn global_rules(&self) -> impl Iterator<Item = (Key, Arc<Entry>)> {
        let first = Key::new(Kind::GlobalRule, "");
        let of_kind = self.shared.range(first..).take_while(|(key, _)| key.kind == Kind::GlobalRule);
        of_kind.map(|(key, shared)| (key.clone(), shared.entry.clone()))
    }

    fn compile_one_shared(&mut self, key: &Key, pass: &Pass<'_>) {
        let Some(entry) = pass.desired.get(key.kind, &key.id) else {
            self.shared.remove(key);
            self.hosts.forget(key);
            self.place_chosen(key, RequestedUpstreams::default());
            self.users.refer(key, Vec::new());
            self.remove_upstream(key);
            self.rejections.accept(key);
            return;
        };
        let last_good = self.shared.get(key).map(|shared| shared.entry.clone());
        let shown = |entry: &Arc<Entry>| client_certificate_of(entry.resource().upstream());
        let shown = [Some(entry), last_good.as_ref()].into_iter().flatten().filter_map(shown).collect();
        self.users.refer(key, shown);
        let made = self.compile_or_last_good(key, entry, last_good, |compiler, entry| {
            compiler.make_shared(key, entry, pass.names)
        });
        if let Some(shared) = made {
            self.shared.insert(key.clone(), shared);
        }
    }

    fn make_shared(
        &mut self,
        key: &Key,
        entry: &Arc<Entry>,
        names: &dyn Names,
    ) -> Result<SharedUnit, Invalid> {
        let (for_plugins, for_upstream) = (Recorder::new(names), Recorder::new(names));
        let plugins = entry.resource().plugins();
        let sources: Vec<Source<'_>> = plugins.map(|plugins| Source::new(key, plugins)).into_iter().collect();
        let chain = self.chain(&sources, &for_plugins).map_err(|blame| blame.invalid.under("/plugins"))?;
        let before = self.shared.get(key).and_then(|shared| shared.upstream.clone());
        let upstream = match entry.resource().upstream() {
            Some(written) => {
                let made = self.make_upstream(key, written, &for_upstream, before.as_ref());
                Some(made.map_err(|invalid| invalid.under("/upstream"))?)
            }
            None => {
                self.remove_upstream(key);
                None
            }
        };
        self.place_chosen(key, for_plugins.chosen.take());
        let read = self.metadata.read_by(&for_plugins.read.take());
        self.hosts.set(key, Part::Plugins, for_plugins.into_hosts());
        self.hosts.set(key, Part::Upstream, for_upstream.into_hosts());
        Ok(SharedUnit { entry: entry.clone(), chain: unless_idle(chain), upstream, read })
    }
}

/// The rules with a plugin that an earlier rule already has.
fn repeated(rules: &[(Key, Arc<Entry>)]) -> Vec<(Key, Invalid)> {
    let mut taken: HashMap<&str, &Key> = HashMap::new();
    let mut repeated = Vec::new();
    for (key, entry) in rules {
        for plugin in entry.resource().plugins().into_iter().flat_map(|plugins| plugins.keys()) {
            let first = *taken.entry(plugin).or_insert(key);
            if first != key {
                let invalid =
                    Invalid::new(format!("plugin {plugin} already exists in global rule id [{}]", first.id))
                        .within(plugin)
                        .under("/plugins")
                        .hint("keep a plugin in one global rule only; the others of this rule run");
                repeated.push((key.clone(), invalid));
            }
        }
    }
    repeated
}
