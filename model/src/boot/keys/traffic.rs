//! Ports, TLS, peers and the process.

use super::row::{LOG_ESCAPES, Row, row};
use crate::boot::shape::Shape;

const LOG_LEVELS: &[&str] = &["debug", "info", "notice", "warn", "error", "crit", "alert", "emerg"];
const ROUTERS: &[&str] = &["radixtree_host_uri", "radixtree_uri", "radixtree_uri_with_parameter"];

/// Seconds of the longest times that are written as a count.
const YEAR: u64 = 86_400 * 365;

#[rustfmt::skip]
pub const PORTS: &[Row] = &[
    row("apisix.node_listen", Shape::Listen, "9080",
        "traffic ports: a port, a list of ports, or a list of `{ip, port, enable_http2}`"),
    row("apisix.enable_http2", Shape::Bool, "true",
        "HTTP/2 on the traffic ports, beside HTTP/1; `enable_http2` of one port overrides it"),
    row("apisix.enable_ipv6", Shape::Bool, "true",
        "default ports listen on IPv6 too, and names are resolved to IPv6 addresses"),
    row("apisix.router.http", Shape::OneOf(ROUTERS), "radixtree_host_uri",
        "how routes are matched, see [routing](routing.md)"),
    row("apisix.delete_uri_tail_slash", Shape::Bool, "false",
        "routes are looked up without a slash at the end of the path; the upstream gets the path as sent"),
    row("apisix.normalize_uri_like_servlet", Shape::Bool, "false",
        "routes are looked up without `;` parameters (400 if an empty or dot segment has some); the upstream gets the \
         path as sent"),
    row("sluice.path.merge_slashes", Shape::Bool, "true",
        "routes are looked up, and plugins see the path, with `//` as one slash").ours(),
    row("sluice.path.resolve_dots", Shape::Bool, "true",
        "the same with `.` and `..` segments resolved. With `false`, `/public/../admin` is a path below `/public/`: access control \
         by path holds only if servers do not resolve them either").ours(),
    row("sluice.path.decode_unreserved", Shape::Bool, "true",
        "the same with encoded letters, digits and `-._~` decoded. With `false`, `/%61dmin` is another path than `/admin`").ours(),
    row("apisix.enable_server_tokens", Shape::Bool, "true",
        "`false` hides the version in the `Server` header, that of the Admin API included"),
    row("apisix.show_upstream_status_in_response_header", Shape::Bool, "false",
        "`X-APISIX-Upstream-Status` on every upstream response, not only if the last attempt ended with 5xx"),
    row("apisix.disable_upstream_healthcheck", Shape::Bool, "false",
        "switches all [health checks](resources.md#health-checks) off"),
    row("apisix.dns_resolver", Shape::Texts, "", "list of name servers, for every name that the gateway connects to; the registry `dns` has its own").words("the system's"),
    row("apisix.dns_resolver_valid", Shape::Count { min: 0, max: YEAR }, "", "seconds an address is cached")
        .words("records' own"),
    row("apisix.resolver_timeout", Shape::Time, "5s", "for one lookup"),
    row("apisix.enable_resolv_search_opt", Shape::Bool, "true",
        "names are also looked up in the search domains of `/etc/resolv.conf`, even with `dns_resolver`"),
];

#[rustfmt::skip]
pub const TLS: &[Row] = &[
    row("apisix.ssl.enable", Shape::Bool, "true", "serves HTTPS"),
    row("apisix.ssl.listen", Shape::TlsListen, "[{port: 9443}]",
        "list of `ip`, `port`, `enable_http2`, `enable_http3` (or its older name `enable_quic`): HTTP/3 over QUIC on the \
         UDP port of the same number, off unless it is set. A plain HTTP request to such a port gets 400. If the setting \
         is absent and port 9443 is taken, the gateway serves without HTTPS and logs it"),
    row("apisix.ssl.ssl_protocols", Shape::TlsProtocols, "TLSv1.2 TLSv1.3",
        "older versions are ignored with a warning"),
    row("apisix.ssl.ssl_ciphers", Shape::Text, "",
        "suites of TLS 1.2 by OpenSSL's names, in order of preference: ECDHE with AES-GCM or ChaCha20-Poly1305. Others \
         (CBC, DHE) are ignored with a warning").words("all supported"),
    row("apisix.ssl.ssl_session_tickets", Shape::Bool, "true",
        "sessions may be resumed; `false` makes every handshake a full one"),
    row("apisix.ssl.ssl_session_timeout", Shape::Time, "1h",
        "session lifetime. Ticket keys rotate at this interval and live in memory; the current and the previous one are \
         valid").ours(),
    row("apisix.ssl.fallback_sni", Shape::Text, "", "server name of clients that send none"),
    row("apisix.ssl.ssl_trusted_certificate", Shape::Text, "system",
        "file with the authorities that certify upstreams and the servers that plugins call"),
    row("apisix.ssl.handshake_timeout", Shape::Time, "10s", "for a whole TLS handshake").ours(),
];

#[rustfmt::skip]
pub const PEERS: &[Row] = &[
    row("apisix.data_encryption.enable_encrypt_fields", Shape::Bool, "true",
        "[encrypts the secrets](#secrets) of plugins that are written"),
    row("apisix.data_encryption.keyring", Shape::Keyring, "[qeddd145sfvddff3, edd1c9f0985e76a2]",
        "keys of 16 bytes (AES-128) or 32 (AES-256), or one key: the first encrypts, all decrypt")
        .words("APISIX's two"),
    row("apisix.lru.secret.ttl", Shape::Count { min: 1, max: YEAR }, "300",
        "seconds after which a [secret of a manager](#secrets-of-managers) is read again"),
    row("apisix.lru.secret.neg_ttl", Shape::Count { min: 1, max: YEAR }, "60", "the same after a failure"),
    row("sluice.secrets.timeout", Shape::Time, "5s", "deadline of a request to a secret manager").ours(),
    row("sluice.secrets.max_requests", Shape::Count { min: 1, max: 1000 }, "8", "requests to one manager at a time").ours(),
    row("apisix.trusted_addresses", Shape::Networks, "", "peers whose `X-Forwarded-*` headers are trusted"),
    row("apisix.proxy_protocol.listen_http_port", Shape::Port, "",
        "a further port for HTTP, on all addresses, where each connection begins with a PROXY protocol header (version 1 \
         or 2). The header is in `$proxy_protocol_addr` and `$proxy_protocol_port`; it replaces the client's address only \
         where `real_ip_header` is `proxy_protocol` and the peer is in `real_ip_from`"),
    row("apisix.proxy_protocol.listen_https_port", Shape::Port, "", "the same for HTTPS"),
    row("apisix.proxy_protocol.trusted_addresses", Shape::Networks, "",
        "peers that may connect to ports with the PROXY protocol; others are disconnected. Anyone by default, as in \
         APISIX: `real_ip_from` decides whether a header is trusted, by default only from this machine")
        .words("anyone").ours(),
    row("nginx_config.http.real_ip_header", Shape::HeaderName, "X-Real-IP",
        "the header with the client's address, or `proxy_protocol`"),
    row("nginx_config.http.real_ip_from", Shape::RealIpFrom, "[127.0.0.1]", "the peers that may set it"),
    row("nginx_config.http.real_ip_recursive", Shape::Switch, "off",
        "in a list of addresses, the last one that is not itself in `real_ip_from` counts"),
];

#[rustfmt::skip]
pub const PROCESS: &[Row] = &[
    row("apisix.enable_dev_mode", Shape::Bool, "false", "one worker"),
    row("apisix.id", Shape::Id, "",
        "id of this instance for [server-info](plugins/server-info.md): up to 64 letters, digits and `-_.`, or an integer")
        .words("made and kept"),
    row("nginx_config.worker_processes", Shape::Workers, "auto",
        "worker threads; `auto` is one per core available to the process, within its control group's limit"),
    row("nginx_config.worker_shutdown_timeout", Shape::Time, "240s", "longest duration of a graceful stop"),
    row("sluice.upgrade_timeout", Shape::Time, "30s",
        "time a new process has to become ready when it [takes over](operating.md#replacing-the-binary)").ours(),
    row("nginx_config.error_log", Shape::LogPath, "",
        "a file, `/dev/stdout` or `/dev/stderr`; a relative path lies in the data folder").words("standard error"),
    row("nginx_config.error_log_level", Shape::OneOf(LOG_LEVELS), "warn",
        "lowest level that is written, see [logs](operating.md#logs)"),
    row("nginx_config.error_log_format", Shape::OneOf(&["text", "json"]), "text",
        "`json`: every line is a JSON object with `timestamp`, `level`, `message` and the line's fields").ours(),
    row("nginx_config.event.accept_wait", Shape::Time, "250ms",
        "while all connections wait longer than this to be accepted, they get 503; 0 is off").ours(),
    row("nginx_config.event.worker_connections", Shape::Count { min: 1, max: 1 << 32 }, "10620",
        "client connections per worker, fewer if the limit on open files requires it. At the limit, the connections idle \
         longest are closed"),
];

#[rustfmt::skip]
pub const STREAMS: &[Row] = &[
    row("apisix.proxy_mode", Shape::OneOf(&["http", "stream", "http&stream"]), "", "what is served").words("`http`"),
    row("apisix.stream_proxy.tcp", Shape::TcpPorts, "",
        "list of addresses, ports, ranges of ports, or `{addr, tls, proxy_protocol, proxy_protocol_to_upstream}`"),
    row("apisix.stream_proxy.udp", Shape::UdpPorts, "", "list of addresses, ports or ranges of ports"),
    row("apisix.stream_proxy.only", Shape::Bool, "",
        "without `proxy_mode`, as before APISIX 3.2: `true` is `stream`, `false` is `http&stream`"),
    row("apisix.proxy_protocol.enable_tcp_pp", Shape::Bool, "false",
        "TCP ports begin with a PROXY protocol header, unless a port says otherwise"),
    row("apisix.proxy_protocol.enable_tcp_pp_to_upstream", Shape::Bool, "false",
        "connections to upstreams begin with one (version 1), unless a port says otherwise"),
    row("stream_plugins", Shape::Texts, "",
        "plugins that streams may use; a list in [apisix.yaml](#apisixyaml) takes precedence; unknown names are warnings")
        .words("all"),
    row("xrpc.protocols", Shape::Protocols, "",
        "[protocols within streams](streams.md#protocols-within-streams) that routes may name"),
    row("nginx_config.stream.real_ip_from", Shape::RealIpFrom, "",
        "peers whose PROXY protocol header names the client"),
    row("nginx_config.stream.proxy_connect_timeout", Shape::Time, "60s",
        "for connecting, where the upstream does not say"),
    row("nginx_config.stream.proxy_timeout", Shape::Time, "10m",
        "silence that ends a TCP stream, where the upstream does not say"),
    row("nginx_config.stream.preread_timeout", Shape::Time, "30s", "for a client's first bytes, where they decide"),
    row("nginx_config.stream.proxy_protocol_timeout", Shape::Time, "10s",
        "for a PROXY protocol header, on HTTP ports too"),
    row("nginx_config.stream.udp_timeout", Shape::Time, "60s", "silence that ends a UDP session").ours(),
    row("nginx_config.stream.max_udp_sessions", Shape::Count { min: 1, max: 1 << 24 }, "16384",
        "sessions of a worker; fewer if the limit on open files requires it").ours(),
    row("nginx_config.stream.udp_queue", Shape::Size, "256k",
        "bytes of datagrams that wait until a session has its server, and 64 times as much for all sessions of a worker")
        .ours(),
    row("nginx_config.stream.lua_shared_dict.*", Shape::Size, "", "accepted as in APISIX, without effect"),
    row("nginx_config.stream.enable_access_log", Shape::Bool, "false", "a line for every stream when it ends"),
    row("nginx_config.stream.access_log", Shape::AccessLog, "logs/access_stream.log",
        "this and the following as for [HTTP](#access-log)"),
    row("nginx_config.stream.access_log_format", Shape::Text,
        "$remote_addr [$time_local] $protocol $status $bytes_sent $bytes_received $session_time",
        "the line, with [variables of streams](streams.md#settings)"),
    row("nginx_config.stream.access_log_format_escape", Shape::OneOf(LOG_ESCAPES), "default",
        "`default`, `json`, `none`"),
    row("nginx_config.stream.access_log_buffer", Shape::Size, "64k",
        "bytes a worker collects before they are written").ours(),
    row("nginx_config.stream.access_log_flush", Shape::Time, "1s", "or after this time").ours(),
    row("nginx_config.stream.access_log_queue", Shape::Size, "1m",
        "bytes per worker that may wait to be written; beyond it lines are dropped and counted").ours(),
];
