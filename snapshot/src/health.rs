//! hot path
//!
//! The health of an upstream's servers.
//!
//! Verdicts change faster than snapshots, so they are the one mutable part of a snapshot: one
//! atomic word for each checked address. Probes (control plane) and traffic (workers) report to the
//! same word, without locks. Words outlive the version of the upstream they were made for: a new
//! version takes over those of the addresses it keeps, and exchanges on an older version report to
//! the same ones.
//!
//! The rules are those of APISIX (lua-resty-healthcheck): a server starts out healthy, failures
//! of one sort in a row make it unhealthy, successes in a row bring it back. A success clears
//! the failures counted so far, and the other way round.

mod node;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use model::upstream::{Active, Checks, Outlier, Own};

use crate::balance::ExcludedServers;
use crate::certs::ClientTls;
use crate::upstream::{Endpoint, PassHost};
pub use node::{NodeHealth, Reason, Tally};
pub use target::{Counters, Status, Statuses, Target};
use target::{Event, Limits};

/// The health of the servers of one version of an upstream.
#[derive(Debug)]
pub struct Health {
    checks: Option<Checking>,
    pub outlier: Option<Outlier>,
    pub slow_start: Option<Duration>,
    /// One for each server, if traffic is observed; otherwise empty.
    nodes: Box<[Arc<NodeHealth>]>,
    /// Counts changes of verdicts, over all versions.
    changes: Arc<AtomicU32>,
    /// TLS of `https` probes.
    probe_tls: Option<Arc<ClientTls>>,
}

/// `checks`, as in APISIX.
#[derive(Debug)]
struct Checking {
    active: Active,
    on_probes: Limits,
    on_traffic: Limits,
    /// `checks.passive` is configured. Without it, only attempts that are followed by a retry
    /// count, as in APISIX.
    passive: bool,
    /// The check target of each server; several servers may share one.
    targets: Box<[Arc<Target>]>,
}

/// The servers that exchanges avoid.
#[derive(Debug, Clone, Default)]
pub(crate) struct Avoided {
    pub servers: ExcludedServers,
    /// Servers in slow start, with the missing part of their share in 256ths.
    pub cold: Vec<(u32, u8)>,
}

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probed {
    /// Connected, which is all that a `tcp` check requires.
    Connected,
    /// The status of a response; 0 if it is not HTTP.
    Status(u16),
    /// The connection failed, or ended before the response.
    Failed,
    TimedOut,
}

/// How an attempt of the traffic failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryFailure {
    Connection,
    Timeout,
}

impl Health {
    /// Health of these servers, without results; `None` if nothing is checked or observed.
    pub fn new(
        checks: Option<&Checks>,
        own: Option<&Own>,
        endpoints: &[Endpoint],
        pass_host: &PassHost,
    ) -> Option<Health> {
        let outlier = own.and_then(|own| own.outlier.clone());
        let slow_start = own.and_then(|own| own.slow_start);
        if checks.is_none() && outlier.is_none() && slow_start.is_none() {
            return None;
        }
        let looks = outlier.is_some() || slow_start.is_some();
        let nodes =
            endpoints.iter().filter(|_| looks).map(|endpoint| Arc::new(NodeHealth::new(endpoint.addr)));
        Some(Health {
            checks: checks.map(|checks| Checking::new(checks, endpoints, pass_host)),
            outlier,
            slow_start,
            nodes: nodes.collect(),
            changes: Arc::default(),
            probe_tls: None,
        })
    }

    /// Sets the TLS of `https` probes.
    pub(crate) fn set_probe_tls(&mut self, tls: Option<Arc<ClientTls>>) {
        self.probe_tls = tls;
    }

    /// TLS of `https` probes.
    pub fn probe_tls(&self) -> Option<&Arc<ClientTls>> {
        self.probe_tls.as_ref()
    }

    /// Takes over the results of the previous version.
    pub fn carry(&mut self, before: &Health) {
        self.changes = before.changes.clone();
        // Servers may have been added or removed, so workers must refresh their view.
        self.changes.fetch_add(1, Ordering::Release);
        if let (Some(checks), Some(before)) = (&mut self.checks, &before.checks) {
            let known: hashbrown::HashMap<_, _> =
                before.targets.iter().map(|target| (target.identity(), target)).collect();
            for target in &mut checks.targets {
                if let Some(same) = known.get(&target.identity()) {
                    *target = (*same).clone();
                }
            }
        }
        let mut known: hashbrown::HashMap<_, _> = before.nodes.iter().map(|node| (node.addr, node)).collect();
        for node in &mut self.nodes {
            match known.remove(&node.addr) {
                Some(same)
                    if self.outlier.is_some() == before.outlier.is_some()
                        && self.slow_start.is_some() == before.slow_start.is_some() =>
                {
                    *node = same.clone()
                }
                // Ejection and slow start end when they are no longer configured.
                Some(same) => {
                    if self.outlier.is_some() {
                        node.set_out(same.ejected());
                    }
                    if self.slow_start.is_some() {
                        node.set_cold(same.cold());
                    }
                }
                // It was added just now, among servers that already get traffic.
                None if self.slow_start.is_some() && !before.nodes.is_empty() => _ = node.set_cold(u8::MAX),
                None => {}
            }
        }
    }

    /// How servers are probed, if they are.
    pub fn active(&self) -> Option<&Active> {
        self.checks.as_ref().map(|checks| &checks.active)
    }

    /// Every target once, in the order of the servers.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        let all = self.checks.as_ref().map_or(&[][..], |checks| &checks.targets);
        let mut seen = hashbrown::HashSet::new();
        all.iter().filter(move |target| seen.insert(Arc::as_ptr(target)))
    }

    /// The servers whose traffic is observed, in order.
    pub fn nodes(&self) -> &[Arc<NodeHealth>] {
        &self.nodes
    }

    /// Increases with each change of a verdict and with each new version.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Why a server gets no requests, unless that applies to all servers.
    pub fn why_excluded(&self, index: usize) -> Option<&'static str> {
        let target = self.checks.as_ref().and_then(|checks| checks.targets.get(index));
        match (target.filter(|target| !target.is_usable()), self.nodes.get(index)) {
            (Some(target), _) => Some(target.status().as_str()),
            (None, Some(node)) => node.ejected().map(Reason::as_str),
            (None, None) => None,
        }
    }

    /// The reports counted for a checked server; `None` where servers are not checked.
    pub fn counters(&self, index: usize) -> Option<Counters> {
        Some(self.checks.as_ref()?.targets.get(index)?.counters())
    }

    /// The servers that get no requests because they are unhealthy or ejected, unless that is all
    /// of them; and the servers in slow start.
    #[cold]
    pub(crate) fn avoided(&self, endpoints: &[Endpoint]) -> Avoided {
        let mut avoided = Avoided::default();
        let mut any_left = false;
        for (index, endpoint) in endpoints.iter().enumerate() {
            let target = self.checks.as_ref().and_then(|checks| checks.targets.get(index));
            let node = self.nodes.get(index);
            let unhealthy = target.is_some_and(|target| !target.is_usable());
            if unhealthy || node.is_some_and(|node| node.ejected().is_some()) {
                avoided.servers.insert(index);
            } else if endpoint.weight > 0 {
                any_left = true;
                let cold = node.map_or(0, |node| node.cold());
                if cold > 0 {
                    avoided.cold.push((index as u32, cold));
                }
            }
        }
        if any_left { avoided } else { Avoided::default() }
    }

    /// Records the result of a probe.
    pub fn probed(&self, target: &Arc<Target>, probed: Probed) {
        let Some(checks) = &self.checks else { return };
        let limits = &checks.on_probes;
        let event = match probed {
            Probed::Connected => Some(Event::Success),
            Probed::Status(status) => limits.event_of(status),
            Probed::Failed => Some(Event::Tcp),
            Probed::TimedOut => Some(Event::Timeout),
        };
        self.report(checks, target, event, limits);
    }

    /// Whether response times are used.
    #[inline]
    pub fn needs_response_times(&self) -> bool {
        self.outlier.as_ref().is_some_and(|outlier| outlier.latency.is_some())
    }

    /// Records a response with this status; it took `micros` microseconds, if
    /// [`Health::needs_response_times`].
    #[inline]
    pub fn answered(&self, index: usize, status: u16, micros: u64) {
        if status == 0 {
            return;
        }
        if let Some(checks) = &self.checks
            && checks.passive
            && let Some(target) = checks.targets.get(index)
        {
            self.report(checks, target, checks.on_traffic.event_of(status), &checks.on_traffic);
        }
        // A client chooses where the hops begin to count, so that it can make the next gateway answer 508.
        self.count(index, status >= 500 && status != 508, micros);
    }

    /// Records that a server accepted a stream's connection after `micros` microseconds. For
    /// ejection a stream counts as a request; its contents are ignored.
    #[inline]
    pub fn connected(&self, index: usize, micros: u64) {
        self.count(index, false, micros);
    }

    /// Records a failed attempt; the client gets `status`, unless another server is tried.
    #[cold]
    pub fn failed(&self, index: usize, failure: TryFailure, status: Option<u16>) {
        self.count(index, true, 0);
        let Some(checks) = &self.checks else { return };
        let Some(target) = checks.targets.get(index) else { return };
        let event = match (failure, status) {
            (_, Some(_)) if !checks.passive => return,
            // Here APISIX considers only the status.
            (_, Some(status)) if checks.on_traffic.unhealthy.contains(status) => Event::Http,
            (TryFailure::Connection, _) => Event::Tcp,
            (TryFailure::Timeout, _) => Event::Timeout,
        };
        self.report(checks, target, Some(event), &checks.on_traffic);
    }

    /// Ejects a server, unless too many are ejected already.
    pub fn eject(&self, index: usize, reason: Reason) -> bool {
        let (Some(node), Some(outlier)) = (self.nodes.get(index), &self.outlier) else { return false };
        let out = self.nodes.iter().filter(|node| node.ejected().is_some()).count();
        let fits = (out + 1) * 100 <= self.nodes.len() * outlier.max_ejected_percent as usize;
        if node.ejected().is_some() || !fits {
            return false;
        }
        node.set_out(Some(reason));
        self.changed();
        true
    }

    /// Readmits a server, with a slow start if configured.
    pub fn readmit(&self, index: usize) {
        if let Some(node) = self.nodes.get(index) {
            node.set_cold(if self.slow_start.is_some() { u8::MAX } else { 0 });
            node.set_out(None);
            self.changed();
        }
    }

    /// Sets the part of its share that a server does not get, in 256ths.
    pub fn set_cold(&self, index: usize, cold: u8) {
        if self.nodes.get(index).is_some_and(|node| node.set_cold(cold)) {
            self.changed();
        }
    }

    #[inline]
    fn count(&self, index: usize, failed: bool, micros: u64) {
        if let Some(outlier) = &self.outlier
            && let Some(node) = self.nodes.get(index)
        {
            let in_row = node.count(failed, micros);
            if failed && outlier.consecutive_failures.is_some_and(|limit| in_row >= limit) {
                self.eject(index, Reason::ConsecutiveFailures);
            }
        }
    }

    #[inline]
    fn report(&self, checks: &Checking, target: &Arc<Target>, event: Option<Event>, limits: &Limits) {
        let Some(event) = event else { return };
        if target.report(event, limits.of(event)) {
            if self.slow_start.is_some() && target.is_usable() {
                let back = checks.targets.iter().zip(&self.nodes);
                let back = back.filter(|(checked, _)| Arc::ptr_eq(checked, target));
                back.for_each(|(_, node)| _ = node.set_cold(u8::MAX));
            }
            self.changed();
        }
    }

    #[inline]
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Checking {
    fn new(checks: &Checks, endpoints: &[Endpoint], pass_host: &PassHost) -> Checking {
        let active = &checks.active;
        let mut targets: Vec<Arc<Target>> = Vec::with_capacity(endpoints.len());
        let mut known: hashbrown::HashMap<(SocketAddr, Option<String>), Arc<Target>> =
            hashbrown::HashMap::new();
        for endpoint in endpoints {
            let addr = SocketAddr::new(endpoint.addr.ip(), active.port.unwrap_or(endpoint.addr.port()));
            let host_header = match pass_host {
                PassHost::Rewrite(host) => Some(host.clone()),
                _ => endpoint.name().map(str::to_owned),
            };
            let target = known.entry((addr, host_header.clone())).or_insert_with(|| {
                let hostname = active.host.clone().unwrap_or_else(|| addr.ip().to_string());
                Arc::new(Target { addr, hostname, host_header, word: AtomicU64::new(0) })
            });
            targets.push(target.clone());
        }
        let default = Default::default();
        let passive = checks.passive.as_ref().unwrap_or(&default);
        Checking {
            on_probes: Limits {
                healthy: Statuses::of(&active.healthy.http_statuses),
                unhealthy: Statuses::of(&active.unhealthy.http_statuses),
                successes: byte(active.healthy.successes),
                http_failures: byte(active.unhealthy.http_failures),
                tcp_failures: byte(active.unhealthy.tcp_failures),
                timeouts: byte(active.unhealthy.timeouts),
            },
            on_traffic: Limits {
                healthy: Statuses::of(&passive.healthy.http_statuses),
                unhealthy: Statuses::of(&passive.unhealthy.http_statuses),
                successes: byte(passive.healthy.successes),
                http_failures: byte(passive.unhealthy.http_failures),
                tcp_failures: byte(passive.unhealthy.tcp_failures),
                timeouts: byte(passive.unhealthy.timeouts),
            },
            active: active.clone(),
            passive: checks.passive.is_some(),
            targets: targets.into(),
        }
    }
}

impl PartialEq for Health {
    /// Compares the configuration of the checks, not their results.
    fn eq(&self, other: &Health) -> bool {
        self.checks == other.checks
            && self.outlier == other.outlier
            && self.slow_start == other.slow_start
            && self.probe_tls == other.probe_tls
            && self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(|(a, b)| a.addr == b.addr)
    }
}

impl PartialEq for Checking {
    fn eq(&self, other: &Checking) -> bool {
        self.active == other.active
            && self.passive == other.passive
            && self.on_traffic == other.on_traffic
            && self.targets.len() == other.targets.len()
            && self.targets.iter().zip(&other.targets).all(|(a, b)| a.identity() == b.identity())
    }
}

fn byte(limit: u16) -> u8 {
    u8::try_from(limit).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests;
