//! DNS as a registry: SRV, A and AAAA records of a service's name.
//!
//! SRV records bring ports, weights and priorities (a lower one goes first, RFC 2782); names in them are
//! looked up here, so that a record and its address hold equally long.
//!
//! Each service is looked up by a task of its own: the zones have different owners, and one whose servers are slow
//! must not delay the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use control::discovery::{Asking, Discovery, MOST_NODES, Service, ServiceNodes, dump};
use futures_util::{StreamExt, stream};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{RData, RecordType};
use model::Node;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// However short or long a record says it lives.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);
/// How soon a service that has no answer is asked for again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long the answers that are there wait for those that are not.
const PATIENCE: Duration = Duration::from_secs(2);
/// How soon to look again for answers that were not waited for.
const LOOK: Duration = Duration::from_secs(5);
/// How long all questions for one service may take.
const LONGEST_LOOKUP: Duration = Duration::from_secs(30);
/// Services that are looked up at the same time.
const SERVICES_AT_ONCE: usize = 64;
/// Different targets of a service's SRV records that are looked up, and how many at the same time.
const MOST_TARGETS: usize = 512;

/// The largest factor of weights, where targets have several addresses. It can be divided by 1 to 6.
const MOST_SCALE: u64 = 60;
const TARGETS_AT_ONCE: usize = 8;

pub struct Dns {
    config: Value,
    lookup: Arc<Lookup>,
    lookups: tokio::sync::Mutex<Lookups>,
}

/// How services are looked up.
struct Lookup {
    resolver: TokioResolver,
    order: Vec<RecordType>,
    /// Sorts of records that answered last, by name: they are asked for first.
    last: Option<Mutex<BTreeMap<String, RecordType>>>,
    room: Semaphore,
}

/// Lookups under way. They go on between two questions.
#[derive(Default)]
struct Lookups {
    tasks: JoinSet<(String, NodesFor)>,
    /// The names of their services.
    names: BTreeSet<String>,
    /// Services whose last lookup failed, which is logged already.
    failing: BTreeSet<String>,
}

/// Nodes and how long they hold, or why there are none.
type NodesFor = Result<(Vec<Node>, Duration), String>;

#[derive(Debug, Deserialize)]
struct Settings {
    #[serde(default)]
    servers: Vec<String>,
    resolv_conf: Option<String>,
    order: Vec<String>,
}

impl std::fmt::Debug for Dns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dns").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Dns {
    pub fn new(config: &Value) -> Result<Dns, String> {
        let settings: Settings = crate::settings("dns", config)?;
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
        let order = settings.order.iter().filter_map(|word| match word.as_str() {
            "SRV" => Some(RecordType::SRV),
            "A" => Some(RecordType::A),
            "AAAA" => Some(RecordType::AAAA),
            // Aliases are followed in any case.
            _ => None,
        });
        let lookup = Lookup {
            order: order.collect(),
            last: settings.order.iter().any(|word| word == "last").then(Mutex::default),
            resolver: builder.build().map_err(|error| error.to_string())?,
            room: Semaphore::new(SERVICES_AT_ONCE),
        };
        Ok(Dns { config: config.clone(), lookup: Arc::new(lookup), lookups: Default::default() })
    }
}

impl Lookups {
    /// Begins what is not under way.
    fn begin(&mut self, lookup: &Arc<Lookup>, wanted: &BTreeSet<Service>) {
        self.failing.retain(|name| wanted.iter().any(|service| service.service_name == *name));
        for service in wanted {
            let name = service.service_name.clone();
            if !self.names.insert(name.clone()) {
                continue;
            }
            let lookup = lookup.clone();
            self.tasks.spawn(async move {
                // The semaphore is never closed.
                let _room = lookup.room.acquire().await;
                let answer = tokio::time::timeout(LONGEST_LOOKUP, lookup.nodes(&name)).await;
                let late = |_| Err(format!("{name}: no answer within {} s", LONGEST_LOOKUP.as_secs()));
                let answer = answer.unwrap_or_else(late);
                (name, answer)
            });
        }
    }

    /// The next answer; none if nothing is under way.
    async fn next(&mut self) -> Option<(String, NodesFor)> {
        match self.tasks.join_next().await? {
            Ok((name, answer)) => {
                self.names.remove(&name);
                Some((name, answer))
            }
            // The service of the task is not known; all are looked up again.
            Err(error) => {
                self.tasks.abort_all();
                self.tasks.detach_all();
                self.names.clear();
                Some((String::new(), Err(format!("a lookup failed: {error}"))))
            }
        }
    }
}

impl Lookup {
    /// The nodes of a name, and how long that holds.
    async fn nodes(&self, name: &str) -> NodesFor {
        let (host, port) = match name.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| format!("{name}: no such port"))?)),
            None => (name, None),
        };
        let before = self
            .last
            .as_ref()
            .and_then(|last| last.lock().unwrap_or_else(PoisonError::into_inner).get(host).copied());
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
                        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
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
        let records: Vec<_> = answer
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                RData::SRV(srv) => Some((srv, srv.target.to_utf8())),
                _ => None,
            })
            .collect();
        let mut targets = BTreeSet::new();
        for (_, target) in &records {
            if targets.len() < MOST_TARGETS {
                targets.insert(target.clone());
            }
        }
        let looked_up = stream::iter(targets).map(|target| async move {
            let mut found = self.addresses(&target, RecordType::A).await;
            if found.is_err() {
                found = self.addresses(&target, RecordType::AAAA).await;
            }
            (target, found)
        });
        let looked_up: Vec<_> = looked_up.buffer_unordered(TARGETS_AT_ONCE).collect().await;
        let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for (target, found) in looked_up {
            let Ok((found, its_ttl)) = found else { continue };
            ttl = ttl.min(its_ttl);
            addresses.insert(target, found);
        }
        Ok((paired(&records, &addresses, port), ttl))
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
            let mut found = ServiceNodes { pause: LONGEST, ..ServiceNodes::default() };
            let mut lookups = self.lookups.lock().await;
            lookups.begin(&self.lookup, wanted);
            let mut failed = BTreeMap::new();
            let patience = tokio::time::sleep(PATIENCE);
            tokio::pin!(patience);
            loop {
                let heard = !failed.is_empty() || !found.services.is_empty();
                let (name, answer) = tokio::select! {
                    next = lookups.next() => match next {
                        Some(next) => next,
                        None => break,
                    },
                    () = &mut patience, if heard => break,
                };
                match answer {
                    Ok((nodes, ttl)) => {
                        found.pause = found.pause.min(ttl).max(SHORTEST);
                        found.services.insert(name, nodes);
                    }
                    Err(error) => _ = failed.insert(name, error),
                }
            }
            if !failed.is_empty() {
                found.pause = found.pause.min(AGAIN);
            }
            if !lookups.names.is_empty() {
                found.pause = found.pause.min(LOOK);
            }
            // Lookups of services that are no longer wanted were under way.
            found.services.retain(|name, _| wanted.iter().any(|service| service.service_name == *name));
            if found.services.is_empty()
                && let Some((_, error)) = failed.pop_last()
            {
                return Err(error);
            }
            lookups.failing.retain(|name| !found.services.contains_key(name));
            for (name, error) in failed {
                if lookups.failing.insert(name) {
                    tracing::error!("the registry dns has no answer: {error}; the last nodes stay in use");
                }
            }
            Ok(found)
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&self.config, services)
    }
}

/// The addresses of each record's target, with its port. They share the record's weight evenly, as in APISIX.
fn paired(
    records: &[(&SRV, String)],
    addresses: &BTreeMap<String, Vec<IpAddr>>,
    port: Option<u16>,
) -> Vec<Node> {
    let of = |target: &String| addresses.get(target).map_or(&[][..], Vec::as_slice);
    // Weights are whole numbers: all are multiplied by what each number of addresses divides.
    let scale = records.iter().fold(1, |scale, (_, target)| {
        let count = of(target).len().max(1) as u64;
        let common = scale / gcd(scale, count) * count;
        if common <= MOST_SCALE { common } else { scale }
    });
    let mut nodes = Vec::new();
    for (srv, target) in records {
        // A port of zero leaves it to the name, or to the scheme.
        let port = port.or(Some(srv.port).filter(|port| *port != 0)).unwrap_or(80);
        // Thousands of records, each with thousands of addresses, fit into two small answers.
        let room = MOST_NODES - nodes.len();
        // A server without a weight is chosen seldom, not never.
        let share = u64::from(srv.weight.max(1)) * scale / of(target).len().max(1) as u64;
        nodes.extend(of(target).iter().take(room).map(|ip| Node {
            host: ip.to_string(),
            port,
            weight: u32::try_from(share.max(1)).unwrap_or(u32::MAX),
            priority: -i64::from(srv.priority),
            metadata: None,
        }));
    }
    nodes
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
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
    use tokio::sync::watch;

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
        slow_name_server(records, watch::channel(true).1).await
    }

    /// One that says nothing of names that begin with `slow` until it may.
    async fn slow_name_server(records: Arc<Mutex<Records>>, may: watch::Receiver<bool>) -> SocketAddr {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
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
                let (socket, mut may) = (socket.clone(), may.clone());
                let slow = name[1..].starts_with(b"slow");
                tokio::spawn(async move {
                    if slow {
                        may.wait_for(|may| *may).await.unwrap();
                    }
                    socket.send_to(&out, from).await.unwrap();
                });
            }
        });
        addr
    }

    fn shown(found: &ServiceNodes, name: &str) -> Vec<String> {
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
            ("_even._tcp.srv.test.local", SRV, 60, srv(10, 60, 1980, "a.test.local")),
            ("_even._tcp.srv.test.local", SRV, 60, srv(20, 20, 1981, "two.test.local")),
            ("two.test.local", A, 60, vec![127, 0, 0, 2]),
            ("two.test.local", A, 60, vec![127, 0, 0, 3]),
            ("b.test.local", AAAA, 60, vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ];
        let records = Arc::new(Mutex::new(records));
        let addr = name_server(records.clone()).await;
        let dns = Dns::new(&json!({"servers": [addr.to_string()]})).unwrap();
        let sip = "_sip._tcp.srv.test.local";
        let found =
            ask(&dns, &["sd.test.local:1980", "six.test.local", sip, "gone.test.local"]).await.unwrap();
        assert_eq!(shown(&found, "sd.test.local:1980"), ["127.0.0.1:1980 1/0", "127.0.0.2:1980 1/0"]);
        assert_eq!(shown(&found, "six.test.local"), ["::1:80 1/0"]);
        assert_eq!(shown(&found, sip), ["127.0.0.1:1980 60/-1", "::1:80 1/-2"]);
        assert!(!found.services.contains_key("gone.test.local") && !found.complete, "the last ones stay");
        let even = "_even._tcp.srv.test.local";
        assert_eq!(
            shown(&ask(&dns, &[even]).await.unwrap(), even),
            ["127.0.0.1:1980 120/-10", "127.0.0.2:1981 20/-20", "127.0.0.3:1981 20/-20"],
            "two addresses share a weight"
        );
        let found = ask(&dns, &[sip]).await.unwrap();
        assert!(found.pause <= Duration::from_secs(7), "as long as the shortest record holds");
        // The sorts of records are tried in the configured order.
        records.lock().unwrap().push(("sd.test.local", SRV, 60, srv(1, 5, 99, "a.test.local")));
        let ordered = Dns::new(&json!({"servers": [addr.to_string()], "order": ["A", "SRV"]})).unwrap();
        assert_eq!(
            shown(&ask(&ordered, &["sd.test.local"]).await.unwrap(), "sd.test.local")[0],
            "127.0.0.1:80 1/0"
        );
        let first = Dns::new(&json!({"servers": [addr.to_string()]})).unwrap();
        assert_eq!(
            shown(&ask(&first, &["sd.test.local"]).await.unwrap(), "sd.test.local"),
            ["127.0.0.1:99 5/-1"]
        );
        // All gone: an error, so that what was known stays.
        records.lock().unwrap().clear();
        assert!(ask(&first, &["sd.test.local"]).await.is_err());
    }

    #[tokio::test]
    async fn a_service_whose_zone_is_slow_delays_no_other() {
        let records: Records = vec![
            ("slow.test.local", A, 60, vec![127, 0, 0, 9]),
            ("sd.test.local", A, 60, vec![127, 0, 0, 1]),
        ];
        let (answer, may) = watch::channel(false);
        let addr = slow_name_server(Arc::new(Mutex::new(records)), may).await;
        let dns = Dns::new(&json!({"servers": [addr.to_string()], "order": ["A"]})).unwrap();
        for _ in 0..2 {
            let found = ask(&dns, &["slow.test.local", "sd.test.local"]).await.unwrap();
            assert_eq!(shown(&found, "sd.test.local"), ["127.0.0.1:80 1/0"]);
            assert!(!found.services.contains_key("slow.test.local") && !found.complete);
            assert!(found.pause <= LOOK, "it is looked for soon again");
        }
        answer.send_replace(true);
        let found = ask(&dns, &["slow.test.local"]).await.unwrap();
        assert_eq!(shown(&found, "slow.test.local"), ["127.0.0.9:80 1/0"]);
        assert!(found.pause > LOOK, "as long as the record holds");
    }

    #[test]
    fn records_and_their_addresses_multiply_within_a_bound() {
        let record = SRV::new(1, 1, 80, hickory_resolver::proto::rr::Name::root());
        let records = vec![(&record, "t.".to_owned()); 3000];
        let ips: Vec<IpAddr> = (0..4000u32).map(|ip| IpAddr::from(ip.to_be_bytes())).collect();
        let addresses = BTreeMap::from([("t.".to_owned(), ips)]);
        assert_eq!(paired(&records[..2], &addresses, None).len(), 8000);
        assert_eq!(paired(&records, &addresses, None).len(), MOST_NODES);
    }

    #[test]
    fn settings_are_checked() {
        for wrong in [json!({}), json!({"servers": ["nonsense"]}), json!({"resolv_conf": "/no/such/file"})] {
            assert!(Dns::new(&wrong).is_err(), "{wrong}");
        }
    }
}
