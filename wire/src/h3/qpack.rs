//! hot path
//!
//! Field sections (RFC 9204), without a dynamic table: the announced table capacity is 0, so every
//! section can be decoded independently, nothing blocks, and no state is kept between sections.

use super::huffman;
use super::table::FIELDS;
use crate::fields::Span;

/// The size of a field beside its name and value, in bytes (RFC 9114 section 4.2.2).
const OVERHEAD: usize = 32;

/// Why a field section is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// It cannot be decoded, or refers to a missing entry. The connection cannot continue.
    Coding,
    /// It exceeds the size limit.
    TooLarge,
    /// It has more fields than the limit.
    TooMany,
}

/// A decoded field section. Reused for the next one.
#[derive(Debug, Default)]
pub struct List {
    text: Vec<u8>,
    fields: Vec<(Span, Span)>,
}

impl List {
    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone + '_ {
        self.fields.iter().map(|(name, value)| (self.bytes(*name), self.bytes(*value)))
    }

    fn bytes(&self, span: Span) -> &[u8] {
        &self.text[span.start as usize..][..span.len as usize]
    }

    fn keep(&mut self, bytes: &[u8]) -> Span {
        let start = self.text.len();
        self.text.extend_from_slice(bytes);
        Span { start: start as u32, len: bytes.len() as u32 }
    }

    /// Decodes a section of at most `most_bytes` and `most_fields`.
    ///
    /// # Errors
    /// Why the section is invalid.
    pub fn read(&mut self, coded: &[u8], most_bytes: usize, most_fields: usize) -> Result<(), Bad> {
        self.text.clear();
        self.fields.clear();
        let mut from = Reader(coded);
        // No dynamic table is needed, so the base has no meaning but must be valid.
        let (needed, _) = from.integer(8)?;
        let (_, base) = from.integer(7)?;
        if needed != 0 || base & 0x80 != 0 {
            return Err(Bad::Coding);
        }
        let most = most_bytes.min(1 << 24);
        let mut size = 0usize;
        while let Some(&first) = from.0.first() {
            let (name, value) = match first {
                0x80.. => {
                    let (name, value) = known(from.integer(6)?)?;
                    (self.keep(name), self.keep(value))
                }
                0x40.. => {
                    let (index, bits) = from.integer(4)?;
                    // The bit above the index selects the table.
                    let (name, _) = known((index, bits << 2))?;
                    (self.keep(name), from.text(7, self, most)?)
                }
                0x20.. => (from.text(3, self, most)?, from.text(7, self, most)?),
                // References to entries added to the dynamic table.
                _ => return Err(Bad::Coding),
            };
            size += name.len as usize + value.len as usize + OVERHEAD;
            if size - OVERHEAD * (self.fields.len() + 1) > most {
                return Err(Bad::TooLarge);
            }
            if self.fields.len() == most_fields {
                return Err(Bad::TooMany);
            }
            self.fields.push((name, value));
        }
        Ok(())
    }
}

/// The static field of an index. The bit above the index selects the table.
fn known((index, bits): (u64, u8)) -> Result<(&'static [u8], &'static [u8]), Bad> {
    if bits & 0x40 == 0 {
        return Err(Bad::Coding);
    }
    let index = usize::try_from(index).map_err(|_| Bad::Coding)?;
    FIELDS.get(index).copied().ok_or(Bad::Coding)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Decodes an integer in the last bits of the next byte and the bytes after it (RFC 7541
    /// section 5.1), and returns that first byte, too.
    fn integer(&mut self, bits: u32) -> Result<(u64, u8), Bad> {
        let (&first, mut rest) = self.0.split_first().ok_or(Bad::Coding)?;
        let most = (1u64 << bits) - 1;
        let mut value = u64::from(first) & most;
        if value == most {
            let mut shift = 0;
            loop {
                let (&byte, behind) = rest.split_first().ok_or(Bad::Coding)?;
                rest = behind;
                // No valid length or index is that large.
                if shift > 28 {
                    return Err(Bad::Coding);
                }
                value += u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
            }
        }
        self.0 = rest;
        Ok((value, first))
    }

    /// Decodes a text whose length is in the last bits of the next byte; the bit above them marks
    /// Huffman coding.
    fn text(&mut self, bits: u32, list: &mut List, most: usize) -> Result<Span, Bad> {
        let (length, first) = self.integer(bits)?;
        let length = usize::try_from(length).map_err(|_| Bad::Coding)?;
        let (coded, rest) = self.0.split_at_checked(length).ok_or(Bad::Coding)?;
        self.0 = rest;
        if first >> bits & 1 == 0 {
            return if length > most { Err(Bad::TooLarge) } else { Ok(list.keep(coded)) };
        }
        let start = list.text.len();
        if !huffman::decode(coded, &mut list.text) {
            return Err(Bad::Coding);
        }
        Ok(Span { start: start as u32, len: (list.text.len() - start) as u32 })
    }
}

/// Starts a section.
#[inline]
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a field; its name must be in lower case.
pub fn put(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let mut of_name = None;
    for (index, (known, with)) in FIELDS.iter().enumerate() {
        if known.len() == name.len() && known.eq_ignore_ascii_case(name) {
            if *with == value {
                return put_integer(0xc0, 6, index as u64, out);
            }
            of_name.get_or_insert(index);
        }
    }
    match of_name {
        Some(index) => put_integer(0x50, 4, index as u64, out),
        None => {
            put_integer(0x20, 3, name.len() as u64, out);
            out.extend(name.iter().map(u8::to_ascii_lowercase));
        }
    }
    put_integer(0, 7, value.len() as u64, out);
    out.extend_from_slice(value);
}

/// Appends the status of a response.
pub fn put_status(status: u16, out: &mut Vec<u8>) {
    let digits = [status / 100 % 10, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
    put(b":status", &digits, out);
}

fn put_integer(flags: u8, bits: u32, value: u64, out: &mut Vec<u8>) {
    let most = (1u64 << bits) - 1;
    if value < most {
        return out.push(flags | value as u8);
    }
    out.push(flags | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Texts = Vec<(String, String)>;

    fn read(coded: &[u8]) -> Result<Texts, Bad> {
        limited(coded, 4096, 100)
    }

    fn limited(coded: &[u8], bytes: usize, fields: usize) -> Result<Texts, Bad> {
        let mut list = List::default();
        list.read(coded, bytes, fields)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ok(list.iter().map(|(name, value)| (text(name), text(value))).collect())
    }

    #[test]
    fn written_values_are_read_back() {
        let long = "x".repeat(300);
        let fields = [
            (":status", "200"),
            (":status", "418"),
            ("content-type", "text/html; charset=utf-8"),
            ("content-type", "a/b"),
            ("x-frame-options", "sameorigin"),
            ("x-own", "value"),
            ("a-name-that-is-longer-than-seven", &long),
            ("empty", ""),
        ];
        let mut coded = Vec::new();
        begin(&mut coded);
        for (name, value) in fields {
            put(name.to_uppercase().as_bytes(), value.as_bytes(), &mut coded);
        }
        let expected: Texts = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        assert_eq!(read(&coded), Ok(expected));
        // Any prefix is a valid section or an error, and never a panic.
        (0..coded.len()).for_each(|short| drop(read(&coded[..short])));
        let mut status = vec![0, 0];
        put_status(204, &mut status);
        assert_eq!(status, [0, 0, 0xc0 | 63, 1], "one index is enough");
        put_status(431, &mut status);
        assert_eq!(read(&status).unwrap()[1], (":status".to_owned(), "431".to_owned()));
    }

    #[test]
    fn every_form_is_read() {
        // RFC 9204 appendix B.1, and the same with a Huffman-coded name.
        assert_eq!(
            read(b"\0\0\x51\x0b/index.html").unwrap(),
            [(":path".to_owned(), "/index.html".to_owned())]
        );
        let coded = b"\0\0\x2f\x01\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf";
        assert_eq!(read(coded).unwrap(), [("custom-key".to_owned(), "custom-value".to_owned())]);
        // A name length in the longest accepted form, and in an even longer one.
        let longest = b"\0\0\x27\x81\x80\x80\x80\0eightlet\x01x";
        assert_eq!(read(longest).unwrap(), [("eightlet".to_owned(), "x".to_owned())]);
        assert_eq!(read(b"\0\0\x27\x81\x80\x80\x80\x80\0eightlet\x01x"), Err(Bad::Coding));
    }

    #[test]
    fn references_to_the_dynamic_table_are_refused() {
        for coded in [
            &b""[..],
            b"\0",
            b"\x01\0",
            b"\0\x80",
            b"\0\0\x80",                                     // a number of the table that changes
            b"\0\0\x40\0",                                   // a name of it
            b"\0\0\x10",                                     // behind the base
            b"\0\0\x00\0",                                   // a name there
            b"\0\0\xff\x24",                                 // no such number: 99
            b"\0\0\xff",                                     // half a number
            b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", // one without end
            b"\0\0\x27\xff\xff\xff\xff\x07",
            b"\0\0\x51\x0b/index.htm",
            b"\0\0\x51\x81\0", // bad padding
        ] {
            assert_eq!(read(coded), Err(Bad::Coding), "{coded:?}");
        }
        assert_eq!(read(b"\0\0"), Ok(Vec::new()));
        assert_eq!(read(b"\0\0\xff\x23").unwrap()[0].1, "sameorigin", "98 is the last");
    }

    #[test]
    fn limits_hold() {
        let mut coded = vec![0, 0];
        for _ in 0..5 {
            put(b"x-a", b"12345", &mut coded);
        }
        assert_eq!(limited(&coded, 40, 5).map(|list| list.len()), Ok(5));
        assert_eq!(limited(&coded, 39, 5), Err(Bad::TooLarge));
        assert_eq!(limited(&coded, 40, 4), Err(Bad::TooMany));
        let one = b"\0\0\x20\x0512345";
        assert_eq!(limited(one, 5, 1).map(|list| list.len()), Ok(1));
        assert_eq!(limited(one, 4, 1), Err(Bad::TooLarge));
        // A few bytes that expand to many.
        let bomb = [&[0, 0][..], &[0xc0 | 31; 4000]].concat();
        assert_eq!(limited(&bomb, 4096, 100), Err(Bad::TooMany));
        assert_eq!(limited(&bomb, 64, 100_000), Err(Bad::TooLarge));
    }
}
