//! hot path
//!
//! A checked address: an atomic word with its verdict and the reports counted since, and the rules
//! by which a report changes it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A checked address.
#[derive(Debug)]
pub struct Target {
    pub addr: SocketAddr,
    /// Identifies it beside the address: `checks.active.host`, or the address itself.
    pub hostname: String,
    /// The `Host` of probes, if it is a different one.
    pub host_header: Option<String>,
    pub(super) word: AtomicU64,
}

/// The state of a target, as named in APISIX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Healthy,
    Unhealthy,
    /// Healthy, with failures counted.
    MostlyHealthy,
    /// Unhealthy, with successes counted.
    MostlyUnhealthy,
}

/// The reports counted since the last one of the opposite sort.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub success: u8,
    pub http_failure: u8,
    pub tcp_failure: u8,
    pub timeout_failure: u8,
}

/// The number of reports that changes the verdict. Zero: never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) healthy: Statuses,
    pub(super) unhealthy: Statuses,
    pub(super) successes: u8,
    pub(super) http_failures: u8,
    pub(super) tcp_failures: u8,
    pub(super) timeouts: u8,
}

/// A set of HTTP statuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statuses([u64; 10]);

/// A report about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Success,
    Http,
    Tcp,
    Timeout,
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

    /// Counts an event; returns whether the target has become usable or unusable.
    #[inline]
    pub(super) fn report(&self, event: Event, limit: u8) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        // Events that confirm the verdict are not counted: most requests end here.
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
    pub(super) fn event_of(&self, status: u16) -> Option<Event> {
        if self.healthy.contains(status) {
            Some(Event::Success)
        } else if status == 0 || self.unhealthy.contains(status) {
            Some(Event::Http)
        } else {
            None
        }
    }

    #[inline]
    pub(super) fn of(&self, event: Event) -> u8 {
        match event {
            Event::Success => self.successes,
            Event::Http => self.http_failures,
            Event::Tcp => self.tcp_failures,
            Event::Timeout => self.timeouts,
        }
    }
}

impl Statuses {
    pub fn of(list: &[u16]) -> Statuses {
        let mut set = Statuses([0; 10]);
        for &status in list {
            if let Some(word) = set.0.get_mut(usize::from(status / 64)) {
                *word |= 1 << (status % 64);
            }
        }
        set
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 10]
    }

    #[inline]
    pub fn contains(&self, status: u16) -> bool {
        self.0.get(usize::from(status / 64)).is_some_and(|word| word & (1 << (status % 64)) != 0)
    }
}
