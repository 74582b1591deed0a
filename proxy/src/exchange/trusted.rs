//! hot path
//!
//! Forwarded headers and `real_ip`: which peers are trusted with them.
//!
//! Loops are found by a count of gateways in `Sluice-Hops`. A request that comes straight from a client carries no
//! such field to the upstream, so most servers never see one. Behind the first gateway a request has `X-Real-IP` and
//! `X-Forwarded-For`, which no plugin can take away; each further gateway then writes the count, also for peers that are
//! not trusted. So does one that gets a long `X-Forwarded-For`. A client can only raise it, for its own request.

use sdk::{Client, Named};
use wire::{Name, RequestHead};

use crate::settings::{RealIpSource, Settings};

/// Returns the client that a trusted peer names (`real_ip_header`).
#[inline]
pub(super) fn client(settings: &Settings, client: &Client, head: &RequestHead) -> Option<Client> {
    let real_ip = settings.real_ip.as_ref().filter(|_| !client.is_subrequest())?;
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
    let mut trusted = client.clone();
    trusted.set_ip(found?);
    Some(trusted)
}

/// Addresses in `X-Forwarded-For` of a request that passes through no gateway twice, at most.
const LONGEST_WAY: usize = 7;

/// Gateways that the request has passed through, this one included; 0 if no gateway has forwarded it. The largest number
/// that stands there counts: a server on the way may have repeated the field.
#[cold]
pub(super) fn hops(head: &RequestHead) -> u16 {
    let has = |name: Name| head.fields.contains_checked(name, name.as_str().as_bytes());
    // A proxy on the way may remove `X-Real-IP`; the list of `X-Forwarded-For` grows with each round.
    let is_long = || {
        let lines = head.fields.all_checked(Name::XForwardedFor, Name::XForwardedFor.as_str().as_bytes());
        lines.flat_map(|line| line.split(|byte| *byte == b',')).nth(LONGEST_WAY).is_some()
    };
    if !has(Name::XRealIp) && !has(Name::SluiceHops) && !is_long() {
        return 0;
    }
    let mut most = 0;
    for value in head.fields.all_checked(Name::SluiceHops, Name::SluiceHops.as_str().as_bytes()) {
        for number in value.split(|byte| !byte.is_ascii_digit()) {
            let number = number.iter().fold(0u16, |number, digit| {
                number.saturating_mul(10).saturating_add(u16::from(digit - b'0'))
            });
            most = most.max(number);
        }
    }
    most.saturating_add(1)
}

/// Removes forwarded headers of a peer that is not trusted, before a route, a plugin or the upstream
/// can take them for true (APISIX 3.18: `trusted_addresses`).
#[cold]
pub(super) fn remove_untrusted(settings: &Settings, client: &Client, head: &mut RequestHead) {
    let trusted = settings.trusted.as_ref().map(|trusted| trusted(client.peer.ip().to_canonical()));
    if trusted == Some(true) {
        return;
    }
    head.fields.retain_ids(|id| match id {
        Name::Forwarded | Name::XForwardedHost | Name::XForwardedPort | Name::XForwardedProto => false,
        // Without `trusted_addresses`, `X-Forwarded-For` is passed through for the upstream to judge.
        Name::XForwardedFor => trusted.is_none(),
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_count_of_gateways_is_raised_by_one() {
        for (values, hops) in [
            (&[][..], 0),
            (&["1"], 2),
            (&["3", "9", "4"], 10),
            (&["3, 12, 5"], 13),
            (&["", "x", "-1", "+2"], 3),
            (&["99999999999999999999"], u16::MAX),
            (&["65535"], u16::MAX),
        ] {
            let count = |more: &[(&str, &str)]| {
                let mut head = RequestHead::default();
                let values = values.iter().map(|value| ("sluice-hops", *value));
                for (name, value) in values.chain(more.iter().copied()) {
                    head.fields.append(name.as_bytes(), value.as_bytes()).unwrap();
                }
                super::hops(&head)
            };
            let (one, seven) = (("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "1, 2, 3, 4, 5, 6, 7"));
            assert_eq!((count(&[]), count(&[one, one]), count(&[seven])), (hops, hops, hops), "{values:?}");
            for gateway in
                [&[("x-real-ip", "9.9.9.9")][..], &[one, seven], &[("x-forwarded-for", "1,2,3,4,5,6,7,8")]]
            {
                assert_eq!(count(gateway), hops.max(1), "{gateway:?} {values:?}");
            }
        }
    }
}
