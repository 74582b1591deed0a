//! hot path
//!
//! The request's body on its way to the upstream, as plugins may change it.
//!
//! A plugin that must see all of the body asks for it in a phase before the upstream
//! ([`crate::Step::Body`]) and may replace it ([`crate::Exchange::set_body`]). One that can work piece by
//! piece hands over a filter of its own ([`crate::Exchange::filter_request_body`]): pieces then go
//! through it as they come from the client, and nothing is held. Such a filter lives for one exchange
//! and takes along what it needs, since the exchange is busy with the response meanwhile.

use crate::chain::LocalFuture;
use crate::exchange::Chunk;
use crate::step::Step;

/// Changes a request's body piece by piece.
///
/// The length is not known beforehand, so the upstream gets the body in chunks; where the body is in
/// memory already, it is filtered as one piece and has its length. What a filter holds back must count
/// against [`crate::World::budget`]; a piece that it lets grow is counted by the proxy.
pub trait RequestFilter {
    /// Changes, grows or empties a piece. Of the answers, only `Next`, `Wait` and `Refuse` have a
    /// meaning here; refused in the middle, the request's connection to the upstream is closed.
    fn filter(&mut self, chunk: &mut Chunk) -> Step;

    /// Only after it answered [`Step::Wait`] to that piece. It ends when the client goes away, and after
    /// `plugin_wait_timeout` at the latest.
    fn wait<'a>(&'a mut self, _chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async { Step::Next })
    }
}
