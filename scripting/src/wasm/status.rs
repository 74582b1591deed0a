//! The results of functions that modules call.

/// Why a function has no result.
pub(super) enum Refusal {
    /// A status of the ABI other than 0.
    Status(u32),
    /// The call of the module ends: it failed within a function that it provides, or it has exited.
    Trap(wasmtime::Error),
}

impl Refusal {
    pub(super) const NOT_FOUND: Refusal = Refusal::Status(1);
    pub(super) const BAD_ARGUMENT: Refusal = Refusal::Status(2);
    pub(super) const INVALID_MEMORY_ACCESS: Refusal = Refusal::Status(6);
    pub(super) const EMPTY: Refusal = Refusal::Status(7);
    pub(super) const CAS_MISMATCH: Refusal = Refusal::Status(8);
    pub(super) const INTERNAL_FAILURE: Refusal = Refusal::Status(10);
    pub(super) const UNIMPLEMENTED: Refusal = Refusal::Status(12);
}

pub(super) type Outcome<T = ()> = Result<T, Refusal>;

/// The status that a function returns to the module.
pub(super) fn status(outcome: Outcome) -> wasmtime::Result<u32> {
    match outcome {
        Ok(()) => Ok(0),
        Err(Refusal::Status(status)) => Ok(status),
        Err(Refusal::Trap(error)) => Err(error),
    }
}
