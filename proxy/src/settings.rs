//! How the data plane behaves, fixed at start.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use sdk::HeaderName;
use sdk::log_format::LogFormat;
use sdk::resolve::Resolve;
use sdk::sink::Sink;
use snapshot::certs::CommonTls;
use wire::BadField;
use wire::h1::decode;

use crate::handoff::Handoff;
use crate::listener::Listener;
use crate::pool::Pool;

/// Every bound and address of the data plane. Times and sizes follow APISIX's
/// `nginx_config` where it has them.
#[derive(Clone)]
pub struct Settings {
    /// Where every worker listens, and for what.
    pub listen: Vec<Listener>,
    pub timeouts: Timeouts,
    pub limits: Limits,
    pub budgets: Budgets,
    /// Listen also where another process listens already, and let it.
    pub reuse_port: bool,
    /// Bounds of a request head. Its `path.refused` is empty, as routes decide on that.
    pub request: decode::Limits,
    /// Bounds of an upstream's response head.
    pub response: decode::Limits,
    /// For requests of plugins over TLS.
    pub tls: CommonTls,
    /// Resolves names that are met at run time, on the control side.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// How far conditions look into a body.
    pub bounds: sdk::Bounds,
    /// Threads for long work.
    pub pool: Pool,
    /// Threads for files that plugins serve.
    pub file_pool: Pool,
    /// The first part of a short response waits a little for the rest (`proxy_buffering`).
    pub gathers: bool,
    /// Value of `Server` in every answer.
    pub server: String,
    /// `X-APISIX-Upstream-Status` on every answer, not only when the upstream failed.
    pub show_upstream_status: bool,
    /// Selects the requests whose answers explain what was decided; none without it. Boxed, as it is rare.
    pub explain: Option<Box<Explain>>,
    /// Requests that an operator looks at.
    pub taps: Arc<sdk::tap::Taps>,
    pub streams: Streams,
    /// PROXY protocol headers before a connection's own first byte, on ports that ask for them.
    pub proxy_protocol: ProxyProtocol,
    /// The peers that are trusted to name the client's address, and where they do.
    pub real_ip: Option<RealIp>,
    /// Peers whose `X-Forwarded-*` and `Forwarded` fields are trusted. Without it no peer is, but
    /// `X-Forwarded-For` is passed on with the client's address appended.
    pub trusted: Option<Arc<dyn Fn(IpAddr) -> bool + Send + Sync>>,
    /// Bounds of HTTP/2.
    pub http2: Http2,
    /// Bounds of HTTP/3. Those of [`Http2`] on frames that ask for nothing and on age are for both.
    pub http3: Http3,
    /// Requests that are answered by the control side, such as the Admin API on the data port.
    pub handoff: Option<Arc<dyn Handoff>>,
    /// TLS configurations for handshakes in which an ACME server verifies a name (RFC 8737); must not wait.
    pub proofs: Option<Proofs>,
    /// Where a line for every request goes, and what it says.
    pub access_log: Option<AccessLog>,
    /// Called for every failed exchange; must not wait.
    pub on_fault: Arc<dyn Fn(crate::FaultRecord) + Send + Sync>,
    /// Called by each worker at most once a second for each kind of event that operators should know of,
    /// with the worker's number; must not wait.
    pub on_notice: Arc<dyn Fn(usize, crate::Notice) + Send + Sync>,
}

/// Times of clients' connections, of requests and of a shutdown.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// For a whole request head, from its first byte (`client_header_timeout`).
    pub header: Duration,
    /// For a TLS handshake, from its first byte to its last (`tls_handshake_timeout`).
    pub handshake: Duration,
    /// Between two reads of a request's body (`client_body_timeout`).
    pub body: Duration,
    /// Between two writes to the client (`send_timeout`).
    pub send: Duration,
    /// Between two requests of a connection (`keepalive_timeout`); zero turns keep-alive off.
    pub keepalive: Duration,
    /// A client that has closed its sending side while its request runs may be gone or may still
    /// read; after so long without a response it counts as gone.
    pub half_close: Duration,
    /// How long a plugin may wait in one phase (`plugin_wait_timeout`).
    pub plugin_wait: Duration,
    /// After an error answer, reading the rest of the request, so that the client can read the answer
    /// (`lingering_time`).
    pub linger: Duration,
    /// On a graceful stop, a connection between two requests stays open for this long: a request that
    /// arrives meanwhile is answered, and the client learns that it was the last (`keepalive_min_timeout`).
    pub idle_grace: Duration,
    /// How long a connection to a server is waited for before one in the other address family is tried as well.
    pub attempt_delay: Duration,
    /// On a graceful stop, exchanges in flight may take so long (`worker_shutdown_timeout`).
    pub drain: Duration,
    /// A connection that has waited longer to be accepted is answered with 503 while the queue stays
    /// that old; zero serves all, however late (`accept_wait`).
    pub queue: Duration,
}

/// Numbers and sizes that a request, a connection or a worker may reach.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections a worker holds at once (`worker_connections`). For one more, idle ones are closed;
    /// without any, it waits.
    pub connections: usize,
    /// Requests after which a client's connection is closed (`keepalive_requests`).
    pub keepalive_requests: u64,
    /// Largest request body in bytes; 0 is unbounded (`client_max_body_size`).
    pub body: u64,
    /// Gateways that a request may have passed through, this one included; more are a loop (`max_hops`).
    pub hops: u16,
    /// Bytes of the rest of a request that are read after an error answer (`lingering_bytes`).
    pub linger_bytes: usize,
    /// Idle connections to upstreams a worker keeps in all (`upstream.keepalive_total`).
    pub idle_upstreams: usize,
    /// Requests of plugins that no exchange waits for, such as mirrors, in flight on a worker.
    pub fetches: usize,
    /// The same to one server.
    pub fetches_per_target: usize,
    /// Raw connections of plugins in use on a worker, and tasks that they run there (`max_plugin_connections`).
    pub plugin_connections: usize,
    /// Names met at run time whose addresses a worker keeps (`max_resolved_names`).
    pub resolved_names: usize,
}

/// Bytes that one worker holds or promises at once.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Bytes of bodies that a worker holds in memory at once, for conditions and stages that need
    /// them whole (`held_bodies`).
    pub held_bodies: usize,
    /// Bytes that a worker's HTTP/2 and HTTP/3 clients may send in all before they are read, beyond the first
    /// window of each connection (`stream_windows`).
    pub stream_windows: usize,
    /// The same of servers that speak HTTP/2 (`upstream.http2_windows`).
    pub upstream_windows: usize,
    /// Bytes of responses that a worker holds for HTTP/2 and HTTP/3 clients that do not take them, beyond the first
    /// part of each connection (`send_windows`).
    pub send_windows: usize,
}

/// Whose requests are explained, and where (`sluice.explain`).
#[derive(Clone)]
pub struct Explain {
    /// Of the request with the key, and of the answer with the account.
    pub header: HeaderName,
    pub key: Vec<u8>,
    /// Bytes of an account.
    pub most: usize,
}

/// PROXY protocol headers that clients send.
#[derive(Clone)]
pub struct ProxyProtocol {
    /// The peers that may connect to a port that asks for headers (`apisix.proxy_protocol.trusted_addresses`);
    /// all, without it.
    pub trusted: Option<Arc<dyn Fn(IpAddr) -> bool + Send + Sync>>,
    /// For the whole header (`proxy_protocol_timeout`).
    pub timeout: Duration,
}

/// Bounds and habits of streams.
#[derive(Clone)]
pub struct Streams {
    /// For connecting to an upstream without a time-out of its own (`proxy_connect_timeout`).
    pub connect_timeout: Duration,
    /// With no byte in either direction for so long, a stream ends (`proxy_timeout`).
    pub idle_timeout: Duration,
    /// For a client's first bytes, where they decide (`preread_timeout`).
    pub preread_timeout: Duration,
    /// Peers whose PROXY protocol header names the client (`real_ip_from`).
    pub real_ip_from: Option<Arc<dyn Fn(IpAddr) -> bool + Send + Sync>>,
    pub access_log: Option<AccessLog>,
    /// Where every worker takes datagrams.
    pub udp: Vec<SocketAddr>,
    /// With no datagram in either direction for so long, a UDP session ends (`udp_timeout`).
    pub udp_idle_timeout: Duration,
    /// UDP sessions of a worker (`max_udp_sessions`); a datagram that would begin one more is dropped.
    pub max_udp_sessions: usize,
    /// Bytes of datagrams that wait until a session has its server (`udp_queue`).
    pub udp_queue: usize,
}

/// Looks up the TLS configuration that proves a name in a handshake.
pub type Proofs = Arc<dyn Fn(&str) -> Option<Arc<rustls::ServerConfig>> + Send + Sync>;

/// Bounds of HTTP/2 connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2 {
    /// Streams a client may have open on one connection (`http2_max_concurrent_streams`).
    pub max_streams: u32,
    /// Bytes of one request's body that a client may send before they are wanted
    /// (`http2_body_preread_size`).
    pub stream_window: u32,
    /// Bytes of responses that may wait for one client's connection (`http2_send_buffer`).
    pub send_buffer: u32,
    /// Frames that ask for nothing, such as PING, that a client may send at once beyond what its requests
    /// pay for (`http2_control_frames`).
    pub control_frames: u32,
    /// Streams of one connection that may be broken off because of what the client sent on them
    /// (`http2_stream_errors`).
    pub max_stream_errors: u32,
    /// Memory for unread small frames and trailers of one client (`http2_unread`).
    pub unread: usize,
    /// A connection is closed gently when it is about so old (`keepalive_time`); zero is no bound.
    pub max_age: Duration,
    /// Requests that one connection to a server carries at a time (`upstream.http2_streams`).
    pub upstream_streams: u32,
    /// A stream whose client has taken next to nothing of a response for so long is reset when others need its window
    /// (`upstream.http2_stall_timeout`); zero is never.
    pub stall_timeout: Duration,
}

/// Bounds of QUIC and of HTTP/3 connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http3 {
    /// Streams a client may have open on one connection (`http3_max_concurrent_streams`).
    pub max_streams: u32,
    /// Bytes of one stream that a client may send before they are read (`http3_stream_buffer_size`).
    pub stream_window: u32,
    /// Bytes on their way to one client, until it has acknowledged them (`http3_send_buffer`).
    pub send_window: u64,
    /// A connection from which nothing comes for so long is gone (`http3_idle_timeout`).
    pub idle_timeout: Duration,
    /// Handshakes that a worker has under way at once (`http3_handshakes`).
    pub max_handshakes: usize,
    /// From this many handshakes on, a client first proves that it receives what is sent to its address
    /// (`http3_retry_handshakes`, 0 with `quic_retry`).
    pub retry_from: usize,
    /// Value of `Alt-Svc` on TLS ports that HTTP/3 is served beside, `$server_port` for the port; no field if
    /// it is empty (`http3_alt_svc`).
    pub alt_svc: String,
}

/// The access log, as far as workers have to do with it.
#[derive(Debug, Clone)]
pub struct AccessLog {
    pub format: Arc<LogFormat>,
    pub sink: Sink,
    /// Bounds on the entries that one worker gathers and that may wait.
    pub bounds: sdk::sink::Bounds,
    /// Lines wait at most about so long before they are handed over (`access_log_flush`).
    pub flush: Duration,
}

/// NGINX's real_ip: the client's address as a trusted peer tells it.
#[derive(Clone)]
pub struct RealIp {
    pub source: RealIpSource,
    pub from: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// Of a list, the last address that is not itself trusted (`real_ip_recursive`).
    pub recursive: bool,
}

/// Where the client's address is read from (`real_ip_header`).
#[derive(Debug, Clone)]
pub enum RealIpSource {
    /// The connection's PROXY protocol header.
    ProxyProtocol,
    /// A field of the request; of a list (`X-Forwarded-For`) the last address counts.
    Field(HeaderName),
}

impl RealIpSource {
    /// # Errors
    /// A name that no field can have.
    pub fn named(header: &str) -> Result<RealIpSource, BadField> {
        if header == "proxy_protocol" {
            return Ok(RealIpSource::ProxyProtocol);
        }
        HeaderName::new(header).map(RealIpSource::Field)
    }
}

impl RealIp {
    /// The address a field's value names.
    pub(crate) fn read(&self, value: &[u8]) -> Option<IpAddr> {
        let mut found = None;
        for piece in std::str::from_utf8(value).ok()?.rsplit(',') {
            let text = piece.trim();
            let text = text.strip_prefix('[').and_then(|text| text.split(']').next()).unwrap_or(text);
            let address = text.parse().or_else(|_| text.parse().map(|socket: SocketAddr| socket.ip()));
            let Ok(address) = address else { break };
            let address: IpAddr = address;
            // As peers' addresses are, so that every list means both forms of an address.
            let address = address.to_canonical();
            found = Some(address);
            if !self.recursive || !(self.from)(address) {
                break;
            }
        }
        found
    }
}

impl Settings {
    /// The largest list of fields that is kept of a request's head or trailers, as HTTP/2 counts.
    pub(crate) fn header_list(&self) -> usize {
        self.request.head + 32 * self.request.fields
    }

    /// HTTP/3 is served on this address.
    pub fn is_h3(&self, address: SocketAddr) -> bool {
        self.listen.iter().any(|listener| listener.h3() && listener.address == address)
    }
}

impl std::fmt::Debug for Explain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explain").field("header", &self.header).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("listen", &self.listen).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_last_address_nobody_trusts() {
        let real_ip = |recursive| RealIp {
            source: RealIpSource::named("X-Forwarded-For").unwrap(),
            from: Arc::new(|ip| ip.is_loopback()),
            recursive,
        };
        let read =
            |value: &str, recursive| real_ip(recursive).read(value.as_bytes()).map(|ip| ip.to_string());
        assert_eq!(read("10.0.0.1, 127.0.0.1", false).as_deref(), Some("127.0.0.1"));
        assert_eq!(read("9.9.9.9, 10.0.0.1, 127.0.0.1", true).as_deref(), Some("10.0.0.1"));
        assert_eq!(read("[::2]:80", false).as_deref(), Some("::2"));
        assert_eq!(read("10.0.0.1:80", false).as_deref(), Some("10.0.0.1"));
        assert_eq!(read("::ffff:10.1.1.1", false).as_deref(), Some("10.1.1.1"));
        assert_eq!(read("9.9.9.9, ::ffff:10.0.0.1, ::ffff:127.0.0.1", true).as_deref(), Some("10.0.0.1"));
        assert_eq!(read("[::ffff:10.1.1.1]:80", false).as_deref(), Some("10.1.1.1"));
        assert_eq!(read("unknown", true), None);
        assert_eq!(read("", true), None);
    }

    #[test]
    fn the_longest_head_with_the_most_fields_is_a_list_that_is_kept() {
        let request = decode::Limits { head: 1000, fields: 10, ..decode::Limits::default() };
        let settings = Settings { request, ..Settings::default() };
        // Each field counts for 32 bytes beside its own (RFC 9113 section 10.5.1).
        let fields = [("a-hundred-bytes", 85); 10].map(|(name, value)| name.len() + value + 32);
        assert_eq!(settings.header_list(), fields.iter().sum::<usize>());
    }
}
