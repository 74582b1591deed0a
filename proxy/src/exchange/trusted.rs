//! hot path
//!
//! What a peer says of those before it, and whether it is believed.

use sdk::{Client, Named};
use wire::{Name, RequestHead};

use crate::settings::RealIpSource;
use crate::worker::Worker;

/// The client as a trusted peer tells of it (`real_ip_header`).
#[inline]
pub(super) fn client(worker: &Worker, client: &Client, head: &RequestHead) -> Option<Client> {
    let real_ip = worker.settings.real_ip.as_ref().filter(|_| !client.is_within())?;
    let RealIpSource::Field(name) = &real_ip.source else { return None };
    let mut values = head.fields.all_checked(name.id(), name.text()).rev().peekable();
    values.peek()?;
    if !(real_ip.from)(client.peer.ip().to_canonical()) {
        return None;
    }
    // Several lines are one list (RFC 9110 section 5.3): the last of them is the nearest hop's.
    let mut found = None;
    for value in values {
        let Some(ip) = real_ip.read(value) else { break };
        found = Some(ip);
        if !real_ip.recursive || !(real_ip.from)(ip) {
            break;
        }
    }
    let mut told = client.clone();
    told.set_ip(found?);
    Some(told)
}

/// Removes forwarded headers of a peer that is not trusted, before a route, a plugin or the upstream
/// can take them for true (APISIX 3.18: `trusted_addresses`).
#[cold]
pub(super) fn remove_untrusted(worker: &Worker, client: &Client, head: &mut RequestHead) {
    let trusted = worker.settings.trusted.as_ref().map(|trusted| trusted(client.peer.ip().to_canonical()));
    if trusted == Some(true) {
        return;
    }
    head.fields.retain_ids(|id| match id {
        Name::Forwarded | Name::XForwardedHost | Name::XForwardedPort | Name::XForwardedProto => false,
        // Where nobody said who is to be believed, the list goes on, to be judged by the upstream.
        Name::XForwardedFor => trusted.is_none(),
        _ => true,
    });
}
