//! Looking up by `/etc/hosts` and by name servers.
//!
//! IPv4 addresses go first: a name's IPv6 addresses count only if it has no
//! others (APISIX's order), so that a server that listens on one of them alone
//! is not asked on the other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};

use super::{Found, LookUp, Looking};

const HOSTS: &str = "/etc/hosts";
/// How soon a name of `/etc/hosts` is looked at again.
const HOSTS_TTL: Duration = Duration::from_secs(10);

/// The machine's own knowledge of names.
pub struct System {
    /// Or why there are no name servers.
    servers: Result<TokioResolver, String>,
    ipv6: bool,
    hosts: Arc<Mutex<HostsFile>>,
}

/// `/etc/hosts` as it was when it last changed.
#[derive(Default)]
struct HostsFile {
    modified: Option<SystemTime>,
    hosts: Hosts,
}

impl System {
    /// With the boot file's name servers, else the system's.
    pub fn new(settings: &model::boot::Resolver) -> System {
        let builder = if settings.servers.is_empty() {
            TokioResolver::builder_tokio().map_err(|error| format!("/etc/resolv.conf: {error}"))
        } else {
            let servers = settings.servers.iter().map(|addr| {
                let mut server = NameServerConfig::udp_and_tcp(addr.ip());
                server.connections.iter_mut().for_each(|connection: &mut ConnectionConfig| {
                    connection.port = addr.port();
                });
                server
            });
            let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
            Ok(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()))
        };
        let servers = builder.and_then(|mut builder| {
            let options = builder.options_mut();
            options.timeout = settings.timeout.max(Duration::from_millis(1));
            options.ip_strategy = match settings.ipv6 {
                true => LookupIpStrategy::Ipv4thenIpv6,
                false => LookupIpStrategy::Ipv4Only,
            };
            options.use_hosts_file = ResolveHosts::Never;
            // Names are asked for again when their records' time is over, so nothing needs keeping.
            options.cache_size = 0;
            builder.build().map_err(|error| error.to_string())
        });
        System { servers, ipv6: settings.ipv6, hosts: Arc::default() }
    }

    /// What `/etc/hosts` says, and for `localhost` what everybody knows (RFC 6761 section 6.3).
    fn local(&self, host: &str) -> Option<Vec<IpAddr>> {
        let name = Name::from_utf8(host).ok()?;
        let mut file = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        file.refresh();
        let of = |kind| {
            let found = file.hosts.lookup_static_host(&Query::query(name.clone(), kind))?;
            let addresses: Vec<IpAddr> =
                found.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
            (!addresses.is_empty()).then_some(addresses)
        };
        let is_localhost = host == "localhost" || host.ends_with(".localhost");
        of(RecordType::A)
            .or_else(|| is_localhost.then(|| vec![Ipv4Addr::LOCALHOST.into()]))
            .or_else(|| if self.ipv6 { of(RecordType::AAAA) } else { None })
    }
}

impl LookUp for System {
    fn look_up(&self, host: &str) -> Looking {
        if let Some(addresses) = self.local(host) {
            return Box::pin(async { Ok(Found { addresses, ttl: HOSTS_TTL }) });
        }
        let servers = self.servers.clone();
        let host = host.to_owned();
        Box::pin(async move {
            let found = servers?.lookup_ip(host.as_str()).await.map_err(|error| why(&error))?;
            let addresses: Vec<IpAddr> = found.iter().collect();
            if addresses.is_empty() {
                return Err("it has no addresses".to_owned());
            }
            Ok(Found { addresses, ttl: found.valid_until().saturating_duration_since(Instant::now()) })
        })
    }
}

/// Why, for people: what the library says of an absent name is its own question printed for
/// programmers.
fn why(error: &NetError) -> String {
    if error.is_nx_domain() {
        "there is no such name".to_owned()
    } else if error.is_no_records_found() {
        "it has no addresses".to_owned()
    } else {
        error.to_string()
    }
}

impl HostsFile {
    fn refresh(&mut self) {
        let modified = std::fs::metadata(HOSTS).and_then(|meta| meta.modified()).ok();
        if modified.is_some() && modified == self.modified {
            return;
        }
        // A file that is being rewritten or is not there: what was known still counts.
        if let Ok(hosts) = Hosts::from_system() {
            *self = HostsFile { modified, hosts };
        }
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("System").field("ipv6", &self.ipv6).finish_non_exhaustive()
    }
}
