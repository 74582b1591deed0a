//! Addresses and networks as operators write them.

use std::net::IpAddr;

use ipnet::IpNet;

/// An address, which is a network of one, or a CIDR. IPv4 mapped into IPv6 (`::ffff:10.0.0.0/104`)
/// is IPv4, as the addresses of clients are.
pub fn parse(text: &str) -> Option<IpNet> {
    let network = match text.contains('/') {
        true => text.parse().ok()?,
        false => IpNet::from(text.parse::<IpAddr>().ok()?),
    };
    match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => IpNet::new(v4.into(), v6.prefix_len() - 96).ok(),
            None => Some(network),
        },
        network => Some(network),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_networks_are_ipv4() {
        for (text, expected) in [
            ("10.1.1.1", Some("10.1.1.1/32")),
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("::1", Some("::1/128")),
            ("fe80::/16", Some("fe80::/16")),
            ("::/0", Some("::/0")),
            ("::ffff:10.1.1.1", Some("10.1.1.1/32")),
            ("::ffff:a01:101", Some("10.1.1.1/32")),
            ("::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
            ("::ffff:0:0/96", Some("0.0.0.0/0")),
            ("::ffff:0:0/95", Some("::ffff:0.0.0.0/95")),
            ("10.0.0.0/33", None),
            ("10.0.0", None),
            ("", None),
        ] {
            assert_eq!(parse(text).map(|network| network.to_string()).as_deref(), expected, "{text}");
        }
    }
}
