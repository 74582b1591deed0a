//! HTTP/3 from clients that follow the protocol or break it, byte by byte. RFC 9114 and RFC 9204 define the expected
//! results; `docs` describes the gateway's own choices.

mod bodies;
mod bounds;
mod client;
mod control;
mod life;
mod requests;
mod responses;
