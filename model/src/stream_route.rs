//! A stream route: which TCP and UDP connections it takes, and where they go.

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::Invalid;
use crate::field::{self, Meta, Plugins, networks, take, take_plugins, typed};
use crate::upstream::Upstream;
use crate::xrpc::Protocol;

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

#[derive(Deserialize)]
struct Raw {
    remote_addr: Option<String>,
    server_addr: Option<String>,
    server_port: Option<u16>,
    sni: Option<String>,
    #[serde(default, deserialize_with = "field::id_opt")]
    upstream_id: Option<String>,
    #[serde(default, deserialize_with = "field::id_opt")]
    service_id: Option<String>,
}

impl StreamRoute {
    /// Types a value that has passed its schema.
    pub(crate) fn read(mut value: Value) -> Result<StreamRoute, Invalid> {
        let (plugins, upstream) = (take_plugins(&mut value), take(&mut value, "upstream"));
        let protocol = take(&mut value, "protocol");
        let meta = Meta::of(&value)?;
        let written: Raw = typed(value)?;
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
            protocol: protocol
                .map(|protocol| Protocol::read(protocol).map_err(|invalid| invalid.under("/protocol")))
                .transpose()?,
        })
    }
}
