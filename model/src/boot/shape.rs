//! The shapes of values in `config.yaml`, by which keys are checked and documented.
//!
//! A value is read by the function that checks it ([`values`](super::values)), so a value that was accepted can be used.

use serde_json::Value;

use super::values::{
    access_log, admin_key, boolean, buckets, buffers, count, file_provider, header_name, id, ip, keyring,
    label, list, listen, log_path, long_key, metric_prefix, network, one_of, port, provider, real_ip_from,
    size, switch, text, time, tls_listen, tls_protocols, workers, zones,
};
use super::{etcd, streams, wasm};
use crate::Invalid;

/// The shapes there are.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// Not looked into.
    Any,
    Bool,
    /// `on`, `off` or a boolean.
    Switch,
    Text,
    Texts,
    /// The name of a header field.
    HeaderName,
    LongKey,
    /// A path, or an output of the process. Not `syslog:`.
    LogPath,
    /// The same, or `off` or false for none.
    AccessLog,
    OneOf(&'static [&'static str]),
    Count {
        min: u64,
        max: u64,
    },
    Port,
    Ip,
    Networks,
    /// Networks, and `unix:` which names no network.
    RealIpFrom,
    /// nginx's: `60s`, `1h30m`, `500ms`; a number is of seconds.
    Time,
    /// nginx's: `10m`, `8k`, `1g`; a number is of bytes.
    Size,
    /// The same; a smaller or larger one counts as the least or the most.
    Within(u64, u64),
    /// nginx's `large_client_header_buffers`: `4 8k`.
    Buffers,
    Workers,
    Listen,
    /// `stream_proxy.tcp` and `stream_proxy.udp`.
    TcpPorts,
    UdpPorts,
    TlsListen,
    /// nginx's: `TLSv1.2 TLSv1.3`.
    TlsProtocols,
    Zones,
    AdminKeys,
    /// Keys of AES-128 or AES-256; one may be written without a list.
    Keyring,
    /// Where resources come from, where there is an Admin API to write them.
    Provider,
    /// Addresses of etcd.
    EtcdHosts,
    /// The prefix of every key in etcd.
    EtcdPrefix,
    /// As `Provider`, on a data plane.
    FileProvider,
    Labels,
    Buckets,
    /// The prefix of names of metrics.
    MetricPrefix,
    /// Plugins in WebAssembly, with their files.
    WasmPlugins,
    /// Protocols within streams, `- name: redis` each.
    Protocols,
    /// A service registry that this version lacks; every value is refused.
    NoRegistry,
    /// The name of an instance: text of some characters, or a number.
    Id,
}

impl Shape {
    /// Checks a value that is not null.
    pub fn check(self, value: &Value) -> Result<(), Invalid> {
        match self {
            Shape::Any => Ok(()),
            Shape::Bool => boolean(value).map(drop),
            Shape::Switch => switch(value).map(drop),
            Shape::Text => text(value).map(drop),
            Shape::Texts => list(value, text).map(drop),
            Shape::HeaderName => header_name(value).map(drop),
            Shape::LongKey => long_key(value).map(drop),
            Shape::LogPath => log_path(value).map(drop),
            Shape::AccessLog => access_log(value).map(drop),
            Shape::OneOf(known) => one_of(value, known).map(drop),
            Shape::Count { min, max } => count(value, min, max).map(drop),
            Shape::Port => port(value).map(drop),
            Shape::Ip => ip(value).map(drop),
            Shape::Networks => list(value, network).map(drop),
            Shape::RealIpFrom => list(value, real_ip_from).map(drop),
            Shape::Time => time(value).map(drop),
            Shape::Size | Shape::Within(..) => size(value).map(drop),
            Shape::Buffers => buffers(value).map(drop),
            Shape::Workers => workers(value).map(drop),
            Shape::Listen => listen(value).map(drop),
            Shape::TcpPorts => streams::tcp_ports(value).map(drop),
            Shape::UdpPorts => streams::udp_ports(value).map(drop),
            Shape::TlsListen => tls_listen(value).map(drop),
            Shape::TlsProtocols => tls_protocols(value).map(drop),
            Shape::Zones => zones(value).map(drop),
            Shape::AdminKeys => list(value, admin_key).map(drop),
            Shape::Keyring => keyring(value).map(drop),
            Shape::Provider => provider(value).map(drop),
            Shape::EtcdHosts => etcd::hosts(value).map(drop),
            Shape::EtcdPrefix => etcd::prefix(value).map(drop),
            Shape::FileProvider => file_provider(value).map(drop),
            Shape::Labels => list(value, label).map(drop),
            Shape::Buckets => buckets(value).map(drop),
            Shape::MetricPrefix => metric_prefix(value).map(drop),
            Shape::WasmPlugins => wasm::plugins(value).map(drop),
            Shape::Protocols => list(value, streams::protocol).map(drop),
            Shape::NoRegistry => Err(Invalid::new("this version does not have that service registry")
                .expected("one of consul, consul_kv, dns, eureka, kubernetes, nacos")),
            Shape::Id => id(value).map(drop),
        }
    }

    /// The type in the documentation; empty where the meaning of the setting explains it.
    pub fn kind(self) -> String {
        let bytes = |bytes: u64| match bytes {
            bytes if bytes % (1 << 20) == 0 => format!("{}m", bytes >> 20),
            bytes => format!("{}k", bytes >> 10),
        };
        match self {
            Shape::Bool => "boolean".to_owned(),
            Shape::Switch => "`on`, `off`".to_owned(),
            Shape::Text | Shape::MetricPrefix | Shape::LogPath | Shape::AccessLog | Shape::LongKey => {
                "text".to_owned()
            }
            Shape::Texts => "list of texts".to_owned(),
            Shape::HeaderName => "header name".to_owned(),
            Shape::OneOf(names) => {
                names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            }
            Shape::Count { min, max } if max < 1 << 32 => format!("{min} to {max}"),
            Shape::Count { min, .. } => format!("{min} or more"),
            Shape::Port => "port".to_owned(),
            Shape::Ip => "IP address".to_owned(),
            Shape::Networks | Shape::RealIpFrom => "list of networks".to_owned(),
            Shape::Time => "time".to_owned(),
            Shape::Size => "size".to_owned(),
            Shape::Within(least, most) => format!("size, {} to {}", bytes(least), bytes(most)),
            Shape::Buffers => "number and size".to_owned(),
            Shape::Workers => "`auto`, 1 to 1024".to_owned(),
            Shape::TlsProtocols => "names".to_owned(),
            Shape::Provider | Shape::FileProvider => "`embedded`, `etcd`, `yaml`, `json`".to_owned(),
            Shape::EtcdHosts => "list of URLs".to_owned(),
            Shape::EtcdPrefix => "path".to_owned(),
            Shape::Buckets => "list of numbers".to_owned(),
            Shape::Any
            | Shape::Listen
            | Shape::TcpPorts
            | Shape::UdpPorts
            | Shape::TlsListen
            | Shape::Zones
            | Shape::AdminKeys
            | Shape::Keyring
            | Shape::Labels
            | Shape::WasmPlugins
            | Shape::Protocols
            | Shape::NoRegistry
            | Shape::Id => String::new(),
        }
    }

    /// The keys that maps within the value may have, where they are known.
    pub fn members(self) -> Option<&'static [&'static str]> {
        match self {
            Shape::Listen => Some(&["ip", "port", "enable_http2"]),
            Shape::TcpPorts => Some(streams::TCP_MEMBERS),
            Shape::TlsListen => Some(&["ip", "port", "enable_http2", "enable_http3", "enable_quic"]),
            Shape::Zones => Some(&["name", "memory_size", "disk_size", "disk_path", "cache_levels"]),
            Shape::AdminKeys => Some(&["name", "key", "role"]),
            Shape::WasmPlugins => Some(wasm::MEMBERS),
            Shape::Protocols => Some(&["name"]),
            _ => None,
        }
    }
}
