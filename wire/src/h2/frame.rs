//! hot path
//!
//! Frames of HTTP/2 (RFC 9113 sections 4 and 6): their heads, their payloads, and how they are written.

/// Bytes of a frame's head (RFC 9113 section 4.1).
pub const HEAD: usize = 9;

/// The largest payload that every peer takes (RFC 9113 section 4.2).
pub const MAX_PAYLOAD: usize = 16 << 10;

/// The window that streams and connections begin with (RFC 9113 section 6.9.2).
pub const FIRST_WINDOW: u32 = 65_535;

/// The largest window (RFC 9113 section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;

/// The greatest stream identifier (RFC 9113 section 5.1.1).
pub const MAX_STREAM: u32 = (1 << 31) - 1;

/// Frame types (RFC 9113 section 6, RFC 9218 section 7.1).
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
    pub const PRIORITY_UPDATE: u8 = 16;
}

/// Flags (RFC 9113 section 6).
pub mod flag {
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
}

/// Settings (RFC 9113 section 6.5.2, RFC 8441 section 3, RFC 9218 section 2.1).
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    pub const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// An error code (RFC 9113 section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $value:literal)*) => {
        impl Code {
            $(pub const $name: Code = Code($value);)*

            /// The code's name; none for one that is not registered.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Code::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13
}

/// A frame's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of the payload.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl FrameHead {
    #[inline]
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Parses a frame's head; `None` if it is incomplete.
#[inline]
pub fn head(bytes: &[u8]) -> Option<FrameHead> {
    let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
    Some(FrameHead {
        length: u32::from_be_bytes([0, a, b, c]) as usize,
        kind,
        flags,
        // The reserved bit means nothing.
        stream: u32::from_be_bytes(stream) & MAX_STREAM,
    })
}

/// Appends a frame's head.
#[inline]
pub fn put_head(length: usize, kind: u8, flags: u8, stream: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&head_bytes(length, kind, flags, stream));
}

/// A frame's head as bytes.
#[inline]
pub fn head_bytes(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD] {
    debug_assert!(length < 1 << 24);
    let ([_, a, b, c], [d, e, f, g]) = ((length as u32).to_be_bytes(), stream.to_be_bytes());
    [a, b, c, kind, flags, d, e, f, g]
}

/// Appends a frame whose payload is one number: RST_STREAM or WINDOW_UPDATE.
#[inline]
pub fn put_number(kind: u8, stream: u32, number: u32, out: &mut Vec<u8>) {
    put_head(4, kind, 0, stream, out);
    out.extend_from_slice(&number.to_be_bytes());
}

/// Appends PING, or its acknowledgement.
pub fn put_ping(flags: u8, payload: &[u8; 8], out: &mut Vec<u8>) {
    put_head(8, kind::PING, flags, 0, out);
    out.extend_from_slice(payload);
}

/// Appends GOAWAY.
pub fn put_goaway(last: u32, code: Code, out: &mut Vec<u8>) {
    put_head(8, kind::GOAWAY, 0, 0, out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Appends SETTINGS.
pub fn put_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    put_head(6 * settings.len(), kind::SETTINGS, 0, 0, out);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// The settings of a payload, in order. Its length must be a multiple of six.
pub fn settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> + '_ {
    payload
        .as_chunks()
        .0
        .iter()
        .map(|&[a, b, value @ ..]: &[u8; 6]| (u16::from_be_bytes([a, b]), u32::from_be_bytes(value)))
}

/// The number at the front of a payload, without the reserved bit; `None` if it is shorter.
#[inline]
pub fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) & MAX_STREAM)
}

/// A payload without its padding; `None` if the padding is as long as what it pads (RFC 9113 section 6.1).
#[inline]
pub fn without_padding(head: FrameHead, payload: &[u8]) -> Option<&[u8]> {
    if !head.has(flag::PADDED) {
        return Some(payload);
    }
    let (&padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(padding))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_may_come_in_pieces() {
        let bytes = head_bytes(0x0001_0203, 4, 5, 0x7fff_fffe);
        assert_eq!(
            head(&bytes),
            Some(FrameHead { length: 0x0001_0203, kind: 4, flags: 5, stream: 0x7fff_fffe })
        );
        (0..HEAD).for_each(|short| assert_eq!(head(&bytes[..short]), None));
        let reserved = [0, 0, 0, 0, 0, 0x80, 0, 0, 1, 9];
        assert_eq!(head(&reserved).unwrap().stream, 1, "the reserved bit");
    }

    #[test]
    fn payloads_are_read_back() {
        let mut out = Vec::new();
        put_settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20), (setting::ENABLE_PUSH, 0)], &mut out);
        assert_eq!(head(&out).unwrap().length, out.len() - HEAD);
        assert_eq!(settings(&out[HEAD..]).collect::<Vec<_>>(), [(4, 1 << 20), (2, 0)]);
        out.clear();
        put_number(kind::WINDOW_UPDATE, 7, 0x8000_0005, &mut out);
        assert_eq!((number(&out[HEAD..]), number(&out[HEAD + 1..])), (Some(5), None));
        out.clear();
        put_goaway(9, Code::ENHANCE_YOUR_CALM, &mut out);
        assert_eq!(out, [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 11]);
        out.clear();
        put_ping(flag::ACK, b"12345678", &mut out);
        assert_eq!(out, *b"\0\0\x08\x06\x01\0\0\0\x0012345678");
    }

    #[test]
    fn padding_is_shorter_than_the_payload() {
        let padded = FrameHead { length: 0, kind: kind::DATA, flags: flag::PADDED, stream: 1 };
        assert_eq!(without_padding(padded, b"\x02abXX"), Some(&b"ab"[..]));
        assert_eq!(without_padding(padded, b"\x00ab"), Some(&b"ab"[..]));
        assert_eq!(without_padding(padded, b"\x02XX"), Some(&b""[..]));
        assert_eq!(without_padding(padded, b"\x03XX"), None);
        assert_eq!(without_padding(padded, b""), None);
        assert_eq!(without_padding(FrameHead { flags: 0, ..padded }, b"\x03XX"), Some(&b"\x03XX"[..]));
    }

    #[test]
    fn codes_have_their_names() {
        assert_eq!(Code::ENHANCE_YOUR_CALM.name(), Some("ENHANCE_YOUR_CALM"));
        assert_eq!(Code(14).name(), None);
    }
}
