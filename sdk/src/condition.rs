//! Conditions of routes that are code (`filter_func`).

use std::fmt::Debug;

use crate::exchange::Exchange;
use crate::verdict::Verdict;

/// A condition of a route that is code. It is judged by workers while they search for the route of a request, after
/// all other conditions of the route.
pub trait Condition: Debug + Send + Sync {
    /// Judges a request, from what is in it alone. Must not wait; a condition that fails or takes too long does not
    /// hold. With `lenient`, unreadable values count as absent.
    fn judge(&self, x: &Exchange<'_>, lenient: bool) -> Verdict;

    /// Whether it may read the request's body.
    fn needs_body(&self) -> bool;
}
