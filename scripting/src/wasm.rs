//! Filters in WebAssembly: a host of the proxy-wasm ABI 0.2.1 (0.2.0 and 0.1.0 are accepted), over `wasmtime`.
//!
//! The program reads a module's bytes and loads them ([`Module`]), off the workers. Each worker has one instance of a
//! module, made at its first request (`machine`); it serves all routes with the plugin, as in APISIX. A plugin instance
//! of a chain (`filter`, for streams `streams`) is a plugin context of the ABI, a request or a TCP stream a context below
//! it (`vm`).
//!
//! A call of a module has limits of time and memory (`host`). A call that fails answers its request with 500, and the
//! next request gets a new instance. Functions that modules call are one file for each duty, and `link` lists them.

mod buffers;
mod call;
mod callbacks;
mod callouts;
mod compiled;
mod context;
mod factory;
mod filter;
mod grpc;
mod headers;
mod host;
mod life;
mod link;
mod logs;
mod machine;
mod memory;
mod metrics;
mod module;
mod onward;
mod properties;
mod queues;
mod reply;
mod respond;
mod shared;
mod status;
mod stores;
mod streams;
mod tasks;
#[cfg(test)]
mod tests;
mod vm;
mod wasi;

pub use compiled::{CodeStore, MOST_CODE};
pub use factory::{Plugin, factory, stream_factory, unloaded};
pub use host::{Host, Settings};
pub use metrics::{BOUNDS, Kind, Metric};
pub use module::{Binary, LARGEST, Module};
