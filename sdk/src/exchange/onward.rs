//! hot path
//!
//! Where and how the request goes on, and what servers made of it.

use std::net::SocketAddr;

use wire::h1::encode::decimal;
use wire::{Fields, Method, Name, Span};

use super::{Exchange, Try};
use crate::upstream::UpstreamHandle;

impl Exchange<'_> {
    /// Sends the request to this upstream instead of the route's own. The last choice counts. To be
    /// made before the request goes out: in `rewrite`, `access` or `before_proxy`.
    #[inline]
    pub fn choose_upstream(&mut self, upstream: &UpstreamHandle) {
        self.engine.forward.upstream = Some(upstream.slot());
    }

    /// Path and query as they will go to the upstream.
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

    /// Sends this path and query, percent-encoded, to the upstream instead of the client's.
    pub fn set_upstream_uri(&mut self, uri: &[u8]) {
        self.engine.forward.uri = Some(self.intern(uri));
    }

    /// What [`Exchange::set_upstream_uri`] has set.
    #[inline]
    pub fn rewritten_uri(&self) -> Option<&[u8]> {
        self.engine.forward.uri.map(|span| self.text(span))
    }

    /// Sends the request to the upstream with another method, in this spelling.
    pub fn set_upstream_method(&mut self, method: Method, name: &[u8]) {
        self.engine.forward.method = Some(method);
        if method == Method::Other {
            self.engine.messages.request.method_span = self.intern(name);
        }
    }

    /// The method that goes to the upstream.
    #[inline]
    pub fn upstream_method(&self) -> Method {
        self.engine.forward.method.unwrap_or(self.method())
    }

    /// Sends the request to the upstream with this Host, whatever `pass_host` says.
    pub fn set_upstream_host(&mut self, host: &[u8]) {
        self.engine.forward.host = Some(self.intern(host));
    }

    /// What [`Exchange::set_upstream_host`] has set.
    #[inline]
    pub fn rewritten_host(&self) -> Option<&[u8]> {
        self.engine.forward.host.map(|span| self.text(span))
    }

    /// Adds the count of gateways to the headers of a request that a plugin makes on behalf of this one, so that
    /// it ends if it leads back here (`nginx_config.http.max_hops`).
    pub fn count_hop(&self, fields: &mut Fields) {
        let mut number = Vec::new();
        decimal(u64::from(self.engine.forward.hops.max(1)), &mut number);
        fields.set_checked(Name::SluiceHops, Name::SluiceHops.as_str().as_bytes(), &number);
    }

    #[inline]
    fn text(&self, span: Span) -> &[u8] {
        self.request().fields.bytes(span)
    }

    /// The server that was chosen, once it was.
    #[inline]
    pub fn upstream_addr(&self) -> Option<SocketAddr> {
        self.engine.upstream_addr
    }

    /// Status of the upstream's answer; 502 or 504 if there was none though it was asked for one,
    /// 0 before that.
    #[inline]
    pub fn upstream_status(&self) -> u16 {
        self.engine.upstream_status
    }

    /// The servers that were tried in vain before that one, and what came of it.
    #[inline]
    pub fn tried(&self) -> &[Try] {
        &self.engine.tried
    }

    /// What all tries came to, in order: `502, 200` (`$upstream_status`); nothing if no upstream
    /// was asked. A try without an outcome is `-`.
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
