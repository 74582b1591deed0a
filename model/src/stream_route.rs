//! A stream route: which TCP and UDP connections it takes, and where they go.

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::Invalid;
use crate::field::{self, Meta, Plugins, networks, take, take_plugins, typed};
use crate::upstream::Upstream;

/// A stream route of APISIX 3.x.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamRoute {
    pub meta: Meta,
    pub remote_addr: Option<IpNet>,
    pub server_addr: Option<IpNet>,
    pub server_port: Option<u16>,
    /// In lower case, perhaps with a leading `*`.
    pub sni: Option<String>,
    pub upstream: Option<Box<Upstream>>,
    pub upstream_id: Option<String>,
    pub service_id: Option<String>,
    pub plugins: Plugins,
    pub protocol: Option<Protocol>,
}

/// A protocol the gateway understands inside a stream (`redis`, `dubbo`).
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Protocol {
    pub name: String,
    #[serde(default, deserialize_with = "field::id_opt")]
    pub superior_id: Option<String>,
    #[serde(default)]
    pub conf: Value,
    #[serde(default)]
    pub logger: Vec<ProtocolLogger>,
}

/// A logger of a protocol's commands.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ProtocolLogger {
    pub name: Option<String>,
    pub filter: Option<Value>,
    #[serde(default)]
    pub conf: Value,
}

#[derive(Deserialize)]
struct Written {
    remote_addr: Option<String>,
    server_addr: Option<String>,
    server_port: Option<u16>,
    sni: Option<String>,
    #[serde(default, deserialize_with = "field::id_opt")]
    upstream_id: Option<String>,
    #[serde(default, deserialize_with = "field::id_opt")]
    service_id: Option<String>,
    protocol: Option<Protocol>,
}

impl StreamRoute {
    /// Types a value that has passed its schema.
    pub(crate) fn read(mut value: Value) -> Result<StreamRoute, Invalid> {
        let (plugins, upstream) = (take_plugins(&mut value), take(&mut value, "upstream"));
        let meta = Meta::of(&value)?;
        let written: Written = typed(value)?;
        Ok(StreamRoute {
            meta,
            remote_addr: networks("remote_addr", written.remote_addr, None)?.pop(),
            server_addr: networks("server_addr", written.server_addr, None)?.pop(),
            server_port: written.server_port,
            sni: written.sni.map(|sni| sni.to_ascii_lowercase()),
            upstream: upstream.map(Upstream::read_inside).transpose()?,
            upstream_id: written.upstream_id,
            service_id: written.service_id,
            plugins,
            protocol: written.protocol,
        })
    }
}
