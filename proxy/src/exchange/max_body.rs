//! hot path
//!
//! The largest body that a request may have.

use sdk::Exchange;

use super::fault::{BodyLimit, Fault, FaultKind};

/// A limit, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaxBody {
    /// 0 is no limit.
    bytes: u64,
    by: BodyLimit,
}

impl MaxBody {
    /// The limit of the boot settings, in bytes.
    #[inline]
    pub(crate) fn client(bytes: u64) -> MaxBody {
        MaxBody { bytes, by: BodyLimit::Client }
    }

    /// The limit that a plugin set for this request, or else that of the boot settings.
    #[inline]
    pub(crate) fn of(x: &Exchange<'_>, client: u64) -> MaxBody {
        match x.engine().max_body {
            Some(bytes) => MaxBody { bytes, by: BodyLimit::Route(bytes) },
            None => MaxBody::client(client),
        }
    }

    /// Fails for a body of more bytes.
    #[inline]
    pub(crate) fn check(self, bytes: u64) -> Result<(), Fault> {
        if self.bytes > 0 && bytes > self.bytes {
            return Err(Fault::client(FaultKind::BodyTooLarge(self.by)));
        }
        Ok(())
    }
}
