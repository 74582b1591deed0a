//! The data plane: workers, connections, exchanges, upstream pools.
//!
//! A worker is one thread with its own runtime, listening sockets, buffers and
//! upstream connections. It reads the current snapshot and never waits for the
//! control plane: it takes no lock, resolves no name, reads no file.
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]

mod accept;
mod access_log;
mod buffers;
mod clock;
mod consumer_chains;
mod credit;
mod down;
mod exchange;
mod failed;
mod fetch;
mod h1;
mod h2;
mod handoff;
mod in_use;
mod io;
mod listener;
mod names;
mod notice;
mod pool;
mod proxy_header;
mod queue;
mod raw;
mod relay;
mod rt;
mod settings;
mod stage;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
mod tunnel;
mod up;
mod watch;
mod windows;
mod worker;
mod workers;

#[cfg(debug_assertions)]
#[doc(hidden)]
pub use clock::clock_reads;
pub use exchange::fault::{Blame, BodyLimit, Fault, FaultKind, FaultRecord, Flood, TlsNames};
pub use handoff::{Admission, Handoff, HandoffFuture, HandoffReply, HandoffRequest};
pub use listener::{Listener, StreamPort, Traffic, Versions};
pub use notice::Notice;
pub use pool::{Pool, Work};
pub use settings::{
    AccessLog, Budgets, Explain, Http2, Http3, Limits, ProxyProtocol, RealIp, RealIpSource, Settings,
    Streams, Timeouts,
};
pub use stage::Stage;
pub use watch::Watch;
pub use workers::{Datagrams, Workers};
