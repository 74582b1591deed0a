//! Networks as addresses of routes, and as expressions of texts.

use std::net::IpAddr;

/// Whether it is an address or a network.
pub fn is_network(text: &str) -> bool {
    model::network::parse(text).is_some()
}

/// A network with its host bits cleared, as the router needs it.
pub fn normal(text: &str) -> String {
    match model::network::parse(text) {
        Some(network) if text.contains('/') => network.trunc().to_string(),
        _ => text.to_owned(),
    }
}

/// An expression of the addresses of an IPv4 network in text.
pub fn expression(text: &str) -> Option<String> {
    let network = model::network::parse(text)?;
    let IpAddr::V4(address) = network.addr() else { return None };
    let mut bits = i32::from(network.prefix_len());
    let mut parts = Vec::new();
    for octet in address.octets() {
        let fixed = bits.clamp(0, 8);
        bits -= 8;
        parts.push(match fixed {
            8 => octet.to_string(),
            0 => r"\d{1,3}".to_owned(),
            fixed => {
                let size = 1u16 << (8 - fixed);
                let first = u16::from(octet) / size * size;
                let all: Vec<String> = (first..first + size).map(|n| n.to_string()).collect();
                format!("(?:{})", all.join("|"))
            }
        });
    }
    Some(parts.join(r"\."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_become_expressions() {
        assert_eq!(expression("10.1.0.0/16").as_deref(), Some(r"10\.1\.\d{1,3}\.\d{1,3}"));
        assert_eq!(expression("10.1.0.4").as_deref(), Some(r"10\.1\.0\.4"));
        assert_eq!(expression("192.168.1.9/30").as_deref(), Some(r"192\.168\.1\.(?:8|9|10|11)"));
        assert_eq!(expression("::1"), None);
        assert_eq!(normal("192.168.1.1/24"), "192.168.1.0/24");
        assert_eq!(normal("192.168.1.1"), "192.168.1.1");
    }
}
