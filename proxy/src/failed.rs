//! Why a read or write did not happen.

use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The other side is gone.
    Closed,
    /// It went away after accepting a part of the bytes.
    Broken,
    Timeout,
}

/// No descriptor, or no memory for one, is left.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM))
}
