//! Log sinks: a bounded way out of a worker for what is logged.
//!
//! Workers put entries into a [`Sink`] and never wait, lock or look up a name. The other end, the
//! [`Intake`], belongs to a thread or task of the gateway, which gathers entries into batches
//! ([`Batching`]), delivers them and tries again. What finds no room, and what cannot be delivered, is
//! dropped and counted.
//!
//! There are two ways in. A plugin instance asks for its sink when it is built ([`Build::sink`]) and
//! pushes an entry at a time, from any worker. The access log, with a line for every request, gathers
//! lines in a buffer of each worker, its [`Outlet`], and hands over whole buffers.

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

/// A sink as a plugin instance asks for it. Instances that ask for the same share one, and it stays
/// open over changes of the configuration for as long as one of them lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The plugin's name, for metrics and messages.
    pub plugin: &'static str,
    /// The resource the plugin is configured on. Files are shared by all resources.
    pub owner: Option<Owner>,
    pub target: Target,
    pub batching: Batching,
    /// How entries become one text.
    pub joined: Joined,
    /// Entries that may wait to be delivered; past it new ones are dropped.
    pub max_entries: usize,
    /// Bytes that may wait, likewise.
    pub max_bytes: usize,
}

/// Where entries go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// Lines are appended to a file, each as soon as it comes. That of a plugin is from [`Build::log_file`].
    File { path: String },
    /// A batch is the body of a POST.
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
    /// A batch is written to a connection.
    Tcp {
        host: String,
        port: u16,
        tls: Option<Tls>,
        timeout: Duration,
        /// The connection is kept for the next batch; else each batch has one of its own.
        keep: bool,
    },
    /// An entry is a datagram.
    Udp { host: String, port: u16, timeout: Duration },
}

/// How TLS is spoken with a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The server's name in the handshake; without one its host is.
    pub name: Option<String>,
    /// Its certificate must be valid for that name.
    pub verify: bool,
}

/// How the entries of a batch are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Joined {
    pub before: &'static str,
    pub between: &'static str,
    pub after: &'static str,
}

impl Joined {
    /// Entries are JSON, and so is the batch: an array.
    pub const ARRAY: Joined = Joined { before: "[", between: ",", after: "]" };
    /// One a line, the last without a line end.
    pub const LINES: Joined = Joined { before: "", between: "\n", after: "" };
    /// One after the other.
    pub const PLAIN: Joined = Joined { before: "", between: "", after: "" };

    /// The text of a batch.
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

impl Target {
    /// The server's name and port, where there is a server.
    pub fn server(&self) -> Option<(&str, u16)> {
        match self {
            Target::File { .. } => None,
            Target::Http { host, port, .. }
            | Target::Tcp { host, port, .. }
            | Target::Udp { host, port, .. } => Some((host, *port)),
        }
    }

    /// How TLS is spoken with the server, where it is.
    pub fn tls(&self) -> Option<&Tls> {
        match self {
            Target::Http { tls, .. } | Target::Tcp { tls, .. } => tls.as_ref(),
            Target::File { .. } | Target::Udp { .. } => None,
        }
    }
}

impl Build<'_> {
    /// The sink that fits `spec`: the one another instance has open, or a new one. Nothing is opened
    /// or connected to before the first entry comes. A host name that has no address yet is looked up
    /// by the control plane; until then deliveries fail.
    pub fn sink(&self, spec: Spec) -> Sink {
        let addresses: Arc<[SocketAddr]> = match spec.target.server() {
            Some((host, port)) => {
                self.addresses(host).into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
            }
            None => Arc::default(),
        };
        self.services.sinks.open(spec, addresses)
    }

    /// The file that a path in the settings stands for, one in the folders for files of plugins.
    ///
    /// # Errors
    /// A path outside of these folders, or one of the gateway's own files.
    pub fn log_file(&self, path: &str) -> Result<Target, Invalid> {
        // A check sees references that are replaced before anything is built.
        if self.owner.collection.is_empty() && model::references::refers(path) {
            return Ok(Target::File { path: String::new() });
        }
        Ok(Target::File { path: self.services.folders.file(path)?.to_string() })
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
    fn where_entries_go() {
        let (host, port, timeout) = ("h.test".to_owned(), 514, Duration::from_secs(1));
        let tls = Some(Tls { name: None, verify: true });
        let server = Some(("h.test", 514));
        let http = Target::Http {
            host: host.clone(),
            port,
            uri: "/".to_owned(),
            content_type: "text/plain",
            authorization: None,
            tls: tls.clone(),
            timeout,
        };
        let tcp = Target::Tcp { host: host.clone(), port, tls: None, timeout, keep: false };
        for (target, server, is_tls) in [
            (Target::File { path: "/a".to_owned() }, None, false),
            (http, server, true),
            (tcp, server, false),
            (Target::Udp { host, port, timeout }, server, false),
        ] {
            assert_eq!(
                (target.server(), target.tls()),
                (server, tls.as_ref().filter(|_| is_tls)),
                "{target:?}"
            );
        }
    }

    #[test]
    fn what_is_looked_up_for_a_sink() {
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
    fn entries_become_one_text() {
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
