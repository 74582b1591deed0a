//! Secrets that others keep: what `$secret://manager/id/key` stands for.
//!
//! A secret is fetched when a resource refers to it, and again when its time is over; never by a worker, and
//! never while something is compiled. Fetched values go into snapshots the way addresses of names do. While a
//! manager cannot be asked, the last values stay. A manager that answers that there is no such secret is
//! believed: its value is gone. Each manager has a queue of its own, so that one that hangs delays no other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, select_all};
use model::references::{self, Reference};
use model::secret::SecretManager;
use model::{Entry, Resource};
use snapshot::compile::{Env, environment};
use tokio::time::Instant;

/// How soon a question that failed is asked again, at first; later as often as the settings say.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The manager has answered that there is no such secret.
    Missing(String),
    /// It could not be asked, or would not answer.
    Unavailable(String),
}

/// The future of one question.
pub type Fetching = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send>>;

/// Asks secret managers.
pub trait Managers: Send + Sync + fmt::Debug {
    /// Asks for what is behind the manager's id in a reference. Texts of failures are for logs: they hold no
    /// secrets. `manager` refers to nothing: its own references are replaced already.
    fn fetch(&self, manager: &SecretManager, key: &str) -> Fetching;
}

/// The resources of secret managers, by `manager/id`.
pub type Configured = BTreeMap<String, Arc<Entry>>;

/// How long values hold.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// A value is asked for again after this (`apisix.lru.secret.ttl`).
    pub ttl: Duration,
    /// A question that failed is asked again after this at the latest (`apisix.lru.secret.neg_ttl`).
    pub retry: Duration,
    /// A question may take this long.
    pub timeout: Duration,
    /// Questions to one manager at a time (`sluice.secrets.max_requests`).
    pub max_requests: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ttl: Duration::from_secs(300),
            retry: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            max_requests: 8,
        }
    }
}

/// Values of secrets by reference, for compiling. Cheap to clone.
#[derive(Clone, Default)]
pub struct Values(Arc<RwLock<HashMap<String, Result<String, String>>>>);

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Values(..)")
    }
}

impl Values {
    /// Returns the value behind a reference, or why it is missing.
    pub fn get(&self, reference: &str) -> Result<String, String> {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.get(reference).cloned().unwrap_or_else(|| Err("it was not fetched yet".to_owned()))
    }

    /// Replaces what is known; says whether that is another thing.
    fn set(&self, reference: &str, value: Result<String, String>) -> bool {
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let differs = values.get(reference) != Some(&value);
        values.insert(reference.to_owned(), value);
        differs
    }

    fn has(&self, reference: &str) -> bool {
        self.get(reference).is_ok()
    }

    fn forget(&self, reference: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(reference);
    }
}

/// Asks managers, and remembers what they answer.
pub struct Secrets {
    sources: Sources,
    settings: Settings,
    asked: HashMap<String, Asked>,
    /// By `manager/id`: those that keep a secret that is wanted.
    queues: BTreeMap<String, Queue>,
    /// Questions so far: one that was forgotten and is asked again is another one.
    questions: u64,
    values: Values,
}

/// The managers there are, and how they are asked.
struct Sources {
    source: Option<Arc<dyn Managers>>,
    env: Arc<Env>,
    managers: Configured,
}

/// The secrets of one manager.
#[derive(Default)]
struct Queue {
    /// When which is to be asked for again.
    due: BTreeSet<(Instant, String)>,
    under_way: FuturesUnordered<Answering>,
}

type Answering = Pin<Box<dyn Future<Output = (String, u64, Result<String, Failure>)> + Send>>;

#[derive(Debug, Default)]
struct Asked {
    /// `None` while an answer is awaited.
    due: Option<Instant>,
    /// Answers to earlier questions do not count.
    question: u64,
    /// A change of the configuration may wait for the answer.
    awaited: bool,
    failures: u32,
    /// Why it could not be asked for last.
    error: Option<String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Default for Secrets {
    /// Returns secrets without any manager.
    fn default() -> Secrets {
        Secrets {
            sources: Sources { source: None, env: Arc::new(|_| None), managers: BTreeMap::new() },
            settings: Settings::default(),
            asked: HashMap::new(),
            queues: BTreeMap::new(),
            questions: 0,
            values: Values::default(),
        }
    }
}

impl Secrets {
    pub fn new(source: Arc<dyn Managers>, env: Arc<Env>, settings: Settings) -> Secrets {
        let sources = Sources { source: Some(source), env, managers: BTreeMap::new() };
        Secrets { sources, settings, ..Secrets::default() }
    }

    pub fn values(&self) -> Values {
        self.values.clone()
    }

    /// Replaces the secrets that are wanted and the managers there are. Secrets of a changed manager
    /// are asked for at once.
    pub fn want(&mut self, wanted: &BTreeSet<String>, managers: Configured) {
        let gone: Vec<String> =
            self.asked.keys().filter(|reference| !wanted.contains(*reference)).cloned().collect();
        for reference in gone {
            if let Some(Asked { due: Some(due), .. }) = self.asked.remove(&reference)
                && let Some(queue) = self.queues.get_mut(&manager_of(&reference))
            {
                queue.due.remove(&(due, reference.clone()));
            }
            self.values.forget(&reference);
        }
        let before = std::mem::replace(&mut self.sources.managers, managers);
        let now = Instant::now();
        let mut queues = std::mem::take(&mut self.queues);
        for reference in wanted {
            let id = manager_of(reference);
            let same = match (before.get(&id), self.sources.managers.get(&id)) {
                (None, None) => true,
                (Some(before), Some(now)) => before.resource() == now.resource(),
                _ => false,
            };
            // Questions to a manager that is another one now end here, and those to one that keeps nothing any more.
            let old = queues.remove(&id).filter(|_| same);
            let queue = self.queues.entry(id).or_insert_with(|| old.unwrap_or_default());
            let asked = match self.asked.get_mut(reference) {
                Some(_) if same => continue,
                Some(asked) => asked,
                None => self.asked.entry(reference.clone()).or_default(),
            };
            self.questions += 1;
            *asked = Asked {
                due: Some(now),
                question: self.questions,
                awaited: true,
                failures: 0,
                error: asked.error.take(),
            };
            queue.due.insert((now, reference.clone()));
        }
    }

    /// Waits for the next reference that stands for something else now. May be dropped and called again.
    pub async fn changed(&mut self) -> String {
        loop {
            let next = self.begin();
            let wake = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let answers = self.queues.values_mut().map(|queue| &mut queue.under_way);
            let mut answers = select_all(answers.filter(|answers| !answers.is_empty()));
            let answer = tokio::select! {
                Some(answer) = answers.next() => Some(answer),
                () = wake => None,
            };
            drop(answers);
            if let Some((reference, question, result)) = answer
                && self.answer(&reference, question, result)
            {
                return reference;
            }
        }
    }

    /// Whether every secret was answered for at least once, with a value or without, or was waited for in vain.
    pub fn is_settled(&self) -> bool {
        self.asked.values().all(|asked| !asked.awaited)
    }

    /// Ends waiting for the secrets that are wanted now: a manager that hangs delays one change, not each.
    pub fn stop_waiting(&mut self) {
        self.asked.values_mut().for_each(|asked| asked.awaited = false);
    }

    /// Secrets that cannot be read now, and why.
    pub fn failing(&self) -> Vec<(String, String)> {
        let failing = |(reference, asked): (&String, &Asked)| Some((reference.clone(), asked.error.clone()?));
        self.asked.iter().filter_map(failing).collect()
    }

    /// How many secrets are wanted, and how many of them have no value.
    pub fn counts(&self) -> (usize, usize) {
        (self.asked.len(), self.asked.keys().filter(|reference| !self.values.has(reference)).count())
    }

    /// Starts what is due and may start; gives when the next is due.
    fn begin(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let (max_requests, timeout) = (self.settings.max_requests, self.settings.timeout);
        let mut next: Option<Instant> = None;
        for queue in self.queues.values_mut() {
            while queue.under_way.len() < max_requests
                && let Some((at, _)) = queue.due.first()
            {
                if *at > now {
                    next = Some(next.map_or(*at, |next| next.min(*at)));
                    break;
                }
                let Some((_, reference)) = queue.due.pop_first() else { break };
                let Some(asked) = self.asked.get_mut(&reference) else { continue };
                asked.due = None;
                let question = asked.question;
                let fetching = self.sources.fetch(&reference);
                queue.under_way.push(Box::pin(async move {
                    let answer = match fetching {
                        Ok(fetching) => tokio::time::timeout(timeout, fetching).await.unwrap_or_else(|_| {
                            let why = format!("no answer within {} s", timeout.as_secs_f64());
                            Err(Failure::Unavailable(why))
                        }),
                        Err(failure) => Err(failure),
                    };
                    (reference, question, answer)
                }));
            }
        }
        next
    }

    /// Takes an answer; says whether it changed anything.
    fn answer(&mut self, reference: &str, question: u64, result: Result<String, Failure>) -> bool {
        // Not wanted any more, or asked for again.
        let Some(asked) = self.asked.get_mut(reference).filter(|asked| asked.question == question) else {
            return false;
        };
        asked.awaited = false;
        // An empty secret would admit clients that send none.
        let result = result.and_then(|value| match value.is_empty() {
            true => Err(Failure::Missing("it is empty".to_owned())),
            false => Ok(value),
        });
        let (wait, changed) = match result {
            Ok(value) => {
                if asked.error.take().is_some() {
                    tracing::info!("{reference} can be read again");
                }
                asked.failures = 0;
                // Not all of them at the same moment.
                let ttl = self.settings.ttl.max(FIRST_RETRY).mul_f64(0.9 + fastrand::f64() / 10.0);
                (ttl, self.values.set(reference, Ok(value)))
            }
            Err(failure) => {
                let wait = FIRST_RETRY.saturating_mul(1 << asked.failures.min(16));
                let wait = wait.min(self.settings.retry.max(FIRST_RETRY));
                asked.failures = asked.failures.saturating_add(1);
                let (why, stays) = match failure {
                    Failure::Missing(why) => (why, false),
                    Failure::Unavailable(why) => (why, self.values.has(reference)),
                };
                if asked.error.is_none() {
                    let then = match stays {
                        true => "its last value stays in use",
                        false => "resources that need it are not served",
                    };
                    tracing::error!("{reference} cannot be read: {why}; {then}");
                }
                asked.error = Some(why.clone());
                (wait, !stays && self.values.set(reference, Err(why)))
            }
        };
        let due = Instant::now() + wait;
        asked.due = Some(due);
        if let Some(queue) = self.queues.get_mut(&manager_of(reference)) {
            queue.due.insert((due, reference.to_owned()));
        }
        changed
    }
}

impl Sources {
    fn fetch(&self, reference: &str) -> Result<Fetching, Failure> {
        let Reference { manager, id, key } =
            references::parse(reference).map_err(|why| Failure::Missing(why.to_owned()))?;
        let entry = self.managers.get(&format!("{manager}/{id}"));
        let found = entry.and_then(|entry| match entry.resource() {
            Resource::Secret(secret) => Some(&secret.manager),
            _ => None,
        });
        let no_conf = || Failure::Missing(format!("no secret conf, secret_uri: {reference}"));
        let manager = plain(found.ok_or_else(no_conf)?, &*self.env).map_err(Failure::Unavailable)?;
        let source = self.source.as_ref();
        let source =
            source.ok_or_else(|| Failure::Unavailable("secret managers are not asked".to_owned()))?;
        Ok(source.fetch(&manager, key))
    }
}

/// `manager/id` of a reference.
fn manager_of(reference: &str) -> String {
    references::parse(reference)
        .map_or_else(|_| String::new(), |found| format!("{}/{}", found.manager, found.id))
}

/// A manager with its references to the environment replaced.
fn plain(manager: &SecretManager, env: &Env) -> Result<SecretManager, String> {
    let mut manager = manager.clone();
    let mut replace = |text: &mut String| {
        let found = environment(text, env).map_err(|invalid| invalid.reason)?.into_owned();
        *text = found;
        Ok::<(), String>(())
    };
    match &mut manager {
        SecretManager::Vault(vault) => replace(&mut vault.token)?,
        SecretManager::Aws(aws) => {
            replace(&mut aws.access_key_id)?;
            replace(&mut aws.secret_access_key)?;
            aws.session_token.as_mut().map_or(Ok(()), &mut replace)?;
        }
        SecretManager::Gcp(gcp) => {
            let auth = gcp.auth_config.as_mut();
            auth.map_or(Ok(()), |auth| replace(&mut auth.private_key))?;
        }
    }
    Ok(manager)
}

#[cfg(test)]
mod tests;
