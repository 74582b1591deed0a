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

    /// The response to a request whose stream the module closes.
    pub(super) fn closed() -> LocalReply {
        LocalReply { status: 503, fields: Fields::new(), body: Vec::new() }
    }
}
