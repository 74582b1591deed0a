//! hot path
//!
//! HTTP/3 (RFC 9114): variable-length integers, frame headers and field sections.

pub mod qpack;
mod table;

/// Frame types.
pub mod frame {
    pub const DATA: u64 = 0;
    pub const HEADERS: u64 = 1;
    pub const CANCEL_PUSH: u64 = 3;
    pub const SETTINGS: u64 = 4;
    pub const PUSH_PROMISE: u64 = 5;
    pub const GOAWAY: u64 = 7;
    pub const MAX_PUSH_ID: u64 = 13;

    /// Whether the type is reserved from HTTP/2 and forbidden here (RFC 9114 section 7.2.8).
    pub fn is_of_http2(kind: u64) -> bool {
        matches!(kind, 2 | 6 | 8 | 9)
    }
}

/// Types of unidirectional streams (RFC 9114 section 6.2, RFC 9204 section 4.2).
pub mod stream {
    pub const CONTROL: u64 = 0;
    pub const PUSH: u64 = 1;
    pub const ENCODER: u64 = 2;
    pub const DECODER: u64 = 3;
}

/// Settings (RFC 9114 section 7.2.4.1, RFC 9204 section 5, RFC 9220).
pub mod setting {
    pub const MAX_FIELD_SECTION_SIZE: u64 = 6;
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 8;

    /// Whether the setting is reserved from HTTP/2 and forbidden here.
    pub fn is_of_http2(id: u64) -> bool {
        matches!(id, 2..=5)
    }
}

/// Error codes (RFC 9114 section 8.1, RFC 9204 section 6).
pub mod code {
    pub const NO_ERROR: u32 = 0x100;
    pub const STREAM_CREATION_ERROR: u32 = 0x103;
    pub const CLOSED_CRITICAL_STREAM: u32 = 0x104;
    pub const FRAME_UNEXPECTED: u32 = 0x105;
    pub const FRAME_ERROR: u32 = 0x106;
    pub const EXCESSIVE_LOAD: u32 = 0x107;
    pub const ID_ERROR: u32 = 0x108;
    pub const SETTINGS_ERROR: u32 = 0x109;
    pub const MISSING_SETTINGS: u32 = 0x10a;
    pub const REQUEST_REJECTED: u32 = 0x10b;
    pub const REQUEST_CANCELLED: u32 = 0x10c;
    pub const REQUEST_INCOMPLETE: u32 = 0x10d;
    pub const MESSAGE_ERROR: u32 = 0x10e;
    pub const INTERNAL_ERROR: u32 = 0x102;
    pub const QPACK_DECOMPRESSION_FAILED: u32 = 0x200;
    pub const QPACK_ENCODER_STREAM_ERROR: u32 = 0x201;
    pub const QPACK_DECODER_STREAM_ERROR: u32 = 0x202;
}

/// The largest variable-length integer.
pub const MOST: u64 = (1 << 62) - 1;

/// The longest frame header: two integers.
pub const LONGEST_HEAD: usize = 16;

/// Parses a variable-length integer and its length (RFC 9000 section 16); `None` if it is
/// incomplete.
#[inline]
pub fn number(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let mut value = u64::from(first & 0x3f);
    for byte in bytes.get(1..length)? {
        value = value << 8 | u64::from(*byte);
    }
    Some((value, length))
}

/// Appends an integer in its shortest form; values above [`MOST`] are capped to it.
#[inline]
pub fn put_number(value: u64, out: &mut Vec<u8>) {
    match value.min(MOST) {
        value @ 0..=0x3f => out.push(value as u8),
        value @ 0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        value @ 0x4000..=0x3fff_ffff => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        value => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Parses a frame header: the type, the length of the payload and the length of the header; `None`
/// if it is incomplete.
#[inline]
pub fn frame_head(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (kind, first) = number(bytes)?;
    let (length, second) = number(&bytes[first..])?;
    Some((kind, length, first + second))
}

/// Appends a frame header.
#[inline]
pub fn put_frame(kind: u64, length: usize, out: &mut Vec<u8>) {
    put_number(kind, out);
    put_number(length as u64, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_in_the_rfc() {
        // RFC 9000 appendix A.1.
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            let mut out = Vec::new();
            put_number(value, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(number(bytes), Some((value, bytes.len())));
            (0..bytes.len()).for_each(|short| assert_eq!(number(&bytes[..short]), None));
        }
        assert_eq!(number(&[0x40, 0x25]), Some((37, 2)), "longer forms are valid");
        for value in [0, 0x3f, 0x40, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, MOST] {
            let mut out = Vec::new();
            put_number(value, &mut out);
            assert_eq!(number(&out), Some((value, out.len())));
        }
    }

    #[test]
    fn recognises_http2_only_types() {
        // RFC 9114 sections 11.2.1 and 11.2.2.
        let frames: Vec<u64> = (0..64).filter(|kind| frame::is_of_http2(*kind)).collect();
        assert_eq!(frames, [2, 6, 8, 9]);
        let settings: Vec<u64> = (0..64).filter(|id| setting::is_of_http2(*id)).collect();
        assert_eq!(settings, [2, 3, 4, 5]);
    }

    #[test]
    fn a_frame_header_may_come_in_pieces() {
        let mut out = Vec::new();
        put_frame(frame::GOAWAY, 70_000, &mut out);
        assert_eq!(frame_head(&out), Some((7, 70_000, 5)));
        (0..out.len()).for_each(|short| assert_eq!(frame_head(&out[..short]), None));
    }
}
