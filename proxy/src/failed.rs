//! Why a read or write did not happen.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The other side is gone.
    Closed,
    /// It went away after accepting a part of the bytes.
    Broken,
    Timeout,
}
