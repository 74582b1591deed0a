//! Shared by the differential tests and the `mutate` example.

pub mod compare;
pub mod corpus;
pub mod mutate;
pub mod reference;
pub mod written_again;
