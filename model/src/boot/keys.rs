//! The keys `config.yaml` may hold: APISIX 3.18's, and a few of ours.
//!
//! This table is the only place that names them all. A key is used, or it is
//! accepted with a warning that says why it has no effect here; any other gets a
//! warning that names the nearest one. Keys of ours are marked so. What is not
//! built yet has its reason in [`gaps`](crate::gaps).

use super::shape::Shape;
use super::streams;
use crate::gaps;

/// One key.
pub struct Row {
    /// Names joined with dots; `*` is any name.
    pub path: &'static str,
    pub shape: Shape,
    /// Why the key has no effect here; `None` for those that have one.
    pub idle: Option<&'static str>,
    /// The value of an idle key, as JSON, that says what happens anyway and so needs no warning.
    pub anyway: &'static str,
}

const fn used(path: &'static str, shape: Shape) -> Row {
    Row { path, shape, idle: None, anyway: "" }
}

const fn idle(path: &'static str, why: &'static str) -> Row {
    Row { path, shape: Shape::Any, idle: Some(why), anyway: "" }
}

const fn idle_unless(path: &'static str, anyway: &'static str, why: &'static str) -> Row {
    Row { path, shape: Shape::Any, idle: Some(why), anyway }
}

const LUA: &str = "it is about Lua, and plugins here are native";
const NO_NGINX: &str = "it goes into nginx.conf, and there is no nginx underneath";
const SIZED_ALONE: &str = "this memory is sized by itself";
const WATCHED: &str = "a watch stays for as long as etcd answers on it, which is looked at all the time";
const SOON: &str = "etcd is tried again at once, then less and less often, at least once a second";
const ANY_MEMBER: &str = "a member that does not answer is left for the next one at once";
const DEFAULT_NODE: &str = "the node has the weight that `weight` says, and is no worse than others";
const POLLED: &str = "the keys are asked for every `fetch_interval` seconds";
const STREAMED: &str = "bodies are always streamed";

pub const ROUTERS: &[&str] = &["radixtree_host_uri", "radixtree_uri", "radixtree_uri_with_parameter"];
pub const LOG_LEVELS: &[&str] = &["debug", "info", "notice", "warn", "error", "crit", "alert", "emerg"];

pub const LOG_ESCAPES: &[&str] = &["default", "json", "none"];

/// Where a list may stand for its one member: each has the same keys.
pub const LISTS: &[&str] = &["discovery.kubernetes"];

/// Every key there is.
pub const ROWS: &[Row] = &[
    used("apisix.node_listen", Shape::Listen),
    used("apisix.enable_admin", Shape::Bool),
    // Ours: serve the Admin API on the data port too, as APISIX 1 and 2 did.
    used("apisix.enable_admin_on_node_listen", Shape::Bool),
    used("apisix.enable_dev_mode", Shape::Bool),
    idle_unless("apisix.enable_reuseport", "true", "each worker always has its own listening socket"),
    used("apisix.show_upstream_status_in_response_header", Shape::Bool),
    used("apisix.enable_ipv6", Shape::Bool),
    used("apisix.enable_http2", Shape::Bool),
    used("apisix.proxy_protocol.listen_http_port", Shape::Port),
    used("apisix.proxy_protocol.listen_https_port", Shape::Port),
    used("apisix.proxy_protocol.enable_tcp_pp", Shape::Bool),
    used("apisix.proxy_protocol.enable_tcp_pp_to_upstream", Shape::Bool),
    // Ours.
    used("apisix.proxy_protocol.trusted_addresses", Shape::Networks),
    used("apisix.enable_server_tokens", Shape::Bool),
    idle_unless("apisix.extra_lua_path", "\"\"", LUA),
    idle_unless("apisix.extra_lua_cpath", "\"\"", LUA),
    idle("apisix.lua_module_hook", LUA),
    used("apisix.proxy_cache.cache_ttl", Shape::Time),
    // Ours.
    used("apisix.proxy_cache.disk_read_timeout", Shape::Time),
    used("apisix.proxy_cache.zones", Shape::Zones),
    used("apisix.delete_uri_tail_slash", Shape::Bool),
    used("apisix.normalize_uri_like_servlet", Shape::Bool),
    idle_unless("apisix.match_uri_encoded_slash", "true", "an encoded slash is never taken for a slash"),
    used("apisix.max_post_args_readable_size", Shape::Count { min: 0, max: 1 << 20 }),
    used("apisix.router.http", Shape::OneOf(ROUTERS)),
    idle_unless("apisix.router.ssl", "\"radixtree_sni\"", "certificates are always matched by server name"),
    used("apisix.proxy_mode", Shape::OneOf(streams::PROXY_MODES)),
    used("apisix.stream_proxy.tcp", Shape::TcpPorts),
    used("apisix.stream_proxy.udp", Shape::UdpPorts),
    // That of APISIX before 3.2, where there is no `proxy_mode`.
    used("apisix.stream_proxy.only", Shape::Bool),
    used("apisix.dns_resolver", Shape::Texts),
    used("apisix.dns_resolver_valid", Shape::Count { min: 0, max: 86_400 * 365 }),
    used("apisix.resolver_timeout", Shape::Time),
    used("apisix.enable_resolv_search_opt", Shape::Bool),
    used("apisix.ssl.enable", Shape::Bool),
    used("apisix.ssl.listen", Shape::TlsListen),
    used("apisix.ssl.ssl_trusted_certificate", Shape::Text),
    used("apisix.ssl.ssl_protocols", Shape::TlsProtocols),
    used("apisix.ssl.ssl_ciphers", Shape::Text),
    used("apisix.ssl.ssl_session_tickets", Shape::Bool),
    // Ours.
    used("apisix.ssl.ssl_session_timeout", Shape::Time),
    used("apisix.ssl.fallback_sni", Shape::Text),
    // Ours.
    used("apisix.ssl.handshake_timeout", Shape::Time),
    idle("apisix.ssl.ssl_cert", "certificates are ssl resources; a name without one is refused"),
    idle("apisix.ssl.ssl_cert_key", "certificates are ssl resources; a name without one is refused"),
    idle("apisix.ssl.key_encrypt_salt", "private keys are encrypted with apisix.data_encryption.keyring"),
    used("apisix.enable_control", Shape::Bool),
    used("apisix.control.ip", Shape::Ip),
    used("apisix.control.port", Shape::Port),
    idle_unless(
        "apisix.control.router",
        "\"radixtree_uri\"",
        "the control API matches each path as it is meant",
    ),
    idle_unless(
        "apisix.disable_sync_configuration_during_start",
        "false",
        "start never waits for the configuration store",
    ),
    idle("apisix.worker_startup_time_threshold", "workers are threads and do not restart"),
    used("apisix.data_encryption.enable_encrypt_fields", Shape::Bool),
    used("apisix.data_encryption.keyring", Shape::Keyring),
    used("apisix.status.ip", Shape::Ip),
    used("apisix.status.port", Shape::Port),
    used("apisix.disable_upstream_healthcheck", Shape::Bool),
    used("apisix.trusted_addresses", Shape::Networks),
    used("apisix.lru.secret.ttl", Shape::Count { min: 1, max: 86_400 * 365 }),
    used("apisix.lru.secret.neg_ttl", Shape::Count { min: 1, max: 86_400 * 365 }),
    idle("apisix.lru.secret.count", SIZED_ALONE),
    idle("apisix.lru.secret.neg_count", SIZED_ALONE),
    idle_unless("apisix.tracing", "false", gaps::TRACING.why),
    used("apisix.id", Shape::Id),
    idle("nginx_config.user", "the process keeps the user that started it"),
    used("nginx_config.error_log", Shape::LogPath),
    used("nginx_config.error_log_level", Shape::OneOf(LOG_LEVELS)),
    used("nginx_config.worker_processes", Shape::Workers),
    idle_unless("nginx_config.enable_cpu_affinity", "false", "the system places the workers"),
    idle(
        "nginx_config.worker_rlimit_nofile",
        "the limit on open files is set outside, by ulimit or LimitNOFILE",
    ),
    used("nginx_config.worker_shutdown_timeout", Shape::Time),
    idle("nginx_config.max_pending_timers", "timers need no limit"),
    idle("nginx_config.max_running_timers", "timers need no limit"),
    idle_unless("nginx_config.event.use", "epoll", "workers wait with epoll"),
    // Ours.
    used("nginx_config.event.accept_wait", Shape::Time),
    used("nginx_config.event.worker_connections", Shape::Count { min: 1, max: 1 << 32 }),
    idle("nginx_config.envs", "all of the environment is visible"),
    idle("nginx_config.meta", SIZED_ALONE),
    used("nginx_config.stream.enable_access_log", Shape::Bool),
    used("nginx_config.stream.access_log", Shape::AccessLog),
    used("nginx_config.stream.access_log_format", Shape::Text),
    used("nginx_config.stream.access_log_format_escape", Shape::OneOf(LOG_ESCAPES)),
    used("nginx_config.stream.real_ip_from", Shape::RealIpFrom),
    // nginx's own, which APISIX leaves to snippets.
    used("nginx_config.stream.proxy_connect_timeout", Shape::Time),
    used("nginx_config.stream.proxy_timeout", Shape::Time),
    used("nginx_config.stream.preread_timeout", Shape::Time),
    used("nginx_config.stream.proxy_protocol_timeout", Shape::Time),
    // Ours.
    used("nginx_config.stream.access_log_buffer", Shape::Size),
    used("nginx_config.stream.access_log_queue", Shape::Size),
    used("nginx_config.stream.access_log_flush", Shape::Time),
    used("nginx_config.stream.udp_timeout", Shape::Time),
    used("nginx_config.stream.max_udp_sessions", Shape::Count { min: 1, max: 1 << 24 }),
    used("nginx_config.stream.udp_queue", Shape::Size),
    used("nginx_config.stream.lua_shared_dict.*", Shape::Size),
    idle("nginx_config.stream.metrics_zone_size", SIZED_ALONE),
    idle("nginx_config.main_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_server_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_server_location_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_admin_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_end_configuration_snippet", NO_NGINX),
    idle("nginx_config.stream_configuration_snippet", NO_NGINX),
    used("nginx_config.http.enable_access_log", Shape::Bool),
    used("nginx_config.http.access_log", Shape::AccessLog),
    used("nginx_config.http.access_log_buffer", Shape::Size),
    used("nginx_config.http.access_log_format", Shape::Text),
    used("nginx_config.http.access_log_format_escape", Shape::OneOf(LOG_ESCAPES)),
    // Ours.
    used("nginx_config.http.access_log_queue", Shape::Size),
    used("nginx_config.http.access_log_flush", Shape::Time),
    used("nginx_config.http.keepalive_timeout", Shape::Time),
    // nginx 1.27.4's.
    used("nginx_config.http.keepalive_min_timeout", Shape::Time),
    // nginx's own, which APISIX leaves at 1000.
    used("nginx_config.http.keepalive_requests", Shape::Count { min: 1, max: 1 << 53 }),
    // nginx's; of HTTP/2 alone.
    used("nginx_config.http.keepalive_time", Shape::Time),
    used("nginx_config.http.http2_max_concurrent_streams", Shape::Count { min: 1, max: 10_000 }),
    used("nginx_config.http.http2_body_preread_size", Shape::Size),
    // Ours.
    used("nginx_config.http.http2_send_buffer", Shape::Size),
    used("nginx_config.http.http2_control_frames", Shape::Count { min: 100, max: 1 << 30 }),
    used("nginx_config.http.http2_stream_errors", Shape::Count { min: 1, max: 1 << 30 }),
    used("nginx_config.http.http2_unread", Shape::Size),
    used("nginx_config.http.upstream.http2_windows", Shape::Size),
    used("nginx_config.http.upstream.http2_streams", Shape::Count { min: 1, max: 10_000 }),
    used("nginx_config.http.upstream.http2_stall_timeout", Shape::Time),
    // nginx's.
    used("nginx_config.http.http3_max_concurrent_streams", Shape::Count { min: 1, max: 10_000 }),
    used("nginx_config.http.http3_stream_buffer_size", Shape::Size),
    used("nginx_config.http.quic_retry", Shape::Bool),
    // Ours.
    used("nginx_config.http.http3_send_buffer", Shape::Size),
    used("nginx_config.http.http3_idle_timeout", Shape::Time),
    used("nginx_config.http.http3_handshakes", Shape::Count { min: 1, max: 1 << 20 }),
    used("nginx_config.http.http3_retry_handshakes", Shape::Count { min: 0, max: 1 << 20 }),
    used("nginx_config.http.http3_alt_svc", Shape::Text),
    used("nginx_config.http.client_header_timeout", Shape::Time),
    used("nginx_config.http.client_body_timeout", Shape::Time),
    used("nginx_config.http.client_max_body_size", Shape::Size),
    // nginx's own, which APISIX leaves to snippets: together they bound a request's head.
    used("nginx_config.http.client_header_buffer_size", Shape::Size),
    used("nginx_config.http.large_client_header_buffers", Shape::Buffers),
    // Ours.
    used("nginx_config.http.max_header_fields", Shape::Count { min: 1, max: 100_000 }),
    used("nginx_config.http.max_plugin_requests", Shape::Count { min: 0, max: 1 << 20 }),
    used("nginx_config.http.max_plugin_requests_per_target", Shape::Count { min: 0, max: 1 << 20 }),
    used("nginx_config.http.max_response_header_fields", Shape::Count { min: 1, max: 100_000 }),
    used("nginx_config.http.max_hops", Shape::Count { min: 0, max: 1000 }),
    used("nginx_config.http.held_bodies", Shape::Size),
    used("nginx_config.http.stream_windows", Shape::Size),
    used("nginx_config.http.send_windows", Shape::Size),
    used("nginx_config.http.held_log_entries", Shape::Size),
    used("nginx_config.http.half_close_timeout", Shape::Time),
    used("nginx_config.http.plugin_wait_timeout", Shape::Time),
    used("nginx_config.http.background_threads", Shape::Workers),
    used("nginx_config.http.lingering_bytes", Shape::Size),
    // nginx's.
    used("nginx_config.http.lingering_time", Shape::Time),
    used("nginx_config.http.send_timeout", Shape::Time),
    used("nginx_config.http.underscores_in_headers", Shape::Switch),
    used("nginx_config.http.real_ip_header", Shape::HeaderName),
    used("nginx_config.http.real_ip_recursive", Shape::Switch),
    used("nginx_config.http.real_ip_from", Shape::RealIpFrom),
    idle_unless("nginx_config.http.proxy_ssl_server_name", "true", "the server name is always sent"),
    used("nginx_config.http.proxy_buffering", Shape::Switch),
    idle("nginx_config.http.proxy_request_buffering", STREAMED),
    idle("nginx_config.http.proxy_buffers", STREAMED),
    // nginx's: a response's head must fit into it.
    used("nginx_config.http.proxy_buffer_size", Shape::Size),
    used("nginx_config.http.upstream.keepalive", Shape::Count { min: 0, max: 1 << 20 }),
    used("nginx_config.http.upstream.keepalive_requests", Shape::Count { min: 1, max: 1 << 53 }),
    used("nginx_config.http.upstream.keepalive_timeout", Shape::Time),
    // Ours.
    used("nginx_config.http.upstream.connection_attempt_delay", Shape::Time),
    used("nginx_config.http.upstream.keepalive_total", Shape::Count { min: 0, max: 1 << 20 }),
    used("nginx_config.http.upstream.default_retries", Shape::Count { min: 0, max: 1_000_000 }),
    idle("nginx_config.http.charset", "bodies and their types are passed on as they come"),
    idle("nginx_config.http.variables_hash_max_size", NO_NGINX),
    used("nginx_config.http.lua_shared_dict.*", Shape::Size),
    idle("nginx_config.http.custom_lua_shared_dict", LUA),
    used("graphql.max_size", Shape::Count { min: 0, max: 1 << 40 }),
    used("plugins", Shape::Texts),
    used("stream_plugins", Shape::Texts),
    // Ours.
    used("sluice.strict_plugins", Shape::Bool),
    used("sluice.upgrade_timeout", Shape::Time),
    used("sluice.acme.directory", Shape::Text),
    used("sluice.acme.email", Shape::Text),
    used("sluice.acme.ca", Shape::Text),
    used("sluice.acme.accept_terms", Shape::Bool),
    used("sluice.acme.challenge", Shape::OneOf(&["http-01", "tls-alpn-01"])),
    used("sluice.acme.domains", Shape::Any),
    used("sluice.acme.eab.kid", Shape::Text),
    used("sluice.acme.eab.hmac_key", Shape::Text),
    used("sluice.acme.timeout", Shape::Time),
    used("sluice.acme.retry", Shape::Time),
    used("sluice.history.revisions", Shape::Count { min: 0, max: 1_000_000 }),
    used("sluice.history.size", Shape::Size),
    used("sluice.explain.key", Shape::LongKey),
    used("sluice.explain.header", Shape::HeaderName),
    used("sluice.explain.size", Shape::Count { min: 128, max: 8192 }),
    used("sluice.secrets.timeout", Shape::Time),
    used("sluice.secrets.max_requests", Shape::Count { min: 1, max: 1000 }),
    used("plugin_attr.prometheus.export_uri", Shape::Text),
    used("plugin_attr.prometheus.metric_prefix", Shape::Text),
    used("plugin_attr.prometheus.enable_export_server", Shape::Bool),
    used("plugin_attr.prometheus.export_addr.ip", Shape::Ip),
    used("plugin_attr.prometheus.export_addr.port", Shape::Port),
    // Ours; the first two are read by the plugin.
    used("plugin_attr.prometheus.max_series", Shape::Count { min: 1, max: 1 << 32 }),
    used("plugin_attr.prometheus.forget_after", Shape::Count { min: 0, max: 86_400 }),
    used("plugin_attr.prometheus.max_connections", Shape::Count { min: 1, max: 10_000 }),
    used("plugin_attr.prometheus.send_timeout", Shape::Time),
    idle("plugin_attr.prometheus.refresh_interval", "metrics are gathered when they are asked for"),
    used("plugin_attr.prometheus.metrics.*.extra_labels", Shape::Labels),
    used("plugin_attr.prometheus.metrics.*.expire", Shape::Count { min: 0, max: 86_400 * 365 }),
    used("plugin_attr.prometheus.default_buckets", Shape::Buckets),
    idle("plugin_attr.prometheus.llm_prompt_tokens_buckets", "there are no AI metrics yet"),
    idle("plugin_attr.prometheus.llm_completion_tokens_buckets", "there are no AI metrics yet"),
    // Ours.
    used("plugin_attr.file-logger.allowed_paths", Shape::Texts),
    // Read by the plugin; the size is ours.
    used("plugin_attr.forward-auth.max_resp_body_size", Shape::Size),
    used("plugin_attr.proxy-mirror.timeout.connect", Shape::Time),
    used("plugin_attr.proxy-mirror.timeout.send", Shape::Time),
    used("plugin_attr.proxy-mirror.timeout.read", Shape::Time),
    used("plugin_attr.proxy-mirror.max_body_size", Shape::Size),
    used("plugin_attr.ocsp-stapling.timeout", Shape::Time),
    used("plugin_attr.ocsp-stapling.max_resp_body_size", Shape::Size),
    used("plugin_attr.redirect.https_port", Shape::Port),
    used("plugin_attr.server-info.report_ttl", Shape::Count { min: 3, max: 86_400 }),
    used("plugin_attr.*", Shape::Any),
    used("discovery.consul.servers", Shape::Any),
    used("discovery.consul.token", Shape::Any),
    used("discovery.consul.fetch_interval", Shape::Any),
    used("discovery.consul.keepalive", Shape::Any),
    used("discovery.consul.weight", Shape::Any),
    used("discovery.consul.timeout.connect", Shape::Any),
    used("discovery.consul.timeout.send", Shape::Any),
    used("discovery.consul.timeout.read", Shape::Any),
    used("discovery.consul.timeout.wait", Shape::Any),
    used("discovery.consul.sort_type", Shape::Any),
    used("discovery.consul.skip_services", Shape::Any),
    used("discovery.consul.dump.path", Shape::Any),
    used("discovery.consul.dump.load_on_init", Shape::Any),
    used("discovery.consul.dump.expire", Shape::Any),
    used("discovery.consul.default_service.host", Shape::Any),
    used("discovery.consul.default_service.port", Shape::Any),
    idle("discovery.consul.default_service.metadata", DEFAULT_NODE),
    idle("discovery.consul.shared_size", SIZED_ALONE),
    // Ours.
    used("discovery.consul.ssl_verify", Shape::Any),
    used("discovery.consul.ssl_trusted_certificate", Shape::Any),
    used("discovery.consul_kv.servers", Shape::Any),
    used("discovery.consul_kv.token", Shape::Any),
    used("discovery.consul_kv.fetch_interval", Shape::Any),
    used("discovery.consul_kv.prefix", Shape::Any),
    used("discovery.consul_kv.weight", Shape::Any),
    used("discovery.consul_kv.timeout.connect", Shape::Any),
    used("discovery.consul_kv.timeout.send", Shape::Any),
    used("discovery.consul_kv.timeout.read", Shape::Any),
    used("discovery.consul_kv.skip_keys", Shape::Any),
    used("discovery.consul_kv.dump.path", Shape::Any),
    used("discovery.consul_kv.dump.load_on_init", Shape::Any),
    used("discovery.consul_kv.dump.expire", Shape::Any),
    used("discovery.consul_kv.default_service.host", Shape::Any),
    used("discovery.consul_kv.default_service.port", Shape::Any),
    idle_unless("discovery.consul_kv.keepalive", "false", POLLED),
    idle("discovery.consul_kv.timeout.wait", POLLED),
    idle("discovery.consul_kv.default_service.metadata", DEFAULT_NODE),
    // Ours.
    used("discovery.consul_kv.ssl_verify", Shape::Any),
    used("discovery.consul_kv.ssl_trusted_certificate", Shape::Any),
    used("discovery.dns.servers", Shape::Any),
    used("discovery.dns.resolv_conf", Shape::Any),
    used("discovery.dns.order", Shape::Any),
    used("discovery.eureka.host", Shape::Any),
    used("discovery.eureka.prefix", Shape::Any),
    used("discovery.eureka.fetch_interval", Shape::Any),
    used("discovery.eureka.weight", Shape::Any),
    used("discovery.eureka.timeout.connect", Shape::Any),
    used("discovery.eureka.timeout.send", Shape::Any),
    used("discovery.eureka.timeout.read", Shape::Any),
    // Ours.
    used("discovery.eureka.ssl_verify", Shape::Any),
    used("discovery.eureka.ssl_trusted_certificate", Shape::Any),
    used("discovery.kubernetes.id", Shape::Any),
    used("discovery.kubernetes.service.schema", Shape::Any),
    used("discovery.kubernetes.service.host", Shape::Any),
    used("discovery.kubernetes.service.port", Shape::Any),
    used("discovery.kubernetes.service.ssl_verify", Shape::Any),
    // Ours.
    used("discovery.kubernetes.service.ssl_trusted_certificate", Shape::Any),
    used("discovery.kubernetes.client.token", Shape::Any),
    used("discovery.kubernetes.client.token_file", Shape::Any),
    used("discovery.kubernetes.namespace_selector.equal", Shape::Any),
    used("discovery.kubernetes.namespace_selector.not_equal", Shape::Any),
    used("discovery.kubernetes.namespace_selector.match", Shape::Any),
    used("discovery.kubernetes.namespace_selector.not_match", Shape::Any),
    used("discovery.kubernetes.label_selector", Shape::Any),
    used("discovery.kubernetes.default_weight", Shape::Any),
    used("discovery.kubernetes.watch_endpoint_slices", Shape::Any),
    idle("discovery.kubernetes.shared_size", SIZED_ALONE),
    used("discovery.nacos.host", Shape::Any),
    used("discovery.nacos.prefix", Shape::Any),
    used("discovery.nacos.fetch_interval", Shape::Any),
    used("discovery.nacos.weight", Shape::Any),
    used("discovery.nacos.timeout.connect", Shape::Any),
    used("discovery.nacos.timeout.send", Shape::Any),
    used("discovery.nacos.timeout.read", Shape::Any),
    used("discovery.nacos.access_key", Shape::Any),
    used("discovery.nacos.secret_key", Shape::Any),
    // Ours.
    used("discovery.nacos.ssl_verify", Shape::Any),
    used("discovery.nacos.ssl_trusted_certificate", Shape::Any),
    used("discovery.*", Shape::NoRegistry),
    idle("wasm", gaps::WASM.why),
    used("xrpc.protocols", Shape::Protocols),
    idle("ext-plugin", gaps::RUNNERS.why),
    used("deployment.role", Shape::OneOf(&["traditional", "data_plane", "control_plane"])),
    used("deployment.role_traditional.config_provider", Shape::Provider),
    used("deployment.role_data_plane.config_provider", Shape::FileProvider),
    used("deployment.role_control_plane.config_provider", Shape::Provider),
    used("deployment.admin.admin_key_required", Shape::Bool),
    used("deployment.admin.admin_key", Shape::AdminKeys),
    used("deployment.admin.enable_admin_cors", Shape::Bool),
    idle_unless("deployment.admin.enable_admin_ui", "false", gaps::DASHBOARD.why),
    used("deployment.admin.allow_admin", Shape::Networks),
    used("deployment.admin.admin_listen.ip", Shape::Ip),
    used("deployment.admin.admin_listen.port", Shape::Port),
    used("deployment.admin.https_admin", Shape::Bool),
    used("deployment.admin.admin_api_mtls.admin_ssl_cert", Shape::Text),
    used("deployment.admin.admin_api_mtls.admin_ssl_cert_key", Shape::Text),
    used("deployment.admin.admin_api_mtls.admin_ssl_ca_cert", Shape::Text),
    used("deployment.admin.admin_api_version", Shape::OneOf(&["v3", "v2", "default"])),
    // Ours.
    used("deployment.admin.hosts", Shape::Texts),
    used("deployment.admin.max_connections", Shape::Count { min: 1, max: 100_000 }),
    used("deployment.admin.max_refused_connections", Shape::Count { min: 0, max: 100_000 }),
    used("deployment.admin.client_header_timeout", Shape::Time),
    used("deployment.admin.client_body_timeout", Shape::Time),
    used("deployment.admin.send_timeout", Shape::Time),
    used("deployment.admin.connection_timeout", Shape::Time),
    used("deployment.admin.outcome_wait", Shape::Time),
    used("deployment.admin.max_failed_keys", Shape::Count { min: 0, max: 1_000_000 }),
    used("deployment.etcd.host", Shape::EtcdHosts),
    used("deployment.etcd.prefix", Shape::EtcdPrefix),
    used("deployment.etcd.timeout", Shape::Time),
    idle_unless("deployment.etcd.watch_timeout", "50", WATCHED),
    idle_unless("deployment.etcd.resync_delay", "5", SOON),
    idle_unless("deployment.etcd.health_check_timeout", "10", ANY_MEMBER),
    used("deployment.etcd.startup_retry", Shape::Count { min: 0, max: 1000 }),
    used("deployment.etcd.user", Shape::Text),
    used("deployment.etcd.password", Shape::Text),
    used("deployment.etcd.tls.cert", Shape::Text),
    used("deployment.etcd.tls.key", Shape::Text),
    used("deployment.etcd.tls.verify", Shape::Bool),
    used("deployment.etcd.tls.sni", Shape::Text),
    // Ours.
    used("deployment.etcd.progress_interval", Shape::Time),
    used("deployment.etcd.progress_timeout", Shape::Time),
    used("deployment.etcd.max_size", Shape::Size),
    used("deployment.etcd.keep_copy", Shape::Bool),
];

/// Where keys of APISIX 1 and 2 went.
pub const MOVED: &[(&str, &str)] = &[
    ("apisix.admin_key", "deployment.admin.admin_key"),
    ("apisix.allow_admin", "deployment.admin.allow_admin"),
    ("apisix.admin_listen", "deployment.admin.admin_listen"),
    ("apisix.port_admin", "deployment.admin.admin_listen.port"),
    ("apisix.enable_admin_cors", "deployment.admin.enable_admin_cors"),
    ("apisix.https_admin", "deployment.admin.https_admin"),
    ("apisix.config_center", "deployment.role_traditional.config_provider"),
    ("etcd", "deployment.etcd"),
    ("nginx_config.http.lua_shared_dicts", "nginx_config.http.lua_shared_dict"),
];
