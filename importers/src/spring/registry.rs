//! The registry that `lb://` names are looked up in.

use serde_json::{Map, Value, json};

use super::report::Report;
use super::settings::{Item, Settings};
use super::upstream;
use crate::finding::Severity;

/// A registry, or lists of servers in the file itself.
pub struct Registry {
    kind: Kind,
    /// Reported once.
    is_reported: std::cell::Cell<bool>,
}

enum Kind {
    Eureka,
    Nacos {
        namespace: Option<String>,
        group: Option<String>,
    },
    Consul,
    /// Names of services are host names.
    Names,
    /// Zookeeper, or a registry of another kind.
    Unsupported(&'static str),
    /// The file names none.
    Unknown,
}

impl Registry {
    /// Finds the registry of an application and adds its settings to the report.
    pub fn find(settings: &Settings<'_>, report: &mut Report) -> Registry {
        let kind = eureka(settings, report)
            .or_else(|| nacos(settings, report))
            .or_else(|| consul(settings, report))
            .or_else(|| {
                let kubernetes = settings.get("spring.cloud.kubernetes")?;
                kubernetes.whole();
                Some(Kind::Names)
            })
            .or_else(|| {
                settings.get("spring.cloud.zookeeper")?.whole();
                Some(Kind::Unsupported("Zookeeper"))
            });
        Registry { kind: kind.unwrap_or(Kind::Unknown), is_reported: false.into() }
    }

    /// The parts of an upstream for a service. `None` if there is no registry to look it up in.
    pub fn upstream(
        &self,
        service: &str,
        settings: &Settings<'_>,
        report: &mut Report,
    ) -> Map<String, Value> {
        if let Some(nodes) = listed(service, settings, report) {
            return nodes;
        }
        let discovered = |kind: &str, name: &str| {
            let mut map = Map::new();
            map.insert("service_name".to_owned(), json!(name));
            map.insert("discovery_type".to_owned(), json!(kind));
            map
        };
        match &self.kind {
            // Eureka keeps the names of applications in capitals.
            Kind::Eureka => discovered("eureka", &service.to_ascii_uppercase()),
            Kind::Consul => discovered("consul", service),
            Kind::Nacos { namespace, group } => {
                let mut map = discovered("nacos", service);
                let mut args = Map::new();
                args.extend(namespace.clone().map(|id| ("namespace_id".to_owned(), json!(id))));
                args.extend(group.clone().map(|name| ("group_name".to_owned(), json!(name))));
                if !args.is_empty() {
                    map.insert("discovery_args".to_owned(), args.into());
                }
                map
            }
            Kind::Names => {
                self.once(report, "lb://", "names of services are resolved by DNS, at port 80", None);
                upstream::nodes(service, 80)
            }
            Kind::Unsupported(name) => {
                let effect = format!("services of {name} are not looked up: their routes answer 503");
                self.once(report, "lb://", &effect, Some("give these routes the addresses of their servers"));
                upstream::no_nodes()
            }
            Kind::Unknown => {
                let effect = "the file names no registry: services are looked up in Eureka at its default address, \
                              http://localhost:8761/eureka/";
                let hint = "add the settings of the registry to the file";
                self.once(report, "lb://", effect, Some(hint));
                let value = json!({"host": ["http://localhost:8761"], "prefix": "/eureka/"});
                let place = settings.root().place();
                report.setting("discovery.eureka", value, place);
                discovered("eureka", &service.to_ascii_uppercase())
            }
        }
    }

    /// Whether the file configures a registry.
    pub fn is_configured(&self) -> bool {
        !matches!(self.kind, Kind::Unknown)
    }

    /// Whether services have names in capitals in the registry.
    pub fn has_capitals(&self) -> bool {
        matches!(self.kind, Kind::Eureka | Kind::Unknown)
    }

    fn once(&self, report: &mut Report, construct: &str, effect: &str, hint: Option<&str>) {
        if self.is_reported.replace(true) {
            return;
        }
        let place = report.place();
        let route = report.route.take();
        match hint {
            Some(hint) => report.hint(Severity::Behaviour, place, construct, effect, hint),
            None => report.find(Severity::Behaviour, place, construct, effect),
        }
        report.route = route;
    }
}

/// The servers of a service that the file itself lists.
fn listed(service: &str, settings: &Settings<'_>, report: &mut Report) -> Option<Map<String, Value>> {
    let ribbon = settings.root().get(service).and_then(|item| item.get("ribbon.listOfServers"));
    if let Some(servers) = ribbon {
        let mut list = Vec::new();
        for server in servers.texts() {
            let url = if server.contains("://") { server } else { format!("http://{server}") };
            list.push(upstream::Address::parse(&url)?);
        }
        return Some(of_one_scheme(list, &servers, report));
    }
    let all = settings.get("spring.cloud.discovery.client.simple.instances")?.members();
    let (_, instances) = all.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(service))?;
    let mut list = Vec::new();
    for instance in instances.items() {
        let text = |name: &str| instance.get(name).and_then(|item| item.some());
        let url = text("uri").or_else(|| {
            let scheme = if text("secure").as_deref() == Some("true") { "https" } else { "http" };
            Some(format!("{scheme}://{}:{}", text("host")?, text("port")?))
        })?;
        list.push(upstream::Address::parse(&url)?);
        instance.whole();
    }
    Some(of_one_scheme(list, &instances, report))
}

/// An upstream of the servers that speak TLS, or do not, like the first.
fn of_one_scheme(
    mut servers: Vec<upstream::Address>,
    place: &Item<'_>,
    report: &mut Report,
) -> Map<String, Value> {
    let secure = servers.first().is_some_and(upstream::Address::is_secure);
    if servers.iter().any(|server| server.is_secure() != secure) {
        let (kept, other) = if secure { ("https", "http") } else { ("http", "https") };
        let effect = format!(
            "the servers of an upstream share a scheme: those of `{other}` are left out, and requests go to those of `{kept}`"
        );
        report.find(Severity::Behaviour, place.place(), place.path(), effect);
        servers.retain(|server| server.is_secure() == secure);
    }
    upstream::of_addresses(&servers)
}

fn is_off(item: Option<Item<'_>>) -> bool {
    item.and_then(|item| item.bool()) == Some(false)
}

fn eureka(settings: &Settings<'_>, report: &mut Report) -> Option<Kind> {
    let client = settings.get("eureka.client")?;
    if is_off(client.get("enabled")) || is_off(client.get("fetch-registry")) {
        return None;
    }
    let zones = client.get("service-url");
    let zone = zones.as_ref().and_then(|zones| zones.get("default-zone"));
    let zone = zone.or_else(|| zones.as_ref()?.members().into_iter().next().map(|(_, item)| item));
    let urls = zone.as_ref().map(|zone| zone.texts()).unwrap_or_default();
    let urls = if urls.is_empty() { vec!["http://localhost:8761/eureka/".to_owned()] } else { urls };
    let place = zone.as_ref().unwrap_or(&client).place();
    // One path for all servers; otherwise each has its own.
    let split = |url: &String| {
        let start = url.find("://").map_or(0, |at| at + 3);
        let end = url[start..].find('/').map_or(url.len(), |at| start + at);
        (url[..end].to_owned(), format!("/{}/", url[end..].trim_matches('/')))
    };
    let parts: Vec<(String, String)> = urls.iter().map(split).collect();
    let prefix = parts[0].1.clone();
    let value = match parts.iter().all(|(_, path)| *path == prefix) {
        true => {
            let hosts: Vec<&String> = parts.iter().map(|(host, _)| host).collect();
            json!({"host": hosts, "prefix": prefix})
        }
        false => json!({"host": urls}),
    };
    let mut value = value;
    if let Some(seconds) = client.get("registry-fetch-interval-seconds").and_then(|item| item.u64()) {
        value["fetch_interval"] = json!(seconds.max(1));
    }
    report.setting("discovery.eureka", value, place);
    Some(Kind::Eureka)
}

fn nacos(settings: &Settings<'_>, report: &mut Report) -> Option<Kind> {
    let nacos = settings.get("spring.cloud.nacos")?;
    let discovery = nacos.get("discovery");
    if is_off(discovery.as_ref().and_then(|item| item.get("enabled"))) {
        return None;
    }
    let get = |name: &str| discovery.as_ref().and_then(|item| item.get(name)).or_else(|| nacos.get(name));
    let address = get("server-addr");
    if discovery.is_none() && address.is_none() {
        return None;
    }
    let text = |name: &str| get(name).and_then(|item| item.some());
    let user = text("username").zip(text("password"));
    let servers = address.as_ref().map(|item| item.texts()).unwrap_or_default();
    let servers = if servers.is_empty() { vec!["localhost:8848".to_owned()] } else { servers };
    let host = |server: &String| {
        let (scheme, rest) = server.split_once("://").unwrap_or(("http", server));
        let authority = rest.split('/').next().unwrap_or(rest);
        match &user {
            Some((name, password)) => format!("{scheme}://{name}:{password}@{authority}"),
            None => format!("{scheme}://{authority}"),
        }
    };
    let mut value = json!({"host": servers.iter().map(host).collect::<Vec<_>>()});
    if let Some((access, secret)) = text("access-key").zip(text("secret-key")) {
        value["access_key"] = json!(access);
        value["secret_key"] = json!(secret);
    }
    let place = address.as_ref().or(discovery.as_ref()).unwrap_or(&nacos).place();
    report.setting("discovery.nacos", value, place);
    Some(Kind::Nacos { namespace: text("namespace"), group: text("group") })
}

fn consul(settings: &Settings<'_>, report: &mut Report) -> Option<Kind> {
    let consul = settings.get("spring.cloud.consul")?;
    if is_off(consul.get("enabled")) || is_off(consul.get("discovery.enabled")) {
        return None;
    }
    let text = |name: &str| consul.get(name).and_then(|item| item.some());
    let host = text("host").unwrap_or_else(|| "localhost".to_owned());
    let port = consul.get("port").and_then(|item| item.u64()).unwrap_or(8500);
    let scheme = text("scheme").unwrap_or_else(|| "http".to_owned());
    let mut value = json!({"servers": [format!("{scheme}://{host}:{port}")]});
    if let Some(token) = text("discovery.acl-token").or_else(|| text("token")) {
        value["token"] = json!(token);
    }
    report.setting("discovery.consul", value, consul.get("host").unwrap_or(consul).place());
    Some(Kind::Consul)
}
