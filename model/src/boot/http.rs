//! `nginx_config.http`: limits and times of requests and connections.

use std::time::Duration;

use indexmap::IndexMap;
use ipnet::IpNet;

use super::Workers;

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
    /// How long a plugin may wait in one phase.
    pub plugin_wait_timeout: Duration,
    /// Threads of the process for long work, such as compression at a high level (ours).
    pub background_threads: Workers,
    /// How long the rest of a refused request is read, so that its answer arrives …
    pub lingering_time: Duration,
    /// … and how much of it at most (ours).
    pub lingering_bytes: u64,
    /// Bytes; `None` is no limit.
    pub client_max_body_size: Option<u64>,
    /// Gateways of this kind that a request may pass through (ours); `None` is no limit.
    pub max_hops: Option<u64>,
    /// Bytes of a request's head.
    pub max_head_size: u64,
    /// Header fields of a request (ours).
    pub max_header_fields: u64,
    /// Requests of plugins, such as mirrors, that a worker may have in flight (ours) …
    pub max_plugin_requests: u64,
    /// … and of these with one server.
    pub max_plugin_requests_per_target: u64,
    /// Raw connections of plugins in use on a worker, and tasks that they run there (ours).
    pub max_plugin_connections: u64,
    /// Names met at run time whose addresses a worker keeps (ours).
    pub max_resolved_names: u64,
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
    /// Bytes of responses a worker holds for HTTP/2 and HTTP/3 clients that do not take them.
    pub send_windows: u64,
    pub underscores_in_headers: bool,
    /// The first part of a short response waits a little for the rest.
    pub proxy_buffering: bool,
    pub real_ip: RealIp,
    /// Bytes of log entries of plugins that may wait to be delivered; past it they are dropped (ours).
    pub held_log_entries: u64,
    /// A line for every request; `None` is off.
    pub access_log: Option<AccessLog>,
    pub upstream: UpstreamKeepalive,
    /// Bytes by name, such as `plugin-limit-count`; those the file names.
    pub shared_dicts: IndexMap<String, u64>,
    /// Bytes of the dictionaries of scripts, by name.
    pub script_dicts: IndexMap<String, u64>,
}

/// The settings of HTTP/2 in `nginx_config.http`. Those without a remark are nginx's.
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
    /// Bytes of memory for a connection's trailers and small DATA frames that are not read yet (ours).
    pub unread: u64,
    /// A connection is closed gently when it is about so old; zero is no bound.
    pub keepalive_time: Duration,
    /// `upstream.http2_streams` (ours): requests that one connection to a server carries at a time.
    pub upstream_streams: u64,
    /// `upstream.http2_stall_timeout` (ours): a response that its client has not taken for so long is ended where others
    /// need its window; zero is never.
    pub stall_timeout: Duration,
}

/// The settings of HTTP/3 and QUIC in `nginx_config.http`. Those without a remark are nginx's.
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
    /// The number of handshakes under way from which on every client first proves its address (ours).
    pub retry_handshakes: u64,
    /// The value of `Alt-Svc`; empty for none (ours).
    pub alt_svc: String,
}

/// `nginx_config.http.access_log` and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// A path, or an output of the process.
    pub path: String,
    /// The path is the default.
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

/// Connections to upstreams without settings of their own, and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamKeepalive {
    pub size: u64,
    pub requests: u64,
    pub timeout: Duration,
    /// Those of a worker to all upstreams together (ours).
    pub total: u64,
    /// The most retries of upstreams without `retries` (ours).
    pub default_retries: u64,
    /// How long a connection is waited for before one in the other address family is tried as well.
    pub attempt_delay: Duration,
}
