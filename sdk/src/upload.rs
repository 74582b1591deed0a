//! hot path
//!
//! Filters of the request's body on its way to the upstream.
//!
//! A plugin that must see the whole body requests it in a phase before the upstream
//! ([`crate::Step::Body`]) and may replace it ([`crate::Exchange::set_body`]). One that can work on
//! chunks adds a filter ([`crate::Exchange::filter_request_body`]): chunks are then filtered as
//! they come from the client, and nothing is buffered. Such a filter lives for one exchange and
//! owns what it needs, since the exchange is used for the response meanwhile.

use crate::exchange::Chunk;
use crate::step::{LocalFuture, Step};

/// Changes a request's body chunk by chunk.
///
/// The final length is not known in advance, so the upstream gets the body in chunked coding; a
/// body that is buffered already is filtered as one chunk and keeps a length. Bytes that a filter
/// holds back must count against [`crate::World::budget`]; the proxy counts the growth of a chunk.
pub trait RequestFilter {
    /// Changes, grows or empties a chunk. `Refuse` and `Reply` reject the request midway: its connection to the
    /// upstream is closed, and the client gets the status unless the response has begun. [`Step::Body`] is invalid.
    fn filter(&mut self, chunk: &mut Chunk) -> Step;

    /// Called only after it returned [`Step::Wait`] for that chunk. It is dropped when the client
    /// disconnects, and at the latest after `plugin_wait_timeout`.
    fn wait<'a>(&'a mut self, _chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async { Step::Next })
    }
}
