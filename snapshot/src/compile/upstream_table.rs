//! The table of upstreams: their slots, and the state that survives their changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use model::{Entry, Invalid, Key, Kind, Resource};
use sdk::build::Names;

use super::certificates::client_certificate_of;
use super::interner::Interner;
use super::memo::Memo;
use super::wanted::{Part, Recorder};
use super::{Compiler, Pass, Watched, mixed_up, upstream};
use crate::load::Load;
use crate::slots::Slots;
use crate::table::Table;
use crate::upstream::Upstream;

/// The last valid version of an upstream resource.
pub(super) struct UpstreamUnit {
    pub entry: Arc<Entry>,
    pub upstream: Arc<Upstream>,
}

/// All upstreams, including inline ones, by slot.
#[derive(Default)]
pub(super) struct UpstreamTable {
    pub units: HashMap<String, UpstreamUnit>,
    pub table: Table<Upstream>,
    pub slots: Slots,
    interner: Interner,
    /// Slots of upstreams with connections opened in advance.
    pub warm: Arc<[u32]>,
    /// Supervised upstreams, by slot.
    watched: BTreeMap<u32, Watched>,
    list: Memo<[Watched]>,
}

impl Compiler {
    pub(super) fn compile_upstreams(&mut self, pass: &mut Pass<'_>) {
        let ids = pass.work.take(Kind::Upstream);
        self.note_read(Kind::Upstream, &ids);
        for id in ids {
            let key = Key { kind: Kind::Upstream, id };
            let before = self.upstreams.get(&key.id).map(|unit| unit.upstream.slot);
            self.compile_upstream(&key, pass);
            // Plans hold the slot, which stays the same while the upstream exists.
            if before != self.upstreams.get(&key.id).map(|unit| unit.upstream.slot) {
                self.touch_users(&key, pass);
                self.choices.users(&key.id).for_each(|user| pass.work.add(user.clone()));
            }
        }
    }

    fn compile_upstream(&mut self, key: &Key, pass: &Pass<'_>) {
        let entry = pass.desired.get(Kind::Upstream, &key.id);
        let Some(entry) = entry.filter(|entry| upstream::is_served(entry.resource())) else {
            self.upstreams.units.remove(&key.id);
            self.users.refer(key, Vec::new());
            self.hosts.forget(key);
            self.remove_upstream(key);
            return self.rejections.accept(key);
        };
        let unit = self.upstreams.get(&key.id);
        let before = unit.map(|unit| unit.upstream.clone());
        let last_good = unit.map(|unit| unit.entry.clone());
        let shown = |entry: &Arc<Entry>| client_certificate_of(entry.resource().upstream());
        let shown = [Some(entry), last_good.as_ref()].into_iter().flatten().filter_map(shown).collect();
        self.users.refer(key, shown);
        let made = self.compile_or_last_good(key, entry, last_good, |compiler, entry| {
            let Resource::Upstream(written) = entry.resource() else { return Err(mixed_up()) };
            let recorder = Recorder::new(pass.names);
            let upstream = compiler.make_upstream(key, written, &recorder, before.as_ref())?;
            compiler.hosts.set(key, Part::Upstream, recorder.into_hosts());
            Ok(UpstreamUnit { entry: entry.clone(), upstream })
        });
        if let Some(unit) = made {
            self.upstreams.units.insert(key.id.clone(), unit);
        }
    }

    /// An upstream without its slot.
    pub(super) fn upstream(
        &self,
        id: &str,
        written: &model::Upstream,
        names: &dyn Names,
    ) -> Result<Upstream, Invalid> {
        let mut upstream = upstream::upstream(id, written, names, &self.settings)?;
        if let Some(health) = upstream.health.as_mut().and_then(Arc::get_mut) {
            health.set_probe_tls(self.probe_tls(written, names)?);
        }
        if let Some(tls) = self.upstream_tls(written, names)? {
            upstream.settings_mut().tls = Some(tls);
        }
        Ok(upstream)
    }

    /// Resolves the addresses of an upstream and puts it into the table.
    pub(super) fn make_upstream(
        &mut self,
        key: &Key,
        written: &model::Upstream,
        names: &dyn Names,
        before: Option<&Arc<Upstream>>,
    ) -> Result<Arc<Upstream>, Invalid> {
        let upstream = self.upstream(&key.id, written, names)?;
        Ok(self.upstreams.place(key, upstream, before))
    }

    /// Removes the upstream of a deleted resource.
    pub(super) fn remove_upstream(&mut self, key: &Key) {
        // A chain that could not be rebuilt stays in use and may still name it. It must never meet
        // another upstream at this slot.
        let is_named = key.kind == Kind::Upstream && self.choices.users(&key.id).next().is_some();
        self.upstreams.remove(key, is_named);
    }
}

impl UpstreamTable {
    /// The last valid version of an upstream resource.
    pub fn get(&self, id: &str) -> Option<&UpstreamUnit> {
        self.units.get(id)
    }

    /// The upstream of this key, as placed last.
    pub fn placed(&mut self, key: &Key) -> Option<Arc<Upstream>> {
        self.table.get(self.slots.of(key)).cloned()
    }

    /// All upstreams that are supervised. The same `Arc` as before if nothing changed.
    pub fn watched(&mut self) -> Arc<[Watched]> {
        self.list.get(|| self.watched.values().cloned().collect())
    }

    /// Gives an upstream the slot of its key. Returns `before` if nothing differs.
    pub fn place(&mut self, key: &Key, upstream: Upstream, before: Option<&Arc<Upstream>>) -> Arc<Upstream> {
        let slot = self.slots.of(key);
        self.place_at(slot, key, upstream, before)
    }

    /// Places a route's upstream. There are many of these, so their slots are stored only in them.
    pub fn place_own(
        &mut self,
        key: &Key,
        upstream: Upstream,
        before: Option<&Arc<Upstream>>,
    ) -> Arc<Upstream> {
        let slot = before.map_or_else(|| self.slots.fresh(), |before| before.slot);
        self.place_at(slot, key, upstream, before)
    }

    /// Returns `before` if nothing differs, so that workers keep their state for it.
    fn place_at(
        &mut self,
        slot: u32,
        key: &Key,
        upstream: Upstream,
        before: Option<&Arc<Upstream>>,
    ) -> Arc<Upstream> {
        let mut upstream = Upstream { slot, ..upstream };
        match before {
            Some(before) if **before == upstream => before.clone(),
            _ => {
                self.watch(key, &mut upstream, before);
                self.interner.share(&mut upstream.servers);
                self.keep_warm(upstream.slot, upstream.min_idle > 0);
                let upstream = Arc::new(upstream);
                self.table.insert(upstream.slot, upstream.clone());
                upstream
            }
        }
    }

    fn keep_warm(&mut self, slot: u32, warm: bool) {
        match self.warm.binary_search(&slot) {
            Ok(at) if !warm => {
                self.warm = self
                    .warm
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != at)
                    .map(|(_, slot)| *slot)
                    .collect();
            }
            Err(at) if warm => {
                let (before, after) = self.warm.split_at(at);
                self.warm = before.iter().chain([&slot]).chain(after).copied().collect();
            }
            _ => {}
        }
    }

    /// Carries over the health of servers that stay, and updates the list of watched upstreams.
    fn watch(&mut self, key: &Key, upstream: &mut Upstream, before: Option<&Arc<Upstream>>) {
        let had = self.watched.remove(&upstream.slot).is_some();
        if let (Some(load), Some(before)) =
            (&mut upstream.load, before.and_then(|before| before.load.as_ref()))
        {
            load.in_use = before.in_use.clone();
        }
        let load = upstream.load.as_ref().filter(|load| load.adaptive.is_some());
        let load = load.map(|load| Load::clone(load));
        let has_load = load.is_some();
        if has_load || upstream.health.is_some() {
            let watched = Watched { key: key.clone(), health: None, load };
            self.watched.insert(upstream.slot, watched);
        }
        if let Some(health) = &mut upstream.health {
            let before = before.and_then(|before| before.health.as_deref());
            if let (Some(health), Some(before)) = (Arc::get_mut(health), before) {
                health.carry(before);
            }
            if let Some(watched) = self.watched.get_mut(&upstream.slot) {
                watched.health = Some(health.clone());
            }
        }
        if had || has_load || upstream.health.is_some() {
            self.list.reset();
        }
    }

    /// Removes the upstream of a deleted resource; its slot is kept if a chain still names it.
    fn remove(&mut self, key: &Key, is_named: bool) {
        let slot = if is_named { self.slots.known(key) } else { self.slots.release(key) };
        if let Some(slot) = slot {
            self.clear_slot(slot);
        }
    }

    /// Removes the upstream of a deleted route.
    pub fn remove_own(&mut self, own: &Upstream) {
        self.slots.free(own.slot);
        self.clear_slot(own.slot);
    }

    fn clear_slot(&mut self, slot: u32) {
        self.table.remove(slot);
        self.keep_warm(slot, false);
        if self.watched.remove(&slot).is_some() {
            self.list.reset();
        }
    }
}
