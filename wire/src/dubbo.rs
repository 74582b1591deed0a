//! hot path
//!
//! Frames of Dubbo's own protocol, read piece by piece: a head of 16 bytes and a body that is handed on as it
//! comes, whatever its length. What is in a body is not looked at.

/// Bytes of a head.
pub const HEAD: usize = 16;

const MAGIC: [u8; 2] = [0xda, 0xbb];

/// A frame does not begin as one must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadMagic;

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// A request, else a response.
    pub is_request: bool,
    /// A response is awaited.
    pub two_way: bool,
    /// Nothing of an application's, such as a heartbeat.
    pub is_event: bool,
    /// How its body is written.
    pub serialization: u8,
    /// Of a response; 20 is success.
    pub status: u8,
    /// The same in a request and its response.
    pub id: u64,
    /// Bytes of the body.
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

/// Reads frames, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    head: [u8; HEAD],
    /// Bytes of the head that are there.
    have: usize,
    /// Bytes of the body that are still to come, where the head is there.
    left: u32,
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// A frame begins. Without a body it has ended as well.
    Head(Head),
    /// The next bytes of its body, which may be the last.
    Body { bytes: &'a [u8], last: bool },
}

impl Frames {
    /// Reads on: how many bytes were used, and what they came to; `None` if they were too few.
    ///
    /// # Errors
    /// No frame begins there; nothing may be read after that.
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
    fn something_else_is_refused_with_the_byte_that_tells() {
        assert_eq!(read(b"\xda\xbc"), Err(BadMagic));
        assert_eq!(read(b"G"), Err(BadMagic));
        assert_eq!(read(b"\xda"), Ok(vec![]));
        assert_eq!(read(b"\xda\xbb\x42\0\0\0\0\0\0\0\0\0\0\0\0\0X"), Err(BadMagic));
    }
}
