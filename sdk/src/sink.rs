//! Log sinks: bounded queues from workers to the deliverers of log entries.
//!
//! Workers put entries into a [`Sink`] and never wait, lock or look up a name. The receiving end,
//! the [`Intake`], belongs to a thread or task of the gateway, which gathers entries into batches
//! ([`Batching`]), delivers them and retries. Entries without room, or that cannot be delivered,
//! are dropped and counted.
//!
//! There are two kinds of senders. A plugin instance requests its sink when it is built
//! ([`Build::sink`]) and pushes single entries from any worker. The access log, with a line for
//! every request, gathers lines in a buffer per worker, its [`Outlet`], and sends whole buffers.

mod batch;
mod folders;
mod outlet;
mod queue;
mod registry;
mod wait;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use model::Invalid;
use serde_json::Value;

pub use batch::{Batching, Gathering};
pub use folders::{Folders, LogFile, SETTING as FOLDERS_SETTING};
pub use outlet::{Bounds, Outlet};
pub use queue::{Intake, Next, Room, Sink, Taken, of_buffers};
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
    /// How the entries of a batch are joined.
    pub joined: Joined,
    /// Maximum entries waiting for delivery; further ones are dropped.
    pub max_entries: usize,
    /// Maximum bytes waiting for delivery; further entries are dropped.
    pub max_bytes: usize,
}

/// The destination of entries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A file to which each line is appended as soon as it arrives. A plugin's comes from
    /// [`Build::log_file`].
    File { path: String },
    /// A server that gets each batch as the body of a POST.
    Http {
        /// Host and port of the server.
        host: String,
        port: u16,
        /// Path and query.
        uri: String,
        content_type: &'static str,
        authorization: Option<String>,
        tls: Option<Tls>,
        timeout: Duration,
    },
    /// A TCP server; each batch is written to a connection.
    Tcp {
        host: String,
        port: u16,
        tls: Option<Tls>,
        timeout: Duration,
        /// Keep the connection for the next batch; otherwise each batch has its own.
        keep: bool,
    },
    /// A UDP server; each entry is a datagram.
    Udp { host: String, port: u16, timeout: Duration },
}

/// The TLS settings for a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The server name in the handshake; the host if absent.
    pub name: Option<String>,
    /// Require a certificate that is valid for that name.
    pub verify: bool,
}

/// How the entries of a batch are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Joined {
    pub before: &'static str,
    pub between: &'static str,
    pub after: &'static str,
}

impl Joined {
    /// Entries are JSON; a batch is an array.
    pub const ARRAY: Joined = Joined { before: "[", between: ",", after: "]" };
    /// One entry per line, without a final line end.
    pub const LINES: Joined = Joined { before: "", between: "\n", after: "" };
    /// Entries are concatenated.
    pub const PLAIN: Joined = Joined { before: "", between: "", after: "" };

    /// Joins the entries of a batch.
    pub fn text<'a>(&self, entries: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
        let bytes: usize = entries.clone().map(<[u8]>::len).sum();
        let between = self.between.len() * entries.len().saturating_sub(1);
        let mut text = Vec::with_capacity(self.before.len() + bytes + between + self.after.len());
        text.extend_from_slice(self.before.as_bytes());
        for (at, entry) in entries.enumerate() {
            if at > 0 {
                text.extend_from_slice(self.between.as_bytes());
            }
            text.extend_from_slice(entry);
        }
        text.extend_from_slice(self.after.as_bytes());
        text
    }
}

impl Destination {
    /// The server's name and port, if the target is a server.
    pub fn server(&self) -> Option<(&str, u16)> {
        match self {
            Destination::File { .. } => None,
            Destination::Http { host, port, .. }
            | Destination::Tcp { host, port, .. }
            | Destination::Udp { host, port, .. } => Some((host, *port)),
        }
    }

    /// The TLS settings, if the server is contacted over TLS.
    pub fn tls(&self) -> Option<&Tls> {
        match self {
            Destination::Http { tls, .. } | Destination::Tcp { tls, .. } => tls.as_ref(),
            Destination::File { .. } | Destination::Udp { .. } => None,
        }
    }
}

impl Build<'_> {
    /// Opens the sink with this specification, or shares an open one. Nothing is opened or
    /// connected before the first entry. The control plane resolves a host name that has no address
    /// yet; until then deliveries fail.
    pub fn sink(&self, spec: Spec) -> Sink {
        let addresses: Arc<[SocketAddr]> = match spec.target.server() {
            Some((host, port)) => {
                self.addresses(host).into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
            }
            None => Arc::default(),
        };
        self.services.sinks.open(spec, addresses)
    }

    /// Resolves a path in the settings to a file in the folders for plugins' files.
    ///
    /// # Errors
    /// A path outside of these folders, or one of the gateway's own files.
    pub fn log_file(&self, path: &str) -> Result<Destination, Invalid> {
        // References to secrets are not replaced yet when the configuration is checked.
        if self.owner.collection.is_empty() && model::references::refers(path) {
            return Ok(Destination::File { path: String::new() });
        }
        Ok(Destination::File { path: self.services.folders.file(path)?.to_string() })
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
    fn targets_have_a_server_and_tls_settings() {
        let (host, port, timeout) = ("h.test".to_owned(), 514, Duration::from_secs(1));
        let tls = Some(Tls { name: None, verify: true });
        let server = Some(("h.test", 514));
        let http = Destination::Http {
            host: host.clone(),
            port,
            uri: "/".to_owned(),
            content_type: "text/plain",
            authorization: None,
            tls: tls.clone(),
            timeout,
        };
        let tcp = Destination::Tcp { host: host.clone(), port, tls: None, timeout, keep: false };
        for (target, server, is_tls) in [
            (Destination::File { path: "/a".to_owned() }, None, false),
            (http, server, true),
            (tcp, server, false),
            (Destination::Udp { host, port, timeout }, server, false),
        ] {
            assert_eq!(
                (target.server(), target.tls()),
                (server, tls.as_ref().filter(|_| is_tls)),
                "{target:?}"
            );
        }
    }

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

    #[test]
    fn entries_are_joined() {
        let entries = [&b"{}"[..], b"1", b"x"];
        for (joined, all, one) in [
            (Joined::ARRAY, "[{},1,x]", "[{}]"),
            (Joined::LINES, "{}\n1\nx", "{}"),
            (Joined::PLAIN, "{}1x", "{}"),
        ] {
            assert_eq!(joined.text(entries.iter().copied()), all.as_bytes());
            assert_eq!(joined.text(entries[..1].iter().copied()), one.as_bytes());
        }
    }
}
