//! hot path
//!
//! Byte classes of targets, and percent-encoding.

pub(super) const SLASH: u8 = 1;
/// Not in normal form right after a slash: a slash or a dot.
pub(super) const AFTER_SLASH: u8 = 2;
/// Is percent-encoded in the encoded form.
pub(super) const CODED: u8 = 4;
pub(super) const PERCENT: u8 = 8;
pub(super) const QUERY: u8 = 16;
/// Never allowed in a target.
pub(super) const BAD: u8 = 32;
pub(super) const SEMICOLON: u8 = 64;

pub(super) static CLASS: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = match byte as u8 {
            0..=b' ' | b'#' | 0x7f => BAD,
            b'/' => SLASH | AFTER_SLASH,
            b'.' => AFTER_SLASH,
            b'%' => PERCENT,
            b'?' => QUERY,
            b';' => SEMICOLON,
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x80..=0xff => CODED,
            _ => 0,
        };
        byte += 1;
    }
    table
};

pub(super) fn encode_query(raw: &[u8], out: &mut Vec<u8>) {
    for &byte in raw {
        if CLASS[byte as usize] & CODED == 0 {
            out.push(byte);
        } else {
            push_encoded(byte, out);
        }
    }
}

pub(super) fn push_encoded(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// The byte encoded by the two digits after the `%` at `at`.
pub(super) fn hex_pair(raw: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| raw.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    Some((digit(at + 1)? << 4 | digit(at + 2)?) as u8)
}

pub(super) const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}
