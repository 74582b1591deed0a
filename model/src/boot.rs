//! The boot file, `config.yaml`: what a process must know before it serves.
//!
//! APISIX 3.x's file, its shape and its defaults, with a few keys of ours. What
//! differs by default: the Admin API listens on 127.0.0.1 alone, the
//! configuration is kept in an embedded store, and a request's head must arrive
//! within ten seconds. Everything that may change while running is in resources.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::diagnostic::{Diagnostic, Source};
use crate::document::Lookup;
use crate::yaml::{self, Variables};

mod findings;
mod keys;
mod read;
mod shape;

use findings::Findings;

/// Everything the boot file says, defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Boot {
    /// `apisix.node_listen`.
    pub listen: Vec<Listen>,
    pub admin: Admin,
    /// `apisix.router.http`.
    pub router: Router,
    pub uri: UriOptions,
    pub proxy_cache: ProxyCache,
    /// The control API; `None` if `apisix.enable_control` is false.
    pub control: Option<SocketAddr>,
    /// The status API, off unless `apisix.status` is there.
    pub status: Option<SocketAddr>,
    /// `apisix.enable_server_tokens`: whether `Server` tells the version.
    pub server_tokens: bool,
    /// `apisix.show_upstream_status_in_response_header`: always, not only for 5xx.
    pub show_upstream_status: bool,
    pub resolver: Resolver,
    /// Peers whose `X-Forwarded-*` are believed; `None` if the key is absent.
    pub trusted_addresses: Option<Vec<IpNet>>,
    pub workers: Workers,
    pub event_method: EventMethod,
    /// Connections a worker may hold, those to upstreams included.
    pub worker_connections: u64,
    /// How long a graceful end waits for requests in flight.
    pub shutdown_timeout: Duration,
    pub log_level: LogLevel,
    pub http: Http,
    pub role: Role,
    pub provider: Provider,
    /// The HTTP plugins that may be used; `None` is all there are.
    pub plugins: Option<Vec<String>>,
    pub prometheus: Prometheus,
    /// `plugin_attr` by plugin, as written; that of prometheus is here too.
    pub plugin_attr: Map<String, Value>,
}

/// An address for traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    pub address: SocketAddr,
    /// The IPv6 twin of an address nobody wrote: it may fail where there is no
    /// IPv6, and takes no IPv4 connections.
    pub optional: bool,
}

/// The Admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// `apisix.enable_admin`; never on a data plane.
    pub enabled: bool,
    pub listen: SocketAddr,
    /// `apisix.enable_admin_on_node_listen` (ours): also on the ports for traffic.
    pub on_node_listen: bool,
    pub key_required: bool,
    /// A key that is empty must be made before use.
    pub keys: Vec<AdminKey>,
    /// Who may ask; nobody if empty.
    pub allow: Vec<IpNet>,
    pub cors: bool,
    pub version: AdminVersion,
}

/// A key of the Admin API. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKey {
    pub name: String,
    pub key: String,
    pub role: AdminRole,
}

/// What a key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRole {
    Admin,
    /// Reading alone.
    Viewer,
}

/// The envelopes the Admin API answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminVersion {
    V2,
    V3,
}

/// How routes are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Router {
    /// `radixtree_host_uri`.
    HostUri,
    /// `radixtree_uri`.
    Uri,
    /// `radixtree_uri_with_parameter`.
    UriWithParameter,
}

/// What is done to a path before it is matched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UriOptions {
    pub delete_tail_slash: bool,
    pub normalize_like_servlet: bool,
}

/// The zones of the plugin `proxy-cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyCache {
    /// For answers on disk that do not say how long they keep.
    pub ttl: Duration,
    pub zones: Vec<Zone>,
}

/// A cache zone: in memory alone, or with answers on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    pub name: String,
    /// Bytes: of answers, or of the index of those on disk.
    pub memory_size: u64,
    pub disk: Option<Disk>,
}

/// Where a cache zone keeps answers on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Bytes.
    pub size: u64,
    pub path: PathBuf,
    /// Letters of each level of folders.
    pub levels: Vec<u8>,
}

/// How names are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    /// `apisix.dns_resolver`; empty is the system's.
    pub servers: Vec<SocketAddr>,
    /// Instead of the records' own TTL.
    pub valid: Option<Duration>,
    pub timeout: Duration,
    pub ipv6: bool,
}

/// How many workers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// As many as the machine and its limits let run at once.
    Auto,
    Count(u16),
}

/// How workers wait for their sockets (`nginx_config.event.use`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventMethod {
    Epoll,
    IoUring,
    /// io_uring where the kernel allows it, else epoll.
    Auto,
}

/// nginx's levels of its error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warn,
    Error,
    Crit,
    Alert,
    Emerg,
}

/// `nginx_config.http`: limits of requests and connections.
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// How long an idle connection from a client is kept; zero keeps none.
    pub keepalive_timeout: Duration,
    /// For a whole request head.
    pub client_header_timeout: Duration,
    /// Between two reads of a body.
    pub client_body_timeout: Duration,
    /// Between two writes to a client.
    pub send_timeout: Duration,
    /// Bytes; `None` is no limit.
    pub client_max_body_size: Option<u64>,
    /// Bytes of a request's head.
    pub max_head_size: u64,
    /// Header fields of a request (ours).
    pub max_header_fields: u64,
    pub underscores_in_headers: bool,
    pub real_ip: RealIp,
    pub upstream: UpstreamKeepalive,
    /// Bytes by name, such as `plugin-limit-count`; those the file names.
    pub shared_dicts: IndexMap<String, u64>,
}

/// Whose word about the client's address is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealIp {
    pub header: String,
    pub recursive: bool,
    pub from: Vec<IpNet>,
}

/// Idle connections to upstreams that say nothing of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamKeepalive {
    pub size: u64,
    pub requests: u64,
    pub timeout: Duration,
}

/// `deployment.role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Serves traffic and the Admin API.
    Traditional,
    /// Serves traffic alone.
    DataPlane,
    /// Serves the Admin API alone.
    ControlPlane,
}

/// Where resources come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// A store of our own, in a folder.
    Embedded,
    /// `apisix.yaml`, watched.
    Yaml,
    /// `apisix.json`, watched.
    Json,
}

/// `plugin_attr.prometheus`.
#[derive(Debug, Clone, PartialEq)]
pub struct Prometheus {
    pub export_uri: String,
    pub metric_prefix: String,
    /// The metrics' own listener; `None` if `enable_export_server` is false.
    pub export: Option<SocketAddr>,
    /// Upper bounds of latencies, in milliseconds; `None` is APISIX's.
    pub default_buckets: Option<Vec<f64>>,
    /// Labels added to a metric (`http_status`, `http_latency`, `bandwidth`): name and variable.
    pub extra_labels: IndexMap<String, Vec<(String, String)>>,
    /// How long a metric's unused series are kept; absent is for ever.
    pub expire: IndexMap<String, Duration>,
}

impl Boot {
    /// Reads the text of `file`, a name used in diagnostics alone, and gives warnings with it.
    ///
    /// `lookup` finds variables of the environment: those the text names, and
    /// `APISIX_WORKER_PROCESSES`.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the file, and the warnings among it.
    pub fn parse(
        file: &str,
        text: &str,
        lookup: Lookup<'_>,
    ) -> Result<(Boot, Vec<Diagnostic>), Vec<Diagnostic>> {
        let source = Source { file, text };
        let document =
            yaml::parse(text, Variables::InValues(lookup)).map_err(|error| vec![source.syntax(error)])?;
        let mut findings = Findings::new(source, &document);
        findings.check();
        findings.finish(|| read::boot(&document.value, lookup))
    }
}

/// Every key a boot file may hold, names joined with dots, `*` being any name;
/// with it why it has no effect, for those that have none.
pub fn known_keys() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    keys::ROWS.iter().map(|row| (row.path, row.idle))
}

impl Default for Boot {
    /// What an empty file says.
    fn default() -> Boot {
        // A test reads an empty file, so this cannot fail.
        read::boot(&Value::Null, &|_| None).expect("an empty boot file is valid")
    }
}

impl std::fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = if self.key.is_empty() { "none" } else { "…" };
        f.debug_struct("AdminKey")
            .field("name", &self.name)
            .field("key", &key)
            .field("role", &self.role)
            .finish()
    }
}

/// Addresses of a port on all interfaces.
fn wildcard(port: u16) -> [SocketAddr; 2] {
    [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)]
        .map(|ip| SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Severity;

    fn lookup(name: &str) -> Option<String> {
        (name == "PORT").then(|| "9999".to_owned())
    }

    fn parse(text: &str) -> Boot {
        let (boot, warnings) = Boot::parse("config.yaml", text, &lookup).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        boot
    }

    fn refusals(text: &str) -> Vec<Diagnostic> {
        Boot::parse("config.yaml", text, &lookup).unwrap_err()
    }

    /// The only thing wrong with `text`, as line, column, pointer and message.
    fn refusal(text: &str) -> (u32, u32, String, String) {
        let [only] = &refusals(text)[..] else { panic!("one finding in {text}") };
        (only.line, only.column, only.pointer.clone(), only.message.clone())
    }

    #[test]
    fn an_empty_file_has_the_defaults() {
        let boot = parse("");
        assert_eq!(boot, Boot::default());
        assert_eq!(boot, parse("# nothing\n"));
        let listen: Vec<String> = boot.listen.iter().map(|listen| listen.address.to_string()).collect();
        assert_eq!(listen, ["0.0.0.0:9080", "[::]:9080"]);
        assert_eq!(boot.admin.listen.to_string(), "127.0.0.1:9180");
        assert_eq!(boot.admin.allow, ["127.0.0.0/24".parse::<IpNet>().unwrap()]);
        assert!(boot.admin.enabled && boot.admin.key_required && !boot.admin.on_node_listen);
        assert_eq!((boot.role, boot.provider), (Role::Traditional, Provider::Embedded));
        assert_eq!(boot.http.client_header_timeout, Duration::from_secs(10));
        assert_eq!(boot.http.max_head_size, 65_536);
        assert_eq!(boot.shutdown_timeout, Duration::from_secs(240));
        assert_eq!(boot.control.map(|at| at.port()), Some(9090));
        assert_eq!(boot.status, None);
        assert_eq!(boot.prometheus.export.map(|at| at.to_string()).as_deref(), Some("127.0.0.1:9091"));
        assert_eq!(boot.plugins, None);
        assert_eq!(boot.proxy_cache.zones.len(), 2);
    }

    #[test]
    fn node_listen_has_four_forms() {
        let ports = |text: &str| {
            let text = format!("apisix:\n  enable_ipv6: false\n  node_listen: {text}\n");
            parse(&text).listen.iter().map(|listen| listen.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ports("9081"), ["0.0.0.0:9081"]);
        assert_eq!(ports("[9081, 9082]"), ["0.0.0.0:9081", "0.0.0.0:9082"]);
        assert_eq!(ports("[{port: 9081}, {ip: 127.0.0.2, port: 9082}]"), ["0.0.0.0:9081", "127.0.0.2:9082"]);
        assert_eq!(ports("{ip: '[::1]'}"), ["[::1]:9080"]);
        assert_eq!(ports("'${{PORT}}'"), ["0.0.0.0:9999"]);
    }

    #[test]
    fn the_files_of_the_seeds_load() {
        let boot = parse(
            "apisix:\n  node_listen: 9080\n  enable_admin: true\n  enable_admin_on_node_listen: true\n\
             nginx_config:\n  worker_processes: 1\n\
             deployment:\n  admin:\n    admin_key_required: false\n    admin_key:\n      - name: admin\n        \
             key: edd1c9f034335f136f87ad84b625c8f1\n        role: admin\n      - {name: v, key: x, role: viewer}\n",
        );
        assert_eq!(boot.workers, Workers::Count(1));
        assert!(boot.admin.on_node_listen && !boot.admin.key_required);
        assert_eq!(boot.admin.keys[1].role, AdminRole::Viewer);
        assert!(!format!("{boot:?}").contains("edd1c9f"));

        let boot = parse("deployment:\n  role: data_plane\n  role_data_plane:\n    config_provider: yaml\n");
        assert_eq!((boot.role, boot.provider, boot.admin.enabled), (Role::DataPlane, Provider::Yaml, false));
    }

    #[test]
    fn every_part_is_read() {
        let boot = parse(
            "apisix:
  router: {http: radixtree_uri}
  delete_uri_tail_slash: true
  proxy_cache:
    cache_ttl: 1m
    zones:
      - {name: d, memory_size: 1m, disk_size: 2g, disk_path: /c, cache_levels: '1:2'}
  status: {port: 7086}
  dns_resolver: [1.1.1.1, '9.9.9.9:5353', '[::1]', '::2']
  dns_resolver_valid: 30
  trusted_addresses: [10.0.0.0/8]
nginx_config:
  error_log_level: info
  http:
    client_max_body_size: 10m
    large_client_header_buffers: 4 8k
    underscores_in_headers: 'off'
    real_ip_from: ['unix:', 10.1.0.0/16]
    upstream: {keepalive: 10, keepalive_timeout: 5s}
    lua_shared_dict: {plugin-limit-count: 20m}
plugins: [cors, limit-count]
plugin_attr:
  prometheus:
    export_addr: {port: 9092}
    default_buckets: [1, 5.5]
    metrics: {http_status: {expire: 60, extra_labels: [{addr: $upstream_addr}]}}
  redirect: {https_port: 8443}
",
        );
        assert_eq!(boot.router, Router::Uri);
        assert!(boot.uri.delete_tail_slash);
        let disk = boot.proxy_cache.zones[0].disk.as_ref().unwrap();
        assert_eq!((disk.size, disk.levels.as_slice()), (2 << 30, &[1, 2][..]));
        assert_eq!(boot.status.map(|at| at.to_string()).as_deref(), Some("127.0.0.1:7086"));
        let servers: Vec<String> = boot.resolver.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["1.1.1.1:53", "9.9.9.9:5353", "[::1]:53", "[::2]:53"]);
        assert_eq!(boot.resolver.valid, Some(Duration::from_secs(30)));
        assert_eq!(boot.trusted_addresses.map(|nets| nets.len()), Some(1));
        assert_eq!(boot.log_level, LogLevel::Info);
        assert_eq!(boot.http.client_max_body_size, Some(10 << 20));
        assert_eq!(boot.http.max_head_size, 32 << 10);
        assert!(!boot.http.underscores_in_headers);
        assert_eq!(boot.http.real_ip.from.len(), 1);
        assert_eq!(boot.http.upstream.size, 10);
        assert_eq!(boot.http.shared_dicts["plugin-limit-count"], 20 << 20);
        assert_eq!(boot.plugins.as_deref(), Some(&["cors".to_owned(), "limit-count".to_owned()][..]));
        assert_eq!(boot.prometheus.export.map(|at| at.port()), Some(9092));
        assert_eq!(
            boot.prometheus.extra_labels["http_status"],
            [("addr".to_owned(), "upstream_addr".to_owned())]
        );
        assert_eq!(boot.prometheus.expire["http_status"], Duration::from_secs(60));
        assert_eq!(boot.plugin_attr["redirect"]["https_port"], 8443);
        assert_eq!(boot.plugin_attr["prometheus"]["export_addr"]["port"], 9092);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let cases = [
            ("apisx: {}\n", (1, 1, "/apisx", "unknown key `apisx`")),
            ("apisix:\n  node_listn: 1\n", (2, 3, "/apisix/node_listn", "unknown key `apisix.node_listn`")),
            (
                "apisix:\n  enable_admin: 'yes'\n",
                (2, 17, "/apisix/enable_admin", "wrong type: expected boolean, got string"),
            ),
            (
                "apisix:\n  node_listen:\n    - 9080\n    - port: 99999\n",
                (4, 13, "/apisix/node_listen/1/port", "expected a port from 1 to 65535, got `99999`"),
            ),
            (
                "apisix:\n  node_listen: [{prt: 1}]\n",
                (2, 18, "/apisix/node_listen/0/prt", "unknown key `prt`"),
            ),
            (
                "apisix:\n  node_listen: [1, 1]\n",
                (2, 3, "/apisix/node_listen", "two listeners have the address 0.0.0.0:1"),
            ),
            ("apisix: 1\n", (1, 9, "/apisix", "wrong type: expected object, got number")),
            (
                "deployment:\n  role_traditional:\n    config_provider: etcd\n",
                (
                    3,
                    22,
                    "/deployment/role_traditional/config_provider",
                    "etcd is not supported yet; use embedded or yaml",
                ),
            ),
            (
                "deployment:\n  role: data_plane\n",
                (2, 9, "/deployment/role", "a data plane needs a `config_provider`"),
            ),
            (
                "nginx_config:\n  http:\n    send_timeout: soon\n",
                (
                    3,
                    19,
                    "/nginx_config/http/send_timeout",
                    "expected a time such as 60s, 500ms or 1h30m, got `soon`",
                ),
            ),
            (
                "nginx_config:\n  http:\n    client_header_buffer_size: 10\n",
                (
                    3,
                    32,
                    "/nginx_config/http/client_header_buffer_size",
                    "a request's head cannot be bounded by 10 bytes",
                ),
            ),
            ("a: [\n", (1, 4, "", "unclosed bracket '['")),
            ("a: 1\na: 2\n", (2, 1, "", "duplicate mapping key: a")),
            (
                "apisix:\n  node_listen: ${{NOPE}}\n",
                (2, 16, "", "failed to handle configuration: can't find environment variable NOPE"),
            ),
        ];
        for (text, (line, column, pointer, message)) in cases {
            assert_eq!(refusal(text), (line, column, pointer.to_owned(), message.to_owned()), "{text}");
        }
    }

    #[test]
    fn hints_lead_to_the_right_key() {
        let hint = |text: &str| refusals(text)[0].hint.clone().unwrap_or_default();
        assert_eq!(hint("apisix:\n  node_listn: 1\n"), "did you mean `node_listen`?");
        assert_eq!(hint("plugn_attr: {}\n"), "did you mean `plugin_attr`?");
        assert_eq!(
            hint("apisix:\n  admin_key: []\n"),
            "this moved to `deployment.admin.admin_key` in APISIX 3"
        );
        assert_eq!(
            hint("nginx_config:\n  http:\n    upstream:\n      keepaliv: 1\n"),
            "did you mean `keepalive`?"
        );
    }

    #[test]
    fn keys_that_say_what_happens_anyway_do_not_warn() {
        let boot = parse(
            "apisix: {enable_http2: false, proxy_mode: http, extra_lua_path: '', router: {ssl: radixtree_sni}}\n\
             nginx_config: {http: {enable_access_log: false}}\n",
        );
        assert_eq!(boot, Boot::default());
    }

    #[test]
    fn all_that_is_wrong_is_told_in_order() {
        let found = refusals("plugins: 1\napisix:\n  ssl: {}\n  enable_control: 3\nnope: 1\n");
        let lines: Vec<(u32, Severity)> = found.iter().map(|found| (found.line, found.severity)).collect();
        let (error, warning) = (Severity::Error, Severity::Warning);
        assert_eq!(lines, [(1, error), (3, warning), (4, error), (5, error)]);
    }

    #[test]
    fn keys_without_meaning_warn_once_each() {
        let text =
            "apisix:\n  extra_lua_path: x\n  ssl:\n    enable: true\n    listen: [{port: 9443}]\nwasm: {}\n";
        let (boot, warnings) = Boot::parse("config.yaml", text, &lookup).unwrap();
        assert_eq!(boot, Boot::default());
        let told: Vec<(u32, &str)> =
            warnings.iter().map(|found| (found.line, found.message.as_str())).collect();
        assert_eq!(
            told,
            [
                (2, "`apisix.extra_lua_path` has no effect: it is about Lua, and plugins here are native"),
                (3, "`apisix.ssl` has no effect: HTTPS listeners are not served yet"),
                (6, "`wasm` has no effect: WASM plugins are not served yet"),
            ]
        );
    }

    #[test]
    fn the_environment_may_say_how_many_workers() {
        let with = |text: &str, count: &str| {
            let count = count.to_owned();
            Boot::parse("f", text, &move |name| (name == "APISIX_WORKER_PROCESSES").then(|| count.clone()))
        };
        assert_eq!(with("", "3").unwrap().0.workers, Workers::Count(3));
        assert_eq!(with("nginx_config: {worker_processes: 2}", "3").unwrap().0.workers, Workers::Count(2));
        assert!(with("", "many").unwrap_err()[0].message.contains("APISIX_WORKER_PROCESSES"));
    }

    proptest! {
        #[test]
        fn no_text_panics(
            section in "(apisix|nginx_config|deployment|plugin_attr|plugins)",
            key in "(node_listen|http|admin|role|prometheus|proxy_cache|status|x)",
            value in r#"[-\[\]{}:,'" a-z0-9./$]{0,40}"#,
        ) {
            let _ = Boot::parse("f", &format!("{section}:\n  {key}: {value}\n"), &lookup);
            let _ = Boot::parse("f", &format!("{section}: {value}\n"), &lookup);
        }
    }
}
