//! The running program, for the Admin and control APIs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::live::Live;
use admin::{
    Draft, Dump, Expiring, Info, Instances, Listed, NotServed, Outcome, PreviewFuture, Program, Published,
    Question, Reloading, ReportFuture, Rereading, Verdict,
};
use control::Handle;
use control::acme::Standings;
use control::look::Look;
use control::store::{File, Step, Store, View};
use model::boot::{Boot, Provider};
use model::{Invalid, Key};
use proxy::Watch;
use sdk::Catalog;
use sdk::meters::{Meters, Trials};
use sdk::sink::Folders;
use serde_json::{Map, Value, json};
use snapshot::swap::Observer;
use tokio::sync::Semaphore;

use crate::expiry::FromFile;
use crate::languages::ReloadScripts;
use crate::server_info::ServerInfo;
use crate::upgrade::Record;
use crate::{expiry, explain, forward, server_info};

/// How long an API request waits until the resource file, or a registry's file, is read.
const READING: Duration = Duration::from_secs(10);

/// The running gateway.
pub struct Running {
    pub observer: Observer,
    pub pipeline: Handle,
    /// The boot file, for reading its list of plugins again.
    pub config: Option<PathBuf>,
    /// How the workers are, once they were started.
    pub workers: OnceLock<Watch>,
    pub store: Arc<dyn Store>,
    /// The store once more, if it is a file.
    pub file: Option<Arc<File>>,
    /// The file, or the folder of the embedded store.
    pub place: PathBuf,
    pub began: Instant,
    /// Time of the request to drain, in seconds since 1970; 0 without one.
    pub drains: AtomicU64,
    /// How the certificates of ACME are, where there are any.
    pub acme: Option<Standings>,
    /// Certificates that were read from files.
    pub files_expire: Arc<[FromFile]>,
    /// Of the binary, while running.
    pub upgrades: Arc<Record>,
    /// Where it listens, for people: what and the address.
    pub listens: Vec<String>,
    pub boot: Boot,
    /// The list of plugins that config.yaml had when it was read last.
    pub listed: Mutex<Option<Vec<String>>>,
    pub info: Arc<ServerInfo>,
    pub meters: Arc<Meters>,
    pub live: Arc<Live>,
    /// Where plugins may write files.
    pub folders: Arc<Folders>,
    /// The plugins that are built in, and those in files.
    pub catalog: Arc<dyn Catalog>,
    /// Reads the plugins in files again that a list names, where there may be some.
    pub reload_scripts: Option<ReloadScripts>,
    /// Explaining a past revision loads and compiles a whole configuration, and the analysis looks through one.
    pub long: OneAtATime,
}

/// How long the answer to a reload waits until what was read is compiled.
const COMPILED: Duration = Duration::from_secs(2);

impl Program for Running {
    fn published(&self) -> Published {
        let report = self.pipeline.report();
        Published {
            revision: self.observer.published(),
            workers: self.observer.held(),
            not_served: NotServed {
                resources: report.rejected.iter().chain(&*report.dangling).cloned().collect(),
                findings: report.findings.clone(),
            },
        }
    }

    fn verdict<'a>(&'a self, key: &'a Key, revision: u64) -> Verdict<'a> {
        Box::pin(async move {
            let wait = self.boot.admin.limits.outcome_wait;
            let Some(report) = self.pipeline.applied(revision, wait).await else {
                return Outcome::Pending;
            };
            match report.rejected.iter().find(|one| one.key == *key) {
                Some(one) => Outcome::Rejected(one.invalid.reason.clone()),
                None => Outcome::Published,
            }
        })
    }

    fn without_effect(&self) -> (Arc<[(Key, Invalid)]>, usize) {
        self.pipeline.report().without_effect.clone()
    }

    fn watch_traffic(&self, watches: bool) {
        self.meters.watch(watches);
    }

    fn traffic(&self) -> Trials {
        self.meters.watched()
    }

    fn read_plugins(&self) -> Result<Option<Vec<String>>, String> {
        let Some(config) = &self.config else { return Ok(None) };
        match crate::files::read_boot(config) {
            Ok((boot, warnings)) => {
                for warning in warnings.iter().filter(|found| found.pointer.starts_with("/plugins")) {
                    tracing::warn!("{}", warning.one_line());
                }
                Ok(boot.plugins)
            }
            Err(diagnostics) => {
                Err(diagnostics.iter().map(model::Diagnostic::one_line).collect::<Vec<_>>().join("; "))
            }
        }
    }

    fn use_plugins(&self, names: Option<Vec<String>>) {
        self.listed().clone_from(&names);
        self.pipeline.reload_plugins(names);
    }

    fn reload_scripts(&self, listed: Option<Vec<String>>) -> Rereading<'_> {
        Box::pin(async move {
            if let Some(reload) = self.reload_scripts.clone() {
                // Without a list no plugin in a file is in use. It logs its errors.
                let _ = tokio::task::spawn_blocking(move || reload(&listed.unwrap_or_default())).await;
            }
        })
    }

    fn compile_again(&self) {
        self.pipeline.compile_again();
    }

    fn reload(&self) -> Reloading<'_> {
        Box::pin(async {
            let mut messages = Vec::new();
            let mut wrong = Vec::new();
            if let Some(file) = &self.file {
                let reading = file.reload();
                // Another thread reads; the one here is the control runtime's.
                let read = tokio::task::spawn_blocking(move || reading.recv_timeout(READING)).await;
                if let Ok(revision) = self.store.revision().await {
                    self.pipeline.applied(revision, COMPILED).await;
                }
                match read {
                    Ok(Ok(Ok(mistakes))) => {
                        let read = format!("read {} again", self.place.display());
                        match mistakes {
                            0 => messages.push(read),
                            1 => wrong.push(format!("{read}: 1 error; `sluice check` shows it")),
                            many => wrong.push(format!("{read}: {many} errors; `sluice check` shows them")),
                        }
                    }
                    Ok(Ok(Err(finding))) => {
                        wrong.push(format!("{}; its previous content stays in use", finding.one_line()));
                    }
                    _ => messages.push(format!("{} is still being read", self.place.display())),
                }
            }
            if let Some(config) = &self.config {
                let taken = match self.read_plugins() {
                    Ok(listed) => self.take_plugins(listed).await,
                    Err(reason) => {
                        Err(format!("{reason}; the previous content of {} stays in use", config.display()))
                    }
                };
                match taken {
                    Ok(()) => messages.push(format!(
                        "reread {}: the plugin list applies now, everything else at the next start",
                        config.display()
                    )),
                    Err(reason) => wrong.push(reason),
                }
            }
            match (messages.is_empty(), wrong.is_empty()) {
                (_, false) => Err(wrong.into_iter().chain(messages).collect::<Vec<_>>().join("; ")),
                (true, true) => Err("no file was read at start, so there is nothing to reread".to_owned()),
                (false, true) => {
                    messages.extend(self.not_served());
                    Ok(messages.join("; "))
                }
            }
        })
    }

    fn discovered(&self, kind: &str) -> Option<Value> {
        self.pipeline.discovered().dump(kind)
    }

    fn dump_file(&self, kind: &str) -> Dump<'_> {
        let file = self.pipeline.discovered().file(kind);
        Box::pin(async {
            Some(match file? {
                Some(file) => {
                    // A disk may hang: of the requests that wait then, one holds a thread.
                    let reading = self.long.run(move || file.show());
                    match tokio::time::timeout(READING, reading).await {
                        Ok(Some(read)) => read.map_err(|error| error.to_string()),
                        Ok(None) => Err("a mistake of the gateway: reading the file failed".to_owned()),
                        Err(_) => Err(format!("reading the file takes more than {} s", READING.as_secs())),
                    }
                }
                None => Err("dump params is nil".to_owned()),
            })
        })
    }

    fn listed_plugins(&self) -> Listed<'_> {
        Box::pin(async {
            match self.store.plugins().await {
                Ok(Some(names)) => Some(names),
                _ => self.listed().clone(),
            }
        })
    }

    fn server_info(&self) -> Info<'_> {
        Box::pin(async {
            let in_use = self
                .listed_plugins()
                .await
                .is_none_or(|names| names.iter().any(|name| name == server_info::PLUGIN));
            if in_use { Some(self.info.value().await) } else { None }
        })
    }

    fn instances(&self) -> Instances<'_> {
        Box::pin(self.info.others())
    }

    fn health(&self) -> Vec<control::health::Checker> {
        self.pipeline.health().report()
    }

    fn certificates(&self, most: usize) -> (Vec<Expiring>, usize) {
        expiry::soonest(&self.pipeline.report(), &self.files_expire, most)
    }

    fn explain(&self, question: Question) -> ReportFuture<'_> {
        Box::pin(async move {
            let look = match question.revision {
                Some(revision) => {
                    let (boot, folders, store) =
                        (self.boot.clone(), self.folders.clone(), self.store.clone());
                    let runtime = tokio::runtime::Handle::current();
                    let look = move || runtime.block_on(explain::at(&boot, &folders, &*store, revision));
                    self.long.run(look).await.ok_or("a mistake of the gateway: explaining this failed")??
                }
                None => self.pipeline.look().await.ok_or("the gateway stops")?,
            };
            let limits = crate::wiring::request_limits(&self.boot);
            // It takes milliseconds with many routes, and others wait for this thread.
            let explained = control::tasks::blocking(move || {
                explain::explain(&Look { desired: look.desired.apart(), ..look }, limits, question)
            })
            .await;
            explained.ok_or("a mistake of the gateway: explaining this request failed")?
        })
    }

    fn preview(&self, draft: Draft, questions: Vec<Question>) -> PreviewFuture<'_> {
        Box::pin(async move {
            let (boot, folders, store) = (self.boot.clone(), self.folders.clone(), self.store.clone());
            let runtime = tokio::runtime::Handle::current();
            let preview =
                move || runtime.block_on(explain::preview(&boot, &folders, &*store, draft, questions));
            self.long.run(preview).await.ok_or("a mistake of the gateway: explaining the change failed")?
        })
    }

    fn analysis(&self) -> ReportFuture<'_> {
        Box::pin(async move {
            let look = self.pipeline.look().await.ok_or("the gateway stops")?;
            let (boot, folders) = (self.boot.clone(), self.folders.clone());
            let analyse = move || crate::analysis::report(&look.desired.apart(), &boot, &folders);
            let report = self.long.run(analyse).await;
            let report = report.ok_or("a mistake of the gateway: the analysis failed")?;
            report.map_err(|error| format!("{error:#}"))
        })
    }

    fn live(&self) -> Option<Arc<Live>> {
        Some(self.live.clone())
    }

    fn about(&self) -> Map<String, Value> {
        let report = self.pipeline.report();
        let counts =
            report.counts.iter().map(|(kind, count)| (kind.collection().to_owned(), (*count).into()));
        let about = json!({
            "program": "sluice",
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime": self.began.elapsed().as_secs(),
            "configuration": self.config.as_deref().map(whole),
            "store": match self.boot.provider {
                Provider::Etcd => self.place.display().to_string(),
                _ if self.place.as_os_str() == forward::ARGUMENTS => forward::ARGUMENTS.to_owned(),
                Provider::Embedded | Provider::Yaml | Provider::Json => whole(&self.place),
            },
            "listens": self.listens,
            "resources": Value::Object(counts.collect()),
            "upgrades": self.upgrades.shown(),
            "acme": self.acme.as_ref().map(certificates),
        });
        match about {
            Value::Object(about) => about,
            _ => Map::new(),
        }
    }

    fn drain(&self, drains: bool) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs().max(1));
        let since = match (drains, self.drains.load(Ordering::Relaxed)) {
            (false, _) => 0,
            (true, 0) => since,
            (true, before) => before,
        };
        self.drains.store(since, Ordering::Relaxed);
    }

    fn drains_since(&self) -> Option<u64> {
        Some(self.drains.load(Ordering::Relaxed)).filter(|since| *since > 0)
    }

    fn ready(&self) -> Result<(), String> {
        if self.drains_since().is_some() {
            return Err("draining, requested through POST /v1/drain".to_owned());
        }
        match self.pipeline.report().published {
            None => Err("no configuration yet".to_owned()),
            Some(_) => {
                self.workers.get().ok_or("the workers are not started yet")?.all_serve()?;
                self.published().workers_ready()
            }
        }
    }
}

/// Runs long work apart from the threads that answer requests, and never two pieces of it side by side.
#[derive(Debug)]
pub struct OneAtATime(Arc<Semaphore>);

impl Default for OneAtATime {
    fn default() -> OneAtATime {
        OneAtATime(Arc::new(Semaphore::new(1)))
    }
}

impl OneAtATime {
    /// `None` if the work panicked.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let turn = self.0.clone().acquire_owned().await.ok()?;
        let work = move || {
            // The work continues if the request ends, and holds its permit until then.
            let _turn = turn;
            work()
        };
        control::tasks::blocking(work).await
    }
}

/// The absolute path, as clients may run in another folder.
fn whole(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn certificates(standings: &Standings) -> Value {
    let all = standings.all().into_iter().map(|one| {
        json!({
            "id": one.id,
            "domains": one.domains,
            "not_after": one.not_after,
            "failures": one.failures,
            "last_error": one.last_error,
        })
    });
    all.collect()
}

impl Running {
    fn listed(&self) -> MutexGuard<'_, Option<Vec<String>>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether config.yaml's list names a plugin.
    pub fn lists(&self, plugin: &str) -> bool {
        self.listed().as_ref().is_some_and(|names| names.iter().any(|name| name == plugin))
    }

    /// Makes the boot file's list the one in use. A store of our own may hold an older one, which
    /// would go before it.
    async fn take_plugins(&self, listed: Option<Vec<String>>) -> Result<(), String> {
        self.reload_scripts(listed.clone()).await;
        // The list of a fleet is not replaced by what this program has built in.
        let is_ours = !self.store.is_shared() || listed.is_some();
        if is_ours && self.store.writable() && matches!(self.store.plugins().await, Ok(Some(_))) {
            let by = Step::By { author: String::new(), message: "config.yaml was read again".to_owned() };
            let complete = move |_: &dyn View, mut steps: Vec<Step>| {
                steps.push(by.clone());
                Ok(steps)
            };
            let about = self.catalog.about();
            let stored = admin::store_plugins(&*self.store, listed.clone(), &about, complete).await;
            stored.map_err(|refused| refused.to_string())?;
        }
        let mut handle = self.pipeline.clone();
        let before = handle.report().compiles;
        self.use_plugins(listed);
        let compiled = async { while handle.report().compiles == before && handle.changed().await {} };
        // Past that time it goes on all the same; the log names what it rejects.
        let _ = tokio::time::timeout(COMPILED, compiled).await;
        Ok(())
    }

    /// How much a reload has left that is not served as it is written.
    fn not_served(&self) -> Option<String> {
        let report = self.pipeline.report();
        match report.rejected.len() + report.dangling.len() {
            0 => None,
            1 => Some("1 resource is not served as written; GET /v1/rejected says why".to_owned()),
            many => Some(format!("{many} resources are not served as written; GET /v1/rejected says why")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn long_work_holds_up_nobody_and_is_done_one_at_a_time() {
        let (turns, running) = (OneAtATime::default(), Arc::new(AtomicUsize::new(0)));
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let counted = running.clone();
        let first = turns.run(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            // This test has one thread: on that one it would wait for ever.
            gone.recv().unwrap();
            counted.fetch_sub(1, Ordering::SeqCst)
        });
        let counted = running.clone();
        let second = turns.run(move || counted.fetch_add(1, Ordering::SeqCst));
        let release = async {
            while running.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            go.send(()).unwrap();
        };
        assert_eq!(tokio::join!(first, second, release), (Some(1), Some(0), ()));
    }
    #[tokio::test]
    async fn work_keeps_its_turn_when_whoever_asked_has_gone() {
        let turns = OneAtATime::default();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel::<()>();
        let first = turns.run(move || {
            begin.send(()).unwrap();
            gone.recv().unwrap();
        });
        tokio::select! {
            biased;
            _ = first => panic!("it ended"),
            heard = begun => heard.unwrap(),
        }
        assert_eq!(turns.0.available_permits(), 0, "it still runs");
        go.send(()).unwrap();
        assert_eq!(turns.run(|| 1).await, Some(1));
    }
}
