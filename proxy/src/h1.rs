//! HTTP/1 messages on a connection: what clients' ends and upstreams' ends have in common.

mod body;
mod writer;

pub(crate) use body::Body;
pub(crate) use writer::Writer;
