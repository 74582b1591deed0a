//! Content codings of response bodies.

use crate::chain::LocalFuture;
use crate::exchange::{Chunk, Exchange};
use crate::step::Step;
use crate::world::World;

/// Applies a content coding (RFC 9110 section 8.4) to one response's body. It runs after all header
/// and body filters of global rules and routes, so that filters see the plain body. See
/// [`Exchange::encode_with`].
pub trait Coder {
    /// Called after the header filters. Writes the coding into the head and returns true, or
    /// returns false and leaves the response unchanged.
    fn begin(&mut self, x: &mut Exchange<'_>) -> bool;

    /// Replaces a chunk of the plain body by a chunk of the coded one. An empty chunk that is not
    /// the last stays empty. Only `Next` and `Wait` have a meaning here.
    fn encode(&mut self, chunk: &mut Chunk) -> Step;

    /// Called after `encode` returned [`Step::Wait`] for that chunk, for long work
    /// ([`crate::offload`]). It is dropped when the client disconnects, and at the latest after
    /// `plugin_wait_timeout`.
    fn wait<'a>(&'a mut self, _world: &'a dyn World, _chunk: &'a mut Chunk) -> LocalFuture<'a, ()> {
        Box::pin(async {})
    }
}
