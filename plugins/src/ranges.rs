//! hot path
//!
//! Sets of IP addresses, as settings list them.

use std::net::IpAddr;

use model::{Invalid, network};
use serde_json::{Value, json};

/// Sets of addresses as sorted ranges that do not touch, so a look-up is a binary search.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl Ranges {
    pub(crate) fn parse(list: &[String]) -> Result<Ranges, Invalid> {
        let mut ranges = Ranges::default();
        for (index, text) in list.iter().enumerate() {
            let net = network::parse(text).ok_or_else(|| {
                Invalid::new(format!("invalid ip address: {text}"))
                    .at(format!("/{index}"))
                    .expected("an IPv4 or IPv6 address, alone or with a prefix length")
                    .got(text.clone())
            })?;
            match (net.network(), net.broadcast()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => ranges.v4.push((first.into(), last.into())),
                (IpAddr::V6(first), IpAddr::V6(last)) => ranges.v6.push((first.into(), last.into())),
                // Both ends of a network are of one family.
                _ => {}
            }
        }
        merge(&mut ranges.v4, |last| last.checked_add(1));
        merge(&mut ranges.v6, |last| last.checked_add(1));
        Ok(ranges)
    }

    #[inline]
    pub(crate) fn contain(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => contains(&self.v4, ip.into()),
            IpAddr::V6(ip) => contains(&self.v6, ip.into()),
        }
    }
}

#[inline]
fn contains<T: Ord + Copy>(ranges: &[(T, T)], ip: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= ip);
    after > 0 && ip <= ranges[after - 1].1
}

/// Sorts ranges and joins those that overlap or follow on each other.
fn merge<T: Ord + Copy>(ranges: &mut Vec<(T, T)>, next: impl Fn(T) -> Option<T>) {
    ranges.sort_unstable();
    ranges.dedup_by(|range, before| {
        let joins = next(before.1).is_none_or(|next| range.0 <= next);
        if joins {
            before.1 = before.1.max(range.1);
        }
        joins
    });
}

/// APISIX's `ip_def`: the rough form of an address. Texts that pass it are then parsed.
pub(crate) fn schemas() -> Value {
    let byte = "([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])";
    let v4 = [byte; 4].join("\\.");
    let v6 = "([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?";
    json!([
        {"title": "IPv4", "type": "string", "format": "ipv4"},
        {"title": "IPv4/CIDR", "type": "string", "pattern": format!("^{v4}/([12]?[0-9]|3[0-2])$")},
        {"title": "IPv6", "type": "string", "format": "ipv6"},
        {"title": "IPv6/CIDR", "type": "string", "pattern": format!("^{v6}/[0-9]{{1,3}}$")},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let list =
            ["10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/24", "10.0.0.3", "10.0.3.0/24"].map(str::to_owned);
        let ranges = Ranges::parse(&list).unwrap();
        assert_eq!(ranges.v4, [(0x0a00_0000, 0x0a00_01ff), (0x0a00_0300, 0x0a00_03ff)]);
    }

    #[test]
    fn an_address_is_in_a_list_from_its_first_to_its_last() {
        let list = ["10.0.0.4/30", "10.0.0.16", "2001:db8::/126", "fe80::1"].map(str::to_owned);
        let ranges = Ranges::parse(&list).unwrap();
        for (ip, listed) in [
            ("0.0.0.0", false),
            ("10.0.0.3", false),
            ("10.0.0.4", true),
            ("10.0.0.7", true),
            ("10.0.0.8", false),
            ("10.0.0.15", false),
            ("10.0.0.16", true),
            ("10.0.0.17", false),
            ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", false),
            ("2001:db8::", true),
            ("2001:db8::3", true),
            ("2001:db8::4", false),
            ("fe80::1", true),
            ("fe80::2", false),
        ] {
            assert_eq!(ranges.contain(ip.parse().unwrap()), listed, "{ip}");
        }
        assert!(!Ranges::parse(&[]).unwrap().contain("10.0.0.4".parse().unwrap()));
    }
}
