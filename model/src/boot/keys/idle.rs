//! Keys of APISIX that have no effect here.

use super::row::{Row, idle, idle_unless};
use crate::gaps;

const MACHINE_CODE: &str = "scripts cannot load machine code";
const MACHINES: &str = "there is no OpenResty underneath";
const NO_NGINX: &str = "it goes into nginx.conf, and there is no nginx underneath";
const SIZED_ALONE: &str = "this memory is sized by itself";
const WATCHED: &str = "a watch stays for as long as etcd answers on it, which is looked at all the time";
const SOON: &str = "etcd is tried again at once, then less and less often, at least once a second";
const ANY_MEMBER: &str = "a member that does not answer is left for the next one at once";
const DEFAULT_NODE: &str = "the node has the weight that `weight` says, and is no worse than others";
const POLLED: &str = "the keys are asked for every `fetch_interval` seconds";
const STREAMED: &str = "bodies are always streamed";

pub const IDLE: &[Row] = &[
    idle_unless("apisix.enable_reuseport", "true", "each worker always has its own listening socket"),
    idle_unless("apisix.extra_lua_cpath", "\"\"", MACHINE_CODE),
    idle("apisix.lua_module_hook", MACHINES),
    idle_unless("apisix.match_uri_encoded_slash", "true", "an encoded slash is never taken for a slash"),
    idle_unless("apisix.router.ssl", "\"radixtree_sni\"", "certificates are always matched by server name"),
    idle("apisix.ssl.ssl_cert", "certificates are ssl resources; a name without one is refused"),
    idle("apisix.ssl.ssl_cert_key", "certificates are ssl resources; a name without one is refused"),
    idle("apisix.ssl.key_encrypt_salt", "private keys are encrypted with apisix.data_encryption.keyring"),
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
    idle("apisix.lru.secret.count", SIZED_ALONE),
    idle("apisix.lru.secret.neg_count", SIZED_ALONE),
    idle_unless("apisix.tracing", "false", gaps::TRACING.why),
    idle("nginx_config.user", "the process keeps the user that started it"),
    idle_unless("nginx_config.enable_cpu_affinity", "false", "the system places the workers"),
    idle(
        "nginx_config.worker_rlimit_nofile",
        "the limit on open files is set outside, by ulimit or LimitNOFILE",
    ),
    idle("nginx_config.max_pending_timers", "timers need no limit"),
    idle("nginx_config.max_running_timers", "timers need no limit"),
    idle_unless("nginx_config.event.use", "epoll", "workers wait with epoll"),
    idle("nginx_config.meta", SIZED_ALONE),
    idle("nginx_config.stream.metrics_zone_size", SIZED_ALONE),
    idle("nginx_config.main_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_server_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_server_location_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_admin_configuration_snippet", NO_NGINX),
    idle("nginx_config.http_end_configuration_snippet", NO_NGINX),
    idle("nginx_config.stream_configuration_snippet", NO_NGINX),
    idle_unless("nginx_config.http.proxy_ssl_server_name", "true", "the server name is always sent"),
    idle("nginx_config.http.proxy_request_buffering", STREAMED),
    idle("nginx_config.http.proxy_buffers", STREAMED),
    idle("nginx_config.http.charset", "bodies and their types are passed on as they come"),
    idle("nginx_config.http.variables_hash_max_size", NO_NGINX),
    idle("plugin_attr.prometheus.refresh_interval", "metrics are gathered when they are asked for"),
    idle("plugin_attr.prometheus.llm_prompt_tokens_buckets", "there are no AI metrics yet"),
    idle("plugin_attr.prometheus.llm_completion_tokens_buckets", "there are no AI metrics yet"),
    idle("discovery.consul.default_service.metadata", DEFAULT_NODE),
    idle("discovery.consul.shared_size", SIZED_ALONE),
    idle_unless("discovery.consul_kv.keepalive", "false", POLLED),
    idle("discovery.consul_kv.timeout.wait", POLLED),
    idle("discovery.consul_kv.default_service.metadata", DEFAULT_NODE),
    idle("discovery.kubernetes.shared_size", SIZED_ALONE),
    idle_unless("deployment.etcd.watch_timeout", "50", WATCHED),
    idle_unless("deployment.etcd.resync_delay", "5", SOON),
    idle_unless("deployment.etcd.health_check_timeout", "10", ANY_MEMBER),
];
