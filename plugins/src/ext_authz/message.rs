//! Messages of `envoy.service.auth.v3` in the wire format of Protocol Buffers, as far as they are used; those of v2 have
//! the same fields. Unknown fields are skipped.

/// The wire types in use.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// Headers that an answer may set or remove: each is compared with the others.
const MOST_HEADERS: usize = 1000;

/// A message that is being written.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub fn number(&mut self, field: u64, value: u64) -> &mut Writer {
        if value != 0 {
            self.varint(field << 3 | VARINT);
            self.varint(value);
        }
        self
    }

    pub fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Writer {
        if !value.is_empty() {
            self.part(field, value);
        }
        self
    }

    /// A message; present even if it is empty.
    pub fn message(&mut self, field: u64, message: &Writer) -> &mut Writer {
        self.part(field, &message.0);
        self
    }

    /// An entry of a `map<string, string>`.
    pub fn entry(&mut self, field: u64, key: &[u8], value: &[u8]) -> &mut Writer {
        let mut entry = Writer::default();
        entry.bytes(1, key).bytes(2, value);
        self.message(field, &entry)
    }

    /// The message with the prefix of gRPC: not compressed, and its length.
    pub fn framed(&self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX).to_be_bytes();
        [&[0][..], &length, &self.0].concat()
    }

    fn part(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The message within the prefix of gRPC; `None` if it is missing, compressed or incomplete.
pub(super) fn unframed(body: &[u8]) -> Option<&[u8]> {
    let (&[flag, a, b, c, d], message) = body.split_first_chunk::<5>()?;
    (flag == 0 && message.len() == u32::from_be_bytes([a, b, c, d]) as usize).then_some(message)
}

/// A field of a message.
pub(super) enum Field<'m> {
    Number(u64),
    Bytes(&'m [u8]),
    /// A number of 4 or 8 bytes, which no field in use has.
    Fixed,
}

/// The fields of a message with their numbers; an error ends them.
pub(super) struct Fields<'m>(&'m [u8]);

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
pub(super) struct Malformed;

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

/// A header that the server sets.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header<'m> {
    pub name: &'m str,
    pub value: &'m [u8],
    pub append: bool,
}

/// `CheckResponse`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer<'m> {
    /// The code of gRPC; 0 accepts the request.
    pub code: u64,
    /// The status for the client; 0 if it is missing.
    pub status: u64,
    pub body: &'m [u8],
    /// For the client if the request is refused, else for the upstream.
    pub headers: Vec<Header<'m>>,
    pub removed: Vec<&'m str>,
    /// For the client if the request is accepted.
    pub response_headers: Vec<Header<'m>>,
    /// The answer changes the query, which is not supported.
    pub changes_query: bool,
}

impl<'m> Answer<'m> {
    pub fn read(message: &'m [u8]) -> Result<Answer<'m>, Malformed> {
        let mut answer = Answer::default();
        let mut of = None;
        for field in Fields::of(message) {
            match field? {
                // A second message adds to the first.
                (1, Field::Bytes(status)) => answer.code = number(status, 1)?.unwrap_or(answer.code),
                // Members of a `oneof`: the last one counts.
                (number @ (2 | 3), Field::Bytes(part)) => of = Some((number, part)),
                // Without its status, an answer would accept.
                (1..=3, _) => return Err(Malformed),
                _ => {}
            }
        }
        match of {
            Some((2, denied)) if answer.code != 0 => answer.denied(denied)?,
            Some((3, ok)) if answer.code == 0 => answer.ok(ok)?,
            _ => {}
        }
        let changes = answer.headers.len() + answer.response_headers.len() + answer.removed.len();
        if changes > MOST_HEADERS {
            return Err(Malformed);
        }
        Ok(answer)
    }

    fn denied(&mut self, message: &'m [u8]) -> Result<(), Malformed> {
        for field in Fields::of(message) {
            match field? {
                (1, Field::Bytes(status)) => self.status = number(status, 1)?.unwrap_or(self.status),
                (2, Field::Bytes(option)) => self.headers.extend(header(option)?),
                (3, Field::Bytes(body)) => self.body = body,
                _ => {}
            }
        }
        Ok(())
    }

    fn ok(&mut self, message: &'m [u8]) -> Result<(), Malformed> {
        for field in Fields::of(message) {
            match field? {
                (2, Field::Bytes(option)) => self.headers.extend(header(option)?),
                (5, Field::Bytes(name)) => self.removed.push(text(name)?),
                (6, Field::Bytes(option)) => self.response_headers.extend(header(option)?),
                (7 | 8, _) => self.changes_query = true,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The last number of a field; an error if the field is not a number.
fn number(message: &[u8], wanted: u64) -> Result<Option<u64>, Malformed> {
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

/// `HeaderValueOption`. One without a name is skipped.
fn header(message: &[u8]) -> Result<Option<Header<'_>>, Malformed> {
    let mut found = Header { name: "", value: b"", append: false };
    for field in Fields::of(message) {
        match field? {
            (1, Field::Bytes(header)) => {
                for field in Fields::of(header) {
                    match field? {
                        (1, Field::Bytes(name)) => found.name = text(name)?,
                        // `value`, or `raw_value`.
                        (2 | 3, Field::Bytes(value)) => found.value = value,
                        _ => {}
                    }
                }
            }
            (2, Field::Bytes(append)) => found.append = number(append, 1)?.unwrap_or(0) != 0,
            _ => {}
        }
    }
    Ok((!found.name.is_empty()).then_some(found))
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_written_and_read() {
        let mut value = Writer::default();
        value.bytes(1, b"x-user").bytes(2, b"rose");
        let mut option = Writer::default();
        let mut append = Writer::default();
        append.number(1, 1);
        option.message(1, &value).message(2, &append);
        let mut ok = Writer::default();
        ok.message(2, &option).bytes(5, b"cookie").message(6, &option);
        let mut answer = Writer::default();
        answer.message(1, &Writer::default()).message(3, &ok);
        let framed = answer.framed();
        let read = Answer::read(unframed(&framed).unwrap()).unwrap();
        let header = || Header { name: "x-user", value: b"rose", append: true };
        let expected = Answer {
            headers: vec![header()],
            removed: vec!["cookie"],
            response_headers: vec![header()],
            ..Answer::default()
        };
        assert_eq!(read, expected);
        assert_eq!(Answer::read(b"").unwrap(), Answer::default(), "an answer without a status accepts");
    }

    #[test]
    fn numbers_have_seven_bits_a_byte() {
        let mut message = Writer::default();
        message.number(3, 300).entry(10, b"k", b"v");
        assert_eq!(message.0, b"\x18\xac\x02\x52\x06\x0a\x01k\x12\x01v");
    }

    #[test]
    fn an_answer_accepts_only_by_its_status() {
        // A status of two parts, of which the second has only a text.
        assert_eq!(Answer::read(b"\x0a\x02\x08\x07\x0a\x03\x12\x01a").unwrap().code, 7);
        // A status that is a number, and a code that is a text.
        for wrong in [&b"\x08\x07"[..], b"\x0a\x03\x0a\x01a", b"\x18\x01"] {
            assert!(Answer::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_has_a_number_of_headers() {
        let answer = |headers: usize| {
            let mut ok = Writer::default();
            for _ in 0..headers {
                ok.bytes(5, b"a");
            }
            let mut answer = Writer::default();
            answer.message(3, &ok);
            Answer::read(&answer.0).is_ok()
        };
        assert_eq!((answer(MOST_HEADERS), answer(MOST_HEADERS + 1)), (true, false));
    }

    #[test]
    fn malformed_messages_are_errors() {
        for wrong in [
            &b"\x0a"[..],
            b"\x0a\x05a",
            b"\x0b\x01",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x09a",
        ] {
            assert!(Answer::read(wrong).is_err(), "{wrong:?}");
        }
        for wrong in [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x02a", b"\0\0\0\0\0a"] {
            assert!(unframed(wrong).is_none(), "{wrong:?}");
        }
        assert_eq!(unframed(b"\0\0\0\0\0"), Some(&b""[..]));
    }
}
