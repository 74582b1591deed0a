//! The parts, made from the boot file and put together.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use cache::{Caches, DiskSettings};
use control::names::{LookUp, Questions, System};
use control::secrets::Secrets;
use control::store::{History, Opener, Ring, Sealed, Store};
use indexmap::IndexMap;
use ipnet::IpNet;
use model::boot::{self, Boot, Provider};
use plugins::ext_plugin::Runner;
use sdk::Catalog;
use sdk::build::{Extensions, Services};
use sdk::catalog::Subsystem;
use sdk::counters::{Counters, Gauges, Paces, Table, Tallies};
use sdk::endpoint::MetricsPage;
use sdk::meters::Meters;
use sdk::sink::Folders;
use sdk::upstream::RuntimeUpstreams;
use serde_json::{Map, Value, json};
use snapshot::certs::{CommonTls, TlsSettings};
use snapshot::plan::Timeouts;
use snapshot::router::{Mode, Options};
use snapshot::upstream::Keepalive;
use wire::h1::Underscores;
use wire::h1::decode::Limits;
use wire::target::{Doubtful, PathRules};

use crate::languages::{self, ReloadScripts};

/// The sinks of log entries, by the names that plugins use.
pub const SINKS: &[adapters::sinks::Kind] = &[
    adapters::sinks::file::KIND,
    adapters::sinks::google::KIND,
    adapters::sinks::http::KIND,
    adapters::sinks::kafka::KIND,
    adapters::sinks::loki::KIND,
    adapters::sinks::otlp::KIND,
    adapters::sinks::elasticsearch::KIND,
    adapters::sinks::splunk::KIND,
    adapters::sinks::tcp::KIND,
    adapters::sinks::udp::KIND,
];

/// Makes the services that plugin instances share on this node. Entries of its sinks are not delivered; a gateway
/// that serves uses the sinks of [`crate::sinks::Deliveries`].
///
/// # Errors
/// An attribute of the boot file that does not fit.
pub fn services(boot: &Boot, folders: &Arc<Folders>) -> anyhow::Result<Services> {
    crate::otlp::Settings::read(boot)?;
    let table = |name: &str| match boot.http.shared_dicts.get(name) {
        Some(&bytes) => Table::sized(bytes).map_err(|invalid| {
            anyhow::anyhow!("nginx_config.http.lua_shared_dict.{name} in config.yaml: {invalid}")
        }),
        None => Ok(Table::default()),
    };
    let extensions = Extensions::default();
    #[cfg(feature = "wasm")]
    let extensions = extensions.with(Arc::<crate::wasm::Hosting>::default());
    Ok(Services {
        counters: Arc::new(Counters::over(table("plugin-limit-count")?)),
        paces: Arc::new(Paces::over(table("plugin-limit-req")?)),
        gauges: Arc::new(Gauges::over(table("plugin-limit-conn")?)),
        tallies: Arc::new(Tallies::over(table("plugin-api-breaker")?)),
        meters: Arc::new(Meters::new(meters(boot))),
        sinks: Arc::default(),
        folders: folders.clone(),
        states: Default::default(),
        extensions: extensions
            .with(Arc::new(Caches::new(cache_zones(boot))))
            .with(Arc::new(adapters::limits().under(resources_root(boot))))
            .with(Arc::new(adapters::storages()))
            .with(Arc::new(MetricsPage::default()))
            .with(Arc::new(RuntimeUpstreams::default()))
            .with(Arc::new(crate::static_files::service(boot, folders))),
    })
}

/// The prefix of resources' names in keys of limits, as APISIX has it with the same provider.
fn resources_root(boot: &Boot) -> &str {
    match boot.provider {
        Provider::Etcd => &boot.etcd.prefix,
        Provider::Yaml | Provider::Json => "",
        Provider::Embedded => "/apisix",
    }
}

fn cache_zones(boot: &Boot) -> Vec<cache::Settings> {
    let (ttl, read_timeout) = (boot.proxy_cache.ttl, boot.proxy_cache.read_timeout);
    let zones = boot.proxy_cache.zones.iter().cloned();
    zones
        .map(|boot::Zone { name, memory_size, disk }| {
            let disk = disk.map(|boot::Disk { size, path, levels }| DiskSettings {
                path,
                size,
                levels,
                ttl,
                read_timeout,
            });
            cache::Settings { name, memory_size, disk }
        })
        .collect()
}

fn meters(boot: &Boot) -> sdk::meters::Settings {
    sdk::meters::Settings::from_attr(boot.plugin_attr.get("prometheus"))
}

/// The plugins, with services of their own: enough to check configurations.
///
/// # Errors
/// A plugin's schema that does not compile.
pub fn checking(boot: &Boot, folders: &Arc<Folders>) -> anyhow::Result<Arc<plugins::Catalog>> {
    let caches = Arc::new(Caches::for_checking(cache_zones(boot)));
    let mut services = services(boot, folders)?;
    // Checks start none.
    let runner = Arc::new(Runner::new(Path::new("")));
    services.extensions = services.extensions.with(caches).with(runner);
    Ok(catalog_with(boot, services, None).0)
}

/// The plugins where nothing is checked but what they say of themselves is read.
///
/// # Errors
/// A plugin's schema that does not compile.
pub fn catalog(boot: &Boot) -> anyhow::Result<Arc<plugins::Catalog>> {
    checking(boot, &Arc::default())
}

/// The plugins, and the reading of those of them that are in files. Without a data folder, nothing is loaded that only
/// a gateway that serves needs.
pub fn catalog_with(
    boot: &Boot,
    services: Services,
    data: Option<&Path>,
) -> (Arc<plugins::Catalog>, Option<ReloadScripts>) {
    let attrs: IndexMap<String, Value> =
        boot.plugin_attr.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let catalog = Arc::new(plugins::Catalog::new(services.clone(), attrs).strict(boot.strict_plugins));
    let reload = languages::register(boot, &catalog, &services, data);
    (catalog, reload)
}

/// How much of what was written is remembered.
pub fn history(boot: &Boot) -> History {
    History { records: boot.history.revisions, bytes: boot.history.size }
}

/// Lays `apisix.data_encryption` over a store.
///
/// # Errors
/// A key of the wrong length, which reading the boot file rules out.
pub fn sealed(boot: &Boot, catalog: &dyn Catalog, store: Arc<dyn Store>) -> anyhow::Result<Sealed> {
    let model::boot::DataEncryption { enabled, keyring } = &boot.data_encryption;
    Ok(Sealed::over(store, Ring::new(keyring)?, *enabled, facts(catalog)))
}

/// The same over resources that are written by hand: writes are not encrypted, and values that no key decrypts are
/// taken for plain text, without a warning.
///
/// # Errors
/// The keyring has an invalid key.
pub fn opened(boot: &Boot, catalog: &dyn Catalog, store: Arc<dyn Store>) -> anyhow::Result<Sealed> {
    let ring = Ring::new(&boot.data_encryption.keyring)?;
    Ok(Sealed::over(store, ring, false, facts(catalog)))
}

/// Decrypts what gateways with this boot file have written.
///
/// # Errors
/// The keyring has an invalid key.
pub fn opener(boot: &Boot, catalog: &dyn Catalog) -> anyhow::Result<Opener> {
    Ok(Opener::new(Ring::new(&boot.data_encryption.keyring)?, facts(catalog)))
}

fn facts(catalog: &dyn Catalog) -> impl Iterator<Item = (&'static str, sdk::catalog::Facts)> {
    let about = catalog.about().into_iter();
    about.filter_map(|about| Some((about.name, catalog.facts(about.subsystem, about.name)?)))
}

/// Whom the control plane trusts where it speaks TLS.
pub fn trust(common: &CommonTls, names: Option<adapters::Names>) -> adapters::Trust {
    adapters::Trust {
        verifying: common.verifying.without_sessions(),
        trusting: common.trusting.without_sessions(),
        names,
    }
}

/// Looks names up with the name servers of the boot file.
pub fn names(boot: &Boot) -> Arc<dyn LookUp> {
    Arc::new(System::new(&boot.resolver))
}

/// Looks names up for workers and adapters, each name once. Must run on a runtime.
pub fn questions(boot: &Boot, names: Arc<dyn LookUp>) -> Arc<Questions> {
    Arc::new(Questions::start(names, boot.resolver.valid, saturating(boot.http.max_resolved_names)))
}

/// How secret managers are asked.
pub fn secrets(boot: &Boot, trust: adapters::Trust) -> Secrets {
    let boot::Secrets { ttl, neg_ttl, timeout, max_requests } = boot.secrets;
    let max_requests = saturating(max_requests);
    let settings = control::secrets::Settings { ttl, retry: neg_ttl, timeout, max_requests };
    Secrets::new(Arc::new(adapters::secrets::Secrets::new(trust)), Arc::new(crate::files::env), settings)
}

/// How OCSP responders are asked (`plugin_attr.ocsp-stapling`).
pub fn ocsp(boot: &Boot) -> adapters::ocsp::Settings {
    let attr = boot.attr("/plugin_attr/ocsp-stapling");
    adapters::ocsp::Settings {
        timeout: attr.time("/timeout"),
        max_response: attr.bytes("/max_resp_body_size"),
    }
}

/// `apisix.router.http`.
pub fn router_mode(boot: &Boot) -> Mode {
    match boot.router {
        boot::Router::HostUri => Mode::HostUri,
        boot::Router::Uri => Mode::Uri,
        boot::Router::UriWithParameter => Mode::UriWithParameter,
    }
}

/// How snapshots are compiled.
pub fn compile_settings(boot: &Boot, tls: TlsSettings) -> snapshot::compile::Settings {
    let upstream = &boot.http.upstream;
    snapshot::compile::Settings {
        mode: router_mode(boot),
        options: Options {
            delete_uri_tail_slash: boot.uri.delete_tail_slash,
            normalize_uri_like_servlet: boot.uri.normalize_like_servlet,
        },
        plugins: boot.plugins.clone(),
        stream_plugins: boot.streams.plugins.clone(),
        protocols: boot.streams.protocols.clone(),
        timeouts: Timeouts::default(),
        keepalive: Keepalive {
            size: usize::try_from(upstream.size).unwrap_or(usize::MAX),
            idle_timeout: upstream.timeout,
            requests: upstream.requests,
        },
        default_retries: u32::try_from(upstream.default_retries).unwrap_or(u32::MAX),
        health_checks: boot.health_checks,
        registries: boot.discovery.keys().cloned().collect(),
        tls,
        env: Arc::new(crate::files::env),
    }
}

/// Descriptors kept for the store, the log, the APIs and the runtime.
const RESERVED_DESCRIPTORS: u64 = 64;

/// Below this, a warning reports that the process's limit on descriptors holds back traffic.
const FEW_CONNECTIONS: u64 = 1024;

/// Connections of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    clients: usize,
    idle_upstreams: usize,
    /// Requests of plugins in flight, each on a connection of its own.
    fetches: usize,
    /// Raw connections of plugins in use.
    plugins: usize,
}

impl Share {
    /// Limits the settings by the process's descriptors: clients leave some for upstreams, and idle connections and
    /// requests of plugins leave some for requests.
    fn of(boot: &Boot, workers: usize, descriptors: u64) -> Share {
        let workers = workers.max(1) as u64;
        let spare = descriptors.saturating_sub(RESERVED_DESCRIPTORS.min(descriptors / 4));
        // Two thirds of them for clients, and at least one each: those in the middle of a request need
        // another one towards an upstream, idle ones do not.
        let clients = (spare / 3 * 2 / workers).max(1);
        let upstreams = (spare / 3 / workers).max(1);
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Share {
            clients: size(clients.min(boot.worker_connections.max(1))),
            idle_upstreams: size(upstreams.min(boot.http.upstream.total)),
            fetches: size(upstreams.div_ceil(2).min(boot.http.max_plugin_requests)),
            plugins: size(upstreams.div_ceil(2).min(boot.http.max_plugin_connections)),
        }
    }
}

/// Raises the process's limit on descriptors as far as it may, and divides them.
fn share(boot: &Boot, workers: usize) -> Share {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let descriptors = current.unwrap_or(u64::MAX);
    let share = Share::of(boot, workers, descriptors);
    let (clients, wanted) = (share.clients as u64, boot.worker_connections);
    if clients < wanted && clients < FEW_CONNECTIONS {
        tracing::warn!(
            "each worker takes at most {clients} connections, not {wanted} (worker_connections): \
             the process may open {descriptors} files; raise `ulimit -n` or LimitNOFILE"
        );
    }
    share
}

/// Limits on the head of a request.
pub fn request_limits(boot: &Boot) -> Limits {
    let http = &boot.http;
    let head = saturating(http.max_head_size);
    let default = Limits::default();
    Limits {
        head,
        fields: saturating(http.max_header_fields),
        target: default.target.min(head),
        underscores: if http.underscores_in_headers { Underscores::Keep } else { Underscores::Drop },
        path: path_rules(boot),
    }
}

/// How request paths are normalised.
pub fn path_rules(boot: &Boot) -> PathRules {
    PathRules {
        merge_slashes: boot.uri.merge_slashes,
        resolve_dots: boot.uri.resolve_dots,
        decode_unreserved: boot.uri.decode_unreserved,
        // Routes decide what may stand in a path.
        refused: Doubtful::NONE,
    }
}

/// How the data plane behaves.
pub fn proxy_settings(boot: &Boot, listen: Vec<proxy::Listener>, workers: usize) -> proxy::Settings {
    let http = &boot.http;
    let share = share(boot, workers);
    let request = request_limits(boot);
    let response = Limits {
        head: saturating(http.max_response_head_size),
        fields: saturating(http.max_response_header_fields),
        ..Limits::default()
    };
    // A name that no field can have was refused when the file was read.
    let source = proxy::RealIpSource::named(&http.real_ip.header).ok();
    let real_ip = source.filter(|_| !http.real_ip.from.is_empty()).map(|source| proxy::RealIp {
        source,
        from: among(http.real_ip.from.clone()),
        recursive: http.real_ip.recursive,
    });
    proxy::Settings {
        listen,
        timeouts: proxy::Timeouts {
            queue: boot.accept_wait,
            handshake: boot.tls.handshake_timeout,
            header: http.client_header_timeout,
            body: http.client_body_timeout,
            send: http.send_timeout,
            half_close: http.half_close_timeout,
            plugin_wait: http.plugin_wait_timeout,
            linger: http.lingering_time,
            keepalive: http.keepalive_timeout,
            idle_grace: http.keepalive_min_timeout,
            attempt_delay: http.upstream.attempt_delay,
            drain: boot.shutdown_timeout,
        },
        limits: proxy::Limits {
            connections: share.clients,
            idle_upstreams: share.idle_upstreams,
            fetches: share.fetches,
            fetches_per_target: usize::try_from(http.max_plugin_requests_per_target).unwrap_or(usize::MAX),
            plugin_connections: share.plugins,
            resolved_names: saturating(http.max_resolved_names),
            linger_bytes: saturating(http.lingering_bytes),
            keepalive_requests: http.keepalive_requests,
            body: http.client_max_body_size.unwrap_or(0),
            hops: http.max_hops.and_then(|hops| u16::try_from(hops).ok()).unwrap_or(u16::MAX),
        },
        budgets: proxy::Budgets {
            held_bodies: saturating(http.held_bodies),
            stream_windows: saturating(http.stream_windows),
            upstream_windows: saturating(http.upstream_windows),
            send_windows: saturating(http.send_windows),
        },
        request,
        response,
        gathers: http.proxy_buffering,
        http2: http2(&http.http2),
        http3: http3(&http.http3),
        bounds: sdk::Bounds {
            body: boot.conditions.body.map_or(usize::MAX, saturating),
            graphql: saturating(boot.conditions.graphql),
        },
        server: if boot.server_tokens { admin::SERVER } else { admin::SERVER_ALONE }.to_owned(),
        show_upstream_status: boot.show_upstream_status,
        taps: Arc::default(),
        explain: boot.explain.as_ref().and_then(|explain| {
            Some(Box::new(proxy::Explain {
                // A name that no field can have was refused when the file was read.
                header: sdk::HeaderName::new(&explain.header).ok()?,
                key: explain.key.clone().into_bytes(),
                most: saturating(explain.size),
            }))
        }),
        real_ip,
        streams: proxy::Streams {
            connect_timeout: boot.streams.connect_timeout,
            idle_timeout: boot.streams.idle_timeout,
            preread_timeout: boot.streams.preread_timeout,
            real_ip_from: Some(boot.streams.real_ip_from.clone()).filter(|from| !from.is_empty()).map(among),
            access_log: None,
            udp: Vec::new(),
            udp_idle_timeout: boot.streams.udp_idle_timeout,
            // Each has a descriptor of its own, as a connection to an upstream has.
            max_udp_sessions: saturating(boot.streams.max_udp_sessions).min(share.idle_upstreams.max(1)),
            udp_queue: saturating(boot.streams.udp_queue),
        },
        proxy_protocol: proxy::ProxyProtocol {
            trusted: boot.proxy_protocol.trusted.clone().map(among),
            timeout: boot.streams.proxy_protocol_timeout,
        },
        trusted: boot.trusted_addresses.clone().map(among),
        access_log: None,
        on_fault: Arc::new(crate::logging::fault),
        on_notice: Arc::new(crate::notices::log),
        // The caller's to set, where they are wanted.
        reuse_port: false,
        tls: CommonTls::default(),
        resolver: None,
        pool: proxy::Pool::default(),
        file_pool: proxy::Pool::default(),
        handoff: None,
        proofs: None,
    }
}

fn http2(http2: &boot::Http2) -> proxy::Http2 {
    let bound = |bound: u64| u32::try_from(bound).unwrap_or(u32::MAX);
    proxy::Http2 {
        max_streams: bound(http2.max_concurrent_streams),
        stream_window: bound(http2.body_preread_size),
        send_buffer: bound(http2.send_buffer),
        control_frames: bound(http2.control_frames),
        max_stream_errors: bound(http2.stream_errors),
        unread: saturating(http2.unread),
        max_age: http2.keepalive_time,
        upstream_streams: bound(http2.upstream_streams),
        stall_timeout: http2.stall_timeout,
    }
}

fn http3(http3: &boot::Http3) -> proxy::Http3 {
    let bound = |bound: u64| u32::try_from(bound).unwrap_or(u32::MAX);
    proxy::Http3 {
        max_streams: bound(http3.max_concurrent_streams),
        stream_window: bound(http3.stream_buffer_size),
        send_window: http3.send_buffer,
        idle_timeout: http3.idle_timeout,
        max_handshakes: saturating(http3.handshakes),
        retry_from: if http3.retry { 0 } else { saturating(http3.retry_handshakes) },
        alt_svc: http3.alt_svc.clone(),
    }
}

fn saturating(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn among(networks: Vec<IpNet>) -> Arc<dyn Fn(IpAddr) -> bool + Send + Sync> {
    Arc::new(move |ip| networks.iter().any(|network| network.contains(&ip)))
}

/// How the Admin API behaves, with the generated key where the file leaves one empty.
pub fn admin_config(boot: &Boot, generated: Option<&str>) -> admin::Config {
    let mut config = admin::Config::of(&boot.admin, boot.plugins.clone());
    config.server_tokens = boot.server_tokens;
    config.streams = boot.proxy_mode.serves_streams();
    config.stream_plugins = boot.streams.plugins.clone();
    config.protocols = boot.streams.protocols.clone();
    if let Some(generated) = generated {
        for key in &mut config.keys {
            if key.key.is_empty() {
                key.key = generated.to_owned();
            }
        }
    }
    config
}

/// Workers to start: as many as may run at once, cgroup limits and CPU affinity included.
pub fn worker_count(boot: &Boot) -> usize {
    match boot.workers {
        boot::Workers::Count(count) => usize::from(count.max(1)),
        boot::Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Threads of the background pool: by default one for every two workers, and at least one.
pub fn background_threads(boot: &Boot, workers: usize) -> usize {
    match boot.http.background_threads {
        boot::Workers::Count(count) => usize::from(count.max(1)),
        boot::Workers::Auto => (workers / 2).max(1),
    }
}

/// Prints the schemas of every built plugin, of the settings of config.yaml and of answers of the Admin API, for the
/// documentation and the dashboard.
///
/// # Errors
/// A plugin's schema that does not compile.
pub fn print_schemas() -> anyhow::Result<()> {
    let catalog = catalog(&Boot::default())?;
    let mut all = Map::new();
    for about in catalog.about() {
        // The pages of plugins of streams stand in a folder of their own.
        let (built, folder) = match about.subsystem {
            Subsystem::Http => (plugins::names().contains(&about.name), ""),
            Subsystem::Stream => (plugins::stream::names().contains(&about.name), "stream/"),
        };
        if !built {
            continue;
        }
        let Some(facts) = catalog.facts(about.subsystem, about.name) else { continue };
        // As the plugin states it, a text.
        let version = facts.version.to_string();
        let mut one = json!({"priority": about.priority, "version": version, "schema": facts.schema});
        if let Some(schema) = facts.consumer_schema {
            one["consumer_schema"] = schema;
        }
        if let Some(schema) = facts.metadata_schema {
            one["metadata_schema"] = schema;
        }
        all.insert(format!("{folder}{}", about.name), one);
    }
    let printed = json!({"plugins": all, "settings": boot::tables(), "answers": admin::answers()});
    crate::say::out(serde_json::to_string_pretty(&printed)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(text: &str) -> Boot {
        Boot::parse("config.yaml", text, &[], &|_| None).expect("a valid file").0
    }

    #[test]
    fn limits_of_connections_are_what_the_file_says() {
        use std::time::Duration;
        let text = "nginx_config:\n  http:\n    half_close_timeout: 7s\n    lingering_time: 8s\n    lingering_bytes: 9k\n\
                    deployment:\n  admin:\n    max_connections: 3\n    max_refused_connections: 2\n    \
                    client_header_timeout: 4s\n    client_body_timeout: 5s\n    send_timeout: 6s\n    connection_timeout: 1h\n";
        let seconds = Duration::from_secs;
        let boot = boot(text);
        let proxy = proxy_settings(&boot, Vec::new(), 1);
        assert_eq!(proxy.timeouts.half_close, seconds(7));
        assert_eq!((proxy.timeouts.linger, proxy.limits.linger_bytes), (seconds(8), 9 << 10));
        let admin = admin_config(&boot, None).limits;
        assert_eq!((admin.connections, admin.strangers), (3, 2));
        assert_eq!((admin.head, admin.body), (seconds(4), seconds(5)));
        assert_eq!((admin.send, admin.connection), (seconds(6), seconds(3600)));
    }

    #[test]
    fn there_is_a_background_thread_for_every_two_workers() {
        let threads = |text: &str| [1, 2, 3, 8].map(|workers| background_threads(&boot(text), workers));
        assert_eq!(threads("nginx_config: {http: {background_threads: auto}}"), [1, 1, 1, 4]);
        assert_eq!(threads("nginx_config: {http: {background_threads: 3}}"), [3; 4]);
        assert_eq!(background_threads(&Boot::default(), 8), 4);
    }

    #[test]
    fn descriptors_are_shared_out() {
        let boot = Boot::default();
        let plenty = Share::of(&boot, 2, u64::MAX);
        assert_eq!(plenty, Share { clients: 10_620, idle_upstreams: 4096, fetches: 1024, plugins: 1024 });
        assert_eq!(
            Share::of(&boot, 2, 1024),
            Share { clients: 320, idle_upstreams: 160, fetches: 80, plugins: 80 }
        );
        assert_eq!(
            Share::of(&boot, 1, 100),
            Share { clients: 50, idle_upstreams: 25, fetches: 13, plugins: 13 }
        );
        assert_eq!(Share::of(&boot, 8, 8), Share { clients: 1, idle_upstreams: 1, fetches: 1, plugins: 1 });
    }
}
