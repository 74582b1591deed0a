//! The Admin API: its keys, the clients it allows, and their limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

/// The Admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// `apisix.enable_admin`; never on a data plane.
    pub enabled: bool,
    pub listen: SocketAddr,
    /// `apisix.enable_admin_on_node_listen` (ours): also on the ports for traffic.
    pub on_node_listen: bool,
    pub key_required: bool,
    /// A key that is empty must be made before use.
    pub keys: Vec<AdminKey>,
    /// `hosts` (ours): names with a dot under which the APIs that ask for no key may be asked.
    pub hosts: Vec<String>,
    /// Networks of the clients that are allowed; none if empty.
    pub allow: Vec<IpNet>,
    pub cors: bool,
    /// `enable_admin_ui`: the dashboard is served at `/ui/`.
    pub ui: bool,
    pub version: AdminVersion,
    pub limits: AdminLimits,
    /// It speaks TLS and nothing else.
    pub tls: Option<AdminTls>,
}

/// `deployment.admin.https_admin` and `admin_api_mtls`: files in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminTls {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The authorities for client certificates, which are then required.
    pub ca: Option<PathBuf>,
}

/// Limits on clients of the Admin API, the control API and the status API (ours).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminLimits {
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// Connections at once from addresses that are not allowed; more are closed.
    pub refused_connections: usize,
    /// For a request's head, and between two requests of a connection.
    pub client_header_timeout: Duration,
    /// For a request's body.
    pub client_body_timeout: Duration,
    /// For a client to take 64 KiB of an answer.
    pub send_timeout: Duration,
    /// How old a connection may become.
    pub connection_timeout: Duration,
    /// Wrong keys an address may send in a minute; 0 is no limit.
    pub failed_keys: u32,
    /// How long the answer to a write waits until the change is applied, to tell its outcome (ours).
    pub outcome_wait: Duration,
}

/// A key of the Admin API. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKey {
    pub name: String,
    pub key: String,
    pub role: AdminRole,
}

/// The rights of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRole {
    Admin,
    /// Reading alone.
    Viewer,
}

/// The envelopes the Admin API answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminVersion {
    V2,
    V3,
}

impl std::fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = if self.key.is_empty() { "none" } else { "…" };
        f.debug_struct("AdminKey")
            .field("name", &self.name)
            .field("key", &key)
            .field("role", &self.role)
            .finish()
    }
}
