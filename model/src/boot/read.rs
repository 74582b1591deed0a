//! From a checked `config.yaml` to its types, defaults filled in.
//!
//! Every default is in the table of [`keys`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::Value;

use super::section::Section;
use super::values;
use super::{
    AccessLog, Admin, AdminLimits, AdminTls, AdminVersion, Boot, Conditions, DataEncryption, Explain,
    History, Http, Http2, Http3, Listen, LogEscape, LogLevel, Lua, Prometheus, Provider, ProxyCache, RealIp,
    Resolver, Role, Router, Runner, Secrets, Tls, UpstreamKeepalive, UriOptions, Wasm, Workers, wildcard,
};
use super::{etcd, ports, streams, wasm};
use crate::Invalid;
use crate::document::Lookup;

/// Reads a file that fits its shapes.
pub fn boot(value: &Value, lookup: Lookup<'_>) -> Result<Boot, Invalid> {
    let file = Section::of(value);
    let (apisix, nginx) = (file.below("/apisix"), file.below("/nginx_config"));
    let role = match file.text("/deployment/role") {
        Some("data_plane") => Role::DataPlane,
        Some("control_plane") => Role::ControlPlane,
        _ => Role::Traditional,
    };
    let listen = listen(apisix)?;
    let boot = Boot {
        tls: tls(apisix, &listen)?,
        listen,
        http2: apisix.bool("/enable_http2"),
        proxy_mode: streams::proxy_mode(file),
        proxy_protocol: streams::proxy_protocol(file),
        streams: streams::streams(file)?,
        admin: admin(file, role)?,
        router: match apisix.text("/router/http") {
            Some("radixtree_uri") => Router::Uri,
            Some("radixtree_uri_with_parameter") => Router::UriWithParameter,
            _ => Router::HostUri,
        },
        uri: UriOptions {
            delete_tail_slash: apisix.bool("/delete_uri_tail_slash"),
            normalize_like_servlet: apisix.bool("/normalize_uri_like_servlet"),
            merge_slashes: file.bool("/sluice/path/merge_slashes"),
            resolve_dots: file.bool("/sluice/path/resolve_dots"),
            decode_unreserved: file.bool("/sluice/path/decode_unreserved"),
        },
        conditions: Conditions {
            body: Some(apisix.count("/max_post_args_readable_size") << 20).filter(|bytes| *bytes > 0),
            graphql: file.count("/graphql/max_size"),
        },
        proxy_cache: proxy_cache(apisix),
        data_encryption: DataEncryption {
            enabled: apisix.bool("/data_encryption/enable_encrypt_fields"),
            keyring: apisix.value("/data_encryption/keyring", values::keyring),
        },
        control: apisix.bool("/enable_control").then(|| file.address("/apisix/control")),
        status: apisix.get("/status").map(|_| file.address("/apisix/status")),
        server_tokens: apisix.bool("/enable_server_tokens"),
        show_upstream_status: apisix.bool("/show_upstream_status_in_response_header"),
        resolver: resolver(apisix)?,
        secrets: Secrets {
            ttl: apisix.time("/lru/secret/ttl"),
            neg_ttl: apisix.time("/lru/secret/neg_ttl"),
            timeout: file.time("/sluice/secrets/timeout"),
            max_requests: file.count("/sluice/secrets/max_requests"),
        },
        discovery: file.get("/discovery").and_then(Value::as_object).cloned().unwrap_or_default(),
        health_checks: !apisix.bool("/disable_upstream_healthcheck"),
        trusted_addresses: apisix.read("/trusted_addresses", |value| values::list(value, values::network)),
        workers: workers(file, lookup)?,
        accept_wait: nginx.time("/event/accept_wait"),
        worker_connections: nginx.count("/event/worker_connections"),
        shutdown_timeout: nginx.time("/worker_shutdown_timeout"),
        acme: super::acme::acme(file)?,
        upgrade_timeout: file.time("/sluice/upgrade_timeout"),
        log_level: log_level(nginx),
        error_log: nginx.text("/error_log").map(str::to_owned),
        error_log_json: nginx.text("/error_log_format") == Some("json"),
        http: http(file.below("/nginx_config/http"))?,
        id: apisix.read("/id", values::id).cloned(),
        role,
        provider: provider(file, role)?,
        etcd: etcd::etcd(file)?,
        plugins: file.texts("/plugins"),
        history: History {
            revisions: file.count("/sluice/history/revisions"),
            size: file.size("/sluice/history/size"),
        },
        explain: file.read("/sluice/explain/key", values::long_key).map(|key| Explain {
            key: key.to_owned(),
            header: file.value("/sluice/explain/header", values::text).to_owned(),
            size: file.count("/sluice/explain/size"),
        }),
        tap: file.bool("/sluice/tap"),
        strict_plugins: file.bool("/sluice/strict_plugins"),
        lua: Lua {
            paths: apisix
                .text("/extra_lua_path")
                .into_iter()
                .flat_map(|paths| paths.split(';'))
                .filter(|path| !path.trim().is_empty())
                .map(|path| path.trim().to_owned())
                .collect(),
            max_memory: file.size("/sluice/lua/max_memory"),
            max_time: file.time("/sluice/lua/max_time"),
            max_sockets: file.count("/sluice/lua/max_sockets"),
            unix_sockets: file.bool("/sluice/lua/unix_sockets"),
        },
        runner: Runner {
            command: file.texts("/ext-plugin/cmd").unwrap_or_default(),
            path: file.text("/ext-plugin/path_for_test").map(str::to_owned),
            environment: file.texts("/nginx_config/envs").unwrap_or_default(),
        },
        wasm: Wasm {
            plugins: file.read("/wasm/plugins", wasm::plugins).unwrap_or_default(),
            max_memory: file.size("/sluice/wasm/max_memory"),
            max_time: file.time("/sluice/wasm/max_time"),
            max_shared_data: file.size("/sluice/wasm/max_shared_data"),
        },
        prometheus: prometheus(file),
        plugin_attr: file.get("/plugin_attr").and_then(Value::as_object).cloned().unwrap_or_default(),
    };
    ports::check(&boot, file)?;
    Ok(boot)
}

fn listen(apisix: Section<'_>) -> Result<Vec<Listen>, Invalid> {
    addresses(apisix, apisix.value("/node_listen", values::listen), "/apisix/node_listen", &[])
}

/// Addresses of the same kind, different from each other and from those there are.
fn addresses(
    apisix: Section<'_>,
    written: Vec<values::ListenEntry>,
    pointer: &str,
    others: &[Listen],
) -> Result<Vec<Listen>, Invalid> {
    let everywhere = apisix.bool("/enable_http2");
    let ipv6 = apisix.bool("/enable_ipv6");
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

fn tls(apisix: Section<'_>, others: &[Listen]) -> Result<Tls, Invalid> {
    let ssl = apisix.below("/apisix/ssl");
    let listen = match ssl.bool("/enable") {
        true => ssl.value("/listen", values::tls_listen),
        false => Vec::new(),
    };
    Ok(Tls {
        listen: addresses(apisix, listen, "/apisix/ssl/listen", others)?,
        is_default: ssl.get("/listen").is_none(),
        protocols: ssl
            .value("/ssl_protocols", values::tls_protocols)
            .into_iter()
            .map(str::to_owned)
            .collect(),
        ciphers: ssl.text("/ssl_ciphers").map(|names| {
            names.split([':', ' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        }),
        tickets: ssl.bool("/ssl_session_tickets"),
        session_timeout: ssl.time("/ssl_session_timeout"),
        trusted: ssl.text("/ssl_trusted_certificate").filter(|path| *path != "system").map(Into::into),
        fallback_sni: ssl.text("/fallback_sni").map(str::to_owned),
        handshake_timeout: ssl.time("/handshake_timeout"),
    })
}

fn admin(file: Section<'_>, role: Role) -> Result<Admin, Invalid> {
    let admin = file.below("/deployment/admin");
    let keys = |value| match values::list(value, values::admin_key)? {
        // With an empty list no client could come in, not even with the generated key.
        keys if keys.is_empty() => Err(Invalid::new("no keys")),
        keys => Ok(keys),
    };
    Ok(Admin {
        enabled: role != Role::DataPlane && file.bool("/apisix/enable_admin"),
        listen: file.address("/deployment/admin/admin_listen"),
        on_node_listen: file.bool("/apisix/enable_admin_on_node_listen"),
        key_required: admin.bool("/admin_key_required"),
        keys: admin.value("/admin_key", keys),
        hosts: admin.texts("/hosts").unwrap_or_default(),
        allow: admin.value("/allow_admin", |value| values::list(value, values::network)),
        cors: admin.bool("/enable_admin_cors"),
        ui: admin.bool("/enable_admin_ui"),
        version: match admin.text("/admin_api_version") {
            // "default" is the second for APISIX, too.
            Some("v2" | "default") => AdminVersion::V2,
            _ => AdminVersion::V3,
        },
        limits: admin_limits(admin)?,
        tls: admin_tls(admin)?,
    })
}

fn admin_tls(admin: Section<'_>) -> Result<Option<AdminTls>, Invalid> {
    if !admin.bool("/https_admin") {
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

fn admin_limits(admin: Section<'_>) -> Result<AdminLimits, Invalid> {
    let count = |name| usize::try_from(admin.count(name)).unwrap_or(usize::MAX);
    let time = |name: &str| match admin.time(name) {
        Duration::ZERO => Err(Invalid::new("a time of 0 would refuse every client")
            .at(format!("/deployment/admin{name}"))
            .expected("a time above 0")
            .got("0")),
        time => Ok(time),
    };
    Ok(AdminLimits {
        connections: count("/max_connections"),
        refused_connections: count("/max_refused_connections"),
        client_header_timeout: time("/client_header_timeout")?,
        client_body_timeout: time("/client_body_timeout")?,
        send_timeout: time("/send_timeout")?,
        connection_timeout: time("/connection_timeout")?,
        failed_keys: u32::try_from(admin.count("/max_failed_keys")).unwrap_or(u32::MAX),
        outcome_wait: admin.time("/outcome_wait"),
    })
}

fn proxy_cache(apisix: Section<'_>) -> ProxyCache {
    ProxyCache {
        ttl: apisix.time("/proxy_cache/cache_ttl"),
        read_timeout: apisix.time("/proxy_cache/disk_read_timeout"),
        zones: apisix.value("/proxy_cache/zones", values::zones),
    }
}

fn resolver(apisix: Section<'_>) -> Result<Resolver, Invalid> {
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
        valid: apisix.read("/dns_resolver_valid", values::time),
        timeout: apisix.time("/resolver_timeout"),
        search: apisix.bool("/enable_resolv_search_opt"),
        ipv6: apisix.bool("/enable_ipv6"),
    })
}

fn workers(file: Section<'_>, lookup: Lookup<'_>) -> Result<Workers, Invalid> {
    if file.bool("/apisix/enable_dev_mode") {
        return Ok(Workers::Count(1));
    }
    match file.value("/nginx_config/worker_processes", values::workers) {
        Workers::Count(count) => Ok(Workers::Count(count)),
        // Containers without a cgroup limit say it in the environment.
        Workers::Auto => match lookup("APISIX_WORKER_PROCESSES") {
            Some(text) => values::workers(&Value::from(text)).map_err(|invalid| {
                invalid
                    .said("environment variable APISIX_WORKER_PROCESSES: ")
                    .at("/nginx_config/worker_processes")
            }),
            None => Ok(Workers::Auto),
        },
    }
}

fn log_level(nginx: Section<'_>) -> LogLevel {
    match nginx.text("/error_log_level") {
        Some("debug") => LogLevel::Debug,
        Some("info") => LogLevel::Info,
        Some("notice") => LogLevel::Notice,
        Some("error") => LogLevel::Error,
        Some("crit") => LogLevel::Crit,
        Some("alert") => LogLevel::Alert,
        Some("emerg") => LogLevel::Emerg,
        _ => LogLevel::Warn,
    }
}

fn http(http: Section<'_>) -> Result<Http, Invalid> {
    let large = http.get("/large_client_header_buffers").is_some();
    let max_head_size = match http.read("/client_header_buffer_size", values::size) {
        Some(small) if !large => small,
        small => small.unwrap_or(0).max(http.value("/large_client_header_buffers", values::buffers)),
    };
    // Less cannot hold a request line and a Host; more would let each connection hold that much.
    if !(1 << 10..=16 << 20).contains(&max_head_size) {
        let at = if large { "large_client_header_buffers" } else { "client_header_buffer_size" };
        return Err(Invalid::new(format!("a request's head cannot be bounded by {max_head_size} bytes"))
            .at(format!("/nginx_config/http/{at}"))
            .expected("from 1k to 16m in all"));
    }
    let max_response_head_size = http.size("/proxy_buffer_size");
    if !(1 << 10..=16 << 20).contains(&max_response_head_size) {
        return Err(Invalid::new(format!(
            "a response's head cannot be bounded by {max_response_head_size} bytes"
        ))
        .at("/nginx_config/http/proxy_buffer_size")
        .expected("from 1k to 16m"));
    }
    let from = http.value("/real_ip_from", |value| values::list(value, values::real_ip_from));
    Ok(Http {
        keepalive_timeout: http.time("/keepalive_timeout"),
        keepalive_min_timeout: http.time("/keepalive_min_timeout"),
        keepalive_requests: http.count("/keepalive_requests"),
        http2: http2(http),
        http3: http3(http)?,
        client_header_timeout: http.time("/client_header_timeout"),
        client_body_timeout: http.time("/client_body_timeout"),
        send_timeout: http.time("/send_timeout"),
        half_close_timeout: http.time("/half_close_timeout"),
        plugin_wait_timeout: http.time("/plugin_wait_timeout"),
        background_threads: http.value("/background_threads", values::workers),
        lingering_time: http.time("/lingering_time"),
        lingering_bytes: http.size("/lingering_bytes"),
        client_max_body_size: Some(http.size("/client_max_body_size")).filter(|bytes| *bytes > 0),
        max_hops: Some(http.count("/max_hops")).filter(|hops| *hops > 0),
        max_head_size,
        max_header_fields: http.count("/max_header_fields"),
        max_plugin_requests: http.count("/max_plugin_requests"),
        max_plugin_requests_per_target: http.count("/max_plugin_requests_per_target"),
        max_plugin_connections: http.count("/max_plugin_connections"),
        max_resolved_names: http.count("/max_resolved_names"),
        max_response_head_size,
        max_response_header_fields: http.count("/max_response_header_fields"),
        held_bodies: http.size("/held_bodies"),
        stream_windows: http.size("/stream_windows"),
        upstream_windows: http.size("/upstream/http2_windows"),
        send_windows: http.size("/send_windows"),
        held_log_entries: http.size("/held_log_entries"),
        underscores_in_headers: http.bool("/underscores_in_headers"),
        proxy_buffering: http.bool("/proxy_buffering"),
        real_ip: RealIp {
            header: http.value("/real_ip_header", values::text).to_owned(),
            recursive: http.bool("/real_ip_recursive"),
            from: from.into_iter().flatten().collect(),
        },
        access_log: access_log(http)?,
        upstream: UpstreamKeepalive {
            size: http.count("/upstream/keepalive"),
            requests: http.count("/upstream/keepalive_requests"),
            timeout: http.time("/upstream/keepalive_timeout"),
            total: http.count("/upstream/keepalive_total"),
            default_retries: http.count("/upstream/default_retries"),
            attempt_delay: http.time("/upstream/connection_attempt_delay"),
        },
        shared_dicts: members(http, "/lua_shared_dict", values::size),
        script_dicts: members(http, "/custom_lua_shared_dict", values::size),
    })
}

fn http2(http: Section<'_>) -> Http2 {
    Http2 {
        max_concurrent_streams: http.count("/http2_max_concurrent_streams"),
        body_preread_size: http.size("/http2_body_preread_size"),
        send_buffer: http.size("/http2_send_buffer"),
        control_frames: http.count("/http2_control_frames"),
        stream_errors: http.count("/http2_stream_errors"),
        unread: http.size("/http2_unread"),
        keepalive_time: http.time("/keepalive_time"),
        upstream_streams: http.count("/upstream/http2_streams"),
        stall_timeout: http.time("/upstream/http2_stall_timeout"),
    }
}

fn http3(http: Section<'_>) -> Result<Http3, Invalid> {
    let alt_svc = http.value("/http3_alt_svc", values::text);
    if !alt_svc.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(Invalid::new("`Alt-Svc` is made of printable ASCII characters")
            .at("/nginx_config/http/http3_alt_svc")
            .expected("a text such as `h3=\":443\"; ma=86400`, or an empty one for no such header"));
    }
    Ok(Http3 {
        max_concurrent_streams: http.count("/http3_max_concurrent_streams"),
        stream_buffer_size: http.size("/http3_stream_buffer_size"),
        send_buffer: http.size("/http3_send_buffer"),
        idle_timeout: http.time("/http3_idle_timeout"),
        handshakes: http.count("/http3_handshakes"),
        retry: http.bool("/quic_retry"),
        retry_handshakes: http.count("/http3_retry_handshakes"),
        alt_svc: alt_svc.trim().to_owned(),
    })
}

/// The settings of an access log.
pub(super) fn access_log(section: Section<'_>) -> Result<Option<AccessLog>, Invalid> {
    if !section.bool("/enable_access_log") {
        return Ok(None);
    }
    let Some(path) = section.value("/access_log", values::access_log) else { return Ok(None) };
    let within = |name: &str, bytes: u64, least: u64, most: u64| {
        if (least..=most).contains(&bytes) {
            return Ok(bytes);
        }
        Err(Invalid::new(format!("{bytes} bytes are more than this machine can address"))
            .at(format!("{}{name}", section.at))
            .expected(format!("from {least} to {most} bytes"))
            .got(bytes.to_string()))
    };
    let buffer = within("/access_log_buffer", section.size("/access_log_buffer"), 1 << 10, 16 << 20)?;
    let queue = section.size("/access_log_queue");
    // By default there is room for a second buffer while the first is written.
    let queue = if section.get("/access_log_queue").is_some() { queue } else { queue.max(2 * buffer) };
    Ok(Some(AccessLog {
        path: path.to_owned(),
        is_default: section.get("/access_log").is_none(),
        format: section.value("/access_log_format", values::text).to_owned(),
        escape: match section.text("/access_log_format_escape") {
            Some("json") => LogEscape::Json,
            Some("none") => LogEscape::None,
            _ => LogEscape::Default,
        },
        buffer,
        queue: within("/access_log_queue", queue, buffer, 1 << 30)?,
        flush: section.time("/access_log_flush"),
    }))
}

fn provider(file: Section<'_>, role: Role) -> Result<Provider, Invalid> {
    let pointer = match role {
        Role::Traditional => "/deployment/role_traditional/config_provider",
        Role::DataPlane => "/deployment/role_data_plane/config_provider",
        Role::ControlPlane => "/deployment/role_control_plane/config_provider",
    };
    match file.read(pointer, values::provider) {
        Some(provider) => Ok(provider),
        // As in APISIX, where etcd is what an absent provider means.
        None if file.get("/deployment/etcd/host").is_some() => Ok(Provider::Etcd),
        // A data plane has no Admin API to write to an embedded store.
        None if role == Role::DataPlane => Err(Invalid::new("a data plane needs a `config_provider`")
            .at("/deployment/role")
            .expected("`role_data_plane.config_provider`, etcd, yaml or json")
            .got("none")
            .hint("add `role_data_plane:` with `config_provider: yaml` under `deployment`")),
        None => Ok(Provider::Embedded),
    }
}

fn prometheus(file: Section<'_>) -> Prometheus {
    let attr = file.below("/plugin_attr/prometheus");
    Prometheus {
        export_uri: attr.value("/export_uri", values::text).to_owned(),
        export: attr
            .bool("/enable_export_server")
            .then(|| file.address("/plugin_attr/prometheus/export_addr")),
        connections: attr.number("/max_connections"),
        send_timeout: attr.time("/send_timeout"),
    }
}

/// Reads each member of a map with `read`, leaving out those that it refuses.
fn members<'a, T>(
    file: Section<'a>,
    pointer: &str,
    read: impl Fn(&'a Value) -> Result<T, Invalid>,
) -> IndexMap<String, T> {
    let map = file.get(pointer).and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, value)| Some((name.clone(), read(value).ok()?))).collect()
}
