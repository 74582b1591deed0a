//! hot path
//!
//! Bodies on their way: how the bytes that come in become the bytes that go out.

use wire::Framing;
use wire::h1::Refusal;
use wire::h1::chunked::Chunked;

/// How a body comes in.
#[derive(Debug)]
pub(crate) enum Incoming {
    None,
    /// So many bytes are still to come.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

/// How it goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// In the coding it came in.
    Same,
    /// Taken out of its coding, into chunked coding.
    Chunked,
    /// Taken out of its coding: the length was announced, or the connection's end is the body's.
    Bare,
}

/// What to do with the bytes at the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Bytes of the input that are done with.
    pub(crate) consumed: usize,
    /// Bytes at the front of the input to send.
    pub(crate) emit: usize,
    /// The body is complete.
    pub(crate) done: bool,
}

impl Incoming {
    pub(crate) fn new(framing: Framing) -> Incoming {
        match framing {
            Framing::None => Incoming::None,
            Framing::Length(length) => Incoming::Length(length),
            Framing::Chunked => Incoming::Chunked(Chunked::default()),
            Framing::UntilClose => Incoming::UntilClose,
        }
    }

    /// Nothing (more) is to come.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Incoming::None | Incoming::Length(0))
    }

    /// Takes bytes for passing on in the same coding: chunked stays chunked.
    #[inline]
    pub(crate) fn relay(&mut self, data: &mut [u8]) -> Result<Taken, Refusal> {
        match self {
            Incoming::Chunked(chunked) => {
                let relayed = chunked.relay(data)?;
                Ok(Taken { consumed: relayed.consumed, emit: relayed.emit, done: relayed.done })
            }
            _ => self.decode(data),
        }
    }

    /// Takes bytes and leaves the bare body at the front of the input.
    #[inline]
    pub(crate) fn decode(&mut self, data: &mut [u8]) -> Result<Taken, Refusal> {
        match self {
            Incoming::None => Ok(Taken { consumed: 0, emit: 0, done: true }),
            Incoming::Length(left) => {
                let n = (data.len() as u64).min(*left);
                *left -= n;
                Ok(Taken { consumed: n as usize, emit: n as usize, done: *left == 0 })
            }
            Incoming::Chunked(chunked) => {
                let decoded = chunked.decode(data)?;
                Ok(Taken { consumed: decoded.consumed, emit: decoded.emit, done: decoded.done })
            }
            Incoming::UntilClose => Ok(Taken { consumed: data.len(), emit: data.len(), done: false }),
        }
    }
}
