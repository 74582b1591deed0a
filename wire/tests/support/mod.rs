//! What the differential tests and the `mutate` example share.

pub mod compare;
pub mod corpus;
pub mod mutate;
pub mod reference;
