//! `apisix.proxy_mode`, `apisix.stream_proxy`, `apisix.proxy_protocol` and `nginx_config.stream`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use super::AccessLog;
use super::read;
use super::section::Section;
use super::values;
use crate::{Invalid, xrpc};

/// `apisix.proxy_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    #[default]
    Http,
    Stream,
    HttpAndStream,
}

/// The settings of TCP and UDP streams.
#[derive(Debug, Clone, PartialEq)]
pub struct Streams {
    /// `apisix.stream_proxy.tcp`, each port of a range by itself. None where `proxy_mode` has no streams.
    pub tcp: Vec<TcpPort>,
    /// `apisix.stream_proxy.udp`
    pub udp: Vec<SocketAddr>,
    /// `stream_plugins`; `None` is all there are.
    pub plugins: Option<Vec<String>>,
    /// `xrpc.protocols`: protocols within streams that may be used.
    pub protocols: Vec<String>,
    /// Peers whose PROXY protocol header names the client (`real_ip_from`).
    pub real_ip_from: Vec<IpNet>,
    pub access_log: Option<AccessLog>,
    /// For connecting to an upstream that says nothing of it (`proxy_connect_timeout`).
    pub connect_timeout: Duration,
    /// With no byte in either direction for so long, a connection ends (`proxy_timeout`).
    pub idle_timeout: Duration,
    /// For the first bytes of a client, where they decide (`preread_timeout`).
    pub preread_timeout: Duration,
    /// For a PROXY protocol header, of HTTP as well (`proxy_protocol_timeout`).
    pub proxy_protocol_timeout: Duration,
    /// With no datagram in either direction for so long, a UDP session ends (ours).
    pub udp_idle_timeout: Duration,
    /// UDP sessions of a worker (ours).
    pub max_udp_sessions: u64,
    /// Bytes of datagrams that one UDP session may have waiting to be sent (ours).
    pub udp_queue: u64,
}

/// A port for TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpPort {
    pub address: SocketAddr,
    pub tls: bool,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Connections to upstreams begin with one.
    pub proxy_protocol_to_upstream: bool,
}

/// `apisix.proxy_protocol`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyProtocol {
    /// `listen_http_port`
    pub http: Option<u16>,
    /// `listen_https_port`
    pub https: Option<u16>,
    /// Networks that may connect to ports with PROXY protocol headers; `None` is all (ours).
    pub trusted: Option<Vec<IpNet>>,
}

impl ProxyMode {
    pub fn serves_http(self) -> bool {
        self != ProxyMode::Stream
    }

    pub fn serves_streams(self) -> bool {
        self != ProxyMode::Http
    }
}

/// Ports that may be listened on for streams, each with a socket a worker.
const MOST_PORTS: usize = 8192;

pub(super) fn proxy_mode(file: Section<'_>) -> ProxyMode {
    match file.text("/apisix/proxy_mode") {
        Some("stream") => ProxyMode::Stream,
        Some("http&stream") => ProxyMode::HttpAndStream,
        Some(_) => ProxyMode::Http,
        // APISIX before 3.2 had a switch within `stream_proxy`.
        None => match file.get("/apisix/stream_proxy/only").and_then(Value::as_bool) {
            Some(true) => ProxyMode::Stream,
            Some(false) => ProxyMode::HttpAndStream,
            None => ProxyMode::Http,
        },
    }
}

pub(super) fn proxy_protocol(file: Section<'_>) -> ProxyProtocol {
    let at = file.below("/apisix/proxy_protocol");
    ProxyProtocol {
        http: at.read("/listen_http_port", values::port),
        https: at.read("/listen_https_port", values::port),
        trusted: at.read("/trusted_addresses", |value| values::list(value, values::network)),
    }
}

pub(super) fn streams(file: Section<'_>) -> Result<Streams, Invalid> {
    let (apisix, stream) = (file.below("/apisix"), file.below("/nginx_config/stream"));
    let (mut tcp, mut udp) = (Vec::new(), Vec::new());
    if proxy_mode(file).serves_streams() {
        let taken = apisix.bool("/proxy_protocol/enable_tcp_pp");
        let sent = apisix.bool("/proxy_protocol/enable_tcp_pp_to_upstream");
        for port in apisix.read("/stream_proxy/tcp", tcp_ports).into_iter().flatten() {
            tcp.extend(port.addresses.map(|address| TcpPort {
                address,
                tls: port.tls,
                proxy_protocol: port.proxy_protocol.unwrap_or(taken),
                proxy_protocol_to_upstream: port.proxy_protocol_to_upstream.unwrap_or(sent),
            }));
        }
        udp.extend(apisix.read("/stream_proxy/udp", udp_ports).into_iter().flatten().flatten());
        let all_tcp: Vec<SocketAddr> = tcp.iter().map(|port| port.address).collect();
        for (addresses, name) in [(&all_tcp, "tcp"), (&udp, "udp")] {
            check_all(addresses).map_err(|invalid| invalid.at(format!("/apisix/stream_proxy/{name}")))?;
        }
    }
    let from = stream.read("/real_ip_from", |value| values::list(value, values::real_ip_from));
    Ok(Streams {
        tcp,
        udp,
        plugins: file.texts("/stream_plugins"),
        protocols: file
            .read("/xrpc/protocols", |value| values::list(value, protocol))
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect(),
        real_ip_from: from.into_iter().flatten().flatten().collect(),
        access_log: read::access_log(stream)?,
        connect_timeout: stream.time("/proxy_connect_timeout"),
        idle_timeout: stream.time("/proxy_timeout"),
        preread_timeout: stream.time("/preread_timeout"),
        proxy_protocol_timeout: stream.time("/proxy_protocol_timeout"),
        udp_idle_timeout: stream.time("/udp_timeout"),
        max_udp_sessions: stream.count("/max_udp_sessions"),
        udp_queue: stream.size("/udp_queue"),
    })
}

fn check_all(addresses: &[SocketAddr]) -> Result<(), Invalid> {
    if addresses.len() > MOST_PORTS {
        return Err(Invalid::new(format!("{} ports are too many", addresses.len()))
            .expected(format!("at most {MOST_PORTS}, as each worker has a socket for each")));
    }
    let mut sorted = addresses.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(Invalid::new(format!("two listeners have the address {}", twice[0]))
            .expected("different addresses")),
        None => Ok(()),
    }
}

/// One entry of `stream_proxy.tcp`.
#[derive(Debug)]
pub(super) struct TcpEntry {
    addresses: Addresses,
    tls: bool,
    proxy_protocol: Option<bool>,
    proxy_protocol_to_upstream: Option<bool>,
}

/// One address, or those of a range of ports.
#[derive(Debug, Clone)]
pub(super) struct Addresses {
    ip: IpAddr,
    ports: std::ops::RangeInclusive<u16>,
}

impl Iterator for Addresses {
    type Item = SocketAddr;

    fn next(&mut self) -> Option<SocketAddr> {
        self.ports.next().map(|port| SocketAddr::new(self.ip, port))
    }
}

/// The members of an entry of `stream_proxy.tcp`.
pub(super) const TCP_MEMBERS: &[&str] = &["addr", "tls", "proxy_protocol", "proxy_protocol_to_upstream"];

pub(super) fn tcp_ports(value: &Value) -> Result<Vec<TcpEntry>, Invalid> {
    values::list(value, |item| {
        let Value::Object(map) = item else {
            let addresses = addresses(item)?;
            return Ok(TcpEntry {
                addresses,
                tls: false,
                proxy_protocol: None,
                proxy_protocol_to_upstream: None,
            });
        };
        let flag = |name: &str| {
            let present = map.get(name).filter(|value| !value.is_null());
            present.map(|value| values::boolean(value).map_err(|invalid| invalid.within(name))).transpose()
        };
        let addr = map
            .get("addr")
            .ok_or_else(|| Invalid::new("`addr` is missing").expected("a port or an address"))?;
        Ok(TcpEntry {
            addresses: addresses(addr).map_err(|invalid| invalid.within("addr"))?,
            tls: flag("tls")?.unwrap_or(false),
            proxy_protocol: flag("proxy_protocol")?,
            proxy_protocol_to_upstream: flag("proxy_protocol_to_upstream")?,
        })
    })
}

pub(super) fn udp_ports(value: &Value) -> Result<Vec<Addresses>, Invalid> {
    values::list(value, addresses)
}

/// `9100`, `"9100-9110"`, `"127.0.0.1:9100"`, `"[::1]:9100-9110"`. Without an address all of IPv4.
fn addresses(value: &Value) -> Result<Addresses, Invalid> {
    const EXPECTED: &str =
        "a port, a range of ports such as \"2000-2100\", or one of them behind an IP address";
    let text = match value {
        Value::Number(_) => value.to_string(),
        Value::String(text) => text.clone(),
        other => return Err(values::wrong_type("a port or an address", other)),
    };
    let wrong =
        || Invalid::new(format!("`{text}` is not an address to listen on")).expected(EXPECTED).got(&text);
    if text.starts_with("unix:") {
        return Err(wrong().hint("streams are not taken from sockets in the file system"));
    }
    let (ip, ports) = match text.rsplit_once(':') {
        None => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), text.as_str()),
        Some((ip, ports)) => {
            let bare = match ip.strip_prefix('[') {
                Some(rest) => rest.strip_suffix(']').filter(|rest| rest.contains(':')),
                None => Some(ip).filter(|ip| !ip.contains(':')),
            };
            let parsed = match bare {
                Some("*") => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                Some(bare) => bare.parse().ok(),
                None => None,
            };
            (parsed.ok_or_else(wrong)?, ports)
        }
    };
    let port = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| digits && *port > 0).ok_or_else(wrong)
    };
    let (first, last) = match ports.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(ports)?, port(ports)?),
    };
    if first > last {
        return Err(wrong().hint("the first port of a range is its smallest"));
    }
    Ok(Addresses { ip, ports: first..=last })
}

/// `{name: redis}`.
pub(super) fn protocol(value: &Value) -> Result<&str, Invalid> {
    let name = value.get("name").ok_or_else(|| values::wrong_type("a map of `name`", value))?;
    values::one_of(name, xrpc::PROTOCOLS).map_err(|invalid| invalid.within("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listed(value: Value) -> Result<Vec<String>, String> {
        match addresses(&value) {
            Ok(addresses) => Ok(addresses.map(|address| address.to_string()).collect()),
            Err(invalid) => Err(invalid.reason),
        }
    }

    #[test]
    fn addresses_come_in_every_form() {
        for (written, expected) in [
            (json!(9100), &["0.0.0.0:9100"][..]),
            (json!("9100"), &["0.0.0.0:9100"]),
            (json!("127.0.0.1:9101"), &["127.0.0.1:9101"]),
            (json!("*:9101"), &["0.0.0.0:9101"]),
            (json!("[::1]:9101"), &["[::1]:9101"]),
            (json!("2000-2002"), &["0.0.0.0:2000", "0.0.0.0:2001", "0.0.0.0:2002"]),
            (json!("[::]:65535-65535"), &["[::]:65535"]),
        ] {
            assert_eq!(listed(written.clone()).unwrap(), expected, "{written}");
        }
        for wrong in [
            json!(0),
            json!(65536),
            json!(-1),
            json!(1.5),
            json!(""),
            json!("a:1"),
            json!("::1:9100"),
            json!("1-"),
            json!("9-8"),
            json!("1-2-3"),
            json!("127.0.0.1"),
            json!("[127.0.0.1]:1"),
            json!("unix:/tmp/a"),
            json!(true),
            json!("+1"),
        ] {
            assert!(listed(wrong.clone()).is_err(), "{wrong}");
        }
    }

    fn read(value: Value) -> Result<Streams, Invalid> {
        streams(Section::of(&value))
    }

    #[test]
    fn protocols_are_listed_by_name() {
        let streams = read(json!({"xrpc": {"protocols": [{"name": "redis"}, {"name": "dubbo"}]}}));
        assert_eq!(streams.unwrap().protocols, ["redis", "dubbo"]);
        assert!(read(json!({})).unwrap().protocols.is_empty());
        for (wrong, pointer) in
            [(json!({"name": "mqtt"}), "/name"), (json!("redis"), ""), (json!({"name": 1}), "/name")]
        {
            assert_eq!(protocol(&wrong).unwrap_err().pointer, pointer, "{wrong}");
        }
    }

    #[test]
    fn the_ports_own_word_goes_before_the_global_one() {
        let streams = read(json!({"apisix": {
            "proxy_mode": "http&stream",
            "proxy_protocol": {"enable_tcp_pp": true, "enable_tcp_pp_to_upstream": true},
            "stream_proxy": {
                "tcp": [1, {"addr": 2, "tls": true, "proxy_protocol": false}, {"addr": "3-4", "proxy_protocol_to_upstream": false}],
                "udp": [1, "5-6"],
            },
        }}))
        .unwrap();
        let flags: Vec<_> = streams
            .tcp
            .iter()
            .map(|port| (port.address.port(), port.tls, port.proxy_protocol, port.proxy_protocol_to_upstream))
            .collect();
        assert_eq!(
            flags,
            [
                (1, false, true, true),
                (2, true, false, true),
                (3, false, true, false),
                (4, false, true, false)
            ]
        );
        assert_eq!(streams.udp.len(), 3);
    }

    #[test]
    fn the_mode_says_what_is_served() {
        let mode = |apisix: Value| proxy_mode(Section::of(&json!({ "apisix": apisix })));
        assert_eq!(mode(json!({})), ProxyMode::Http);
        assert_eq!(mode(json!({"proxy_mode": "stream"})), ProxyMode::Stream);
        assert_eq!(mode(json!({"proxy_mode": "http&stream"})), ProxyMode::HttpAndStream);
        assert_eq!(mode(json!({"stream_proxy": {"tcp": [1]}})), ProxyMode::Http);
        assert_eq!(mode(json!({"stream_proxy": {"only": true}})), ProxyMode::Stream);
        assert_eq!(mode(json!({"stream_proxy": {"only": false}})), ProxyMode::HttpAndStream);
        assert_eq!(mode(json!({"proxy_mode": "http", "stream_proxy": {"only": false}})), ProxyMode::Http);
        let ports = json!({"apisix": {"stream_proxy": {"tcp": [1]}}});
        assert_eq!(read(ports).unwrap().tcp, [], "only where streams are on");
    }

    #[test]
    fn ports_are_bounded_and_differ() {
        let with =
            |tcp: Value| read(json!({"apisix": {"proxy_mode": "stream", "stream_proxy": {"tcp": tcp}}}));
        assert!(with(json!(["1-8192"])).is_ok());
        assert_eq!(with(json!(["1-8193"])).unwrap_err().reason, "8193 ports are too many");
        let twice = with(json!([5, "4-6"])).unwrap_err();
        assert_eq!(
            (twice.reason.as_str(), twice.pointer.as_str()),
            ("two listeners have the address 0.0.0.0:5", "/apisix/stream_proxy/tcp")
        );
    }
}
