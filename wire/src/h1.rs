//! The HTTP/1 codec (RFC 9112).
//!
//! [`decode`] parses heads, [`chunked`] reads chunked bodies, [`encode`] writes heads and chunks,
//! [`hop`] removes hop-by-hop fields. Strict: input that two parsers could read in different ways
//! is refused, never repaired.

pub mod chunked;
pub mod decode;
pub mod encode;
pub mod hop;

mod host;
mod refusal;
pub(crate) mod scan;

pub use chunked::{ChunkLimits, Chunked, Relayed};
pub use decode::{Limits, Progress, Underscores, request, response};
pub use refusal::Refusal;
