//! The case runner: whole-program tests written as data.
//!
//! It knows the gateway only from outside (a program, ports, files, signals)
//! and never links a crate of it; `tests/README.md` describes the format.

#![forbid(unsafe_code)]

pub mod case;
pub mod client;
pub mod etcd;
pub mod examples;
pub mod expect;
pub mod fill;
pub mod gateway;
pub mod http;
pub mod ports;
pub mod relay;
pub mod run;
pub mod soak;
pub mod suite;
pub mod talk;
pub mod upstream;

/// The root of the repository.
pub fn root() -> std::path::PathBuf {
    let mut path = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}
