//! What whoever fetches OCSP responses has to know.

pub use snapshot::compile::Stapling;
