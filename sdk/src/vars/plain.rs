//! hot path
//!
//! Variables without a parameter in their name.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::LazyLock;

use wire::Name;
use wire::proxy_protocol::Ends;

use super::{ReadResult, Value, read, ssl, time};
use crate::exchange::{Exchange, Source};
use crate::stream::{Call, Stream};
use crate::trace::{Tracer, hex_digits};

macro_rules! plain {
    ($($variant:ident = $($name:literal)|+,)*) => {
        /// A variable without a parameter in its name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Plain { $($variant,)* }

        /// The names of these variables.
        pub(super) const NAMES: &[&str] = &[$($($name),+),*];

        impl Plain {
            pub(super) fn named(name: &str) -> Option<Plain> {
                match name { $($($name)|+ => Some(Plain::$variant),)* _ => None }
            }
        }
    };
}

plain! {
    BalancerIp = "balancer_ip",
    BalancerPort = "balancer_port",
    BinaryRemoteAddr = "binary_remote_addr",
    BodyBytesSent = "body_bytes_sent",
    BytesReceived = "bytes_received",
    BytesSent = "bytes_sent",
    ConnectionRequests = "connection_requests",
    ConsumerGroupId = "consumer_group_id",
    ConsumerName = "consumer_name",
    ContentLength = "content_length",
    ContentType = "content_type",
    Host = "host",
    Hostname = "hostname",
    Https = "https",
    IsArgs = "is_args",
    MatchedHost = "matched_host",
    MatchedUri = "matched_uri",
    MqttClientId = "mqtt_client_id",
    Msec = "msec",
    OtelSpan = "opentelemetry_span_id",
    NormalRequestUri = "normal_request_uri",
    OtelTrace = "opentelemetry_trace_id",
    OtelTraceparent = "opentelemetry_context_traceparent",
    PeerAddr = "realip_remote_addr",
    PeerPort = "realip_remote_port",
    Pid = "pid",
    ProxyAddXForwardedFor = "proxy_add_x_forwarded_for",
    Protocol = "protocol",
    ProxyProtocolAddr = "proxy_protocol_addr",
    ProxyProtocolPort = "proxy_protocol_port",
    ProxyProtocolServerAddr = "proxy_protocol_server_addr",
    ProxyProtocolServerPort = "proxy_protocol_server_port",
    QueryString = "query_string" | "args",
    RealRequestUri = "real_request_uri",
    RedisCmdLine = "redis_cmd_line",
    RemoteAddr = "remote_addr",
    RemotePort = "remote_port",
    RemoteUser = "remote_user",
    RequestBody = "request_body",
    RequestId = "request_id" | "apisix_request_id",
    RequestLength = "request_length",
    RequestLine = "request" | "request_line",
    RequestMethod = "request_method" | "method",
    RequestPort = "request_port",
    RequestTime = "request_time",
    RequestUri = "request_uri",
    RouteId = "route_id",
    RouteName = "route_name",
    RpcTime = "rpc_time",
    Scheme = "scheme",
    ServerAddr = "server_addr",
    ServerName = "server_name",
    ServerPort = "server_port",
    ServerProtocol = "server_protocol",
    ServiceId = "service_id",
    ServiceName = "service_name",
    SessionTime = "session_time",
    SluiceBy = "sluice_by",
    SluiceReason = "sluice_reason",
    SslPrereadServerName = "ssl_preread_server_name",
    SslAlpn = "ssl_alpn_protocol",
    SslCipher = "ssl_cipher",
    SslClientCert = "ssl_client_cert",
    SslClientEnd = "ssl_client_v_end",
    SslClientEscaped = "ssl_client_escaped_cert",
    SslClientFingerprint = "ssl_client_fingerprint",
    SslClientIssuer = "ssl_client_i_dn",
    SslClientRaw = "ssl_client_raw_cert",
    SslClientRemain = "ssl_client_v_remain",
    SslClientSerial = "ssl_client_serial",
    SslClientStart = "ssl_client_v_start",
    SslClientSubject = "ssl_client_s_dn",
    SslClientVerify = "ssl_client_verify",
    SslCurve = "ssl_curve",
    SslProtocol = "ssl_protocol",
    SslReused = "ssl_session_reused",
    SslServerName = "ssl_server_name",
    Status = "status",
    TimeIso8601 = "time_iso8601",
    TimeLocal = "time_local",
    UpstreamAddr = "upstream_addr",
    UpstreamBytesReceived = "upstream_bytes_received",
    UpstreamBytesSent = "upstream_bytes_sent",
    UpstreamConnectTime = "upstream_connect_time",
    UpstreamHost = "upstream_host",
    UpstreamResponseTime = "upstream_response_time",
    UpstreamScheme = "upstream_scheme",
    UpstreamStatus = "upstream_status",
    UpstreamUnresolvedHost = "upstream_unresolved_host",
    UpstreamUri = "upstream_uri",
    Uri = "uri" | "document_uri",
    ZipkinSpan = "zipkin_span_id",
    ZipkinTrace = "zipkin_trace_id",
    ZipkinTraceparent = "zipkin_context_traceparent",
}

/// A part of a span's context.
#[derive(Debug, Clone, Copy)]
enum Shown {
    Trace,
    Span,
    Traceparent,
}

/// Appends a part of the context of the exchange's span.
fn span<'a>(x: &Exchange<'_>, of: Tracer, shown: Shown, out: &mut Vec<u8>) -> ReadResult<'a> {
    let Some(span) = x.span(of) else { return ReadResult::Absent };
    let text = span.traceparent();
    out.extend_from_slice(match shown {
        // One of 64 bits, which only Zipkin has.
        Shown::Trace if span.trace_id[..8] == [0; 8] => &text[19..35],
        Shown::Trace => &text[3..35],
        Shown::Span => &text[36..52],
        Shown::Traceparent => &text,
    });
    ReadResult::Plain
}

/// The origin of the response: `gateway`, `upstream` or a plugin's name.
fn by<'a>(x: &Exchange<'_>) -> ReadResult<'a> {
    let engine = x.engine();
    ReadResult::Borrowed(match engine.source {
        Source::Plugin if engine.answered_by.is_empty() => b"plugin",
        Source::Plugin => engine.answered_by.as_bytes(),
        Source::Upstream => b"upstream",
        Source::Gateway => b"gateway",
        Source::None if engine.reason.is_empty() => return ReadResult::Absent,
        Source::None => b"gateway",
    })
}

impl Plain {
    /// Variables that are common in log lines are read here, inlined; all others by
    /// [`Plain::read_other`].
    #[inline(always)]
    pub(super) fn read<'a>(self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> ReadResult<'a> {
        let head = x.request();
        match self {
            Plain::BodyBytesSent => number(out, x.timing().body_sent),
            Plain::RemoteUser => {
                let field = head.fields.get(Name::Authorization);
                if field.is_some_and(|value| read::user(value, out)) {
                    ReadResult::Written
                } else {
                    ReadResult::Absent
                }
            }
            Plain::RequestLine if x.refused_line().is_some() => {
                x.refused_line().filter(|line| !line.is_empty()).into()
            }
            Plain::RequestLine => {
                for part in [method(x), b" ", head.target(), b" ", head.version.as_str().as_bytes()] {
                    out.extend_from_slice(part);
                }
                ReadResult::Written
            }
            Plain::RequestTime => {
                time::seconds(x.timing().total_us / 1000, out);
                ReadResult::Plain
            }
            Plain::RequestUri => request_uri(x, out),
            Plain::NormalRequestUri => {
                head.write_normal_target(out);
                ReadResult::Written
            }
            Plain::Scheme => ReadResult::Borrowed(x.client().scheme().as_bytes()),
            Plain::Status => {
                let digit = |by: u16| b'0' + (x.status() / by % 10) as u8;
                out.extend_from_slice(&[digit(100), digit(10), digit(1)]);
                ReadResult::Plain
            }
            Plain::UpstreamHost => {
                ReadResult::Borrowed(match x.engine().forward.host.or(x.engine().forward.server_host) {
                    Some(span) => head.fields.bytes(span),
                    None => head.authority(),
                })
            }
            Plain::UpstreamResponseTime if x.upstream_addr().is_some() => {
                let mut last = x.timing().upstream_us;
                for tried in x.tried() {
                    time::seconds(tried.took_us / 1000, out);
                    out.extend_from_slice(b", ");
                    last = last.saturating_sub(tried.took_us);
                }
                time::seconds(last / 1000, out);
                ReadResult::Plain
            }
            Plain::UpstreamResponseTime => ReadResult::Absent,
            Plain::UpstreamStatus if x.upstream_statuses(out) => ReadResult::Plain,
            Plain::UpstreamStatus => ReadResult::Absent,
            Plain::UpstreamScheme if x.engine().forward.scheme.is_empty() => ReadResult::Borrowed(b"http"),
            Plain::UpstreamScheme => ReadResult::Borrowed(x.engine().forward.scheme.as_bytes()),
            Plain::Uri => ReadResult::Borrowed(head.path()),
            _ => self.read_other(x, out),
        }
    }

    #[inline(never)]
    fn read_other<'a>(self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> ReadResult<'a> {
        let head = x.request();
        let fields = &head.fields;
        match self {
            Plain::BalancerIp => x.upstream_addr().map_or(ReadResult::Absent, |addr| write(out, addr.ip())),
            Plain::BalancerPort => match x.upstream_addr() {
                Some(addr) => ReadResult::Value(Value::Number(f64::from(addr.port()))),
                None => ReadResult::Absent,
            },
            Plain::BinaryRemoteAddr => {
                match x.client().ip() {
                    std::net::IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                    std::net::IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
                }
                ReadResult::Written
            }
            Plain::BytesReceived => of_stream(x, |_| number(out, x.timing().received)),
            Plain::BytesSent => number(out, x.timing().sent),
            Plain::ConnectionRequests => number(out, x.timing().connection_requests),
            Plain::ConsumerGroupId => x.consumer().and_then(|c| c.group_id.as_deref()).into(),
            Plain::ConsumerName => x.consumer().map(|c| c.name.as_str()).into(),
            Plain::ContentLength => fields.get(Name::ContentLength).into(),
            Plain::ContentType => fields.get(Name::ContentType).into(),
            // A request without a host is served by the server named `_`, as in nginx.
            Plain::Host if head.host().is_empty() => ReadResult::Borrowed(b"_"),
            Plain::Host => ReadResult::Borrowed(head.host()),
            Plain::Hostname => ReadResult::Borrowed(HOSTNAME.as_bytes()),
            Plain::Https => ReadResult::Borrowed(if x.client().tls { b"on" } else { b"" }),
            Plain::IsArgs => ReadResult::Borrowed(if head.query().is_empty() { b"" } else { b"?" }),
            Plain::MatchedHost => filled(x.matched_host()),
            Plain::MatchedUri => filled(x.matched_uri()),
            Plain::MqttClientId => of_stream(x, |stream| stream.mqtt_client_id.as_deref().into()),
            Plain::Msec => {
                time::seconds(x.world().now_ms(), out);
                ReadResult::Written
            }
            Plain::OtelSpan => span(x, Tracer::OpenTelemetry, Shown::Span, out),
            Plain::OtelTrace => span(x, Tracer::OpenTelemetry, Shown::Trace, out),
            Plain::OtelTraceparent => span(x, Tracer::OpenTelemetry, Shown::Traceparent, out),
            Plain::ZipkinSpan => span(x, Tracer::Zipkin, Shown::Span, out),
            Plain::ZipkinTrace => span(x, Tracer::Zipkin, Shown::Trace, out),
            Plain::ZipkinTraceparent => span(x, Tracer::Zipkin, Shown::Traceparent, out),
            Plain::PeerAddr => write(out, x.client().peer.ip().to_canonical()),
            Plain::PeerPort => write(out, x.client().peer.port()),
            // If only the address was sent, the port is empty in nginx.
            Plain::RemotePort if x.client().port() == 0 => ReadResult::Borrowed(b""),
            Plain::RemotePort => number(out, x.client().port().into()),
            Plain::Pid => write(out, std::process::id()),
            Plain::ProxyAddXForwardedFor => {
                for value in fields.all(b"x-forwarded-for") {
                    out.extend_from_slice(value);
                    out.extend_from_slice(b", ");
                }
                out.extend_from_slice(x.client().ip_text());
                ReadResult::Written
            }
            Plain::Protocol => {
                of_stream(x, |stream| ReadResult::Borrowed(stream.protocol.as_str().as_bytes()))
            }
            Plain::ProxyProtocolAddr => proxied_end(x, out, |ends| ends.source, false),
            Plain::ProxyProtocolPort => proxied_end(x, out, |ends| ends.source, true),
            Plain::ProxyProtocolServerAddr => proxied_end(x, out, |ends| ends.destination, false),
            Plain::ProxyProtocolServerPort => proxied_end(x, out, |ends| ends.destination, true),
            Plain::QueryString => head.has_query.then(|| head.query()).into(),
            Plain::RealRequestUri => ReadResult::Borrowed(head.target()),
            Plain::RedisCmdLine => of_call(x, |call| call.redis_line.as_deref().into()),
            Plain::RemoteAddr => ReadResult::Borrowed(x.client().ip_text()),
            Plain::RequestBody => Some(x.body()).filter(|body| !body.is_empty()).into(),
            Plain::RequestId => {
                let [high, low] = x.unique();
                let digits = [high >> 32, high, low >> 32, low].map(|part| hex_digits(part as u32));
                out.extend_from_slice(digits.as_flattened());
                ReadResult::Plain
            }
            Plain::RequestLength => number(out, x.timing().received),
            Plain::RequestMethod => ReadResult::Borrowed(method(x)),
            Plain::RouteId => x.route().map_or(ReadResult::Absent, |route| filled(&route.id)),
            Plain::RouteName => x.route().map_or(ReadResult::Absent, |route| filled(&route.name)),
            // Seconds as a number, in whole milliseconds as in APISIX.
            Plain::RpcTime => {
                of_call(x, |call| ReadResult::Value(Value::Number((call.took_us / 1000) as f64 / 1000.0)))
            }
            Plain::ServerAddr => write(out, x.client().local.ip().to_canonical()),
            Plain::ServerName => ReadResult::Borrowed(b"_"),
            Plain::RequestPort => {
                let usual = if x.client().scheme() == "https" { 443 } else { 80 };
                write(out, x.authority_port().unwrap_or(usual))
            }
            Plain::ServerPort => write(out, x.client().local.port()),
            Plain::ServerProtocol => ReadResult::Borrowed(head.version.as_str().as_bytes()),
            Plain::ServiceId => x.route().map_or(ReadResult::Absent, |route| filled(&route.service_id)),
            Plain::ServiceName => x.route().map_or(ReadResult::Absent, |route| filled(&route.service_name)),
            Plain::SessionTime => of_stream(x, |_| {
                time::seconds(x.timing().total_us / 1000, out);
                ReadResult::Plain
            }),
            Plain::SluiceBy => by(x),
            Plain::SluiceReason => filled(x.engine().reason),
            Plain::SslPrereadServerName => of_stream(x, |stream| stream.server_name.as_deref().into()),
            Plain::SslAlpn
            | Plain::SslCipher
            | Plain::SslClientCert
            | Plain::SslClientEnd
            | Plain::SslClientEscaped
            | Plain::SslClientFingerprint
            | Plain::SslClientIssuer
            | Plain::SslClientRaw
            | Plain::SslClientRemain
            | Plain::SslClientSerial
            | Plain::SslClientStart
            | Plain::SslClientSubject
            | Plain::SslClientVerify
            | Plain::SslCurve
            | Plain::SslProtocol
            | Plain::SslReused
            | Plain::SslServerName => match &x.client().session {
                Some(session) => ssl::read(self, session, x.world().now_ms() / 1000, out),
                None => ReadResult::Absent,
            },
            Plain::TimeIso8601 => {
                time::iso8601(x.world().now_ms(), out);
                ReadResult::Written
            }
            Plain::TimeLocal => {
                time::local(x.world().now_ms(), out);
                ReadResult::Written
            }
            Plain::UpstreamAddr => match x.upstream_addr() {
                Some(addr) => {
                    for tried in x.tried() {
                        address(out, tried.addr);
                        out.extend_from_slice(b", ");
                    }
                    address(out, addr)
                }
                None => ReadResult::Absent,
            },
            Plain::UpstreamBytesReceived => of_stream(x, |stream| number(out, stream.upstream_received)),
            Plain::UpstreamBytesSent => of_stream(x, |stream| number(out, stream.upstream_sent)),
            Plain::UpstreamConnectTime => of_stream(x, |stream| match stream.connect_us {
                Some(micros) => {
                    time::seconds(micros / 1000, out);
                    ReadResult::Plain
                }
                None => ReadResult::Absent,
            }),
            Plain::UpstreamUnresolvedHost => {
                x.engine().forward.server.map(|span| host_of(fields.bytes(span))).into()
            }
            Plain::UpstreamUri => {
                x.upstream_uri(out);
                ReadResult::Written
            }
            // Read above.
            Plain::BodyBytesSent
            | Plain::RemoteUser
            | Plain::RequestLine
            | Plain::NormalRequestUri
            | Plain::RequestTime
            | Plain::RequestUri
            | Plain::Scheme
            | Plain::Status
            | Plain::UpstreamHost
            | Plain::UpstreamResponseTime
            | Plain::UpstreamStatus
            | Plain::UpstreamScheme
            | Plain::Uri => ReadResult::Absent,
        }
    }
}

pub(super) fn write<'a>(out: &mut Vec<u8>, value: impl std::fmt::Display) -> ReadResult<'a> {
    // Writing to a Vec cannot fail. These are numbers and addresses.
    let _ = write!(out, "{value}");
    ReadResult::Plain
}

/// As [`write`], for a whole number, at a fraction of the cost.
fn number<'a>(out: &mut Vec<u8>, value: u64) -> ReadResult<'a> {
    wire::h1::encode::decimal(value, out);
    ReadResult::Plain
}

/// As [`write`], for an address and a port.
fn address<'a>(out: &mut Vec<u8>, addr: std::net::SocketAddr) -> ReadResult<'a> {
    let std::net::SocketAddr::V4(v4) = addr else { return write(out, addr) };
    for (at, octet) in v4.ip().octets().into_iter().enumerate() {
        if at > 0 {
            out.push(b'.');
        }
        wire::h1::encode::decimal(octet.into(), out);
    }
    out.push(b':');
    number(out, v4.port().into())
}

/// Reads a value that only streams have.
fn of_stream<'a>(x: &'a Exchange<'_>, read: impl FnOnce(&'a Stream) -> ReadResult<'a>) -> ReadResult<'a> {
    x.stream().map_or(ReadResult::Absent, read)
}

/// Reads a value that only calls within a stream have.
fn of_call<'a>(x: &'a Exchange<'_>, read: impl FnOnce(&'a Call) -> ReadResult<'a>) -> ReadResult<'a> {
    of_stream(x, |stream| stream.call.as_ref().map_or(ReadResult::Absent, read))
}

/// The address or the port of one end of the connection in a PROXY protocol header; as in nginx an
/// empty text without such a header.
fn proxied_end<'a>(
    x: &Exchange<'_>,
    out: &mut Vec<u8>,
    end: fn(&Ends) -> SocketAddr,
    port: bool,
) -> ReadResult<'a> {
    match x.client().ends().map(end) {
        None => ReadResult::Borrowed(b""),
        Some(end) if port => number(out, end.port().into()),
        Some(end) => write(out, end.ip().to_canonical()),
    }
}

/// The host of `host`, `host:port` or `[v6]:port`.
fn host_of(authority: &[u8]) -> &[u8] {
    let end = match authority.strip_prefix(b"[").and_then(|rest| memchr::memchr(b']', rest)) {
        Some(end) => end + 2,
        None => memchr::memchr(b':', authority).unwrap_or(authority.len()),
    };
    &authority[..end]
}

/// An empty text counts as absent.
fn filled(text: &str) -> ReadResult<'_> {
    if text.is_empty() { ReadResult::Absent } else { ReadResult::Borrowed(text.as_bytes()) }
}

pub(super) fn method<'a>(x: &'a Exchange<'_>) -> &'a [u8] {
    match x.method() {
        wire::Method::Other => x.request().method_bytes(),
        known => known.as_str().as_bytes(),
    }
}

/// The normalized path and the query. As in APISIX, not the text the client sent, so that another
/// spelling cannot bypass rules; that text is in `real_request_uri`.
fn request_uri<'a>(x: &'a Exchange<'_>, out: &mut Vec<u8>) -> ReadResult<'a> {
    let head = x.request();
    let (path, query) = (head.path(), head.query());
    match head.target().strip_prefix(path) {
        Some(b"") if query.is_empty() => return ReadResult::Borrowed(path),
        Some([b'?', rest @ ..]) if !query.is_empty() && rest == query => {
            return ReadResult::Borrowed(head.target());
        }
        _ => {}
    }
    out.extend_from_slice(path);
    if !query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    ReadResult::Written
}

/// This machine's name, read when the first configuration that uses it is built.
#[expect(clippy::disallowed_methods, reason = "read once, on the control thread")]
pub(super) static HOSTNAME: LazyLock<String> = LazyLock::new(|| {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
});
