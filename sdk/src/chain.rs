//! hot path
//!
//! The stages of a plan, by phase.

use std::fmt;
use std::future::Future;
use std::ops::BitOr;
use std::pin::Pin;
use std::sync::Arc;

use crate::exchange::{Chunk, Exchange};
use crate::step::Step;
use wire::target::Doubtful;

/// The phases of an exchange in which stages are asked, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Rewrite,
    Access,
    BeforeProxy,
    HeaderFilter,
    BodyFilter,
    Log,
}

/// A set of phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases(u8);

impl Phases {
    pub const NONE: Phases = Phases(0);
    pub const REWRITE: Phases = Phases(1 << Phase::Rewrite as u8);
    pub const ACCESS: Phases = Phases(1 << Phase::Access as u8);
    pub const BEFORE_PROXY: Phases = Phases(1 << Phase::BeforeProxy as u8);
    pub const HEADER_FILTER: Phases = Phases(1 << Phase::HeaderFilter as u8);
    pub const BODY_FILTER: Phases = Phases(1 << Phase::BodyFilter as u8);
    pub const LOG: Phases = Phases(1 << Phase::Log as u8);

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

/// A future on one worker; it never crosses threads.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The stages of one plan (or of all global rules, or of a consumer), sorted by
/// priority within each phase. Made by [`crate::Catalog::chain`].
pub trait Chain: Send + Sync + fmt::Debug {
    /// Phases with at least one stage. The proxy asks for nothing else.
    fn phases(&self) -> Phases;

    /// What a path may not hold, if a stage has a say in that; see [`crate::Plugin::refused_in_path`].
    fn refused_in_path(&self) -> Option<Doubtful> {
        None
    }

    /// Runs `Rewrite`, `Access` or `BeforeProxy` from `*cursor` on. Leaves `*cursor`
    /// at the stage that answered something other than [`Step::Next`].
    fn run(&self, phase: Phase, cursor: &mut usize, x: &mut Exchange<'_>) -> Step;

    /// Awaits the stage at `cursor`, which answered [`Step::Wait`].
    fn wait<'a>(&'a self, phase: Phase, cursor: usize, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step>;

    fn header_filter(&self, x: &mut Exchange<'_>);

    /// Whether a stage looks at this exchange's response body; asked after the header filter.
    fn filters_body(&self, _x: &Exchange<'_>) -> bool {
        self.phases().has(Phase::BodyFilter)
    }

    /// Whether a stage gives nothing of that body on before it has seen all of it.
    fn holds_body(&self, _x: &Exchange<'_>) -> bool {
        false
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk);

    fn log(&self, x: &mut Exchange<'_>);

    /// This chain with the stages of `over` put in: a stage of the same plugin is
    /// replaced. Used when a consumer brings plugins of its own.
    fn overlay(&self, over: &dyn Chain) -> Arc<dyn Chain>;

    /// For [`Chain::overlay`]'s implementation.
    fn as_any(&self) -> &dyn std::any::Any;

    /// Names of the plugins, in order of priority.
    fn names(&self) -> Vec<&'static str>;
}
