//! The Admin API, the control API and the metrics listener, from outside.

// Test code, which clippy cannot see outside of test functions.
#![allow(clippy::unwrap_used, reason = "a test")]

mod access;
mod fixture;
mod listeners;
mod races;
mod refusals;
mod resources;
mod schemas;
