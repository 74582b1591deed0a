//! From a checked `config.yaml` to its types, defaults filled in.
//!
//! Defaults are those of APISIX 3.18's `cli/config.lua`, but where the module
//! [`boot`](super) says otherwise.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::Value;

use super::{
    AccessLog, Admin, AdminKey, AdminLimits, AdminRole, AdminTls, AdminVersion, Boot, Conditions,
    DataEncryption, Disk, Explain, History, Http, Http2, Http3, Listen, LogEscape, LogLevel, Prometheus,
    Provider, ProxyCache, RealIp, Resolver, Role, Router, Secrets, Tls, UpstreamKeepalive, UriOptions,
    Workers, Zone, keys, wildcard,
};
use super::{etcd, ports, shape, streams};
use crate::Invalid;
use crate::document::Lookup;

/// Reads a file that fits its shapes.
pub fn boot(value: &Value, lookup: Lookup<'_>) -> Result<Boot, Invalid> {
    let file = File(value);
    let apisix = file.below("/apisix");
    let nginx = file.below("/nginx_config");
    let role = match file.text("/deployment/role") {
        Some("data_plane") => Role::DataPlane,
        Some("control_plane") => Role::ControlPlane,
        _ => Role::Traditional,
    };
    let listen = listen(apisix)?;
    let boot = Boot {
        tls: tls(apisix, &listen)?,
        listen,
        http2: apisix.bool("/enable_http2", true),
        proxy_mode: streams::proxy_mode(apisix),
        proxy_protocol: streams::proxy_protocol(apisix),
        streams: streams::streams(file)?,
        admin: admin(file, role)?,
        router: match apisix.text("/router/http") {
            Some("radixtree_uri") => Router::Uri,
            Some("radixtree_uri_with_parameter") => Router::UriWithParameter,
            _ => Router::HostUri,
        },
        uri: UriOptions {
            delete_tail_slash: apisix.bool("/delete_uri_tail_slash", false),
            normalize_like_servlet: apisix.bool("/normalize_uri_like_servlet", false),
        },
        conditions: Conditions {
            body: Some(apisix.count("/max_post_args_readable_size", 64) << 20).filter(|bytes| *bytes > 0),
            graphql: file.count("/graphql/max_size", 1 << 20),
        },
        proxy_cache: proxy_cache(apisix),
        data_encryption: DataEncryption {
            enabled: apisix.bool("/data_encryption/enable_encrypt_fields", true),
            keyring: apisix
                .read("/data_encryption/keyring", shape::keyring)
                .unwrap_or_else(|| ["qeddd145sfvddff3", "edd1c9f0985e76a2"].map(str::to_owned).to_vec()),
        },
        control: apisix.bool("/enable_control", true).then(|| apisix.address("/control", LOCALHOST, 9090)),
        status: apisix.get("/status").map(|_| apisix.address("/status", LOCALHOST, 7085)),
        server_tokens: apisix.bool("/enable_server_tokens", true),
        show_upstream_status: apisix.bool("/show_upstream_status_in_response_header", false),
        resolver: resolver(apisix)?,
        secrets: Secrets {
            ttl: apisix.time("/lru/secret/ttl", 300),
            neg_ttl: apisix.time("/lru/secret/neg_ttl", 60),
            timeout: file.time("/sluice/secrets/timeout", 5),
            max_requests: file.count("/sluice/secrets/max_requests", 8),
        },
        discovery: file.get("/discovery").and_then(Value::as_object).cloned().unwrap_or_default(),
        health_checks: !apisix.bool("/disable_upstream_healthcheck", false),
        trusted_addresses: apisix.read("/trusted_addresses", |value| shape::list(value, shape::network)),
        workers: workers(file, lookup)?,
        accept_wait: nginx.read("/event/accept_wait", shape::time).unwrap_or(Duration::from_millis(250)),
        worker_connections: nginx.count("/event/worker_connections", 10_620),
        shutdown_timeout: nginx.time("/worker_shutdown_timeout", 240),
        acme: super::acme::acme(file)?,
        upgrade_timeout: file.time("/sluice/upgrade_timeout", 30),
        log_level: log_level(nginx),
        error_log: nginx.text("/error_log").map(str::to_owned),
        http: http(nginx.below("/http"))?,
        id: apisix.read("/id", shape::id).cloned(),
        role,
        provider: provider(file, role)?,
        etcd: etcd::etcd(file)?,
        plugins: file.texts("/plugins"),
        history: History {
            revisions: file.count("/sluice/history/revisions", 1000),
            size: file.read("/sluice/history/size", shape::size).unwrap_or(64 << 20),
        },
        explain: file.read("/sluice/explain/key", shape::long_key).map(|key| Explain {
            key: key.to_owned(),
            header: file.text("/sluice/explain/header").unwrap_or("X-Sluice-Explain").to_owned(),
            size: file.count("/sluice/explain/size", 2048),
        }),
        strict_plugins: file.bool("/sluice/strict_plugins", false),
        prometheus: prometheus(file.below("/plugin_attr/prometheus")),
        plugin_attr: file.get("/plugin_attr").and_then(Value::as_object).cloned().unwrap_or_default(),
    };
    ports::check(&boot, file)?;
    Ok(boot)
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A part of the file; what is absent or null has its default.
#[derive(Clone, Copy)]
pub(super) struct File<'a>(pub(super) &'a Value);

impl<'a> File<'a> {
    pub(super) fn below(self, pointer: &str) -> File<'a> {
        File(self.get(pointer).unwrap_or(&Value::Null))
    }

    pub(super) fn get(self, pointer: &str) -> Option<&'a Value> {
        self.0.pointer(pointer).filter(|value| !value.is_null())
    }

    /// Reads what the shape of the key has checked before, so a refusal cannot be.
    pub(super) fn read<T>(self, pointer: &str, read: impl Fn(&'a Value) -> Result<T, Invalid>) -> Option<T> {
        self.get(pointer).and_then(|value| read(value).ok())
    }

    pub(super) fn bool(self, pointer: &str, default: bool) -> bool {
        self.read(pointer, shape::switch).unwrap_or(default)
    }

    pub(super) fn count(self, pointer: &str, default: u64) -> u64 {
        self.read(pointer, |value| shape::count(value, 0, u64::MAX)).unwrap_or(default)
    }

    pub(super) fn time(self, pointer: &str, default: u64) -> Duration {
        self.read(pointer, shape::time).unwrap_or(Duration::from_secs(default))
    }

    pub(super) fn text(self, pointer: &str) -> Option<&'a str> {
        self.read(pointer, shape::text)
    }

    pub(super) fn texts(self, pointer: &str) -> Option<Vec<String>> {
        self.read(pointer, |value| shape::list(value, |item| shape::text(item).map(str::to_owned)))
    }

    fn address(self, pointer: &str, ip: IpAddr, port: u16) -> SocketAddr {
        let at = self.below(pointer);
        SocketAddr::new(
            at.read("/ip", shape::ip).unwrap_or(ip),
            at.read("/port", shape::port).unwrap_or(port),
        )
    }
}

fn listen(apisix: File<'_>) -> Result<Vec<Listen>, Invalid> {
    let written =
        apisix.read("/node_listen", shape::listen).unwrap_or_else(|| vec![(None, 9080, None, false)]);
    addresses(apisix, written, "/apisix/node_listen", &[])
}

/// Addresses of the same kind, different from each other and from those there are.
fn addresses(
    apisix: File<'_>,
    written: Vec<shape::Written>,
    pointer: &str,
    others: &[Listen],
) -> Result<Vec<Listen>, Invalid> {
    let everywhere = apisix.bool("/enable_http2", true);
    let ipv6 = apisix.bool("/enable_ipv6", true);
    let mut listen: Vec<Listen> = Vec::new();
    for (ip, port, http2, http3) in written {
        let http2 = http2.unwrap_or(everywhere);
        let [v4, v6] = wildcard(port);
        let address = ip.map_or(v4, |ip| SocketAddr::new(ip, port));
        if let Some(twice) = listen.iter().chain(others).find(|other| other.address == address) {
            return Err(Invalid::new(format!("two listeners have the address {}", twice.address))
                .at(pointer)
                .expected("different addresses"));
        }
        listen.push(Listen { address, optional: false, http2, http3 });
        if ip.is_none() && ipv6 {
            listen.push(Listen { address: v6, optional: true, http2, http3 });
        }
    }
    Ok(listen)
}

fn tls(apisix: File<'_>, others: &[Listen]) -> Result<Tls, Invalid> {
    let ssl = apisix.below("/ssl");
    let written = ssl.read("/listen", shape::tls_listen);
    let is_default = written.is_none();
    let listen = match ssl.bool("/enable", true) {
        true => written.unwrap_or_else(|| vec![(None, 9443, None, false)]),
        false => Vec::new(),
    };
    Ok(Tls {
        listen: addresses(apisix, listen, "/apisix/ssl/listen", others)?,
        is_default,
        protocols: ssl
            .read("/ssl_protocols", shape::tls_protocols)
            .unwrap_or_else(|| vec!["TLSv1.2", "TLSv1.3"])
            .into_iter()
            .map(str::to_owned)
            .collect(),
        ciphers: ssl.text("/ssl_ciphers").map(|names| {
            names.split([':', ' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        }),
        tickets: ssl.bool("/ssl_session_tickets", true),
        session_timeout: ssl.time("/ssl_session_timeout", 3600),
        trusted: ssl.text("/ssl_trusted_certificate").filter(|path| *path != "system").map(Into::into),
        fallback_sni: ssl.text("/fallback_sni").map(str::to_owned),
        handshake_timeout: ssl.time("/handshake_timeout", 10),
    })
}

fn admin(file: File<'_>, role: Role) -> Result<Admin, Invalid> {
    let admin = file.below("/deployment/admin");
    let unset = || vec![AdminKey { name: "admin".to_owned(), key: String::new(), role: AdminRole::Admin }];
    let local = || vec![ipnet::Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 24).into()];
    Ok(Admin {
        enabled: role != Role::DataPlane && file.bool("/apisix/enable_admin", true),
        listen: admin.address("/admin_listen", LOCALHOST, 9180),
        on_node_listen: file.bool("/apisix/enable_admin_on_node_listen", false),
        key_required: admin.bool("/admin_key_required", true),
        keys: admin
            .read("/admin_key", |value| shape::list(value, shape::admin_key))
            // With an empty list nobody could come in, not even with the generated key.
            .filter(|keys| !keys.is_empty())
            .unwrap_or_else(unset),
        hosts: admin.texts("/hosts").unwrap_or_default(),
        allow: admin.read("/allow_admin", |value| shape::list(value, shape::network)).unwrap_or_else(local),
        cors: admin.bool("/enable_admin_cors", true),
        version: match admin.text("/admin_api_version") {
            // "default" is the second for APISIX, too.
            Some("v2" | "default") => AdminVersion::V2,
            _ => AdminVersion::V3,
        },
        limits: admin_limits(admin)?,
        tls: admin_tls(admin)?,
    })
}

fn admin_tls(admin: File<'_>) -> Result<Option<AdminTls>, Invalid> {
    if !admin.bool("/https_admin", false) {
        return Ok(None);
    }
    let path = |name: &str| admin.text(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let ca = path("/admin_api_mtls/admin_ssl_ca_cert");
    match (path("/admin_api_mtls/admin_ssl_cert"), path("/admin_api_mtls/admin_ssl_cert_key")) {
        (Some(cert), Some(key)) => Ok(Some(AdminTls { cert, key, ca })),
        _ => Err(Invalid::new("missing ssl cert for https admin")
            .at("/deployment/admin/https_admin")
            .expected("`admin_api_mtls` with `admin_ssl_cert` and `admin_ssl_cert_key`")),
    }
}

fn admin_limits(admin: File<'_>) -> Result<AdminLimits, Invalid> {
    let count = |name, default| usize::try_from(admin.count(name, default)).unwrap_or(usize::MAX);
    // Without any time nobody could ask.
    let time = |name: &str, default| match admin.time(name, default) {
        Duration::ZERO => Err(Invalid::new("a time of 0 would refuse every client")
            .at(format!("/deployment/admin{name}"))
            .expected("a time above 0")
            .got("0")),
        time => Ok(time),
    };
    Ok(AdminLimits {
        connections: count("/max_connections", 256),
        refused_connections: count("/max_refused_connections", 16),
        client_header_timeout: time("/client_header_timeout", 10)?,
        client_body_timeout: time("/client_body_timeout", 30)?,
        send_timeout: time("/send_timeout", 30)?,
        connection_timeout: time("/connection_timeout", 600)?,
        failed_keys: u32::try_from(admin.count("/max_failed_keys", 60)).unwrap_or(u32::MAX),
        outcome_wait: admin.read("/outcome_wait", shape::time).unwrap_or(Duration::from_millis(20)),
    })
}

fn proxy_cache(apisix: File<'_>) -> ProxyCache {
    let zones = || {
        vec![
            Zone {
                name: "disk_cache_one".to_owned(),
                memory_size: 50 << 20,
                disk: Some(Disk { size: 1 << 30, path: "/tmp/disk_cache_one".into(), levels: vec![1, 2] }),
            },
            Zone { name: "memory_cache".to_owned(), memory_size: 50 << 20, disk: None },
        ]
    };
    ProxyCache {
        ttl: apisix.time("/proxy_cache/cache_ttl", 10),
        read_timeout: apisix.time("/proxy_cache/disk_read_timeout", 5),
        zones: apisix.read("/proxy_cache/zones", shape::zones).unwrap_or_else(zones),
    }
}

fn resolver(apisix: File<'_>) -> Result<Resolver, Invalid> {
    let mut servers = Vec::new();
    for (at, text) in apisix.texts("/dns_resolver").into_iter().flatten().enumerate() {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        let server = text.parse().ok().or_else(|| Some(SocketAddr::new(bare.parse().ok()?, 53)));
        servers.push(server.ok_or_else(|| {
            Invalid::new(format!("expected an address of a DNS server, got `{text}`"))
                .at(format!("/apisix/dns_resolver/{at}"))
                .expected("an IP address, with or without a port")
        })?);
    }
    Ok(Resolver {
        servers,
        valid: apisix.get("/dns_resolver_valid").map(|_| apisix.time("/dns_resolver_valid", 0)),
        timeout: apisix.time("/resolver_timeout", 5),
        search: apisix.bool("/enable_resolv_search_opt", true),
        ipv6: apisix.bool("/enable_ipv6", true),
    })
}

fn workers(file: File<'_>, lookup: Lookup<'_>) -> Result<Workers, Invalid> {
    if file.bool("/apisix/enable_dev_mode", false) {
        return Ok(Workers::Count(1));
    }
    match file.read("/nginx_config/worker_processes", shape::workers) {
        Some(Workers::Count(count)) => Ok(Workers::Count(count)),
        // Containers without a cgroup limit say it in the environment.
        Some(Workers::Auto) | None => match lookup("APISIX_WORKER_PROCESSES") {
            Some(text) => shape::workers(&Value::from(text)).map_err(|invalid| {
                invalid
                    .said("environment variable APISIX_WORKER_PROCESSES: ")
                    .at("/nginx_config/worker_processes")
            }),
            None => Ok(Workers::Auto),
        },
    }
}

fn log_level(nginx: File<'_>) -> LogLevel {
    const LEVELS: [LogLevel; 8] = [
        LogLevel::Debug,
        LogLevel::Info,
        LogLevel::Notice,
        LogLevel::Warn,
        LogLevel::Error,
        LogLevel::Crit,
        LogLevel::Alert,
        LogLevel::Emerg,
    ];
    let named = nginx.text("/error_log_level");
    let at = keys::LOG_LEVELS.iter().position(|name| Some(*name) == named);
    at.map_or(LogLevel::Warn, |at| LEVELS[at])
}

fn http(http: File<'_>) -> Result<Http, Invalid> {
    let size = |pointer: &str| http.read(pointer, shape::size);
    let large = http.read("/large_client_header_buffers", shape::buffers);
    let max_head_size = match (size("/client_header_buffer_size"), large) {
        (None, None) => 64 << 10,
        (small, large) => small.unwrap_or(0).max(large.unwrap_or(0)),
    };
    // Less cannot hold a request line and a Host; more would let each connection hold that much.
    if !(1 << 10..=16 << 20).contains(&max_head_size) {
        let at = if large.is_some() { "large_client_header_buffers" } else { "client_header_buffer_size" };
        return Err(Invalid::new(format!("a request's head cannot be bounded by {max_head_size} bytes"))
            .at(format!("/nginx_config/http/{at}"))
            .expected("from 1k to 16m in all"));
    }
    let access_log = match http.bool("/enable_access_log", true) {
        true => access_log(http, "/nginx_config/http", "logs/access.log", ACCESS_LOG_FORMAT)?,
        false => None,
    };
    let max_response_head_size = size("/proxy_buffer_size").unwrap_or(64 << 10);
    if !(1 << 10..=16 << 20).contains(&max_response_head_size) {
        return Err(Invalid::new(format!(
            "a response's head cannot be bounded by {max_response_head_size} bytes"
        ))
        .at("/nginx_config/http/proxy_buffer_size")
        .expected("from 1k to 16m"));
    }
    let networks = |value| shape::list(value, shape::real_ip_from);
    let from = http.read("/real_ip_from", networks).unwrap_or_else(|| vec![Some(LOCALHOST.into())]);
    Ok(Http {
        keepalive_timeout: http.time("/keepalive_timeout", 60),
        keepalive_min_timeout: http.time("/keepalive_min_timeout", 1),
        keepalive_requests: http.count("/keepalive_requests", 10_000),
        http2: http2(http),
        http3: http3(http)?,
        client_header_timeout: http.time("/client_header_timeout", 10),
        client_body_timeout: http.time("/client_body_timeout", 60),
        send_timeout: http.time("/send_timeout", 10),
        half_close_timeout: http.time("/half_close_timeout", 2),
        plugin_wait_timeout: http.time("/plugin_wait_timeout", 600),
        background_threads: http.read("/background_threads", shape::workers).unwrap_or(Workers::Auto),
        lingering_time: http.time("/lingering_time", 1),
        lingering_bytes: size("/lingering_bytes").unwrap_or(64 << 10),
        client_max_body_size: size("/client_max_body_size").filter(|bytes| *bytes > 0),
        max_hops: Some(http.count("/max_hops", 16)).filter(|hops| *hops > 0),
        max_head_size,
        max_header_fields: http.count("/max_header_fields", 100),
        max_plugin_requests: http.count("/max_plugin_requests", 1024),
        max_plugin_requests_per_target: http.count("/max_plugin_requests_per_target", 64),
        max_response_head_size,
        max_response_header_fields: http.count("/max_response_header_fields", 1000),
        held_bodies: size("/held_bodies").unwrap_or(256 << 20),
        stream_windows: size("/stream_windows").unwrap_or(256 << 20),
        upstream_windows: size("/upstream/http2_windows").unwrap_or(256 << 20),
        send_windows: size("/send_windows").unwrap_or(64 << 20),
        held_log_entries: size("/held_log_entries").unwrap_or(64 << 20),
        underscores_in_headers: http.bool("/underscores_in_headers", true),
        proxy_buffering: http.bool("/proxy_buffering", true),
        real_ip: RealIp {
            header: http.text("/real_ip_header").unwrap_or("X-Real-IP").to_owned(),
            recursive: http.bool("/real_ip_recursive", false),
            from: from.into_iter().flatten().collect(),
        },
        access_log,
        upstream: UpstreamKeepalive {
            size: http.count("/upstream/keepalive", 320),
            requests: http.count("/upstream/keepalive_requests", 1000),
            timeout: http.time("/upstream/keepalive_timeout", 60),
            total: http.count("/upstream/keepalive_total", 4096),
            default_retries: http.count("/upstream/default_retries", 32),
            attempt_delay: http
                .read("/upstream/connection_attempt_delay", shape::time)
                .unwrap_or(Duration::from_millis(250)),
        },
        shared_dicts: members(http, "/lua_shared_dict", shape::size),
    })
}

fn http2(http: File<'_>) -> Http2 {
    let size = |name: &str, default| http.read(name, shape::size).unwrap_or(default);
    Http2 {
        max_concurrent_streams: http.count("/http2_max_concurrent_streams", 128),
        body_preread_size: size("/http2_body_preread_size", 64 << 10).clamp(1 << 10, 16 << 20),
        send_buffer: size("/http2_send_buffer", 32 << 10).clamp(1 << 10, 16 << 20),
        control_frames: http.count("/http2_control_frames", 1000),
        stream_errors: http.count("/http2_stream_errors", 100),
        unread: size("/http2_unread", 4 << 20),
        keepalive_time: http.time("/keepalive_time", 3600),
        upstream_streams: http.count("/upstream/http2_streams", 100),
        stall_timeout: http.time("/upstream/http2_stall_timeout", 10),
    }
}

fn http3(http: File<'_>) -> Result<Http3, Invalid> {
    let size = |name: &str, default| http.read(name, shape::size).unwrap_or(default);
    let alt_svc = http.text("/http3_alt_svc").unwrap_or("h3=\":$server_port\"; ma=86400");
    if !alt_svc.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(Invalid::new("`Alt-Svc` is made of printable ASCII characters")
            .at("/nginx_config/http/http3_alt_svc")
            .expected("a text such as `h3=\":443\"; ma=86400`, or an empty one for no such header"));
    }
    Ok(Http3 {
        max_concurrent_streams: http.count("/http3_max_concurrent_streams", 128),
        stream_buffer_size: size("/http3_stream_buffer_size", 64 << 10).clamp(1 << 10, 16 << 20),
        send_buffer: size("/http3_send_buffer", 1 << 20).clamp(16 << 10, 64 << 20),
        idle_timeout: http.time("/http3_idle_timeout", 60),
        handshakes: http.count("/http3_handshakes", 1000),
        retry: http.bool("/quic_retry", false),
        retry_handshakes: http.count("/http3_retry_handshakes", 100),
        alt_svc: alt_svc.trim().to_owned(),
    })
}

/// APISIX 3.18's `access_log_format`.
const ACCESS_LOG_FORMAT: &str = "$remote_addr - $remote_user [$time_local] $http_host \"$request\" $status \
    $body_bytes_sent $request_time \"$http_referer\" \"$http_user_agent\" $upstream_addr $upstream_status \
    $upstream_response_time \"$upstream_scheme://$upstream_host$upstream_uri\" \"$apisix_request_id\"";

/// The settings of an access log. The caller knows whether it is on unless they say so.
pub(super) fn access_log(
    section: File<'_>,
    pointer: &str,
    default_path: &str,
    default_format: &str,
) -> Result<Option<AccessLog>, Invalid> {
    let written = section.read("/access_log", shape::access_log);
    let Some(path) = written.unwrap_or(Some(default_path)) else { return Ok(None) };
    let size = |name: &str, default, least: u64, most: u64| {
        let bytes = section.read(name, shape::size).unwrap_or(default);
        if (least..=most).contains(&bytes) {
            return Ok(bytes);
        }
        Err(Invalid::new(format!("{bytes} bytes are more than this machine can address"))
            .at(format!("{pointer}{name}"))
            .expected(format!("from {least} to {most} bytes"))
            .got(bytes.to_string()))
    };
    let buffer = size("/access_log_buffer", 64 << 10, 1 << 10, 16 << 20)?;
    Ok(Some(AccessLog {
        path: path.to_owned(),
        is_default: written.is_none(),
        format: section.text("/access_log_format").unwrap_or(default_format).to_owned(),
        escape: match section.text("/access_log_format_escape") {
            Some("json") => LogEscape::Json,
            Some("none") => LogEscape::None,
            _ => LogEscape::Default,
        },
        buffer,
        queue: size("/access_log_queue", (1 << 20).max(2 * buffer), buffer, 1 << 30)?,
        flush: section.time("/access_log_flush", 1),
    }))
}

fn provider(file: File<'_>, role: Role) -> Result<Provider, Invalid> {
    let pointer = match role {
        Role::Traditional => "/deployment/role_traditional/config_provider",
        Role::DataPlane => "/deployment/role_data_plane/config_provider",
        Role::ControlPlane => "/deployment/role_control_plane/config_provider",
    };
    match file.read(pointer, shape::provider) {
        Some(provider) => Ok(provider),
        // As in APISIX, where etcd is what an absent provider means.
        None if file.get("/deployment/etcd/host").is_some() => Ok(Provider::Etcd),
        // Without an Admin API nobody could write to the embedded store.
        None if role == Role::DataPlane => Err(Invalid::new("a data plane needs a `config_provider`")
            .at("/deployment/role")
            .expected("`role_data_plane.config_provider`, etcd, yaml or json")
            .got("none")
            .hint("add `role_data_plane:` with `config_provider: yaml` under `deployment`")),
        None => Ok(Provider::Embedded),
    }
}

fn prometheus(attr: File<'_>) -> Prometheus {
    let metrics = attr.below("/metrics");
    Prometheus {
        export_uri: attr.text("/export_uri").unwrap_or("/apisix/prometheus/metrics").to_owned(),
        metric_prefix: attr.text("/metric_prefix").unwrap_or("apisix_").to_owned(),
        export: attr
            .bool("/enable_export_server", true)
            .then(|| attr.address("/export_addr", LOCALHOST, 9091)),
        connections: usize::try_from(attr.count("/max_connections", 32)).unwrap_or(usize::MAX).max(1),
        send_timeout: attr.time("/send_timeout", 10),
        default_buckets: attr.read("/default_buckets", shape::buckets),
        extra_labels: members(metrics, "", |metric| {
            File(metric)
                .read("/extra_labels", |value| shape::list(value, shape::label))
                .ok_or_else(|| Invalid::new("no labels"))
        }),
        expire: members(metrics, "", |metric| {
            let expire = File(metric).time("/expire", 0);
            if expire.is_zero() { Err(Invalid::new("for ever")) } else { Ok(expire) }
        }),
    }
}

/// What `read` makes of each member of a map, leaving out those it makes nothing of.
fn members<'a, T>(
    file: File<'a>,
    pointer: &str,
    read: impl Fn(&'a Value) -> Result<T, Invalid>,
) -> IndexMap<String, T> {
    let map = file.get(pointer).and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, value)| Some((name.clone(), read(value).ok()?))).collect()
}
