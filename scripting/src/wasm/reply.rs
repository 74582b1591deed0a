//! Responses that modules make.

use bytes::Bytes;
use sdk::{Fields, Reply};

/// A response that a module has made.
pub(super) struct LocalReply {
    pub status: u16,
    pub fields: Fields,
    pub body: Vec<u8>,
}

impl LocalReply {
    pub(super) fn reply(self) -> Reply {
        let fields = (!self.fields.is_empty()).then(|| Box::new(self.fields));
        Reply { status: self.status, fields, body: Bytes::from(self.body), ..Reply::default() }
    }

    /// The response to a request that the module closes, or the end of a TCP stream, with the status of a refusal.
    pub(super) fn closed(is_stream: bool) -> LocalReply {
        let status = if is_stream { 403 } else { 503 };
        LocalReply { status, fields: Fields::new(), body: Vec::new() }
    }
}
