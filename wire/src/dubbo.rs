//! hot path
//!
//! Frames of Dubbo's own protocol, parsed incrementally: a head of 16 bytes and a body of any
//! length that is passed on in pieces and not parsed.

/// Bytes of a head.
pub const HEAD: usize = 16;

const MAGIC: [u8; 2] = [0xda, 0xbb];

/// A frame without the magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadMagic;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Whether it is a request or a response.
    pub is_request: bool,
    /// Whether a response is expected.
    pub two_way: bool,
    /// Whether it is a protocol event, such as a heartbeat.
    pub is_event: bool,
    /// The serialization of its body.
    pub serialization: u8,
    /// The status of a response; 20 is success.
    pub status: u8,
    /// The id that a request and its response share.
    pub id: u64,
    /// Length of the body in bytes.
    pub len: u32,
}

impl Head {
    fn of(bytes: &[u8; HEAD]) -> Head {
        let [_, _, flags, status, id @ ..] = *bytes;
        let [a, b, c, d, e, f, g, h, len @ ..] = id;
        Head {
            is_request: flags & 0x80 != 0,
            two_way: flags & 0x40 != 0,
            is_event: flags & 0x20 != 0,
            serialization: flags & 0x1f,
            status,
            id: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_be_bytes(len),
        }
    }
}

/// Parses frames, one after another.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    head: [u8; HEAD],
    /// Bytes of the head received so far.
    have: usize,
    /// Bytes of the body still to come, once the head is complete.
    left: u32,
}

/// A part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The start of a frame. Without a body it is also the end.
    Head(Head),
    /// The next bytes of the body.
    Body { bytes: &'a [u8], last: bool },
}

impl Frames {
    /// Parses the next part: returns the number of bytes used, and the part; `None` if more bytes
    /// are needed.
    ///
    /// # Errors
    /// The bytes are not the start of a frame; no further calls are allowed.
    #[inline]
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, Option<Part<'a>>), BadMagic> {
        if self.left > 0 {
            if bytes.is_empty() {
                return Ok((0, None));
            }
            let here = bytes.len().min(self.left as usize);
            self.left -= here as u32;
            return Ok((here, Some(Part::Body { bytes: &bytes[..here], last: self.left == 0 })));
        }
        let here = bytes.len().min(HEAD - self.have);
        self.head[self.have..][..here].copy_from_slice(&bytes[..here]);
        self.have += here;
        let begun = self.have.min(MAGIC.len());
        if self.head[..begun] != MAGIC[..begun] {
            return Err(BadMagic);
        }
        if self.have < HEAD {
            return Ok((here, None));
        }
        self.have = 0;
        let head = Head::of(&self.head);
        self.left = head.len;
        Ok((here, Some(Part::Head(head))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> Result<Vec<Part<'_>>, BadMagic> {
        let (mut frames, mut parts) = (Frames::default(), Vec::new());
        while !bytes.is_empty() {
            let (used, part) = frames.next(bytes)?;
            bytes = &bytes[used..];
            parts.extend(part);
        }
        Ok(parts)
    }

    #[test]
    fn frames_have_a_head_and_a_body() {
        let bytes =
            b"\xda\xbb\xc2\0\0\0\0\0\0\0\x01\x02\0\0\0\x03abc\xda\xbb\x22\x14\0\0\0\0\0\0\0\x34\0\0\0\0";
        let request = Head {
            is_request: true,
            two_way: true,
            is_event: false,
            serialization: 2,
            status: 0,
            id: 0x102,
            len: 3,
        };
        let beat = Head {
            is_request: false,
            two_way: false,
            is_event: true,
            serialization: 2,
            status: 20,
            id: 0x34,
            len: 0,
        };
        let parts = [Part::Head(request), Part::Body { bytes: b"abc", last: true }, Part::Head(beat)];
        assert_eq!(read(bytes), Ok(parts.to_vec()));
    }

    #[test]
    fn other_protocols_are_refused_at_the_first_wrong_byte() {
        assert_eq!(read(b"\xda\xbc"), Err(BadMagic));
        assert_eq!(read(b"G"), Err(BadMagic));
        assert_eq!(read(b"\xda"), Ok(vec![]));
        assert_eq!(read(b"\xda\xbb\x42\0\0\0\0\0\0\0\0\0\0\0\0\0X"), Err(BadMagic));
    }
}
