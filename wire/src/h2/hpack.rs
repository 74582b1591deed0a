//! hot path
//!
//! Field blocks of HTTP/2 (RFC 7541).
//!
//! A connection has one [`Decoder`] and one [`Encoder`]. Their dynamic tables change with every
//! block: each received block must be decoded, in order, and each encoded block must be sent, in
//! order. They allocate when an entry is inserted, and nothing once their tables have grown.

mod decoder;
mod encoder;
mod fixed;
mod policy;
mod table;
#[cfg(test)]
mod tests;

pub use decoder::Decoder;
pub use encoder::{Encoder, Pseudo};

/// The size of a dynamic table before any setting, in bytes (RFC 9113 section 6.5.2).
pub const DEFAULT_TABLE_SIZE: usize = 4096;
