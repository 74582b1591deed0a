//! gRPC: the prefix of its messages, and the status of a call.

use wire::Fields;

/// Bytes before each message: whether it is compressed, and its length.
pub const PREFIX: usize = 5;

/// A call that ended well.
pub const OK: u32 = 0;

/// Returns the prefix of a message that is not compressed; `None` if gRPC has no messages of this length.
pub fn prefix(length: usize) -> Option<[u8; PREFIX]> {
    let [a, b, c, d] = u32::try_from(length).ok()?.to_be_bytes();
    Some([0, a, b, c, d])
}

/// Returns a message behind its prefix; `None` if gRPC has no messages of this length.
pub fn framed(message: &[u8]) -> Option<Vec<u8>> {
    Some([&prefix(message.len())?, message].concat())
}

/// Returns the only message of a body; `None` if it is missing, compressed or incomplete.
pub fn unframed(body: &[u8]) -> Option<&[u8]> {
    let (first, rest) = Prefix::read(body)?;
    (!first.is_compressed && rest.len() == first.length).then_some(rest)
}

/// The prefix of a message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    pub is_compressed: bool,
    pub length: usize,
}

impl Prefix {
    /// Reads a prefix, and returns the bytes behind it; `None` if it is not complete.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<(Prefix, &[u8])> {
        let (&[flag, a, b, c, d], rest) = bytes.split_first_chunk::<PREFIX>()?;
        Some((Prefix { is_compressed: flag != 0, length: u32::from_be_bytes([a, b, c, d]) as usize }, rest))
    }
}

/// Returns the code that a client derives from a status of HTTP (gRPC's "HTTP to gRPC Status Code Mapping").
pub const fn status_of_http(status: u16) -> u32 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// Returns the code and the message of a response that has ended, percent-encoded as it came. A response without
/// trailers has them in its head.
pub fn outcome(status: u16, head: &Fields, trailers: &Fields) -> (u32, Vec<u8>) {
    let of = |name: &[u8]| trailers.get_named(name).or_else(|| head.get_named(name));
    let code = of(b"grpc-status").and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
    let message = of(b"grpc-message").unwrap_or_default().to_vec();
    match code {
        Some(code) if status == 200 => (code, message),
        _ => (status_of_http(status), message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fields;

    #[test]
    fn a_prefix_is_exact() {
        assert_eq!(framed(b"ab").unwrap(), b"\0\0\0\0\x02ab");
        assert_eq!(framed(b"").unwrap(), b"\0\0\0\0\0");
        assert_eq!(prefix(1 << 32), None);
        for wrong in [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x01", b"\0\0\0\0\0x"] {
            assert!(unframed(wrong).is_none(), "{wrong:?}");
        }
        assert_eq!(unframed(b"\0\0\0\0\x02ab"), Some(&b"ab"[..]));
        let (first, rest) = Prefix::read(b"\x01\xff\0\0\0x").unwrap();
        assert_eq!((first.is_compressed, first.length, rest), (true, 0xff00_0000, &b"x"[..]));
    }

    #[test]
    fn statuses_are_those_of_grpcs_own_table() {
        let table = [
            (400, 13),
            (401, 16),
            (403, 7),
            (404, 12),
            (429, 14),
            (502, 14),
            (503, 14),
            (504, 14),
            (200, 2),
            (500, 2),
        ];
        for (http, grpc) in table {
            assert_eq!(status_of_http(http), grpc, "{http}");
        }
    }

    #[test]
    fn the_outcome_is_that_of_the_trailers() {
        let (none, seven) = (Fields::new(), fields(&[("grpc-status", "7"), ("grpc-message", "no%20")]));
        assert_eq!(outcome(200, &none, &seven), (7, b"no%20".to_vec()));
        assert_eq!(outcome(200, &seven, &none), (7, b"no%20".to_vec()));
        assert_eq!(outcome(200, &fields(&[("grpc-status", "0")]), &seven).0, 7);
        assert_eq!(outcome(200, &none, &none).0, 2);
        assert_eq!(outcome(503, &none, &fields(&[("grpc-status", "0")])).0, 14);
        assert_eq!(outcome(200, &none, &fields(&[("grpc-status", "x")])).0, 2);
    }
}
