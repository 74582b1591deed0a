//! The HTTP/1 codec (RFC 9112).
