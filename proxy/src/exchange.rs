//! One request and its response: from the head to the last byte.

pub(crate) mod answer;
mod attempt;
mod counts;
pub(crate) mod drive;
pub(crate) mod fault;
pub(crate) mod fault_log;
pub(crate) mod forward;
mod handover;
mod limits;
pub(crate) mod live;
pub(crate) mod max_body;
mod outbound;
pub(crate) mod outcome;
pub(crate) mod phases;
pub(crate) mod proven;
pub(crate) mod receive;
pub(crate) mod retry;
mod stopwatch;
mod streamed;
pub(crate) mod tries;
mod trusted;
pub(crate) mod upload;

use sdk::engine::Messages;
use sdk::exchange::Chunk;
use wire::{Fields, Version};

/// Adds the trailers that came to those that a plugin has set, which go before them.
fn add_trailers(trailers: &mut Fields, came: Option<&Fields>) {
    for (name, value, id) in came.into_iter().flat_map(Fields::iter) {
        if trailers.get_named(name).is_none() {
            trailers.append_checked(id, name, value);
        }
    }
}

/// Whether the client asks for its stream to become a tunnel (RFC 8441, RFC 9220). It takes every answer of success for
/// one, so none may be given that is not.
#[inline]
fn asks_for_tunnel(head: &wire::RequestHead) -> bool {
    head.upgrade && head.version >= Version::Http2
}

/// The memory of one exchange; reused.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) messages: Messages,
    /// Bytes being written to the upstream: the head and the body that is at hand.
    pub(crate) up_out: Vec<u8>,
    /// Bytes being written to the client.
    pub(crate) down_out: Vec<u8>,
    /// The piece of the body that stages look at.
    pub(crate) chunk: Chunk,
}

impl Scratch {
    pub(crate) fn clear(&mut self) {
        const KEEP: usize = 32 << 10;
        self.messages.clear();
        for bytes in [&mut self.up_out, &mut self.down_out, &mut self.chunk.data] {
            bytes.clear();
            if bytes.capacity() > KEEP {
                bytes.shrink_to(KEEP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_large_is_not_kept_for_the_next_exchange() {
        let mut scratch = Scratch { up_out: vec![0; 1 << 20], ..Scratch::default() };
        scratch.chunk.data = vec![0; 1 << 10];
        scratch.clear();
        assert!(scratch.up_out.is_empty() && scratch.up_out.capacity() < 1 << 16);
        assert!(scratch.chunk.data.is_empty() && scratch.chunk.data.capacity() >= 1 << 10);
    }
}
