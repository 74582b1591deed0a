//! `nginx_config.http`: times, limits and memory.

use super::row::{LOG_ESCAPES, Row, row};
use crate::boot::shape::Shape;

#[rustfmt::skip]
pub const TIMES: &[Row] = &[
    row("nginx_config.http.client_header_timeout", Shape::Time, "10s", "to receive a whole request head"),
    row("nginx_config.http.client_body_timeout", Shape::Time, "60s", "between two reads of a body"),
    row("nginx_config.http.send_timeout", Shape::Time, "10s",
        "between two writes to a client; when an HTTP/2 or HTTP/3 connection ends, between two acknowledgements of what \
         was written last"),
    row("nginx_config.http.half_close_timeout", Shape::Time, "2s",
        "a client that has closed its sending side counts as gone if it received nothing for this long").ours(),
    row("nginx_config.http.plugin_wait_timeout", Shape::Time, "600s",
        "longest wait of a plugin in one phase (for an answer, a delay, a background thread); then the request gets 504")
        .ours(),
    row("nginx_config.http.background_threads", Shape::Workers, "auto",
        "threads for long work of plugins, such as compression at a high level; `auto` is one for every two workers, at \
         least one. They run at a lower priority than workers. Work waits first come, first served, up to \
         `plugin_wait_timeout`, and its memory counts against `held_bodies`").ours(),
    row("nginx_config.http.proxy_buffering", Shape::Switch, "on",
        "the first part of a response with a `Content-Length` that fits into 16 KiB waits about 0.1 s at most for the \
         rest: one packet instead of two, and 502 instead of a truncated response when the upstream fails. `off`: passed \
         on at once, like all other responses"),
    row("nginx_config.http.lingering_time", Shape::Time, "1s",
        "after an error, time for reading the rest of the request, so that the client can read the response"),
    row("nginx_config.http.lingering_bytes", Shape::Size, "64k", "and the most bytes of it that are read").ours(),
    row("nginx_config.http.keepalive_timeout", Shape::Time, "60s",
        "idle time of a client connection; 0 closes it at once"),
    row("nginx_config.http.keepalive_requests", Shape::Count { min: 1, max: 1 << 53 }, "10000",
        "requests per client connection before it is closed"),
    row("nginx_config.http.keepalive_time", Shape::Time, "1h",
        "an HTTP/2 or HTTP/3 connection gets GOAWAY at about this age, up to a tenth earlier; 0 is never"),
    row("nginx_config.http.keepalive_min_timeout", Shape::Time, "1s",
        "during shutdown, idle connections stay open for this time for one more request, and WebSocket tunnels before \
         both ends get a Close frame (1001). After an upgrade, tunnels get it ten seconds (`send_timeout`) before the end \
         of `worker_shutdown_timeout`"),
];

#[rustfmt::skip]
pub const STREAMS: &[Row] = &[
    row("nginx_config.http.http2_max_concurrent_streams", Shape::Count { min: 1, max: 10_000 }, "128",
        "HTTP/2 requests in flight per connection"),
    row("nginx_config.http.http2_body_preread_size", Shape::Within(1 << 10, 16 << 20), "64k",
        "request body that an HTTP/2 client may send before it is read (the stream's window)"),
    row("nginx_config.http.http2_send_buffer", Shape::Within(1 << 10, 16 << 20), "32k",
        "responses that may wait for one HTTP/2 connection, all streams together, see `send_windows`").ours(),
    row("nginx_config.http.http2_control_frames", Shape::Count { min: 100, max: 1 << 30 }, "1000",
        "burst of HTTP/2 and HTTP/3 frames without a request (PING, SETTINGS, WINDOW_UPDATE, empty DATA and so on) from a \
         client; requests and 100 a second refill it, a reset stream counts for eight. Beyond it the connection ends with \
         ENHANCE_YOUR_CALM, or H3_EXCESSIVE_LOAD").ours(),
    row("nginx_config.http.http2_stream_errors", Shape::Count { min: 1, max: 1 << 30 }, "100",
        "HTTP/2 streams of a connection that may be reset because of protocol errors on them, with the same end").ours(),
    row("nginx_config.http.http2_unread", Shape::Size, "4m",
        "memory for unread trailers of an HTTP/2 connection; it counts in `stream_windows` as well. Beyond either bound the \
         connection ends with ENHANCE_YOUR_CALM. A request with more than `max_header_fields` trailers is answered with 431").ours(),
    row("nginx_config.http.http3_max_concurrent_streams", Shape::Count { min: 1, max: 10_000 }, "128",
        "HTTP/3 requests in flight per connection"),
    row("nginx_config.http.http3_stream_buffer_size", Shape::Within(1 << 10, 16 << 20), "64k",
        "data that an HTTP/3 client may send on one stream before it is read (the stream's window); a connection's window \
         grows with its streams, see `stream_windows`"),
    row("nginx_config.http.http3_send_buffer", Shape::Within(16 << 10, 64 << 20), "1m",
        "unacknowledged bytes to one HTTP/3 client; responses wait at the limit. A connection begins with 64k and grows, \
         see `send_windows`").ours(),
    row("nginx_config.http.http3_idle_timeout", Shape::Time, "60s",
        "idle time after which a QUIC connection is dropped; at a third of it the client gets a PING").ours(),
    row("nginx_config.http.http3_handshakes", Shape::Count { min: 1, max: 1 << 20 }, "1000",
        "concurrent QUIC handshakes per worker; first packets beyond that are dropped").ours(),
    row("nginx_config.http.http3_retry_handshakes", Shape::Count { min: 0, max: 1 << 20 }, "100",
        "concurrent handshakes per worker from which a client must first prove its address by Retry").ours(),
    row("nginx_config.http.quic_retry", Shape::Bool, "false",
        "every client must prove its address, at the cost of a round trip"),
    row("nginx_config.http.http3_alt_svc", Shape::Text, r#"h3=":$server_port"; ma=86400"#,
        "`Alt-Svc` of responses over TLS on ports with HTTP/3, unless the response has one. Set it if clients reach the \
         gateway on another port; empty sends none").ours(),
    row("nginx_config.http.send_windows", Shape::Size, "64m",
        "memory per worker for responses unread by HTTP/2 and HTTP/3 clients, beyond the first 16 KiB (HTTP/3: 64 KiB) of \
         each connection. Without room, a connection has only its first part. A connection whose last stream ends by \
         `send_timeout` is closed").ours(),
    row("nginx_config.http.stream_windows", Shape::Size, "256m",
        "memory per worker for unread data of HTTP/2 and HTTP/3 clients, beyond the first 64 KiB (HTTP/3: 128 KiB) of \
         each connection. A connection's window grows with its streams that have a body; without room its streams share \
         the current window. The share of ended streams is given back as the client uses up its window").ours(),
];

#[rustfmt::skip]
pub const LIMITS: &[Row] = &[
    row("apisix.max_post_args_readable_size", Shape::Count { min: 0, max: 1 << 20 }, "64",
        "MiB of a body that conditions (`vars`, `_meta.filter`) may read; with 0 only `held_bodies` limits it"),
    row("nginx_config.http.client_max_body_size", Shape::Size, "0", "bytes; 0 is no limit"),
    row("nginx_config.http.client_header_buffer_size", Shape::Size, "",
        "limit on a request head, with the next one: the larger of the two counts").words("64 KiB in all"),
    row("nginx_config.http.large_client_header_buffers", Shape::Buffers, "4 16k",
        "number and size of buffers: as much as all hold; used by default only without `client_header_buffer_size`"),
    row("nginx_config.http.max_header_fields", Shape::Count { min: 1, max: 100_000 }, "100",
        "header fields in a request").ours(),
    row("nginx_config.http.underscores_in_headers", Shape::Switch, "on",
        "`off`: header fields of requests with an underscore in their name are removed"),
    row("nginx_config.http.proxy_buffer_size", Shape::Size, "64k",
        "limit on a response head, else 502; 1k to 16m"),
    row("nginx_config.http.max_response_header_fields", Shape::Count { min: 1, max: 100_000 }, "1000",
        "header fields in a response; more give 502").ours(),
    row("nginx_config.http.max_hops", Shape::Count { min: 0, max: 1000 }, "16",
        "gateways a request may pass; more are a loop and get 508. Counted in the header `Sluice-Hops`, which requests \
         carry from the second gateway on, or if they have `X-Real-IP` and another forwarded header, or eight addresses in \
         `X-Forwarded-For`; 0 is no limit").ours(),
    row("nginx_config.http.held_bodies", Shape::Size, "256m",
        "memory per worker for bodies that conditions and plugins need whole; beyond it requests get 503; copies for \
         `proxy-mirror` and loggers are left out instead").ours(),
    row("nginx_config.http.held_log_entries", Shape::Size, "64m",
        "bytes of plugins' log entries that may wait for delivery, at most a quarter for one target; beyond it entries \
         are dropped and counted").ours(),
    row("nginx_config.http.lua_shared_dict.*", Shape::Size, "",
        "memory for counters shared by workers, 26 bytes a key: `plugin-limit-count`, `plugin-limit-req`, \
         `plugin-limit-conn`, `plugin-api-breaker`. When full, the key whose window ends first is evicted, or the one \
         drained first, or the least recently changed; keys with requests in flight are never evicted, and a new key is \
         then an error (`allow_degradation`)").words("`10m` each"),
    row("nginx_config.http.custom_lua_shared_dict.*", Shape::Size, "",
        "memory of a dictionary that scripts share: `ngx.shared.NAME`").words("none"),
    row("graphql.max_size", Shape::Count { min: 0, max: 1 << 40 }, "1048576",
        "bytes of a GraphQL document that conditions may read"),
];

#[rustfmt::skip]
pub const UPSTREAMS: &[Row] = &[
    row("nginx_config.http.upstream.keepalive", Shape::Count { min: 0, max: 1 << 20 }, "320",
        "idle connections to upstreams, this and the next two for those without a `keepalive_pool`"),
    row("nginx_config.http.upstream.keepalive_requests", Shape::Count { min: 1, max: 1 << 53 }, "1000",
        "requests per connection before it is closed"),
    row("nginx_config.http.upstream.keepalive_timeout", Shape::Time, "60s",
        "how long a connection may be idle; 0 is no limit"),
    row("nginx_config.http.upstream.keepalive_total", Shape::Count { min: 0, max: 1 << 20 }, "4096",
        "idle connections per worker to all upstreams together; fewer if the limit on open files requires it").ours(),
    row("nginx_config.http.upstream.default_retries", Shape::Count { min: 0, max: 1_000_000 }, "32",
        "other nodes a request tries at most if its upstream has no `retries` (in APISIX all nodes)").ours(),
    row("nginx_config.http.upstream.connection_attempt_delay", Shape::Time, "250ms",
        "for nodes with IPv4 and IPv6 addresses: delay before the other family is tried as well; the first connection is \
         used (RFC 8305)").ours(),
    row("nginx_config.http.upstream.http2_windows", Shape::Size, "256m",
        "memory per worker for what HTTP/2 upstreams send before clients take it, beyond the first 64 KiB of each \
         connection; grows and is given back like `stream_windows`. Without room, requests go on connections of 16 streams \
         with windows of 4 KiB each, so a client that reads slowly does not hold up others, and stalled streams are reset \
         (`http2_stall_timeout`). A connection on which some 9,000 DATA frames under 256 bytes wait for clients ends").ours(),
    row("nginx_config.http.upstream.http2_stall_timeout", Shape::Time, "10s",
        "when `http2_windows` is used up and other requests need windows: responses of which clients have taken less than \
         1 KiB for this long are ended, the oldest first: once a second, at most as many as there are requests with small \
         windows. Status 408 if nothing was sent yet; `$sluice_reason` names it, of a WebSocket the error log. 0: never").ours(),
    row("nginx_config.http.upstream.http2_streams", Shape::Count { min: 1, max: 10_000 }, "100",
        "requests in flight per HTTP/2 connection to an upstream; for more, another is opened").ours(),
    row("nginx_config.http.max_plugin_requests", Shape::Count { min: 0, max: 1 << 20 }, "1024",
        "background requests of plugins in flight per worker, such as mirrored ones; more are dropped and counted").ours(),
    row("nginx_config.http.max_plugin_requests_per_target", Shape::Count { min: 0, max: 1 << 20 }, "64",
        "of these, to one server").ours(),
    row("nginx_config.http.max_plugin_connections", Shape::Count { min: 0, max: 1 << 20 }, "1024",
        "connections of plugins in use per worker that speak other protocols than HTTP, such as Redis's, and as many tasks; \
         fewer if the limit on open files requires it, and more are refused. Idle ones count as `upstream.keepalive_total`. \
         One holds up to 100 KiB with TLS, and nothing without").ours(),
    row("nginx_config.http.max_resolved_names", Shape::Count { min: 0, max: 1 << 20 }, "1024",
        "names per worker that are known only at run time and whose addresses are cached; those out of date go first").ours(),
];

#[rustfmt::skip]
pub const ACCESS_LOG: &[Row] = &[
    row("nginx_config.http.enable_access_log", Shape::Bool, "true",
        "a line for every request, see [logs](operating.md#logs)"),
    row("nginx_config.http.access_log", Shape::AccessLog, "logs/access.log",
        "a file, `/dev/stdout`, `/dev/stderr`, or `off`; a relative path lies in the data folder"),
    row("nginx_config.http.access_log_format", Shape::Text,
        r#"$remote_addr - $remote_user [$time_local] $http_host "$request" $status $body_bytes_sent $request_time "$http_referer" "$http_user_agent" $upstream_addr $upstream_status $upstream_response_time "$upstream_scheme://$upstream_host$upstream_uri" "$apisix_request_id""#,
        "NGINX's `log_format`, with [APISIX's and NGINX's variables](operating.md#logs)").words("APISIX's"),
    row("nginx_config.http.access_log_format_escape", Shape::OneOf(LOG_ESCAPES), "default",
        "how bytes of a variable that could be taken for the line's own are written, as in NGINX"),
    row("nginx_config.http.access_log_buffer", Shape::Size, "64k", "bytes a worker collects before they are written"),
    row("nginx_config.http.access_log_flush", Shape::Time, "1s", "or after this time (in APISIX always 3 s)").ours(),
    row("nginx_config.http.access_log_queue", Shape::Size, "1m",
        "bytes per worker that may wait to be written, at least twice `access_log_buffer` by default; beyond it lines are \
         dropped and counted").ours(),
];
