//! The PROXY protocol, versions 1 and 2: a first message in which a load balancer passes on the
//! addresses of the original connection (haproxy.org, `proxy-protocol.txt`).
//!
//! A header is understood in exactly one way or refused, at the first byte that cannot belong to
//! one. The parser does not decide whether its sender is trusted.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest accepted header, as in nginx. Version 1 has at most 107 bytes; version 2 may carry
/// more than addresses.
pub const MOST: usize = 4096;

const MOST_V1: usize = 107;
const START_V1: &[u8] = b"PROXY ";
const START_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_V2: usize = 16;

/// The type of the checksum among the additional values (TLVs) of version 2.
const CRC32C: u8 = 3;

/// Both ends of the original connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// A complete header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// `None` for a connection of the sender's own, such as a health check, or of unknown origin.
    pub ends: Option<Ends>,
    /// Length of the header; the rest belongs to the connection itself.
    pub len: usize,
}

/// Why a header is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Neither version starts like this.
    NotAHeader,
    TooLong,
    /// A line of version 1 with invalid words, spaces or line ends.
    BadLine,
    BadAddress,
    BadPort,
    /// An unknown version, command, family or protocol of version 2.
    Unknown,
    /// Inconsistent lengths in version 2.
    BadLength,
    BadChecksum,
}

impl Refusal {
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::NotAHeader => "the connection does not begin with a PROXY protocol header",
            Refusal::TooLong => "the PROXY protocol header is too long",
            Refusal::BadLine => "the PROXY protocol line is malformed",
            Refusal::BadAddress => "the PROXY protocol header has a malformed address",
            Refusal::BadPort => "the PROXY protocol header has a malformed port",
            Refusal::Unknown => "the PROXY protocol header has an unknown version, command or family",
            Refusal::BadLength => "the PROXY protocol header has lengths that do not fit",
            Refusal::BadChecksum => "the PROXY protocol header has a wrong checksum",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Refusal {}

/// Parses the header at the start of these bytes; `None` if more are needed, in which case all of
/// `bytes` belong to the header.
///
/// # Errors
/// Why the header is invalid. More bytes would not help.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Refusal> {
    if begins(bytes, START_V2) {
        parse_v2(bytes)
    } else if begins(bytes, START_V1) {
        parse_v1(bytes)
    } else {
        Err(Refusal::NotAHeader)
    }
}

/// Whether the common prefix is equal.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(a, b)| a == b)
}

fn parse_v1(bytes: &[u8]) -> Result<Option<Header>, Refusal> {
    let Some(end) = bytes.iter().take(MOST_V1).position(|&byte| matches!(byte, b'\r' | b'\n')) else {
        return if bytes.len() >= MOST_V1 { Err(Refusal::TooLong) } else { Ok(None) };
    };
    let len = end + 2;
    match &bytes[end..] {
        [b'\r'] if len <= MOST_V1 => return Ok(None),
        [b'\r', b'\n', ..] if len <= MOST_V1 => {}
        _ => return Err(Refusal::BadLine),
    }
    let line = bytes[..end].strip_prefix(START_V1).ok_or(Refusal::NotAHeader)?;
    let line = std::str::from_utf8(line).map_err(|_| Refusal::BadLine)?;
    let mut words = line.split(' ');
    let v6 = match words.next() {
        // The rest of the line must be ignored.
        Some("UNKNOWN") => return Ok(Some(Header { ends: None, len })),
        Some("TCP4") => false,
        Some("TCP6") => true,
        _ => return Err(Refusal::BadLine),
    };
    let mut next = || words.next().ok_or(Refusal::BadLine);
    let (source, destination) = (address(next()?, v6)?, address(next()?, v6)?);
    let (source_port, destination_port) = (port(next()?)?, port(next()?)?);
    if words.next().is_some() {
        return Err(Refusal::BadLine);
    }
    let ends = Ends {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    };
    Ok(Some(Header { ends: Some(ends), len }))
}

fn address(text: &str, v6: bool) -> Result<IpAddr, Refusal> {
    let parsed = if v6 {
        text.parse::<Ipv6Addr>().map(IpAddr::from)
    } else {
        text.parse::<Ipv4Addr>().map(IpAddr::from)
    };
    parsed.map_err(|_| Refusal::BadAddress)
}

/// Digits without a sign or a leading zero.
fn port(text: &str) -> Result<u16, Refusal> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().map_err(|_| Refusal::BadPort) } else { Err(Refusal::BadPort) }
}

fn parse_v2(bytes: &[u8]) -> Result<Option<Header>, Refusal> {
    let local = match bytes.get(12) {
        None => return Ok(None),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(Refusal::Unknown),
    };
    let family = match bytes.get(13) {
        None => return Ok(None),
        Some(&family) => family,
    };
    // Bytes of each family's addresses.
    let addresses = match family >> 4 {
        _ if family & 15 > 2 => return Err(Refusal::Unknown),
        0 => 0,
        1 => 12,
        2 => 36,
        3 => 216,
        _ => return Err(Refusal::Unknown),
    };
    let Some(&[high, low]) = bytes.get(14..FIXED_V2) else { return Ok(None) };
    let len = FIXED_V2 + usize::from(u16::from_be_bytes([high, low]));
    if len > MOST {
        return Err(Refusal::TooLong);
    }
    if !local && len - FIXED_V2 < addresses {
        return Err(Refusal::BadLength);
    }
    let Some(header) = bytes.get(..len) else { return Ok(None) };
    if local {
        // The contents of the block must be ignored.
        return Ok(Some(Header { ends: None, len }));
    }
    check_values(header, FIXED_V2 + addresses)?;
    let block = &header[FIXED_V2..];
    // Addresses of datagrams or local sockets are not those of a client's connection.
    let ends = match family {
        0x11 => Some(Ends {
            source: SocketAddr::new(IpAddr::from(part::<4>(block, 0)), port_at(block, 8)),
            destination: SocketAddr::new(IpAddr::from(part::<4>(block, 4)), port_at(block, 10)),
        }),
        0x21 => Some(Ends {
            source: SocketAddr::new(IpAddr::from(part::<16>(block, 0)), port_at(block, 32)),
            destination: SocketAddr::new(IpAddr::from(part::<16>(block, 16)), port_at(block, 34)),
        }),
        _ => None,
    };
    Ok(Some(Header { ends, len }))
}

/// Checks that the additional values fill the rest of the header and that the checksum, if present,
/// is right.
fn check_values(header: &[u8], start: usize) -> Result<(), Refusal> {
    let mut at = start;
    while at < header.len() {
        let Some(&[kind, high, low]) = header.get(at..at + 3) else { return Err(Refusal::BadLength) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        let value = header.get(at + 3..at + 3 + len).ok_or(Refusal::BadLength)?;
        if kind == CRC32C {
            let Ok(told) = <[u8; 4]>::try_from(value) else { return Err(Refusal::BadLength) };
            if crc32c(header, at + 3..at + 7) != u32::from_be_bytes(told) {
                return Err(Refusal::BadChecksum);
            }
        }
        at += 3 + len;
    }
    Ok(())
}

/// CRC-32C of the bytes, with the checksum's own bytes taken as zeros. Headers are short, so no
/// table is needed.
fn crc32c(bytes: &[u8], zeros: std::ops::Range<usize>) -> u32 {
    let mut crc = u32::MAX;
    for (at, &byte) in bytes.iter().enumerate() {
        crc ^= u32::from(if zeros.contains(&at) { 0 } else { byte });
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

fn part<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    // The length was checked.
    if let Some(bytes) = block.get(at..at + N) {
        part.copy_from_slice(bytes);
    }
    part
}

fn port_at(block: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(part(block, at))
}

/// Appends a header of version 1. Addresses of different families are written as IPv6.
pub fn write_v1(ends: Option<&Ends>, out: &mut Vec<u8>) {
    let Some(Ends { source, destination }) = ends else {
        return out.extend_from_slice(b"PROXY UNKNOWN\r\n");
    };
    let (from, to) = (source.ip().to_canonical(), destination.ip().to_canonical());
    let ports = (source.port(), destination.port());
    // Writing to a Vec cannot fail.
    let _ = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            write!(out, "PROXY TCP4 {from} {to} {} {}\r\n", ports.0, ports.1)
        }
        (from, to) => {
            write!(out, "PROXY TCP6 {} {} {} {}\r\n", mapped(from), mapped(to), ports.0, ports.1)
        }
    };
}

/// Appends a header of version 2, without additional values.
pub fn write_v2(ends: Option<&Ends>, out: &mut Vec<u8>) {
    out.extend_from_slice(START_V2);
    let Some(Ends { source, destination }) = ends else {
        return out.extend_from_slice(&[0x20, 0, 0, 0]);
    };
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        (from, to) => {
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&mapped(from).octets());
            out.extend_from_slice(&mapped(to).octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(source: &str, destination: &str) -> Ends {
        Ends { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    fn header(of: &[u8]) -> Header {
        parse(of).unwrap().unwrap()
    }

    #[test]
    fn lines_of_version_1() {
        let longest = b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
            ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
        for (line, expected) in [
            (
                &b"PROXY TCP4 192.0.2.1 10.0.0.2 56324 443\r\n"[..],
                Some(ends("192.0.2.1:56324", "10.0.0.2:443")),
            ),
            (b"PROXY TCP6 2001:db8::1 ::1 0 1\r\n", Some(ends("[2001:db8::1]:0", "[::1]:1"))),
            (b"PROXY UNKNOWN\r\n", None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
            (
                longest,
                Some(ends(
                    "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                    "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
                )),
            ),
        ] {
            let mut bytes = line.to_vec();
            bytes.extend_from_slice(b"GET /");
            assert_eq!(header(&bytes), Header { ends: expected, len: line.len() });
            // Every shorter prefix needs more bytes.
            (0..line.len()).for_each(|at| assert_eq!(parse(&bytes[..at]), Ok(None), "{at}"));
        }
    }

    #[test]
    fn malformed_lines_are_refused() {
        for (line, refusal) in [
            (&b"GET / HTTP/1.1\r\n"[..], Refusal::NotAHeader),
            (b"proxy TCP4 1.1.1.1 2.2.2.2 1 2\r\n", Refusal::NotAHeader),
            (b"PROXY\tTCP4", Refusal::NotAHeader),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n", Refusal::BadLine),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\rx", Refusal::BadLine),
            (b"PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n", Refusal::BadAddress),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n", Refusal::BadLine),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 \r\n", Refusal::BadLine),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n", Refusal::BadLine),
            (b"PROXY TCP5 1.1.1.1 2.2.2.2 1 2\r\n", Refusal::BadLine),
            (b"PROXY \r\n", Refusal::BadLine),
            (b"PROXY TCP4 01.1.1.1 2.2.2.2 1 2\r\n", Refusal::BadAddress),
            (b"PROXY TCP4 1.1.1 2.2.2.2 1 2\r\n", Refusal::BadAddress),
            (b"PROXY TCP4 ::1 ::1 1 2\r\n", Refusal::BadAddress),
            (b"PROXY TCP6 1.1.1.1 ::1 1 2\r\n", Refusal::BadAddress),
            (b"PROXY TCP6 ::1%lo ::1 1 2\r\n", Refusal::BadAddress),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 65536 2\r\n", Refusal::BadPort),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n", Refusal::BadPort),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 01 2\r\n", Refusal::BadPort),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 \r\n", Refusal::BadPort),
            (b"PROXY UNKNOWN\xff\r\n", Refusal::BadLine),
            // Its LF is the 108th byte, or would be.
            (&[&b"PROXY UNKNOWN"[..], &[b' '; 93], b"\r\n"].concat(), Refusal::BadLine),
            (&[&b"PROXY UNKNOWN"[..], &[b' '; 93], b"\r"].concat(), Refusal::BadLine),
        ] {
            assert_eq!(parse(line), Err(refusal), "{:?}", String::from_utf8_lossy(line));
        }
        let endless = [START_V1, &[b'x'; 200]].concat();
        assert_eq!(parse(&endless), Err(Refusal::TooLong));
        assert_eq!(Refusal::BadPort.to_string(), "the PROXY protocol header has a malformed port");
    }

    fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let len = (block.len() as u16).to_be_bytes();
        [START_V2, &[command, family], &len, block].concat()
    }

    #[test]
    fn blocks_of_version_2() {
        let v4 = [192, 0, 2, 1, 10, 0, 0, 2, 0xdc, 0x04, 1, 0xbb];
        let mut v6 = [0u8; 36];
        (v6[15], v6[31], v6[33], v6[35]) = (1, 2, 3, 4);
        let with_values = [&v4[..], &[4, 0, 2, 9, 9, 1, 0, 0]].concat();
        for (bytes, expected) in [
            (v2(0x21, 0x11, &v4), Some(ends("192.0.2.1:56324", "10.0.0.2:443"))),
            (v2(0x21, 0x11, &with_values), Some(ends("192.0.2.1:56324", "10.0.0.2:443"))),
            (v2(0x21, 0x21, &v6), Some(ends("[::1]:3", "[::2]:4"))),
            (v2(0x21, 0x12, &v4), None),
            (v2(0x21, 0x31, &[0; 216]), None),
            (v2(0x21, 0, &[]), None),
            (v2(0x20, 0, &[]), None),
            (v2(0x20, 0x11, &[1, 2, 3]), None),
            // The longest allowed header.
            (v2(0x20, 0, &[0; MOST - FIXED_V2]), None),
        ] {
            let whole = [&bytes[..], b"\x16\x03"].concat();
            assert_eq!(header(&whole), Header { ends: expected, len: bytes.len() });
            (0..bytes.len()).for_each(|at| assert_eq!(parse(&whole[..at]), Ok(None), "{at}"));
        }
    }

    #[test]
    fn malformed_blocks_are_refused() {
        let v4 = [1u8; 12];
        for (bytes, refusal) in [
            (v2(0x11, 0x11, &v4), Refusal::Unknown),
            (v2(0x22, 0x11, &v4), Refusal::Unknown),
            (v2(0x21, 0x41, &v4), Refusal::Unknown),
            (v2(0x21, 0x13, &v4), Refusal::Unknown),
            (v2(0x21, 0x11, &v4[..11]), Refusal::BadLength),
            (v2(0x21, 0x21, &v4), Refusal::BadLength),
            (v2(0x21, 0x11, &[1; 13]), Refusal::BadLength),
            (v2(0x21, 0x11, &[&v4[..], &[4, 0, 2, 9]].concat()), Refusal::BadLength),
            (v2(0x21, 0, &[4, 0, 1, 9, 4, 0, 2, 9]), Refusal::BadLength),
            (v2(0x21, 0, &[0; MOST - FIXED_V2 + 1]), Refusal::TooLong),
            (b"\r\n\r\n\0\r\nQUIT\r".to_vec(), Refusal::NotAHeader),
        ] {
            assert_eq!(parse(&bytes), Err(refusal), "{bytes:?}");
        }
    }

    #[test]
    fn a_checksum_must_be_right() {
        // The check value of CRC-32C.
        assert_eq!(crc32c(b"123456789", 0..0), 0xE306_9283);
        // With another value before it and behind it.
        let values = [4, 0, 1, 9, CRC32C, 0, 4, 0, 0, 0, 0, 4, 0, 1, 9];
        let mut bytes = v2(0x21, 0x11, &[&[1; 12][..], &values].concat());
        let at = bytes.len() - 8;
        let right = crc32c(&bytes, at..at + 4);
        assert_eq!(parse(&bytes), Err(Refusal::BadChecksum));
        bytes[at..at + 4].copy_from_slice(&right.to_be_bytes());
        assert!(header(&bytes).ends.is_some());
        *bytes.last_mut().unwrap() = 8;
        assert_eq!(parse(&bytes), Err(Refusal::BadChecksum), "it covers the values after it");
        assert_eq!(parse(&v2(0x21, 0, &[CRC32C, 0, 1, 0])), Err(Refusal::BadLength));
    }

    #[test]
    fn written_values_are_read_back() {
        for (ends, line) in [
            (Some(ends("1.2.3.4:5", "6.7.8.9:10")), "PROXY TCP4 1.2.3.4 6.7.8.9 5 10\r\n"),
            (Some(ends("[::1]:5", "[2001:db8::2]:10")), "PROXY TCP6 ::1 2001:db8::2 5 10\r\n"),
            (None, "PROXY UNKNOWN\r\n"),
        ] {
            let mut out = Vec::new();
            write_v1(ends.as_ref(), &mut out);
            assert_eq!(out, line.as_bytes());
            assert_eq!(header(&out), Header { ends, len: out.len() });
            out.clear();
            write_v2(ends.as_ref(), &mut out);
            assert_eq!(header(&out), Header { ends, len: out.len() });
        }
        let mut out = Vec::new();
        write_v1(Some(&ends("1.2.3.4:5", "[::1]:10")), &mut out);
        assert_eq!(out, b"PROXY TCP6 ::ffff:1.2.3.4 ::1 5 10\r\n");
    }
}
