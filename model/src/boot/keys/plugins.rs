//! Plugins, and what they share. Settings under `plugin_attr` that no other part reads are read by the plugin.

use super::row::{Row, row};
use crate::boot::shape::Shape;

/// Bytes, as a plain number.
const IN_MEMORY: Shape = Shape::Count { min: 1, max: u64::MAX };

#[rustfmt::skip]
pub const PLUGINS: &[Row] = &[
    row("plugins", Shape::Texts, "",
        "plugins that may be used; a resource that uses another is refused; a list in [apisix.yaml](#apisixyaml) takes \
         precedence").words("all"),
    row("sluice.strict_plugins", Shape::Bool, "false",
        "also refuse missing plugins whose absence changes no answer (loggers, tracers); see [From \
         APISIX](from-apisix.md#plugins-that-are-not-built)").ours(),
    row("apisix.extra_lua_path", Shape::Text, "",
        "folders of [plugins in Lua](scripting.md#plugins-in-files), as patterns with `?`: `/opt/lua/?.lua`; several are \
         separated by `;`").words("none"),
    row("sluice.lua.max_memory", Shape::Size, "64m",
        "memory of all scripts of a worker; beyond it scripts get the error `not enough memory`").ours(),
    row("sluice.lua.max_time", Shape::Time, "1s",
        "how long a script may run without a wait; then it ends with an error, and its request with 500").ours(),
    row("sluice.lua.max_sockets", Shape::Count { min: 0, max: 1 << 20 }, "256",
        "sockets of scripts that may be open on a worker; those of one request are at most a quarter").ours(),
    row("sluice.lua.unix_sockets", Shape::Bool, "false",
        "whether scripts may connect to `unix:` sockets, such as those of a container runtime").ours(),
    row("ext-plugin.cmd", Shape::Texts, "",
        "command of a [plugin runner](scripting.md#plugins-in-other-processes), which is started and restarted with the \
         gateway").words("none"),
    row("ext-plugin.path_for_test", Shape::Text, "",
        "Unix socket of a runner that something else starts").words("one in the data folder"),
    row("nginx_config.envs", Shape::Texts, "",
        "variables of the environment that a plugin runner gets besides `PATH`, `HOME`, `LANG` and `TZ`: names, or \
         `NAME=value`; scripts and secrets see all").words("none"),
    row("wasm.plugins", Shape::WasmPlugins, "",
        "[plugins in WebAssembly](scripting.md#filters-in-webassembly): list of `{name, priority, file, http_request_phase, \
         process_bodies}`; `process_bodies` is ours").words("none"),
    row("sluice.wasm.max_memory", Shape::Size, "64m",
        "memory of one instance, of which each worker has one for each plugin; a body that it sees may have half of that")
        .ours(),
    row("sluice.wasm.max_time", Shape::Time, "1s",
        "how long a call of a WebAssembly plugin may run; then it ends, and its request with 500").ours(),
    row("sluice.wasm.max_shared_data", Shape::Size, "16m",
        "bytes of shared data, and of queues, that a WebAssembly plugin may have on all workers").ours(),
    row("apisix.proxy_cache.cache_ttl", Shape::Time, "10s",
        "how long responses on disk are fresh that do not say so themselves"),
    row("apisix.proxy_cache.disk_read_timeout", Shape::Time, "5s",
        "if reading a cached response takes longer, the request goes to the upstream instead").ours(),
    row("apisix.proxy_cache.zones", Shape::Zones,
        "[{name: disk_cache_one, memory_size: 50m, disk_size: 1g, disk_path: /tmp/disk_cache_one, cache_levels: \"1:2\"}, \
         {name: memory_cache, memory_size: 50m}]",
        "list of `{name, memory_size, disk_size, disk_path, cache_levels}`"),
    row("plugin_attr.prometheus.enable_export_server", Shape::Bool, "true",
        "`false`: no separate listener; a route with [public-api](plugins/public-api.md) serves the metrics"),
    row("plugin_attr.prometheus.export_addr.ip", Shape::Ip, "127.0.0.1", "address of the metrics"),
    row("plugin_attr.prometheus.export_addr.port", Shape::Port, "9091", "their port"),
    row("plugin_attr.prometheus.export_uri", Shape::Text, "/apisix/prometheus/metrics", "their path"),
    row("plugin_attr.prometheus.metric_prefix", Shape::MetricPrefix, "apisix_", "what the names of metrics begin with"),
    row("plugin_attr.prometheus.max_series", Shape::Count { min: 1, max: 1 << 32 }, "200000",
        "series that request labels may create; near the limit, label sets idle for a minute are evicted; requests \
         without room count under the route `__overflow__`").ours(),
    row("plugin_attr.prometheus.forget_after", Shape::Count { min: 0, max: 86_400 }, "30",
        "seconds the series of a deleted route are still shown").ours(),
    row("plugin_attr.prometheus.max_connections", Shape::Count { min: 1, max: 10_000 }, "32", "concurrent scrapers")
        .ours(),
    row("plugin_attr.prometheus.send_timeout", Shape::Time, "10s", "time a scraper has to read 64 KiB").ours(),
    row("plugin_attr.prometheus.otlp.enable", Shape::Bool, "false",
        "pushes the metrics to an OpenTelemetry collector, see [Metrics over OTLP](operating.md#metrics-over-otlp)").ours(),
    row("plugin_attr.prometheus.otlp.endpoint", Shape::Text, "",
        "the collector: `host:port` or a URI, to which `/v1/metrics` is appended")
        .words("`collector` of `plugin_attr.opentelemetry`, with its protocol, headers and timeout, else `127.0.0.1:4318`").ours(),
    row("plugin_attr.prometheus.otlp.protocol", Shape::OneOf(&["http", "grpc"]), "",
        "`http` sends protobuf; `grpc` calls `MetricsService`").words("`http`").ours(),
    row("plugin_attr.prometheus.otlp.headers", Shape::Any, "",
        "headers of each request, or metadata of each call, such as `Authorization`").words("none").ours(),
    row("plugin_attr.prometheus.otlp.resource", Shape::Any, "",
        "attributes of the resource; `service.name` is APISIX and `service.instance.id` that of the gateway if it has none, `process.pid` that of the process")
        .words("`resource` of `plugin_attr.opentelemetry`").ours(),
    row("plugin_attr.prometheus.otlp.interval", Shape::Time, "60s", "time between two exports, 100 ms or more").ours(),
    row("plugin_attr.prometheus.otlp.timeout", Shape::Time, "3s", "for connecting, and for the answer").ours(),
    row("plugin_attr.prometheus.otlp.ssl_verify", Shape::Bool, "true",
        "the certificate of an `https` collector must be valid for its name").ours(),
    row("plugin_attr.prometheus.metrics.*.extra_labels", Shape::Labels, "",
        "labels added to `http_status`, `http_latency` or `bandwidth`: list of `NAME: $variable`"),
    row("plugin_attr.prometheus.metrics.*.expire", Shape::Count { min: 0, max: 86_400 * 365 }, "",
        "seconds after which a series without new values is removed").words("never"),
    row("plugin_attr.prometheus.default_buckets", Shape::Buckets,
        "[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000]",
        "upper bounds of latencies in milliseconds, in rising order").words("APISIX's"),
    row("plugin_attr.file-logger.allowed_paths", Shape::Texts, "[logs, /var/log]",
        "folders in which `file-logger` may write, besides `/dev/stdout` and `/dev/stderr`; a relative one lies in the \
         data folder. The gateway's own files are refused in any of them: its logs, the rest of the data folder, the \
         folder of `config.yaml`, the zones of `proxy-cache`. Symbolic links below these folders are not followed").ours(),
    row("plugin_attr.static-files.roots", Shape::Texts, "",
        "folders that `static-files` may serve, with everything below; a relative one lies in the folder of the file of \
         resources, or else of `config.yaml`. The data folder, these two files, logs, caches on disk, and the keys of the \
         Admin API and for etcd are refused in any of them. A file of another gateway lists the folders that it names").words("none").ours(),
    row("plugin_attr.static-files.max_open_files", Shape::Count { min: 1, max: 1 << 20 }, "1000",
        "files longer than 64 KiB that are open at a time; requests for more get 503")
        .ours(),
    row("plugin_attr.static-files.threads", Shape::Count { min: 1, max: 1024 }, "4",
        "threads that find and read files").ours(),
    row("plugin_attr.static-files.read_timeout", Shape::Time, "10s",
        "for finding a file, and for reading 64 KiB of it; then the request gets 504, or its response breaks off").ours(),
    row("plugin_attr.forward-auth.max_resp_body_size", Shape::Size, "1m",
        "a longer answer of the server counts as a failure").ours(),
    row("plugin_attr.proxy-mirror.timeout.connect", Shape::Time, "60s", "for connecting to a mirror"),
    row("plugin_attr.proxy-mirror.timeout.send", Shape::Time, "60s",
        "for sending a mirrored request, which ends after `send` plus `read` at the latest"),
    row("plugin_attr.proxy-mirror.timeout.read", Shape::Time, "60s", "for its answer"),
    row("plugin_attr.proxy-mirror.max_body_size", Shape::Size, "1m",
        "a request with a longer body is not mirrored, and counted as dropped").ours(),
    row("plugin_attr.ocsp-stapling.timeout", Shape::Time, "10s",
        "for an OCSP responder; see [ocsp-stapling](plugins/ocsp-stapling.md)").ours(),
    row("plugin_attr.ocsp-stapling.max_resp_body_size", Shape::Size, "64k", "size of its answer").ours(),
    row("plugin_attr.redirect.https_port", Shape::Port, "443",
        "port in the location that `http_to_https` redirects to"),
    row("plugin_attr.server-info.report_ttl", Shape::Count { min: 3, max: 86_400 }, "60",
        "seconds an instance stays in etcd after its last report, see [server-info](plugins/server-info.md)"),
    row("plugin_attr.proxy-cache.purge_allow", Shape::Networks, "[127.0.0.0/8, \"::1/128\"]",
        "addresses and networks that may `PURGE`; others get 403").ours(),
    row("plugin_attr.batch-requests.uri", Shape::Text, "/apisix/batch-requests", "path of the endpoint"),
    row("plugin_attr.batch-requests.max_response_size", IN_MEMORY, "67108864", "bytes of all answers of a batch together")
        .words("64 MiB").ours(),
    row("plugin_attr.body-transformer.max_output_size", IN_MEMORY, "67108864", "bytes that a template may write")
        .words("64 MiB").ours(),
    row("plugin_attr.body-transformer.max_steps", Shape::Count { min: 1, max: u64::MAX }, "100000",
        "steps that one run of a template may take, about 10 ms; beyond that the request gets 503, or the response stays \
         as it is, and the error log says so. Templates that go through long lists need more. The worker does what takes \
         about a millisecond: bodies of up to 64 KiB, read into up to 2 MiB of values, and 10,000 steps. Longer work runs \
         on a background thread (`background_threads`)").ours(),
    row("plugin_attr.*", Shape::Any, "", ""),
];
