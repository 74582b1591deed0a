//! Why an exchange failed, whose fault it was, and what may be done about it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use sdk::Undecidable;
use sdk::client::TlsSession;
use snapshot::Failure;
use snapshot::load::Limit;
use wire::client_hello;
use wire::h1::Refusal;

/// The connection cannot be used for this host.
pub(crate) const OTHER_HOST: &str =
    "the host of the request demands a client certificate, and the TLS handshake was for another";

/// Whose failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    Client,
    Upstream,
    Gateway,
}

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    // the client
    BadRequest(Refusal),
    /// A TLS handshake where plain HTTP is spoken.
    TlsOnPlainPort,
    /// It sends too much of something.
    Flood(Flood),
    /// It broke a rule of HTTP/2 or HTTP/3, which ends its connection: the words for the log, with the error's name.
    BrokenRule(&'static str),
    /// No certificate is served under the name it asked for.
    NoCertificate,
    /// The TLS handshake came to nothing, and why.
    HandshakeFailed(&'static str),
    HandshakeTimeout,
    /// Its certificate was asked for and is not there, or not trusted, or proves another host's client.
    NotProven(&'static str),
    /// Its TLS handshake followed rules for client certificates that are no longer those of the host.
    RulesChanged,
    /// Its connection was set up for another host, which did not prove the client as this one demands.
    Misdirected,
    HeadTimeout,
    /// An invalid beginning of a TLS handshake.
    BadClientHello(client_hello::Refusal),
    /// A stream's first bytes, where they decide.
    PrereadTimeout,
    /// A client's message within a stream violates the protocol that its route names.
    BadProtocol(&'static str),
    /// The same of a server.
    BadServerProtocol(&'static str),
    BodyTimeout,
    BodyTooLarge(BodyLimit),
    BadBody(Refusal),
    /// A condition on it cannot be judged.
    Undecidable(Undecidable),
    /// It closed the connection or broke off.
    ClientGone,
    /// It took too long to read the response.
    ClientSlow,
    /// It took next to nothing of the response, and others needed what that holds of the windows for servers.
    ClientStalled,
    MethodNotAllowed,
    /// It asks for a tunnel (RFC 8441, RFC 9220) on a route that takes none.
    NoWebsocket,
    /// It asks for a tunnel, and was answered with success but without one, which its client would take for one.
    NoSwitch,
    /// It has passed through more gateways than a request may (`max_hops`).
    LoopDetected,
    // the upstream
    ConnectRefused,
    ConnectFailed,
    /// There is no descriptor for a connection to it, which is not its fault.
    NoDescriptor,
    ConnectTimeout,
    /// TLS could not be set up with it, and why.
    TlsFailed(&'static str),
    SendTimeout,
    ReadTimeout,
    /// The connection ended before the response head was complete.
    ClosedEarly,
    BadResponse(Refusal),
    /// The connection ended within the response's body.
    Truncated,
    /// The stream or the HTTP/2 connection ended before the response head was there, and how. The server may have
    /// processed the request.
    Ended(&'static str),
    /// The server broke a rule of HTTP/2 on the stream.
    BrokenStream,
    /// The server refused the request without looking at it, or said that it takes no more.
    Unprocessed,
    /// 101 without a request for it.
    UnaskedInterim,
    /// 101 that does not fit the key it was asked with.
    WrongAccept,
    /// More interim responses than one request may have.
    TooManyInterim,
    /// It speaks HTTP/2, and takes no tunnels.
    NoTunnels,
    /// A status of `sluice.retry.statuses`: another server is asked instead.
    TurnedAway(u16),
    // the gateway
    NoRoute,
    Plan(Failure),
    /// The upstream has no nodes with an address.
    NoNode,
    /// All nodes were tried.
    NoServerLeft,
    /// Another server could be tried, but `retry_timeout` is over.
    NoTimeLeft,
    /// A limit of `sluice.limits`, or of `sluice.adaptive_concurrency`.
    AtLimit(Limit),
    UnsupportedScheme,
    /// The texts that plugins have set for the request are too long.
    LacksText,
    /// A plugin of the stream sees bytes of TCP, and these are datagrams.
    NeedsTcp,
    Panic,
    /// A plugin rejected the request's body while it was sent, with this status.
    BodyRejected(u16),
    /// A stage asked for something that cannot be, such as a body length that does not fit.
    BrokenStage,
    Stopping,
    /// The connection has waited too long to be served.
    Overloaded,
    /// The worker holds as many bodies in memory as it may.
    HeldTooMuch,
    /// A plugin waited for too long.
    PluginTimeout,
    /// A plugin could not produce the rest of its response.
    Unfinished(&'static str),
    /// A stage could not do its work; the exchange went on without it.
    Skipped {
        plugin: &'static str,
        reason: &'static str,
    },
}

/// The limit that a request's body exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLimit {
    /// `client_max_body_size`
    Client,
    /// `max_body_size` of the route's client-control, in bytes.
    Route(u64),
    /// `held_bodies`: it alone is larger than the memory for all of them.
    Held,
    /// That of the Admin API.
    Handoff,
}

/// The kind of flood that a client of HTTP/2 or HTTP/3 sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flood {
    /// Frames that ask for nothing.
    Frames,
    /// Trailers on one connection that are not read yet.
    Unread,
    /// The same on all connections of the worker.
    AllUnread,
    /// Streams that had to be reset.
    StreamErrors,
    /// A head far beyond the limit.
    HeaderList,
}

impl Flood {
    fn words(self) -> &'static str {
        match self {
            Flood::Frames => {
                "the client sends many HTTP/2 or HTTP/3 frames that ask for nothing, or resets most requests"
            }
            Flood::Unread | Flood::AllUnread => "the client sends more trailers than may wait to be read",
            Flood::StreamErrors => "too many of the client's streams had to be reset because of what it sent",
            Flood::HeaderList => "the client sends a head far beyond the limit",
        }
    }
}

/// A failed exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub blame: Blame,
    pub kind: FaultKind,
}

/// A record of a failed exchange: enough for one line in the log.
#[derive(Debug, Clone)]
pub struct FaultRecord {
    pub fault: Fault,
    /// The status the client got; 0 if it got none.
    pub status: u16,
    /// The setting that was exceeded and its value, if it was one.
    pub limit: Option<(&'static str, u64)>,
    pub client: IpAddr,
    pub upstream: Option<SocketAddr>,
    pub route: String,
    /// Method and path, shortened.
    pub request: String,
    /// Of a refusal that TLS has to do with.
    pub tls: TlsNames,
}

/// The names in a client's TLS handshake, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsNames {
    /// The server that the client asked for (SNI).
    pub server: Option<Box<str>>,
    /// Subject and issuer of its certificate (RFC 2253), shortened.
    pub certificate: Option<(String, String)>,
}

impl TlsNames {
    #[cold]
    pub(crate) fn of(session: &TlsSession) -> TlsNames {
        let certificate = session.certificate.as_deref();
        TlsNames {
            server: session.server_name.clone(),
            certificate: certificate
                .map(|certificate| (shortened(&certificate.subject), shortened(&certificate.issuer))),
        }
    }

    /// Those of a handshake that failed with this error. To be called at once: a certificate is noted until the next
    /// one is refused.
    #[cold]
    pub(crate) fn refused(server: Option<&str>, error: Option<&rustls::Error>) -> TlsNames {
        let noted = snapshot::certs::take_refused();
        let names = noted.filter(|_| matches!(error, Some(rustls::Error::InvalidCertificate(_))));
        TlsNames {
            server: server.map(Into::into),
            certificate: names.map(|(subject, issuer)| (shortened(&subject), shortened(&issuer))),
        }
    }
}

/// The beginning of a name, of any length.
fn shortened(name: &str) -> String {
    name.chars().take(200).collect()
}

impl Fault {
    pub(crate) fn client(kind: FaultKind) -> Fault {
        Fault { blame: Blame::Client, kind }
    }

    pub(crate) fn upstream(kind: FaultKind) -> Fault {
        Fault { blame: Blame::Upstream, kind }
    }

    pub(crate) fn gateway(kind: FaultKind) -> Fault {
        Fault { blame: Blame::Gateway, kind }
    }
}

impl FaultKind {
    /// Whether APISIX answers it by a function of its own, so that plugins may change the response
    /// ([`sdk::Exchange::filter_replies`]).
    pub(crate) fn is_exit(self) -> bool {
        matches!(self, FaultKind::NoRoute | FaultKind::Plan(_) | FaultKind::NoNode)
    }

    /// Whether no server answered: there was no connection, or it ended too early. Invalid answers and timeouts differ.
    pub(crate) fn is_without_answer(self) -> bool {
        matches!(
            self,
            FaultKind::ConnectRefused
                | FaultKind::ConnectFailed
                | FaultKind::TlsFailed(_)
                | FaultKind::ClosedEarly
                | FaultKind::Ended(_)
                | FaultKind::BrokenStream
                | FaultKind::Unprocessed
                | FaultKind::NoServerLeft
                | FaultKind::NoTimeLeft
        )
    }

    pub(crate) fn of_connect(error: &io::Error) -> FaultKind {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => FaultKind::ConnectRefused,
            io::ErrorKind::TimedOut => FaultKind::ConnectTimeout,
            _ => FaultKind::ConnectFailed,
        }
    }

    /// The status of the answer (APISIX's and NGINX's choice); 499 and 408 mark the log where
    /// no client is left to answer.
    pub fn status(self) -> u16 {
        match self {
            FaultKind::BadRequest(refusal) | FaultKind::BadBody(refusal) => refusal.status(),
            FaultKind::TlsOnPlainPort
            | FaultKind::BrokenRule(_)
            | FaultKind::BadClientHello(_)
            | FaultKind::BadProtocol(_)
            | FaultKind::PrereadTimeout
            | FaultKind::RulesChanged
            | FaultKind::NotProven(_) => 400,
            // There is no client to answer.
            FaultKind::NoCertificate | FaultKind::HandshakeFailed(_) | FaultKind::HandshakeTimeout => 0,
            FaultKind::Misdirected => 421,
            FaultKind::Flood(_) => 429,
            FaultKind::HeadTimeout
            | FaultKind::BodyTimeout
            | FaultKind::ClientSlow
            | FaultKind::ClientStalled => 408,
            FaultKind::BodyTooLarge(_) => 413,
            FaultKind::Undecidable(why) => why.status(),
            FaultKind::ClientGone => 499,
            FaultKind::MethodNotAllowed => 405,
            FaultKind::NoWebsocket => 501,
            FaultKind::LoopDetected => 508,
            FaultKind::ConnectTimeout
            | FaultKind::SendTimeout
            | FaultKind::ReadTimeout
            | FaultKind::PluginTimeout => 504,
            FaultKind::ConnectRefused
            | FaultKind::ConnectFailed
            | FaultKind::NoDescriptor
            | FaultKind::TlsFailed(_)
            | FaultKind::BadServerProtocol(_)
            | FaultKind::ClosedEarly
            | FaultKind::Ended(_)
            | FaultKind::BrokenStream
            | FaultKind::BadResponse(_)
            | FaultKind::Truncated
            | FaultKind::UnaskedInterim
            | FaultKind::WrongAccept
            | FaultKind::NoSwitch
            | FaultKind::TooManyInterim
            | FaultKind::NoTunnels
            | FaultKind::Unprocessed
            | FaultKind::NoServerLeft
            | FaultKind::NoTimeLeft
            | FaultKind::UnsupportedScheme
            | FaultKind::NeedsTcp => 502,
            FaultKind::TurnedAway(status) | FaultKind::BodyRejected(status) => status,
            FaultKind::NoRoute | FaultKind::Plan(Failure::NoService) => 404,
            FaultKind::Plan(Failure::NoUpstreamObject) => 502,
            FaultKind::Plan(_)
            | FaultKind::NoNode
            | FaultKind::AtLimit(_)
            | FaultKind::Stopping
            | FaultKind::Overloaded
            | FaultKind::HeldTooMuch => 503,
            FaultKind::Panic
            | FaultKind::BrokenStage
            | FaultKind::LacksText
            | FaultKind::Unfinished(_)
            | FaultKind::Skipped { .. } => 500,
        }
    }

    /// The cause in words a client may see: no addresses, no configuration.
    pub fn words(self) -> &'static str {
        match self {
            FaultKind::BadRequest(refusal) | FaultKind::BadBody(refusal) => refusal.as_str(),
            FaultKind::TlsOnPlainPort => "TLS was sent to a plain HTTP port",
            FaultKind::Flood(flood) => flood.words(),
            FaultKind::BadClientHello(refusal) => refusal.as_str(),
            FaultKind::PrereadTimeout => "the client's first bytes did not arrive in time",
            FaultKind::NoCertificate => "failed to match any SSL certificate by SNI",
            FaultKind::HandshakeTimeout => "the TLS handshake did not end in time",
            FaultKind::Misdirected => OTHER_HOST,
            FaultKind::RulesChanged => {
                "the rules for client certificates have changed since the TLS handshake; connect again"
            }
            FaultKind::HandshakeFailed(why)
            | FaultKind::BrokenRule(why)
            | FaultKind::TlsFailed(why)
            | FaultKind::Ended(why)
            | FaultKind::NotProven(why)
            | FaultKind::BadProtocol(why)
            | FaultKind::BadServerProtocol(why) => why,
            FaultKind::HeadTimeout => "the request head did not arrive in time",
            FaultKind::BodyTimeout => "the request body did not arrive in time",
            FaultKind::BodyTooLarge(_) => "the request body is larger than allowed",
            FaultKind::Undecidable(why) => why.as_str(),
            FaultKind::ClientGone => "the client closed the connection",
            FaultKind::ClientSlow => "the client did not read the response in time",
            FaultKind::ClientStalled => {
                "the client took too little of the response while other requests needed the window that it held"
            }
            FaultKind::MethodNotAllowed => "CONNECT and TRACE are not served",
            FaultKind::NoWebsocket => "the route does not take WebSocket",
            FaultKind::NoSwitch => "the request asked for a WebSocket, and the answer is not one",
            FaultKind::LoopDetected => {
                "the request has passed through too many gateways: an upstream leads back to one of them"
            }
            FaultKind::ConnectRefused => "the upstream refused the connection",
            FaultKind::ConnectFailed => "the upstream could not be reached",
            FaultKind::NoDescriptor => "no file descriptor is left for a connection to the upstream",
            FaultKind::ConnectTimeout => "connecting to the upstream timed out",
            FaultKind::SendTimeout => "the upstream did not read the request in time",
            FaultKind::ReadTimeout => "the upstream did not respond in time",
            FaultKind::ClosedEarly => "the upstream closed the connection before it responded",
            FaultKind::BadResponse(Refusal::TooManyFields) => "the upstream's response has too many headers",
            FaultKind::BadResponse(Refusal::HeadTooLarge) => "the upstream's response head is too large",
            FaultKind::BadResponse(_) => "the upstream's response is not valid HTTP",
            FaultKind::BrokenStream => "the upstream broke a rule of HTTP/2 on the stream of the response",
            FaultKind::Truncated => "the upstream's response was truncated",
            FaultKind::Unprocessed => "the upstream refused the request without processing it",
            FaultKind::UnaskedInterim => "the upstream switched protocols without being asked",
            FaultKind::WrongAccept => {
                "the upstream's Sec-WebSocket-Accept does not fit the key it was asked with"
            }
            FaultKind::TooManyInterim => "the upstream sent too many interim responses",
            FaultKind::NoTunnels => "the upstream does not take WebSocket over HTTP/2 (RFC 8441)",
            FaultKind::NoRoute => "no route matches",
            FaultKind::Plan(Failure::NoService) => "the route's service does not exist",
            FaultKind::Plan(Failure::NoPluginConfig) => "the route's plugin config does not exist",
            FaultKind::Plan(Failure::NoUpstreamObject) => "the route's upstream does not exist",
            FaultKind::Plan(Failure::NoUpstream) => "the route has no upstream",
            FaultKind::NoNode => "the upstream has no nodes, or none of their hosts could be resolved",
            FaultKind::TurnedAway(_) => "the upstream answered with a status that is tried again",
            FaultKind::NoServerLeft => "every node of the upstream has failed",
            FaultKind::NoTimeLeft => "a node of the upstream has failed, and there is no time to try another",
            FaultKind::AtLimit(limit) => limit.words(),
            FaultKind::UnsupportedScheme => "the upstream's scheme is not supported yet",
            FaultKind::LacksText => "the texts that plugins set for the request exceed 16 MiB",
            FaultKind::NeedsTcp => "a plugin of the stream route supports TCP alone",
            FaultKind::Panic => "a plugin failed",
            FaultKind::BodyRejected(_) => "a plugin rejected the request body",
            FaultKind::BrokenStage => "a plugin made a response that cannot be sent",
            FaultKind::Stopping => "the gateway is stopping",
            FaultKind::Overloaded => "the gateway is overloaded",
            FaultKind::Unfinished(reason) | FaultKind::Skipped { reason, .. } => reason,
            FaultKind::PluginTimeout => "a plugin did not finish in time",
            FaultKind::HeldTooMuch => "the gateway's memory for request and response bodies is used up",
        }
    }
}
