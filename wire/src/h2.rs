//! hot path
//!
//! HTTP/2 (RFC 9113): frames, and the compression of fields.

pub mod frame;
pub mod hpack;

/// The first bytes of a client (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
