//! Towards upstreams: connections, the pools that keep them, and what is spoken on them.

pub(crate) mod connect;
pub(crate) mod h1;
pub(crate) mod pool;

use wire::h1::encode::BadTarget;

/// How much of a body follows a head, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    None,
    Exactly(u64),
    /// Its end is told when it comes.
    Open,
}

/// A request's head as a server is to get it, whatever protocol the server speaks. Nothing in it
/// concerns framing or the connection.
pub(crate) trait Head {
    fn method(&self) -> &[u8];
    /// Appends path and query. An error is one that would not stay within its place.
    fn target(&self, out: &mut Vec<u8>) -> Result<(), BadTarget>;
    fn authority(&self) -> &[u8];
    /// Gives every field but those.
    fn fields(&self, to: &mut impl Lines);
}

/// Takes fields, one after the other.
pub(crate) trait Lines {
    fn name(&mut self, name: &[u8]);
    /// A part of the value.
    fn value(&mut self, part: &[u8]);
    /// A number as the value, or a part of it.
    fn number(&mut self, number: u64);
    fn end(&mut self);

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.name(name);
        self.value(value);
        self.end();
    }
}
