//! Errors of a walk over a value that does not fit.

use crate::Invalid;

/// A misfit with a message, or without one where it is not shown. The walk makes messages only for types that keep
/// them.
pub trait Misfit: Sized {
    fn of(words: impl FnOnce() -> Invalid) -> Self;

    /// Adds what is known further out.
    fn explained(self, words: impl FnOnce(Invalid) -> Invalid) -> Self;
}

impl Misfit for Invalid {
    fn of(words: impl FnOnce() -> Invalid) -> Invalid {
        words()
    }

    fn explained(self, words: impl FnOnce(Invalid) -> Invalid) -> Invalid {
        words(self)
    }
}

/// That a value does not fit, and nothing more.
pub struct Unsaid;

impl Misfit for Unsaid {
    fn of(_: impl FnOnce() -> Invalid) -> Unsaid {
        Unsaid
    }

    fn explained(self, _: impl FnOnce(Invalid) -> Invalid) -> Unsaid {
        Unsaid
    }
}
