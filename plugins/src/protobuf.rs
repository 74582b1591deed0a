//! Messages in the wire format of Protocol Buffers, as plugins write and read those of Envoy's services. Unknown fields
//! are skipped.

use sdk::protobuf;

/// A message that is being written.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn number(&mut self, field: u32, value: u64) -> &mut Writer {
        if value != 0 {
            protobuf::number(field, value, &mut self.0);
        }
        self
    }

    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Writer {
        if !value.is_empty() {
            protobuf::bytes(field, value, &mut self.0);
        }
        self
    }

    /// A message; present even if it is empty.
    pub fn message(&mut self, field: u32, message: &Writer) -> &mut Writer {
        protobuf::bytes(field, &message.0, &mut self.0);
        self
    }

    /// An entry of a `map<string, string>`.
    pub fn entry(&mut self, field: u32, key: &[u8], value: &[u8]) -> &mut Writer {
        let mut entry = Writer::default();
        entry.bytes(1, key).bytes(2, value);
        self.message(field, &entry)
    }

    /// A truth; false is the default and left out.
    pub fn truth(&mut self, field: u32, value: bool) -> &mut Writer {
        self.number(field, value.into())
    }

    /// Bytes that are present even if there are none.
    #[cfg(test)]
    pub fn all_bytes(&mut self, field: u32, value: &[u8]) -> &mut Writer {
        protobuf::bytes(field, value, &mut self.0);
        self
    }

    #[cfg(test)]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The message with the prefix of gRPC: not compressed, and its length.
    pub fn framed(&self) -> Vec<u8> {
        // Bodies and heads have limits far below the longest message.
        sdk::grpc::framed(&self.0).unwrap_or_default()
    }
}

/// A field of a message.
pub(crate) enum Field<'m> {
    Number(u64),
    Bytes(&'m [u8]),
    /// A number of 4 or 8 bytes, which no field in use has.
    Fixed,
}

/// The fields of a message with their numbers; an error ends them.
pub(crate) struct Fields<'m>(&'m [u8]);

impl<'m> Fields<'m> {
    pub fn of(message: &'m [u8]) -> Fields<'m> {
        Fields(message)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'m [u8]> {
        let (part, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(part)
    }

    fn field(&mut self) -> Option<(u64, Field<'m>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

/// A message that is not readable.
#[derive(Debug)]
pub(crate) struct Malformed;

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u64, Field<'m>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

/// The last number of a field; an error if the field is not a number.
pub(crate) fn number(message: &[u8], wanted: u64) -> Result<Option<u64>, Malformed> {
    let mut found = None;
    for field in Fields::of(message) {
        match field? {
            (number, Field::Number(value)) if number == wanted => found = Some(value),
            (number, _) if number == wanted => return Err(Malformed),
            _ => {}
        }
    }
    Ok(found)
}

pub(crate) fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_seven_bits_a_byte() {
        let mut message = Writer::default();
        message.number(3, 300).entry(10, b"k", b"v");
        assert_eq!(message.as_bytes(), b"\x18\xac\x02\x52\x06\x0a\x01k\x12\x01v");
    }
}
