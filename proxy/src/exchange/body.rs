//! hot path
//!
//! Bodies on their way: how the bytes that come in become the bytes that go out.

use wire::h1::Refusal;
use wire::h1::chunked::{Chunked, Relayed};
use wire::h1::encode;
use wire::{Fields, Framing};

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
    /// Bytes of the body itself among them.
    pub(crate) data: usize,
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
            Incoming::Chunked(chunked) => Ok(chunked.relay(data)?.into()),
            _ => self.decode(data),
        }
    }

    /// Takes bytes and leaves the bare body at the front of the input.
    #[inline]
    pub(crate) fn decode(&mut self, data: &mut [u8]) -> Result<Taken, Refusal> {
        match self {
            Incoming::None => Ok(Taken::bare(0, true)),
            Incoming::Length(left) => {
                let n = (data.len() as u64).min(*left);
                *left -= n;
                Ok(Taken::bare(n as usize, *left == 0))
            }
            Incoming::Chunked(chunked) => Ok(chunked.decode(data)?.into()),
            Incoming::UntilClose => Ok(Taken::bare(data.len(), false)),
        }
    }

    /// The trailers behind the body, as far as it was decoded.
    #[inline]
    pub(crate) fn trailers(&self) -> Option<&Fields> {
        match self {
            Incoming::Chunked(chunked) => Some(chunked.trailers()).filter(|trailers| !trailers.is_empty()),
            _ => None,
        }
    }
}

impl Taken {
    #[inline]
    fn bare(n: usize, done: bool) -> Taken {
        Taken { consumed: n, emit: n, data: n, done }
    }
}

impl From<Relayed> for Taken {
    #[inline]
    fn from(relayed: Relayed) -> Taken {
        let Relayed { consumed, emit, data, done } = relayed;
        Taken { consumed, emit, data, done }
    }
}

/// The lines around a chunk; reused.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Frame {
    /// A chunk's three parts. With the last one comes the end of the body.
    pub(crate) fn around<'a>(
        &'a mut self,
        bytes: &'a [u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> [&'a [u8]; 3] {
        self.before.clear();
        self.after.clear();
        if !bytes.is_empty() {
            encode::chunk_header(bytes.len(), &mut self.before);
            self.after.extend_from_slice(b"\r\n");
        }
        if last {
            encode::last_chunk(trailers, &mut self.after);
        }
        [&self.before, bytes, &self.after]
    }
}
