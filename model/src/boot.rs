//! The boot file, `config.yaml`: what a process must know before it serves.
//!
//! APISIX 3.x's file, its shape and its defaults, with a few keys of ours. What
//! differs by default: the Admin API listens on 127.0.0.1 alone, the
//! configuration is kept in an embedded store, and a request's head must arrive
//! within ten seconds. Everything that may change while running is in resources.

use std::net::SocketAddr;
use std::time::Duration;

use indexmap::IndexMap;
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
mod keys;
mod listen;
mod read;
mod shape;
mod streams;

pub use acme::{Acme, AcmeChallenge, Eab};
pub use admin::{Admin, AdminKey, AdminLimits, AdminRole, AdminTls, AdminVersion};
pub use cache::{Disk, ProxyCache, Zone};
pub use etcd::Etcd;
use findings::Findings;
pub(crate) use findings::unknown_plugins;
use listen::wildcard;
pub use listen::{Listen, Tls};
pub use shape::{size, time};
pub use streams::{ProxyMode, ProxyProtocol, Streams, TcpPort};

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
    pub http: Http,
    pub role: Role,
    pub provider: Provider,
    pub etcd: Etcd,
    /// The HTTP plugins that may be used; `None` is all there are.
    pub plugins: Option<Vec<String>>,
    /// `sluice.strict_plugins` (ours): refuse plugins that this build lacks also where their absence
    /// changes no answer.
    pub strict_plugins: bool,
    pub history: History,
    /// `sluice.explain` (ours): whose requests get an account of what was decided.
    pub explain: Option<Explain>,
    pub prometheus: Prometheus,
    /// `plugin_attr` by plugin, as written; that of prometheus is here too.
    pub plugin_attr: Map<String, Value>,
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

/// What is done to a path before it is matched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UriOptions {
    pub delete_tail_slash: bool,
    pub normalize_like_servlet: bool,
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

/// `nginx_config.http`: limits of requests and connections.
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// How long an idle connection from a client is kept; zero keeps none.
    pub keepalive_timeout: Duration,
    /// At the end, how long an idle connection is kept for one more request.
    pub keepalive_min_timeout: Duration,
    /// Requests after which a client's connection is closed.
    pub keepalive_requests: u64,
    pub http2: Http2,
    pub http3: Http3,
    /// For a whole request head.
    pub client_header_timeout: Duration,
    /// Between two reads of a body.
    pub client_body_timeout: Duration,
    /// Between two writes to a client.
    pub send_timeout: Duration,
    /// How long a client that has closed its sending side is still answered (ours).
    pub half_close_timeout: Duration,
    /// What a plugin waits for in one phase may take so long.
    pub plugin_wait_timeout: Duration,
    /// How long the rest of a refused request is read, so that its answer arrives …
    pub lingering_time: Duration,
    /// … and how much of it at most (ours).
    pub lingering_bytes: u64,
    /// Bytes; `None` is no limit.
    pub client_max_body_size: Option<u64>,
    /// Bytes of a request's head.
    pub max_head_size: u64,
    /// Header fields of a request (ours).
    pub max_header_fields: u64,
    /// Requests of plugins, such as mirrors, that a worker may have in flight (ours) …
    pub max_plugin_requests: u64,
    /// … and of these with one server.
    pub max_plugin_requests_per_target: u64,
    /// Bytes of a response's head.
    pub max_response_head_size: u64,
    /// Header fields of a response (ours).
    pub max_response_header_fields: u64,
    /// Bytes of bodies a worker holds in memory at once (ours).
    pub held_bodies: u64,
    /// Bytes that HTTP/2 and HTTP/3 clients of a worker may send before they are read, beyond the first window
    /// of each connection (ours).
    pub stream_windows: u64,
    /// The same for servers that speak HTTP/2: `upstream.http2_windows` (ours).
    pub upstream_windows: u64,
    pub underscores_in_headers: bool,
    pub real_ip: RealIp,
    /// Bytes of log entries of plugins that may wait to be delivered; past it they are dropped (ours).
    pub held_log_entries: u64,
    /// A line for every request; `None` is off.
    pub access_log: Option<AccessLog>,
    pub upstream: UpstreamKeepalive,
    /// Bytes by name, such as `plugin-limit-count`; those the file names.
    pub shared_dicts: IndexMap<String, u64>,
}

/// What `nginx_config.http` says of HTTP/2. Names without a word are nginx's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2 {
    /// Streams a client may have open on one connection.
    pub max_concurrent_streams: u64,
    /// Bytes of one request's body that a client may send before they are wanted.
    pub body_preread_size: u64,
    /// Bytes of one response that may wait for the client's connection (ours).
    pub send_buffer: u64,
    /// Frames that ask for nothing which a client may send at once beyond what its requests pay for (ours).
    pub control_frames: u64,
    /// Streams of a connection that may be broken off because of what the client sent on them (ours).
    pub stream_errors: u64,
    /// Bytes of memory for a connection's trailers that nobody has read yet (ours).
    pub trailers: u64,
    /// A connection is closed gently when it is about so old; zero is no bound.
    pub keepalive_time: Duration,
    /// `upstream.http2_streams` (ours): requests that one connection to a server carries at a time.
    pub upstream_streams: u64,
}

/// What `nginx_config.http` says of HTTP/3 and QUIC. Names without a word are nginx's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http3 {
    /// Streams a client may have open on one connection.
    pub max_concurrent_streams: u64,
    /// Bytes of one stream that a client may send before they are read.
    pub stream_buffer_size: u64,
    /// Bytes on their way to one client until it has acknowledged them (ours).
    pub send_buffer: u64,
    /// A connection from which nothing comes for so long is gone (ours).
    pub idle_timeout: Duration,
    /// Handshakes that a worker has under way at once (ours).
    pub handshakes: u64,
    /// `quic_retry`: every client first proves its address.
    pub retry: bool,
    /// The same from so many handshakes under way on (ours).
    pub retry_handshakes: u64,
    /// What `Alt-Svc` says; empty for none (ours).
    pub alt_svc: String,
}

/// `nginx_config.http.access_log` and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// A path, or an output of the process.
    pub path: String,
    /// Nobody named the path.
    pub is_default: bool,
    /// NGINX's `log_format`.
    pub format: String,
    pub escape: LogEscape,
    /// Bytes a worker gathers before it hands them over.
    pub buffer: u64,
    /// Bytes of one worker that may wait to be written; past it lines are dropped (ours).
    pub queue: u64,
    /// Lines wait at most so long before they are handed over (ours).
    pub flush: Duration,
}

/// `access_log_format_escape`: how bytes in a variable that could be taken for the line's own are
/// written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEscape {
    Default,
    Json,
    None,
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
    /// Those of a worker to all upstreams together (ours).
    pub total: u64,
    /// How long a connection is waited for before one in the other address family is tried as well.
    pub attempt_delay: Duration,
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

/// `plugin_attr.prometheus`.
#[derive(Debug, Clone, PartialEq)]
pub struct Prometheus {
    pub export_uri: String,
    pub metric_prefix: String,
    /// The metrics' own listener; `None` if `enable_export_server` is false.
    pub export: Option<SocketAddr>,
    /// Scrapers at once.
    pub connections: usize,
    /// How long a scraper may take to read 64 KiB.
    pub send_timeout: Duration,
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
