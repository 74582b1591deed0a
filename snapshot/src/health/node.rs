//! hot path
//!
//! Observed traffic of a server: consecutive failures, success rate and response times.
//!
//! Workers count in atomics. The control plane decides how long a server is ejected and how much of
//! its share a readmitted one gets; only consecutive failures eject at once.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A server, across all versions of its upstream.
#[derive(Debug)]
pub struct NodeHealth {
    pub addr: SocketAddr,
    /// The [`Reason`] of its ejection; 0 if it is not ejected.
    out: AtomicU8,
    /// The part of its share that it does not get, in 256ths.
    cold: AtomicU8,
    failures_in_row: AtomicU32,
    requests: AtomicU32,
    failures: AtomicU32,
    micros: AtomicU64,
}

/// Why a server is ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    ConsecutiveFailures = 1,
    SuccessRate,
    Latency,
}

/// Counts since the previous tally.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub requests: u32,
    pub failures: u32,
    /// Total response time of the attempts that did not fail.
    pub micros: u64,
}

impl NodeHealth {
    pub(super) fn new(addr: SocketAddr) -> NodeHealth {
        NodeHealth {
            addr,
            out: AtomicU8::new(0),
            cold: AtomicU8::new(0),
            failures_in_row: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            micros: AtomicU64::new(0),
        }
    }

    pub fn ejected(&self) -> Option<Reason> {
        match self.out.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Reason::ConsecutiveFailures),
            2 => Some(Reason::SuccessRate),
            _ => Some(Reason::Latency),
        }
    }

    /// The part of its share that it does not get, in 256ths.
    pub fn cold(&self) -> u8 {
        self.cold.load(Ordering::Relaxed)
    }

    /// Returns the counts and resets them.
    pub fn take(&self) -> Tally {
        Tally {
            requests: self.requests.swap(0, Ordering::Relaxed),
            failures: self.failures.swap(0, Ordering::Relaxed),
            micros: self.micros.swap(0, Ordering::Relaxed),
        }
    }

    /// Counts an attempt; returns the consecutive failures, including this one.
    #[inline]
    pub(super) fn count(&self, failed: bool, micros: u64) -> u32 {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if failed {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return self.failures_in_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        }
        self.micros.fetch_add(micros, Ordering::Relaxed);
        if self.failures_in_row.load(Ordering::Relaxed) != 0 {
            self.failures_in_row.store(0, Ordering::Relaxed);
        }
        0
    }

    /// Sets or clears the ejection; returns whether it was not ejected before.
    pub(super) fn set_out(&self, reason: Option<Reason>) -> bool {
        self.failures_in_row.store(0, Ordering::Relaxed);
        self.out.swap(reason.map_or(0, |reason| reason as u8), Ordering::AcqRel) == 0
    }

    pub(super) fn set_cold(&self, cold: u8) -> bool {
        self.cold.swap(cold, Ordering::AcqRel) != cold
    }
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::ConsecutiveFailures => "consecutive_failures",
            Reason::SuccessRate => "success_rate",
            Reason::Latency => "latency",
        }
    }
}
