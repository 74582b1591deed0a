//! Host names to addresses, kept fresh while they are wanted.
//!
//! Each name is looked up again when its records' time is over. A name whose
//! look-up fails keeps its last addresses, is tried again ever more slowly, and
//! is reported once. Looking up happens on the control runtime; workers only ever
//! see addresses.

mod questions;
mod system;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::discovery::{self, Discovery, Registries};
use crate::secrets::{self, Secrets};

pub use questions::Questions;
pub use system::System;

/// Look-ups under way at a time.
const AT_ONCE: usize = 64;
/// However short or long a record says it lives.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);
/// How soon a failed look-up is made again, at first and at last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// The addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedName {
    /// At least one.
    pub addresses: Vec<IpAddr>,
    /// How long that holds.
    pub ttl: Duration,
}

/// The future of one look-up.
pub type Looking = Pin<Box<dyn Future<Output = Result<ResolvedName, String>> + Send>>;

/// Looks up addresses.
pub trait LookUp: Send + Sync + fmt::Debug {
    /// The error says why there are no addresses, for people.
    fn look_up(&self, host: &str) -> Looking;
}

/// Looks names up and remembers them.
#[derive(Debug)]
pub struct Resolver {
    source: Arc<dyn LookUp>,
    /// Instead of what the records say (`apisix.dns_resolver_valid`).
    valid: Option<Duration>,
    hosts: HashMap<String, Host>,
    /// When which name is to be looked up again.
    due: BTreeSet<(Instant, String)>,
    under_way: FuturesUnordered<Answering>,
    known: Lookups,
    failed: Vec<Failure>,
    registries: Registries,
    secrets: Secrets,
}

/// A name that could not be looked up, and could before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub host: String,
    /// Why, for people.
    pub error: String,
    /// Addresses of before are still used.
    pub has_addresses: bool,
}

type Answering = Pin<Box<dyn Future<Output = (String, Result<ResolvedName, String>)> + Send>>;

#[derive(Debug, Default)]
struct Host {
    /// When it is due; `None` while it is looked up.
    due: Option<Instant>,
    answered: bool,
    failures: u32,
    /// Why it has no fresh addresses.
    error: Option<String>,
}

/// The addresses of names, the nodes of services and the values of secrets, as compiling asks for them.
#[derive(Debug, Default)]
pub struct Lookups(HashMap<String, Vec<IpAddr>>, discovery::KnownServices, secrets::Values);

impl sdk::build::Names for Lookups {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        self.0.get(host).cloned().unwrap_or_default()
    }

    fn nodes(&self, service: &discovery::Service) -> Vec<model::Node> {
        self.1.nodes(service)
    }

    fn secret(&self, reference: &str) -> Result<String, String> {
        self.2.get(reference)
    }
}

impl Resolver {
    /// Asks `source`.
    pub fn of(source: Arc<dyn LookUp>, valid: Option<Duration>) -> Resolver {
        Resolver {
            source,
            valid,
            hosts: HashMap::new(),
            due: BTreeSet::new(),
            under_way: FuturesUnordered::new(),
            known: Lookups::default(),
            failed: Vec::new(),
            registries: Registries::new(Vec::new()),
            secrets: Secrets::default(),
        }
    }

    /// Asks these registries for services.
    pub fn with_registries(mut self, registries: Vec<Arc<dyn Discovery>>) -> Resolver {
        self.registries = Registries::new(registries);
        self.known.1 = self.registries.known();
        self
    }

    /// Asks for secrets so.
    pub fn with_secrets(mut self, secrets: Secrets) -> Resolver {
        self.known.2 = secrets.values();
        self.secrets = secrets;
        self
    }

    /// The secrets, to say which are wanted.
    pub fn secrets(&mut self) -> &mut Secrets {
        &mut self.secrets
    }

    /// See [`Registries::take_unknown`].
    pub fn take_unknown(&mut self) -> Vec<discovery::Service> {
        self.registries.take_unknown()
    }

    /// Returns the nodes that registries know.
    pub fn discovered(&self) -> discovery::KnownServices {
        self.known.1.clone()
    }

    pub fn known(&self) -> &Lookups {
        &self.known
    }

    /// Replaces the names that are wanted; forgets all others.
    pub fn want(&mut self, names: &BTreeSet<String>) {
        let (services, hosts): (BTreeSet<String>, BTreeSet<String>) =
            names.iter().cloned().partition(|name| name.contains('\0'));
        self.registries.want(&services);
        let hosts = &hosts;
        self.failed.retain(|failure| hosts.contains(&failure.host));
        self.hosts.retain(|host, state| {
            let wanted = hosts.contains(host);
            if !wanted {
                self.known.0.remove(host);
                if let Some(due) = state.due {
                    self.due.remove(&(due, host.clone()));
                }
            }
            wanted
        });
        let now = Instant::now();
        for host in hosts {
            if !self.hosts.contains_key(host) {
                self.hosts.insert(host.clone(), Host { due: Some(now), ..Host::default() });
                self.due.insert((now, host.clone()));
            }
        }
    }

    /// Waits for the next name whose addresses changed, or secret whose value did. May be dropped and called again.
    pub async fn changed(&mut self) -> String {
        loop {
            let next = self.begin();
            let wake = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some((host, result)) = self.under_way.next(), if !self.under_way.is_empty() => {
                    if self.answer(&host, result) {
                        return host;
                    }
                }
                service = self.registries.changed() => return service,
                reference = self.secrets.changed() => return reference,
                () = wake => {}
            }
        }
    }

    /// Whether every wanted name was answered or failed at least once.
    pub fn is_settled(&self) -> bool {
        self.hosts.values().all(|host| host.answered)
            && self.registries.is_settled()
            && self.secrets.is_settled()
    }

    /// Names that cannot be looked up and secrets that cannot be read now, and why.
    pub fn failing(&self) -> Vec<(String, String)> {
        let failing =
            self.hosts.iter().filter_map(|(host, state)| Some((host.clone(), state.error.clone()?)));
        let mut failing: Vec<_> =
            failing.chain(self.registries.failing()).chain(self.secrets.failing()).collect();
        failing.sort();
        failing
    }

    /// Returns the look-ups that began to fail since the last call.
    pub fn take_failures(&mut self) -> Vec<Failure> {
        std::mem::take(&mut self.failed)
    }

    /// Starts what is due and may start; gives when the next is due.
    fn begin(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while self.under_way.len() < AT_ONCE {
            match self.due.first() {
                Some((at, _)) if *at > now => return Some(*at),
                None => return None,
                Some(_) => {}
            }
            let (_, host) = self.due.pop_first()?;
            if let Some(state) = self.hosts.get_mut(&host) {
                state.due = None;
                let looking = self.source.look_up(&host);
                self.under_way.push(Box::pin(async move { (host, looking.await) }));
            }
        }
        None
    }

    /// Takes an answer; says whether it changed anything.
    fn answer(&mut self, host: &str, result: Result<ResolvedName, String>) -> bool {
        // Not wanted any more, or wanted again and already due.
        let Some(state) = self.hosts.get_mut(host).filter(|state| state.due.is_none()) else { return false };
        state.answered = true;
        let (wait, changed) = match result {
            Ok(mut found) => {
                if state.error.take().is_some() {
                    tracing::info!("{host} resolves again");
                }
                state.failures = 0;
                found.addresses.sort_unstable();
                found.addresses.dedup();
                let wait = self.valid.unwrap_or(found.ttl).clamp(SHORTEST, LONGEST);
                let changed = self.known.0.get(host) != Some(&found.addresses);
                if changed {
                    self.known.0.insert(host.to_owned(), found.addresses);
                }
                (wait, changed)
            }
            Err(error) => {
                if state.error.is_none() {
                    let has_addresses = self.known.0.contains_key(host);
                    self.failed.push(Failure { host: host.to_owned(), error: error.clone(), has_addresses });
                }
                state.error = Some(error);
                let wait = FIRST_RETRY.saturating_mul(1 << state.failures.min(16)).min(LAST_RETRY);
                state.failures = state.failures.saturating_add(1);
                (wait, false)
            }
        };
        let due = Instant::now() + wait;
        state.due = Some(due);
        self.due.insert((due, host.to_owned()));
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sdk::build::Names;

    use super::*;

    /// Answers from a function of the host and how often it was asked before.
    struct Script<F> {
        answer: F,
        asked: AtomicUsize,
    }

    impl<F> fmt::Debug for Script<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Script")
        }
    }

    impl<F: Fn(&str, usize) -> Result<ResolvedName, String> + Send + Sync> LookUp for Script<F> {
        fn look_up(&self, host: &str) -> Looking {
            let answer = (self.answer)(host, self.asked.fetch_add(1, Ordering::Relaxed));
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                answer
            })
        }
    }

    fn script<F: Fn(&str, usize) -> Result<ResolvedName, String>>(answer: F) -> Arc<Script<F>> {
        Arc::new(Script { answer, asked: AtomicUsize::new(0) })
    }

    fn found(last: u8, ttl: u64) -> Result<ResolvedName, String> {
        Ok(ResolvedName { addresses: vec![[10, 0, 0, last].into()], ttl: Duration::from_secs(ttl) })
    }

    fn hosts(hosts: &[&str]) -> BTreeSet<String> {
        hosts.iter().map(|host| (*host).to_owned()).collect()
    }

    /// Lets `seconds` pass; returns the names that changed.
    async fn wait(resolver: &mut Resolver, seconds: u64) -> Vec<String> {
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut changed = Vec::new();
        while let Ok(host) = tokio::time::timeout_at(end, resolver.changed()).await {
            changed.push(host);
        }
        changed
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_looked_up_again_when_their_time_is_over() {
        let source = script(|_, asked| found((asked / 2) as u8, 10));
        let mut resolver = Resolver::of(source.clone(), None);
        resolver.want(&hosts(&["a"]));
        assert_eq!(wait(&mut resolver, 9).await, ["a"]);
        assert_eq!((source.asked.load(Ordering::Relaxed), resolver.is_settled()), (1, true));
        // The second answer is the same, which is no change; the third is not.
        assert_eq!(wait(&mut resolver, 10).await, [""; 0]);
        assert_eq!(wait(&mut resolver, 10).await, ["a"]);
        assert_eq!(resolver.known().addresses("a"), [IpAddr::from([10, 0, 0, 1])]);
        resolver.want(&hosts(&["b"]));
        assert_eq!(resolver.known().addresses("a"), [] as [IpAddr; 0]);
        assert_eq!(wait(&mut resolver, 1).await, ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn lifetimes_are_bounded_and_the_boot_file_goes_first() {
        let source = script(|_, asked| found(asked as u8, 0));
        let mut resolver = Resolver::of(source.clone(), None);
        resolver.want(&hosts(&["a"]));
        wait(&mut resolver, 10).await;
        assert!((9..=11).contains(&source.asked.load(Ordering::Relaxed)), "once a second");
        let source = script(|_, asked| found(asked as u8, u64::MAX / 4));
        let mut resolver = Resolver::of(source.clone(), None);
        resolver.want(&hosts(&["a"]));
        assert_eq!(wait(&mut resolver, 3700).await.len(), 2);
        let source = script(|_, asked| found(asked as u8, 1));
        let mut resolver = Resolver::of(source, Some(Duration::from_secs(100)));
        resolver.want(&hosts(&["a"]));
        assert_eq!(wait(&mut resolver, 190).await.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_ever_more_slowly() {
        let source = script(|_, asked| if asked == 12 { found(1, 60) } else { Err("no".to_owned()) });
        let mut resolver = Resolver::of(source.clone(), None);
        resolver.want(&hosts(&["a"]));
        assert_eq!(wait(&mut resolver, 2).await, [""; 0]);
        assert!(resolver.is_settled());
        assert_eq!(resolver.failing(), [("a".to_owned(), "no".to_owned())]);
        let failure = Failure { host: "a".to_owned(), error: "no".to_owned(), has_addresses: false };
        assert_eq!(resolver.take_failures(), [failure]);
        wait(&mut resolver, 30).await;
        assert_eq!(source.asked.load(Ordering::Relaxed), 6, "at 0, 1, 3, 7, 15 and 31 seconds");
        assert_eq!(wait(&mut resolver, 220).await, ["a"]);
        assert_eq!(resolver.failing(), []);
        // It fails again: the last addresses stay.
        wait(&mut resolver, 60).await;
        assert_eq!(resolver.failing().len(), 1);
        assert!(resolver.take_failures()[0].has_addresses, "reported once more, and once only");
        assert_eq!(resolver.known().addresses("a"), [IpAddr::from([10, 0, 0, 1])]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_failure_of_an_unused_name_is_not_reported() {
        let mut resolver = Resolver::of(script(|_, _| Err("no".to_owned())), None);
        resolver.want(&hosts(&["a", "b"]));
        wait(&mut resolver, 1).await;
        resolver.want(&hosts(&["b"]));
        let failed: Vec<String> = resolver.take_failures().into_iter().map(|failure| failure.host).collect();
        assert_eq!(failed, ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_names_are_looked_up_a_few_at_a_time() {
        let source = script(|_, _| found(1, 60));
        let mut resolver = Resolver::of(source.clone(), None);
        let many: BTreeSet<String> = (0..1000).map(|n| format!("host{n}")).collect();
        resolver.want(&many);
        resolver.changed().await;
        let asked = source.asked.load(Ordering::Relaxed);
        assert!(asked <= AT_ONCE, "{asked}");
        assert_eq!(wait(&mut resolver, 1).await.len(), 999);
        assert!(resolver.is_settled());
    }

    #[tokio::test]
    async fn the_machines_own_names_need_no_server() {
        let settings = model::boot::Resolver {
            // No server listens there.
            servers: vec!["127.0.0.1:9".parse().unwrap()],
            valid: None,
            timeout: Duration::from_millis(50),
            search: true,
            ipv6: true,
        };
        let system = System::new(&settings);
        for host in ["localhost", "a.localhost"] {
            let found = system.look_up(host).await.unwrap();
            assert_eq!(found.addresses[0], IpAddr::from([127, 0, 0, 1]), "{host}");
        }
        let error = system.look_up("no-such-name.test").await.unwrap_err();
        assert!(!error.is_empty());
    }
}
