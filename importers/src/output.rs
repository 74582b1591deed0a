//! The result of an import.

use std::net::IpAddr;

use model::Key;
use serde_json::Value;

use crate::finding::{Finding, Place, Severity};

/// Resources, listeners and findings of a file.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// In the order of the file.
    pub resources: Vec<Imported>,
    /// Where the original listens; empty if the file does not say it.
    pub listeners: Vec<Listener>,
    /// Settings of `config.yaml` that the resources need, such as the addresses of a registry.
    pub settings: Vec<Setting>,
    /// In the order of the file.
    pub findings: Vec<Finding>,
}

/// A setting of `config.yaml`, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Its keys with dots between them: `discovery.eureka`.
    pub path: String,
    pub value: Value,
    pub place: Place,
}

/// A resource, as in `apisix.yaml`, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    pub key: Key,
    /// Without its id.
    pub value: Value,
    pub place: Place,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// All addresses if absent.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub protocol: Protocol,
    /// Clients use TLS.
    pub tls: bool,
    /// HTTP/2 is offered.
    pub http2: bool,
    /// Connections begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    pub place: Place,
}

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Tcp,
    Udp,
}

impl Import {
    /// The number of findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// The guards that keep a resource from being served.
    pub fn guards<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Finding> {
        let concerns = |finding: &&Finding| finding.resources.is_empty() || finding.resources.contains(key);
        self.findings.iter().filter(|finding| finding.severity == Severity::Guard).filter(concerns)
    }
}
