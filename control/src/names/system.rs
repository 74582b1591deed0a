//! Looking up by `/etc/hosts` and by name servers.
//!
//! A name's addresses of both families are found. Which of them is used is for others to say: IPv4 goes first,
//! as in APISIX.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{Either, select};
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};

use super::{LookUp, Looking, ResolvedName};

const HOSTS: &str = "/etc/hosts";
/// How much longer addresses of IPv6 are waited for where there are some of IPv4: some name servers never say
/// that there are none.
const SIX: Duration = Duration::from_millis(500);
/// How soon a name of `/etc/hosts` is looked at again.
const HOSTS_TTL: Duration = Duration::from_secs(10);

/// The machine's own knowledge of names.
pub struct System {
    /// Asks for addresses of IPv4; or why there are no name servers.
    four: Result<TokioResolver, String>,
    /// Asks for those of IPv6.
    six: Option<TokioResolver>,
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
        System::with(settings, system_conf::read_system_conf().map_err(|error| error.to_string()))
    }

    /// With what the system's `resolv.conf` says.
    fn with(
        settings: &model::boot::Resolver,
        system: Result<(ResolverConfig, ResolverOpts), String>,
    ) -> System {
        let four = build(settings, &system, LookupIpStrategy::Ipv4Only);
        let six = settings.ipv6.then(|| build(settings, &system, LookupIpStrategy::Ipv6Only).ok()).flatten();
        System { four, six, hosts: Arc::default() }
    }

    /// Returns the addresses from `/etc/hosts`, and loopback for `localhost` (RFC 6761 section 6.3).
    fn local(&self, host: &str) -> Option<Vec<IpAddr>> {
        let name = name(host)?;
        let mut file = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        file.refresh();
        let of = |kind| {
            let found = file.hosts.lookup_static_host(&Query::query(name.clone(), kind))?;
            let addresses: Vec<IpAddr> =
                found.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
            (!addresses.is_empty()).then_some(addresses)
        };
        let is_localhost = host == "localhost" || host.ends_with(".localhost");
        let four = of(RecordType::A).or_else(|| is_localhost.then(|| vec![Ipv4Addr::LOCALHOST.into()]));
        let six = if self.six.is_some() { of(RecordType::AAAA) } else { None };
        let all: Vec<IpAddr> = four.into_iter().chain(six).flatten().collect();
        (!all.is_empty()).then_some(all)
    }
}

/// Asks the boot file's name servers, else the system's. Search domains are the system's in any case.
fn build(
    settings: &model::boot::Resolver,
    system: &Result<(ResolverConfig, ResolverOpts), String>,
    strategy: LookupIpStrategy,
) -> Result<TokioResolver, String> {
    let (config, ndots) = match (system, settings.servers.is_empty()) {
        (Ok((config, options)), _) => (config.clone(), Some(options.ndots)),
        (Err(error), true) => return Err(format!("/etc/resolv.conf: {error}")),
        (Err(_), false) => (ResolverConfig::from_parts(None, Vec::new(), Vec::new()), None),
    };
    let own = settings.servers.iter().map(|addr| {
        let mut server = NameServerConfig::udp_and_tcp(addr.ip());
        server.connections.iter_mut().for_each(|connection: &mut ConnectionConfig| {
            connection.port = addr.port();
        });
        server
    });
    let servers: Vec<NameServerConfig> =
        if settings.servers.is_empty() { config.name_servers().to_vec() } else { own.collect() };
    let (domain, search) = match settings.search {
        true => (config.domain().cloned(), config.search().to_vec()),
        false => (None, Vec::new()),
    };
    let config = ResolverConfig::from_parts(domain, search, servers);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = builder.options_mut();
    if let (true, Ok((_, system))) = (settings.servers.is_empty(), system) {
        *options = system.clone();
    }
    options.ndots = ndots.unwrap_or(options.ndots);
    options.timeout = settings.timeout.max(Duration::from_millis(1));
    options.ip_strategy = strategy;
    options.use_hosts_file = ResolveHosts::Never;
    // Names are asked for again when their records' time is over, so nothing needs keeping.
    options.cache_size = 0;
    builder.build().map_err(|error| error.to_string())
}

impl LookUp for System {
    fn look_up(&self, host: &str) -> Looking {
        if let Some(addresses) = self.local(host) {
            return Box::pin(async { Ok(ResolvedName { addresses, ttl: HOSTS_TTL }) });
        }
        let Some(name) = name(host) else {
            let fault = model::upstream::fault_of_host(host);
            let error = fault.map_or_else(|| "it is no host name".to_owned(), |invalid| invalid.reason);
            return Box::pin(async { Err(error) });
        };
        let (four, six) = (self.four.clone(), self.six.clone());
        Box::pin(async move {
            let four = four?;
            let asking_four = pin!(four.lookup_ip(name.clone()));
            let (four, six) = match &six {
                None => (asking_four.await, None),
                Some(six) => match select(asking_four, pin!(six.lookup_ip(name))).await {
                    Either::Left((Ok(four), six)) => (Ok(four), tokio::time::timeout(SIX, six).await.ok()),
                    Either::Left((four, six)) => (four, Some(six.await)),
                    Either::Right((six, four)) => (four.await, Some(six)),
                },
            };
            let found: Vec<_> = [four.as_ref().ok(), six.as_ref().and_then(|six| six.as_ref().ok())]
                .into_iter()
                .flatten()
                .collect();
            let addresses: Vec<IpAddr> = found.iter().flat_map(|found| found.iter()).collect();
            let until = found.iter().map(|found| found.valid_until()).min();
            match (until, four) {
                (Some(until), _) if !addresses.is_empty() => {
                    Ok(ResolvedName { addresses, ttl: until.saturating_duration_since(Instant::now()) })
                }
                (_, Err(error)) => Err(why(&error)),
                _ => Err("it has no addresses".to_owned()),
            }
        })
    }
}

/// A host as it is asked for, also one with underscores; `None` if it cannot be.
fn name(host: &str) -> Option<Name> {
    Name::from_str_relaxed(host).ok()
}

/// Why, for people: what the library says of an absent name is its own question printed for
/// programmers.
fn why(error: &NetError) -> String {
    if error.is_nx_domain() {
        "there is no such name".to_owned()
    } else if error.is_no_records_found() {
        "it has no addresses".to_owned()
    } else {
        match error {
            NetError::NoConnections => {
                "no name server can be reached (apisix.dns_resolver, else /etc/resolv.conf)".to_owned()
            }
            NetError::Timeout => "no name server answered within apisix.resolver_timeout".to_owned(),
            other => other.to_string(),
        }
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
        f.debug_struct("System").field("ipv6", &self.six.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::UdpSocket;

    use super::*;

    /// A name server that knows `both.corp.test` by both families, and says nothing of IPv6 addresses of
    /// `four.corp.test` (RFC 1035 section 4).
    async fn name_server() -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut query).await {
                let query = &query[..len];
                let end = 12 + query[12..].iter().position(|&byte| byte == 0).unwrap() + 1;
                let name = query[12..end].to_ascii_lowercase();
                let data: &[u8] = match (&name[..], query[end + 1]) {
                    (b"\x04both\x04corp\x04test\0", 1) => &[10, 0, 0, 1],
                    (b"\x04both\x04corp\x04test\0", 28) => &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5],
                    (b"\x04four\x04corp\x04test\0", 1) => &[10, 0, 0, 4],
                    (b"\x04four\x04corp\x04test\0", 28) => continue,
                    (b"\x06four_a\x04corp\x04test\0", 1) => &[10, 0, 0, 6],
                    _ => &[],
                };
                let code = if data.is_empty() { 3 } else { 0 };
                let mut out =
                    vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, u8::from(code == 0), 0, 0, 0, 0];
                out.extend(&query[12..end + 4]);
                if code == 0 {
                    out.extend([0xc0, 12, 0, query[end + 1], 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
                    out.extend(data);
                }
                let _ = socket.send_to(&out, from).await;
            }
        });
        addr
    }

    async fn found(host: &str, search: bool, ipv6: bool) -> Result<Vec<String>, String> {
        let settings = model::boot::Resolver {
            servers: vec![name_server().await],
            valid: None,
            timeout: Duration::from_secs(5),
            search,
            ipv6,
        };
        let text = "nameserver 127.0.0.9\nsearch other.test corp.test\n";
        let system = system_conf::parse_resolv_conf(text).map_err(|error| error.to_string());
        let found = System::with(&settings, system).look_up(host).await?;
        Ok(found.addresses.iter().map(IpAddr::to_string).collect())
    }

    #[tokio::test]
    async fn names_are_looked_for_below_search_domains_with_servers_of_ones_own_too() {
        assert_eq!(found("both", true, true).await.unwrap(), ["10.0.0.1", "::5"]);
        assert_eq!(found("both.corp.test", false, true).await.unwrap(), ["10.0.0.1", "::5"]);
        assert_eq!(found("both", true, false).await.unwrap(), ["10.0.0.1"]);
        assert!(found("both", false, true).await.is_err());
        assert!(found("none", true, true).await.is_err());
    }

    #[tokio::test]
    async fn names_with_underscores_are_asked_for_and_what_is_no_name_is_said_to_be_none() {
        assert_eq!(found("four_a.corp.test", true, false).await.unwrap(), ["10.0.0.6"]);
        assert_eq!(
            found("http://a.test:80", true, true).await.unwrap_err(),
            "`http://a.test:80` is a URL, not a host"
        );
    }

    #[test]
    fn names_in_any_alphabet_are_asked_for_in_ascii() {
        let asked = |host: &str| name(host).map(|name| name.to_ascii());
        assert_eq!(asked("Bücher.example").as_deref(), Some("xn--bcher-kva.example"));
        assert_eq!(asked("例え.テスト").as_deref(), Some("xn--r8jz45g.xn--zckzah"));
        assert_eq!(asked("xn--bcher-kva.example").as_deref(), Some("xn--bcher-kva.example"));
    }

    #[tokio::test]
    async fn addresses_of_ipv6_are_not_waited_for_for_long() {
        assert_eq!(found("four.corp.test", true, true).await.unwrap(), ["10.0.0.4"]);
    }
}
