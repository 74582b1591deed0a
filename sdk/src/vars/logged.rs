//! hot path
//!
//! Variables in access log lines, where some read differently than during the exchange.

use super::{Kind, Plain, ReadResult, Stamp, Var, time};
use crate::escape::is_plain_text;
use crate::exchange::Exchange;

impl Var {
    /// Appends the variable's text for a log: times from `stamp`, other values escaped by `escape`.
    /// Returns whether it is present.
    #[inline(always)]
    pub(crate) fn write_logged(
        &self,
        x: &Exchange<'_>,
        stamp: &Stamp,
        out: &mut Vec<u8>,
        escape: impl Fn(&[u8], &mut Vec<u8>),
    ) -> bool {
        match self.kind {
            Kind::Plain(Plain::TimeLocal) => out.extend_from_slice(stamp.local()),
            Kind::Plain(Plain::TimeIso8601) => out.extend_from_slice(stamp.iso8601()),
            Kind::Plain(Plain::Msec) => time::seconds(stamp.unix_ms(), out),
            Kind::Plain(Plain::UpstreamAddr) if x.tried().is_empty() && x.upstream_addr().is_some() => {
                out.extend_from_slice(stamp.server());
            }
            // An address needs no escaping.
            Kind::Plain(Plain::RemoteAddr) => out.extend_from_slice(x.client().ip_text()),
            // Empty until a rewrite, as in NGINX (APISIX 3.18's `set $upstream_uri`).
            Kind::Plain(Plain::UpstreamUri) => {
                if let Some(uri) = x.rewritten_uri() {
                    escape(uri, out);
                }
            }
            _ => return self.write_escaped(x, out, escape),
        }
        true
    }

    /// As [`Var::write_logged`], for a request line that was rejected, so without a request.
    #[cold]
    pub(crate) fn write_refused(
        &self,
        x: &Exchange<'_>,
        stamp: &Stamp,
        out: &mut Vec<u8>,
        escape: impl Fn(&[u8], &mut Vec<u8>),
    ) -> bool {
        let at_any_time = [Plain::TimeLocal, Plain::TimeIso8601, Plain::Msec];
        match self.kind {
            Kind::Plain(plain) if plain.is_set_for_requests() => true,
            Kind::Plain(plain) if at_any_time.contains(&plain) || self.is_of_connection() => {
                self.write_logged(x, stamp, out, escape)
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn write_escaped(
        &self,
        x: &Exchange<'_>,
        out: &mut Vec<u8>,
        escape: impl Fn(&[u8], &mut Vec<u8>),
    ) -> bool {
        let start = out.len();
        match self.read_here(x, out) {
            ReadResult::Absent => return false,
            ReadResult::Borrowed(text) => escape(text, out),
            ReadResult::Value(value) => escape(&value.into_text(), out),
            ReadResult::Plain => {}
            // Written values rarely need escaping.
            ReadResult::Written if is_plain_text(&out[start..]) => {}
            ReadResult::Written => {
                let written = out.split_off(start);
                escape(&written, out);
            }
        }
        true
    }

    /// Whether it has a value without a request, after a rejected request line.
    fn is_of_connection(&self) -> bool {
        use Plain::{
            BinaryRemoteAddr, BodyBytesSent, BytesSent, Hostname, Https, PeerAddr, PeerPort, Pid,
            ProxyProtocolAddr, ProxyProtocolPort, ProxyProtocolServerAddr, ProxyProtocolServerPort,
            RemoteAddr, RemotePort, RequestLength, RequestLine, RequestTime, Scheme, ServerAddr, ServerName,
            ServerPort, SluiceBy, SluiceReason, Status,
        };
        let Kind::Plain(plain) = self.kind else { return false };
        matches!(
            plain,
            BinaryRemoteAddr
                | BodyBytesSent
                | BytesSent
                | Hostname
                | Https
                | PeerAddr
                | PeerPort
                | Pid
                | ProxyProtocolAddr
                | ProxyProtocolPort
                | ProxyProtocolServerAddr
                | ProxyProtocolServerPort
                | RemoteAddr
                | RemotePort
                | RequestLength
                | RequestLine
                | RequestTime
                | Scheme
                | ServerAddr
                | ServerName
                | ServerPort
                | SluiceBy
                | SluiceReason
                | Status
        )
    }
}

impl Plain {
    /// Whether APISIX's nginx.conf sets it for each request, so that it is empty instead of absent
    /// without a value.
    fn is_set_for_requests(self) -> bool {
        matches!(self, Plain::UpstreamScheme | Plain::UpstreamHost | Plain::UpstreamUri | Plain::RequestId)
    }
}
