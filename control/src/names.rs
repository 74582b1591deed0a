//! Host names to addresses, kept fresh while they are wanted.
//!
//! Each name is looked up again when its records' time is over. A name whose
//! look-up fails keeps its last addresses, is tried again ever more slowly, and
//! is told once. Looking up happens on the control runtime; workers only ever
//! see addresses.

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

pub use system::System;

/// Look-ups under way at a time.
const AT_ONCE: usize = 64;
/// However short or long a record says it lives.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);
/// How soon a failed look-up is made again, at first and at last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// At least one.
    pub addresses: Vec<IpAddr>,
    /// How long that holds.
    pub ttl: Duration,
}

/// The future of one look-up.
pub type Looking = Pin<Box<dyn Future<Output = Result<Found, String>> + Send>>;

/// Somebody who knows addresses.
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
    known: Known,
}

type Answering = Pin<Box<dyn Future<Output = (String, Result<Found, String>)> + Send>>;

#[derive(Debug, Default)]
struct Host {
    /// When it is due; `None` while it is looked up.
    due: Option<Instant>,
    answered: bool,
    failures: u32,
    /// Why it has no fresh addresses.
    error: Option<String>,
}

/// The addresses of names, as compiling asks for them.
#[derive(Debug, Default)]
pub struct Known(HashMap<String, Vec<IpAddr>>);

impl sdk::build::Names for Known {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        self.0.get(host).cloned().unwrap_or_default()
    }
}

impl Resolver {
    /// Asks the system, or the name servers the boot file names.
    pub fn new(settings: &model::boot::Resolver) -> Resolver {
        Resolver::of(Arc::new(System::new(settings)), settings.valid)
    }

    /// Asks `source`.
    pub fn of(source: Arc<dyn LookUp>, valid: Option<Duration>) -> Resolver {
        Resolver {
            source,
            valid,
            hosts: HashMap::new(),
            due: BTreeSet::new(),
            under_way: FuturesUnordered::new(),
            known: Known::default(),
        }
    }

    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Replaces the names that are wanted; forgets all others.
    pub fn want(&mut self, hosts: &BTreeSet<String>) {
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

    /// Waits for the next name whose addresses changed. May be dropped and called again.
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
                () = wake => {}
            }
        }
    }

    /// Whether every wanted name was answered or failed at least once.
    pub fn is_settled(&self) -> bool {
        self.hosts.values().all(|host| host.answered)
    }

    /// Names that cannot be looked up now, and why.
    pub fn failing(&self) -> Vec<(String, String)> {
        let failing =
            self.hosts.iter().filter_map(|(host, state)| Some((host.clone(), state.error.clone()?)));
        let mut failing: Vec<_> = failing.collect();
        failing.sort();
        failing
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
            let Some((_, host)) = self.due.pop_first() else { return None };
            if let Some(state) = self.hosts.get_mut(&host) {
                state.due = None;
                let looking = self.source.look_up(&host);
                self.under_way.push(Box::pin(async move { (host, looking.await) }));
            }
        }
        None
    }

    /// Takes an answer; says whether it changed anything.
    fn answer(&mut self, host: &str, result: Result<Found, String>) -> bool {
        // Not wanted any more, or wanted again and already due.
        let Some(state) = self.hosts.get_mut(host).filter(|state| state.due.is_none()) else { return false };
        state.answered = true;
        let (wait, changed) = match result {
            Ok(mut found) => {
                if state.error.take().is_some() {
                    tracing::info!("the name {host} can be looked up again");
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
                    let kept = match self.known.0.get(host) {
                        Some(_) => "its last addresses are used on",
                        None => "there is no address for it yet",
                    };
                    tracing::error!("the name {host} cannot be looked up: {error}; {kept}");
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
