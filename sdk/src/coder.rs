//! The coding of a response's body.

use crate::chain::LocalFuture;
use crate::exchange::{Chunk, Exchange};
use crate::step::Step;
use crate::world::World;

/// Lays a content coding (RFC 9110 section 8.4) on one response's body. It runs behind every header
/// filter and every body filter, of global rules and of routes, so that filters see the plain body.
/// See [`Exchange::encode_with`].
pub trait Coder {
    /// The head is as the header filters left it. Writes the coding into it and says yes, or leaves
    /// the response as it is.
    fn begin(&mut self, x: &mut Exchange<'_>) -> bool;

    /// Puts a piece of the coded body in the place of a piece of the plain one. An empty piece that is
    /// not the last stays empty. Of the answers, only `Next` and `Wait` have a meaning here.
    fn encode(&mut self, chunk: &mut Chunk) -> Step;

    /// The same after it answered [`Step::Wait`] to that piece, for work that takes long
    /// ([`crate::offload`]). It ends when the client goes away, and after `plugin_wait_timeout` at the latest.
    fn wait<'a>(&'a mut self, _world: &'a dyn World, _chunk: &'a mut Chunk) -> LocalFuture<'a, ()> {
        Box::pin(async {})
    }
}
