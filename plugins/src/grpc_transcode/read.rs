//! The wire format of protobuf, field by field.

use super::types::Wire;

/// A message that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not the wire format, or another type than the proto's.
    Malformed,
    /// Messages in messages, beyond [`DEEPEST`].
    TooDeep,
    /// The message or its JSON is longer than its limit.
    TooLong,
    /// The memory that was reserved does not suffice.
    NoRoom,
}

/// How deep messages may nest; the libraries of most languages have the same limit.
pub(super) const DEEPEST: usize = 100;

/// Reads a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(Fault::Malformed)?;
            self.at += 1;
            // Bits beyond the 64th are dropped, as everywhere.
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault::Malformed)
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let end = self.at.checked_add(length).ok_or(Fault::Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Fault::Malformed)?;
        self.at = end;
        Ok(taken)
    }

    /// Bytes behind their length.
    pub fn prefixed(&mut self) -> Result<&'a [u8], Fault> {
        let length = usize::try_from(self.varint()?).map_err(|_| Fault::Malformed)?;
        self.take(length)
    }

    pub fn fixed32(&mut self) -> Result<[u8; 4], Fault> {
        self.take(4)?.try_into().map_err(|_| Fault::Malformed)
    }

    pub fn fixed64(&mut self) -> Result<[u8; 8], Fault> {
        self.take(8)?.try_into().map_err(|_| Fault::Malformed)
    }

    /// Reads the next tag; `None` at the end. Groups are skipped.
    pub fn tag(&mut self) -> Result<Option<(u32, Wire)>, Fault> {
        let mut groups = 0;
        while !self.is_empty() {
            let tag = u32::try_from(self.varint()?).map_err(|_| Fault::Malformed)?;
            let (number, wire) = (tag >> 3, tag & 7);
            if number == 0 {
                return Err(Fault::Malformed);
            }
            let wire = match wire {
                0 => Wire::Varint,
                1 => Wire::Fixed64,
                2 => Wire::Bytes,
                5 => Wire::Fixed32,
                3 => {
                    groups += 1;
                    continue;
                }
                4 if groups > 0 => {
                    groups -= 1;
                    continue;
                }
                _ => return Err(Fault::Malformed),
            };
            if groups == 0 {
                return Ok(Some((number, wire)));
            }
            self.skip(wire)?;
        }
        if groups == 0 { Ok(None) } else { Err(Fault::Malformed) }
    }

    pub fn skip(&mut self, wire: Wire) -> Result<(), Fault> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.take(8).map(drop),
            Wire::Bytes => self.prefixed().map(drop),
            Wire::Fixed32 => self.take(4).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_fields_are_refused() {
        for bytes in [
            &[0x80][..],
            &[0x0a],
            &[0x0a, 5, 1],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x00, 0x01],
            &[0x0d, 1, 2, 3],
            &[0x09, 1, 2, 3],
            &[0x0b],
            &[0x0c],
            &[0x0f],
            &[0xf8, 0xff, 0xff, 0xff, 0xff, 0x01, 0x00],
        ] {
            let mut reader = Reader::new(bytes);
            let all = std::iter::from_fn(|| match reader.tag() {
                Ok(None) => None,
                Ok(Some((_, wire))) => Some(reader.skip(wire)),
                Err(fault) => Some(Err(fault)),
            });
            assert_eq!(all.take(10).find_map(Result::err), Some(Fault::Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn groups_are_skipped_however_deep_they_are() {
        let mut bytes = vec![0x0b; 100_000];
        bytes.extend([0x08, 7]);
        bytes.extend(vec![0x0c; 100_000]);
        bytes.extend([0x10, 1]);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.tag(), Ok(Some((2, Wire::Varint))));
        assert_eq!((reader.varint(), reader.tag()), (Ok(1), Ok(None)));
    }
}
