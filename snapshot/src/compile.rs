//! From the desired state to a snapshot.
//!
//! A [`Compiler`] remembers which inputs each part was built from, so a change rebuilds only what
//! depends on it and everything else stays the same allocation. It is pure: no clock, no files, no
//! name resolution; the caller supplies the addresses of host names ([`Names`]) and learns which
//! names are used.
//!
//! A resource that cannot be compiled keeps its last valid version, is listed in
//! [`Compiled::rejected`], and never affects the others.

mod background;
mod certificate_table;
mod certificates;
mod chains;
mod chosen;
mod consumer_table;
mod consumers;
mod expiry;
mod interner;
mod memo;
mod metadata;
mod protos;
mod references;
mod refusing;
mod rejections;
mod routes;
mod runtime;
mod scripts;
mod shared;
mod streams;
mod touched;
mod units;
mod upstream;
mod upstream_table;
mod users;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashSet;
use model::{Desired, Entry, Invalid, Key, Kind, Rejected};
use sdk::build::Names;
use sdk::{Catalog, Chain};

use crate::Snapshot;
use crate::certs::TlsSettings;
use crate::health::Health;
use crate::load::Load;
use crate::plan::Timeouts;
use crate::router::{Mode, Options, Router};
use crate::streams::Streams;
use crate::upstream::Keepalive;
use certificate_table::CertificateTable;
pub use certificate_table::Stapling;
use chosen::Choices;
use consumer_table::ConsumerTable;
pub use expiry::Expiry;
use metadata::Metadata;
use protos::Protos;
pub use references::{Env, environment};
use rejections::{CompileOutcome, Rejections, guarded};
use routes::RouteUnit;
pub use runtime::Maker;
pub use runtime::made;
use shared::SharedUnit;
use streams::StreamUnit;
pub use touched::Touched;
use touched::Work;
use units::Units;
use upstream_table::UpstreamTable;
use users::Users;
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
    routes: Units<RouteUnit>,
    /// Routes that lack a secret and refuse all requests.
    refused: HashSet<String>,
    /// Global rules that lack a secret, or did so before their present error, and refuse all
    /// requests.
    lacking_rules: HashSet<Key>,
    upstreams: UpstreamTable,
    certificates: CertificateTable,
    /// Services, plugin configs, consumer groups and global rules.
    shared: BTreeMap<Key, SharedUnit>,
    metadata: Metadata,
    /// The chains of plugins that work without a request, by plugin.
    background: BTreeMap<String, Arc<Chain>>,
    protos: Protos,
    consumers: ConsumerTable,
    global: Option<Arc<Chain>>,
    stream_routes: BTreeMap<String, StreamUnit>,
    streams: Arc<Streams>,
    users: Users,
    hosts: WantedHosts,
    choices: Choices,
    rejections: Rejections,
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
            certificates: CertificateTable::new(settings.tls.fallback_sni.as_deref()),
            settings,
            routes: Units::default(),
            refused: HashSet::default(),
            lacking_rules: HashSet::default(),
            upstreams: UpstreamTable::default(),
            read: Vec::new(),
            shared: BTreeMap::new(),
            metadata: Metadata::default(),
            background: BTreeMap::new(),
            protos: Protos::default(),
            consumers: ConsumerTable::default(),
            global: None,
            stream_routes: BTreeMap::new(),
            streams: Arc::default(),
            users: Users::default(),
            hosts: WantedHosts::default(),
            choices: Choices::default(),
            rejections: Rejections::default(),
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
            upstreams: self.upstreams.table.clone(),
            warm: self.upstreams.warm.clone(),
            consumers: self.consumers.index.clone(),
            certificates: self.certificates.served.clone(),
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
        self.upstreams.slots.tick();
        self.consumers.slots.tick();
        self.load_scripts(desired, touched);
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
        self.compile_protos(&mut pass);
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

        Compiled {
            snapshot: self.snapshot(revision),
            rejected: self.rejections.list(),
            wanted_hosts: self.hosts.wanted(),
            watched: self.upstreams.watched(),
            stapling: self.certificates.stapling(),
            expiries: self.certificates.expiries(),
        }
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
            Kind::Upstream => self.upstreams.units.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::Ssl => self.certificates.units.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::Consumer => self.consumers.units.get_mut(&key.id).map(|unit| &mut unit.entry),
            Kind::Credential => self.consumers.credentials.get_mut(&key.id).map(|unit| &mut unit.entry),
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
            .chain(self.upstreams.units.keys().map(key(Kind::Upstream)))
            .chain(self.certificates.units.keys().map(key(Kind::Ssl)))
            .chain(self.metadata.plugins().map(key(Kind::PluginMetadata)))
            .chain(self.protos.ids().map(key(Kind::Proto)))
            .chain(self.consumers.units.keys().map(key(Kind::Consumer)))
            .chain(self.consumers.credentials.keys().map(key(Kind::Credential)))
            .chain(self.rejections.keys().cloned());
        let desired = pass.desired.iter().map(|entry| entry.key.clone());
        desired.chain(known).for_each(|key| pass.work.add(key));
    }

    /// Schedules the resources that refer to `key`.
    fn touch_users(&self, key: &Key, pass: &mut Pass<'_>) {
        for user in self.users.of(key) {
            match (key.kind, user.kind) {
                (Kind::Upstream, Kind::Route) => _ = pass.relink.insert(user.id.clone()),
                _ => pass.work.add(user.clone()),
            }
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
        self.rejections.settle(key, outcome)
    }
}

/// A value of another kind than its key; parsing rules this out.
fn mixed_up() -> Invalid {
    Invalid::new("the resource's kind is not the one in its key")
}
