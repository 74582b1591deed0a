//! hot path
//!
//! Where and how the request is forwarded, and how servers responded.

use std::net::SocketAddr;

use wire::h1::encode::decimal;
use wire::{Fields, Method, Name, Span};

use super::{Exchange, Try};
use crate::upstream::{RuntimeUpstream, UpstreamHandle};

impl Exchange<'_> {
    /// Forwards the request to this upstream instead of the route's. The last choice counts. Call
    /// it before the request is forwarded: in `rewrite`, `access` or `before_proxy`.
    #[inline]
    pub fn choose_upstream(&mut self, upstream: &UpstreamHandle) {
        self.engine.forward.upstream = Some(upstream.slot());
        self.engine.runtime_upstream = None;
    }

    /// As [`Exchange::choose_upstream`], for an upstream that was made while the gateway runs.
    pub fn forward_to(&mut self, upstream: &RuntimeUpstream) {
        self.engine.forward.upstream = None;
        self.engine.runtime_upstream = Some(upstream.clone());
    }

    /// Writes the path and query as forwarded to the upstream.
    pub fn upstream_uri(&self, out: &mut Vec<u8>) {
        let head = &self.engine.messages.request;
        match self.engine.forward.uri {
            Some(span) => out.extend_from_slice(head.fields.bytes(span)),
            None => {
                out.extend_from_slice(head.encoded_path());
                if head.has_query {
                    out.push(b'?');
                    out.extend_from_slice(head.query());
                }
            }
        }
    }

    /// Replaces path and query, percent-encoded, for the upstream.
    pub fn set_upstream_uri(&mut self, uri: &[u8]) {
        self.engine.forward.uri = Some(self.intern(uri));
    }

    /// The URI set by [`Exchange::set_upstream_uri`].
    #[inline]
    pub fn rewritten_uri(&self) -> Option<&[u8]> {
        self.engine.forward.uri.map(|span| self.text(span))
    }

    /// Replaces the method for the upstream, in this spelling.
    pub fn set_upstream_method(&mut self, method: Method, name: &[u8]) {
        self.engine.forward.method = Some(method);
        if method == Method::Other {
            self.engine.messages.request.method_span = self.intern(name);
        }
    }

    /// The method forwarded to the upstream.
    #[inline]
    pub fn upstream_method(&self) -> Method {
        self.engine.forward.method.unwrap_or(self.method())
    }

    /// Replaces the Host for the upstream; overrides `pass_host`.
    pub fn set_upstream_host(&mut self, host: &[u8]) {
        self.engine.forward.host = Some(self.intern(host));
    }

    /// The Host set by [`Exchange::set_upstream_host`].
    #[inline]
    pub fn rewritten_host(&self) -> Option<&[u8]> {
        self.engine.forward.host.map(|span| self.text(span))
    }

    /// Gateways that the request has passed through, this one included; 0 if it comes directly from a client. Clients
    /// can write any number.
    pub fn hops(&self) -> u16 {
        self.engine.forward.hops
    }

    /// Whether the request was refused since it passed through too many gateways.
    pub fn is_loop(&self) -> bool {
        self.engine.forward.is_loop
    }

    /// Adds the hop count to the headers of a request that a plugin sends on behalf of this one, so
    /// that a loop back to this gateway ends (`nginx_config.http.max_hops`).
    pub fn count_hop(&self, fields: &mut Fields) {
        let mut number = Vec::new();
        decimal(u64::from(self.engine.forward.hops.max(1)), &mut number);
        fields.set_checked(Name::SluiceHops, Name::SluiceHops.as_str().as_bytes(), &number);
    }

    #[inline]
    fn text(&self, span: Span) -> &[u8] {
        self.request().fields.bytes(span)
    }

    /// The chosen server, once there is one.
    #[inline]
    pub fn upstream_addr(&self) -> Option<SocketAddr> {
        self.engine.upstream_addr
    }

    /// The status of the upstream's response; 502 or 504 if it was contacted and did not respond, 0
    /// before that.
    #[inline]
    pub fn upstream_status(&self) -> u16 {
        self.engine.upstream_status
    }

    /// Failed attempts with other servers before that one, and their results.
    #[inline]
    pub fn tried(&self) -> &[Try] {
        &self.engine.tried
    }

    /// Writes the results of all attempts in order: `502, 200` (`$upstream_status`). Writes nothing
    /// and returns false if no upstream was contacted. An attempt without a result is `-`.
    pub fn upstream_statuses(&self, out: &mut impl Extend<u8>) -> bool {
        if self.engine.upstream_addr.is_none()
            || self.engine.upstream_status == 0 && self.engine.tried.is_empty()
        {
            return false;
        }
        let all = self.engine.tried.iter().map(|tried| tried.status).chain([self.engine.upstream_status]);
        for (at, status) in all.enumerate() {
            if at > 0 {
                out.extend(*b", ");
            }
            match status {
                0 => out.extend(*b"-"),
                status => out.extend([100, 10, 1].map(|unit| b'0' + (status / unit % 10) as u8)),
            }
        }
        true
    }
}
