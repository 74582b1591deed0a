//! hot path
//!
//! What is known of the health of an upstream's servers.
//!
//! Verdicts change faster than snapshots do, so they are the one thing in a snapshot that
//! changes: one atomic word for each checked address. Probes (control plane) and the traffic
//! itself (workers) report to the same word; nobody locks. Words outlive the version of the
//! upstream they were made for: a new version takes over those of the addresses it keeps, and
//! exchanges on an older version report to the same ones.
//!
//! The rules are those of APISIX (lua-resty-healthcheck): a server starts out healthy, failures
//! of one sort in a row make it unhealthy, successes in a row bring it back. A success clears
//! the failures counted so far, and the other way round.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::upstream::{Active, Checks};

use crate::balance::Tried;
use crate::upstream::{Endpoint, PassHost};

/// The checks of one version of an upstream.
#[derive(Debug)]
pub struct Health {
    /// How servers are probed.
    pub active: Active,
    on_probes: Limits,
    on_traffic: Limits,
    /// `checks.passive` is written. Without it only tries that are followed by another one count, as in
    /// APISIX.
    passive: bool,
    /// What is checked for each server of the upstream; several servers may share one.
    targets: Box<[Arc<Target>]>,
    /// Changes of verdicts, over all versions.
    changes: Arc<AtomicU32>,
}

/// One checked address.
#[derive(Debug)]
pub struct Target {
    pub addr: SocketAddr,
    /// What identifies it beside the address: `checks.active.host`, or the address once more.
    pub hostname: String,
    /// The `Host` of probes, where that is another one.
    pub host_header: Option<String>,
    word: AtomicU64,
}

/// How a target is, in APISIX's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Healthy,
    Unhealthy,
    /// Healthy, with failures counted.
    MostlyHealthy,
    /// Unhealthy, with successes counted.
    MostlyUnhealthy,
}

/// The reports that were counted since the last ones of the opposite sort.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub success: u8,
    pub http_failure: u8,
    pub tcp_failure: u8,
    pub timeout_failure: u8,
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probed {
    /// All that is asked of a `tcp` check.
    Connected,
    /// A response; 0 stands for one that is not HTTP.
    Status(u16),
    /// No connection, or it ended before the response.
    Failed,
    TimedOut,
}

/// How a try of the traffic failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryFailure {
    Connection,
    Timeout,
}

/// Reports it takes for a verdict. Zero: never.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Limits {
    healthy: Statuses,
    unhealthy: Statuses,
    successes: u8,
    http_failures: u8,
    tcp_failures: u8,
    timeouts: u8,
}

/// A set of HTTP statuses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Statuses([u64; 10]);

/// What is reported of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Success,
    Http,
    Tcp,
    Timeout,
}

impl Health {
    /// The checks of these servers, with nothing known yet.
    pub fn new(checks: &Checks, endpoints: &[Endpoint], pass_host: &PassHost) -> Health {
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
        Health {
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
            changes: Arc::default(),
        }
    }

    /// Goes on from what the version before knew.
    pub fn carry(&mut self, before: &Health) {
        self.changes = before.changes.clone();
        // Servers may have come or gone, so no worker may rely on what it had seen.
        self.changes.fetch_add(1, Ordering::Release);
        let known: hashbrown::HashMap<_, _> =
            before.targets.iter().map(|target| (target.identity(), target)).collect();
        for target in &mut self.targets {
            if let Some(same) = known.get(&target.identity()) {
                *target = (*same).clone();
            }
        }
    }

    /// Every target once, in the order of the servers.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        let all = &self.targets;
        let first = move |(at, target): (usize, &Arc<Target>)| {
            !all[..at].iter().any(|before| Arc::ptr_eq(before, target))
        };
        // Few share one, unless `checks.active.port` is set: then it is a few servers of one address.
        all.iter().enumerate().filter(move |&(at, target)| first((at, target))).map(|(_, target)| target)
    }

    /// Goes up with every change of a verdict, and with every new version.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// The servers that get nothing: those found unhealthy, unless that is all of them.
    #[cold]
    pub(crate) fn avoided(&self, endpoints: &[Endpoint]) -> Tried {
        let mut avoided = Tried::default();
        let mut any_left = false;
        for (index, target) in self.targets.iter().enumerate() {
            if !target.is_usable() {
                avoided.insert(index);
            } else if endpoints.get(index).is_some_and(|endpoint| endpoint.weight > 0) {
                any_left = true;
            }
        }
        if any_left { avoided } else { Tried::default() }
    }

    /// A probe has come back.
    pub fn probed(&self, target: &Target, probed: Probed) {
        let limits = &self.on_probes;
        let event = match probed {
            Probed::Connected => Some(Event::Success),
            Probed::Status(status) => limits.event_of(status),
            Probed::Failed => Some(Event::Tcp),
            Probed::TimedOut => Some(Event::Timeout),
        };
        self.report(target, event, limits);
    }

    /// A server has answered a request with this status.
    #[inline]
    pub fn answered(&self, index: usize, status: u16) {
        if self.passive
            && status != 0
            && let Some(target) = self.targets.get(index)
        {
            self.report(target, self.on_traffic.event_of(status), &self.on_traffic);
        }
    }

    /// A server has not answered a request; the client gets `status`, unless another server is tried.
    #[cold]
    pub fn failed(&self, index: usize, failure: TryFailure, status: Option<u16>) {
        let Some(target) = self.targets.get(index) else { return };
        let event = match (failure, status) {
            (_, Some(_)) if !self.passive => return,
            // APISIX looks at nothing but the status here.
            (_, Some(status)) if self.on_traffic.unhealthy.contains(status) => Event::Http,
            (TryFailure::Connection, _) => Event::Tcp,
            (TryFailure::Timeout, _) => Event::Timeout,
        };
        self.report(target, Some(event), &self.on_traffic);
    }

    #[inline]
    fn report(&self, target: &Target, event: Option<Event>, limits: &Limits) {
        let Some(event) = event else { return };
        if target.report(event, limits.of(event)) {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }
}

impl PartialEq for Health {
    /// Whether the same is checked in the same way, whatever was found so far.
    fn eq(&self, other: &Health) -> bool {
        self.active == other.active
            && self.passive == other.passive
            && self.on_traffic == other.on_traffic
            && self.targets.len() == other.targets.len()
            && self.targets.iter().zip(&other.targets).all(|(a, b)| a.identity() == b.identity())
    }
}

impl Target {
    pub fn identity(&self) -> (SocketAddr, &str, Option<&str>) {
        (self.addr, &self.hostname, self.host_header.as_deref())
    }

    pub fn status(&self) -> Status {
        Status::of(self.word.load(Ordering::Relaxed))
    }

    pub fn counters(&self) -> Counters {
        let [success, http_failure, tcp_failure, timeout_failure, ..] =
            self.word.load(Ordering::Relaxed).to_le_bytes();
        Counters { success, http_failure, tcp_failure, timeout_failure }
    }

    #[inline]
    pub fn is_usable(&self) -> bool {
        self.status().is_usable()
    }

    /// Counts an event; whether the target has become usable or is so no more.
    #[inline]
    fn report(&self, event: Event, limit: u8) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        // What only confirms the verdict is not counted: on the way of most requests this is all.
        if limit == 0 || Status::of(word) == event.verdict() {
            return false;
        }
        self.count(event, limit)
    }

    #[cold]
    fn count(&self, event: Event, limit: u8) -> bool {
        let counted =
            self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| next(word, event, limit));
        match counted {
            Ok(word) => {
                let after = next(word, event, limit).unwrap_or(word);
                Status::of(word).is_usable() != Status::of(after).is_usable()
            }
            Err(_) => false,
        }
    }
}

/// The word after an event: four counters and the status, a byte each.
fn next(word: u64, event: Event, limit: u8) -> Option<u64> {
    let status = Status::of(word);
    if status == event.verdict() {
        return None;
    }
    let mut bytes = word.to_le_bytes();
    let at = event as usize;
    let count = bytes[at].saturating_add(1);
    bytes[at] = count;
    match event {
        Event::Success => bytes[1..4].fill(0),
        _ => bytes[0] = 0,
    }
    let status = match status {
        _ if count >= limit => event.verdict(),
        Status::Healthy => Status::MostlyHealthy,
        Status::Unhealthy => Status::MostlyUnhealthy,
        other => other,
    };
    bytes[4] = status as u8;
    Some(u64::from_le_bytes(bytes))
}

impl Event {
    #[inline]
    fn verdict(self) -> Status {
        match self {
            Event::Success => Status::Healthy,
            _ => Status::Unhealthy,
        }
    }
}

impl Status {
    #[inline]
    fn of(word: u64) -> Status {
        match word.to_le_bytes()[4] {
            0 => Status::Healthy,
            1 => Status::Unhealthy,
            2 => Status::MostlyHealthy,
            _ => Status::MostlyUnhealthy,
        }
    }

    #[inline]
    pub fn is_usable(self) -> bool {
        matches!(self, Status::Healthy | Status::MostlyHealthy)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Healthy => "healthy",
            Status::Unhealthy => "unhealthy",
            Status::MostlyHealthy => "mostly_healthy",
            Status::MostlyUnhealthy => "mostly_unhealthy",
        }
    }
}

impl Limits {
    #[inline]
    fn event_of(&self, status: u16) -> Option<Event> {
        if self.healthy.contains(status) {
            Some(Event::Success)
        } else if status == 0 || self.unhealthy.contains(status) {
            Some(Event::Http)
        } else {
            None
        }
    }

    #[inline]
    fn of(&self, event: Event) -> u8 {
        match event {
            Event::Success => self.successes,
            Event::Http => self.http_failures,
            Event::Tcp => self.tcp_failures,
            Event::Timeout => self.timeouts,
        }
    }
}

impl Statuses {
    fn of(list: &[u16]) -> Statuses {
        let mut set = Statuses([0; 10]);
        for &status in list {
            if let Some(word) = set.0.get_mut(usize::from(status / 64)) {
                *word |= 1 << (status % 64);
            }
        }
        set
    }

    #[inline]
    fn contains(&self, status: u16) -> bool {
        self.0.get(usize::from(status / 64)).is_some_and(|word| word & (1 << (status % 64)) != 0)
    }
}

fn byte(limit: u16) -> u8 {
    u8::try_from(limit).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoint(n: u8, weight: u32) -> Endpoint {
        let addr = SocketAddr::from(([127, 0, 0, n], 80));
        Endpoint { addr, authority: addr.to_string(), weight, priority: 0 }
    }

    fn health(checks: serde_json::Value, endpoints: &[Endpoint]) -> Health {
        let value = json!({"nodes": {}, "checks": checks});
        let checks = model::Upstream::parse(&value).unwrap().checks.unwrap();
        Health::new(&checks, endpoints, &PassHost::Pass)
    }

    fn told(target: &Target) -> (&'static str, [u8; 4]) {
        let Counters { success, http_failure, tcp_failure, timeout_failure } = target.counters();
        (target.status().as_str(), [success, http_failure, tcp_failure, timeout_failure])
    }

    #[test]
    fn verdicts_follow_reports_as_in_apisix() {
        let health = health(
            json!({"active": {"healthy": {"successes": 2}, "unhealthy": {"tcp_failures": 2, "timeouts": 3, "http_failures": 2}}}),
            &[endpoint(1, 1)],
        );
        let target = &health.targets[0];
        for (probed, expected) in [
            // What confirms the verdict is not counted.
            (Probed::Connected, ("healthy", [0, 0, 0, 0])),
            (Probed::Status(200), ("healthy", [0, 0, 0, 0])),
            // Neither in one list nor in the other.
            (Probed::Status(201), ("healthy", [0, 0, 0, 0])),
            (Probed::Failed, ("mostly_healthy", [0, 0, 1, 0])),
            (Probed::TimedOut, ("mostly_healthy", [0, 0, 1, 1])),
            // One success is not enough, but it clears the failures.
            (Probed::Connected, ("mostly_healthy", [1, 0, 0, 0])),
            (Probed::Status(0), ("mostly_healthy", [0, 1, 0, 0])),
            (Probed::Status(500), ("unhealthy", [0, 2, 0, 0])),
            (Probed::Failed, ("unhealthy", [0, 2, 0, 0])),
            (Probed::Status(302), ("mostly_unhealthy", [1, 0, 0, 0])),
            (Probed::Failed, ("mostly_unhealthy", [0, 0, 1, 0])),
            (Probed::Status(200), ("mostly_unhealthy", [1, 0, 0, 0])),
            (Probed::Status(200), ("healthy", [2, 0, 0, 0])),
        ] {
            health.probed(target, probed);
            assert_eq!(told(target), expected, "{probed:?}");
        }
        assert_eq!(health.changes(), 2, "it went down once and came back once");
    }

    #[test]
    fn traffic_counts_only_where_it_is_asked_to() {
        let endpoints = [endpoint(1, 1)];
        let without = health(json!({"active": {}}), &endpoints);
        without.answered(0, 500);
        without.failed(0, TryFailure::Connection, Some(502));
        assert_eq!(told(&without.targets[0]), ("healthy", [0; 4]));
        // A try that is followed by another one counts all the same, twice by default.
        without.failed(0, TryFailure::Connection, None);
        without.failed(0, TryFailure::Connection, None);
        assert_eq!(told(&without.targets[0]), ("unhealthy", [0, 0, 2, 0]));

        let passive = json!({"unhealthy": {"http_statuses": [500, 504], "http_failures": 1, "timeouts": 0}});
        let with = health(json!({"active": {}, "passive": passive}), &endpoints);
        with.answered(0, 404);
        with.failed(0, TryFailure::Timeout, None);
        assert_eq!(told(&with.targets[0]), ("healthy", [0; 4]), "zero never counts");
        with.failed(0, TryFailure::Connection, Some(502));
        assert_eq!(told(&with.targets[0]), ("mostly_healthy", [0, 0, 1, 0]));
        with.failed(0, TryFailure::Timeout, Some(504));
        assert_eq!(told(&with.targets[0]), ("unhealthy", [0, 1, 1, 0]));
        // Statuses beyond all sets.
        for status in [0, 999, u16::MAX] {
            with.answered(0, status);
        }
    }

    #[test]
    fn unhealthy_servers_are_avoided_unless_all_are() {
        let endpoints = [endpoint(1, 1), endpoint(2, 0), endpoint(3, 1)];
        let health = health(json!({"active": {"unhealthy": {"tcp_failures": 1}}}), &endpoints);
        let avoided = |health: &Health| {
            (0..3).filter(|&at| health.avoided(&endpoints).contains(at)).collect::<Vec<_>>()
        };
        assert_eq!(avoided(&health), [0usize; 0]);
        health.probed(&health.targets[0], Probed::Failed);
        assert_eq!(avoided(&health), [0]);
        // The one that is left has no weight.
        health.probed(&health.targets[2], Probed::Failed);
        assert_eq!(avoided(&health), [0usize; 0]);
    }

    #[test]
    fn what_is_known_stays_when_servers_change() {
        let checks = json!({"active": {"unhealthy": {"tcp_failures": 1}}});
        let before = health(checks.clone(), &[endpoint(1, 1), endpoint(2, 1)]);
        before.probed(&before.targets[1], Probed::Failed);
        let mut after = health(checks, &[endpoint(2, 1), endpoint(3, 1)]);
        assert_ne!(before, after);
        after.carry(&before);
        assert_eq!(told(&after.targets[0]), ("unhealthy", [0, 0, 1, 0]));
        assert_eq!(told(&after.targets[1]), ("healthy", [0; 4]));
        // A report on the older version reaches the newer one.
        let seen = after.changes();
        before.probed(&before.targets[1], Probed::Connected);
        before.probed(&before.targets[1], Probed::Connected);
        assert_eq!(told(&after.targets[0]).0, "healthy");
        assert!(after.changes() > seen);
    }

    #[test]
    fn servers_probed_at_the_same_address_are_one_target() {
        let mut other = endpoint(1, 1);
        other.addr.set_port(81);
        let health = health(json!({"active": {"port": 9000, "host": "foo.com"}}), &[endpoint(1, 1), other]);
        let targets: Vec<_> = health.targets().map(|target| target.identity()).collect();
        assert_eq!(targets, [("127.0.0.1:9000".parse().unwrap(), "foo.com", None)]);
    }
}
