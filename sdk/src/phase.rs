//! hot path
//!
//! The phases of an exchange.

use std::ops::BitOr;

/// The phases of an exchange in which plugin instances are called, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Rewrite,
    Access,
    BeforeProxy,
    HeaderFilter,
    BodyFilter,
    Log,
    /// For a stream, once its route is known and before it is forwarded to an upstream.
    Preread,
    /// For a TCP stream, with its bytes of both directions.
    StreamData,
}

/// A set of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases(u8);

impl Phase {
    pub const ALL: [Phase; 8] = [
        Phase::Rewrite,
        Phase::Access,
        Phase::BeforeProxy,
        Phase::HeaderFilter,
        Phase::BodyFilter,
        Phase::Log,
        Phase::Preread,
        Phase::StreamData,
    ];

    /// Whether the request is not forwarded yet: it can be rejected, and its body read.
    #[inline]
    pub const fn is_before_upstream(self) -> bool {
        matches!(self, Phase::Rewrite | Phase::Access | Phase::BeforeProxy | Phase::Preread)
    }
}

impl Phases {
    pub const NONE: Phases = Phases(0);
    pub const REWRITE: Phases = Phases::of(Phase::Rewrite);
    pub const ACCESS: Phases = Phases::of(Phase::Access);
    pub const BEFORE_PROXY: Phases = Phases::of(Phase::BeforeProxy);
    pub const HEADER_FILTER: Phases = Phases::of(Phase::HeaderFilter);
    pub const BODY_FILTER: Phases = Phases::of(Phase::BodyFilter);
    pub const LOG: Phases = Phases::of(Phase::Log);
    pub const PREREAD: Phases = Phases::of(Phase::Preread);
    pub const STREAM_DATA: Phases = Phases::of(Phase::StreamData);

    pub const fn of(phase: Phase) -> Phases {
        Phases(1 << phase as u8)
    }

    /// Both sets; usable in constants.
    pub const fn with(self, other: Phases) -> Phases {
        Phases(self.0 | other.0)
    }

    #[inline]
    pub const fn has(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Phases {
    type Output = Phases;
    fn bitor(self, other: Phases) -> Phases {
        self.with(other)
    }
}
