//! What operators write: resources, the boot file, declarative files; parsing,
//! checking, defaults.
//!
//! This room turns text and JSON into typed values, or says what is wrong and
//! where. It never opens a file or a socket, reads a clock or the environment,
//! or knows a plugin's own schema.

#![forbid(unsafe_code)]

pub mod invalid;
pub mod key;
pub mod kind;
pub mod schema;

pub use invalid::Invalid;
pub use key::Key;
pub use kind::Kind;
pub use schema::Schema;
