//! DNS as a registry: SRV, A and AAAA records of a service's name.
//!
//! SRV records bring ports, weights and priorities (a lower one goes first, RFC 2782); names in them are
//! looked up here, so that a record and its address hold equally long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use control::discovery::{Asking, Discovery, Found, Service, dump};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};
use model::Node;
use serde::Deserialize;
use serde_json::Value;

/// However short or long a record says it lives.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);

pub struct Dns {
    config: Value,
    resolver: TokioResolver,
    order: Vec<RecordType>,
    /// Sorts of records that answered last, by name: they are asked for first.
    last: Option<Mutex<BTreeMap<String, RecordType>>>,
}

#[derive(Debug, Deserialize)]
struct Settings {
    #[serde(default)]
    servers: Vec<String>,
    resolv_conf: Option<String>,
    order: Option<Vec<String>>,
}

impl std::fmt::Debug for Dns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dns").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Dns {
    pub fn new(config: &Value) -> Result<Dns, String> {
        let settings: Settings = crate::settings(config)?;
        let mut builder = match (&settings.servers[..], &settings.resolv_conf) {
            ([], Some(path)) => {
                let text = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
                let (found, options) = hickory_resolver::system_conf::parse_resolv_conf(text)
                    .map_err(|error| format!("{path}: {error}"))?;
                let mut builder = TokioResolver::builder_with_config(found, TokioRuntimeProvider::default());
                *builder.options_mut() = options;
                builder
            }
            ([], None) => return Err("expected `servers` or `resolv_conf`".to_owned()),
            (servers, _) => {
                let servers = servers.iter().map(|text| server(text)).collect::<Result<_, _>>()?;
                let found = ResolverConfig::from_parts(None, Vec::new(), servers);
                TokioResolver::builder_with_config(found, TokioRuntimeProvider::default())
            }
        };
        let options = builder.options_mut();
        options.use_hosts_file = ResolveHosts::Never;
        // Asked again when the records' time is over, so nothing needs keeping.
        options.cache_size = 0;
        let words = settings.order.unwrap_or_else(|| ["last", "SRV", "A", "AAAA"].map(str::to_owned).into());
        let order = words.iter().filter_map(|word| match word.as_str() {
            "SRV" => Some(RecordType::SRV),
            "A" => Some(RecordType::A),
            "AAAA" => Some(RecordType::AAAA),
            // Aliases are followed in any case.
            _ => None,
        });
        Ok(Dns {
            config: config.clone(),
            order: order.collect(),
            last: words.iter().any(|word| word == "last").then(Mutex::default),
            resolver: builder.build().map_err(|error| error.to_string())?,
        })
    }

    /// The nodes of a name, and how long that holds.
    async fn nodes(&self, name: &str) -> Result<(Vec<Node>, Duration), String> {
        let (host, port) = match name.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| format!("{name}: no such port"))?)),
            None => (name, None),
        };
        let before = self.last.as_ref().and_then(|last| {
            last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(host).copied()
        });
        let order = before.into_iter().chain(self.order.iter().copied().filter(|kind| Some(*kind) != before));
        let mut why = "it has no records".to_owned();
        for kind in order {
            let found = match kind {
                RecordType::SRV => self.services(host, port).await,
                _ => self.addresses(host, kind).await.map(|(addresses, ttl)| {
                    let node = |ip: IpAddr| Node {
                        host: ip.to_string(),
                        port: port.unwrap_or(80),
                        weight: 1,
                        priority: 0,
                        metadata: None,
                    };
                    (addresses.into_iter().map(node).collect(), ttl)
                }),
            };
            match found {
                Ok((nodes, ttl)) if !nodes.is_empty() => {
                    if let Some(last) = &self.last {
                        let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        last.insert(host.to_owned(), kind);
                    }
                    return Ok((nodes, ttl));
                }
                Ok(_) => {}
                Err(error) => why = error,
            }
        }
        Err(format!("{host}: {why}"))
    }

    async fn services(&self, host: &str, port: Option<u16>) -> Result<(Vec<Node>, Duration), String> {
        let answer = self.resolver.srv_lookup(host).await.map_err(|error| error.to_string())?;
        let mut ttl = answer.valid_until().saturating_duration_since(Instant::now());
        let mut nodes = Vec::new();
        let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for record in answer.answers() {
            let RData::SRV(srv) = &record.data else { continue };
            let target = srv.target.to_utf8();
            if !addresses.contains_key(&target) {
                let mut found = self.addresses(&target, RecordType::A).await;
                if found.is_err() {
                    found = self.addresses(&target, RecordType::AAAA).await;
                }
                let (found, its_ttl) = found.unwrap_or((Vec::new(), ttl));
                ttl = ttl.min(its_ttl);
                addresses.insert(target.clone(), found);
            }
            // A port of zero leaves it to the name, or to the scheme.
            let port = port.or(Some(srv.port).filter(|port| *port != 0)).unwrap_or(80);
            nodes.extend(addresses[&target].iter().map(|ip| Node {
                host: ip.to_string(),
                port,
                // A server without a weight is chosen seldom, not never.
                weight: u32::from(srv.weight.max(1)),
                priority: -i64::from(srv.priority),
                metadata: None,
            }));
        }
        Ok((nodes, ttl))
    }

    async fn addresses(&self, host: &str, kind: RecordType) -> Result<(Vec<IpAddr>, Duration), String> {
        let answer = self.resolver.lookup(host, kind).await.map_err(|error| error.to_string())?;
        let ttl = answer.valid_until().saturating_duration_since(Instant::now());
        let mut addresses: Vec<IpAddr> =
            answer.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() { Err("it has no addresses".to_owned()) } else { Ok((addresses, ttl)) }
    }
}

impl Discovery for Dns {
    fn kind(&self) -> &'static str {
        "dns"
    }

    fn id(&self, service: &Service) -> String {
        service.service_name.clone()
    }

    fn ask<'a>(&'a self, wanted: &'a BTreeSet<Service>) -> Asking<'a> {
        Box::pin(async move {
            let mut found = Found { pause: LONGEST, ..Found::default() };
            let mut last = None;
            for service in wanted {
                match self.nodes(&service.service_name).await {
                    Ok((nodes, ttl)) => {
                        found.pause = found.pause.min(ttl).max(SHORTEST);
                        found.services.insert(service.service_name.clone(), nodes);
                    }
                    Err(error) => last = Some(error),
                }
            }
            match last {
                Some(error) if found.services.is_empty() => return Err(error),
                Some(_) => found.pause = found.pause.min(Duration::from_secs(10)),
                None => {}
            }
            Ok(found)
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&self.config, services)
    }
}

fn server(text: &str) -> Result<NameServerConfig, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let addr: Option<SocketAddr> =
        text.parse().ok().or_else(|| Some(SocketAddr::new(bare.parse().ok()?, 53)));
    let addr = addr.ok_or_else(|| format!("expected an address of a DNS server, got `{text}`"))?;
    let mut server = NameServerConfig::udp_and_tcp(addr.ip());
    server.connections.iter_mut().for_each(|connection: &mut ConnectionConfig| connection.port = addr.port());
    Ok(server)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio::net::UdpSocket;

    use super::*;
    use crate::testing::ask;

    const A: u16 = 1;
    const AAAA: u16 = 28;
    const SRV: u16 = 33;

    type Records = Vec<(&'static str, u16, u32, Vec<u8>)>;

    fn labels(name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend_from_slice(label.as_bytes());
        }
        out.push(0);
        out
    }

    fn srv(priority: u16, weight: u16, port: u16, target: &str) -> Vec<u8> {
        let numbers = [priority, weight, port].into_iter().flat_map(|number| number.to_be_bytes());
        numbers.chain(labels(target)).collect()
    }

    /// A name server that answers from a table (RFC 1035 section 4).
    async fn name_server(records: Arc<Mutex<Records>>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut query).await {
                let query = &query[..len];
                let end = 12 + query[12..].iter().position(|&byte| byte == 0).unwrap() + 1;
                let kind = u16::from_be_bytes([query[end], query[end + 1]]);
                let name = query[12..end].to_ascii_lowercase();
                let mut answers = Vec::new();
                let mut count: u16 = 0;
                for (host, of, ttl, data) in records.lock().unwrap().iter() {
                    if labels(host) == name && *of == kind {
                        count += 1;
                        answers.extend([0xc0, 12]);
                        answers.extend(of.to_be_bytes());
                        answers.extend(1u16.to_be_bytes());
                        answers.extend(ttl.to_be_bytes());
                        answers.extend((data.len() as u16).to_be_bytes());
                        answers.extend(data);
                    }
                }
                let code = if count == 0 { 3 } else { 0 };
                let mut out = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1];
                out.extend(count.to_be_bytes());
                out.extend([0, 0, 0, 0]);
                out.extend(&query[12..end + 4]);
                out.extend(answers);
                let _ = socket.send_to(&out, from).await;
            }
        });
        addr
    }

    fn told(found: &Found, name: &str) -> Vec<String> {
        let mut nodes: Vec<String> = found.services[name]
            .iter()
            .map(|node| format!("{}:{} {}/{}", node.host, node.port, node.weight, node.priority))
            .collect();
        nodes.sort();
        nodes
    }

    #[tokio::test]
    async fn records_are_nodes() {
        let records: Records = vec![
            ("sd.test.local", A, 30, vec![127, 0, 0, 1]),
            ("sd.test.local", A, 20, vec![127, 0, 0, 2]),
            ("six.test.local", AAAA, 60, vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            ("_sip._tcp.srv.test.local", SRV, 60, srv(1, 60, 1980, "a.test.local")),
            ("_sip._tcp.srv.test.local", SRV, 60, srv(2, 0, 0, "b.test.local")),
            ("_sip._tcp.srv.test.local", SRV, 60, srv(1, 1, 5, "gone.test.local")),
            ("a.test.local", A, 7, vec![127, 0, 0, 1]),
            ("b.test.local", AAAA, 60, vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        let records = Arc::new(Mutex::new(records));
        let addr = name_server(records.clone()).await;
        let dns = Dns::new(&json!({"servers": [addr.to_string()]})).unwrap();
        let sip = "_sip._tcp.srv.test.local";
        let found =
            ask(&dns, &["sd.test.local:1980", "six.test.local", sip, "gone.test.local"]).await.unwrap();
        assert_eq!(told(&found, "sd.test.local:1980"), ["127.0.0.1:1980 1/0", "127.0.0.2:1980 1/0"]);
        assert_eq!(told(&found, "six.test.local"), ["::1:80 1/0"]);
        assert_eq!(told(&found, sip), ["127.0.0.1:1980 60/-1", "::1:80 1/-2"]);
        assert!(!found.services.contains_key("gone.test.local") && !found.complete, "the last ones stay");
        let found = ask(&dns, &[sip]).await.unwrap();
        assert!(found.pause <= Duration::from_secs(7), "as long as the shortest record holds");
        // The order is what is asked for, whatever there is.
        records.lock().unwrap().push(("sd.test.local", SRV, 60, srv(1, 5, 99, "a.test.local")));
        let ordered = Dns::new(&json!({"servers": [addr.to_string()], "order": ["A", "SRV"]})).unwrap();
        assert_eq!(
            told(&ask(&ordered, &["sd.test.local"]).await.unwrap(), "sd.test.local")[0],
            "127.0.0.1:80 1/0"
        );
        let first = Dns::new(&json!({"servers": [addr.to_string()]})).unwrap();
        assert_eq!(
            told(&ask(&first, &["sd.test.local"]).await.unwrap(), "sd.test.local"),
            ["127.0.0.1:99 5/-1"]
        );
        // All gone: an error, so that what was known stays.
        records.lock().unwrap().clear();
        assert!(ask(&first, &["sd.test.local"]).await.is_err());
    }

    #[test]
    fn settings_are_checked() {
        for wrong in [json!({}), json!({"servers": ["nonsense"]}), json!({"resolv_conf": "/no/such/file"})] {
            assert!(Dns::new(&wrong).is_err(), "{wrong}");
        }
    }
}
