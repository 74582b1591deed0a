//! The one way from a store to the workers.
//!
//! One task owns what is desired, the compiler and the publisher. It follows
//! the store, the addresses of names and the boot file's list of plugins; what
//! has come in is applied at once, and what comes in meanwhile is applied
//! together next. It never writes to a store and never calls into a worker.

mod report;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use model::{CertificatePair, Desired, Key, Kind, Rejected, Resource};
use snapshot::compile::Stapling;
use snapshot::{Compiled, Compiler, Publisher, Touched, Watched, certs};
use tokio::sync::{mpsc, oneshot, watch};

use crate::discovery;
use crate::fold::Fold;
use crate::health::{Monitor, Prober};
use crate::look::Look;
use crate::names::{Failure, Resolver};
use crate::store::{Change, Changes, Revision, Store};
use report::Counts;
pub use report::Report;

/// A burst is gathered no longer than this before it is applied.
const GATHER: Duration = Duration::from_millis(10);
/// The same of changes that are there already: a write of a thousand resources is to go live as a whole.
const GATHER_CHANGES: Duration = Duration::from_millis(250);
/// How long the first snapshot waits for names to be looked up.
const FIRST_NAMES: Duration = Duration::from_secs(1);
/// How long a change waits for secrets that it is the first to refer to: most managers answer sooner, and then
/// secrets that are still loading are not reported as missing.
const NEW_SECRETS: Duration = Duration::from_millis(500);
/// Rejected resources logged at a time; a whole file may be wrong.
const MOST_LINES: usize = 100;
/// Resources named that want a name's address; the others are counted.
const MOST_USERS: usize = 10;
/// Resources whose typed form is let go of in one go.
const RESTING: usize = 512;
/// How often old snapshots are freed that workers have let go of.
const FREE: Duration = Duration::from_millis(500);

/// Follows a store and publishes snapshots. Runs on the control runtime.
pub struct Pipeline {
    changes: Changes,
    fold: Fold,
    compiler: Compiler,
    publisher: Publisher,
    resolver: Resolver,
    /// Probes the servers that are to be checked, from the first run on.
    prober: Option<Prober>,
    watched: watch::Sender<Arc<[Watched]>>,
    stapling: watch::Sender<Arc<[Arc<Stapling>]>>,
    commands: mpsc::UnboundedReceiver<Command>,
    report: watch::Sender<Arc<Report>>,
    wanted: Arc<BTreeSet<String>>,
    /// Resources rejected at the last compile, by the store's values and by the compiler.
    rejected: [Arc<[Rejected]>; 2],
    /// The store is a file, which says itself what in it has no effect, with line and column.
    of_a_file: bool,
    /// Resources whose typed form was read and is needed no more.
    to_rest: Vec<Key>,
}

/// Looks at a pipeline and gives it orders, from any thread.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    report: watch::Receiver<Arc<Report>>,
    health: Monitor,
    discovered: discovery::KnownServices,
    stapling: watch::Receiver<Arc<[Arc<Stapling>]>>,
}

#[derive(Debug)]
enum Command {
    Plugins(Option<Vec<String>>),
    /// The catalog may have other plugins.
    Catalog,
    Look(oneshot::Sender<Look>),
    /// An OCSP response for a certificate of an ssl resource, or no more.
    Staple {
        key: Key,
        id: [u8; 32],
        response: Option<Arc<[u8]>>,
    },
}

/// Why something is compiled.
#[derive(Debug, Default)]
struct Batch {
    touched: Touched,
    changes: usize,
    /// The boot file's list of plugins changed.
    plugins: bool,
    staples: usize,
    is_reset: bool,
    /// Secrets whose values changed.
    secrets: BTreeSet<String>,
}

impl Pipeline {
    pub fn new(
        store: &dyn Store,
        compiler: Compiler,
        publisher: Publisher,
        resolver: Resolver,
    ) -> (Pipeline, Handle) {
        let (to_us, commands) = mpsc::unbounded_channel();
        let (report, reports) = watch::channel(Arc::new(Report::default()));
        let (watched, changes) = watch::channel(Arc::default());
        let (stapling, wanted_staples) = watch::channel(Arc::default());
        let (prober, health) = Prober::new(changes);
        let discovered = resolver.discovered();
        let pipeline = Pipeline {
            changes: store.watch(),
            fold: Fold::default(),
            compiler,
            publisher,
            resolver,
            prober: Some(prober),
            watched,
            stapling,
            commands,
            report,
            wanted: Arc::default(),
            rejected: Default::default(),
            of_a_file: !store.writable(),
            to_rest: Vec::new(),
        };
        let handle =
            Handle { commands: to_us, report: reports, health, discovered, stapling: wanted_staples };
        (pipeline, handle)
    }

    /// Runs until the store is gone or every [`Handle`] is.
    pub async fn run(mut self) {
        let mut free = tokio::time::interval(FREE);
        free.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // It ends with the channel that tells it what to probe.
        self.prober.take().map(|prober| crate::tasks::spawn(prober.run()));
        loop {
            let mut batch = Batch::default();
            tokio::select! {
                // Orders and changes before names, so that a flapping name holds nothing up.
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Look(to)) => {
                        self.show(to);
                        continue;
                    }
                    Some(command) => self.obey(command, &mut batch),
                    None => return,
                },
                change = self.changes.next() => match change {
                    Some(change) => self.take(change, &mut batch),
                    None => return,
                },
                name = self.resolver.changed() => self.note(name, &mut batch),
                () = tokio::task::yield_now(), if !self.to_rest.is_empty() => {
                    self.put_to_rest();
                    continue;
                }
                _ = free.tick() => {
                    self.publisher.free_unused();
                    self.look_around();
                    continue;
                }
            }
            if !self.gather(&mut batch) {
                return;
            }
            let is_first = self.report.borrow().compiles == 0;
            self.apply(batch, is_first).await;
        }
    }

    /// Adds all changes that have arrived already. `false` if the store has ended.
    fn gather(&mut self, batch: &mut Batch) -> bool {
        let began = Instant::now();
        while began.elapsed() < GATHER_CHANGES {
            let only_changes = began.elapsed() >= GATHER;
            if !only_changes && let Ok(command) = self.commands.try_recv() {
                self.obey(command, batch);
                continue;
            }
            match self.changes.next().now_or_never() {
                Some(Some(change)) => {
                    self.take(change, batch);
                    continue;
                }
                Some(None) => return false,
                None if only_changes => break,
                None => {}
            }
            match self.resolver.changed().now_or_never() {
                Some(name) => self.note(name, batch),
                None => break,
            }
        }
        true
    }

    fn obey(&mut self, command: Command, batch: &mut Batch) {
        match command {
            Command::Plugins(list) => {
                self.compiler.set_plugins(list);
                batch.plugins = true;
            }
            Command::Catalog => batch.plugins = true,
            Command::Look(to) => self.show(to),
            Command::Staple { key, id, response } => {
                self.compiler.staple(id, response);
                batch.touched.keys.insert(key);
                batch.staples += 1;
            }
        }
    }

    /// Sends all that is served now. Copies share it, so this costs a pointer a resource.
    fn show(&self, to: oneshot::Sender<Look>) {
        let report = self.report.borrow().clone();
        let look = Look {
            snapshot: self.compiler.snapshot(report.revision),
            desired: self.fold.desired().clone(),
            rejected: report.rejected.clone(),
            unasked: false,
        };
        // The receiver may be gone.
        let _ = to.send(look);
    }

    fn take(&mut self, change: Change, batch: &mut Batch) {
        batch.changes += 1;
        batch.is_reset |= matches!(change, Change::Reset { .. });
        self.fold.apply(change, &mut batch.touched);
    }

    fn note(&self, name: String, batch: &mut Batch) {
        if name.starts_with(model::references::SECRET) {
            batch.secrets.insert(name.clone());
        }
        self.fold.touch(name, &mut batch.touched);
    }

    async fn apply(&mut self, batch: Batch, is_first: bool) {
        let began = Instant::now();
        if let Some((wanted, managers)) = self.fold.take_secrets() {
            self.resolver.secrets().want(&wanted, managers);
        }
        let mut compiled = self.compile(&batch.touched);
        let patience = match is_first {
            true => FIRST_NAMES,
            false => NEW_SECRETS,
        };
        if (is_first && !self.resolver.is_settled()) || !self.resolver.secrets().is_settled() {
            let touched = self.await_names(is_first, patience).await;
            self.resolver.secrets().stop_waiting();
            compiled = self.compile(&touched);
        }
        self.publisher.publish(compiled.snapshot);
        self.log_expired(&batch.touched);
        self.to_rest.extend(self.compiler.take_read());
        self.watched.send_if_modified(|watched| {
            let differs = !Arc::ptr_eq(watched, &compiled.watched);
            *watched = compiled.watched;
            differs
        });
        self.stapling.send_if_modified(|stapling| {
            let differs = !Arc::ptr_eq(stapling, &compiled.stapling);
            *stapling = compiled.stapling;
            differs
        });
        let took = began.elapsed();
        let counts = served(self.fold.desired(), &compiled.rejected);
        self.log_change(&batch, &counts, took);
        self.log_ignored();
        let before = self.report.borrow().clone();
        let rejected = self.rejected(compiled.rejected, &before.rejected);
        let dangling = self.fold.dangling();
        if !Arc::ptr_eq(&dangling, &before.dangling) {
            log_new(&dangling, &before.dangling, report::log_dangling);
        }
        self.report.send_replace(Arc::new(Report {
            revision: self.fold.revision(),
            published: Some(SystemTime::now()),
            counts,
            rejected,
            dangling,
            unseen_plugins: self.fold.unseen(),
            without_effect: self.fold.without_effect(),
            findings: self.fold.findings().clone(),
            failing_names: self.resolver.failing(),
            expiries: compiled.expiries,
            secrets: self.resolver.secrets().counts(),
            compiles: before.compiles + 1,
            last_compile: took,
            longest_compile: before.longest_compile.max(took),
            compiling: before.compiling + took,
            kept_snapshots: self.publisher.kept(),
        }));
        self.put_to_rest();
    }

    fn compile(&mut self, touched: &Touched) -> Compiled {
        let compiled =
            self.compiler.compile(self.fold.desired(), touched, self.resolver.known(), self.fold.revision());
        if !Arc::ptr_eq(&self.wanted, &compiled.wanted_hosts) {
            self.wanted = compiled.wanted_hosts.clone();
            self.resolver.want(&self.wanted);
            self.log_unknown_registries();
        }
        compiled
    }

    /// Lets go of some of the typed forms that compiles have read. After a start with many resources that takes
    /// a while, in which others have their turn on this thread.
    fn put_to_rest(&mut self) {
        let some = self.to_rest.len().saturating_sub(RESTING);
        for key in self.to_rest.split_off(some) {
            let desired = self.fold.put_to_rest(&key);
            self.compiler.release_parsed(&key, desired.as_ref());
        }
        if self.to_rest.is_empty() {
            // After a start the list was as long as the configuration.
            self.to_rest = Vec::new();
        }
    }

    /// Everything that is rejected, now and by whom ever; logs what was not before.
    fn rejected(&mut self, compiled: Arc<[Rejected]>, before: &Arc<[Rejected]>) -> Arc<[Rejected]> {
        let now = [self.fold.refused(), compiled];
        if now.iter().zip(&self.rejected).all(|(now, before)| Arc::ptr_eq(now, before)) {
            return before.clone();
        }
        let all: Vec<Rejected> = now.iter().flat_map(|list| &**list).cloned().collect();
        log_new(&all, before, report::log_rejected);
        self.rejected = now;
        all.into()
    }

    /// Waits a moment for secrets, and with `names` for the names that are wanted, and gives what was found.
    async fn await_names(&mut self, names: bool, patience: Duration) -> Touched {
        let mut found = Touched::default();
        let end = tokio::time::Instant::now() + patience;
        while !match names {
            true => self.resolver.is_settled(),
            false => self.resolver.secrets().is_settled(),
        } {
            // A failed look-up settles a name without a change, so look again now and then.
            let soon = end.min(tokio::time::Instant::now() + Duration::from_millis(5));
            match tokio::time::timeout_at(soon, self.resolver.changed()).await {
                Ok(name) => self.fold.touch(name, &mut found),
                Err(_) if tokio::time::Instant::now() >= end => break,
                Err(_) => {}
            }
        }
        found
    }

    /// Notes what changes without a compile.
    fn look_around(&mut self) {
        self.log_failing_names();
        let (failing, kept) = (self.resolver.failing(), self.publisher.kept());
        let secrets = self.resolver.secrets().counts();
        self.report.send_if_modified(|report| {
            let differs =
                report.failing_names != failing || report.kept_snapshots != kept || report.secrets != secrets;
            if differs {
                *report = Arc::new(Report {
                    failing_names: failing,
                    kept_snapshots: kept,
                    secrets,
                    ..Report::clone(report)
                });
            }
            differs
        });
    }

    /// Logs the names that cannot be looked up any more, and the resources that use them.
    fn log_failing_names(&mut self) {
        for Failure { host, error, has_addresses } in self.resolver.take_failures() {
            let what = if has_addresses { "its last addresses stay in use" } else { "it has no address" };
            let users = self.users_of(&host);
            tracing::error!("cannot resolve {host}: {error}; {what}; used by {users}");
        }
    }

    /// Logs the services whose registry the boot file does not have, and the resources that use them.
    fn log_unknown_registries(&mut self) {
        let unknown = self.resolver.take_unknown();
        for service in unknown.iter().take(MOST_LINES) {
            let (kind, name, users) = (&service.kind, &service.service_name, self.users_of(&service.key()));
            tracing::error!(
                "config.yaml does not have the registry {kind}, so that the service {name} has no nodes; used by \
                 {users}\n  help: add `discovery.{kind}` to config.yaml"
            );
        }
        if unknown.len() > MOST_LINES {
            tracing::error!("and {} more services of such registries", unknown.len() - MOST_LINES);
        }
    }

    /// The first resources that use a name.
    fn users_of(&self, name: &str) -> String {
        let users = self.compiler.users_of(name);
        let mut named: Vec<String> = users.iter().take(MOST_USERS).map(Key::to_string).collect();
        if users.len() > MOST_USERS {
            named.push(format!("{} more", users.len() - MOST_USERS));
        }
        named.join(", ")
    }

    /// Logs settings in the store that have no effect in this version.
    fn log_ignored(&mut self) {
        let ignored = self.fold.take_ignored();
        if self.of_a_file {
            return;
        }
        for (key, invalid) in ignored.iter().take(MOST_LINES) {
            tracing::warn!("{}", model::gaps::line(key, invalid));
        }
        if ignored.len() > MOST_LINES {
            tracing::warn!("and {} more settings that have no effect", ignored.len() - MOST_LINES);
        }
    }

    /// Logs certificates that had expired when they were read. The Admin API refuses them; files and etcd may have them.
    fn log_expired(&self, touched: &Touched) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut expired = 0;
        let check = |key: &Key| {
            let Some(Resource::Ssl(ssl)) =
                self.fold.desired().get(Kind::Ssl, &key.id).map(|entry| entry.resource())
            else {
                return;
            };
            let over = |pair: &CertificatePair| certs::expired_for(&pair.cert, now.cast_signed());
            let Some(days) = ssl.pairs.iter().filter(|_| ssl.enabled).find_map(over) else { return };
            expired += 1;
            if expired <= MOST_LINES {
                tracing::warn!(
                    "{key}: a certificate expired {days} days ago; clients that verify it end the handshake"
                );
            }
        };
        if touched.all {
            let all: Vec<Key> = self.fold.desired().of(Kind::Ssl).map(|entry| entry.key.clone()).collect();
            all.iter().for_each(check);
        } else {
            touched.keys.iter().filter(|key| key.kind == Kind::Ssl).for_each(check);
        }
        if expired > MOST_LINES {
            tracing::warn!("and {} more expired certificates", expired - MOST_LINES);
        }
    }

    /// Logs what a published snapshot has that the one before had not.
    fn log_change(&self, batch: &Batch, counts: &Counts, took: Duration) {
        let revision = self.fold.revision();
        let compile_ms = (took.as_secs_f64() * 10_000.0).round() / 10.0;
        if batch.is_reset {
            // A file that could not be used is a reset to what there was.
            if batch.touched.is_empty() && self.report.borrow().compiles > 0 {
                return;
            }
            let of =
                |kind| counts.iter().find(|(counted, _)| *counted == kind).map_or(0, |(_, count)| *count);
            let (routes, services) = (of(Kind::Route), of(Kind::Service));
            let (upstreams, consumers) = (of(Kind::Upstream), of(Kind::Consumer));
            tracing::info!(routes, services, upstreams, consumers, revision, compile_ms, "serving");
        } else if batch.plugins {
            tracing::info!(revision, compile_ms, "plugin list read");
        } else if batch.changes > 0 {
            tracing::info!(changes = batch.changes, revision, compile_ms, "configuration changed");
        } else if batch.staples > 0 {
            tracing::info!(responses = batch.staples, compile_ms, "OCSP responses changed");
        } else {
            let hosts = batch.touched.hosts.iter().map(|name| match discovery::Service::of_key(name) {
                Some(service) => format!("{} of {}", service.service_name, service.kind),
                None => name.clone(),
            });
            let hosts: Vec<String> = hosts.collect();
            if !hosts.is_empty() {
                tracing::info!(names = hosts.join(", "), compile_ms, "addresses changed");
            }
            if !batch.secrets.is_empty() {
                let secrets: Vec<&str> = batch.secrets.iter().map(String::as_str).collect();
                tracing::info!(secrets = secrets.join(", "), compile_ms, "secrets changed");
            }
        }
    }
}

/// How many resources of each kind are served, in this or an older form.
fn served(desired: &Desired, rejected: &[Rejected]) -> Counts {
    Kind::ALL.map(|kind| {
        let out = rejected.iter().filter(|one| one.key.kind == kind && !one.kept()).count();
        (kind, desired.count(kind).saturating_sub(out))
    })
}

/// Logs those that were not there before, up to a bound.
fn log_new(now: &[Rejected], before: &[Rejected], log: impl Fn(&Rejected)) {
    let known: HashMap<(&Key, &str), &Rejected> = before.iter().map(|one| (place(one), one)).collect();
    let mut news = now.iter().filter(|one| known.get(&place(one)) != Some(one));
    news.by_ref().take(MOST_LINES).for_each(log);
    let left_out = news.count();
    if left_out > 0 {
        tracing::error!(left_out, "more resources are listed by the control API at /v1/rejected");
    }
}

fn place(rejected: &Rejected) -> (&Key, &str) {
    (&rejected.key, &rejected.invalid.pointer)
}

impl Handle {
    /// How things stand.
    pub fn report(&self) -> Arc<Report> {
        self.report.borrow().clone()
    }

    /// Returns the nodes that service registries know.
    pub fn discovered(&self) -> &discovery::KnownServices {
        &self.discovered
    }

    /// Returns the results of health checks.
    pub fn health(&self) -> &Monitor {
        &self.health
    }

    /// The certificates whose OCSP responses are to be stapled.
    pub fn stapling(&self) -> watch::Receiver<Arc<[Arc<Stapling>]>> {
        self.stapling.clone()
    }

    /// Staples an OCSP response to a certificate of an ssl resource, or nothing any more.
    pub fn staple(&self, key: Key, id: [u8; 32], response: Option<Arc<[u8]>>) {
        // Fails only when the program ends and the receiver is gone.
        let _ = self.commands.send(Command::Staple { key, id, response });
    }

    /// Waits until this revision is applied; `None` if that is not so within `patience`, or is not
    /// worth waiting for since applying takes longer than that.
    pub async fn applied(&self, revision: Revision, patience: Duration) -> Option<Arc<Report>> {
        let mut report = self.report.clone();
        if report.borrow().last_compile > patience {
            return Some(report.borrow().clone()).filter(|report| report.revision >= revision);
        }
        let applied = report.wait_for(|report| report.revision >= revision);
        let applied = tokio::time::timeout(patience, applied).await.ok()?;
        Some(applied.ok()?.clone())
    }

    /// All that is served now; `None` once the pipeline has ended.
    pub async fn look(&self) -> Option<Look> {
        let (to, look) = oneshot::channel();
        self.commands.send(Command::Look(to)).ok()?;
        look.await.ok()
    }

    /// Waits until something of the report changes. `false` once the pipeline has ended.
    pub async fn changed(&mut self) -> bool {
        self.report.changed().await.is_ok()
    }

    /// Plugins of the catalog have changed: everything is compiled again.
    pub fn compile_again(&self) {
        // Fails only when the program ends and the receiver is gone.
        let _ = self.commands.send(Command::Catalog);
    }

    /// The boot file's list of plugins was read again; `None` is all plugins.
    pub fn reload_plugins(&self, list: Option<Vec<String>>) {
        // Fails only when the program ends and the receiver is gone.
        let _ = self.commands.send(Command::Plugins(list));
    }
}

#[cfg(test)]
mod tests;
