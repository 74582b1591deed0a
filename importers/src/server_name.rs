//! Names of servers in TLS.

use std::net::IpAddr;

/// Whether TLS can ask a server for this name: a host name or an IP address.
pub fn is_server_name(name: &str) -> bool {
    if name.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len())
            && label.bytes().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= 253 && name.split('.').all(is_label) && !name.rsplit('.').next().is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_texts_are_no_names() {
        for name in ["a", "a.example", "a_b-c.example.", "10.0.0.1", "::1", "1.2.3.x", &"a".repeat(63)] {
            assert!(is_server_name(name), "{name}");
        }
        let long = format!("{}a", "a.".repeat(127));
        for text in [
            "",
            ".",
            "a..b",
            "*.a",
            "${host}",
            "a b",
            "-a",
            "a-.b",
            "[::1]",
            "1.2.3",
            "a:80",
            &long,
            &"a".repeat(64),
        ] {
            assert!(!is_server_name(text), "{text}");
        }
    }
}
