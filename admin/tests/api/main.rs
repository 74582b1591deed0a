//! The Admin API, the control API and the metrics listener, from outside.

mod fixture;
mod listeners;
mod resources;
