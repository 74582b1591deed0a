//! hot path
//!
//! Host and port of a request (RFC 9110 section 7.2), narrower than RFC 3986: a host
//! is a DNS name, an IPv4 address or an IPv6 address in brackets. Percent-encoding,
//! user information, sub-delimiters and an empty port, which the grammar would allow,
//! are refused: no such name can be resolved, and parsers disagree about them.

use std::net::Ipv6Addr;

use super::Refusal;

/// A parsed authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Authority {
    /// Length of the host at the start of the authority, without port and without the trailing dot
    /// of a fully qualified name.
    pub host: usize,
    /// The host has upper-case letters.
    pub upper: bool,
    /// A port was given.
    pub port: bool,
}

/// Parses `host [":" port]`.
#[inline]
pub(super) fn authority(bytes: &[u8]) -> Result<Authority, Refusal> {
    if bytes.first() == Some(&b'[') {
        return literal(bytes);
    }
    let (mut seen, mut last, mut end) = (0, LOWER, bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        let class = CLASS[byte as usize];
        if class & (COLON | BAD) != 0 {
            end = at;
            break;
        }
        // NGINX accepts a leading dot (`.foo.com`), and `*.foo.com` matches that host, too. An empty label is refused:
        // two dots in a row are bad, without a branch.
        const { assert!(DOT << 2 == BAD) };
        seen |= class | (class & last & DOT) << 2;
        last = class;
    }
    if seen & BAD != 0 {
        return Err(Refusal::Host);
    }
    if let Some((colon, digits)) = bytes[end..].split_first() {
        if *colon != b':' {
            return Err(Refusal::Host);
        }
        port(digits)?;
    }
    let dot = usize::from(end > 0 && bytes[end - 1] == b'.');
    if end == dot || end == 0 {
        return Err(Refusal::Host);
    }
    Ok(Authority { host: end - dot, upper: seen & UPPER != 0, port: end < bytes.len() })
}

fn literal(bytes: &[u8]) -> Result<Authority, Refusal> {
    let close = memchr::memchr(b']', bytes).ok_or(Refusal::Host)?;
    let inside = std::str::from_utf8(&bytes[1..close]).map_err(|_| Refusal::Host)?;
    inside.parse::<Ipv6Addr>().map_err(|_| Refusal::Host)?;
    let rest = &bytes[close + 1..];
    match rest.split_first() {
        None => {}
        Some((b':', digits)) => port(digits)?,
        Some(_) => return Err(Refusal::Host),
    }
    let upper = inside.bytes().any(|byte| byte.is_ascii_uppercase());
    Ok(Authority { host: close + 1, upper, port: !rest.is_empty() })
}

fn port(digits: &[u8]) -> Result<(), Refusal> {
    if digits.is_empty() || digits.len() > 5 {
        return Err(Refusal::Host);
    }
    let (mut number, mut is_decimal) = (0, true);
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        is_decimal &= digit < 10;
        number = number * 10 + u32::from(digit);
    }
    if is_decimal && number <= u32::from(u16::MAX) { Ok(()) } else { Err(Refusal::Host) }
}

// The class of a byte; each is a bit, so that those of a text can be collected.
const LOWER: u8 = 0;
const UPPER: u8 = 1;
const DOT: u8 = 1 << 1;
const COLON: u8 = 1 << 2;
const BAD: u8 = 1 << 3;

static CLASS: [u8; 256] = {
    let mut table = [BAD; 256];
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => LOWER,
            b'A'..=b'Z' => UPPER,
            b'.' => DOT,
            b':' => COLON,
            _ => BAD,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let good: &[(&str, &str)] = &[
            ("a", "a"),
            ("a:80", "a"),
            ("Example.COM:8080", "Example.COM"),
            ("example.com.", "example.com"),
            ("example.com.:443", "example.com"),
            ("127.0.0.1:0", "127.0.0.1"),
            ("x_y.z-1~", "x_y.z-1~"),
            (".foo.com:80", ".foo.com"),
            ("[::1]", "[::1]"),
            ("[2001:DB8::1]:65535", "[2001:DB8::1]"),
            ("[::ffff:1.2.3.4]", "[::ffff:1.2.3.4]"),
        ];
        for (text, host) in good {
            let read = authority(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(&text[..read.host], *host);
            assert_eq!(read.upper, host.bytes().any(|b| b.is_ascii_uppercase()), "{text}");
            assert_eq!(read.port, text.len() > host.len() + 1, "{text}");
        }
        for text in [
            "",
            ".",
            "..",
            "a..b",
            "a b",
            " a",
            "a:",
            "a:x",
            "a:65536",
            "a:123456",
            "a:-1",
            "a:+1",
            "a:1:2",
            "user@a",
            "user:pw@a",
            "a/b",
            "a?b",
            "a#b",
            "a\\b",
            "a,b",
            "a;b",
            "%61",
            "a\u{e9}",
            "a\t",
            "a\0",
            ":80",
            "[",
            "[]",
            "[::1",
            "::1",
            "[::1]a",
            "[::1]:",
            "[::1]:x",
            "[::1%eth0]",
            "[v1.a]",
            "[1.2.3.4]",
            "[::g]",
            "[:::1]",
            "a]",
            "[[::1]]",
            "a:80:",
            "*",
            "a:8 0",
            ".:80",
        ] {
            assert_eq!(authority(text.as_bytes()), Err(Refusal::Host), "{text}");
        }
    }
}
