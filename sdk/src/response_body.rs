//! Bodies of responses: their content codings, and sources that produce them while they are sent.

use bytes::Bytes;

use crate::exchange::{Chunk, Exchange};
use crate::step::{LocalFuture, Step};
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

/// The source of a response's body, piece by piece. The next piece is requested once the client has taken the one
/// before, so that at most two are in memory.
pub trait BodySource {
    /// The next piece, which is not empty. Not called again after the last byte or after an error.
    fn next<'a>(&'a mut self, world: &'a dyn World) -> LocalFuture<'a, Result<Bytes, SourceError>>;
}

/// Why a body ends before its last byte: the client sees a response that breaks off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceError(pub &'static str);

/// A source and the number of bytes that it produces.
pub struct SizedSource {
    pub length: u64,
    pub source: Box<dyn BodySource>,
}
