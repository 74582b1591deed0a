//! Log sinks: bounded queues from workers to the deliverers of log entries.
//!
//! Workers put entries into a [`Sink`] and never wait, lock or look up a name. The receiving end,
//! the [`Intake`], belongs to a thread or task of the gateway, which gathers entries into batches
//! ([`Batching`]), has them delivered ([`Deliver`]) and retries. Entries without room, or that cannot be delivered,
//! are dropped and counted.
//!
//! There are two kinds of senders. A plugin instance requests its sink when it is built
//! ([`Build::sink`]) and pushes single entries from any worker. The access log, with a line for
//! every request, gathers lines in a buffer per worker, its [`Outlet`], and sends whole buffers.

mod batch;
mod deliver;
mod folders;
mod outlet;
mod queue;
mod record;
mod registry;
mod wait;

use std::net::{IpAddr, SocketAddr};

use model::Invalid;
use serde_json::Value;

pub use batch::{Batching, Gathering};
pub use deliver::{Batch, Deliver, Outcome};
pub use folders::{Folders, LogFile, SETTING as FOLDERS_SETTING};
pub(crate) use folders::{below, normalized};
pub use outlet::{Bounds, Outlet};
pub use queue::{Intake, Next, Room, Sink, Taken, of_buffers};
pub use record::{Addresses, Destination, Fields, HOPS, Record};
pub use registry::{Entries, Sinks, Start};

use crate::build::{Build, Owner};

/// The specification of a plugin instance's sink. Instances with equal specifications share one
/// sink, which stays open across configuration changes as long as one of them lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The plugin's name, for metrics and messages.
    pub plugin: &'static str,
    /// The resource that configures the plugin. Files are shared by all resources.
    pub owner: Option<Owner>,
    pub target: Destination,
    pub batching: Batching,
    /// Maximum entries waiting for delivery; further ones are dropped.
    pub max_entries: usize,
    /// Maximum bytes waiting for delivery; further entries are dropped.
    pub max_bytes: usize,
}

impl Build<'_> {
    /// Opens the sink with this specification, or shares an open one. Nothing is opened or
    /// connected before the first entry. The control plane resolves a host name that has no address
    /// yet; until then deliveries fail.
    pub fn sink(&self, spec: Spec) -> Sink {
        let resolved = |(host, port): &(String, u16)| {
            self.addresses(host).into_iter().map(|ip| SocketAddr::new(ip, *port)).collect()
        };
        let addresses = spec.target.servers.iter().map(resolved).collect();
        self.services.sinks.open(spec, addresses)
    }

    /// Resolves a path in the settings to a file in the folders for plugins' files.
    ///
    /// # Errors
    /// A path outside of these folders, or one of the gateway's own files.
    pub fn log_file(&self, path: &str) -> Result<Destination, Invalid> {
        // References to secrets are not replaced yet when the configuration is checked.
        if self.owner.collection.is_empty() && model::references::refers(path) {
            return Ok(Destination::file(""));
        }
        Ok(Destination::file(&self.services.folders.file(path)?.to_string()))
    }

    /// Opens the sink of one plugin instance. Its entries are bounded by the plugin's metadata.
    pub fn own_sink(&self, plugin: &'static str, target: Destination, batching: Batching) -> Sink {
        self.sink(Spec {
            plugin,
            owner: Some(self.owner.clone()),
            target,
            batching,
            max_entries: self.max_pending_entries(),
            max_bytes: usize::MAX,
        })
    }

    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        bare.parse().map_or_else(|_| self.names.addresses(host), |ip| vec![ip])
    }

    /// `max_pending_entries` of the plugin's metadata (APISIX 3.18).
    pub fn max_pending_entries(&self) -> usize {
        let written =
            self.metadata().and_then(|metadata| metadata.get("max_pending_entries")).and_then(Value::as_u64);
        written.map_or(batch::MAX_PENDING, |entries| usize::try_from(entries).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FixedNames;

    #[test]
    fn addresses_and_limits_of_a_sink() {
        let services = crate::build::Services::for_tests();
        let owner = crate::build::Owner { collection: "routes", id: "1".to_owned() };
        let known = IpAddr::from([10, 0, 0, 1]);
        let names = FixedNames([("h.test".to_owned(), vec![known])].into_iter().collect());
        let build = Build::new(&owner, &services, &names);
        assert_eq!(build.addresses("h.test"), [known]);
        assert_eq!(build.addresses("10.0.0.2"), [IpAddr::from([10, 0, 0, 2])]);
        assert_eq!(build.addresses("[::1]"), [IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])]);
        assert_eq!(build.max_pending_entries(), 8192);
        let written = serde_json::json!({"max_pending_entries": 5});
        let metadata = || Some(&written);
        let build = Build::new(&owner, &services, &names).with_metadata(&metadata);
        assert_eq!(build.max_pending_entries(), 5);
    }
}
