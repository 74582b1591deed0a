//! The boot file, `config.yaml`: what a process must know before it serves.
//!
//! APISIX 3.x's file, its shape and its defaults, with a few keys of ours. What
//! differs by default: the Admin API listens on 127.0.0.1 alone, the
//! configuration is kept in an embedded store, and a request's head must arrive
//! within ten seconds. Everything that may change while running is in resources.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::diagnostic::{Diagnostic, Source};
use crate::document::Lookup;
use crate::yaml::{self, Variables};

mod acme;
mod admin;
mod cache;
mod etcd;
mod findings;
mod http;
mod keys;
mod listen;
mod ports;
mod read;
mod section;
mod shape;
mod streams;
mod values;
mod wasm;

pub use acme::{Acme, AcmeChallenge, Eab};
pub use admin::{Admin, AdminKey, AdminLimits, AdminRole, AdminTls, AdminVersion};
pub use cache::{Disk, ProxyCache, Zone};
pub use etcd::Etcd;
use findings::Findings;
pub use findings::stands_at_top;
pub use findings::stream_module;
pub(crate) use findings::{unknown_plugins, unknown_stream_plugins};
pub use http::{AccessLog, Http, Http2, Http3, LogEscape, RealIp, UpstreamKeepalive};
pub use keys::{tables, with_defaults};
use listen::wildcard;
pub use listen::{Listen, Tls};
pub use section::Section;
pub use streams::{ProxyMode, ProxyProtocol, Streams, TcpPort};
pub use values::{size, time};
pub use wasm::{Wasm, WasmPlugin};

/// Everything the boot file says, defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Boot {
    /// `apisix.node_listen`.
    pub listen: Vec<Listen>,
    /// `apisix.enable_http2`: HTTP/2 is served where nothing else is said.
    pub http2: bool,
    pub proxy_mode: ProxyMode,
    pub proxy_protocol: ProxyProtocol,
    pub streams: Streams,
    /// `apisix.ssl`.
    pub tls: Tls,
    pub admin: Admin,
    /// `apisix.router.http`.
    pub router: Router,
    pub uri: UriOptions,
    pub conditions: Conditions,
    pub proxy_cache: ProxyCache,
    pub data_encryption: DataEncryption,
    /// The control API; `None` if `apisix.enable_control` is false.
    pub control: Option<SocketAddr>,
    /// The status API, off unless `apisix.status` is there.
    pub status: Option<SocketAddr>,
    /// `apisix.enable_server_tokens`: whether `Server` tells the version.
    pub server_tokens: bool,
    /// `apisix.show_upstream_status_in_response_header`: always, not only for 5xx.
    pub show_upstream_status: bool,
    pub resolver: Resolver,
    pub secrets: Secrets,
    /// `discovery` by registry, as written.
    pub discovery: Map<String, Value>,
    /// `false` for `apisix.disable_upstream_healthcheck`.
    pub health_checks: bool,
    /// Peers whose `X-Forwarded-*` are believed; `None` if the key is absent.
    pub trusted_addresses: Option<Vec<IpNet>>,
    pub workers: Workers,
    /// A connection that has waited longer to be accepted is refused while all wait that long; zero
    /// refuses none.
    pub accept_wait: Duration,
    /// Connections a worker may hold, those to upstreams included.
    pub worker_connections: u64,
    /// How long a graceful end waits for requests in flight.
    pub shutdown_timeout: Duration,
    /// `sluice.acme` (ours): certificates that are issued by an ACME server.
    pub acme: Option<Acme>,
    /// `sluice.upgrade_timeout` (ours): how long a new process may take to be ready.
    pub upgrade_timeout: Duration,
    pub log_level: LogLevel,
    /// Where the error log is written; `None` is standard error.
    pub error_log: Option<String>,
    /// `nginx_config.error_log_format` (ours): its lines are JSON.
    pub error_log_json: bool,
    pub http: Http,
    /// `apisix.id`, as it is written.
    pub id: Option<Value>,
    pub role: Role,
    pub provider: Provider,
    pub etcd: Etcd,
    /// The HTTP plugins that may be used; `None` is all there are.
    pub plugins: Option<Vec<String>>,
    /// `sluice.tap` (ours): single requests may be shown to operators.
    pub tap: bool,
    /// `sluice.strict_plugins` (ours): refuse plugins that this build lacks also where their absence
    /// changes no answer.
    pub strict_plugins: bool,
    /// `sluice.lua` (ours): limits of scripts.
    pub lua: Lua,
    pub runner: Runner,
    /// `wasm`, and `sluice.wasm` (ours): plugins in WebAssembly and their limits.
    pub wasm: Wasm,
    pub history: History,
    /// `sluice.explain` (ours): whose requests get an account of what was decided.
    pub explain: Option<Explain>,
    pub prometheus: Prometheus,
    /// `plugin_attr` by plugin, as written; that of prometheus is here too.
    pub plugin_attr: Map<String, Value>,
}

/// `sluice.lua`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lua {
    /// `apisix.extra_lua_path`: patterns of the files that plugins are loaded from.
    pub paths: Vec<String>,
    /// Bytes of all scripts of a worker.
    pub max_memory: u64,
    /// How long a script may run without a wait.
    pub max_time: Duration,
    /// Sockets of scripts that may be open on one worker.
    pub max_sockets: u64,
    /// Whether scripts may connect to sockets in the file system.
    pub unix_sockets: bool,
}

/// `ext-plugin`: the process with plugins in other languages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runner {
    /// Program and arguments; without any the gateway starts none.
    pub command: Vec<String>,
    /// Its Unix socket, if that is not the gateway's choice.
    pub path: Option<String>,
    /// `nginx_config.envs`: variables of the environment that it gets, by name or as `NAME=value`.
    pub environment: Vec<String>,
}

/// `apisix.data_encryption`: how secrets of plugins are stored. `Debug` does not show the keys.
#[derive(Clone, PartialEq, Eq)]
pub struct DataEncryption {
    /// Whether writes are encrypted. Reads are always decrypted.
    pub enabled: bool,
    /// The first encrypts, all decrypt. 16 or 32 bytes each; if empty, nothing is encrypted.
    pub keyring: Vec<String>,
}

/// `sluice.explain`. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Explain {
    /// Of the request with the key, and of the answer with the account.
    pub header: String,
    pub key: String,
    /// Bytes of an account.
    pub size: u64,
}

impl std::fmt::Debug for Explain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explain").field("header", &self.header).finish_non_exhaustive()
    }
}

/// `sluice.history` (ours): how much of what was written is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Writes; 0 keeps none.
    pub revisions: u64,
    /// Bytes of all of them.
    pub size: u64,
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

/// Changes to a path before it is matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UriOptions {
    pub delete_tail_slash: bool,
    pub normalize_like_servlet: bool,
    pub merge_slashes: bool,
    pub resolve_dots: bool,
    pub decode_unreserved: bool,
}

/// How far conditions look into a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditions {
    /// Bytes of a body that is held for them (`apisix.max_post_args_readable_size`); `None` is no limit.
    pub body: Option<u64>,
    /// Bytes of a GraphQL document (`graphql.max_size`).
    pub graphql: u64,
}

/// How names are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    /// `apisix.dns_resolver`; empty is the system's.
    pub servers: Vec<SocketAddr>,
    /// Instead of the records' own TTL.
    pub valid: Option<Duration>,
    pub timeout: Duration,
    /// Names are also looked for below the system's search domains.
    pub search: bool,
    pub ipv6: bool,
}

/// How secrets of managers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secrets {
    /// A secret is read again after this.
    pub ttl: Duration,
    /// One that could not be read, at the latest after this.
    pub neg_ttl: Duration,
    /// A manager may take this long.
    pub timeout: Duration,
    /// Requests to one manager at a time.
    pub max_requests: u64,
}

/// How many workers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// As many as the machine and its limits let run at once.
    Auto,
    Count(u16),
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
    /// A cluster that several gateways share.
    Etcd,
}

/// The endpoint of `plugin_attr.prometheus`; how metrics are counted is a setting of the meters.
#[derive(Debug, Clone, PartialEq)]
pub struct Prometheus {
    pub export_uri: String,
    /// The metrics' own listener; `None` if `enable_export_server` is false.
    pub export: Option<SocketAddr>,
    /// Scrapers at once.
    pub connections: usize,
    /// How long a scraper may take to read 64 KiB.
    pub send_timeout: Duration,
}

impl Boot {
    /// Reads the text of `file`, a name used in diagnostics alone, and gives warnings with it.
    ///
    /// `plugins` are those this build has; a list of others is worth a warning.
    /// `lookup` finds variables of the environment: those the text names, and
    /// `APISIX_WORKER_PROCESSES`.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the file, and the warnings among it.
    pub fn parse(
        file: &str,
        text: &str,
        plugins: &[&str],
        lookup: Lookup<'_>,
    ) -> Result<(Boot, Vec<Diagnostic>), Vec<Diagnostic>> {
        let source = Source { file, text };
        let document =
            yaml::parse(text, Variables::InValues(lookup)).map_err(|error| vec![source.syntax(error)])?;
        let mut findings = Findings::new(source, &document, plugins);
        findings.check();
        findings.finish(|| read::boot(&document.value, lookup))
    }
}

impl Boot {
    /// The settings of a plugin, such as `/plugin_attr/redirect`.
    pub fn attr(&self, at: &'static str) -> Section<'_> {
        let plugin = at.rsplit('/').next().unwrap_or_default();
        Section::attr(at, self.plugin_attr.get(plugin))
    }
}

impl Default for Boot {
    /// The settings of an empty file.
    fn default() -> Boot {
        // A test reads an empty file, so this cannot fail.
        read::boot(&Value::Null, &|_| None).expect("an empty boot file is valid")
    }
}

impl std::fmt::Debug for DataEncryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataEncryption")
            .field("enabled", &self.enabled)
            .field("keys", &self.keyring.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
