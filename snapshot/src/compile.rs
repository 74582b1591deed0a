//! From the desired state to a snapshot.
//!
//! A [`Compiler`] remembers which inputs each part was built from, so a change rebuilds only what
//! depends on it and everything else stays the same allocation. It is pure: no clock, no files, no
//! name resolution; the caller supplies the addresses of host names ([`Names`]) and learns which
//! names are used.
//!
//! A resource that cannot be compiled keeps its last valid version, is listed in
//! [`Compiled::rejected`], and never affects the others.

mod certificates;
mod chains;
mod chosen;
mod consumers;
mod expiry;
mod interner;
mod metadata;
mod references;
mod refusing;
mod routes;
mod shared;
mod streams;
mod touched;
mod units;
mod upstream;
mod upstream_table;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use model::{Desired, Entry, Invalid, Key, Kind, Rejected, Served};
use sdk::build::Names;
use sdk::{Catalog, Chain, Consumers};

use crate::Snapshot;
use crate::certs::{Certificates, TlsSettings};
use crate::health::Health;
use crate::load::Load;
use crate::plan::Timeouts;
use crate::router::{Mode, Options, Router};
use crate::slots::Slots;
use crate::streams::Streams;
use crate::table::Table;
use crate::upstream::{Keepalive, Upstream};
use certificates::CertificateUnit;
pub use certificates::Stapling;
use chosen::Choices;
use consumers::{Claims, ConsumerUnit, CredentialUnit};
pub use expiry::Expiry;
use interner::Interner;
use metadata::Metadata;
pub use references::{Env, environment};
use routes::RouteUnit;
use shared::SharedUnit;
use streams::StreamUnit;
pub use touched::Touched;
use touched::Work;
use units::Units;
use upstream_table::UpstreamUnit;
use wanted::{Part, WantedHosts};

/// Settings of the boot file that affect compiling.
#[derive(Clone)]
pub struct Settings {
    /// `apisix.router.http`.
    pub mode: Mode,
    pub options: Options,
    /// The enabled plugins, unless the store has a list; `None` means all.
    pub plugins: Option<Vec<String>>,
    /// The enabled stream plugins (`stream_plugins`), unless the store has a list; `None` means
    /// all.
    pub stream_plugins: Option<Vec<String>>,
    /// The protocols that can be inspected in streams (`xrpc.protocols`).
    pub protocols: Vec<String>,
    /// For routes and upstreams without their own.
    pub timeouts: Timeouts,
    /// For upstreams without their own.
    pub keepalive: Keepalive,
    /// The most retries of upstreams without `retries`, regardless of the number of nodes.
    pub default_retries: u32,
    /// `false` for `apisix.disable_upstream_healthcheck`.
    pub health_checks: bool,
    /// The service registries of the boot file.
    pub registries: BTreeSet<String>,
    pub tls: TlsSettings,
    /// Reads environment variables.
    pub env: Arc<Env>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::default(),
            options: Options::default(),
            plugins: None,
            stream_plugins: None,
            protocols: Vec::new(),
            timeouts: Timeouts::default(),
            keepalive: Keepalive::default(),
            default_retries: 32,
            health_checks: true,
            registries: BTreeSet::new(),
            tls: TlsSettings::default(),
            env: Arc::new(|_| None),
        }
    }
}

/// The result of a compile.
#[derive(Debug)]
pub struct Compiled {
    pub snapshot: Snapshot,
    /// All rejected resources, by key.
    pub rejected: Arc<[Rejected]>,
    /// All host names whose addresses are needed. The same `Arc` as before if nothing changed.
    pub wanted_hosts: Arc<BTreeSet<String>>,
    /// All upstreams with checks, ejection or limits that adapt. The same `Arc` as before if nothing changed.
    pub watched: Arc<[Watched]>,
    /// All certificates that need a stapled OCSP response. The same `Arc` as before if nothing
    /// changed.
    pub stapling: Arc<[Arc<Stapling>]>,
    /// When the certificates in use expire, the soonest first. The same `Arc` as before if nothing changed.
    pub expiries: Arc<[Arc<Expiry>]>,
}

/// An upstream that the control plane supervises while it is in use.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The resource that declares it; for an upstream in plugin settings, the id ends with `#` and
    /// a number.
    pub key: Key,
    pub health: Option<Arc<Health>>,
    /// Set if it has an adaptive limit.
    pub load: Option<Load>,
}

/// Compiles snapshots. Owned by the control plane.
pub struct Compiler {
    catalog: Arc<dyn Catalog>,
    settings: Settings,
    /// The catalog's generation at the last compile.
    generation: u64,
    /// The enabled plugins; `None` means all.
    enabled: Option<HashSet<String>>,
    /// The enabled stream plugins; `None` means all.
    enabled_on_streams: Option<HashSet<String>>,
    router: Router,
    /// All upstreams, including inline ones.
    table: Table<Upstream>,
    interner: Interner,
    routes: Units<RouteUnit>,
    /// Routes that lack a secret and refuse all requests.
    refused: HashSet<String>,
    /// Global rules that lack a secret, or did so before their present error, and refuse all
    /// requests.
    lacking_rules: HashSet<Key>,
    upstreams: HashMap<String, UpstreamUnit>,
    /// Server certificates, and the resources they were built from.
    certificates: Certificates,
    certificate_units: HashMap<String, CertificateUnit>,
    /// OCSP responses by certificate, the needed ones by resource, and the last published list.
    staples: HashMap<[u8; 32], Arc<[u8]>>,
    stapling: BTreeMap<String, Vec<Arc<Stapling>>>,
    stapling_list: Option<Arc<[Arc<Stapling>]>>,
    /// Those of the certificate units, until one of these changes.
    expiries: Option<Arc<[Arc<Expiry>]>>,
    /// Services, plugin configs, consumer groups and global rules.
    shared: BTreeMap<Key, SharedUnit>,
    metadata: Metadata,
    consumers: BTreeMap<String, ConsumerUnit>,
    credentials: BTreeMap<String, CredentialUnit>,
    claims: Claims,
    index: Arc<Consumers>,
    global: Option<Arc<Chain>>,
    stream_routes: BTreeMap<String, StreamUnit>,
    streams: Arc<Streams>,
    /// Routes and consumers, by the resources they refer to.
    users: HashMap<Arc<Key>, BTreeSet<Key>>,
    /// The reverse.
    refers: HashMap<Key, Box<[Arc<Key>]>>,
    hosts: WantedHosts,
    /// Supervised upstreams, by slot.
    checked: BTreeMap<u32, Watched>,
    /// Slots of upstreams with connections opened in advance.
    warm: Arc<[u32]>,
    watched: Option<Arc<[Watched]>>,
    choices: Choices,
    rejected: BTreeMap<Key, Rejected>,
    /// Resources rejected only because another resource already claims something unique.
    duplicates: BTreeSet<Key>,
    rejected_list: Option<Arc<[Rejected]>>,
    upstream_slots: Slots,
    consumer_slots: Slots,
    /// The resources whose entries were read since the last [`Compiler::take_read`].
    read: Vec<Key>,
}

/// The state of one compile.
struct Pass<'a> {
    desired: &'a Desired,
    names: &'a (dyn Names + Sync),
    /// The previous router, if everything is rebuilt: filling an empty one is several times faster
    /// than changing every entry of a shared one.
    old_router: Option<Router>,
    work: Work,
    /// Routes and services that changed only in the addresses of their inline upstream.
    readdress: BTreeSet<Key>,
    /// Routes that changed only in which upstream they use.
    relink: BTreeSet<String>,
}

impl Compiler {
    pub fn new(catalog: Arc<dyn Catalog>, settings: Settings) -> Compiler {
        Compiler {
            generation: catalog.generation(),
            catalog,
            enabled: None,
            enabled_on_streams: None,
            router: Router::new(settings.mode, settings.options),
            certificates: Certificates::new(settings.tls.fallback_sni.as_deref()),
            certificate_units: HashMap::default(),
            staples: HashMap::default(),
            stapling: BTreeMap::new(),
            stapling_list: None,
            expiries: None,
            settings,
            table: Table::default(),
            interner: Interner::default(),
            routes: Units::default(),
            refused: HashSet::default(),
            lacking_rules: HashSet::default(),
            upstreams: HashMap::default(),
            read: Vec::new(),
            shared: BTreeMap::new(),
            metadata: Metadata::default(),
            consumers: BTreeMap::new(),
            credentials: BTreeMap::new(),
            claims: Claims::default(),
            index: Arc::default(),
            global: None,
            stream_routes: BTreeMap::new(),
            streams: Arc::default(),
            users: HashMap::default(),
            refers: HashMap::default(),
            hosts: WantedHosts::default(),
            checked: BTreeMap::new(),
            warm: Arc::default(),
            watched: None,
            choices: Choices::default(),
            rejected: BTreeMap::new(),
            duplicates: BTreeSet::new(),
            rejected_list: None,
            upstream_slots: Slots::default(),
            consumer_slots: Slots::default(),
        }
    }

    /// Applies the boot file's plugin list after a reload.
    pub fn set_plugins(&mut self, plugins: Option<Vec<String>>) {
        self.settings.plugins = plugins;
    }

    /// The resources that need the addresses of a host.
    pub fn users_of(&self, host: &str) -> BTreeSet<Key> {
        self.hosts.users(host).map(|(key, _)| key.clone()).collect()
    }

    /// The current snapshot; initially one that serves nothing.
    pub fn snapshot(&self, revision: u64) -> Snapshot {
        Snapshot {
            revision,
            router: self.router.clone(),
            upstreams: self.table.clone(),
            warm: self.warm.clone(),
            consumers: self.index.clone(),
            certificates: self.certificates.clone(),
            global: self.global.clone(),
            streams: self.streams.clone(),
        }
    }

    /// Compiles `touched` and everything that depends on it. `desired` and the results of `names`
    /// must differ from the last compile's only in `touched`.
    pub fn compile(
        &mut self,
        desired: &Desired,
        touched: &Touched,
        names: &(dyn Names + Sync),
        revision: u64,
    ) -> Compiled {
        for slots in [&mut self.upstream_slots, &mut self.consumer_slots] {
            slots.tick();
        }
        let set = |list: Option<&Vec<String>>| list.map(|list| list.iter().cloned().collect::<HashSet<_>>());
        let enabled = set(desired.plugins.as_ref().or(self.settings.plugins.as_ref()));
        let on_streams = set(desired.stream_plugins.as_ref().or(self.settings.stream_plugins.as_ref()));
        let generation = self.catalog.generation();
        let lists_differ = enabled != self.enabled || on_streams != self.enabled_on_streams;
        let all = touched.all || lists_differ || generation != self.generation;
        self.generation = generation;
        (self.enabled, self.enabled_on_streams) = (enabled, on_streams);

        let mut pass = Pass {
            desired,
            names,
            old_router: all.then(|| self.take_router()),
            work: Work::default(),
            readdress: BTreeSet::new(),
            relink: BTreeSet::new(),
        };
        if all {
            self.add_everything(&mut pass);
        } else {
            touched.keys.iter().cloned().for_each(|key| pass.work.add(key));
            for host in &touched.hosts {
                for (key, part) in self.hosts.users(host) {
                    match (part, key.kind) {
                        (Part::Upstream, Kind::Route | Kind::Service) => {
                            _ = pass.readdress.insert(key.clone())
                        }
                        _ => pass.work.add(key.clone()),
                    }
                }
            }
        }
        // Each step may schedule work for later steps.
        self.compile_metadata(&mut pass);
        self.compile_certificates(&mut pass);
        self.compile_upstreams(&mut pass);
        self.readdress(&mut pass);
        self.compile_shared(Kind::Service, &mut pass);
        self.compile_shared(Kind::PluginConfig, &mut pass);
        self.compile_routes(&mut pass);
        self.keep_rules(&pass);
        self.compile_shared(Kind::ConsumerGroup, &mut pass);
        self.compile_consumers(&mut pass);
        self.compile_global(&mut pass);
        self.compile_streams(&mut pass);

        let rejected = self
            .rejected_list
            .get_or_insert_with(|| self.rejected.values().cloned().collect::<Vec<_>>().into())
            .clone();
        let watched = self
            .watched
            .get_or_insert_with(|| self.checked.values().cloned().collect::<Vec<_>>().into())
            .clone();
        let stapling = self.wanted_staples();
        let expiries = self.expiries();
        let (snapshot, wanted_hosts) = (self.snapshot(revision), self.hosts.wanted());
        Compiled { snapshot, rejected, wanted_hosts, watched, stapling, expiries }
    }

    /// The resources, of kinds that may be numerous, that were read since the last call. Their
    /// parsed entries may be dropped until they are touched again; the caller then reports each
    /// with [`Compiler::release_parsed`].
    pub fn take_read(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.read)
    }

    /// Releases the parsed entry of a resource. `desired` is its entry before and after.
    pub fn release_parsed(&mut self, key: &Key, desired: Option<&(Arc<Entry>, Arc<Entry>)>) {
        let entry = match key.kind {
            Kind::Route => self.routes.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::StreamRoute => self.stream_routes.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::Upstream => self.upstreams.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::Ssl => self.certificate_units.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::Consumer => self.consumers.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::Credential => self.credentials.get_mut(&key.id).map(|unit| &mut unit.entry),
            _ => None,
        };
        let Some(entry) = entry else { return };
        match desired {
            // All users share one allocation, so comparing pointers shows that nothing changed.
            Some((before, now)) if Arc::ptr_eq(entry, before) => *entry = now.clone(),
            _ => {
                if let Some(resting) = entry.at_rest() {
                    *entry = Arc::new(resting);
                }
            }
        }
    }

    fn note_read<'k>(&mut self, kind: Kind, ids: impl IntoIterator<Item = &'k String>) {
        self.read.extend(ids.into_iter().map(|id| Key::new(kind, id.as_str())));
    }

    /// Takes the router, leaving an empty one.
    fn take_router(&mut self) -> Router {
        let empty = Router::new(self.settings.mode, self.settings.options);
        std::mem::replace(&mut self.router, empty)
    }

    /// Schedules all resources, present and previous, so that removed ones are dropped.
    fn add_everything(&self, pass: &mut Pass<'_>) {
        let key = |kind| move |id: &String| Key::new(kind, id.as_str());
        let known = (self.shared.keys().cloned())
            .chain(self.routes.ids().map(|id| Key::new(Kind::Route, id)))
            .chain(self.stream_routes.keys().map(key(Kind::StreamRoute)))
            .chain(self.upstreams.keys().map(key(Kind::Upstream)))
            .chain(self.certificate_units.keys().map(key(Kind::Ssl)))
            .chain(self.metadata.plugins().map(key(Kind::PluginMetadata)))
            .chain(self.consumers.keys().map(key(Kind::Consumer)))
            .chain(self.credentials.keys().map(key(Kind::Credential)))
            .chain(self.rejected.keys().cloned());
        let desired = pass.desired.iter().map(|entry| entry.key.clone());
        desired.chain(known).for_each(|key| pass.work.add(key));
    }

    /// Schedules the resources that refer to `key`.
    fn touch_users(&self, key: &Key, pass: &mut Pass<'_>) {
        for user in self.users.get(key).into_iter().flatten() {
            match (key.kind, user.kind) {
                (Kind::Upstream, Kind::Route) => _ = pass.relink.insert(user.id.clone()),
                _ => pass.work.add(user.clone()),
            }
        }
    }

    /// Replaces the references of `user`, whether their targets exist or not. Rejected resources
    /// are included: they may become valid once a target changes.
    fn refer(&mut self, user: &Key, now: Vec<Key>) {
        let before = self.refers.get(user).map(Box::as_ref).unwrap_or_default();
        if before.iter().map(Arc::as_ref).eq(&now) {
            return;
        }
        for key in before.iter().filter(|key| !now.contains(key)) {
            if let Some(users) = self.users.get_mut(key) {
                users.remove(user);
                if users.is_empty() {
                    self.users.remove(key);
                }
            }
        }
        // Many refer to the same few resources.
        let refer = |key: Key| match self.users.get_key_value(&key).map(|(key, _)| key.clone()) {
            Some(known) => {
                self.users.get_mut(&known).map(|users| users.insert(user.clone()));
                known
            }
            None => {
                let key = Arc::new(key);
                self.users.insert(key.clone(), BTreeSet::from([user.clone()]));
                key
            }
        };
        let now: Box<[Arc<Key>]> = now.into_iter().map(refer).collect();
        match now.is_empty() {
            true => self.refers.remove(user),
            false => self.refers.insert(user.clone(), now),
        };
    }

    fn accept(&mut self, key: &Key) {
        self.duplicates.remove(key);
        if self.rejected.remove(key).is_some() {
            self.rejected_list = None;
        }
    }

    fn reject(&mut self, key: &Key, invalid: Invalid, served: Served) {
        self.duplicates.remove(key);
        self.rejected.insert(key.clone(), Rejected { key: key.clone(), invalid, served });
        self.rejected_list = None;
    }

    /// Marks a rejected resource: requests that match it are refused.
    fn mark_refused(&mut self, key: &Key) {
        if let Some(rejected) = self.rejected.get_mut(key)
            && rejected.served != Served::Refusal
        {
            rejected.served = Served::Refusal;
            self.rejected_list = None;
        }
    }

    /// Sets or clears a resource's rejection as a duplicate. A rejection for its own content takes
    /// precedence and stays.
    fn set_duplicate(&mut self, key: Key, invalid: Option<Invalid>) {
        if self.duplicates.contains(&key) {
            self.accept(&key);
        }
        if let Some(invalid) = invalid
            && !self.rejected.contains_key(&key)
        {
            self.reject(&key, invalid, Served::Nothing);
            self.duplicates.insert(key);
        }
    }

    /// [`CompileOutcome::or_last_good`], with the error reported.
    fn compile_or_last_good<T>(
        &mut self,
        key: &Key,
        entry: &Arc<Entry>,
        last_good: Option<Arc<Entry>>,
        mut make: impl FnMut(&mut Compiler, &Arc<Entry>) -> Result<T, Invalid>,
    ) -> Option<T> {
        let outcome = CompileOutcome::or_last_good(entry, last_good.as_ref(), |entry| make(self, entry));
        self.settle(key, outcome)
    }

    fn settle<T>(&mut self, key: &Key, outcome: CompileOutcome<T>) -> Option<T> {
        match outcome.error {
            None => self.accept(key),
            Some(invalid) => self.reject(key, *invalid, outcome.served),
        }
        outcome.made
    }
}

/// A resource compiled from its entry or, if that is invalid, again from its last valid entry:
/// names, services and other inputs may have changed, and those changes apply to the last valid
/// version, too.
struct CompileOutcome<T> {
    made: Option<T>,
    /// The error in the entry.
    error: Option<Box<Invalid>>,
    /// Whether the last valid version serves in its place.
    served: Served,
}

impl<T> CompileOutcome<T> {
    fn or_last_good(
        entry: &Arc<Entry>,
        last_good: Option<&Arc<Entry>>,
        mut make: impl FnMut(&Arc<Entry>) -> Result<T, Invalid>,
    ) -> CompileOutcome<T> {
        let served = Served::last_good(last_good.is_some());
        let mut make = |entry: &Arc<Entry>| guarded(|| make(entry));
        match make(entry) {
            Ok(made) => CompileOutcome { made: Some(made), error: None, served },
            Err(invalid) => {
                let last_good = last_good.filter(|last_good| !Arc::ptr_eq(last_good, entry));
                let made = last_good.and_then(|last_good| make(last_good).ok());
                CompileOutcome { made, error: Some(Box::new(invalid)), served }
            }
        }
    }
}

/// Contains a panic: only the resource that triggers our bug is rejected.
fn guarded<T>(make: impl FnOnce() -> Result<T, Invalid>) -> Result<T, Invalid> {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| {
        Err(Invalid::new("compiling it failed through a fault in the gateway, not in the resource")
            .hint("the log says where; please report it"))
    })
}

/// A value of another kind than its key; parsing rules this out.
fn mixed_up() -> Invalid {
    Invalid::new("the resource's kind is not the one in its key")
}
