//! The HTTP/1 codec (RFC 9112).
//!
//! [`decode`] turns bytes into heads, [`chunked`] reads chunked bodies, [`encode`]
//! writes heads and chunks, [`hop`] removes what must not travel further. Strict:
//! what two parsers could read in two ways is refused, never repaired.

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
