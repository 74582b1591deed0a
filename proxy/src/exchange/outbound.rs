//! hot path
//!
//! A request's head as a server gets it: the client's, rebuilt, with the gateway's additions.

use sdk::Exchange;
use sdk::engine::ForwardedHeaders;
use smallvec::SmallVec;
use snapshot::{Endpoint, PassHost, Upstream};
use wire::fields::check_value;
use wire::h1::encode::BadTarget;
use wire::{Field, Method, Name, Span};

use crate::up::{Head, Lines};

/// An exchange's request on its way to one server.
pub(super) struct Outbound<'a, 'x> {
    pub(super) x: &'a Exchange<'x>,
    pub(super) upstream: &'a Upstream,
    pub(super) endpoint: &'a Endpoint,
}

/// The method the server sees, which a stage may have changed.
#[inline]
pub(super) fn method(x: &Exchange<'_>) -> Method {
    x.upstream_method()
}

impl Head for Outbound<'_, '_> {
    #[inline]
    fn method(&self) -> &[u8] {
        match self.x.engine().forward.method {
            Some(method) if method != Method::Other => method.as_str().as_bytes(),
            _ => self.x.request().method_bytes(),
        }
    }

    #[inline]
    fn target(&self, out: &mut Vec<u8>) -> Result<(), BadTarget> {
        let x = self.x;
        x.upstream_uri(out);
        match x.engine().forward.host {
            Some(host) => check_value(x.request().fields.bytes(host)).map_err(|_| BadTarget),
            None => Ok(()),
        }
    }

    #[inline]
    fn authority(&self) -> &[u8] {
        let head = self.x.request();
        match (&self.x.engine().forward.host, &self.upstream.pass_host) {
            (Some(span), _) => head.fields.bytes(*span),
            (None, PassHost::Rewrite(host)) => host.as_bytes(),
            (None, PassHost::Pass) if !head.authority().is_empty() => head.authority(),
            (None, _) => self.endpoint.authority.as_bytes(),
        }
    }

    #[inline]
    fn fields(&self, to: &mut impl Lines) {
        let x = self.x;
        let head = x.request();
        let mut forwarded_for: SmallVec<[Span; 2]> = SmallVec::new();
        let mut present = x.engine().forward.without;
        let stays = |field: &&Field| {
            match field.id {
                Name::Host
                | Name::ContentLength
                | Name::TransferEncoding
                | Name::Expect
                | Name::Connection
                | Name::Upgrade
                | Name::SluiceHops
                | Name::XRealIp => return false,
                Name::XForwardedFor => {
                    forwarded_for.push(field.value);
                    return false;
                }
                // Fields of untrusted peers were removed: these are a trusted peer's, or a plugin's.
                // A field without a value counts as absent.
                Name::XForwardedProto | Name::XForwardedHost | Name::XForwardedPort
                    if head.fields.bytes(field.value).is_empty() =>
                {
                    return false;
                }
                Name::XForwardedProto => present.insert(ForwardedHeaders::PROTO),
                Name::XForwardedHost => present.insert(ForwardedHeaders::HOST),
                Name::XForwardedPort => present.insert(ForwardedHeaders::PORT),
                _ => {}
            }
            true
        };
        to.copy(&head.fields, head.fields.list().iter().filter(stays));
        let ip = x.client().ip_text();
        to.field(Name::XRealIp, b"X-Real-IP", ip);
        if forwarded_for.is_empty() {
            to.field(Name::XForwardedFor, b"X-Forwarded-For", ip);
        } else {
            to.name(Name::XForwardedFor, b"X-Forwarded-For");
            for before in forwarded_for {
                to.value(head.fields.bytes(before));
                to.value(b", ");
            }
            to.value(ip);
            to.end();
        }
        if !present.has(ForwardedHeaders::PROTO) {
            to.field(Name::XForwardedProto, b"X-Forwarded-Proto", x.client().scheme().as_bytes());
        }
        if !present.has(ForwardedHeaders::HOST) && !head.authority().is_empty() {
            to.field(Name::XForwardedHost, b"X-Forwarded-Host", head.authority());
        }
        if !present.has(ForwardedHeaders::PORT) {
            to.name(Name::XForwardedPort, b"X-Forwarded-Port");
            to.number(u64::from(x.forwarded_port()));
            to.end();
        }
        let hops = x.engine().forward.hops;
        if hops > 0 {
            to.name(Name::SluiceHops, b"Sluice-Hops");
            to.number(u64::from(hops));
            to.end();
        }
    }
}
