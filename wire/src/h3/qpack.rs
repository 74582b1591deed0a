//! hot path
//!
//! Field sections (RFC 9204), without a dynamic table: the announced table capacity is 0, so every
//! section can be decoded independently, nothing blocks, and no state is kept between sections.

use super::table::FIELDS;
use crate::field_list::{About, BEHIND, BETWEEN, Bad, Known, Limited, List};
use crate::names::{Name, same_in_any_case};
use crate::prefixed::{Reader, put_integer, put_lower, put_text};

/// Decodes a section of at most `most_fields`, whose names and values have at most `most_bytes`.
///
/// # Errors
/// Why the section is invalid; the list is empty then.
pub fn decode(coded: &[u8], list: &mut List, most_bytes: usize, most_fields: usize) -> Result<(), Bad> {
    let mut limited = Limited::new(list, most_bytes, most_fields);
    let done = read(coded, &mut limited);
    let within = limited.finish();
    if done.is_err() {
        list.clear();
    }
    done.and(within)
}

fn read(coded: &[u8], to: &mut Limited<'_>) -> Result<(), Bad> {
    let mut from = Reader(coded);
    // No dynamic table is needed, so the base has no meaning but must be valid.
    let needed = from.integer(8)?;
    let is_negative = from.0.first().is_some_and(|first| first & 0x80 != 0);
    from.integer(7)?;
    if needed != 0 || is_negative {
        return Err(Bad::Coding);
    }
    while let Some(&first) = from.0.first() {
        if first & 0xc0 == 0xc0 {
            let field = known(from.integer(6)?)?;
            to.line((field.line, b""), field.about);
        } else {
            let start = to.list.text.len();
            let about = match first {
                0x40..0x80 if first & 0x10 != 0 => {
                    let field = known(from.integer(4)?)?;
                    to.list.text.extend_from_slice(field.name());
                    field.about
                }
                0x20..0x40 => {
                    from.text(3, &mut to.list.text)?;
                    About::name(&to.list.text[start..])
                }
                // References to entries of the dynamic table.
                _ => return Err(Bad::Coding),
            };
            to.list.text.extend_from_slice(BETWEEN);
            let length = from.text(7, &mut to.list.text)?;
            let about = about.with(&to.list.text[to.list.text.len() - length..]);
            to.list.text.extend_from_slice(BEHIND);
            to.end(start, about)?;
        }
        if to.is_refused() {
            break;
        }
    }
    Ok(())
}

fn known(index: usize) -> Result<&'static Known, Bad> {
    FIELDS.get(index).ok_or(Bad::Coding)
}

/// Starts a section.
#[inline]
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a field. The name may be in any case and is written in lower case; `id` is the name's
/// [`Name::from_bytes`].
pub fn put(id: Name, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let mut of_name = None;
    let mut next = CHAINS.first[chain(id, name.len())];
    while let Some(known) = FIELDS.get(usize::from(next)) {
        if id != Name::Other || same_in_any_case(known.name(), name) {
            if known.value() == value {
                return put_integer(0xc0, 6, next.into(), out);
            }
            of_name.get_or_insert(next);
        }
        next = CHAINS.next[usize::from(next)];
    }
    match of_name {
        Some(index) => put_integer(0x50, 4, index.into(), out),
        None => {
            put_integer(0x20, 3, name.len(), out);
            put_lower(name, out);
        }
    }
    put_text(value, out);
}

/// Appends the status of a response.
pub fn put_status(status: u16, out: &mut Vec<u8>) {
    const NAME: usize = 24;
    let index = match status {
        103 => 24,
        200 => 25,
        304 => 26,
        404 => 27,
        503 => 28,
        100 => 63,
        204 => 64,
        206 => 65,
        302 => 66,
        400 => 67,
        403 => 68,
        421 => 69,
        425 => 70,
        500 => 71,
        _ => {
            let digits = [status / 100 % 10, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
            put_integer(0x50, 4, NAME, out);
            return put_text(&digits, out);
        }
    };
    put_integer(0xc0, 6, index, out);
}

/// Entries of the static table by id, those of unknown names by the length of the name.
struct Chains {
    first: [u8; Name::KNOWN.len() + 1 + LENGTHS],
    /// The next entry in the chain of each entry.
    next: [u8; FIELDS.len()],
}

const LENGTHS: usize = 32;
const END: u8 = u8::MAX;

static CHAINS: Chains = {
    let mut chains = Chains { first: [END; Name::KNOWN.len() + 1 + LENGTHS], next: [END; FIELDS.len()] };
    let mut at = FIELDS.len();
    while at > 0 {
        at -= 1;
        let chain = chain(FIELDS[at].about.id, FIELDS[at].about.name as usize);
        chains.next[at] = chains.first[chain];
        chains.first[chain] = at as u8;
    }
    chains
};

const fn chain(id: Name, length: usize) -> usize {
    match id {
        Name::Other => Name::KNOWN.len() + 1 + length % LENGTHS,
        _ => id as usize,
    }
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
        decode(coded, &mut list, bytes, fields)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ok(list.iter().map(|(name, value, _)| (text(name), text(value))).collect())
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
            put(
                Name::from_bytes(name.as_bytes()),
                name.to_uppercase().as_bytes(),
                value.as_bytes(),
                &mut coded,
            );
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
    fn static_entries_are_found_by_their_names() {
        for (index, field) in FIELDS.iter().enumerate() {
            let (mut coded, mut status) = (vec![0, 0], Vec::new());
            put(field.about.id, field.name(), field.value(), &mut coded);
            let mut expected = vec![0, 0];
            put_integer(0xc0, 6, index, &mut expected);
            assert_eq!(coded, expected, "{field:?}");
            if field.name() == b":status" {
                put_status(str::from_utf8(field.value()).unwrap().parse().unwrap(), &mut status);
                assert_eq!(status, expected[2..]);
            }
            // A name with another value.
            put(field.about.id, field.name(), b"another", &mut coded);
            assert!(coded.len() <= expected.len() + 10, "{field:?} is {coded:?}");
            let fields = read(&coded).unwrap();
            assert_eq!((fields[1].0.as_bytes(), &fields[1].1[..]), (field.name(), "another"));
        }
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
            put(Name::Other, b"x-a", b"12345", &mut coded);
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
